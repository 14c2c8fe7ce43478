#include <algorithm>
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

using ::testing::HasSubstr;

FamilyAnswer Plan(std::string_view text, std::string_view target = "sm_90a") {
  const AttentionSpec spec = spec::Canonicalise(spec::ParseSpec(text).value());
  const arch::ArchTraits traits = arch::FindArchTraits(target).value();
  const arch::BoardProfile board = arch::DefaultBoardProfile(target).value();
  return PlanFwdSm80({spec, traits, board});
}

KernelPlan PlanOf(int block_m, int block_n, int stages) {
  KernelPlan plan;
  plan.family = Family::kFwdSm80;
  plan.block_m = block_m;
  plan.block_n = block_n;
  plan.stages = stages;
  return plan;
}

TEST(FwdSm80PlannerTest, SharedMemoryIsQAndTheStagesOfKAndV) {
  // 128 columns are 16 chunks of 8: rows lie 17 apart.
  EXPECT_EQ(FwdSm80SmemBytes(PlanOf(128, 64, 2), 128, 128),
            112 + 2 * (128 * 136 + 2 * 64 * (136 + 136)));
  // K is padded to steps of 16: 10 chunks, 11 apart. V's 9 are odd already.
  EXPECT_EQ(FwdSm80SmemBytes(PlanOf(64, 32, 1), 72, 72), 112 + 2 * (64 * 88 + 32 * (88 + 72)));
}

TEST(FwdSm80PlannerTest, SharedMemoryOfWarpsThatSplitColumns) {
  KernelPlan plan = PlanOf(64, 64, 1);
  plan.warps = 8;
  plan.column_warps = 4;
  // Also weights, 64 of 64 keys, 9 chunks apart; 4 numbers a row.
  EXPECT_EQ(FwdSm80SmemBytes(plan, 512, 512),
            112 + 2 * (64 * 520 + 64 * (520 + 520) + 64 * 72) + 4 * 4 * 64);
  // Two stages have four barriers for their copies.
  plan.stages = 2;
  EXPECT_EQ(FwdSm80SmemBytes(plan, 256, 256),
            32 + 112 + 2 * (64 * 264 + 2 * 64 * (264 + 264) + 64 * 72) + 4 * 4 * 64);
}

TEST(FwdSm80PlannerTest, SharedMemoryOfFloats) {
  KernelPlan plan = PlanOf(128, 64, 1);
  plan.tf32_terms = 3;
  EXPECT_EQ(FwdSm80SmemBytes(plan, 64, 64), 112 + 4 * (128 * 80 + 64 * (80 + 68)));
}

// What the kernel takes for granted, over types, dims, architectures and lengths.
TEST(FwdSm80PlannerTest, PlansAreFeasible) {
  for (const arch::ArchTraits& row : arch::AllArchTraits()) {
    for (const char* type : {"fp16", "bf16", "fp32"}) {
      if (row.sm == 75 && type != std::string("fp16")) continue;
      for (int dim_qk : {1, 3, 33, 40, 64, 72, 100, 128, 192, 256, 320, 576}) {
        for (int dim_v : {1, 7, 36, 64, 128, 256, 512}) {
          const bool wide = std::max(dim_qk, dim_v) > 256;
          if (wide && (type == std::string("fp32") || row.sm == 75)) continue;
          // fp32 rows of more than 128 columns need more shared memory than these have.
          if (type == std::string("fp32") && std::max(dim_qk, dim_v) > 128 &&
              row.smem_per_block_optin < 160 * 1024) {
            continue;
          }
          for (int seqlen : {0, 1, 49, 4097}) {
            const std::string text =
                absl::StrCat("fwd ", type, " b=2 h=8 s=", seqlen, " d=", dim_qk, "/", dim_v);
            const FamilyAnswer answer = Plan(text, row.target);
            ASSERT_FALSE(answer.plans.empty()) << text << " " << row.target << answer.refusal;
            for (const KernelPlan& plan : answer.plans) {
              SCOPED_TRACE(text + " " + plan.ToString());
              EXPECT_EQ(plan.target, row.target);
              EXPECT_EQ(plan.block_m * plan.column_warps, plan.warps * plan.rows_per_warp);
              EXPECT_TRUE(plan.rows_per_warp == 16 || plan.rows_per_warp == 32);
              EXPECT_EQ(plan.block_n % 16, 0);
              EXPECT_EQ(plan.block_n % (8 * plan.column_warps), 0);
              EXPECT_EQ(plan.smem_bytes, FwdSm80SmemBytes(plan, dim_qk, dim_v));
              EXPECT_LE(plan.smem_bytes, row.smem_per_block_optin);
              EXPECT_EQ(plan.turing, row.sm == 75);
              EXPECT_EQ(plan.tf32_terms, type == std::string("fp32") ? 3 : 0);
            }
          }
        }
      }
    }
  }
}

TEST(FwdSm80PlannerTest, ShortQueriesTakeTheSmallestTile) {
  EXPECT_EQ(Plan("fwd fp16 b=4096 h=4 s=49 d=32").plans.front().block_m, 64);
}

TEST(FwdSm80PlannerTest, LongQueriesTakeWideWarps) {
  for (const char* dim : {"64", "72", "128"}) {
    const KernelPlan plan = Plan(absl::StrCat("fwd bf16 b=4 h=16 s=4096 d=", dim)).plans.front();
    EXPECT_EQ(plan.rows_per_warp, 32) << dim;
    EXPECT_EQ(plan.stages, 2) << dim;
  }
}

TEST(FwdSm80PlannerTest, AlibiAndSoftcapAloneLeaveRoomForWideWarps) {
  for (const char* text :
       {"fwd bf16 b=2 h=16 s=8192 d=128 causal alibi", "fwd bf16 b=2 h=16 s=8192 d=128 softcap=50",
        "fwd bf16 b=2 h=16 s=8192 d=96 causal alibi softcap=50 lse sinks"}) {
    EXPECT_EQ(Plan(text).plans.front().rows_per_warp, 32) << text;
  }
  const FamilyAnswer biased = Plan("fwd bf16 b=2 h=16 s=8192 d=128 alibi bias=bf16:1,16,8192,8192");
  EXPECT_EQ(biased.plans.front().rows_per_warp, 16);
}

TEST(FwdSm80PlannerTest, RefusalsNameTheRuleAndTheNearestServedSpec) {
  const struct {
    const char* text;
    const char* target;
    const char* reason;
  } cases[] = {
      {"bwd bf16 h=4 s=64 d=64", "sm_90a", "only the forward is served"},
      {"fwd bf16 h=4 s=64 d=64", "sm_75", "sm_75 has no mma.sync of bf16"},
      {"fwd fp32 h=4 s=64 d=64", "sm_75", "sm_75 has no mma.sync of TF32"},
      {"fwd fp32 h=4 s=64 d=261", "sm_80", "dim_qk, dim_v = 261, 261: must be at most 256"},
      {"fwd bf16 h=4 s=64 d=64 kv=e4m3 kv_scale=head", "sm_80", "all the same"},
      {"fwd bf16 h=4 s=64 d=64 strided_innermost", "sm_80", "rows must be contiguous"},
      {"fwd bf16 h=4 s=64 d=1024/1040", "sm_80",
       "dim_qk, dim_v = 1024, 1040: must be at most 1024"},
      {"fwd bf16 h=4 s=64 d=1024", "sm_86", "no tile of dim_qk, dim_v = 1024, 1024 fits"},
  };
  for (const auto& one : cases) {
    const FamilyAnswer answer = Plan(one.text, one.target);
    EXPECT_TRUE(answer.plans.empty()) << one.text;
    EXPECT_THAT(answer.refusal, HasSubstr(one.reason)) << one.text;
    if (!answer.nearest.has_value()) continue;
    EXPECT_FALSE(Plan(spec::ToText(*answer.nearest), one.target).plans.empty())
        << spec::ToText(*answer.nearest);
  }
}

TEST(FwdSm80PlannerTest, OneTermOfTf32WhereAllowed) {
  EXPECT_EQ(Plan("fwd fp32 h=4 s=64 d=64 allow_tf32").plans.front().tf32_terms, 1);
}

TEST(FwdSm80PlannerTest, WideOutputsAreSplit) {
  EXPECT_EQ(Plan("fwd bf16 b=1 h=8 s=2048 d=512").plans.front().column_warps, 4);
}

TEST(FwdSm80PlannerTest, HugeProblemsDoNotOverflow) {
  EXPECT_FALSE(Plan("fwd fp16 b=1048576 h=1024 s=1048576/1 d=1").plans.empty());
}

}  // namespace
}  // namespace tilewright::plan
