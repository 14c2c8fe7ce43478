// The blocks of keys that a tile of rows needs, and the walk over them.
#ifndef TILEWRIGHT_MMA_KEY_BLOCKS_CUH_
#define TILEWRIGHT_MMA_KEY_BLOCKS_CUH_

#include "core/math.cuh"
#include "core/problem.cuh"
#include "mma/score_tile.cuh"
#include "mma/tile_copy.cuh"
#include "policy/mask_chain.cuh"

namespace tilewright {

// The blocks of keys that a tile of rows needs. Block numbers fit an int: they are keys / kBlockN.
struct BlockWalk {
  int begin, end, full_begin, full_end;
};

// The next block below `n` that the mask needs; walk.begin - 1 when there is none.
template <class Config, class Params>
__device__ __forceinline__ int BlockBelow(int n, const BlockWalk& walk, const Problem& problem,
                                          i64 q_begin, i64 q_end, const Params& params) {
  for (--n; n >= walk.begin; --n) {
    const i64 kv_begin = i64{n} * Config::kBlockN;
    if (!Config::Mask::Skip(problem, q_begin, q_end, kv_begin,
                            Min(kv_begin + Config::kBlockN, problem.seqlen_kv), params)) {
      break;
    }
  }
  return n;
}

// Zeroes the rows of V that no row of the tile of rows may see, between barriers.
template <class Config, int kKeys, int kPitch, class Params>
__device__ __forceinline__ void ZeroUnseenValues(typename Config::Element (&v)[kKeys][kPitch],
                                                 const Problem& problem, i64 q_begin, i64 kv_begin,
                                                 const Params& params) {
  for (int key = ThreadOfTeam<Config>(); key < kKeys; key += kThreads<Config>) {
    const i64 j = kv_begin + key;
    bool seen = false;
    if (j < problem.seqlen_kv && Config::KvRows::Locate(problem, j, params).exists()) {
      for (i64 i = q_begin; i < Min(q_begin + Config::kBlockM, problem.seqlen_q); ++i) {
        seen |= Config::Mask::Keep(problem, i, j, params);
      }
    }
    if (!seen) {
      for (int d = 0; d < kPitch; ++d) {
        v[ColumnOfKey<Config::kRunKeys>(key)][d] = typename Config::Element{0};
      }
    }
  }
  SyncTeam<Config>();
}

// Zeroes the columns before shifted rows (mma/tile_copy.cuh), between barriers.
template <class Config, class Element, int kKeys, int kPitch>
__device__ __forceinline__ void ZeroBeforeRows(Element (&tile)[kKeys][kPitch], int shift) {
  for (int key = ThreadOfTeam<Config>(); key < kKeys; key += kThreads<Config>) {
    for (int column = 0; column < shift; ++column) tile[key][column] = Element{0};
  }
  SyncTeam<Config>();
}

// Whether the mask may know of blocks that need no element test. Keys on missing pages do.
template <class Config>
inline constexpr bool kHasFullBlocks = Config::Mask::kIsInterval&& Config::KvRows::kIsDense;

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_KEY_BLOCKS_CUH_
