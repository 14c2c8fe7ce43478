// Masks: which keys a query row may see. A mask owns both answers, so that they cannot disagree:
//
//   NBlocks(problem, q_begin, q_end, block_n, params)
//       the blocks of `block_n` keys that rows [q_begin, q_end) need; q_begin < q_end
//   Skip(problem, q_begin, q_end, kv_begin, kv_end, params)
//       true when no key of [kv_begin, kv_end) is kept for any of the rows: a rule for blocks that
//       lie inside the range (block masks)
//   Keep(problem, i, j, params)
//       whether row i may see key j, 0 <= i < seqlen_q, 0 <= j < seqlen_kv
//
//   RowKeys(problem, i, params) -> KeyInterval
//       keys outside are not kept for row i; with kIsInterval, the others are. Without it no block
//       is known to be full: full_begin == full_end == begin.
//   KeyRows(problem, j, params) -> RowInterval
//       with kIsInterval: the rows that see key j, which are neighbours because RowKeys moves one
//       way as rows go up
//   kCutsLeft
//       whether full_begin may be above begin
//   kHidesKeys
//       whether RowKeys may leave a key to no row at all
//   Full(problem, q_begin, q_end, kv_begin, kv_end, params)
//       true when every key of [kv_begin, kv_end), all of which exist, is kept for all of the rows;
//       kKnowsFull says whether it ever is
//
// For families that hold many scores of a row at once, in steps, each done as seldom as its
// arguments change (policy/key_runs.cuh; keys.i < seqlen_q):
//   Head<Params> head(problem, params)      once a problem
//   head.SameForAllRows()                   whether Keep does not look at keys.i
//   head.template Keep<Runs>(keys)          the lane's keys that row keys.i may see, by this mask's
//                                           rule, among those that exist; an interval has no rule
//                                           beside RowKeys
//
// A key of a block outside [begin, end) is kept for no row, a key of a block inside
// [full_begin, full_end) for every row; tests/policy proves it by brute force.
#ifndef TILEWRIGHT_POLICY_MASK_CHAIN_CUH_
#define TILEWRIGHT_POLICY_MASK_CHAIN_CUH_

#include "core/problem.cuh"
#include "policy/key_runs.cuh"

namespace tilewright {

// Which corner the diagonal of a mask or of ALiBi runs into, when there are not as many rows as
// keys.
enum class Align { kBottomRight, kTopLeft };

// Key on the diagonal of row i.
template <Align kAlign>
TILEWRIGHT_HOST_DEVICE i64 DiagonalKey(const Problem& problem, i64 i) {
  return kAlign == Align::kBottomRight ? i + problem.diagonal() : i;
}

struct BlockRange {
  i64 begin;
  i64 end;
  i64 full_begin;  // == full_end: no block is known to be kept whole
  i64 full_end;
};

// Blocks of the keys [begin, end) that any row sees and of those [full_begin, full_end) that all
// rows see. Keys are clamped to [0, seqlen_kv).
TILEWRIGHT_HOST_DEVICE BlockRange BlocksOfKeys(i64 seqlen_kv, i64 block_n, i64 begin, i64 end,
                                               i64 full_begin, i64 full_end) {
  begin = Max(begin, 0);
  end = Min(end, seqlen_kv);
  full_begin = Max(full_begin, 0);
  full_end = Min(full_end, seqlen_kv);
  BlockRange range = {0, 0, 0, 0};
  if (begin >= end) return range;
  range.begin = begin / block_n;
  range.end = CeilDiv(end, block_n);
  range.full_begin = range.full_end = range.begin;
  if (full_begin >= full_end) return range;
  // The last block is whole as soon as its keys below the length are, but a family that reads whole
  // blocks unchecked must not run past the length, so only complete blocks count.
  const i64 first = CeilDiv(full_begin, block_n), last = full_end / block_n;
  if (first >= last) return range;
  range.full_begin = first;
  range.full_end = last;
  return range;
}

TILEWRIGHT_HOST_DEVICE BlockRange Intersect(const BlockRange& a, const BlockRange& b) {
  const i64 begin = Max(a.begin, b.begin), end = Min(a.end, b.end);
  if (begin >= end) return {0, 0, 0, 0};
  const i64 full_begin = Max(a.full_begin, b.full_begin), full_end = Min(a.full_end, b.full_end);
  if (full_begin >= full_end) return {begin, end, begin, begin};
  return {begin, end, full_begin, full_end};
}

// Keys [begin, end).
struct KeyInterval {
  i64 begin;
  i64 end;
};

// Rows [begin, end).
struct RowInterval {
  i64 begin;
  i64 end;
};

// Head of a mask that has nothing but its rule per element.
template <class Mask, class Params>
struct ElementwiseMaskHead {
  const Problem& problem;
  const Params& params;

  TILEWRIGHT_HOST_DEVICE ElementwiseMaskHead(const Problem& problem, const Params& params)
      : problem(problem), params(params) {}
  TILEWRIGHT_HOST_DEVICE bool SameForAllRows() const { return false; }
  template <class Runs>
  TILEWRIGHT_HOST_DEVICE u32 Keep(const LaneKeys& keys) const {
    u32 keep = 0;
    TILEWRIGHT_UNROLL
    for (int n = 0; n < Runs::kCount; ++n) {
      if (Runs::Offset(n) < keys.existing &&
          Mask::Keep(problem, keys.i, keys.j + Runs::Offset(n), params)) {
        keep |= 1u << n;
      }
    }
    return keep;
  }
};

// Head of a mask that has nothing but its interval.
template <class Mask, class Params>
struct IntervalMaskHead {
  TILEWRIGHT_HOST_DEVICE IntervalMaskHead(const Problem&, const Params&) {}
  TILEWRIGHT_HOST_DEVICE bool SameForAllRows() const { return true; }
  template <class Runs>
  TILEWRIGHT_HOST_DEVICE u32 Keep(const LaneKeys&) const {
    return Runs::kAll;
  }
};

// For masks that only have a rule per element: every block is needed, none is known to be whole.
struct MaskElementwise {
  static constexpr bool kIsInterval = false;
  static constexpr bool kCutsLeft = false;
  static constexpr bool kHidesKeys = false;
  static constexpr bool kKnowsFull = false;

  template <class Params>
  TILEWRIGHT_HOST_DEVICE static KeyInterval RowKeys(const Problem& problem, i64, const Params&) {
    return {0, problem.seqlen_kv};
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static BlockRange NBlocks(const Problem& problem, i64, i64, i64 block_n,
                                                   const Params&) {
    return BlocksOfKeys(problem.seqlen_kv, block_n, 0, problem.seqlen_kv, 0, 0);
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static bool Skip(const Problem&, i64, i64, i64, i64, const Params&) {
    return false;
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static bool Full(const Problem&, i64, i64, i64, i64, const Params&) {
    return false;
  }
};

// A key is kept when it exists and every mask of the chain keeps it.
template <class... Masks>
struct MaskChain {
  static constexpr bool kIsEmpty = sizeof...(Masks) == 0;
  static constexpr bool kIsInterval = (Masks::kIsInterval && ...);
  static constexpr bool kCutsLeft = (Masks::kCutsLeft || ...);
  static constexpr bool kHidesKeys = (Masks::kHidesKeys || ...);
  static constexpr bool kKnowsFull = (Masks::kKnowsFull && ...);

  template <class Params>
  TILEWRIGHT_HOST_DEVICE static KeyInterval RowKeys(const Problem& problem, [[maybe_unused]] i64 i,
                                                    [[maybe_unused]] const Params& params) {
    KeyInterval keys = {0, problem.seqlen_kv};
    [[maybe_unused]] const auto intersect = [&keys](const KeyInterval& other) {
      keys = {Max(keys.begin, other.begin), Min(keys.end, other.end)};
    };
    (intersect(Masks::RowKeys(problem, i, params)), ...);
    return keys;
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static RowInterval KeyRows(const Problem& problem, i64 j,
                                                    [[maybe_unused]] const Params& params) {
    RowInterval rows = {0, j < problem.seqlen_kv ? problem.seqlen_q : 0};
    [[maybe_unused]] const auto intersect = [&rows](const RowInterval& other) {
      rows = {Max(rows.begin, other.begin), Min(rows.end, other.end)};
    };
    (intersect(Masks::KeyRows(problem, j, params)), ...);
    return rows;
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static BlockRange NBlocks(const Problem& problem,
                                                   [[maybe_unused]] i64 q_begin,
                                                   [[maybe_unused]] i64 q_end, i64 block_n,
                                                   [[maybe_unused]] const Params& params) {
    const i64 n = problem.seqlen_kv;
    BlockRange range = BlocksOfKeys(n, block_n, 0, n, 0, n);
    ((range = Intersect(range, Masks::NBlocks(problem, q_begin, q_end, block_n, params))), ...);
    return range;
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static bool Skip([[maybe_unused]] const Problem& problem,
                                          [[maybe_unused]] i64 q_begin, [[maybe_unused]] i64 q_end,
                                          [[maybe_unused]] i64 kv_begin,
                                          [[maybe_unused]] i64 kv_end,
                                          [[maybe_unused]] const Params& params) {
    return (Masks::Skip(problem, q_begin, q_end, kv_begin, kv_end, params) || ...);
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static bool Full([[maybe_unused]] const Problem& problem,
                                          [[maybe_unused]] i64 q_begin, [[maybe_unused]] i64 q_end,
                                          [[maybe_unused]] i64 kv_begin,
                                          [[maybe_unused]] i64 kv_end,
                                          [[maybe_unused]] const Params& params) {
    return (Masks::Full(problem, q_begin, q_end, kv_begin, kv_end, params) && ...);
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static bool Keep(const Problem& problem, [[maybe_unused]] i64 i, i64 j,
                                          [[maybe_unused]] const Params& params) {
    return j < problem.seqlen_kv && (Masks::Keep(problem, i, j, params) && ...);
  }

  template <class Params>
  struct Head : Masks::template Head<Params>... {
    TILEWRIGHT_HOST_DEVICE Head([[maybe_unused]] const Problem& problem,
                                [[maybe_unused]] const Params& params)
        : Masks::template Head<Params>(problem, params)... {}

    // The keys that the masks keep which do not look at the row, and those that the others keep.
    template <class Runs>
    TILEWRIGHT_HOST_DEVICE u32 KeepInAllRows(const LaneKeys& keys) const {
      u32 keep = Runs::kAll;
      (Narrow<typename Masks::template Head<Params>, Runs>(true, keys, &keep), ...);
      return keep;
    }
    template <class Runs>
    TILEWRIGHT_HOST_DEVICE u32 Keep(const LaneKeys& keys) const {
      u32 keep = Runs::kAll;
      (Narrow<typename Masks::template Head<Params>, Runs>(false, keys, &keep), ...);
      return keep;
    }

   private:
    template <class MaskHead, class Runs>
    TILEWRIGHT_HOST_DEVICE void Narrow(bool same_for_all_rows, const LaneKeys& keys,
                                       u32* keep) const {
      const MaskHead& head = *this;
      if (head.SameForAllRows() == same_for_all_rows) *keep &= head.template Keep<Runs>(keys);
    }
  };
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_MASK_CHAIN_CUH_
