#include "reference/reference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "host_case.h"

namespace tilewright::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kTight = 1e-12;

// `rows` equal query rows of 1 over keys whose scores and values are given: dim 1, scale 1.
AttentionSpec LineSpec(int64_t rows, int64_t keys) {
  AttentionSpec spec = SmallSpec(rows, keys, 1, 1);
  spec.scale = 1.0f;
  spec.lse = true;
  return spec;
}

HostCase Line(AttentionSpec spec, const std::vector<double>& scores,
              const std::vector<double>& values) {
  HostCase problem(std::move(spec));
  for (int64_t n = 0; n < problem.q.count(); ++n) problem.q.Set(n, 1);
  for (size_t n = 0; n < scores.size(); ++n) problem.k.Set(n, scores[n]);
  for (size_t n = 0; n < values.size(); ++n) problem.v.Set(n, values[n]);
  return problem;
}

TEST(ReferenceTest, ThreeToOneWeightsGiveThreeQuarters) {
  const double ln3 = std::log(3.0);
  const ForwardResult result = Line(LineSpec(1, 4), {0, 0, ln3, ln3}, {0, 0, 1, 1}).Run();
  // ln 3 is rounded to fp32 on its way in.
  EXPECT_NEAR(result.o[0], 0.75, 1e-7);
  EXPECT_NEAR(result.lse[0], std::log(8.0), 1e-7);
}

TEST(ReferenceTest, ScaleDefaultsToTheInverseRootOfTheDim) {
  AttentionSpec spec = SmallSpec(1, 2, 16, 1);
  HostCase problem(spec);
  for (int64_t d = 0; d < 16; ++d) {
    problem.q.Set(d, 0.5);
    problem.k.Set(problem.KAt(0, 0, 0, d), 1);
    problem.k.Set(problem.KAt(0, 1, 0, d), 0);
  }
  // dot = 8, score = 8 / 4.
  EXPECT_NEAR(problem.Run().lse[0], std::log(std::exp(2.0) + 1), kTight);
}

TEST(ReferenceTest, ScaleZeroGivesTheMeanAndANegativeScaleTurnsTheOrderRound) {
  AttentionSpec spec = LineSpec(1, 2);
  spec.scale = 0.0f;
  EXPECT_NEAR(Line(spec, {5, -3}, {1, 3}).Run().o[0], 2, kTight);
  spec.scale = -2.0f;
  const ForwardResult result = Line(spec, {5, -3}, {1, 3}).Run();
  EXPECT_NEAR(result.lse[0], std::log(std::exp(-10.0) + std::exp(6.0)), kTight);
}

TEST(ReferenceTest, SoftcapSquashesTheScore) {
  AttentionSpec spec = LineSpec(1, 1);
  spec.softcap = 2.0f;
  EXPECT_NEAR(Line(spec, {3}, {1}).Run().lse[0], 2 * std::tanh(1.5), kTight);
}

TEST(ReferenceTest, BiasComesBeforeSoftcapUnlessTheSpecSwapsThem) {
  AttentionSpec spec = LineSpec(1, 1);
  spec.softcap = 2.0f;
  spec.bias = {BiasTerm{}};
  HostCase after = Line(spec, {3}, {1});
  after.bias[0].Set(0, 0.5);
  EXPECT_NEAR(after.Run().lse[0], 2 * std::tanh(3.5 / 2), kTight);
  after.spec.softcap_before_bias = true;
  EXPECT_NEAR(after.Run().lse[0], 2 * std::tanh(1.5) + 0.5, kTight);
}

TEST(ReferenceTest, AlibiFallsWithTheDistanceFromTheDiagonal) {
  AttentionSpec spec = LineSpec(2, 3);
  spec.alibi = true;
  HostCase problem = Line(spec, {0, 0, 0}, {1, 10, 100});
  problem.slopes[0] = 0.5f;
  // Row 0 of 2 over 3 keys: bottom right puts it on key 1.
  const auto lse = [](double a, double b, double c) {
    return std::log(std::exp(a) + std::exp(b) + std::exp(c));
  };
  EXPECT_NEAR(problem.Run().lse[0], lse(-0.5, 0, -0.5), kTight);
  EXPECT_NEAR(problem.Run().lse[1], lse(-1, -0.5, 0), kTight);
  problem.spec.align = MaskAlign::kTopLeft;
  EXPECT_NEAR(problem.Run().lse[0], lse(0, -0.5, -1), kTight);
}

TEST(ReferenceTest, AlibiSlopesMayDifferByBatch) {
  AttentionSpec spec = LineSpec(1, 2);
  spec.batch = 2;
  spec.alibi = true;
  HostCase problem = Line(spec, {0, 0, 0, 0}, {1, 1, 1, 1});
  problem.slopes = {1.0f, 2.0f};
  problem.args.alibi_slopes = problem.slopes.data();
  problem.args.alibi_stride_batch = 1;
  const ForwardResult result = problem.Run();
  EXPECT_NEAR(result.lse[0], std::log1p(std::exp(-1.0)), kTight);
  EXPECT_NEAR(result.lse[1], std::log1p(std::exp(-2.0)), kTight);
  problem.args.alibi_stride_batch = 0;
  EXPECT_NEAR(problem.Run().lse[1], std::log1p(std::exp(-1.0)), kTight);
}

// Which keys each row of an all-zero-score problem sees, as a text of 0 and 1, from values that are
// powers of two.
std::string Visible(const AttentionSpec& spec, const Options& options = {}) {
  std::vector<double> values;
  for (int64_t j = 0; j < spec.seqlen_kv; ++j) values.push_back(std::ldexp(1, j));
  const HostCase problem =
      Line(spec, std::vector<double>(static_cast<size_t>(spec.seqlen_kv)), values);
  const ForwardResult result = problem.Run(options);
  std::string text;
  for (size_t i = 0; i < result.o.size(); ++i) {
    if (i > 0) text += ' ';
    const double count = result.lse[i] == -kInfinity ? 0 : std::exp(result.lse[i]);
    const auto bits = static_cast<int64_t>(std::lround(result.o[i] * count));
    for (int64_t j = 0; j < spec.seqlen_kv; ++j) text += (bits >> j & 1) != 0 ? '1' : '0';
  }
  return text;
}

TEST(ReferenceTest, CausalMasksAlignAsTheSpecSays) {
  AttentionSpec spec = LineSpec(2, 4);
  spec.causal = true;
  EXPECT_EQ(Visible(spec), "1110 1111");
  spec.align = MaskAlign::kTopLeft;
  EXPECT_EQ(Visible(spec), "1000 1100");
  spec = LineSpec(4, 2);
  spec.causal = true;
  EXPECT_EQ(Visible(spec), "00 00 10 11");
  spec.align = MaskAlign::kTopLeft;
  EXPECT_EQ(Visible(spec), "10 11 11 11");
}

TEST(ReferenceTest, WindowsAreInclusiveAroundTheDiagonal) {
  AttentionSpec spec = LineSpec(3, 5);
  spec.window_left = 1;
  spec.window_right = 0;
  EXPECT_EQ(Visible(spec), "01100 00110 00011");
  spec.window_right = 1;
  EXPECT_EQ(Visible(spec), "01110 00111 00011");
  spec.window_left = -1;
  EXPECT_EQ(Visible(spec), "11110 11111 11111");
  spec.window_left = 0;
  spec.window_right = -1;
  EXPECT_EQ(Visible(spec), "00111 00011 00001");
  spec.align = MaskAlign::kTopLeft;
  EXPECT_EQ(Visible(spec), "11111 01111 00111");
  spec.causal = true;  // takes the place of window_right
  EXPECT_EQ(Visible(spec), "10000 01000 00100");
}

TEST(ReferenceTest, WindowsOfAnySizeDoNotOverflow) {
  AttentionSpec spec = LineSpec(4, 2);
  spec.window_left = std::numeric_limits<int64_t>::max();
  spec.window_right = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(Visible(spec), "11 11 11 11");
}

TEST(ReferenceTest, BlockMaskKeepsWholeBlocks) {
  AttentionSpec spec = LineSpec(3, 5);
  spec.block_mask_q = 2;
  spec.block_mask_kv = 3;
  HostCase problem = Line(spec, {0, 0, 0, 0, 0}, {1, 2, 4, 8, 16});
  problem.block_mask = {0, 1, 1, 0};
  problem.args.block_mask = problem.block_mask.data();
  problem.args.block_mask_strides = {0, 0, 2};
  const ForwardResult result = problem.Run();
  EXPECT_NEAR(result.o[0], 12, kTight);
  EXPECT_NEAR(result.o[1], 12, kTight);
  EXPECT_NEAR(result.o[2], 7.0 / 3, kTight);
}

TEST(ReferenceTest, MaskAndScoreCallablesSeeWhereTheyAre) {
  AttentionSpec spec = LineSpec(2, 3);
  spec.mask_snippet.text = "(i + j) % 2 == 0 && seqlen_kv == 3";
  Options options;
  options.callables.mask = [](const Where& at) {
    return (at.i + at.j) % 2 == 0 && at.seqlen_kv == 3 && at.seqlen_q == 2;
  };
  EXPECT_EQ(Visible(spec, options), "101 010");

  AttentionSpec scored = LineSpec(1, 2);
  scored.score_snippet.text = "score * j + h";
  options.callables = {};
  options.callables.score = [](double score, const Where& at) { return score * at.j + at.h + 1; };
  EXPECT_NEAR(Line(scored, {4, 2}, {0, 0}).Run(options).lse[0],
              std::log(std::exp(1.0) + std::exp(3.0)), kTight);
}

TEST(ReferenceTest, SinkJoinsTheSumButNotTheOutput) {
  AttentionSpec spec = LineSpec(1, 2);
  spec.sinks = true;
  HostCase problem = Line(spec, {0, 0}, {3, 6});
  problem.sinks[0] = 0;
  ForwardResult result = problem.Run();
  EXPECT_NEAR(result.o[0], 3, kTight);
  EXPECT_NEAR(result.lse[0], std::log(3.0), kTight);
  problem.sinks[0] = 1000;  // the maximum of the row
  result = problem.Run();
  EXPECT_EQ(result.o[0], 0);
  EXPECT_EQ(result.lse[0], 1000);
}

TEST(ReferenceTest, SinkEqualsOneMoreKeyOfValueZero) {
  AttentionSpec spec = SmallSpec(3, 5);
  spec.lse = true;
  HostCase plain(spec, 3);
  AttentionSpec more = spec;
  more.seqlen_kv = 6;
  more.bias = {BiasTerm{.seqlen_kv = 6}};
  HostCase extended(more, 4);
  plain.spec.sinks = true;
  for (int64_t n = 0; n < plain.q.count(); ++n) extended.q.Set(n, plain.q.Get(n));
  for (int64_t n = 0; n < extended.k.count(); ++n) {
    extended.k.Set(n, n < plain.k.count() ? plain.k.Get(n) : 0);
  }
  for (int64_t n = 0; n < extended.v.count(); ++n) {
    extended.v.Set(n, n < plain.v.count() ? plain.v.Get(n) : 0);
  }
  for (int64_t j = 0; j < 6; ++j) extended.bias[0].Set(j, j < 5 ? 0 : plain.sinks[0]);
  ExpectSame(plain.Run(), extended.Run(), kTight);
}

TEST(ReferenceTest, LseHasTheBaseOfTheSpec) {
  AttentionSpec spec = LineSpec(1, 4);
  spec.lse_base = LseBase::kTwo;
  EXPECT_NEAR(Line(spec, {0, 0, 0, 0}, {1, 1, 1, 1}).Run().lse[0], 2, kTight);
}

TEST(ReferenceTest, DropoutScalesTheKeptWeightsAndLeavesTheSumAlone) {
  AttentionSpec spec = LineSpec(3, 8);
  spec.dropout = 0.5f;
  HostCase problem = Line(spec, std::vector<double>(8), {1, 2, 4, 8, 16, 32, 64, 128});
  const auto expected = [](int64_t i, uint64_t seed, uint64_t offset) {
    double sum = 0;
    for (int64_t j = 0; j < 8; ++j) {
      if (DropoutKeeps(0.5f, seed, offset, 1, 0, 0, i, j)) sum += std::ldexp(1, j);
    }
    return 2 * sum / 8;
  };
  ForwardResult result = problem.Run();
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(result.o[i], expected(i, 42, 7), kTight);
    EXPECT_NEAR(result.lse[i], std::log(8.0), kTight);
  }
  const uint64_t seed = 0x1234567890, offset = 0xabcdef0123;
  problem.args.dropout_seed_ptr = &seed;
  problem.args.dropout_offset_ptr = &offset;
  result = problem.Run();
  for (int64_t i = 0; i < 3; ++i) EXPECT_NEAR(result.o[i], expected(i, seed, offset), kTight);
}

TEST(ReferenceTest, DropoutOfAWindowThatStartsInsideAQuadReadsTheSameWords) {
  AttentionSpec spec = LineSpec(4, 16);
  spec.dropout = 0.5f;
  spec.window_left = 5;
  spec.window_right = 0;
  const HostCase windowed = Line(spec, std::vector<double>(16), std::vector<double>(16, 1));
  const ForwardResult result = windowed.Run();
  for (int64_t i = 0; i < 4; ++i) {
    int kept = 0;
    for (int64_t j = i + 12 - 5; j <= i + 12; ++j) kept += DropoutKeeps(0.5f, 42, 7, 1, 0, 0, i, j);
    EXPECT_NEAR(result.o[i], 2.0 * kept / 6, kTight);
  }
}

// ---- empty cases

TEST(ReferenceTest, RowsWithoutKeysAreZeroWithTheEmptyLse) {
  AttentionSpec spec = LineSpec(3, 1);
  spec.causal = true;
  HostCase problem = Line(spec, {2}, {5});
  ForwardResult result = problem.Run();
  EXPECT_THAT(result.o, testing::ElementsAre(0, 0, 5));
  EXPECT_THAT(result.lse, testing::ElementsAre(-kInfinity, -kInfinity, 2));
  problem.spec.empty_lse = EmptyLse::kPlusInf;
  EXPECT_THAT(problem.Run().lse, testing::ElementsAre(kInfinity, kInfinity, 2));
  problem.spec.sinks = true;
  problem.sinks[0] = 0.25f;
  result = problem.Run();
  EXPECT_EQ(result.o[0], 0);
  EXPECT_EQ(result.lse[0], 0.25);
  problem.spec.lse_base = LseBase::kTwo;
  EXPECT_NEAR(problem.Run().lse[0], 0.25 / std::log(2.0), kTight);
}

TEST(ReferenceTest, NoKeysAtAllNeedNoKeyArrays) {
  AttentionSpec spec = LineSpec(2, 0);
  spec.alibi = true;
  spec.bias = {BiasTerm{}};
  HostCase problem(spec);
  problem.args.k.data = problem.args.v.data = nullptr;
  problem.args.alibi_slopes = nullptr;
  problem.args.bias[0].data = nullptr;
  const ForwardResult result = problem.Run();
  EXPECT_THAT(result.o, testing::ElementsAre(0, 0));
  EXPECT_THAT(result.lse, testing::ElementsAre(-kInfinity, -kInfinity));
}

TEST(ReferenceTest, NoRowsGiveAnEmptyResult) {
  for (int which = 0; which < 3; ++which) {
    AttentionSpec spec = LineSpec(2, 3);
    if (which == 0) spec.batch = 0;
    if (which == 1) spec.heads_q = spec.heads_kv = 0;
    if (which == 2) spec.seqlen_q = 0;
    const HostCase problem(spec);
    const ForwardResult result = problem.Run();
    EXPECT_TRUE(result.o.empty());
    EXPECT_TRUE(result.lse.empty());
  }
}

TEST(ReferenceTest, AllScoresOfMinusInfinityAreAsNoKey) {
  AttentionSpec spec = LineSpec(1, 2);
  spec.bias = {BiasTerm{}};
  HostCase problem = Line(spec, {1, 2}, {kNan, 4});
  problem.bias[0].Set(0, -kInfinity);
  ForwardResult result = problem.Run();
  EXPECT_EQ(result.o[0], 0);
  EXPECT_EQ(result.lse[0], -kInfinity);
  problem.spec.sinks = true;
  problem.sinks[0] = 3;
  result = problem.Run();
  EXPECT_EQ(result.o[0], 0);
  EXPECT_EQ(result.lse[0], 3);
  problem.sinks[0] = static_cast<float>(-kInfinity);
  EXPECT_EQ(problem.Run().lse[0], -kInfinity);
}

TEST(ReferenceTest, AScoreOfMinusInfinityAmongOthersHasNoWeight) {
  AttentionSpec spec = LineSpec(1, 3);
  spec.bias = {BiasTerm{.seqlen_kv = 3}};
  HostCase problem = Line(spec, {0, 0, 0}, {1, 5, 3});
  problem.bias[0].Set(0, 0);
  problem.bias[0].Set(1, -kInfinity);
  problem.bias[0].Set(2, 0);
  EXPECT_NEAR(problem.Run().o[0], 2, kTight);
}

TEST(ReferenceTest, PlusInfinityAndNanScoresGiveNan) {
  for (double bad : {kInfinity, kNan}) {
    const ForwardResult result = Line(LineSpec(1, 2), {0, bad}, {1, 1}).Run();
    EXPECT_TRUE(std::isnan(result.o[0]));
    EXPECT_TRUE(std::isnan(result.lse[0]));
  }
}

TEST(ReferenceTest, NanInQReachesItsRowOnlyAndNanInVTheRowsThatSeeIt) {
  AttentionSpec spec = LineSpec(3, 3);
  spec.causal = true;
  HostCase problem = Line(spec, {0, 0, 0}, {1, 1, 1});
  problem.q.Set(1, kNan);
  ForwardResult result = problem.Run();
  EXPECT_EQ(result.o[0], 1);
  EXPECT_TRUE(std::isnan(result.o[1]));
  EXPECT_NEAR(result.o[2], 1, kTight);

  problem.q.Set(1, 1);
  problem.v.Set(2, kNan);
  result = problem.Run();
  EXPECT_NEAR(result.o[1], 1, kTight);
  EXPECT_TRUE(std::isnan(result.o[2]));
  EXPECT_NEAR(result.lse[2], std::log(3.0), kTight);
}

TEST(ReferenceTest, NanInMaskedKeysReachesNothing) {
  AttentionSpec spec = SmallSpec(4, 6);
  spec.lse = true;
  const auto poison = [](HostCase& problem, int64_t j) {
    for (int64_t d = 0; d < 4; ++d) problem.k.Set(problem.KAt(0, j, 0, d), kNan);
    for (int64_t d = 0; d < 3; ++d) problem.v.Set(problem.VAt(0, j, 0, d), kNan);
  };
  const auto expect_unchanged = [&](HostCase problem, const Options& options = {}) {
    const ForwardResult clean = problem.Run(options);
    poison(problem, 2);
    ExpectSame(problem.Run(options), clean);
    const ForwardResult straightforward = problem.RunStraightforward(options);
    for (double o : straightforward.o) EXPECT_TRUE(std::isfinite(o));
  };
  {
    AttentionSpec masked = spec;
    masked.bias = {BiasTerm{.type = ElementType::kBool, .seqlen_kv = 6}};
    HostCase problem(masked, 5);
    for (int64_t j = 0; j < 6; ++j) problem.bias[0].Set(j, j != 2);
    expect_unchanged(std::move(problem));
  }
  {
    AttentionSpec masked = spec;
    masked.mask_snippet.text = "j != 2";
    Options options;
    options.callables.mask = [](const Where& at) { return at.j != 2; };
    expect_unchanged(HostCase(masked, 5), options);
  }
  {
    AttentionSpec masked = spec;
    masked.block_mask_q = 4;
    masked.block_mask_kv = 1;
    HostCase problem(masked, 5);
    problem.block_mask = {1, 1, 0, 1, 1, 1};
    problem.args.block_mask = problem.block_mask.data();
    expect_unchanged(std::move(problem));
  }
  {
    AttentionSpec masked = spec;  // rows sit on keys 2 to 5: none sees keys below 2 or above 5
    masked.window_left = masked.window_right = 0;
    HostCase problem(masked, 5);
    const ForwardResult clean = problem.Run();
    poison(problem, 0);
    ExpectSame(problem.Run(), clean);
  }
  {
    AttentionSpec masked = spec;
    masked.varlen = true;
    HostCase problem(masked, 5);
    problem.seqused_kv = {2};
    problem.args.seqused_kv = problem.seqused_kv.data();
    expect_unchanged(std::move(problem));
  }
  {
    AttentionSpec masked = spec;  // dropped is not masked: the row may see the key
    masked.dropout = 0.5f;
    HostCase problem(masked, 5);
    poison(problem, 2);
    for (double o : problem.Run().o) EXPECT_TRUE(std::isnan(o));
  }
}

// ---- types and rounding

TEST(ReferenceTest, StoredValuesAreMultipliedByTheirScales) {
  for (ElementType kv : {ElementType::kFp8E4m3, ElementType::kFp8E5m2, ElementType::kInt8}) {
    for (ScaleKind kind : {ScaleKind::kPerTensor, ScaleKind::kPerHead, ScaleKind::kPerToken}) {
      AttentionSpec spec = SmallSpec(3, 5);
      spec.type = ElementType::kBf16;
      spec.kv_type = kv;
      spec.batch = 2;
      spec.heads_q = 4;
      spec.heads_kv = 2;
      spec.kv_scale = kind;
      HostCase stored(spec, 6);

      AttentionSpec plain = spec;
      plain.type = ElementType::kFp32;
      plain.kv_type.reset();
      plain.kv_scale = ScaleKind::kNone;
      HostCase real(plain, 7);
      for (int64_t n = 0; n < real.q.count(); ++n) real.q.Set(n, stored.q.Get(n));
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t h = 0; h < 2; ++h) {
          for (int64_t j = 0; j < 5; ++j) {
            size_t at = 0;
            if (kind == ScaleKind::kPerHead) at = h;
            if (kind == ScaleKind::kPerToken) at = (b * 2 + h) * 5 + j;
            for (int64_t d = 0; d < 4; ++d) {
              const int64_t n = real.KAt(b, j, h, d);
              real.k.Set(n, stored.k.Get(n) * stored.k_scale[at]);
            }
            for (int64_t d = 0; d < 3; ++d) {
              const int64_t n = real.VAt(b, j, h, d);
              real.v.Set(n, stored.v.Get(n) * stored.v_scale[at]);
            }
          }
        }
      }
      ExpectSame(stored.Run(), real.Run(), kTight * 1000);
    }
  }
}

TEST(ReferenceTest, QueriesHaveScalesOfTheirOwn) {
  AttentionSpec spec = SmallSpec(3, 5);
  spec.type = ElementType::kFp8E4m3;
  spec.out_type = ElementType::kBf16;
  spec.heads_q = 2;
  spec.heads_kv = 1;
  spec.q_scale = ScaleKind::kPerHead;
  HostCase problem(spec, 8);
  const ForwardResult per_head = problem.Run();
  problem.spec.q_scale = ScaleKind::kPerTensor;
  const ForwardResult per_tensor = problem.Run();
  // Rows are in the order [head, row].
  for (int n = 0; n < 9; ++n) EXPECT_EQ(per_head.o[n], per_tensor.o[n]);
  problem.q_scale[0] = problem.q_scale[1];
  const ForwardResult other = problem.Run();
  for (int n = 9; n < 18; ++n) EXPECT_EQ(per_head.o[n], other.o[n]);
  // A scale of the queries is a scale of the scores.
  problem.spec.q_scale = ScaleKind::kNone;
  problem.spec.scale = 0.5f * problem.q_scale[1];
  ExpectSame(problem.Run(), other, kTight);
}

TEST(ReferenceTest, StraightforwardRoundsWeightsOnceAndTheOutputOnce) {
  const float score = -0.3f;
  const double weight = std::exp(static_cast<double>(score));
  const auto round = [](ElementType type, double value) {
    std::array<std::byte, 4> bytes;
    FromDouble(type, value, bytes.data());
    return ToDouble(type, bytes.data());
  };
  for (ElementType type : {ElementType::kBf16, ElementType::kFp16}) {
    AttentionSpec spec = LineSpec(1, 2);
    spec.type = type;
    HostCase problem = Line(spec, {0, score}, {1, 3});
    const double stored = problem.k.Get(1);
    const double exact = std::exp(stored);
    const ForwardResult result = problem.RunStraightforward();
    EXPECT_EQ(result.o[0], round(type, (1 + 3 * round(type, exact)) / (1 + exact)));
    EXPECT_NEAR(result.lse[0], std::log1p(exact), 1e-6);
    EXPECT_NEAR(problem.Run().o[0], (1 + 3 * exact) / (1 + exact), kTight);
  }
  AttentionSpec spec = LineSpec(1, 2);
  spec.type = ElementType::kFp8E5m2;
  spec.out_type = ElementType::kBf16;
  HostCase fp8 = Line(spec, {0, score}, {1, 3});
  const double exact = std::exp(fp8.k.Get(1));
  const double rounded = round(ElementType::kFp8E4m3, 256 * exact) / 256;
  EXPECT_EQ(fp8.RunStraightforward().o[0],
            round(ElementType::kBf16, (1 + 3 * rounded) / (1 + exact)));
  // fp32 weights are not rounded at all.
  const HostCase fp32 = Line(LineSpec(1, 2), {0, score}, {1, 3});
  EXPECT_NEAR(fp32.RunStraightforward().o[0], (1 + 3 * weight) / (1 + weight), 1e-6);
}

TEST(ReferenceTest, StraightforwardErrsByTheOrderOfItsType) {
  for (const auto& [type, bound] : {std::pair{ElementType::kFp32, 1e-6},
                                    {ElementType::kFp16, 1e-3},
                                    {ElementType::kBf16, 8e-3}}) {
    AttentionSpec spec = SmallSpec(33, 70, 32, 16);
    spec.type = type;
    spec.heads_q = spec.heads_kv = 2;
    const HostCase problem(spec, 9);
    const ForwardResult exact = problem.Run();
    const ForwardResult rounded = problem.RunStraightforward();
    double error = 0, norm = 0;
    for (size_t n = 0; n < exact.o.size(); ++n) {
      error += std::pow(exact.o[n] - rounded.o[n], 2);
      norm += std::pow(exact.o[n], 2);
    }
    const double relative = std::sqrt(error / norm);
    EXPECT_LT(relative, bound);
    EXPECT_GT(relative, bound / 1000);
  }
}

// ---- rows, threads, errors

TEST(ReferenceTest, ARowsResultDependsOnNeitherOtherRowsNorThreads) {
  AttentionSpec spec = SmallSpec(150, 600, 8, 5);
  spec.batch = 2;
  spec.heads_q = 4;
  spec.heads_kv = 2;
  spec.causal = true;
  spec.window_left = 301;
  spec.dropout = 0.25f;
  spec.alibi = true;
  const HostCase problem(spec, 10);
  Options options;
  options.threads = 1;
  const ForwardResult all = problem.Run(options);
  options.threads = 7;
  ExpectSame(problem.Run(options), all);

  const std::vector<Row> rows = AllRows(spec, problem.args);
  const std::vector<size_t> picked = {1199, 3, 700, 3, 0, 451};
  std::vector<Row> some;
  for (size_t n : picked) some.push_back(rows[n]);
  const auto result = Forward(spec, problem.args, some, options);
  ASSERT_TRUE(result.ok()) << result.status();
  for (size_t n = 0; n < picked.size(); ++n) {
    EXPECT_EQ(result->lse[n], all.lse[picked[n]]);
    for (int64_t d = 0; d < 5; ++d) EXPECT_EQ(result->o[n * 5 + d], all.o[picked[n] * 5 + d]);
  }
}

TEST(ReferenceTest, ErrorsNameTheField) {
  const HostCase problem(SmallSpec(2, 3));
  const auto message = [&](const AttentionSpec& spec, const AttentionArgs& args,
                           const std::vector<Row>& rows, const Options& options = {}) {
    const auto result = Forward(spec, args, rows, options);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(result.status().message());
  };
  using testing::HasSubstr;
  EXPECT_THAT(message(problem.spec, problem.args, {{0, 0, 0}, {0, 0, 2}}),
              HasSubstr("rows[1].i = 2"));
  EXPECT_THAT(message(problem.spec, problem.args, {{1, 0, 0}}), HasSubstr("rows[0].b = 1"));
  EXPECT_THAT(message(problem.spec, problem.args, {{0, -1, 0}}), HasSubstr("rows[0].h = -1"));

  AttentionSpec spec = problem.spec;
  spec.heads_q = 3;
  spec.heads_kv = 2;
  EXPECT_THAT(message(spec, problem.args, {}), HasSubstr("heads_q"));

  AttentionArgs args = problem.args;
  args.v.data = nullptr;
  EXPECT_THAT(message(problem.spec, args, {}), HasSubstr("v"));

  spec = problem.spec;
  spec.score_snippet.text = "score";
  EXPECT_THAT(message(spec, problem.args, {}), HasSubstr("callables.score is empty"));
  Options options;
  options.callables.mask = [](const Where&) { return true; };
  EXPECT_THAT(message(problem.spec, problem.args, {}, options), HasSubstr("callables.mask is set"));

  spec = problem.spec;
  spec.varlen = true;
  const HostCase packed(spec, 1, {2}, {3});
  const std::vector<int32_t> falling = {2, 0}, far = {0, 3};
  args = packed.args;
  args.cu_seqlens_q = falling.data();
  EXPECT_THAT(message(spec, args, {}), HasSubstr("cu_seqlens_q[1] = 0"));
  args.cu_seqlens_q = far.data();
  EXPECT_THAT(message(spec, args, {}), HasSubstr("seqlen_q = 2"));
  args = packed.args;
  args.total_kv = 2;
  EXPECT_THAT(message(spec, args, {}), HasSubstr("total_kv = 2"));
  args = packed.args;
  const std::vector<int32_t> negative = {-1};
  args.seqused_kv = negative.data();
  EXPECT_THAT(message(spec, args, {}), HasSubstr("seqused_kv[0] = -1"));
}

TEST(ReferenceTest, OutputsMayBeNull) {
  AttentionSpec spec = LineSpec(2, 3);
  const HostCase problem(spec);
  EXPECT_EQ(problem.args.o.data, nullptr);
  EXPECT_EQ(problem.args.lse, nullptr);
  EXPECT_EQ(problem.Run().lse.size(), 2u);
}

}  // namespace
}  // namespace tilewright::reference
