// Causal masks and sliding windows: the keys within a distance of the row's diagonal.
#ifndef TILEWRIGHT_POLICY_MASK_WINDOW_CUH_
#define TILEWRIGHT_POLICY_MASK_WINDOW_CUH_

#include "policy/mask_chain.cuh"

namespace tilewright {

// diagonal - left <= j <= diagonal + right, both inclusive; -1 is unbounded.
template <Align kAlign>
struct Window {
  i64 left;
  i64 right;

  TILEWRIGHT_HOST_DEVICE bool Keep(const Problem& problem, i64 i, i64 j) const {
    const i64 distance = j - DiagonalKey<kAlign>(problem, i);
    return (left < 0 || distance >= -left) && (right < 0 || distance <= right);
  }

  TILEWRIGHT_HOST_DEVICE BlockRange NBlocks(const Problem& problem, i64 q_begin, i64 q_end,
                                            i64 block_n) const {
    const i64 n = problem.seqlen_kv;
    // No distance exceeds the sum of the lengths; clamping keeps the sums below from overflowing.
    const i64 reach = problem.seqlen_q + n;
    const i64 reach_left = left < 0 ? reach : Min(left, reach);
    const i64 reach_right = right < 0 ? reach : Min(right, reach);
    const i64 first = DiagonalKey<kAlign>(problem, q_begin);
    const i64 last = DiagonalKey<kAlign>(problem, q_end - 1);
    return BlocksOfKeys(n, block_n, first - reach_left, last + reach_right + 1, last - reach_left,
                        first + reach_right + 1);
  }
};

template <Align kAlign>
struct MaskCausal {
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static BlockRange NBlocks(const Problem& problem, i64 q_begin, i64 q_end,
                                                   i64 block_n, const Params&) {
    return Window<kAlign>{-1, 0}.NBlocks(problem, q_begin, q_end, block_n);
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static bool Skip(const Problem&, i64, i64, i64, i64, const Params&) {
    return false;
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static bool Keep(const Problem& problem, i64 i, i64 j, const Params&) {
    return Window<kAlign>{-1, 0}.Keep(problem, i, j);
  }
};

// The distances are run-time arguments: params.window.
template <Align kAlign>
struct MaskWindow {
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static BlockRange NBlocks(const Problem& problem, i64 q_begin, i64 q_end,
                                                   i64 block_n, const Params& params) {
    return Window<kAlign>{params.window.left, params.window.right}.NBlocks(problem, q_begin, q_end,
                                                                           block_n);
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static bool Skip(const Problem&, i64, i64, i64, i64, const Params&) {
    return false;
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static bool Keep(const Problem& problem, i64 i, i64 j,
                                          const Params& params) {
    return Window<kAlign>{params.window.left, params.window.right}.Keep(problem, i, j);
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_MASK_WINDOW_CUH_
