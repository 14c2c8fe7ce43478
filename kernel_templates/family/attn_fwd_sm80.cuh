// attn_fwd_sm80: forward attention on mma.sync tensor cores with cp.async copies, for every
// architecture from sm_80 on.
//
// Algorithm: FlashAttention-2 (Dao, arXiv 2307.08691): a block owns kBlockM query rows of one
// (batch, head) and walks the keys in tiles of kBlockN, newest first, with an online softmax in the
// log2 domain. Rows are re-referenced lazily: the running reference moves only when a score passes
// it by more than kLazyLog2, so that most tiles do not touch O.
//
// Warps:         kWarps, each owning 16 * kMTiles rows for the whole loop; no warp specialisation.
// Shared memory: q (later o), k, v; rows an odd number of 16-byte chunks apart, so that the eight
// rows an ldmatrix
//                phase reads lie in different banks.
// Order of a tile, two block barriers each:
//                wait K(n) | start V(n) | S = Q K(n)^T | wait V(n) | start K(n-1) | softmax | O +=
//                P V(n)
// Non-finite V:  P * V turns a masked key's NaN into NaN. When O comes out non-finite the tile is
// computed once more in
//                careful mode, which zeroes the rows of V that no row of the tile may see.
#ifndef TILEWRIGHT_FAMILY_ATTN_FWD_SM80_CUH_
#define TILEWRIGHT_FAMILY_ATTN_FWD_SM80_CUH_

#include "abi/attn_fwd_params.h"
#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/online_softmax.cuh"
#include "core/problem.cuh"
#include "core/warp_reduce.cuh"
#include "policy/dropout.cuh"
#include "policy/kv_rows.cuh"
#include "policy/lse.cuh"
#include "policy/mask_chain.cuh"
#include "policy/score_chain.cuh"
#include "policy/sink.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/special.cuh"

namespace tilewright {
namespace fwd_sm80 {

struct alignas(16) Vec16 {
  u32 words[4];
};

// Whether every row of a 16-bit tensor starts on a multiple of 16 bytes.
__device__ __forceinline__ bool Aligned16(const void* base, const abi::TensorStrides& strides) {
  return (reinterpret_cast<u64>(base) % 16 == 0) &&
         (strides.batch | strides.seq | strides.head) % 8 == 0;
}

// Elements between rows of a shared tile that holds `columns` of them.
constexpr int Pitch(int columns) { return 8 * (RoundUp(columns, 8) / 8 | 1); }

template <class Config>
struct SharedStorage {
  static constexpr int kPitchQk = Pitch(RoundUp(Config::kHeadDimQk, 16));
  static constexpr int kPitchV = Pitch(Config::kHeadDimV);
  static constexpr int kPitchQo = kPitchQk > kPitchV ? kPitchQk : kPitchV;
  using Element = typename Config::Element;

  alignas(16) Element qo[Config::kBlockM][kPitchQo];
  alignas(16) Element k[Config::kBlockN][kPitchQk];
  alignas(16) Element v[Config::kBlockN][kPitchV];
  u8 seen[Config::kBlockN];  // careful mode: whether any row of the tile sees the key
};

// One warp's part of the tile. Fragment layouts as in ptx/mma_sync.cuh: s[m][n] and o[m][n] are
// m16n8 accumulators.
template <class Config>
struct WarpState {
  static constexpr int kNTiles = Config::kBlockN / 8;
  static constexpr int kVTiles = RoundUp(Config::kHeadDimV, 8) / 8;

  float s[Config::kMTiles][kNTiles][4];
  float o[Config::kMTiles][kVTiles][4];
  float reference[Config::kMTiles][2];  // log2 units
  float sum[Config::kMTiles][2];        // this lane's columns only, until the end
};

// Copies rows [0, kRows) of a tile from global memory, 16 bytes at a time; rows from `valid_rows`
// on and columns from kColumns on are zeros. `row_pointer(r)` is only evaluated for valid rows.
template <int kRows, int kColumns, int kPitch, int kThreads, class Element, class RowPointer>
__device__ __forceinline__ void StartCopy(Element (&tile)[kRows][kPitch], int valid_rows,
                                          bool aligned, const RowPointer& row_pointer) {
  constexpr int kChunks =
      (kPitch / 8 - 1) * 8 >= RoundUp(kColumns, 8) ? kPitch / 8 - 1 : kPitch / 8;
  constexpr int kFullChunks = kColumns / 8;
  if (aligned) {
#pragma unroll 4
    for (int index = threadIdx.x; index < kRows * kChunks; index += kThreads) {
      const int row = index / kChunks;
      const int chunk = index % kChunks;
      const unsigned destination = ptx::SharedAddress(&tile[row][chunk * 8]);
      const bool valid = row < valid_rows && chunk * 8 < kColumns;
      const Element* source = row_pointer(valid ? row : 0) + (valid ? chunk * 8 : 0);
      const int bytes = !valid ? 0 : chunk < kFullChunks ? 16 : (kColumns % 8) * 2;
      ptx::cp_async_cg_16(destination, source, bytes);
    }
  } else {
    for (int index = threadIdx.x; index < kRows * kChunks * 8; index += kThreads) {
      const int row = index / (kChunks * 8);
      const int column = index % (kChunks * 8);
      const bool valid = row < valid_rows && column < kColumns;
      tile[row][column] = valid ? row_pointer(row)[column] : Element{0};
    }
  }
}

// s = Q K^T for this warp's rows.
template <class Config>
__device__ __forceinline__ void Scores(WarpState<Config>& state,
                                       const SharedStorage<Config>& shared, int warp, int lane) {
  constexpr int kSteps = RoundUp(Config::kHeadDimQk, 16) / 16;
#pragma unroll
  for (int m = 0; m < Config::kMTiles; ++m) {
#pragma unroll
    for (int n = 0; n < WarpState<Config>::kNTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) state.s[m][n][c] = 0;
    }
  }
  const unsigned q_address =
      ptx::SharedAddress(&shared.qo[warp * 16 * Config::kMTiles + lane % 16][lane / 16 * 8]);
  const unsigned k_address =
      ptx::SharedAddress(&shared.k[lane % 8 + lane / 16 * 8][lane / 8 % 2 * 8]);
  constexpr int kRowBytesQ = sizeof(shared.qo[0]);
  constexpr int kRowBytesK = sizeof(shared.k[0]);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    u32 a[Config::kMTiles][4];
#pragma unroll
    for (int m = 0; m < Config::kMTiles; ++m) {
      ptx::ldmatrix_x4(a[m], q_address + m * 16 * kRowBytesQ + step * 32);
    }
#pragma unroll
    for (int n = 0; n < WarpState<Config>::kNTiles; n += 2) {
      u32 b[4];
      ptx::ldmatrix_x4(b, k_address + n * 8 * kRowBytesK + step * 32);
#pragma unroll
      for (int m = 0; m < Config::kMTiles; ++m) {
        ptx::mma_m16n8k16(state.s[m][n], a[m], b[0], b[1], typename Config::Element{});
        ptx::mma_m16n8k16(state.s[m][n + 1], a[m], b[2], b[3], typename Config::Element{});
      }
    }
  }
}

// o += P V, where P is the 16-bit form of s.
template <class Config>
__device__ __forceinline__ void WeightedSum(WarpState<Config>& state,
                                            const SharedStorage<Config>& shared, int lane) {
  using Element = typename Config::Element;
  constexpr int kVTiles = WarpState<Config>::kVTiles;
  const unsigned v_address = ptx::SharedAddress(&shared.v[lane % 16][lane / 16 * 8]);
  constexpr int kRowBytes = sizeof(shared.v[0]);
#pragma unroll
  for (int step = 0; step < Config::kBlockN / 16; ++step) {
    u32 p[Config::kMTiles][4];
#pragma unroll
    for (int m = 0; m < Config::kMTiles; ++m) {
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
      for (int m = 0; m < Config::kMTiles; ++m) {
        ptx::mma_m16n8k16(state.o[m][n], p[m], b[0], b[1], Element{});
        ptx::mma_m16n8k16(state.o[m][n + 1], p[m], b[2], b[3], Element{});
      }
    }
    if constexpr (kVTiles % 2 == 1) {
      u32 b[2];
      ptx::ldmatrix_x2_trans(b, v_address + step * 16 * kRowBytes + (kVTiles - 1) * 16);
#pragma unroll
      for (int m = 0; m < Config::kMTiles; ++m) {
        ptx::mma_m16n8k16(state.o[m][kVTiles - 1], p[m], b[0], b[1], Element{});
      }
    }
  }
}

// Turns scores (times `to_log2`: log2 units) into weights relative to the row's reference, moving
// the reference where a score passes it by more than Config::kLazyLog2.
template <class Config>
__device__ __forceinline__ void OnlineSoftmax(WarpState<Config>& state, float to_log2) {
  constexpr int kNTiles = WarpState<Config>::kNTiles;
  float highest[Config::kMTiles][2];
  bool moves = false;
#pragma unroll
  for (int m = 0; m < Config::kMTiles; ++m) {
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
      moves |= highest[m][r] > state.reference[m][r] + Config::kLazyLog2;
    }
  }
  if (__any_sync(kAllLanes, moves)) {
#pragma unroll
    for (int m = 0; m < Config::kMTiles; ++m) {
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
  for (int m = 0; m < Config::kMTiles; ++m) {
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
  return static_cast<int>(threadIdx.x / 32 * 16 * Config::kMTiles + m * 16 + threadIdx.x % 32 / 4 +
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
  for (int m = 0; m < Config::kMTiles; ++m) {
#pragma unroll
    for (int n = 0; n < WarpState<Config>::kNTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const i64 i = q_begin + RowOf<Config>(m, c);
        const i64 j = kv_begin + ColumnOf(n, c);
        const bool keep = full || (i < problem.seqlen_q && j < problem.seqlen_kv &&
                                   Config::KvRows::Locate(problem, j, params).exists() &&
                                   Config::Mask::Keep(problem, i, j, params));
        float& s = state.s[m][n][c];
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

template <class Config, class Params>
__device__ __forceinline__ void ApplyDropout(WarpState<Config>& state, const Problem& problem,
                                             i64 q_begin, i64 kv_begin, const Params& params) {
#pragma unroll
  for (int m = 0; m < Config::kMTiles; ++m) {
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
__device__ __noinline__ void ZeroUnseenValues(SharedStorage<Config>& shared, const Problem& problem,
                                              i64 q_begin, i64 kv_begin, const Params& params) {
  for (int key = threadIdx.x; key < Config::kBlockN; key += Config::kThreads) {
    const i64 j = kv_begin + key;
    bool seen = false;
    if (j < problem.seqlen_kv && Config::KvRows::Locate(problem, j, params).exists()) {
      for (i64 i = q_begin; i < Min(q_begin + Config::kBlockM, problem.seqlen_q); ++i) {
        seen |= Config::Mask::Keep(problem, i, j, params);
      }
    }
    if (!seen) {
      for (int d = 0; d < Config::kHeadDimV; ++d) shared.v[key][d] = typename Config::Element{0};
    }
  }
  __syncthreads();
}

// The next block below `n` that the mask needs; range.begin - 1 when there is none.
template <class Config, class Params>
__device__ __forceinline__ i64 BlockBelow(i64 n, const BlockRange& range, const Problem& problem,
                                          i64 q_begin, i64 q_end, const Params& params) {
  for (--n; n >= range.begin; --n) {
    const i64 kv_begin = n * Config::kBlockN;
    if (!Config::Mask::Skip(problem, q_begin, q_end, kv_begin,
                            Min(kv_begin + Config::kBlockN, problem.seqlen_kv), params)) {
      break;
    }
  }
  return n;
}

// Starts the copy of the K or V rows of block n.
template <class Config, int kColumns, int kPitch, class Params>
__device__ __forceinline__ void StartCopyOfKeys(
    typename Config::Element (&tile)[Config::kBlockN][kPitch], const void* base,
    const abi::TensorStrides& strides, bool aligned, const Problem& problem, i64 kv_begin,
    const Params& params) {
  using Element = typename Config::Element;
  const Element* head = static_cast<const Element*>(base) + problem.h_kv * strides.head;
  const int valid_rows = static_cast<int>(Min(Config::kBlockN, problem.seqlen_kv - kv_begin));
  StartCopy<Config::kBlockN, kColumns, kPitch, Config::kThreads>(
      tile, valid_rows, aligned, [&](int row) {
        const KvRow at = Config::KvRows::Locate(problem, kv_begin + row, params);
        return head + (at.exists() ? at.block * strides.batch + at.row * strides.seq : 0);
      });
}

// Every block [range.begin, range.end) that the mask needs, last first. Returns with state.o and
// state.sum complete.
template <class Config, class Params>
__device__ __forceinline__ void WalkKeys(WarpState<Config>& state, SharedStorage<Config>& shared,
                                         const Problem& problem, i64 q_begin, i64 q_end,
                                         bool careful, const Params& params) {
  const abi::AttnFwdParams& core = params.core;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const BlockRange range = Config::Mask::NBlocks(problem, q_begin, q_end, Config::kBlockN, params);
  const bool whole_rows = q_begin + Config::kBlockM <= problem.seqlen_q;
  const auto start_k = [&](i64 n) {
    StartCopyOfKeys<Config, Config::kHeadDimQk>(shared.k, core.k, core.k_strides,
                                                Aligned16(core.k, core.k_strides), problem,
                                                n * Config::kBlockN, params);
    ptx::cp_async_commit_group();
  };
  const float to_log2 = Config::Score::kIdentity ? core.scale * kLog2OfE : kLog2OfE;
  i64 n = BlockBelow<Config>(range.end, range, problem, q_begin, q_end, params);
  if (n >= range.begin) start_k(n);
  while (n >= range.begin) {
    const i64 kv_begin = n * Config::kBlockN;
    ptx::cp_async_wait_group<0>();
    __syncthreads();  // K has arrived, and V of the previous tile has been read
    StartCopyOfKeys<Config, Config::kHeadDimV>(shared.v, core.v, core.v_strides,
                                               Aligned16(core.v, core.v_strides), problem, kv_begin,
                                               params);
    ptx::cp_async_commit_group();
    Scores<Config>(state, shared, warp, lane);
    const i64 below = BlockBelow<Config>(n, range, problem, q_begin, q_end, params);
    ptx::cp_async_wait_group<0>();
    __syncthreads();  // V has arrived, and K has been read
    if (below >= range.begin) start_k(below);
    const bool full = n >= range.full_begin && n < range.full_end;
    if constexpr (Config::Score::kIdentity) {
      if (!full) ApplyPolicies<Config>(state, problem, q_begin, kv_begin, false, params);
    } else {
      ApplyPolicies<Config>(state, problem, q_begin, kv_begin, full && whole_rows, params);
    }
    if (careful && !full) ZeroUnseenValues<Config>(shared, problem, q_begin, kv_begin, params);
    OnlineSoftmax<Config>(state, to_log2);
    if constexpr (Config::kHasDropout)
      ApplyDropout<Config>(state, problem, q_begin, kv_begin, params);
    WeightedSum<Config>(state, shared, lane);
    n = below;
  }
}

// Whether any element of O is Inf or NaN.
template <class Config>
__device__ __forceinline__ bool NonFinite(const WarpState<Config>& state) {
  float probe = 0;  // stays 0: 0 * finite
#pragma unroll
  for (int m = 0; m < Config::kMTiles; ++m) {
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
  for (int m = 0; m < Config::kMTiles; ++m) {
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
  const int first_row = warp * 16 * Config::kMTiles;
  const int rows =
      static_cast<int>(Min(16 * Config::kMTiles, problem.seqlen_q - q_begin - first_row));
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
    StartCopy<Config::kBlockM, Config::kHeadDimQk, SharedStorage<Config>::kPitchQo,
              Config::kThreads>(shared.qo, static_cast<int>(q_end - q_begin),
                                Aligned16(core.q, core.q_strides),
                                [&](int row) { return q + row * core.q_strides.seq; });
#pragma unroll
    for (int m = 0; m < Config::kMTiles; ++m) {
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
  static_assert(Config::kBlockM == Config::kWarps * 16 * Config::kMTiles);
  static_assert(Config::kBlockN % 16 == 0);
  extern __shared__ __align__(16) u8 shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(shared_bytes);
  const i64 m_tiles = CeilDiv(SeqlenQ<Config>(params), Config::kBlockM);
  const i64 tiles = Batch<Config>(params) * params.core.heads_q * m_tiles;
  for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const i64 bh = tile / m_tiles;
    const i64 q_begin = (m_tiles - 1 - tile % m_tiles) * Config::kBlockM;
    const Problem problem =
        MakeProblem<Config>(bh / params.core.heads_q, bh % params.core.heads_q, params);
    if (q_begin < problem.seqlen_q) AttendTile<Config>(shared, problem, q_begin, params);
  }
}

}  // namespace fwd_sm80
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_FWD_SM80_CUH_
