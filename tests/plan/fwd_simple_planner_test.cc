#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "arch/arch_traits.h"
#include "arch/board_profile.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/family_planner.h"
#include "spec/canonical.h"

namespace tilewright::plan {
namespace {

FamilyAnswer Plan(std::string_view text, std::string_view target = "sm_90a") {
  const AttentionSpec spec = spec::Canonicalise(spec::ParseSpec(text).value());
  const arch::ArchTraits traits = arch::FindArchTraits(target).value();
  const arch::BoardProfile board = arch::DefaultBoardProfile(target).value();
  return PlanFwdSimple({spec, traits, board});
}

KernelPlan First(std::string_view text, std::string_view target = "sm_90a") {
  const FamilyAnswer answer = Plan(text, target);
  EXPECT_FALSE(answer.plans.empty()) << text << ": " << answer.refusal;
  return answer.plans.empty() ? KernelPlan() : answer.plans.front();
}

TEST(FwdSimplePlannerTest, SharedMemoryIsQAndOnePanel) {
  EXPECT_EQ(FwdSimpleSmemBytes(32, 128, 128), 4 * (32 * 128 + 32 * 132));
  EXPECT_EQ(FwdSimpleSmemBytes(16, 33, 36), 4 * (16 * 36 + 32 * 40));
  EXPECT_EQ(FwdSimpleSmemBytes(4, 1, 4), 4 * (4 * 4 + 32 * 8));
}

// What the kernel takes for granted, over dims, architectures and lengths.
TEST(FwdSimplePlannerTest, PlansAreFeasible) {
  for (const arch::ArchTraits& row : arch::AllArchTraits()) {
    for (int dim_qk : {1, 3, 33, 40, 64, 72, 100, 128, 192, 256, 261, 512, 576, 1024, 3000}) {
      for (int dim_v : {1, 7, 36, 64, 128, 256, 257, 512, 1024, 2048, 4096}) {
        for (int seqlen : {0, 1, 7, 49, 4097}) {
          const std::string text =
              absl::StrCat("fwd bf16 b=2 h=8 s=", seqlen, " d=", dim_qk, "/", dim_v);
          const FamilyAnswer answer = Plan(text, row.target);
          ASSERT_FALSE(answer.plans.empty()) << text << " " << row.target << answer.refusal;
          for (const KernelPlan& plan : answer.plans) {
            SCOPED_TRACE(text + " " + plan.ToString());
            EXPECT_EQ(plan.target, row.target);
            EXPECT_EQ(plan.warps, 4);
            EXPECT_EQ(plan.block_m, plan.warps * plan.rows_per_warp);
            EXPECT_EQ(plan.block_n, 32);
            EXPECT_EQ(plan.panel % 4, 0);
            EXPECT_GE(plan.panel, std::min(std::max(dim_qk, dim_v), 128));
            EXPECT_LE(plan.panel, 128);
            EXPECT_EQ(plan.smem_bytes, FwdSimpleSmemBytes(plan.block_m, dim_qk, plan.panel));
            EXPECT_LE(plan.smem_bytes, row.smem_per_block_optin);
            const int accumulators = plan.rows_per_warp * ((dim_v + 31) / 32);
            EXPECT_LE(accumulators, plan.rows_per_warp == 1 ? 128 : 32);
            // No block of which more than half is beyond the last query, where one could do less.
            EXPECT_TRUE(plan.rows_per_warp == 1 || plan.block_m / 2 < std::max(seqlen, 1));
          }
        }
      }
    }
  }
}

TEST(FwdSimplePlannerTest, LongProblemsTakeManyRows) {
  EXPECT_EQ(First("fwd bf16 b=4 h=16 s=8192 d=128").rows_per_warp, 4);
  EXPECT_EQ(First("fwd bf16 b=4 h=16 s=8192 d=128").smem_bytes, 25088);
}

TEST(FwdSimplePlannerTest, DecodeTakesOneRow) {
  EXPECT_EQ(First("fwd bf16 b=64 h=32/8 s=1/4096 d=128").rows_per_warp, 1);
  EXPECT_EQ(First("fwd bf16 b=64 h=32/8 s=1/4096 d=128").block_m, 4);
}

TEST(FwdSimplePlannerTest, SmallProblemsSpreadOverTheSms) {
  // 4 heads of 64 queries: 8 blocks of 32 rows, or 64 blocks of 4 for the 132 SMs.
  EXPECT_EQ(First("fwd bf16 b=1 h=4 s=64/4096 d=64").rows_per_warp, 1);
  EXPECT_GT(First("fwd bf16 b=64 h=16 s=64/4096 d=64").rows_per_warp, 1);
}

TEST(FwdSimplePlannerTest, WideOutputsTakeFewerRows) {
  for (const KernelPlan& plan : Plan("fwd bf16 b=4 h=16 s=8192 d=64/512").plans) {
    EXPECT_LE(plan.rows_per_warp, 2);
  }
  EXPECT_EQ(Plan("fwd bf16 b=4 h=16 s=8192 d=64/4096").plans.size(), 1);
}

TEST(FwdSimplePlannerTest, RefusesWhatRegistersCannotHold) {
  EXPECT_FALSE(Plan("fwd bf16 s=64 d=64/4096").plans.empty());
  const FamilyAnswer answer = Plan("fwd bf16 s=64 d=64/4097");
  EXPECT_TRUE(answer.plans.empty());
  EXPECT_THAT(answer.refusal, ::testing::HasSubstr("dim_v = 4097: must be at most 4096"));
}

TEST(FwdSimplePlannerTest, RefusesWhatSharedMemoryCannotHold) {
  for (const arch::ArchTraits& row : arch::AllArchTraits()) {
    const FamilyAnswer refused = Plan("fwd bf16 s=64 d=20000/64", row.target);
    EXPECT_TRUE(refused.plans.empty());
    ASSERT_TRUE(refused.nearest.has_value());
    // The limit that the refusal names is exact.
    const int64_t limit = refused.nearest->dim_qk;
    EXPECT_FALSE(Plan(absl::StrCat("fwd bf16 s=64 d=", limit, "/64"), row.target).plans.empty());
    EXPECT_TRUE(Plan(absl::StrCat("fwd bf16 s=64 d=", limit + 1, "/64"), row.target).plans.empty());
    EXPECT_THAT(refused.refusal, ::testing::HasSubstr(absl::StrCat("at most ", limit, " on ",
                                                                   std::string(row.target))));
  }
}

TEST(FwdSimplePlannerTest, HugeProblemsDoNotOverflow) {
  EXPECT_EQ(First("fwd fp16 b=1048576 h=1024 s=1048576/1 d=1").rows_per_warp, 4);
}

}  // namespace
}  // namespace tilewright::plan
