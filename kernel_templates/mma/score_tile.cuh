// A warp's scores as m16n8 accumulators of mma.sync (ptx/mma_sync.cuh): s[m][n][c] of rows
// [16 m, 16 m + 16) and columns [8 n, 8 n + 8) of the warp's part of a tile. Policies, masks and
// the online softmax in that layout.
#ifndef TILEWRIGHT_MMA_SCORE_TILE_CUH_
#define TILEWRIGHT_MMA_SCORE_TILE_CUH_

#include "core/math.cuh"
#include "core/online_softmax.cuh"
#include "core/problem.cuh"
#include "core/warp_reduce.cuh"
#include "policy/mask_chain.cuh"
#include "ptx/special.cuh"

namespace tilewright {

// A lane's element c of tile (m, n) is this row and column of the warp's part.
__device__ __forceinline__ int RowOf(int m, int c) {
  return static_cast<int>(m * 16 + threadIdx.x % 32 / 4 + c / 2 * 8);
}
__device__ __forceinline__ int ColumnOf(int n, int c) {
  return static_cast<int>(n * 8 + threadIdx.x % 4 * 2 + c % 2);
}

// Applies score policies and masks to the raw products of rows from `row_begin` and keys from
// `kv_begin` on. Scores that are not kept become -inf and are not looked at.
template <class Config, int kMTiles, int kNTiles, class Params>
__device__ __forceinline__ void ApplyPolicies(float (&scores)[kMTiles][kNTiles][4],
                                              const Problem& problem, i64 row_begin, i64 kv_begin,
                                              bool full, const Params& params) {
  constexpr int kColumns = kNTiles * 8;
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const i64 i = row_begin + RowOf(m, 2 * r);
      // The row's keys as columns of the tile; none for rows beyond the length.
      const KeyInterval keys = Config::Mask::RowKeys(problem, i, params);
      const bool inside = i < problem.seqlen_q;
      const int begin = static_cast<int>(Max(0, Min(keys.begin - kv_begin, kColumns)));
      const int end = inside ? static_cast<int>(Max(0, Min(keys.end - kv_begin, kColumns))) : 0;
#pragma unroll
      for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int column = ColumnOf(n, c);
          const i64 j = kv_begin + column;
          bool keep = full || (column >= begin && column < end);
          if constexpr (!Config::KvRows::kIsDense) {
            keep = keep && Config::KvRows::Locate(problem, j, params).exists();
          }
          if constexpr (!Config::Mask::kIsInterval)
            keep = keep && (full || Config::Mask::Keep(problem, i, j, params));
          float& s = scores[m][n][2 * r + c];
          if constexpr (Config::Score::kIdentity) {
            s = keep ? s : -Infinity();
          } else {
            s = keep ? Config::Score::Apply(s * params.core.scale, problem, i, j, params)
                     : -Infinity();
          }
        }
      }
    }
  }
}

template <class Config, int kMTiles, int kNTiles, class Params>
__device__ __forceinline__ void ApplyDropout(float (&weights)[kMTiles][kNTiles][4],
                                             const Problem& problem, i64 row_begin, i64 kv_begin,
                                             const Params& params) {
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        weights[m][n][c] *= Config::Dropout::Factor(problem, row_begin + RowOf(m, c),
                                                    kv_begin + ColumnOf(n, c), params);
      }
    }
  }
}

template <int kMTiles>
struct SoftmaxState {
  float reference[kMTiles][2];  // log2 units
  float sum[kMTiles][2];        // this lane's columns only, until the end
};

// Turns scores (times `to_log2`: log2 units) into weights relative to the row's reference, moving
// the reference where a score passes it by more than kLazyLog2.
template <int kMTiles, int kNTiles, int kVTiles>
__device__ __forceinline__ void OnlineSoftmax(float (&scores)[kMTiles][kNTiles][4],
                                              float (&o)[kMTiles][kVTiles][4],
                                              SoftmaxState<kMTiles>& softmax, float to_log2) {
  float highest[kMTiles][2];
  bool moves = false;
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float value = fmaxf(scores[m][0][2 * r], scores[m][0][2 * r + 1]);
#pragma unroll
      for (int n = 1; n < kNTiles; ++n) {
        value = fmaxf(value, fmaxf(scores[m][n][2 * r], scores[m][n][2 * r + 1]));
      }
      value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
      value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
      highest[m][r] = value * to_log2;
      moves |= highest[m][r] > softmax.reference[m][r] + kLazyLog2;
    }
  }
  if (__any_sync(kAllLanes, moves)) {
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float before = softmax.reference[m][r];
        const float after = fmaxf(before, highest[m][r]);
        // A row that has seen no key yet has reference -inf and nothing to scale.
        const float factor = before == after ? 1.f : ptx::ex2_approx_ftz(before - after);
        softmax.reference[m][r] = after;
        softmax.sum[m][r] *= factor;
#pragma unroll
        for (int n = 0; n < kVTiles; ++n) {
          o[m][n][2 * r] *= factor;
          o[m][n][2 * r + 1] *= factor;
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // While every score of a row is -inf its reference is too; exp2(-inf - 0) is the 0 we want.
      const float reference =
          softmax.reference[m][r] == -Infinity() ? 0.f : softmax.reference[m][r];
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& s = scores[m][n][2 * r + c];
          s = ptx::ex2_approx_ftz(fmaf(s, to_log2, -reference));
          sum += s;
        }
      }
      softmax.sum[m][r] += sum;
    }
  }
}

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_SCORE_TILE_CUH_
