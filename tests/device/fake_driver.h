// A CUDA driver that records what it is asked, for tests on machines without one. Device memory is
// host memory, kernels run only as far as a hook of the test runs them, and time passes only by
// what the test says a launch takes.
//
//   FakeDriver driver;                       // one at a time in a process
//   auto manager = *DeviceManager::Create(&driver.api());
//   driver.Fail("cuLibraryLoadData", CUDA_ERROR_INVALID_IMAGE);
//   ...
//   EXPECT_EQ(driver.launches().back().grid[0], 132u);
#ifndef TILEWRIGHT_TESTS_DEVICE_FAKE_DRIVER_H_
#define TILEWRIGHT_TESTS_DEVICE_FAKE_DRIVER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "device/driver_api.h"

namespace tilewright::device {

struct FakeDevice {
  std::string name = "Fake H200";
  int compute_major = 9;
  int compute_minor = 0;
  int num_sms = 132;
  int l2_bytes = 50 << 20;
  int sm_clock_khz = 1980000;
  int memory_clock_khz = 3201000;
  int memory_bus_bits = 6144;
  int smem_per_block_optin = 232448;
  size_t memory_bytes = size_t{8} << 30;
};

struct FakeLaunch {
  std::array<unsigned, 3> grid;
  std::array<unsigned, 3> block;
  unsigned smem_bytes = 0;
  unsigned num_attributes = 0;
  CUstream stream = nullptr;
  CUcontext context = nullptr;  // current when it was launched
  std::string kernel;           // its entry name
  int max_dynamic_smem = 0;     // the kernel's attribute on that device
  std::string params;           // the first params_bytes of the kernel's one argument
};

class FakeDriver {
 public:
  explicit FakeDriver(std::vector<FakeDevice> devices = {FakeDevice()});
  ~FakeDriver();
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  const DriverApi& api() const { return api_; }

  // ---- what it should do ----

  // The next `times` calls of `function` ("cuMemAlloc") after `skip` good ones give `result` and do
  // nothing. times < 0: all of them.
  void Fail(const std::string& function, CUresult result, int times = 1, int skip = 0);
  void StopFailing(const std::string& function);

  void set_params_bytes(size_t bytes);
  // Called by each launch, in the launching thread and with no lock held: may read and write
  // "device" memory. Not called for captured launches.
  void set_on_launch(std::function<void(const FakeLaunch&)> hook);
  // How long a launch takes on the device. Absent: 0.01 ms each.
  void set_launch_ms(std::function<double(const FakeLaunch&)> cost);
  void set_static_smem_bytes(int bytes);  // of every kernel
  // Answers of cuStreamIsCapturing. nullptr is the legacy stream, which cannot be captured itself:
  // for it CUDA_ERROR_STREAM_CAPTURE_IMPLICIT is given.
  void SetCapturing(CUstream stream, bool capturing);
  // As if another thread had begun a capture in global mode: calls that are unsafe then fail and
  // spoil the capture, unless their thread is in relaxed mode.
  void SetGlobalCapture(bool active);

  // A context of the caller's own, not current anywhere.
  CUcontext MakeContext(int ordinal);
  // As if it had been destroyed and another one made that came to lie at its address: a handle that
  // is the same, an id that is not.
  void RecreateContext(CUcontext context);

  // Forgets the calls and launches so far, for tests with so many that they take memory.
  void ForgetCalls();

  // ---- what it saw ----

  int CallCount(const std::string& function) const;
  std::vector<std::string> calls() const;  // names, in order
  std::vector<FakeLaunch> launches() const;
  int live_libraries() const;
  int loaded_libraries() const;  // ever
  int live_allocations() const;
  size_t live_bytes() const;
  int live_streams() const;
  int live_events() const;
  int retained_primaries() const;
  bool capture_spoilt() const;
  // Of the calling thread.
  CUstreamCaptureMode capture_mode() const;
  std::vector<CUcontext> context_stack() const;  // the current one last

  // For the functions of the table only.
  static FakeDriver* Active();
  bool Enter(const char* function, CUresult* injected);

 private:
  friend struct FakeFunctions;
  struct Failure {
    CUresult result;
    int times;
    int skip;
  };
  struct Thread {
    std::vector<CUcontext> contexts;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  };
  struct Kernel {
    CUlibrary library = nullptr;
    std::string name;
    std::map<int, int> max_dynamic_smem;  // by device
  };

  CUcontext CurrentLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A handle that no other object of this driver has.
  template <typename Handle>
  Handle NewHandleLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return reinterpret_cast<Handle>(next_handle_ += 16);
  }

  DriverApi api_;
  const std::vector<FakeDevice> devices_;
  mutable Mutex mutex_;
  std::map<std::string, Failure> failures_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> counts_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> calls_ ABSL_GUARDED_BY(mutex_);
  std::map<std::thread::id, Thread> threads_ ABSL_GUARDED_BY(mutex_);
  std::map<CUcontext, int> contexts_ ABSL_GUARDED_BY(mutex_);        // device of each
  std::map<CUcontext, unsigned> recreated_ ABSL_GUARDED_BY(mutex_);  // how often, each
  std::map<int, CUcontext> primaries_ ABSL_GUARDED_BY(mutex_);
  std::map<int, int> primary_retains_ ABSL_GUARDED_BY(mutex_);
  std::set<CUlibrary> libraries_ ABSL_GUARDED_BY(mutex_);
  int loaded_libraries_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<CUkernel, Kernel> kernels_ ABSL_GUARDED_BY(mutex_);
  std::map<CUfunction, CUkernel> functions_ ABSL_GUARDED_BY(mutex_);
  // What cuMemAlloc gives begins on a multiple of this.
  static constexpr size_t kMemoryAlignment = 256;
  struct FreeMemory {
    void operator()(char* data) const {
      operator delete[](data, std::align_val_t{kMemoryAlignment});
    }
  };
  using Memory = std::unique_ptr<char[], FreeMemory>;
  std::map<CUdeviceptr, Memory> memory_ ABSL_GUARDED_BY(mutex_);
  std::map<CUdeviceptr, size_t> sizes_ ABSL_GUARDED_BY(mutex_);
  std::set<CUstream> streams_ ABSL_GUARDED_BY(mutex_);
  std::map<CUevent, double> events_ ABSL_GUARDED_BY(mutex_);  // when recorded, ms
  std::set<CUstream> capturing_ ABSL_GUARDED_BY(mutex_);
  std::vector<FakeLaunch> launches_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const FakeLaunch&)> on_launch_ ABSL_GUARDED_BY(mutex_);
  std::function<double(const FakeLaunch&)> launch_ms_ ABSL_GUARDED_BY(mutex_);
  double now_ms_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t params_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int static_smem_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool global_capture_ ABSL_GUARDED_BY(mutex_) = false;
  bool capture_spoilt_ ABSL_GUARDED_BY(mutex_) = false;
  uintptr_t next_handle_ ABSL_GUARDED_BY(mutex_) = 0x1000;
};

}  // namespace tilewright::device

#endif  // TILEWRIGHT_TESTS_DEVICE_FAKE_DRIVER_H_
