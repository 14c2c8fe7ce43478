// In what order attn_fwd_sm90 walks its tiles: abi::FwdSm90Args says it in words.
#ifndef TILEWRIGHT_POLICY_TILE_ORDER_CUH_
#define TILEWRIGHT_POLICY_TILE_ORDER_CUH_

#include "abi/tensor_map.h"
#include "core/types.cuh"

namespace tilewright {

// The tiles of one of `step` clusters, counted from 0; those counted [first, last) of them.
inline constexpr u32 kEndOfSeries = 0xffffffffu;  // for `last`: all of them
struct Series {
  u32 start;
  u32 step;
  u32 first;
  u32 last;
};

// A tile of rows of a (batch, query head).
struct TileAt {
  u32 row_tile;
  u32 head;
  bool exists;
  bool last;  // nor do any after it
};

// Tile number `count` of a series. kMayPair: section_heads may be 0, as it only is where a mask
// makes tiles of uneven length.
template <bool kMayPair = true>
TILEWRIGHT_HOST_DEVICE TileAt FindTile(const Series& series, u32 count,
                                       const abi::FwdSm90Args& args) {
  if (kMayPair && args.section_heads == 0) {
    const u32 pairs = (args.row_tiles + 1) / 2;
    const u32 pair = series.start + count / 2 * series.step;
    if (pair < args.paired_heads * pairs) {
      const u32 head = pair / pairs, from_end = pair - head * pairs;
      const u32 longer = args.row_tiles - 1 - from_end;
      return {count % 2 == 0 ? longer : from_end, head, count % 2 == 0 || longer != from_end,
              false};
    }
    // The longest tiles of the last section, which nearly are as long as a pair, for the series
    // that have no pair in the last round; then the others, to and fro as below.
    const u32 rounds = args.paired_heads * pairs / series.step;
    const u32 with_pair = args.paired_heads * pairs - rounds * series.step;
    const u32 heads = args.heads - args.paired_heads;
    const u32 behind = count - 2 * rounds;  // in that round: 0, and then none
    u32 tile = series.start - with_pair, first = 0;
    if (behind >= 2) {
      first = series.step - with_pair + (behind - 2) * series.step;
      tile = first + (behind % 2 == 0 ? series.step - 1 - series.start : series.start);
    }
    const u32 row = heads == 0 ? 0 : tile / heads;
    return {args.row_tiles - 1 - row, args.paired_heads + tile - row * heads,
            behind != 1 && tile < heads * args.row_tiles,
            behind >= 2 && first >= heads * args.row_tiles};
  }
  // The second of a series is the one `start` from the end of its round, the third again `start`
  // from the beginning, and so on: tiles of falling length are shared out evenly.
  const u32 tile =
      count * series.step + (count % 2 == 0 ? series.start : series.step - 1 - series.start);
  if (tile >= args.tiles) return {0, 0, false, count * series.step >= args.tiles};
  const u32 section = tile / (args.section_heads * args.row_tiles);
  const u32 in_section = tile - section * args.section_heads * args.row_tiles;
  const u32 first_head = section * args.section_heads;
  const u32 left = args.heads - first_head;
  const u32 heads = args.section_heads < left ? args.section_heads : left;
  return {args.row_tiles - 1 - in_section / heads, first_head + in_section % heads, true, false};
}

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_TILE_ORDER_CUH_
