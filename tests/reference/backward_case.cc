#include "backward_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spec/validate.h"

namespace tilewright::reference {
namespace {

// Relative errors in the 2-norm of a gradient, and of the straightforward one.
void ExpectGradient(std::string_view name, const std::vector<double>& actual,
                    const std::vector<double>& exact, const std::vector<double>& plain,
                    double enough) {
  SCOPED_TRACE(std::string(name));
  ASSERT_EQ(actual.size(), exact.size());
  double error = 0, plain_error = 0, norm = 0;
  for (size_t n = 0; n < exact.size(); ++n) {
    ASSERT_FALSE(std::isnan(actual[n])) << "element " << n;
    if (exact[n] == 0 && plain[n] == 0) {
      ASSERT_LE(std::abs(actual[n]), 1e-6) << "element " << n;
    }
    error += (actual[n] - exact[n]) * (actual[n] - exact[n]);
    plain_error += (plain[n] - exact[n]) * (plain[n] - exact[n]);
    norm += exact[n] * exact[n];
  }
  EXPECT_LE(std::sqrt(error), std::max(1.5 * std::sqrt(plain_error), enough * std::sqrt(norm)))
      << "straightforward: " << std::sqrt(plain_error) << ", norm " << std::sqrt(norm);
}

// In the order of the reference: [batch, seq, head, dim].
std::vector<double> Dense(const Array& array, const Strides& strides, int64_t batches, int64_t rows,
                          int64_t heads, int64_t dim) {
  std::vector<double> out;
  for (int64_t b = 0; b < batches; ++b) {
    for (int64_t s = 0; s < rows; ++s) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t d = 0; d < dim; ++d) {
          out.push_back(array.Get(HostCase::Offset(strides, b, s, h, d)));
        }
      }
    }
  }
  return out;
}

std::vector<double> Doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

}  // namespace

BackwardArrays::BackwardArrays(HostCase& c, const Options& options)
    : o(spec::OutType(c.spec), c.d_o.count()),
      d_q(c.spec.type, c.q.count()),
      d_k(c.spec.type, c.k.count()),
      d_v(c.spec.type, c.v.count()),
      d_slopes(c.slopes.size(), kPoison),
      d_sinks(c.sinks.size(), kPoison) {
  const std::vector<reference::Row> rows = reference::AllRows(c.spec, c.args);
  const reference::ForwardResult forward = c.Run(options);
  const bool packed = c.args.cu_seqlens_q != nullptr;
  const int64_t length = packed ? c.args.total_q : c.args.seqlen_q;
  lse.assign((packed ? 1 : c.args.batch) * c.spec.heads_q * length, kPoison);
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto [b, h, i] = rows[r];
    const int64_t batch = packed ? 0 : b, row = packed ? c.args.cu_seqlens_q[b] + i : i;
    lse[(batch * c.spec.heads_q + h) * length + row] = static_cast<float>(forward.lse[r]);
    for (int64_t d = 0; d < c.spec.dim_v; ++d) {
      o.Set(HostCase::Offset(c.d_o_strides, batch, row, h, d), forward.o[r * c.spec.dim_v + d]);
    }
  }
  for (Array* array : {&d_q, &d_k, &d_v}) {
    for (int64_t n = 0; n < array->count(); ++n) array->Set(n, kPoison);
  }
  for (size_t n = 0; n < c.spec.bias.size(); ++n) {
    if (c.spec.bias[n].gradient) d_bias[n].assign(c.bias[n].count(), kPoison);
  }
}

AttentionArgs BackwardArrays::Args(HostCase& c) {
  AttentionArgs args = c.args;
  args.o = {o.data(), c.d_o_strides};
  args.d_o = {c.d_o.data(), c.d_o_strides};
  args.d_q = {d_q.data(), args.q.strides};
  args.d_k = {d_k.data(), args.k.strides};
  args.d_v = {d_v.data(), args.v.strides};
  args.lse = lse.data();
  args.d_alibi_slopes = d_slopes.data();
  args.d_sinks = d_sinks.data();
  for (size_t n = 0; n < c.spec.bias.size(); ++n) {
    const BiasTensor& bias = args.bias[n];
    args.d_bias[n] = {d_bias[n].data(), bias.stride_batch, bias.stride_head, bias.stride_q,
                      bias.stride_kv};
  }
  return args;
}

std::vector<BackwardMemory> MemoryOf(HostCase& c, BackwardArrays& arrays) {
  std::vector<BackwardMemory> memory;
  const auto add = [&memory](std::string name, void* data, size_t bytes, bool written) {
    if (bytes != 0) memory.push_back({std::move(name), data, bytes, written});
  };
  const auto array = [&](std::string name, Array& values, bool written = false) {
    add(std::move(name), values.data(), static_cast<size_t>(values.bytes()), written);
  };
  const auto numbers = [&](std::string name, auto& values, bool written = false) {
    add(std::move(name), values.data(), values.size() * sizeof(values[0]), written);
  };
  array("q", c.q);
  array("k", c.k);
  array("v", c.v);
  array("d_o", c.d_o);
  array("o", arrays.o);
  numbers("lse", arrays.lse);
  for (Array& term : c.bias) array("a bias term", term);
  numbers("sinks", c.sinks);
  numbers("alibi_slopes", c.slopes);
  numbers("block_mask", c.block_mask);
  numbers("cu_seqlens_q", c.cu_seqlens_q);
  numbers("cu_seqlens_kv", c.cu_seqlens_kv);
  numbers("seqused_q", c.seqused_q);
  numbers("seqused_kv", c.seqused_kv);
  numbers("left_padding", c.left_padding);
  array("d_q", arrays.d_q, true);
  array("d_k", arrays.d_k, true);
  array("d_v", arrays.d_v, true);
  numbers("d_alibi_slopes", arrays.d_slopes, true);
  numbers("d_sinks", arrays.d_sinks, true);
  for (std::vector<float>& term : arrays.d_bias) numbers("d_bias", term, true);
  return memory;
}

void ExpectGradients(HostCase& c, const Options& options, const BackwardArrays& arrays) {
  const auto exact = Backward(c.spec, c.args, c.DOut(), options);
  const auto plain = StraightforwardBackward(c.spec, c.args, c.DOut(), options);
  ASSERT_TRUE(exact.ok() && plain.ok()) << exact.status() << plain.status();
  const bool packed_q = c.args.cu_seqlens_q != nullptr, packed_kv = c.args.cu_seqlens_kv != nullptr;
  const int64_t q_batches = packed_q ? 1 : c.spec.batch, kv_batches = packed_kv ? 1 : c.spec.batch;
  const int64_t rows = packed_q ? c.args.total_q : c.spec.seqlen_q;
  const int64_t keys = packed_kv ? c.args.total_kv : c.spec.seqlen_kv;
  const double enough = c.spec.type == ElementType::kFp32 ? 5e-6 : 0;
  ExpectGradient(
      "dq", Dense(arrays.d_q, c.args.q.strides, q_batches, rows, c.spec.heads_q, c.spec.dim_qk),
      exact->dq, plain->dq, enough);
  ExpectGradient(
      "dk", Dense(arrays.d_k, c.args.k.strides, kv_batches, keys, c.spec.heads_kv, c.spec.dim_qk),
      exact->dk, plain->dk, enough);
  ExpectGradient(
      "dv", Dense(arrays.d_v, c.args.v.strides, kv_batches, keys, c.spec.heads_kv, c.spec.dim_v),
      exact->dv, plain->dv, enough);
  // Sums in fp32 of gradients that were never rounded; with them comes the rounding of O in delta.
  const double enough_fp32 = c.spec.type == ElementType::kFp32 ? 1e-5 : 1e-4;
  // Where the values are few, the straightforward computation may by luck be much nearer than that
  // rounding: two of them.
  const double enough_of_few = c.spec.type == ElementType::kFp32   ? enough_fp32
                               : c.spec.type == ElementType::kFp16 ? 0x1p-10
                                                                   : 0x1p-7;
  for (size_t n = 0; n < c.spec.bias.size(); ++n) {
    if (!c.spec.bias[n].gradient) continue;
    ExpectGradient(absl::StrCat("dbias ", n), Doubles(arrays.d_bias[n]), exact->dbias[n],
                   plain->dbias[n], enough_fp32);
  }
  if (c.spec.alibi_gradient) {
    std::vector<double> slopes = Doubles(arrays.d_slopes);
    slopes.resize(c.spec.heads_q);
    ExpectGradient("dalibi", slopes, exact->dalibi, plain->dalibi, enough_of_few);
  }
  if (c.spec.sinks_gradient) {
    ExpectGradient("dsinks", Doubles(arrays.d_sinks), exact->dsinks, plain->dsinks, enough_of_few);
  }
}

}  // namespace tilewright::reference
