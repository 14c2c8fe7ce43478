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

void OfferParts(const PlanRequest& request, int64_t resident, KernelPlan& plan) {
  const AttentionSpec& spec = request.spec;
  constexpr int64_t kMinKeys = 1024;
  const int64_t slots = std::max(request.board.num_sms, 1) * resident;
  const double tiles = static_cast<double>(spec.batch) * static_cast<double>(spec.heads_q) *
                       static_cast<double>(CeilDiv(spec.seqlen_q, plan.block_m));
  if (spec.batch_invariant || spec.seqlen_kv < kMinKeys || 2 * tiles > static_cast<double>(slots)) {
    return;
  }
  plan.split = true;
  plan.slots = static_cast<int>(slots);
  plan.after = {PlanCombine(plan.target, spec.dim_v, tiles < 64 ? 4 : 1)};
}

}  // namespace tilewright::plan
