#include "emit/code_spec.h"

#include "spec/validate.h"

namespace tilewright::emit {

AttentionSpec CodeSpec(const AttentionSpec& spec) {
  AttentionSpec code = spec;
  code.heads_q = spec::GroupSize(spec);
  code.heads_kv = 1;
  if (!spec.exact) {
    code.batch = 1;
    code.seqlen_q = 1;
    code.seqlen_kv = 1;
  }
  code.layout = Layout::kBshd;
  code.strides.reset();
  // Only its sign is seen: see policy/score_unfolded.cuh.
  code.scale.reset();
  if (spec::EffectiveScale(spec) <= 0) code.scale = -1.f;
  const DiagonalMask diagonal = DiagonalMaskOf(spec);
  code.causal = diagonal == DiagonalMask::kCausal;
  code.window_left = diagonal == DiagonalMask::kWindow ? 1 : -1;
  code.window_right = code.window_left;
  if (diagonal == DiagonalMask::kNone && !spec.alibi) code.align = MaskAlign::kBottomRight;
  if (spec.softcap != 0) code.softcap = 1;
  const bool has_bias = !spec.bias.empty() || spec.alibi;
  code.softcap_before_bias = spec.softcap_before_bias && spec.softcap != 0 && has_bias;
  if (spec.dropout != 0) code.dropout = 0.5f;
  for (BiasTerm& term : code.bias) term = {.type = term.type, .gradient = term.gradient};
  if (!spec.lse && spec.operation == Operation::kForward) {
    code.lse_base = LseBase::kE;
    code.empty_lse = EmptyLse::kMinusInf;
  }
  // What these ask for is in the plan.
  code.allow_tf32 = false;
  code.batch_invariant = false;
  if (spec.operation == Operation::kForward) code.deterministic = false;
  return code;
}

namespace {

// Neither masks nor scores, but what of them attn_bwd_prep clears the gradients of.
AttentionSpec SpecOfBwdCompanion(const AttentionSpec& spec, const plan::KernelPlan& kernel) {
  AttentionSpec companion;
  companion.operation = Operation::kBackward;
  companion.type = spec.type;
  companion.batch = spec.batch;
  companion.heads_q = companion.heads_kv = spec.heads_q;
  companion.seqlen_q = spec.seqlen_q;
  companion.dim_qk = spec.dim_qk;
  companion.varlen = spec.varlen;
  if (kernel.family == plan::Family::kBwdFinish) {
    companion.scale = spec.scale;
    companion.dim_v = spec.dim_qk;
    return companion;
  }
  companion.dim_v = spec.dim_v;
  companion.strided_innermost = spec.strided_innermost;
  companion.lse_base = spec.lse_base;
  companion.empty_lse = spec.empty_lse;
  const bool has_sums = kernel.block_m != 0;
  if (!has_sums) companion.dim_qk = 1;
  companion.deterministic = has_sums && spec.deterministic;
  if (!has_sums || spec.deterministic) return companion;
  companion.alibi = companion.alibi_gradient = spec.alibi_gradient;
  companion.seqlen_kv = spec.seqlen_kv;
  // All of them: a slot's index is that of the term in the call.
  companion.bias = spec.bias;
  return companion;
}

}  // namespace

AttentionSpec SpecOfKernel(const AttentionSpec& spec, const plan::KernelPlan& kernel) {
  switch (kernel.family) {
    case plan::Family::kBwdPrep:
    case plan::Family::kBwdFinish:
      return SpecOfBwdCompanion(spec, kernel);
    case plan::Family::kBwdSimple:
    case plan::Family::kBwdTerms: {
      AttentionSpec simple = spec;
      simple.deterministic = false;  // it always is
      return simple;
    }
    case plan::Family::kBwdSm90:
    case plan::Family::kBwdSm80: {
      AttentionSpec tensors = spec;
      tensors.sinks_gradient = false;  // attn_bwd_terms
      if (spec.deterministic) {
        tensors.alibi_gradient = false;
        for (BiasTerm& term : tensors.bias) term.gradient = false;
      }
      return tensors;
    }
    case plan::Family::kDecodeSm90:
    case plan::Family::kDecode:
    case plan::Family::kDecodeWide:
    case plan::Family::kFwdSmall:
    case plan::Family::kFwdSm90:
    case plan::Family::kFwdSm80:
    case plan::Family::kFwdSimple:
    case plan::Family::kCacheAppend:
      return spec;
    case plan::Family::kCombine:
      if (!kernel.split) return spec;
      break;
  }
  AttentionSpec combine;
  combine.kv_type = ElementType::kFp32;
  combine.type = spec::OutType(spec);
  combine.batch = spec.batch;
  combine.heads_q = combine.heads_kv = spec.heads_q;
  combine.seqlen_q = spec.seqlen_q;
  combine.dim_qk = combine.dim_v = spec.dim_v;
  combine.sinks = spec.sinks;
  combine.varlen = spec.varlen;
  combine.lse = spec.lse;
  combine.lse_base = spec.lse_base;
  combine.empty_lse = spec.empty_lse;
  if (kernel.tile_rows != 0) {
    // It finds the parts where attn_decode has put them, which depends on the keys that rows see.
    combine.heads_kv = spec.heads_kv;
    combine.causal = spec.causal;
    combine.align = spec.align;
    combine.window_left = spec.window_left;
    combine.window_right = spec.window_right;
    combine.left_padding = spec.left_padding;
    combine.seqlen_kv = spec.seqlen_kv;
    combine.exact = spec.exact;
  }
  return combine;
}

DiagonalMask DiagonalMaskOf(const AttentionSpec& spec) {
  const int64_t right = spec::EffectiveWindowRight(spec);
  if (spec.window_left == -1 && right == -1) return DiagonalMask::kNone;
  if (spec.window_left == -1 && right == 0) return DiagonalMask::kCausal;
  return DiagonalMask::kWindow;
}

}  // namespace tilewright::emit
