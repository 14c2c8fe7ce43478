// attn_bwd_sm80: the backward on mma.sync, with attn_bwd_prep before it and attn_bwd_finish after
// it.
//
// What a lane holds all along are the sums of dK and dV, kBlockN * (dim_qk + dim_v) floats over all
// lanes; S and dP come on top for the length of a step. Eight warps share keys 4 ways and rows or
// columns 2 ways, so that every product has square tiles and shared memory is read least.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plan/family_planner.h"
#include "spec/validate.h"

namespace tilewright::plan {
namespace {

constexpr int64_t kMaxDim = 256;
// Of two blocks of 256 threads on a multiprocessor: what ptxas finds room for in 128 registers.
constexpr int64_t kSharedAccumulators = 72;

struct Tiles {
  int block_m;
  int block_n;
  int warps;
  int key_warps;
  int dq_row_warps;
  int stages;
};

// In order of preference: the larger tile reads less of shared memory for each product and passes
// fewer barriers.
constexpr Tiles kChoices[] = {
    {128, 128, 8, 4, 4, 2}, {64, 128, 8, 4, 2, 2}, {64, 128, 8, 4, 2, 1}, {64, 64, 8, 4, 4, 2},
    {64, 64, 8, 4, 4, 1},   {64, 64, 4, 2, 2, 2},  {64, 64, 4, 2, 2, 1},  {32, 64, 8, 4, 2, 2},
    {32, 64, 8, 4, 2, 1},   {32, 64, 4, 2, 2, 1},  {32, 32, 4, 2, 2, 1},
};

// Pitch of kernel_templates/mma/tile_copy.cuh.
int64_t Pitch(int64_t columns) { return 8 * (RoundUp(columns, 8) / 8 | 1); }

// Whether a pair's gradient needs more than its weight.
bool HasScorePolicies(const AttentionSpec& spec) {
  return spec.softcap != 0 || spec.alibi || !spec.bias.empty() || !spec.score_snippet.empty() ||
         spec.dropout != 0;
}

// Registers of a lane for sums and for one step.
int64_t Accumulators(const AttentionSpec& spec, const Tiles& tiles) {
  const int split = tiles.warps / tiles.key_warps;
  const int64_t keys = tiles.block_n / tiles.key_warps;
  const int64_t columns =
      8 * (CeilDiv(CeilDiv(spec.dim_qk, 8), split) + CeilDiv(CeilDiv(spec.dim_v, 8), split));
  const int64_t rows = tiles.block_m / split;
  // S and dP, and with policies what they depend on.
  const int64_t per_pair = HasScorePolicies(spec) ? 3 : 2;
  return keys * (columns + per_pair * rows) / 32;
}

// Whether scores are products and one bias, to whose gradient pairs add.
bool AddsToOneBias(const AttentionSpec& spec) {
  return spec.bias.size() == 1 && spec.bias[0].gradient && !spec.deterministic &&
         spec.softcap == 0 && !spec.alibi && spec.score_snippet.empty() &&
         spec.mask_snippet.empty() && spec.dropout == 0 && spec.block_mask_q == 0 && !spec.varlen;
}

// Whether three blocks of four warps have registers enough, 168 a thread. Found by compiling (NVRTC
// 13.0, sm_90a): masks, sizes that are baked in and odd dims need more.
bool FewPerThread(const AttentionSpec& spec) {
  return spec.dim_qk <= 32 && spec.dim_v <= 32 && spec.dim_qk % 8 == 0 && spec.dim_v % 8 == 0 &&
         !spec.exact && spec.window_left < 0 && spec::EffectiveWindowRight(spec) < 0;
}

// Fills `refusal` and, where one change would do, `nearest`.
FamilyAnswer Refuse(const PlanRequest& request) {
  const AttentionSpec& spec = request.spec;
  const std::string target(request.traits.target);
  FamilyAnswer answer;
  AttentionSpec nearest = spec;
  if (!request.traits.has_cp_async || !request.traits.has_bf16_mma) {
    answer.refusal = absl::StrCat(target, " has no cp.async and no mma.m16n8k16");
    return answer;
  }
  answer.refusal = RefuseBackwardOnTensorCores(spec, nearest);
  if (!answer.refusal.empty()) {
    answer.nearest = std::move(nearest);
    return answer;
  }
  if (spec.dim_qk > kMaxDim || spec.dim_v > kMaxDim) {
    answer.refusal = absl::StrCat("dim_qk, dim_v = ", spec.dim_qk, ", ", spec.dim_v,
                                  ": must be at most ", kMaxDim);
    nearest.dim_qk = std::min(spec.dim_qk, kMaxDim);
    nearest.dim_v = std::min(spec.dim_v, kMaxDim);
  } else {
    return answer;
  }
  answer.nearest = std::move(nearest);
  return answer;
}

}  // namespace

std::string RefuseBackwardOnTensorCores(const AttentionSpec& spec, AttentionSpec& nearest) {
  if (spec.operation != Operation::kBackward) {
    nearest.operation = Operation::kBackward;
    return "operation = fwd: only the backward is served";
  }
  if (!HasOneHalfType(spec)) {
    nearest.type = IsHalf(spec.type) ? spec.type : ElementType::kBf16;
    nearest.kv_type.reset();
    nearest.out_type.reset();
    nearest.q_scale = nearest.kv_scale = ScaleKind::kNone;
    return "the types of Q, K, V and O must be fp16 or bf16, all the same";
  }
  if (spec.page_size != 0) {
    nearest.page_size = 0;
    return absl::StrCat("page_size = ", spec.page_size,
                        ": a backward needs K and V that are not paged");
  }
  if (spec.strided_innermost) {
    nearest.strided_innermost = false;
    return "strided_innermost: rows must be contiguous";
  }
  return "";
}

KernelPlan PlanBwdFinish(const std::string& target, int block_m) {
  KernelPlan plan;
  plan.family = Family::kBwdFinish;
  plan.target = target;
  plan.warps = 4;
  plan.block_m = block_m;
  plan.smem_bytes = sizeof(float);
  return plan;
}

int64_t BwdSm80SmemBytes(int block_m, int block_n, int stages, int64_t dim_qk, int64_t dim_v) {
  const int64_t row = 2 * (Pitch(RoundUp(dim_qk, 16)) + Pitch(RoundUp(dim_v, 16)));
  // P, and a dS a stage.
  const int64_t operands = (1 + int64_t{stages}) * block_n * Pitch(block_m) * 2;
  constexpr int64_t kRowStats = 8, kKeyColumns = 4, kWork = 16;
  return (block_n + int64_t{stages} * block_m) * row + operands +
         int64_t{stages} * block_m * (kRowStats + kKeyColumns) + kWork;
}

FamilyAnswer PlanBwdSm80(const PlanRequest& request) {
  FamilyAnswer answer = Refuse(request);
  if (!answer.refusal.empty()) return answer;
  const AttentionSpec& spec = request.spec;
  // Found by compiling (NVRTC 13.0, sm_90a): with more than these ptxas spills.
  const int64_t max_accumulators = HasScorePolicies(spec) ? 140 : 200;
  const bool adds_to_bias = AddsToOneBias(spec);
  for (const Tiles& tiles : kChoices) {
    // Additions to a bias are waited for: blocks of four warps, of which there are two or three on
    // a multiprocessor, are quicker than the larger tile (bench/NOTES.md).
    const bool first = adds_to_bias && tiles.block_m == 64 && tiles.warps == 4 && tiles.stages == 2;
    const int64_t smem =
        BwdSm80SmemBytes(tiles.block_m, tiles.block_n, tiles.stages, spec.dim_qk, spec.dim_v);
    if (smem > request.traits.smem_per_block_optin) continue;
    if (Accumulators(spec, tiles) > max_accumulators) continue;
    // Eight warps and the widest heads leave too little for dQ.
    if (tiles.warps == 8 && spec.dim_qk + spec.dim_v > 480) continue;
    const auto blocks_fit = [&](int64_t blocks) {
      return blocks * (smem + request.traits.smem_reserved_per_block) <= request.traits.smem_per_sm;
    };
    // Additions to a bias are waited for, and another block may fill the time: for tuning to find
    // out.
    const bool share = adds_to_bias && tiles.warps == 8 && tiles.stages == 1 &&
                       Accumulators(spec, tiles) <= kSharedAccumulators && blocks_fit(2);
    KernelPlan plan;
    plan.family = Family::kBwdSm80;
    plan.target = std::string(request.traits.target);
    plan.block_m = tiles.block_m;
    plan.block_n = tiles.block_n;
    plan.warps = tiles.warps;
    plan.key_warps = tiles.key_warps;
    plan.dq_row_warps = tiles.dq_row_warps;
    plan.stages = tiles.stages;
    plan.smem_bytes = smem;
    if (share) plan.blocks = 2;
    if (first && FewPerThread(spec) && blocks_fit(3)) plan.blocks = 3;
    plan.before = {PlanBwdPrep(plan.target, plan.block_m)};
    plan.after = {PlanBwdFinish(plan.target, plan.block_m)};
    const bool has_terms =
        spec.alibi_gradient || std::any_of(spec.bias.begin(), spec.bias.end(),
                                           [](const BiasTerm& term) { return term.gradient; });
    if (spec.sinks_gradient || (spec.deterministic && has_terms)) {
      plan.after.push_back(PlanBwdTerms(request));
    }
    answer.plans.insert(first ? answer.plans.begin() : answer.plans.end(), std::move(plan));
  }
  if (answer.plans.empty()) {
    answer.refusal =
        absl::StrCat("no tile of dim_qk, dim_v = ", spec.dim_qk, ", ", spec.dim_v, " fits ",
                     request.traits.smem_per_block_optin, " bytes of shared memory on ",
                     std::string(request.traits.target));
    return answer;
  }
  const KernelPlan& best = answer.plans.front();
  answer.why = absl::StrCat(
      "tiles of ", best.block_m, " rows and ", best.block_n, " keys in ", best.warps, " warps ",
      adds_to_bias && best.warps == 4
          ? std::string("share a multiprocessor, for additions to a bias are "
                        "waited for")
          : absl::StrCat("are the largest of ", answer.plans.size(), " that fit"));
  return answer;
}

}  // namespace tilewright::plan
