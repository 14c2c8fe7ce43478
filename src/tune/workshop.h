// What the tuner asks of the layers around it: make a plan's kernel, and try it on a device. The
// runtime answers with the kernels it would run and the GPU; tests with simulated ones.
#ifndef TILEWRIGHT_TUNE_WORKSHOP_H_
#define TILEWRIGHT_TUNE_WORKSHOP_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "device/device.h"
#include "plan/kernel_plan.h"
#include "tilewright/attention.h"

namespace tilewright::tune {

// What the compiler says about a plan's kernel, or the worst of its kernels.
struct KernelFacts {
  int registers = 0;
  int spill_bytes = 0;
  double compile_ms = 0;  // 0: from the store
  std::string log = {};   // of the compiler
};

// A plan's kernel in the device, ready to launch with the arguments of a call.
class Trial {
 public:
  virtual ~Trial() = default;
  virtual absl::StatusOr<size_t> WorkspaceBytes(const AttentionArgs& args) const = 0;
  virtual absl::Status Launch(const AttentionArgs& args, device::StreamHandle stream) const = 0;
};

// What a device's clocks did.
struct Conditions {
  bool known = false;
  std::string why_unknown;  // no NVML, ...
  int sm_clock_mhz = 0;
  int temperature_c = 0;
  bool throttled = false;  // slower than it will be
  std::string limits;      // what holds the clocks down, in words
};

class Workshop {
 public:
  virtual ~Workshop() = default;
  // Compiles, or takes from the store. Thread-safe, and needs no device.
  virtual absl::StatusOr<KernelFacts> Compile(const plan::KernelPlan& plan) = 0;
  // Loads what Compile has made. Called by one thread.
  virtual absl::StatusOr<std::shared_ptr<const Trial>> Load(const plan::KernelPlan& plan) = 0;
};

// A device with a problem on it. Used by one thread, which holds the device's tuning lock.
class TestBench {
 public:
  virtual ~TestBench() = default;
  // Whether the trial computes what the reference does, and writes nothing else. FailedPrecondition
  // says what differs; other errors that it could not be launched.
  virtual absl::Status Check(const Trial& trial) = 0;
  // Times each trial once, in this order, back to back: milliseconds.
  virtual absl::StatusOr<std::vector<double>> Round(absl::Span<const Trial* const> trials) = 0;
  // Of the round just timed.
  virtual Conditions Observe() = 0;
  // Waits for clocks to recover, or for another program to end.
  virtual void Pause() = 0;
  // Family that Check compares with, or what else.
  virtual std::string reference() const = 0;
  // The spec at whose sizes Round times, in words: a smaller batch may have to do.
  virtual std::string timed_spec() const = 0;
};

}  // namespace tilewright::tune

#endif  // TILEWRIGHT_TUNE_WORKSHOP_H_
