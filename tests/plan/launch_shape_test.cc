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

}  // namespace
}  // namespace tilewright::plan
