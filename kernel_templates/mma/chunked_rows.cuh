// Where the 16-byte chunks of a row lie in shared memory, so that copies write and ldmatrix reads
// eight rows without conflicts of banks. Rows of whole 128-byte lines keep their places and trade
// chunks within a line: rows shifted by a chunk would let no copied sector of 32 bytes lie within
// one of shared memory. Other rows are an odd number of chunks apart.
#ifndef TILEWRIGHT_MMA_CHUNKED_ROWS_CUH_
#define TILEWRIGHT_MMA_CHUNKED_ROWS_CUH_

#include "core/math.cuh"
#include "core/types.cuh"

namespace tilewright {

// Bytes between rows of `bytes`, a multiple of 16.
TILEWRIGHT_HOST_DEVICE constexpr int ChunkedPitch(int bytes) {
  return bytes % 128 == 0 ? bytes : 16 * (bytes / 16 | 1);
}
template <int kPitch>
inline constexpr bool kTradesChunks = kPitch % 128 == 0;

// From the tile's first byte, which lies at a multiple of 128.
template <int kPitch>
TILEWRIGHT_HOST_DEVICE int ChunkOffset(int row, int chunk) {
  return row * kPitch + (kTradesChunks<kPitch> ? chunk ^ (row & 7) : chunk) * 16;
}

// The address of the chunk `bytes` to the right of the one at `address`, where `bytes` has no bit
// in common with the column of that chunk.
template <bool kTrades>
__device__ __forceinline__ unsigned ChunkBehind(unsigned address, int bytes) {
  return kTrades ? (address ^ (bytes & 127)) + (bytes & ~127) : address + bytes;
}

// Whether rows kRows apart trade a chunk in ways that differ by the same bits for all of the first
// kRows rows, as RowsBelow takes it.
template <int kPitch, int kRows>
inline constexpr bool kStaysInColumn = !kTradesChunks<kPitch> || 8 % kRows == 0 || kRows % 8 == 0;

// The address of the same chunk n * kRows rows further down than `address`, which is that of one of
// the first kRows rows of a tile.
template <int kPitch, int kRows>
__device__ __forceinline__ unsigned RowsBelow(unsigned address, int n) {
  static_assert(kStaysInColumn<kPitch, kRows>);
  const unsigned traded = kTradesChunks<kPitch> ? n * kRows % 8 * 16 : 0;
  return (address ^ traded) + n * kRows * kPitch;
}

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_CHUNKED_ROWS_CUH_
