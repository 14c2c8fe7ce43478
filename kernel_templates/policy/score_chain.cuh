// Score modifications, applied in the chain's order to scale * dot(q_i, k_j), for keys that the
// mask keeps only: memory that belongs to other keys is not read.
//
//   Apply(score, problem, i, j, params) -> the new score
//
// Scalar is float in a forward pass; a backward pass may instantiate the chain with a type that
// carries a derivative, so policies use operators and the functions of core/math.cuh on it.
//
// Two refinements that a policy may offer, and that families with many scores a thread use:
//   struct Row { Row(problem, i, first_key, params); float Apply(score, column) const; };
//     the same for key first_key + column, what depends on the row alone having been computed once
//   kPointwise, ApplyToAll(products, scale, params), Unit(params)
//     for a policy that looks at the score alone: all products of a thread, masked ones included,
//     to scores in multiples of a positive unit
#ifndef TILEWRIGHT_POLICY_SCORE_CHAIN_CUH_
#define TILEWRIGHT_POLICY_SCORE_CHAIN_CUH_

#include "core/problem.cuh"

namespace tilewright {

template <class Score, class Params>
concept HasRow = requires(const Problem& problem, i64 n, const Params& params) {
  typename Score::Row;
};

// A policy's scores of one row, by its own Row or by Apply.
template <class Score, class Params>
struct ScoreRow {
  const Problem& problem;
  const Params& params;
  i64 i;
  i64 first_key;

  TILEWRIGHT_HOST_DEVICE ScoreRow(const Problem& problem, i64 i, i64 first_key,
                                  const Params& params)
      : problem(problem), params(params), i(i), first_key(first_key) {}
  TILEWRIGHT_HOST_DEVICE float Apply(float score, int column) const {
    return Score::Apply(score, problem, i, first_key + column, params);
  }
};
template <class Score, class Params>
requires HasRow<Score, Params>
struct ScoreRow<Score, Params> : Score::Row {
  using Score::Row::Row;
};

template <class Score>
concept IsPointwise = requires {
  Score::kPointwise;
};

template <class... Scores>
struct ScoreChain {
  // Whether a score is the scaled product and nothing else, the scale being positive.
  static constexpr bool kIdentity = sizeof...(Scores) == 0;

  // Whether the chain is one policy with ApplyToAll.
  static constexpr bool kIsPointwise = sizeof...(Scores) == 1 && (IsPointwise<Scores> && ...);

  // The scores of one row.
  template <class Params>
  struct Row : ScoreRow<Scores, Params>... {
    TILEWRIGHT_HOST_DEVICE Row(const Problem& problem, i64 i, i64 first_key, const Params& params)
        : ScoreRow<Scores, Params>(problem, i, first_key, params)... {}
    TILEWRIGHT_HOST_DEVICE float Apply(float score, int column) const {
      ((score = ScoreRow<Scores, Params>::Apply(score, column)), ...);
      return score;
    }
  };

  template <int kCount, class Params>
  TILEWRIGHT_HOST_DEVICE static void ApplyToAll(float (&products)[kCount], float scale,
                                                const Params& params) {
    (Scores::ApplyToAll(products, scale, params), ...);
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static float Unit(const Params& params) {
    return (Scores::Unit(params), ...);
  }

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
