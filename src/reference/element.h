// Decoding of stored elements and rounding to them, inline for the loops of this folder.
//
// Narrowing rounds to nearest, ties to even. What lies beyond the largest finite value by half an
// ulp or more becomes: an infinity for fp16, bf16, fp32 and e5m2; the largest finite value (448)
// for e4m3, which has no infinity; the ends of the range for int8 and int32. NaN stays NaN; as an
// integer it is 0.
#ifndef TILEWRIGHT_REFERENCE_ELEMENT_H_
#define TILEWRIGHT_REFERENCE_ELEMENT_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tilewright/attention.h"

namespace tilewright::reference {

// An IEEE-like format: sign, exponent, mantissa, gradual underflow.
struct FloatFormat {
  int mantissa_bits;
  int bias;
  uint32_t max_finite;  // code of the largest finite value
  uint32_t overflow;    // code of what lies beyond it
  uint32_t nan;         // a NaN
  uint32_t sign;        // the sign bit
};

inline constexpr FloatFormat kFp16Format = {10, 15, 0x7bff, 0x7c00, 0x7e00, 0x8000};
inline constexpr FloatFormat kBf16Format = {7, 127, 0x7f7f, 0x7f80, 0x7fc0, 0x8000};
inline constexpr FloatFormat kE4m3Format = {3, 7, 0x7e, 0x7e, 0x7f, 0x80};
inline constexpr FloatFormat kE5m2Format = {2, 15, 0x7b, 0x7c, 0x7e, 0x80};

// The code of `value` in `format`.
inline uint32_t EncodeFloat(const FloatFormat& format, double value) {
  const uint32_t sign = std::signbit(value) ? format.sign : 0;
  if (std::isnan(value)) return sign | format.nan;
  if (std::isinf(value)) return sign | format.overflow;
  const double magnitude = std::fabs(value);
  const int smallest_exponent = 1 - format.bias;
  int exponent = smallest_exponent;
  if (magnitude != 0) exponent = std::max(std::ilogb(magnitude), smallest_exponent);
  if (exponent > format.bias + 1) return sign | format.overflow;
  // In units of the last place. Rounding up to the next power of two carries into the exponent of
  // the code by itself, and subnormals need no case of their own.
  const double units = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  const uint32_t code =
      (static_cast<uint32_t>(exponent + format.bias - 1) << format.mantissa_bits) +
      static_cast<uint32_t>(units);
  return sign | (code > format.max_finite ? format.overflow : code);
}

inline float DecodeFp16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide_exponent = exponent == 0x1f ? 0xff : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (wide_exponent << 23) | (mantissa << 13));
}

inline float DecodeBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// e5m2 is the upper byte of fp16.
inline float DecodeE5m2(uint8_t bits) { return DecodeFp16(static_cast<uint16_t>(bits << 8)); }

inline float DecodeE4m3(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80) << 24;
  const uint32_t exponent = (bits >> 3) & 0xf;
  const uint32_t mantissa = bits & 7;
  if ((bits & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + (127 - 7)) << 23) | (mantissa << 20));
}

// An element that may lie at any address.
template <typename T>
T LoadUnaligned(const void* address) {
  T value;
  std::memcpy(&value, address, sizeof(T));
  return value;
}

// Calls `visit` with the decoder (const std::byte* -> float, or the integer) of `type` and its size
// in bytes, so that loops have the type outside.
template <typename Visitor>
void VisitDecoder(ElementType type, const Visitor& visit) {
  switch (type) {
    case ElementType::kFp16:
      visit([](const std::byte* p) { return DecodeFp16(LoadUnaligned<uint16_t>(p)); }, 2);
      return;
    case ElementType::kBf16:
      visit([](const std::byte* p) { return DecodeBf16(LoadUnaligned<uint16_t>(p)); }, 2);
      return;
    case ElementType::kFp32:
      visit([](const std::byte* p) { return LoadUnaligned<float>(p); }, 4);
      return;
    case ElementType::kFp8E4m3:
      visit([](const std::byte* p) { return DecodeE4m3(LoadUnaligned<uint8_t>(p)); }, 1);
      return;
    case ElementType::kFp8E5m2:
      visit([](const std::byte* p) { return DecodeE5m2(LoadUnaligned<uint8_t>(p)); }, 1);
      return;
    case ElementType::kInt8:
      visit([](const std::byte* p) { return static_cast<float>(LoadUnaligned<int8_t>(p)); }, 1);
      return;
    case ElementType::kBool:
      visit([](const std::byte* p) { return LoadUnaligned<uint8_t>(p) != 0 ? 1.0f : 0.0f; }, 1);
      return;
    case ElementType::kInt32:
      visit([](const std::byte* p) { return static_cast<double>(LoadUnaligned<int32_t>(p)); }, 4);
      return;
  }
}

// out[n * out_stride] = element n of a row of `count` elements `stride` elements apart, times
// `scale`.
template <typename Real>
void DecodeRow(ElementType type, const void* row, int64_t stride, int64_t count, Real scale,
               Real* out, int64_t out_stride = 1) {
  const auto* bytes = static_cast<const std::byte*>(row);
  VisitDecoder(type, [&](auto decode, int64_t size) {
    for (int64_t n = 0; n < count; ++n) {
      out[n * out_stride] = static_cast<Real>(decode(bytes + n * stride * size)) * scale;
    }
  });
}

}  // namespace tilewright::reference

#endif  // TILEWRIGHT_REFERENCE_ELEMENT_H_
