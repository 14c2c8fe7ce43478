// kernel_templates/ptx/mbarrier_behind.cuh on the host.
#ifndef TILEWRIGHT_PTX_MBARRIER_BEHIND_CUH_
#define TILEWRIGHT_PTX_MBARRIER_BEHIND_CUH_

#include "ptx/mbarrier.cuh"

namespace tilewright {
namespace ptx {

inline void mbarrier_arrive_behind(u32 barrier, u32) { mbarrier_arrive(barrier); }

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_MBARRIER_BEHIND_CUH_
