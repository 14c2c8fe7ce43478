// kernel_templates/ptx/mma_sync.cuh on the host.
#ifndef TILEWRIGHT_PTX_MMA_SYNC_CUH_
#define TILEWRIGHT_PTX_MMA_SYNC_CUH_

#include "core/convert.cuh"
#include "core/types.cuh"

namespace cuda_on_host {

enum class Operand { kFp16, kBf16, kTf32 };

// d += a * b for a tile of 16 x 8, kSteps 16-bit (2 * k) or 32-bit elements deep.
void MultiplyAdd(float (&d)[4], const unsigned* a, const unsigned* b, int depth, Operand operand);

}  // namespace cuda_on_host

namespace tilewright {
namespace ptx {

inline void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, Bf16) {
  const u32 b[2] = {b0, b1};
  cuda_on_host::MultiplyAdd(d, a, b, 16, cuda_on_host::Operand::kBf16);
}
inline void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, Fp16) {
  const u32 b[2] = {b0, b1};
  cuda_on_host::MultiplyAdd(d, a, b, 16, cuda_on_host::Operand::kFp16);
}

inline void mma_m16n8k8(float (&d)[4], u32 a0, u32 a1, u32 b, Fp16) {
  const u32 a[2] = {a0, a1};
  cuda_on_host::MultiplyAdd(d, a, &b, 8, cuda_on_host::Operand::kFp16);
}
inline void mma_m16n8k8_tf32(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  const u32 b[2] = {b0, b1};
  cuda_on_host::MultiplyAdd(d, a, b, 8, cuda_on_host::Operand::kTf32);
}

template <class Element>
u32 cvt_rn_x2_f32(float high, float low, Element) {
  Element upper, lower;
  FromFloat(high, &upper);
  FromFloat(low, &lower);
  return static_cast<u32>(upper.bits) << 16 | lower.bits;
}

inline u32 cvt_rn_satfinite_x4_f32(float value3, float value2, float value1, float value0,
                                   Fp8E4m3) {
  u32 word = 0;
  const float values[] = {value3, value2, value1, value0};
  for (const float value : values) {
    Fp8E4m3 element;
    FromFloat(value, &element);
    word = word << 8 | element.bits;
  }
  return word;
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_MMA_SYNC_CUH_
