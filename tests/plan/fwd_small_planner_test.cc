#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "arch/arch_traits.h"
#include "arch/board_profile.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/family_planner.h"
#include "plan/planner.h"
#include "spec/canonical.h"

namespace tilewright::plan {
namespace {

using ::testing::HasSubstr;

FamilyAnswer Plan(std::string_view text, std::string_view target = "sm_90a",
                  std::optional<Family> family = std::nullopt) {
  const AttentionSpec spec = spec::Canonicalise(spec::ParseSpec(text).value());
  const arch::ArchTraits traits = arch::FindArchTraits(target).value();
  const arch::BoardProfile board = arch::DefaultBoardProfile(target).value();
  return PlanFwdSmall({spec, traits, board, /*allow_fallback=*/true, family});
}

TEST(FwdSmallPlannerTest, SharedMemoryIsTwoOfAllTilesTheTermsAndTheVisits) {
  KernelPlan plan;
  plan.block_m = plan.block_n = 64;
  plan.warps = 4;
  plan.rows_per_warp = 16;
  plan.stages = 2;
  const int64_t tiles = 2 * 2 * 64 * (40 + 40 + 40);  // 32 columns are 4 chunks, 5 apart
  // 16 bits of each key for two visits, two tiles, and two flags of each warp.
  const int64_t others = 2 * 128 + 2 * 32 + 16 + 96;
  EXPECT_EQ(FwdSmallSmemBytes(plan, 32, 32), tiles + others + 512);
  plan.kept_terms = 3;  // 16 bytes of every lane for a tile of 16 rows and 8 keys
  plan.kept_keys = 64;
  EXPECT_EQ(FwdSmallSmemBytes(plan, 32, 32), tiles + others + (4 * 8 + 1) * 512);
  plan.packed_terms = true;
  plan.kept_keys = 128;
  EXPECT_EQ(FwdSmallSmemBytes(plan, 32, 32), tiles + others + (4 * 8 + 1) * 512);
}

TEST(FwdSmallPlannerTest, PlansAreFeasible) {
  for (std::string_view target : {"sm_80", "sm_86", "sm_90a", "sm_120a"}) {
    const arch::ArchTraits traits = arch::FindArchTraits(target).value();
    for (int dim : {1, 8, 32, 33, 64, 80, 128}) {
      for (int seqlen : {1, 16, 25, 49, 64, 144}) {
        const std::string text = absl::StrCat("fwd bf16 b=4096 h=4 s=", seqlen, " d=", dim);
        const FamilyAnswer answer = Plan(text, target, Family::kFwdSmall);
        for (const KernelPlan& plan : answer.plans) {
          SCOPED_TRACE(text + " " + plan.ToString());
          EXPECT_EQ(plan.warps * plan.rows_per_warp % plan.block_m, 0);
          EXPECT_GE(plan.block_m, seqlen);
          EXPECT_GE(plan.block_n, seqlen);
          EXPECT_EQ(plan.block_n % plan.step, 0);
          EXPECT_LE(plan.smem_bytes, traits.smem_per_block_optin);
          EXPECT_EQ(plan.smem_bytes, FwdSmallSmemBytes(plan, dim, dim));
          EXPECT_GT(plan.max_grid, 0);
          EXPECT_EQ(ParsePlan(plan.ToString()).value(), plan);
        }
        EXPECT_FALSE(answer.plans.empty() && dim <= 64 && seqlen <= 64) << text << answer.refusal;
      }
    }
  }
}

// The tables of windowed attention repeat after so many heads and batches; blocks that meet the
// same ones again keep their sum.
TEST(FwdSmallPlannerTest, BlocksMeetTheSameTermsAgain) {
  const FamilyAnswer answer =
      Plan("fwd fp16 b=4096 h=4 s=49 d=32 bias=fp16:1,4,49,49 bias=fp16:64,1,49,49");
  ASSERT_FALSE(answer.plans.empty()) << answer.refusal;
  EXPECT_EQ(answer.plans.front().kept_terms, 0b11);
  EXPECT_EQ(answer.plans.front().kept_keys, 64);
  EXPECT_FALSE(answer.plans.front().packed_terms);  // a sum of two
  EXPECT_EQ(answer.plans.front().max_grid % (64 * 4), 0);
  // Three teams share them: with one in a block only four would find room.
  EXPECT_EQ(answer.plans.front().warps * answer.plans.front().rows_per_warp, 3 * 64);
  // What another policy also has a say in, or what no two batches share, is not kept.
  for (const char* text : {"fwd fp16 b=4096 h=4 s=49 d=32 bias=fp16:1,4,49,49 alibi",
                           "fwd fp16 b=4096 h=4 s=49 d=32 bias=fp16:4096,1,49,49"}) {
    const FamilyAnswer other = Plan(text, "sm_90a", Family::kFwdSmall);
    ASSERT_FALSE(other.plans.empty()) << other.refusal;
    EXPECT_EQ(other.plans.front().kept_terms, 0) << text;
  }
}

// The bias of a protein's pairs is the same for all rows of pairs, which are the batches; the mask
// of its residues is not, but looks at the key alone.
TEST(FwdSmallPlannerTest, LongSequencesThatShareABias) {
  const FamilyAnswer answer =
      Plan("fwd bf16 b=384 h=4 s=384 d=32 bias=bf16:1,4,384,384 mask=bool:384,1,1,384");
  ASSERT_FALSE(answer.plans.empty()) << answer.refusal;
  const KernelPlan& best = answer.plans.front();
  EXPECT_EQ(best.kept_terms, 0b1);
  EXPECT_EQ(best.kept_keys, 384);
  EXPECT_TRUE(best.packed_terms);
  EXPECT_EQ(best.max_grid % (4 * 384 / best.block_m), 0);
  EXPECT_EQ(best.smem_bytes, FwdSmallSmemBytes(best, 32, 32));
  for (const char* text :
       {"fwd bf16 b=384 h=4 s=384 d=32", "fwd bf16 b=384 h=4 s=384 d=32 bias=fp32:1,4,384,384",
        "fwd bf16 b=384 h=4 s=384 d=32 bias=bf16:384,4,384,384",
        "fwd bf16 b=384 h=4 s=384 d=32 bias=bf16:1,4,384,384 "
        "mask=bool:384,1,384,384"}) {
    EXPECT_THAT(Plan(text).refusal, HasSubstr("that all batches share")) << text;
  }
  EXPECT_THAT(Plan("fwd bf16 b=8 h=4 s=384 d=32 bias=bf16:1,4,384,384").refusal,
              HasSubstr("batch = 8"));
  // Few tiles for each block: without masks another family is quicker.
  EXPECT_THAT(Plan("fwd bf16 b=64 h=4 s=384 d=32 bias=bf16:1,4,384,384").refusal,
              HasSubstr("5 tiles for each block"));
  EXPECT_EQ(Plan("fwd bf16 b=64 h=4 s=384 d=32 bias=bf16:1,4,384,384 mask=bool:64,1,1,384").refusal,
            "");
}

TEST(FwdSmallPlannerTest, LeavesOthersToOthers) {
  EXPECT_THAT(Plan("fwd fp32 b=4096 h=4 s=49 d=32").refusal, HasSubstr("fp16 or bf16"));
  EXPECT_THAT(Plan("fwd bf16 b=4096 h=4 s=49 d=256").refusal, HasSubstr("256, 256"));
  EXPECT_THAT(Plan("fwd bf16 b=4096 h=4 s=49/512 d=32").refusal,
              HasSubstr("49, 512: more than 160 rows or keys"));
  EXPECT_THAT(Plan("fwd bf16 b=4096 h=4 s=144 d=80").refusal, HasSubstr("144, 80"));
  EXPECT_THAT(Plan("fwd bf16 b=256 h=32 s=64 d=32 bias=bf16:256,32,64,64").refusal,
              HasSubstr("repeat from batch to batch"));
  EXPECT_THAT(Plan("fwd fp16 b=4096 h=4 s=49 d=32", "sm_75").refusal, HasSubstr("cp.async"));
  const char* few = "fwd bf16 b=2 h=4 s=49 d=32";
  EXPECT_THAT(Plan(few).refusal, HasSubstr("batch * heads_q = 8"));
  EXPECT_FALSE(Plan(few, "sm_90a", Family::kFwdSmall).plans.empty());
}

}  // namespace
}  // namespace tilewright::plan
