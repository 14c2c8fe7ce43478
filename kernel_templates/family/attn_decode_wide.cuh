// attn_decode for head dims whose output sums no warp can hold: latent attention (576/512) and the
// like. 16-bit operands.
//
// Algorithm As attn_decode.cuh: packed rows as columns of transposed products, equal shares of all
//           keys, attn_combine behind it. Here the block works on one step of keys at a time. For
//           S^T = K Q^T a warp has 16 of its keys and a part of the head dim; the parts are added
//           in shared memory. Every warp then computes all weights of the step, which is less than
//           a barrier costs, and adds its own columns of V: its part of O stays in registers. V may
//           be the first columns of K in memory (the same pointer and strides): it is then read
//           once, and the ring holds kSharedStages steps instead of kStages.
// Copies    cp.async into a ring of steps, which does not run empty between pieces.
// Barriers  One a step. Behind it the step's scores lie in shared memory, the next step has arrived
//           and the place of the one before is free: the next step is multiplied with Q while this
//           one becomes weights.
// NaN, Inf  Rows of K and V that no row of the tile may see are not copied but zeroed.
// Shared    ring: k [kStepKeys][kPitchK] bytes, v [kStepKeys][kPitchV] of a step; or k alone
//           scores [2][kRowTiles][kWarps][32], fragments of the parts of S^T of a step
//           pages [stages + 1][kStepKeys], where a step may cross pages
//           pieces [kWarps], see mma/step_queue.cuh
#ifndef TILEWRIGHT_FAMILY_ATTN_DECODE_WIDE_CUH_
#define TILEWRIGHT_FAMILY_ATTN_DECODE_WIDE_CUH_

#include "abi/attn_fwd_params.h"
#include "core/concepts.cuh"
#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/online_softmax.cuh"
#include "core/problem.cuh"
#include "mma/chunked_rows.cuh"
#include "mma/cut_off.cuh"
#include "mma/packed_columns.cuh"
#include "mma/step_queue.cuh"
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

namespace tilewright {
namespace decode_wide {

template <class Config>
struct Shape {
  using Element = typename Config::Element;
  static constexpr int kThreads = Config::kWarps * 32;
  static constexpr int kStep = Config::kStepKeys;
  static constexpr int kKeyTiles = kStep / 16;
  static constexpr int kRowTiles = Config::kBlockM / 8;
  // Warps that share 16 keys, and the steps of 16 columns of K that each of them has at most.
  static constexpr int kDepthWarps = Config::kWarps / kKeyTiles;
  static constexpr int kDimK = RoundUp(Config::kHeadDimQk, 16);
  static constexpr int kQSteps = kDimK / 16;
  static constexpr int kDepthSteps = (kQSteps + kDepthWarps - 1) / kDepthWarps;
  // Sums of them, where one would be a chain of waits.
  static constexpr int kChains = kRowTiles == 1 ? 2 : 1;
  // Of V, by warp.
  static constexpr int kWarpColumns =
      RoundUp((Config::kHeadDimV + Config::kWarps - 1) / Config::kWarps, 16);
  static constexpr int kVTiles = kWarpColumns / 16;
  static constexpr int kDimV = kWarpColumns * Config::kWarps;
  // Bytes between rows.
  static constexpr int kPitchK = ChunkedPitch(kDimK * 2);
  static constexpr int kPitchV = ChunkedPitch(kDimV * 2);
  static constexpr bool kOnePage = tilewright::kOnePage<Config, kStep>;
};

struct alignas(16) Fragment {
  float element[4];
};

template <class Config>
struct SharedStorage {
  using S = Shape<Config>;
  using KTile = u8[S::kStep][S::kPitchK];
  using VTile = u8[S::kStep][S::kPitchV];
  static constexpr int kMostStages =
      Config::kStages > Config::kSharedStages ? Config::kStages : Config::kSharedStages;

  union {
    struct {
      alignas(128) KTile k[Config::kStages];
      alignas(128) VTile v[Config::kStages];
    } apart;
    alignas(128) KTile both[Config::kSharedStages];
  };
  Fragment scores[2][S::kRowTiles][Config::kWarps][32];
  PieceQueue<Config> pieces[Config::kWarps];
  i32 pages[S::kOnePage ? 1 : kMostStages + 1][S::kOnePage ? 4 : S::kStep];
};

template <class Config, class Params>
struct Worker {
  using S = Shape<Config>;
  using Element = typename S::Element;
  using Scores = float[S::kKeyTiles][S::kRowTiles][4];

  SharedStorage<Config>& shared;
  const Params& params;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int key_tile = warp % S::kKeyTiles;
  const int first_step = warp / S::kKeyTiles * S::kDepthSteps;  // of the head dim
  // Whether V is read where K lies.
  const bool shares;
  StepQueue<Config, Params, 1, S::kThreads, true> queue;
  int copied = 0;   // steps whose copies have started
  u32 missing = 0;  // bit n % 32: the page of step n is missing
  u32 q[S::kRowTiles][S::kDepthSteps][2];
  float products[S::kRowTiles][4];
  float o[S::kVTiles][S::kRowTiles][4];
  ColumnSoftmax<S::kRowTiles> softmax;

  __device__ __forceinline__ Worker(SharedStorage<Config>& shared, const Params& params)
      : shared(shared),
        params(params),
        shares(SharesRows(params.core)),
        queue(shared.pieces[warp], 0, params) {}

  static __device__ __forceinline__ bool SharesRows(const abi::AttnFwdParams& core) {
    return S::kDimV <= S::kDimK && core.k == core.v &&
           core.k_strides.batch == core.v_strides.batch &&
           core.k_strides.seq == core.v_strides.seq && core.k_strides.head == core.v_strides.head;
  }

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

  // ---- copies
  // -----------------------------------------------------------------------------------------

  // Starts copies until `limit` steps have been copied, or nothing is left to be.
  __device__ __forceinline__ void Fill(int limit) {
    const abi::AttnFwdParams& core = params.core;
    auto& copy = queue.copy;
    while (copied < limit && queue.Find()) {
      i32* const pages = PagesOf(copied);
      if constexpr (!S::kOnePage) {
        copy.Publish(pages);
        __syncthreads();
      }
      const u32 bit = 1u << (copied & 31);
      missing = copy.Missing() ? missing | bit : missing & ~bit;
      copy.template Start<Config::kHeadDimQk, S::kDimK>(KTileOf(copied), copy.k, core.k_strides,
                                                        copy.wide_k, queue.key, pages);
      if (!shares) {
        copy.template Start<Config::kHeadDimV, S::kDimV>(shared.apart.v[copied % Config::kStages],
                                                         copy.v, core.v_strides, copy.wide_v,
                                                         queue.key, pages);
      }
      ptx::cp_async_commit_group();
      ++copied;
      queue.Advance();
    }
  }

  // Waits for this thread's copies of step n, of a ring of kStages.
  template <int kStages>
  __device__ __forceinline__ void WaitFor(int n) const {
    if (kStages > 3 && copied == n - 2 + kStages) {
      ptx::cp_async_wait_group<(kStages > 3 ? kStages - 3 : 0)>();
    } else {
      ptx::cp_async_wait_group<0>();
    }
  }

  // ---- products
  // --------------------------------------------------------------------------------------

  // This warp's part of S^T of step n.
  __device__ __forceinline__ void MultiplyKeys(int n) {
    constexpr int kChains = S::kChains;
    float chain[kChains][S::kRowTiles][4] = {};
    const unsigned address = ptx::SharedAddress(&KTileOf(n)[0][0]) +
                             ChunkOffset<S::kPitchK>(key_tile * 16 + lane % 16, lane / 16);
#pragma unroll
    for (int step = 0; step < S::kDepthSteps; ++step) {
      if (S::kDepthSteps * S::kDepthWarps != S::kQSteps && first_step + step >= S::kQSteps) break;
      u32 a[4];
      ptx::ldmatrix_x4(a,
                       ChunkBehind<kTradesChunks<S::kPitchK>>(address, (first_step + step) * 32));
#pragma unroll
      for (int tile = 0; tile < S::kRowTiles; ++tile) {
        ptx::mma_m16n8k16(chain[step % kChains][tile], a, q[tile][step][0], q[tile][step][1],
                          Element{});
      }
    }
#pragma unroll
    for (int tile = 0; tile < S::kRowTiles; ++tile) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        products[tile][c] = chain[0][tile][c];
        if constexpr (kChains == 2) products[tile][c] += chain[1][tile][c];
      }
    }
  }
  __device__ __forceinline__ void DepositProducts(int n) const {
#pragma unroll
    for (int tile = 0; tile < S::kRowTiles; ++tile) {
      shared.scores[n & 1][tile][warp][lane] = {
          {products[tile][0], products[tile][1], products[tile][2], products[tile][3]}};
    }
  }
  // Adds up what the warps have left of step n.
  __device__ __forceinline__ void CollectScores(Scores& s, int n) const {
#pragma unroll
    for (int key = 0; key < S::kKeyTiles; ++key) {
#pragma unroll
      for (int tile = 0; tile < S::kRowTiles; ++tile) {
#pragma unroll
        for (int c = 0; c < 4; ++c) s[key][tile][c] = 0;
#pragma unroll
        for (int depth = 0; depth < S::kDepthWarps; ++depth) {
          if (depth * S::kDepthSteps >= S::kQSteps) break;
          const Fragment part = shared.scores[n & 1][tile][depth * S::kKeyTiles + key][lane];
#pragma unroll
          for (int c = 0; c < 4; ++c) s[key][tile][c] += part.element[c];
        }
      }
    }
  }

  // o += V^T P^T for this warp's columns of step n.
  __device__ __forceinline__ void AddValues(const Scores& weights, int n) {
    constexpr bool kInK = kTradesChunks<S::kPitchK>, kApart = kTradesChunks<S::kPitchV>;
    const int pitch = shares ? S::kPitchK : S::kPitchV;
    const u8* v = shares ? &KTileOf(n)[0][0] : &shared.apart.v[n % Config::kStages][0][0];
    if (kInK == kApart || shares) {
      AddValuesOf<kInK>(weights, v, pitch);
    } else {
      AddValuesOf<kApart>(weights, v, pitch);
    }
  }
  template <bool kTrades>
  __device__ __forceinline__ void AddValuesOf(const Scores& weights, const u8* v, int pitch) {
    const int row = lane % 8 + lane / 16 * 8, chunk = lane / 8 % 2;
    const unsigned address =
        ptx::SharedAddress(v) + row * pitch + (kTrades ? chunk ^ (row & 7) : chunk) * 16;
#pragma unroll
    for (int key = 0; key < S::kKeyTiles; ++key) {
      u32 p[S::kRowTiles][2];
#pragma unroll
      for (int tile = 0; tile < S::kRowTiles; ++tile) {
        const float(&w)[4] = weights[key][tile];
        p[tile][0] = ptx::movmatrix_trans(ptx::cvt_rn_x2_f32(w[1], w[0], Element{}));
        p[tile][1] = ptx::movmatrix_trans(ptx::cvt_rn_x2_f32(w[3], w[2], Element{}));
      }
#pragma unroll
      for (int column = 0; column < S::kVTiles; ++column) {
        u32 a[4];
        ptx::ldmatrix_x4_trans(
            a, ChunkBehind<kTrades>(address, warp * S::kWarpColumns * 2 + column * 32) +
                   key * 16 * pitch);
#pragma unroll
        for (int tile = 0; tile < S::kRowTiles; ++tile) {
          ptx::mma_m16n8k16(o[column][tile], a, p[tile][0], p[tile][1], Element{});
        }
      }
    }
  }

  // ---- a piece
  // ---------------------------------------------------------------------------------------

  __device__ __forceinline__ void Start() {
    StartSoftmax(softmax);
#pragma unroll
    for (int column = 0; column < S::kVTiles; ++column) {
#pragma unroll
      for (int tile = 0; tile < S::kRowTiles; ++tile) {
#pragma unroll
        for (int c = 0; c < 4; ++c) o[column][tile][c] = 0;
      }
    }
  }

  // Writes this warp's columns of O, and warp 0 the LSE, to their place or to the piece's slot.
  __device__ __forceinline__ void Store(const Piece& piece) const {
    using OutElement = typename Config::OutElement;
    const abi::AttnFwdParams& core = params.core;
    const bool complete = piece.slot < 0;
#pragma unroll
    for (int tile = 0; tile < S::kRowTiles; ++tile) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float sum = ColumnSum(softmax.sum[tile][c]);
        const int row = tile * 8 + lane % 4 * 2 + c;
        const PackedRow at = RowAt<Config>(piece.problem, piece.first_row, row);
        if (!at.inside) continue;
        Problem problem = piece.problem;
        problem.h = at.h;
        const float sink = complete ? Config::Sink::Logit(problem, params) : -Infinity();
        const SoftmaxEnd end = FinishRow(softmax.reference[tile][c], sum, sink);
        if (warp == 0 && lane / 4 == 0) {
          const float lse =
              WithCutOff<Config>(end.lse, kLostPlaces<S::kDepthSteps / S::kChains>, params);
          if (complete) {
            Config::Lse::Store(lse, problem, at.i, params);
          } else {
            params.parts.lse[i64{piece.slot} * Config::kBlockM + row] = lse;
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
          for (int half = 0; half < 2; ++half) {
            const int column = warp * S::kWarpColumns + n * 16 + half * 8 + lane / 4;
            if (column >= Config::kHeadDimV) continue;
            const float value = end.empty ? 0.f : o[n][tile][2 * half + c] * end.o_scale;
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

  __device__ __forceinline__ void Run() {
    const float scale = params.core.scale;
    const float to_log2 = Config::Score::kIdentity ? scale * kLog2OfE : kLog2OfE;
    // Step n becomes weights, step n + 1 is multiplied. Both are in piece queue.left, or the next
    // step in the piece behind it.
    int key = 0, next_key = 0, next_end = 0, next_piece = -1;
    bool follows = false;  // there is a step n + 1
    Start();
#pragma unroll 1
    for (int n = -2;; ++n) {
      // The stage of step n - 1 is free.
      Fill(n + Stages());
      if (Config::kStages == 2 && !shares) {
        // The step that is multiplied now has only just found a place.
        ptx::cp_async_wait_group<0>();
        __syncthreads();
      }
      const bool adds = follows;  // step n, the one that was multiplied
      key = next_key;
      bool ends = false;  // step n ends its piece
      if (n >= -1) {
        next_key += S::kStep;
        if (next_key >= next_end) {
          ends = true;
          follows = next_piece + 1 != queue.entered;
          if (follows) {
            const OpenPiece& open = queue.At(++next_piece);
            next_key = open.first_key;
            next_end = static_cast<int>(Max(open.piece.kv_end, next_key + 1));
            LoadQueryColumns<Config, false>(q, open.piece, 0, first_step * 16, params);
          }
        }
        if (follows) MultiplyKeys(n + 1);
      }
      if (adds) {
        const OpenPiece& open = queue.At(queue.left);
        const bool skips = S::kOnePage && !Config::KvRows::kIsDense && missing >> (n & 31) & 1;
        if (!skips) {
          Scores s;
          CollectScores(s, n);
          const bool full = key >= open.bounds.full_begin && key + S::kStep <= open.bounds.full_end;
          ApplyPoliciesToColumns<Config, S::kOnePage>(s, open.piece, 0, key, full, scale,
                                                      PagesOf(n), params);
          MoveReferences(s, softmax, to_log2, [this](int tile, int c, float factor) {
            ScaleColumn(o, tile, c, factor);
          });
          ColumnWeights(s, softmax, to_log2);
          AddValues(s, n);
        }
        if (ends) {
          Store(open.piece);
          ++queue.left;
          Start();
        }
      }
      if (n >= -1) {
        if (!follows) return;
        DepositProducts(n + 1);
      }
      if (shares) {
        WaitFor<Config::kSharedStages>(n + 2);
      } else {
        WaitFor<Config::kStages>(n + 2);
      }
      __syncthreads();
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
  static_assert(Config::kBlockM % 8 == 0 && Config::kBlockN == Config::kStepKeys);
  static_assert(Config::kStepKeys % 16 == 0 && Config::kWarps % (Config::kStepKeys / 16) == 0);
  static_assert(Config::kStages >= 2 && Config::kSharedStages >= 3);
  extern __shared__ __align__(128) u8 shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(shared_bytes);
  // What the kernel ahead has left can be read from here on.
  ptx::griddepcontrol_wait();
  // attn_combine may take its place behind this kernel; it waits for the end of it.
  ptx::griddepcontrol_launch_dependents();
  Worker<Config, Params>(shared, params).Run();
}

}  // namespace decode_wide
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_DECODE_WIDE_CUH_
