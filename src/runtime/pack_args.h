// The arguments of a call as the bytes of a kernel's parameters.
#ifndef TILEWRIGHT_RUNTIME_PACK_ARGS_H_
#define TILEWRIGHT_RUNTIME_PACK_ARGS_H_

#include <cstddef>
#include <cstdint>

#include "emit/param_layout.h"
#include "tilewright/attention.h"

namespace tilewright {

// What the driver takes as parameters of a kernel.
inline constexpr int kMaxParamBytes = 4096;

// Writes layout.size bytes to `params`, which is 8-byte aligned. `args` has passed ValidateArgs for
// the canonical `spec`, and `layout` is MakeParamLayout(spec). Allocates nothing.
void PackArgs(const AttentionSpec& spec, const emit::ParamLayout& layout, const AttentionArgs& args,
              std::byte* params);

// The Philox word below which a weight is dropped: min(2^32 - 1, round(p * 2^32)).
uint32_t DropoutThreshold(float p);

}  // namespace tilewright

#endif  // TILEWRIGHT_RUNTIME_PACK_ARGS_H_
