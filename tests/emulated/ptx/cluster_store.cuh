// kernel_templates/ptx/cluster_store.cuh on the host.
#ifndef TILEWRIGHT_PTX_CLUSTER_STORE_CUH_
#define TILEWRIGHT_PTX_CLUSTER_STORE_CUH_

#include "core/types.cuh"

namespace cuda_on_host {

// `count` floats, at a multiple of their size together.
void StoreInCluster(unsigned cluster_address, const float* values, int count);

}  // namespace cuda_on_host

namespace tilewright {
namespace ptx {

inline void st_cluster_f32(u32 cluster_address, float value) {
  cuda_on_host::StoreInCluster(cluster_address, &value, 1);
}
inline void st_cluster_v4_f32(u32 cluster_address, const float (&value)[4]) {
  cuda_on_host::StoreInCluster(cluster_address, value, 4);
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_CLUSTER_STORE_CUH_
