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

  // The same rule as the keys of a row, not clamped to those that exist.
  TILEWRIGHT_HOST_DEVICE KeyInterval RowKeys(const Problem& problem, i64 i) const {
    // No distance exceeds the sum of the lengths; clamping keeps the sums below from overflowing.
    const i64 reach = problem.seqlen_q + problem.seqlen_kv;
    const i64 diagonal = DiagonalKey<kAlign>(problem, i);
    return {diagonal - (left < 0 ? reach : Min(left, reach)),
            diagonal + (right < 0 ? reach : Min(right, reach)) + 1};
  }

  // The same rule as the rows of a key, not clamped either.
  TILEWRIGHT_HOST_DEVICE RowInterval KeyRows(const Problem& problem, i64 j) const {
    const i64 reach = problem.seqlen_q + problem.seqlen_kv;
    const i64 diagonal = j - DiagonalKey<kAlign>(problem, 0);
    return {diagonal - (right < 0 ? reach : Min(right, reach)),
            diagonal + (left < 0 ? reach : Min(left, reach)) + 1};
  }

  TILEWRIGHT_HOST_DEVICE bool Full(const Problem& problem, i64 q_begin, i64 q_end, i64 kv_begin,
                                   i64 kv_end) const {
    return RowKeys(problem, q_end - 1).begin <= kv_begin && RowKeys(problem, q_begin).end >= kv_end;
  }

  TILEWRIGHT_HOST_DEVICE BlockRange NBlocks(const Problem& problem, i64 q_begin, i64 q_end,
                                            i64 block_n) const {
    const KeyInterval first = RowKeys(problem, q_begin);
    const KeyInterval last = RowKeys(problem, q_end - 1);
    return BlocksOfKeys(problem.seqlen_kv, block_n, first.begin, last.end, last.begin, first.end);
  }
};

template <Align kAlign>
struct MaskCausal {
  static constexpr bool kIsInterval = true;
  static constexpr bool kKnowsFull = true;
  static constexpr bool kCutsLeft = false;
  static constexpr bool kHidesKeys = kAlign == Align::kTopLeft;

  template <class Params>
  TILEWRIGHT_HOST_DEVICE static KeyInterval RowKeys(const Problem& problem, i64 i, const Params&) {
    return Window<kAlign>{-1, 0}.RowKeys(problem, i);
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static RowInterval KeyRows(const Problem& problem, i64 j, const Params&) {
    return Window<kAlign>{-1, 0}.KeyRows(problem, j);
  }
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
  TILEWRIGHT_HOST_DEVICE static bool Full(const Problem& problem, i64 q_begin, i64 q_end,
                                          i64 kv_begin, i64 kv_end, const Params&) {
    return Window<kAlign>{-1, 0}.Full(problem, q_begin, q_end, kv_begin, kv_end);
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static bool Keep(const Problem& problem, i64 i, i64 j, const Params&) {
    return Window<kAlign>{-1, 0}.Keep(problem, i, j);
  }
  template <class Params>
  using Head = IntervalMaskHead<MaskCausal, Params>;
};

// The distances are run-time arguments: params.window.
template <Align kAlign>
struct MaskWindow {
  static constexpr bool kIsInterval = true;
  static constexpr bool kKnowsFull = true;
  static constexpr bool kCutsLeft = true;
  static constexpr bool kHidesKeys = true;

  template <class Params>
  TILEWRIGHT_HOST_DEVICE static KeyInterval RowKeys(const Problem& problem, i64 i,
                                                    const Params& params) {
    return Window<kAlign>{params.window.left, params.window.right}.RowKeys(problem, i);
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static RowInterval KeyRows(const Problem& problem, i64 j,
                                                    const Params& params) {
    return Window<kAlign>{params.window.left, params.window.right}.KeyRows(problem, j);
  }
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
  TILEWRIGHT_HOST_DEVICE static bool Full(const Problem& problem, i64 q_begin, i64 q_end,
                                          i64 kv_begin, i64 kv_end, const Params& params) {
    return Window<kAlign>{params.window.left, params.window.right}.Full(problem, q_begin, q_end,
                                                                        kv_begin, kv_end);
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static bool Keep(const Problem& problem, i64 i, i64 j,
                                          const Params& params) {
    return Window<kAlign>{params.window.left, params.window.right}.Keep(problem, i, j);
  }
  template <class Params>
  using Head = IntervalMaskHead<MaskWindow, Params>;
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_MASK_WINDOW_CUH_
