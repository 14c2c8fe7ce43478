#include "emit/param_layout.h"

#include "abi/attn_bwd_params.h"
#include "abi/attn_fwd_params.h"
#include "abi/decode_sm90_args.h"
#include "abi/policy_args.h"
#include "abi/tensor_map.h"
#include "emit/code_spec.h"

namespace tilewright::emit {

ParamLayout MakeParamLayout(const AttentionSpec& spec, const plan::KernelPlan& kernel) {
  ParamLayout layout;
  const auto add = [&layout](bool in_use, ParamSlotKind kind, size_t size, int index = 0) {
    // Sizes and alignments are multiples of 8 and 8 (policy_args.h): offsets are prefix sums.
    if (!in_use) return;
    layout.slots.push_back(
        {.kind = kind, .index = index, .offset = layout.size, .size = static_cast<int>(size)});
    layout.size += static_cast<int>(size);
  };
  using Kind = ParamSlotKind;
  add(true, Kind::kCore, sizeof(abi::AttnFwdParams));
  add(spec.operation == Operation::kBackward, Kind::kGradients, sizeof(abi::AttnBwdParams));
  add(DiagonalMaskOf(spec) == DiagonalMask::kWindow, Kind::kWindow, sizeof(abi::WindowArgs));
  add(spec.varlen, Kind::kVarlen, sizeof(abi::VarlenArgs));
  add(spec.page_size != 0, Kind::kPageTable, sizeof(abi::PageTableArgs));
  add(spec.left_padding, Kind::kLeftPadding, sizeof(abi::LeftPaddingArgs));
  add(spec.cache_batch_idx, Kind::kCacheSlots, sizeof(abi::CacheSlotArgs));
  add(spec.alibi, Kind::kAlibi, sizeof(abi::AlibiArgs));
  for (size_t n = 0; n < spec.bias.size(); ++n) {
    add(true, Kind::kBias, sizeof(abi::BiasArgs), static_cast<int>(n));
  }
  add(spec.softcap != 0, Kind::kSoftcap, sizeof(abi::SoftcapArgs));
  add(spec.sinks, Kind::kSinks, sizeof(abi::SinkArgs));
  add(spec.block_mask_q != 0, Kind::kBlockMask, sizeof(abi::BlockMaskArgs));
  add(spec.q_scale != ScaleKind::kNone, Kind::kQScale, sizeof(abi::ScaleArgs));
  add(spec.kv_scale != ScaleKind::kNone, Kind::kKScale, sizeof(abi::ScaleArgs));
  add(spec.kv_scale != ScaleKind::kNone, Kind::kVScale, sizeof(abi::ScaleArgs));
  add(spec.dropout != 0, Kind::kDropout, sizeof(abi::DropoutArgs));
  for (size_t n = 0; n < spec.snippet_arrays.size(); ++n) {
    add(true, Kind::kUserArray, sizeof(void*), static_cast<int>(n));
  }
  for (size_t n = 0; n < spec.snippet_scalars.size(); ++n) {
    add(true, Kind::kUserScalar, sizeof(SnippetValue), static_cast<int>(n));
  }
  if (spec.operation == Operation::kBackward) {
    for (size_t n = 0; n < spec.bias.size(); ++n) {
      add(spec.bias[n].gradient, Kind::kBiasGradient, sizeof(abi::BiasGradientArgs),
          static_cast<int>(n));
    }
    add(spec.alibi_gradient, Kind::kAlibiGradient, sizeof(abi::BiasGradientArgs));
    add(spec.sinks_gradient, Kind::kSinksGradient, sizeof(abi::SinkGradientArgs));
    for (size_t n = 0; n < spec.snippet_arrays.size(); ++n) {
      add(spec.snippet_arrays[n].gradient, Kind::kUserArrayGradient, sizeof(float*),
          static_cast<int>(n));
    }
  }
  add(kernel.split || kernel.family == plan::Family::kCombine, Kind::kParts,
      sizeof(abi::PartsArgs));
  const bool is_fwd_sm90 = kernel.family == plan::Family::kFwdSm90;
  const bool is_bwd_sm90 = kernel.family == plan::Family::kBwdSm90;
  const bool is_decode_sm90 = kernel.family == plan::Family::kDecodeSm90;
  if (is_fwd_sm90 || is_bwd_sm90 || is_decode_sm90) {
    constexpr int kAlign = alignof(abi::TensorMap);
    layout.size = (layout.size + kAlign - 1) / kAlign * kAlign;
    for (int n = 0; n < kernel.staged_terms; ++n) {
      add(is_fwd_sm90, Kind::kBiasMap, sizeof(abi::TensorMap), n);
    }
    add(is_fwd_sm90, Kind::kFwdSm90, sizeof(abi::FwdSm90Args));
    add(is_bwd_sm90, Kind::kBwdSm90, sizeof(abi::BwdSm90Args));
    add(is_decode_sm90, Kind::kDecodeSm90, sizeof(abi::DecodeSm90Args));
  }
  return layout;
}

}  // namespace tilewright::emit
