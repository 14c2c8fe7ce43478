// The tiles of rows that a tile of keys needs: masks seen from the side of the keys, for backward
// passes. Derived from Mask::RowKeys, whose intervals move one way as rows go up.
#ifndef TILEWRIGHT_POLICY_ROW_TILES_CUH_
#define TILEWRIGHT_POLICY_ROW_TILES_CUH_

#include "core/math.cuh"
#include "core/problem.cuh"
#include "policy/mask_chain.cuh"

namespace tilewright {

// Tiles [begin, end) of `block_m` rows; the others see none of keys [kv_begin, kv_end).
struct alignas(16) RowTiles {
  i64 begin;
  i64 end;
};

// The rows of tile m.
struct RowRange {
  i64 begin;
  i64 end;
};
TILEWRIGHT_HOST_DEVICE RowRange RowsOfTile(const Problem& problem, i64 m, i64 block_m) {
  return {m * block_m, Min((m + 1) * block_m, problem.seqlen_q)};
}

// How far the keys of a tile's rows reach: those of its last row end last, those of its first row
// begin first.
template <class Mask, class Params>
TILEWRIGHT_HOST_DEVICE KeyInterval KeysOfRows(const Problem& problem, const RowRange& rows,
                                              const Params& params) {
  return {Mask::RowKeys(problem, rows.begin, params).begin,
          Mask::RowKeys(problem, rows.end - 1, params).end};
}

// First(low, high, holds): the first m of [low, high) for which holds(m) is true, where it is false
// up to there and true from there on; high when there is none.
struct BinarySearch {
  template <class Holds>
  TILEWRIGHT_HOST_DEVICE static i64 First(i64 low, i64 high, const Holds& holds) {
    while (low < high) {
      const i64 m = (low + high) / 2;
      if (holds(m)) {
        high = m;
      } else {
        low = m + 1;
      }
    }
    return low;
  }
};

template <class Mask, class Search = BinarySearch, class Params>
TILEWRIGHT_HOST_DEVICE RowTiles RowTilesOfKeys(const Problem& problem, i64 kv_begin, i64 kv_end,
                                               i64 block_m, const Params& params) {
  const i64 tiles = CeilDiv(problem.seqlen_q, block_m);
  const auto keys_of = [&](i64 m) {
    return KeysOfRows<Mask>(problem, RowsOfTile(problem, m, block_m), params);
  };
  const i64 begin = Search::First(0, tiles, [&](i64 m) { return keys_of(m).end > kv_begin; });
  return {begin, Search::First(begin, tiles, [&](i64 m) { return keys_of(m).begin >= kv_end; })};
}

// Of `tiles`, those of block_m rows that all see all keys of [kv_begin, kv_end).
template <class Mask, class Search = BinarySearch, class Params>
TILEWRIGHT_HOST_DEVICE RowTiles FullRowTilesOfKeys(const Problem& problem, i64 kv_begin, i64 kv_end,
                                                   i64 block_m, const RowTiles& tiles,
                                                   const Params& params) {
  if constexpr (!Mask::kIsInterval) return {0, 0};
  const i64 whole = Min(tiles.end, problem.seqlen_q / block_m);
  const i64 begin = Search::First(tiles.begin, whole, [&](i64 m) {
    return Mask::RowKeys(problem, m * block_m, params).end >= kv_end;
  });
  return {begin, Search::First(begin, whole, [&](i64 m) {
            return Mask::RowKeys(problem, (m + 1) * block_m - 1, params).begin > kv_begin;
          })};
}

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_ROW_TILES_CUH_
