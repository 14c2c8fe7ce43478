// The order of row tiles: each once, and the longest of a section first.
#include "core/row_tile_order.cuh"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace tilewright {
namespace {

template <bool kByLength>
void CheckEachOnce(i64 m_tiles, i64 all_series) {
  std::set<std::pair<i64, i64>> seen;
  for (i64 tile = 0; tile < m_tiles * all_series; ++tile) {
    const RowTileAt at = FindRowTile<kByLength>(tile, m_tiles, all_series);
    EXPECT_TRUE(at.m >= 0 && at.m < m_tiles && at.series >= 0 && at.series < all_series);
    seen.insert({at.m, at.series});
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(m_tiles * all_series))
      << m_tiles << " tiles of " << all_series;
}

TEST(RowTileOrderTest, EachTileOnce) {
  for (i64 m_tiles : {1, 7, 16, 767, 768}) {
    for (i64 all_series : {1, 5, 48, 100}) {
      CheckEachOnce<false>(m_tiles, all_series);
      CheckEachOnce<true>(m_tiles, all_series);
    }
  }
}

TEST(RowTileOrderTest, TheGridEndsWithTheShortestOfManyHeads) {
  constexpr i64 kTiles = 16, kSeries = 100;
  i64 longest = 0;
  for (i64 tile = kTiles * kSeries - 1; tile >= kTiles * kSeries - kSectionTiles; --tile) {
    const i64 m = FindRowTile<true>(tile, kTiles, kSeries).m;
    EXPECT_GE(m, longest);
    longest = m;
  }
  EXPECT_EQ(longest, kTiles - 1);
}

}  // namespace
}  // namespace tilewright
