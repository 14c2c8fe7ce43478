// The order of attn_fwd_sm90's tiles: each exactly once, and shares of equal length.
#include "policy/tile_order.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace tilewright {
namespace {

struct Order {
  u32 row_tiles = 1;
  u32 heads = 1;
  u32 section_heads = 0;  // 0: pairs
  u32 paired_heads = 0;
  u32 step = 1;
};

// Calls visit(series, tile) for all tiles of all series.
template <class Visit>
void WalkAll(const Order& order, const Visit& visit) {
  abi::FwdSm90Args args = {};
  args.row_tiles = order.row_tiles;
  args.heads = order.heads;
  args.tiles = order.heads * order.row_tiles;
  args.section_heads = order.section_heads;
  args.paired_heads = order.paired_heads;
  for (u32 start = 0; start < order.step; ++start) {
    const Series series = {start, order.step, 0, kEndOfSeries};
    for (u32 count = 0;; ++count) {
      ASSERT_LT(count, 2 * args.tiles + 8) << "a series does not end";
      const TileAt at = FindTile(series, count, args);
      if (at.last) break;
      if (at.exists) visit(start, at);
    }
  }
}

TEST(TileOrderTest, EveryTileComesOnce) {
  std::mt19937 random(1);
  const auto draw = [&](u32 least, u32 most) {
    return std::uniform_int_distribution<u32>(least, most)(random);
  };
  for (int n = 0; n < 2000; ++n) {
    Order order = {.row_tiles = draw(1, 20), .heads = draw(1, 30), .step = draw(1, 40)};
    if (draw(0, 1) == 0) {
      order.section_heads = draw(1, order.heads);
    } else {
      order.paired_heads = draw(0, order.heads);
    }
    std::vector<int> seen(order.heads * order.row_tiles);
    WalkAll(order, [&](u32 /*series*/, const TileAt& at) {
      ASSERT_LT(at.row_tile, order.row_tiles);
      ASSERT_LT(at.head, order.heads);
      ++seen[at.head * order.row_tiles + at.row_tile];
    });
    ASSERT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<int>(seen.size()))
        << order.row_tiles << " tiles of " << order.heads << " heads, " << order.section_heads
        << " a section, " << order.paired_heads << " in pairs, " << order.step << " series";
  }
}

// Of a causal mask, whose tile n from the first has n + 1 blocks of keys.
double LongestOverMean(const Order& order) {
  std::vector<double> blocks(order.step);
  WalkAll(order, [&](u32 series, const TileAt& at) { blocks[series] += at.row_tile + 1; });
  double sum = 0;
  for (double n : blocks) sum += n;
  return *std::max_element(blocks.begin(), blocks.end()) * order.step / sum;
}

TEST(TileOrderTest, ASectionBehindPairsFillsTheLastRound) {
  // 512 pairs for 132 series are four rounds, of which the last is nearly empty.
  const Order pairs = {.row_tiles = 64, .heads = 16, .paired_heads = 16, .step = 132};
  EXPECT_GT(LongestOverMean(pairs), 1.03);
  Order mixed = pairs;
  mixed.paired_heads = 12;
  EXPECT_LT(LongestOverMean(mixed), 1.01);
  // And where a round is left nearly whole.
  const Order coarse = {.row_tiles = 43, .heads = 32, .paired_heads = 32, .step = 132};
  EXPECT_GT(LongestOverMean(coarse), 1.12);
  mixed = coarse;
  mixed.paired_heads = 16;
  EXPECT_LT(LongestOverMean(mixed), 1.03);
}

}  // namespace
}  // namespace tilewright
