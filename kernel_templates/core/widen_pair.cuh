// Two stored 8-bit elements as two fp16 operands of a matrix product. Exact for all of them: fp16
// has more exponent and more mantissa bits than e4m3 and e5m2, and int8 needs 8 of its 11.
#ifndef TILEWRIGHT_CORE_WIDEN_PAIR_CUH_
#define TILEWRIGHT_CORE_WIDEN_PAIR_CUH_

#include "core/convert.cuh"
#include "core/types.cuh"

namespace tilewright {

// Widens by way of fp32, where no instruction does better.
template <class Element>
TILEWRIGHT_HOST_DEVICE u32 WidenEach(Element low, Element high) {
  Fp16 wide_low, wide_high;
  FromFloat(static_cast<float>(low), &wide_low);
  FromFloat(static_cast<float>(high), &wide_high);
  return static_cast<u32>(wide_high.bits) << 16 | wide_low.bits;
}

// `pair` holds the first element in its low byte; bits above 16 are not looked at.
TILEWRIGHT_HOST_DEVICE u32 WidenPair(u32 pair, Fp8E4m3) {
#ifdef __CUDACC__
  if constexpr (ptx::kHasCvtFp8) return ptx::cvt_rn_f16x2_e4m3x2(static_cast<u16>(pair));
#endif
  return WidenEach(Fp8E4m3{static_cast<u8>(pair)}, Fp8E4m3{static_cast<u8>(pair >> 8)});
}
// e5m2 is the upper half of an fp16.
TILEWRIGHT_HOST_DEVICE u32 WidenPair(u32 pair, Fp8E5m2) {
  return (pair & 0xff) << 8 | (pair & 0xff00) << 16;
}
// 1024 + (x + 128) is what fp16 makes of 0x6400 | (x + 128).
TILEWRIGHT_HOST_DEVICE u32 WidenPair(u32 pair, Int8) {
#ifdef __CUDACC__
  return ptx::sub_f16x2(((pair & 0xff) | (pair & 0xff00) << 8) ^ 0x64806480u, 0x64806480u);
#else
  return WidenEach(Int8{static_cast<signed char>(pair)}, Int8{static_cast<signed char>(pair >> 8)});
#endif
}

// The even and the odd of four stored elements.
template <class Element>
TILEWRIGHT_HOST_DEVICE u32 WidenEven(u32 four, Element element) {
  return WidenPair((four & 0xff) | (four >> 8 & 0xff00), element);
}
template <class Element>
TILEWRIGHT_HOST_DEVICE u32 WidenOdd(u32 four, Element element) {
  return WidenEven(four >> 8, element);
}
TILEWRIGHT_HOST_DEVICE u32 WidenEven(u32 four, Fp8E5m2) { return (four & 0x00ff00ffu) << 8; }
TILEWRIGHT_HOST_DEVICE u32 WidenOdd(u32 four, Fp8E5m2) { return four & 0xff00ff00u; }
#ifdef __CUDACC__
TILEWRIGHT_HOST_DEVICE u32 WidenEven(u32 four, Int8) {
  return ptx::sub_f16x2((four & 0x00ff00ffu) ^ 0x64806480u, 0x64806480u);
}
TILEWRIGHT_HOST_DEVICE u32 WidenOdd(u32 four, Int8) { return WidenEven(four >> 8, Int8{}); }
#endif

}  // namespace tilewright

#endif  // TILEWRIGHT_CORE_WIDEN_PAIR_CUH_
