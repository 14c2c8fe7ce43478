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
  for (BiasTerm& term : code.bias) term = BiasTerm{.type = term.type};
  if (!spec.lse) {
    code.lse_base = LseBase::kE;
    code.empty_lse = EmptyLse::kMinusInf;
  }
  // What these ask for is in the plan.
  code.allow_tf32 = false;
  code.batch_invariant = false;
  if (spec.operation == Operation::kForward) code.deterministic = false;
  return code;
}

AttentionSpec SpecOfKernel(const AttentionSpec& spec, const plan::KernelPlan& kernel) {
  if (kernel.family != plan::Family::kCombine) return spec;
  AttentionSpec combine;
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
  return combine;
}

DiagonalMask DiagonalMaskOf(const AttentionSpec& spec) {
  const int64_t right = spec::EffectiveWindowRight(spec);
  if (spec.window_left == -1 && right == -1) return DiagonalMask::kNone;
  if (spec.window_left == -1 && right == 0) return DiagonalMask::kCausal;
  return DiagonalMask::kWindow;
}

}  // namespace tilewright::emit
