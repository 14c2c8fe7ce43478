#include <algorithm>
#include <optional>
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

using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;

FamilyAnswer Plan(std::string_view text, std::string_view target = "sm_90a",
                  std::optional<Family> family = std::nullopt) {
  const AttentionSpec spec = spec::Canonicalise(spec::ParseSpec(text).value());
  const arch::ArchTraits traits = arch::FindArchTraits(target).value();
  const arch::BoardProfile board = arch::DefaultBoardProfile(target).value();
  PlanRequest request = {spec, traits, board};
  request.family = family;
  return PlanFwdSm90(request);
}

TEST(FwdSm90PlannerTest, SharedMemoryIsPanelsAndBarriers) {
  KernelPlan plan;
  plan.block_m = plan.block_n = 128;
  plan.stages = 2;
  // Two panels of 128-byte rows of Q and of each stage's K and V; less than 1 KB of barriers.
  EXPECT_EQ(FwdSm90SmemBytes(plan, 128, 128), 128 * (2 * 128 + 2 * 128 * 4) + 1024);
  plan.own_o = true;
  EXPECT_EQ(FwdSm90SmemBytes(plan, 128, 128), 128 * (4 * 128 + 2 * 128 * 4) + 1024);
  plan.ones = true;
  EXPECT_EQ(FwdSm90SmemBytes(plan, 128, 128), 128 * (4 * 128 + 2 * 128 * 5) + 1024);
  // Ones lie behind V where its last panel has room.
  EXPECT_EQ(FwdSm90SmemBytes(plan, 128, 72), 128 * (4 * 128 + 2 * 128 * 4) + 1024);
  // Dims fill whole panels.
  plan.own_o = plan.ones = false;
  EXPECT_EQ(FwdSm90SmemBytes(plan, 72, 8), 128 * (2 * 128 + 2 * 128 * 3) + 1024);
}

// What the kernel takes for granted, over dims and lengths.
TEST(FwdSm90PlannerTest, PlansAreFeasible) {
  const arch::ArchTraits row = arch::FindArchTraits("sm_90a").value();
  for (int dim_qk : {8, 33, 40, 64, 72, 100, 128, 192, 250, 256, 320, 512, 576}) {
    for (int dim_v : {1, 8, 64, 80, 100, 128, 200, 255, 256, 320, 392, 512}) {
      const bool narrow = dim_qk % 8 != 0 || dim_v % 8 != 0;
      if (narrow && std::max(dim_qk, dim_v) > 256) continue;
      for (const char* rest : {"s=1", "s=4097 causal lse", "s=300/0 softcap=5", "s=64 sinks"}) {
        const std::string text = absl::StrCat("fwd bf16 b=2 h=8 d=", dim_qk, "/", dim_v, " ", rest);
        const FamilyAnswer answer = Plan(text, "sm_90a", Family::kFwdSm90);
        ASSERT_FALSE(answer.plans.empty()) << text << answer.refusal;
        for (const KernelPlan& plan : answer.plans) {
          SCOPED_TRACE(text + " " + plan.ToString());
          const int rows = 64 * plan.consumers / plan.column_warps;
          EXPECT_EQ(plan.block_m, rows);
          EXPECT_TRUE(plan.column_warps == 1 || plan.column_warps == plan.consumers);
          EXPECT_EQ(plan.warps, 4 * (plan.consumers + 1));
          EXPECT_EQ(plan.block_n % 16, 0);
          EXPECT_EQ(plan.smem_bytes, FwdSm90SmemBytes(plan, dim_qk, dim_v));
          EXPECT_EQ(plan.narrow_rows, narrow);
          EXPECT_TRUE(!narrow || plan.cluster == 1);
          EXPECT_LE(plan.smem_bytes, row.smem_per_block_optin);
          EXPECT_LE((plan.smem_bytes + row.smem_reserved_per_block) * std::max(plan.blocks, 1),
                    row.smem_per_sm);
          // O over Q needs a Q at least as wide, and over V it would lie on the ones.
          const StoredDims dims = StoredDimsOf(narrow, dim_qk, dim_v);
          const int64_t panels_v = RoundUp(CeilDiv(dims.v, 64), plan.column_warps);
          EXPECT_TRUE(plan.own_o || plan.over_v || panels_v <= CeilDiv(dims.qk, 64));
          EXPECT_TRUE(!plan.over_v || plan.stages * plan.block_n >= plan.block_m);
          EXPECT_TRUE(!plan.ones || !plan.over_v);
          const absl::StatusOr<KernelPlan> parsed = ParsePlan(plan.ToString());
          ASSERT_TRUE(parsed.ok()) << parsed.status();
          EXPECT_EQ(*parsed, plan);
        }
      }
    }
  }
}

TEST(FwdSm90PlannerTest, TilesOfOneLengthAreWalkedByAsManyBlocksAsTheBoardHasSms) {
  const int num_sms = arch::DefaultBoardProfile("sm_90a").value().num_sms;
  EXPECT_EQ(Plan("fwd bf16 b=2 h=8 s=512 d=128").plans.front().max_grid, num_sms);
  // The other way of sharing them out is there to be tuned.
  EXPECT_THAT(Plan("fwd bf16 b=2 h=8 s=512 d=128 causal").plans,
              Contains(Field(&KernelPlan::max_grid, 0)));
}

TEST(FwdSm90PlannerTest, TilesThatAreMostlyEmptyComeLast) {
  const auto rows = [](const char* text) {
    std::vector<int> all;
    for (const KernelPlan& plan : Plan(text).plans) all.push_back(plan.block_m);
    return all;
  };
  EXPECT_EQ(rows("fwd fp16 b=32 h=12 s=32/257 d=64").front(), 128);
  EXPECT_EQ(rows("fwd bf16 b=8 h=16/4 s=64/4964 d=96").front(), 128);
  EXPECT_EQ(rows("fwd bf16 b=128 h=13 s=257 d=64").front(), 192) << "384 rows, not 512";
  EXPECT_THAT(rows("fwd bf16 b=128 h=13 s=257 d=64"), Contains(256)) << "for the tuner";
  EXPECT_EQ(rows("fwd bf16 b=128 h=13 s=197 d=64").front(), 256) << "one tile, not two";
  EXPECT_EQ(rows("fwd bf16 b=8 h=16 s=4096 d=64").front(), 256);
  EXPECT_EQ(rows("fwd bf16 b=128 h=13 s=257 d=64 layout=thd varlen").front(), 256)
      << "257 is the longest of many";
}

TEST(FwdSm90PlannerTest, ShortCausalRowsHaveAThirdWarpgroupWhereItPadsNoFurther) {
  const auto rows = [](const char* text) { return Plan(text).plans.front().block_m; };
  EXPECT_EQ(rows("fwd bf16 b=32 h=16 s=729 d=72 causal"), 192) << "768 rows, as of 128";
  EXPECT_EQ(rows("fwd bf16 b=32 h=16 s=257 d=104 causal"), 192) << "384";
  EXPECT_EQ(rows("fwd bf16 b=32 h=16 s=257 d=104 causal layout=thd varlen lse"), 128);
  EXPECT_EQ(rows("fwd bf16 b=8 h=16 s=1024 d=80 causal"), 128) << "1024 rows, not 1152";
  EXPECT_EQ(rows("fwd bf16 b=4 h=16 s=2049 d=112 causal"), 128);
}

TEST(FwdSm90PlannerTest, LongRowsOfWideHeadsHaveMoreKeysATileInPairsOfBlocks) {
  const auto plan = [](const char* text) { return Plan(text).plans.front(); };
  EXPECT_EQ(plan("fwd bf16 b=1 h=8 s=16384 d=256").block_n, 80);
  EXPECT_EQ(plan("fwd bf16 b=1 h=8 s=16384 d=256").cluster, 2);
  EXPECT_EQ(plan("fwd bf16 b=2 h=8 s=8192 d=256 causal").block_n, 80);
  EXPECT_EQ(plan("fwd bf16 b=8 h=8 s=2048 d=256").block_n, 64);
  EXPECT_EQ(plan("fwd bf16 b=1 h=8 s=16384 d=256 varlen paged=64").block_n, 64) << "no pairs";
  EXPECT_TRUE(plan("fwd bf16 b=1 h=16 s=16384 d=128").ping_pong);
}

TEST(FwdSm90PlannerTest, WarpgroupsOfSmallHeadsTakeTurns) {
  const auto turns = [](const char* text) { return Plan(text).plans.front().ping_pong; };
  EXPECT_TRUE(turns("fwd bf16 b=8 h=32 s=2048 d=64"));
  EXPECT_TRUE(turns("fwd bf16 b=2 h=8 s=4096 d=40"));
  EXPECT_FALSE(turns("fwd bf16 b=8 h=32 s=2048 d=64 softcap=30")) << "not measured";
  EXPECT_FALSE(turns("fwd bf16 b=1 h=16 s=4096 d=80")) << "no gain";
}

TEST(FwdSm90PlannerTest, OptimismNeedsBf16AndScoresThatAreFiniteOrBiased) {
  EXPECT_TRUE(Plan("fwd bf16 b=2 h=8 s=512 d=128").plans.front().optimistic);
  EXPECT_FALSE(Plan("fwd fp16 b=2 h=8 s=512 d=128").plans.front().optimistic);
  EXPECT_TRUE(Plan("fwd bf16 b=2 h=8 s=512 d=128 bias=bf16:1,8,512,512").plans.front().optimistic);
  const char* masked = "fwd bf16 b=2 h=8 s=512 d=128 mask=bool:1,8,512,512";
  EXPECT_FALSE(Plan(masked, "sm_90a", Family::kFwdSm90).plans.front().optimistic);
  EXPECT_TRUE(Plan("fwd e4m3 b=2 h=8 s=512 d=256 out=bf16").plans.front().optimistic);
}

TEST(FwdSm90PlannerTest, CopiesAreOfWholePagesOrOfPartsOfOne) {
  for (int page : {8, 16, 24, 32, 48, 64, 128, 256}) {
    const FamilyAnswer answer =
        Plan(absl::StrCat("fwd bf16 b=2 h=8/2 s=512 d=128 varlen causal paged=", page));
    ASSERT_FALSE(answer.plans.empty()) << answer.refusal;
    for (const KernelPlan& plan : answer.plans) {
      EXPECT_TRUE(plan.block_n % page == 0 || page % plan.block_n == 0) << plan.ToString();
      EXPECT_EQ(plan.cluster, 1);
      EXPECT_EQ(plan.consumers, 2);
    }
  }
}

TEST(FwdSm90PlannerTest, RefusalsNameTheFieldAndTheNearestServed) {
  const struct {
    const char* text;
    const char* target;
    const char* reason;
  } cases[] = {
      {"fwd bf16 b=2 h=8 s=512 d=128", "sm_80", "sm_80 has no wgmma.mma_async"},
      {"fwd fp32 b=2 h=8 s=512 d=128", "sm_90a", "must be fp16 or bf16"},
      {"fwd bf16 b=2 h=8 s=512 d=584", "sm_90a", "must be at most 576, 512"},
      {"fwd bf16 b=2 h=3 s=512 d=36", "sm_90a", "rows of all heads must be"},
      {"fwd bf16 b=2 h=8 s=512 d=36 layout=bhsd", "sm_90a", "rows of all heads must be"},
      {"fwd bf16 b=2 h=8 s=512 d=36 bias=bf16:1,8,512,512", "sm_90a", "bias terms with heads"},
      {"fwd bf16 b=2 h=8 s=512 d=260/36", "sm_90a", "at most 256 columns"},
      {"fwd bf16 b=2 h=8 s=512 d=64 varlen paged=20", "sm_90a", "page_size = 20"},
      {"fwd bf16 b=2 h=8 s=512 d=64 varlen paged=1000", "sm_90a", "and pages of 1000 rows"},
      {"fwd bf16 b=2 h=8 s=512 d=64 strided_innermost", "sm_90a", "strided_innermost"},
      {"fwd bf16 b=1 h=1 s=2147483648/64 d=8", "sm_90a", "with 31 bits"},
      {"fwd bf16 b=2147483648 h=4 s=200 d=8", "sm_90a", "with 31 bits"},
      {"fwd bf16 b=4096 h=4 s=49 d=32", "sm_90a", "seqlen_q, seqlen_kv = 49, 49"},
      {"fwd bf16 b=2 h=8 s=512 d=64 mask=bool:2,1,1,512", "sm_90a", "bias"},
  };
  for (const auto& c : cases) {
    const FamilyAnswer answer = Plan(c.text, c.target);
    EXPECT_TRUE(answer.plans.empty()) << c.text;
    EXPECT_THAT(answer.refusal, HasSubstr(c.reason)) << c.text;
    if (!answer.nearest.has_value()) continue;
    EXPECT_FALSE(Plan(spec::ToText(*answer.nearest)).plans.empty()) << c.text;
  }
}

TEST(FwdSm90PlannerTest, QIsKeptInRegistersThatAreLeft) {
  const auto keeps = [](std::string_view text) {
    const FamilyAnswer answer = Plan(text);
    EXPECT_FALSE(answer.plans.empty()) << text << answer.refusal;
    return !answer.plans.empty() && answer.plans.front().q_in_registers;
  };
  EXPECT_TRUE(keeps("fwd bf16 b=2 h=16 s=8192 d=128"));
  EXPECT_TRUE(keeps("fwd bf16 b=2 h=16 s=8192 d=192/128 causal"));
  EXPECT_TRUE(keeps("fwd bf16 b=2 h=16 s=8192 d=128 causal alibi"));
  EXPECT_FALSE(keeps("fwd bf16 b=2 h=16 s=8192 d=256 causal softcap=50"));
  // O and the scores take what there is; of four warpgroups a thread has half as many.
  EXPECT_FALSE(keeps("fwd bf16 b=2 h=16 s=8192 d=256"));
  EXPECT_FALSE(keeps("fwd bf16 b=2 h=16 s=8192 d=64"));
  EXPECT_FALSE(keeps("fwd e4m3 b=2 h=16 s=8192 d=128 out=bf16"));
}

TEST(FwdSm90PlannerTest, BiasTermsAreServedWhereTheyAreLoadedByPairs) {
  for (const char* text :
       {"fwd bf16 b=2 h=16 s=512 d=128 bias=bf16:1,16,512,512",
        "fwd fp16 b=2 h=16 s=512 d=64 causal bias=fp32:2,1,1,512",
        "fwd bf16 b=2 h=4 s=512 d=32 bias=bf16:1,4,512,512 bias=bf16:2,1,1,512"}) {
    EXPECT_FALSE(Plan(text).plans.empty()) << text;
  }
  for (const char* text : {"fwd bf16 b=2 h=16 s=512 d=128 bias=bf16:1,16,512,512 "
                           "bias=bf16:1,1,1,512 bias=bf16:1,1,512,1",
                           "fwd bf16 b=2 h=16 s=512 d=128 mask=bool:1,16,512,512",
                           "fwd bf16 b=2 h=16 s=144 d=32 bias=bf16:1,16,144,144"}) {
    const FamilyAnswer answer = Plan(text);
    EXPECT_TRUE(answer.plans.empty()) << text;
    EXPECT_FALSE(Plan(text, "sm_90a", Family::kFwdSm90).plans.empty()) << text;
  }
}

TEST(FwdSm90PlannerTest, TermsThatDifferFromRowToRowPassThroughSharedMemory) {
  const auto staged = [](std::string_view text) {
    const FamilyAnswer answer = Plan(text);
    EXPECT_FALSE(answer.plans.empty()) << text << answer.refusal;
    return answer.plans.empty() ? -1 : answer.plans.front().staged_terms;
  };
  EXPECT_EQ(staged("fwd bf16 b=2 h=16 s=512 d=128 bias=bf16:1,16,512,512"), 1);
  EXPECT_EQ(staged("fwd bf16 b=2 h=4 s=512 d=64 bias=bf16:1,4,512,512 bias=bf16:2,1,1,512"), 1);
  EXPECT_EQ(staged("fwd bf16 b=2 h=4 s=512 d=32 bias=bf16:1,4,512,512"), 0) << "three blocks";
  EXPECT_EQ(staged("fwd bf16 b=2 h=4 s=512 d=32 bias=bf16:2,1,1,512 bias=bf16:1,4,512,512"), 0);
  EXPECT_EQ(staged("fwd fp16 b=2 h=16 s=512 d=64 causal bias=fp32:2,1,512,512"), 0);
  EXPECT_EQ(staged("fwd bf16 b=2 h=16 s=512/508 d=64 bias=bf16:1,16,512,508"), 0) << "8 bytes";
  EXPECT_EQ(staged("fwd e4m3 b=2 h=16 s=512 d=64 out=bf16 bias=bf16:1,16,512,512"), 0);
  EXPECT_EQ(staged("fwd bf16 b=2 h=16 s=512 d=64"), 0);
}

// Copies of a pair of blocks are not for e4m3, whatever stands first for other types.
TEST(FwdSm90PlannerTest, LongRowsOfE4m3HavePlans) {
  for (const char* text : {"fwd e4m3 b=1 h=16 s=16384 d=128 causal out=bf16",
                           "fwd e4m3 b=1 h=16 s=16384 d=256 out=bf16"}) {
    EXPECT_FALSE(Plan(text).plans.empty()) << text;
  }
}

// A second sum, of an LSE or of a part of the keys, finds no register in three warpgroups.
TEST(FwdSm90PlannerTest, E4m3OfMiddleDimsHasThreeWarpgroupsWhereOneSumDoes) {
  const auto consumers = [](const char* text) { return Plan(text).plans.front().consumers; };
  EXPECT_EQ(consumers("fwd e4m3 b=2 h=16 s=8192 d=128 out=bf16"), 3);
  EXPECT_EQ(consumers("fwd e4m3 b=2 h=16 s=8192 d=128 causal out=bf16"), 3);
  EXPECT_EQ(consumers("fwd e4m3 b=2 h=16 s=8192 d=128 causal lse out=bf16"), 2);
  EXPECT_EQ(consumers("fwd e4m3 b=2 h=16 s=2048 d=128 causal out=bf16"), 2);
  EXPECT_EQ(consumers("fwd e4m3 b=2 h=16 s=8192 d=128 window=512,0 out=bf16"), 2);
  EXPECT_EQ(consumers("fwd e4m3 b=1 h=2 s=4300 d=128 causal out=bf16"), 2);
  EXPECT_TRUE(Plan("fwd e4m3 b=2 h=8 s=8192 d=256 out=bf16").plans.front().ping_pong);
}

// Windows of 49 tokens: attn_fwd_sm80 takes less than half the time. Who names the family gets it.
TEST(FwdSm90PlannerTest, SmallProblemsAreLeftToOthersUnlessAskedFor) {
  EXPECT_FALSE(Plan("fwd bf16 b=4096 h=4 s=65 d=32").plans.empty());
  EXPECT_FALSE(Plan("fwd bf16 b=8 h=4 s=49/4096 d=32").plans.empty());
  EXPECT_FALSE(Plan("fwd bf16 b=4096 h=4 s=49 d=32", "sm_90a", Family::kFwdSm90).plans.empty());
}

}  // namespace
}  // namespace tilewright::plan
