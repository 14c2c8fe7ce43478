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

struct MergeBoard {
  int is_last;
};

// Four columns of a row are a thread's work, kRun times at once from kParts parts: what is read
// comes from L2, and waiting for it is most of the time. Parts are added in the order of the keys,
// whoever the last block is.
template <class Config, int kThreads, class Params>
__device__ __forceinline__ void AddParts(const TilePiece& tile, int first_row, int thread,
                                         const Params& params) {
  using OutElement = typename Config::OutElement;
  constexpr int kQuads = Config::kHeadDimV / 4;
  static_assert(Config::kHeadDimV % 4 == 0);
  constexpr int kRun = 4, kParts = 4;
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
    float highest[kRun], sum[kRun] = {}, value[kRun][4] = {};
#pragma unroll
    for (int n = 0; n < kRun; ++n) highest[n] = -Infinity();
#pragma unroll 1
    for (int part = 0; part < tile.slots.count; part += kParts) {
      FourColumns four[kParts][kRun];
      float lse[kParts][kRun];
#pragma unroll
      for (int k = 0; k < kParts; ++k) {
        const bool exists = part + k < tile.slots.count;
        const i64 slot = tile.slots.Of(exists ? part + k : part);
        const float* const of_slot = values + slot * (Config::kBlockM * Config::kHeadDimV);
#pragma unroll
        for (int n = 0; n < kRun; ++n) {
          const int item = min(first + n * kThreads, items - 1);
          four[k][n] = {};
          lse[k][n] = -Infinity();
          if (!exists) continue;
          four[k][n] = *reinterpret_cast<const FourColumns*>(of_slot + item * 4);
          lse[k][n] = lses[slot * kSlotLses<Config> + item / kQuads];
        }
      }
#pragma unroll
      for (int n = 0; n < kRun; ++n) {
        float top = highest[n];
#pragma unroll
        for (int k = 0; k < kParts; ++k) top = fmaxf(top, lse[k][n]);
        const float reference = SoftmaxReference(top);
        const float factor = Exp(highest[n] - reference);
        highest[n] = top;
        sum[n] *= factor;
#pragma unroll
        for (int c = 0; c < 4; ++c) value[n][c] *= factor;
#pragma unroll
        for (int k = 0; k < kParts; ++k) {
          const float weight = Exp(lse[k][n] - reference);
          sum[n] += weight;
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            value[n][c] = fmaf(weight, four[k][n].element[c], value[n][c]);
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kRun; ++n) {
      const int item = first + n * kThreads;
      if (item >= items) break;
      const int column = item % kQuads * 4;
      const PackedRow at =
          RowAt<Config>(tile.piece.problem, tile.piece.first_row, first_row + item / kQuads);
      Problem problem = tile.piece.problem;
      problem.h = at.h;
      const SoftmaxEnd end =
          FinishSoftmax(highest[n], sum[n], Config::Sink::Logit(problem, params));
      if (column == 0) Config::Lse::Store(end.lse, problem, at.i, params);
      OutElement* const out = static_cast<OutElement*>(core.o) + problem.q_batch * strides.batch +
                              at.h * strides.head + (problem.q_row + at.i) * strides.seq + column;
      const float scale = end.empty ? 0.f : end.o_scale;
      if (wide) {
        const u64 low = ptx::cvt_rn_x2_f32(value[n][1] * scale, value[n][0] * scale, OutElement{});
        const u64 high = ptx::cvt_rn_x2_f32(value[n][3] * scale, value[n][2] * scale, OutElement{});
        *reinterpret_cast<u64*>(out) = high << 32 | low;
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) FromFloat(value[n][c] * scale, &out[c]);
      }
    }
  }
}

// Merges the item of a piece that is a part of it, and has been stored, if all other parts of this
// block's rows have been. By kThreads threads, all that compute, of which this is number `thread`;
// `barrier` is a named one of theirs.
template <class Config, int kThreads, class Params>
__device__ __forceinline__ void MergeIfLast(MergeBoard& board, const TilePiece& tile, int thread,
                                            int barrier, const Params& params) {
  const int rank = RankInCluster<Config>();
  ptx::bar_sync(barrier, kThreads);
  if (thread == 0) {
    u64* const words = reinterpret_cast<u64*>(
        params.parts.lse + i64{tile.slots.first} * kSlotLses<Config> + Config::kBlockM);
    board.is_last = ArriveLast(&words[rank], tile.slots.count) ? 1 : 0;
  }
  ptx::bar_sync(barrier, kThreads);
  if (board.is_last == 0) return;
  AddParts<Config, kThreads>(tile, rank * kBlockRows<Config>, thread, params);
}

}  // namespace packed_rows
}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_PACKED_MERGE_CUH_
