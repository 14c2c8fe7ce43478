// kernel_templates/ptx/special.cuh on the host.
#ifndef TILEWRIGHT_PTX_SPECIAL_CUH_
#define TILEWRIGHT_PTX_SPECIAL_CUH_

#include "core/types.cuh"

namespace tilewright {
namespace ptx {

// As accurate as the instruction: the last two bits are lost.
inline float ex2_approx_ftz(float x) {
  const float y = exp2f(x);
  return y < 1.17549435e-38f ? 0.f : __uint_as_float(__float_as_uint(y) & ~1u);
}

inline float rcp_approx_ftz(float x) {
  const float y = 1 / x;
  return fabsf(y) < 1.17549435e-38f ? 0.f : __uint_as_float(__float_as_uint(y) & ~1u);
}

inline i64 Opaque(i64 value) { return value; }

inline float lg2_approx_ftz(float x) { return log2f(x); }

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_SPECIAL_CUH_
