// Bulk copies into the shared memory of another block of the cluster, and arrivals there that keep
// behind reads (sm_90 and later).
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk
#ifndef TILEWRIGHT_PTX_CLUSTER_COPY_CUH_
#define TILEWRIGHT_PTX_CLUSTER_COPY_CUH_

#include "core/types.cuh"

namespace tilewright {
namespace ptx {

// Copies `bytes` from `source` of this block. `cluster_destination` and `cluster_barrier`, at which
// the bytes are counted, come from mapa (ptx/cluster.cuh) and lie in one block. Addresses of data
// and `bytes` are multiples of 16.
__device__ __forceinline__ void cp_async_bulk_to_cluster(u32 cluster_destination, u32 source,
                                                         u32 bytes, u32 cluster_barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(cluster_destination),
      "r"(source), "r"(bytes), "r"(cluster_barrier)
      : "memory");
}

// ptx/mbarrier.cuh's mbarrier_arrive_cluster once `value` is in its register: see
// ptx/mbarrier_behind.cuh.
__device__ __forceinline__ void mbarrier_arrive_cluster_behind(u32 cluster_address, u32 value) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.eq.u32 p, %1, 0;\n"
      "@p mbarrier.arrive.shared::cluster.b64 _, [%0];\n"
      "@!p mbarrier.arrive.shared::cluster.b64 _, [%0];\n"
      "}" ::"r"(cluster_address),
      "r"(value)
      : "memory");
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_CLUSTER_COPY_CUH_
