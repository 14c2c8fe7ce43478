// core/online_softmax.cuh, policy/sink.cuh and policy/lse.cuh: the end of a row.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/online_softmax.cuh"
#include "policy/lse.cuh"
#include "policy/sink.cuh"
#include "policy_params.h"

namespace tilewright {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(SoftmaxTest, AddsUpToTheLogSumExp) {
  const SoftmaxEnd end = FinishSoftmax(2.f, 3.f, -kInfinity);
  EXPECT_FALSE(end.empty);
  EXPECT_FLOAT_EQ(end.o_scale, 1 / 3.f);
  EXPECT_FLOAT_EQ(end.lse, 2 + std::log(3.f));
}

TEST(SoftmaxTest, ASinkJoinsTheSumOnly) {
  const SoftmaxEnd below = FinishSoftmax(2.f, 3.f, 1.f);
  EXPECT_FLOAT_EQ(below.o_scale, 1 / (3 + std::exp(-1.f)));
  EXPECT_FLOAT_EQ(below.lse, 2 + std::log(3 + std::exp(-1.f)));
  // Above the maximum, even far: no overflow.
  const SoftmaxEnd above = FinishSoftmax(2.f, 3.f, 200.f);
  EXPECT_EQ(above.o_scale, std::exp(2.f - 200.f));
  EXPECT_FLOAT_EQ(above.lse, 200.f);
}

TEST(SoftmaxTest, ARowWithoutKeysIsEmpty) {
  const SoftmaxEnd bare = FinishSoftmax(-kInfinity, 0.f, -kInfinity);
  EXPECT_TRUE(bare.empty);
  EXPECT_EQ(bare.lse, -kInfinity);
  const SoftmaxEnd with_sink = FinishSoftmax(-kInfinity, 0.f, 1.5f);
  EXPECT_TRUE(with_sink.empty);
  EXPECT_FLOAT_EQ(with_sink.lse, 1.5f);
}

TEST(SoftmaxTest, NaNStaysNaN) {
  const float nan = std::nanf("");
  for (float m : {0.f, -kInfinity, kInfinity}) {
    const SoftmaxEnd end = FinishSoftmax(m, nan, -kInfinity);
    EXPECT_FALSE(end.empty);
    EXPECT_TRUE(std::isnan(end.o_scale));
    EXPECT_TRUE(std::isnan(end.lse));
  }
}

TEST(SoftmaxTest, ReferenceOfAnEmptyRowIsFinite) {
  EXPECT_EQ(SoftmaxReference(-kInfinity), 0);
  EXPECT_EQ(SoftmaxReference(-3.f), -3);
  EXPECT_EQ(SoftmaxReference(kInfinity), kInfinity);
}

TEST(SinkTest, NoSinkIsMinusInfinity) {
  EXPECT_EQ(SinkNone::Logit(DenseProblem(1, 1), PolicyParams{}), -kInfinity);
  const float sinks[] = {1, 2, 3};
  PolicyParams params;
  params.sinks = {sinks};
  Problem problem = DenseProblem(1, 1);
  problem.h = 2;
  EXPECT_EQ(SinkPerHead::Logit(problem, params), 3);
}

TEST(LseTest, ConvertsToTheCallersConvention) {
  EXPECT_EQ((LseStored<false, false>::Convert(2.f)), 2.f);
  EXPECT_FLOAT_EQ((LseStored<true, false>::Convert(2.f)), 2 / std::log(2.f));
  EXPECT_EQ((LseStored<true, false>::Convert(-kInfinity)), -kInfinity);
  EXPECT_EQ((LseStored<false, true>::Convert(-kInfinity)), kInfinity);
  EXPECT_EQ((LseStored<true, true>::Convert(-kInfinity)), kInfinity);
}

TEST(LseTest, StoresAtTheRowsPlace) {
  std::vector<float> lse(60, 0);
  PolicyParams params;
  params.core.lse = lse.data();
  params.core.lse_stride_batch = 30;
  params.core.lse_stride_head = 10;
  Problem problem = DenseProblem(4, 4);
  problem.h = 2;
  problem.q_batch = 1;
  problem.q_row = 3;
  LseStored<false, false>::Store(7.f, problem, 2, params);
  EXPECT_EQ(lse[30 + 20 + 3 + 2], 7.f);
}

}  // namespace
}  // namespace tilewright
