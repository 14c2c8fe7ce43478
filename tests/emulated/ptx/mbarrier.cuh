// kernel_templates/ptx/mbarrier.cuh on the host.
#ifndef TILEWRIGHT_PTX_MBARRIER_CUH_
#define TILEWRIGHT_PTX_MBARRIER_CUH_

#include "core/types.cuh"

namespace cuda_on_host {

void InitBarrier(unsigned barrier, unsigned arrivals);
void FenceBarrierInit();
void ArriveAtBarrier(unsigned barrier);
void ArriveExpectingBytes(unsigned barrier, unsigned bytes);
// Returns when the phase of this parity has ended: at once, or after others have run.
void WaitForBarrier(unsigned barrier, unsigned parity);

}  // namespace cuda_on_host

namespace tilewright {
namespace ptx {

inline void mbarrier_init(u32 barrier, u32 arrivals) {
  cuda_on_host::InitBarrier(barrier, arrivals);
}
inline void fence_mbarrier_init() { cuda_on_host::FenceBarrierInit(); }
inline void mbarrier_arrive(u32 barrier) { cuda_on_host::ArriveAtBarrier(barrier); }
inline void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
  cuda_on_host::ArriveExpectingBytes(barrier, bytes);
}
inline void mbarrier_arrive_cluster(u32 cluster_address) {
  cuda_on_host::ArriveAtBarrier(cluster_address);
}
inline bool mbarrier_try_wait_parity(u32 barrier, u32 parity) {
  cuda_on_host::WaitForBarrier(barrier, parity);
  return true;
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_MBARRIER_CUH_
