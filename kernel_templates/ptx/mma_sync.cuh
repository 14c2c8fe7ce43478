// mma.sync: d += a * b on the tensor cores of one warp, fp32 accumulators.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-mma
//
// m16n8k16, 16-bit operands, lane t with r = t / 4 and q = t % 4:
//   a[0] (row r, k 2q..2q+1)  a[1] (row r + 8, same k)  a[2] (row r, k + 8)  a[3] (row r + 8, k +
//   8) b[0] (k 2q..2q+1, column r)  b[1] (k + 8, column r) d[0], d[1] (row r, columns 2q, 2q+1)
//   d[2], d[3] (row r + 8, same columns)
#ifndef TILEWRIGHT_PTX_MMA_SYNC_CUH_
#define TILEWRIGHT_PTX_MMA_SYNC_CUH_

#include "core/types.cuh"

namespace tilewright {
namespace ptx {

// Not volatile and without a memory clobber: the instruction only maps registers to registers, so
// that the compiler may schedule it among others.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1,
                                             Bf16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1,
                                             Fp16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The halves of the above along k, for architectures without it: a[0], a[1] and b0, then a[2], a[3]
// and b1.
__device__ __forceinline__ void mma_m16n8k8(float (&d)[4], u32 a0, u32 a1, u32 b, Fp16) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(b));
}

// m16n8k8 of 32-bit operands, whose low 13 bits are not looked at: a[0] (row r, k q), a[1] (row r +
// 8, same k), a[2] (row r, k q + 4), a[3] (row r + 8, k q + 4), b0 (k q, column r), b1 (k q + 4,
// column r); d as above.
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two elements from fp32, to nearest even: `low` in the lower half, as the operands above want
// them.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt
__device__ __forceinline__ u32 cvt_rn_x2_f32(float high, float low, Bf16) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ u32 cvt_rn_x2_f32(float high, float low, Fp16) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Four e4m3 from fp32, `value0` in the lowest byte; what is too large becomes 448. sm_89 and later.
__device__ __forceinline__ u32 cvt_rn_satfinite_x4_f32(float value3, float value2, float value1,
                                                       float value0, Fp8E4m3) {
  u32 word;
  asm("{\n"
      ".reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n"
      "}"
      : "=r"(word)
      : "f"(value0), "f"(value1), "f"(value2), "f"(value3));
  return word;
}

}  // namespace ptx
}  // namespace tilewright

#endif  // TILEWRIGHT_PTX_MMA_SYNC_CUH_
