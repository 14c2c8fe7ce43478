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
//   Unimplemented  the arguments cannot be made up: snippets that read arrays, whose lengths only
//                  the snippet knows
absl::StatusOr<size_t> ScratchBytes(const AttentionSpec& spec, const ScratchOptions& options);

// What a call wrote to one of its outputs.
struct ScratchOutput {
  std::string name;
  ElementType type = ElementType::kFp32;
  std::string bytes;
};

class ScratchProblem {
 public:
  // Allocates one block, fills it on `stream` and waits. Values are random bit patterns of each
  // type with magnitudes between 1/8 and 2, the same for equal seeds, and repeat after a prime
  // number of elements, so that neighbouring tiles differ: host memory and the bus see a few
  // hundred kilobytes whatever the size. The LSE that a backward reads is about what scores of such
  // values have. Errors as ScratchBytes; ResourceExhausted.
  static absl::StatusOr<ScratchProblem> Create(const device::DriverApi& api,
                                               const AttentionSpec& spec,
                                               const ScratchOptions& options,
                                               device::StreamHandle stream);

  const AttentionArgs& args() const { return args_; }
  size_t bytes() const { return memory_.size(); }

  // Everything as Create made it, whatever has been written meanwhile.
  absl::Status Restore(device::StreamHandle stream);
  // Fills the outputs with 0xff (NaN), gaps between rows included.
  absl::Status PoisonOutputs(device::StreamHandle stream);
  absl::StatusOr<std::vector<ScratchOutput>> ReadOutputs(device::StreamHandle stream) const;
  // FailedPrecondition names the array beside which something was written.
  absl::Status CheckGuards(device::StreamHandle stream) const;

 private:
  struct Region {
    std::string name;
    size_t offset = 0;
    size_t bytes = 0;
    bool output = false;
    ElementType type = ElementType::kFp32;  // of an output
  };

  AttentionSpec spec_;
  ScratchOptions options_;
  device::DeviceBuffer memory_;
  std::vector<Region> regions_;  // ascending
  AttentionArgs args_;
};

}  // namespace tilewright::tune

#endif  // TILEWRIGHT_TUNE_SCRATCH_H_
