// attn_bwd_simple, attn_bwd_sm80 and attn_bwd_sm90: what they serve, what goes before and after
// them, and what a call needs of workspace.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "arch/arch_traits.h"
#include "arch/board_profile.h"
#include "plan/family_planner.h"
#include "plan/launch_shape.h"
#include "plan/planner.h"
#include "spec/canonical.h"

namespace tilewright::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

AttentionSpec SpecOf(const std::string& text) {
  const auto spec = spec::ParseSpec(text, {});
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? spec::Canonicalise(*spec) : AttentionSpec();
}

absl::StatusOr<Decision> BestFor(const AttentionSpec& spec, const std::string& target = "sm_90a") {
  const auto traits = arch::FindArchTraits(target);
  const auto board = arch::DefaultBoardProfile(target);
  EXPECT_TRUE(traits.ok() && board.ok());
  return Best({.spec = spec, .traits = *traits, .board = *board});
}

std::vector<Family> FamiliesOf(const std::string& text) {
  const auto decision = BestFor(SpecOf(text));
  EXPECT_TRUE(decision.ok()) << decision.status();
  std::vector<Family> families;
  if (!decision.ok()) return families;
  for (const KernelPlan& kernel : decision->plan.Kernels()) families.push_back(kernel.family);
  return families;
}

TEST(BwdPlannerTest, KernelsOfAPlanInTheirOrder) {
  EXPECT_THAT(FamiliesOf("bwd bf16 h=4 s=512 d=64 causal"),
              ElementsAre(Family::kBwdPrep, Family::kBwdSm90, Family::kBwdFinish));
  EXPECT_THAT(FamiliesOf("bwd bf16 h=4 s=512 d=64 causal softcap=20"),
              ElementsAre(Family::kBwdPrep, Family::kBwdSm80, Family::kBwdFinish));
  EXPECT_THAT(FamiliesOf("bwd fp32 h=4 s=512 d=64 sinks sinks_grad"),
              ElementsAre(Family::kBwdPrep, Family::kBwdSimple));
}

TEST(BwdPlannerTest, TermsHaveAKernelWhereTheFamilyLeavesThemOut) {
  const auto with_terms =
      ElementsAre(Family::kBwdPrep, Family::kBwdSm80, Family::kBwdFinish, Family::kBwdTerms);
  const auto without = ElementsAre(Family::kBwdPrep, Family::kBwdSm80, Family::kBwdFinish);
  EXPECT_THAT(
      FamiliesOf("bwd bf16 h=4 s=512 d=64 sinks sinks_grad"),
      ElementsAre(Family::kBwdPrep, Family::kBwdSm90, Family::kBwdFinish, Family::kBwdTerms));
  EXPECT_THAT(FamiliesOf("bwd bf16 h=4 s=512 d=64 sinks sinks_grad varlen"), with_terms);
  EXPECT_THAT(FamiliesOf("bwd bf16 h=4 s=512 d=64 alibi alibi_grad"), without);
  EXPECT_THAT(FamiliesOf("bwd bf16 h=4 s=512 d=64 alibi alibi_grad deterministic"), with_terms);
  EXPECT_THAT(FamiliesOf("bwd bf16 h=4 s=512 d=64 bias=fp32:1,4,512,512:grad deterministic"),
              with_terms);
  EXPECT_THAT(FamiliesOf("bwd bf16 h=4 s=512 d=64 bias=fp32:1,4,512,512 deterministic"), without);
}

TEST(BwdPlannerTest, PlansReadBackFromTheirText) {
  for (const char* text : {"bwd bf16 h=4 s=512 d=64 sinks sinks_grad", "bwd fp32 h=4 s=512 d=64"}) {
    const auto decision = BestFor(SpecOf(text));
    ASSERT_TRUE(decision.ok());
    const auto parsed = ParsePlan(decision->plan.ToString());
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, decision->plan);
  }
}

TEST(BwdPlannerTest, EveryHeadDimHasATileThatFits) {
  for (const char* target : {"sm_80", "sm_86", "sm_90a", "sm_120a"}) {
    for (int dim = 1; dim <= 256; ++dim) {
      AttentionSpec spec = SpecOf("bwd bf16 h=4 s=512 d=64");
      spec.dim_qk = spec.dim_v = dim;
      const auto decision = BestFor(spec, target);
      ASSERT_TRUE(decision.ok()) << decision.status();
      const bool by_warpgroups = std::string(target) == "sm_90a" && dim % 8 == 0;
      EXPECT_EQ(decision->plan.family, by_warpgroups ? Family::kBwdSm90 : Family::kBwdSm80)
          << target << " " << dim;
    }
  }
}

TEST(BwdPlannerTest, HopperHasSharedMemoryForEveryPairOfDims) {
  for (int dim_qk = 8; dim_qk <= 256; dim_qk += 8) {
    for (int dim_v = 8; dim_v <= 256; dim_v += 8) {
      AttentionSpec spec = SpecOf("bwd bf16 h=4 s=512 d=64");
      spec.dim_qk = dim_qk;
      spec.dim_v = dim_v;
      const auto decision = BestFor(spec, "sm_90a");
      ASSERT_TRUE(decision.ok()) << decision.status();
      EXPECT_EQ(decision->plan.family, Family::kBwdSm90);
      EXPECT_LE(decision->plan.smem_bytes, 227 * 1024) << dim_qk << " " << dim_v;
    }
  }
}

TEST(BwdPlannerTest, PairsThatAddToABiasComeInSmallBlocks) {
  const auto plan = [](const char* text, const char* target = "sm_90a") {
    return BestFor(SpecOf(text), target)->plan;
  };
  const KernelPlan narrow = plan("bwd bf16 b=8 h=4 s=384 d=32 bias=bf16:1,4,384,384:grad");
  EXPECT_EQ(narrow.warps, 4);
  EXPECT_EQ(narrow.blocks, 3);
  const KernelPlan masked = plan("bwd bf16 b=8 h=4 s=384 d=32 causal bias=bf16:1,4,384,384:grad");
  EXPECT_EQ(masked.warps, 4);
  EXPECT_EQ(masked.blocks, 0);
  // Three do not fit the shared memory of this one.
  EXPECT_EQ(plan("bwd bf16 b=8 h=4 s=384 d=32 bias=bf16:1,4,384,384:grad", "sm_80").blocks, 0);
  EXPECT_EQ(plan("bwd bf16 b=8 h=4 s=384 d=32 bias=bf16:1,4,384,384").warps, 8);
}

TEST(BwdPlannerTest, RefusalsNameTheRule) {
  const struct {
    const char* text;
    const char* reason;
  } cases[] = {
      {"bwd bf16 h=4 s=64 d=64 kv=e4m3 kv_scale=head", "a backward needs fp16, bf16 or fp32"},
      {"bwd bf16 h=4 s=64 d=64 paged=16 varlen", "page_size = 16"},
      {"bwd fp32 h=4 s=64 d=20000", "their sum must be at most"},
  };
  for (const auto& one : cases) {
    const absl::Status status = BestFor(SpecOf(one.text)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << one.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.reason));
  }
}

TEST(BwdPlannerTest, WhatHopperLeavesToOthersIsSaid) {
  const struct {
    const char* words;
    const char* reason;
  } cases[] = {
      {"d=64 varlen", "varlen"},
      {"d=64 dropout=0.1", "dropout"},
      {"d=64 softcap=5", "only plain scores"},
      {"d=64 block_mask=64,64", "the rows of a key must be neighbours"},
      {"d=36", "whole chunks of 16 bytes"},
      {"b=2147483648 d=8", "with 31 bits"},
  };
  for (const auto& one : cases) {
    const auto decision = BestFor(SpecOf(std::string("bwd bf16 h=4 s=512 ") + one.words));
    ASSERT_TRUE(decision.ok()) << decision.status();
    EXPECT_EQ(decision->plan.family, Family::kBwdSm80) << one.words;
    ASSERT_EQ(decision->refusals.size(), 1u) << one.words;
    EXPECT_THAT(decision->refusals[0].reason, HasSubstr(one.reason));
  }
}

// (dim_qk + 2) * 4 bytes for each row and head, rounded up to whole tiles.
TEST(BwdPlannerTest, WorkspaceGrowsWithRowsOnly) {
  const AttentionSpec spec = SpecOf("bwd bf16 b=2 h=8/2 s=1000 d=128");
  const auto decision = BestFor(spec);
  ASSERT_TRUE(decision.ok());
  AttentionArgs args;
  args.batch = 2;
  args.seqlen_q = 1000;
  for (int64_t keys : {1, 1000, 100000}) {
    args.seqlen_kv = keys;
    const CallPlan call = PlanCall(decision->plan, spec, args);
    EXPECT_LE(call.workspace_bytes, (128 + 2) * 4 * 1024 * 8 * 2 + 512);
    EXPECT_GE(call.workspace_bytes, (128 + 2) * 4 * 1000 * 8 * 2);
  }
}

TEST(BwdPlannerTest, OneBlockAMultiprocessorWalksOverTheKeys) {
  AttentionArgs args;
  args.batch = 4;
  const auto grid = [&](const char* text, int64_t keys) {
    const AttentionSpec spec = SpecOf(text);
    const auto decision = BestFor(spec);
    EXPECT_TRUE(decision.ok());
    args.seqlen_q = args.seqlen_kv = keys;
    const KernelPlan& plan = decision->plan;
    return ComputeLaunchShape(plan, spec, args, PlanCall(plan, spec, args)).grid;
  };
  EXPECT_EQ(grid("bwd bf16 h=8 s=512 d=64", 100000), 132u);
  EXPECT_EQ(grid("bwd bf16 h=8 s=512 d=64", 300), 4u * 8 * 3);
  // Wide heads have a block for each tile, and two of neighbouring ones share their rows.
  EXPECT_EQ(grid("bwd bf16 h=8 s=512 d=256", 6400), 4u * 8 * 100);
  EXPECT_EQ(grid("bwd bf16 h=8 s=512 d=256", 6500), 4u * 8 * 102);
  EXPECT_EQ(grid("bwd bf16 h=8 s=512 d=256 deterministic", 6500), 4u * 8 * 102);
  EXPECT_EQ(grid("bwd bf16 h=8 s=512 d=256 deterministic", 6460), 4u * 8 * 102);
}

TEST(BwdPlannerTest, WhatHopperKeepsInRegistersLeavesRoomForTheRest) {
  const auto kept = [](int64_t dim_qk, int64_t dim_v, int block_m) {
    KernelPlan plan;
    plan.block_m = block_m;
    plan.block_n = 128;
    const BwdKeptSteps steps = BwdSm90KeptSteps(plan, dim_qk, dim_v);
    EXPECT_LE((dim_qk + dim_v) / 2 + block_m + 4 * (steps.k + steps.v), 204);
    return std::pair(steps.k, steps.v);
  };
  EXPECT_EQ(kept(128, 128, 64), std::pair(0, 0));
  EXPECT_EQ(kept(112, 112, 64), std::pair(0, 7));
  EXPECT_EQ(kept(96, 96, 64), std::pair(5, 6));
  EXPECT_EQ(kept(72, 72, 64), std::pair(5, 5));
  EXPECT_EQ(kept(64, 64, 128), std::pair(0, 0));
  EXPECT_EQ(kept(40, 40, 128), std::pair(2, 3));
  KernelPlan wide;
  wide.block_m = wide.block_n = 64;
  EXPECT_EQ(BwdSm90KeptSteps(wide, 256, 256).k, 0);
}

TEST(BwdPlannerTest, WarpgroupsOnHopperShareTheColumnsOfDq) {
  const auto columns = [](int64_t dim_qk, int block_m, int block_n) {
    KernelPlan plan;
    plan.block_m = block_m;
    plan.block_n = block_n;
    return BwdSm90DqColumns(plan, dim_qk);
  };
  EXPECT_EQ(columns(40, 128, 128), 40);  // rows are shared
  EXPECT_EQ(columns(72, 64, 128), 40);
  EXPECT_EQ(columns(96, 64, 128), 48);
  EXPECT_EQ(columns(104, 64, 128), 64);
  EXPECT_EQ(columns(112, 64, 128), 56);
  EXPECT_EQ(columns(128, 64, 128), 64);
  // By two warpgroups of each of two blocks, or by one of each.
  EXPECT_EQ(columns(136, 64, 64), 40);
  EXPECT_EQ(columns(160, 64, 64), 40);
  EXPECT_EQ(columns(192, 64, 64), 48);
  EXPECT_EQ(columns(256, 64, 64), 64);
  EXPECT_EQ(columns(128, 64, 64), 64);
  for (int64_t dim = 136; dim <= 256; dim += 8) {
    EXPECT_LT(3 * columns(dim, 64, 64), dim);  // all have some
    EXPECT_LE(BwdSm90SmemBytes(64, 64, 2, dim, dim), 227 * 1024);
  }
}

TEST(BwdPlannerTest, PackedSequencesShareTheirSums) {
  const AttentionSpec spec = SpecOf("bwd bf16 b=64 h=2 s=4096 d=64 varlen layout=thd");
  const auto decision = BestFor(spec);
  ASSERT_TRUE(decision.ok());
  const int32_t lengths[1] = {};
  AttentionArgs args;
  args.batch = 64;
  args.seqlen_q = args.seqlen_kv = 4096;
  args.cu_seqlens_q = lengths;
  args.total_q = 5000;
  const CallPlan call = PlanCall(decision->plan, spec, args);
  const int64_t block_m = decision->plan.block_m;
  EXPECT_EQ(call.dq_tiles_of_head, 5000 / block_m + 64);
  EXPECT_LE(call.workspace_bytes, 2 * ((5000 + 64 * block_m) * 64 * 4 + 5000 * 8) + 512);
}

}  // namespace
}  // namespace tilewright::plan
