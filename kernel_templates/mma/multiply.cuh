// Products of two tiles in shared memory on mma.sync, the sum in a warp's registers. Each operand
// may lie with its sum index along the rows of shared memory (kAlongRow) or across them.
#ifndef TILEWRIGHT_MMA_MULTIPLY_CUH_
#define TILEWRIGHT_MMA_MULTIPLY_CUH_

#include "core/types.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma_sync.cuh"

namespace tilewright {

// Where the index that is summed over runs in shared memory.
enum class SumIndex { kAlongRow, kAcrossRows };

// The address that this lane hands to ldmatrix for a factor whose first element is
// tile[row][column].
template <SumIndex kSum, class Element, int kRows, int kPitch>
__device__ __forceinline__ u32 LeftAddress(const Element (&tile)[kRows][kPitch], int row,
                                           int column) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if constexpr (kSum == SumIndex::kAlongRow) {
    return ptx::SharedAddress(&tile[row + lane % 16][column + lane / 16 * 8]);
  } else {
    return ptx::SharedAddress(&tile[row + lane % 8 + lane / 16 * 8][column + lane / 8 % 2 * 8]);
  }
}
template <SumIndex kSum, class Element, int kRows, int kPitch>
__device__ __forceinline__ u32 RightAddress(const Element (&tile)[kRows][kPitch], int row,
                                            int column) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if constexpr (kSum == SumIndex::kAlongRow) {
    return ptx::SharedAddress(&tile[row + lane % 8 + lane / 16 * 8][column + lane / 8 % 2 * 8]);
  } else {
    return ptx::SharedAddress(&tile[row + lane % 16][column + lane / 16 * 8]);
  }
}

// sum[m][n] += left * right over kSteps * 16 values of the sum index. sum[m][n] is an m16n8 tile.
// The pitches are those of the tiles, in elements of 2 bytes.
template <class Element, SumIndex kLeft, SumIndex kRight, int kSteps, int kPitchLeft,
          int kPitchRight, int kMTiles, int kNTiles>
__device__ __forceinline__ void Multiply(float (&sum)[kMTiles][kNTiles][4], u32 left, u32 right) {
  constexpr int kMBytes = kLeft == SumIndex::kAlongRow ? 16 * kPitchLeft * 2 : 32;
  constexpr int kLeftStep = kLeft == SumIndex::kAlongRow ? 32 : 16 * kPitchLeft * 2;
  constexpr int kNBytes = kRight == SumIndex::kAlongRow ? 8 * kPitchRight * 2 : 16;
  constexpr int kRightStep = kRight == SumIndex::kAlongRow ? 32 : 16 * kPitchRight * 2;
// All of a few steps at once; of many, only so many that operands loaded ahead fit the registers.
#pragma unroll(kSteps <= 8 ? kSteps : 4)
  for (int step = 0; step < kSteps; ++step) {
    u32 a[kMTiles][4];
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      if constexpr (kLeft == SumIndex::kAlongRow) {
        ptx::ldmatrix_x4(a[m], left + m * kMBytes + step * kLeftStep);
      } else {
        ptx::ldmatrix_x4_trans(a[m], left + m * kMBytes + step * kLeftStep);
      }
    }
#pragma unroll
    for (int n = 0; n + 1 < kNTiles; n += 2) {
      u32 b[4];
      if constexpr (kRight == SumIndex::kAlongRow) {
        ptx::ldmatrix_x4(b, right + n * kNBytes + step * kRightStep);
      } else {
        ptx::ldmatrix_x4_trans(b, right + n * kNBytes + step * kRightStep);
      }
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
        ptx::mma_m16n8k16(sum[m][n], a[m], b[0], b[1], Element{});
        ptx::mma_m16n8k16(sum[m][n + 1], a[m], b[2], b[3], Element{});
      }
    }
    if constexpr (kNTiles % 2 == 1) {
      u32 b[2];
      if constexpr (kRight == SumIndex::kAlongRow) {
        ptx::ldmatrix_x2(b, right + (kNTiles - 1) * kNBytes + step * kRightStep);
      } else {
        ptx::ldmatrix_x2_trans(b, right + (kNTiles - 1) * kNBytes + step * kRightStep);
      }
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
        ptx::mma_m16n8k16(sum[m][kNTiles - 1], a[m], b[0], b[1], Element{});
      }
    }
  }
}

template <int kMTiles, int kNTiles>
__device__ __forceinline__ void Clear(float (&sum)[kMTiles][kNTiles][4]) {
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) sum[m][n][c] = 0;
    }
  }
}

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_MULTIPLY_CUH_
