// attn_fwd_sm90: warpgroup products and bulk copies of Hopper, 16-bit operands.
//
// A computing warpgroup owns 64 query rows; what its registers hold decides how many keys a tile
// may have. Three or four warpgroups hide each other's softmax at small head dims, two leave
// registers for large ones.
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "plan/family_planner.h"
#include "spec/validate.h"

namespace tilewright::plan {
namespace {

// Of one warpgroup, of two that share rows, and of what fits shared memory beside V.
constexpr int64_t kMaxOwnDimV = 320;
constexpr int64_t kMaxDimV = 512;
constexpr int64_t kMaxDimQk = 576;
constexpr int64_t kMaxNarrowDim = 256;
constexpr int64_t kFewNarrowKeys = 128;
constexpr int kSharers = 2;
constexpr int kWarpgroupRows = 64;
constexpr int kPanelColumns = 64;
constexpr int kPanelRowBytes = 128;
constexpr int kAtomRows = 8;     // of the swizzle
constexpr int kOnesColumns = 8;  // behind V
constexpr int kSharedAlignment = 1024;
constexpr int64_t kFewKeys = 256;

// Whether no term or rule of the caller's makes scores -inf.
bool ScoresAreFinite(const AttentionSpec& spec) {
  return spec.bias.empty() && spec.score_snippet.empty() && spec.mask_snippet.empty() &&
         spec.block_mask_q == 0;
}

bool IsE4m3(const AttentionSpec& spec) { return spec.type == ElementType::kFp8E4m3; }

// What this family wants of e4m3, and the nearest spec that has it. Empty: nothing is missing.
std::string RefuseE4m3(const AttentionSpec& spec, AttentionSpec* nearest) {
  if (!IsHalf(spec::OutType(spec))) {
    nearest->out_type = ElementType::kBf16;
    return "e4m3: O must be fp16 or bf16";
  }
  if (spec.kv_scale == ScaleKind::kPerToken) {
    nearest->kv_scale = ScaleKind::kPerHead;
    return "kv_scale = token: scores have one scale a head";
  }
  if (spec.dropout != 0) {
    nearest->dropout = 0;
    return "dropout with e4m3";
  }
  if (spec.dim_qk % 16 != 0 || spec.dim_v % 16 != 0 || std::max(spec.dim_qk, spec.dim_v) > 256) {
    nearest->dim_qk = std::min<int64_t>(RoundUp(spec.dim_qk, 16), 256);
    nearest->dim_v = std::min<int64_t>(RoundUp(spec.dim_v, 16), 256);
    return absl::StrCat("dim_qk, dim_v = ", spec.dim_qk, ", ", spec.dim_v,
                        ": must be multiples of 16 up to 256 with e4m3");
  }
  if (spec.strides.has_value()) {
    nearest->strides.reset();
    return "strides with e4m3";
  }
  return "";
}

// Bias terms that lanes load by pairs of elements, a block ahead (policy/bias_fragment.cuh), and
// nothing else beside them that is looked up.
bool HasBiasFragments(const AttentionSpec& spec) {
  constexpr size_t kMost = 2;
  return !spec.bias.empty() && spec.bias.size() <= kMost &&
         std::none_of(spec.bias.begin(), spec.bias.end(),
                      [](const BiasTerm& term) { return term.type == ElementType::kBool; }) &&
         spec.score_snippet.empty() && spec.mask_snippet.empty() && spec.block_mask_q == 0;
}

// The first of these, as far as bulk copies take them and they differ from row to row: they pass
// through shared memory (mma/bias_tile.cuh). With e4m3 the warps are busy that copy what bulk
// copies do not take.
int StagedTerms(const AttentionSpec& spec, int blocks) {
  constexpr int64_t kCopiedElements = 8;  // 16 bytes
  if (!HasBiasFragments(spec) || blocks > 1 || IsE4m3(spec)) return 0;
  const auto end = std::find_if_not(spec.bias.begin(), spec.bias.end(), [](const BiasTerm& term) {
    return spec::ElementBytes(term.type) == 2 && term.seqlen_q > 1 && term.seqlen_kv > 1 &&
           term.seqlen_kv % kCopiedElements == 0;
  });
  return static_cast<int>(end - spec.bias.begin());
}

// Registers of a thread for the other terms' elements of a block.
int64_t BiasRegisters(const AttentionSpec& spec, int64_t block_n, int blocks) {
  int64_t registers = 0;
  for (size_t n = StagedTerms(spec, blocks); n < spec.bias.size(); ++n)
    registers += block_n / 2 * spec::ElementBytes(spec.bias[n].type) / 4;
  return registers;
}

// Whether some rows of 16-bit elements are no whole chunks of 16 bytes: bulk copies then take those
// of all heads as one, from a multiple of 16 bytes on.
bool HasNarrowDims(const AttentionSpec& spec) {
  return !IsE4m3(spec) && (spec.dim_qk % 8 != 0 || spec.dim_v % 8 != 0);
}

StoredDims DimsOf(const AttentionSpec& spec) {
  return StoredDimsOf(HasNarrowDims(spec), spec.dim_qk, spec.dim_v);
}

// Whether heads of `dim` columns begin where MostShift(dim) says, in rows that bulk copies take.
bool StridesFitShiftedCopies(const Strides& strides, int64_t dim) {
  return (strides.batch | strides.seq) % 8 == 0 && strides.head % (dim & -dim) == 0;
}

// What this family wants of narrow rows. Empty: nothing is missing.
std::string RefuseNarrow(const PlanRequest& request) {
  const AttentionSpec& spec = request.spec;
  const std::array<Strides, 4> strides = spec::EffectiveStrides(spec);
  if (!StridesFitShiftedCopies(strides[0], spec.dim_qk) ||
      !StridesFitShiftedCopies(strides[1], spec.dim_qk) ||
      !StridesFitShiftedCopies(strides[2], spec.dim_v)) {
    return "where heads are no whole chunks of 16 bytes, rows of all heads must be";
  }
  // One H200 (2026-11-30), d36, 512 heads: 22.5 us for 128 rows and keys, attn_fwd_sm80 20.4; both
  // 32 for 160 and 26 (256 heads) for 256.
  if (!request.family.has_value() && spec.seqlen_kv <= kFewNarrowKeys) {
    return absl::StrCat("up to ", kFewNarrowKeys,
                        " keys of heads that are no whole chunks of 16 bytes");
  }
  if (!spec.bias.empty()) return "bias terms with heads that are no whole chunks of 16 bytes";
  if (std::max(spec.dim_qk, spec.dim_v) > kMaxNarrowDim) {
    return absl::StrCat("heads that are no whole chunks of 16 bytes must have at most ",
                        kMaxNarrowDim, " columns");
  }
  return "";
}

FamilyAnswer Refuse(const PlanRequest& request) {
  const AttentionSpec& spec = request.spec;
  FamilyAnswer answer;
  AttentionSpec nearest = spec;
  if (!request.traits.has_wgmma) {
    answer.refusal = absl::StrCat(std::string(request.traits.target), " has no wgmma.mma_async");
    return answer;
  }
  if (spec.operation != Operation::kForward) {
    answer.refusal = "operation = bwd: only the forward is served";
    nearest.operation = Operation::kForward;
  } else if (IsE4m3(spec) && spec::KvType(spec) == spec.type &&
             !(answer.refusal = RefuseE4m3(spec, &nearest)).empty()) {
    answer.nearest = std::move(nearest);
    return answer;
  } else if (spec::KvType(spec) != spec.type ||
             (!IsE4m3(spec) && (!IsHalf(spec.type) || spec::OutType(spec) != spec.type))) {
    answer.refusal =
        "the types of Q, K, V and O must be fp16 or bf16, all the same, or Q, K and V e4m3";
    nearest.type = IsHalf(spec.type) ? spec.type : ElementType::kBf16;
    nearest.kv_type.reset();
    nearest.out_type.reset();
    nearest.q_scale = nearest.kv_scale = ScaleKind::kNone;
  } else if (spec.dropout != 0 && !ScoresAreFinite(spec)) {
    answer.refusal = "dropout beside biases, snippets or a block mask takes too long to compile";
    nearest.dropout = 0;
  } else if (spec.page_size % kAtomRows != 0) {
    answer.refusal = absl::StrCat("page_size = ", spec.page_size,
                                  ": bulk copies want pages of a multiple of 8 rows");
    // A power of two, which every list of tiles has room for.
    nearest.page_size = kAtomRows;
    while (nearest.page_size < spec.page_size) nearest.page_size *= 2;
  } else if (spec.strided_innermost) {
    answer.refusal = "strided_innermost: rows must be contiguous";
    nearest.strided_innermost = false;
  } else if (const std::string narrow = HasNarrowDims(spec) ? RefuseNarrow(request) : "";
             !narrow.empty()) {
    answer.refusal = absl::StrCat("dim_qk, dim_v = ", spec.dim_qk, ", ", spec.dim_v, ": ", narrow);
    nearest.dim_qk = RoundUp(spec.dim_qk, 8);
    nearest.dim_v = RoundUp(spec.dim_v, 8);
    nearest.strides.reset();
  } else if (spec.dim_qk > kMaxDimQk || spec.dim_v > kMaxDimV) {
    answer.refusal = absl::StrCat("dim_qk, dim_v = ", spec.dim_qk, ", ", spec.dim_v,
                                  ": must be at most ", kMaxDimQk, ", ", kMaxDimV);
    nearest.dim_qk = std::min(spec.dim_qk, kMaxDimQk);
    nearest.dim_v = std::min(spec.dim_v, kMaxDimV);
  } else if (!CountsWith31Bits(spec)) {
    answer.refusal = RefuseBeyond31Bits(spec, nearest);
  } else if (spec.strides.has_value() && !HasNarrowDims(spec) &&
             !std::all_of(spec.strides->begin(), spec.strides->end(), StridesFitBulkCopies)) {
    answer.refusal = "strides: rows must start on multiples of 16 bytes";
    nearest.strides.reset();
  } else if (!request.family.has_value() && !spec.bias.empty() && !HasBiasFragments(spec)) {
    // On one H200 (2026-11-30): a key mask at d64 S 512 23 against 167 TFLOP/s.
    answer.refusal =
        "bias: these elements are looked up one by one here, and by runs in attn_fwd_sm80";
    nearest.bias.clear();
  } else if (!request.family.has_value() && !spec.bias.empty() &&
             std::min(spec.seqlen_q, spec.seqlen_kv) < kFewKeys) {
    answer.refusal = absl::StrCat("seqlen_q, seqlen_kv = ", spec.seqlen_q, ", ", spec.seqlen_kv,
                                  ": with bias terms at least ", kFewKeys, " of each");
    nearest.seqlen_q = std::max(spec.seqlen_q, kFewKeys);
    nearest.seqlen_kv = std::max(spec.seqlen_kv, kFewKeys);
  } else if (!request.family.has_value() && spec.seqlen_q <= kWarpgroupRows &&
             (spec.seqlen_kv <= kFewKeys || HasManyFewKeys(request))) {
    answer.refusal = absl::StrCat("seqlen_q, seqlen_kv = ", spec.seqlen_q, ", ", spec.seqlen_kv,
                                  ": so few rows and keys leave its tiles mostly empty");
    nearest.seqlen_q = kWarpgroupRows + 1;
  } else {
    return answer;
  }
  answer.nearest = std::move(nearest);
  return answer;
}

// Whether scores or masks need more than an interval of keys for each row.
bool HasPolicies(const AttentionSpec& spec) {
  return spec.softcap != 0 || spec.alibi || !spec.bias.empty() || !spec.score_snippet.empty() ||
         !spec.mask_snippet.empty() || spec.block_mask_q != 0 || spec.dropout != 0 ||
         spec::EffectiveScale(spec) <= 0;
}

// Bias terms by fragments and no other policy.
bool HasBiasAlone(const AttentionSpec& spec) {
  AttentionSpec without = spec;
  without.bias.clear();
  return HasBiasFragments(spec) && !HasPolicies(without);
}

// A policy that looks at a score alone: softcap.
bool HasSoftcapAlone(const AttentionSpec& spec) {
  AttentionSpec without = spec;
  without.softcap = 0;
  return spec.softcap != 0 && !HasPolicies(without);
}

// Whether what hides a key is an interval or its own score, which is -inf or a large number then.
// Such rows are seen to have no reference yet; rules that hide single keys are looked at in every
// block.
bool MasksByIntervalsOrScores(const AttentionSpec& spec) {
  return spec.mask_snippet.empty() && spec.block_mask_q == 0 &&
         (spec.bias.empty() || HasBiasAlone(spec));
}

// Registers that a consumer's scores, packed weights and output sums may take, found by compiling:
// ptxas 13.0 spills or serialises beyond.
int64_t MaxTileRegisters(const AttentionSpec& spec, int consumers, int block_n, int blocks) {
  const bool wide = spec.dim_v > 256;  // O takes two products a step
  const int64_t policies = HasBiasAlone(spec)
                               ? BiasRegisters(spec, block_n, blocks) + (consumers == 1 ? 16 : 24)
                           : HasPolicies(spec) && (block_n > 32 || wide) ? (block_n > 96 ? 72 : 64)
                                                                         : 0;
  // Sums of an LSE beside the bounds of a mask.
  const bool masked = spec::EffectiveWindowRight(spec) >= 0 || spec.window_left >= 0;
  const int64_t sums = spec.lse && masked ? 8 : 0;
  switch (consumers) {
    case 1:
      return (blocks > 2 ? 96 : 160) - policies;
    case 4:
      return 88 - policies - (spec.varlen ? 2 * sums : 0);
    case 3: {
      const bool cheap = HasSoftcapAlone(spec) && spec.window_left < 0 && block_n <= 64 &&
                         !spec.lse && !spec.varlen && !spec.sinks;
      // Beside elements of a bias the sums by ones are one register too many.
      const bool crowded = HasBiasAlone(spec) && BiasRegisters(spec, block_n, blocks) > 0 &&
                           !spec.varlen && spec.window_left < 0;
      return 132 - (cheap ? 0 : policies) - (spec.varlen && block_n > 80 ? 4 * sums : sums) -
             (crowded ? sums / 2 : 0);
    }
    default:
      return (wide || IsE4m3(spec) ? 188 : 208) - policies;
  }
}

// What MaxTileRegisters becomes more or less by where a thread keeps its part of Q, found likewise.
int64_t RegistersBesideQueries(const AttentionSpec& spec, int block_n) {
  if (spec.page_size != 0) return -16;  // the loader has them
  if (!HasPolicies(spec) || block_n > 96) return 0;
  return block_n > 32 ? 24 : -40;
}

// Whether a thread has room for its part of Q beside a bias term; found by compiling plans with
// turns and 128 keys.
bool HasRoomBesideBias(const AttentionSpec& spec, const KernelPlan& plan) {
  const int64_t dim = std::max(spec.dim_qk, spec.dim_v);
  return plan.staged_terms == 1 && spec.bias.size() == 1 && plan.ping_pong && plan.block_n == 128 &&
         dim > 64 && dim <= 128 && spec::EffectiveWindowRight(spec) < 0 && spec.window_left < 0 &&
         !spec.lse && !spec.sinks && !spec.varlen && spec.page_size == 0 && !spec.exact;
}

struct Tile {
  int consumers;
  int block_n;
  int blocks = 1;  // on a multiprocessor
  int stages = 2;
  bool shares = false;  // both warpgroups have the same 64 rows and half of O's columns each
};

int RowsOf(const Tile& tile) {
  return (tile.shares ? tile.consumers / kSharers : tile.consumers) * kWarpgroupRows;
}

bool HasEqualTiles(const AttentionSpec& spec) {
  return spec::EffectiveWindowRight(spec) < 0 && spec.window_left < 0;
}

// Tiles in the order of trying, from sweeps on one H200 (2026-11-29, bench/plan_sweep_bench.cc; the
// figures are in kernel_templates/README.md). Later ones are for what the first do not fit, and for
// the tuner.
constexpr Tile k40[] = {{4, 80, 1, 4}, {4, 80}, {4, 64}, {3, 128}, {2, 128}, {2, 64}, {2, 32}};
// A third stage hides the time in which K's neighbours are cleared.
constexpr Tile kNarrow40[] = {{4, 80, 1, 3}, {4, 80}, {4, 64}, {3, 128},
                              {2, 128},      {2, 64}, {2, 32}};
constexpr Tile k64[] = {{4, 64, 1, 3}, {4, 64}, {3, 96}, {3, 128}, {2, 128}, {2, 64}, {2, 32}};
// Tiles of 64 rows waste little of the diagonal, and several blocks hide where each begins and
// ends.
constexpr Tile kShortUneven64[] = {{1, 64, 3}, {4, 64, 1, 3}, {2, 128}, {2, 96}, {2, 64}, {2, 32}};
constexpr Tile kEven96[] = {{4, 48, 1, 3}, {3, 80, 1, 3}, {3, 96}, {4, 48},
                            {3, 112},      {2, 128},      {2, 64}, {2, 32}};
constexpr Tile kShortEven96[] = {{3, 96}, {2, 128}, {3, 112}, {2, 64}, {2, 32}};
// A third warpgroup hides where tiles of few blocks begin and end, and wide blocks waste more of
// the diagonal.
constexpr Tile kShortUneven96[] = {{3, 64, 1, 3}, {3, 96}, {2, 128}, {2, 64, 1, 3},
                                   {2, 112},      {2, 96}, {2, 64},  {2, 32}};
constexpr Tile kUneven96[] = {{2, 128}, {2, 64, 1, 3}, {2, 112}, {2, 96}, {2, 64}, {2, 32}};
constexpr Tile kLongEven128[] = {{2, 128}, {3, 80}, {2, 64, 1, 3}, {2, 112},
                                 {2, 96},  {2, 64}, {2, 32}};
constexpr Tile kSoftcap128[] = {{3, 64, 1, 3}, {2, 64, 1, 3}, {2, 64}, {2, 32}};
constexpr Tile kWideBlocks128[] = {{2, 128}, {2, 64, 1, 3}, {3, 80}, {2, 112},
                                   {2, 96},  {2, 64},       {2, 32}};
constexpr Tile k128[] = {{2, 64, 1, 3}, {2, 128}, {3, 80}, {2, 112}, {2, 96}, {2, 64}, {2, 32}};
constexpr Tile k112[] = {{3, 96}, {2, 144}, {2, 128}, {2, 112}, {3, 80}, {2, 64}, {2, 32}};
constexpr Tile kShortUneven112[] = {{3, 64, 1, 3}, {3, 96}, {2, 128}, {2, 144},
                                    {2, 112},      {2, 64}, {2, 32}};
constexpr Tile kUneven112[] = {{2, 128}, {2, 144}, {2, 112}, {3, 80}, {2, 64}, {2, 32}};
// Rules for each element are unrolled over the tile: few elements, or compiling takes too long.
constexpr Tile kElementRules[] = {{2, 64}, {2, 48}, {2, 32}, {2, 16}};
constexpr Tile kBias64[] = {{3, 64, 1, 3}, {2, 64}, {2, 32}};
constexpr Tile kShortBias64[] = {{1, 64, 3}, {3, 64, 1, 3}, {2, 64}, {2, 32}};
constexpr Tile kBias128[] = {{2, 128}, {2, 64, 1, 3}, {2, 96}, {2, 64}, {2, 32}};
constexpr Tile kPairsOfBias128[] = {{2, 64, 1, 3}, {2, 96}, {2, 64}, {2, 32}};
constexpr Tile kWindow[] = {{2, 64, 1, 3}, {2, 96}, {2, 64}, {2, 128}, {2, 32}};
constexpr Tile k192[] = {{2, 64, 1, 3}, {2, 80}, {2, 96}, {2, 112}, {2, 128}, {2, 64}, {2, 32}};
constexpr Tile kWideV192[] = {{2, 80}, {2, 96}, {2, 112}, {2, 64}, {2, 32}};
constexpr Tile k256[] = {{2, 64}, {2, 80}, {2, 48}, {2, 32}, {2, 16}};
// For pairs of blocks; blocks on their own are quicker with 64 keys.
constexpr Tile kLong256[] = {{2, 80}, {2, 64}, {2, 48}, {2, 32}, {2, 16}};
constexpr Tile kE4m3[] = {{2, 128}, {2, 96}, {2, 64}, {2, 32}};
constexpr Tile kLongEvenE4m3[] = {{3, 96}, {2, 128}, {2, 96}, {2, 64}, {2, 32}};
constexpr Tile kLongUnevenE4m3[] = {{3, 96, 1, 3}, {2, 128}, {2, 96}, {2, 64}, {2, 32}};
constexpr Tile kScored128[] = {{2, 64, 1, 3}, {2, 64}, {2, 48}, {2, 32}, {2, 16}};
constexpr Tile kShared = {.consumers = 2, .block_n = 64, .shares = true};
constexpr Tile k320[] = {{2, 64}, {2, 48}, {2, 32, 1, 3}, {2, 32}, kShared};
constexpr Tile kWide[] = {kShared, {.consumers = 2, .block_n = 32, .shares = true}};

bool CanShareKeys(const AttentionSpec& spec) {
  return spec.page_size == 0 && !IsE4m3(spec) && !HasNarrowDims(spec);
}

// Whether pairs of blocks that load keys for each other come first. Tiles of 64 rows read K and V
// so often that L2 is the bound; with few of them the lockstep of a pair costs more.
bool SharesKeysBest(const AttentionSpec& spec) {
  const int64_t dim = std::max(spec.dim_qk, spec.dim_v);
  return CanShareKeys(spec) &&
         ((dim > kMaxOwnDimV && spec.seqlen_q > 2048) || (dim > 192 && spec.seqlen_q >= 8192) ||
          (dim >= 128 && HasEqualTiles(spec) && spec.seqlen_q > 8192));
}

absl::Span<const Tile> TilesFor(const PlanRequest& request) {
  const AttentionSpec& spec = request.spec;
  const StoredDims dims = DimsOf(spec);
  const int64_t dim = std::max(dims.qk, dims.v);
  const bool even = HasEqualTiles(spec);
  const bool is_short = spec.seqlen_q <= 1024;
  if (IsE4m3(spec)) {
    const bool is_middle = dim > 64 && dim <= 128;
    // Three warpgroups have no register left for a second sum, for scales or lengths of sequences.
    const bool is_plain = !spec.lse && !spec.varlen && !spec.sinks &&
                          spec.q_scale == ScaleKind::kNone && spec.kv_scale == ScaleKind::kNone;
    if (is_middle && is_plain && even && !is_short) return kLongEvenE4m3;
    if (is_middle && is_plain && spec.window_left < 0 && spec.seqlen_q > 4096) {
      return kLongUnevenE4m3;
    }
    return kE4m3;
  }
  if (dim > kMaxOwnDimV) return kWide;
  if (dim > 256) return k320;
  if (HasBiasAlone(spec) && dim <= 64) {
    if (dim <= 32 && spec.seqlen_q <= 512) return kShortBias64;
    return kBias64;
  }
  if (HasBiasAlone(spec) && dim <= 128) {
    // Beside pairs of another term 128 keys are too many, and beside bounds of several kinds.
    const bool is_alone = StagedTerms(spec, /*blocks=*/1) == static_cast<int>(spec.bias.size()) &&
                          spec.bias.size() == 1 && spec.window_left < 0 && !spec.varlen;
    return is_alone ? absl::MakeConstSpan(kBias128) : kPairsOfBias128;
  }
  if (!ScoresAreFinite(spec) || spec.dropout != 0) {
    const bool is_scored = MasksByIntervalsOrScores(spec) && spec.dropout == 0;
    return is_scored && dim <= 128 ? absl::MakeConstSpan(kScored128) : kElementRules;
  }
  if (dim <= 64 && even && dims.v <= 40) {
    return HasNarrowDims(spec) ? absl::MakeConstSpan(kNarrow40) : k40;
  }
  // Few rows: less than 16 tiles of 128 for a multiprocessor.
  const double rows = static_cast<double>(spec.batch) * static_cast<double>(spec.heads_q) *
                      static_cast<double>(spec.seqlen_q);
  const bool few_rows = rows < 16.0 * 128 * request.board.num_sms;
  // The lengths and tables of sequences leave a block of three too few registers.
  const bool one_length = !spec.varlen && spec.page_size == 0;
  if (dim <= 64 && !even && one_length &&
      (spec.seqlen_q <= 512 || (few_rows && spec.seqlen_q <= 2048))) {
    return kShortUneven64;
  }
  if (dim <= 64) return k64;
  if (dim <= 128 && spec.window_left >= 0) return kWindow;
  if (dim <= 80 && even && !is_short) return kEven96;
  if (dim <= 96 && even) return kShortEven96;
  // Tiles of 192 rows that pad a head no further than those of 128. Beside lengths of sequences
  // three warpgroups have no registers for the sums of an LSE.
  const bool third_fits =
      is_short && !(spec.varlen && spec.lse) &&
      RoundUp(spec.seqlen_q, 3 * kWarpgroupRows) <= RoundUp(spec.seqlen_q, 2 * kWarpgroupRows);
  if (dim <= 96) return third_fits ? absl::MakeConstSpan(kShortUneven96) : kUneven96;
  if (dim <= 112 && even) return k112;
  if (dim <= 112) return third_fits ? absl::MakeConstSpan(kShortUneven112) : kUneven112;
  if (dim <= 128 && HasSoftcapAlone(spec)) return kSoftcap128;
  if (dim <= 128 && even) {
    return spec.seqlen_q <= 4096 ? absl::MakeConstSpan(kWideBlocks128) : kLongEven128;
  }
  // More keys a product; up to 4096 rows that is 3 to 9 % too, and a third of the compile time.
  if (dim <= 128) {
    return one_length && spec.seqlen_q > 4096 ? absl::MakeConstSpan(kWideBlocks128) : k128;
  }
  if (dim <= 192 && dims.v <= 128) return k192;
  if (dim <= 192) return kWideV192;
  if (SharesKeysBest(spec)) return kLong256;
  return k256;
}

// TilesFor, those behind that pad a sequence's queries to far more rows than another one does: 256
// for 32 queries, or 512 for 257.
std::vector<Tile> TilesByWaste(const PlanRequest& request) {
  const absl::Span<const Tile> listed = TilesFor(request);
  std::vector<Tile> tiles(listed.begin(), listed.end());
  if (request.spec.varlen || tiles.empty()) return tiles;
  constexpr double kFarMore = 1.25;
  const auto padded = [&](const Tile& tile) {
    return RoundUp(std::max<int64_t>(request.spec.seqlen_q, 1), RowsOf(tile));
  };
  int64_t least = padded(tiles.front());
  for (const Tile& tile : tiles) least = std::min(least, padded(tile));
  std::stable_partition(tiles.begin(), tiles.end(), [&](const Tile& tile) {
    return static_cast<double>(padded(tile)) <= kFarMore * static_cast<double>(least);
  });
  return tiles;
}

// What else a plan of a tile leaves open.
struct Variant {
  bool persistent;  // as many clusters as fit the board, each with a series of tiles
  int cluster;
  bool ping_pong;
};

// Copies of K and V are of whole pages or of parts of one, and a loader that looks pages up needs
// registers which only two warpgroups can spare.
bool FitsPages(const AttentionSpec& spec, const Tile& tile, const Variant& variant) {
  if (spec.page_size == 0) return true;
  constexpr int kMaxPieces = 32;
  return variant.cluster == 1 && tile.consumers == 2 &&
         tile.block_n <= kMaxPieces * spec.page_size &&
         (spec.page_size % tile.block_n == 0 || tile.block_n % spec.page_size == 0);
}

// Without ones: each warpgroup that shares rows has as many.
int64_t PanelsV(const KernelPlan& plan, int64_t dim_v) {
  return RoundUp(CeilDiv(dim_v, kPanelColumns), plan.column_warps);
}

// Whether three or four warpgroups take turns.
bool TurnsOfMany(const AttentionSpec& spec) {
  return std::max(spec.dim_qk, spec.dim_v) <= 64 && !IsE4m3(spec) && !HasNarrowDims(spec) &&
         !HasPolicies(spec) && !spec.varlen;
}

// None where the tile does not fit registers, shared memory or pages.
std::optional<KernelPlan> MakePlan(const PlanRequest& request, const Tile& tile,
                                   const Variant& variant) {
  const AttentionSpec& spec = request.spec;
  if (!FitsPages(spec, tile, variant) || (IsE4m3(spec) && variant.cluster != 1)) {
    return std::nullopt;
  }
  const int64_t element_bytes = spec::ElementBytes(spec.type);
  const StoredDims dims = DimsOf(spec);
  KernelPlan plan;
  plan.family = Family::kFwdSm90;
  plan.target = std::string(request.traits.target);
  plan.consumers = tile.consumers;
  plan.column_warps = tile.shares ? kSharers : 1;
  plan.block_m = RowsOf(tile);
  plan.block_n = tile.block_n;
  plan.warps = 4 * (tile.consumers + 1);
  plan.rows_per_warp = 16;
  plan.stages = tile.stages;
  plan.cluster = variant.cluster;
  plan.blocks = tile.blocks > 1 ? tile.blocks : 0;
  plan.ping_pong = variant.ping_pong && !tile.shares &&
                   (tile.consumers == 2 || (tile.consumers > 2 && TurnsOfMany(spec)));
  if (variant.persistent) plan.max_grid = request.board.num_sms * tile.blocks / variant.cluster;
  // The margin needs bf16's exponents. Three blocks have too few registers beside bias terms.
  plan.optimistic = spec.type == ElementType::kBf16 && !tile.shares &&
                    MasksByIntervalsOrScores(spec) && (spec.bias.empty() || tile.blocks == 1);
  plan.staged_terms = StagedTerms(spec, tile.blocks);
  plan.narrow_rows = HasNarrowDims(spec);
  if (variant.cluster == 1) OfferParts(request, /*resident=*/tile.blocks, plan);
  // The LSE of a part is a second sum.
  if (IsE4m3(spec) && tile.consumers == 3 && plan.split) return std::nullopt;
  const auto fits_registers = [&] {
    if (tile.shares) return true;  // half of each
    const int64_t scores = tile.block_n / 2, weights = scores * element_bytes / 4;
    const int64_t queries = plan.q_in_registers ? RoundUp(dims.qk, 16) / 4 : 0;
    return scores + weights + queries +
               (dims.v + (plan.ones && !IsE4m3(spec) ? kOnesColumns : 0)) / 2 <=
           MaxTileRegisters(spec, tile.consumers, tile.block_n, tile.blocks) +
               (queries > 0 ? RegistersBesideQueries(spec, tile.block_n) : 0);
  };
  const auto fits_smem = [&] {
    plan.smem_bytes = FwdSm90SmemBytes(plan, spec.dim_qk, spec.dim_v, element_bytes);
    return plan.smem_bytes <= request.traits.smem_per_block_optin &&
           (plan.smem_bytes + request.traits.smem_reserved_per_block) * tile.blocks <=
               request.traits.smem_per_sm;
  };
  if (IsE4m3(spec)) {
    // References that are no maxima want sums of the weights as they were rounded.
    plan.ones = plan.optimistic = ScoresAreFinite(spec);
  } else {
    // Where the last panel of V is full they need one more; from 192 on O then has no place but
    // Q's.
    plan.ones =
        spec.dropout == 0 && (dims.v <= 128 || (dims.v < 192 && dims.v % kPanelColumns != 0));
    if (!fits_registers()) plan.ones = false;
  }
  if (!fits_registers()) return std::nullopt;
  // A third less to read from shared memory for each product.
  plan.q_in_registers = tile.consumers == 2 && !tile.shares && !IsE4m3(spec) &&
                        (spec.bias.empty() || HasRoomBesideBias(spec, plan));
  if (plan.q_in_registers && spec.bias.empty() && !fits_registers()) plan.q_in_registers = false;
  plan.own_o = true;
  if (fits_smem()) return plan;
  plan.own_o = false;
  if (tile.shares && !fits_smem()) plan.stages = 1;
  plan.over_v = !plan.ones && plan.stages * plan.block_n >= plan.block_m;
  if (IsE4m3(spec)) {
    // V's stages are blocks of keys of a byte each; Q is too small.
    plan.over_v = plan.stages * CeilDiv(plan.block_n, kPanelRowBytes) * spec.dim_v >=
                  plan.block_m * CeilDiv(spec.dim_v, kPanelColumns);
    if (!plan.over_v) return std::nullopt;
  } else if (!plan.over_v && PanelsV(plan, dims.v) > CeilDiv(dims.qk, kPanelColumns)) {
    return std::nullopt;
  }
  if (!fits_smem()) return std::nullopt;
  return plan;
}

// The ways to share out tiles, best first. Two warpgroups that take turns gain 2 to 8 % at head
// dims above 64, of 16 bits up to 192, where tiles differ in length or are long; three or four gain
// up to 7 % at dims up to 64.
std::vector<Variant> VariantsFor(const AttentionSpec& spec, const Tile& tile) {
  const StoredDims dims = DimsOf(spec);
  const int64_t dim = std::max(dims.qk, dims.v);
  const bool even = HasEqualTiles(spec);
  const bool long_rows = spec.seqlen_q > 4096;
  const Variant series = {.persistent = true, .cluster = 1, .ping_pong = false};
  const Variant turns = {.persistent = true, .cluster = 1, .ping_pong = true};
  const Variant handed_out = {.persistent = false, .cluster = 1, .ping_pong = false};
  const Variant shared_keys = {.persistent = true, .cluster = 2, .ping_pong = false};
  const Variant shared_turns = {.persistent = true, .cluster = 2, .ping_pong = true};
  std::vector<Variant> variants;
  const bool turns_share_best = !HasPolicies(spec) && dim == 128 && spec.window_left < 0 &&
                                spec.seqlen_q >= 8192 && (!even || SharesKeysBest(spec));
  if (turns_share_best && CanShareKeys(spec)) variants.push_back(shared_turns);
  if (SharesKeysBest(spec)) variants.push_back(shared_keys);
  const bool is_short = spec.seqlen_q <= 2048;
  const bool take_turns = dim > 192            ? IsE4m3(spec) && long_rows
                          : dim > 64           ? !even || long_rows
                          : tile.consumers > 2 ? TurnsOfMany(spec)
                                               : !even && is_short;
  if (take_turns) variants.push_back(turns);
  variants.push_back(series);
  if (!take_turns) variants.push_back(turns);
  if (!even) variants.push_back(handed_out);
  if (dim >= 128 && long_rows && spec.seqlen_q <= 8192 && !HasNarrowDims(spec)) {
    variants.push_back(shared_keys);
  }
  return variants;
}

}  // namespace

int64_t FwdSm90SmemBytes(const KernelPlan& plan, int64_t dim_qk, int64_t dim_v,
                         int64_t element_bytes) {
  const StoredDims dims = StoredDimsOf(plan.narrow_rows, dim_qk, dim_v);
  const bool transposes = element_bytes == 1, shares = plan.column_warps > 1;
  const int64_t columns = kPanelRowBytes / element_bytes;
  const int64_t panels_qk = CeilDiv(dims.qk, columns);
  const int64_t panels_o = transposes ? CeilDiv(dims.v, kPanelColumns) : PanelsV(plan, dims.v);
  // Of a stage: keys by columns, or transposed columns by keys, and V as it was loaded beside.
  const int64_t rows_v = transposes  ? dims.v * CeilDiv(plan.block_n, columns)
                         : plan.ones ? plan.block_n * CeilDiv(dims.v + kOnesColumns, columns)
                                     : plan.block_n * panels_o;
  const int64_t raw =
      transposes ? int64_t{plan.stages} * plan.block_n * CeilDiv(dims.v, columns) : 0;
  const int64_t weights = shares ? 2 * CeilDiv(plan.block_n, kPanelColumns) : 0;
  // Of a block of keys; a warpgroup has 64 rows of its own ones.
  const int64_t bias = int64_t{plan.staged_terms} * plan.consumers * kWarpgroupRows *
                       CeilDiv(plan.block_n / plan.column_warps, kPanelColumns);
  const int64_t rows = plan.block_m * (panels_qk + (plan.own_o ? panels_o : 0) + weights) +
                       int64_t{plan.stages} * (plan.block_n * panels_qk + rows_v) + raw + bias +
                       (transposes && plan.ones ? kOnesColumns : 0);
  // A full and an empty barrier for Q of each 64 rows, o_read, tiles_done, a full and an empty
  // barrier for K, V and V as it was loaded of each stage and for the bias of each warpgroup;
  // missing pieces of each stage and the range of tiles to repeat; a request to copy; what is known
  // of rows that are shared; without its own O a member that takes a place.
  const int64_t barriers =
      8 * (2 + 2 * int64_t{plan.block_m / kWarpgroupRows} + 6 * int64_t{plan.stages} +
           2 * (plan.staged_terms > 0 ? plan.consumers : 1)) +
      RoundUp(RoundUp(4 * int64_t{plan.stages} + 8, 8) + 56 + (shares ? 24 * kWarpgroupRows : 12),
              8) +
      (plan.own_o ? 0 : 8);
  return RoundUp(rows * kPanelRowBytes + barriers, kSharedAlignment);
}

FamilyAnswer PlanFwdSm90(const PlanRequest& request) {
  FamilyAnswer answer = Refuse(request);
  if (!answer.refusal.empty()) return answer;
  const AttentionSpec& spec = request.spec;
  const auto add = [&](const Tile& tile, const Variant& variant) {
    std::optional<KernelPlan> plan = MakePlan(request, tile, variant);
    if (!plan.has_value()) return false;
    // Where warpgroups take no turns both ways are one plan.
    if (std::find(answer.plans.begin(), answer.plans.end(), *plan) == answer.plans.end()) {
      answer.plans.push_back(*std::move(plan));
    }
    return true;
  };
  // The other variants of the two best tiles come behind these.
  int extended = 0;
  for (const Tile& tile : TilesByWaste(request)) {
    const std::vector<Variant> variants = VariantsFor(spec, tile);
    if (!add(tile, variants[0]) || ++extended > 2) continue;
    // Parts are equal shares: there is no other way to share them out.
    if (answer.plans.back().split) continue;
    for (size_t n = 1; n < variants.size(); ++n) add(tile, variants[n]);
  }
  if (answer.plans.empty()) {
    answer.refusal = absl::StrCat("no tile of dim_qk, dim_v = ", spec.dim_qk, ", ", spec.dim_v,
                                  " fits the registers and shared memory of ",
                                  std::string(request.traits.target),
                                  spec.page_size == 0 ? "" : " and pages of ",
                                  spec.page_size == 0 ? "" : absl::StrCat(spec.page_size, " rows"));
    return answer;
  }
  const KernelPlan& best = answer.plans.front();
  answer.why = absl::StrCat("tiles of ", best.block_m, " rows and ", best.block_n,
                            " keys stand first among the ", answer.plans.size(), " that fit");
  if (best.narrow_rows) {
    answer.why +=
        "; of narrow heads rows of all heads together are copied whole where they are multiples of "
        "16 bytes, others element by element";
  }
  return answer;
}

}  // namespace tilewright::plan
