#include "plan/launch_shape.h"

#include "gtest/gtest.h"

namespace tilewright::plan {
namespace {

KernelPlan Plan() {
  return {.target = "sm_90a",
          .block_m = 32,
          .block_n = 32,
          .warps = 4,
          .rows_per_warp = 8,
          .panel = 128,
          .smem_bytes = 33280};
}

AttentionArgs Args(int64_t batch, int64_t seqlen_q) {
  AttentionArgs args;
  args.batch = batch;
  args.seqlen_q = seqlen_q;
  args.seqlen_kv = 100;
  return args;
}

AttentionSpec Spec(int64_t heads) {
  AttentionSpec spec;
  spec.heads_q = spec.heads_kv = heads;
  return spec;
}

TEST(LaunchShapeTest, OneBlockPerTile) {
  const LaunchShape shape = ComputeLaunchShape(Plan(), Spec(5), Args(3, 65));
  EXPECT_EQ(shape.grid, 3 * 5 * 3);
  EXPECT_EQ(shape.block, 128);
  EXPECT_EQ(shape.smem_bytes, 33280);
  EXPECT_EQ(ComputeLaunchShape(Plan(), Spec(5), Args(3, 64)).grid, 3 * 5 * 2);
  EXPECT_EQ(ComputeLaunchShape(Plan(), Spec(5), Args(3, 1)).grid, 3 * 5);
}

TEST(LaunchShapeTest, EmptyProblemsLaunchNothing) {
  EXPECT_EQ(ComputeLaunchShape(Plan(), Spec(5), Args(0, 64)).grid, 0);
  EXPECT_EQ(ComputeLaunchShape(Plan(), Spec(5), Args(3, 0)).grid, 0);
  EXPECT_EQ(ComputeLaunchShape(Plan(), Spec(0), Args(3, 64)).grid, 0);
}

TEST(LaunchShapeTest, NoKeysStillWriteTheOutput) {
  AttentionArgs args = Args(3, 64);
  args.seqlen_kv = 0;
  EXPECT_EQ(ComputeLaunchShape(Plan(), Spec(5), args).grid, 3 * 5 * 2);
}

TEST(LaunchShapeTest, VarlenCoversTheUpperBoundOfEverySequence) {
  AttentionSpec spec = Spec(5);
  spec.varlen = true;
  AttentionArgs args = Args(3, 65);
  const int32_t lengths[1] = {};
  args.cu_seqlens_q = lengths;
  args.total_q = 70;
  EXPECT_EQ(ComputeLaunchShape(Plan(), spec, args).grid, 3 * 5 * 3);
  args.total_q = 0;
  EXPECT_EQ(ComputeLaunchShape(Plan(), spec, args).grid, 0);
  // Without packed queries total_q has no meaning.
  args.cu_seqlens_q = nullptr;
  EXPECT_EQ(ComputeLaunchShape(Plan(), spec, args).grid, 3 * 5 * 3);
}

TEST(LaunchShapeTest, GridsBeyondTheLimitAreCut) {
  EXPECT_EQ(ComputeLaunchShape(Plan(), Spec(1), Args((int64_t{1} << 31) - 2, 1)).grid, 2147483646);
  EXPECT_EQ(ComputeLaunchShape(Plan(), Spec(1), Args(int64_t{1} << 31, 1)).grid, 2147483647);
  // 2^32 tiles must not become 0, nor products beyond 64 and 128 bits.
  EXPECT_EQ(ComputeLaunchShape(Plan(), Spec(1024), Args(1 << 22, 1)).grid, 2147483647);
  EXPECT_EQ(ComputeLaunchShape(Plan(), Spec(1 << 30), Args(INT64_MAX, INT64_MAX)).grid, 2147483647);
}

TEST(LaunchShapeTest, BlocksThatStayAreAsManyAsThePlanSays) {
  KernelPlan plan = Plan();
  plan.family = Family::kFwdSmall;
  plan.max_grid = 12;
  EXPECT_EQ(ComputeLaunchShape(plan, Spec(5), Args(3, 1)).grid, 12);
  EXPECT_EQ(ComputeLaunchShape(plan, Spec(2), Args(3, 1)).grid, 6);
}

KernelPlan SplitPlan() {
  KernelPlan plan = Plan();
  plan.family = Family::kFwdSm80;
  plan.split = true;
  plan.slots = 264;
  plan.after = {{.family = Family::kCombine, .target = "sm_90a", .block_m = 4, .warps = 4}};
  return plan;
}

TEST(PlanCallTest, CutsTheKeysWhereTilesDoNotFillTheBoard) {
  AttentionSpec spec = Spec(5);
  spec.dim_v = 40;
  AttentionArgs args = Args(2, 33);
  args.seqlen_kv = 8192;
  const CallPlan call = PlanCall(SplitPlan(), spec, args);
  EXPECT_EQ(call.parts, 264 / (2 * 5 * 2));
  EXPECT_EQ(call.offset(Region::kPartialO), 0);
  EXPECT_EQ(call.offset(Region::kPartialLse) % 256, 0);
  EXPECT_GE(call.offset(Region::kPartialLse), call.parts * 2 * 5 * 33 * 40 * 4);
  EXPECT_GE(call.workspace_bytes, call.offset(Region::kPartialLse) + call.parts * 2 * 5 * 33 * 4);
  const std::vector<KernelPlan> kernels = SplitPlan().Kernels();
  EXPECT_EQ(ComputeLaunchShape(kernels[0], spec, args, call).grid, 2 * 5 * 2 * call.parts);
  // Four rows a block, of all heads one after the other.
  EXPECT_EQ(ComputeLaunchShape(kernels[1], spec, args, call).grid, (2 * 5 * 33 + 3) / 4);
}

// Parts and lines of a decode call on 264 blocks.
CallPlan DecodeCall(int64_t batch, int64_t heads, int64_t keys, bool varlen) {
  KernelPlan plan = Plan();
  plan.family = Family::kDecode;
  plan.block_m = 8;
  plan.block_n = 64;
  plan.step = 16;
  plan.split = true;
  plan.slots = 264;
  AttentionSpec spec = Spec(heads);
  spec.varlen = varlen;
  AttentionArgs args = Args(batch, 1);
  args.seqlen_kv = keys;
  return PlanCall(plan, spec, args);
}

TEST(PlanCallTest, DecodeCutsTheKeysOfHeadsSideBySide) {
  EXPECT_EQ(DecodeCall(1, 8, 65536, false).parts, 264);
  EXPECT_EQ(DecodeCall(1, 8, 65536, false).lines, 8);
  // 33 blocks a head: sequences of unequal length have them all, 16 alike take two each.
  EXPECT_EQ(DecodeCall(16, 8, 8192, true).parts, 264);
  EXPECT_EQ(DecodeCall(16, 8, 8192, false).parts, 256);
  // 8 blocks a head for 64 sequences.
  EXPECT_EQ(DecodeCall(64, 32, 4096, false).parts, 256);
  EXPECT_EQ(DecodeCall(64, 32, 4096, false).lines, 32);
  // 40 lines of 6 blocks would leave 24 without work, 20 of 13 leave 4.
  EXPECT_EQ(DecodeCall(16, 40, 8192, false).lines, 20);
  EXPECT_EQ(DecodeCall(16, 40, 8192, false).parts, 260);
  EXPECT_EQ(DecodeCall(16, 8, 300, false).parts, 1);
}

// Of latent attention on 66 clusters, whose lengths only the device knows.
TEST(PlanCallTest, ClustersHaveWholeItemsOrEqualPartsOfOne) {
  KernelPlan plan = Plan();
  plan.family = Family::kDecodeSm90;
  plan.block_m = 128;
  plan.block_n = plan.step = 64;
  plan.cluster = plan.column_warps = 2;
  plan.split = true;
  plan.slots = 66;
  AttentionSpec spec = Spec(128);
  spec.heads_kv = 1;
  spec.varlen = true;
  const auto call_of = [&](int64_t batch) {
    AttentionArgs args = Args(batch, 1);
    args.seqlen_kv = 4096;
    return PlanCall(plan, spec, args);
  };
  EXPECT_EQ(call_of(32).parts, 64);   // two of each
  EXPECT_EQ(call_of(128).parts, 64);  // two sequences each
  EXPECT_EQ(call_of(40).parts, 66);   // 40 would leave 26 without work
  EXPECT_EQ(ComputeLaunchShape(plan, spec, Args(32, 1), call_of(32)).grid, 128u);
  // Each block of a cluster counts in a word of its own behind the LSEs of a part.
  const CallPlan call = call_of(32);
  EXPECT_EQ(call.workspace_bytes - call.offset(Region::kPartialLse), 2 * 64 * (128 + 4) * 4);
  // Two shares to a cluster, one block each: clusters are whole.
  plan.block_m = 64;
  plan.slots = 127;
  EXPECT_EQ(call_of(40).parts, 127);
  EXPECT_EQ(ComputeLaunchShape(plan, spec, Args(40, 1), call_of(40)).grid, 128u);
}

TEST(PlanCallTest, OnePartNeedsNeitherWorkspaceNorASecondKernel) {
  const auto expect_whole = [](const KernelPlan& plan, const AttentionArgs& args) {
    const CallPlan call = PlanCall(plan, Spec(5), args);
    EXPECT_EQ(call.parts, 1);
    EXPECT_EQ(call.workspace_bytes, 0);
    EXPECT_EQ(ComputeLaunchShape(SplitPlan().after[0], Spec(5), args, call).grid, 0u);
  };
  AttentionArgs args = Args(2, 33);
  args.seqlen_kv = 8192;
  expect_whole(Plan(), args);                     // a plan without parts
  expect_whole(SplitPlan(), Args(2, 33));         // 100 keys
  expect_whole(SplitPlan(), Args(2, 33 * 1000));  // tiles enough
  args.batch = 0;
  expect_whole(SplitPlan(), args);
}

}  // namespace
}  // namespace tilewright::plan
