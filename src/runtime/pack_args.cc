#include "runtime/pack_args.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "abi/attn_bwd_params.h"
#include "abi/attn_fwd_params.h"
#include "abi/policy_args.h"
#include "runtime/abi_args.h"
#include "spec/validate.h"

namespace tilewright {
namespace {

abi::AttnFwdParams Core(const AttentionSpec& spec, const AttentionArgs& args) {
  abi::AttnFwdParams core = {};
  core.q = args.q.data;
  core.k = args.k.data;
  core.v = args.v.data;
  core.o = args.o.data;
  core.q_strides = ToAbi(args.q.strides);
  core.k_strides = ToAbi(args.k.strides);
  core.v_strides = ToAbi(args.v.strides);
  core.o_strides = ToAbi(args.o.strides);
  if (spec.lse || spec.operation == Operation::kBackward) {
    const bool packed = spec.varlen && args.cu_seqlens_q != nullptr;
    core.lse = args.lse;
    core.lse_stride_head = args.lse_stride_head;
    core.lse_stride_batch = args.lse_stride_batch;
    if (core.lse_stride_head == 0) core.lse_stride_head = packed ? args.total_q : args.seqlen_q;
    if (core.lse_stride_batch == 0) core.lse_stride_batch = spec.heads_q * core.lse_stride_head;
  }
  core.batch = args.batch;
  core.heads_q = spec.heads_q;
  core.heads_kv = spec.heads_kv;
  core.seqlen_q = args.seqlen_q;
  core.seqlen_kv = args.seqlen_kv;
  core.scale = spec::EffectiveScale(spec);
  return core;
}

abi::BiasArgs Bias(const AttentionSpec& spec, const BiasTerm& term, const BiasTensor& tensor,
                   const AttentionArgs& args) {
  abi::BiasArgs bias = {};
  bias.data = tensor.data;
  bias.batch_div = 1;
  bias.batch_mod = 1;
  // A batch extent equal to the spec's typical batch follows the call; another one is a table of
  // that size, which ValidateArgs has found to divide the batch of the call.
  const int64_t extent = term.batch == spec.batch && term.batch != 1 ? args.batch : term.batch;
  if (extent > 1) {
    bias.stride_batch = tensor.stride_batch;
    bias.batch_mod = extent;
    if (term.batch_map == BatchMap::kDiv) bias.batch_div = args.batch / extent;
  }
  if (term.heads != 1) bias.stride_head = tensor.stride_head;
  if (term.seqlen_q != 1) bias.stride_q = tensor.stride_q;
  if (term.seqlen_kv != 1) bias.stride_kv = tensor.stride_kv;
  return bias;
}

abi::DropoutArgs Dropout(const AttentionSpec& spec, const AttentionArgs& args) {
  abi::DropoutArgs dropout = {};
  dropout.seed = args.dropout_seed;
  dropout.offset = args.dropout_offset;
  // uint64_t and the abi's u64 are distinct types of one representation.
  dropout.seed_ptr = reinterpret_cast<const abi::u64*>(args.dropout_seed_ptr);
  dropout.offset_ptr = reinterpret_cast<const abi::u64*>(args.dropout_offset_ptr);
  dropout.threshold = DropoutThreshold(spec.dropout);
  dropout.keep_scale = static_cast<float>(1 / (1 - static_cast<double>(spec.dropout)));
  return dropout;
}

// Parts of every row in the workspace, as plan::Region lays them out.
// (attn_decode has slots of its own making: it looks at the pointers only.)
abi::PartsArgs Parts(const AttentionSpec& spec, const AttentionArgs& args,
                     const plan::CallPlan& call) {
  abi::PartsArgs parts = {};
  parts.parts = call.parts;
  parts.lines = static_cast<abi::i32>(call.lines);
  parts.line_blocks = static_cast<abi::i32>(call.parts / call.lines);
  parts.line_heads = static_cast<abi::i32>(spec.heads_kv / call.lines);
  if (call.parts <= 1) return parts;
  const bool packed = spec.varlen && args.cu_seqlens_q != nullptr;
  const int64_t rows = packed ? args.total_q : args.seqlen_q;
  auto* const workspace = static_cast<std::byte*>(args.workspace);
  parts.o = workspace + call.offset(plan::Region::kPartialO);
  parts.lse = reinterpret_cast<float*>(workspace + call.offset(plan::Region::kPartialLse));
  parts.lse_stride_head = rows;
  parts.lse_stride_batch = spec.heads_q * rows;
  parts.lse_stride_part = (packed ? 1 : args.batch) * parts.lse_stride_batch;
  parts.o_stride_seq = spec.dim_v;
  parts.o_stride_head = parts.lse_stride_head * spec.dim_v;
  parts.o_stride_batch = parts.lse_stride_batch * spec.dim_v;
  parts.o_stride_part = parts.lse_stride_part * spec.dim_v;
  return parts;
}

// `spec` may be that of a kernel which knows nothing of the heads of K and V.
abi::AttnBwdParams Gradients(const AttentionSpec& spec, const AttentionArgs& args,
                             const plan::CallPlan& call) {
  abi::AttnBwdParams gradients = {};
  gradients.d_o = args.d_o.data;
  gradients.d_q = args.d_q.data;
  gradients.d_k = args.d_k.data;
  gradients.d_v = args.d_v.data;
  gradients.d_o_strides = ToAbi(args.d_o.strides);
  gradients.d_q_strides = ToAbi(args.d_q.strides);
  gradients.d_k_strides = ToAbi(args.d_k.strides);
  gradients.d_v_strides = ToAbi(args.d_v.strides);
  const bool packed = spec.varlen && args.cu_seqlens_q != nullptr;
  auto* workspace = static_cast<std::byte*>(args.workspace);
  gradients.row_stats =
      reinterpret_cast<abi::RowStats*>(workspace + call.offset(plan::Region::kRowStats));
  gradients.stats_rows = packed ? args.total_q : args.seqlen_q;
  gradients.dq_sums = reinterpret_cast<float*>(workspace + call.offset(plan::Region::kDqSums));
  gradients.dq_turns = reinterpret_cast<abi::i32*>(workspace + call.offset(plan::Region::kDqTurns));
  gradients.tiles_of_head = call.dq_tiles_of_head;
  gradients.sums_batches = packed ? 1 : args.batch;
  return gradients;
}

abi::BiasGradientArgs BiasGradientOf(const AttentionSpec& spec, const BiasTerm& term,
                                     const BiasGradient& gradient, const AttentionArgs& args) {
  const abi::BiasArgs bias = Bias(spec, term, {}, args);
  abi::BiasGradientArgs out = {};
  out.data = gradient.data;
  out.batch = bias.batch_mod;
  out.heads = term.heads;
  out.rows = term.seqlen_q == 1 ? 1 : args.seqlen_q;
  out.keys = term.seqlen_kv == 1 ? 1 : args.seqlen_kv;
  // So that an index of 0 on an axis of extent 1 needs no test.
  out.stride_batch = out.batch == 1 ? 0 : gradient.stride_batch;
  out.stride_head = out.heads == 1 ? 0 : gradient.stride_head;
  out.stride_q = term.seqlen_q == 1 ? 0 : gradient.stride_q;
  out.stride_kv = term.seqlen_kv == 1 ? 0 : gradient.stride_kv;
  out.batch_div = bias.batch_div;
  out.batch_mod = bias.batch_mod;
  return out;
}

// Slopes are a term of one row and one key.
abi::BiasGradientArgs AlibiGradient(const AttentionSpec& spec, const AttentionArgs& args) {
  abi::BiasGradientArgs out = {};
  out.data = args.d_alibi_slopes;
  const bool per_batch = args.alibi_stride_batch != 0;
  out.batch = per_batch ? args.batch : 1;
  out.stride_batch = per_batch ? spec.heads_q : 0;
  out.heads = spec.heads_q;
  out.stride_head = 1;
  out.rows = out.keys = 1;
  out.batch_div = 1;
  out.batch_mod = out.batch;
  return out;
}

// The 8 bytes of a scalar slot.
uint64_t ScalarBits(ScalarType type, SnippetValue value) {
  uint64_t bits = 0;
  if (type == ScalarType::kFloat) {
    std::memcpy(&bits, &value.f, sizeof(value.f));
  } else {
    std::memcpy(&bits, &value.i, sizeof(value.i));
  }
  return bits;
}

}  // namespace

uint32_t DropoutThreshold(float p) {
  constexpr double kTwoTo32 = 4294967296.0;
  return static_cast<uint32_t>(
      std::min(std::round(static_cast<double>(p) * kTwoTo32), kTwoTo32 - 1));
}

void PackArgs(const AttentionSpec& spec, const emit::ParamLayout& layout, const AttentionArgs& args,
              std::byte* params, const plan::CallPlan& call) {
  for (const emit::ParamSlot& slot : layout.slots) {
    const auto put = [&](const auto& value) {
      std::memcpy(params + slot.offset, &value, sizeof(value));
    };
    switch (slot.kind) {
      case emit::ParamSlotKind::kCore:
        put(Core(spec, args));
        break;
      case emit::ParamSlotKind::kGradients:
        put(Gradients(spec, args, call));
        break;
      case emit::ParamSlotKind::kBiasGradient:
        put(BiasGradientOf(spec, spec.bias[slot.index], args.d_bias[slot.index], args));
        break;
      case emit::ParamSlotKind::kAlibiGradient:
        put(AlibiGradient(spec, args));
        break;
      case emit::ParamSlotKind::kSinksGradient:
        put(abi::SinkGradientArgs{args.d_sinks});
        break;
      case emit::ParamSlotKind::kUserArrayGradient:
        put(args.d_snippet_arrays[slot.index]);
        break;
      case emit::ParamSlotKind::kWindow:
        put(abi::WindowArgs{spec.window_left, spec::EffectiveWindowRight(spec)});
        break;
      case emit::ParamSlotKind::kVarlen:
        put(abi::VarlenArgs{args.cu_seqlens_q, args.cu_seqlens_kv, args.seqused_q,
                            args.seqused_kv});
        break;
      case emit::ParamSlotKind::kLeftPadding:
        put(abi::LeftPaddingArgs{args.left_padding});
        break;
      case emit::ParamSlotKind::kCacheSlots:
        put(abi::CacheSlotArgs{args.cache_batch_idx});
        break;
      case emit::ParamSlotKind::kPageTable:
        put(abi::PageTableArgs{args.page_table, args.page_table_stride});
        break;
      case emit::ParamSlotKind::kAlibi:
        put(abi::AlibiArgs{args.alibi_slopes, args.alibi_stride_batch});
        break;
      case emit::ParamSlotKind::kBias:
        put(Bias(spec, spec.bias[slot.index], args.bias[slot.index], args));
        break;
      case emit::ParamSlotKind::kSoftcap:
        put(abi::SoftcapArgs{spec.softcap, 1 / spec.softcap});
        break;
      case emit::ParamSlotKind::kSinks:
        put(abi::SinkArgs{args.sinks});
        break;
      case emit::ParamSlotKind::kBlockMask:
        put(abi::BlockMaskArgs{args.block_mask, args.block_mask_strides[0],
                               args.block_mask_strides[1], args.block_mask_strides[2]});
        break;
      case emit::ParamSlotKind::kQScale:
        put(ScaleToAbi<abi::ScaleArgs>(spec.q_scale, args.q_scale, {0, 0, 0}));
        break;
      case emit::ParamSlotKind::kKScale:
        put(ScaleToAbi<abi::ScaleArgs>(spec.kv_scale, args.k_scale, args.k_scale_strides));
        break;
      case emit::ParamSlotKind::kVScale:
        put(ScaleToAbi<abi::ScaleArgs>(spec.kv_scale, args.v_scale, args.v_scale_strides));
        break;
      case emit::ParamSlotKind::kDropout:
        put(Dropout(spec, args));
        break;
      case emit::ParamSlotKind::kBiasMap:
      case emit::ParamSlotKind::kFwdSm90:
      case emit::ParamSlotKind::kBwdSm90:
      case emit::ParamSlotKind::kDecodeSm90:
        break;  // runtime/pack_sm90.h
      case emit::ParamSlotKind::kUserArray:
        put(args.snippet_arrays[slot.index]);
        break;
      case emit::ParamSlotKind::kUserScalar:
        put(ScalarBits(spec.snippet_scalars[slot.index].type, args.snippet_scalars[slot.index]));
        break;
      case emit::ParamSlotKind::kParts:
        put(Parts(spec, args, call));
        break;
    }
  }
}

}  // namespace tilewright
