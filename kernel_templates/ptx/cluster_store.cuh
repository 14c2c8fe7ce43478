// Stores to the shared memory of another block of the cluster (sm_90 and later).
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st
#ifndef TILEWRIGHT_PTX_CLUSTER_STORE_CUH_
#define TILEWRIGHT_PTX_CLUSTER_STORE_CUH_

#include "core/types.cuh"

namespace tilewright {
namespace ptx {

// `cluster_address` comes from mapa (ptx/cluster.cuh); that of four is a multiple of 16.
__device__ __forceinline__ void st_cluster_f32(u32 cluster_address, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(cluster_address), "f"(value) : "memory");
}
__device__ __forceinline__ void st_cluster_v4_f32(u32 cluster_address, const float (&value)[4]) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(cluster_address),
               "f"(value[0]), "f"(value[1]), "f"(value[2]), "f"(value[3])
               : "memory");
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_CLUSTER_STORE_CUH_
