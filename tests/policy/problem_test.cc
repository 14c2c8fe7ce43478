// core/problem.cuh, policy/kv_rows.cuh and policy/scale.cuh: where rows lie.
#include "core/problem.cuh"

#include <gtest/gtest.h>

#include "policy/kv_rows.cuh"
#include "policy/scale.cuh"
#include "policy_params.h"

namespace tilewright {
namespace {

template <class LengthsPolicy, i64 kBaked = 0>
struct TestConfig {
  using Lengths = LengthsPolicy;
  static constexpr int kGroup = 4;
  static constexpr i64 kBatch = kBaked, kSeqlenQ = kBaked, kSeqlenKv = kBaked;
};

PolicyParams ParamsOf(i64 seqlen_q, i64 seqlen_kv) {
  PolicyParams params;
  params.core.seqlen_q = seqlen_q;
  params.core.seqlen_kv = seqlen_kv;
  params.core.batch = 3;
  return params;
}

TEST(ProblemTest, UniformLengthsComeFromTheParams) {
  const Problem problem = MakeProblem<TestConfig<LengthsUniform>>(2, 7, ParamsOf(10, 20));
  EXPECT_EQ(problem.b, 2);
  EXPECT_EQ(problem.h, 7);
  EXPECT_EQ(problem.h_kv, 1);
  EXPECT_EQ(problem.seqlen_q, 10);
  EXPECT_EQ(problem.seqlen_kv, 20);
  EXPECT_EQ(problem.q_batch, 2);
  EXPECT_EQ(problem.q_row, 0);
  EXPECT_EQ(problem.kv_batch, 2);
  EXPECT_EQ(problem.kv_row, 0);
  EXPECT_EQ(problem.diagonal(), 10);
}

TEST(ProblemTest, BakedSizesComeBeforeTheParams) {
  using Config = TestConfig<LengthsUniform, 5>;
  const PolicyParams params = ParamsOf(10, 20);
  const Problem problem = MakeProblem<Config>(0, 0, params);
  EXPECT_EQ(problem.seqlen_q, 5);
  EXPECT_EQ(problem.seqlen_kv, 5);
  EXPECT_EQ(Batch<Config>(params), 5);
  EXPECT_EQ(Batch<TestConfig<LengthsUniform>>(params), 3);
}

TEST(ProblemTest, EachArrayOfLengthsStandsAlone) {
  using Config = TestConfig<LengthsVarlen>;
  const i32 cu_q[] = {0, 4, 9}, cu_kv[] = {0, 30, 36}, used[] = {11, 2};
  PolicyParams params = ParamsOf(10, 40);

  Problem problem = MakeProblem<Config>(1, 0, params);
  EXPECT_EQ(problem.seqlen_q, 10);
  EXPECT_EQ(problem.seqlen_kv, 40);
  EXPECT_EQ(problem.q_batch, 1);

  params.varlen.cu_seqlens_q = cu_q;
  problem = MakeProblem<Config>(1, 0, params);
  EXPECT_EQ(problem.q_batch, 0);
  EXPECT_EQ(problem.q_row, 4);
  EXPECT_EQ(problem.seqlen_q, 5);
  EXPECT_EQ(problem.kv_batch, 1);
  EXPECT_EQ(problem.seqlen_kv, 40);

  params.varlen.cu_seqlens_kv = cu_kv;
  problem = MakeProblem<Config>(1, 0, params);
  EXPECT_EQ(problem.kv_batch, 0);
  EXPECT_EQ(problem.kv_row, 30);
  EXPECT_EQ(problem.seqlen_kv, 6);

  params.varlen.seqused_kv = used;
  problem = MakeProblem<Config>(1, 0, params);
  EXPECT_EQ(problem.kv_row, 30);
  EXPECT_EQ(problem.seqlen_kv, 2);
  EXPECT_EQ(MakeProblem<Config>(0, 0, params).seqlen_kv, 11);

  const i32 used_q[] = {3, 7};
  params.varlen.seqused_q = used_q;
  EXPECT_EQ(MakeProblem<Config>(0, 0, params).seqlen_q, 3);
  problem = MakeProblem<Config>(1, 0, params);
  EXPECT_EQ(problem.seqlen_q, 5);  // there are no more
  EXPECT_EQ(problem.q_row, 4);
}

TEST(ProblemTest, SlotsAreBatchesOfKeysAndRowsOfTheTable) {
  const i32 slots[] = {7, 1}, used[] = {11, 2}, table[] = {9, 9, 5, 6};
  PolicyParams params = ParamsOf(10, 40);
  params.cache_slots = {slots};
  Problem problem = MakeProblem<TestConfig<LengthsOfSlots<LengthsUniform>>>(0, 0, params);
  EXPECT_EQ(problem.kv_batch, 7);
  EXPECT_EQ(problem.q_batch, 0);
  params.varlen.seqused_kv = used;
  params.page_table = {table, 2};
  problem = MakeProblem<TestConfig<LengthsOfSlots<LengthsVarlen>>>(1, 0, params);
  EXPECT_EQ(problem.seqlen_kv, 2);
  const KvRow at = KvRowsPaged<16, true>::Locate(problem, 17, params);
  EXPECT_EQ(at.block, 6);
  EXPECT_EQ(at.row, 1);
}

TEST(KvRowsTest, DenseRowsFollowTheSequence) {
  Problem problem = DenseProblem(1, 100);
  problem.kv_batch = 3;
  problem.kv_row = 40;
  const KvRow at = KvRowsDense::Locate(problem, 7, PolicyParams{});
  EXPECT_TRUE(at.exists());
  EXPECT_EQ(at.block, 3);
  EXPECT_EQ(at.row, 47);
}

TEST(KvRowsTest, PagedRowsGoThroughTheTable) {
  const i32 table[] = {9, 9, 9, 9, 9, 5, -1, 7};
  PolicyParams params;
  params.page_table = {table, 5};
  Problem problem = DenseProblem(1, 100);
  problem.b = 1;
  const KvRow first = KvRowsPaged<16>::Locate(problem, 15, params);
  EXPECT_EQ(first.block, 5);
  EXPECT_EQ(first.row, 15);
  EXPECT_FALSE(KvRowsPaged<16>::Locate(problem, 16, params).exists());
  const KvRow third = KvRowsPaged<16>::Locate(problem, 32, params);
  EXPECT_EQ(third.block, 7);
  EXPECT_EQ(third.row, 0);
}

TEST(ScaleTest, FindsTheScaleOfEachAxis) {
  float scales[24];
  for (int n = 0; n < 24; ++n) scales[n] = static_cast<float>(n);
  PolicyParams params;
  params.k_scale = {scales, 12, 4, 1};
  params.v_scale = {scales, 0, 1, 0};
  params.q_scale = {scales, 0, 1, 0};
  Problem problem = DenseProblem(1, 4);
  problem.h = 8;
  problem.h_kv = 2;
  EXPECT_EQ(ScaleKv::OfKey(problem, {1, 3}, params), 12 + 2 * 4 + 3);
  EXPECT_EQ(ScaleKv::OfValue(problem, {1, 3}, params), 2);
  EXPECT_EQ(ScaleQ::OfQuery(problem, params), 8);
  EXPECT_EQ(ScaleNone::OfKey(problem, {1, 3}, params), 1);
}

}  // namespace
}  // namespace tilewright
