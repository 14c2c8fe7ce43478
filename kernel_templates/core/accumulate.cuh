// Adding to a float that other threads add to.
#ifndef TILEWRIGHT_CORE_ACCUMULATE_CUH_
#define TILEWRIGHT_CORE_ACCUMULATE_CUH_

#include "core/types.cuh"

namespace tilewright {

// On the host there are no other threads.
TILEWRIGHT_HOST_DEVICE void Accumulate(float* at, float value) {
#ifdef __CUDACC__
  atomicAdd(at, value);
#else
  *at += value;
#endif
}

}  // namespace tilewright

#endif  // TILEWRIGHT_CORE_ACCUMULATE_CUH_
