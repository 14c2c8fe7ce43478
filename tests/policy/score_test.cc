#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/philox.cuh"
#include "policy/bias_terms.cuh"
#include "policy/dropout.cuh"
#include "policy/score_alibi.cuh"
#include "policy/score_chain.cuh"
#include "policy/score_softcap.cuh"
#include "policy_params.h"

namespace tilewright {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Values that tell every index apart.
std::vector<float> CountedTable(i64 count) {
  std::vector<float> table(count);
  for (i64 n = 0; n < count; ++n) table[n] = static_cast<float>(n);
  return table;
}

TEST(ScoreBiasTest, FindsTheElementOfEveryBatchHeadRowAndKey) {
  // [3 batches of the term][2 heads][5 rows][7 keys]; a problem of 12 batches.
  constexpr i64 kBatch = 3, kHeads = 2, kRows = 5, kKeys = 7;
  const std::vector<float> table = CountedTable(kBatch * kHeads * kRows * kKeys);
  for (const bool by_division : {false, true}) {
    PolicyParams params;
    params.bias[0] = {.data = table.data(),
                      .stride_batch = kHeads * kRows * kKeys,
                      .stride_head = kRows * kKeys,
                      .stride_q = kKeys,
                      .stride_kv = 1,
                      .batch_div = by_division ? 12 / kBatch : 1,
                      .batch_mod = kBatch};
    Problem problem = DenseProblem(kRows, kKeys);
    for (problem.b = 0; problem.b < 12; ++problem.b) {
      for (problem.h = 0; problem.h < kHeads; ++problem.h) {
        for (i64 i = 0; i < kRows; ++i) {
          for (i64 j = 0; j < kKeys; ++j) {
            const i64 batch = by_division ? problem.b / 4 : problem.b % kBatch;
            const float expected =
                table[((batch * kHeads + problem.h) * kRows + i) * kKeys + j] + 0.5f;
            ASSERT_EQ((ScoreBias<0, float>::Apply(0.5f, problem, i, j, params)), expected);
          }
        }
      }
    }
  }
}

TEST(ScoreBiasTest, BroadcastsAxesOfStrideZero) {
  const std::vector<float> table = CountedTable(7);
  PolicyParams params;
  params.bias[1] = {.data = table.data(),
                    .stride_batch = 0,
                    .stride_head = 0,
                    .stride_q = 0,
                    .stride_kv = 1,
                    .batch_div = 1,
                    .batch_mod = 1};
  Problem problem = DenseProblem(5, 7);
  problem.b = 3;
  problem.h = 2;
  EXPECT_EQ((ScoreBias<1, float>::Apply(1.f, problem, 4, 6, params)), 7.f);
}

TEST(ScoreBiasTest, ReadsSixteenBitTerms) {
  const Bf16 bf16[] = {{0}, {0xbfc0}};  // -1.5
  const Fp16 fp16[] = {{0}, {0x3e00}};  // 1.5
  PolicyParams params;
  params.bias[0] = {.data = bf16,
                    .stride_batch = 0,
                    .stride_head = 0,
                    .stride_q = 0,
                    .stride_kv = 1,
                    .batch_div = 1,
                    .batch_mod = 1};
  params.bias[1] = params.bias[0];
  params.bias[1].data = fp16;
  const Problem problem = DenseProblem(1, 2);
  EXPECT_EQ((ScoreBias<0, Bf16>::Apply(0.f, problem, 0, 1, params)), -1.5f);
  EXPECT_EQ((ScoreBias<1, Fp16>::Apply(0.f, problem, 0, 1, params)), 1.5f);
}

TEST(ScoreAlibiTest, FallsWithTheDistanceFromTheDiagonal) {
  const float slopes[] = {0.5f, 0.25f, 2.f, 4.f};  // [2 batches][2 heads]
  PolicyParams params;
  params.alibi = {slopes, 2};
  Problem problem = DenseProblem(3, 5);
  problem.b = 1;
  for (problem.h = 0; problem.h < 2; ++problem.h) {
    for (i64 i = 0; i < 3; ++i) {
      for (i64 j = 0; j < 5; ++j) {
        const float slope = slopes[2 + problem.h];
        const float to_lower_right = static_cast<float>(std::abs(i + 2 - j));
        const float to_upper_left = static_cast<float>(std::abs(i - j));
        EXPECT_EQ((ScoreAlibi<Align::kBottomRight>::Apply(1.f, problem, i, j, params)),
                  1 - slope * to_lower_right);
        EXPECT_EQ((ScoreAlibi<Align::kTopLeft>::Apply(1.f, problem, i, j, params)),
                  1 - slope * to_upper_left);
      }
    }
  }
}

TEST(ScoreSoftcapTest, BoundsScores) {
  PolicyParams params;
  params.softcap = {30.f, 1 / 30.f};
  const Problem problem = DenseProblem(1, 1);
  for (float score : {-1e6f, -30.f, -0.1f, 0.f, 1e-3f, 3.f, 29.f, 1e6f}) {
    const double expected = 30 * std::tanh(static_cast<double>(score) / 30);
    EXPECT_NEAR(ScoreSoftcap::Apply(score, problem, 0, 0, params), expected,
                4e-7 * std::abs(expected));
  }
  EXPECT_EQ(ScoreSoftcap::Apply(kInfinity, problem, 0, 0, params), 30.f);
}

TEST(ScoreSoftcapTest, AllScoresOfAThreadAreTheSameInUnitsOfTheCap) {
  PolicyParams params;
  params.softcap = {30.f, 1 / 30.f};
  // All within the range of the polynomial, and then one beyond it.
  for (const float last : {29.9f, 500.f}) {
    float products[8] = {-29.9f, -7.f, -1e-3f, 0.f, 1e-6f, 0.4f, 12.f, last};
    constexpr float kScale = 0.5f;
    double expected[8];
    for (int n = 0; n < 8; ++n) expected[n] = 30 * std::tanh(products[n] * kScale / 30.0);
    ScoreChain<ScoreSoftcap>::ApplyToAll(products, kScale, params);
    for (int n = 0; n < 8; ++n) {
      EXPECT_NEAR(products[n] * ScoreChain<ScoreSoftcap>::Unit(params), expected[n],
                  4e-7 * std::abs(expected[n]) + 1e-12)
          << n;
    }
  }
  EXPECT_FALSE(ScoreChain<>::kIsPointwise);
  EXPECT_FALSE((ScoreChain<ScoreSoftcap, ScoreAlibi<Align::kTopLeft>>::kIsPointwise));
}

TEST(ScoreChainTest, ARowGivesTheScoresOfItsKeys) {
  const float slope = 0.25f;
  const std::vector<float> table = CountedTable(40);
  PolicyParams params;
  params.alibi = {&slope, 0};
  params.softcap = {20.f, 1 / 20.f};
  params.bias[0] = {.data = table.data(),
                    .stride_batch = 0,
                    .stride_head = 0,
                    .stride_q = 0,
                    .stride_kv = 1,
                    .batch_div = 1,
                    .batch_mod = 1};
  const Problem problem = DenseProblem(5, 40);
  using Chain = ScoreChain<ScoreBias<0, float>, ScoreAlibi<Align::kBottomRight>, ScoreSoftcap>;
  for (i64 i = 0; i < 5; ++i) {
    const Chain::Row<PolicyParams> row(problem, i, 8, params);
    for (int column = 0; column < 32; ++column) {
      EXPECT_EQ(row.Apply(1.5f, column), Chain::Apply(1.5f, problem, i, 8 + column, params));
    }
  }
}

TEST(ScoreChainTest, AppliesItsLinksInOrder) {
  const float slope = 1;
  PolicyParams params;
  params.alibi = {&slope, 0};
  params.softcap = {2.f, 0.5f};
  const Problem problem = DenseProblem(1, 8);
  using Alibi = ScoreAlibi<Align::kTopLeft>;
  const float bias_first = ScoreChain<Alibi, ScoreSoftcap>::Apply(5.f, problem, 0, 4, params);
  const float cap_first = ScoreChain<ScoreSoftcap, Alibi>::Apply(5.f, problem, 0, 4, params);
  EXPECT_NEAR(bias_first, 2 * std::tanh(0.5), 1e-6);
  EXPECT_NEAR(cap_first, 2 * std::tanh(2.5) - 4, 1e-6);
  EXPECT_EQ(ScoreChain<>::Apply(5.f, problem, 0, 4, params), 5.f);
}

// A rule with a derivative of its own.
struct ScoreTwice {
  static constexpr bool kHasSlopeOne = false;
  static constexpr bool kHasOwnGradient = true;
  template <class Scalar, class Params>
  static Scalar Apply(Scalar score, const Problem&, i64, i64, const Params&) {
    return score + score;
  }
  template <class Params>
  static float Gradient(float score, float d_score, bool, const Problem&, i64, i64, const Params&) {
    return d_score * 2 + score * 1000;  // to tell that it was asked, and where
  }
};

TEST(ScoreChainTest, DifferentiatesByTheProductAndByTheBias) {
  const float slope = 1;
  PolicyParams params;
  params.alibi = {&slope, 0};
  params.softcap = {2.f, 0.5f};
  const Problem problem = DenseProblem(1, 8);
  using Alibi = ScoreAlibi<Align::kTopLeft>;
  const auto cap_slope = [](double x) { return 1 - std::tanh(x / 2) * std::tanh(x / 2); };
  const auto gradient = [&](auto chain, float score) {
    using Chain = decltype(chain);
    const ScorePoint point = Chain::Differentiate(score, problem, 0, 4, params);
    EXPECT_EQ(point.score, Chain::Apply(score, problem, 0, 4, params));
    return Chain::Gradient(point, 3.f, false, problem, 0, 4, params);
  };
  const ScoreGradient bias_first = gradient(ScoreChain<Alibi, ScoreSoftcap>(), 5.f);
  EXPECT_NEAR(bias_first.dot, 3 * cap_slope(1), 1e-5);
  EXPECT_NEAR(bias_first.bias, 3 * cap_slope(1), 1e-5);
  const ScoreGradient cap_first = gradient(ScoreChain<ScoreSoftcap, Alibi>(), 1.f);
  EXPECT_NEAR(cap_first.dot, 3 * cap_slope(1), 1e-5);
  EXPECT_EQ(cap_first.bias, 3.f);
  const ScoreGradient none = gradient(ScoreChain<>(), 1.f);
  EXPECT_EQ(none.dot, 3.f);
  const ScoreGradient own = gradient(ScoreChain<Alibi, ScoreTwice>(), 5.f);
  EXPECT_EQ(own.dot, 3.f * 2 + 1000.f);
  EXPECT_EQ(own.bias, own.dot);
}

TEST(DualTest, TakesElementsOfEveryTypeAsConstants) {
  const Bf16 bf16 = {0x3fc0};  // 1.5
  const Int8 int8 = {3};
  const Dual x = {2.f, 1.f};
  const Dual y = x * bf16 + int8 + 4 + i64{1} - 0.5;
  EXPECT_EQ(y.value, 10.5f);
  EXPECT_EQ(y.derivative, 1.5f);
}

// Chain::Head's rows say of every existing key what Apply says, wherever the lane's runs begin.
template <class Chain, class Runs>
void CheckRows(const Problem& problem, const PolicyParams& params) {
  const typename Chain::template Head<PolicyParams> head(problem, params);
  for (i64 i = 0; i < problem.seqlen_q; ++i) {
    for (i64 j = 0; j < problem.seqlen_kv; j += Runs::kKeys) {
      const LaneKeys keys = {i, j, static_cast<int>(problem.seqlen_kv - j)};
      const typename Chain::template Head<PolicyParams>::Row row(head, keys);
      float scores[Runs::kCount];
      for (int n = 0; n < Runs::kCount; ++n) scores[n] = 0.25f * static_cast<float>(n) - 1;
      row.template Apply<Runs>(scores, Runs::kAll & Runs::Below(keys.existing));
      for (int n = 0; n < Runs::kCount; ++n) {
        const i64 key = j + Runs::Offset(n);
        if (key >= problem.seqlen_kv) continue;
        const float expected =
            Chain::Apply(0.25f * static_cast<float>(n) - 1, problem, i, key, params);
        ASSERT_NEAR(scores[n], expected, 1e-6f * (1 + std::abs(expected)))
            << "row " << i << " key " << key;
      }
    }
  }
}

TEST(ScoreHeadTest, RowsAgreeWithApply) {
  constexpr i64 kRows = 5;
  const float slopes[] = {-0.5f, 0.25f};
  for (const i64 keys : {3, 16, 40, 64}) {
    const std::vector<float> table = CountedTable(3 * 2 * kRows * keys);
    std::vector<Bf16> narrow(table.size());
    for (size_t n = 0; n < table.size(); ++n) FromFloat(table[n] * 0.125f, &narrow[n]);
    PolicyParams params;
    params.alibi = {slopes, 0};
    params.softcap = {30.f, 1 / 30.f};
    params.bias[0] = {.data = table.data(),
                      .stride_batch = 2 * kRows * keys,
                      .stride_head = kRows * keys,
                      .stride_q = keys,
                      .stride_kv = 1,
                      .batch_div = 2,
                      .batch_mod = 3};
    params.bias[1] = {.data = narrow.data(),
                      .stride_batch = 0,
                      .stride_head = 0,
                      .stride_q = keys,
                      .stride_kv = keys % 2 == 0 ? 1 : 2,
                      .batch_div = 1,
                      .batch_mod = 1};
    if (keys % 2 != 0) params.bias[1].stride_q = 2 * keys;
    using Chain = ScoreChain<ScoreBias<0, float>, ScoreBias<1, Bf16>,
                             ScoreAlibi<Align::kBottomRight>, ScoreSoftcap>;
    Problem problem = DenseProblem(kRows, keys);
    problem.b = 5;
    problem.h = 1;
    SCOPED_TRACE(keys);
    CheckRows<Chain, KeyRuns<4, 2, 8>>(problem, params);
    CheckRows<Chain, KeyRuns<2, 4, 16>>(problem, params);
    CheckRows<Chain, KeyRuns<2, 8, 32>>(problem, params);
  }
}

template <class Runs>
void CheckDropout(const PolicyParams& params) {
  const Problem problem = DenseProblem(3, 64);
  const DropoutPhilox::Head<PolicyParams> head(problem, params);
  for (i64 i = 0; i < 3; ++i) {
    for (i64 j = 0; j < 32; j += Runs::kKeys) {
      float weights[Runs::kCount];
      for (float& weight : weights) weight = 1;
      head.template Mark<Runs>(weights, i, j);
      for (int n = 0; n < Runs::kCount; ++n) {
        const int64_t key = j + Runs::Offset(n);
        const float factor = DropoutPhilox::Factor(problem, i, key, params);
        ASSERT_EQ(weights[n], factor != 0 ? 1.f : -1.f);
        const bool kept = (head.KeptOfFour(i, key / 4 * 4) >> (key % 4) & 1) != 0;
        ASSERT_EQ(factor, kept ? DropoutPhilox::Scale(params) : 0.f);
      }
    }
  }
}

TEST(DropoutHeadTest, RunsAgreeWithFactor) {
  PolicyParams params;
  params.core.heads_q = 2;
  params.dropout.seed = 7;
  params.dropout.offset = 1ull << 40;
  params.dropout.threshold = 1u << 31;
  params.dropout.keep_scale = 2;
  CheckDropout<KeyRuns<4, 2, 8>>(params);
  CheckDropout<KeyRuns<2, 4, 16>>(params);
  CheckDropout<KeyRuns<2, 8, 32>>(params);
}

TEST(KeyRunsTest, BelowHasTheNumbersOfTheKeysBefore) {
  using Runs = KeyRuns<2, 4, 16>;
  for (i64 keys = -3; keys < 40; ++keys) {
    u32 expected = 0;
    for (int n = 0; n < Runs::kCount; ++n) expected |= (Runs::Offset(n) < keys ? 1u : 0u) << n;
    EXPECT_EQ(Runs::Below(keys), expected) << keys;
  }
  EXPECT_EQ((KeyRuns<16, 2, 8>::Below(1 << 20)), 0xffffffffu);
}

}  // namespace
}  // namespace tilewright
