// Barriers of a block, 16 of them, for some of its warps; number 0 is that of __syncthreads.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar
//
// `threads` counts those that wait and those that only arrive; a multiple of 32.
#ifndef TILEWRIGHT_PTX_NAMED_BARRIER_CUH_
#define TILEWRIGHT_PTX_NAMED_BARRIER_CUH_

namespace tilewright {
namespace ptx {

__device__ __forceinline__ void bar_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void bar_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_NAMED_BARRIER_CUH_
