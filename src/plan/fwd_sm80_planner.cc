// attn_fwd_sm80: mma.sync, cp.async copies; fp16 and bf16, and fp32 by TF32.
//
// A warp owns 16 or 32 query rows: 32 halve what it reads of K and V from shared memory for each
// product, and pay as long as the output sums fit its registers. Where they do not, several warps
// share the rows and split the output's columns. Two stages let the copies of a tile run behind the
// whole of the tile before it, one leaves room for wider tiles or more blocks.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plan/family_planner.h"
#include "spec/validate.h"

namespace tilewright::plan {
namespace {

// Sums of more columns than 128 fit no warp's registers with 32 rows; eight warps split them.
constexpr int64_t kMaxHalfDim = 1024;
constexpr int64_t kMaxFloatDim = 256;
constexpr int kBlockNChoices[] = {128, 96, 64, 48, 32, 16};

struct WarpChoice {
  int warps;
  int rows_per_warp;
  int column_warps;
};
constexpr WarpChoice kWarpChoices[] = {{4, 32, 1}, {8, 16, 1}, {4, 16, 1}, {8, 32, 2}, {4, 32, 2},
                                       {4, 16, 2}, {8, 32, 4}, {4, 32, 4}, {4, 16, 4}, {8, 32, 8}};

// Whether scores or masks need more than an interval of keys for each row.
bool HasPolicies(const AttentionSpec& spec) {
  return spec.softcap != 0 || spec.alibi || !spec.bias.empty() || !spec.score_snippet.empty() ||
         !spec.mask_snippet.empty() || spec.block_mask_q != 0 || spec.dropout != 0 ||
         spec.page_size != 0;
}

// Whether the only policies are ALiBi and softcap, which ask where a score is and no more.
bool HasScoresByPlace(const AttentionSpec& spec) {
  AttentionSpec without = spec;
  without.softcap = 0;
  without.alibi = false;
  return IsHalf(spec.type) && HasPolicies(spec) && !HasPolicies(without);
}

// Of its tile: what a warp computes.
struct Shape {
  int64_t score_keys;  // keys whose scores it has
  int64_t v_columns;   // columns of O whose sums it has
  int64_t accumulators(int rows_per_warp) const {
    return rows_per_warp / 16 * (score_keys + v_columns) / 2;
  }
};

// Accumulators that a lane may hold before ptxas 13.0 spills, found by compiling. A score or
// element mask needs registers for its own arithmetic, finding keys on pages most; fp32 for the
// halves of operands.
int64_t MaxAccumulators(const AttentionSpec& spec, const WarpChoice& choice, int block_n,
                        int stages) {
  if (spec.page_size != 0 || spec.dropout != 0) return 88;
  if (spec.type == ElementType::kFp32) {
    return choice.rows_per_warp == 32 ? 96 : block_n > 96 ? 88 : 104;
  }
  if (HasScoresByPlace(spec) && choice.rows_per_warp == 32 && choice.column_warps == 1 &&
      block_n <= 64) {
    // Causal ALiBi and softcap at d 128 S 8192 by 32 rows a warp and 48 keys instead of 16 and 96:
    // 242 to 310 and 224 to 274 TFLOP/s on one H200 (2026-11-30).
    const bool more = spec.lse || spec.varlen || spec.sinks || spec.window_left >= 0;
    if (more) return block_n <= 32 ? 160 : 144;
    return block_n <= 48 ? 176 : 160;
  }
  if (HasPolicies(spec)) return 112;
  if (choice.column_warps > 1) {
    if (spec.lse) {
      // It has sums of its own; two stages, masks and many keys want more for addresses besides.
      const bool plain = stages == 1 && !spec.causal && spec.window_left < 0 &&
                         spec.window_right < 0 && !spec.varlen && !spec.sinks;
      return block_n > 64 ? 144 : plain ? 160 : 152;
    }
    return HasNarrowRows(spec) ? 160 : 184;
  }
  if (choice.rows_per_warp == 16 || block_n > 64) return 160;
  const bool simple_addresses = std::has_single_bit(static_cast<uint64_t>(spec.dim_qk)) &&
                                std::has_single_bit(static_cast<uint64_t>(spec.dim_v));
  return simple_addresses ? 192 : 176;
}

// With 16 rows a warp and the fewest keys, for any spec: what head dims of 256 need.
constexpr int64_t kMaxNarrowest = 144;

// Registers besides, for occupancy only.
constexpr int64_t kOtherRegisters = 88;

// Bytes of a tile of 16-bit or fp32 elements: mma/tile_copy.cuh, mma/tf32_core.cuh.
int64_t Pitch(int64_t columns) { return 8 * (RoundUp(columns, 8) / 8 | 1); }
int64_t FloatPitchQk(int64_t dim) { return (RoundUp(dim, 16) / 16 | 1) * 16; }
int64_t FloatPitchV(int64_t dim) { return RoundUp(RoundUp(dim, 8) - 4, 16) + 4; }

// What lies ahead of the tiles: sizeof(CopyBarriers) and sizeof(RowTile), which is aligned.
int64_t HeaderBytes(const KernelPlan& plan) {
  return plan.stages == 2 && plan.column_warps > 1 ? 32 + 112 : 112;
}

// Fills `refusal` and, where one change would do, `nearest`.
FamilyAnswer Refuse(const PlanRequest& request) {
  const AttentionSpec& spec = request.spec;
  const std::string target(request.traits.target);
  FamilyAnswer answer;
  AttentionSpec nearest = spec;
  if (spec.operation != Operation::kForward) {
    answer.refusal = "operation = bwd: only the forward is served";
    nearest.operation = Operation::kForward;
  } else if (spec::KvType(spec) != spec.type || spec::OutType(spec) != spec.type ||
             (!IsHalf(spec.type) && spec.type != ElementType::kFp32)) {
    answer.refusal = "the types of Q, K, V and O must be fp16, bf16 or fp32, all the same";
    nearest.type = IsHalf(spec.type) ? spec.type : ElementType::kFp16;
    nearest.kv_type.reset();
    nearest.out_type.reset();
    nearest.q_scale = nearest.kv_scale = ScaleKind::kNone;
  } else if (!request.traits.has_ldmatrix) {
    answer.refusal = absl::StrCat(target, " has no mma.sync of fp16 operands");
    return answer;
  } else if (spec.type == ElementType::kBf16 && !request.traits.has_bf16_mma) {
    answer.refusal = absl::StrCat(target, " has no mma.sync of bf16 operands");
    nearest.type = ElementType::kFp16;
  } else if (spec.type == ElementType::kFp32 && !request.traits.has_tf32_mma) {
    answer.refusal = absl::StrCat(target, " has no mma.sync of TF32 operands");
    nearest.type = ElementType::kFp16;
  } else if (spec.strided_innermost) {
    answer.refusal = "strided_innermost: rows must be contiguous";
    nearest.strided_innermost = false;
  } else if (const int64_t most = IsHalf(spec.type) ? kMaxHalfDim : kMaxFloatDim;
             spec.dim_qk > most || spec.dim_v > most) {
    answer.refusal =
        absl::StrCat("dim_qk, dim_v = ", spec.dim_qk, ", ", spec.dim_v, ": must be at most ", most);
    nearest.dim_qk = std::min(spec.dim_qk, most);
    nearest.dim_v = std::min(spec.dim_v, most);
  } else {
    return answer;
  }
  answer.nearest = std::move(nearest);
  return answer;
}

// Blocks that run on an SM at a time.
int64_t ResidentBlocks(const arch::ArchTraits& traits, const KernelPlan& plan, const Shape& shape) {
  const int64_t registers =
      RoundUp(std::min<int64_t>(255, kOtherRegisters + shape.accumulators(plan.rows_per_warp)), 8);
  return std::max<int64_t>(
      1, std::min({traits.smem_per_sm / (plan.smem_bytes + traits.smem_reserved_per_block),
                   traits.regs_per_sm / (registers * plan.threads()),
                   static_cast<int64_t>(traits.max_warps_per_sm / plan.warps)}));
}

struct Candidate {
  KernelPlan plan;
  double cost = 0;
};

// Relative time of a launch. Weights from sweeps on one H200 (2026-11-29, d 32 to 512, S 2048 and
// 8192, causal and full); they rank candidates, they do not predict milliseconds.
double Cost(const PlanRequest& request, const KernelPlan& plan, const Shape& shape) {
  const AttentionSpec& spec = request.spec;
  const arch::ArchTraits& traits = request.traits;
  const double rows =
      static_cast<double>(RoundUp(std::max<int64_t>(spec.seqlen_q, 1), plan.block_m));
  const double keys =
      static_cast<double>(RoundUp(std::max<int64_t>(spec.seqlen_kv, 1), plan.block_n));
  // Per row and key: the products, the softmax, and the reading of operands from shared memory: K
  // and V, which the rows of a warp share, Q, which its keys share, and weights that warps
  // exchange.
  const double dim_qk = static_cast<double>(RoundUp(spec.dim_qk, 16));
  const double dim_v = static_cast<double>(shape.v_columns * plan.column_warps);
  const double products = (dim_qk + dim_v) * (plan.tf32_terms == 0 ? 1 : 2 * plan.tf32_terms);
  const double softmax = 48;
  const double exchanged = 10 * (plan.column_warps - 1);
  const double reading =
      5 *
      ((dim_qk + dim_v) / plan.rows_per_warp +
       dim_qk / static_cast<double>(std::min<int64_t>(shape.score_keys, 64)) + exchanged) *
      (plan.tf32_terms == 0 ? 1 : 2);
  // Per row and tile: barriers, maxima across lanes, addresses. Warps that share rows meet no
  // barrier of the block with two stages, and hide these in one another's work: that decides where
  // an LSE leaves them narrow tiles (d 192 and 256 S 2048, 0.89 and 0.94 of the time of 16 rows a
  // warp, H200).
  const double all_of_tile = plan.stages == 1 ? 1200 : spec.lse && plan.column_warps > 1 ? 0 : 900;
  const double per_tile = all_of_tile * 16 / plan.rows_per_warp;
  double cost = rows * (keys * (products + softmax + reading) + keys / plan.block_n * per_tile);
  // Blocks that share an SM hide each other's waits.
  const int64_t resident = ResidentBlocks(traits, plan, shape);
  const double warps = static_cast<double>(std::min<int64_t>(resident * plan.warps, 8));
  cost *= 1 + 0.25 * (8 - warps) / 8;
  // Whole waves of blocks.
  const double blocks = static_cast<double>(std::max<int64_t>(spec.batch, 1)) *
                        static_cast<double>(std::max<int64_t>(spec.heads_q, 1)) * rows /
                        plan.block_m;
  const double slots = static_cast<double>(std::max(request.board.num_sms, 1) * resident);
  if (blocks < slots && !plan.split) cost *= slots / blocks;
  return cost;
}

}  // namespace

bool HasNarrowRows(const AttentionSpec& spec) {
  const std::array<Strides, 4> strides = spec::EffectiveStrides(spec);
  return std::any_of(strides.begin(), strides.begin() + 3,
                     [](const Strides& one) { return (one.batch | one.seq | one.head) % 8 != 0; });
}

int64_t FwdSm80SmemBytes(const KernelPlan& plan, int64_t dim_qk, int64_t dim_v) {
  const int64_t m = plan.block_m, n = plan.block_n, keys = int64_t{plan.stages} * n;
  if (plan.tf32_terms != 0) {
    const int64_t pitch_qk = FloatPitchQk(dim_qk);
    return HeaderBytes(plan) + 4 * (m * pitch_qk + keys * (pitch_qk + FloatPitchV(dim_v)));
  }
  const int64_t parts = plan.column_warps;
  const bool shifts = plan.narrow_rows && parts == 1;
  const int64_t pitch_qk = Pitch(RoundUp(dim_qk + (shifts ? MostShift(dim_qk) : 0), 16));
  const int64_t pitch_v =
      Pitch(parts > 1 ? RoundUp(dim_v, 8 * parts) : dim_v + (shifts ? MostShift(dim_v) : 0));
  int64_t bytes =
      HeaderBytes(plan) + 2 * (m * std::max(pitch_qk, pitch_v) + keys * (pitch_qk + pitch_v));
  if (parts > 1) {
    // Weights, and a number for each row of each part.
    bytes += 2 * m * Pitch(n) + 4 * parts * m;
  }
  return bytes;
}

FamilyAnswer PlanFwdSm80(const PlanRequest& request) {
  FamilyAnswer answer = Refuse(request);
  if (!answer.refusal.empty()) return answer;
  const AttentionSpec& spec = request.spec;
  const bool is_float = spec.type == ElementType::kFp32;
  const bool is_turing = request.traits.mma == arch::MmaKind::kM16n8k8;
  const bool narrow_rows = !is_float && !is_turing && HasNarrowRows(spec);
  std::vector<Candidate> candidates;
  for (const WarpChoice& choice : kWarpChoices) {
    const int parts = choice.column_warps;
    // Warps that share rows also fit where K is too wide for tiles of 64 rows.
    if (parts > 1 && (is_float || (spec.dim_v <= 64 * parts && spec.dim_qk <= 256))) continue;
    for (int block_n : kBlockNChoices) {
      if (block_n % (8 * parts) != 0) continue;
      if (block_n == 96 && choice.rows_per_warp == 32) continue;  // slower than 64 and 128
      const Shape shape = {block_n / parts, RoundUp(spec.dim_v, 8 * parts) / parts};
      // The narrowest tile is offered up to where ptxas spills; 16 keys are for wide rows of fp32.
      if (block_n == 16 && !is_float) continue;
      const bool narrowest = block_n == (is_float ? 16 : 32) && choice.rows_per_warp == 16;
      for (int stages : {2, 1}) {
        if (stages == 2 && !request.traits.has_cp_async) continue;
        const int64_t most = MaxAccumulators(spec, choice, block_n, stages);
        if (shape.accumulators(choice.rows_per_warp) >
            (narrowest ? std::max(most, kMaxNarrowest) : most)) {
          continue;
        }
        KernelPlan plan;
        plan.family = Family::kFwdSm80;
        plan.target = std::string(request.traits.target);
        plan.block_m = choice.warps / parts * choice.rows_per_warp;
        plan.block_n = block_n;
        plan.warps = choice.warps;
        plan.rows_per_warp = choice.rows_per_warp;
        plan.stages = stages;
        plan.column_warps = parts;
        plan.turing = is_turing;
        plan.narrow_rows = narrow_rows;
        if (is_float) plan.tf32_terms = spec.allow_tf32 ? 1 : 3;
        plan.smem_bytes = FwdSm80SmemBytes(plan, spec.dim_qk, spec.dim_v);
        if (plan.smem_bytes > request.traits.smem_per_block_optin) continue;
        const int64_t resident = ResidentBlocks(request.traits, plan, shape);
        // Warps that split the columns of O, and fp32, do not write parts.
        if (parts == 1 && !is_float) OfferParts(request, resident, plan);
        candidates.push_back({plan, Cost(request, plan, shape)});
      }
    }
  }
  if (candidates.empty()) {
    answer.refusal =
        absl::StrCat("no tile of dim_qk, dim_v = ", spec.dim_qk, ", ", spec.dim_v, " fits ",
                     request.traits.smem_per_block_optin, " bytes of shared memory on ",
                     std::string(request.traits.target));
    return answer;
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; });
  const KernelPlan& best = candidates.front().plan;
  answer.why =
      absl::StrCat("tiles of ", best.block_m, " rows and ", best.block_n, " keys in ", best.warps,
                   " warps have the lowest estimate of ", candidates.size(), " that fit");
  for (Candidate& candidate : candidates) answer.plans.push_back(std::move(candidate.plan));
  return answer;
}

}  // namespace tilewright::plan
