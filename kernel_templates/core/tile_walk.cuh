// The walk of a grid over the tiles of query rows of all (batch, head): how forward families share
// the work among their blocks.
#ifndef TILEWRIGHT_CORE_TILE_WALK_CUH_
#define TILEWRIGHT_CORE_TILE_WALK_CUH_

#include "core/math.cuh"
#include "core/problem.cuh"
#include "core/row_tile_order.cuh"
#include "ptx/special.cuh"

namespace tilewright {

// Whether tiles of different rows see different numbers of keys.
template <class Config>
inline constexpr bool kTilesDiffer = !Config::Mask::kIsEmpty && !Config::Mask::kCutsLeft;

// Calls attend(problem, q_begin, part) for the tiles of Config::kBlockM rows, each `parts` times
// with the keys cut into parts, that are this block's: those from blockIdx.x on, with the stride of
// the grid, for there may be more tiles than a grid holds. Tiles of one (batch, head) are
// neighbours, so that blocks that run together share K and V in L2. Where a mask makes them uneven,
// the tiles of some heads are dealt out together, those of the last rows first: they have the most
// keys, and the light ones are left to fill the end of the grid. Head by head its last long tile
// started late: on 132 multiprocessors causal S 2048 took 8 to 25 % longer.
template <class Config, class Params, class Attend>
__device__ __forceinline__ void WalkTilesInParts(const Params& params, i64 parts,
                                                 const Attend& attend) {
  for (i64 tile = blockIdx.x;; tile += gridDim.x) {
    // Computed again for each tile, so that no register holds it meanwhile.
    const i64 m_tiles = CeilDiv(ptx::Opaque(SeqlenQ<Config>(params)), Config::kBlockM);
    const i64 all_series = Batch<Config>(params) * params.core.heads_q * parts;
    if (tile >= all_series * m_tiles) break;
    const RowTileAt at = FindRowTile<kTilesDiffer<Config>>(tile, m_tiles, all_series);
    const i64 bh = Quotient(at.series, parts), b = Quotient(bh, params.core.heads_q);
    const i64 q_begin = at.m * Config::kBlockM;
    const Problem problem = MakeProblem<Config>(b, bh - b * params.core.heads_q, params);
    // Shorter sequences than the longest have fewer tiles.
    if (q_begin < problem.seqlen_q) attend(problem, q_begin, at.series - bh * parts);
  }
}

// The same without parts: attend(problem, q_begin).
template <class Config, class Params, class Attend>
__device__ __forceinline__ void WalkTiles(const Params& params, const Attend& attend) {
  WalkTilesInParts<Config>(
      params, 1, [&](const Problem& problem, i64 q_begin, i64) { attend(problem, q_begin); });
}

}  // namespace tilewright

#endif  // TILEWRIGHT_CORE_TILE_WALK_CUH_
