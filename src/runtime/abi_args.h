// Conversions of arguments that calls of several kinds share to the structs of kernels' parameters.
#ifndef TILEWRIGHT_RUNTIME_ABI_ARGS_H_
#define TILEWRIGHT_RUNTIME_ABI_ARGS_H_

#include <array>
#include <cstdint>

#include "abi/attn_fwd_params.h"
#include "tilewright/attention.h"

namespace tilewright {

inline abi::TensorStrides ToAbi(const Strides& strides) {
  return {strides.batch, strides.seq, strides.head, strides.dim};
}

// Scale is abi::ScaleArgs, which are read, or abi::StoredScaleArgs, which are written. `strides`:
// batch (or page), head, token; for one per token only.
template <class Scale, class Value>
Scale ScaleToAbi(ScaleKind kind, Value* scale, const std::array<int64_t, 3>& strides) {
  switch (kind) {
    case ScaleKind::kPerHead:
      return {scale, 0, 1, 0};
    case ScaleKind::kPerToken:
      return {scale, strides[0], strides[1], strides[2]};
    case ScaleKind::kNone:
    case ScaleKind::kPerTensor:
      break;
  }
  return {scale, 0, 0, 0};
}

}  // namespace tilewright

#endif  // TILEWRIGHT_RUNTIME_ABI_ARGS_H_
