// The arguments of a call as the bytes of a kernel's parameters.
#ifndef TILEWRIGHT_RUNTIME_PACK_ARGS_H_
#define TILEWRIGHT_RUNTIME_PACK_ARGS_H_

#include <cstddef>
#include <cstdint>

#include "emit/param_layout.h"
#include "plan/launch_shape.h"
#include "tilewright/attention.h"

namespace tilewright {

// What the driver takes as parameters of a kernel.
inline constexpr int kMaxParamBytes = 4096;

// Writes layout.size bytes to `params`, which is 8-byte aligned. `spec` is canonical, for one
// kernel of several what emit::SpecOfKernel makes of it; `args` has passed ValidateArgs, `layout`
// is the kernel's MakeParamLayout and `call` what PlanCall says. Allocates nothing.
void PackArgs(const AttentionSpec& spec, const emit::ParamLayout& layout, const AttentionArgs& args,
              std::byte* params, const plan::CallPlan& call = {});

// The Philox word below which a weight is dropped: min(2^32 - 1, round(p * 2^32)).
uint32_t DropoutThreshold(float p);

}  // namespace tilewright

#endif  // TILEWRIGHT_RUNTIME_PACK_ARGS_H_
