#include "cli/gradients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "cli/random_problem.h"
#include "spec/canonical.h"

namespace tilewright::cli {
namespace {

using testing::HasSubstr;

constexpr int kDim = 8;

uint16_t& DqAt(HostProblem& problem, int64_t row, int64_t dim) {
  return static_cast<uint16_t*>(
      problem.args().d_q.data)[row * problem.args().d_q.strides.seq + dim];
}

// Row 0 sees one key, row 1 two that agree in dimension 2: its dQ is 0 there, with most seeds up to
// the rounding of fp64.
HostProblem Computed() {
  const auto spec = spec::ParseSpec("bwd bf16 b=1 h=1 s=40 d=8 causal");
  EXPECT_TRUE(spec.ok()) << spec.status();
  for (uint64_t seed = 0;; ++seed) {
    RandomProblemOptions random;
    random.seed = seed;
    HostProblem problem = *MakeRandomProblem(*spec, random);
    auto* k = const_cast<uint16_t*>(static_cast<const uint16_t*>(problem.args().k.data));
    k[problem.args().k.strides.seq + 2] = k[2];
    EXPECT_TRUE(ComputeGradientsOnHost(problem).ok());
    if (DqAt(problem, 1, 2) == 0 || seed == 200) return problem;
  }
}

uint16_t Bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}

GradientError DqOf(const HostProblem& problem) {
  const absl::StatusOr<GradientAccuracy> accuracy = CheckGradients(problem);
  EXPECT_TRUE(accuracy.ok()) << accuracy.status();
  EXPECT_EQ(accuracy->gradients[0].name, "dq");
  return accuracy->gradients[0];
}

TEST(GradientsTest, TheReferenceHolds) {
  HostProblem problem = Computed();
  ASSERT_EQ(DqAt(problem, 1, 2), 0);
  ASSERT_NE(DqAt(problem, 1, 3), 0);
  for (int n = 0; n < kDim; ++n) ASSERT_EQ(DqAt(problem, 0, n), 0);
  EXPECT_TRUE(DqOf(problem).holds());
}

TEST(GradientsTest, AZeroAmongOthersMayBeRounded) {
  HostProblem problem = Computed();
  DqAt(problem, 1, 2) = Bf16(1e-3F);
  EXPECT_EQ(DqOf(problem).mismatches, 0);
}

TEST(GradientsTest, ARowOfZerosIsHeldToWhatFp32Leaves) {
  HostProblem problem = Computed();
  DqAt(problem, 0, 1) = Bf16(9e-7F);
  EXPECT_TRUE(DqOf(problem).holds());
  DqAt(problem, 0, 1) = Bf16(1e-3F);
  const GradientError wrong = DqOf(problem);
  EXPECT_FALSE(wrong.holds());
  EXPECT_EQ(wrong.mismatches, 1);
  EXPECT_NEAR(wrong.worst_mismatch, 1e-3, 1e-5);
  GradientAccuracy accuracy;
  accuracy.gradients.push_back(wrong);
  EXPECT_THAT(accuracy.ToString(), HasSubstr(" with 1 wrong values up to 1.0e-03"));
}

// Every row sees one key: dQ and dK are 0 but for what fp32 leaves, which grows with the head dim.
TEST(GradientsTest, AGradientThatCancelsIsHeldToWhatFp32Leaves) {
  const auto spec = spec::ParseSpec("bwd bf16 b=2 h=2 s=20/20 d=64 window=0,0");
  ASSERT_TRUE(spec.ok()) << spec.status();
  HostProblem problem = *MakeRandomProblem(*spec);
  ASSERT_TRUE(ComputeGradientsOnHost(problem).ok());
  for (int n = 0; n < 64; ++n) DqAt(problem, n % 20, n) = Bf16(n % 2 == 0 ? 4e-6F : -3e-6F);
  EXPECT_TRUE(DqOf(problem).holds()) << DqOf(problem).relative;
  DqAt(problem, 3, 1) = Bf16(1e-4F);
  EXPECT_FALSE(DqOf(problem).holds());
}

// dS of a row adds up to 0, and so does the gradient of a term with one element for each row.
TEST(GradientsTest, ATermThatAddsToWholeRowsHasNoGradient) {
  const auto spec = spec::ParseSpec("bwd fp32 b=2 h=2 s=20/30 d=64 bias=fp32:2,1,20,1:grad");
  ASSERT_TRUE(spec.ok()) << spec.status();
  HostProblem problem = *MakeRandomProblem(*spec);
  ASSERT_TRUE(ComputeGradientsOnHost(problem).ok());
  const auto holds = [&] { return CheckGradients(problem)->gradients[3].holds(); };
  problem.args().d_bias[0].data[5] = 2e-6F;
  EXPECT_TRUE(holds());
  problem.args().d_bias[0].data[5] = 1e-3F;
  EXPECT_FALSE(holds());
}

// What lies beyond the length of a sequence is nobody's.
TEST(GradientsTest, KeysOfNoSequenceMayBeLeftAlone) {
  const auto spec = spec::ParseSpec("bwd bf16 b=2 h=1 s=20/30 d=8 varlen");
  ASSERT_TRUE(spec.ok()) << spec.status();
  RandomProblemOptions options;
  options.lengths_kv = {30, 17};
  HostProblem problem = *MakeRandomProblem(*spec, options);
  ASSERT_TRUE(ComputeGradientsOnHost(problem).ok());
  auto* dk = static_cast<uint16_t*>(problem.args().d_k.data);
  dk[problem.args().d_k.strides.batch + 17 * problem.args().d_k.strides.seq] = 0x7fc0;
  EXPECT_TRUE(CheckGradients(problem)->holds());
  dk[problem.args().d_k.strides.batch + 16 * problem.args().d_k.strides.seq] = 0x7fc0;
  EXPECT_FALSE(CheckGradients(problem)->holds());
}

TEST(GradientsTest, WhatIsNotFiniteIsWrong) {
  HostProblem problem = Computed();
  DqAt(problem, 7, 3) = 0x7fc0;  // NaN
  const GradientError wrong = DqOf(problem);
  EXPECT_EQ(wrong.mismatches, 1);
  EXPECT_TRUE(std::isinf(wrong.worst_mismatch));
}

}  // namespace
}  // namespace tilewright::cli
