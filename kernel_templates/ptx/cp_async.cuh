// cp.async: copies from global to shared memory that bypass registers (sm_80 and later).
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async
#ifndef TILEWRIGHT_PTX_CP_ASYNC_CUH_
#define TILEWRIGHT_PTX_CP_ASYNC_CUH_

namespace tilewright {
namespace ptx {

// Address of shared memory in the 32-bit window that the instructions below take.
__device__ __forceinline__ unsigned SharedAddress(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes past L1; bytes from `source_bytes` on are written as zeros. Both addresses are
// multiples of 16. The memory clobber keeps ordinary reads of the destination behind the wait that
// follows.
__device__ __forceinline__ void cp_async_cg_16(unsigned destination, const void* source,
                                               int source_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(destination), "l"(source),
               "r"(source_bytes)
               : "memory");
}

// As above for 4 or 8 bytes, through L1.
template <int kBytes>
__device__ __forceinline__ void cp_async_ca(unsigned destination, const void* source,
                                            int source_bytes) {
  static_assert(kBytes == 4 || kBytes == 8, "cp.async.ca copies 4, 8 or 16 bytes");
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(destination), "l"(source),
               "n"(kBytes), "r"(source_bytes)
               : "memory");
}

__device__ __forceinline__ void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}

// Waits until at most kPending of this thread's groups are unfinished.
template <int kPending>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// Arrives at an mbarrier once all copies that this thread has started have landed. Counts as one of
// the arrivals that the barrier expects.
__device__ __forceinline__ void cp_async_mbarrier_arrive(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];\n" ::"r"(barrier) : "memory");
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_CP_ASYNC_CUH_
