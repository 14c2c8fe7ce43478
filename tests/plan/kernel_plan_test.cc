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
