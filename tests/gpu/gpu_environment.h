// What all GPU tests share: the device, a runtime with a store of its own, the flags of the
// program, and running a host problem on the device.
#ifndef TILEWRIGHT_TESTS_GPU_GPU_ENVIRONMENT_H_
#define TILEWRIGHT_TESTS_GPU_GPU_ENVIRONMENT_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/random_problem.h"
#include "device/device.h"
#include "device/memory.h"
#include "reference/reference.h"
#include "tests/support/temp_directory.h"
#include "tilewright/runtime.h"

namespace tilewright::gpu_tests {

// Flags of the program beside GoogleTest's.
struct Flags {
  bool slow = false;       // also run the full sizes of cases.md
  bool sanitizer = false;  // only SanitizerSweep(), one run of each
  std::string results;     // write a summary there (bench/result_file.h)
  std::string commit;      // of the tree under test, for the summary
  std::string scenario;    // be a child process of a test (scenarios.h)
  std::string cache_dir;   // the store of that child
  std::string fuzz;        // "COUNT" or "COUNT@SEED": random cases of FuzzTest
  // Plan for a device of so many multiprocessors, 0: as many as it has. With a few of them each
  // block of a kernel that walks over tiles comes to many, as with the large batches of callers.
  int sms = 0;
};
Flags& ProgramFlags();

using TemporaryDirectory = tilewright::testing::TempDirectory;

// One device for the whole program. Thread-safe after its first use.
class GpuEnvironment {
 public:
  static GpuEnvironment& Get();

  // Why there is no device; empty when there is one. Nothing else may be called then.
  const std::string& missing() const { return missing_; }
  const device::DriverApi& api() const { return devices_->api(); }
  const device::DeviceManager& devices() const { return *devices_; }
  const device::DeviceInfo& device() const { return *current_.device; }
  device::ContextHandle context() const { return current_.context; }
  // Shared by the tests that do not look at counters. Its store is empty when the program starts.
  Runtime& runtime() const { return *runtime_; }

 private:
  GpuEnvironment();
  std::string missing_;
  std::shared_ptr<device::DeviceManager> devices_;
  device::DeviceManager::Current current_;
  std::unique_ptr<Runtime> runtime_;
};

// Options of a runtime whose store is `cache_dir` and that never measures.
RuntimeOptions OptionsFor(const std::string& cache_dir);

// Skips without a device; makes the primary context current for the test.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
  GpuEnvironment& gpu() { return GpuEnvironment::Get(); }
  Runtime& runtime() { return gpu().runtime(); }
  device::StreamHandle stream() const { return stream_.get(); }

 private:
  std::optional<device::ScopedContext> context_;
  device::OwnedStream stream_;
};

// The tests of full sizes: `if (SkipUnlessSlow()) GTEST_SKIP() << ...`.
inline bool SkipUnlessSlow() { return !ProgramFlags().slow; }
inline constexpr char kSlowReason[] = "full size: run the program with --slow (ctest -L slow)";

// Prepares the problem's spec, runs it once on fresh device copies of all its arrays (outputs as
// they are on the host: poisoned), and copies the outputs back into `problem`. A backward is
// preceded by the forward whose O and LSE it reads. `prepared`: prepares this spec instead, which
// differs from the problem's in typical sizes alone.
absl::Status RunOnDevice(Runtime& runtime, cli::HostProblem& problem, device::StreamHandle stream,
                         const AttentionSpec* prepared = nullptr);

// Options of a random problem with only this set.
cli::RandomProblemOptions WithSeed(uint64_t seed);
cli::RandomProblemOptions WithLengths(std::vector<int64_t> queries, std::vector<int64_t> keys);

// The bytes of every output array, and filling them with `poison` again.
std::vector<std::vector<std::byte>> OutputBytes(const cli::HostProblem& problem);
void PoisonOutputs(cli::HostProblem& problem, std::byte poison = std::byte{0xff});

// The whole check of one problem: guard zones around the outputs, a run, every element of O and LSE
// (of a backward: also of the gradients) written and nothing else, the accuracy bar of
// cli/accuracy.h on at most `row_limit` rows (cli/gradients.h), and a second run that gives the
// same bytes where it must. Reports failures to GoogleTest.
struct CheckOptions {
  reference::Callables callables = {};
  int64_t row_limit = 4096;
  bool second_run = true;
  std::optional<AttentionSpec> prepared = std::nullopt;  // as RunOnDevice
  double lse_bars = 1;                                   // how many times its bar an LSE may be off
};
void CheckProblem(Runtime& runtime, cli::HostProblem& problem, device::StreamHandle stream,
                  const CheckOptions& options = {});

// As above for random data of a spec.
void CheckSpec(Runtime& runtime, const AttentionSpec& spec, device::StreamHandle stream,
               const cli::RandomProblemOptions& problem_options = {},
               const CheckOptions& options = {});

}  // namespace tilewright::gpu_tests

#endif  // TILEWRIGHT_TESTS_GPU_GPU_ENVIRONMENT_H_
