// The part of a spec that shapes code.
#ifndef TILEWRIGHT_EMIT_CODE_SPEC_H_
#define TILEWRIGHT_EMIT_CODE_SPEC_H_

#include "plan/kernel_plan.h"
#include "tilewright/attention.h"

namespace tilewright::emit {

// `spec` (canonical) with everything that stays a run-time argument replaced by a placeholder:
// lengths and batch (unless `exact`), head counts (their ratio stays), layout and strides, scale,
// window sizes, softcap, dropout probability, extents of bias terms. Emitting looks at nothing
// else, so specs with equal code specs share a kernel. The result is itself a valid canonical spec.
AttentionSpec CodeSpec(const AttentionSpec& spec);

// `spec` as one kernel of its plan sees it: a companion is no part of what it does not work on, so
// that specs which differ there share it.
AttentionSpec SpecOfKernel(const AttentionSpec& spec, const plan::KernelPlan& kernel);

// How a mask over distances from the diagonal appears in code.
enum class DiagonalMask { kNone, kCausal, kWindow };
DiagonalMask DiagonalMaskOf(const AttentionSpec& spec);

}  // namespace tilewright::emit

#endif  // TILEWRIGHT_EMIT_CODE_SPEC_H_
