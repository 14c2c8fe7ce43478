// Reductions over the 32 lanes of a warp; every lane gets the result.
#ifndef TILEWRIGHT_CORE_WARP_REDUCE_CUH_
#define TILEWRIGHT_CORE_WARP_REDUCE_CUH_

#include "core/types.cuh"

namespace tilewright {

inline constexpr u32 kAllLanes = 0xffffffffu;

// NaN is ignored unless all lanes hold it.
__device__ __forceinline__ float WarpMax(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

__device__ __forceinline__ float WarpSum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

}  // namespace tilewright

#endif  // TILEWRIGHT_CORE_WARP_REDUCE_CUH_
