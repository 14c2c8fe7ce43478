// Bias terms, additive and masking: params.bias[k] describes term k of the spec.
#ifndef TILEWRIGHT_POLICY_BIAS_TERMS_CUH_
#define TILEWRIGHT_POLICY_BIAS_TERMS_CUH_

#include "abi/policy_args.h"
#include "core/convert.cuh"
#include "policy/mask_chain.cuh"

namespace tilewright {

// Strides of broadcast axes are 0.
TILEWRIGHT_HOST_DEVICE i64 BiasOffset(const abi::BiasArgs& bias, const Problem& problem, i64 i,
                                      i64 j) {
  return (problem.b / bias.batch_div) % bias.batch_mod * bias.stride_batch +
         problem.h * bias.stride_head + i * bias.stride_q + j * bias.stride_kv;
}

template <int kTerm, class Element>
struct ScoreBias {
  static constexpr bool kHasSlopeOne = true;

  template <class Scalar, class Params>
  TILEWRIGHT_HOST_DEVICE static Scalar Apply(Scalar score, const Problem& problem, i64 i, i64 j,
                                             const Params& params) {
    const abi::BiasArgs& bias = params.bias[kTerm];
    return score + static_cast<float>(
                       static_cast<const Element*>(bias.data)[BiasOffset(bias, problem, i, j)]);
  }
};

// Nonzero keeps.
template <int kTerm>
struct MaskBias : MaskElementwise {
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static bool Keep(const Problem& problem, i64 i, i64 j,
                                          const Params& params) {
    const abi::BiasArgs& bias = params.bias[kTerm];
    return static_cast<const Bool8*>(bias.data)[BiasOffset(bias, problem, i, j)];
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_BIAS_TERMS_CUH_
