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

  alignas(16) Element qo[Config::kBlockM][kPitchQo];
  alignas(16) Element k[Config::kStages][Config::kBlockN][kPitchQk];
  alignas(16) Element v[Config::kStages][Config::kBlockN][kPitchV];
};

// One warp's part of the tile. Fragment layouts as in ptx/mma_sync.cuh: s[m][n] and o[m][n] are
// m16n8 accumulators.
template <class Config>
struct WarpState {
  static constexpr int kNTiles = Config::kBlockN / 8;
  static constexpr int kVTiles = RoundUp(Config::kHeadDimV, 8) / 8;

  float s[kMTiles<Config>][kNTiles][4];
  float o[kMTiles<Config>][kVTiles][4];
  SoftmaxState<kMTiles<Config>> softmax;
};

// s = Q K^T for this warp's rows.
template <class Config>
__device__ __forceinline__ void Scores(WarpState<Config>& state,
                                       const SharedStorage<Config>& shared, int stage, int warp,
                                       int lane) {
  constexpr int kSteps = RoundUp(Config::kHeadDimQk, 16) / 16;
#pragma unroll
  for (int m = 0; m < kMTiles<Config>; ++m) {
#pragma unroll
    for (int n = 0; n < WarpState<Config>::kNTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) state.s[m][n][c] = 0;
    }
  }
  const unsigned q_address =
      ptx::SharedAddress(&shared.qo[warp * 16 * kMTiles<Config> + lane % 16][lane / 16 * 8]);
  const unsigned k_address =
      ptx::SharedAddress(&shared.k[stage][lane % 8 + lane / 16 * 8][lane / 8 % 2 * 8]);
  constexpr int kRowBytesQ = sizeof(shared.qo[0]);
  constexpr int kRowBytesK = sizeof(shared.k[0][0]);
  // Twice, for the sake of compile time: the addresses are all that a step leaves to the next.
#pragma unroll 2
  for (int step = 0; step < kSteps; ++step) {
    u32 a[kMTiles<Config>][4];
#pragma unroll
    for (int m = 0; m < kMTiles<Config>; ++m) {
      ptx::ldmatrix_x4(a[m], q_address + m * 16 * kRowBytesQ + step * 32);
    }
#pragma unroll
    for (int n = 0; n < WarpState<Config>::kNTiles; n += 2) {
      u32 b[4];
      ptx::ldmatrix_x4(b, k_address + n * 8 * kRowBytesK + step * 32);
#pragma unroll
      for (int m = 0; m < kMTiles<Config>; ++m) {
        ptx::mma_m16n8k16(state.s[m][n], a[m], b[0], b[1], typename Config::Element{});
        ptx::mma_m16n8k16(state.s[m][n + 1], a[m], b[2], b[3], typename Config::Element{});
      }
    }
  }
}

// o += P V, where P is the 16-bit form of s.
template <class Config>
__device__ __forceinline__ void WeightedSum(WarpState<Config>& state,
                                            const SharedStorage<Config>& shared, int stage,
                                            int lane) {
  using Element = typename Config::Element;
  constexpr int kVTiles = WarpState<Config>::kVTiles;
  const unsigned v_address = ptx::SharedAddress(&shared.v[stage][lane % 16][lane / 16 * 8]);
  constexpr int kRowBytes = sizeof(shared.v[0][0]);
#pragma unroll
  for (int step = 0; step < Config::kBlockN / 16; ++step) {
    u32 p[kMTiles<Config>][4];
#pragma unroll
    for (int m = 0; m < kMTiles<Config>; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&s)[4] = state.s[m][2 * step + half];
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
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    const i64 kv_begin = i64{n} * Config::kBlockN;
    const i64 row_begin = q_begin + warp * Config::kRowsPerWarp;
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
    Scores<Config>(state, shared, stage, warp, lane);
    if constexpr (Config::kStages == 1) {
      ptx::cp_async_wait_group<0>();
      __syncthreads();
      if (below >= walk.begin) StartK(0, below);
    }
    const bool whole = !kMasked || (n >= walk.full_begin && n < walk.full_end);
    if constexpr (!Config::Score::kIdentity) {
      // Rows beyond the length have no scores that a policy could look at.
      const bool full = whole && q_begin + Config::kBlockM <= problem.seqlen_q;
      ApplyPolicies<Config>(state.s, problem, row_begin, kv_begin, full, params);
    } else if (!whole) {
      ApplyPolicies<Config>(state.s, problem, row_begin, kv_begin, false, params);
    }
    OnlineSoftmax(state.s, state.o, state.softmax, to_log2);
    if constexpr (kMasked) {
      if (careful && !whole)
        ZeroUnseenValues<Config>(shared, stage, problem, q_begin, kv_begin, params);
    }
    if constexpr (!Config::Dropout::kIdentity) {
      ApplyDropout<Config>(state.s, problem, row_begin, kv_begin, params);
    }
    WeightedSum<Config>(state, shared, stage, lane);
    if constexpr (Config::kStages == 2) stage ^= 1;
    n = below;
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

// Whether any element of O is Inf or NaN.
template <class Config>
__device__ __forceinline__ bool NonFinite(const WarpState<Config>& state) {
  float probe = 0;  // stays 0: 0 * finite
#pragma unroll
  for (int m = 0; m < kMTiles<Config>; ++m) {
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
      float sum = state.softmax.sum[m][r];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      const SoftmaxEnd end = FinishSoftmax(state.softmax.reference[m][r] * kLn2, sum, sink);
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
#pragma unroll
    for (int m = 0; m < kMTiles<Config>; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        state.softmax.reference[m][r] = -Infinity();
        state.softmax.sum[m][r] = 0;
      }
#pragma unroll
      for (int n = 0; n < WarpState<Config>::kVTiles; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) state.o[m][n][c] = 0;
      }
    }
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
  static_assert(Config::kRowsPerWarp == 16 || Config::kRowsPerWarp == 32);
  static_assert(Config::kBlockN % 16 == 0);
  extern __shared__ __align__(16) u8 shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(shared_bytes);
  WalkTiles<Config>(params, [&](const Problem& problem, i64 q_begin) {
    AttendTile<Config>(shared, problem, q_begin, params);
  });
}

}  // namespace fwd_sm80
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_FWD_SM80_CUH_
