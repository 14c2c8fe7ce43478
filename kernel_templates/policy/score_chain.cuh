// Score modifications, applied in the chain's order to scale * dot(q_i, k_j), for keys that the
// mask keeps only: memory that belongs to other keys is not read.
//
//   Apply(score, problem, i, j, params) -> the new score
//   kHasSlopeOne
//     whether the new score is the old one plus something that does not depend on it
//   kHasOwnGradient
//     (without slope one) whether the derivative is not that of Apply but what follows
//   Gradient(score, d_score, adds, problem, i, j, params) -> gradient of `score`
//     of the score that Apply was given, from the gradient of the new one. It may add to the
//     gradients of arrays, if `adds`: a backward pass computes it more than once for a pair.
//
// Scalar is float in a forward pass and Dual in a backward pass, so policies use operators and the
// functions of core/math.cuh on it. Only the last policy of a chain may have a gradient of its own.
//
// Two refinements that a policy may offer, and that families with many scores a thread use:
//   struct Row { Row(problem, i, first_key, params); float Apply(score, column) const; };
//     the same for key first_key + column, what depends on the row alone having been computed once
//   kPointwise, ApplyToAll(products, scale, params), Unit(params)
//     for a policy that looks at the score alone: all products of a thread, masked ones included,
//     to scores in multiples of a positive unit
//
// For families that hold many scores of a row at once, in steps, each done as seldom as
// its arguments change:
//
//   Head<Params> head(problem, params)            once a problem
//   Head<Params>::Row row(head, keys)             once a row and tile; keys.i < seqlen_q
//   row.template Apply<Runs>(scores, keep)        scores[n] belongs to key keys.j + Runs::Offset(n)
//
// Scores that are not in the set `keep` may become anything; keys outside of it that exist may be
// looked up (a bias term has them), keys that do not exist are not. This form may be approximate to
// the accuracy that 16-bit operands ask for.
#ifndef TILEWRIGHT_POLICY_SCORE_CHAIN_CUH_
#define TILEWRIGHT_POLICY_SCORE_CHAIN_CUH_

#include "core/dual.cuh"
#include "core/problem.cuh"
#include "policy/key_runs.cuh"

namespace tilewright {

// Head of a policy that has nothing but its rule per element.
template <class Score, class Params>
struct ElementwiseScoreHead {
  const Problem& problem;
  const Params& params;

  TILEWRIGHT_HOST_DEVICE ElementwiseScoreHead(const Problem& problem, const Params& params)
      : problem(problem), params(params) {}

  struct Row {
    const ElementwiseScoreHead& head;
    LaneKeys keys;

    TILEWRIGHT_HOST_DEVICE Row(const ElementwiseScoreHead& head, const LaneKeys& keys)
        : head(head), keys(keys) {}

    template <class Runs>
    TILEWRIGHT_HOST_DEVICE void Apply(float (&scores)[Runs::kCount], u32 keep) const {
      TILEWRIGHT_UNROLL
      for (int n = 0; n < Runs::kCount; ++n) {
        if (keep >> n & 1) {
          scores[n] =
              Score::Apply(scores[n], head.problem, keys.i, keys.j + Runs::Offset(n), head.params);
        }
      }
    }
  };
};

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

// A score and how it came about.
struct ScorePoint {
  float score;
  // Derivatives of the score (of what the last policy was given, if that has its own gradient).
  float by_dot;   // scale * dot
  float by_bias;  // the sum of bias terms and ALiBi
  float before_last;
};

// Gradients of what the score depends on.
struct ScoreGradient {
  float dot;   // of scale * dot
  float bias;  // of the sum of bias terms and ALiBi
};

template <class... Scores>
struct ScoreChain {
  // Whether a score is the scaled product and nothing else, the scale being positive.
  static constexpr bool kIdentity = sizeof...(Scores) == 0;
  // Whether all derivatives are 1.
  static constexpr bool kHasSlopeOne = (Scores::kHasSlopeOne && ...);

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

  template <class Params>
  struct Head : Scores::template Head<Params>... {
    TILEWRIGHT_HOST_DEVICE Head([[maybe_unused]] const Problem& problem,
                                [[maybe_unused]] const Params& params)
        : Scores::template Head<Params>(problem, params)... {}

    struct Row : Scores::template Head<Params>::Row... {
      TILEWRIGHT_HOST_DEVICE Row([[maybe_unused]] const Head& head,
                                 [[maybe_unused]] const LaneKeys& keys)
          : Scores::template Head<Params>::Row(head, keys)... {}

      template <class Runs>
      TILEWRIGHT_HOST_DEVICE void Apply([[maybe_unused]] float (&scores)[Runs::kCount],
                                        [[maybe_unused]] u32 keep) const {
        (Scores::template Head<Params>::Row::template Apply<Runs>(scores, keep), ...);
      }
    };
  };

  template <class Params>
  TILEWRIGHT_HOST_DEVICE static ScorePoint Differentiate(float score,
                                                         [[maybe_unused]] const Problem& problem,
                                                         [[maybe_unused]] i64 i,
                                                         [[maybe_unused]] i64 j,
                                                         [[maybe_unused]] const Params& params) {
    Walk walk;
    walk.score = {score, 1};
    (walk.template Step<Scores>(problem, i, j, params), ...);
    const float after = walk.score.derivative;
    return {walk.score.value, walk.before_terms * after, after, walk.before_last};
  }

  // `d_score` is the gradient of point.score.
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static ScoreGradient Gradient(const ScorePoint& point, float d_score,
                                                       [[maybe_unused]] bool adds,
                                                       [[maybe_unused]] const Problem& problem,
                                                       [[maybe_unused]] i64 i,
                                                       [[maybe_unused]] i64 j,
                                                       [[maybe_unused]] const Params& params) {
    ((d_score = ThroughOwn<Scores>(point, d_score, adds, problem, i, j, params)), ...);
    return {d_score * point.by_dot, d_score * point.by_bias};
  }

 private:
  // The derivative is by scale * dot up to the first term that is added, by the terms after it.
  struct Walk {
    Dual score = 0;
    float before_terms = 1;
    float before_last = 0;
    bool at_terms = false;

    template <class Score, class Params>
    TILEWRIGHT_HOST_DEVICE void Step(const Problem& problem, i64 i, i64 j, const Params& params) {
      if constexpr (Score::kHasSlopeOne) {
        if (!at_terms) {
          before_terms = score.derivative;
          score.derivative = 1;
          at_terms = true;
        }
        score.value = Score::Apply(score.value, problem, i, j, params);
      } else if constexpr (Score::kHasOwnGradient) {
        before_last = score.value;
        score.value = Score::Apply(score.value, problem, i, j, params);
      } else {
        score = Score::Apply(score, problem, i, j, params);
      }
    }
  };

  template <class Score, class Params>
  TILEWRIGHT_HOST_DEVICE static float ThroughOwn(const ScorePoint& point, float d_score, bool adds,
                                                 const Problem& problem, i64 i, i64 j,
                                                 const Params& params) {
    if constexpr (!Score::kHasSlopeOne) {
      if constexpr (Score::kHasOwnGradient) {
        return Score::Gradient(point.before_last, d_score, adds, problem, i, j, params);
      }
    }
    return d_score;
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_SCORE_CHAIN_CUH_
