// Products of 16-bit tiles in shared memory by one warp: ldmatrix, mma.sync m16n8k16, fragments as
// in ptx/mma_sync.cuh. Rows of shared tiles lie `kPitch` elements apart, an odd number of 16-byte
// chunks (mma/tile_copy.cuh).
#ifndef TILEWRIGHT_MMA_HALF_PRODUCTS_CUH_
#define TILEWRIGHT_MMA_HALF_PRODUCTS_CUH_

#include "core/convert.cuh"
#include "core/online_softmax.cuh"
#include "core/types.cuh"
#include "mma/score_tile.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma_sync.cuh"

namespace tilewright {

// The instructions on 16-bit operands. kTuring: only those that sm_75 has, for fp16.
template <class ElementType, bool kTuring>
struct HalfOps {
  using Element = ElementType;
  static constexpr u32 kTwoOnes = kIsSame<Element, Fp16> ? 0x3c003c00u : 0x3f803f80u;

  static __device__ __forceinline__ void Multiply(float (&d)[4], const u32 (&a)[4], u32 b0,
                                                  u32 b1) {
    if constexpr (kTuring) {
      ptx::mma_m16n8k8(d, a[0], a[1], b0, Element{});
      ptx::mma_m16n8k8(d, a[2], a[3], b1, Element{});
    } else {
      ptx::mma_m16n8k16(d, a, b0, b1, Element{});
    }
  }

  // To nearest even, `low` in the lower half.
  static __device__ __forceinline__ u32 Pack(float high, float low) {
    if constexpr (kTuring) {
      Element upper, lower;
      FromFloat(high, &upper);
      FromFloat(low, &lower);
      return static_cast<u32>(upper.bits) << 16 | lower.bits;
    } else {
      return ptx::cvt_rn_x2_f32(high, low, Element{});
    }
  }
};

// The address that this lane gives to ldmatrix.x4 for a 16 x 16 tile at `first` as operand A, or,
// transposed by ldmatrix, as two operands B whose k runs along the rows.
template <class Element>
__device__ __forceinline__ unsigned AddressOfRows(const Element* first, int pitch) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return ptx::SharedAddress(first + lane % 16 * pitch + lane / 16 * 8);
}
// For two operands B of 8 rows each, k along the columns. kRows 8: for one, of which the lanes that
// are not asked stay within it.
template <int kRows = 16, class Element>
__device__ __forceinline__ unsigned AddressOfColumns(const Element* first, int pitch) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int row = lane % 8 + (kRows > 8 ? lane / 16 * 8 : 0);
  return ptx::SharedAddress(first + row * pitch + lane / 8 % 2 * 8);
}

template <class Element>
__device__ __forceinline__ void LoadRows(u32 (&a)[4], const Element* first, int pitch) {
  ptx::ldmatrix_x4(a, AddressOfRows(first, pitch));
}

template <int kMTiles, int kNTiles>
__device__ __forceinline__ void ClearTile(float (&d)[kMTiles][kNTiles][4]) {
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) d[m][n][c] = 0;
    }
  }
}

// d += a B^T for 16 columns of B, whose rows are the columns of d.
template <class Ops, int kPitch, int kMTiles, int kNTiles>
__device__ __forceinline__ void MultiplyByColumns(float (&d)[kMTiles][kNTiles][4],
                                                  const u32 (&a)[kMTiles][4], unsigned b_address) {
#pragma unroll
  for (int n = 0; n + 1 < kNTiles; n += 2) {
    u32 b[4];
    ptx::ldmatrix_x4(b, b_address + n * 8 * kPitch * sizeof(typename Ops::Element));
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      Ops::Multiply(d[m][n], a[m], b[0], b[1]);
      Ops::Multiply(d[m][n + 1], a[m], b[2], b[3]);
    }
  }
  if constexpr (kNTiles % 2 == 1) {
    u32 b[2];
    ptx::ldmatrix_x2(b, b_address + (kNTiles - 1) * 8 * kPitch * sizeof(typename Ops::Element));
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      Ops::Multiply(d[m][kNTiles - 1], a[m], b[0], b[1]);
    }
  }
}

// The operands of 16 columns: a of A's rows, b of those of B, by twos.
template <int kMTiles, int kNTiles>
struct ScoreOperands {
  u32 a[kMTiles][4];
  u32 b[(kNTiles + 1) / 2][4];
};

// d += A B^T over kSteps * 16 columns of both. The operands of a step are loaded ahead of the
// products of the one before.
template <class Ops, int kSteps, int kPitchA, int kPitchB, int kMTiles, int kNTiles>
__device__ __forceinline__ void ScoreSteps(float (&d)[kMTiles][kNTiles][4], unsigned a_address,
                                           unsigned b_address) {
  constexpr int kBytes = sizeof(typename Ops::Element);
  ScoreOperands<kMTiles, kNTiles> operands[2];
  const auto load = [&](int to, int step) {
    auto& at = operands[to];
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      ptx::ldmatrix_x4(at.a[m], a_address + m * 16 * kPitchA * kBytes + step * 32);
    }
#pragma unroll
    for (int n = 0; n + 1 < kNTiles; n += 2) {
      ptx::ldmatrix_x4(at.b[n / 2], b_address + n * 8 * kPitchB * kBytes + step * 32);
    }
    if constexpr (kNTiles % 2 == 1) {
      u32(&b)[4] = at.b[kNTiles / 2];
      u32 two[2];
      ptx::ldmatrix_x2(two, b_address + (kNTiles - 1) * 8 * kPitchB * kBytes + step * 32);
      b[0] = two[0];
      b[1] = two[1];
    }
  };
  load(0, 0);
// As much at once as compiles quickly.
#pragma unroll(kSteps <= 16 ? kSteps : 4)
  for (int step = 0; step < kSteps; ++step) {
    if (step + 1 < kSteps) load((step + 1) % 2, step + 1);
    const auto& at = operands[step % 2];
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
        Ops::Multiply(d[m][n], at.a[m], at.b[n / 2][n % 2 * 2], at.b[n / 2][n % 2 * 2 + 1]);
      }
    }
  }
}

// The first kNTiles tiles of d += a B for 16 rows of B.
template <class Ops, int kNTiles, int kMTiles, int kAllTiles>
__device__ __forceinline__ void MultiplyByRows(float (&d)[kMTiles][kAllTiles][4],
                                               const u32 (&a)[kMTiles][4], unsigned b_address) {
#pragma unroll
  for (int n = 0; n + 1 < kNTiles; n += 2) {
    u32 b[4];
    ptx::ldmatrix_x4_trans(b, b_address + n * 16);
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      Ops::Multiply(d[m][n], a[m], b[0], b[1]);
      Ops::Multiply(d[m][n + 1], a[m], b[2], b[3]);
    }
  }
  if constexpr (kNTiles % 2 == 1) {
    u32 b[2];
    ptx::ldmatrix_x2_trans(b, b_address + (kNTiles - 1) * 16);
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      Ops::Multiply(d[m][kNTiles - 1], a[m], b[0], b[1]);
    }
  }
}

// Operands B of 16 rows for tiles n and n + 1, if there are so many.
template <int kNTiles>
__device__ __forceinline__ void LoadPairByRows(u32 (&b)[4], unsigned b_address, int n) {
  if (n + 1 < kNTiles) {
    ptx::ldmatrix_x4_trans(b, b_address + n * 16);
  } else {
    u32 one[2];
    ptx::ldmatrix_x2_trans(one, b_address + n * 16);
    b[0] = one[0];
    b[1] = one[1];
  }
}

// The last tile of d += a times ones: the sums of a's rows, in each of the tile's columns.
template <class Ops, int kMTiles, int kAllTiles>
__device__ __forceinline__ void AddRowSums(float (&d)[kMTiles][kAllTiles][4],
                                           const u32 (&a)[kMTiles][4]) {
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
    Ops::Multiply(d[m][kAllTiles - 1], a[m], Ops::kTwoOnes, Ops::kTwoOnes);
  }
}

// Weights of 16 keys, accumulators of two n8 tiles, as an operand A.
template <class Ops, int kNTiles>
__device__ __forceinline__ void PackWeights(u32 (&p)[4], const float (&weights)[kNTiles][4],
                                            int step) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float(&w)[4] = weights[2 * step + half];
    p[2 * half] = Ops::Pack(w[1], w[0]);
    p[2 * half + 1] = Ops::Pack(w[3], w[2]);
  }
}

// From packed weights of which those that are dropped have their sign turned (MarkDropped): `all`
// of them, for AddRowSums, and in `p` zeros for the dropped ones.
template <int kMTiles>
__device__ __forceinline__ void DropWeights(u32 (&p)[kMTiles][4], u32 (&all)[kMTiles][4]) {
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const u32 signs = p[m][c] & 0x80008000u;
      all[m][c] = p[m][c] ^ signs;
      p[m][c] &= ~((signs >> 15) * 0xffffu);
    }
  }
}

// Row r (0, 1) of the lane's rows of O, normalised, to its row in shared memory.
template <class Ops, int kVTiles, int kAllTiles>
__device__ __forceinline__ void StoreFragments(typename Ops::Element* row,
                                               const float (&o)[kAllTiles][4], int r,
                                               const SoftmaxEnd& end) {
#pragma unroll
  for (int n = 0; n < kVTiles; ++n) {
    const float low = end.empty ? 0.f : o[n][2 * r] * end.o_scale;
    const float high = end.empty ? 0.f : o[n][2 * r + 1] * end.o_scale;
    *reinterpret_cast<u32*>(row + ColumnOf(n, 0)) = Ops::Pack(high, low);
  }
}

// The same of kColumns columns, which lie `shift` columns further on in O.
template <class Ops, int kColumns, int kVTiles, int kAllTiles>
__device__ __forceinline__ void StoreShiftedFragments(typename Ops::Element* row,
                                                      const float (&o)[kAllTiles][4], int r,
                                                      const SoftmaxEnd& end, int shift) {
#pragma unroll
  for (int n = 0; n < kVTiles; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int column = ColumnOf(n, c) - shift;
      if (column < 0 || column >= kColumns) continue;
      FromFloat(end.empty ? 0.f : o[n][2 * r + c] * end.o_scale, &row[column]);
    }
  }
}

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_HALF_PRODUCTS_CUH_
