// stmatrix: a warp writes 8x8 matrices of 16-bit elements from the layout of matrix accumulators
// (sm_90 and later). Lanes 8i to 8i + 7 give the addresses of the rows of matrix i.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-stmatrix
#ifndef TILEWRIGHT_PTX_STMATRIX_CUH_
#define TILEWRIGHT_PTX_STMATRIX_CUH_

#include "core/types.cuh"

namespace tilewright {
namespace ptx {

__device__ __forceinline__ void stmatrix_x4(u32 address, u32 m0, u32 m1, u32 m2, u32 m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(m0), "r"(m1), "r"(m2), "r"(m3)
               : "memory");
}

__device__ __forceinline__ void stmatrix_x2(u32 address, u32 m0, u32 m1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(m0),
               "r"(m1)
               : "memory");
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_STMATRIX_CUH_
