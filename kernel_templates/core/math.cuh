// Small arithmetic shared by policies and families, on the host as in kernels.
#ifndef TILEWRIGHT_CORE_MATH_CUH_
#define TILEWRIGHT_CORE_MATH_CUH_

#include "core/types.cuh"

namespace tilewright {

// Non-negative `a`, positive `b`.
TILEWRIGHT_HOST_DEVICE constexpr i64 CeilDiv(i64 a, i64 b) { return (a + b - 1) / b; }
TILEWRIGHT_HOST_DEVICE constexpr i64 Min(i64 a, i64 b) { return a < b ? a : b; }
TILEWRIGHT_HOST_DEVICE constexpr i64 Max(i64 a, i64 b) { return a > b ? a : b; }
TILEWRIGHT_HOST_DEVICE constexpr int RoundUp(int a, int multiple) {
  return (a + multiple - 1) / multiple * multiple;
}

// By how many columns rows of `columns` elements of 16 bits, side by side, begin at most behind a
// multiple of 16 bytes.
TILEWRIGHT_HOST_DEVICE constexpr int MostShift(int columns) {
  return columns % 8 == 0 ? 0 : 8 - (columns & -columns);
}

// a / b and a % b for a >= 0, b > 0. Both are below 2^32 most of the time, and then this takes a
// fifth of the instructions of a 64-bit division.
TILEWRIGHT_HOST_DEVICE i64 Quotient(i64 a, i64 b) {
  if ((static_cast<u64>(a | b) >> 32) == 0) return static_cast<u32>(a) / static_cast<u32>(b);
  return a / b;
}
TILEWRIGHT_HOST_DEVICE i64 Remainder(i64 a, i64 b) { return a - Quotient(a, b) * b; }

// The accurate functions, never the approximate instructions, for every type that a score policy is
// compiled for. (The compilers' builtins, because
// this folder includes no <cmath> and NVRTC has none.)
#ifdef __CUDACC__
TILEWRIGHT_HOST_DEVICE float Tanh(float x) { return tanhf(x); }
TILEWRIGHT_HOST_DEVICE float Exp(float x) { return expf(x); }
TILEWRIGHT_HOST_DEVICE float Log(float x) { return logf(x); }
TILEWRIGHT_HOST_DEVICE double Tanh(double x) { return tanh(x); }
TILEWRIGHT_HOST_DEVICE double Exp(double x) { return exp(x); }
TILEWRIGHT_HOST_DEVICE double Log(double x) { return log(x); }
#else
TILEWRIGHT_HOST_DEVICE float Tanh(float x) { return __builtin_tanhf(x); }
TILEWRIGHT_HOST_DEVICE float Exp(float x) { return __builtin_expf(x); }
TILEWRIGHT_HOST_DEVICE float Log(float x) { return __builtin_logf(x); }
TILEWRIGHT_HOST_DEVICE double Tanh(double x) { return __builtin_tanh(x); }
TILEWRIGHT_HOST_DEVICE double Exp(double x) { return __builtin_exp(x); }
TILEWRIGHT_HOST_DEVICE double Log(double x) { return __builtin_log(x); }
#endif

TILEWRIGHT_HOST_DEVICE constexpr float Infinity() { return __builtin_bit_cast(float, 0x7f800000u); }

inline constexpr float kLog2OfE = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.69314718055994530942f;

}  // namespace tilewright

#endif  // TILEWRIGHT_CORE_MATH_CUH_
