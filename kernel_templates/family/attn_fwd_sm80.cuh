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

// The smallest power of two that is not below `n`.
TILEWRIGHT_HOST_DEVICE constexpr int PowerOfTwoFrom(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

template <class Config>
inline constexpr int kMTiles = Config::kRowsPerWarp / 16;
template <class Config>
inline constexpr int kThreads = Config::kWarps * 32;

struct alignas(16) Vec16 {
  u32 words[4];
};

// Whether every row of a 16-bit tensor starts on a multiple of 16 bytes.
__device__ __forceinline__ bool Aligned16(const void* base, const abi::TensorStrides& strides) {
  return (reinterpret_cast<u64>(base) % 16 == 0) &&
         (strides.batch | strides.seq | strides.head) % 8 == 0;
}

// Elements between rows of a shared tile that holds `columns` of them.
TILEWRIGHT_HOST_DEVICE constexpr int Pitch(int columns) {
  return 8 * (RoundUp(columns, 8) / 8 | 1);
}

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
  float reference[kMTiles<Config>][2];  // log2 units
  float sum[kMTiles<Config>][2];        // this lane's columns only, until the end
};

// Rows `stride` elements apart.
template <class Element>
struct DenseRows {
  static constexpr bool kMayBeMissing = false;
  const Element* first;
  i64 stride;
  __device__ __forceinline__ const Element* operator()(int row) const {
    return first + row * stride;
  }
};

// Rows of K or V found one by one; null where there is none.
template <class Config, class Params>
struct LocatedRows {
  static constexpr bool kMayBeMissing = true;
  const typename Config::Element* head;
  const abi::TensorStrides& strides;
  const Problem& problem;
  const Params& params;
  i64 kv_begin;
  __device__ __forceinline__ const typename Config::Element* operator()(int row) const {
    const i64 j = kv_begin + row;
    if (j >= problem.seqlen_kv) return nullptr;
    const KvRow at = Config::KvRows::Locate(problem, j, params);
    return at.exists() ? head + at.block * strides.batch + at.row * strides.seq : nullptr;
  }
};

// Copies rows [0, kRows) of a tile from global memory; rows from `valid_rows` on and columns from
// kColumns to the next multiple of kColumnStep become zeros. `row_pointer(r)` is only read for
// valid rows. `wide`: every row starts on a multiple of 16 bytes and is copied by cp.async; else
// element by element.
template <int kColumns, int kColumnStep, int kThreads, class Element, int kRows, int kPitch,
          class RowPointer>
__device__ __forceinline__ void StartCopy(Element (&tile)[kRows][kPitch], int valid_rows, bool wide,
                                          const RowPointer& row_pointer) {
  constexpr int kPadded = RoundUp(kColumns, kColumnStep);
  const int thread = static_cast<int>(threadIdx.x);
  if (wide) {
    constexpr int kChunks = kPadded / 8;
    const auto copy = [&](int row, int chunk, const Element* source_row) {
      // All bytes of a chunk, those below kColumns, or none: then the address is not followed.
      int bytes = 16;
      if (kColumns % 8 != 0 && chunk == kColumns / 8) bytes = kColumns % 8 * 2;
      if (kPadded - kColumns >= 8 && chunk * 8 >= kColumns) bytes = 0;
      if (row >= valid_rows || (RowPointer::kMayBeMissing && source_row == nullptr)) bytes = 0;
      ptx::cp_async_cg_16(ptx::SharedAddress(&tile[row][chunk * 8]), source_row + chunk * 8, bytes);
    };
    // A power of two of threads side by side, so that each keeps its column and its addresses are a
    // constant step apart; for other chunk counts the last of them rest.
    constexpr int kLanes = PowerOfTwoFrom(kChunks);
    constexpr int kStep = kThreads / kLanes;
    const int first_row = thread / kLanes, chunk = thread % kLanes;
    if (kLanes == kChunks || chunk < kChunks) {
#pragma unroll
      for (int row = 0; row < kRows / kStep * kStep; row += kStep) {
        copy(first_row + row, chunk, row_pointer(first_row + row));
      }
      if (kRows % kStep != 0 && first_row < kRows % kStep) {
        copy(kRows / kStep * kStep + first_row, chunk,
             row_pointer(kRows / kStep * kStep + first_row));
      }
    }
  } else {
#pragma unroll 1
    for (int index = thread; index < kRows * kPadded; index += kThreads) {
      const int row = index / kPadded, column = index % kPadded;
      Element element = {0};
      if (row < valid_rows && column < kColumns) {
        const Element* source_row = row_pointer(row);
        if (!RowPointer::kMayBeMissing || source_row != nullptr) element = source_row[column];
      }
      tile[row][column] = element;
    }
  }
}

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

// Turns scores (times `to_log2`: log2 units) into weights relative to the row's reference, moving
// the reference where a score passes it by more than kLazyLog2.
template <class Config>
__device__ __forceinline__ void OnlineSoftmax(WarpState<Config>& state, float to_log2) {
  constexpr int kNTiles = WarpState<Config>::kNTiles;
  float highest[kMTiles<Config>][2];
  bool moves = false;
#pragma unroll
  for (int m = 0; m < kMTiles<Config>; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float value = fmaxf(state.s[m][0][2 * r], state.s[m][0][2 * r + 1]);
#pragma unroll
      for (int n = 1; n < kNTiles; ++n) {
        value = fmaxf(value, fmaxf(state.s[m][n][2 * r], state.s[m][n][2 * r + 1]));
      }
      value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
      value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
      highest[m][r] = value * to_log2;
      moves |= highest[m][r] > state.reference[m][r] + kLazyLog2;
    }
  }
  if (__any_sync(kAllLanes, moves)) {
#pragma unroll
    for (int m = 0; m < kMTiles<Config>; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float before = state.reference[m][r];
        const float after = fmaxf(before, highest[m][r]);
        // A row that has seen no key yet has reference -inf and nothing to scale.
        const float factor = before == after ? 1.f : ptx::ex2_approx_ftz(before - after);
        state.reference[m][r] = after;
        state.sum[m][r] *= factor;
#pragma unroll
        for (int n = 0; n < WarpState<Config>::kVTiles; ++n) {
          state.o[m][n][2 * r] *= factor;
          state.o[m][n][2 * r + 1] *= factor;
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kMTiles<Config>; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // While every score of a row is -inf its reference is too; exp2(-inf - 0) is the 0 we want.
      const float reference = state.reference[m][r] == -Infinity() ? 0.f : state.reference[m][r];
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& s = state.s[m][n][2 * r + c];
          s = ptx::ex2_approx_ftz(fmaf(s, to_log2, -reference));
          sum += s;
        }
      }
      state.sum[m][r] += sum;
    }
  }
}

// A lane's element c of m16n8 tile (m, n) is this row and column of the block's tile.
template <class Config>
__device__ __forceinline__ int RowOf(int m, int c) {
  return static_cast<int>(threadIdx.x / 32 * 16 * kMTiles<Config> + m * 16 + threadIdx.x % 32 / 4 +
                          c / 2 * 8);
}
__device__ __forceinline__ int ColumnOf(int n, int c) {
  return static_cast<int>(n * 8 + threadIdx.x % 4 * 2 + c % 2);
}

// Applies score policies and masks to the raw products. Scores that are not kept become -inf and
// are not looked at.
template <class Config, class Params>
__device__ __forceinline__ void ApplyPolicies(WarpState<Config>& state, const Problem& problem,
                                              i64 q_begin, i64 kv_begin, bool full,
                                              const Params& params) {
#pragma unroll
  for (int m = 0; m < kMTiles<Config>; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const i64 i = q_begin + RowOf<Config>(m, 2 * r);
      // The row's keys as columns of the tile; none for rows beyond the length.
      const KeyInterval keys = Config::Mask::RowKeys(problem, i, params);
      const bool inside = i < problem.seqlen_q;
      const int begin = static_cast<int>(Max(0, Min(keys.begin - kv_begin, Config::kBlockN)));
      const int end =
          inside ? static_cast<int>(Max(0, Min(keys.end - kv_begin, Config::kBlockN))) : 0;
#pragma unroll
      for (int n = 0; n < WarpState<Config>::kNTiles; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int column = ColumnOf(n, c);
          const i64 j = kv_begin + column;
          bool keep = full || (column >= begin && column < end);
          if constexpr (!Config::KvRows::kIsDense) {
            keep = keep && Config::KvRows::Locate(problem, j, params).exists();
          }
          if constexpr (!Config::Mask::kIsInterval)
            keep = keep && (full || Config::Mask::Keep(problem, i, j, params));
          float& s = state.s[m][n][2 * r + c];
          if constexpr (Config::Score::kIdentity) {
            s = keep ? s : -Infinity();
          } else {
            s = keep ? Config::Score::Apply(s * params.core.scale, problem, i, j, params)
                     : -Infinity();
          }
        }
      }
    }
  }
}

template <class Config, class Params>
__device__ __forceinline__ void ApplyDropout(WarpState<Config>& state, const Problem& problem,
                                             i64 q_begin, i64 kv_begin, const Params& params) {
#pragma unroll
  for (int m = 0; m < kMTiles<Config>; ++m) {
#pragma unroll
    for (int n = 0; n < WarpState<Config>::kNTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        state.s[m][n][c] *= Config::Dropout::Factor(problem, q_begin + RowOf<Config>(m, c),
                                                    kv_begin + ColumnOf(n, c), params);
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

// Starts the copy of the K or V rows of block n.
template <class Config, int kColumns, int kColumnStep, int kPitch, class Params>
__device__ __forceinline__ void StartCopyOfKeys(
    typename Config::Element (&tile)[Config::kBlockN][kPitch], const void* base,
    const abi::TensorStrides& strides, bool wide, const Problem& problem, i64 kv_begin,
    const Params& params) {
  using Element = typename Config::Element;
  const Element* head = static_cast<const Element*>(base) + problem.h_kv * strides.head;
  const int valid_rows = static_cast<int>(Min(Config::kBlockN, problem.seqlen_kv - kv_begin));
  if constexpr (Config::KvRows::kIsDense) {
    const KvRow first = Config::KvRows::Locate(problem, kv_begin, params);
    const Element* rows = head + first.block * strides.batch + first.row * strides.seq;
    StartCopy<kColumns, kColumnStep, kThreads<Config>>(tile, valid_rows, wide,
                                                       DenseRows<Element>{rows, strides.seq});
  } else {
    StartCopy<kColumns, kColumnStep, kThreads<Config>>(
        tile, valid_rows, wide,
        LocatedRows<Config, Params>{head, strides, problem, params, kv_begin});
  }
}

// Whether the mask may know of blocks that need no element test. Keys on missing pages do.
template <class Config>
inline constexpr bool kHasFullBlocks = Config::Mask::kIsInterval&& Config::KvRows::kIsDense;

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
      ApplyPolicies<Config>(state, problem, q_begin, kv_begin, full, params);
    } else if (!whole) {
      ApplyPolicies<Config>(state, problem, q_begin, kv_begin, false, params);
    }
    OnlineSoftmax<Config>(state, to_log2);
    if constexpr (kMasked) {
      if (careful && !whole)
        ZeroUnseenValues<Config>(shared, stage, problem, q_begin, kv_begin, params);
    }
    if constexpr (!Config::Dropout::kIdentity) {
      ApplyDropout<Config>(state, problem, q_begin, kv_begin, params);
    }
    WeightedSum<Config>(state, shared, stage, lane);
    if constexpr (Config::kStages == 2) stage ^= 1;
    n = below;
  }
};

// Every block of keys that the mask needs, last first. Leaves state.o and state.sum complete.
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
  const float sink = Config::Sink::Logit(problem, params);
#pragma unroll
  for (int m = 0; m < kMTiles<Config>; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = state.sum[m][r];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      const SoftmaxEnd end = FinishSoftmax(state.reference[m][r] * kLn2, sum, sink);
      const int row = RowOf<Config>(m, 2 * r);
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
  const int first_row = warp * 16 * kMTiles<Config>;
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
        state.reference[m][r] = -Infinity();
        state.sum[m][r] = 0;
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
