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

// The elements that belong to a thread's scores of a block of keys, in the layout of ptx/wgmma.cuh:
// 16 columns at a time, some ahead of those that are added. The first are read while the products
// of the scores run. All of them would be as many registers as Q takes for a tile.
template <class Element, int kColumns>
struct BiasTileFragment {
  static_assert(sizeof(Element) == 2 && kColumns % 16 == 0);
  static constexpr int kSteps = kColumns / 16;
  static constexpr int kAhead = kSteps < 4 ? kSteps : 4;
  u32 from;  // where this lane's rows of matrices begin
  u32 words[kAhead][4];

  // `thread` of the warpgroup.
  __device__ __forceinline__ void Start(const BiasTile<kColumns>& tile, int thread) {
    const int lane = thread % 32, row = thread / 32 * 16 + lane % 16;
    // So that the compiler keeps one address from block to block, and not one for each step.
    from = static_cast<u32>(
        ptx::Opaque(ptx::SharedAddress(&tile.panels[0][row][(lane / 16 ^ row % 8) * kChunk])));
#pragma unroll
    for (int n = 0; n < kAhead; ++n) Read(n);
  }

  // score = score * scale + term. Returns what is there when all has been read.
  __device__ __forceinline__ u32 AddTo(float (&s)[kColumns / 2], float scale) {
    u32 read = 0;
#pragma unroll
    for (int n = 0; n < kSteps; ++n) {
      u32 four[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) four[m] = words[n % kAhead][m];
      read |= four[0];
      if (n + kAhead < kSteps) Read(n + kAhead);
#pragma unroll
      for (int m = 0; m < 8; ++m) {
        const Element term = {static_cast<u16>(four[m / 2] >> (m % 2 * 16))};
        s[8 * n + m] = fmaf(s[8 * n + m], scale, static_cast<float>(term));
      }
    }
    return read;
  }

 private:
  static constexpr int kChunk = 8, kChunkBytes = 16;  // of 16 bytes
  __device__ __forceinline__ void Read(int n) {
    constexpr int kPanelBytes = sizeof(BiasTile<kColumns>::panels[0]);
    ptx::ldmatrix_x4(words[n % kAhead],
                     (from ^ 2 * n % 8 * kChunkBytes) + static_cast<u32>(n / 4 * kPanelBytes));
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
