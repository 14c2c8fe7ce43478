// In what order a grid walks the tiles of query rows of all (batch, head).
#ifndef TILEWRIGHT_CORE_ROW_TILE_ORDER_CUH_
#define TILEWRIGHT_CORE_ROW_TILE_ORDER_CUH_

#include "core/math.cuh"
#include "core/types.cuh"

namespace tilewright {

// Tiles that are dealt out by their length: so many that those of the last section, which the
// grid ends with, outnumber the blocks that run at a time.
inline constexpr i64 kSectionTiles = 768;

struct RowTileAt {
  i64 m;
  i64 series;  // (batch, head, part)
};

// Tile number `tile`. Each series has its tiles from the last one down; with kByLength whole
// sections of series have, counted from the end of the grid.
template <bool kByLength>
TILEWRIGHT_HOST_DEVICE RowTileAt FindRowTile(i64 tile, i64 m_tiles, i64 all_series) {
  if constexpr (kByLength) {
    const i64 from_end = all_series * m_tiles - 1 - tile;
    const i64 size = Quotient(kSectionTiles - 1, m_tiles) + 1;
    const i64 first = Quotient(from_end, size * m_tiles) * size;
    const i64 width = Min(size, all_series - first), in_section = from_end - first * m_tiles;
    const i64 m = Quotient(in_section, width);
    return {m, all_series - 1 - first - (in_section - m * width)};
  } else {
    const i64 series = Quotient(tile, m_tiles);
    return {m_tiles - 1 - (tile - series * m_tiles), series};
  }
}

}  // namespace tilewright

#endif  // TILEWRIGHT_CORE_ROW_TILE_ORDER_CUH_
