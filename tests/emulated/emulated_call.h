// A call of an attention on the CPU, as Runtime::Run would make it on a device: all kernels of a
// plan, on the bytes that the runtime packs.
#ifndef TILEWRIGHT_TESTS_EMULATED_CALL_H_
#define TILEWRIGHT_TESTS_EMULATED_CALL_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "artifact/kernel_source.h"
#include "plan/kernel_plan.h"
#include "tests/emulated/emulated_kernel.h"
#include "tests/emulated/emulator/launch.h"
#include "tilewright/attention.h"

namespace tilewright::emulated {

// What is to be compiled for a spec.
struct CallSource {
  AttentionSpec spec;  // canonical
  plan::KernelPlan plan;
  std::vector<artifact::KernelSource> kernels;
};
absl::StatusOr<CallSource> EmitCall(const AttentionSpec& spec, const plan::KernelPlan& plan);

// The families of the forward that the emulator runs.
std::vector<plan::Family> ForwardFamilies();

// The plans that `family` offers for `spec`, best first; Unimplemented when there are none.
absl::StatusOr<std::vector<plan::KernelPlan>> PlansOf(const AttentionSpec& spec,
                                                      plan::Family family);

// The kernels of a call, compiled. Movable.
class Call {
 public:
  explicit Call(CallSource source);

  // Runs them in their order. `args` holds host pointers, to what `memory` lists; its workspace is
  // provided here, full of NaN. Each kernel runs with half of its blocks, the others' tiles being
  // reached by the stride of the grid; attn_bwd_sm90 has a block for each tile. Returns what the
  // emulator found wrong, or the error of a compile or of the arguments. `calls`: of the same
  // arguments and workspace, one after the other.
  std::vector<std::string> Run(AttentionArgs args,
                               const std::vector<cuda_on_host::MemoryRange>& memory,
                               int calls = 1) const;

 private:
  CallSource source_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
};

}  // namespace tilewright::emulated

#endif  // TILEWRIGHT_TESTS_EMULATED_CALL_H_
