// attn_bwd_sm90: the backward on Hopper's warpgroup products, with attn_bwd_prep before it and
// attn_bwd_finish after it.
//
// As many blocks as the board has multiprocessors walk over tiles of keys, with K of the next tile
// loaded beside that of this one.
//
// A thread holds the sums of dK and dV of 64 keys all along, (dim_qk + dim_v) / 2 registers, and
// block_m of S and dP; together at most 192, the rest is addresses and what is packed. Wider heads
// have a kernel in which one warpgroup makes dV and the other dK, of the same 64 keys. Two
// warpgroups share dQ by its rows where there are 128, and by its columns where there are 64 rows.
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

constexpr int kConsumers = 2;
constexpr int kStages = 2;
constexpr int kDsStages = 2;
constexpr int kStatsStages = 2;
constexpr int64_t kPanelColumns = 64;
constexpr int64_t kPanelRowBytes = 128;
constexpr int64_t kSharedAlignment = 1024;
constexpr int64_t kMaxDim = 128;
constexpr int64_t kMaxWideDim = 256;
constexpr int kWideTile = 64;  // keys and rows

// Whether a warpgroup can hold the sums of dK and dV of 64 keys of its own. Tiles of 128 rows leave
// shared memory for one panel of V.
bool FitsOneWarpgroup(const AttentionSpec& spec) {
  return spec.dim_qk <= kMaxDim &&
         spec.dim_v <= (spec.dim_qk > kPanelColumns ? kMaxDim : kPanelColumns);
}

// Fills `refusal` and, where one change would do, `nearest`.
FamilyAnswer Refuse(const PlanRequest& request) {
  const AttentionSpec& spec = request.spec;
  FamilyAnswer answer;
  AttentionSpec nearest = spec;
  if (!request.traits.has_wgmma) {
    answer.refusal = absl::StrCat(std::string(request.traits.target), " has no wgmma.mma_async");
    return answer;
  }
  answer.refusal = RefuseBackwardOnTensorCores(spec, nearest);
  if (!answer.refusal.empty()) {
    answer.nearest = std::move(nearest);
    return answer;
  }
  if (spec.varlen) {
    answer.refusal = "varlen: tensor maps end where the longest sequence does";
    nearest.varlen = false;
  } else if (spec.dropout != 0) {
    answer.refusal = "dropout: its random words leave no registers for these tiles";
    nearest.dropout = 0;
  } else if (spec.softcap != 0 || spec.alibi || !spec.bias.empty() || !spec.score_snippet.empty() ||
             spec::EffectiveScale(spec) <= 0) {
    answer.refusal =
        "softcap, alibi, bias, score snippets, scales that are not positive: only plain scores";
    nearest.softcap = 0;
    nearest.alibi = nearest.alibi_gradient = false;
    nearest.bias.clear();
    nearest.score_snippet = {};
    nearest.score_gradient_snippet = {};
  } else if (spec.block_mask_q != 0 || !spec.mask_snippet.empty()) {
    answer.refusal = "block_mask, mask snippets: the rows of a key must be neighbours";
    nearest.block_mask_q = nearest.block_mask_kv = 0;
    nearest.mask_snippet = {};
  } else if (spec.dim_qk % 8 != 0 || spec.dim_v % 8 != 0) {
    answer.refusal = absl::StrCat("dim_qk, dim_v = ", spec.dim_qk, ", ", spec.dim_v,
                                  ": rows must be whole chunks of 16 bytes");
    nearest.dim_qk = RoundUp(spec.dim_qk, 8);
    nearest.dim_v = RoundUp(spec.dim_v, 8);
  } else if (spec.dim_qk > kMaxWideDim || spec.dim_v > kMaxWideDim) {
    answer.refusal = absl::StrCat("dim_qk, dim_v = ", spec.dim_qk, ", ", spec.dim_v,
                                  ": must be at most ", kMaxWideDim);
    nearest.dim_qk = std::min(spec.dim_qk, kMaxWideDim);
    nearest.dim_v = std::min(spec.dim_v, kMaxWideDim);
  } else if (!CountsWith31Bits(spec)) {
    answer.refusal = RefuseBeyond31Bits(spec, nearest);
  } else if (spec.strides.has_value() &&
             !std::all_of(spec.strides->begin(), spec.strides->end(), StridesFitBulkCopies)) {
    answer.refusal = "strides: rows must start on multiples of 16 bytes";
    nearest.strides.reset();
  } else {
    return answer;
  }
  answer.nearest = std::move(nearest);
  return answer;
}

}  // namespace

int64_t BwdSm90SmemBytes(int block_m, int block_n, int stages, int64_t dim_qk, int64_t dim_v) {
  const int64_t panels_qk = CeilDiv(dim_qk, kPanelColumns);
  const int64_t panels = panels_qk + CeilDiv(dim_v, kPanelColumns);
  if (block_n == kWideTile) {
    // K and V and columns of the other block's K, Q and dO, dS of both; and statistics, the tile,
    // barriers. K has a panel for each warpgroup's columns of dQ, where all have some.
    const bool all = dim_qk > 2 * kPanelColumns;
    const int64_t panels_k = all ? 2 * kConsumers : panels_qk;
    const int64_t other_panels = all ? kConsumers : 1;
    const int64_t panel_rows = block_n * (panels - panels_qk + panels_k + other_panels + 2) +
                               stages * int64_t{block_m} * panels;
    const int64_t rest =
        kStatsStages * int64_t{block_m} * 8 + 2 * 28 + 8 + 8 * (6 + 2 * int64_t{stages});
    return RoundUp(panel_rows * kPanelRowBytes + rest, kSharedAlignment);
  }
  // The next K beside K, V, Q and dO, dS.
  const int64_t rows = block_n * (panels + panels_qk) + stages * int64_t{block_m} * panels +
                       kDsStages * (block_m / kPanelColumns) * block_n;
  const int64_t stats = kStatsStages * int64_t{block_m} * 8;
  // A warp's part: rows of 16 and 64 columns, or all columns where warpgroups share rows.
  // At least so many that 16 rows of dV fit there.
  const int64_t dq_columns =
      block_m > kPanelColumns ? std::max<int64_t>(dim_qk, kPanelColumns / 2) : kPanelColumns;
  const int64_t dq = 4 * kConsumers * 16 * dq_columns * int64_t{sizeof(float)};
  // Of K, V, tiles of keys, Q and dO, dS, dQ.
  const int64_t barriers = 8 * (4 + 2 + 5 + 2 * int64_t{stages} + 2 * kDsStages + 2 * kConsumers);
  constexpr int64_t kKeyTiles = 2 * 28;
  // What masks need: 16 bytes a thread, with 64 rows in its registers.
  const int64_t limits = 16 * (block_m > kPanelColumns ? 128 * kConsumers : 1);
  return RoundUp(rows * kPanelRowBytes + dq + stats + limits + kKeyTiles + barriers,
                 kSharedAlignment);
}

BwdKeptSteps BwdSm90KeptSteps(const KernelPlan& plan, int64_t dim_qk, int64_t dim_v) {
  BwdKeptSteps kept;
  if (plan.block_n == kWideTile) return kept;
  const int64_t sums = (dim_qk + dim_v) / 2;
  // Of 240, the rest are addresses, limits and statistics. Found by compiling (NVRTC 13.0, sm_90a):
  // with more than these ptxas spills.
  constexpr int64_t kMostSums = 112;
  const int64_t most = plan.block_m > kPanelColumns ? 188 : sums <= kMostSums ? 204 : 192;
  constexpr int64_t kStepRegisters = 4;
  const int64_t steps_k = CeilDiv(dim_qk, 16), steps_v = CeilDiv(dim_v, 16);
  int64_t left = std::max<int64_t>(most - sums - plan.block_m, 0) / kStepRegisters;
  // V is not loaded ahead of a tile unless its place is free as soon as it has been read.
  kept.v = left >= steps_v ? static_cast<int>(steps_v) : 0;
  kept.k = static_cast<int>(std::min(steps_k, left - kept.v));
  return kept;
}

int BwdSm90DqColumns(const KernelPlan& plan, int64_t dim_qk) {
  if (plan.block_m > kPanelColumns) return static_cast<int>(dim_qk);
  if (plan.block_n == kWideTile) {
    // Two blocks have four warpgroups, of which each can have a panel at most.
    return static_cast<int>(dim_qk > 2 * kPanelColumns ? RoundUp(CeilDiv(dim_qk, 4), 8)
                                                       : kPanelColumns);
  }
  // Half of them, so that no warpgroup multiplies columns that do not exist. Beyond 96 that is
  // nearly a panel, and worth nothing where the halves are no multiples of 8 (bench/NOTES.md).
  constexpr int64_t kMostHalved = 96;
  return static_cast<int>(
      dim_qk > kMostHalved && dim_qk % 16 != 0 ? kPanelColumns : RoundUp(CeilDiv(dim_qk, 2), 8));
}

FamilyAnswer PlanBwdSm90(const PlanRequest& request) {
  FamilyAnswer answer = Refuse(request);
  if (!answer.refusal.empty()) return answer;
  const AttentionSpec& spec = request.spec;
  KernelPlan plan;
  plan.family = Family::kBwdSm90;
  plan.target = std::string(request.traits.target);
  const bool wide = !FitsOneWarpgroup(spec);
  plan.block_m = !wide && spec.dim_qk <= kPanelColumns ? 128 : 64;
  plan.block_n = wide ? kWideTile : kConsumers * 64;
  plan.consumers = kConsumers;
  plan.warps = 4 * (kConsumers + 1);
  // A third stage of Q and dO is worth nothing (bench/NOTES.md).
  plan.stages = kStages;
  plan.smem_bytes =
      BwdSm90SmemBytes(plan.block_m, plan.block_n, plan.stages, spec.dim_qk, spec.dim_v);
  if (!wide) {
    plan.max_grid = request.board.num_sms;
  } else {
    // No room for the next K. L2 is what limits wide heads: two blocks share what they read and
    // add.
    plan.cluster = 2;
  }
  plan.before = {PlanBwdPrep(plan.target, plan.block_m)};
  plan.after = {PlanBwdFinish(plan.target, plan.block_m)};
  if (spec.sinks_gradient) plan.after.push_back(PlanBwdTerms(request));
  answer.why = absl::StrCat("tiles of ", plan.block_m, " rows and ", plan.block_n, " keys");
  answer.plans = {std::move(plan)};
  return answer;
}

}  // namespace tilewright::plan
