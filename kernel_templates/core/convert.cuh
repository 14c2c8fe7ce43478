// Element types to and from fp32: exact widening, narrowing to nearest even. In bits, which every
// compiler and architecture can do, and by the one instruction where there is one.
#ifndef TILEWRIGHT_CORE_CONVERT_CUH_
#define TILEWRIGHT_CORE_CONVERT_CUH_

#include "core/types.cuh"
#ifdef __CUDACC__
#include "ptx/convert.cuh"
#endif

namespace tilewright {

TILEWRIGHT_HOST_DEVICE float FloatOfBits(u32 bits) { return __builtin_bit_cast(float, bits); }
TILEWRIGHT_HOST_DEVICE u32 BitsOfFloat(float value) { return __builtin_bit_cast(u32, value); }

// A small binary float with `kExponentBits` and `kMantissaBits`, widened.
// `kHasInfinity`: the largest exponent is Inf and NaN; otherwise (e4m3) only all ones is NaN.
template <int kExponentBits, int kMantissaBits, bool kHasInfinity>
TILEWRIGHT_HOST_DEVICE float WidenBits(u32 bits) {
  constexpr u32 kMantissaMask = (1u << kMantissaBits) - 1;
  constexpr u32 kExponentMask = (1u << kExponentBits) - 1;
  constexpr u32 kBias = kExponentMask >> 1;
  const u32 sign = bits >> (kExponentBits + kMantissaBits) << 31;
  const u32 exponent = bits >> kMantissaBits & kExponentMask;
  const u32 mantissa = bits & kMantissaMask;
  const bool is_nan = kHasInfinity ? exponent == kExponentMask && mantissa != 0
                                   : exponent == kExponentMask && mantissa == kMantissaMask;
  if (is_nan) return FloatOfBits(sign | 0x7fc00000u);
  if (kHasInfinity && exponent == kExponentMask) return FloatOfBits(sign | 0x7f800000u);
  if (exponent == 0) {  // subnormal: mantissa * 2^(1 - bias - mantissa bits), exact in fp32
    const float unit = FloatOfBits((127 + 1 - kBias - kMantissaBits) << 23);
    return FloatOfBits(sign | BitsOfFloat(static_cast<float>(mantissa) * unit));
  }
  return FloatOfBits(sign | (exponent + 127 - kBias) << 23 | mantissa << (23 - kMantissaBits));
}

// The way back, to nearest even. Too large becomes Inf, or with `kSaturate` the largest finite
// value (what the fp8 instructions do).
template <int kExponentBits, int kMantissaBits, bool kHasInfinity, bool kSaturate>
TILEWRIGHT_HOST_DEVICE u32 NarrowBits(float value) {
  constexpr u32 kExponentMask = (1u << kExponentBits) - 1;
  constexpr int kBias = kExponentMask >> 1;
  constexpr u32 kInfinityBits = kExponentMask << kMantissaBits;
  constexpr u32 kNan = kHasInfinity ? kInfinityBits | 1u << (kMantissaBits - 1)
                                    : kInfinityBits | ((1u << kMantissaBits) - 1);
  constexpr u32 kLargest = (kHasInfinity ? kInfinityBits : kNan) - 1;
  const u32 bits = BitsOfFloat(value);
  const u32 sign = bits >> 31 << (kExponentBits + kMantissaBits);
  const u32 magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | kNan;
  const int exponent = static_cast<int>(magnitude >> 23) - 127 + kBias;
  // Bits of the fp32 significand (with its leading one) that are lost; one more for each step below
  // the smallest normal number.
  const int dropped = 23 - kMantissaBits + (exponent < 1 ? 1 - exponent : 0);
  if (dropped > 24) return sign;  // below half of the smallest subnormal
  const u32 significand = (magnitude & 0x7fffffu) | 0x800000u;
  u32 narrow = significand >> dropped;
  const u32 rest = significand & ((1u << dropped) - 1);
  const u32 half = 1u << (dropped - 1);
  if (rest > half || (rest == half && (narrow & 1))) ++narrow;
  // The leading one adds 1 to the exponent field, and a carry of the rounding moves on by itself.
  if (exponent > 0) narrow += static_cast<u32>(exponent - 1) << kMantissaBits;
  if (narrow > kLargest) narrow = kSaturate ? kLargest : kInfinityBits;
  return sign | narrow;
}

#ifdef __CUDACC__
TILEWRIGHT_HOST_DEVICE Fp16::operator float() const { return ptx::cvt_f32_f16(bits); }
#else
TILEWRIGHT_HOST_DEVICE Fp16::operator float() const { return WidenBits<5, 10, true>(bits); }
#endif
TILEWRIGHT_HOST_DEVICE Bf16::operator float() const {
  return FloatOfBits(static_cast<u32>(bits) << 16);
}
TILEWRIGHT_HOST_DEVICE Fp8E4m3::operator float() const {
#ifdef __CUDACC__
  if constexpr (ptx::kHasCvtFp8) {
    return ptx::cvt_f32_f16(static_cast<u16>(ptx::cvt_rn_f16x2_e4m3x2(bits)));
  }
#endif
  return WidenBits<4, 3, false>(bits);
}
// e5m2 is the upper half of an fp16.
TILEWRIGHT_HOST_DEVICE Fp8E5m2::operator float() const { return Fp16{static_cast<u16>(bits << 8)}; }

// FromFloat(value, &element): destination by type.
TILEWRIGHT_HOST_DEVICE void FromFloat(float value, float* out) { *out = value; }
TILEWRIGHT_HOST_DEVICE void FromFloat(float value, Fp16* out) {
#ifdef __CUDACC__
  out->bits = ptx::cvt_rn_f16_f32(value);
#else
  out->bits = static_cast<u16>(NarrowBits<5, 10, true, false>(value));
#endif
}
TILEWRIGHT_HOST_DEVICE void FromFloat(float value, Bf16* out) {
#ifdef __CUDACC__
  if constexpr (ptx::kHasCvtBf16) {
    out->bits = ptx::cvt_rn_bf16_f32(value);
    return;
  }
#endif
  // NarrowBits would do, but fp32 has bf16's exponent: round by an addition, keep NaN a NaN.
  const u32 bits = BitsOfFloat(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const u32 rounded = bits + 0x7fffu + (bits >> 16 & 1);
  out->bits = static_cast<u16>((is_nan ? bits | 0x400000u : rounded) >> 16);
}
TILEWRIGHT_HOST_DEVICE void FromFloat(float value, Fp8E4m3* out) {
#ifdef __CUDACC__
  if constexpr (ptx::kHasCvtFp8) {
    out->bits = static_cast<u8>(ptx::cvt_rn_satfinite_e4m3x2_f32(0, value));
    return;
  }
#endif
  out->bits = static_cast<u8>(NarrowBits<4, 3, false, true>(value));
}
TILEWRIGHT_HOST_DEVICE void FromFloat(float value, Fp8E5m2* out) {
#ifdef __CUDACC__
  if constexpr (ptx::kHasCvtFp8) {
    out->bits = static_cast<u8>(ptx::cvt_rn_satfinite_e5m2x2_f32(0, value));
    return;
  }
#endif
  out->bits = static_cast<u8>(NarrowBits<5, 2, true, true>(value));
}
// Ties to even, saturating; NaN becomes 0.
TILEWRIGHT_HOST_DEVICE void FromFloat(float value, Int8* out) {
#ifdef __CUDACC__
  const float clamped = fminf(fmaxf(value, -128.f), 127.f);
#else
  const float clamped = value > -128.f ? (value < 127.f ? value : 127.f) : -128.f;
#endif
  // Added to 1.5 * 2^23 it has no fraction bits: its lowest byte is that of the nearest integer.
  constexpr float kRounder = 12582912.f;
  const u32 bits = BitsOfFloat((value == value ? clamped : 0.f) + kRounder);
  out->value = static_cast<signed char>(bits & 0xff);
}

}  // namespace tilewright

#endif  // TILEWRIGHT_CORE_CONVERT_CUH_
