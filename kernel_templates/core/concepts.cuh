// What a family asks of the policies of its Config, so that a wrong policy is named where the
// family starts and not deep inside it.
#ifndef TILEWRIGHT_CORE_CONCEPTS_CUH_
#define TILEWRIGHT_CORE_CONCEPTS_CUH_

#include "core/problem.cuh"
#include "core/types.cuh"

namespace tilewright {

template <class A, class B>
inline constexpr bool kIsSame = false;
template <class A>
inline constexpr bool kIsSame<A, A> = true;

template <class From, class To>
concept ReturnsAs = kIsSame<From, To>;

// policy/mask_chain.cuh says what the functions mean.
template <class Mask, class Params>
concept MaskPolicy = requires(const Problem& problem, i64 n, const Params& params) {
  Mask::NBlocks(problem, n, n, n, params).full_end;
  Mask::RowKeys(problem, n, params).end;
  { Mask::kIsInterval } -> ReturnsAs<const bool&>;
  { Mask::Skip(problem, n, n, n, n, params) } -> ReturnsAs<bool>;
  { Mask::Keep(problem, n, n, params) } -> ReturnsAs<bool>;
};

// policy/score_chain.cuh
template <class Score, class Params>
concept ScorePolicy = requires(float score, const Problem& problem, i64 n, const Params& params) {
  { Score::Apply(score, problem, n, n, params) } -> ReturnsAs<float>;
};

// policy/kv_rows.cuh
template <class KvRows, class Params>
concept KvRowsPolicy = requires(const Problem& problem, i64 n, const Params& params) {
  { KvRows::Locate(problem, n, params).exists() } -> ReturnsAs<bool>;
};

}  // namespace tilewright

#endif  // TILEWRIGHT_CORE_CONCEPTS_CUH_
