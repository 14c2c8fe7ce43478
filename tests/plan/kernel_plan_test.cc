#include "plan/kernel_plan.h"

#include "gtest/gtest.h"

namespace tilewright::plan {
namespace {

TEST(KernelPlanTest, PrintsItself) {
  const KernelPlan plan = {.family = Family::kFwdSimple,
                           .target = "sm_90a",
                           .block_m = 32,
                           .block_n = 32,
                           .warps = 4,
                           .rows_per_warp = 8,
                           .panel = 128,
                           .smem_bytes = 33280};
  EXPECT_EQ(plan.ToString(), "attn_fwd_simple sm_90a m32n32 w4 r8 p128 smem=33280");
  EXPECT_EQ(plan.threads(), 128);
  EXPECT_EQ(FamilyName(plan.family), "attn_fwd_simple");
}

TEST(KernelPlanTest, ParsesWhatItPrints) {
  const KernelPlan plan = {.family = Family::kFwdSimple,
                           .target = "sm_120a",
                           .block_m = 16,
                           .block_n = 32,
                           .warps = 4,
                           .rows_per_warp = 4,
                           .panel = 36,
                           .smem_bytes = 7424};
  const absl::StatusOr<KernelPlan> parsed = ParsePlan(plan.ToString());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, plan);
}

TEST(KernelPlanTest, ParsesThePlansOfEveryFamily) {
  const KernelPlan plan = {.family = Family::kFwdSm80,
                           .target = "sm_80",
                           .block_m = 128,
                           .block_n = 64,
                           .warps = 4,
                           .rows_per_warp = 32,
                           .stages = 2,
                           .peeled = true,
                           .smem_bytes = 104448};
  EXPECT_EQ(plan.ToString(), "attn_fwd_sm80 sm_80 m128n64 w4 r32 s2 peeled smem=104448");
  const absl::StatusOr<KernelPlan> parsed = ParsePlan(plan.ToString());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, plan);
}

TEST(KernelPlanTest, SeveralKernelsAreOneText) {
  const KernelPlan combine = {
      .family = Family::kCombine, .target = "sm_90a", .block_m = 4, .warps = 4, .smem_bytes = 4};
  const KernelPlan plan = {.family = Family::kFwdSm80,
                           .target = "sm_90a",
                           .block_m = 64,
                           .block_n = 64,
                           .warps = 4,
                           .rows_per_warp = 16,
                           .stages = 2,
                           .split = true,
                           .slots = 264,
                           .smem_bytes = 87040,
                           .before = {combine},
                           .after = {combine, combine}};
  const std::string companion = "attn_combine sm_90a m4n0 w4 r0 smem=4";
  EXPECT_EQ(plan.ToString(),
            companion + " + attn_fwd_sm80 sm_90a m64n64 w4 r16 s2 split slots=264 smem=87040 + " +
                companion + " + " + companion);
  const absl::StatusOr<KernelPlan> parsed = ParsePlan(plan.ToString());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, plan);
  const std::vector<KernelPlan> kernels = plan.Kernels();
  ASSERT_EQ(kernels.size(), 4u);
  EXPECT_EQ(kernels[0], combine);
  EXPECT_EQ(kernels[1].family, Family::kFwdSm80);
  EXPECT_TRUE(kernels[1].before.empty() && kernels[1].after.empty());
  EXPECT_FALSE(ParsePlan(companion).ok());  // a companion alone is no plan
}

TEST(KernelPlanTest, ParsesEveryChoiceOfTheHopperFamily) {
  const KernelPlan plan = {.family = Family::kFwdSm90,
                           .target = "sm_90a",
                           .block_m = 128,
                           .block_n = 128,
                           .warps = 12,
                           .rows_per_warp = 16,
                           .stages = 2,
                           .consumers = 2,
                           .cluster = 2,
                           .max_grid = 66,
                           .optimistic = true,
                           .ones = true,
                           .ping_pong = true,
                           .own_o = true,
                           .smem_bytes = 230400};
  EXPECT_EQ(plan.ToString(),
            "attn_fwd_sm90 sm_90a m128n128 w12 r16 s2 c2 x2 g66 opt ones pp own_o smem=230400");
  const absl::StatusOr<KernelPlan> parsed = ParsePlan(plan.ToString());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, plan);
}

TEST(KernelPlanTest, NamesOfFamiliesAreReadBack) {
  EXPECT_EQ(ParseFamily("attn_fwd_sm80").value(), Family::kFwdSm80);
  EXPECT_EQ(ParseFamily("").value(), std::nullopt);
  const absl::Status status = ParseFamily("attn_fwd_sm81").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      status.message(),
      "family = attn_fwd_sm81: must be one of attn_decode_sm90, attn_decode, attn_decode_wide, "
      "attn_fwd_small, attn_fwd_sm90, attn_fwd_sm80, attn_fwd_simple, attn_combine, attn_bwd_sm90, "
      "attn_bwd_sm80, attn_bwd_simple, attn_bwd_prep, attn_bwd_finish, attn_bwd_terms, "
      "cache_append");
}

TEST(KernelPlanTest, RefusesTextsThatNoPlanPrints) {
  for (const char* text :
       {"", "attn_fwd_simple", "attn_fwd_other sm_90a m32n32 w4 r8 p128 smem=33280",
        "attn_fwd_simple sm_90a m32n32 w4 r8 p128",
        "attn_fwd_simple sm_90a m32n32 w4 r8 p128 smem=1 ",
        "attn_fwd_simple  sm_90a m32n32 w4 r8 p128 smem=1",
        "attn_fwd_simple sm_90a m99999999999n32 w4 r8 p128 smem=1"}) {
    const absl::Status status = ParsePlan(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace tilewright::plan
