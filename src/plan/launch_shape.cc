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

// (batch, key/value head, tile of keys), at most kMaxGrid.
int64_t KeyTiles(int block_n, const AttentionSpec& spec, const AttentionArgs& args) {
  return Blocks(Blocks(spec.heads_kv, args.batch), CeilDiv(args.seqlen_kv, block_n));
}

// Pieces of work of attn_bwd_simple, in the order of its Run; `tensors`: dQ, dK and dV too.
int64_t BwdSimplePieces(const KernelPlan& kernel, const AttentionSpec& spec,
                        const AttentionArgs& args, bool tensors) {
  int64_t pieces = 0;
  const auto add = [&pieces](int64_t count) { pieces = std::min(kMaxGrid, pieces + count); };
  if (tensors) {
    const int64_t chunks_qk = CeilDiv(spec.dim_qk, kBwdSimpleColumns);
    const int64_t chunks_v = CeilDiv(spec.dim_v, kBwdSimpleColumns);
    add(Blocks(RowTiles(kernel, spec, args), chunks_qk));
    add(Blocks(KeyTiles(kernel.block_m, spec, args), chunks_qk + chunks_v));
  }
  for (const BiasTerm& term : spec.bias) {
    if (!term.gradient) continue;
    const int64_t batch = term.batch == spec.batch && term.batch != 1 ? args.batch : term.batch;
    const int64_t rows = term.seqlen_q == 1 ? 1 : CeilDiv(args.seqlen_q, kernel.block_m);
    const int64_t keys = term.seqlen_kv == 1 ? 1 : CeilDiv(args.seqlen_kv, kernel.block_n);
    add(Blocks(Blocks(batch, term.heads), Blocks(rows, keys)));
  }
  if (spec.alibi_gradient) {
    add(Blocks(args.alibi_stride_batch != 0 ? args.batch : 1, spec.heads_q));
  }
  if (spec.sinks_gradient) add(spec.heads_q);
  return pieces;
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

// The items and units of attn_decode (policy/decode_work.cuh), for the longest sequence.
struct DecodeCounts {
  int64_t items = 0;  // at most kMaxGrid
  int64_t units = 0;  // of an item
};
DecodeCounts CountDecode(const KernelPlan& plan, const AttentionSpec& spec,
                         const AttentionArgs& args) {
  const int64_t group = spec.heads_q / spec.heads_kv;
  const int64_t unit_keys = plan.chunk == 0 ? plan.step : int64_t{plan.block_n} * plan.chunk;
  return {.items = Blocks(Blocks(spec.heads_kv, args.batch),
                          CeilDiv(Blocks(args.seqlen_q, group), plan.block_m)),
          .units = std::max<int64_t>(1, CeilDiv(args.seqlen_kv, unit_keys))};
}

// Blocks that share the keys, or 1: few keys are not worth a second kernel, very many sequences
// balance themselves and would take long to count.
int64_t DecodeBlocks(const KernelPlan& plan, const AttentionSpec& spec, const AttentionArgs& args) {
  constexpr int64_t kManySequences = 1024;
  constexpr int64_t kManyItems = 32;  // times as many as blocks
  const DecodeCounts counts = CountDecode(plan, spec, args);
  const bool fits = Blocks(counts.items, counts.units) < kMaxGrid;
  const bool balanced = plan.chunk == 0 && counts.items >= kManyItems * plan.slots;
  if (args.seqlen_kv <= kDecodeFewKeys || args.batch > kManySequences || !fits || balanced)
    return 1;
  // Some multiprocessors read a third faster than others. Where shares are long, several waves of
  // blocks make up for it; lengths that only the device knows may be short.
  constexpr int64_t kWaves = 4;
  const int64_t bytes = counts.items * args.seqlen_kv * (spec.dim_qk + spec.dim_v) *
                        spec::ElementBytes(spec::KvType(spec));
  const int64_t waves =
      plan.family == Family::kDecode && !spec.varlen && bytes / plan.slots >= kDecodeLongShare
          ? kWaves
          : 1;
  return std::max<int64_t>(2, std::min<int64_t>(waves * plan.slots, counts.items * counts.units));
}

// As many lines as there may be without leaving more than one block in twenty without work.
int64_t DecodeLines(const KernelPlan& plan, const AttentionSpec& spec, int64_t blocks) {
  if (plan.chunk != 0) return 1;
  for (int64_t lines = std::min(spec.heads_kv, blocks); lines > 1; --lines) {
    if (spec.heads_kv % lines == 0 && blocks % lines * 20 <= blocks) return lines;
  }
  return 1;
}

// Blocks of a line of `items`, at most `most`. Sequences of one length are cut so that no block has
// parts of two of them, if that leaves no more than one block in ten without work: memory is as
// busy with a few blocks less, and a second piece takes time of its own. Lengths that only the
// device knows may be alike; where a piece takes as long to begin and to end as many keys do, it is
// worth one block in twenty.
int64_t LineBlocks(const KernelPlan& plan, const AttentionSpec& spec, int64_t items, int64_t most) {
  if (spec.varlen && plan.family != Family::kDecodeSm90) return most;
  const int64_t of_block = CeilDiv(items, most);
  int64_t blocks = most;
  if (items <= most) {
    blocks = most / items * items;
  } else if (items % of_block == 0) {
    blocks = items / of_block;
  }
  const int64_t in = spec.varlen ? 20 : 10;
  return blocks * in >= most * (in - 1) ? blocks : most;
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
  if (plan.family == Family::kDecode || plan.family == Family::kDecodeWide ||
      plan.family == Family::kDecodeSm90) {
    call.parts = DecodeBlocks(plan, spec, args);
    if (call.parts > 1) {
      const DecodeCounts counts = CountDecode(plan, spec, args);
      call.lines = DecodeLines(plan, spec, call.parts);
      call.parts =
          call.lines * LineBlocks(plan, spec, counts.items / call.lines, call.parts / call.lines);
      const int64_t slots = plan.chunk != 0 ? counts.items * counts.units : 2 * call.parts;
      add(Region::kPartialO, slots * plan.block_m * spec.dim_v * 4);
      // Blocks count behind the LSEs of a part: kPartLses of policy/part_merge.cuh, kSlotLses of
      // mma/packed_rows.cuh.
      const int64_t words = plan.family == Family::kDecode ? 1
                            : plan.family == Family::kDecodeSm90 && plan.after.empty()
                                ? BlocksOfShare(plan)
                                : 0;
      const int64_t lses = plan.block_m + 2 * words;
      add(Region::kPartialLse, slots * lses * 4);
    }
    return call;
  }
  call.parts = Parts(plan, spec, args);
  if (call.parts > 1) {
    const int64_t floats = call.parts * TotalRows(spec, args);
    add(Region::kPartialO, floats * spec.dim_v * 4);
    add(Region::kPartialLse, floats * 4);
  }
  if (spec.operation == Operation::kBackward) {
    add(Region::kRowStats, TotalRows(spec, args) * 8);
    if (plan.family == Family::kBwdSm80 || plan.family == Family::kBwdSm90) {
      call.dq_tiles_of_head = DqTilesOfHead(plan.block_m, spec, args);
      const int64_t tiles =
          (IsPacked(spec, args) ? 1 : args.batch) * spec.heads_q * call.dq_tiles_of_head;
      add(Region::kDqSums, tiles * DqSumsOfTile(plan.block_m, spec.dim_qk) * 4);
      add(Region::kDqTurns, ((spec.deterministic ? tiles : 0) + 1) * 4);
    }
  }
  return call;
}

int64_t DqTilesOfHead(int block_m, const AttentionSpec& spec, const AttentionArgs& args) {
  // Every packed sequence may leave a part of its last tile unused.
  return IsPacked(spec, args) ? args.total_q / block_m + args.batch
                              : CeilDiv(args.seqlen_q, block_m);
}

int BlocksOfShare(const KernelPlan& plan) {
  constexpr int kBlockRows = 64;
  return plan.column_warps > 1 ? std::max(plan.block_m / kBlockRows, 1) : 1;
}

int64_t DqSumsOfTile(int block_m, int64_t dim_qk) { return block_m * CeilDiv(dim_qk, 8) * 8; }

LaunchShape ComputeLaunchShape(const KernelPlan& kernel, const AttentionSpec& spec,
                               const AttentionArgs& args, const CallPlan& call) {
  LaunchShape shape;
  shape.block = static_cast<uint32_t>(kernel.threads());
  shape.smem_bytes = static_cast<uint32_t>(kernel.smem_bytes);
  if (IsEmpty(spec, args)) return shape;
  switch (kernel.family) {
    case Family::kDecodeSm90:
      // Whole clusters, of which the last may have a share less.
      shape.grid = static_cast<uint32_t>(
          Blocks(CeilDiv((call.parts > 1 ? call.parts : CountDecode(kernel, spec, args).items) *
                             BlocksOfShare(kernel),
                         kernel.cluster),
                 kernel.cluster));
      shape.overlaps = true;
      break;
    case Family::kDecode:
    case Family::kDecodeWide:
      shape.grid = static_cast<uint32_t>(
          Blocks(call.parts > 1 ? call.parts : CountDecode(kernel, spec, args).items,
                 std::max(kernel.cluster, 1)));
      shape.overlaps = true;
      break;
    case Family::kFwdSm90: {
      const int64_t clusters =
          Blocks(Blocks(Blocks(spec.heads_q, args.batch), call.parts),
                 CeilDiv(args.seqlen_q, int64_t{kernel.block_m} * kernel.cluster));
      const int64_t most = kernel.max_grid != 0 ? kernel.max_grid : kMaxGrid / kernel.cluster;
      shape.grid = static_cast<uint32_t>(std::min(clusters, most) * kernel.cluster);
      break;
    }
    case Family::kFwdSmall: {
      const int64_t tiles = RowTiles(kernel, spec, args);
      shape.grid = static_cast<uint32_t>(
          kernel.max_grid != 0 ? std::min<int64_t>(tiles, kernel.max_grid) : tiles);
      break;
    }
    case Family::kFwdSm80:
    case Family::kFwdSimple:
      shape.grid = static_cast<uint32_t>(Blocks(RowTiles(kernel, spec, args), call.parts));
      break;
    case Family::kBwdSm90: {
      const int cluster = std::max(kernel.cluster, 1);
      shape.grid =
          static_cast<uint32_t>(Blocks(KeyTiles(kernel.block_n * cluster, spec, args), cluster));
      if (kernel.max_grid != 0) {
        shape.grid = std::min(shape.grid, static_cast<uint32_t>(kernel.max_grid));
      }
      shape.overlaps = true;
      break;
    }
    case Family::kBwdSm80:
      shape.grid = static_cast<uint32_t>(KeyTiles(kernel.block_n, spec, args));
      break;
    case Family::kBwdSimple:
      shape.grid = static_cast<uint32_t>(BwdSimplePieces(kernel, spec, args, /*tensors=*/true));
      break;
    case Family::kBwdTerms:
      shape.grid = static_cast<uint32_t>(BwdSimplePieces(kernel, spec, args, /*tensors=*/false));
      break;
    case Family::kBwdPrep: {
      constexpr int64_t kRows = 64;  // of a block, where dQ has no tiles
      shape.grid = static_cast<uint32_t>(
          Blocks(Blocks(spec.heads_q, args.batch),
                 CeilDiv(args.seqlen_q, kernel.block_m != 0 ? kernel.block_m : kRows)));
      break;
    }
    case Family::kBwdFinish:
      shape.grid = static_cast<uint32_t>(RowTiles(kernel, spec, args));
      shape.overlaps = true;
      break;
    case Family::kCombine:
      if (call.parts > 1) {
        shape.grid = static_cast<uint32_t>(
            CeilDiv(Blocks(Blocks(spec.heads_q, args.batch), args.seqlen_q), kernel.block_m));
      }
      shape.overlaps = true;
      break;
    case Family::kCacheAppend:
      break;  // CacheAppendLaunch
  }
  return shape;
}

}  // namespace tilewright::plan
