// Score modifications, applied in the chain's order to scale * dot(q_i, k_j), for keys that the
// mask keeps only: memory that belongs to other keys is not read.
//
//   Apply(score, problem, i, j, params) -> the new score
//
// Scalar is float in a forward pass; a backward pass may instantiate the chain with a type that
// carries a derivative, so policies use operators and the functions of core/math.cuh on it.
#ifndef TILEWRIGHT_POLICY_SCORE_CHAIN_CUH_
#define TILEWRIGHT_POLICY_SCORE_CHAIN_CUH_

#include "core/problem.cuh"

namespace tilewright {

template <class... Scores>
struct ScoreChain {
  // Whether a score is the scaled product and nothing else, the scale being positive.
  static constexpr bool kIdentity = sizeof...(Scores) == 0;

  template <class Scalar, class Params>
  TILEWRIGHT_HOST_DEVICE static Scalar Apply(Scalar score, [[maybe_unused]] const Problem& problem,
                                             [[maybe_unused]] i64 i, [[maybe_unused]] i64 j,
                                             [[maybe_unused]] const Params& params) {
    ((score = Scores::Apply(score, problem, i, j, params)), ...);
    return score;
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_SCORE_CHAIN_CUH_
