// attn_fwd_simple: no tensor cores, every feature of the forward, any architecture.
//
// A block of kWarps warps owns block_m = kWarps * rows_per_warp query rows of one (b, h) and walks
// the keys 32 at a time, lane <-> key. Each row's output is summed in registers, ceil(dim_v / 32)
// floats a lane. The only choice is rows_per_warp: more rows share the work of bringing K and V to
// shared memory, fewer give more blocks and need less of everything.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "plan/family_planner.h"

namespace tilewright::plan {
namespace {

constexpr int kWarps = 4;
constexpr int kBlockN = 32;
constexpr int kMaxPanel = 128;
constexpr int kRowsChoices[] = {4, 2, 1};

// Registers of a lane that may hold sums of the output. Several rows stay far below what registers
// allow, as every row is unrolled: 8 rows of 128 columns compile in 1.6 times the time of 4 (NVRTC
// 13.0), for a family whose first answer counts. One row may need up to 189 and does not spill.
constexpr int64_t kMaxAccumulators = 32;
constexpr int64_t kMaxAccumulatorsOneRow = 128;

int64_t Accumulators(int rows_per_warp, int64_t dim_v) {
  return rows_per_warp * CeilDiv(dim_v, kBlockN);
}

// The product of sizes >= 1, at most 2^62.
int64_t SaturatingProduct(int64_t a, int64_t b) {
  int64_t product = 0;
  constexpr int64_t kMax = int64_t{1} << 62;
  return __builtin_mul_overflow(a, b, &product) ? kMax : std::min(product, kMax);
}

struct Candidate {
  KernelPlan plan;
  double cost = 0;
  int64_t blocks = 0;
};

// Relative time of a launch. Counts of instructions a lane spends per key and column: about 3 to
// bring K or V through global and shared memory and synchronise, 1.5 for each row that uses it.
// An SM needs about 8 resident warps to hide the latency of shared memory. Estimates, not
// measurements: they rank four candidates.
double Cost(const PlanRequest& request, const KernelPlan& plan, int64_t blocks) {
  const arch::ArchTraits& traits = request.traits;
  constexpr double kCostOfKeys = 3;
  constexpr double kCostOfRow = 1.5;
  constexpr double kWarpsToHideLatency = 8;
  const int64_t num_sms = std::max(request.board.num_sms, 1);
  // Registers (190 a lane at most) and the limits on warps and blocks always leave room for two.
  const int64_t resident =
      std::max<int64_t>(1, traits.smem_per_sm / (plan.smem_bytes + traits.smem_reserved_per_block));
  const int64_t blocks_per_sm = CeilDiv(blocks, num_sms);
  const double warps = static_cast<double>(std::min(blocks_per_sm, resident) * plan.warps);
  const double hidden = std::min(1.0, warps / kWarpsToHideLatency);
  return static_cast<double>(blocks_per_sm) * (kCostOfKeys + kCostOfRow * plan.rows_per_warp) /
         hidden;
}

KernelPlan MakePlan(const PlanRequest& request, int rows_per_warp) {
  const int64_t widest = std::max(request.spec.dim_qk, request.spec.dim_v);
  KernelPlan plan;
  plan.family = Family::kFwdSimple;
  plan.target = std::string(request.traits.target);
  plan.block_m = kWarps * rows_per_warp;
  plan.block_n = kBlockN;
  plan.warps = kWarps;
  plan.rows_per_warp = rows_per_warp;
  plan.panel = static_cast<int>(std::min<int64_t>(kMaxPanel, RoundUp(widest, 4)));
  plan.smem_bytes = FwdSimpleSmemBytes(plan.block_m, request.spec.dim_qk, plan.panel);
  return plan;
}

// Why no plan exists when even one row per warp does not fit.
FamilyAnswer Refuse(const PlanRequest& request) {
  const AttentionSpec& spec = request.spec;
  FamilyAnswer answer;
  AttentionSpec nearest = spec;
  const int64_t max_dim_v = kMaxAccumulatorsOneRow * kBlockN;
  if (spec.dim_v > max_dim_v) {
    answer.refusal = absl::StrCat("dim_v = ", spec.dim_v, ": must be at most ", max_dim_v,
                                  ", a row's output is kept in the registers of one warp");
    nearest.dim_v = max_dim_v;
  }
  // The panel is at its widest whenever shared memory is short.
  const int64_t smem = request.traits.smem_per_block_optin;
  const int64_t max_dim_qk =
      (smem - FwdSimpleSmemBytes(0, 0, kMaxPanel)) / (kWarps * 4 * int64_t{sizeof(float)}) * 4;
  if (spec.dim_qk > max_dim_qk) {
    absl::StrAppend(&answer.refusal, answer.refusal.empty() ? "" : "; ", "dim_qk = ", spec.dim_qk,
                    ": must be at most ", max_dim_qk, " on ", std::string(request.traits.target),
                    ", ", kWarps, " rows of Q are kept in ", smem, " bytes of shared memory");
    nearest.dim_qk = max_dim_qk;
  }
  answer.nearest = std::move(nearest);
  return answer;
}

}  // namespace

int64_t FwdSimpleSmemBytes(int block_m, int64_t dim_qk, int panel) {
  const int64_t q = block_m * RoundUp(dim_qk, 4);
  const int64_t kv = int64_t{kBlockN} * (panel + 4);
  return (q + kv) * int64_t{sizeof(float)};
}

FamilyAnswer PlanFwdSimple(const PlanRequest& request) {
  const AttentionSpec& spec = request.spec;
  FamilyAnswer answer;
  if (spec.operation != Operation::kForward) {
    answer.refusal = "operation = bwd: only the forward is served";
    answer.nearest = spec;
    answer.nearest->operation = Operation::kForward;
    return answer;
  }
  std::vector<Candidate> candidates;
  for (int rows : kRowsChoices) {
    const int64_t accumulators = Accumulators(rows, spec.dim_v);
    if (accumulators > (rows == 1 ? kMaxAccumulatorsOneRow : kMaxAccumulators)) continue;
    // Rows beyond the last query are computed in vain: none when half of them suffice.
    if (rows > 1 && kWarps * rows / 2 >= std::max<int64_t>(spec.seqlen_q, 1)) continue;
    Candidate candidate{.plan = MakePlan(request, rows)};
    if (candidate.plan.smem_bytes > request.traits.smem_per_block_optin) continue;
    candidate.blocks = SaturatingProduct(
        SaturatingProduct(std::max<int64_t>(spec.batch, 1), std::max<int64_t>(spec.heads_q, 1)),
        CeilDiv(std::max<int64_t>(spec.seqlen_q, 1), candidate.plan.block_m));
    candidate.cost = Cost(request, candidate.plan, candidate.blocks);
    candidates.push_back(std::move(candidate));
  }
  if (candidates.empty()) return Refuse(request);
  // Stable: of equal candidates the one with more rows stays first.
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; });
  const Candidate& best = candidates.front();
  answer.why =
      absl::StrCat(best.plan.rows_per_warp, " rows per warp give ", best.blocks, " blocks for the ",
                   request.board.num_sms, " SMs of ", request.board.name);
  for (Candidate& candidate : candidates) answer.plans.push_back(std::move(candidate.plan));
  return answer;
}

}  // namespace tilewright::plan
