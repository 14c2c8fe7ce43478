// Changes nothing. It stands in a chain that would be empty while the scale is zero or negative: a
// family may fold the scale of an empty chain into the exponent and take maxima of the bare
// products, which is right only when the scale keeps their order.
#ifndef TILEWRIGHT_POLICY_SCORE_UNFOLDED_CUH_
#define TILEWRIGHT_POLICY_SCORE_UNFOLDED_CUH_

#include "core/problem.cuh"
#include "policy/score_chain.cuh"

namespace tilewright {

struct ScoreUnfolded {
  static constexpr bool kHasSlopeOne = true;

  template <class Scalar, class Params>
  TILEWRIGHT_HOST_DEVICE static Scalar Apply(Scalar score, const Problem&, i64, i64,
                                             const Params&) {
    return score;
  }
  template <class Params>
  using Head = ElementwiseScoreHead<ScoreUnfolded, Params>;
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_SCORE_UNFOLDED_CUH_
