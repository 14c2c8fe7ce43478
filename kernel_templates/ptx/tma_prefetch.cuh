// Bulk tensor copies to L2 alone (sm_90 and later).
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-prefetch-tensor
#ifndef TILEWRIGHT_PTX_TMA_PREFETCH_CUH_
#define TILEWRIGHT_PTX_TMA_PREFETCH_CUH_

namespace tilewright {
namespace ptx {

// The box that a load from these coordinates would copy.
__device__ __forceinline__ void cp_async_bulk_prefetch_tensor_4d(const void* map, int x, int y,
                                                                 int z, int w) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(map),
               "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_TMA_PREFETCH_CUH_
