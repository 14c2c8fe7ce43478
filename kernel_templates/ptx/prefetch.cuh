// Requests to L2 for what will be read from global memory soon.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-prefetch-prefetchu
#ifndef TILEWRIGHT_PTX_PREFETCH_CUH_
#define TILEWRIGHT_PTX_PREFETCH_CUH_

namespace tilewright {
namespace ptx {

// What prefetch_global_l2 asks for.
inline constexpr int kL2LineBytes = 128;

// The line that the address lies in.
__device__ __forceinline__ void prefetch_global_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(__cvta_generic_to_global(address)) : "memory");
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_PREFETCH_CUH_
