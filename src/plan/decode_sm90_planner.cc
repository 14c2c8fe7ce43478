// attn_decode_sm90: few queries over many keys where the rows of a group are so many that the
// tensor cores of Hopper, by warpgroup products, and not memory bound the time; and latent heads.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plan/family_planner.h"
#include "plan/launch_shape.h"
#include "spec/validate.h"

namespace tilewright::plan {
namespace {

constexpr int64_t kWarpgroupRows = 64;
constexpr int64_t kPanelColumns = 64;
constexpr int64_t kPanelRowBytes = 128;
constexpr int kComputing = 2;  // warpgroups
// Of latent heads, up to so many rows are the work of a few warps, not of warpgroups.
constexpr int64_t kWarpRows = 16;
constexpr int kComputingWarps = 8;
// Up to so many rows other families read K and V once, in one tile, and wait for memory. Latent
// heads make them wait for instructions.
constexpr int64_t kRowsOfOneTile = 32;
constexpr int64_t kFewWideRows = 7;
// More queries, or fewer keys, are left to families for long queries and for small problems.
constexpr int64_t kMostQueries = 16;
constexpr int64_t kFewestKeys = 512;
// Head dims up to which a warpgroup has whole rows of O.
constexpr int64_t kMostDim = 256;
constexpr int64_t kMostWideDim = 576;
// SharedStorage of the kernels beside tiles.
constexpr int64_t kBytesBesideTiles = 1024;
constexpr int64_t kWideBytesBesideTiles = 2048;
// Scores of the two halves of K's columns, and the rest.
constexpr int64_t kFewBytesBesideTiles = 2 * 4 * 512 + 1024;

bool IsWide(const AttentionSpec& spec) { return std::max(spec.dim_qk, spec.dim_v) > kMostDim; }

// Where V may be a part of K: several key/value heads are hardly of latent attention, and V apart
// is not what these kernels are quick at.
bool IsLatentOfFewRows(const AttentionSpec& spec) {
  // Of V's columns a warp has 32 or 64.
  return std::max<int64_t>(spec.seqlen_q, 1) * spec::GroupSize(spec) <= kWarpRows &&
         spec.heads_kv == 1 && spec.dim_v % (kComputingWarps * 32) == 0;
}

int64_t PanelBytes(int64_t dim, int64_t rows) {
  return CeilDiv(dim, kPanelColumns) * rows * kPanelRowBytes;
}

std::string DimsText(const AttentionSpec& spec) {
  return absl::StrCat("dim_qk, dim_v = ", spec.dim_qk, ", ", spec.dim_v);
}

std::string RefusalOf(const PlanRequest& request) {
  const AttentionSpec& spec = request.spec;
  if (spec.operation != Operation::kForward) return "operation = bwd: only the forward is served";
  if (!request.traits.has_wgmma || !request.traits.has_tma) {
    return absl::StrCat(std::string(request.traits.target), " has no wgmma and no bulk copies");
  }
  if (!HasOneHalfType(spec)) {
    return "Q, K, V and O must be of one type, fp16 or bf16";
  }
  if (spec.strided_innermost) return "strided_innermost: rows must be contiguous";
  if (spec.dropout != 0) return "dropout is left to families for training";
  if (spec.block_mask_q != 0 || !spec.mask_snippet.empty()) {
    return "masks by element are left to other families";
  }
  if (!spec.bias.empty() || spec.alibi || !spec.score_snippet.empty() ||
      spec::EffectiveScale(spec) <= 0) {
    return "of score policies a softcap is served, over a positive scale";
  }
  if (spec.dim_qk % 8 != 0 || spec.dim_v % 8 != 0) {
    return absl::StrCat(DimsText(spec), ": must be multiples of 8");
  }
  // Two halves of O, of whole panels, and a panel of K behind V for the weights.
  if (IsWide(spec) && (spec.dim_v % (2 * kPanelColumns) != 0 || spec.dim_qk <= spec.dim_v ||
                       spec.dim_qk > kMostWideDim)) {
    return absl::StrCat(DimsText(spec), ": above ", kMostDim,
                        " dim_v must be a multiple of 128 and dim_qk larger, up to ", kMostWideDim);
  }
  const int64_t rows = std::max<int64_t>(spec.seqlen_q, 1) * spec::GroupSize(spec);
  const int64_t few_rows = !IsWide(spec)             ? kRowsOfOneTile
                           : IsLatentOfFewRows(spec) ? 0
                                                     : kFewWideRows;
  if (!request.family.has_value() && rows <= few_rows) {
    return absl::StrCat("seqlen_q * group = ", rows, ": up to ", few_rows,
                        " rows wait for memory in any family");
  }
  if (!request.family.has_value() &&
      (spec.seqlen_q > kMostQueries || spec.seqlen_kv < kFewestKeys)) {
    return absl::StrCat("seqlen_q, seqlen_kv = ", spec.seqlen_q, ", ", spec.seqlen_kv,
                        ": must be at most ", kMostQueries, " queries over at least ", kFewestKeys,
                        " keys");
  }
  if (spec.seqlen_kv > std::numeric_limits<int32_t>::max() / 2) {
    return absl::StrCat("seqlen_kv = ", spec.seqlen_kv, ": must be below 2^30");
  }
  return "";
}

bool FitsPages(const AttentionSpec& spec, int64_t copy_rows) {
  constexpr int64_t kSwizzleRows = 8;
  return spec.page_size == 0 || spec.page_size % copy_rows == 0 ||
         (copy_rows % spec.page_size == 0 && spec.page_size % kSwizzleRows == 0);
}

KernelPlan StartPlan(const PlanRequest& request) {
  KernelPlan plan;
  plan.family = Family::kDecodeSm90;
  plan.target = std::string(request.traits.target);
  plan.consumers = kComputing;
  plan.warps = 4 * (kComputing + 1);
  plan.rows_per_warp = 16;
  return plan;
}

// A tile of 16 rows.
void AddFewRowsPlan(const PlanRequest& request, std::vector<KernelPlan>& plans) {
  const AttentionSpec& spec = request.spec;
  if (!IsLatentOfFewRows(spec)) return;
  // With more than so many bytes of keys the first ones and Q come later, and nothing comes sooner.
  constexpr int64_t kBytesInFlight = 112 << 10;
  KernelPlan plan;
  plan.family = Family::kDecodeSm90;
  plan.target = std::string(request.traits.target);
  plan.warps = 1 + kComputingWarps;
  plan.rows_per_warp = static_cast<int>(kWarpRows);
  plan.column_warps = kComputingWarps;
  plan.cluster = 1;
  plan.block_m = static_cast<int>(kWarpRows);
  plan.block_n = 32;
  const int64_t stage = PanelBytes(spec.dim_qk, plan.block_n);
  plan.stages = static_cast<int>(kBytesInFlight / stage);
  plan.smem_bytes = plan.stages * stage + PanelBytes(spec.dim_qk, kWarpRows) + kFewBytesBesideTiles;
  plan.slots = request.board.num_sms;
  plans.push_back(std::move(plan));
}

// Tiles of the rows of both blocks that have a share, or of one, best first.
std::vector<KernelPlan> WidePlans(const PlanRequest& request) {
  const AttentionSpec& spec = request.spec;
  const int64_t rows = spec.seqlen_q * spec::GroupSize(spec);
  std::vector<KernelPlan> plans;
  AddFewRowsPlan(request, plans);
  for (const int blocks : {2, 1}) {
    // A second block would have no rows.
    if (blocks > 1 && rows <= kWarpgroupRows) continue;
    KernelPlan plan = StartPlan(request);
    plan.column_warps = kComputing;
    plan.cluster = blocks;
    plan.block_m = static_cast<int>(kWarpgroupRows) * blocks;
    plan.block_n = 64;
    plan.stages = 2;
    plan.smem_bytes = PanelBytes(spec.dim_qk, kWarpgroupRows + plan.stages * plan.block_n) +
                      kWideBytesBesideTiles;
    plan.slots = std::max(request.board.num_sms, blocks) / blocks;
    plans.push_back(std::move(plan));
  }
  // Where two parts of each item fill the board but for one block in twenty, if lengths are alike,
  // a cluster has both and merges them without a trip to memory. (Clusters of four would find room
  // on 120 of 132 multiprocessors.) With more keys that weighs less than copying them for one
  // block.
  constexpr int64_t kMostKeys = 8192;
  const int64_t parts = 2 * spec.batch * spec.heads_kv * CeilDiv(rows, kWarpgroupRows);
  const int64_t slots = plans.back().slots;
  if (!spec.batch_invariant && spec.seqlen_kv <= kMostKeys && parts <= slots &&
      20 * parts >= 19 * slots) {
    KernelPlan halves = plans.back();
    halves.cluster = 2;
    halves.slots = halves.slots / 2 * 2;
    plans.insert(plans.begin(), std::move(halves));
  }
  return plans;
}

// Best first: four warpgroups, of which two at a time have the same rows and half of a block's keys
// each, hide each other's waits for products and exponentials where registers allow. Up to 64 rows
// two warpgroups have the same ones, if what one hands to the other leaves room for two stages.
std::vector<KernelPlan> PlansOfWholeRows(const PlanRequest& request) {
  const AttentionSpec& spec = request.spec;
  struct Choice {
    int row_groups;  // of 64 rows
    int consumers;
    int block_n;
  };
  const int64_t rows = std::max<int64_t>(spec.seqlen_q, 1) * spec::GroupSize(spec);
  std::vector<KernelPlan> plans;
  for (const Choice& choice : {Choice{1, 2, 128}, Choice{2, 4, 128}, Choice{2, 2, 128},
                               Choice{2, 2, 64}, Choice{2, 2, 32}}) {
    if (choice.row_groups == 1 ? rows > kWarpgroupRows
                               : choice.consumers > kComputing && rows <= kWarpgroupRows) {
      continue;
    }
    const int row_groups = choice.row_groups;
    const int teams = choice.consumers / row_groups;
    const int keys = choice.block_n / teams;
    // Scores, weights and O of a thread. Of four warpgroups weights take the place of scores.
    const int64_t tile_registers = choice.consumers > kComputing ? 80 : 176;
    if (keys / 2 + keys / 4 + spec.dim_v / 2 > tile_registers) continue;
    KernelPlan plan = StartPlan(request);
    plan.consumers = choice.consumers;
    plan.warps = 4 * (choice.consumers + 1);
    plan.column_warps = 1;
    plan.key_warps = teams > 1 ? teams : 0;
    plan.cluster = 1;
    plan.block_m = static_cast<int>(kWarpgroupRows) * row_groups;
    plan.block_n = choice.block_n;
    // O, two references and two sums of each thread of the further teams.
    const int64_t handed = (teams - 1) * row_groups * (spec.dim_v / 2 + 4) * 128 * 4;
    const int64_t beside = PanelBytes(spec.dim_qk, plan.block_m) + handed + kBytesBesideTiles;
    const int64_t stage =
        PanelBytes(spec.dim_qk, choice.block_n) + PanelBytes(spec.dim_v, choice.block_n);
    constexpr int64_t kMostStages = 6;
    plan.stages = static_cast<int>(
        std::min(kMostStages, (request.traits.smem_per_block_optin - beside) / stage));
    if (plan.stages < 2) continue;
    plan.smem_bytes = beside + plan.stages * stage;
    plan.slots = request.board.num_sms;
    plans.push_back(plan);
  }
  return plans;
}

// Parts of whole rows are so few bytes that all blocks merge them sooner than the last one that has
// keys of a tile; those of latent heads are not.
KernelPlan CombineBehind(const KernelPlan& plan, const AttentionSpec& spec, int64_t rows) {
  // Many items are cut into few parts each, which one warp merges at once.
  constexpr int64_t kFewParts = 8;
  const double items = static_cast<double>(spec.batch) * static_cast<double>(spec.heads_kv) *
                       static_cast<double>(CeilDiv(rows, plan.block_m));
  KernelPlan combine =
      PlanCombine(plan.target, spec.dim_v, kFewParts * items >= plan.slots ? 1 : 4);
  combine.tile_rows = plan.block_m;
  combine.block_n = plan.block_n;
  combine.step = plan.step;
  combine.chunk = plan.chunk;
  return combine;
}

}  // namespace

FamilyAnswer PlanDecodeSm90(const PlanRequest& request) {
  FamilyAnswer answer;
  const AttentionSpec& spec = request.spec;
  answer.refusal = RefusalOf(request);
  if (!answer.refusal.empty()) return answer;
  const int64_t rows = std::max<int64_t>(spec.seqlen_q, 1) * spec::GroupSize(spec);
  for (KernelPlan& plan : IsWide(spec) ? WidePlans(request) : PlansOfWholeRows(request)) {
    if (!FitsPages(spec, plan.block_n / BlocksOfShare(plan))) continue;
    plan.step = plan.block_n;
    plan.split = true;
    // A sequence's parts must depend on nothing else.
    if (spec.batch_invariant) plan.chunk = 512 / plan.block_n;
    if (!IsWide(spec)) plan.after = {CombineBehind(plan, spec, rows)};
    answer.plans.push_back(std::move(plan));
  }
  if (answer.plans.empty()) {
    answer.refusal = absl::StrCat("page_size = ", spec.page_size,
                                  ": must be a multiple of 8 that fits blocks of keys");
    return answer;
  }
  answer.why = absl::StrCat(rows, " packed rows on the tensor cores, in ", answer.plans[0].slots,
                            " equal shares of the keys");
  return answer;
}

}  // namespace tilewright::plan
