// Rows of queries that share a key/value head, packed into one tile (policy/decode_work.cuh), as
// the operands and accumulators of mma.sync.
#ifndef TILEWRIGHT_MMA_PACKED_ROWS_CUH_
#define TILEWRIGHT_MMA_PACKED_ROWS_CUH_

#include "abi/attn_fwd_params.h"
#include "core/math.cuh"
#include "core/problem.cuh"
#include "mma/score_tile.cuh"
#include "policy/decode_work.cuh"

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

// The fragments of rows [row, row + 16) of the piece's tile. kQuads: the columns of a step are
// dealt to the lanes four by four, not two and two.
template <class Config, bool kQuads, int kSteps, class Params>
__device__ __forceinline__ void LoadPackedQueries(u32 (&q)[kSteps][4], const Piece& piece, int row,
                                                  const Params& params) {
  using Element = typename Config::Element;
  const abi::TensorStrides& strides = params.core.q_strides;
  const bool wide = reinterpret_cast<u64>(params.core.q) % 4 == 0 &&
                    (strides.batch | strides.seq | strides.head) % 2 == 0;
  const int quad = static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const PackedRow at = RowAt<Config>(piece.problem, piece.first_row, row + RowOf(0, 2 * r));
    const Element* source = static_cast<const Element*>(params.core.q) +
                            piece.problem.q_batch * strides.batch + at.h * strides.head +
                            (piece.problem.q_row + at.i) * strides.seq;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int column = step * 16 + (kQuads ? 4 : 2) * quad;
      q[step][r] = QueryPair<Config::kHeadDimQk>(source, column, at.inside, wide);
      q[step][r + 2] =
          QueryPair<Config::kHeadDimQk>(source, column + (kQuads ? 2 : 8), at.inside, wide);
    }
  }
}

// Score policies and masks on the products of rows [row, row + 16) with keys from `key` on. Scores
// that are not kept become -inf and are not looked at. `full`: every row sees all of these keys;
// `scale` turns products into scores; `pages`: where the keys' pages are, unless they have only
// one.
template <class Config, bool kHasOnePage, int kNTiles, class Params>
__device__ __forceinline__ void ApplyPackedPolicies(float (&s)[kNTiles][4], const Piece& piece,
                                                    int row, int key, bool full, float scale,
                                                    [[maybe_unused]] const i32* pages,
                                                    const Params& params) {
  constexpr int kColumns = kNTiles * 8;
  if (Config::Score::kIdentity && Config::Mask::kIsInterval && kHasOnePage && full) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const PackedRow at = RowAt<Config>(piece.problem, piece.first_row, row + RowOf(0, 2 * r));
    Problem problem = piece.problem;
    problem.h = at.h;
    const KeyInterval keys = Config::Mask::RowKeys(problem, at.i, params);
    const int begin = static_cast<int>(Max(0, Min(keys.begin - key, kColumns)));
    const int end = at.inside ? static_cast<int>(Max(0, Min(keys.end - key, kColumns))) : 0;
#pragma unroll
    for (int tile = 0; tile < kNTiles; ++tile) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = ColumnOf(tile, c);
        bool keep = column >= begin && column < end;
        if constexpr (!kHasOnePage) keep = keep && pages[column] >= 0;
        if constexpr (!Config::Mask::kIsInterval) {
          keep = keep && Config::Mask::Keep(problem, at.i, key + column, params);
        }
        float& score = s[tile][2 * r + c];
        if constexpr (Config::Score::kIdentity) {
          score = keep ? score : -Infinity();
        } else {
          score = keep ? Config::Score::Apply(score * scale, problem, at.i, key + column, params)
                       : -Infinity();
        }
      }
    }
  }
}

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_PACKED_ROWS_CUH_
