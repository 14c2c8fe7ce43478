// kernel_templates/ptx/named_barrier.cuh on the host.
#ifndef TILEWRIGHT_PTX_NAMED_BARRIER_CUH_
#define TILEWRIGHT_PTX_NAMED_BARRIER_CUH_

namespace cuda_on_host {

void MeetAtNamedBarrier(int barrier, int threads, bool arrive_only);
// Whether one of the threads that wait there votes for it.
bool VoteAtNamedBarrier(int barrier, int threads, bool vote);

}  // namespace cuda_on_host

namespace tilewright {
namespace ptx {

inline void bar_sync(int barrier, int threads) {
  cuda_on_host::MeetAtNamedBarrier(barrier, threads, false);
}

inline void bar_arrive(int barrier, int threads) {
  cuda_on_host::MeetAtNamedBarrier(barrier, threads, true);
}

inline bool bar_red_or(int barrier, int threads, bool value) {
  return cuda_on_host::VoteAtNamedBarrier(barrier, threads, value);
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_NAMED_BARRIER_CUH_
