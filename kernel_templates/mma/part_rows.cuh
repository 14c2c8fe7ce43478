// The rows of a part of the keys (policy/parts.cuh) from the m16n8 accumulators of a warp.
#ifndef TILEWRIGHT_MMA_PART_ROWS_CUH_
#define TILEWRIGHT_MMA_PART_ROWS_CUH_

#include "mma/exact_lse.cuh"
#include "mma/score_tile.cuh"
#include "policy/parts.cuh"

namespace tilewright {

// Writes the first kVTiles tiles of O, divided by `sums`, fp32, and the part's LSE; of a row that
// saw no key the LSE only. `row_begin` is the warp's first row; columns lie `shift` further on in
// O. The part's keys are `keys`.
template <class Config, class Ops, int kVTiles, int kCuts, int kMTiles, int kAllTiles, class Params>
__device__ __forceinline__ void StorePartRows(const float (&o)[kMTiles][kAllTiles][4],
                                              const float (&sums)[kMTiles][2],
                                              const SoftmaxState<kMTiles>& softmax,
                                              const Problem& problem, i64 row_begin, i64 part,
                                              const KeyInterval& keys, const Params& params,
                                              int shift = 0) {
  float lse[kMTiles][2];
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      lse[m][r] = FinishRow(softmax.reference[m][r], QuadSum(softmax.sum[m][r]), -Infinity()).lse;
    }
  }
  MendLse<Config, Ops, kCuts>(lse, problem, row_begin, keys, -Infinity(), params);
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float reference = softmax.reference[m][r];
      const SoftmaxEnd end = FinishRow(reference, sums[m][r], -Infinity());
      const i64 i = row_begin + RowOf(m, 2 * r);
      if (i >= problem.seqlen_q) continue;
      const PartRow row = PartRowAt(problem, i, part, params.parts);
      if (threadIdx.x % 4 == 0) *row.lse = lse[m][r];
      if (end.empty) continue;
#pragma unroll
      for (int n = 0; n < kVTiles; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int column = ColumnOf(n, c) - shift;
          if (column >= 0 && column < Config::kHeadDimV)
            row.o[column] = o[m][n][2 * r + c] * end.o_scale * Config::Dropout::Scale(params);
        }
      }
    }
  }
}

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_PART_ROWS_CUH_
