// attn_fwd_small: many short sequences.
//
// A warp owns 16 to 48 rows; a team has warps for all rows of a sequence, and walks many of them.
// What the tables of windowed attention add is kept for all of them where that is possible: then
// the number of blocks is a multiple of the (batch, head) after which they repeat, and a block has
// several teams, so that more of them find room on a multiprocessor. Longer sequences are served
// where they share a bias, of which a block keeps the rows of one tile.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "plan/family_planner.h"
#include "spec/validate.h"

namespace tilewright::plan {
namespace {

constexpr int64_t kMaxDim = 128;
constexpr int64_t kMaxRows = 160;  // and keys
// With bias terms measured up to here; longer ones must ask for the family.
constexpr int64_t kManyBiased = 64;
constexpr int kMostTeams = 4;
// Of longer sequences: keys of a visit and of a step, and batches that are worth keeping a bias
// for. A step of 64 keys has more to do at a time than waits take, and with 128 keys a visit what a
// visit costs is spread.
struct LongTile {
  int block_n;
  int step;
  int rows_per_warp;
};
constexpr LongTile kLongTiles[] = {{128, 64, 32}, {64, 32, 32}, {64, 64, 32}, {128, 32, 16}};
constexpr int64_t kManyBatches = 32;
// On one H200 (2026-12-01), d32, 1024 keys: 4.5 ms with 6 warps, attn_fwd_sm80 7.0.
constexpr int kFewWarps = 6;
// Tiles of a block from which on keeping a bias is worth more than wgmma, which attn_fwd_sm90 has
// for a bias without masks. On one H200 (2026-11-30), microseconds of this family (that one): 35
// tiles 198 (236), 16 tiles 74 (81), 6 tiles 50 (47).
constexpr int64_t kManyTiles = 12;
constexpr int kMostThreads = 1024;
constexpr size_t kMostTerms = 16;  // that may be kept
constexpr int kStepKeys = 32;
constexpr int kStepKeysOf48 = 16;  // with 48 rows a warp, for the registers
// sizeof(Tile); those of Distance, Widths and Place.
constexpr int64_t kTileBytes = 32;
constexpr int64_t kOtherBytes = 72 + 4 + 12;

// Registers of a lane besides scores and output sums, from compiling; they decide how many blocks
// run on an SM.
constexpr int64_t kOtherRegisters = 84;
constexpr int64_t kTermRegisters = 16;

// Groups of warps with tiles of their own.
int64_t TeamsOf(const KernelPlan& plan) { return plan.warps * plan.rows_per_warp / plan.block_m; }

// mma/tile_copy.cuh
int64_t Pitch(int64_t columns) { return 8 * (RoundUp(columns, 8) / 8 | 1); }

// Whether batches come back to the same elements of a term.
bool Repeats(const AttentionSpec& spec, const BiasTerm& term) {
  return term.batch == 1 || (term.batch < spec.batch && term.batch_map == BatchMap::kMod);
}

// The bias terms whose sum the kernel keeps, bit n for term n: those that repeat, where nothing
// else has a say in a score but masks that look at the key alone.
int KeptTerms(const AttentionSpec& spec) {
  if (spec.alibi || spec.softcap != 0 || !spec.score_snippet.empty() ||
      !spec.mask_snippet.empty() || spec.block_mask_q != 0 || spec.varlen || spec.left_padding) {
    return 0;
  }
  int kept = 0;
  for (size_t n = 0; n < spec.bias.size(); ++n) {
    const BiasTerm& term = spec.bias[n];
    const bool is_mask_of_keys = term.type == ElementType::kBool && term.seqlen_q == 1;
    if (Repeats(spec, term)) {
      if (n >= kMostTerms) return 0;
      kept |= 1 << n;
    } else if (!is_mask_of_keys) {
      return 0;
    }
  }
  return kept;
}
bool IsKept(int kept, size_t term) { return term < kMostTerms && (kept >> term & 1) != 0; }

// Whether something is kept, and but for masks it is one term of the type of Q.
bool OneTerm(const AttentionSpec& spec, int kept) {
  int sums = 0;
  for (size_t n = 0; n < spec.bias.size(); ++n) {
    if (!IsKept(kept, n) || spec.bias[n].type == ElementType::kBool) continue;
    if (spec.bias[n].type != spec.type) return false;
    ++sums;
  }
  return kept != 0 && sums <= 1;
}

// Rows and keys up to which sequences are short.
int64_t MostRows(const PlanRequest& request) {
  return request.family.has_value() || request.spec.bias.empty() ? kMaxRows : kManyBiased;
}
bool IsLong(const PlanRequest& request) {
  return std::max(request.spec.seqlen_q, request.spec.seqlen_kv) > MostRows(request);
}

// In words, or nothing.
std::string WhyNot(const PlanRequest& request) {
  const AttentionSpec& spec = request.spec;
  const std::string target(request.traits.target);
  if (spec.operation != Operation::kForward) return "operation = bwd: only the forward is served";
  if (!request.traits.has_cp_async || !request.traits.has_bf16_mma) {
    return absl::StrCat(target, " has no cp.async and no mma.m16n8k16");
  }
  if (!HasOneHalfType(spec)) {
    return "the types of Q, K, V and O must be fp16 or bf16, all the same";
  }
  if (spec.strided_innermost) return "strided_innermost: rows must be contiguous";
  if (spec.page_size != 0) return "paged: keys on pages are left to other families";
  if (spec.dim_qk > kMaxDim || spec.dim_v > kMaxDim) {
    return absl::StrCat("dim_qk, dim_v = ", spec.dim_qk, ", ", spec.dim_v, ": must be at most ",
                        kMaxDim);
  }
  if (IsLong(request)) {
    if (!OneTerm(spec, KeptTerms(spec))) {
      return absl::StrCat(
          "seqlen_q, seqlen_kv = ", spec.seqlen_q, ", ", spec.seqlen_kv, ": more than ",
          MostRows(request), " rows or keys are for one bias term of ",
          "the type of Q that all batches share, with masks that repeat or look at ",
          "the key alone");
    }
    if (!request.family.has_value() && spec.batch < kManyBatches) {
      return absl::StrCat("batch = ", spec.batch, ": a bias is kept for at least ", kManyBatches);
    }
  } else if (!request.family.has_value() && !spec.bias.empty() && KeptTerms(spec) == 0) {
    return "bias: is for terms that repeat from batch to batch and are all that a score has";
  }
  const int64_t blocks = std::max<int64_t>(request.board.num_sms, 1);
  if (!request.family.has_value() &&
      spec.batch < CeilDiv(blocks, std::max<int64_t>(spec.heads_q, 1))) {
    return absl::StrCat("batch * heads_q = ", spec.batch * spec.heads_q,
                        ": is for more sequences than the ", blocks, " SMs of ",
                        request.board.name);
  }
  return "";
}

// Blocks that run at a time on a multiprocessor.
int64_t Resident(const PlanRequest& request, const KernelPlan& plan) {
  const arch::ArchTraits& traits = request.traits;
  const int64_t accumulators =
      plan.rows_per_warp / 16 * (plan.step + RoundUp(request.spec.dim_v, 8)) / 2;
  const int64_t others = kOtherRegisters + (plan.kept_terms != 0 ? kTermRegisters : 0);
  const int64_t registers = RoundUp(std::min<int64_t>(255, others + accumulators), 8);
  // Each quarter of a multiprocessor has registers for whole warps.
  const int64_t warps = 4 * (traits.regs_per_sm / 4 / (registers * 32));
  return std::min({traits.smem_per_sm / (plan.smem_bytes + traits.smem_reserved_per_block),
                   warps / plan.warps, static_cast<int64_t>(traits.max_warps_per_sm / plan.warps)});
}

// The tiles after which those of a block are the same ones of other batches, with the same terms.
int64_t Period(const AttentionSpec& spec, const KernelPlan& plan) {
  const int64_t of_batch =
      spec.heads_q * CeilDiv(std::max<int64_t>(spec.seqlen_q, 1), plan.block_m);
  int64_t period = of_batch;
  if (plan.kept_terms != 0) {
    for (size_t n = 0; n < spec.bias.size(); ++n) {
      if (IsKept(plan.kept_terms, n)) period = std::lcm(period, spec.bias[n].batch * of_batch);
    }
  }
  return period;
}

// Whether two teams may have neighbouring heads of a batch and copy the rows of both together:
// every row sees every key, and a team has all rows.
bool MayJoinHeads(const AttentionSpec& spec, const KernelPlan& plan) {
  const bool has_scores = spec.softcap != 0 || spec.alibi || !spec.bias.empty() ||
                          !spec.score_snippet.empty() || spec.dropout != 0;
  const bool has_masks = spec.causal || spec.window_left >= 0 || spec.window_right >= 0 ||
                         !spec.mask_snippet.empty() || spec.block_mask_q != 0;
  return !has_scores && !has_masks && !spec.varlen && !spec.left_padding && !spec.cache_batch_idx &&
         !plan.narrow_rows && spec.heads_q % 2 == 0 && spec.seqlen_q <= plan.block_m;
}

// Sets the teams that a block with one of them turns into, and the number of blocks. False when no
// block fits.
bool SetTeams(const PlanRequest& request, KernelPlan& plan) {
  const AttentionSpec& spec = request.spec;
  const KernelPlan one = plan;
  const bool joins = MayJoinHeads(spec, one);
  const int most_teams = joins ? 2 : one.kept_terms != 0 ? kMostTeams : 1;
  int64_t best = 0;
  for (int teams = 1; teams <= most_teams; ++teams) {
    KernelPlan with = one;
    with.warps = one.warps * teams;
    with.smem_bytes = FwdSmallSmemBytes(with, spec.dim_qk, spec.dim_v);
    if (with.smem_bytes > request.traits.smem_per_block_optin) break;
    if (with.threads() > kMostThreads) break;
    const int64_t resident = std::max<int64_t>(Resident(request, with), teams == 1 ? 1 : 0);
    const int64_t slots = resident * std::max<int64_t>(request.board.num_sms, 1);
    const int64_t period = Period(spec, with);
    // A number of blocks that is no multiple of the period keeps nothing.
    if (best > 0 && slots < period) continue;
    if (resident * teams < best + (joins ? 0 : 1)) continue;
    best = resident * teams;
    with.blocks = static_cast<int>(resident > 1 ? resident : 0);
    with.max_grid = static_cast<int>(slots < period ? slots : slots / period * period);
    plan = with;
  }
  return best > 0;
}

// A team has all rows of a sequence.
std::vector<KernelPlan> ShortPlans(const PlanRequest& request, const KernelPlan& common) {
  const AttentionSpec& spec = request.spec;
  std::vector<KernelPlan> plans;
  const int64_t rows = std::max<int64_t>(spec.seqlen_q, 1);
  // The m16 tiles of a warp share what it reads of K and V, as long as their sums fit its
  // registers. On one H200 (2026-11-30): 25 rows 368 us in two warps and 451 in one, 144 rows 83 in
  // three warps and 90 in five.
  for (const int rows_per_warp : {32, 48, 16}) {
    if (rows_per_warp == 32 && (rows <= 32 || spec.dim_v > 80)) continue;
    if (rows_per_warp == 48 && (rows <= 64 || spec.dim_v > 40)) continue;
    KernelPlan plan = common;
    plan.rows_per_warp = rows_per_warp;
    plan.step = rows_per_warp == 48 ? kStepKeysOf48 : kStepKeys;
    plan.block_n = static_cast<int>(RoundUp(std::max<int64_t>(spec.seqlen_kv, 1), plan.step));
    plan.warps = static_cast<int>(CeilDiv(rows, rows_per_warp));
    plan.block_m = plan.warps * rows_per_warp;
    if (plan.kept_terms != 0) plan.kept_keys = plan.block_n;
    if (SetTeams(request, plan)) plans.push_back(plan);
  }
  std::stable_sort(plans.begin(), plans.end(),
                   [](const KernelPlan& a, const KernelPlan& b) { return a.block_m < b.block_m; });
  return plans;
}

// Tiles of a sequence that is longer than a team's rows. Blocks must meet the same terms again:
// there are no more (head, tile) than blocks.
std::vector<KernelPlan> LongPlans(const PlanRequest& request, const KernelPlan& common) {
  const AttentionSpec& spec = request.spec;
  std::vector<KernelPlan> plans;
  for (const LongTile& tile : kLongTiles) {
    for (const int rows : {128, 64}) {
      KernelPlan plan = common;
      plan.rows_per_warp = spec.dim_v > 80 ? 16 : tile.rows_per_warp;
      plan.warps = rows / plan.rows_per_warp;
      plan.step = tile.step;
      plan.block_m = plan.warps * plan.rows_per_warp;
      plan.block_n = tile.block_n;
      plan.kept_keys = static_cast<int>(RoundUp(spec.seqlen_kv, tile.block_n));
      if (SetTeams(request, plan) && plan.max_grid >= Period(spec, plan)) plans.push_back(plan);
    }
  }
  // The rows that a multiprocessor has at a time count. On one H200 (2026-11-30)
  // af_triangle_d32_384 with bias and mask takes 214 us with 384 of them and 217 with 256.
  const auto order = [](const KernelPlan& plan) {
    return std::pair(plan.warps * plan.rows_per_warp, plan.step);
  };
  std::stable_sort(plans.begin(), plans.end(),
                   [&](const KernelPlan& a, const KernelPlan& b) { return order(a) > order(b); });
  return plans;
}

// Why another family does better than this one's best plan, or "".
std::string WhySlower(const PlanRequest& request, const KernelPlan& best) {
  const AttentionSpec& spec = request.spec;
  const int64_t rows = std::max<int64_t>(spec.seqlen_q, 1);
  if (!IsLong(request)) {
    const int64_t resident = std::max<int64_t>(Resident(request, best), 1);
    // Of a single warp on a multiprocessor waits show. On one H200 (2026-12-01), one query of d128,
    // 2048 sequences: 71 us for 128 keys, attn_fwd_sm80 61; two warps 34 for 64 keys (47).
    const bool has_room = resident >= 2 || best.block_m <= kManyBiased;
    if (has_room && resident * best.warps >= 2) return "";
    return absl::StrCat("seqlen_q, seqlen_kv, dim_qk = ", rows, ", ", spec.seqlen_kv, ", ",
                        spec.dim_qk, ": a multiprocessor has room for no more than ", resident,
                        " of its blocks of ", best.warps, " warps");
  }
  if (best.warps < kFewWarps) {
    return absl::StrCat("seqlen_kv = ", spec.seqlen_kv, ": beside the terms there is room for ",
                        best.warps, " warps; at least ", kFewWarps, " hide their waits");
  }
  const bool has_masks = std::any_of(spec.bias.begin(), spec.bias.end(), [](const BiasTerm& term) {
    return term.type == ElementType::kBool;
  });
  const int64_t tiles = spec.batch * spec.heads_q * CeilDiv(rows, best.block_m) / best.max_grid;
  if (!request.traits.has_wgmma || has_masks || tiles >= kManyTiles) return "";
  return absl::StrCat("batch * heads_q = ", spec.batch * spec.heads_q, ": ", tiles,
                      " tiles for each block; a bias without masks is kept for at least ",
                      kManyTiles);
}

}  // namespace

int64_t FwdSmallSmemBytes(const KernelPlan& plan, int64_t dim_qk, int64_t dim_v) {
  const int64_t pitch_qk = Pitch(RoundUp(dim_qk, 16)), pitch_v = Pitch(dim_v);
  const int64_t tiles =
      2 * plan.stages *
      (plan.block_m * std::max(pitch_qk, pitch_v) + plan.block_n * (pitch_qk + pitch_v));
  const int64_t teams = TeamsOf(plan);
  // Two times 16 bits for each key, and two flags of each warp.
  const int64_t flags = 2 * RoundUp(plan.warps / teams, 4);
  const int64_t team = RoundUp(tiles + 4 * plan.block_n + 2 * kTileBytes + flags, 16);
  const int64_t term_tiles = plan.block_m / 16 * plan.kept_keys / 8 / (plan.packed_terms ? 2 : 1);
  return RoundUp(teams * team + (term_tiles + 1) * 512 + kOtherBytes, 16);
}

FamilyAnswer PlanFwdSmall(const PlanRequest& request) {
  const AttentionSpec& spec = request.spec;
  FamilyAnswer answer;
  answer.refusal = WhyNot(request);
  if (!answer.refusal.empty()) return answer;
  KernelPlan common;
  common.family = Family::kFwdSmall;
  common.target = std::string(request.traits.target);
  common.stages = 2;
  common.kept_terms = KeptTerms(spec);
  common.packed_terms = OneTerm(spec, common.kept_terms);
  common.narrow_rows = HasNarrowRows(spec);
  const bool is_long = IsLong(request);
  answer.plans = is_long ? LongPlans(request, common) : ShortPlans(request, common);
  const int64_t rows = std::max<int64_t>(spec.seqlen_q, 1);
  if (answer.plans.empty()) {
    answer.refusal = absl::StrCat("no tile of ", rows, " rows and ", spec.seqlen_kv, " keys fits ",
                                  request.traits.smem_per_block_optin, " bytes of shared memory");
    return answer;
  }
  const KernelPlan& best = answer.plans.front();
  if (!request.family.has_value()) answer.refusal = WhySlower(request, best);
  if (!answer.refusal.empty()) {
    answer.plans.clear();
  } else if (is_long) {
    answer.why = absl::StrCat(best.max_grid, " blocks of ", TeamsOf(best),
                              " teams keep the terms of ", best.block_m, " rows for all batches");
  } else {
    answer.why = absl::StrCat("teams of ", best.block_m / best.rows_per_warp,
                              " warps have a whole sequence of ", spec.seqlen_q, " rows and ",
                              spec.seqlen_kv, " keys, and ", best.max_grid, " blocks of ",
                              TeamsOf(best), " teams walk all of them");
  }
  return answer;
}

}  // namespace tilewright::plan
