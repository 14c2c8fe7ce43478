// A warp's scores as m16n8 accumulators of mma.sync (ptx/mma_sync.cuh): s[m][n][c] of rows
// [16 m, 16 m + 16) and columns [8 n, 8 n + 8) of the warp's part of a tile. Policies, masks and
// the online softmax in that layout.
//
// Which key is which column is free, as the softmax does not ask for their order: keys are put in
// shared memory such that a lane's columns are runs of Config::kRunKeys adjacent keys. 2 leaves
// them in order; 4 and 8 let a lane load the bias or mask of a run at once, and draw its random
// numbers.
#ifndef TILEWRIGHT_MMA_SCORE_TILE_CUH_
#define TILEWRIGHT_MMA_SCORE_TILE_CUH_

#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/online_softmax.cuh"
#include "core/problem.cuh"
#include "core/warp_reduce.cuh"
#include "policy/key_runs.cuh"
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

// The column of a tile's key, 0 <= key: a permutation of each 4 * kRunKeys of them. It moves bits
// only, so that the column of a sum of numbers without common bits is the sum of their columns.
template <int kRunKeys>
TILEWRIGHT_HOST_DEVICE constexpr int ColumnOfKey(int key) {
  static_assert(kRunKeys == 2 || kRunKeys == 4 || kRunKeys == 8);
  if (kRunKeys == 2) return key;
  const int run = key / (4 * kRunKeys), lane = key / kRunKeys % 4, number = key % kRunKeys;
  return (run * (kRunKeys / 2) + number / 2) * 8 + lane * 2 + number % 2;
}

// The keys of a row that a lane holds: number n is s[m][n / 2][n % 2] (and n % 2 + 2).
template <class Config, int kNTiles>
using LaneRuns = KeyRuns<kNTiles * 2 / Config::kRunKeys, Config::kRunKeys, 4 * Config::kRunKeys>;
template <class Config>
__device__ __forceinline__ int FirstKeyOfLane() {
  return static_cast<int>(threadIdx.x % 4 * Config::kRunKeys);
}

// The policies of one (batch, head).
template <class Config, class Params>
struct HeadPolicies {
  typename Config::Score::template Head<Params> score;
  typename Config::Mask::template Head<Params> mask;
  typename Config::Dropout::template Head<Params> dropout;

  __device__ __forceinline__ HeadPolicies(const Problem& problem, const Params& params)
      : score(problem, params), mask(problem, params), dropout(problem, params) {}
  // Heads may refer to the problem.
  HeadPolicies(Problem&&, const Params&) = delete;
};

// Which of the keys that the lane holds each of its rows sees, of rows from `row_begin` and keys
// from `kv_begin` on.
template <class Config, int kMTiles, int kNTiles, class Params>
__device__ __forceinline__ void KeysKept(u32 (&keep)[kMTiles][2],
                                         const HeadPolicies<Config, Params>& policies,
                                         const Problem& problem, i64 row_begin, i64 kv_begin,
                                         const Params& params) {
  using Runs = LaneRuns<Config, kNTiles>;
  const i64 j = kv_begin + FirstKeyOfLane<Config>();
  [[maybe_unused]] const int existing = static_cast<int>(Min(problem.seqlen_kv - j, kNTiles * 8));
  u32 columns = Runs::kAll;
  if constexpr (!Config::KvRows::kIsDense) {
    columns = Config::KvRows::template Existing<Runs>(problem, j, existing, params);
  }
  if constexpr (!Config::Mask::kIsInterval) {
    columns &= policies.mask.template KeepInAllRows<Runs>({0, j, existing});
  }
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // What rows beyond the length see does not matter, as long as it exists.
      const i64 i = row_begin + RowOf(m, 2 * r);
      const KeyInterval keys = Config::Mask::RowKeys(problem, i, params);
      keep[m][r] = columns & Runs::Below(keys.end - j);
      if constexpr (Config::Mask::kCutsLeft) keep[m][r] &= ~Runs::Below(keys.begin - j);
      if constexpr (!Config::Mask::kIsInterval) {
        keep[m][r] &=
            policies.mask.template Keep<Runs>({Min(i, problem.seqlen_q - 1), j, existing});
      }
    }
  }
}

// Scores of keys outside of their row's interval become -inf: for masks that are intervals of keys
// that all exist, where this takes fewer registers than KeysKept.
template <class Config, int kMTiles, int kNTiles, class Params>
__device__ __forceinline__ void MaskIntervals(float (&scores)[kMTiles][kNTiles][4],
                                              const Problem& problem, i64 row_begin, i64 kv_begin,
                                              const Params& params) {
  using Runs = LaneRuns<Config, kNTiles>;
  const i64 j = kv_begin + FirstKeyOfLane<Config>();
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const KeyInterval keys = Config::Mask::RowKeys(problem, row_begin + RowOf(m, 2 * r), params);
      const int begin = static_cast<int>(Max(0, Min(keys.begin - j, kNTiles * 8)));
      const int end = static_cast<int>(Max(0, Min(keys.end - j, kNTiles * 8)));
#pragma unroll
      for (int n = 0; n < Runs::kCount; ++n) {
        const int offset = Runs::Offset(n);
        const bool keep = offset < end && (!Config::Mask::kCutsLeft || offset >= begin);
        float& s = scores[m][n / 2][2 * r + n % 2];
        s = keep ? s : -Infinity();
      }
    }
  }
}

// ApplyPolicies for any policies.
template <class Config, int kMTiles, int kNTiles, class Params>
__device__ __forceinline__ void ApplyAnyPolicies(float (&scores)[kMTiles][kNTiles][4],
                                                 const HeadPolicies<Config, Params>& policies,
                                                 const Problem& problem, i64 row_begin,
                                                 i64 kv_begin, bool whole, const Params& params) {
  using Runs = LaneRuns<Config, kNTiles>;
  u32 keep[kMTiles][2];
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) keep[m][0] = keep[m][1] = Runs::kAll;
  if (!whole) {
    KeysKept<Config, kMTiles, kNTiles>(keep, policies, problem, row_begin, kv_begin, params);
  }
  if constexpr (!Config::Score::kIdentity) {
    const i64 j = kv_begin + FirstKeyOfLane<Config>();
    const int existing = static_cast<int>(Min(problem.seqlen_kv - j, kNTiles * 8));
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        // Rows beyond the length do as the last one: a policy may look at memory of the row.
        const i64 i = Min(row_begin + RowOf(m, 2 * r), problem.seqlen_q - 1);
        const typename Config::Score::template Head<Params>::Row row(policies.score,
                                                                     {i, j, existing});
        float values[Runs::kCount];
#pragma unroll
        for (int n = 0; n < Runs::kCount; ++n) {
          values[n] = scores[m][n / 2][2 * r + n % 2] * params.core.scale;
        }
        row.template Apply<Runs>(values, keep[m][r]);
#pragma unroll
        for (int n = 0; n < Runs::kCount; ++n) scores[m][n / 2][2 * r + n % 2] = values[n];
      }
    }
  }
  if (!whole) {
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int n = 0; n < Runs::kCount; ++n) {
          float& s = scores[m][n / 2][2 * r + n % 2];
          s = keep[m][r] >> n & 1 ? s : -Infinity();
        }
      }
    }
  }
}

// Applies score policies and masks to the raw products of rows from `row_begin` and keys from
// `kv_begin` on. Scores that are not kept become -inf and are not looked at. `whole`: all keys
// exist, and every row sees them.
template <class Config, int kMTiles, int kNTiles, class Params>
__device__ __forceinline__ void ApplyPolicies(float (&scores)[kMTiles][kNTiles][4],
                                              const HeadPolicies<Config, Params>& policies,
                                              const Problem& problem, i64 row_begin, i64 kv_begin,
                                              bool whole, const Params& params) {
  if constexpr (Config::Score::kIdentity && Config::Mask::kIsInterval && Config::KvRows::kIsDense) {
    if (!whole) MaskIntervals<Config>(scores, problem, row_begin, kv_begin, params);
  } else {
    ApplyAnyPolicies<Config>(scores, policies, problem, row_begin, kv_begin, whole, params);
  }
}

// Turns the sign of weights that are dropped: they are part of their row's sum, but not of O.
template <class Config, int kMTiles, int kNTiles, class Params>
__device__ __forceinline__ void MarkDropped(float (&weights)[kMTiles][kNTiles][4],
                                            const HeadPolicies<Config, Params>& policies,
                                            i64 row_begin, i64 kv_begin) {
  using Runs = LaneRuns<Config, kNTiles>;
  const i64 j = kv_begin + FirstKeyOfLane<Config>();
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float values[Runs::kCount];
#pragma unroll
      for (int n = 0; n < Runs::kCount; ++n) values[n] = weights[m][n / 2][2 * r + n % 2];
      policies.dropout.template Mark<Runs>(values, row_begin + RowOf(m, 2 * r), j);
#pragma unroll
      for (int n = 0; n < Runs::kCount; ++n) weights[m][n / 2][2 * r + n % 2] = values[n];
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
//
// A weight that is no power of two is rounded when it becomes an operand. What O is divided by must
// be the sum of the rounded weights: else a row with most of its weight on one key is off by that
// key's rounding. The tensor core adds it up as a column more of O, by a column of ones in V
// (AddRowSums). The LSE asks for the sum of the weights as they were; kHasSums says whether `sum`
// holds it.
template <int kMTiles, bool kHasSums = true>
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

template <int kMTiles, bool kHasSums, int kVTiles>
__device__ __forceinline__ void StartSoftmax(SoftmaxState<kMTiles, kHasSums>& softmax,
                                             float (&o)[kMTiles][kVTiles][4]) {
  softmax.watch = true;
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      softmax.reference[m][r] = kNoReference;
      if constexpr (kHasSums) softmax.sum[m][r] = 0;
    }
#pragma unroll
    for (int n = 0; n < kVTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) o[m][n][c] = 0;
    }
  }
}

template <int kMTiles, bool kHasSums, int kVTiles>
__device__ __forceinline__ void ScaleRow(SoftmaxState<kMTiles, kHasSums>& softmax,
                                         float (&o)[kMTiles][kVTiles][4], int m, int r,
                                         float factor) {
  if constexpr (kHasSums) softmax.sum[m][r] *= factor;
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

// Moves the reference of rows whose highest score (in log2 units) passes it by more than `lazy`, or
// that have none. `always`: keeps watching. Without AddRowSums `lazy` should be 0: the weight of
// the highest score is then 1, whose operand is exact.
template <int kMTiles, bool kHasSums, int kVTiles>
__device__ __forceinline__ void MoveReferences(const float (&highest)[kMTiles][2],
                                               float (&o)[kMTiles][kVTiles][4],
                                               SoftmaxState<kMTiles, kHasSums>& softmax,
                                               bool always, float lazy) {
  bool moves = false;
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) moves |= highest[m][r] > softmax.reference[m][r] + lazy;
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
template <int kMTiles, bool kHasSums, int kNTiles, int kVTiles>
__device__ __forceinline__ void WatchMaxima(const float (&scores)[kMTiles][kNTiles][4],
                                            float (&o)[kMTiles][kVTiles][4],
                                            SoftmaxState<kMTiles, kHasSums>& softmax, float to_log2,
                                            bool always, float lazy) {
  float highest[kMTiles][2];
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) highest[m][r] = HighestScore(scores, m, r) * to_log2;
  }
  MoveReferences(highest, o, softmax, always, lazy);
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
template <int kMTiles, bool kHasSums, int kVTiles>
__device__ __forceinline__ void RaiseRow(SoftmaxState<kMTiles, kHasSums>& softmax,
                                         float (&o)[kMTiles][kVTiles][4], int m, int r, float sum) {
  const int exponent = sum > 1.f ? ExponentOf(sum) : 0;
  softmax.reference[m][r] += static_cast<float>(exponent);
  ScaleRow(softmax, o, m, r, PowerOfTwo(-exponent));
}

// Raises references by a power of two where a row's sum, `sums[m][r]`, has grown high, so that sums
// and O keep away from overflow. The sums of the four lanes that share a row may differ.
template <int kMTiles, bool kHasSums, int kVTiles>
__device__ __forceinline__ void RaiseReferences(const float (&sums)[kMTiles][2],
                                                SoftmaxState<kMTiles, kHasSums>& softmax,
                                                float (&o)[kMTiles][kVTiles][4]) {
  float highest = 0;
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) highest = fmaxf(highest, fmaxf(sums[m][0], sums[m][1]));
  if (!__any_sync(kAllLanes, highest > kHighSum)) return;
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) RaiseRow(softmax, o, m, r, QuadMax(sums[m][r]));
  }
}

// The sums of the multiplied weights, O's last tile: any column of it.
template <int kMTiles, int kVTiles>
__device__ __forceinline__ void GetRowSums(float (&sums)[kMTiles][2],
                                           const float (&o)[kMTiles][kVTiles][4]) {
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) sums[m][r] = o[m][kVTiles - 1][2 * r];
  }
}

// Turns the scores of tiles [first, first + kCount) into weights and adds them to the sums.
template <int kCount, int kMTiles, bool kHasSums, int kNTiles>
__device__ __forceinline__ void Weights(float (&scores)[kMTiles][kNTiles][4],
                                        SoftmaxState<kMTiles, kHasSums>& softmax, float to_log2,
                                        int first) {
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
          if constexpr (kHasSums) softmax.sum[m][r] += s;
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
template <int kMTiles, bool kHasSums, int kVTiles>
__device__ __forceinline__ bool HasNonFinite(const float (&o)[kMTiles][kVTiles][4],
                                             const SoftmaxState<kMTiles, kHasSums>& softmax) {
  float probe = 0;  // stays 0: 0 * finite
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
    if constexpr (kHasSums) {
#pragma unroll
      for (int r = 0; r < 2; ++r) probe = fmaf(softmax.sum[m][r], 0.f, probe);
    }
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
