// The test bench on a real device.
#ifndef TILEWRIGHT_TUNE_DEVICE_BENCH_H_
#define TILEWRIGHT_TUNE_DEVICE_BENCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "device/device.h"
#include "device/memory.h"
#include "device/monitor.h"
#include "tilewright/attention.h"
#include "tune/scratch.h"
#include "tune/workshop.h"

namespace tilewright::tune {

struct BenchOptions {
  // Share of the free device memory, and bytes, that all scratch together may take; the problem is
  // timed with a smaller batch where it needs more.
  double memory_share = 0.25;
  int64_t max_bytes = int64_t{4} << 30;
  // Before each timed launch the L2 cache is filled with other data: twice its size, at least this.
  // A kernel in an application finds its inputs cold more often than warm.
  bool cold = true;
  int64_t min_flush_bytes = int64_t{128} << 20;
  // Work of one timed launch, in multiplications and additions: beyond it the batch is made smaller
  // where enough of it is left to fill the device.
  double max_flops = 4e12;
  // And of the check against the reference, for which lengths are made shorter too.
  double max_check_flops = 2e10;
  int pause_ms = 50;
  ScratchOptions scratch = {};
};

class DeviceBench : public TestBench {
 public:
  // On the context of `where`, which is made current for each call; never synchronises it as a
  // whole, and works in a stream of its own. `spec` is what the trials were made for. `reference`
  // may be null: then `first` is what others are compared with.
  //   ResourceExhausted  not even one batch fits the share of memory
  //   Unimplemented      ScratchBytes
  static absl::StatusOr<std::unique_ptr<DeviceBench>> Create(
      const device::DriverApi& api, const device::DeviceManager::Current& where,
      const AttentionSpec& spec, const Trial& first, const Trial* reference,
      std::string reference_name, BenchOptions options);

  absl::Status Check(const Trial& trial) override;
  absl::StatusOr<std::vector<double>> Round(absl::Span<const Trial* const> trials) override;
  Conditions Observe() override;
  void Pause() override;
  std::string reference() const override { return reference_name_; }
  std::string timed_spec() const override { return timed_spec_; }

  ~DeviceBench() override;
  DeviceBench(const DeviceBench&) = delete;
  DeviceBench& operator=(const DeviceBench&) = delete;

 private:
  // What lives on the device, made and released with the context current.
  struct Holdings {
    device::OwnedStream stream;
    ScratchProblem check;
    ScratchProblem timed;
    device::DeviceBuffer flush;
    device::DeviceBuffer workspace;
    std::vector<device::OwnedEvent> events;  // two a trial
  };

  DeviceBench(const device::DriverApi& api, const device::DeviceManager::Current& where,
              AttentionSpec spec, BenchOptions options)
      : api_(api), where_(where), spec_(std::move(spec)), options_(std::move(options)) {}
  absl::Status Open(const Trial& first, const Trial* reference);
  // Runs `trial` on the check problem, outputs and workspace poisoned.
  absl::StatusOr<std::vector<ScratchOutput>> RunCheck(const Trial& trial);
  // Check with the context current; what it finds wrong may have spoilt the problems.
  absl::Status CheckOnce(const Trial& trial);
  // `problem`'s arguments with a workspace of what the trial asks for.
  absl::StatusOr<AttentionArgs> ArgsFor(const Trial& trial, const ScratchProblem& problem);

  const device::DriverApi& api_;
  const device::DeviceManager::Current where_;
  const AttentionSpec spec_;
  const BenchOptions options_;
  std::string reference_name_;
  std::string timed_spec_;
  std::unique_ptr<Holdings> held_;
  std::unique_ptr<device::DeviceMonitor> monitor_;  // null: there is none
  std::string why_no_monitor_;
  std::vector<ScratchOutput> reference_outputs_;
  uint8_t flush_byte_ = 0;
};

// Compares what two kernels wrote to one output, `spec` saying how exact its arithmetic is.
// FailedPrecondition names the element that is off most. Bytes that neither wrote are equal.
absl::Status CompareOutput(const AttentionSpec& spec, const ScratchOutput& output,
                           const ScratchOutput& reference);

// The sizes to time and to check `spec` at, both with the bias tables of the spec.
AttentionSpec TimedSpec(const AttentionSpec& spec, int64_t max_bytes, double max_flops,
                        const ScratchOptions& scratch);
AttentionSpec CheckSpec(const AttentionSpec& spec, int64_t max_bytes, double max_flops,
                        const ScratchOptions& scratch);

}  // namespace tilewright::tune

#endif  // TILEWRIGHT_TUNE_DEVICE_BENCH_H_
