// The arguments of a call in memory of the tuner's own: the sizes, strides and lengths of a spec,
// random data, and bytes around every array that a kernel has no business with.
#ifndef TILEWRIGHT_TUNE_SCRATCH_H_
#define TILEWRIGHT_TUNE_SCRATCH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/device.h"
#include "device/memory.h"
#include "tilewright/attention.h"

namespace tilewright::tune {

struct ScratchOptions {
  uint64_t seed = 1;
  // Of varlen specs, one a sequence; empty: a mix between a quarter of the spec's length and all of
  // it, the first sequence as long as the spec says.
  std::vector<int64_t> lengths_q = {};
  std::vector<int64_t> lengths_kv = {};
  const device::DeviceAllocator* allocator = nullptr;  // absent: the driver's
};

// Bytes of device memory that ScratchProblem::Create takes for `spec` (canonical).
//   Unimplemented  the arguments cannot be made up: backward, snippets that read arrays (whose
//                  lengths only the snippet knows)
absl::StatusOr<size_t> ScratchBytes(const AttentionSpec& spec, const ScratchOptions& options);

class ScratchProblem {
 public:
  // Allocates one block, fills it on `stream` and waits. Values are random bit patterns of each
  // type with magnitudes between 1/8 and 2, the same for equal seeds, and repeat after a prime
  // number of elements, so that neighbouring tiles differ: host memory and the bus see a few
  // hundred kilobytes whatever the size. Errors as ScratchBytes; ResourceExhausted.
  static absl::StatusOr<ScratchProblem> Create(const device::DriverApi& api,
                                               const AttentionSpec& spec,
                                               const ScratchOptions& options,
                                               device::StreamHandle stream);

  const AttentionArgs& args() const { return args_; }
  size_t bytes() const { return memory_.size(); }

  // Fills o and lse with 0xff (NaN), gaps between rows included.
  absl::Status PoisonOutputs(device::StreamHandle stream);
  // The bytes of o and lse.
  absl::StatusOr<std::string> ReadOutput(device::StreamHandle stream) const;
  absl::StatusOr<std::vector<float>> ReadLse(device::StreamHandle stream) const;
  // FailedPrecondition names the array beside which something was written.
  absl::Status CheckGuards(device::StreamHandle stream) const;

 private:
  struct Region {
    std::string name;
    size_t offset = 0;
    size_t bytes = 0;
  };

  device::DeviceBuffer memory_;
  std::vector<Region> regions_;  // ascending
  Region output_;
  Region lse_;
  AttentionArgs args_;
};

}  // namespace tilewright::tune

#endif  // TILEWRIGHT_TUNE_SCRATCH_H_
