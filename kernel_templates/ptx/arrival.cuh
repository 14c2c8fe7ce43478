// A counter in global memory by which blocks tell one another what they have written.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-atom
#ifndef TILEWRIGHT_PTX_ARRIVAL_CUH_
#define TILEWRIGHT_PTX_ARRIVAL_CUH_

#include "core/types.cuh"

namespace tilewright {
namespace ptx {

// Returns the count before. What this thread wrote before, and what it knows others to have
// written, is visible to whoever adds later; what those before it had written, to this thread.
__device__ __forceinline__ u64 atom_acq_rel_gpu_add_u64(u64* at, u64 value) {
  u64 before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;\n"
               : "=l"(before)
               : "l"(at), "l"(value)
               : "memory");
  return before;
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_ARRIVAL_CUH_
