#include "emit/wgmma_wrapper.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spec/canonical.h"

namespace tilewright::emit {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Text(std::string_view spec_text, int block_n, bool ones) {
  const AttentionSpec spec = spec::Canonicalise(spec::ParseSpec(spec_text).value());
  plan::KernelPlan plan;
  plan.block_m = 128;
  plan.block_n = block_n;
  plan.ones = ones;
  return WgmmaHeader(spec, plan).text;
}

int Count(const std::string& text, const std::string& piece) {
  int count = 0;
  for (size_t at = text.find(piece); at != std::string::npos; at = text.find(piece, at + 1)) {
    ++count;
  }
  return count;
}

TEST(WgmmaWrapperTest, StepsCoverExactlyTheDims) {
  // 72 columns of Q and K are 5 steps of 16; 48 keys are 3 steps of P V with 40 columns.
  const std::string text = Text("fwd bf16 b=1 h=1 s=64 d=72/40", 48, false);
  EXPECT_EQ(Count(text, "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16"), 5);
  EXPECT_EQ(Count(text, "wgmma.mma_async.sync.aligned.m64n40k16.f32.bf16.bf16"), 3);
  EXPECT_THAT(text, HasSubstr("Scores(float (&d)[24], u64 q, u64 k)"));
  EXPECT_THAT(text, HasSubstr("Values(float (&d)[20], const u32 (&p)[12], u64 v)"));
}

TEST(WgmmaWrapperTest, OnesAreEightMoreColumnsOfV) {
  const std::string text = Text("fwd fp16 b=1 h=1 s=64 d=64", 128, true);
  EXPECT_EQ(Count(text, "m64n72k16.f32.f16.f16"), 8);
  EXPECT_THAT(text, Not(HasSubstr("bf16")));
}

TEST(WgmmaWrapperTest, ColumnsBeyondAPanelLieBehindItsRows) {
  // Step 4 of Q K^T starts the second panel: 128 rows of Q and 32 of K, in units of 16 bytes.
  const std::string text = Text("fwd bf16 b=1 h=1 s=64 d=80/64", 32, false);
  EXPECT_THAT(text, HasSubstr("add.s64 a, %16, 6; add.s64 b, %17, 6;"));
  EXPECT_THAT(text, HasSubstr("add.s64 a, %16, 1024; add.s64 b, %17, 256;"));
}

TEST(WgmmaWrapperTest, ABackwardHasFiveProducts) {
  const AttentionSpec spec =
      spec::Canonicalise(spec::ParseSpec("bwd bf16 b=1 h=1 s=64 d=96/80").value());
  plan::KernelPlan plan;
  plan.block_m = 64;
  plan.block_n = 128;
  const std::string text = WgmmaHeader(spec, plan).text;
  // S and dP have 64 rows; dQ's columns are shared out, dS has K along its rows.
  EXPECT_EQ(Count(text, "m64n64k16"), 6 + 5 + 2);  // and a comment for each of the two
  EXPECT_EQ(Count(text, "m64n48k16"), 8 + 1);
  EXPECT_EQ(Count(text, "m64n80k16"), 4 + 1);
  EXPECT_EQ(Count(text, "m64n96k16"), 4 + 1);
  // All of V is kept in registers.
  EXPECT_THAT(text, HasSubstr("Scores(float (&d)[32], const u32 (&k)[24], u64 q)"));
  EXPECT_THAT(text, HasSubstr("WeightGradients(float (&d)[32], const u32 (&v)[20], u64 d_o)"));
  EXPECT_THAT(text, HasSubstr("Dv(float (&d)[40], const u32 (&p)[16], u64 d_o, u64 adds)"));
  EXPECT_THAT(text, HasSubstr("Dk(float (&d)[48], const u32 (&ds)[16], u64 q, u64 adds)"));
  EXPECT_THAT(text, HasSubstr("Dq(float (&d)[24], u64 ds, u64 k)"));
  EXPECT_THAT(text, HasSubstr("a, b, more, 1, 1, 1, 1;"));
  // Sums of a tile begin anew where it does: dV's operands are 40 of d, 16 of p, d_o, adds.
  EXPECT_THAT(text, HasSubstr("setp.ne.b64 first, %57, 0;"));
}

TEST(WgmmaWrapperTest, FirstStepsOfAFactorComeFromRegisters) {
  const AttentionSpec spec =
      spec::Canonicalise(spec::ParseSpec("bwd bf16 b=1 h=1 s=64 d=96").value());
  plan::KernelPlan plan;
  plan.block_m = 64;
  plan.block_n = 128;
  const std::string text = WgmmaHeader(spec, plan).text;
  // Five of six steps of K: after 32 of d 20 words, the tile, q. K's second panel begins with
  // column 48, step 5 with column 80.
  EXPECT_THAT(text, HasSubstr("Scores(float (&d)[32], const u32 (&k_kept)[20], u64 k, u64 q)"));
  EXPECT_THAT(text, HasSubstr("{%48, %49, %50, %51}, b, more, 1, 1, 0;"));
  EXPECT_THAT(text, HasSubstr("add.s64 a, %52, 1028; add.s64 b, %53, 514;"));
  EXPECT_THAT(text, HasSubstr("\"l\"(k), \"l\"(q)"));
}

}  // namespace
}  // namespace tilewright::emit
