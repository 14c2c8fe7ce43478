// Where each argument lies in the parameters of a kernel: the one place that the emitter (which
// writes struct Params) and the runtime (which fills its bytes) both look at.
#ifndef TILEWRIGHT_EMIT_PARAM_LAYOUT_H_
#define TILEWRIGHT_EMIT_PARAM_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "plan/kernel_plan.h"
#include "tilewright/attention.h"

namespace tilewright::emit {

enum class ParamSlotKind {
  kCore,       // abi::AttnFwdParams, always first
  kGradients,  // abi::AttnBwdParams
  kWindow,     // abi::WindowArgs
  kVarlen,     // abi::VarlenArgs
  kPageTable,  // abi::PageTableArgs
  kLeftPadding,
  kCacheSlots,
  kAlibi,
  kBias,  // one per term, additive and bool, `index` is the term
  kSoftcap,
  kSinks,
  kBlockMask,
  kQScale,  // abi::ScaleArgs
  kKScale,
  kVScale,
  kDropout,
  kUserArray,     // one pointer, `index` is the array
  kBiasGradient,  // abi::BiasGradientArgs, one per term with a gradient, `index` is the term
  kAlibiGradient,
  kSinksGradient,
  kUserArrayGradient,  // one pointer, `index` is the array
  kUserScalar,         // 8 bytes: float in the low four, or int64
  kParts,              // abi::PartsArgs
  kBiasMap,     // abi::TensorMap on a multiple of 64, one per staged term, `index` is the term
  kFwdSm90,     // abi::FwdSm90Args, on a multiple of 64
  kBwdSm90,     // abi::BwdSm90Args, likewise
  kDecodeSm90,  // abi::DecodeSm90Args, likewise
};

struct ParamSlot {
  ParamSlotKind kind;
  int index = 0;
  int offset = 0;
  int size = 0;
};

struct ParamLayout {
  std::vector<ParamSlot> slots;
  int size = 0;  // bytes of struct Params; at most 4096
};

// `spec` is SpecOfKernel of the kernel; the default stands for every kernel whose parameters follow
// from the spec alone.
ParamLayout MakeParamLayout(const AttentionSpec& spec,
                            const plan::KernelPlan& kernel = plan::KernelPlan());

}  // namespace tilewright::emit

#endif  // TILEWRIGHT_EMIT_PARAM_LAYOUT_H_
