// What surrounds wgmma.mma_async, the product of a warpgroup (sm_90a). The products themselves are
// emitted for the shapes of a plan: src/emit/wgmma_wrapper.h.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions
//
// Thread t of the warpgroup with w = t / 32, r = t % 32 / 4, q = t % 4 holds of a 64 x N
// accumulator d[4j + 2i + c] = (row 16w + r + 8i, column 8j + 2q + c). A 64 x 16 operand in
// registers has the same layout, two elements a register: the packed accumulators 8k to 8k + 7 are
// the operand of step k.
#ifndef TILEWRIGHT_PTX_WGMMA_CUH_
#define TILEWRIGHT_PTX_WGMMA_CUH_

#include "core/types.cuh"

namespace tilewright {
namespace ptx {

// Orders earlier accesses to registers and shared memory before the products that follow.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kPending groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// No instruction: the compiler must not move what reads these registers above this point. It does
// not know that a wait is what makes accumulators valid.
template <int kCount>
__device__ __forceinline__ void AccumulatorsReady(float (&registers)[kCount]) {
#pragma unroll
  for (int n = 0; n < kCount; ++n) asm volatile("" : "+f"(registers[n])::"memory");
}

// Descriptor of a tile with rows of 128 bytes under the 128-byte swizzle, eight rows 1024 bytes
// apart. `address` is a multiple of 1024; `leading_bytes` separates panels of 64 columns where the
// columns are the M or N dimension, and is ignored where they are K. Adding bytes / 16 moves it.
__device__ __forceinline__ u64 SwizzledDescriptor(u32 address, u32 leading_bytes) {
  constexpr u64 kEightRows = 1024 >> 4;
  constexpr u64 kSwizzle128 = 1;
  return static_cast<u64>((address & 0x3ffff) >> 4) | static_cast<u64>(leading_bytes >> 4) << 16 |
         kEightRows << 32 | kSwizzle128 << 62;
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_WGMMA_CUH_
