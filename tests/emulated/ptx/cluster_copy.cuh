// kernel_templates/ptx/cluster_copy.cuh on the host.
#ifndef TILEWRIGHT_PTX_CLUSTER_COPY_CUH_
#define TILEWRIGHT_PTX_CLUSTER_COPY_CUH_

#include "core/types.cuh"
#include "emulator/bulk_copy.h"
#include "ptx/mbarrier.cuh"

namespace tilewright {
namespace ptx {

inline void cp_async_bulk_to_cluster(u32 cluster_destination, u32 source, u32 bytes,
                                     u32 cluster_barrier) {
  cuda_on_host::StartClusterCopy(cluster_destination, source, bytes, cluster_barrier);
}
inline void mbarrier_arrive_cluster_behind(u32 cluster_address, u32) {
  mbarrier_arrive_cluster(cluster_address);
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_CLUSTER_COPY_CUH_
