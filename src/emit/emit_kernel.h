// (spec, plan) -> the kernel's source. Deterministic: equal inputs give equal bytes in any process.
#ifndef TILEWRIGHT_EMIT_EMIT_KERNEL_H_
#define TILEWRIGHT_EMIT_EMIT_KERNEL_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "artifact/kernel_source.h"
#include "plan/kernel_plan.h"
#include "tilewright/attention.h"

namespace tilewright::emit {

// Of one kernel of the plan of `spec` (KernelPlan::Kernels; followers are not looked at). `spec` is
// canonical and valid, `plan` feasible for it. What stays a run-time argument (lengths,
// batch, strides, scale, window sizes, softcap, dropout probability) does not appear in the text.
absl::StatusOr<artifact::KernelSource> EmitKernel(const AttentionSpec& spec,
                                                  const plan::KernelPlan& plan);

// The file that EmitKernel's text begins with, relative to kernel_templates/:
// "family/attn_fwd_sm90.cuh". Empty for a family that it does not emit.
std::string_view TemplateFileOf(const plan::KernelPlan& plan);

}  // namespace tilewright::emit

#endif  // TILEWRIGHT_EMIT_EMIT_KERNEL_H_
