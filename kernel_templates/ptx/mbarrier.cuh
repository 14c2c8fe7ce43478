// mbarrier: barriers in shared memory that threads and bulk copies arrive at (sm_90 and later).
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier
//
// `barrier` is the address of 8 bytes in the shared window. A phase ends when the arrivals it was
// made for have come and the bytes it expects have been written; phases are told apart by parity.
#ifndef TILEWRIGHT_PTX_MBARRIER_CUH_
#define TILEWRIGHT_PTX_MBARRIER_CUH_

#include "core/types.cuh"

namespace tilewright {
namespace ptx {

__device__ __forceinline__ void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to bulk copies and to the other blocks of the cluster, which
// still have to be synchronised with.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and lets the phase wait for `bytes` more of bulk copies.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Arrives at a barrier of any block of the cluster (ptx/cluster.cuh, mapa). Without a qualifier:
// `.release.cluster` compiles to a memory barrier that costs 20 to 57 % of an attention kernel's
// cycles (H200, 2026-11-29), and a slot that has only been read hands over no data.
__device__ __forceinline__ void mbarrier_arrive_cluster(u32 cluster_address) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_address) : "memory");
}

// Whether the phase of this parity has ended; waits a while for it, from sm_90 on.
__device__ __forceinline__ bool mbarrier_try_wait_parity(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
#if __CUDA_ARCH__ >= 900
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
#else
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
#endif
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_MBARRIER_CUH_
