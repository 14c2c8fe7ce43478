// Barriers of a block, 16 of them, for some of its warps; number 0 is that of __syncthreads.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar
//
// `threads` counts those that wait and those that only arrive; a multiple of 32.
#ifndef TILEWRIGHT_PTX_NAMED_BARRIER_CUH_
#define TILEWRIGHT_PTX_NAMED_BARRIER_CUH_

#include "core/types.cuh"

namespace tilewright {
namespace ptx {

__device__ __forceinline__ void bar_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void bar_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Whether `value` is set in any of the threads.
__device__ __forceinline__ bool bar_red_or(int barrier, int threads, bool value) {
  u32 any;
  asm volatile(
      "{\n"
      ".reg .pred p, q;\n"
      "setp.ne.u32 p, %3, 0;\n"
      "bar.red.or.pred q, %1, %2, p;\n"
      "selp.u32 %0, 1, 0, q;\n"
      "}"
      : "=r"(any)
      : "r"(barrier), "r"(threads), "r"(static_cast<u32>(value))
      : "memory");
  return any != 0;
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_NAMED_BARRIER_CUH_
