// Two ways to say the same attention give the same result, and random mixtures of features give
// what a literal loop over the definition gives.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "host_case.h"
#include "spec/validate.h"

namespace tilewright::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kTight = 1e-12;

// A copy of the first `batch` x `rows` x `heads` x `dim` elements of `from` into `to`.
void CopyTensor(const Array& from, const Strides& from_strides, Array& to,
                const Strides& to_strides, int64_t batch, int64_t rows, int64_t heads,
                int64_t dim) {
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t s = 0; s < rows; ++s) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t d = 0; d < dim; ++d) {
          to.Set(HostCase::Offset(to_strides, b, s, h, d),
                 from.Get(HostCase::Offset(from_strides, b, s, h, d)));
        }
      }
    }
  }
}

void CopyQkv(const HostCase& from, HostCase& to) {
  const AttentionSpec& spec = from.spec;
  CopyTensor(from.q, from.args.q.strides, to.q, to.args.q.strides, spec.batch, spec.seqlen_q,
             spec.heads_q, spec.dim_qk);
  CopyTensor(from.k, from.args.k.strides, to.k, to.args.k.strides, spec.batch, spec.seqlen_kv,
             spec.heads_kv, spec.dim_qk);
  CopyTensor(from.v, from.args.v.strides, to.v, to.args.v.strides, spec.batch, spec.seqlen_kv,
             spec.heads_kv, spec.dim_v);
}

AttentionSpec HeadsSpec() {
  AttentionSpec spec = SmallSpec(7, 9, 4, 3);
  spec.batch = 2;
  spec.heads_q = 6;
  spec.heads_kv = 2;
  spec.lse = true;
  return spec;
}

TEST(EquivalenceTest, GroupedHeadsEqualRepeatedHeads) {
  const HostCase grouped(HeadsSpec(), 2);
  AttentionSpec spec = HeadsSpec();
  spec.heads_kv = 6;
  HostCase repeated(spec, 3);
  CopyTensor(grouped.q, grouped.args.q.strides, repeated.q, repeated.args.q.strides, 2, 7, 6, 4);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < 6; ++h) {
      for (int64_t j = 0; j < 9; ++j) {
        for (int64_t d = 0; d < 4; ++d) {
          repeated.k.Set(repeated.KAt(b, j, h, d), grouped.k.Get(grouped.KAt(b, j, h / 3, d)));
        }
        for (int64_t d = 0; d < 3; ++d) {
          repeated.v.Set(repeated.VAt(b, j, h, d), grouped.v.Get(grouped.VAt(b, j, h / 3, d)));
        }
      }
    }
  }
  ExpectSame(grouped.Run(), repeated.Run());
}

TEST(EquivalenceTest, WindowEqualsABoolTermOfTheSameKeys) {
  for (MaskAlign align : {MaskAlign::kBottomRight, MaskAlign::kTopLeft}) {
    AttentionSpec spec = HeadsSpec();
    spec.align = align;
    spec.window_left = 2;
    spec.window_right = 1;
    const HostCase windowed(spec, 4);
    AttentionSpec masked_spec = HeadsSpec();
    masked_spec.bias = {BiasTerm{.type = ElementType::kBool, .seqlen_q = 7, .seqlen_kv = 9}};
    HostCase masked(masked_spec, 5);
    CopyQkv(windowed, masked);
    for (int64_t i = 0; i < 7; ++i) {
      const int64_t diagonal = align == MaskAlign::kBottomRight ? i + 2 : i;
      for (int64_t j = 0; j < 9; ++j) {
        masked.bias[0].Set(i * 9 + j, j >= diagonal - 2 && j <= diagonal + 1);
      }
    }
    ExpectSame(masked.Run(), windowed.Run(), kTight);
  }
}

TEST(EquivalenceTest, EveryLayoutHoldsTheSameProblem) {
  const HostCase base(HeadsSpec(), 6);
  for (Layout layout : {Layout::kBhsd, Layout::kSbhd}) {
    AttentionSpec spec = HeadsSpec();
    spec.layout = layout;
    HostCase other(spec, 7);
    EXPECT_NE(other.args.k.strides, base.args.k.strides);
    CopyQkv(base, other);
    ExpectSame(other.Run(), base.Run());
  }
}

TEST(EquivalenceTest, PaddedAndStridedTensorsEqualDenseOnes) {
  const HostCase dense(HeadsSpec(), 8);
  AttentionSpec spec = HeadsSpec();
  spec.strided_innermost = true;
  HostCase strided(spec, 9);
  // Head dim 3 apart, then heads, rows and batches with gaps.
  const Strides q_strides = {2000, 100, 13, 3}, k_strides = {900, 40, 17, 3},
                v_strides = {5, 40, 500, 12};
  strided.q = Array(ElementType::kFp32, 4000);
  strided.k = Array(ElementType::kFp32, 4000);
  strided.v = Array(ElementType::kFp32, 4000);
  strided.args.q = {strided.q.data(), q_strides};
  strided.args.k = {strided.k.data(), k_strides};
  strided.args.v = {strided.v.data(), v_strides};
  CopyQkv(dense, strided);
  ExpectSame(strided.Run(), dense.Run());
}

TEST(EquivalenceTest, StridesOfZeroBroadcast) {
  HostCase broadcast(HeadsSpec(), 10);
  broadcast.args.k.strides.batch = 0;
  broadcast.args.v.strides.head = 0;
  HostCase copied(HeadsSpec(), 11);
  CopyQkv(broadcast, copied);
  ExpectSame(copied.Run(), broadcast.Run());
}

TEST(EquivalenceTest, ScoresShiftedByARowConstantGiveTheSameOutput) {
  const HostCase plain(HeadsSpec(), 12);
  AttentionSpec spec = HeadsSpec();
  spec.bias = {BiasTerm{.heads = 6, .seqlen_q = 7}};
  HostCase shifted(spec, 13);
  CopyQkv(plain, shifted);
  const ForwardResult expected = plain.Run();
  const ForwardResult result = shifted.Run();
  ExpectSame(result.o, expected.o, kTight);
  for (int64_t n = 0; n < 2 * 6 * 7; ++n) {
    EXPECT_NEAR(result.lse[n], expected.lse[n] + shifted.bias[0].Get(n % 42), kTight);
  }
}

TEST(EquivalenceTest, VarlenEqualsOneCallPerSequence) {
  const std::vector<int32_t> lengths_q = {3, 0, 7, 1}, lengths_kv = {5, 4, 2, 0};
  for (bool causal : {false, true}) {
    AttentionSpec spec = HeadsSpec();
    spec.batch = 4;
    spec.varlen = true;
    spec.layout = Layout::kThd;
    spec.causal = causal;
    spec.alibi = true;
    spec.bias = {BiasTerm{.heads = 6, .seqlen_q = 7, .seqlen_kv = 9}};
    const HostCase packed(spec, 14, lengths_q, lengths_kv);
    const ForwardResult result = packed.Run();
    size_t at = 0;
    for (int64_t b = 0; b < 4; ++b) {
      AttentionSpec one = spec;
      one.varlen = false;
      one.layout = Layout::kBshd;
      one.batch = 1;
      // Bias extents are the problem's: keep the names of the whole and run with the lengths.
      HostCase single(one, 15);
      single.args = packed.args;
      single.args.batch = 1;
      single.args.seqlen_q = lengths_q[b];
      single.args.seqlen_kv = lengths_kv[b];
      const auto advance = [](Tensor& tensor, int64_t rows) {
        tensor.data = static_cast<const float*>(tensor.data) + rows * tensor.strides.seq;
      };
      advance(single.args.q, packed.cu_seqlens_q[b]);
      advance(single.args.k, packed.cu_seqlens_kv[b]);
      advance(single.args.v, packed.cu_seqlens_kv[b]);
      const ForwardResult expected = single.Run();
      for (size_t n = 0; n < expected.lse.size(); ++n, ++at) {
        EXPECT_EQ(result.lse[at], expected.lse[n]);
        for (int64_t d = 0; d < 3; ++d) EXPECT_EQ(result.o[at * 3 + d], expected.o[n * 3 + d]);
      }
    }
    EXPECT_EQ(at, result.lse.size());
  }
}

TEST(EquivalenceTest, SequsedKvEqualsShorterSequences) {
  AttentionSpec spec = HeadsSpec();
  spec.varlen = true;
  spec.causal = true;
  HostCase used(spec, 16);
  used.seqused_kv = {4, 8};
  used.args.seqused_kv = used.seqused_kv.data();
  const ForwardResult result = used.Run();
  for (int64_t b = 0; b < 2; ++b) {
    AttentionSpec one = HeadsSpec();
    one.causal = true;
    HostCase single(one, 16);
    CopyQkv(used, single);
    single.args.seqlen_kv = used.seqused_kv[b];
    const ForwardResult expected = single.Run();
    for (int64_t n = b * 42; n < (b + 1) * 42; ++n) EXPECT_EQ(result.lse[n], expected.lse[n]);
  }
  // More than there are keys is no more than there are.
  used.seqused_kv = {100, 100};
  AttentionSpec full = HeadsSpec();
  full.causal = true;
  HostCase all(full, 17);
  CopyQkv(used, all);
  ExpectSame(used.Run(), all.Run());
}

TEST(EquivalenceTest, SequsedQEqualsFewerRows) {
  AttentionSpec spec = HeadsSpec();
  spec.varlen = spec.causal = true;
  HostCase used(spec, 16);
  used.seqused_q = {3, 100};
  used.args.seqused_q = used.seqused_q.data();
  const ForwardResult result = used.Run();
  AttentionSpec one = HeadsSpec();
  one.causal = true;
  HostCase few(one, 16), all(one, 16);
  CopyQkv(used, few);
  CopyQkv(used, all);
  few.args.seqlen_q = 3;
  const ForwardResult first = few.Run(), second = all.Run();
  const size_t rows = static_cast<size_t>(spec.heads_q) * 3;  // of the first sequence
  ASSERT_EQ(result.lse.size(), rows + second.lse.size() / 2);
  for (size_t n = 0; n < result.lse.size(); ++n) {
    EXPECT_EQ(result.lse[n],
              n < rows ? first.lse[n] : second.lse[second.lse.size() / 2 + n - rows]);
  }
}

TEST(EquivalenceTest, LeftPaddingIsAMaskOfTheFirstKeys) {
  AttentionSpec spec = HeadsSpec();
  spec.varlen = spec.left_padding = spec.causal = spec.alibi = true;
  HostCase padded(spec, 16);
  padded.left_padding = {4, 0};
  padded.args.left_padding = padded.left_padding.data();
  AttentionSpec masked = HeadsSpec();
  masked.causal = masked.alibi = true;
  masked.bias = {{.type = ElementType::kBool, .batch = 2, .seqlen_kv = spec.seqlen_kv}};
  HostCase mask(masked, 16);
  CopyQkv(padded, mask);
  mask.slopes = padded.slopes;
  mask.args.alibi_slopes = mask.slopes.data();
  for (int64_t n = 0; n < 2 * spec.seqlen_kv; ++n) mask.bias[0].Set(n, n >= 4);
  ExpectSame(padded.Run(), mask.Run());
  ExpectSame(padded.RunBackward().dk, mask.RunBackward().dk);
}

TEST(EquivalenceTest, SlotsAreOtherBatchesOfKeys) {
  AttentionSpec spec = HeadsSpec();
  spec.cache_batch_idx = true;
  HostCase slots(spec, 16);
  slots.cache_batch_idx = {1, 1};
  slots.args.cache_batch_idx = slots.cache_batch_idx.data();
  HostCase expanded(HeadsSpec(), 16);
  CopyQkv(slots, expanded);
  for (Tensor* tensor : {&expanded.args.k, &expanded.args.v}) {
    tensor->data = static_cast<const float*>(tensor->data) + tensor->strides.batch;
    tensor->strides.batch = 0;
  }
  ExpectSame(slots.Run(), expanded.Run());
}

TEST(EquivalenceTest, CuSeqlensKvMayComeWithoutCuSeqlensQAndWithSequsedKv) {
  AttentionSpec spec = HeadsSpec();
  spec.varlen = true;
  HostCase packed(spec, 18, {}, {9, 9});
  const HostCase dense(HeadsSpec(), 18);
  ExpectSame(packed.Run(), dense.Run());
  packed.seqused_kv = {6, 6};
  packed.args.seqused_kv = packed.seqused_kv.data();
  HostCase shorter(HeadsSpec(), 18);
  shorter.args.seqlen_kv = 6;
  ExpectSame(packed.Run(), shorter.Run());
}

// The K and V of `dense` (2 batches, 9 keys) in pages of 4 in scattered order.
HostCase Paged(const HostCase& dense, const AttentionSpec& spec, uint64_t seed) {
  HostCase paged(spec, seed);
  CopyTensor(dense.q, dense.args.q.strides, paged.q, paged.args.q.strides, 2, 7, 6, 4);
  paged.page_table = {5, 0, 3, -7, 2, 6, 1, -7};
  const Strides k_strides = {4 * 2 * 4, 2 * 4, 4, 1}, v_strides = {4 * 2 * 3, 2 * 3, 3, 1};
  const ElementType kv = spec::KvType(spec);
  paged.k = Array(kv, 8 * 4 * 2 * 4);
  paged.v = Array(kv, 8 * 4 * 2 * 3);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int64_t n = 0; n < paged.k.count(); ++n) paged.k.Set(n, nan);
  for (int64_t n = 0; n < paged.v.count(); ++n) paged.v.Set(n, nan);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t j = 0; j < 9; ++j) {
      const int64_t page = paged.page_table[b * 4 + j / 4];
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t d = 0; d < 4; ++d) {
          paged.k.Set(HostCase::Offset(k_strides, page, j % 4, h, d),
                      dense.k.Get(dense.KAt(b, j, h, d)));
        }
        for (int64_t d = 0; d < 3; ++d) {
          paged.v.Set(HostCase::Offset(v_strides, page, j % 4, h, d),
                      dense.v.Get(dense.VAt(b, j, h, d)));
        }
      }
    }
  }
  paged.args.k = {paged.k.data(), k_strides};
  paged.args.v = {paged.v.data(), v_strides};
  paged.args.page_table = paged.page_table.data();
  paged.args.page_table_stride = 4;
  return paged;
}

TEST(EquivalenceTest, PagedEqualsContiguous) {
  const HostCase dense(HeadsSpec(), 19);
  AttentionSpec spec = HeadsSpec();
  spec.page_size = 4;
  // The rest of each last page and unused pages hold NaN.
  ExpectSame(Paged(dense, spec, 20).Run(), dense.Run());

  spec.varlen = true;
  HostCase used = Paged(dense, spec, 20);
  used.seqused_kv = {5, 9};
  used.args.seqused_kv = used.seqused_kv.data();
  AttentionSpec dense_spec = HeadsSpec();
  dense_spec.varlen = true;
  HostCase dense_used(dense_spec, 19);
  dense_used.args.seqused_kv = used.seqused_kv.data();
  ExpectSame(used.Run(), dense_used.Run());

  HostCase cumulative = Paged(dense, spec, 20);
  cumulative.cu_seqlens_kv = {0, 5, 14};
  cumulative.args.cu_seqlens_kv = cumulative.cu_seqlens_kv.data();
  ExpectSame(cumulative.Run(), dense_used.Run());
}

TEST(EquivalenceTest, NegativePagesAreMasked) {
  const HostCase dense(HeadsSpec(), 21);
  AttentionSpec spec = HeadsSpec();
  spec.page_size = 4;
  HostCase paged = Paged(dense, spec, 22);
  paged.page_table[1] = -1;  // keys 4 to 7 of batch 0
  AttentionSpec masked_spec = HeadsSpec();
  masked_spec.bias = {BiasTerm{.type = ElementType::kBool, .batch = 2, .seqlen_kv = 9}};
  HostCase masked(masked_spec, 23);
  CopyQkv(dense, masked);
  for (int64_t n = 0; n < 18; ++n) masked.bias[0].Set(n, n < 4 || n > 7);
  ExpectSame(paged.Run(), masked.Run());
}

TEST(EquivalenceTest, ScalesOfTokensAreFoundByPageAndByPackedRow) {
  AttentionSpec spec = HeadsSpec();
  spec.type = ElementType::kFp16;
  spec.kv_type = ElementType::kFp8E5m2;
  spec.kv_scale = ScaleKind::kPerToken;
  const HostCase dense(spec, 24);  // scales [batch, head, token]

  AttentionSpec paged_spec = spec;
  paged_spec.page_size = 4;
  HostCase paged = Paged(dense, paged_spec, 25);
  paged.k_scale.assign(8 * 2 * 4, -1);  // [page, head, token]
  paged.v_scale.assign(8 * 2 * 4, -1);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t j = 0; j < 9; ++j) {
        const int64_t to = (paged.page_table[b * 4 + j / 4] * 2 + h) * 4 + j % 4;
        const int64_t from = (b * 2 + h) * 9 + j;
        paged.k_scale[to] = dense.k_scale[from];
        paged.v_scale[to] = dense.v_scale[from];
      }
    }
  }
  paged.args.k_scale = paged.k_scale.data();
  paged.args.v_scale = paged.v_scale.data();
  paged.args.k_scale_strides = paged.args.v_scale_strides = {8, 4, 1};
  ExpectSame(paged.Run(), dense.Run());

  AttentionSpec packed_spec = spec;
  packed_spec.varlen = true;
  HostCase packed(packed_spec, 24, {}, {9, 9});
  CopyTensor(dense.q, dense.args.q.strides, packed.q, packed.args.q.strides, 2, 7, 6, 4);
  for (int64_t n = 0; n < packed.k.count(); ++n) packed.k.Set(n, dense.k.Get(n));
  for (int64_t n = 0; n < packed.v.count(); ++n) packed.v.Set(n, dense.v.Get(n));
  for (int64_t h = 0; h < 2; ++h) {  // [head, packed token]
    for (int64_t n = 0; n < 18; ++n) {
      packed.k_scale[h * 18 + n] = dense.k_scale[((n / 9) * 2 + h) * 9 + n % 9];
      packed.v_scale[h * 18 + n] = dense.v_scale[((n / 9) * 2 + h) * 9 + n % 9];
    }
  }
  packed.args.k_scale_strides = packed.args.v_scale_strides = {0, 18, 1};
  ExpectSame(packed.Run(), dense.Run());
}

TEST(EquivalenceTest, BiasBatchesAreFoundByRemainderOrQuotient) {
  for (BatchMap map : {BatchMap::kMod, BatchMap::kDiv}) {
    AttentionSpec spec = HeadsSpec();
    spec.batch = 6;
    spec.bias = {BiasTerm{.batch = 2, .seqlen_q = 7, .seqlen_kv = 9, .batch_map = map}};
    HostCase fewer(spec, 26);
    AttentionSpec full_spec = spec;
    full_spec.bias[0].batch = 6;
    HostCase full(full_spec, 27);
    CopyQkv(fewer, full);
    for (int64_t b = 0; b < 6; ++b) {
      const int64_t from = map == BatchMap::kMod ? b % 2 : b / 3;
      for (int64_t n = 0; n < 63; ++n) {
        full.bias[0].Set(b * 63 + n, fewer.bias[0].Get(from * 63 + n));
      }
    }
    ExpectSame(fewer.Run(), full.Run());
  }
}

TEST(EquivalenceTest, StridesOfBroadcastBiasExtentsAreIgnored) {
  AttentionSpec spec = HeadsSpec();
  spec.bias = {BiasTerm{.seqlen_kv = 9}, BiasTerm{.type = ElementType::kBool, .seqlen_q = 7}};
  HostCase problem(spec, 28);
  const ForwardResult expected = problem.Run();
  problem.args.bias[0].stride_batch = problem.args.bias[0].stride_head =
      problem.args.bias[0].stride_q = 1 << 20;
  problem.args.bias[1].stride_kv = 1 << 20;
  ExpectSame(problem.Run(), expected);
}

TEST(EquivalenceTest, ABiasOfTheSpecsBatchFollowsTheBatchOfTheCall) {
  AttentionSpec spec = HeadsSpec();
  spec.bias = {BiasTerm{.batch = 2, .seqlen_kv = 9}};
  HostCase two(spec, 29);
  const ForwardResult expected = two.Run();
  two.spec.batch = 1;
  two.spec.bias[0].batch = 1;  // broadcasts
  HostCase broadcast = std::move(two);
  EXPECT_NE(broadcast.Run().lse[42], expected.lse[42]);
  broadcast.spec.batch = 4;
  broadcast.spec.bias[0].batch = 4;
  ExpectSame(broadcast.Run(), expected);
}

// ---- the definition as a loop

double Dot(const HostCase& at, int64_t b, int64_t h, int64_t i, int64_t j) {
  const int64_t h_kv = h / (at.spec.heads_q / at.spec.heads_kv);
  double dot = 0;
  for (int64_t d = 0; d < at.spec.dim_qk; ++d) {
    dot += at.q.Get(at.QAt(b, i, h, d)) * at.k.Get(at.KAt(b, j, h_kv, d));
  }
  return dot;
}

// The value of term n for (b, h, i, j); the arrays of HostCase are dense.
double BiasAt(const HostCase& at, size_t n, int64_t b, int64_t h, int64_t i, int64_t j) {
  const BiasTerm& term = at.spec.bias[n];
  int64_t batch = b % term.batch;
  if (term.batch_map == BatchMap::kDiv) batch = b * term.batch / at.spec.batch;
  return at.bias[n].Get(
      ((batch * term.heads + h % term.heads) * term.seqlen_q + i % term.seqlen_q) * term.seqlen_kv +
      j % term.seqlen_kv);
}

bool Allowed(const HostCase& at, int64_t b, int64_t h, int64_t i, int64_t j) {
  const AttentionSpec& spec = at.spec;
  const int64_t center = spec.align == MaskAlign::kTopLeft ? i : i + spec.seqlen_kv - spec.seqlen_q;
  if (spec.causal && j > center) return false;
  if (spec.window_left >= 0 && j < center - spec.window_left) return false;
  if (!spec.causal && spec.window_right >= 0 && j > center + spec.window_right) return false;
  if (spec.block_mask_q > 0) {
    const auto& s = at.args.block_mask_strides;
    if (at.block_mask[b * s[0] + h * s[1] + i / spec.block_mask_q * s[2] +
                      j / spec.block_mask_kv] == 0) {
      return false;
    }
  }
  for (size_t n = 0; n < spec.bias.size(); ++n) {
    if (spec.bias[n].type == ElementType::kBool && BiasAt(at, n, b, h, i, j) == 0) return false;
  }
  return true;
}

double ScoreOf(const HostCase& at, int64_t b, int64_t h, int64_t i, int64_t j) {
  const AttentionSpec& spec = at.spec;
  const auto cap = [&](double s) {
    return spec.softcap == 0 ? s : spec.softcap * std::tanh(s / spec.softcap);
  };
  double bias = 0;
  for (size_t n = 0; n < spec.bias.size(); ++n) {
    if (spec.bias[n].type != ElementType::kBool) bias += BiasAt(at, n, b, h, i, j);
  }
  if (spec.alibi) {
    const int64_t center =
        spec.align == MaskAlign::kTopLeft ? i : i + spec.seqlen_kv - spec.seqlen_q;
    bias -= at.slopes[h] * static_cast<double>(std::abs(center - j));
  }
  const double scale = spec.scale.has_value() ? static_cast<double>(*spec.scale)
                                              : 1 / std::sqrt(static_cast<double>(spec.dim_qk));
  const double score = scale * Dot(at, b, h, i, j);
  return spec.softcap_before_bias ? cap(score) + bias : cap(score + bias);
}

ForwardResult LiteralForward(const HostCase& at) {
  const AttentionSpec& spec = at.spec;
  ForwardResult result;
  for (const Row& row : AllRows(spec, at.args)) {
    double sum = spec.sinks ? std::exp(static_cast<double>(at.sinks[row.h])) : 0;
    std::vector<double> o(spec.dim_v);
    for (int64_t j = 0; j < spec.seqlen_kv; ++j) {
      if (!Allowed(at, row.b, row.h, row.i, j)) continue;
      const double weight = std::exp(ScoreOf(at, row.b, row.h, row.i, j));
      sum += weight;
      double factor = 1;
      if (spec.dropout > 0) {
        factor = DropoutKeeps(spec.dropout, at.args.dropout_seed, at.args.dropout_offset,
                              spec.heads_q, row.b, row.h, row.i, j)
                     ? 1 / (1 - static_cast<double>(spec.dropout))
                     : 0;
      }
      const int64_t h_kv = row.h / (spec.heads_q / spec.heads_kv);
      for (int64_t d = 0; d < spec.dim_v; ++d) {
        o[d] += weight * factor * at.v.Get(at.VAt(row.b, j, h_kv, d));
      }
    }
    for (double& value : o) value = sum == 0 ? 0 : value / sum;
    result.o.insert(result.o.end(), o.begin(), o.end());
    const double lse = std::log(sum) / (spec.lse_base == LseBase::kTwo ? std::log(2.0) : 1);
    result.lse.push_back(sum == 0 && spec.empty_lse == EmptyLse::kPlusInf ? kInfinity : lse);
  }
  return result;
}

// A spec with each feature on or off by the bits of `random`.
AttentionSpec RandomSpec(std::mt19937_64& random) {
  const auto pick = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % (high - low + 1));
  };
  const auto coin = [&] { return random() % 2 == 0; };
  AttentionSpec spec = SmallSpec(pick(1, 9), pick(0, 12), pick(1, 9), pick(1, 7));
  constexpr ElementType kTypes[] = {ElementType::kFp32, ElementType::kFp16, ElementType::kBf16};
  spec.type = kTypes[random() % 3];
  spec.batch = pick(1, 2) * 2;
  spec.heads_kv = pick(1, 3);
  spec.heads_q = spec.heads_kv * pick(1, 3);
  spec.layout = coin() ? Layout::kBhsd : Layout::kSbhd;
  spec.lse = true;
  spec.causal = coin();
  if (coin()) spec.align = MaskAlign::kTopLeft;
  if (coin()) spec.window_left = pick(0, 6);
  if (coin()) spec.window_right = pick(0, 6);
  if (coin()) spec.scale = static_cast<float>(pick(-8, 8)) / 8;
  if (coin()) spec.softcap = static_cast<float>(pick(1, 5));
  spec.softcap_before_bias = spec.softcap != 0 && coin();
  spec.alibi = coin();
  spec.sinks = coin();
  if (coin()) spec.dropout = 0.3f;
  if (coin()) spec.lse_base = LseBase::kTwo;
  if (coin()) spec.empty_lse = EmptyLse::kPlusInf;
  if (coin()) {
    spec.block_mask_q = pick(1, 4);
    spec.block_mask_kv = pick(1, 4);
  }
  constexpr ElementType kBiasTypes[] = {ElementType::kFp32, ElementType::kFp16, ElementType::kBf16,
                                        ElementType::kBool};
  for (int64_t terms = spec.seqlen_kv == 0 ? 0 : pick(0, 4); terms > 0; --terms) {
    BiasTerm term;
    term.type = kBiasTypes[random() % 4];
    if (coin()) term.batch = coin() ? spec.batch : 2;
    if (coin()) term.heads = spec.heads_q;
    if (coin()) term.seqlen_q = spec.seqlen_q;
    if (coin()) term.seqlen_kv = spec.seqlen_kv;
    if (coin()) term.batch_map = BatchMap::kDiv;
    spec.bias.push_back(term);
  }
  return spec;
}

TEST(EquivalenceTest, RandomMixturesEqualTheDefinitionAsALoop) {
  std::mt19937_64 random(2024);
  for (int n = 0; n < 300; ++n) {
    const AttentionSpec spec = RandomSpec(random);
    SCOPED_TRACE(n);
    const HostCase problem(spec, random());
    ExpectSame(problem.Run(), LiteralForward(problem), 1e-10);
    if (testing::Test::HasFailure()) break;
  }
}

}  // namespace
}  // namespace tilewright::reference
