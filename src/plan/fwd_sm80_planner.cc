// attn_fwd_sm80: 16-bit operands on mma.sync, cp.async copies.
//
// A warp owns 16 or 32 query rows: 32 halve what it reads of K and V from shared memory for each
// product, and pay as long as the output sums fit its registers. Two stages let the copies of a
// tile run behind the whole of the tile before it, one leaves room for wider tiles or more blocks.
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

constexpr int64_t kMaxDim = 256;
constexpr int kBlockNChoices[] = {128, 96, 64, 48, 32};

struct WarpChoice {
  int warps;
  int rows_per_warp;
};
constexpr WarpChoice kWarpChoices[] = {{4, 32}, {8, 16}, {4, 16}};

// Whether scores or masks need more than an interval of keys for each row.
bool HasPolicies(const AttentionSpec& spec) {
  return spec.softcap != 0 || spec.alibi || !spec.bias.empty() || !spec.score_snippet.empty() ||
         !spec.mask_snippet.empty() || spec.block_mask_q != 0 || spec.dropout != 0 ||
         spec.page_size != 0;
}

// Accumulators (scores and output sums) that a lane may hold before ptxas 13.0 spills, found by
// compiling. Head dims that are a power of two need fewer registers for addresses; a score or
// element mask needs some for its own arithmetic, finding keys on pages most.
int64_t MaxAccumulators(const AttentionSpec& spec, int rows_per_warp, int block_n) {
  if (spec.page_size != 0 || spec.dropout != 0) return 88;
  if (rows_per_warp == 16) return HasPolicies(spec) ? 112 : 160;
  if (HasPolicies(spec)) return 112;
  const bool simple_addresses = std::has_single_bit(static_cast<uint64_t>(spec.dim_qk)) &&
                                std::has_single_bit(static_cast<uint64_t>(spec.dim_v));
  if (simple_addresses && block_n <= 64) return 192;
  return block_n <= 64 ? 136 : 128;
}

// Registers besides, for occupancy only.
constexpr int64_t kOtherRegisters = 88;

int64_t RoundUp(int64_t n, int64_t multiple) { return CeilDiv(n, multiple) * multiple; }

// fwd_sm80::Pitch of the kernel.
int64_t Pitch(int64_t columns) { return 8 * (RoundUp(columns, 8) / 8 | 1); }

bool IsHalf(ElementType type) { return type == ElementType::kFp16 || type == ElementType::kBf16; }

// Fills `refusal` and, where one change would do, `nearest`.
FamilyAnswer Refuse(const PlanRequest& request) {
  const AttentionSpec& spec = request.spec;
  const std::string target(request.traits.target);
  FamilyAnswer answer;
  AttentionSpec nearest = spec;
  if (spec.operation != Operation::kForward) {
    answer.refusal = "operation = bwd: only the forward is served";
    nearest.operation = Operation::kForward;
  } else if (!request.traits.has_cp_async || !request.traits.has_bf16_mma) {
    answer.refusal = absl::StrCat(target, " has no cp.async and no mma.m16n8k16");
    return answer;
  } else if (!IsHalf(spec.type) || spec::KvType(spec) != spec.type ||
             spec::OutType(spec) != spec.type) {
    answer.refusal = "the types of Q, K, V and O must be fp16 or bf16, all the same";
    nearest.type = IsHalf(spec.type) ? spec.type : ElementType::kBf16;
    nearest.kv_type.reset();
    nearest.out_type.reset();
    nearest.q_scale = nearest.kv_scale = ScaleKind::kNone;
  } else if (spec.strided_innermost) {
    answer.refusal = "strided_innermost: rows must be contiguous";
    nearest.strided_innermost = false;
  } else if (spec.dim_qk > kMaxDim || spec.dim_v > kMaxDim) {
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

// Whether rows of Q, K or V are no multiples of 16 bytes, by the typical strides.
bool HasNarrowRows(const AttentionSpec& spec) {
  const std::array<Strides, 4> strides = spec::EffectiveStrides(spec);
  return std::any_of(strides.begin(), strides.begin() + 3, [](const Strides& one) {
    return (one.batch | one.seq | one.head) % 8 != 0;  // 16-bit elements
  });
}

// Blocks that run on an SM at a time.
int64_t ResidentBlocks(const arch::ArchTraits& traits, const KernelPlan& plan,
                       int64_t accumulators) {
  const int64_t registers = RoundUp(std::min<int64_t>(255, kOtherRegisters + accumulators), 8);
  return std::max<int64_t>(
      1, std::min({traits.smem_per_sm / (plan.smem_bytes + traits.smem_reserved_per_block),
                   traits.regs_per_sm / (registers * plan.threads()),
                   static_cast<int64_t>(traits.max_warps_per_sm / plan.warps)}));
}

struct Candidate {
  KernelPlan plan;
  double cost = 0;
};

// Relative time of a launch. Weights from sweeps on one H200 (2026-11-29, d 32 to 256, S 2048 and
// 8192, causal and full); they rank candidates, they do not predict milliseconds.
double Cost(const PlanRequest& request, const KernelPlan& plan, int64_t accumulators) {
  const AttentionSpec& spec = request.spec;
  const arch::ArchTraits& traits = request.traits;
  const double rows =
      static_cast<double>(RoundUp(std::max<int64_t>(spec.seqlen_q, 1), plan.block_m));
  const double keys =
      static_cast<double>(RoundUp(std::max<int64_t>(spec.seqlen_kv, 1), plan.block_n));
  // Per row and key: the products, the softmax, and the reading of K and V from shared memory,
  // which the rows of a warp share.
  const double products = static_cast<double>(RoundUp(spec.dim_qk, 16) + RoundUp(spec.dim_v, 8));
  const double softmax = 48;
  const double reading = products * 10 / plan.rows_per_warp;
  // Per row and tile: barriers, maxima across lanes, addresses.
  const double per_tile = (plan.stages == 2 ? 900.0 : 1200.0) * 16 / plan.rows_per_warp;
  double cost = rows * (keys * (products + softmax + reading) + keys / plan.block_n * per_tile);
  // Blocks that share an SM hide each other's waits.
  const int64_t resident = ResidentBlocks(traits, plan, accumulators);
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

// sizeof(Problem), and what aligns the tiles behind it.
constexpr int64_t kProblemBytes = 80;

int64_t FwdSm80SmemBytes(int block_m, int block_n, int stages, int64_t dim_qk, int64_t dim_v) {
  const int64_t pitch_qk = Pitch(RoundUp(dim_qk, 16));
  const int64_t pitch_v = Pitch(dim_v);
  return kProblemBytes + 2 * (block_m * std::max(pitch_qk, pitch_v) +
                              int64_t{stages} * block_n * (pitch_qk + pitch_v));
}

FamilyAnswer PlanFwdSm80(const PlanRequest& request) {
  FamilyAnswer answer = Refuse(request);
  if (!answer.refusal.empty()) return answer;
  const AttentionSpec& spec = request.spec;
  const bool narrow_rows = HasNarrowRows(spec);
  std::vector<Candidate> candidates;
  for (const WarpChoice& choice : kWarpChoices) {
    for (int block_n : kBlockNChoices) {
      for (int stages : {2, 1}) {
        const int64_t accumulators =
            choice.rows_per_warp / 16 * (block_n + RoundUp(spec.dim_v, 8)) / 2;
        if (accumulators > MaxAccumulators(spec, choice.rows_per_warp, block_n) &&
            (block_n != 32 || choice.rows_per_warp != 16))
          continue;
        KernelPlan plan;
        plan.family = Family::kFwdSm80;
        plan.target = std::string(request.traits.target);
        plan.block_m = choice.warps * choice.rows_per_warp;
        plan.block_n = block_n;
        plan.warps = choice.warps;
        plan.rows_per_warp = choice.rows_per_warp;
        plan.stages = stages;
        plan.narrow_rows = narrow_rows;
        plan.smem_bytes = FwdSm80SmemBytes(plan.block_m, block_n, stages, spec.dim_qk, spec.dim_v);
        if (plan.smem_bytes > request.traits.smem_per_block_optin) continue;
        OfferParts(request, ResidentBlocks(request.traits, plan, accumulators), plan);
        candidates.push_back({plan, Cost(request, plan, accumulators)});
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
