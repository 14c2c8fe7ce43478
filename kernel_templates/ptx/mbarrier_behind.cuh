// Arrivals at an mbarrier that keep behind reads of shared memory (sm_90 and later).
#ifndef TILEWRIGHT_PTX_MBARRIER_BEHIND_CUH_
#define TILEWRIGHT_PTX_MBARRIER_BEHIND_CUH_

#include "core/types.cuh"

namespace tilewright {
namespace ptx {

// Arrives once `value` is in its register. ldmatrix and arrivals pass through different units:
// where warpgroup products keep shared memory busy, a bulk copy that waited for the arrival
// overtook the read it was to wait for (H200, 2026-11-30). One of two arrivals is made, and which
// one hangs on the value.
__device__ __forceinline__ void mbarrier_arrive_behind(u32 barrier, u32 value) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.eq.u32 p, %1, 0;\n"
      "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n"
      "@!p mbarrier.arrive.shared::cta.b64 _, [%0];\n"
      "}" ::"r"(barrier),
      "r"(value)
      : "memory");
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_MBARRIER_BEHIND_CUH_
