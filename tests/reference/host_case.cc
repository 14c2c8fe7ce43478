#include "host_case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "spec/validate.h"

namespace tilewright::reference {
namespace {

std::vector<int32_t> Cumulative(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> sums = {0};
  for (int32_t length : lengths) sums.push_back(sums.back() + length);
  return sums;
}

std::vector<float> RandomFloats(int64_t count, double low, double high, std::mt19937_64& random) {
  std::vector<float> values(count);
  std::uniform_int_distribution<int> step(static_cast<int>(low * 256),
                                          static_cast<int>(high * 256));
  for (float& value : values) value = static_cast<float>(step(random)) / 256;
  return values;
}

int64_t ScaleCount(ScaleKind kind, int64_t heads, int64_t tokens) {
  switch (kind) {
    case ScaleKind::kNone:
      return 0;
    case ScaleKind::kPerTensor:
      return 1;
    case ScaleKind::kPerHead:
      return heads;
    case ScaleKind::kPerToken:
      return heads * tokens;
  }
  return 0;
}

ForwardResult ValueOrFail(absl::StatusOr<ForwardResult> result) {
  if (!result.ok()) {
    ADD_FAILURE() << result.status();
    return {};
  }
  return *std::move(result);
}

}  // namespace

Array::Array(ElementType type, int64_t count)
    : type_(type),
      size_(spec::ElementBytes(type)),
      count_(count),
      bytes_(std::max<int64_t>(count, 1) * size_) {}

void Array::Fill(std::mt19937_64& random, double range) {
  const int limit = static_cast<int>(range * 256);
  for (int64_t n = 0; n < count_; ++n) {
    const int step = static_cast<int>(random() % (2 * limit + 1)) - limit;
    if (type_ == ElementType::kBool) {
      Set(n, random() % 4 != 0);
    } else if (type_ == ElementType::kInt8) {
      Set(n, static_cast<double>(step % 100));
    } else {
      Set(n, step / 256.0);
    }
  }
}

HostCase::HostCase(AttentionSpec spec_in, uint64_t seed, std::vector<int32_t> lengths_q,
                   std::vector<int32_t> lengths_kv)
    : spec(std::move(spec_in)) {
  std::mt19937_64 random(seed);
  args.batch = spec.batch;
  args.seqlen_q = spec.seqlen_q;
  args.seqlen_kv = spec.seqlen_kv;
  int64_t q_batches = spec.batch, kv_batches = spec.batch;
  int64_t q_rows = spec.seqlen_q, kv_rows = spec.seqlen_kv;
  if (!lengths_q.empty()) {
    cu_seqlens_q = Cumulative(lengths_q);
    args.cu_seqlens_q = cu_seqlens_q.data();
    args.total_q = q_rows = cu_seqlens_q.back();
    q_batches = 1;
  }
  if (!lengths_kv.empty()) {
    cu_seqlens_kv = Cumulative(lengths_kv);
    args.cu_seqlens_kv = cu_seqlens_kv.data();
    args.total_kv = kv_rows = cu_seqlens_kv.back();
    kv_batches = 1;
  }

  const auto strides = [&](int64_t batches, int64_t rows, int64_t heads, int64_t dim) {
    return DenseStrides(spec.layout, batches, rows, heads, dim);
  };
  q = Array(spec.type, q_batches * q_rows * spec.heads_q * spec.dim_qk);
  k = Array(spec::KvType(spec), kv_batches * kv_rows * spec.heads_kv * spec.dim_qk);
  v = Array(spec::KvType(spec), kv_batches * kv_rows * spec.heads_kv * spec.dim_v);
  d_o = Array(spec::OutType(spec), q_batches * q_rows * spec.heads_q * spec.dim_v);
  for (Array* array : {&q, &k, &v, &d_o}) array->Fill(random, 2);
  args.q = {q.data(), strides(q_batches, q_rows, spec.heads_q, spec.dim_qk)};
  args.k = {k.data(), strides(kv_batches, kv_rows, spec.heads_kv, spec.dim_qk)};
  args.v = {v.data(), strides(kv_batches, kv_rows, spec.heads_kv, spec.dim_v)};
  d_o_strides = strides(q_batches, q_rows, spec.heads_q, spec.dim_v);

  for (size_t n = 0; n < spec.bias.size(); ++n) {
    const BiasTerm& term = spec.bias[n];
    bias[n] = Array(term.type, term.batch * term.heads * term.seqlen_q * term.seqlen_kv);
    bias[n].Fill(random, 1);
    args.bias[n] = {bias[n].data(), term.heads * term.seqlen_q * term.seqlen_kv,
                    term.seqlen_q * term.seqlen_kv, term.seqlen_kv, 1};
  }
  sinks = RandomFloats(spec.heads_q, -1, 2, random);
  args.sinks = sinks.data();
  slopes = RandomFloats(spec.batch * spec.heads_q, 0.01, 0.5, random);
  args.alibi_slopes = slopes.data();

  q_scale = RandomFloats(ScaleCount(spec.q_scale, spec.heads_q, 0), 0.25, 2, random);
  args.q_scale = q_scale.data();
  const int64_t scale_count = ScaleCount(spec.kv_scale, spec.heads_kv, kv_batches * kv_rows);
  k_scale = RandomFloats(scale_count, 0.25, 2, random);
  v_scale = RandomFloats(scale_count, 0.25, 2, random);
  args.k_scale = k_scale.data();
  args.v_scale = v_scale.data();
  args.k_scale_strides = args.v_scale_strides = {spec.heads_kv * kv_rows, kv_rows, 1};

  if (spec.block_mask_q > 0) {
    const int64_t blocks_q = (spec.seqlen_q + spec.block_mask_q - 1) / spec.block_mask_q;
    const int64_t blocks_kv = (spec.seqlen_kv + spec.block_mask_kv - 1) / spec.block_mask_kv;
    block_mask.resize(spec.batch * spec.heads_q * blocks_q * blocks_kv);
    for (uint8_t& block : block_mask) block = random() % 3 != 0;
    args.block_mask = block_mask.data();
    args.block_mask_strides = {spec.heads_q * blocks_q * blocks_kv, blocks_q * blocks_kv,
                               blocks_kv};
  }
  if (spec.left_padding) {
    for (int64_t b = 0; b < spec.batch; ++b) left_padding.push_back(static_cast<int32_t>(5 * b));
    args.left_padding = left_padding.data();
  }
  if (spec.cache_batch_idx) {
    for (int64_t b = spec.batch - 1; b >= 0; --b) {
      cache_batch_idx.push_back(static_cast<int32_t>(b));
    }
    args.cache_batch_idx = cache_batch_idx.data();
  }
  args.dropout_seed = 42;
  args.dropout_offset = 7;
}

ForwardResult HostCase::Run(const Options& options) const {
  return ValueOrFail(Forward(spec, args, AllRows(spec, args), options));
}

ForwardResult HostCase::RunStraightforward(const Options& options) const {
  return ValueOrFail(StraightforwardForward(spec, args, AllRows(spec, args), options));
}

BackwardResult HostCase::RunBackward(const Options& options) {
  absl::StatusOr<BackwardResult> result = Backward(spec, args, DOut(), options);
  if (!result.ok()) {
    ADD_FAILURE() << result.status();
    return {};
  }
  return *std::move(result);
}

AttentionSpec SmallSpec(int64_t seqlen_q, int64_t seqlen_kv, int64_t dim_qk, int64_t dim_v) {
  AttentionSpec spec;
  spec.type = ElementType::kFp32;
  spec.seqlen_q = seqlen_q;
  spec.seqlen_kv = seqlen_kv;
  spec.dim_qk = dim_qk;
  spec.dim_v = dim_v;
  return spec;
}

void PoisonRows(HostCase& c, int64_t b, int64_t first, int64_t end) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int64_t j = first; j < end; ++j) {
    for (int64_t h = 0; h < c.spec.heads_kv; ++h) {
      for (int64_t d = 0; d < c.spec.dim_qk; ++d) c.k.Set(c.KAt(b, j, h, d), nan);
      for (int64_t d = 0; d < c.spec.dim_v; ++d) c.v.Set(c.VAt(b, j, h, d), nan);
    }
  }
}

std::function<void(HostCase&)> PoisonAllBut(int64_t first, int64_t end) {
  return [=](HostCase& c) {
    for (int64_t b = 0; b < c.spec.batch; ++b) {
      PoisonRows(c, b, 0, first);
      PoisonRows(c, b, end, c.spec.seqlen_kv);
    }
  };
}

void ExpectSame(const std::vector<double>& actual, const std::vector<double>& expected,
                double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t n = 0; n < actual.size(); ++n) {
    if (std::isnan(expected[n])) {
      EXPECT_TRUE(std::isnan(actual[n])) << "element " << n << ": " << actual[n];
    } else if (std::isinf(expected[n]) || tolerance == 0) {
      EXPECT_EQ(actual[n], expected[n]) << "element " << n;
    } else {
      EXPECT_NEAR(actual[n], expected[n], tolerance) << "element " << n;
    }
  }
}

void ExpectSame(const ForwardResult& actual, const ForwardResult& expected, double tolerance) {
  SCOPED_TRACE("o");
  ExpectSame(actual.o, expected.o, tolerance);
  SCOPED_TRACE("lse");
  ExpectSame(actual.lse, expected.lse, tolerance);
}

}  // namespace tilewright::reference
