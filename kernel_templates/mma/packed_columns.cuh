// Rows of queries that share a key/value head, packed into one tile (policy/decode_work.cuh), as
// the columns of transposed products: S^T = K Q^T, O^T = V^T P^T with mma.sync.m16n8k16.
//
// Element c of a fragment of S^T belongs to key lane / 4 + 8 * (c / 2) of its 16, and to row
// 2 * (lane % 4) + c % 2 of its 8.
#ifndef TILEWRIGHT_MMA_PACKED_COLUMNS_CUH_
#define TILEWRIGHT_MMA_PACKED_COLUMNS_CUH_

#include "abi/attn_fwd_params.h"
#include "core/math.cuh"
#include "core/warp_reduce.cuh"
#include "mma/score_tile.cuh"
#include "policy/decode_work.cuh"
#include "ptx/special.cuh"

namespace tilewright {

// Two elements of a query row as 16 bits each; zeros beyond it.
template <int kColumns, class Element>
__device__ __forceinline__ u32 QueryPair(const Element* row, int column, bool inside, bool wide) {
  if (!inside) return 0;
  if (wide && column + 1 < kColumns) return *reinterpret_cast<const u32*>(row + column);
  const u32 low = column < kColumns ? row[column].bits : 0;
  const u32 high = column + 1 < kColumns ? row[column + 1].bits : 0;
  return high << 16 | low;
}

// The fragments of kRowTiles times 8 rows from `row` on of the piece's tile, and of kSteps times 16
// columns from `first_column` on. kQuads: the columns of a step are dealt to the lanes four by
// four, not two and two.
template <class Config, bool kQuads, int kRowTiles, int kSteps, class Params>
__device__ __forceinline__ void LoadQueryColumns(u32 (&q)[kRowTiles][kSteps][2], const Piece& piece,
                                                 int row, int first_column, const Params& params) {
  using Element = typename Config::Element;
  const abi::TensorStrides& strides = params.core.q_strides;
  const bool wide = reinterpret_cast<u64>(params.core.q) % 4 == 0 &&
                    (strides.batch | strides.seq | strides.head) % 2 == 0;
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
    const PackedRow at = RowAt<Config>(piece.problem, piece.first_row, row + tile * 8 + lane / 4);
    const Element* source = static_cast<const Element*>(params.core.q) +
                            piece.problem.q_batch * strides.batch + at.h * strides.head +
                            (piece.problem.q_row + at.i) * strides.seq;
    const auto column_of = [&](int step) {
      return first_column + step * 16 + (kQuads ? 4 : 2) * (lane % 4);
    };
    constexpr int kApart = kQuads ? 2 : 8;
    if (wide && at.inside) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int column = column_of(step) + half * kApart;
          // Behind the last column of an odd head dim lies another row or nothing.
          q[tile][step][half] = column + 1 < Config::kHeadDimQk
                                    ? *reinterpret_cast<const u32*>(source + column)
                                    : QueryPair<Config::kHeadDimQk>(source, column, true, false);
        }
      }
    } else {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          q[tile][step][half] = QueryPair<Config::kHeadDimQk>(
              source, column_of(step) + half * kApart, at.inside, false);
        }
      }
    }
  }
}

// Score policies and masks on the products of keys from `key` on with rows from `row` on. Scores
// that are not kept become -inf and are not looked at. `full`: every row sees all of these keys;
// `scale` turns products into scores; `pages`: where the keys' pages are, unless they have only
// one.
template <class Config, bool kHasOnePage, int kKeyTiles, int kRowTiles, class Params>
__device__ __forceinline__ void ApplyPoliciesToColumns(float (&s)[kKeyTiles][kRowTiles][4],
                                                       const Piece& piece, int row, int key,
                                                       bool full, float scale,
                                                       [[maybe_unused]] const i32* pages,
                                                       const Params& params) {
  constexpr int kKeys = kKeyTiles * 16;
  if (Config::Score::kIdentity && Config::Mask::kIsInterval && kHasOnePage && full) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const PackedRow at =
          RowAt<Config>(piece.problem, piece.first_row, row + tile * 8 + lane % 4 * 2 + c);
      Problem problem = piece.problem;
      problem.h = at.h;
      const KeyInterval keys = Config::Mask::RowKeys(problem, at.i, params);
      const int begin = static_cast<int>(Max(0, Min(keys.begin - key, kKeys)));
      const int end = at.inside ? static_cast<int>(Max(0, Min(keys.end - key, kKeys))) : 0;
#pragma unroll
      for (int n = 0; n < 2 * kKeyTiles; ++n) {
        const int offset = n * 8 + lane / 4;
        bool keep = offset >= begin && offset < end;
        if constexpr (!kHasOnePage) keep = keep && pages[offset] >= 0;
        if constexpr (!Config::Mask::kIsInterval) {
          keep = keep && Config::Mask::Keep(problem, at.i, key + offset, params);
        }
        float& score = s[n / 2][tile][n % 2 * 2 + c];
        if constexpr (Config::Score::kIdentity) {
          score = keep ? score : -Infinity();
        } else {
          score = keep ? Config::Score::Apply(score * scale, problem, at.i, key + offset, params)
                       : -Infinity();
        }
      }
    }
  }
}

// Over the eight lanes that have the same rows.
__device__ __forceinline__ float ColumnMax(float value) {
#pragma unroll
  for (int distance = 4; distance < 32; distance *= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}
__device__ __forceinline__ float ColumnSum(float value) {
#pragma unroll
  for (int distance = 4; distance < 32; distance *= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

// The online softmax of a warp's rows: weights are 2^(score - reference), and the reference is the
// highest score so far, so that the highest weight is 1, whose operand is exact.
template <int kRowTiles>
struct ColumnSoftmax {
  float reference[kRowTiles][2];  // log2 units
  float sum[kRowTiles][2];        // this lane's keys only, until the end
};

template <int kRowTiles>
__device__ __forceinline__ void StartSoftmax(ColumnSoftmax<kRowTiles>& softmax) {
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      softmax.reference[tile][c] = kNoReference;
      softmax.sum[tile][c] = 0;
    }
  }
}

// Multiplies O^T's column c of row tile `tile`.
template <int kVTiles, int kRowTiles>
__device__ __forceinline__ void ScaleColumn(float (&o)[kVTiles][kRowTiles][4], int tile, int c,
                                            float factor) {
#pragma unroll
  for (int n = 0; n < kVTiles; ++n) {
    o[n][tile][c] *= factor;
    o[n][tile][2 + c] *= factor;
  }
}

// Moves the references of rows that have a higher score (times `to_log2`: log2 units) and calls
// scale_o(tile, c, factor) for them.
template <int kKeyTiles, int kRowTiles, class ScaleO>
__device__ __forceinline__ void MoveReferences(const float (&s)[kKeyTiles][kRowTiles][4],
                                               ColumnSoftmax<kRowTiles>& softmax, float to_log2,
                                               const ScaleO& scale_o) {
  float highest[kRowTiles][2];
  bool moves = false;
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float top = fmaxf(s[0][tile][c], s[0][tile][2 + c]);
#pragma unroll
      for (int key = 1; key < kKeyTiles; ++key) {
        top = fmaxf(top, fmaxf(s[key][tile][c], s[key][tile][2 + c]));
      }
      highest[tile][c] = top * to_log2;
      moves |= highest[tile][c] > softmax.reference[tile][c];
    }
  }
  if (!__any_sync(kAllLanes, moves)) return;
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float before = softmax.reference[tile][c];
      const float after = fmaxf(before, ColumnMax(highest[tile][c]));
      const float factor = before == after ? 1.f : ptx::ex2_approx_ftz(before - after);
      softmax.reference[tile][c] = after;
      softmax.sum[tile][c] *= factor;
      scale_o(tile, c, factor);
    }
  }
}

// Turns scores into weights and adds them to the sums.
template <int kKeyTiles, int kRowTiles>
__device__ __forceinline__ void ColumnWeights(float (&s)[kKeyTiles][kRowTiles][4],
                                              ColumnSoftmax<kRowTiles>& softmax, float to_log2) {
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int n = 0; n < 4 * kKeyTiles; ++n) {
      float& w = s[n / 4][tile][n % 4];
      w = ptx::ex2_approx_ftz(fmaf(w, to_log2, -softmax.reference[tile][n % 2]));
      softmax.sum[tile][n % 2] += w;
    }
  }
}

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_PACKED_COLUMNS_CUH_
