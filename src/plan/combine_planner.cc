// attn_combine: merges what the parts of a split plan have left in the workspace.
#include <algorithm>
#include <cstdint>
#include <string>

#include "plan/family_planner.h"

namespace tilewright::plan {
namespace {

constexpr int kWarps = 4;

// combine::kPanel of the kernel.
int64_t Panel(int64_t dim_v) { return CeilDiv(std::min<int64_t>(dim_v, 512), 32) * 32; }

}  // namespace

int64_t CombineSmemBytes(int warps, int warps_per_row, int64_t dim_v) {
  return 4 * (warps_per_row > 1 ? warps * (Panel(dim_v) + 1) : 1);
}

KernelPlan PlanCombine(const std::string& target, int64_t dim_v, int warps_per_row) {
  KernelPlan plan;
  plan.family = Family::kCombine;
  plan.target = target;
  plan.warps = kWarps;
  plan.block_m = kWarps / warps_per_row;
  plan.split = true;
  plan.smem_bytes = CombineSmemBytes(kWarps, warps_per_row, dim_v);
  return plan;
}

}  // namespace tilewright::plan
