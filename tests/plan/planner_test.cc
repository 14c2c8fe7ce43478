#include "plan/planner.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "arch/arch_traits.h"
#include "arch/board_profile.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/family_planner.h"
#include "spec/canonical.h"

namespace tilewright::plan {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

absl::StatusOr<Decision> BestFor(std::string_view text, std::string_view target = "sm_90a",
                                 bool allow_fallback = true) {
  const AttentionSpec spec = spec::Canonicalise(spec::ParseSpec(text).value());
  const arch::ArchTraits traits = arch::FindArchTraits(target).value();
  const arch::BoardProfile board = arch::DefaultBoardProfile(target).value();
  return Best({spec, traits, board, allow_fallback});
}

TEST(PlannerTest, DecisionIsComplete) {
  const Decision decision = BestFor("fwd bf16 b=2 h=32/8 s=4096 d=128 causal lse").value();
  ASSERT_FALSE(decision.candidates.empty());
  EXPECT_EQ(decision.plan, decision.candidates.front());
  EXPECT_EQ(decision.plan.target, "sm_90a");
  EXPECT_EQ(decision.plan.family, Family::kFwdSm90);
  EXPECT_THAT(decision.why, HasSubstr("attn_fwd_sm90"));
  // The families for few queries and for short sequences, which are asked first.
  ASSERT_EQ(decision.refusals.size(), 4u);
  EXPECT_EQ(decision.refusals[0].family, Family::kDecodeSm90);
  EXPECT_EQ(decision.refusals[1].family, Family::kDecode);
  EXPECT_THAT(decision.refusals[1].reason, HasSubstr("seqlen_q * group = 16384"));
  EXPECT_EQ(decision.refusals[2].family, Family::kDecodeWide);
  EXPECT_EQ(decision.refusals[3].family, Family::kFwdSmall);
  EXPECT_FALSE(decision.fallback);
}

TEST(PlannerTest, FewQueriesOverManyKeysAreDecoded) {
  const Decision decision = BestFor("fwd bf16 b=16 h=40/8 s=1/8192 d=128").value();
  EXPECT_EQ(decision.plan.family, Family::kDecode);
  EXPECT_EQ(decision.plan.block_m, 8);
  EXPECT_TRUE(decision.plan.after.empty());  // its last block merges
  EXPECT_EQ(BestFor("fwd bf16 b=16 h=24/1 s=1/8192 d=64").value().plan.block_m, 24);
  // Latent heads up to 16 have one tile of a warp's rows; where V is hardly a part of K few of them
  // have a step less.
  for (const char* heads : {"4", "16"}) {
    const KernelPlan latent =
        BestFor(absl::StrCat("fwd bf16 b=16 h=", heads, "/1 s=1/8192 d=576/512")).value().plan;
    EXPECT_EQ(latent.family, Family::kDecodeSm90);
    EXPECT_EQ(latent.block_m, 16);
    EXPECT_EQ(latent.stages, 3);
    EXPECT_TRUE(latent.after.empty());
  }
  EXPECT_EQ(BestFor("fwd bf16 b=16 h=17/1 s=1/8192 d=576/512").value().plan.block_m, 64);
  const KernelPlan latent = BestFor("fwd bf16 b=16 h=8/2 s=1/8192 d=576/512").value().plan;
  EXPECT_EQ(latent.family, Family::kDecodeWide);
  EXPECT_EQ(latent.shared_stages, 5);
  ASSERT_EQ(latent.after.size(), 1u);
  EXPECT_EQ(latent.after[0].tile_rows, 8);
  EXPECT_EQ(BestFor("fwd bf16 b=16 h=8 s=1/8192 d=128 batch_invariant").value().plan.chunk, 4);
  // A block for each item, in half of an SM; parts, pages, bytes, long shares and small rings are
  // better off with all of it.
  const auto warps = [](const std::string& spec) {
    return BestFor("fwd bf16 b=16 " + spec).value().plan.warps;
  };
  const KernelPlan whole = BestFor("fwd bf16 b=16 h=32/8 s=1/8192 d=128").value().plan;
  EXPECT_EQ(whole.warps, 4);
  EXPECT_EQ(whole.slots, 132);
  EXPECT_EQ(warps("h=8/2 s=1/8192 d=128"), 8);
  EXPECT_EQ(warps("h=32/8 s=1/8192 d=128 paged=16"), 8);
  EXPECT_EQ(warps("h=32/8 s=1/8192 d=128 kv=e4m3 kv_scale=tensor"), 8);
  EXPECT_EQ(warps("h=32/8 s=1/65536 d=128"), 8);
  EXPECT_EQ(warps("h=32/8 s=1/8192 d=72"), 8);
  // A few items of few keys, but of more than a block's teams take at once, are shared by clusters.
  const KernelPlan few = BestFor("fwd bf16 b=1 h=32/8 s=1/300 d=128").value().plan;
  EXPECT_EQ(few.cluster, 4);
  EXPECT_EQ(few.slots, 132 / 4);
  EXPECT_EQ(BestFor("fwd bf16 b=1 h=32/8 s=1/100 d=128").value().plan.cluster, 0);
  EXPECT_EQ(BestFor("fwd bf16 b=8 h=32/8 s=1/300 d=128").value().plan.cluster, 0);
  EXPECT_EQ(BestFor("fwd bf16 b=1 h=32/8 s=1/300 d=128", "sm_80").value().plan.cluster, 0);
  // Many rows are the tensor cores' business: two blocks a tile where V is part of K.
  const KernelPlan group = BestFor("fwd bf16 b=16 h=71/1 s=1/8192 d=64").value().plan;
  EXPECT_EQ(group.family, Family::kDecodeSm90);
  EXPECT_EQ(group.block_m, 128);
  EXPECT_EQ(group.key_warps, 2);
  EXPECT_EQ(group.cluster, 1);
  ASSERT_EQ(group.after.size(), 1u);
  EXPECT_EQ(group.after[0].tile_rows, 128);
  const KernelPlan heads = BestFor("fwd bf16 b=16 h=128/1 s=1/8192 d=576/512").value().plan;
  EXPECT_EQ(heads.family, Family::kDecodeSm90);
  EXPECT_EQ(heads.cluster, 2);
  EXPECT_EQ(heads.slots, 66);
  EXPECT_TRUE(heads.after.empty());  // its last blocks merge
  EXPECT_EQ(BestFor("fwd bf16 b=16 h=64/1 s=1/8192 d=576/512").value().plan.cluster, 1);
  // Two parts of a sequence fill the board: a cluster has both.
  const KernelPlan halves = BestFor("fwd bf16 b=66 h=64/1 s=1/8192 d=576/512").value().plan;
  EXPECT_EQ(halves.cluster, 2);
  EXPECT_EQ(halves.block_m, 64);
  EXPECT_EQ(halves.slots, 132);
  EXPECT_EQ(BestFor("fwd bf16 b=66 h=64/1 s=1/8192 d=576/512 batch_invariant").value().plan.cluster,
            1);
  // Pages that are no multiples of 8 rows, and other architectures.
  EXPECT_EQ(BestFor("fwd bf16 b=16 h=71/1 s=1/8192 d=64 varlen paged=3").value().plan.family,
            Family::kDecode);
  EXPECT_EQ(BestFor("fwd bf16 b=16 h=71/1 s=1/8192 d=64", "sm_80").value().plan.family,
            Family::kDecode);
  // Small problems with as many queries as keys are not.
  EXPECT_EQ(BestFor("fwd bf16 b=4096 h=4 s=49 d=32").value().plan.family, Family::kFwdSmall);
}

TEST(PlannerTest, ManySequencesOfFewKeysAreNotDecoded) {
  const auto family = [](const std::string& spec) { return BestFor(spec).value().plan.family; };
  EXPECT_EQ(family("fwd bf16 b=147456 h=4 s=1/4 d=16 mask=bool:1,1,1,4"), Family::kFwdSmall);
  EXPECT_EQ(family("fwd bf16 b=64800 h=16 s=3/13 d=32"), Family::kFwdSmall);
  EXPECT_EQ(family("fwd bf16 b=256 h=8 s=1/64 d=128"), Family::kFwdSmall);
  // Longer than that family's, or on pages.
  EXPECT_EQ(family("fwd bf16 b=256 h=8 s=1/256 d=64"), Family::kFwdSm80);
  EXPECT_EQ(family("fwd bf16 b=256 h=8 s=1/64 d=64 varlen paged=16"), Family::kFwdSm80);
  // One warp of that family on a multiprocessor.
  EXPECT_EQ(family("fwd bf16 b=256 h=8 s=1/128 d=128"), Family::kFwdSm80);
  // Few sequences, many bytes of keys, many heads on them, what only attn_decode reads, and what
  // must not depend on the batch.
  EXPECT_EQ(family("fwd bf16 b=16 h=8 s=1/64 d=64"), Family::kDecode);
  EXPECT_EQ(family("fwd bf16 b=256 h=8 s=1/1024 d=64"), Family::kDecode);
  EXPECT_EQ(family("fwd bf16 b=256 h=64/4 s=1/128 d=64"), Family::kDecode);
  EXPECT_EQ(family("fwd bf16 b=256 h=8 s=1/64 d=64 kv=e4m3 kv_scale=tensor"), Family::kDecode);
  EXPECT_EQ(family("fwd bf16 b=256 h=8 s=1/64 d=64 batch_invariant"), Family::kDecode);
}

TEST(PlannerTest, NeighbouringHeadsOfShortSequencesShareABlock) {
  const auto teams = [](const std::string& spec) {
    const KernelPlan plan = BestFor(spec).value().plan;
    EXPECT_EQ(plan.family, Family::kFwdSmall) << spec;
    return plan.warps * plan.rows_per_warp / plan.block_m;
  };
  EXPECT_EQ(teams("fwd bf16 b=4096 h=4 s=49 d=32"), 2);
  EXPECT_EQ(teams("fwd bf16 b=4096 h=4/2 s=25/40 d=40 lse"), 2);
  // Heads without a neighbour, rows that are copied by elements, keys that not all rows see.
  EXPECT_EQ(teams("fwd bf16 b=4096 h=3 s=49 d=32"), 1);
  EXPECT_EQ(teams("fwd bf16 b=4096 h=2 s=49 d=33"), 1);
  EXPECT_EQ(teams("fwd bf16 b=4096 h=4 s=49 d=32 causal"), 1);
}

TEST(PlannerTest, TheSimpleFamilyServesWhatTheOthersRefuse) {
  const Decision decision = BestFor("fwd bf16 b=2 h=32/8 s=4096 d=128 strided_innermost").value();
  EXPECT_EQ(decision.plan.family, Family::kFwdSimple);
  EXPECT_THAT(decision.why, HasSubstr("NVIDIA H200"));
  ASSERT_FALSE(decision.refusals.empty());
  EXPECT_EQ(decision.refusals.back().family, Family::kFwdSm80);
  EXPECT_TRUE(decision.fallback);
}

TEST(PlannerTest, AFamilyThatIsAskedForIsTheOnlyOne) {
  const AttentionSpec spec = spec::ParseSpec("fwd bf16 b=2 h=32/8 s=4096 d=128").value();
  const arch::ArchTraits traits = arch::FindArchTraits("sm_90a").value();
  const arch::BoardProfile board = arch::DefaultBoardProfile("sm_90a").value();
  const Decision decision =
      Best({spec, traits, board, /*allow_fallback=*/false, Family::kFwdSimple}).value();
  EXPECT_EQ(decision.plan.family, Family::kFwdSimple);
  EXPECT_FALSE(decision.fallback);
}

TEST(PlannerTest, IsDeterministic) {
  EXPECT_EQ(BestFor("fwd bf16 b=2 h=32/8 s=4096 d=128").value().plan,
            BestFor("fwd bf16 b=2 h=32/8 s=4096 d=128").value().plan);
}

TEST(PlannerTest, WithoutFallbackTheFamilyOfLastResortIsNotUsed) {
  const absl::Status status =
      BestFor("fwd bf16 b=2 h=32/8 s=4096 d=128 strided_innermost", "sm_90a",
              /*allow_fallback=*/false)
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("fwd bf16 b=2 h=32/8 s=4096/4096 d=128/128 strided_innermost on sm_90a"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("allow_fallback is off"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the nearest served spec is fwd bf16 b=2 h=32/8 s=4096/4096 d=128/128"));
}

TEST(PlannerTest, FamiliesOfTheOtherOperationAreNotAsked) {
  for (const char* text : {"fwd bf16 b=2 h=4 s=64 d=128 causal", "bwd bf16 b=2 h=4 s=64 d=128"}) {
    const absl::StatusOr<Decision> decision = BestFor(text);
    ASSERT_TRUE(decision.ok()) << decision.status();
    for (const Refusal& refusal : decision->refusals) {
      EXPECT_NE(refusal.family, Family::kBwdSm90) << text;
      // Of attn_decode and attn_fwd_small.
      EXPECT_THAT(refusal.reason, AnyOf(HasSubstr("seqlen_q"), HasSubstr("batch * heads_q")))
          << text;
    }
    EXPECT_FALSE(decision->fallback) << text;
  }
  EXPECT_EQ(BestFor("bwd bf16 b=2 h=4 s=64 d=128")->plan.family, Family::kBwdSm90);
  EXPECT_EQ(BestFor("bwd fp32 b=2 h=4 s=64 d=128")->plan.family, Family::kBwdSimple);
}

TEST(PlannerTest, BackwardOfPagesNamesTheOneWithout) {
  const absl::Status status = BestFor("bwd bf16 b=2 h=4 s=64 d=128 paged=16 varlen").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("page_size = 16"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("nearest served spec is bwd bf16 b=2 h=4/4 s=64/64 d=128/128 varlen"));
}

TEST(PlannerTest, LargeDimsNameTheLargestServed) {
  const absl::Status status = BestFor("fwd bf16 h=4 s=64 d=20000/5000").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("dim_v = 5000: must be at most 4096, a row's output is kept"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("dim_qk = 20000: must be at most 13472 on sm_90a"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("s=64/64 d=13472/4096"));
}

// A faster family, for the rule of falling back, that takes head dim 64 only.
FamilyAnswer PlanOnly64(const PlanRequest& request) {
  FamilyAnswer answer;
  if (request.spec.dim_qk == 64) {
    answer.plans = {KernelPlan{.target = std::string(request.traits.target), .block_m = 64}};
    answer.why = "dim is 64";
  } else {
    answer.refusal = "dim is not 64";
    answer.nearest = request.spec;
    answer.nearest->dim_qk = answer.nearest->dim_v = 64;
  }
  return answer;
}

absl::StatusOr<Decision> BestOfTwo(std::string_view text, bool allow_fallback) {
  static constexpr FamilyRow kTwo[] = {{Family::kFwdSimple, false, PlanOnly64},
                                       {Family::kFwdSimple, true, PlanFwdSimple}};
  const AttentionSpec spec = spec::ParseSpec(text).value();
  const arch::ArchTraits traits = arch::FindArchTraits("sm_90a").value();
  const arch::BoardProfile board = arch::DefaultBoardProfile("sm_90a").value();
  return BestOf(kTwo, {spec, traits, board, allow_fallback});
}

TEST(PlannerTest, TheFirstFamilyThatServesIsTaken) {
  for (bool allow_fallback : {false, true}) {
    const Decision decision = BestOfTwo("fwd bf16 s=128 d=64", allow_fallback).value();
    EXPECT_EQ(decision.plan.block_m, 64);
    EXPECT_FALSE(decision.fallback);
    EXPECT_TRUE(decision.refusals.empty());
  }
}

TEST(PlannerTest, FallsBackWhereTheFasterFamilyRefuses) {
  const Decision decision = BestOfTwo("fwd bf16 s=128 d=72", true).value();
  EXPECT_TRUE(decision.fallback);
  EXPECT_EQ(decision.plan.warps, 4);
  ASSERT_EQ(decision.refusals.size(), 1);
  EXPECT_EQ(decision.refusals[0].reason, "dim is not 64");
}

TEST(PlannerTest, WithoutFallbackNamesWhatTheFasterFamilyServes) {
  const absl::Status status = BestOfTwo("fwd bf16 s=128 d=72", false).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("dim is not 64"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("nearest served spec is fwd bf16 b=1 h=1/1 s=128/128 d=64/64"));
}

}  // namespace
}  // namespace tilewright::plan
