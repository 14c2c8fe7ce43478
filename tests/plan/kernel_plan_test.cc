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

}  // namespace
}  // namespace tilewright::plan
