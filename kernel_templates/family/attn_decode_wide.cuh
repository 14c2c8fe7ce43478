// attn_decode for head dims whose output sums no warp can hold: latent attention (576/512) and the
// like. 16-bit operands.
//
// Algorithm As attn_decode.cuh: packed rows, equal shares of all keys, attn_combine behind it. Here
//           the block works on one step of keys at a time: kStepKeys / 8 warps compute the scores
//           of 8 keys each, and every warp adds a slice of the columns of V. V may be the first
//           columns of K in memory (the same pointer and strides): it is then read once, and the
//           ring holds kSharedStages steps instead of kStages.
// Copies    cp.async into a ring of steps, all but one ahead of the products.
// Barriers  Three a step: the step has arrived and the one before it has been used; the maxima of
//           the score warps are there; the weights are there.
// NaN, Inf  Rows of K and V that no row of the tile may see are not copied but zeroed.
// Shared    q [kBlockM][kPitchK] bytes
//           ring: k [kStepKeys][kPitchK], v [kStepKeys][kPitchV] of a step; or k alone
//           weights [kBlockM][kPitchP]
//           highest, sum [score warps][kBlockM]
//           pages [stages + 1][kStepKeys], where a step may cross pages
#ifndef TILEWRIGHT_FAMILY_ATTN_DECODE_WIDE_CUH_
#define TILEWRIGHT_FAMILY_ATTN_DECODE_WIDE_CUH_

#include "abi/attn_fwd_params.h"
#include "core/concepts.cuh"
#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/online_softmax.cuh"
#include "core/problem.cuh"
#include "core/warp_reduce.cuh"
#include "mma/packed_rows.cuh"
#include "mma/score_tile.cuh"
#include "mma/step_copy.cuh"
#include "policy/decode_work.cuh"
#include "policy/dropout.cuh"
#include "policy/kv_rows.cuh"
#include "policy/lse.cuh"
#include "policy/mask_chain.cuh"
#include "policy/scale.cuh"
#include "policy/score_chain.cuh"
#include "policy/sink.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/griddep.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/special.cuh"

namespace tilewright {
namespace decode_wide {

template <class Config>
struct Shape {
  using Element = typename Config::Element;
  static constexpr int kThreads = Config::kWarps * 32;
  static constexpr int kStep = Config::kStepKeys;
  static constexpr int kScoreWarps = kStep / 8;
  static constexpr int kMTiles = Config::kBlockM / 16;
  static constexpr int kDimK = RoundUp(Config::kHeadDimQk, 32);
  static constexpr int kQSteps = kDimK / 16;
  // Of V, by warp: whole pairs of n8 tiles.
  static constexpr int kWarpColumns =
      RoundUp((Config::kHeadDimV + Config::kWarps - 1) / Config::kWarps, 16);
  static constexpr int kVTiles = kWarpColumns / 8;
  static constexpr int kDimV = kWarpColumns * Config::kWarps;
  // Bytes between rows: an odd number of 16-byte chunks.
  static constexpr int kPitchK = 16 * (kDimK * 2 / 16 | 1);
  static constexpr int kPitchV = 16 * (kDimV * 2 / 16 | 1);
  static constexpr int kPitchP = 16 * (kStep * 2 / 16 | 1);
  static constexpr bool kOnePage = tilewright::kOnePage<Config, kStep>;
};

template <class Config>
struct SharedStorage {
  using S = Shape<Config>;
  using KTile = u8[S::kStep][S::kPitchK];
  using VTile = u8[S::kStep][S::kPitchV];
  static constexpr int kMostStages =
      Config::kStages > Config::kSharedStages ? Config::kStages : Config::kSharedStages;

  alignas(16) u8 q[Config::kBlockM][S::kPitchK];
  union {
    struct {
      alignas(16) KTile k[Config::kStages];
      alignas(16) VTile v[Config::kStages];
    } apart;
    alignas(16) KTile both[Config::kSharedStages];
  };
  alignas(16) u8 weights[Config::kBlockM][S::kPitchP];
  float highest[S::kScoreWarps][Config::kBlockM];
  float sum[S::kScoreWarps][Config::kBlockM];
  i32 pages[S::kOnePage ? 1 : kMostStages + 1][S::kOnePage ? 4 : S::kStep];
};

template <class Config, class Params>
struct Worker {
  using S = Shape<Config>;
  using Element = typename S::Element;

  SharedStorage<Config>& shared;
  const Params& params;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const Piece piece;
  const KeyBounds bounds;
  StepCopy<Config, Params, S::kStep, S::kThreads> copy;
  // Whether V is read where K lies, and at which pitch.
  const bool shares;
  u32 missing = 0;  // bit n % 32: the page of step n is missing
  float o[S::kMTiles][S::kVTiles][4];
  SoftmaxState<S::kMTiles> softmax;

  __device__ __forceinline__ Worker(SharedStorage<Config>& shared, const Piece& piece,
                                    const Params& params)
      : shared(shared),
        params(params),
        piece(piece),
        bounds(BoundsOf<Config>(piece, params)),
        copy(params, piece.problem, bounds, static_cast<int>(threadIdx.x)),
        shares(SharesRows(params.core)) {}

  static __device__ __forceinline__ bool SharesRows(const abi::AttnFwdParams& core) {
    return S::kDimV <= S::kDimK && core.k == core.v &&
           core.k_strides.batch == core.v_strides.batch &&
           core.k_strides.seq == core.v_strides.seq && core.k_strides.head == core.v_strides.head;
  }

  __device__ __forceinline__ int Steps() const {
    return (piece.kv_end - piece.kv_begin + S::kStep - 1) / S::kStep;
  }
  __device__ __forceinline__ int KeyOf(int n) const { return piece.kv_begin + n * S::kStep; }
  // Of the ring.
  __device__ __forceinline__ int Stages() const {
    return shares ? Config::kSharedStages : Config::kStages;
  }
  __device__ __forceinline__ i32* PagesOf(int n) const {
    return S::kOnePage ? nullptr : &shared.pages[n % (SharedStorage<Config>::kMostStages + 1)][0];
  }
  __device__ __forceinline__ typename SharedStorage<Config>::KTile& KTileOf(int n) const {
    return shares ? shared.both[n % Config::kSharedStages] : shared.apart.k[n % Config::kStages];
  }
  __device__ __forceinline__ bool ComputesScores() const { return warp < S::kScoreWarps; }

  // Starts the copies of step n, if there is one, and looks up the page of the next.
  __device__ __forceinline__ void StartStep(int n) {
    if (n < Steps()) {
      const abi::AttnFwdParams& core = params.core;
      const u32 bit = 1u << (n & 31);
      missing = copy.Missing() ? missing | bit : missing & ~bit;
      copy.template Start<Config::kHeadDimQk, S::kDimK>(KTileOf(n), core.k, core.k_strides,
                                                        copy.wide_k, KeyOf(n), PagesOf(n));
      if (!shares) {
        copy.template Start<Config::kHeadDimV, S::kDimV>(shared.apart.v[n % Config::kStages],
                                                         core.v, core.v_strides, copy.wide_v,
                                                         KeyOf(n), PagesOf(n));
      }
      copy.LookUp(KeyOf(n + 1));
    }
    ptx::cp_async_commit_group();
  }

  // The rows of Q, zeros beyond the last row and column.
  __device__ __forceinline__ void LoadQueries() {
    const abi::TensorStrides& strides = params.core.q_strides;
    const bool wide = reinterpret_cast<u64>(params.core.q) % 4 == 0 &&
                      (strides.batch | strides.seq | strides.head) % 2 == 0;
    constexpr int kPairs = S::kDimK / 2;
    for (int index = static_cast<int>(threadIdx.x); index < Config::kBlockM * kPairs;
         index += S::kThreads) {
      const int row = index / kPairs, column = index % kPairs * 2;
      const PackedRow at = RowAt<Config>(piece.problem, piece.first_row, row);
      const Element* source = static_cast<const Element*>(params.core.q) +
                              piece.problem.q_batch * strides.batch + at.h * strides.head +
                              (piece.problem.q_row + at.i) * strides.seq;
      *reinterpret_cast<u32*>(&shared.q[row][column * 2]) =
          QueryPair<Config::kHeadDimQk>(source, column, at.inside, wide);
    }
  }

  using ScoreTile = float[S::kMTiles][1][4];

  // s = Q K^T for 8 keys of this warp, in two chains so that products do not wait for each other.
  __device__ __forceinline__ void Scores(ScoreTile& s, int n) const {
    float chain[2][S::kMTiles][4] = {};
    const unsigned k_address = ptx::SharedAddress(&KTileOf(n)[warp * 8 + lane % 8][lane / 8 * 16]);
    const unsigned q_address = ptx::SharedAddress(&shared.q[lane % 16][lane / 16 * 16]);
#pragma unroll 6
    for (int step = 0; step < S::kQSteps; step += 2) {
      u32 b[4];
      ptx::ldmatrix_x4(b, k_address + step * 32);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int m = 0; m < S::kMTiles; ++m) {
          u32 a[4];
          ptx::ldmatrix_x4(a, q_address + m * 16 * S::kPitchK + (step + half) * 32);
          ptx::mma_m16n8k16(chain[half][m], a, b[2 * half], b[2 * half + 1], Element{});
        }
      }
    }
#pragma unroll
    for (int m = 0; m < S::kMTiles; ++m) {
#pragma unroll
      for (int c = 0; c < 4; ++c) s[m][0][c] = chain[0][m][c] + chain[1][m][c];
    }
  }

  // o += P V for this warp's columns.
  __device__ __forceinline__ void AddValues(int n) {
    const unsigned p_address = ptx::SharedAddress(&shared.weights[lane % 16][lane / 16 * 16]);
    const unsigned pitch = shares ? S::kPitchK : S::kPitchV;
    const u8* v = shares ? &KTileOf(n)[0][0] : &shared.apart.v[n % Config::kStages][0][0];
    const unsigned v_address =
        ptx::SharedAddress(v) + lane % 16 * pitch + lane / 16 * 16 + warp * S::kWarpColumns * 2;
#pragma unroll
    for (int step = 0; step < S::kStep / 16; ++step) {
      u32 p[S::kMTiles][4];
#pragma unroll
      for (int m = 0; m < S::kMTiles; ++m) {
        ptx::ldmatrix_x4(p[m], p_address + m * 16 * S::kPitchP + step * 32);
      }
#pragma unroll
      for (int tile = 0; tile < S::kVTiles; tile += 2) {
        u32 b[4];
        ptx::ldmatrix_x4_trans(b, v_address + step * 16 * pitch + tile * 16);
#pragma unroll
        for (int m = 0; m < S::kMTiles; ++m) {
          ptx::mma_m16n8k16(o[m][tile], p[m], b[0], b[1], Element{});
          ptx::mma_m16n8k16(o[m][tile + 1], p[m], b[2], b[3], Element{});
        }
      }
    }
  }

  // Step n, whose copies have arrived.
  __device__ __forceinline__ void Step(int n, float scale, float to_log2) {
    ScoreTile s;
    if (ComputesScores()) {
      Scores(s, n);
      const int key = KeyOf(n);
      const bool full = key >= bounds.full_begin && key + S::kStep <= bounds.full_end;
      const i32* pages = S::kOnePage ? nullptr : PagesOf(n) + warp * 8;
#pragma unroll
      for (int m = 0; m < S::kMTiles; ++m) {
        ApplyPackedPolicies<Config, S::kOnePage>(s[m], piece, m * 16, key + warp * 8, full, scale,
                                                 pages, params);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float highest = HighestScore(s, m, r) * to_log2;
          if (lane % 4 == 0) shared.highest[warp][RowOf(m, 2 * r)] = highest;
        }
      }
    }
    __syncthreads();
    float highest[S::kMTiles][2];
#pragma unroll
    for (int m = 0; m < S::kMTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        highest[m][r] = shared.highest[0][RowOf(m, 2 * r)];
#pragma unroll
        for (int w = 1; w < S::kScoreWarps; ++w) {
          highest[m][r] = fmaxf(highest[m][r], shared.highest[w][RowOf(m, 2 * r)]);
        }
      }
    }
    MoveReferences(highest, o, softmax, true, 0);
    if (ComputesScores()) {
      Weights<1>(s, softmax, to_log2, 0);
#pragma unroll
      for (int m = 0; m < S::kMTiles; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          *reinterpret_cast<u32*>(
              &shared.weights[RowOf(m, 2 * r)][2 * (warp * 8 + ColumnOf(0, 0))]) =
              ptx::cvt_rn_x2_f32(s[m][0][2 * r + 1], s[m][0][2 * r], Element{});
        }
      }
    }
    __syncthreads();
    AddValues(n);
  }

  __device__ __forceinline__ void Attend() {
    copy.LookUp(KeyOf(0));
    const int ahead = Stages() - 1;
    for (int n = 0; n < ahead; ++n) {
      if constexpr (!S::kOnePage) {
        copy.Publish(PagesOf(n));
        __syncthreads();
      }
      StartStep(n);
    }
    LoadQueries();
    StartSoftmax(softmax, o);
    const float scale = params.core.scale;
    const float to_log2 = Config::Score::kIdentity ? scale * kLog2OfE : kLog2OfE;
    const int steps = Steps();
#pragma unroll 1
    for (int n = 0; n < steps; ++n) {
      if (shares) {
        ptx::cp_async_wait_group<Config::kSharedStages - 2>();
      } else {
        ptx::cp_async_wait_group<(Config::kStages >= 2 ? Config::kStages - 2 : 0)>();
      }
      copy.Publish(PagesOf(n + ahead));
      __syncthreads();
      StartStep(n + ahead);
      if (Config::kStages == 1 && !shares) {
        ptx::cp_async_wait_group<0>();
        __syncthreads();
      }
      if constexpr (S::kOnePage && !Config::KvRows::kIsDense) {
        if (missing >> (n & 31) & 1) continue;
      }
      Step(n, scale, to_log2);
    }
    ptx::cp_async_wait_group<0>();
  }

  // Writes this warp's columns of O, and warp 0 the LSE, to their place or to the piece's slot.
  __device__ __forceinline__ void Store() {
    using OutElement = typename Config::OutElement;
    const abi::AttnFwdParams& core = params.core;
    const bool complete = piece.slot < 0;
    if (ComputesScores()) {
#pragma unroll
      for (int m = 0; m < S::kMTiles; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float sum = QuadSum(softmax.sum[m][r]);
          if (lane % 4 == 0) shared.sum[warp][RowOf(m, 2 * r)] = sum;
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int m = 0; m < S::kMTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = RowOf(m, 2 * r);
        const PackedRow at = RowAt<Config>(piece.problem, piece.first_row, row);
        if (!at.inside) continue;
        Problem problem = piece.problem;
        problem.h = at.h;
        float sum = 0;
        for (int w = 0; w < S::kScoreWarps; ++w) sum += shared.sum[w][row];
        const float sink = complete ? Config::Sink::Logit(problem, params) : -Infinity();
        const SoftmaxEnd end = FinishRow(softmax.reference[m][r], sum, sink);
        if (warp == 0 && lane % 4 == 0) {
          if (complete) {
            Config::Lse::Store(end.lse, problem, at.i, params);
          } else {
            params.parts.lse[i64{piece.slot} * Config::kBlockM + row] = end.lse;
          }
        }
        OutElement* out = static_cast<OutElement*>(core.o) +
                          problem.q_batch * core.o_strides.batch + at.h * core.o_strides.head +
                          (problem.q_row + at.i) * core.o_strides.seq;
        float* part = static_cast<float*>(params.parts.o) +
                      (i64{piece.slot} * Config::kBlockM + row) * Config::kHeadDimV;
#pragma unroll
        for (int n = 0; n < S::kVTiles; ++n) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const int column = warp * S::kWarpColumns + ColumnOf(n, c);
            if (column >= Config::kHeadDimV) continue;
            const float value = end.empty ? 0.f : o[m][n][2 * r + c] * end.o_scale;
            if (complete) {
              FromFloat(value, &out[column]);
            } else {
              part[column] = value;
            }
          }
        }
      }
    }
  }
};

template <class Config, class Params>
__device__ __forceinline__ void Run(const Params& params) {
  static_assert(MaskPolicy<typename Config::Mask, Params>);
  static_assert(ScorePolicy<typename Config::Score, Params>);
  static_assert(KvRowsPolicy<typename Config::KvRows, Params>);
  static_assert(Config::Dropout::kIdentity && Config::Mask::kIsInterval);
  static_assert(sizeof(typename Config::KvElement) == 2);
  static_assert(Config::kBlockM % 16 == 0 && Config::kBlockN == Config::kStepKeys);
  static_assert(Config::kStepKeys % 16 == 0 && Config::kStages >= 1 && Config::kSharedStages >= 2);
  static_assert(Config::kStepKeys / 8 <= Config::kWarps);
  extern __shared__ __align__(16) u8 shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(shared_bytes);
  // attn_combine may take its place behind this kernel; it waits for the end of it.
  ptx::griddepcontrol_launch_dependents();
  PieceWalk<Config, Params> walk(params);
  for (Piece piece; walk.Next(&piece);) {
    Worker<Config, Params> worker(shared, piece, params);
    worker.Attend();
    worker.Store();
    __syncthreads();  // the rings and the sums are free again
  }
}

}  // namespace decode_wide
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_DECODE_WIDE_CUH_
