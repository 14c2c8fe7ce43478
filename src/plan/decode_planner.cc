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
// Head dims up to which a warp holds the output sums of 8 rows.
constexpr int64_t kMaxDim = 256;
// And up to which a block holds those of 16.
constexpr int64_t kMaxWideDim = 640;

int64_t PackedRows(const AttentionSpec& spec) {
  return std::max<int64_t>(spec.seqlen_q * spec::GroupSize(spec), 1);
}

// Rows to choose tiles for: numbers of queries in between share the next power of two's plan.
int64_t TileRows(const AttentionSpec& spec) {
  int64_t queries = 1;
  while (queries < spec.seqlen_q) queries *= 2;
  return queries * spec::GroupSize(spec);
}

bool HasElementMask(const AttentionSpec& spec) {
  return !spec.mask_snippet.empty() ||
         std::any_of(spec.bias.begin(), spec.bias.end(),
                     [](const BiasTerm& term) { return term.type == ElementType::kBool; });
}

// What attn_decode leaves of a thread's registers for tiles of rows: the rest holds addresses, and
// what a key or a score needs besides.
int64_t TileRegisters(const AttentionSpec& spec, int64_t row_tiles) {
  constexpr int64_t kLargestStep = 64;
  if (spec.kv_scale == ScaleKind::kPerToken) return 90;
  const bool one_page = spec.page_size % kLargestStep == 0;
  const bool plain = one_page && spec.softcap == 0 && !spec.alibi && spec.bias.empty() &&
                     spec.score_snippet.empty() && spec.mask_snippet.empty() && !spec.varlen;
  if (!plain) return 120;
  // Steps that several warps share are longer, and a mask that moves with the row has intervals. Of
  // eight tiles four warps have two each, where three would have room for nine.
  constexpr int64_t kTilesOfOneWarp = 3;
  constexpr int64_t kTilesOfFourWarps = 8;
  const bool moves = spec::EffectiveWindowRight(spec) >= 0 || spec.window_left >= 0;
  return (moves && row_tiles > kTilesOfOneWarp) || row_tiles == kTilesOfFourWarps ? 160 : 168;
}

// PieceQueue of the kernels.
constexpr int64_t kPieceQueueBytes = 416;

// Bytes between rows in shared memory: an odd number of 16-byte chunks.
int64_t PitchBytes(int64_t bytes) { return 16 * (RoundUp(bytes, 16) / 16 | 1); }

// Where tiles of K and V may begin in shared memory.
constexpr int64_t kLineBytes = 128;

// ChunkedPitch of mma/chunked_rows.cuh.
int64_t ChunkedPitchBytes(int64_t bytes) {
  return bytes % kLineBytes == 0 ? bytes : PitchBytes(bytes);
}

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
  if (HasManyFewKeys(request)) {
    return absl::StrCat("batch * heads_kv = ", spec.batch * spec.heads_kv, " sequences of ",
                        spec.seqlen_kv, " keys: so few are read sooner than shared out");
  }
  return "";
}

std::string DimsText(const AttentionSpec& spec) {
  return absl::StrCat("dim_qk, dim_v = ", spec.dim_qk, ", ", spec.dim_v);
}

// Completes a plan whose tiles are chosen: parts and blocks on the board.
void Complete(const PlanRequest& request, int64_t registers, KernelPlan& plan) {
  const arch::ArchTraits& traits = request.traits;
  plan.split = true;
  // A sequence's parts must depend on nothing else.
  if (request.spec.batch_invariant) plan.chunk = std::max(1, 512 / plan.block_n);
  const int64_t resident = std::max<int64_t>(
      1, std::min({traits.smem_per_sm / (plan.smem_bytes + traits.smem_reserved_per_block),
                   traits.regs_per_sm / (registers * plan.threads()), int64_t{4}}));
  plan.slots = static_cast<int>(std::max(request.board.num_sms, 1) * resident);
}

// The kernel that merges what attn_decode_wide has left: parts of so many columns are more than one
// block should have to read.
void AddCombine(const PlanRequest& request, KernelPlan& plan) {
  KernelPlan combine = PlanCombine(plan.target, request.spec.dim_v, /*warps_per_row=*/4);
  combine.tile_rows = plan.block_m;
  combine.block_n = plan.block_n;
  combine.step = plan.step;
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

bool HasManyFewKeys(const PlanRequest& request) {
  const AttentionSpec& spec = request.spec;
  // K and V are read once for each head of Q there. On one H200 (2026-12-01), microseconds of
  // attn_decode (of what is chosen instead: attn_fwd_small, attn_fwd_sm80 beyond 160 keys), 2048
  // sequences: d16 with 8 keys 63 (10), 128 keys 61 (15), 512 keys 88 (45); d64 with 160 keys 74
  // (39), 256 keys 83 (61), 512 keys 105 (95), 1024 keys 152 (162); d128 with 64 keys 72 (34);
  // eight heads of d16 on each of 2048 sequences of 128 keys 63 (49).
  constexpr int64_t kFewBytes = 64 << 10;
  constexpr int64_t kMaxDim = 128;
  if (request.family.has_value() || spec.batch_invariant || !HasOneHalfType(spec) ||
      std::max(spec.dim_qk, spec.dim_v) > kMaxDim) {
    return false;
  }
  const int64_t bytes = spec.seqlen_kv * (spec.dim_qk + spec.dim_v) * spec::ElementBytes(spec.type);
  return spec.batch * spec.heads_kv >= request.board.num_sms &&
         spec::GroupSize(spec) * bytes <= kFewBytes;
}

int64_t DecodeSmemBytes(const KernelPlan& plan, const AttentionSpec& spec) {
  const int64_t size = spec::ElementBytes(spec::KvType(spec));
  const int64_t teams = plan.block_n / plan.step;
  const int64_t pitch_k = ChunkedPitchBytes(RoundUp(spec.dim_qk, size == 1 ? 32 : 16) * size);
  const int64_t pitch_v = ChunkedPitchBytes(RoundUp(spec.dim_v, 16) * size);
  const int64_t scales = spec.kv_scale == ScaleKind::kPerToken ? 8 * plan.step : 16;
  const int64_t o = int64_t{plan.block_m} * (RoundUp(spec.dim_v, 4) + 4) * 4;
  const int64_t k_and_v = RoundUp(plan.step * pitch_k, kLineBytes) + plan.step * pitch_v;
  const int64_t stage = RoundUp(std::max(RoundUp(k_and_v, 16) + scales, o), kLineBytes);
  const bool one_page = spec.page_size == 0 || spec.page_size % plan.step == 0;
  const int64_t pages = one_page ? 4 : teams * (plan.stages + 1) * plan.step;
  const int64_t sums = teams * (3 * int64_t{plan.block_m} + 1);
  const int64_t gathered =
      plan.cluster > 1 ? RoundUp(plan.cluster * (o + int64_t{plan.block_m} * 4), kLineBytes) : 0;
  return RoundUp(
      gathered + teams * plan.stages * stage + plan.warps * kPieceQueueBytes + 4 * (pages + sums),
      kLineBytes);
}

FamilyAnswer PlanDecode(const PlanRequest& request) {
  FamilyAnswer answer;
  const AttentionSpec& spec = request.spec;
  answer.refusal = RefusalOfBoth(request);
  if (answer.refusal.empty() && (spec.dim_qk > kMaxDim || spec.dim_v > kMaxDim)) {
    answer.refusal = absl::StrCat(DimsText(spec), ": must be at most ", kMaxDim);
  }
  const int64_t rows = TileRows(spec);
  const int64_t row_tiles = CeilDiv(rows, 8);
  // Registers of a thread for 8 rows: sums of O, queries, and scores of a step.
  const int64_t registers_of_tile = CeilDiv(spec.dim_v, 16) * 4 + CeilDiv(spec.dim_qk, 16) * 2 + 8;
  const int64_t most_tiles =
      std::clamp<int64_t>(TileRegisters(spec, row_tiles) / registers_of_tile, 1, 4);
  if (answer.refusal.empty() && HasElementMask(spec) && row_tiles > most_tiles) {
    answer.refusal = absl::StrCat("a mask by element with seqlen_q * group = ", rows,
                                  ": must be at most ", 8 * most_tiles);
  }
  if (!answer.refusal.empty()) return answer;
  // Threads of a block may have 255 registers each.
  constexpr int64_t kMostWarps = 8;
  KernelPlan base = StartPlan(request, Family::kDecode);
  const int64_t row_warps = std::min(CeilDiv(row_tiles, most_tiles), kMostWarps);
  const int64_t tiles = std::min(CeilDiv(row_tiles, row_warps), most_tiles);
  base.rows_per_warp = static_cast<int>(8 * tiles);
  base.block_m = static_cast<int>(row_warps) * base.rows_per_warp;
  const int64_t registers = std::min<int64_t>(registers_of_tile * tiles + 80, 255);
  // Steps of about 8 KB of K and V; of more where several warps wait for each other.
  const int64_t key_bytes = (spec.dim_qk + spec.dim_v) * spec::ElementBytes(spec::KvType(spec));
  base.step = key_bytes <= 128 ? 64 : key_bytes <= 256 || row_warps > 1 ? 32 : 16;
  struct Choice {
    int64_t teams;
    int stages;
    int cluster = 1;
    bool alone = false;  // on an SM, however many would fit
  };
  // Best first: one block on an SM has the fewest pieces to merge.
  std::vector<Choice> choices = {{8, 3}, {4, 3}, {4, 2}, {2, 3}, {2, 2}};
  // O of three tiles makes a stage larger than its keys do.
  if (tiles > 2) choices.insert(choices.begin() + 1, {8, 2});
  if (row_warps > 1) choices = {{2, 4}, {4, 3}, {2, 3}, {2, 2}, {1, 3}};
  // A few blocks with few keys wait for what one multiprocessor can read, and for their steps one
  // after the other: those of a cluster have one step each.
  constexpr int kBlocksOfCluster = 4;
  const int64_t items = spec.batch * spec.heads_kv * CeilDiv(rows, base.block_m);
  if (request.traits.has_cluster && row_warps == 1 && !spec.batch_invariant &&
      spec.seqlen_kv <= kDecodeFewKeys && spec.seqlen_kv > kMostWarps * base.step &&
      items * kBlocksOfCluster <= request.board.num_sms) {
    choices.insert(choices.begin(), {kMostWarps, 2, kBlocksOfCluster});
  }
  // Half of an SM is enough for whole items: blocks of the next call then find room, and have found
  // their work when this one ends. Merging parts, looking up pages and widening bytes want more
  // warps.
  const int64_t sms = std::max(request.board.num_sms, 1);
  const bool whole_items =
      items * 10 >= sms * 9 && items * spec.seqlen_kv * key_bytes / sms < kDecodeLongShare;
  if (row_tiles == 1 && whole_items && spec.seqlen_kv > kDecodeFewKeys && !spec.varlen &&
      spec.page_size == 0 && !spec.batch_invariant && spec::KvType(spec) == spec.type) {
    choices.insert(choices.begin(), {4, 3, 1, true});
  }
  for (const Choice& choice : choices) {
    KernelPlan plan = base;
    plan.warps = static_cast<int>(choice.teams * row_warps);
    if (choice.teams > 1 && plan.warps > kMostWarps) continue;
    plan.block_n = static_cast<int>(choice.teams) * plan.step;
    plan.stages = choice.stages;
    if (choice.cluster > 1) plan.cluster = choice.cluster;
    plan.smem_bytes = DecodeSmemBytes(plan, spec);
    if (plan.smem_bytes > request.traits.smem_per_block_optin) continue;
    // Less than this on its way does not keep memory busy.
    constexpr int64_t kLeastAlone = 90 << 10;
    if (choice.alone && (plan.smem_bytes < kLeastAlone ||
                         2 * (plan.smem_bytes + request.traits.smem_reserved_per_block) >
                             request.traits.smem_per_sm)) {
      continue;
    }
    Complete(request, registers, plan);
    plan.slots /= choice.cluster;
    if (choice.alone) plan.slots = static_cast<int>(sms);
    answer.plans.push_back(std::move(plan));
  }
  Explain(request, answer);
  return answer;
}

namespace {

// Bytes of a key in the ring of attn_decode_wide.
struct WideKeyBytes {
  int64_t k;
  int64_t v;
};
WideKeyBytes WideKey(const KernelPlan& plan, const AttentionSpec& spec) {
  return {ChunkedPitchBytes(RoundUp(spec.dim_qk, 16) * 2),
          ChunkedPitchBytes(plan.warps * RoundUp(CeilDiv(spec.dim_v, plan.warps), 16) * 2)};
}

// The ring: with V apart, or in K.
int64_t WideRingBytes(const KernelPlan& plan, const WideKeyBytes& key) {
  const int64_t k = RoundUp(plan.stages * plan.step * key.k, kLineBytes);
  return RoundUp(
      std::max(k + plan.stages * plan.step * key.v, plan.shared_stages * plan.step * key.k),
      kLineBytes);
}

// Of what lies beside the ring, which has room for `pages` pages.
int64_t WideBytesBesideRing(const KernelPlan& plan, int64_t pages) {
  const int64_t scores = 2 * int64_t{plan.block_m / 8} * plan.warps * 32 * 16;
  return scores + plan.warps * kPieceQueueBytes + 4 * pages;
}

int64_t WidePages(const KernelPlan& plan, const AttentionSpec& spec) {
  const bool one_page = spec.page_size == 0 || spec.page_size % plan.step == 0;
  return one_page ? 4 : int64_t{std::max(plan.stages, plan.shared_stages) + 1} * plan.step;
}

}  // namespace

int64_t DecodeWideSmemBytes(const KernelPlan& plan, const AttentionSpec& spec) {
  return RoundUp(
      WideRingBytes(plan, WideKey(plan, spec)) + WideBytesBesideRing(plan, WidePages(plan, spec)),
      kLineBytes);
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
  const int64_t rows = TileRows(spec);
  base.block_m = rows <= 8 ? 8 : rows <= 16 ? 16 : 24;
  base.rows_per_warp = base.block_m;
  // Latent attention keeps K and V in one buffer, so that a ring of K alone is what counts.
  const bool is_latent = spec.dim_qk > spec.dim_v && spec.heads_kv == 1;
  struct Choice {
    int warps;
    int step;
    int64_t blocks;  // that share an SM: what one waits for the other fills
  };
  for (const Choice& choice : {Choice{4, 16, 2}, Choice{8, 32, 1}, Choice{8, 16, 1}}) {
    // 24 rows of 128 columns of O are more than a thread's registers.
    if (base.block_m > 16 && choice.step * choice.warps != 128) continue;
    KernelPlan plan = base;
    plan.warps = choice.warps;
    plan.step = plan.block_n = choice.step;
    constexpr int64_t kMostStages = 8;
    const WideKeyBytes key = WideKey(plan, spec);
    const int64_t room =
        std::min<int64_t>(
            request.traits.smem_per_block_optin,
            request.traits.smem_per_sm / choice.blocks - request.traits.smem_reserved_per_block) -
        WideBytesBesideRing(plan, (kMostStages + 1) * choice.step) - 3 * kLineBytes;
    plan.stages = static_cast<int>(std::min(kMostStages, room / (choice.step * (key.k + key.v))));
    plan.shared_stages = static_cast<int>(std::min(kMostStages, room / (choice.step * key.k)));
    // Rings of two steps wait for each of them.
    if (plan.stages < (is_latent ? 2 : 3) || plan.shared_stages < 3) continue;
    plan.smem_bytes = DecodeWideSmemBytes(plan, spec);
    Complete(request, /*registers=*/255, plan);
    AddCombine(request, plan);
    answer.plans.push_back(std::move(plan));
  }
  Explain(request, answer);
  return answer;
}

}  // namespace tilewright::plan
