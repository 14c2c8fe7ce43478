// Left padding: a sequence's first keys, as many as params.left_padding says, are masked.
#ifndef TILEWRIGHT_POLICY_MASK_LEFT_PADDING_CUH_
#define TILEWRIGHT_POLICY_MASK_LEFT_PADDING_CUH_

#include "abi/policy_args.h"
#include "policy/mask_chain.cuh"

namespace tilewright {

struct MaskLeftPadding {
  static constexpr bool kIsInterval = true;
  static constexpr bool kKnowsFull = true;
  static constexpr bool kCutsLeft = true;
  static constexpr bool kHidesKeys = true;

  template <class Params>
  TILEWRIGHT_HOST_DEVICE static i64 FirstKey(const Problem& problem, const Params& params) {
    return params.left_padding.keys[problem.b];
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static KeyInterval RowKeys(const Problem& problem, i64,
                                                    const Params& params) {
    return {FirstKey(problem, params), problem.seqlen_kv};
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static RowInterval KeyRows(const Problem& problem, i64 j,
                                                    const Params& params) {
    return {0, j < FirstKey(problem, params) ? 0 : problem.seqlen_q};
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static BlockRange NBlocks(const Problem& problem, i64, i64, i64 block_n,
                                                   const Params& params) {
    const i64 first = FirstKey(problem, params), end = problem.seqlen_kv;
    return BlocksOfKeys(end, block_n, first, end, first, end);
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static bool Skip(const Problem&, i64, i64, i64, i64, const Params&) {
    return false;
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static bool Full(const Problem& problem, i64, i64, i64 kv_begin, i64,
                                          const Params& params) {
    return FirstKey(problem, params) <= kv_begin;
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static bool Keep(const Problem& problem, i64, i64 j,
                                          const Params& params) {
    return FirstKey(problem, params) <= j;
  }
  template <class Params>
  using Head = IntervalMaskHead<MaskLeftPadding, Params>;
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_MASK_LEFT_PADDING_CUH_
