// Gradients against central differences of the fp64 forward. Inputs are fp32 multiples of 1/256 and
// steps are powers of two, so that every perturbed input is exact.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "host_case.h"
#include "reference/reference.h"

namespace tilewright::reference {
namespace {

constexpr double kStep = 1.0 / 1024;

// sum(dO * O). Rows come batch by batch and head by head, dO in the order of memory.
double Loss(HostCase& problem, const Options& options) {
  const std::vector<Row> rows = AllRows(problem.spec, problem.args);
  const auto result = Forward(problem.spec, problem.args, rows, options);
  EXPECT_TRUE(result.ok()) << result.status();
  if (!result.ok()) return 0;
  double loss = 0;
  for (size_t n = 0; n < rows.size(); ++n) {
    const auto [b, h, i] = rows[n];
    const bool packed = problem.args.cu_seqlens_q != nullptr;
    const int64_t row = packed ? problem.cu_seqlens_q[b] + i : i;
    const int64_t at = HostCase::Offset(problem.d_o_strides, packed ? 0 : b, row, h, 0);
    for (int64_t d = 0; d < problem.spec.dim_v; ++d) {
      loss += problem.d_o.Get(at + d) * result->o[n * problem.spec.dim_v + d];
    }
  }
  return loss;
}

// The derivative of the loss by one input, to fourth order in the step.
template <typename Add>
double Difference(HostCase& problem, const Options& options, const Add& add) {
  const auto loss_at = [&](double steps) {
    add(steps * kStep);
    const double loss = Loss(problem, options);
    add(-steps * kStep);
    return loss;
  };
  return (8 * (loss_at(1) - loss_at(-1)) - (loss_at(2) - loss_at(-2))) / (12 * kStep);
}

void ExpectGradient(const std::string& name, const std::vector<double>& gradient, int64_t count,
                    const std::function<double(int64_t)>& difference) {
  ASSERT_EQ(static_cast<int64_t>(gradient.size()), count) << name;
  for (int64_t n = 0; n < count; ++n) {
    const double expected = difference(n);
    EXPECT_NEAR(gradient[n], expected, 1e-8 * (1 + std::fabs(expected))) << name << "[" << n << "]";
  }
}

// Every gradient of an fp32 problem in the layout bshd or packed.
void CheckGradients(HostCase& problem, const Options& callables = {}) {
  Options options = callables;
  options.threads = 1;
  const BackwardResult gradients = problem.RunBackward(options);
  const auto by_array = [&](Array& array) {
    return [&](int64_t n) {
      return Difference(problem, options, [&](double step) { array.Set(n, array.Get(n) + step); });
    };
  };
  const auto by_floats = [&](std::vector<float>& values) {
    return [&](int64_t n) {
      return Difference(problem, options,
                        [&](double step) { values[n] += static_cast<float>(step); });
    };
  };
  ExpectGradient("dq", gradients.dq, problem.q.count(), by_array(problem.q));
  ExpectGradient("dk", gradients.dk, problem.k.count(), by_array(problem.k));
  ExpectGradient("dv", gradients.dv, problem.v.count(), by_array(problem.v));
  for (size_t n = 0; n < problem.spec.bias.size(); ++n) {
    const bool additive = problem.spec.bias[n].type != ElementType::kBool;
    ExpectGradient("dbias" + std::to_string(n), gradients.dbias[n],
                   additive ? problem.bias[n].count() : 0, by_array(problem.bias[n]));
  }
  ExpectGradient("dsinks", gradients.dsinks, problem.spec.sinks ? problem.spec.heads_q : 0,
                 by_floats(problem.sinks));
  const int64_t slope_batches = problem.args.alibi_stride_batch != 0 ? problem.spec.batch : 1;
  ExpectGradient("dalibi", gradients.dalibi,
                 problem.spec.alibi ? slope_batches * problem.spec.heads_q : 0,
                 by_floats(problem.slopes));
}

AttentionSpec BaseSpec() {
  AttentionSpec spec = SmallSpec(3, 5, 3, 2);
  spec.batch = 2;
  spec.heads_q = 2;
  spec.heads_kv = 2;
  return spec;
}

void CheckSpec(const AttentionSpec& spec, uint64_t seed = 1) {
  HostCase problem(spec, seed);
  CheckGradients(problem);
}

TEST(BackwardTest, PlainAttention) { CheckSpec(BaseSpec()); }

TEST(BackwardTest, OneKeyHasNoGradientButThatOfItsValue) {
  HostCase problem(SmallSpec(2, 1, 1, 1));
  const BackwardResult gradients = problem.RunBackward();
  EXPECT_THAT(gradients.dq, testing::ElementsAre(0, 0));
  EXPECT_THAT(gradients.dk, testing::ElementsAre(0));
  EXPECT_THAT(gradients.dv, testing::ElementsAre(problem.d_o.Get(0) + problem.d_o.Get(1)));
}

TEST(BackwardTest, TwoEqualKeysByHand) {
  // Weights 1/2 and 1/2; with q = 2, scale 3, v = (1, 5), dO = 4: dS = (-4, 4).
  AttentionSpec spec = SmallSpec(1, 2, 1, 1);
  spec.scale = 3.0f;
  HostCase problem(spec);
  problem.q.Set(0, 2);
  problem.k.Set(0, 0.5);
  problem.k.Set(1, 0.5);
  problem.v.Set(0, 1);
  problem.v.Set(1, 5);
  problem.d_o.Set(0, 4);
  const BackwardResult gradients = problem.RunBackward();
  EXPECT_THAT(gradients.dv, testing::ElementsAre(2, 2));
  EXPECT_THAT(gradients.dk, testing::ElementsAre(-24, 24));
  EXPECT_THAT(gradients.dq, testing::ElementsAre(0));
}

TEST(BackwardTest, GroupedHeads) {
  AttentionSpec spec = BaseSpec();
  spec.heads_q = 6;
  CheckSpec(spec);
  spec.heads_kv = 1;
  CheckSpec(spec);
}

TEST(BackwardTest, Scales) {
  AttentionSpec spec = BaseSpec();
  for (float scale : {0.0f, -0.75f, 1.5f}) {
    spec.scale = scale;
    CheckSpec(spec);
  }
}

TEST(BackwardTest, MasksOfEveryKind) {
  AttentionSpec causal = BaseSpec();
  causal.causal = true;
  CheckSpec(causal);
  causal.align = MaskAlign::kTopLeft;
  CheckSpec(causal);
  AttentionSpec window = BaseSpec();
  window.window_left = 1;
  window.window_right = 0;
  CheckSpec(window);
  AttentionSpec block = BaseSpec();
  block.block_mask_q = 2;
  block.block_mask_kv = 2;
  CheckSpec(block);
  AttentionSpec keep = BaseSpec();
  keep.bias = {BiasTerm{.type = ElementType::kBool, .batch = 2, .seqlen_q = 3, .seqlen_kv = 5}};
  CheckSpec(keep);
}

TEST(BackwardTest, Softcap) {
  AttentionSpec spec = BaseSpec();
  spec.softcap = 1.5f;
  CheckSpec(spec);
}

TEST(BackwardTest, BiasOfEveryBroadcast) {
  for (int bits = 0; bits < 16; ++bits) {
    AttentionSpec spec = BaseSpec();
    BiasTerm term;
    if (bits & 1) term.batch = 2;
    if (bits & 2) term.heads = 2;
    if (bits & 4) term.seqlen_q = 3;
    if (bits & 8) term.seqlen_kv = 5;
    spec.bias = {term};
    SCOPED_TRACE(bits);
    CheckSpec(spec);
  }
}

TEST(BackwardTest, BiasOfFewerBatches) {
  for (BatchMap map : {BatchMap::kMod, BatchMap::kDiv}) {
    AttentionSpec spec = BaseSpec();
    spec.batch = 4;
    spec.bias = {BiasTerm{.batch = 2, .seqlen_kv = 5, .batch_map = map}, BiasTerm{.seqlen_q = 3}};
    CheckSpec(spec);
  }
}

TEST(BackwardTest, BiasAndSoftcapInBothOrders) {
  AttentionSpec spec = BaseSpec();
  spec.softcap = 1.5f;
  spec.alibi = true;
  spec.bias = {BiasTerm{.heads = 2, .seqlen_kv = 5}};
  CheckSpec(spec);
  spec.softcap_before_bias = true;
  CheckSpec(spec);
}

TEST(BackwardTest, Alibi) {
  AttentionSpec spec = BaseSpec();
  spec.alibi = true;
  CheckSpec(spec);
  spec.align = MaskAlign::kTopLeft;
  HostCase by_batch(spec, 2);
  by_batch.args.alibi_stride_batch = 2;
  CheckGradients(by_batch);
}

TEST(BackwardTest, Sinks) {
  AttentionSpec spec = BaseSpec();
  spec.sinks = true;
  CheckSpec(spec);
  spec.heads_kv = 1;
  spec.causal = true;
  spec.align = MaskAlign::kTopLeft;
  CheckSpec(spec);
}

TEST(BackwardTest, Dropout) {
  AttentionSpec spec = BaseSpec();
  spec.dropout = 0.4f;
  CheckSpec(spec);
  spec.window_left = 2;
  spec.sinks = true;
  CheckSpec(spec);
}

TEST(BackwardTest, CallablesWithTheirDerivative) {
  AttentionSpec spec = BaseSpec();
  spec.score_snippet.text = "score * score / 4 + j";
  spec.mask_snippet.text = "(i + j) % 3 != 0";
  spec.softcap = 3.0f;
  spec.bias = {BiasTerm{.seqlen_kv = 5}};
  Options options;
  options.callables.score = [](double s, const Where& at) {
    return s * s / 4 + static_cast<double>(at.j);
  };
  options.callables.score_derivative = [](double s, const Where&) { return s / 2; };
  options.callables.mask = [](const Where& at) { return (at.i + at.j) % 3 != 0; };
  HostCase problem(spec);
  CheckGradients(problem, options);
}

TEST(BackwardTest, PackedSequences) {
  AttentionSpec spec = BaseSpec();
  spec.batch = 4;
  spec.seqlen_q = 4;
  spec.varlen = true;
  spec.layout = Layout::kThd;
  spec.bias = {BiasTerm{.heads = 2, .seqlen_q = 4, .seqlen_kv = 5}};
  for (bool causal : {false, true}) {
    spec.causal = causal;
    HostCase problem(spec, 3, {3, 0, 4, 1}, {5, 2, 3, 0});
    CheckGradients(problem);
  }
}

TEST(BackwardTest, SequsedKvLeavesTheRestWithoutGradient) {
  AttentionSpec spec = BaseSpec();
  spec.varlen = true;
  HostCase problem(spec);
  problem.seqused_kv = {2, 0};
  problem.args.seqused_kv = problem.seqused_kv.data();
  CheckGradients(problem);
  const BackwardResult gradients = problem.RunBackward();
  for (size_t n = 2 * 2 * 3; n < gradients.dk.size(); ++n) EXPECT_EQ(gradients.dk[n], 0);
}

TEST(BackwardTest, RandomMixtures) {
  std::mt19937_64 random(7);
  const auto coin = [&] { return random() % 2 == 0; };
  for (int n = 0; n < 40; ++n) {
    SCOPED_TRACE(n);
    AttentionSpec spec =
        SmallSpec(1 + random() % 4, 1 + random() % 5, 1 + random() % 3, 1 + random() % 3);
    spec.batch = 2;
    spec.heads_kv = 1 + random() % 2;
    spec.heads_q = spec.heads_kv * (1 + random() % 2);
    spec.causal = coin();
    if (coin()) spec.align = MaskAlign::kTopLeft;
    if (coin()) spec.window_left = random() % 4;
    if (coin()) spec.window_right = random() % 4;
    if (coin()) spec.softcap = 2.0f;
    spec.softcap_before_bias = spec.softcap != 0 && coin();
    spec.alibi = coin();
    spec.sinks = coin();
    if (coin()) spec.dropout = 0.25f;
    if (coin()) spec.scale = -0.5f;
    for (uint64_t terms = random() % 3; terms > 0; --terms) {
      BiasTerm term;
      if (random() % 4 == 0) term.type = ElementType::kBool;
      if (coin()) term.batch = 2;
      if (coin()) term.heads = spec.heads_q;
      if (coin()) term.seqlen_q = spec.seqlen_q;
      if (coin()) term.seqlen_kv = spec.seqlen_kv;
      spec.bias.push_back(term);
    }
    CheckSpec(spec, random());
    if (testing::Test::HasFailure()) break;
  }
}

// ---- without gradients

void ExpectZero(const std::vector<double>& values) {
  for (double value : values) EXPECT_EQ(value, 0);
}

TEST(BackwardTest, RowsAndSequencesWithoutKeysHaveGradientsOfExactlyZero) {
  AttentionSpec spec = BaseSpec();
  spec.sinks = true;
  spec.alibi = true;
  spec.bias = {BiasTerm{.type = ElementType::kBool}, BiasTerm{.seqlen_kv = 5}};
  HostCase problem(spec);
  problem.bias[0].Set(0, 0);
  const BackwardResult gradients = problem.RunBackward();
  ExpectZero(gradients.dq);
  ExpectZero(gradients.dk);
  ExpectZero(gradients.dv);
  ExpectZero(gradients.dbias[1]);
  ExpectZero(gradients.dsinks);
  ExpectZero(gradients.dalibi);
}

TEST(BackwardTest, AllScoresOfMinusInfinityHaveGradientsOfExactlyZero) {
  AttentionSpec spec = BaseSpec();
  spec.bias = {BiasTerm{}};
  HostCase problem(spec);
  problem.bias[0].Set(0, -std::numeric_limits<double>::infinity());
  const BackwardResult gradients = problem.RunBackward();
  ExpectZero(gradients.dq);
  ExpectZero(gradients.dv);
  ExpectZero(gradients.dbias[0]);
}

TEST(BackwardTest, NanInMaskedKeysReachesNothing) {
  AttentionSpec spec = BaseSpec();
  spec.heads_q = spec.heads_kv = 1;
  spec.batch = 1;
  spec.bias = {BiasTerm{.type = ElementType::kBool, .seqlen_kv = 5}};
  HostCase problem(spec);
  for (int64_t j = 0; j < 5; ++j) problem.bias[0].Set(j, j != 2);
  const BackwardResult clean = problem.RunBackward();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int64_t d = 0; d < 3; ++d) problem.k.Set(problem.KAt(0, 2, 0, d), nan);
  for (int64_t d = 0; d < 2; ++d) problem.v.Set(problem.VAt(0, 2, 0, d), nan);
  const BackwardResult poisoned = problem.RunBackward();
  ExpectSame(poisoned.dq, clean.dq);
  ExpectSame(poisoned.dk, clean.dk);
  ExpectSame(poisoned.dv, clean.dv);
}

TEST(BackwardTest, NoRowsOrNoKeysGiveEmptyOrZeroGradients) {
  AttentionSpec spec = BaseSpec();
  spec.seqlen_kv = 0;
  HostCase no_keys(spec);
  ExpectZero(no_keys.RunBackward().dq);
  spec = BaseSpec();
  spec.seqlen_q = 0;
  HostCase no_rows(spec);
  no_rows.d_o = Array();
  ExpectZero(no_rows.RunBackward().dk);
  EXPECT_EQ(no_rows.RunBackward().dk.size(), 2u * 5 * 2 * 3);
  spec.batch = 0;
  HostCase no_batch(spec);
  EXPECT_TRUE(no_batch.RunBackward().dk.empty());
}

// ---- places and threads

TEST(BackwardTest, GradientsAreInTheOrderBatchRowHeadForEveryLayout) {
  HostCase base(BaseSpec(), 4);
  AttentionSpec spec = BaseSpec();
  spec.layout = Layout::kBhsd;
  HostCase other(spec, 5);
  const auto copy = [](const Array& from, const Strides& from_strides, Array& to,
                       const Strides& to_strides, int64_t rows, int64_t dim) {
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t s = 0; s < rows; ++s) {
        for (int64_t h = 0; h < 2; ++h) {
          for (int64_t d = 0; d < dim; ++d) {
            to.Set(HostCase::Offset(to_strides, b, s, h, d),
                   from.Get(HostCase::Offset(from_strides, b, s, h, d)));
          }
        }
      }
    }
  };
  copy(base.q, base.args.q.strides, other.q, other.args.q.strides, 3, 3);
  copy(base.k, base.args.k.strides, other.k, other.args.k.strides, 5, 3);
  copy(base.v, base.args.v.strides, other.v, other.args.v.strides, 5, 2);
  copy(base.d_o, base.d_o_strides, other.d_o, other.d_o_strides, 3, 2);
  const BackwardResult expected = base.RunBackward();
  const BackwardResult gradients = other.RunBackward();
  ExpectSame(gradients.dq, expected.dq);
  ExpectSame(gradients.dk, expected.dk);
  ExpectSame(gradients.dv, expected.dv);
}

TEST(BackwardTest, PagedGradientsAreInTheOrderOfTheKeys) {
  AttentionSpec spec = BaseSpec();
  spec.batch = 1;
  HostCase base(spec, 6);
  const BackwardResult expected = base.RunBackward();
  // Pages of one key, in falling order: page 4 - j holds key j.
  HostCase paged(spec, 6);
  paged.spec.page_size = 1;
  paged.page_table = {4, 3, 2, 1, 0};
  paged.args.page_table = paged.page_table.data();
  paged.args.page_table_stride = 5;
  for (int64_t j = 0; j < 5; ++j) {
    for (int64_t n = 0; n < 6; ++n) paged.k.Set((4 - j) * 6 + n, base.k.Get(j * 6 + n));
    for (int64_t n = 0; n < 4; ++n) paged.v.Set((4 - j) * 4 + n, base.v.Get(j * 4 + n));
  }
  paged.args.k.strides = {6, 6, 3, 1};
  paged.args.v.strides = {4, 4, 2, 1};
  const BackwardResult gradients = paged.RunBackward();
  ExpectSame(gradients.dq, expected.dq);
  ExpectSame(gradients.dk, expected.dk);
  ExpectSame(gradients.dv, expected.dv);
}

TEST(BackwardTest, GradientsDoNotDependOnTheNumberOfThreads) {
  AttentionSpec spec = SmallSpec(70, 90, 5, 4);
  spec.batch = 3;
  spec.heads_q = 4;
  spec.heads_kv = 2;
  spec.sinks = spec.alibi = true;
  spec.bias = {BiasTerm{.seqlen_kv = 90},
               BiasTerm{.batch = 3, .heads = 4, .seqlen_q = 70, .seqlen_kv = 90}};
  HostCase problem(spec, 8);
  Options options;
  options.threads = 1;
  const BackwardResult one = problem.RunBackward(options);
  options.threads = 5;
  const BackwardResult five = problem.RunBackward(options);
  ExpectSame(five.dq, one.dq);
  ExpectSame(five.dk, one.dk);
  ExpectSame(five.dv, one.dv);
  ExpectSame(five.dbias[0], one.dbias[0]);
  ExpectSame(five.dbias[1], one.dbias[1]);
  ExpectSame(five.dsinks, one.dsinks);
  ExpectSame(five.dalibi, one.dalibi);
}

TEST(BackwardTest, ErrorsNameTheField) {
  HostCase problem(BaseSpec());
  const auto missing = Backward(problem.spec, problem.args, Tensor{}, {});
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(missing.status().message()), testing::HasSubstr("d_o.data"));
  problem.spec.score_snippet.text = "score";
  Options options;
  options.callables.score = [](double s, const Where&) { return s; };
  const auto no_derivative = Backward(problem.spec, problem.args, problem.DOut(), options);
  EXPECT_THAT(std::string(no_derivative.status().message()),
              testing::HasSubstr("callables.score_derivative"));
}

}  // namespace
}  // namespace tilewright::reference
