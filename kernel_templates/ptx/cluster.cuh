// Thread block clusters: blocks that run together and reach each other's shared memory (sm_90 and
// later).
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-barrier-cluster
#ifndef TILEWRIGHT_PTX_CLUSTER_CUH_
#define TILEWRIGHT_PTX_CLUSTER_CUH_

#include "core/types.cuh"

namespace tilewright {
namespace ptx {

__device__ __forceinline__ u32 cluster_ctarank() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The address, in the cluster's window, of what lies at `address` of this block in block `rank`.
__device__ __forceinline__ u32 mapa(u32 address, u32 rank) {
  u32 mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

__device__ __forceinline__ void barrier_cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void barrier_cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ void red_min_cluster(u32 cluster_address, int value) {
  asm volatile("red.relaxed.cluster.shared::cluster.min.s32 [%0], %1;" ::"r"(cluster_address),
               "r"(value)
               : "memory");
}

__device__ __forceinline__ void red_max_cluster(u32 cluster_address, int value) {
  asm volatile("red.relaxed.cluster.shared::cluster.max.s32 [%0], %1;" ::"r"(cluster_address),
               "r"(value)
               : "memory");
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_CLUSTER_CUH_
