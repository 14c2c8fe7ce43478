#include "cli/accuracy.h"

#include <cmath>
#include <limits>
#include <string>

#include "cli/attention_run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spec/canonical.h"

namespace tilewright::cli {
namespace {

using ::testing::HasSubstr;

// A problem whose outputs hold the reference's result.
HostProblem Computed(const std::string& text) {
  const absl::StatusOr<AttentionSpec> spec = spec::ParseSpec(text);
  EXPECT_TRUE(spec.ok()) << spec.status();
  absl::StatusOr<HostProblem> problem = MakeRandomProblem(*spec);
  EXPECT_TRUE(problem.ok()) << problem.status();
  EXPECT_TRUE(ComputeOnHost(*problem, {}).ok());
  return *std::move(problem);
}

Accuracy Check(const HostProblem& problem) {
  const absl::StatusOr<Accuracy> accuracy =
      CheckAccuracy(problem, reference::AllRows(problem.spec(), problem.args()));
  EXPECT_TRUE(accuracy.ok()) << accuracy.status();
  return *accuracy;
}

TEST(AccuracyTest, AResultThatIsRoundedOnceHolds) {
  for (const char* text : {"fwd fp32 b=1 h=2 s=33 d=40 lse", "fwd fp16 b=1 h=2 s=33 d=40 lse",
                           "fwd bf16 b=1 h=2 s=33 d=40 lse", "fwd bf16 b=1 h=1 s=1 d=1 lse"}) {
    EXPECT_TRUE(Check(Computed(text)).holds()) << text;
  }
}

TEST(AccuracyTest, OneWrongValueIsCaughtByTheLargestError) {
  HostProblem problem = Computed("fwd bf16 b=1 h=2 s=200 d=64");
  auto* o = static_cast<uint16_t*>(problem.args().o.data);
  EXPECT_TRUE(Check(problem).holds());
  o[12345] ^= 0x0040;  // a half of the value's binade
  const Accuracy accuracy = Check(problem);
  EXPECT_FALSE(accuracy.holds()) << accuracy.ToString();
  EXPECT_GT(accuracy.o_max_abs, accuracy.o_max_abs_bar);
}

TEST(AccuracyTest, AnErrorSpreadOverAllValuesIsCaughtByTheNorm) {
  HostProblem problem = Computed("fwd bf16 b=1 h=2 s=200 d=64");
  auto* o = static_cast<uint16_t*>(problem.args().o.data);
  for (int n = 0; n < 200 * 2 * 64; ++n) o[n] += 1;  // one ulp, away from zero
  const Accuracy accuracy = Check(problem);
  EXPECT_FALSE(accuracy.holds()) << accuracy.ToString();
  EXPECT_GT(accuracy.o_relative, accuracy.o_relative_bar);
}

TEST(AccuracyTest, Fp32IsHeldToFiveMillionths) {
  HostProblem problem = Computed("fwd fp32 b=1 h=2 s=100 d=64");
  auto* o = static_cast<float*>(problem.args().o.data);
  for (int n = 0; n < 100 * 2 * 64; ++n) o[n] *= 1 + 4e-6F;
  EXPECT_TRUE(Check(problem).holds());
  for (int n = 0; n < 100 * 2 * 64; ++n) o[n] *= 1 + 4e-6F;
  EXPECT_FALSE(Check(problem).holds());
}

TEST(AccuracyTest, LseIsHeldToItsOwnBar) {
  HostProblem problem = Computed("fwd bf16 b=1 h=2 s=20 d=64 lse");
  problem.args().lse[7] += 4e-5F;
  EXPECT_TRUE(Check(problem).holds());
  problem.args().lse[7] += 4e-5F;
  const Accuracy accuracy = Check(problem);
  EXPECT_FALSE(accuracy.holds());
  EXPECT_GT(accuracy.lse_error, 1);
}

TEST(AccuracyTest, InfinityAndNanMustBeWhereTheReferenceHasThem) {
  // Without keys every row is empty: o = 0, lse = -inf.
  HostProblem empty = Computed("fwd fp32 b=1 h=1 s=3/0 d=4 lse");
  EXPECT_TRUE(Check(empty).holds());
  empty.args().lse[1] = std::numeric_limits<float>::infinity();
  Accuracy accuracy = Check(empty);
  EXPECT_FALSE(accuracy.holds());
  EXPECT_EQ(accuracy.mismatches, 1);
  EXPECT_THAT(accuracy.ToString(), HasSubstr("lse of (b 0, h 0, i 1)"));

  HostProblem problem = Computed("fwd fp32 b=1 h=1 s=3 d=4");
  static_cast<float*>(problem.args().o.data)[5] = std::nanf("");
  accuracy = Check(problem);
  EXPECT_FALSE(accuracy.holds());
  EXPECT_THAT(accuracy.first_mismatch, HasSubstr("o[1] of (b 0, h 0, i 1)"));
}

TEST(AccuracyTest, PoisonIsNoResult) {
  const absl::StatusOr<AttentionSpec> spec = spec::ParseSpec("fwd bf16 b=1 h=1 s=3 d=4 lse");
  const absl::StatusOr<HostProblem> problem = MakeRandomProblem(*spec);
  ASSERT_TRUE(problem.ok());
  EXPECT_FALSE(Check(*problem).holds());
}

}  // namespace
}  // namespace tilewright::cli
