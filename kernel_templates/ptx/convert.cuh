// cvt between element types and fp32, one instruction each, with the architectures that have it.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt
#ifndef TILEWRIGHT_PTX_CONVERT_CUH_
#define TILEWRIGHT_PTX_CONVERT_CUH_

#include "core/types.cuh"

// nvcc's host pass has no __CUDA_ARCH__; it only parses these functions.
#ifdef __CUDA_ARCH__
#define TILEWRIGHT_PTX_ARCH __CUDA_ARCH__
#else
#define TILEWRIGHT_PTX_ARCH 0
#endif

namespace tilewright {
namespace ptx {

inline constexpr bool kHasCvtBf16 = TILEWRIGHT_PTX_ARCH >= 800;
inline constexpr bool kHasCvtFp8 = TILEWRIGHT_PTX_ARCH >= 890;

__device__ __forceinline__ float cvt_f32_f16(u16 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

__device__ __forceinline__ u16 cvt_rn_f16_f32(float value) {
  u16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// Needs kHasCvtBf16.
__device__ __forceinline__ u16 cvt_rn_bf16_f32(float value) {
  u16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// Two elements, the first in the low half. Needs kHasCvtFp8.
__device__ __forceinline__ u32 cvt_rn_f16x2_e4m3x2(u16 bits) {
  u32 halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(bits));
  return halves;
}
// The upper or the lower two of four.
template <bool kUpper>
__device__ __forceinline__ u32 cvt_rn_f16x2_e4m3x2(u32 four) {
  u32 halves;
  if constexpr (kUpper) {
    asm("{\n.reg .b16 lower, upper;\nmov.b32 {lower, upper}, %1;\n"
        "cvt.rn.f16x2.e4m3x2 %0, upper;\n}"
        : "=r"(halves)
        : "r"(four));
  } else {
    asm("{\n.reg .b16 lower, upper;\nmov.b32 {lower, upper}, %1;\n"
        "cvt.rn.f16x2.e4m3x2 %0, lower;\n}"
        : "=r"(halves)
        : "r"(four));
  }
  return halves;
}

// a - b of two halves each.
__device__ __forceinline__ u32 sub_f16x2(u32 a, u32 b) {
  u32 difference;
  asm("sub.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
  return difference;
}

// `high` goes to the upper byte. Needs kHasCvtFp8.
__device__ __forceinline__ u16 cvt_rn_satfinite_e4m3x2_f32(float high, float low) {
  u16 bits;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
  return bits;
}
__device__ __forceinline__ u16 cvt_rn_satfinite_e5m2x2_f32(float high, float low) {
  u16 bits;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
  return bits;
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_CONVERT_CUH_
