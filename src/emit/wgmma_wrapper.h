// The text of the warpgroup products of a plan: one function a product, all its steps in one block
// of assembly, which compiles faster than a block for each. Nothing else under src writes assembly.
#ifndef TILEWRIGHT_EMIT_WGMMA_WRAPPER_H_
#define TILEWRIGHT_EMIT_WGMMA_WRAPPER_H_

#include <cstdint>
#include <string_view>

#include "artifact/kernel_source.h"
#include "plan/kernel_plan.h"
#include "tilewright/attention.h"

namespace tilewright::emit {

// Path of the generated header in the kernel's sources.
inline constexpr std::string_view kWgmmaHeader = "generated/wgmma.cuh";

// struct AttentionWgmma for the tile of `plan`. Of attn_fwd_sm90: Scores (S = Q K^T, both operands
// in shared memory) and Values (O += P V, P in registers). Of attn_bwd_sm90: Scores (K Q^T),
// WeightGradients (V dO^T), Dv (P dO) and Dk (dS Q) with the first factor in registers, and
// Dq (dS^T K).
artifact::SourceFile WgmmaHeader(const AttentionSpec& spec, const plan::KernelPlan& plan);

}  // namespace tilewright::emit

#endif  // TILEWRIGHT_EMIT_WGMMA_WRAPPER_H_
