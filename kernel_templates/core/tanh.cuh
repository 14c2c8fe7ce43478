// tanh of many values at fp32's accuracy, without a branch for each.
#ifndef TILEWRIGHT_CORE_TANH_CUH_
#define TILEWRIGHT_CORE_TANH_CUH_

#include "core/math.cuh"
#ifdef __CUDACC__
#include "ptx/special.cuh"
#endif

namespace tilewright {

// tanh(x) / x as a polynomial in x^2, for |x| <= kTanhRange: interpolated at the Chebyshev nodes of
// [0, kTanhRange^2], relative error 1e-7 in fp32.
inline constexpr float kTanhRange = 0.625f;
TILEWRIGHT_HOST_DEVICE float TanhPolynomial(float x) {
  const float square = x * x;
  float value = -0.005657135192f;
  value = value * square + 0.02058819146f;
  value = value * square - 0.05372010766f;
  value = value * square + 0.1333111406f;
  value = value * square - 0.3333325986f;
  value = value * square + 0.999999996f;
  return x * value;
}

// x = tanh(x * factor) for all of a thread's values, whose warp converges here. Where none of the
// warp's is beyond the polynomial's range that costs no special function; else tanh comes from the
// approximate exponential and reciprocal, with an absolute error of about 2e-7.
template <int kCount>
TILEWRIGHT_HOST_DEVICE void TanhOfAll(float (&x)[kCount], float factor) {
#ifdef __CUDACC__
  float largest = 0;
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
    x[n] *= factor;
    largest = fmaxf(largest, fabsf(x[n]));
  }
  if (__any_sync(0xffffffffu, largest > kTanhRange)) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      // 1 - 2 / (1 + exp(2x)); exp overflows to the 1 and underflows to the -1 that are right.
      const float exponential = ptx::ex2_approx_ftz(x[n] * (2 * kLog2OfE));
      x[n] = 1.f - 2.f * ptx::rcp_approx_ftz(1.f + exponential);
    }
    return;
  }
#else
  for (int n = 0; n < kCount; ++n) x[n] *= factor;
#endif
#pragma unroll
  for (int n = 0; n < kCount; ++n) x[n] = TanhPolynomial(x[n]);
}

}  // namespace tilewright

#endif  // TILEWRIGHT_CORE_TANH_CUH_
