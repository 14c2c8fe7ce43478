// How the last of the blocks that share the keys of packed rows (mma/packed_rows.cuh) merges what
// they have left, so that no second kernel has to. Every block of a cluster has rows of its own and
// counts apart from the others, in words behind the LSEs of the item's first part: ArriveLast in
// policy/part_merge.cuh says how.
#ifndef TILEWRIGHT_MMA_PACKED_MERGE_CUH_
#define TILEWRIGHT_MMA_PACKED_MERGE_CUH_

#include "mma/packed_rows.cuh"
#include "policy/part_merge.cuh"
#include "ptx/named_barrier.cuh"

namespace tilewright {
namespace packed_rows {

// Floats of a part's LSEs in the workspace: of its rows, and a word of each block of a cluster.
template <class Config>
inline constexpr int kSlotLses = Config::kBlockM + 2 * Config::kCluster;

// A block's rows of a tile.
template <class Config>
inline constexpr int kBlockRows = Config::kBlockM / Config::kCluster;

template <class Config>
struct MergeBoard {
  // Row r has the weight exp(lse - reference) * scale in a part.
  float reference[kBlockRows<Config>];
  float scale[kBlockRows<Config>];
  int is_last;
};

// LSEs of row `row` of the tile become its reference and scale, and the LSE of the result.
template <class Config, class Params>
__device__ __forceinline__ void WeighParts(MergeBoard<Config>& board, const TilePiece& tile,
                                           int first_row, int row, const Params& params) {
  // Parts on their way at a time.
  constexpr int kBatch = 8;
  const PackedRow at = RowAt<Config>(tile.piece.problem, tile.piece.first_row, first_row + row);
  if (!at.inside) return;
  Problem problem = tile.piece.problem;
  problem.h = at.h;
  const float* const lses = params.parts.lse + first_row + row;
  float highest = -Infinity(), sum = 0;
#pragma unroll 1
  for (int first = 0; first < tile.slots.count; first += kBatch) {
    float lse[kBatch], top = highest;
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      lse[n] = first + n < tile.slots.count
                   ? lses[i64{tile.slots.Of(first + n)} * kSlotLses<Config>]
                   : -Infinity();
      top = fmaxf(top, lse[n]);
    }
    const float reference = SoftmaxReference(top);
    sum *= Exp(highest - reference);
#pragma unroll
    for (int n = 0; n < kBatch; ++n) sum += Exp(lse[n] - reference);
    highest = top;
  }
  const SoftmaxEnd end = FinishSoftmax(highest, sum, Config::Sink::Logit(problem, params));
  board.reference[row] = SoftmaxReference(highest);
  board.scale[row] = end.empty ? 0.f : end.o_scale;
  Config::Lse::Store(end.lse, problem, at.i, params);
}

// Four columns of a row are a thread's work, kRun times at once from kParts parts: what is read
// comes from L2, and waiting for it is most of the time. Parts are added in the order of the keys,
// whoever the last block is.
template <class Config, int kThreads, class Params>
__device__ __forceinline__ void AddParts(const MergeBoard<Config>& board, const TilePiece& tile,
                                         int first_row, int thread, const Params& params) {
  using OutElement = typename Config::OutElement;
  constexpr int kQuads = Config::kHeadDimV / 4;
  static_assert(Config::kHeadDimV % 4 == 0);
  constexpr int kRun = 8, kParts = 2;
  const abi::AttnFwdParams& core = params.core;
  const abi::TensorStrides& strides = core.o_strides;
  const bool wide = reinterpret_cast<u64>(core.o) % 8 == 0 &&
                    (strides.batch | strides.seq | strides.head) % 4 == 0;
  const i64 rows_of_tile =
      tile.piece.problem.seqlen_q * Config::kGroup - tile.piece.first_row - first_row;
  const int items = static_cast<int>(Max(0, Min(rows_of_tile, kBlockRows<Config>))) * kQuads;
  const float* const lses = params.parts.lse + first_row;
  const float* const values =
      static_cast<const float*>(params.parts.o) + i64{first_row} * Config::kHeadDimV;
#pragma unroll 1
  for (int first = thread; first < items; first += kRun * kThreads) {
    float sum[kRun][4] = {};
#pragma unroll 1
    for (int part = 0; part < tile.slots.count; part += kParts) {
      FourColumns four[kParts][kRun];
      float lse[kParts][kRun];
#pragma unroll
      for (int k = 0; k < kParts; ++k) {
        const i64 slot = tile.slots.Of(min(part + k, tile.slots.count - 1));
        const float* const of_slot = values + slot * (Config::kBlockM * Config::kHeadDimV);
#pragma unroll
        for (int n = 0; n < kRun; ++n) {
          const int item = min(first + n * kThreads, items - 1);
          four[k][n] = *reinterpret_cast<const FourColumns*>(of_slot + item * 4);
          lse[k][n] = lses[slot * kSlotLses<Config> + item / kQuads];
        }
      }
#pragma unroll
      for (int n = 0; n < kRun; ++n) {
        const float reference = board.reference[min(first + n * kThreads, items - 1) / kQuads];
#pragma unroll
        for (int k = 0; k < kParts; ++k) {
          if (part + k >= tile.slots.count) break;
          const float weight = Exp(lse[k][n] - reference);
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            sum[n][c] = fmaf(weight, four[k][n].element[c], sum[n][c]);
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kRun; ++n) {
      const int item = first + n * kThreads;
      if (item >= items) break;
      const int row = item / kQuads;
      const PackedRow at = RowAt<Config>(tile.piece.problem, tile.piece.first_row, first_row + row);
      OutElement* const out = static_cast<OutElement*>(core.o) +
                              tile.piece.problem.q_batch * strides.batch + at.h * strides.head +
                              (tile.piece.problem.q_row + at.i) * strides.seq + item % kQuads * 4;
      const float scale = board.scale[row];
      if (wide) {
        const u64 low = ptx::cvt_rn_x2_f32(sum[n][1] * scale, sum[n][0] * scale, OutElement{});
        const u64 high = ptx::cvt_rn_x2_f32(sum[n][3] * scale, sum[n][2] * scale, OutElement{});
        *reinterpret_cast<u64*>(out) = high << 32 | low;
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) FromFloat(sum[n][c] * scale, &out[c]);
      }
    }
  }
}

// Merges the item of a piece that is a part of it, and has been stored, if all other parts of this
// block's rows have been. By kThreads threads, all that compute, of which this is number `thread`;
// `barrier` is a named one of theirs.
template <class Config, int kThreads, class Params>
__device__ __forceinline__ void MergeIfLast(MergeBoard<Config>& board, const TilePiece& tile,
                                            int thread, int barrier, const Params& params) {
  const int rank = RankInCluster<Config>();
  ptx::bar_sync(barrier, kThreads);
  if (thread == 0) {
    u64* const words = reinterpret_cast<u64*>(
        params.parts.lse + i64{tile.slots.first} * kSlotLses<Config> + Config::kBlockM);
    board.is_last = ArriveLast(&words[rank], tile.slots.count) ? 1 : 0;
  }
  ptx::bar_sync(barrier, kThreads);
  if (board.is_last == 0) return;
  const int first_row = rank * kBlockRows<Config>;
  if (thread < kBlockRows<Config>) {
    WeighParts<Config>(board, tile, first_row, thread, params);
  }
  ptx::bar_sync(barrier, kThreads);
  AddParts<Config, kThreads>(board, tile, first_row, thread, params);
}

}  // namespace packed_rows
}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_PACKED_MERGE_CUH_
