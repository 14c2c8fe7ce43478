// kernel_templates/ptx/cluster.cuh on the host.
#ifndef TILEWRIGHT_PTX_CLUSTER_CUH_
#define TILEWRIGHT_PTX_CLUSTER_CUH_

#include "core/types.cuh"

namespace cuda_on_host {

unsigned RankInCluster();
unsigned AddressInCluster(unsigned address, unsigned rank);
void ArriveAtCluster();
void WaitForCluster();
void ReduceInCluster(unsigned cluster_address, int value, bool largest);

}  // namespace cuda_on_host

namespace tilewright {
namespace ptx {

inline u32 cluster_ctarank() { return cuda_on_host::RankInCluster(); }
inline u32 mapa(u32 address, u32 rank) { return cuda_on_host::AddressInCluster(address, rank); }
inline void barrier_cluster_arrive() { cuda_on_host::ArriveAtCluster(); }
inline void barrier_cluster_wait() { cuda_on_host::WaitForCluster(); }
inline void red_min_cluster(u32 cluster_address, int value) {
  cuda_on_host::ReduceInCluster(cluster_address, value, false);
}
inline void red_max_cluster(u32 cluster_address, int value) {
  cuda_on_host::ReduceInCluster(cluster_address, value, true);
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_CLUSTER_CUH_
