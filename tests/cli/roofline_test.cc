#include "cli/roofline.h"

#include <string>

#include "absl/strings/str_cat.h"
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

// As the definition says it, row by row.
double CountPairs(const AttentionSpec& spec) {
  double pairs = 0;
  for (int64_t i = 0; i < spec.seqlen_q; ++i) {
    const int64_t diagonal =
        spec.align == MaskAlign::kTopLeft ? i : i + spec.seqlen_kv - spec.seqlen_q;
    const int64_t right = spec.causal ? 0 : spec.window_right;
    for (int64_t j = 0; j < spec.seqlen_kv; ++j) {
      pairs += (spec.window_left < 0 || j >= diagonal - spec.window_left) &&
               (right < 0 || j <= diagonal + right);
    }
  }
  return pairs;
}

TEST(RooflineTest, VisiblePairsAreThoseOfTheDefinition) {
  for (const char* lengths : {"1/1", "3/9", "9/3", "7/7", "0/4", "4/0"}) {
    for (const char* mask :
         {"", "causal", "causal=top_left", "window=2,1", "window=0,0", "window=-1,3",
          "window=3,-1 align=top_left", "window=50,50", "window=2,1 align=top_left"}) {
      const AttentionSpec spec = Spec(absl::StrCat("fwd bf16 d=8 s=", lengths, " ", mask));
      const double pairs = CountPairs(spec);
      EXPECT_EQ(VisiblePairs(spec), pairs) << lengths << " " << mask;
      EXPECT_EQ(TiledPairs(spec, Tiles(1, 1)), pairs) << lengths << " " << mask;
    }
  }
}

TEST(RooflineTest, LengthsBeyondAllMemoryTakeNoTime) {
  const AttentionSpec spec = Spec("fwd bf16 b=1 h=1 s=1099511627776 d=8 causal");
  const double length = 1099511627776.0;
  EXPECT_DOUBLE_EQ(VisiblePairs(spec), length * (length + 1) / 2);
  EXPECT_NEAR(TiledPairs(spec, Tiles(128, 128)) / VisiblePairs(spec), 1, 1e-5);
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
