#include "runtime/pack_args.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "abi/attn_fwd_params.h"
#include "abi/policy_args.h"
#include "emit/param_layout.h"
#include "spec/canonical.h"
#include "spec/validate.h"
#include "tests/runtime/test_runtime.h"

namespace tilewright {
namespace {

// The packed parameters of a call.
class Packed {
 public:
  Packed(const AttentionSpec& spec, const AttentionArgs& args)
      : canonical_(spec::Canonicalise(spec)), layout_(emit::MakeParamLayout(canonical_)) {
    EXPECT_TRUE(spec::Validate(spec).ok()) << spec::Validate(spec);
    EXPECT_TRUE(spec::ValidateArgs(canonical_, args).ok()) << spec::ValidateArgs(canonical_, args);
    EXPECT_LE(layout_.size, kMaxParamBytes);
    bytes_.resize(kMaxParamBytes, std::byte{0xcd});
    PackArgs(canonical_, layout_, args, bytes_.data());
    for (int i = layout_.size; i < kMaxParamBytes; ++i) EXPECT_EQ(bytes_[i], std::byte{0xcd}) << i;
  }

  template <typename T>
  T Get(emit::ParamSlotKind kind, int index = 0) const {
    for (const emit::ParamSlot& slot : layout_.slots) {
      if (slot.kind != kind || slot.index != index) continue;
      EXPECT_EQ(slot.size, static_cast<int>(sizeof(T)));
      T value;
      std::memcpy(&value, bytes_.data() + slot.offset, sizeof(T));
      return value;
    }
    ADD_FAILURE() << "no slot of kind " << static_cast<int>(kind) << ", index " << index;
    return T{};
  }
  abi::AttnFwdParams core() const { return Get<abi::AttnFwdParams>(emit::ParamSlotKind::kCore); }

 private:
  AttentionSpec canonical_;
  emit::ParamLayout layout_;
  std::vector<std::byte> bytes_;
};

void ExpectStrides(const abi::TensorStrides& packed, const Strides& strides) {
  EXPECT_EQ(packed.batch, strides.batch);
  EXPECT_EQ(packed.seq, strides.seq);
  EXPECT_EQ(packed.head, strides.head);
  EXPECT_EQ(packed.dim, strides.dim);
}

TEST(PackArgsTest, CoreHoldsPointersStridesSizesAndScale) {
  AttentionSpec spec = SmallSpec();
  spec.lse = true;
  AttentionArgs args = DenseArgs(spec);
  args.seqlen_q = 60;
  args.k.strides.seq *= 3;
  const Packed packed(spec, args);
  const abi::AttnFwdParams core = packed.core();
  EXPECT_EQ(core.q, args.q.data);
  EXPECT_EQ(core.k, args.k.data);
  EXPECT_EQ(core.v, args.v.data);
  EXPECT_EQ(core.o, args.o.data);
  EXPECT_EQ(core.lse, args.lse);
  ExpectStrides(core.q_strides, args.q.strides);
  ExpectStrides(core.k_strides, args.k.strides);
  ExpectStrides(core.v_strides, args.v.strides);
  ExpectStrides(core.o_strides, args.o.strides);
  EXPECT_EQ(core.batch, 2);
  EXPECT_EQ(core.heads_q, 4);
  EXPECT_EQ(core.heads_kv, 2);
  EXPECT_EQ(core.seqlen_q, 60);
  EXPECT_EQ(core.seqlen_kv, 64);
  EXPECT_EQ(core.scale, 0.25f);
}

TEST(PackArgsTest, LseStridesOfZeroMeanDense) {
  AttentionSpec spec = SmallSpec();
  spec.lse = true;
  AttentionArgs args = DenseArgs(spec);
  EXPECT_EQ(Packed(spec, args).core().lse_stride_head, 64);
  EXPECT_EQ(Packed(spec, args).core().lse_stride_batch, 4 * 64);
  args.lse_stride_head = 80;
  EXPECT_EQ(Packed(spec, args).core().lse_stride_batch, 4 * 80);
  args.lse_stride_batch = 1000;
  EXPECT_EQ(Packed(spec, args).core().lse_stride_batch, 1000);
  EXPECT_EQ(Packed(spec, args).core().lse_stride_head, 80);
}

TEST(PackArgsTest, LseIsNullWhereTheSpecDoesNotAskForIt) {
  AttentionArgs args = DenseArgs(SmallSpec());
  args.lse = FakePointer<float>(9);
  EXPECT_EQ(Packed(SmallSpec(), args).core().lse, nullptr);
}

TEST(PackArgsTest, PackedLseHasTotalRowsPerHead) {
  AttentionSpec spec = SmallSpec();
  spec.layout = Layout::kThd;
  spec.varlen = true;
  spec.lse = true;
  AttentionArgs args = DenseArgs(spec);
  args.cu_seqlens_q = FakePointer<int32_t>(6);
  args.cu_seqlens_kv = FakePointer<int32_t>(7);
  args.seqused_kv = FakePointer<int32_t>(8);
  args.seqused_q = FakePointer<int32_t>(9);
  args.total_q = 100;
  args.total_kv = 90;
  const Packed packed(spec, args);
  EXPECT_EQ(packed.core().lse_stride_head, 100);
  const auto varlen = packed.Get<abi::VarlenArgs>(emit::ParamSlotKind::kVarlen);
  EXPECT_EQ(varlen.cu_seqlens_q, args.cu_seqlens_q);
  EXPECT_EQ(varlen.cu_seqlens_kv, args.cu_seqlens_kv);
  EXPECT_EQ(varlen.seqused_q, args.seqused_q);
  EXPECT_EQ(varlen.seqused_kv, args.seqused_kv);
}

TEST(PackArgsTest, LeftPaddingAndSlots) {
  AttentionSpec spec = SmallSpec();
  spec.varlen = spec.left_padding = spec.cache_batch_idx = true;
  AttentionArgs args = DenseArgs(spec);
  args.left_padding = FakePointer<int32_t>(6);
  args.cache_batch_idx = FakePointer<int32_t>(7);
  const Packed packed(spec, args);
  EXPECT_EQ(packed.Get<abi::LeftPaddingArgs>(emit::ParamSlotKind::kLeftPadding).keys,
            args.left_padding);
  EXPECT_EQ(packed.Get<abi::CacheSlotArgs>(emit::ParamSlotKind::kCacheSlots).slots,
            args.cache_batch_idx);
}

TEST(PackArgsTest, PagedStridesAreThoseOfPages) {
  AttentionSpec spec = SmallSpec();
  spec.page_size = 16;
  AttentionArgs args = DenseArgs(spec);
  args.k.strides.batch = 16 * 2 * 16 + 8;
  args.page_table = FakePointer<int32_t>(6);
  args.page_table_stride = 11;
  const Packed packed(spec, args);
  EXPECT_EQ(packed.core().k_strides.batch, 16 * 2 * 16 + 8);
  const auto table = packed.Get<abi::PageTableArgs>(emit::ParamSlotKind::kPageTable);
  EXPECT_EQ(table.table, args.page_table);
  EXPECT_EQ(table.stride, 11);
}

TEST(PackArgsTest, CausalIsAWindowWithNothingToTheRight) {
  AttentionSpec spec = SmallSpec();
  spec.causal = true;
  spec.window_left = 7;
  spec.window_right = 5;
  const auto causal =
      Packed(spec, DenseArgs(spec)).Get<abi::WindowArgs>(emit::ParamSlotKind::kWindow);
  EXPECT_EQ(causal.left, 7);
  EXPECT_EQ(causal.right, 0);
  spec.causal = false;
  const auto window =
      Packed(spec, DenseArgs(spec)).Get<abi::WindowArgs>(emit::ParamSlotKind::kWindow);
  EXPECT_EQ(window.left, 7);
  EXPECT_EQ(window.right, 5);
}

// The batch of the term that the kernel reads for batch b.
int64_t TermBatch(const abi::BiasArgs& bias, int64_t b) {
  return bias.batch_mod == 1 ? 0 : (b / bias.batch_div) % bias.batch_mod;
}

TEST(PackArgsTest, BiasBatchesFollowTheirMap) {
  AttentionSpec spec = SmallSpec();
  spec.batch = 6;
  const auto bias_of = [&](int64_t term_batch, BatchMap map, int64_t batch) {
    spec.bias = {{ElementType::kFp16, term_batch, 4, 64, 64, map}};
    AttentionArgs args = DenseArgs(spec);
    args.batch = batch;
    args.bias[0] = {FakePointer<void>(6), 1 << 20, 4096, 64, 1};
    return Packed(spec, args).Get<abi::BiasArgs>(emit::ParamSlotKind::kBias);
  };
  const auto mod = bias_of(3, BatchMap::kMod, 12);
  EXPECT_EQ(mod.stride_batch, 1 << 20);
  for (int64_t b = 0; b < 12; ++b) EXPECT_EQ(TermBatch(mod, b), b % 3);
  const auto div = bias_of(3, BatchMap::kDiv, 12);
  for (int64_t b = 0; b < 12; ++b) EXPECT_EQ(TermBatch(div, b), b / 4);
  // As many batches as the spec: the term has those of the call, whatever their number.
  for (const BatchMap map : {BatchMap::kMod, BatchMap::kDiv}) {
    const auto full = bias_of(6, map, 10);
    for (int64_t b = 0; b < 10; ++b) EXPECT_EQ(TermBatch(full, b), b);
  }
  const auto broadcast = bias_of(1, BatchMap::kMod, 10);
  EXPECT_EQ(broadcast.stride_batch, 0);
  EXPECT_EQ(broadcast.batch_div, 1);
  EXPECT_EQ(broadcast.batch_mod, 1);
}

TEST(PackArgsTest, BroadcastExtentsHaveNoStride) {
  AttentionSpec spec = SmallSpec();
  spec.bias = {{ElementType::kFp32, 1, 4, 1, 64, BatchMap::kMod},
               {ElementType::kBool, 1, 1, 64, 1, BatchMap::kMod}};
  AttentionArgs args = DenseArgs(spec);
  args.bias[0] = {FakePointer<void>(6), 77, 64, 77, 1};
  args.bias[1] = {FakePointer<void>(7), 77, 77, 1, 77};
  const Packed packed(spec, args);
  const auto first = packed.Get<abi::BiasArgs>(emit::ParamSlotKind::kBias, 0);
  EXPECT_EQ(first.data, args.bias[0].data);
  EXPECT_EQ(first.stride_head, 64);
  EXPECT_EQ(first.stride_q, 0);
  EXPECT_EQ(first.stride_kv, 1);
  const auto second = packed.Get<abi::BiasArgs>(emit::ParamSlotKind::kBias, 1);
  EXPECT_EQ(second.data, args.bias[1].data);
  EXPECT_EQ(second.stride_head, 0);
  EXPECT_EQ(second.stride_q, 1);
  EXPECT_EQ(second.stride_kv, 0);
}

TEST(PackArgsTest, ScoreFeatures) {
  AttentionSpec spec = SmallSpec();
  spec.softcap = 30;
  spec.alibi = true;
  spec.sinks = true;
  spec.scale = 0;
  AttentionArgs args = DenseArgs(spec);
  args.alibi_slopes = FakePointer<float>(6);
  args.alibi_stride_batch = 4;
  args.sinks = FakePointer<float>(7);
  const Packed packed(spec, args);
  EXPECT_EQ(packed.core().scale, 0);
  EXPECT_EQ(packed.Get<abi::SoftcapArgs>(emit::ParamSlotKind::kSoftcap).cap, 30);
  EXPECT_EQ(packed.Get<abi::SoftcapArgs>(emit::ParamSlotKind::kSoftcap).inverse_cap, 1 / 30.0f);
  EXPECT_EQ(packed.Get<abi::AlibiArgs>(emit::ParamSlotKind::kAlibi).slopes, args.alibi_slopes);
  EXPECT_EQ(packed.Get<abi::AlibiArgs>(emit::ParamSlotKind::kAlibi).stride_batch, 4);
  EXPECT_EQ(packed.Get<abi::SinkArgs>(emit::ParamSlotKind::kSinks).sinks, args.sinks);
}

TEST(PackArgsTest, BlockMask) {
  AttentionSpec spec = SmallSpec();
  spec.block_mask_q = spec.block_mask_kv = 16;
  AttentionArgs args = DenseArgs(spec);
  args.block_mask = FakePointer<uint8_t>(6);
  args.block_mask_strides = {64, 0, 4};
  const auto mask = Packed(spec, args).Get<abi::BlockMaskArgs>(emit::ParamSlotKind::kBlockMask);
  EXPECT_EQ(mask.mask, args.block_mask);
  EXPECT_EQ(mask.stride_batch, 64);
  EXPECT_EQ(mask.stride_head, 0);
  EXPECT_EQ(mask.stride_q, 4);
}

TEST(PackArgsTest, ScaleStridesFollowTheirKind) {
  AttentionSpec spec = SmallSpec();
  spec.kv_type = ElementType::kInt8;
  AttentionArgs args = DenseArgs(spec);
  args.k_scale = FakePointer<float>(6);
  args.v_scale = FakePointer<float>(7);
  args.k_scale_strides = {128, 64, 1};
  args.v_scale_strides = {256, 1, 4};
  const auto strides_of = [&](ScaleKind kind, emit::ParamSlotKind slot) {
    spec.kv_scale = kind;
    const auto scale = Packed(spec, args).Get<abi::ScaleArgs>(slot);
    EXPECT_EQ(scale.scale, slot == emit::ParamSlotKind::kKScale ? args.k_scale : args.v_scale);
    return std::array<int64_t, 3>{scale.stride_batch, scale.stride_head, scale.stride_seq};
  };
  const std::array<int64_t, 3> none = {0, 0, 0}, per_head = {0, 1, 0};
  EXPECT_EQ(strides_of(ScaleKind::kPerTensor, emit::ParamSlotKind::kKScale), none);
  EXPECT_EQ(strides_of(ScaleKind::kPerHead, emit::ParamSlotKind::kVScale), per_head);
  EXPECT_EQ(strides_of(ScaleKind::kPerToken, emit::ParamSlotKind::kKScale), args.k_scale_strides);
  EXPECT_EQ(strides_of(ScaleKind::kPerToken, emit::ParamSlotKind::kVScale), args.v_scale_strides);
}

TEST(PackArgsTest, QueryScales) {
  AttentionSpec spec = SmallSpec();
  spec.type = ElementType::kFp8E4m3;
  spec.out_type = ElementType::kBf16;
  spec.q_scale = ScaleKind::kPerHead;
  AttentionArgs args = DenseArgs(spec);
  args.q_scale = FakePointer<float>(6);
  const auto scale = Packed(spec, args).Get<abi::ScaleArgs>(emit::ParamSlotKind::kQScale);
  EXPECT_EQ(scale.scale, args.q_scale);
  EXPECT_EQ(scale.stride_head, 1);
  EXPECT_EQ(scale.stride_batch, 0);
}

TEST(PackArgsTest, Dropout) {
  AttentionSpec spec = SmallSpec();
  spec.dropout = 0.25f;
  AttentionArgs args = DenseArgs(spec);
  args.dropout_seed = 0x0123456789abcdef;
  args.dropout_offset = 42;
  args.dropout_seed_ptr = FakePointer<uint64_t>(6);
  const auto dropout = Packed(spec, args).Get<abi::DropoutArgs>(emit::ParamSlotKind::kDropout);
  EXPECT_EQ(dropout.seed, 0x0123456789abcdefu);
  EXPECT_EQ(dropout.offset, 42u);
  EXPECT_EQ(static_cast<const void*>(dropout.seed_ptr), args.dropout_seed_ptr);
  EXPECT_EQ(dropout.offset_ptr, nullptr);
  EXPECT_EQ(dropout.threshold, 1u << 30);
  EXPECT_EQ(dropout.keep_scale, 1 / 0.75f);
}

TEST(PackArgsTest, DropoutThresholdIsClampedAndRounded) {
  EXPECT_EQ(DropoutThreshold(0), 0u);
  EXPECT_EQ(DropoutThreshold(0.5f), 1u << 31);
  EXPECT_EQ(DropoutThreshold(std::nextafter(1.0f, 0.0f)), 0xffffff00u);
  EXPECT_EQ(DropoutThreshold(1.0f), 0xffffffffu);
  EXPECT_EQ(DropoutThreshold(std::ldexp(1.0f, -32)), 1u);
  EXPECT_EQ(DropoutThreshold(std::ldexp(1.0f, -34)), 0u);
}

TEST(PackArgsTest, SnippetArraysAndScalars) {
  AttentionSpec spec = SmallSpec();
  spec.score_snippet = {"score * gain + table[shift]", ""};
  spec.snippet_arrays = {{"table", ElementType::kFp32}};
  spec.snippet_scalars = {{"gain", ScalarType::kFloat}, {"shift", ScalarType::kInt64}};
  AttentionArgs args = DenseArgs(spec);
  args.snippet_arrays[0] = FakePointer<float>(6);
  args.snippet_scalars[0].i = -1;  // the upper half must not leak into the slot
  args.snippet_scalars[0].f = 1.5f;
  args.snippet_scalars[1].i = -7;
  const Packed packed(spec, args);
  EXPECT_EQ(packed.Get<const void*>(emit::ParamSlotKind::kUserArray), args.snippet_arrays[0]);
  const auto gain = packed.Get<uint64_t>(emit::ParamSlotKind::kUserScalar, 0);
  EXPECT_EQ(gain, uint64_t{0x3fc00000});
  EXPECT_EQ(packed.Get<int64_t>(emit::ParamSlotKind::kUserScalar, 1), -7);
}

}  // namespace
}  // namespace tilewright
