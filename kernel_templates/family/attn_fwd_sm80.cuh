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
// Barriers  kStages 2: one a tile, when K(n), V(n) have arrived and tile n + 1 has been read.
//           kStages 1: two, when K(n) has arrived (V(n) then starts) and when V(n) has (K(n - 1)).
// NaN, Inf  P * V makes a NaN of a masked key's NaN. When O comes out non-finite the tile is
// computed
//           once more with the rows of V zeroed that no row of the tile may see.
// Shared    qo [kBlockM][pitch]           Q, at the end O
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
#include "mma/key_blocks.cuh"
#include "mma/score_tile.cuh"
#include "mma/tile_copy.cuh"
#include "policy/dropout.cuh"
#include "policy/kv_rows.cuh"
#include "policy/lse.cuh"
#include "policy/mask_chain.cuh"
#include "policy/scale.cuh"
#include "policy/score_chain.cuh"
#include "policy/sink.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/special.cuh"

namespace tilewright {
namespace fwd_sm80 {

template <class Config>
inline constexpr int kMTiles = Config::kRowsPerWarp / 16;

template <class Config>
struct SharedStorage {
  static constexpr int kPitchQk = Pitch(RoundUp(Config::kHeadDimQk, 16));
  static constexpr int kPitchV = Pitch(Config::kHeadDimV);
  static constexpr int kPitchQo = kPitchQk > kPitchV ? kPitchQk : kPitchV;
  using Element = typename Config::Element;

  alignas(16) Problem problem;
  alignas(16) Element qo[Config::kBlockM][kPitchQo];
  alignas(16) Element k[Config::kStages][Config::kBlockN][kPitchQk];
  alignas(16) Element v[Config::kStages][Config::kBlockN][kPitchV];
};

// One warp's part of the tile. Fragment layouts as in ptx/mma_sync.cuh: o[m][n] is an m16n8
// accumulator.
template <class Config>
struct WarpState {
  static constexpr int kQkSteps = RoundUp(Config::kHeadDimQk, 16) / 16;
  static constexpr int kVTiles = RoundUp(Config::kHeadDimV, 8) / 8;

  float o[kMTiles<Config>][kVTiles][4];
  SoftmaxState<kMTiles<Config>> softmax;
  u32 q[kMTiles<Config>][Config::kQInRegisters ? kQkSteps : 1][4];
};

// The scores of kScoreN keys.
template <class Config>
using ScoreTile = float[kMTiles<Config>][Config::kScoreN / 8][4];

template <class Config>
__device__ __forceinline__ void LoadQ(u32 (&a)[kMTiles<Config>][4],
                                      const SharedStorage<Config>& shared, int step) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const unsigned address =
      ptx::SharedAddress(&shared.qo[warp * 16 * kMTiles<Config> + lane % 16][lane / 16 * 8]);
#pragma unroll
  for (int m = 0; m < kMTiles<Config>; ++m) {
    ptx::ldmatrix_x4(a[m], address + m * 16 * sizeof(shared.qo[0]) + step * 32);
  }
}

// scores = Q K^T for this warp's rows and the keys from `first_key` of the stage on.
template <class Config>
__device__ __forceinline__ void Scores(ScoreTile<Config>& scores, const WarpState<Config>& state,
                                       const SharedStorage<Config>& shared, int stage,
                                       int first_key) {
  constexpr int kSteps = WarpState<Config>::kQkSteps;
  constexpr int kNTiles = Config::kScoreN / 8;
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int m = 0; m < kMTiles<Config>; ++m) {
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) scores[m][n][c] = 0;
    }
  }
  const unsigned k_address =
      ptx::SharedAddress(&shared.k[stage][first_key + lane % 8 + lane / 16 * 8][lane / 8 % 2 * 8]);
  constexpr int kRowBytes = sizeof(shared.k[0][0]);
  const auto step_of = [&](int step, const u32(&a)[kMTiles<Config>][4]) {
#pragma unroll
    for (int n = 0; n < kNTiles; n += 2) {
      u32 b[4];
      ptx::ldmatrix_x4(b, k_address + n * 8 * kRowBytes + step * 32);
#pragma unroll
      for (int m = 0; m < kMTiles<Config>; ++m) {
        ptx::mma_m16n8k16(scores[m][n], a[m], b[0], b[1], typename Config::Element{});
        ptx::mma_m16n8k16(scores[m][n + 1], a[m], b[2], b[3], typename Config::Element{});
      }
    }
  };
  if constexpr (Config::kQInRegisters) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      u32 a[kMTiles<Config>][4];
#pragma unroll
      for (int m = 0; m < kMTiles<Config>; ++m) {
#pragma unroll
        for (int c = 0; c < 4; ++c) a[m][c] = state.q[m][step][c];
      }
      step_of(step, a);
    }
  } else {
    // Twice, for the sake of compile time: the addresses are all that a step leaves to the next.
#pragma unroll 2
    for (int step = 0; step < kSteps; ++step) {
      u32 a[kMTiles<Config>][4];
      LoadQ<Config>(a, shared, step);
      step_of(step, a);
    }
  }
}

// o += P V for the keys from `first_key` of the stage on, where P is the 16-bit form of the
// weights. Takes the scores as they are, 16 keys at a time, so that products of 16 keys hide the
// exponentials of the next.
template <class Config>
__device__ __forceinline__ void WeightedSum(WarpState<Config>& state, ScoreTile<Config>& scores,
                                            const SharedStorage<Config>& shared, int stage,
                                            int first_key, float to_log2) {
  using Element = typename Config::Element;
  constexpr int kVTiles = WarpState<Config>::kVTiles;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const unsigned v_address =
      ptx::SharedAddress(&shared.v[stage][first_key + lane % 16][lane / 16 * 8]);
  constexpr int kRowBytes = sizeof(shared.v[0][0]);
#pragma unroll
  for (int step = 0; step < Config::kScoreN / 16; ++step) {
    if constexpr (Config::Dropout::kIdentity) {
      Weights<2>(scores, state.softmax, to_log2, 2 * step);
    }
    u32 p[kMTiles<Config>][4];
#pragma unroll
    for (int m = 0; m < kMTiles<Config>; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&s)[4] = scores[m][2 * step + half];
        p[m][2 * half] = ptx::cvt_rn_x2_f32(s[1], s[0], Element{});
        p[m][2 * half + 1] = ptx::cvt_rn_x2_f32(s[3], s[2], Element{});
      }
    }
#pragma unroll
    for (int n = 0; n + 1 < kVTiles; n += 2) {
      u32 b[4];
      ptx::ldmatrix_x4_trans(b, v_address + step * 16 * kRowBytes + n * 16);
#pragma unroll
      for (int m = 0; m < kMTiles<Config>; ++m) {
        ptx::mma_m16n8k16(state.o[m][n], p[m], b[0], b[1], Element{});
        ptx::mma_m16n8k16(state.o[m][n + 1], p[m], b[2], b[3], Element{});
      }
    }
    if constexpr (kVTiles % 2 == 1) {
      u32 b[2];
      ptx::ldmatrix_x2_trans(b, v_address + step * 16 * kRowBytes + (kVTiles - 1) * 16);
#pragma unroll
      for (int m = 0; m < kMTiles<Config>; ++m) {
        ptx::mma_m16n8k16(state.o[m][kVTiles - 1], p[m], b[0], b[1], Element{});
      }
    }
  }
}

// Zeroes the rows of V that no row of the tile may see, between barriers.
template <class Config, class Params>
__device__ __forceinline__ void ZeroUnseenValues(SharedStorage<Config>& shared, int stage,
                                                 const Problem& problem, i64 q_begin, i64 kv_begin,
                                                 const Params& params) {
  for (int key = threadIdx.x; key < Config::kBlockN; key += kThreads<Config>) {
    const i64 j = kv_begin + key;
    bool seen = false;
    if (j < problem.seqlen_kv && Config::KvRows::Locate(problem, j, params).exists()) {
      for (i64 i = q_begin; i < Min(q_begin + Config::kBlockM, problem.seqlen_q); ++i) {
        seen |= Config::Mask::Keep(problem, i, j, params);
      }
    }
    if (!seen) {
      for (int d = 0; d < Config::kHeadDimV; ++d)
        shared.v[stage][key][d] = typename Config::Element{0};
    }
  }
  __syncthreads();
}

// fp16 weights end at 65504 and lose bits below 2^-14: their reference must stay near the maximum.
template <class Config>
inline constexpr bool kWatchAlways = kIsSame<typename Config::Element, Fp16>;

// The tiles of keys of one tile of rows. Holds what the loop carries from one to the next.
template <class Config, class Params>
struct KeyLoop {
  WarpState<Config>& state;
  SharedStorage<Config>& shared;
  const Problem& problem;
  const Params& params;
  const i64 q_begin;
  const i64 q_end;
  const bool careful;
  BlockWalk walk;
  float to_log2;
  bool wide_k;
  bool wide_v;
  int n;          // block of keys
  int stage = 0;  // where it lies

  __device__ __forceinline__ int Below() const {
    return BlockBelow<Config>(n, walk, problem, q_begin, q_end, params);
  }
  __device__ __forceinline__ void StartK(int to_stage, int block) {
    StartCopyOfKeys<Config, Config::kHeadDimQk, 16>(shared.k[to_stage], params.core.k,
                                                    params.core.k_strides, wide_k, problem,
                                                    i64{block} * Config::kBlockN, params);
    ptx::cp_async_commit_group();
  }
  __device__ __forceinline__ void StartV(int to_stage, int block) {
    StartCopyOfKeys<Config, Config::kHeadDimV, 8>(shared.v[to_stage], params.core.v,
                                                  params.core.v_strides, wide_v, problem,
                                                  i64{block} * Config::kBlockN, params);
    ptx::cp_async_commit_group();
  }

  // Block n, whose copies have been started. Without kMasked every row sees all of it.
  template <bool kMasked>
  __device__ __forceinline__ void Tile() {
    constexpr int kChunks = Config::kBlockN / Config::kScoreN;
    const int below = Below();
    ptx::cp_async_wait_group<0>();
    __syncthreads();
    if constexpr (Config::kStages == 2) {
      if (below >= walk.begin) {
        StartK(stage ^ 1, below);
        StartV(stage ^ 1, below);
      }
    } else {
      StartV(0, n);
    }
    const bool whole = !kMasked || (n >= walk.full_begin && n < walk.full_end);
    // The scores of a chunk are under way while the one before is turned into weights.
    ScoreTile<Config> scores[kChunks > 1 ? 2 : 1];
    Scores<Config>(scores[0], state, shared, stage, 0);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (chunk + 1 < kChunks) {
        Scores<Config>(scores[(chunk + 1) % 2], state, shared, stage,
                       (chunk + 1) * Config::kScoreN);
      }
      if constexpr (Config::kStages == 1) {
        if (chunk == 0) ptx::cp_async_wait_group<0>();
        if (chunk == 0 || chunk + 1 == kChunks) __syncthreads();
        if (chunk + 1 == kChunks && below >= walk.begin) StartK(0, below);
      }
      if constexpr (kMasked) {
        if (careful && !whole && chunk == 0) {
          ZeroUnseenValues<Config>(shared, stage, problem, q_begin, i64{n} * Config::kBlockN,
                                   params);
        }
      }
      Attend(scores[chunk % 2], chunk, whole);
    }
    if constexpr (Config::kStages == 2) stage ^= 1;
    n = below;
  }

  __device__ __forceinline__ void Attend(ScoreTile<Config>& scores, int chunk, bool whole) {
    const int first_key = chunk * Config::kScoreN;
    const i64 kv_begin = i64{n} * Config::kBlockN + first_key;
    const i64 row_begin = q_begin + threadIdx.x / 32 * Config::kRowsPerWarp;
    if constexpr (!Config::Score::kIdentity) {
      // Rows beyond the length have no scores that a policy could look at.
      const bool full = whole && q_begin + Config::kBlockM <= problem.seqlen_q;
      ApplyPolicies<Config>(scores, problem, row_begin, kv_begin, full, params);
    } else if (!whole) {
      ApplyPolicies<Config>(scores, problem, row_begin, kv_begin, false, params);
    }
    if (kWatchAlways<Config> || state.softmax.watch) {
      WatchMaxima(scores, state.o, state.softmax, to_log2, kWatchAlways<Config> || careful);
    }
    if constexpr (!Config::Dropout::kIdentity) {
      Weights<Config::kScoreN / 8>(scores, state.softmax, to_log2, 0);
      ApplyDropout<Config>(scores, problem, row_begin, kv_begin, params);
    }
    WeightedSum<Config>(state, scores, shared, stage, first_key, to_log2);
    if constexpr (!kWatchAlways<Config>) RaiseReferences(state.softmax, state.o);
  }
};

// Every block of keys that the mask needs, last first. Leaves state.o and state.softmax.sum
// complete.
template <class Config, class Params>
__device__ __forceinline__ void WalkKeys(WarpState<Config>& state, SharedStorage<Config>& shared,
                                         const Problem& problem, i64 q_begin, i64 q_end,
                                         bool careful, const Params& params) {
  const abi::AttnFwdParams& core = params.core;
  const BlockRange range = Config::Mask::NBlocks(problem, q_begin, q_end, Config::kBlockN, params);
  KeyLoop<Config, Params> loop = {
      .state = state,
      .shared = shared,
      .problem = problem,
      .params = params,
      .q_begin = q_begin,
      .q_end = q_end,
      .careful = careful,
      .walk = {static_cast<int>(range.begin), static_cast<int>(range.end),
               static_cast<int>(kHasFullBlocks<Config> ? range.full_begin : range.begin),
               static_cast<int>(kHasFullBlocks<Config> ? range.full_end : range.begin)},
      // The scale of an empty chain is folded into the exponent.
      .to_log2 = Config::Score::kIdentity ? core.scale * kLog2OfE : kLog2OfE,
      .wide_k = Aligned16(core.k, core.k_strides),
      .wide_v = Aligned16(core.v, core.v_strides),
      .n = static_cast<int>(range.end),
  };
  const BlockWalk& walk = loop.walk;
  loop.n = loop.Below();
  if (loop.n < walk.begin) return;
  loop.StartK(0, loop.n);
  if constexpr (Config::kStages == 2) loop.StartV(0, loop.n);
  if constexpr (Config::kQInRegisters) {
    ptx::cp_async_wait_group<0>();
    __syncthreads();
#pragma unroll
    for (int step = 0; step < WarpState<Config>::kQkSteps; ++step) {
      u32 a[kMTiles<Config>][4];
      LoadQ<Config>(a, shared, step);
#pragma unroll
      for (int m = 0; m < kMTiles<Config>; ++m) {
#pragma unroll
        for (int c = 0; c < 4; ++c) state.q[m][step][c] = a[m][c];
      }
    }
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

// Whether any element of O or a sum is Inf or NaN.
template <class Config>
__device__ __forceinline__ bool NonFinite(const WarpState<Config>& state) {
  float probe = 0;  // stays 0: 0 * finite
#pragma unroll
  for (int m = 0; m < kMTiles<Config>; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) probe = fmaf(state.softmax.sum[m][r], 0.f, probe);
#pragma unroll
    for (int n = 0; n < WarpState<Config>::kVTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) probe = fmaf(state.o[m][n][c], 0.f, probe);
    }
  }
  return probe != 0 || probe != probe;
}

// Normalises, and writes O through the warp's own rows of shared.qo so that the stores are wide and
// dense.
template <class Config, class Params>
__device__ __forceinline__ void StoreRows(WarpState<Config>& state, SharedStorage<Config>& shared,
                                          const Problem& problem, i64 q_begin,
                                          const Params& params) {
  using Element = typename Config::Element;
  const abi::AttnFwdParams& core = params.core;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first_row = warp * 16 * kMTiles<Config>;
  const float sink = Config::Sink::Logit(problem, params);
#pragma unroll
  for (int m = 0; m < kMTiles<Config>; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const SoftmaxEnd end = FinishRow(state.softmax, m, r, sink);
      const int row = first_row + RowOf(m, 2 * r);
      if (lane % 4 == 0 && q_begin + row < problem.seqlen_q)
        Config::Lse::Store(end.lse, problem, q_begin + row, params);
#pragma unroll
      for (int n = 0; n < WarpState<Config>::kVTiles; ++n) {
        const float low = end.empty ? 0.f : state.o[m][n][2 * r] * end.o_scale;
        const float high = end.empty ? 0.f : state.o[m][n][2 * r + 1] * end.o_scale;
        *reinterpret_cast<u32*>(&shared.qo[row][ColumnOf(n, 0)]) =
            ptx::cvt_rn_x2_f32(high, low, Element{});
      }
    }
  }
  __syncwarp();
  Element* o = static_cast<Element*>(core.o) + problem.q_batch * core.o_strides.batch +
               problem.h * core.o_strides.head;
  const int rows =
      static_cast<int>(Min(16 * kMTiles<Config>, problem.seqlen_q - q_begin - first_row));
  constexpr int kChunks = RoundUp(Config::kHeadDimV, 8) / 8;
  if (Config::kHeadDimV % 8 == 0 && Aligned16(core.o, core.o_strides)) {
    for (int index = lane; index < rows * kChunks; index += 32) {
      const int row = first_row + index / kChunks, column = index % kChunks * 8;
      *reinterpret_cast<Vec16*>(o + (problem.q_row + q_begin + row) * core.o_strides.seq + column) =
          *reinterpret_cast<const Vec16*>(&shared.qo[row][column]);
    }
  } else {
    for (int index = lane; index < rows * Config::kHeadDimV; index += 32) {
      const int row = first_row + index / Config::kHeadDimV, column = index % Config::kHeadDimV;
      o[(problem.q_row + q_begin + row) * core.o_strides.seq + column] = shared.qo[row][column];
    }
  }
}

template <class Config, class Params>
__device__ __forceinline__ void AttendTile(SharedStorage<Config>& shared, const Problem& problem,
                                           i64 q_begin, const Params& params) {
  using Element = typename Config::Element;
  const abi::AttnFwdParams& core = params.core;
  const i64 q_end = Min(q_begin + Config::kBlockM, problem.seqlen_q);
  WarpState<Config> state;
  for (bool careful = false;; careful = true) {
    __syncthreads();  // shared memory may still be read: by the previous tile, or by the first
                      // attempt
    const Element* q = static_cast<const Element*>(core.q) +
                       problem.q_batch * core.q_strides.batch + problem.h * core.q_strides.head +
                       (problem.q_row + q_begin) * core.q_strides.seq;
    StartCopy<Config::kHeadDimQk, 16, kThreads<Config>>(
        shared.qo, static_cast<int>(q_end - q_begin), Aligned16(core.q, core.q_strides),
        DenseRows<Element>{q, core.q_strides.seq});
    // Also when no key follows: O is written where these copies land.
    ptx::cp_async_commit_group();
    StartSoftmax(state.softmax, state.o);
    WalkKeys<Config>(state, shared, problem, q_begin, q_end, careful, params);
    if (careful || !__syncthreads_or(NonFinite<Config>(state))) break;
  }
  ptx::cp_async_wait_group<0>();
  __syncthreads();
  StoreRows<Config>(state, shared, problem, q_begin, params);
}

template <class Config, class Params>
__device__ __forceinline__ void Run(const Params& params) {
  static_assert(MaskPolicy<typename Config::Mask, Params>);
  static_assert(ScorePolicy<typename Config::Score, Params>);
  static_assert(KvRowsPolicy<typename Config::KvRows, Params>);
  static_assert(Config::kBlockM == Config::kWarps * Config::kRowsPerWarp);
  static_assert(Config::kRowsPerWarp % 16 == 0);
  static_assert(Config::kScoreN % 16 == 0 && Config::kBlockN % Config::kScoreN == 0);
  extern __shared__ __align__(16) u8 shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(shared_bytes);
  WalkTiles<Config>(params, [&](const Problem& problem, i64 q_begin) {
    __syncthreads();
    if (threadIdx.x == 0) shared.problem = problem;
    __syncthreads();
    AttendTile<Config>(shared, shared.problem, q_begin, params);
  });
}

}  // namespace fwd_sm80
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_FWD_SM80_CUH_
