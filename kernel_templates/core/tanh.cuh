// tanh of many values at fp32's accuracy, without a branch for each.
#ifndef TILEWRIGHT_CORE_TANH_CUH_
#define TILEWRIGHT_CORE_TANH_CUH_

#include "core/math.cuh"
#ifdef __CUDACC__
#include "ptx/special.cuh"
#endif

namespace tilewright {

// tanh(x / 4) for |x| <= 2: an odd polynomial, interpolated at the Chebyshev nodes of the squares;
// relative error 1.1e-7 in fp32.
TILEWRIGHT_HOST_DEVICE float TanhOfQuarter(float x) {
  const float square = x * x;
  float value = 0.01713134443f / 262144;
  value = value * square - 0.05298423883f / 16384;
  value = value * square + 0.133247505f / 1024;
  value = value * square - 0.3333306794f / 64;
  value = value * square + 0.9999999868f / 4;
  return x * value;
}

// x = tanh(x * factor) for all of a thread's values; the warp converges here. Where none of the
// warp's products is beyond 1/2, the range of the polynomial, that costs no special function; else
// tanh comes from the approximate exponential and reciprocal, with an absolute error of about 2e-7.
template <int kCount>
TILEWRIGHT_HOST_DEVICE void TanhOfAll(float (&x)[kCount], float factor) {
  // Four times the products: of those beyond 1/2, and of Inf and NaN, one bit tells.
  constexpr u32 kTwoOrMore = 0x40000000u;
  u32 bits = 0;
  TILEWRIGHT_UNROLL
  for (int n = 0; n < kCount; ++n) {
    x[n] *= 4 * factor;
    bits |= __builtin_bit_cast(u32, x[n]);
  }
  bool beyond = (bits & kTwoOrMore) != 0;
#ifdef __CUDACC__
  beyond = __any_sync(0xffffffffu, beyond);
#endif
  if (beyond) {
    TILEWRIGHT_UNROLL
    for (int n = 0; n < kCount; ++n) {
#ifdef __CUDACC__
      // 1 - 2 / (1 + exp(2x)); exp overflows to the 1 and underflows to the -1 that are right.
      const float exponential = ptx::ex2_approx_ftz(x[n] * (kLog2OfE / 2));
      x[n] = 1.f - 2.f * ptx::rcp_approx_ftz(1.f + exponential);
#else
      x[n] = Tanh(x[n] / 4);
#endif
    }
    return;
  }
  TILEWRIGHT_UNROLL
  for (int n = 0; n < kCount; ++n) x[n] = TanhOfQuarter(x[n]);
}

}  // namespace tilewright

#endif  // TILEWRIGHT_CORE_TANH_CUH_
