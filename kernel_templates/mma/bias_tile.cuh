// A bias term of 16 bits that differs from row to row, on its way through shared memory: a warp
// copies the elements of its 16 rows and of a block of keys while the products of the block before
// run (cp.async), each row in whole lines, and reads them in the layout of ptx/wgmma.cuh. Loaded by
// pairs, as policy/bias_fragment.cuh has it, eight rows lie in as many lines for each four bytes a
// lane.
#ifndef TILEWRIGHT_MMA_BIAS_TILE_CUH_
#define TILEWRIGHT_MMA_BIAS_TILE_CUH_

#include "abi/policy_args.h"
#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/problem.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/special.cuh"

namespace tilewright {

inline constexpr int kBiasPanelColumns = 64;  // 128 bytes, under the 128-byte swizzle
inline constexpr int kBiasTileRows = 16;      // of a warp

// Of a warp and a block of keys.
template <int kColumns>
struct alignas(128) BiasTileStorage {
  static constexpr int kPanels = RoundUp(kColumns, kBiasPanelColumns) / kBiasPanelColumns;
  u16 panels[kPanels][kBiasTileRows][kBiasPanelColumns];
};

// kColumns: keys of a block that a warpgroup has.
template <int kTerm, class Element, int kColumns>
struct BiasTile {
  static_assert(sizeof(Element) == 2 && kColumns % 16 == 0);
  static constexpr int kChunk = 8;  // elements of a copy
  static constexpr int kChunksOfRow = kColumns / kChunk;
  static constexpr int kChunkBytes = 16;
  static constexpr int kChunks = kBiasTileRows * kChunksOfRow;
  // Of a warp's copies at a time; 0: no whole ones.
  static constexpr int kRowsOfCopy = 32 % kChunksOfRow == 0 ? 32 / kChunksOfRow : 0;
  static_assert(kChunks % 32 == 0, "all lanes have as many");

  BiasTileStorage<kColumns>* storage;
  const u16* rows;  // key 0 of the warp's first row
  i64 stride_q;
  i64 stride_kv;
  u32 pitch;         // bytes from row to row, of whole_lines
  int last_row;      // of these rows, that exists: the others repeat it
  bool whole_lines;  // are copied; the same in all lanes

  // Of a tile of rows, the warp's from `first_row` on. What is under way for the tile before is
  // waited for, and nobody asks for it.
  template <class Params>
  __device__ __forceinline__ void SetRows(const Problem& problem, i64 first_row,
                                          const Params& params, BiasTileStorage<kColumns>& place) {
    const abi::BiasArgs& bias = params.bias[kTerm];
    ptx::cp_async_wait_group<0>();
    storage = &place;
    stride_q = bias.stride_q;
    stride_kv = bias.stride_kv;
    const u16* const plane =
        static_cast<const u16*>(bias.data) +
        Remainder(Quotient(problem.b, bias.batch_div), bias.batch_mod) * bias.stride_batch +
        problem.h * bias.stride_head;
    const u64 begins = reinterpret_cast<u64>(plane) | static_cast<u64>(stride_q) * sizeof(u16);
    pitch = static_cast<u32>(stride_q * sizeof(u16));
    whole_lines = stride_kv == 1 && begins % 16 == 0 && pitch == stride_q * sizeof(u16);
    const i64 first = Min(first_row, problem.seqlen_q - 1);
    rows = plane + first * stride_q;
    last_row = static_cast<int>(Min(problem.seqlen_q - 1 - first, kBiasTileRows - 1));
  }

  // Asks for the keys from first_key on; those beyond `seqlen_kv` become 0.
  __device__ __forceinline__ void Copy(i64 first_key, i64 seqlen_kv) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    auto* const panels = storage->panels;
    const int left = static_cast<int>(Max(Min(seqlen_kv - first_key, kColumns), 0));
    __syncwarp();  // all have read what lies there
    const u8* const block = reinterpret_cast<const u8*>(rows + first_key);
    // Few instructions in between, for this is on the way of the weights.
    if (kRowsOfCopy > 0 && whole_lines && left == kColumns && last_row == kBiasTileRows - 1) {
      const int row = lane / kChunksOfRow, chunk = lane % kChunksOfRow;
      const u32 destination = static_cast<u32>(
          ptx::Opaque(ptx::SharedAddress(&panels[chunk / 8][row][(chunk % 8 ^ row % 8) * kChunk])));
      const u8* source = block + u64{pitch} * static_cast<u32>(row) + chunk * kChunkBytes;
#pragma unroll
      for (int n = 0; n < kChunks / 32; ++n) {
        const int further = n * kRowsOfCopy;  // rows
        ptx::cp_async_cg_16((destination ^ further % 8 * kChunkBytes) +
                                static_cast<u32>(further * sizeof(panels[0][0])),
                            source, kChunkBytes);
        source += u64{pitch} * kRowsOfCopy;
      }
    } else if (whole_lines) {
#pragma unroll 1
      for (int at = lane; at < kChunks; at += 32) {
        const int row = at / kChunksOfRow, chunk = at % kChunksOfRow;
        const int elements = max(min(left - chunk * kChunk, kChunk), 0);
        // Of a chunk that exists, if none of this one does.
        const int from = min(chunk, max(left - 1, 0) / kChunk);
        ptx::cp_async_cg_16(
            ptx::SharedAddress(&panels[chunk / 8][row][(chunk % 8 ^ row % 8) * kChunk]),
            block + u64{pitch} * static_cast<u32>(min(row, last_row)) + from * kChunkBytes,
            elements * 2);
      }
    } else {
#pragma unroll 1
      for (int at = lane; at < kBiasTileRows * kColumns; at += 32) {
        const int row = at / kColumns, column = at % kColumns;
        panels[column / kBiasPanelColumns][row][(column / 8 % 8 ^ row % 8) * 8 + column % 8] =
            column < left ? rows[min(row, last_row) * stride_q + (first_key + column) * stride_kv]
                          : u16{0};
      }
    }
  }

  // scores = scores * scale + bias, in the layout of a warpgroup's products.
  __device__ __forceinline__ void Add(float (&scores)[kColumns / 2], float scale) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = lane % 16;
    // So that the compiler keeps one address from block to block, and not one for each step.
    const u32 from = static_cast<u32>(
        ptx::Opaque(ptx::SharedAddress(&storage->panels[0][row][(lane / 16 ^ row % 8) * kChunk])));
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n) {
      u32 words[4];
      ptx::ldmatrix_x4(words, (from ^ 2 * n % 8 * kChunkBytes) +
                                  static_cast<u32>(n / 4 * sizeof(storage->panels[0])));
#pragma unroll
      for (int m = 0; m < 8; ++m) {
        const Element element = {static_cast<u16>(words[m / 2] >> (m % 2 * 16))};
        scores[8 * n + m] = fmaf(scores[8 * n + m], scale, static_cast<float>(element));
      }
    }
  }
};

// What a thread has of the first bias term of a chain (FirstBias): its pairs or, kStaged, a tile.
template <class First, int kColumns, bool kStaged>
struct BiasOf {
  using Type = typename First::template Fragment<kColumns>;
};
template <class First, int kColumns>
struct BiasOf<First, kColumns, true> {
  using Type = BiasTile<First::kIndex, typename First::Element, kColumns>;
};

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_BIAS_TILE_CUH_
