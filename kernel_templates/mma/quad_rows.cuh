// Rows of fragments (m16n8, as a warp holds them) to memory: the four lanes that hold a row exchange
// what they have, so that each then has eight neighbouring columns of one of four fragments.
#ifndef TILEWRIGHT_MMA_QUAD_ROWS_CUH_
#define TILEWRIGHT_MMA_QUAD_ROWS_CUH_

#include "core/types.cuh"
#include "core/warp_reduce.cuh"
#include "core/words.cuh"

namespace tilewright {

inline constexpr int kFragmentsOfGroup = 4;
inline constexpr int kFragmentColumns = 8;

// word[n] of lane q becomes word[q] of lane n, of four neighbouring lanes.
__device__ __forceinline__ void TransposeInQuad(u32 (&word)[4]) {
  const int q = static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    const bool upper = (q & distance) != 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if ((n & distance) != 0) continue;
      const u32 sent = upper ? word[n] : word[n + distance];
      const u32 received = __shfl_xor_sync(kAllLanes, sent, distance);
      if (upper) {
        word[n] = received;
      } else {
        word[n + distance] = received;
      }
    }
  }
}

// Eight neighbours of a row, of which the first `columns` exist; `wide`: `out` is a multiple of 16
// bytes, and all do.
template <class Element>
__device__ __forceinline__ void StoreChunk(Element* out, const u32 (&words)[4], int columns,
                                           bool wide) {
  if (wide) {
    *reinterpret_cast<Words<16>*>(out) = {{words[0], words[1], words[2], words[3]}};
    return;
  }
#pragma unroll
  for (int d = 0; d < kFragmentColumns; ++d) {
    if (d >= columns) return;
    out[d] = Element{static_cast<u16>(words[d / 2] >> d % 2 * 16)};
  }
}

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_QUAD_ROWS_CUH_
