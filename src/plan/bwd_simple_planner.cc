// attn_bwd_simple: no tensor cores, every feature of the backward but pages and 8-bit types, any
// architecture; attn_bwd_prep, which every backward begins with; and attn_bwd_terms, which is
// attn_bwd_simple for the gradients that other families leave out.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "plan/family_planner.h"
#include "spec/canonical.h"
#include "spec/validate.h"

namespace tilewright::plan {
namespace {

constexpr int kWarps = 4;
constexpr int kLanes = 32;
constexpr int kMaxPanel = 128;
// 4 rows a warp, fewer where they do not fit shared memory: wide heads.
constexpr int kRowsChoices[] = {4, 2, 1};

KernelPlan MakePlan(Family family, const PlanRequest& request, int rows_per_warp) {
  const AttentionSpec& spec = request.spec;
  KernelPlan plan;
  plan.family = family;
  plan.target = std::string(request.traits.target);
  plan.block_m = kWarps * rows_per_warp;
  plan.block_n = kLanes;
  plan.warps = kWarps;
  plan.rows_per_warp = rows_per_warp;
  plan.panel = static_cast<int>(
      std::min<int64_t>(kMaxPanel, RoundUp(std::max(spec.dim_qk, spec.dim_v), kLanes)));
  plan.smem_bytes = BwdSimpleSmemBytes(plan.block_m, spec.dim_qk, spec.dim_v, plan.panel);
  return plan;
}

// The most rows that fit; the last choice when none does.
KernelPlan WidestPlan(Family family, const PlanRequest& request) {
  for (int rows : kRowsChoices) {
    KernelPlan plan = MakePlan(family, request, rows);
    if (plan.smem_bytes <= request.traits.smem_per_block_optin) return plan;
  }
  return MakePlan(family, request, 1);
}

}  // namespace

int64_t BwdSimpleSmemBytes(int block_m, int64_t dim_qk, int64_t dim_v, int panel) {
  const int64_t own = block_m * (RoundUp(dim_qk, 4) + RoundUp(dim_v, 4));
  return (own + kLanes * (panel + 4)) * int64_t{sizeof(float)};
}

KernelPlan PlanBwdTerms(const PlanRequest& request) {
  return WidestPlan(Family::kBwdTerms, request);
}

KernelPlan PlanBwdPrep(const std::string& target, int block_m) {
  KernelPlan plan;
  plan.family = Family::kBwdPrep;
  plan.target = target;
  plan.warps = kWarps;
  plan.block_m = block_m;
  plan.smem_bytes = sizeof(float);
  return plan;
}

FamilyAnswer PlanBwdSimple(const PlanRequest& request) {
  const AttentionSpec& spec = request.spec;
  FamilyAnswer answer;
  AttentionSpec nearest = spec;
  const bool is_float = spec.type == ElementType::kFp16 || spec.type == ElementType::kBf16 ||
                        spec.type == ElementType::kFp32;
  if (spec.operation != Operation::kBackward) {
    answer.refusal = "operation = fwd: only the backward is served";
    nearest.operation = Operation::kBackward;
  } else if (!is_float || spec::KvType(spec) != spec.type || spec::OutType(spec) != spec.type) {
    answer.refusal =
        absl::StrCat("type, kv_type, out_type = ", std::string(spec::ElementTypeName(spec.type)),
                     ", ", std::string(spec::ElementTypeName(spec::KvType(spec))), ", ",
                     std::string(spec::ElementTypeName(spec::OutType(spec))),
                     ": a backward needs fp16, bf16 or fp32, all the same");
    if (!is_float) nearest.type = ElementType::kBf16;
    nearest.kv_type.reset();
    nearest.out_type.reset();
    nearest.q_scale = nearest.kv_scale = ScaleKind::kNone;
  } else if (spec.page_size != 0) {
    answer.refusal = absl::StrCat("page_size = ", spec.page_size,
                                  ": a backward needs K and V that are not paged");
    nearest.page_size = 0;
  } else {
    KernelPlan plan = WidestPlan(Family::kBwdSimple, request);
    const int64_t smem = request.traits.smem_per_block_optin;
    if (plan.smem_bytes <= smem) {
      plan.before = {PlanBwdPrep(plan.target, /*block_m=*/0)};
      answer.why = absl::StrCat(plan.rows_per_warp, " rows per warp are the most that fit");
      answer.plans = {std::move(plan)};
      return answer;
    }
    const int64_t floats = smem / int64_t{sizeof(float)} - kLanes * (kMaxPanel + 4);
    answer.refusal = absl::StrCat("dim_qk, dim_v = ", spec.dim_qk, ", ", spec.dim_v,
                                  ": their sum must be at most ", floats / kWarps / 8 * 8, " on ",
                                  std::string(request.traits.target));
    nearest.dim_qk = std::min(spec.dim_qk, floats / kWarps / 16 * 8);
    nearest.dim_v = std::min(spec.dim_v, floats / kWarps / 16 * 8);
  }
  answer.nearest = std::move(nearest);
  return answer;
}

}  // namespace tilewright::plan
