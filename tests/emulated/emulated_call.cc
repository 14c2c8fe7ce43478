#include "tests/emulated/emulated_call.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "arch/arch_traits.h"
#include "arch/board_profile.h"
#include "base/status_macros.h"
#include "device/driver_api.h"
#include "emit/code_spec.h"
#include "emit/emit_kernel.h"
#include "emit/param_layout.h"
#include "plan/launch_shape.h"
#include "plan/planner.h"
#include "runtime/pack_args.h"
#include "runtime/pack_sm90.h"
#include "spec/validate.h"
#include "tests/emulated/emulator/tensor_map.h"

namespace tilewright::emulated {
namespace {

// In place of the driver's: a map that the emulator reads. Refuses what the driver refuses.
CUresult EncodeMap(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* base,
                   const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
                   const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                   CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  const auto kind = static_cast<int>(swizzle);  // also how many chunks change places, as log2
  const bool is_half =
      type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const bool is_byte = type == CU_TENSOR_MAP_DATA_TYPE_UINT8;
  bool legal = (is_half || is_byte) && interleave == CU_TENSOR_MAP_INTERLEAVE_NONE && rank >= 1 &&
               rank <= cuda_on_host::kMaxDimensions && kind <= CU_TENSOR_MAP_SWIZZLE_128B &&
               reinterpret_cast<uint64_t>(base) % 16 == 0;
  cuda_on_host::HostTensorMap out;
  out.dimensions = static_cast<uint8_t>(rank);
  out.element_bytes = is_byte ? 1 : 2;
  out.swizzle = static_cast<uint8_t>(kind);
  out.base = reinterpret_cast<uint64_t>(base);
  for (cuuint32_t n = 0; legal && n < rank; ++n) {
    legal = element_strides[n] == 1 && box[n] >= 1 && box[n] <= 256 && extents[n] >= 1;
    out.extents[n] = extents[n];
    out.box[n] = box[n];
    if (n + 1 == rank) continue;
    legal = legal && strides[n] % 16 == 0 && strides[n] < uint64_t{1} << 40;
    out.strides[n] = strides[n];
  }
  if (!legal || out.box[0] * out.element_bytes > (kind == 0 ? 256u : 16u << kind))
    return CUDA_ERROR_INVALID_VALUE;
  std::memset(map, 0, sizeof *map);
  std::memcpy(map, &out, sizeof out);
  return CUDA_SUCCESS;
}

}  // namespace

absl::StatusOr<CallSource> EmitCall(const AttentionSpec& spec, const plan::KernelPlan& plan) {
  CallSource source = {.spec = spec, .plan = plan, .kernels = {}};
  for (const plan::KernelPlan& kernel : plan.Kernels()) {
    TILEWRIGHT_ASSIGN_OR_RETURN(source.kernels.emplace_back(), emit::EmitKernel(spec, kernel));
  }
  return source;
}

std::vector<plan::Family> ForwardFamilies() {
  return {plan::Family::kFwdSimple, plan::Family::kFwdSm80,    plan::Family::kFwdSm90,
          plan::Family::kDecode,    plan::Family::kDecodeWide, plan::Family::kFwdSmall,
          plan::Family::kDecodeSm90};
}

absl::StatusOr<std::vector<plan::KernelPlan>> PlansOf(const AttentionSpec& spec,
                                                      plan::Family family) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const arch::ArchTraits traits, arch::FindArchTraits("sm_90a"));
  TILEWRIGHT_ASSIGN_OR_RETURN(const arch::BoardProfile board, arch::DefaultBoardProfile("sm_90a"));
  TILEWRIGHT_ASSIGN_OR_RETURN(
      plan::Decision decision,
      plan::Best({.spec = spec, .traits = traits, .board = board, .family = family}));
  return std::move(decision.candidates);
}

Call::Call(CallSource source) : source_(std::move(source)) {
  for (const artifact::KernelSource& kernel : source_.kernels) {
    kernels_.push_back(std::make_unique<Kernel>(kernel));
  }
}

std::vector<std::string> Call::Run(AttentionArgs args,
                                   const std::vector<cuda_on_host::MemoryRange>& memory,
                                   int calls) const {
  const AttentionSpec& spec = source_.spec;
  const plan::CallPlan call = plan::PlanCall(source_.plan, spec, args);
  std::vector<std::byte> workspace(call.workspace_bytes + 256, std::byte{0xff});
  args.workspace =
      workspace.data() + (256 - reinterpret_cast<uintptr_t>(workspace.data()) % 256) % 256;
  if (const absl::Status status = spec::ValidateArgs(spec, args); !status.ok()) {
    return {status.ToString()};
  }
  const std::vector<plan::KernelPlan> plans = source_.plan.Kernels();
  std::vector<std::string> faults;
  for (size_t launch = 0; launch < calls * plans.size(); ++launch) {
    const size_t n = launch % plans.size();
    if (!kernels_[n]->error().empty()) return {kernels_[n]->error()};
    const AttentionSpec kernel_spec = emit::SpecOfKernel(spec, plans[n]);
    const emit::ParamLayout layout = emit::MakeParamLayout(kernel_spec, plans[n]);
    alignas(64) std::byte params[kMaxParamBytes];
    PackArgs(kernel_spec, layout, args, params, call);
    device::DriverApi api;
    api.cuTensorMapEncodeTiled = &EncodeMap;
    if (const absl::Status status = PackSm90(api, plans[n], kernel_spec, layout, args, params);
        !status.ok()) {
      return {status.ToString()};
    }
    const plan::LaunchShape shape = plan::ComputeLaunchShape(plans[n], spec, args, call);
    if (shape.grid == 0) continue;
    const uint32_t cluster = static_cast<uint32_t>(std::max(plans[n].cluster, 1));
    const uint32_t clusters = shape.grid / cluster;
    // Shares of a cluster are merged in it if each of its blocks has one.
    const bool merges_in_cluster = plans[n].family == plan::Family::kDecodeSm90 &&
                                   plans[n].cluster > plan::BlocksOfShare(plans[n]);
    const bool walks =
        (plans[n].family != plan::Family::kBwdSm90 || plans[n].max_grid != 0) && !merges_in_cluster;
    const uint32_t launched = walks ? (clusters + 1) / 2 : clusters;
    std::vector<cuda_on_host::MemoryRange> all = memory;
    all.push_back({workspace.data(), workspace.size(), true, "workspace"});
    const std::vector<std::string> found =
        kernels_[n]->Launch(params, layout.size, launched * cluster, static_cast<int>(shape.block),
                            static_cast<int>(cluster), shape.smem_bytes, std::move(all));
    faults.insert(faults.end(), found.begin(), found.end());
  }
  return faults;
}

}  // namespace tilewright::emulated
