#include "plan/launch_shape.h"

#include <algorithm>

#include "plan/family_planner.h"

namespace tilewright::plan {
namespace {

constexpr int64_t kMaxGrid = 0x7fffffff;

bool IsPacked(const AttentionSpec& spec, const AttentionArgs& args) {
  return spec.varlen && args.cu_seqlens_q != nullptr;
}

// Whether the call has no rows at all.
bool IsEmpty(const AttentionSpec& spec, const AttentionArgs& args) {
  return args.batch <= 0 || spec.heads_q <= 0 || args.seqlen_q <= 0 ||
         (IsPacked(spec, args) && args.total_q <= 0);
}

// a * b, or kMaxGrid when that is less.
int64_t Blocks(int64_t a, int64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * static_cast<unsigned __int128>(b);
  return static_cast<int64_t>(std::min<unsigned __int128>(product, kMaxGrid));
}

// (batch, query head, tile of rows), at most kMaxGrid.
int64_t RowTiles(const KernelPlan& kernel, const AttentionSpec& spec, const AttentionArgs& args) {
  return Blocks(Blocks(spec.heads_q, args.batch), CeilDiv(args.seqlen_q, kernel.block_m));
}

// Rows of the LSE: of all heads and sequences.
int64_t TotalRows(const AttentionSpec& spec, const AttentionArgs& args) {
  return spec.heads_q * (IsPacked(spec, args) ? args.total_q : args.batch * args.seqlen_q);
}

// As many parts as fill the slots once, none of less than kMinKeysOfPart keys.
int64_t Parts(const KernelPlan& plan, const AttentionSpec& spec, const AttentionArgs& args) {
  constexpr int64_t kMinKeysOfPart = 256;
  constexpr int64_t kMostParts = 128;
  if (!plan.split) return 1;
  const int64_t tiles = RowTiles(plan, spec, args);
  const int64_t wanted = plan.slots / std::max<int64_t>(tiles, 1);
  const int64_t most = std::min(kMostParts, args.seqlen_kv / kMinKeysOfPart);
  return std::max<int64_t>(1, std::min(wanted, most));
}

}  // namespace

CallPlan PlanCall(const KernelPlan& plan, const AttentionSpec& spec, const AttentionArgs& args) {
  CallPlan call;
  if (IsEmpty(spec, args)) return call;
  const auto add = [&call](Region region, int64_t bytes) {
    constexpr int64_t kAlignment = 256;
    call.offsets[static_cast<size_t>(region)] = call.workspace_bytes;
    call.workspace_bytes += CeilDiv(bytes, kAlignment) * kAlignment;
  };
  call.parts = Parts(plan, spec, args);
  if (call.parts > 1) {
    const int64_t floats = call.parts * TotalRows(spec, args);
    add(Region::kPartialO, floats * spec.dim_v * 4);
    add(Region::kPartialLse, floats * 4);
  }
  return call;
}

LaunchShape ComputeLaunchShape(const KernelPlan& kernel, const AttentionSpec& spec,
                               const AttentionArgs& args, const CallPlan& call) {
  LaunchShape shape;
  shape.block = static_cast<uint32_t>(kernel.threads());
  shape.smem_bytes = static_cast<uint32_t>(kernel.smem_bytes);
  if (IsEmpty(spec, args)) return shape;
  const int64_t tiles = RowTiles(kernel, spec, args);
  switch (kernel.family) {
    case Family::kFwdSm90: {
      const int64_t clusters =
          Blocks(Blocks(spec.heads_q, args.batch),
                 CeilDiv(args.seqlen_q, int64_t{kernel.block_m} * kernel.cluster));
      const int64_t most = kernel.max_grid != 0 ? kernel.max_grid : kMaxGrid / kernel.cluster;
      shape.grid = static_cast<uint32_t>(std::min(clusters, most) * kernel.cluster);
      break;
    }
    case Family::kFwdSm80:
    case Family::kFwdSimple:
      shape.grid = static_cast<uint32_t>(Blocks(tiles, call.parts));
      break;
    case Family::kCombine:
      if (call.parts > 1) shape.grid = static_cast<uint32_t>(tiles);
      break;
  }
  return shape;
}

}  // namespace tilewright::plan
