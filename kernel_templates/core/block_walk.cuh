// The blocks of keys that a tile of query rows needs, last to first.
#ifndef TILEWRIGHT_CORE_BLOCK_WALK_CUH_
#define TILEWRIGHT_CORE_BLOCK_WALK_CUH_

#include "core/math.cuh"
#include "core/problem.cuh"

namespace tilewright {

// Whether there may be blocks that need no element test. Element rules besides an interval are
// tested in every block; missing pages are none of the mask's.
template <class Config>
inline constexpr bool kHasFullBlocks = Config::Mask::kIsInterval;

// Block numbers fit an int: they are keys / kBlockN. Blocks of [full_begin, full_end) need no
// element test.
template <class Config, class Params>
struct BlockWalk {
  const Problem& problem;
  const Params& params;
  i64 q_begin;
  i64 q_end;
  int begin;
  int end;
  int full_begin;
  int full_end;

  // `range`: of the mask's NBlocks, or a part of it.
  template <class Range>
  __device__ __forceinline__ BlockWalk(const Problem& problem, i64 q_begin, i64 q_end,
                                       const Range& range, const Params& params)
      : problem(problem), params(params), q_begin(q_begin), q_end(q_end) {
    begin = static_cast<int>(range.begin);
    end = static_cast<int>(range.end);
    full_begin = static_cast<int>(kHasFullBlocks<Config> ? range.full_begin : range.begin);
    full_end = static_cast<int>(kHasFullBlocks<Config> ? range.full_end : range.begin);
  }

  // The next needed block below `n`; begin - 1 when there is none. Start from `end`.
  __device__ __forceinline__ int Below(int n) const {
    for (--n; n >= begin; --n) {
      const i64 kv_begin = i64{n} * Config::kBlockN;
      if (!Config::Mask::Skip(problem, q_begin, q_end, kv_begin,
                              Min(kv_begin + Config::kBlockN, problem.seqlen_kv), params)) {
        break;
      }
    }
    return n;
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_CORE_BLOCK_WALK_CUH_
