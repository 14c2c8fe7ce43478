#include "plan/kernel_plan.h"

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

}  // namespace tilewright::plan
