// Approximate special functions, each named where it is used; there is no --use_fast_math.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-ex2
#ifndef TILEWRIGHT_PTX_SPECIAL_CUH_
#define TILEWRIGHT_PTX_SPECIAL_CUH_

#include "core/types.cuh"

namespace tilewright {
namespace ptx {

// 2^x with a relative error below 2^-22; subnormal results become 0. One instruction of the special
// function unit.
__device__ __forceinline__ float ex2_approx_ftz(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// `value`, of which the compiler knows nothing: what is computed from it is computed where it
// stands.
__device__ __forceinline__ i64 Opaque(i64 value) {
  asm volatile("" : "+l"(value));
  return value;
}

// 1 / x with an error of at most 1 ulp; subnormal operands and results become 0.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-rcp
__device__ __forceinline__ float rcp_approx_ftz(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log2(x) to 2^-22 absolute near 1 and relative elsewhere; 0 gives -inf.
__device__ __forceinline__ float lg2_approx_ftz(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_SPECIAL_CUH_
