#include "plan/cache_append_planner.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "plan/family_planner.h"
#include "spec/cache_append.h"
#include "spec/validate.h"

namespace tilewright::plan {
namespace {

constexpr int kWarps = 8;
// Static shared memory would do: every architecture has so much without asking.
constexpr int64_t kMostSmem = 48 << 10;
// Blocks beyond this walk the tiles.
constexpr int64_t kMostBlocks = 1 << 16;

}  // namespace

int64_t CacheAppendSmemBytes(const CacheAppendSpec& spec, int tokens) {
  const int64_t angles = RoundUp(std::max<int64_t>(spec::RotaryPairs(spec), 1), 4);
  constexpr int64_t kTokenBytes = 72;
  return RoundUp(tokens * (2 * angles * 4 + kTokenBytes) + 16, 16);
}

absl::StatusOr<KernelPlan> PlanCacheAppend(const CacheAppendSpec& spec, const std::string& target,
                                           int num_sms) {
  KernelPlan plan;
  plan.family = Family::kCacheAppend;
  plan.target = target;
  plan.warps = kWarps;
  // Where a token goes and its sines are found before its rows: a block does so for enough rows to
  // make little of that time.
  constexpr int64_t kRowsOfThread = 24, kMostTokens = 16;
  const int64_t rows =
      std::max<int64_t>(spec.heads_q + spec.heads_kv * (spec.dim_v > 0 ? 2 : 1), 1);
  const int64_t chunks =
      CeilDiv(std::max(spec.dim_qk, spec.dim_v) * spec::ElementBytes(spec.type), 16);
  // A thread has two chunks of a row.
  const int64_t rows_of_block = kWarps * 32 / std::clamp<int64_t>(chunks / 2, 1, 32);
  // Registers of several chunks a lane, or of one.
  plan.blocks = chunks > 64 ? 1 : 2;
  plan.slots = std::max(num_sms, 1) * plan.blocks;
  plan.block_m =
      static_cast<int>(std::clamp<int64_t>(rows_of_block * kRowsOfThread / rows, 1, kMostTokens));
  while (plan.block_m > 1 && CacheAppendSmemBytes(spec, plan.block_m) > kMostSmem) --plan.block_m;
  plan.smem_bytes = CacheAppendSmemBytes(spec, plan.block_m);
  if (plan.smem_bytes > kMostSmem) {
    return absl::ResourceExhaustedError(
        absl::StrCat("rotary_dim = ", 2 * spec::RotaryPairs(spec), ": the sines of a token take ",
                     plan.smem_bytes, " bytes of shared memory, there are ", kMostSmem));
  }
  return plan;
}

absl::StatusOr<Decision> DecideCacheAppend(const CacheAppendSpec& spec, const std::string& target,
                                           int num_sms) {
  Decision decision;
  TILEWRIGHT_ASSIGN_OR_RETURN(decision.plan, PlanCacheAppend(spec, target, num_sms));
  decision.candidates = {decision.plan};
  decision.why = absl::StrCat("cache_append: a block writes all rows of up to ",
                              decision.plan.block_m, " tokens at a time");
  return decision;
}

int CacheAppendTileTokens(const KernelPlan& plan, const CacheAppendArgs& args) {
  // As many rounds as the largest tiles take, with tiles that fill the last of them.
  const int64_t tokens = spec::TokensOf(args), slots = std::max(plan.slots, 1);
  const int64_t rounds = CeilDiv(tokens, slots * plan.block_m);
  return static_cast<int>(
      std::clamp<int64_t>(CeilDiv(tokens, slots * std::max<int64_t>(rounds, 1)), 1, plan.block_m));
}

LaunchShape CacheAppendLaunch(const KernelPlan& plan, const CacheAppendArgs& args) {
  const int64_t tiles = CeilDiv(spec::TokensOf(args), CacheAppendTileTokens(plan, args));
  const bool writes_lengths = args.new_seqused_kv != nullptr && args.batch > 0;
  LaunchShape shape;
  shape.grid = static_cast<uint32_t>(
      std::min(std::max<int64_t>(tiles, writes_lengths ? 1 : 0), kMostBlocks));
  shape.block = static_cast<uint32_t>(plan.threads());
  shape.smem_bytes = static_cast<uint32_t>(plan.smem_bytes);
  return shape;
}

}  // namespace tilewright::plan
