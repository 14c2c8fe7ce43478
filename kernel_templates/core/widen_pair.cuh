// Two stored 8-bit elements as two fp16 operands of a matrix product. Exact for all of them: fp16
// has more exponent and more mantissa bits than e4m3 and e5m2, and int8 needs 8 of its 11.
#ifndef TILEWRIGHT_CORE_WIDEN_PAIR_CUH_
#define TILEWRIGHT_CORE_WIDEN_PAIR_CUH_

#include "core/convert.cuh"
#include "core/types.cuh"
#include "core/warp_reduce.cuh"

namespace tilewright {

// Widens by way of fp32, where no instruction does better.
template <class Element>
TILEWRIGHT_HOST_DEVICE u32 WidenEach(Element low, Element high) {
  Fp16 wide_low, wide_high;
  FromFloat(static_cast<float>(low), &wide_low);
  FromFloat(static_cast<float>(high), &wide_high);
  return static_cast<u32>(wide_high.bits) << 16 | wide_low.bits;
}

// The upper bytes that int8 needs: four times 0x64. All lanes of a warp call it, once: it comes by
// a shuffle because ptxas would give each permutation a copy of a constant.
__device__ __forceinline__ u32 WideBytes() {
  return __shfl_sync(kAllLanes, 0x64646464u | threadIdx.x % 32, 0);
}

// Elements kFirst and kSecond of the four that are stored in `four`, the first in its lowest byte:
// 0 and 1, 2 and 3, 0 and 2, or 1 and 3. `wide_bytes` is what WideBytes returns.
template <int kFirst, int kSecond>
TILEWRIGHT_HOST_DEVICE u32 WidenTwo(u32 four, u32 wide_bytes, Fp8E4m3) {
#ifdef __CUDACC__
  if constexpr (ptx::kHasCvtFp8) {
    // One permutation serves two pairs; halves of a register can be read without any.
    const u32 pairs = kSecond == kFirst + 1 ? four : __byte_perm(four, 0, 0x3120);
    return ptx::cvt_rn_f16x2_e4m3x2<kSecond == 3>(pairs);
  }
#endif
  return WidenEach(Fp8E4m3{static_cast<u8>(four >> 8 * kFirst)},
                   Fp8E4m3{static_cast<u8>(four >> 8 * kSecond)});
}
// e5m2 is the upper half of an fp16.
template <int kFirst, int kSecond>
TILEWRIGHT_HOST_DEVICE u32 WidenTwo(u32 four, u32 wide_bytes, Fp8E5m2) {
#ifdef __CUDACC__
  return __byte_perm(four, 0, kSecond << 12 | 4 << 8 | kFirst << 4 | 4);
#else
  return (four >> 8 * kFirst & 0xff) << 8 | (four >> 8 * kSecond & 0xff) << 24;
#endif
}
// 1024 + (x + 128) is what fp16 makes of 0x6400 | (x + 128).
template <int kFirst, int kSecond>
TILEWRIGHT_HOST_DEVICE u32 WidenTwo(u32 four, u32 wide_bytes, Int8) {
#ifdef __CUDACC__
  const u32 above_1024 =
      __byte_perm(four ^ 0x80808080u, wide_bytes, 4 << 12 | kSecond << 8 | 4 << 4 | kFirst);
  return ptx::sub_f16x2(above_1024, 0x64806480u);
#else
  return WidenEach(Int8{static_cast<signed char>(four >> 8 * kFirst)},
                   Int8{static_cast<signed char>(four >> 8 * kSecond)});
#endif
}

}  // namespace tilewright

#endif  // TILEWRIGHT_CORE_WIDEN_PAIR_CUH_
