// How the blocks of a cluster that have all parts of packed rows (mma/packed_rows.cuh) merge them
// without a trip to memory: each hands every other one its part of some columns, through the shared
// memory of the cluster, and merges the columns that are its own out of registers and what it got.
#ifndef TILEWRIGHT_MMA_CLUSTER_MERGE_CUH_
#define TILEWRIGHT_MMA_CLUSTER_MERGE_CUH_

#include "mma/packed_rows.cuh"
#include "ptx/cluster_store.cuh"

namespace tilewright {
namespace packed_rows {

// What a block gets, by the share that it is from: kOutputs numbers of a thread in all.
template <class Config, int kOutputs, int kThreads>
struct GatheredColumns {
  static constexpr int kShares = Config::kClusterShares;
  static constexpr int kQuads = kOutputs / kShares / 4;
  static_assert(kOutputs % (16 * kShares) == 0);  // four quads are written at a time
  float o[kShares][kQuads][kThreads][4];
};
template <class Config>
struct GatheredSums {
  float reference[Config::kClusterShares][kRows];
  float sum[Config::kClusterShares][kRows];
};

template <class Config>
__device__ __forceinline__ int ShareInCluster() {
  return static_cast<int>(ptx::cluster_ctarank()) / Config::kCluster;
}

// Sends this thread's part of its rows, `row` of the block's and `row + 8`. No block reads the
// memory under `columns` and `sums` for anything else any more. Behind it a barrier of the cluster.
template <class Config, int kOutputs, int kThreads>
__device__ __forceinline__ void SendParts(GatheredColumns<Config, kOutputs, kThreads>& columns,
                                          GatheredSums<Config>& sums, float (&o)[kOutputs],
                                          const float (&reference)[2], const float (&sum)[2],
                                          int thread, int row, bool with_sums) {
  using Columns = GatheredColumns<Config, kOutputs, kThreads>;
  const int own = ShareInCluster<Config>();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (sum[r] != 0) continue;
      // What no key was added to may be NaN.
#pragma unroll
    for (int n = 0; n < kOutputs / 4; ++n) o[4 * n + 2 * r] = o[4 * n + 2 * r + 1] = 0;
  }
#pragma unroll
  for (int to = 0; to < Columns::kShares; ++to) {
    const u32 rank = static_cast<u32>(to * Config::kCluster + RankInCluster<Config>());
    if (with_sums && thread % 4 == 0) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const u32 reference_place = ptx::SharedAddress(&sums.reference[own][row + 8 * r]);
        const u32 sum_place = ptx::SharedAddress(&sums.sum[own][row + 8 * r]);
        ptx::st_cluster_f32(ptx::mapa(reference_place, rank), reference[r]);
        ptx::st_cluster_f32(ptx::mapa(sum_place, rank), sum[r]);
      }
    }
    if (to == own) continue;
    const u32 place = ptx::mapa(ptx::SharedAddress(&columns.o[own][0][thread][0]), rank);
#pragma unroll
    for (int n = 0; n < Columns::kQuads; ++n) {
      const int first = (to * Columns::kQuads + n) * 4;
      const float value[4] = {o[first], o[first + 1], o[first + 2], o[first + 3]};
      ptx::st_cluster_v4_f32(place + static_cast<u32>(n * sizeof(columns.o[0][0])), value);
    }
  }
}

// Lane l of four gets word l of each of them.
__device__ __forceinline__ void TransposeWords(u32 (&word)[4]) {
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    const bool upper = (threadIdx.x & distance) != 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if ((n & distance) != 0) continue;
      const u32 sent = upper ? word[n] : word[n + distance];
      const u32 got = __shfl_xor_sync(kAllLanes, sent, distance);
      word[n] = upper ? got : word[n];
      word[n + distance] = upper ? word[n + distance] : got;
    }
  }
}

// Merges and writes the columns of this block's share, those of a warpgroup beginning at
// `first_column` of O; `row` of the block's rows, `tile_row` of the tile's.
template <class Config, int kOutputs, int kThreads, class Params>
__device__ __forceinline__ void MergeSentParts(
    const GatheredColumns<Config, kOutputs, kThreads>& columns, const GatheredSums<Config>& sums,
    const float (&o)[kOutputs], const Piece& piece, int thread, int row, int tile_row,
    int first_column, bool with_lse, const Params& params) {
  using Columns = GatheredColumns<Config, kOutputs, kThreads>;
  using OutElement = typename Config::OutElement;
  static_assert(sizeof(OutElement) == 2);
  constexpr int kShares = Columns::kShares;
  const int own = ShareInCluster<Config>();
  const abi::AttnFwdParams& core = params.core;
  const abi::TensorStrides& strides = core.o_strides;
  const bool wide = reinterpret_cast<u64>(core.o) % 16 == 0 &&
                    (strides.batch | strides.seq | strides.head) % 8 == 0;
  float weight[2][kShares];
  u16* out[2];
  bool inside[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const PackedRow at = RowAt<Config>(piece.problem, piece.first_row, tile_row + 8 * r);
    inside[r] = at.inside;
    Problem problem = piece.problem;
    problem.h = at.h;
    float highest = kNoReference, total = 0;
#pragma unroll
    for (int share = 0; share < kShares; ++share) {
      highest = fmaxf(highest, sums.reference[share][row + 8 * r]);
    }
#pragma unroll
    for (int share = 0; share < kShares; ++share) {
      weight[r][share] = ptx::ex2_approx_ftz(sums.reference[share][row + 8 * r] - highest);
      total = fmaf(weight[r][share], sums.sum[share][row + 8 * r], total);
    }
    const SoftmaxEnd end =
        FinishRow(highest, total, at.inside ? Config::Sink::Logit(problem, params) : -Infinity());
#pragma unroll
    for (int share = 0; share < kShares; ++share) {
      weight[r][share] *= end.empty ? 0.f : end.o_scale;
    }
    if (at.inside && with_lse && thread % 4 == 0) {
      Config::Lse::Store(WithCutOff<Config>(end.lse, kLostByWgmma<Config>, params), problem, at.i,
                         params);
    }
    out[r] = static_cast<u16*>(core.o) + problem.q_batch * strides.batch + at.h * strides.head +
             (problem.q_row + at.i) * strides.seq + first_column;
  }
#pragma unroll
  for (int to = 0; to < kShares; ++to) {
    if (to != own) continue;
#pragma unroll
    for (int n = 0; n < Columns::kQuads; n += 4) {
      // Two columns of each of four chunks of 8 become one chunk of each row.
      Words<16> word[2];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int first = (to * Columns::kQuads + n + k) * 4;
        float merged[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) merged[c] = weight[c / 2][to] * o[first + c];
#pragma unroll
        for (int share = 0; share < kShares; ++share) {
          if (share == to) continue;
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            merged[c] = fmaf(weight[c / 2][share], columns.o[share][n + k][thread][c], merged[c]);
          }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          word[r].word[k] = ptx::cvt_rn_x2_f32(merged[2 * r + 1], merged[2 * r], OutElement{});
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        TransposeWords(word[r].word);
        if (!inside[r]) continue;
        u16* const place = out[r] + (to * Columns::kQuads + n + thread % 4) * 8;
        if (wide) {
          *reinterpret_cast<Words<16>*>(place) = word[r];
        } else {
#pragma unroll
          for (int c = 0; c < 8; ++c)
            place[c] = static_cast<u16>(word[r].word[c / 2] >> c % 2 * 16);
        }
      }
    }
  }
}

}  // namespace packed_rows
}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_CLUSTER_MERGE_CUH_
