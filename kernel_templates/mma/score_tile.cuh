// A warp's scores as m16n8 accumulators of mma.sync (ptx/mma_sync.cuh): s[m][n][c] of rows
// [16 m, 16 m + 16) and columns [8 n, 8 n + 8) of the warp's part of a tile. Policies, masks and
// the online softmax in that layout.
#ifndef TILEWRIGHT_MMA_SCORE_TILE_CUH_
#define TILEWRIGHT_MMA_SCORE_TILE_CUH_

#include "core/convert.cuh"
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

// Over the four lanes that share a row.
__device__ __forceinline__ float QuadSum(float value) {
  value += __shfl_xor_sync(kAllLanes, value, 1);
  return value + __shfl_xor_sync(kAllLanes, value, 2);
}
__device__ __forceinline__ float QuadMax(float value) {
  value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
  return fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
}

// The online softmax of a warp's rows. Weights are 2^(score - reference), and a row's reference
// need not be its maximum: numerator and denominator share it, so it cancels. It is the row's
// highest score at the first keys that it sees (`watch` is set until all rows have seen one); from
// then on no maximum is taken. A reference that scores leave far behind is raised when the sum of
// the weights shows it (RaiseReferences); what overflows before that makes O or the sum non-finite,
// and the tile is then computed again with `watch` always set: every maximum is taken, and a
// reference moves as soon as a score passes it by kLazyLog2.
template <int kMTiles>
struct SoftmaxState {
  float reference[kMTiles][2];  // log2 units
  float sum[kMTiles][2];        // this lane's columns only, until the end
  bool watch;                   // the same in all lanes
};

// Finite, so that the weight of a score of -inf is 0 and not NaN.
inline constexpr float kNoReference = -1e30f;

// Far above what scores near their reference add up to, and far below the end of fp32: a tile may
// raise its highest score by another 2^80 before anything overflows.
inline constexpr float kHighSum = 1099511627776.f;  // 2^40

template <int kMTiles, int kVTiles>
__device__ __forceinline__ void StartSoftmax(SoftmaxState<kMTiles>& softmax,
                                             float (&o)[kMTiles][kVTiles][4]) {
  softmax.watch = true;
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      softmax.reference[m][r] = kNoReference;
      softmax.sum[m][r] = 0;
    }
#pragma unroll
    for (int n = 0; n < kVTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) o[m][n][c] = 0;
    }
  }
}

template <int kMTiles, int kVTiles>
__device__ __forceinline__ void ScaleRow(SoftmaxState<kMTiles>& softmax,
                                         float (&o)[kMTiles][kVTiles][4], int m, int r,
                                         float factor) {
  softmax.sum[m][r] *= factor;
#pragma unroll
  for (int n = 0; n < kVTiles; ++n) {
    o[m][n][2 * r] *= factor;
    o[m][n][2 * r + 1] *= factor;
  }
}

// Of the warp's keys in row (m, r).
template <int kMTiles, int kNTiles>
__device__ __forceinline__ float HighestScore(const float (&scores)[kMTiles][kNTiles][4], int m,
                                              int r) {
  float value = fmaxf(scores[m][0][2 * r], scores[m][0][2 * r + 1]);
#pragma unroll
  for (int n = 1; n < kNTiles; ++n) {
    value = fmaxf(value, fmaxf(scores[m][n][2 * r], scores[m][n][2 * r + 1]));
  }
  return QuadMax(value);
}

// Moves the reference of rows whose highest score (in log2 units) passes it by more than kLazyLog2,
// or that have none. `always`: keeps watching.
template <int kMTiles, int kVTiles>
__device__ __forceinline__ void MoveReferences(const float (&highest)[kMTiles][2],
                                               float (&o)[kMTiles][kVTiles][4],
                                               SoftmaxState<kMTiles>& softmax, bool always) {
  bool moves = false;
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) moves |= highest[m][r] > softmax.reference[m][r] + kLazyLog2;
  }
  if (!__any_sync(kAllLanes, moves)) return;
  bool missing = false;
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = softmax.reference[m][r];
      const float after = fmaxf(before, highest[m][r]);
      softmax.reference[m][r] = after;
      missing |= after == kNoReference;
      ScaleRow(softmax, o, m, r, before == after ? 1.f : ptx::ex2_approx_ftz(before - after));
    }
  }
  softmax.watch = always || __any_sync(kAllLanes, missing);
}

// As above, from the scores of all keys (times `to_log2`: log2 units).
template <int kMTiles, int kNTiles, int kVTiles>
__device__ __forceinline__ void WatchMaxima(const float (&scores)[kMTiles][kNTiles][4],
                                            float (&o)[kMTiles][kVTiles][4],
                                            SoftmaxState<kMTiles>& softmax, float to_log2,
                                            bool always) {
  float highest[kMTiles][2];
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) highest[m][r] = HighestScore(scores, m, r) * to_log2;
  }
  MoveReferences(highest, o, softmax, always);
}

// floor(log2(value)) for values from 1 on; 126 at most.
__device__ __forceinline__ int ExponentOf(float value) {
  const int exponent = static_cast<int>(BitsOfFloat(value) >> 23) - 127;
  return exponent < 126 ? exponent : 126;
}

TILEWRIGHT_HOST_DEVICE float PowerOfTwo(int exponent) {
  return FloatOfBits(static_cast<u32>(127 + exponent) << 23);
}

// By the exponent of `sum`, the highest of the row's sums. An infinite sum stays infinite.
template <int kMTiles, int kVTiles>
__device__ __forceinline__ void RaiseRow(SoftmaxState<kMTiles>& softmax,
                                         float (&o)[kMTiles][kVTiles][4], int m, int r, float sum) {
  const int exponent = sum > 1.f ? ExponentOf(sum) : 0;
  softmax.reference[m][r] += static_cast<float>(exponent);
  ScaleRow(softmax, o, m, r, PowerOfTwo(-exponent));
}

template <int kMTiles>
__device__ __forceinline__ bool SumsAreHigh(const SoftmaxState<kMTiles>& softmax) {
  float highest = 0;
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
    highest = fmaxf(highest, fmaxf(softmax.sum[m][0], softmax.sum[m][1]));
  }
  return __any_sync(kAllLanes, highest > kHighSum);
}

// Raises references by a power of two where a sum has grown high, so that sum and O keep away from
// overflow.
template <int kMTiles, int kVTiles>
__device__ __forceinline__ void RaiseReferences(SoftmaxState<kMTiles>& softmax,
                                                float (&o)[kMTiles][kVTiles][4]) {
  if (!SumsAreHigh(softmax)) return;
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      RaiseRow(softmax, o, m, r, QuadMax(softmax.sum[m][r]));
    }
  }
}

// Turns the scores of tiles [first, first + kCount) into weights and adds them to the sums.
template <int kCount, int kMTiles, int kNTiles>
__device__ __forceinline__ void Weights(float (&scores)[kMTiles][kNTiles][4],
                                        SoftmaxState<kMTiles>& softmax, float to_log2, int first) {
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& s = scores[m][first + n][2 * r + c];
          s = ptx::ex2_approx_ftz(fmaf(s, to_log2, -softmax.reference[m][r]));
          softmax.sum[m][r] += s;
        }
      }
    }
  }
}

// The end of a row, from its reference and the sum over all lanes.
__device__ __forceinline__ SoftmaxEnd FinishRow(float reference, float sum, float sink) {
  float scale = 1;
  if (sum > 1.f) {
    // Takes the sum's exponent into the reference: a sink is compared with the row's own size.
    const int exponent = ExponentOf(sum);
    scale = PowerOfTwo(-exponent);
    reference += static_cast<float>(exponent);
  }
  SoftmaxEnd end =
      FinishSoftmax(reference == kNoReference ? -Infinity() : reference * kLn2, sum * scale, sink);
  end.o_scale *= scale;
  return end;
}

// Whether any element of O or a sum is Inf or NaN.
template <int kMTiles, int kVTiles>
__device__ __forceinline__ bool HasNonFinite(const float (&o)[kMTiles][kVTiles][4],
                                             const SoftmaxState<kMTiles>& softmax) {
  float probe = 0;  // stays 0: 0 * finite
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) probe = fmaf(softmax.sum[m][r], 0.f, probe);
#pragma unroll
    for (int n = 0; n < kVTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) probe = fmaf(o[m][n][c], 0.f, probe);
    }
  }
  return probe != 0 || probe != probe;
}

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_SCORE_TILE_CUH_
