// Gradients of attention on Hopper's warpgroup products for heads too wide for attn_bwd_sm90: up to
// 256, sm_90a, 16-bit operands, fp32 sums. Needs the row statistics of attn_bwd_prep, and
// attn_bwd_finish after it.
//
// Algorithm That of attn_bwd_sm90. A thread could not hold the sums of dK and dV of 64 keys, so the
//           two warpgroups have the same 64 keys and different work:
//             weights     S = K Q^T,   P = exp2(S - lse),     dV += P dO
//             gradients   dP = V dO^T, dS = P (dP - delta),   dK += dS Q
//           P and dS pass through shared memory, P rounded as it is for dV, in the order of
//           threads, which are the same on both sides.
// Pairs     What limits wide heads is what L2 takes: additions to dQ and reads of Q and dO, one
//           after the other. Two blocks, a cluster, have neighbouring keys, walk over the same rows
//           and give each other what they have of both: each loads half of the panels of Q and dO
//           for both, and copies its dS to the other. So a block makes half of the columns of
//           dQ = dS^T K, of the keys of both, for which it also has these columns of the other's K.
//           A warpgroup makes a quarter of the columns, one panel at most, and adds them from
//           registers (mma/dq_sums.cuh).
// Order     A warpgroup makes P or dS of step i, and then issues
//             dV or dK of step i | S or dP of step i + 1 | dQ of step i
//           dQ of a step is made while the weights of the next are, and added while that one's dV
//           and dK are. The last step makes its own S again.
// Warps     Warpgroup 0 loads, see mma/bwd_key_tiles.cuh. Warpgroup 1 makes weights, 2 gradients.
// Barriers  kv_full, rows_full[s]  as in attn_bwd_sm90
//           rows_empty[s]   likewise, of both blocks
//           p_full          a warp of the weights each, when it has written its part of P
//           ds_full         a warp of the gradients each, when it has written its part of dS
//           ds_empty        a computing warp each, after dQ
//           other_ready     a warp of the other block's gradients each, when it has read P: the
//                           place of its copy of this block's dS is free. That block has then made
//                           dQ of the step before, so this block's last dS has been copied.
//           other_ds_full   a warp of the gradients each, and the bytes of the other block's dS
//           named 1         the computing warpgroups, when all have read K and V
//           named 2 + w     warpgroup w of them, around its gradient in shared memory
// dQ turns  kDeterministic: as in attn_bwd_sm90; a warp counts itself in the next step, when its
//           additions have long been made.
// Masks     By selection of P and dS, also of rows that see the other block's keys only. A NaN of a
//           masked key stays within its tile.
// Shared    k, v     [panel][64][64]           rows of 128 bytes, 128-byte swizzle, panels of 64
//           other_k  [1 or 2][64][64]          columns; columns beyond the dim are zeros. A panel
//                                              of K begins with a warpgroup's columns of dQ, so
//                                              panels may repeat columns
//           q, d_o   [kStages][panel][64][64]
//           ds       [64][64]                  a row a key
//           other_ds [64][64]                  the other block's, or P: [4][thread][4] packed
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
#include "ptx/cluster_copy.cuh"
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
inline constexpr int kPair = 2;  // blocks

template <class Config>
struct Shape {
  static constexpr int kConsumers = 2;
  static constexpr int kConsumerWarps = 4 * kConsumers;
  static constexpr int kConsumerThreads = kConsumers * kWarpgroup;
  static constexpr int kPanelsQk = RoundUp(Config::kHeadDimQk, kPanelColumns) / kPanelColumns;
  static constexpr int kPanelsV = RoundUp(Config::kHeadDimV, kPanelColumns) / kPanelColumns;
  // K's panels for dQ begin where the parts of its columns do that a warpgroup of a block makes,
  // every other one a block. Heads of more than two panels have a part for each of the four
  // warpgroups.
  static constexpr int kPieces = kPanelsQk > kPair ? 2 : 1;  // of a block
  static constexpr int kPanelsK = kPieces == 1 ? kPanelsQk : kPieces * kPair;
  static constexpr int kPanelStepK = Config::kDqColumns;
  static constexpr int kPieceTiles = kPanelStepK / 8;  // of 8 columns, in a piece of dQ
  static constexpr int kBytesK = kPanelsK * Config::kBlockN * kRowBytes;
  static constexpr int kBytesV = kPanelsV * Config::kBlockN * kRowBytes;
  static constexpr int kBytesQ = kPanelsQk * Config::kBlockM * kRowBytes;
  static constexpr int kBytesDo = kPanelsV * Config::kBlockM * kRowBytes;
  static constexpr int kPairs = Config::kBlockM / 2;  // of a thread in a step
  static constexpr int kPackedPairs = kPairs / 2;
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
  u16 k[Shape<Config>::kPanelsK][Config::kBlockN][kPanelColumns];
  u16 v[Shape<Config>::kPanelsV][Config::kBlockN][kPanelColumns];
  u16 q[Config::kStages][Shape<Config>::kPanelsQk][Config::kBlockM][kPanelColumns];
  u16 d_o[Config::kStages][Shape<Config>::kPanelsV][Config::kBlockM][kPanelColumns];
  u16 other_k[Shape<Config>::kPieces][Config::kBlockN][kPanelColumns];
  u16 ds[1][Config::kBlockN][kPanelColumns];
  union {
    u16 other_ds[1][Config::kBlockN][kPanelColumns];
    u32 p[Shape<Config>::kPackedPairs / 4][kWarpgroup][4];
  };
  alignas(16) float lse[kStatsStages][Config::kBlockM];
  alignas(16) float delta[kStatsStages][Config::kBlockM];
  KeyTile tile;
  KeyTile other_tile;
  i32 number;  // deterministic: of the pair's tiles
  alignas(8) u64 kv_full;
  u64 rows_full[Config::kStages];
  u64 rows_empty[Config::kStages];
  u64 p_full;
  u64 ds_full;
  u64 ds_empty;
  u64 other_ready;
  u64 other_ds_full;
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
  static constexpr int kPiece = kMakesWeights ? 0 : 1;
  static constexpr bool kHasPiece = kPiece < S::kPieces;

  Ring<Config::kStages> rows;
  u32 step = 0;
  const u32 rank;               // of the block in its pair
  float sums[kSums];            // of dV or dK
  float pairs[S::kPairs];       // S or dP
  u32 packed[S::kPackedPairs];  // P or dS
  float dq[4 * S::kPieceTiles];

  __device__ __forceinline__ Consumer(SharedStorage<Config>& shared, const Params& params)
      : Base(shared, params), rank(RankInCluster<Config>()) {}

  // Of K for this warpgroup's columns of dQ; the second block may have none.
  __device__ __forceinline__ int Panel() const { return static_cast<int>(rank) + kPair * kPiece; }
  // An address of this block in the other one.
  __device__ __forceinline__ u32 OfOther(u32 address) const { return ptx::mapa(address, rank ^ 1); }

  // Tells the loaders of both blocks that this warp has read the rows in `stage`.
  __device__ __forceinline__ void ReleaseRows(int stage) const {
    __syncwarp();
    const u32 empty = ptx::SharedAddress(&shared.rows_empty[stage]);
    if (lane() < kPair) ptx::mbarrier_arrive_cluster(ptx::mapa(empty, lane()));
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

  // P of this step, from S.
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
  }
  // Hands it to the other warpgroup.
  __device__ __forceinline__ void PassWeights() const {
    // P lies where dS of the other block was read.
    Wait(shared.ds_empty, step % 2);
#pragma unroll
    for (int n = 0; n < S::kPackedPairs / 4; ++n) {
      *reinterpret_cast<Words<16>*>(&shared.p[n][thread]) = {
          {packed[4 * n], packed[4 * n + 1], packed[4 * n + 2], packed[4 * n + 3]}};
    }
    WarpArrives(shared.p_full);
  }

  // dS of this step, from dP and the other warpgroup's P.
  __device__ __forceinline__ void MakeGradients(const Stats& deltas, bool full) {
    Wait(shared.p_full, step % 2);
    Words<16> weights[S::kPackedPairs / 4];
    u32 read = 0;
#pragma unroll
    for (int n = 0; n < S::kPackedPairs / 4; ++n) {
      weights[n] = *reinterpret_cast<const Words<16>*>(&shared.p[n][thread]);
      read |= weights[n].word[0];
    }
    __syncwarp();
    if (lane() == 0) {
      ptx::mbarrier_arrive_cluster_behind(OfOther(ptx::SharedAddress(&shared.other_ready)), read);
    }
#pragma unroll
    for (int n = 0; n < S::kPackedPairs / 4; ++n) {
      const LaneRows<S::kLaneRows> delta = deltas[n];
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const int at = 4 * n + pair;
        float gradient[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const auto weight =
              static_cast<float>(Element{static_cast<u16>(weights[n].word[pair] >> 16 * c)});
          gradient[c] = weight * (pairs[2 * at + c] - delta.value[pair / 2 * 2 + c]);
          // The dO * V of a masked key may be anything.
          if (!full && weight == 0) gradient[c] = 0;
        }
        packed[at] = ptx::cvt_rn_x2_f32(gradient[1], gradient[0], Element{});
      }
    }
  }
  // Puts it where products of both blocks find it. A warp's keys are contiguous there.
  __device__ __forceinline__ void PassGradients() const {
    Wait(shared.other_ready, step % 2);
    this->template StoreRows<Config::kBlockM / 8>(shared.ds, packed);
    ptx::fence_proxy_async_shared();
    __syncwarp();
    if (lane() == 0) {
      constexpr int kWarpKeys = kWarpgroupKeys / 4;
      constexpr u32 kBytes = kWarpKeys * kRowBytes;
      const int first = static_cast<int>(ptx::Opaque(thread)) / 32 * kWarpKeys;
      const u32 full = ptx::SharedAddress(&shared.other_ds_full);
      Arrive(shared.ds_full);
      ptx::mbarrier_arrive_expect_tx(full, kBytes);
      ptx::cp_async_bulk_to_cluster(OfOther(ptx::SharedAddress(&shared.other_ds[0][first])),
                                    ptx::SharedAddress(&shared.ds[0][first]), kBytes,
                                    OfOther(full));
    }
  }

  // This warpgroup's columns of dQ of this step.
  __device__ __forceinline__ void IssueDq() {
    const bool exists = Panel() < S::kPanelsK;
    // What lies in the place of columns that do not exist is added nowhere.
    const u64 own = Descriptor(&shared.k[exists ? Panel() : 0], Config::kBlockN);
    const u64 other = exists ? Descriptor(&shared.other_k[kPiece], Config::kBlockN) : own;
    Wait(shared.ds_full, step % 2);
    ptx::wgmma_fence();
    Wgmma::Dq(dq, Descriptor(shared.ds, Config::kBlockN), own, /*adds=*/0);
    Wait(shared.other_ds_full, step % 2);
    Wgmma::Dq(dq, Descriptor(shared.other_ds, Config::kBlockN), other, /*adds=*/1);
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

  // Adds dQ to the sums of `tile`.
  __device__ __forceinline__ void AddDq(int tile) const {
    if (tile < 0 || Panel() >= S::kPanelsK) return;
    const int first = Panel() * S::kPieceTiles;
    float* const fragments = params.gradients.dq_sums + i64{tile} * S::kFloatsOfDqTile +
                             (thread / 32 * S::kQkTiles + first) * S::kFloatsOfFragment;
#pragma unroll
    for (int t = 0; t < S::kPieceTiles; ++t) {
      if (S::kQkTiles % S::kPieceTiles != 0 && first + t >= S::kQkTiles) break;
      const float value[4] = {dq[4 * t], dq[4 * t + 1], dq[4 * t + 2], dq[4 * t + 3]};
      AddFragment(fragments + t * S::kFloatsOfFragment, value);
    }
  }

  // Waits for dQ of the step before.
  __device__ __forceinline__ void EndDq() {
    ptx::wgmma_wait_group<0>();
    if constexpr (kHasPiece) ptx::AccumulatorsReady(dq);
    WarpArrives(shared.ds_empty);
  }

  // One step, whose S or dP has arrived, while dQ of the step before is under way; `before`: where
  // dQ of the last two steps goes. No product may stand under a condition, which would cost ptxas
  // the pipeline (C7515).
  __device__ __forceinline__ void Step(int q_begin, bool full, bool last,
                                       const DqTarget (&before)[2]) {
    const int stage = rows.stage;
    i32 counted = 0;
    if constexpr (Config::kDeterministic) {
      if (before[1].tile >= 0) counted = ptx::ld_relaxed_gpu_s32(CounterOf(before[1]));
    }
    const Stats stats = this->StatsOf(kMakesWeights ? shared.lse : shared.delta, step);
    if constexpr (kMakesWeights) {
      MakeWeights(stats, q_begin, full);
      EndDq();
      PassWeights();
      ptx::wgmma_fence();
      Wgmma::Dv(sums, packed, RowsOf(shared.d_o[stage]), /*adds=*/1);
    } else {
      EndDq();
      MakeGradients(stats, full);
      PassGradients();
      ptx::wgmma_fence();
      Wgmma::Dk(sums, packed, RowsOf(shared.q[stage]), /*adds=*/1);
    }
    ptx::wgmma_commit_group();
    rows.Advance();
    if (!last) Wait(shared.rows_full[rows.stage], rows.parity);
    ptx::wgmma_fence();
    IssuePairs(last ? stage : rows.stage);
    if constexpr (Config::kDeterministic) {
      EndDqTurn(before[0]);
      if (before[1].tile >= 0) WaitDqTurn(before[1], counted);
    }
    if constexpr (kHasPiece) AddDq(before[1].tile);
    ptx::wgmma_wait_group<1>();
    ReleaseRows(stage);
    if constexpr (kHasPiece) {
      IssueDq();
      ptx::wgmma_wait_group<1>();
    } else {
      ptx::wgmma_wait_group<0>();
    }
    ptx::AccumulatorsReady(pairs);
    ++step;
  }

  __device__ __forceinline__ void Steps(const KeyTile& tile) {
    this->FindRows(tile);
    Wait(shared.rows_full[0], 0);
    ptx::wgmma_fence();
    IssuePairs(0);
    ptx::wgmma_wait_group<0>();
    ptx::AccumulatorsReady(pairs);
#pragma unroll
    for (float& sum : dq) sum = 0;
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
        before[1].tile = first + m;
        if constexpr (Config::kDeterministic) {
          before[1].warps_before = this->WarpsBefore(problem, m, tile.kv_begin);
        }
      }
    }
    ptx::wgmma_wait_group<0>();
    if constexpr (kHasPiece) ptx::AccumulatorsReady(dq);
    if constexpr (Config::kDeterministic) {
      EndDqTurn(before[0]);
      WaitDqTurn(before[1], /*counted=*/0);
    }
    if constexpr (kHasPiece) AddDq(before[1].tile);
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
    Wait(shared.kv_full, 0);
    if (tile.HasSteps()) {
      Steps(tile);
      ptx::AccumulatorsReady(sums);
    }
    Finish(tile);
  }
};

// ---- the loading warpgroup

template <class Config, class Params>
struct PairLoader : Loader<Config, Params> {
  using Base = Loader<Config, Params>;
  using Base::params;
  using Base::ring;
  using Base::shared;
  using S = Shape<Config>;

  // Where the other block's keys begin.
  __device__ __forceinline__ static int OtherKeys(const KeyTile& tile) {
    return tile.kv_begin + (RankInCluster<Config>() == 0 ? Config::kBlockN : -Config::kBlockN);
  }
  // The first of this block's panels of dQ's columns; the next is kPair further.
  __device__ __forceinline__ static int FirstPanel() {
    return static_cast<int>(RankInCluster<Config>());
  }

  // By one thread.
  __device__ __forceinline__ void LoadKeysByMap(const KeyTile& tile) const {
    const u64& full = shared.kv_full;
    if ((params.sm90.by_threads & abi::kKvByThreads) != 0) return Arrive(full);
    const int others = (S::kPanelsK - FirstPanel() + kPair - 1) / kPair;
    constexpr int kBytesOfPanel = Config::kBlockN * kRowBytes;
    ptx::mbarrier_arrive_expect_tx(ptx::SharedAddress(&full),
                                   S::kBytesK + S::kBytesV + others * kBytesOfPanel);
    Base::template LoadPanels<S::kPanelsK, S::kPanelStepK>(
        shared.k, &params.sm90.k, full, this->RowOfKeyMap(tile.kv_begin), tile.head_kv, tile.batch);
    Base::template LoadPanels<S::kPanelsV>(shared.v, &params.sm90.v, full, tile.kv_begin,
                                           tile.head_kv, tile.batch);
#pragma unroll 1
    for (int n = 0; n < others; ++n) {
      ptx::cp_async_bulk_tensor_4d_load(
          ptx::SharedAddress(&shared.other_k[n]), &params.sm90.k, ptx::SharedAddress(&full),
          (FirstPanel() + kPair * n) * S::kPanelStepK, this->RowOfKeyMap(OtherKeys(tile)),
          tile.head_kv, tile.batch);
    }
  }

  // By the copying warps.
  __device__ __forceinline__ void LoadKeysByThreads(const KeyTile& tile) const {
    if ((params.sm90.by_threads & abi::kKvByThreads) != 0) {
      const abi::AttnFwdParams& core = params.core;
      const int valid = this->ExistingKeys(tile.kv_begin);
      CopyTile<S::kCopyThreads, Config::kHeadDimQk, S::kPanelsK, S::kPanelStepK>(
          shared.k, Base::RowsOf(core.k, core.k_strides, tile.batch, tile.head_kv, tile.kv_begin),
          core.k_strides.seq, this->EndOfSeen(tile.kv_begin), this->FirstSeen(tile.kv_begin));
      CopyTile<S::kCopyThreads, Config::kHeadDimV, S::kPanelsV>(
          shared.v, Base::RowsOf(core.v, core.v_strides, tile.batch, tile.head_kv, tile.kv_begin),
          core.v_strides.seq, valid);
      CopyOtherKeys(tile);
    }
    WarpArrives(shared.kv_full);
  }
  __device__ __forceinline__ void CopyOtherKeys(const KeyTile& tile) const {
    const abi::AttnFwdParams& core = params.core;
    const int begin = this->FirstSeen(OtherKeys(tile)), end = this->EndOfSeen(OtherKeys(tile));
    const auto* const first = static_cast<const u16*>(
        Base::RowsOf(core.k, core.k_strides, tile.batch, tile.head_kv, OtherKeys(tile)));
#pragma unroll 1
    for (int n = 0; n < S::kPieces; ++n) {
      const int panel = FirstPanel() + kPair * n;
      if (panel >= S::kPanelsK) break;
      constexpr int kLastColumns = Config::kHeadDimQk - (S::kPanelsK - 1) * S::kPanelStepK;
      if (panel == S::kPanelsK - 1) {
        CopyTile<S::kCopyThreads, kLastColumns, 1>(
            &shared.other_k[n], first + panel * S::kPanelStepK, core.k_strides.seq, end, begin);
      } else {
        CopyTile<S::kCopyThreads, S::kPanelStepK, 1>(
            &shared.other_k[n], first + panel * S::kPanelStepK, core.k_strides.seq, end, begin);
      }
    }
  }

  // Rows. kByMap: the part of thread 0, otherwise that of the copying warps.
  template <bool kByMap>
  __device__ __forceinline__ void LoadRows(const KeyTile& tile) {
#pragma unroll 1
    for (int g = 0; g < Config::kGroup; ++g) {
#pragma unroll 1
      for (int m = tile.begin; m < tile.end; ++m) {
        const int h = tile.head_kv * Config::kGroup + g;
        if constexpr (kByMap) {
          this->LoadRowsByMap(tile, h, m);
        } else {
          this->LoadRowsByThreads(tile, h, m);
        }
        ring.Advance();
      }
    }
  }
};

// The number of the pair's tiles: deterministic, no pair waits for one that has not begun.
template <class Config, class Params>
__device__ __forceinline__ u32 NumberOfPair(SharedStorage<Config>& shared, const Params& params) {
  if constexpr (Config::kDeterministic) {
    if (threadIdx.x == 0) shared.number = 0;
    // A number is drawn from what attn_bwd_prep has cleared.
    ptx::griddepcontrol_wait();
    SyncCluster<Config>();
    if (RankInCluster<Config>() == 0 && threadIdx.x < 32) {
      const u32 number = DrawNumber<Config>(params);
      const u32 address = ptx::SharedAddress(&shared.number);
      if (threadIdx.x < kPair) {
        ptx::red_max_cluster(ptx::mapa(address, threadIdx.x), static_cast<int>(number));
      }
    }
    SyncCluster<Config>();
    return static_cast<u32>(shared.number);
  }
  return blockIdx.x / kPair;
}

template <class Config, class Params>
__device__ __forceinline__ void InitialiseShared(SharedStorage<Config>& shared,
                                                 const Params& params) {
  const u32 number = NumberOfPair<Config>(shared, params);
  const u32 rank = RankInCluster<Config>();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  // A warp each for what both blocks of the pair walk over, while one thread asks for the keys.
  if (warp == 0 || warp == 2) {
    KeyTile tile = FindKeys<Config>(number, warp == 0 ? rank : rank ^ 1, params);
    FindRowsOfTile<Config>(tile, params);
    if (threadIdx.x % 32 == 0) (warp == 0 ? shared.tile : shared.other_tile) = tile;
  } else if (threadIdx.x == 32) {
    const auto init = [](u64& barrier, u32 arrivals) {
      ptx::mbarrier_init(ptx::SharedAddress(&barrier), arrivals);
    };
    constexpr int kWarps = kWarpgroup / 32;
    init(shared.kv_full, kLoadingWarps);
    InitialiseRowBarriers<Config>(shared);
    init(shared.p_full, kWarps);
    init(shared.ds_full, kWarps);
    init(shared.ds_empty, Shape<Config>::kConsumerWarps);
    init(shared.other_ready, kWarps);
    init(shared.other_ds_full, kWarps);
    ptx::fence_mbarrier_init();
    ptx::griddepcontrol_wait();
    const PairLoader<Config, Params> loader = {{shared, params}};
    loader.LoadKeysByMap(FindKeys<Config>(number, rank, params));
  }
  ptx::griddepcontrol_wait();
  __syncthreads();
  if (threadIdx.x == 0) {
    KeyTile& tile = shared.tile;
    const KeyTile& other = shared.other_tile;
    if (!tile.HasSteps()) {
      tile.begin = other.begin;
      tile.end = other.end;
    } else if (other.HasSteps()) {
      tile.begin = min(tile.begin, other.begin);
      tile.end = max(tile.end, other.end);
    }
  }
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
  static_assert(Config::kCluster == kPair);
  extern __shared__ __align__(1024) u8 shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(shared_bytes);
  ptx::griddepcontrol_launch_dependents();
  InitialiseShared(shared, params);
  const KeyTile& tile = shared.tile;
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < kLoadingWarps) {
    ptx::setmaxnreg_dec<Config::kLoaderRegisters>();
    PairLoader<Config, Params> loader = {{shared, params}};
    if (warp > 0) {
      loader.LoadKeysByThreads(tile);
      loader.template LoadRows<false>(tile);
    } else if (threadIdx.x == 0) {
      loader.template LoadRows<true>(tile);
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
  SyncCluster<Config>();
}

}  // namespace bwd_sm90
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_BWD_SM90_WIDE_CUH_
