// Exact attention, forward, on mma.sync tensor cores with cp.async copies: every architecture from
// sm_80 on, 16-bit operands, fp32 accumulators.
//
// Algorithm FlashAttention-2 (Dao, arXiv 2307.08691). A block owns kBlockM query rows of one
//           (batch, head) and walks the tiles of kBlockN keys from the last to the first with an
//           online softmax in units of log2. The reference of a row need not be its maximum: it
//           moves only when a score passes it by more than kLazyLog2, so that most tiles leave the
//           output sums alone; numerator and denominator share it, so it cancels.
// Warps     kWarps, each with kRowsPerWarp rows (one or two m16 fragments) from the scores to the
//           output. All warps copy and compute.
// Tiles     With masks (element tests) and without, a loop each (kPeeled) or a branch.
// Barriers  kStages 2: one a tile, when K(n), V(n) have landed and tile n + 1 has been read.
//           The same where warps share rows: none of the block. Warps wait for K(n) and for V(n)
//           when they need them (mma/copy_barriers.cuh). K(n - 1) is asked for behind the scores of
//           tile n, where K(n + 1) lay, which every warp has read: each has asked for K(n) only
//           then, and that has landed. V(n - 1) likewise behind the products of V(n). Weights of
//           tile n are made once V(n) has landed, when every warp is through with tile n + 1.
//           kStages 1: two a tile, when K(n) has landed (V(n) then starts) and when V(n) has
//           (K(n - 1)).
// NaN, Inf  P * V makes a NaN of a masked key's NaN. When O comes out non-finite the tile is
// computed
//           once more with the rows of V zeroed that no row of the tile may see.
// Shared    the barriers of copies
//           qo [kBlockM][pitch]           Q, at the end O
//           k  [kStages][kBlockN][pitch]
//           v  [kStages][kBlockN][pitch]
//           Rows are an odd number of 16-byte chunks apart: the eight rows that a phase of ldmatrix
//           reads lie in different banks.
#ifndef TILEWRIGHT_FAMILY_ATTN_FWD_SM80_CUH_
#define TILEWRIGHT_FAMILY_ATTN_FWD_SM80_CUH_

#include "abi/attn_fwd_params.h"
#include "core/concepts.cuh"
#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/online_softmax.cuh"
#include "core/problem.cuh"
#include "core/tile_walk.cuh"
#include "core/warp_reduce.cuh"
#include "mma/copy_barriers.cuh"
#include "mma/half_core.cuh"
#include "mma/key_blocks.cuh"
#include "mma/score_tile.cuh"
#include "mma/split_core.cuh"
#include "mma/tf32_core.cuh"
#include "mma/tile_copy.cuh"
#include "policy/dropout.cuh"
#include "policy/kv_rows.cuh"
#include "policy/lse.cuh"
#include "policy/mask_chain.cuh"
#include "policy/parts.cuh"
#include "policy/scale.cuh"
#include "policy/score_chain.cuh"
#include "policy/sink.cuh"

namespace tilewright {
namespace fwd_sm80 {

template <class Config, bool kIsFp32, bool kIsSplit>
struct CoreOf {
  using Type = HalfCore<Config>;
};
template <class Config>
struct CoreOf<Config, false, true> {
  using Type = SplitCore<Config>;
};
template <class Config>
struct CoreOf<Config, true, false> {
  using Type = Tf32Core<Config>;
};
template <class Config>
using Core = typename CoreOf<Config, kIsSame<typename Config::Element, float>,
                             (Config::kColumnWarps > 1)>::Type;
template <class Config>
using SharedStorage = typename Core<Config>::Shared;

// The end of the tile's rows that exist.
template <class Config>
__device__ __forceinline__ i64 RowsEnd(const Problem& problem, i64 q_begin) {
  return Min(q_begin + Config::kBlockM, problem.seqlen_q);
}

// The type of a pointer that lies in shared memory: itself, or a copy in registers. With 32 rows of
// 16-bit operands ptxas 13.0 spills with the copies, with wide rows of fp32 without them.
template <class Element>
struct PointerOf {
  using Type = const void* const&;
};
template <>
struct PointerOf<float> {
  using Type = const void*;
};

// The tiles of keys of one tile of rows. Holds what the loop carries from one to the next.
template <class Config, class Params>
struct KeyLoop {
  Core<Config>& core;
  SharedStorage<Config>& shared;
  const Problem& problem;
  const Params& params;
  const HeadPolicies<Config, Params> policies;
  const i64& q_begin;
  const bool careful;
  BlockWalk walk;
  float to_log2;
  typename PointerOf<typename Config::Element>::Type k;
  typename PointerOf<typename Config::Element>::Type v;
  int n;       // block of keys
  u32& count;  // of tiles that this block has been through: their places and barriers take turns

  __device__ __forceinline__ int Below() const {
    return BlockBelow<Config>(n, walk, problem, q_begin, RowsEnd<Config>(problem, q_begin), params);
  }
  // Where tile number `tile` of the block lies.
  static __device__ __forceinline__ int StageOf(u32 tile) {
    return Config::kStages == 2 ? static_cast<int>(tile % 2) : 0;
  }
  // Copies of block `block` as tile number `tile`.
  __device__ __forceinline__ void StartK(u32 tile, int block) {
    const int to_stage = StageOf(tile);
    using Shape = TileShape<Config::kHeadDimQk, Core<Config>::kQStep, Config::kRunKeys,
                            Core<Config>::kQkShift>;
    StartCopyOfKeys<Config, Shape>(shared.k[to_stage], k, params.core.k_strides, problem,
                                   i64{block} * Config::kBlockN, params, shared.tile.k_shift);
    CommitCopies<Config>();
    if constexpr (kHasCopyBarriers<Config>) {
      ArriveBehindCopies(shared.k_landed[to_stage],
                         !Aligned16<typename Config::Element>(k, params.core.k_strides));
    }
  }
  __device__ __forceinline__ void StartV(u32 tile, int block) {
    const int to_stage = StageOf(tile);
    using Shape =
        TileShape<Config::kHeadDimV, Core<Config>::kVStep, Config::kRunKeys, Core<Config>::kVShift>;
    StartCopyOfKeys<Config, Shape>(shared.v[to_stage], v, params.core.v_strides, problem,
                                   i64{block} * Config::kBlockN, params, shared.tile.v_shift);
    CommitCopies<Config>();
    if constexpr (kHasCopyBarriers<Config>) {
      ArriveBehindCopies(shared.v_landed[to_stage],
                         !Aligned16<typename Config::Element>(v, params.core.v_strides));
    }
  }
  // Whether every row sees all of block n.
  __device__ __forceinline__ bool Whole(i64 kv_begin) const {
    if constexpr (kHasFullBlocks<Config>) return n >= walk.full_begin && n < walk.full_end;
    const i64 kv_end = kv_begin + Config::kBlockN;
    return Config::KvRows::kIsDense && Config::Mask::kKnowsFull && kv_end <= problem.seqlen_kv &&
           Config::Mask::Full(problem, q_begin, RowsEnd<Config>(problem, q_begin), kv_begin, kv_end,
                              params);
  }

  // Block n, whose copies have been started. Without kMasked every row sees all of it.
  template <bool kMasked>
  __device__ __forceinline__ void Tile() {
    const int below = Below();
    const int stage = StageOf(count);
    const bool more = below >= walk.begin;
    if constexpr (kHasCopyBarriers<Config>) {
      WaitForTile(shared.k_landed, count);
    } else {
      WaitForCopies<Config>();
      __syncthreads();
      if constexpr (Config::kStages == 1) StartV(count, n);
      if (Config::kStages == 2 && more) {
        StartK(count + 1, below);
        StartV(count + 1, below);
      }
    }
    if constexpr (Core<Config>::kQkShift > 0) {
      if (careful) ZeroBeforeRows<Config>(shared.k[stage], shared.tile.k_shift);
    }
    const bool whole = !kMasked || Whole(i64{n} * Config::kBlockN);
    typename Core<Config>::ScoreTile scores;
    core.Scores(scores, stage);
    if constexpr (kHasCopyBarriers<Config>) {
      if (more) StartK(count + 1, below);
      WaitForTile(shared.v_landed, count);
    } else if constexpr (Config::kStages == 1) {
      WaitForCopies<Config>();
      __syncthreads();
      if (more) StartK(count + 1, below);
    }
    Attend(scores, stage, whole);
    if (kHasCopyBarriers<Config> && more) StartV(count + 1, below);
    ++count;
    n = below;
  }

  // Takes the scores of block n to their end. `whole`: every row sees all of its keys.
  __device__ __forceinline__ void Attend(typename Core<Config>::ScoreTile& scores, int stage,
                                         bool whole) {
    const i64 kv_begin = i64{n} * Config::kBlockN;
    const i64 row_begin = q_begin + Core<Config>::FirstRow();
    const i64 key_begin = kv_begin + Core<Config>::FirstKey();
    if (!Config::Score::kIdentity || !whole) {
      ApplyPolicies<Config>(scores, policies, problem, row_begin, key_begin, whole, params);
    }
    constexpr bool kAlways = Core<Config>::kWatchAlways;
    if (kAlways || core.softmax.watch) core.WatchScores(scores, to_log2, kAlways || careful);
    if constexpr (!Config::Dropout::kIdentity) {
      Weights<Core<Config>::kScoreKeys / 8>(scores, core.softmax, to_log2, 0);
      MarkDropped<Config>(scores, policies, row_begin, key_begin);
    }
    if (careful && !whole) {
      ZeroUnseenValues<Config>(shared.v[stage], problem, q_begin, kv_begin, params);
    }
    if constexpr (Core<Config>::kVShift > 0) {
      if (careful) ZeroBeforeRows<Config>(shared.v[stage], shared.tile.v_shift);
    }
    core.AddValues(scores, stage, to_log2);
    core.Raise();
  }
};

// Every block of keys that the mask needs, last first. Leaves state.o and state.softmax.sum
// complete.
template <class Config, class Params>
__device__ __forceinline__ void WalkKeys(Core<Config>& core, SharedStorage<Config>& shared,
                                         bool careful, [[maybe_unused]] int q_shift, u32& count,
                                         const Params& params) {
  const Problem& problem = shared.tile.problem;
  const i64& q_begin = shared.tile.q_begin;
  const i64 q_end = RowsEnd<Config>(problem, q_begin);
  BlockRange range = Config::Mask::NBlocks(problem, q_begin, q_end, Config::kBlockN, params);
  if constexpr (Config::kSplit) range = PartOf(range, shared.tile.part, params.parts.parts);
  KeyLoop<Config, Params> loop = {
      .core = core,
      .shared = shared,
      .problem = problem,
      .params = params,
      .policies = HeadPolicies<Config, Params>(problem, params),
      .q_begin = q_begin,
      .careful = careful,
      .walk = {static_cast<int>(range.begin), static_cast<int>(range.end),
               static_cast<int>(kHasFullBlocks<Config> ? range.full_begin : range.begin),
               static_cast<int>(kHasFullBlocks<Config> ? range.full_end : range.begin)},
      // The scale of an empty chain is folded into the exponent.
      .to_log2 = Config::Score::kIdentity ? params.core.scale * kLog2OfE : kLog2OfE,
      .k = shared.tile.k,
      .v = shared.tile.v,
      .n = static_cast<int>(range.end),
      .count = count,
  };
  const BlockWalk& walk = loop.walk;
  loop.n = loop.Below();
  if (loop.n < walk.begin) return;
  loop.StartK(count, loop.n);
  if constexpr (Config::kStages == 2) loop.StartV(count, loop.n);
  if constexpr (Core<Config>::kQkShift > 0) {
    WaitForCopies<Config>();
    __syncthreads();
    core.ShiftQ(q_shift);
  }
  if constexpr (Config::kPeeled) {
    // Loops that a mask never enters are not compiled.
    while (loop.n >= walk.begin && loop.n >= walk.full_end) loop.template Tile<true>();
    if constexpr (kHasFullBlocks<Config>) {
      while (loop.n >= walk.full_begin && loop.n >= walk.begin) loop.template Tile<false>();
    }
    if constexpr (Config::Mask::kCutsLeft) {
      while (loop.n >= walk.begin) loop.template Tile<true>();
    }
  } else {
    while (loop.n >= walk.begin) loop.template Tile<true>();
  }
}

// The tile of rows that shared.tile names. `count`: of tiles of keys before.
template <class Config, class Params>
__device__ __forceinline__ void AttendTile(SharedStorage<Config>& shared, u32& count,
                                           const Params& params) {
  using Element = typename Config::Element;
  const abi::TensorStrides& strides = params.core.q_strides;
  const Problem& problem = shared.tile.problem;
  const i64& q_begin = shared.tile.q_begin;
  Core<Config> core(shared);
  for (bool careful = false;; careful = true) {
    __syncthreads();  // shared memory may still be read: by the previous tile, or by the first
                      // attempt
    const Element* q = static_cast<const Element*>(params.core.q) +
                       problem.q_batch * strides.batch + problem.h * strides.head +
                       (problem.q_row + q_begin) * strides.seq;
    using Shape = TileShape<Config::kHeadDimQk, Core<Config>::kQStep, 2, Core<Config>::kQkShift>;
    const int q_shift = ShiftOf<Element>(params.core.q, q, strides, Shape::kMostShift);
    StartCopy<Config, Shape>(
        shared.qo, static_cast<int>(RowsEnd<Config>(problem, q_begin) - q_begin),
        Aligned16<Element>(params.core.q, strides), DenseRows<Element>{q, strides.seq}, q_shift);
    // Also when no key follows: O is written where these copies land.
    CommitCopies<Config>();
    core.Start();
    WalkKeys<Config>(core, shared, careful, q_shift, count, params);
    if (careful || !__syncthreads_or(core.NonFinite())) break;
  }
  WaitForCopies<Config>();
  __syncthreads();
  if constexpr (Config::kSplit) {
    if (params.parts.parts > 1) {
      const i64 q_end = RowsEnd<Config>(problem, q_begin);
      const BlockRange blocks =
          PartOf(Config::Mask::NBlocks(problem, q_begin, q_end, Config::kBlockN, params),
                 shared.tile.part, params.parts.parts);
      core.StorePart(problem, q_begin, shared.tile.part,
                     {blocks.begin * Config::kBlockN, blocks.end * Config::kBlockN}, params);
      return;
    }
  }
  core.Store(problem, q_begin, params);
}

template <class Config, class Params>
__device__ __forceinline__ void Run(const Params& params) {
  static_assert(MaskPolicy<typename Config::Mask, Params>);
  static_assert(ScorePolicy<typename Config::Score, Params>);
  static_assert(KvRowsPolicy<typename Config::KvRows, Params>);
  static_assert(Config::kBlockM * Config::kColumnWarps == Config::kWarps * Config::kRowsPerWarp);
  static_assert(Config::kRowsPerWarp % 16 == 0);
  static_assert(Config::kBlockN % 16 == 0);
  static_assert(Core<Config>::kScoreKeys % (4 * Config::kRunKeys) == 0);
  extern __shared__ __align__(16) u8 shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(shared_bytes);
  if constexpr (kHasCopyBarriers<Config>) {
    if (threadIdx.x == 0) shared.Start(kThreads<Config>);
  }
  u32 count = 0;
  const i64 parts = NumParts<Config>(params);
  WalkTilesInParts<Config>(params, parts, [&](const Problem& problem, i64 q_begin, i64 part) {
    __syncthreads();
    if (threadIdx.x == 0) {
      using Element = typename Config::Element;
      const void* k = FirstKeyRow<Config>(params.core.k, params.core.k_strides, problem, params);
      const void* v = FirstKeyRow<Config>(params.core.v, params.core.v_strides, problem, params);
      shared.tile = {
          problem,
          q_begin,
          part,
          k,
          v,
          ShiftOf<Element>(params.core.k, k, params.core.k_strides, Core<Config>::kQkShift),
          ShiftOf<Element>(params.core.v, v, params.core.v_strides, Core<Config>::kVShift)};
    }
    __syncthreads();
    AttendTile<Config>(shared, count, params);
  });
}

}  // namespace fwd_sm80
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_FWD_SM80_CUH_
