// The LSE of rows whose scores may have lost too much (mma/cut_off.cuh says which), from scores
// that have not: the sums of single instructions are added by additions whose rests are kept. A
// warp does this behind its loop over the keys for 16 of its rows at a time, some ten times as
// slowly as there, with operands from global memory and by the definition of policies: little code.
#ifndef TILEWRIGHT_MMA_EXACT_LSE_CUH_
#define TILEWRIGHT_MMA_EXACT_LSE_CUH_

#include "core/math.cuh"
#include "core/problem.cuh"
#include "core/types.cuh"
#include "mma/cut_off.cuh"
#include "mma/score_tile.cuh"
#include "policy/mask_chain.cuh"
#include "ptx/special.cuh"

namespace tilewright {

// Element `column` < RoundUp(kColumns, 16) of a row; zero beyond the row, and without one.
template <int kColumns>
__device__ __forceinline__ u32 ElementOfRow(const u16* row, int column) {
  const bool exists = kColumns % 16 == 0 || column < kColumns;
  return row != nullptr && exists ? row[column] : 0;
}
// Columns `column` and the next one of a row as an operand.
template <int kColumns>
__device__ __forceinline__ u32 PairOfRow(const u16* row, int column) {
  return ElementOfRow<kColumns>(row, column + 1) << 16 | ElementOfRow<kColumns>(row, column);
}

// The lane is found where it is used: kept from the start of a kernel of 255 registers it would
// spill.
__device__ __forceinline__ int LaneHere() {
  return static_cast<int>(ptx::Opaque(threadIdx.x) % 32);
}

// The sums of exp(score - lse) of rows [row_begin, row_begin + 16) over `keys`: what lane l of the
// four that share a row has of rows l / 4 and l / 4 + 8.
template <class Config, class Ops, class Params>
__device__ __forceinline__ void SumsAboutLse(float (&sums)[2], const float (&lse)[2],
                                             const Problem& problem, i64 row_begin,
                                             const KeyInterval& keys, const Params& params) {
  const abi::AttnFwdParams& core = params.core;
  const int lane = LaneHere(), row = lane / 4, quad = lane % 4;
  const u16* q[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const i64 i = Min(row_begin + row + r * 8, problem.seqlen_q - 1);
    q[r] = static_cast<const u16*>(core.q) + problem.q_batch * core.q_strides.batch +
           problem.h * core.q_strides.head + (problem.q_row + i) * core.q_strides.seq;
    sums[r] = 0;
  }
#pragma unroll 1
  for (i64 first = keys.begin; first < keys.end; first += 8) {
    const i64 of_lane = first + row;
    const u16* k = nullptr;
    if (of_lane < keys.end) {
      const KvRow at = Config::KvRows::Locate(problem, of_lane, params);
      if (at.exists()) {
        k = static_cast<const u16*>(core.k) + problem.h_kv * core.k_strides.head +
            at.block * core.k_strides.batch + at.row * core.k_strides.seq;
      }
    }
    float scores[4] = {0, 0, 0, 0}, rests[4] = {0, 0, 0, 0};
#pragma unroll 1
    for (int column = quad * 2; column < RoundUp(Config::kHeadDimQk, 16); column += 16) {
      u32 a[4], b[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          a[2 * half + r] = PairOfRow<Config::kHeadDimQk>(q[r], column + half * 8);
        }
        b[half] = PairOfRow<Config::kHeadDimQk>(k, column + half * 8);
      }
      float part[4] = {0, 0, 0, 0};
      Ops::Multiply(part, a, b[0], b[1]);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float before = scores[c];
        const float sum = before + part[c];
        const float added = sum - before;
        rests[c] += (before - (sum - added)) + (part[c] - added);
        scores[c] = sum;
      }
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const i64 i = Min(row_begin + row + c / 2 * 8, problem.seqlen_q - 1);
      const i64 j = first + quad * 2 + c % 2;
      if (j < keys.end && Config::KvRows::Locate(problem, j, params).exists() &&
          Config::Mask::Keep(problem, i, j, params)) {
        const float score =
            Config::Score::Apply((scores[c] + rests[c]) * core.scale, problem, i, j, params);
        sums[c / 2] += ptx::ex2_approx_ftz((score - lse[c / 2]) * kLog2OfE);
      }
    }
  }
}

// The LSE of a warp's rows from `row_begin` on, over `keys` and `sink`, as far as they exist:
// gives back what scores have lost on average, or adds them up again.
template <class Config, class Ops, int kCuts, int kMTiles, class Params>
__device__ __forceinline__ void MendLse(float (&lse)[kMTiles][2], const Problem& problem,
                                        i64 row_begin, const KeyInterval& keys, float sink,
                                        const Params& params) {
  const int row = LaneHere() / 4;
  u32 tiles = 0;  // a bit for each tile of 16 rows that is to be added up again
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
    bool misses = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (kMayMissBar<Config, kCuts>) {
        misses |= row_begin + row + m * 16 + r * 8 < problem.seqlen_q &&
                  MayMissBar<Config, kCuts>(lse[m][r], params);
      }
      lse[m][r] = WithCutOff<Config>(lse[m][r], kLostPlaces<kCuts>, params);
    }
    if constexpr (kMayMissBar<Config, kCuts>) {
      tiles |= static_cast<u32>(__any_sync(kAllLanes, misses)) << m;
    }
  }
  if constexpr (kMayMissBar<Config, kCuts>) {
#pragma unroll 1
    for (int m = 0; tiles >> m != 0; ++m) {
      if ((tiles >> m & 1) == 0) continue;
      float before[2], sums[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        before[r] = lse[0][r];
#pragma unroll
        for (int t = 1; t < kMTiles; ++t) before[r] = t == m ? lse[t][r] : before[r];
      }
      const i64 begin = row_begin + m * 16, end = Min(begin + 16, problem.seqlen_q);
      const BlockRange seen = Config::Mask::NBlocks(problem, begin, end, 8, params);
      SumsAboutLse<Config, Ops>(
          sums, before, problem, begin,
          {Max(keys.begin, seen.begin * 8), Min(Min(keys.end, seen.end * 8), problem.seqlen_kv)},
          params);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float sum = QuadSum(sums[r]) + ptx::ex2_approx_ftz((sink - before[r]) * kLog2OfE);
        // Of a row without keys, or with what is no number, nothing is to be mended.
        const float mended = sum > 0.5f && sum < 2.f ? before[r] + Log(sum) : before[r];
#pragma unroll
        for (int t = 0; t < kMTiles; ++t) lse[t][r] = t == m ? mended : lse[t][r];
      }
    }
  }
}

// That, and writes them.
template <class Config, class Ops, int kCuts, int kMTiles, class Params>
__device__ __forceinline__ void StoreLse(float (&lse)[kMTiles][2], const Problem& problem,
                                         i64 row_begin, float sink, const Params& params) {
  MendLse<Config, Ops, kCuts>(lse, problem, row_begin, {0, problem.seqlen_kv}, sink, params);
  const int lane = LaneHere();
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const i64 i = row_begin + lane / 4 + m * 16 + r * 8;
      if (lane % 4 == 0 && i < problem.seqlen_q) {
        Config::Lse::Store(lse[m][r], problem, i, params);
      }
    }
  }
}

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_EXACT_LSE_CUH_
