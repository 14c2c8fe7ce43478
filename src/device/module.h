// A cubin in the driver, ready to launch. Free of <cuda.h>.
#ifndef TILEWRIGHT_DEVICE_MODULE_H_
#define TILEWRIGHT_DEVICE_MODULE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "device/device.h"

struct CUlib_st;
struct CUkern_st;
struct CUfunc_st;

namespace tilewright::device {

struct LoadOptions {
  std::string entry_name;
  // Raises the kernel's limit where this and its static shared memory are above 48 KB.
  int64_t dynamic_smem_bytes = 0;
};

// Owns a CUlibrary and its one kernel. Immutable after Load, shared between the memory cache and
// running callers: it is unloaded when the last of them lets go, so never while one launches.
// Unloading tolerates a driver that is shutting down and a capture under way, and does not happen
// to a kernel that was launched into a capture: a graph may hold it, and nobody tells us for how
// long.
class LoadedKernel {
 public:
  // Loads fully: the kernel is resolved, forced into the given context and its attributes set on
  // `device`, so that nothing is left for the first launch. The context's own state, and a capture
  // that some other thread has under way, stay as they are; refusing to load for a stream that is
  // being captured is the caller's part. Internal with the driver's error (ResourceExhausted when
  // the device is out of memory, or asked for more shared memory than it has); payload
  // "tilewright/load_rejected" when the driver refused the image itself (the caller drops the entry
  // and compiles once more).
  static absl::StatusOr<std::shared_ptr<const LoadedKernel>> Load(
      const DriverApi& api, const DeviceManager::Current& where, absl::string_view cubin,
      const LoadOptions& options);
  ~LoadedKernel();
  LoadedKernel(const LoadedKernel&) = delete;
  LoadedKernel& operator=(const LoadedKernel&) = delete;

  ContextHandle context() const { return context_; }
  int device_ordinal() const { return device_ordinal_; }

  struct LaunchConfig {
    uint32_t grid = 0;
    uint32_t block = 0;
    uint32_t smem_bytes = 0;
    // The kernel may start before the one ahead of it on the stream has ended, for which it waits
    // itself (griddepcontrol.wait). Without effect before compute capability 9.0.
    bool overlaps = false;
  };
  // `params` are the bytes of the kernel's one by-value parameter. FailedPrecondition when the
  // calling thread's current context is not the one loaded for; Internal with the driver's error
  // otherwise. No allocation, no lock. Where `stream` is being captured the kernel is kept loaded
  // for good.
  absl::Status Launch(const LaunchConfig& config, const void* params, StreamHandle stream) const;

  // Whether it was launched into a capture.
  bool captured() const { return captured_.load(std::memory_order_relaxed); }

 private:
  LoadedKernel() = default;
  const DriverApi* api_ = nullptr;
  ContextHandle context_ = nullptr;
  uint64_t context_id_ = 0;  // a later context may lie at the same address
  int device_ordinal_ = 0;
  bool can_overlap_ = false;
  CUlib_st* library_ = nullptr;
  CUkern_st* kernel_ = nullptr;
  CUfunc_st* function_ = nullptr;  // of the context
  mutable std::atomic<bool> captured_ = false;
};

}  // namespace tilewright::device

#endif  // TILEWRIGHT_DEVICE_MODULE_H_
