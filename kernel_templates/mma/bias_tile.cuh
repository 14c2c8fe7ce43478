// A bias term of 16 bits that differs from row to row, from shared memory: boxes of a warpgroup's
// 64 rows and a block of keys, which come in whole lines. Loaded by pairs, as
// policy/bias_fragment.cuh has it, eight rows lie in as many lines for each four bytes a lane, and
// the copies of a thread stand between its scores and its weights.
#ifndef TILEWRIGHT_MMA_BIAS_TILE_CUH_
#define TILEWRIGHT_MMA_BIAS_TILE_CUH_

#include "core/math.cuh"
#include "core/types.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/special.cuh"

namespace tilewright {

inline constexpr int kBiasPanelColumns = 64;  // 128 bytes, under the 128-byte swizzle
inline constexpr int kBiasTileRows = 64;      // of a warpgroup

// Of a warpgroup and a block of keys.
template <int kColumns>
struct BiasTile {
  static constexpr int kPanels = RoundUp(kColumns, kBiasPanelColumns) / kBiasPanelColumns;
  u16 panels[kPanels][kBiasTileRows][kBiasPanelColumns];
};

// The elements that belong to a thread's scores of a block of keys, in the layout of ptx/wgmma.cuh.
// They are read while the products of the scores run.
template <class Element, int kColumns>
struct BiasTileFragment {
  static_assert(sizeof(Element) == 2 && kColumns % 16 == 0);
  u32 words[kColumns / 4];

  // `thread` of the warpgroup.
  __device__ __forceinline__ void Read(const BiasTile<kColumns>& tile, int thread) {
    constexpr int kChunk = 8, kChunkBytes = 16;  // of 16 bytes
    const int lane = thread % 32, row = thread / 32 * 16 + lane % 16;
    // So that the compiler keeps one address from block to block, and not one for each step.
    const u32 from = static_cast<u32>(
        ptx::Opaque(ptx::SharedAddress(&tile.panels[0][row][(lane / 16 ^ row % 8) * kChunk])));
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n) {
      u32 matrices[4];
      ptx::ldmatrix_x4(matrices, (from ^ 2 * n % 8 * kChunkBytes) +
                                     static_cast<u32>(n / 4 * sizeof(tile.panels[0])));
#pragma unroll
      for (int m = 0; m < 4; ++m) words[4 * n + m] = matrices[m];
    }
  }

  // Is there when all of them are.
  __device__ __forceinline__ u32 AnyOfEachRead() const {
    u32 any = 0;
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n) any |= words[4 * n];
    return any;
  }

  // Of a thread's score number n.
  __device__ __forceinline__ float At(int n) const {
    return static_cast<float>(Element{static_cast<u16>(words[n / 2] >> (n % 2 * 16))});
  }
};

// What a thread has of a bias term of a chain (FirstBias): its pairs, from memory or, kStaged, from
// a tile.
template <class First, int kColumns, bool kStaged>
struct BiasOf {
  using Type = typename First::template Fragment<kColumns>;
};
template <class First, int kColumns>
struct BiasOf<First, kColumns, true> {
  using Type = BiasTileFragment<typename First::Element, kColumns>;
};

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_BIAS_TILE_CUH_
