#include "cli/roofline.h"

#include <string>

#include "gtest/gtest.h"
#include "spec/canonical.h"

namespace tilewright::cli {
namespace {

AttentionSpec Spec(const std::string& text) {
  const absl::StatusOr<AttentionSpec> spec = spec::ParseSpec(text);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec::Canonicalise(*spec);
}

plan::KernelPlan Tiles(int block_m, int block_n) {
  plan::KernelPlan plan;
  plan.block_m = block_m;
  plan.block_n = block_n;
  return plan;
}

TEST(RooflineTest, VisiblePairsAreCountedExactly) {
  EXPECT_EQ(VisiblePairs(Spec("fwd bf16 b=1 h=1 s=5/7 d=8")), 35);
  EXPECT_EQ(VisiblePairs(Spec("fwd bf16 b=1 h=1 s=4/4 d=8 causal")), 10);
  EXPECT_EQ(VisiblePairs(Spec("fwd bf16 b=1 h=1 s=2/5 d=8 causal")), 4 + 5);
  EXPECT_EQ(VisiblePairs(Spec("fwd bf16 b=1 h=1 s=5/2 d=8 causal")), 0 + 0 + 0 + 1 + 2);
  EXPECT_EQ(VisiblePairs(Spec("fwd bf16 b=1 h=1 s=2/5 d=8 causal=top_left")), 1 + 2);
  EXPECT_EQ(VisiblePairs(Spec("fwd bf16 b=1 h=1 s=4/4 d=8 window=1,0")), 1 + 2 + 2 + 2);
  EXPECT_EQ(VisiblePairs(Spec("fwd bf16 b=1 h=1 s=4/4 d=8 window=0,1")), 2 + 2 + 2 + 1);
}

TEST(RooflineTest, TiledPairsAreWholeTilesWithSomethingVisible) {
  EXPECT_EQ(TiledPairs(Spec("fwd bf16 b=1 h=1 s=5/7 d=8"), Tiles(4, 4)), 4 * 16);
  EXPECT_EQ(TiledPairs(Spec("fwd bf16 b=1 h=1 s=8/8 d=8 causal"), Tiles(4, 4)), 3 * 16);
  // The first tile of rows sees nothing.
  EXPECT_EQ(TiledPairs(Spec("fwd bf16 b=1 h=1 s=8/4 d=8 causal"), Tiles(4, 4)), 16);
  EXPECT_EQ(TiledPairs(Spec("fwd bf16 b=1 h=1 s=0/4 d=8"), Tiles(4, 4)), 0);
}

TEST(RooflineTest, CountsFlopsBytesAndWaste) {
  const AttentionSpec spec = Spec("fwd bf16 b=2 h=4/2 s=8/8 d=16/32 causal lse bias=fp32:1,4,8,8");
  const auto traits = arch::FindArchTraits("sm_90a");
  const auto board = arch::DefaultBoardProfile("sm_90a");
  ASSERT_TRUE(traits.ok() && board.ok());
  const Roofline roofline = EstimateRoofline(spec, Tiles(4, 4), *traits, *board);
  EXPECT_EQ(roofline.flops, 2.0 * 2 * 4 * 36 * (16 + 32));
  EXPECT_EQ(roofline.bytes, 2.0 * (2 * 4 * 8 * 16) + 2.0 * (2 * 2 * 8 * (16 + 32)) +
                                2.0 * (2 * 4 * 8 * 32) + 4.0 * (2 * 4 * 8) + 4.0 * (4 * 8 * 8));
  EXPECT_EQ(roofline.padding_waste, 1 - 36.0 / 48);
  EXPECT_GT(roofline.memory_ms, 0);
  ASSERT_TRUE(roofline.fp32_ms.has_value() && roofline.matrix_ms.has_value());
  EXPECT_LT(*roofline.matrix_ms, *roofline.fp32_ms);
}

TEST(RooflineTest, ABackwardHasFiveProductsAndAGradientForEachTensor) {
  const auto traits = arch::FindArchTraits("sm_90a");
  const auto board = arch::DefaultBoardProfile("sm_90a");
  ASSERT_TRUE(traits.ok() && board.ok());
  const Roofline forward = EstimateRoofline(Spec("fwd bf16 b=2 h=4/2 s=8 d=16 causal lse"),
                                            Tiles(4, 4), *traits, *board);
  const Roofline backward =
      EstimateRoofline(Spec("bwd bf16 b=2 h=4/2 s=8 d=16 causal"), Tiles(4, 4), *traits, *board);
  EXPECT_EQ(backward.flops, 2.5 * forward.flops);
  const double lse = 4.0 * (2 * 4 * 8);
  EXPECT_EQ(backward.bytes, 2 * (forward.bytes - lse) + lse);
}

// Published peaks of the board: 4.8 TB/s, 989 TFLOP/s of dense bf16, 67 TFLOP/s of fp32.
TEST(RooflineTest, AgreesWithThePublishedPeaksOfAnH200) {
  const AttentionSpec spec = Spec("fwd bf16 b=1 h=16 s=8192 d=128");
  const auto traits = arch::FindArchTraits("sm_90a");
  const auto board = arch::DefaultBoardProfile("sm_90a");
  ASSERT_TRUE(traits.ok() && board.ok());
  const Roofline roofline = EstimateRoofline(spec, Tiles(64, 64), *traits, *board);
  EXPECT_NEAR(roofline.bytes / roofline.memory_ms / 1e9, 4.8, 0.4);
  EXPECT_NEAR(roofline.flops / *roofline.matrix_ms / 1e9, 989, 100);
  EXPECT_NEAR(roofline.flops / *roofline.fp32_ms / 1e9, 67, 7);
}

}  // namespace
}  // namespace tilewright::cli
