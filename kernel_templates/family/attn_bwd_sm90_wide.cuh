// Gradients of attention on Hopper's warpgroup products for heads too wide for attn_bwd_sm90: up to
// 256, sm_90a, 16-bit operands, fp32 sums. Needs the row statistics of attn_bwd_prep, and
// attn_bwd_finish after it.
//
// Algorithm That of attn_bwd_sm90. A thread could not hold the sums of dK and dV of 64 keys, so the
// two
//           warpgroups have the same 64 keys and different work:
//             weights     S = K Q^T,   P = exp2(S - lse),     dV += P dO
//             gradients   dP = V dO^T, dS = P (dP - delta),   dK += dS Q
//           and each half of the columns of dQ = dS^T K, in pieces of 64. P and dS pass through
//           shared memory, P rounded as it is for dV, in the order of threads, which are the same
//           on both sides. dQ is added to memory from registers (mma/dq_sums.cuh).
// Order     A warpgroup makes P or dS of step i, and then issues
//             dV or dK of step i | a piece of dQ of step i - 1 | S or dP of step i + 1
//           and the other piece of dQ when it has added this one, so that products are under way
//           while it makes P or dS and adds. Step -1 is of no rows, and the last step makes its own
//           S again.
// Clusters  With kCluster 2 two blocks have neighbouring keys, walk over the same rows and load
// half
//           of the panels of Q and dO each, for both: L2 takes additions and reads one after the
//           other, and is what limits wide heads. A step that sees none of a block's keys adds
//           nothing.
// Warps     Warpgroup 0 loads, see mma/bwd_key_tiles.cuh. Warpgroup 1 makes weights, 2 gradients.
// Barriers  kv_full, rows_full[s]  as in attn_bwd_sm90
//           rows_empty[s]  likewise, of all blocks of the cluster
//           p_full    a warp of the weights each, when it has written its part of P
//           ds_full   a warp of the gradients each, when it has written its part of dS
//           ds_empty  a computing warp each, after dQ
//           named 1   the computing warpgroups, when all have read K and V
//           named 2 + w  warpgroup w of them, around its gradient in shared memory
//           P of the next step is written after ds_full, so P has been read by then.
// dQ turns  kDeterministic: as in attn_bwd_sm90; a warp counts itself in the next step, when its
//           additions have long been made.
// Masks     By selection of P and dS. A NaN of a masked key stays within its tile.
// Shared    k, v   [panel][64][64]           rows of 128 bytes, 128-byte swizzle, panels of 64
//           q, d_o [kStages][panel][64][64]  columns; columns beyond the dim are zeros
//           ds     [2][64][64]               a row a key
//           p      [4][thread][4]            packed weights
//           lse (log2), delta  [2][64], in the order of LaneRows
//           dK and dV in the end over k and v
#ifndef TILEWRIGHT_FAMILY_ATTN_BWD_SM90_WIDE_CUH_
#define TILEWRIGHT_FAMILY_ATTN_BWD_SM90_WIDE_CUH_

#include "abi/attn_bwd_params.h"
#include "abi/tensor_map.h"
#include "core/concepts.cuh"
#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/problem.cuh"
#include "core/words.cuh"
#include "mma/bwd_consumer.cuh"
#include "mma/bwd_key_tiles.cuh"
#include "mma/dq_sums.cuh"
#include "policy/alibi_gradient.cuh"
#include "policy/dropout.cuh"
#include "policy/kv_rows.cuh"
#include "policy/lse.cuh"
#include "policy/mask_chain.cuh"
#include "policy/scale.cuh"
#include "policy/score_chain.cuh"
#include "policy/sink.cuh"
#include "ptx/cluster.cuh"
#include "ptx/global_memory.cuh"
#include "ptx/griddep.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace tilewright {
namespace bwd_sm90 {

inline constexpr int kConsumersBarrier = 1;
inline constexpr int kFirstStoreBarrier = 2;
inline constexpr int kDsStages = 2;

template <class Config>
struct Shape {
  static constexpr int kConsumers = 2;
  static constexpr int kConsumerWarps = 4 * kConsumers;
  static constexpr int kConsumerThreads = kConsumers * kWarpgroup;
  static constexpr int kPanelsQk = RoundUp(Config::kHeadDimQk, kPanelColumns) / kPanelColumns;
  static constexpr int kPanelsV = RoundUp(Config::kHeadDimV, kPanelColumns) / kPanelColumns;
  static constexpr int kBytesK = kPanelsQk * Config::kBlockN * kRowBytes;
  static constexpr int kBytesV = kPanelsV * Config::kBlockN * kRowBytes;
  static constexpr int kBytesQ = kPanelsQk * Config::kBlockM * kRowBytes;
  static constexpr int kBytesDo = kPanelsV * Config::kBlockM * kRowBytes;
  static constexpr int kPairs = Config::kBlockM / 2;  // of a thread in a step
  static constexpr int kPackedPairs = kPairs / 2;
  static constexpr int kPieceTiles = kPanelColumns / 8;  // of 8 columns, in a piece of dQ
  static constexpr int kQkTiles = Config::kHeadDimQk / 8;
  static constexpr int kFloatsOfFragment = 128;
  static constexpr int kFloatsOfDqTile = Config::kBlockM * kQkTiles * 8;
  static constexpr int kLaneRows = 4;
  static constexpr int kCopyThreads = 96;
  static constexpr bool kEarlyStats = true;
  static constexpr bool kLimitsInShared = false;
  static constexpr bool kBeginsWithZeros = false;
  static constexpr bool kWarpgroupsShareKeys = true;
};

template <class Config>
struct alignas(1024) SharedStorage {
  u16 k[Shape<Config>::kPanelsQk][Config::kBlockN][kPanelColumns];
  u16 v[Shape<Config>::kPanelsV][Config::kBlockN][kPanelColumns];
  u16 q[Config::kStages][Shape<Config>::kPanelsQk][Config::kBlockM][kPanelColumns];
  u16 d_o[Config::kStages][Shape<Config>::kPanelsV][Config::kBlockM][kPanelColumns];
  u16 ds[kDsStages][1][Config::kBlockN][kPanelColumns];
  alignas(16) u32 p[Shape<Config>::kPackedPairs / 4][kWarpgroup][4];
  alignas(16) float lse[kStatsStages][Config::kBlockM];
  alignas(16) float delta[kStatsStages][Config::kBlockM];
  KeyTile tile;
  alignas(8) u64 kv_full;
  u64 rows_full[Config::kStages];
  u64 rows_empty[Config::kStages];
  u64 p_full;
  u64 ds_full;
  u64 ds_empty;
};

// kMakesWeights: the warpgroup of P and dV, otherwise that of dS and dK.
template <class Config, class Params, bool kMakesWeights>
struct Consumer : ConsumerBase<Config, Params> {
  using Base = ConsumerBase<Config, Params>;
  using Base::CounterOf;
  using Base::Descriptor;
  using Base::KeysOf;
  using Base::lane;
  using Base::params;
  using Base::RowsOf;
  using Base::shared;
  using Base::thread;
  using Base::warpgroup;
  using S = Shape<Config>;
  using Element = typename Config::Element;
  using Wgmma = typename Config::Wgmma;
  using Stats = typename Base::Stats;
  static_assert(Base::kValues == 8, "a load has the rows of four packed pairs");

  static constexpr int kColumns = kMakesWeights ? Config::kHeadDimV : Config::kHeadDimQk;
  static constexpr int kSums = kColumns / 2;
  static constexpr int kFirstPiece = kMakesWeights ? 0 : (S::kPanelsQk + 1) / 2;
  static constexpr int kPieces = kMakesWeights ? (S::kPanelsQk + 1) / 2 : S::kPanelsQk / 2;

  Ring<Config::kStages> rows;
  u32 step = 0;
  float sums[kSums];            // of dV or dK
  float pairs[S::kPairs];       // S or dP
  u32 packed[S::kPackedPairs];  // P or dS

  __device__ __forceinline__ Consumer(SharedStorage<Config>& shared, const Params& params)
      : Base(shared, params) {}

  // Tells the loaders of all blocks of the cluster that this warp has read the rows in `stage`.
  __device__ __forceinline__ void ReleaseRows(int stage) const {
    if constexpr (Config::kCluster == 1) {
      WarpArrives(shared.rows_empty[stage]);
    } else {
      __syncwarp();
      const u32 empty = ptx::SharedAddress(&shared.rows_empty[stage]);
      if (lane() < Config::kCluster) ptx::mbarrier_arrive_cluster(ptx::mapa(empty, lane()));
    }
  }

  // S or dP of the rows in `stage`.
  __device__ __forceinline__ void IssuePairs(int stage) {
    if constexpr (kMakesWeights) {
      Wgmma::Scores(pairs, KeysOf(shared.k), RowsOf(shared.q[stage]));
    } else {
      Wgmma::WeightGradients(pairs, KeysOf(shared.v), RowsOf(shared.d_o[stage]));
    }
    ptx::wgmma_commit_group();
  }

  // P of this step, from S; for dV, and for the other warpgroup.
  __device__ __forceinline__ void MakeWeights(const Stats& lse, int q_begin, bool full) {
    if (full) {
      this->template Weights<true>(pairs, lse, q_begin);
    } else {
      this->template Weights<false>(pairs, lse, q_begin);
    }
#pragma unroll
    for (int n = 0; n < S::kPackedPairs; ++n) {
      packed[n] = ptx::cvt_rn_x2_f32(pairs[2 * n + 1], pairs[2 * n], Element{});
    }
#pragma unroll
    for (int n = 0; n < S::kPackedPairs / 4; ++n) {
      *reinterpret_cast<Words<16>*>(&shared.p[n][thread]) = {
          {packed[4 * n], packed[4 * n + 1], packed[4 * n + 2], packed[4 * n + 3]}};
    }
    WarpArrives(shared.p_full);
  }

  // dS of this step, from dP and the other warpgroup's P; for dK, and in shared memory for dQ.
  __device__ __forceinline__ void MakeGradients(const Stats& deltas, bool full) {
    Wait(shared.p_full, step % 2);
#pragma unroll
    for (int n = 0; n < S::kPackedPairs / 4; ++n) {
      const auto weights = *reinterpret_cast<const Words<16>*>(&shared.p[n][thread]);
      const LaneRows<S::kLaneRows> delta = deltas[n];
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const int at = 4 * n + pair;
        float gradient[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const auto weight =
              static_cast<float>(Element{static_cast<u16>(weights.word[pair] >> 16 * c)});
          gradient[c] = weight * (pairs[2 * at + c] - delta.value[pair / 2 * 2 + c]);
          // The dO * V of a masked key may be anything.
          if (!full && weight == 0) gradient[c] = 0;
        }
        packed[at] = ptx::cvt_rn_x2_f32(gradient[1], gradient[0], Element{});
      }
    }
    // All products that read what lies there.
    if (step > 0) Wait(shared.ds_empty, (step - 1) % 2);
    this->template StoreRows<Config::kBlockM / 8>(shared.ds[step % kDsStages], packed);
    ptx::fence_proxy_async_shared();
    WarpArrives(shared.ds_full);
  }

  // A piece of dQ of step `n`.
  __device__ __forceinline__ void IssuePiece(float (&dq)[4 * S::kPieceTiles], u32 n,
                                             int piece) const {
    Wgmma::Dq(dq, Descriptor(shared.ds[n % kDsStages], Config::kBlockN),
              Descriptor(&shared.k[kFirstPiece + piece], Config::kBlockN));
    ptx::wgmma_commit_group();
  }

  // Until it is this block's turn to add to `target`; `counted`: the warps before when they were
  // last looked at. No fence: additions happen in L2 in the order they come there, and this warp's
  // begin after the answer has come.
  __device__ __forceinline__ void WaitDqTurn(const DqTarget& target, i32 counted) const {
    if (lane() == 0) {
      while (counted < target.warps_before) {
        counted = ptx::ld_relaxed_gpu_s32(CounterOf(target));
      }
    }
    __syncwarp();
  }
  // Lets the next block add to `target`.
  __device__ __forceinline__ void EndDqTurn(const DqTarget& target) const {
    __syncwarp();
    if (target.tile >= 0 && lane() == 0) ptx::red_release_gpu_add_s32(CounterOf(target), 1);
  }

  // Adds a piece of dQ to the sums of `tile`.
  __device__ __forceinline__ void AddPiece(const float (&dq)[4 * S::kPieceTiles], int piece,
                                           int tile) const {
    if (tile < 0) return;
    const int first = (kFirstPiece + piece) * S::kPieceTiles;
    float* const fragments = params.gradients.dq_sums + i64{tile} * S::kFloatsOfDqTile +
                             (thread / 32 * S::kQkTiles + first) * S::kFloatsOfFragment;
#pragma unroll
    for (int t = 0; t < S::kPieceTiles; ++t) {
      if (first + t >= S::kQkTiles) break;
      const float value[4] = {dq[4 * t], dq[4 * t + 1], dq[4 * t + 2], dq[4 * t + 3]};
      AddFragment(fragments + t * S::kFloatsOfFragment, value);
    }
  }

  // The remaining pieces of dQ of step `n`, the first of which has arrived in `dq`.
  __device__ __forceinline__ void AddPieces(float (&dq)[4 * S::kPieceTiles], u32 n,
                                            const DqTarget& target) const {
    ptx::AccumulatorsReady(dq);
    AddPiece(dq, 0, target.tile);
    if constexpr (kPieces > 1) {
      ptx::wgmma_fence();
      IssuePiece(dq, n, 1);
      ptx::wgmma_wait_group<0>();
      ptx::AccumulatorsReady(dq);
      AddPiece(dq, 1, target.tile);
    }
  }

  // One step, whose S or dP has arrived; `before`: where dQ of the last two steps goes. No product
  // may stand under a condition, which would cost ptxas the pipeline (C7515).
  __device__ __forceinline__ void Step(int q_begin, bool full, bool last,
                                       const DqTarget (&before)[2]) {
    const int stage = rows.stage;
    i32 counted = 0;
    if constexpr (Config::kDeterministic) {
      if (before[1].tile >= 0) counted = ptx::ld_relaxed_gpu_s32(CounterOf(before[1]));
    }
    const Stats stats = this->StatsOf(kMakesWeights ? shared.lse : shared.delta, step);
    // Of the step before: P has been read, and dS is there.
    if (step > 0) Wait(shared.ds_full, (step - 1) % 2);
    if constexpr (kMakesWeights) {
      MakeWeights(stats, q_begin, full);
      ptx::wgmma_fence();
      Wgmma::Dv(sums, packed, RowsOf(shared.d_o[stage]), /*adds=*/1);
    } else {
      MakeGradients(stats, full);
      ptx::wgmma_fence();
      Wgmma::Dk(sums, packed, RowsOf(shared.q[stage]), /*adds=*/1);
    }
    ptx::wgmma_commit_group();
    float dq[4 * S::kPieceTiles];
    if constexpr (kPieces > 0) IssuePiece(dq, step - 1, 0);
    rows.Advance();
    if (!last) Wait(shared.rows_full[rows.stage], rows.parity);
    ptx::wgmma_fence();
    IssuePairs(last ? stage : rows.stage);
    ptx::wgmma_wait_group<1>();
    ReleaseRows(stage);
    if constexpr (Config::kDeterministic) {
      EndDqTurn(before[0]);
      if (before[1].tile >= 0) WaitDqTurn(before[1], counted);
    }
    if constexpr (kPieces > 0) AddPieces(dq, step - 1, before[1]);
    ptx::wgmma_wait_group<0>();
    ptx::AccumulatorsReady(pairs);
    WarpArrives(shared.ds_empty);
    ++step;
  }

  // Zeros for dQ of step -1.
  __device__ __forceinline__ void ClearFirstOperand() const {
    auto* words = reinterpret_cast<Words<16>*>(&shared.ds[kDsStages - 1]);
    for (int n = warpgroup * kWarpgroup + thread;
         n < static_cast<int>(sizeof(shared.ds[0]) / sizeof(*words)); n += S::kConsumerThreads) {
      words[n] = {{0, 0, 0, 0}};
    }
    ptx::fence_proxy_async_shared();
    ptx::bar_sync(kConsumersBarrier, S::kConsumerThreads);
  }

  __device__ __forceinline__ void Steps(const KeyTile& tile) {
    this->FindRows(tile);
    ClearFirstOperand();
    Wait(shared.kv_full, 0);
    Wait(shared.rows_full[0], 0);
    ptx::wgmma_fence();
    IssuePairs(0);
    ptx::wgmma_wait_group<0>();
    ptx::AccumulatorsReady(pairs);
    DqTarget before[2];
#pragma unroll 1
    for (int g = 0; g < Config::kGroup; ++g) {
      Problem problem = ProblemOf<Config>(tile, params);
      problem.h += g;
      const int first = static_cast<int>(DqTile(problem, 0, Config::kBlockM, params));
#pragma unroll 1
      for (int m = tile.begin; m < tile.end; ++m) {
        Step(m * Config::kBlockM, m >= tile.full_begin && m < tile.full_end,
             g == Config::kGroup - 1 && m == tile.end - 1, before);
        before[0] = before[1];
        before[1].tile = m >= tile.own_begin && m < tile.own_end ? first + m : -1;
        if constexpr (Config::kDeterministic) {
          before[1].warps_before = this->WarpsBefore(problem, m, tile.kv_begin);
        }
      }
    }
    Wait(shared.ds_full, (step - 1) % 2);
    if constexpr (Config::kDeterministic) {
      EndDqTurn(before[0]);
      WaitDqTurn(before[1], /*counted=*/0);
    }
    if constexpr (kPieces > 0) {
      float dq[4 * S::kPieceTiles];
      ptx::wgmma_fence();
      IssuePiece(dq, step - 1, 0);
      ptx::wgmma_wait_group<0>();
      AddPieces(dq, step - 1, before[1]);
    }
    if constexpr (Config::kDeterministic) EndDqTurn(before[1]);
  }

  // dV or dK of the tile, from the sums.
  __device__ __forceinline__ void Finish(const KeyTile& tile) {
    u32 rounded[kSums / 2];
    const float scale = kMakesWeights ? 1.f : params.core.scale;
#pragma unroll
    for (int n = 0; n < kSums / 2; ++n) {
      rounded[n] = ptx::cvt_rn_x2_f32(sums[2 * n + 1] * scale, sums[2 * n] * scale, Element{});
    }
    ptx::bar_sync(kConsumersBarrier, S::kConsumerThreads);
    const abi::AttnBwdParams& gradients = params.gradients;
    if constexpr (kMakesWeights) {
      this->template StoreRows<kColumns / 8>(shared.v, rounded);
    } else {
      this->template StoreRows<kColumns / 8>(shared.k, rounded);
    }
    ptx::fence_proxy_async_shared();
    ptx::bar_sync(kFirstStoreBarrier + warpgroup, kWarpgroup);
    if constexpr (kMakesWeights) {
      this->template StoreGradient<kColumns, S::kPanelsV>(shared.v, &params.sm90.d_v, gradients.d_v,
                                                          gradients.d_v_strides, tile);
    } else {
      this->template StoreGradient<kColumns, S::kPanelsQk>(
          shared.k, &params.sm90.d_k, gradients.d_k, gradients.d_k_strides, tile);
    }
    if (thread == 0) {
      ptx::cp_async_bulk_commit_group();
      // Shared memory must outlive the copies that read it.
      ptx::cp_async_bulk_wait_group_read_0();
    }
  }

  __device__ __forceinline__ void ComputeTile(const KeyTile& tile) {
#pragma unroll
    for (int n = 0; n < kSums; ++n) sums[n] = 0;
    if (tile.HasSteps()) {
      Steps(tile);
      ptx::AccumulatorsReady(sums);
    }
    Finish(tile);
  }
};

template <class Config, class Params>
__device__ __forceinline__ void InitialiseShared(SharedStorage<Config>& shared,
                                                 const Params& params) {
  FindTileOfBlock<Config>(shared.tile, params);
  if (threadIdx.x == 32) {
    ptx::mbarrier_init(ptx::SharedAddress(&shared.kv_full), kLoadingWarps);
    InitialiseRowBarriers<Config>(shared);
    ptx::mbarrier_init(ptx::SharedAddress(&shared.p_full), kWarpgroup / 32);
    ptx::mbarrier_init(ptx::SharedAddress(&shared.ds_full), kWarpgroup / 32);
    ptx::mbarrier_init(ptx::SharedAddress(&shared.ds_empty), Shape<Config>::kConsumerWarps);
    ptx::fence_mbarrier_init();
  }
  ptx::griddepcontrol_wait();
  if constexpr (Config::kCluster > 1) __syncthreads();  // shared.tile, within the block
  SyncCluster<Config>();
}

template <class Config, class Params>
__device__ __forceinline__ void Run(const Params& params) {
  static_assert(MaskPolicy<typename Config::Mask, Params>);
  static_assert(Config::Mask::kIsInterval, "a key's rows must be an interval");
  static_assert(Config::Score::kIdentity && Config::Dropout::kIdentity);
  static_assert(kIsSame<typename Config::Lengths, LengthsUniform>,
                "tensor maps end where the longest sequence does");
  static_assert(Config::KvRows::kIsDense);
  static_assert(Config::kHeadDimQk % 8 == 0 && Config::kHeadDimV % 8 == 0);
  static_assert(Config::kBlockM == kPanelColumns && Config::kBlockN == kWarpgroupKeys);
  extern __shared__ __align__(1024) u8 shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(shared_bytes);
  ptx::griddepcontrol_launch_dependents();
  InitialiseShared(shared, params);
  const KeyTile& tile = shared.tile;
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < kLoadingWarps) {
    ptx::setmaxnreg_dec<Config::kLoaderRegisters>();
    Loader<Config, Params> loader = {shared, params};
    if (warp > 0) {
      loader.template LoadTile<false>(tile);
    } else if (threadIdx.x == 0) {
      loader.template LoadTile<true>(tile);
    }
  } else {
    ptx::setmaxnreg_inc<Config::kConsumerRegisters>();
    if (warp < kLoadingWarps + kWarpgroup / 32) {
      Consumer<Config, Params, /*kMakesWeights=*/true>(shared, params).ComputeTile(tile);
    } else {
      Consumer<Config, Params, /*kMakesWeights=*/false>(shared, params).ComputeTile(tile);
    }
  }
  // The other block may still load rows for this one and tell it what it has read.
  if constexpr (Config::kCluster > 1) SyncCluster<Config>();
}

}  // namespace bwd_sm90
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_BWD_SM90_WIDE_CUH_
