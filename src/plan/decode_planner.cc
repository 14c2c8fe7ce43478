// attn_decode and attn_decode_wide: few query rows over many keys.
//
// The kernels are made for reading K and V at the speed of memory: tens of kilobytes of copies in
// flight on every SM, as many rows in a tile as share a key/value head, and the keys of all
// sequences shared evenly among the blocks.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plan/family_planner.h"
#include "spec/validate.h"

namespace tilewright::plan {
namespace {

// More packed rows than this are better off with a family for long query sequences.
constexpr int64_t kMaxRows = 128;
// Head dims up to which a warp holds the output sums of 16 rows.
constexpr int64_t kMaxDim = 256;
// And up to which a block does.
constexpr int64_t kMaxWideDim = 640;

int64_t PackedRows(const AttentionSpec& spec) {
  return std::max<int64_t>(spec.seqlen_q * spec::GroupSize(spec), 1);
}

bool HasElementMask(const AttentionSpec& spec) {
  return !spec.mask_snippet.empty() ||
         std::any_of(spec.bias.begin(), spec.bias.end(),
                     [](const BiasTerm& term) { return term.type == ElementType::kBool; });
}

// Bytes between rows in shared memory: an odd number of 16-byte chunks.
int64_t PitchBytes(int64_t bytes) { return 16 * (RoundUp(bytes, 16) / 16 | 1); }

// Why neither family serves the spec; empty when one may.
std::string RefusalOfBoth(const PlanRequest& request) {
  const AttentionSpec& spec = request.spec;
  if (spec.operation != Operation::kForward) return "operation = bwd: only the forward is served";
  if (!request.traits.has_cp_async || !request.traits.has_bf16_mma) {
    return absl::StrCat(std::string(request.traits.target), " has no cp.async and no mma.m16n8k16");
  }
  if (!IsHalf(spec.type) || !IsHalf(spec::OutType(spec))) return "Q and O must be fp16 or bf16";
  if (spec::KvType(spec) != spec.type && spec::ElementBytes(spec::KvType(spec)) != 1) {
    return "K and V must have the type of Q or 8 bits";
  }
  if (spec.strided_innermost) return "strided_innermost: rows must be contiguous";
  if (spec.dropout != 0) return "dropout is left to families for training";
  if (spec.block_mask_q != 0) return "block_mask is left to families for long queries";
  if (PackedRows(spec) > kMaxRows) {
    return absl::StrCat("seqlen_q * group = ", PackedRows(spec), ": must be at most ", kMaxRows);
  }
  // A tile of rows that is small because the whole problem is does not wait for memory.
  constexpr int64_t kFewQueries = 8;
  constexpr int64_t kKeysOfQuery = 16;
  if (!request.family.has_value() && spec.seqlen_q > kFewQueries &&
      spec.seqlen_kv / kKeysOfQuery < spec.seqlen_q) {
    return absl::StrCat("seqlen_q, seqlen_kv = ", spec.seqlen_q, ", ", spec.seqlen_kv,
                        ": must be at most ", kFewQueries, " queries, or ", kKeysOfQuery,
                        " times as many keys as queries");
  }
  if (spec.seqlen_kv > std::numeric_limits<int32_t>::max()) {
    return absl::StrCat("seqlen_kv = ", spec.seqlen_kv, ": must be below 2^31");
  }
  return "";
}

std::string DimsText(const AttentionSpec& spec) {
  return absl::StrCat("dim_qk, dim_v = ", spec.dim_qk, ", ", spec.dim_v);
}

// Completes a plan whose tiles are chosen: parts, the kernel that merges them, blocks on the board.
void Complete(const PlanRequest& request, int64_t registers, KernelPlan& plan) {
  const arch::ArchTraits& traits = request.traits;
  plan.split = true;
  // A sequence's parts must depend on nothing else.
  if (request.spec.batch_invariant) plan.chunk = std::max(1, 512 / plan.block_n);
  const int64_t resident = std::max<int64_t>(
      1, std::min({traits.smem_per_sm / (plan.smem_bytes + traits.smem_reserved_per_block),
                   traits.regs_per_sm / (registers * plan.threads()), int64_t{4}}));
  plan.slots = static_cast<int>(std::max(request.board.num_sms, 1) * resident);
  KernelPlan combine = PlanCombine(plan.target, request.spec.dim_v, /*warps_per_row=*/4);
  combine.tile_rows = plan.block_m;
  combine.block_n = plan.block_n;
  combine.chunk = plan.chunk;
  plan.after = {std::move(combine)};
}

KernelPlan StartPlan(const PlanRequest& request, Family family) {
  KernelPlan plan;
  plan.family = family;
  plan.target = std::string(request.traits.target);
  plan.rows_per_warp = 16;
  return plan;
}

void Explain(const PlanRequest& request, FamilyAnswer& answer) {
  if (answer.plans.empty()) {
    answer.refusal = absl::StrCat(
        "no ring of ", DimsText(request.spec), " fits ", request.traits.smem_per_block_optin,
        " bytes of shared memory on ", std::string(request.traits.target));
    return;
  }
  answer.why = absl::StrCat(PackedRows(request.spec), " packed rows read K and V once, in ",
                            answer.plans[0].slots, " equal shares");
}

}  // namespace

int64_t DecodeSmemBytes(const KernelPlan& plan, const AttentionSpec& spec) {
  const int64_t size = spec::ElementBytes(spec::KvType(spec));
  const int64_t teams = plan.block_n / plan.step;
  const int64_t pitch_k = PitchBytes(RoundUp(spec.dim_qk, size == 1 ? 32 : 16) * size);
  const int64_t pitch_v = PitchBytes(RoundUp(spec.dim_v, size == 1 ? 16 : 8) * size);
  const int64_t scales = spec.kv_scale == ScaleKind::kPerToken ? 8 * plan.step : 16;
  const int64_t ring = teams * plan.stages * (plan.step * (pitch_k + pitch_v) + scales);
  const int64_t o = int64_t{plan.warps} * 16 * (RoundUp(spec.dim_v, 4) + 4) * 4;
  const bool one_page = spec.page_size == 0 || spec.page_size % plan.step == 0;
  const int64_t pages = one_page ? 1 : teams * (plan.stages + 1) * plan.step;
  return RoundUp(std::max(ring, o) + 4 * pages + 3 * int64_t{plan.warps} * 16 * 4, 16);
}

FamilyAnswer PlanDecode(const PlanRequest& request) {
  FamilyAnswer answer;
  const AttentionSpec& spec = request.spec;
  answer.refusal = RefusalOfBoth(request);
  if (answer.refusal.empty() && (spec.dim_qk > kMaxDim || spec.dim_v > kMaxDim)) {
    answer.refusal = absl::StrCat(DimsText(spec), ": must be at most ", kMaxDim);
  }
  const int64_t rows = PackedRows(spec);
  if (answer.refusal.empty() && HasElementMask(spec) && rows > 16) {
    answer.refusal =
        absl::StrCat("a mask by element with seqlen_q * group = ", rows, ": must be at most 16");
  }
  if (!answer.refusal.empty()) return answer;
  KernelPlan base = StartPlan(request, Family::kDecode);
  const int m_warps = rows <= 16 ? 1 : rows <= 32 ? 2 : 4;
  base.block_m = 16 * m_warps;
  // Steps of about 8 KB of K and V.
  const int64_t key_bytes = (spec.dim_qk + spec.dim_v) * spec::ElementBytes(spec::KvType(spec));
  base.step = key_bytes <= 128 ? 64 : key_bytes <= 256 || m_warps > 1 ? 32 : 16;
  struct Choice {
    int teams;
    int stages;
  };
  // Best first: rings that let two blocks share an SM (one ends a piece while the other reads),
  // then what fits.
  std::vector<Choice> choices = {{4, 3}, {4, 4}, {8, 3}, {4, 2}, {2, 3}, {2, 2}};
  if (m_warps > 1) choices = {{1, 3}, {1, 4}, {1, 2}};
  for (const Choice& choice : choices) {
    KernelPlan plan = base;
    plan.warps = choice.teams * m_warps;
    plan.block_n = choice.teams * plan.step;
    plan.stages = choice.stages;
    plan.smem_bytes = DecodeSmemBytes(plan, spec);
    if (plan.smem_bytes > request.traits.smem_per_block_optin) continue;
    Complete(request, /*registers=*/208, plan);
    answer.plans.push_back(std::move(plan));
  }
  Explain(request, answer);
  return answer;
}

int64_t DecodeWideSmemBytes(const KernelPlan& plan, const AttentionSpec& spec) {
  const int64_t pitch_k = PitchBytes(RoundUp(spec.dim_qk, 32) * 2);
  const int64_t pitch_v = PitchBytes(plan.warps * RoundUp(CeilDiv(spec.dim_v, plan.warps), 16) * 2);
  const int64_t pitch_p = PitchBytes(int64_t{plan.step} * 2);
  const int64_t ring =
      plan.step * std::max(plan.stages * (pitch_k + pitch_v), plan.shared_stages * pitch_k);
  const bool one_page = spec.page_size == 0 || spec.page_size % plan.step == 0;
  const int64_t pages =
      one_page ? 4 : int64_t{std::max(plan.stages, plan.shared_stages) + 1} * plan.step;
  return RoundUp(plan.block_m * (pitch_k + pitch_p) + ring +
                     2 * int64_t{plan.step / 8} * plan.block_m * 4 + 4 * pages,
                 16);
}

FamilyAnswer PlanDecodeWide(const PlanRequest& request) {
  FamilyAnswer answer;
  const AttentionSpec& spec = request.spec;
  answer.refusal = RefusalOfBoth(request);
  if (answer.refusal.empty() && spec::KvType(spec) != spec.type) {
    answer.refusal = "K and V must have the type of Q";
  }
  if (answer.refusal.empty() && HasElementMask(spec)) {
    answer.refusal = "a mask by element is left to other families";
  }
  if (answer.refusal.empty() && (spec.dim_qk > kMaxWideDim || spec.dim_v > kMaxWideDim)) {
    answer.refusal = absl::StrCat(DimsText(spec), ": must be at most ", kMaxWideDim);
  }
  if (!answer.refusal.empty()) return answer;
  KernelPlan base = StartPlan(request, Family::kDecodeWide);
  base.block_m = PackedRows(spec) <= 16 ? 16 : 32;
  base.warps = 8;
  struct Choice {
    int step;
    int stages;
    int shared_stages;
  };
  // Latent attention keeps K and V in one buffer, so that a ring of K alone is what counts.
  std::vector<Choice> choices = {{32, 3, 4}, {32, 2, 4}, {32, 2, 3}, {16, 2, 3}, {16, 2, 2}};
  if (spec.dim_qk > spec.dim_v && spec.heads_kv == 1) choices.insert(choices.begin(), {48, 1, 3});
  for (const Choice& choice : choices) {
    KernelPlan plan = base;
    plan.step = plan.block_n = choice.step;
    plan.stages = choice.stages;
    plan.shared_stages = choice.shared_stages;
    plan.smem_bytes = DecodeWideSmemBytes(plan, spec);
    if (plan.smem_bytes > request.traits.smem_per_block_optin) continue;
    Complete(request, /*registers=*/255, plan);
    answer.plans.push_back(std::move(plan));
  }
  Explain(request, answer);
  return answer;
}

}  // namespace tilewright::plan
