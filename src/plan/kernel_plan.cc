#include "plan/kernel_plan.h"

#include <cstdio>

#include "absl/strings/str_cat.h"

namespace tilewright::plan {

std::string_view FamilyName(Family family) {
  switch (family) {
    case Family::kFwdSimple:
      return "attn_fwd_simple";
  }
  return "unknown";
}

std::string KernelPlan::ToString() const {
  return absl::StrCat(std::string(FamilyName(family)), " ", target, " m", block_m, "n", block_n,
                      " w", warps, " r", rows_per_warp, " p", panel, " smem=", smem_bytes);
}

absl::StatusOr<KernelPlan> ParsePlan(std::string_view text) {
  const std::string whole(text);
  KernelPlan plan;
  char family[32] = {}, target[16] = {};
  long long smem_bytes = 0;
  std::sscanf(whole.c_str(), "%31s %15s m%dn%d w%d r%d p%d smem=%lld", family, target,
              &plan.block_m, &plan.block_n, &plan.warps, &plan.rows_per_warp, &plan.panel,
              &smem_bytes);
  plan.target = target;
  plan.smem_bytes = smem_bytes;
  if (family == FamilyName(plan.family) && plan.ToString() == whole) return plan;
  return absl::InvalidArgumentError(
      absl::StrCat("plan = \"", whole,
                   "\": must be a plan as `explain` prints it, such as \"attn_fwd_simple sm_90a "
                   "m32n32 w4 r8 p128 smem=33280\""));
}

}  // namespace tilewright::plan
