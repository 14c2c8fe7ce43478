// What a slope of ALiBi gets of the gradient of a score.
#ifndef TILEWRIGHT_POLICY_ALIBI_GRADIENT_CUH_
#define TILEWRIGHT_POLICY_ALIBI_GRADIENT_CUH_

#include "policy/mask_chain.cuh"

namespace tilewright {

struct AlibiGradientNone {};

template <Align kAlign>
struct AlibiGradientOf {
  // d score / d slope
  TILEWRIGHT_HOST_DEVICE static float Share(const Problem& problem, i64 i, i64 j) {
    const i64 offset = j - DiagonalKey<kAlign>(problem, i);
    return static_cast<float>(offset < 0 ? offset : -offset);
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_ALIBI_GRADIENT_CUH_
