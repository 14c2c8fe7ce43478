// Gradients of attention on Hopper's warpgroup products (wgmma) with bulk copies (TMA): sm_90a,
// 16-bit operands, fp32 sums. Needs the row statistics of attn_bwd_prep, and attn_bwd_finish after
// it.
//
// Algorithm FlashAttention-3's backward (Shah et al., arXiv 2407.08608) with keys on the M side. A
//           block has kBlockN keys of one (batch, key/value head) at a time, a warpgroup 64 of
//           them. K and V stay in shared memory, the sums of dK and dV in registers; the block
//           walks over the tiles of kBlockM rows of every query head of the group. A step:
//             S = K Q^T,  P = exp2(S - lse),  dP = V dO^T,  dS = P (dP - delta)
//             dV += P dO,  dK += dS Q         P and dS from registers
//             dQ = dS^T K                     dS through shared memory, of all keys; added to
//                                             memory by bulk additions (mma/dq_sums.cuh)
// Order     The two warpgroups take turns: one issues its products, one burst a step, while the
//           other computes weights from its last ones. A burst of step i is
//             dV and dK of step i - 1 | dQ of step i - 2 or i - 1 | S | dP
//           dQ of warpgroup 0 is two steps late, for the dS of warpgroup 1 is half a step behind;
//           that of warpgroup 1 only one, so that all have read a dS when its place is needed. S is
//           issued before dQ is waited for, which goes to shared memory while S is made, and dP
//           before S is waited for, so the tensor cores always have a product waiting. The turn is
//           passed when S has arrived or, with 128 rows, whose weights take longer, when dP has
//           been issued. (With dQ first ptxas finds too few registers, C7512.) Steps -2 and -1 are
//           of no rows: they multiply zeros while the first copies are under way.
// Tiles     Blocks draw tiles of keys until there are none, and do not stop between two of them:
//           the first step of a tile still makes dV, dK and dQ of the one before, whose sums then
//           go to memory from registers. K has two places, since dQ is late; V is loaded again
//           while the products before dP are made.
// Warps     Warpgroup 0 loads: thread 0 by tensor maps, warp 1 the row statistics and what maps do
//           not describe; warp 2 adds dQ to memory or, where blocks take turns, shares the work of
//           warp 1; warp 3 finds tiles. Warpgroups 1 and 2 compute. Of dQ each has 64 rows or,
//           where kBlockM is 64, kDqColumns columns: K's second panel begins with those of
//           warpgroup 1, and repeats the columns between them and the 64th.
// Barriers  tile_full[t]   warp 3
//           tile_empty[t]  warps 0 to 2 each, and a computing warp each, when its sums are in
//                          memory
//           tile_wanted    thread 0, when it comes to the last rows of a tile
//           k_full[t], v_full  thread 0 and the bytes, or warps 1 and 2
//           k_empty[t]     a computing warp each, after the last dQ of the tile
//           v_empty        a computing warp each, after the last dP of the tile or, where V is kept
//                          in registers, when it has read it
//           rows_full[s]   a loading warp each, and the bytes
//           rows_empty[s]  a computing warp each, after dV and dK of the step
//           ds_full[s]     a computing warp each, when it has written its dS
//           ds_empty[s]    a computing warp each, after dQ
//           dq_full[w]     a warp of warpgroup w each, when its part of dQ lies in its place
//           dq_empty[w]    a lane of warp 2 each, when its addition has read a warp's part
//           named 1        the computing warpgroups, when both have cleared what steps -2 and -1
//                          read
//           named 2 + w    warpgroup w of them, which waits for its turn, and the other
// dQ turns  kDeterministic: the blocks of keys add to a tile of dQ one after the other, the last
//           first, so that under a causal mask, where these get to a tile first, nobody waits long.
//           A warp asks at the start of a step whose turn it is, and counts itself at the end of
//           it, when its addition has been made. Blocks draw numbers, so none waits for one that
//           has not begun.
// Kept      Of K and V, as first factors of S and dP, a warpgroup keeps the first kKeptK and kKeptV
//           steps of 16 columns in registers from the begin of a tile: shared memory is the limit.
// Masks     By selection of P and dS. A NaN of a masked key stays within its tile, and one of a key
//           that no row sees goes nowhere: the map of K leaves it out.
// Shared    k      [2][panel][kBlockN][64]        rows of 128 bytes, 128-byte swizzle, panels of 64
//           v      [panel][kBlockN][64]           columns; columns beyond the dim are zeros
//           q, d_o [kStages][panel][kBlockM][64]
//           ds     [2][kBlockM / 64][kBlockN][64]  a row a key
//           dq     [warp][fragment][128]          a warp's part of dQ on its way to memory, or of
//                                                 dK or dV
//           lse (log2), delta  [2][kBlockM], in the order of LaneRows
//           limits             [thread], with 128 rows: what masks need
#ifndef TILEWRIGHT_FAMILY_ATTN_BWD_SM90_CUH_
#define TILEWRIGHT_FAMILY_ATTN_BWD_SM90_CUH_

#include "abi/attn_bwd_params.h"
#include "abi/tensor_map.h"
#include "core/concepts.cuh"
#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/problem.cuh"
#include "core/warp_reduce.cuh"
#include "core/words.cuh"
#include "mma/bwd_consumer.cuh"
#include "mma/bwd_key_tiles.cuh"
#include "mma/dq_sums.cuh"
#include "policy/alibi_gradient.cuh"
#include "policy/dropout.cuh"
#include "policy/kv_rows.cuh"
#include "policy/lse.cuh"
#include "policy/mask_chain.cuh"
#include "policy/row_tiles.cuh"
#include "policy/scale.cuh"
#include "policy/score_chain.cuh"
#include "policy/sink.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/global_memory.cuh"
#include "ptx/griddep.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mbarrier_behind.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/special.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace tilewright {
namespace bwd_sm90 {

inline constexpr int kConsumersBarrier = 1;
inline constexpr int kFirstTurnBarrier = 2;
inline constexpr int kDsStages = 2;
inline constexpr int kTileStages = 2;   // of tiles of keys, and of K
inline constexpr int kWantedSteps = 3;  // before the end of a tile the next one is looked for

template <class Config>
struct Shape {
  static constexpr int kConsumers = Config::kBlockN / kWarpgroupKeys;
  static constexpr int kConsumerWarps = 4 * kConsumers;
  static constexpr int kConsumerThreads = kConsumers * kWarpgroup;
  static constexpr int kThreads = kConsumerThreads + kWarpgroup;
  static constexpr int kPanelsQk = RoundUp(Config::kHeadDimQk, kPanelColumns) / kPanelColumns;
  static constexpr int kPanelsV = RoundUp(Config::kHeadDimV, kPanelColumns) / kPanelColumns;
  static constexpr int kPanelsM = Config::kBlockM / kPanelColumns;
  static constexpr int kBytesK = kPanelsQk * Config::kBlockN * kRowBytes;
  static constexpr int kBytesV = kPanelsV * Config::kBlockN * kRowBytes;
  static constexpr int kBytesQ = kPanelsQk * Config::kBlockM * kRowBytes;
  static constexpr int kBytesDo = kPanelsV * Config::kBlockM * kRowBytes;
  static constexpr int kBytesDs = kPanelsM * Config::kBlockN * kRowBytes;
  // A thread's: pairs of a step, sums of dK and dV, elements of dQ.
  static constexpr int kPairs = Config::kBlockM / 2;
  static constexpr int kSumsK = Config::kHeadDimQk / 2;
  static constexpr int kSumsV = Config::kHeadDimV / 2;
  // Statistics that a lane reads at a time; of 128 rows more would spill.
  static constexpr int kLaneRows = Config::kBlockM > kPanelColumns ? 2 : 4;
  // Warpgroups share dQ by rows; with one panel of rows, by columns.
  static constexpr bool kByRows = Config::kBlockM > kPanelColumns;
  static constexpr int kQkTiles = Config::kHeadDimQk / 8;  // of 8 columns
  static constexpr int kDqTiles = Config::kDqColumns / 8;
  // From the first column of K's first panel to that of the second one, where a warpgroup's columns
  // of dQ begin.
  static constexpr int kPanelStepK = kByRows ? kPanelColumns : Config::kDqColumns;
  // Of a warp's place for dQ, which 16 rows of dK or dV go through too.
  static constexpr int kPlaceTiles = kByRows ? (kDqTiles > 4 ? kDqTiles : 4) : kPanelColumns / 8;
  static constexpr int kFloatsOfDqTile = Config::kBlockM * kQkTiles * 8;
  static constexpr int kFloatsOfFragment = 128;
  // Of K and V in a thread's registers. An array has at least one word.
  static constexpr int kKeptWordsK = Config::kKeptK > 0 ? 4 * Config::kKeptK : 1;
  static constexpr int kKeptWordsV = Config::kKeptV > 0 ? 4 * Config::kKeptV : 1;
  static constexpr bool kAllOfK = 16 * Config::kKeptK >= Config::kHeadDimQk;
  static constexpr bool kAllOfV = 16 * Config::kKeptV >= Config::kHeadDimV;
  // Whether warp 2 adds dQ to memory: issuing a bulk addition holds a computing warp up for a tenth
  // of a step. Where blocks take turns the computing warps add, and warp 2 copies.
  static constexpr bool kAddsByWarp = !Config::kDeterministic;
  static constexpr int kCopyThreads = kAddsByWarp ? 32 : 64;
  static constexpr bool kEarlyStats = !kByRows;
  // Whether a step's statistics are loaded before its products S and dP, beside which shared memory
  // has no time for loads, as far as there are registers.
  static constexpr bool kStatsAhead = kEarlyStats && Config::kKeptK == 0 && Config::kKeptV == 0;
  // Whether dS of some rows is stored while that of the next is made, likewise.
  static constexpr bool kStoresEarly = kStatsAhead && kAddsByWarp;
  static constexpr bool kLimitsInShared = kByRows;
  static constexpr bool kBeginsWithZeros = true;
  static constexpr bool kWarpgroupsShareKeys = false;
};

// Tiles of rows that a block walks over for one query head. At least two in all: K of the last tile
// but one is released in the second step of the last one. One more than there are sees no keys.
template <class Config>
__device__ __forceinline__ int EndOfWalk(const KeyTile& tile) {
  return Config::kGroup == 1 ? max(tile.end, tile.begin + 2) : tile.end;
}

template <class Config>
struct alignas(1024) SharedStorage {
  u16 k[kTileStages][Shape<Config>::kPanelsQk][Config::kBlockN][kPanelColumns];
  u16 v[Shape<Config>::kPanelsV][Config::kBlockN][kPanelColumns];
  u16 q[Config::kStages][Shape<Config>::kPanelsQk][Config::kBlockM][kPanelColumns];
  u16 d_o[Config::kStages][Shape<Config>::kPanelsV][Config::kBlockM][kPanelColumns];
  u16 ds[kDsStages][Shape<Config>::kPanelsM][Config::kBlockN][kPanelColumns];
  alignas(16) float dq[Shape<Config>::kConsumerWarps][Shape<Config>::kPlaceTiles]
                      [Shape<Config>::kFloatsOfFragment];
  alignas(16) float lse[kStatsStages][Config::kBlockM];
  alignas(16) float delta[kStatsStages][Config::kBlockM];
  RowLimits limits[Shape<Config>::kLimitsInShared ? Shape<Config>::kConsumerThreads : 1];
  KeyTile tiles[kTileStages];  // one without steps: there are no more
  alignas(8) u64 tile_full[kTileStages];
  u64 tile_empty[kTileStages];
  u64 tile_wanted;
  u64 k_full[kTileStages];
  u64 k_empty[kTileStages];
  u64 v_full;
  u64 v_empty;
  u64 rows_full[Config::kStages];
  u64 rows_empty[Config::kStages];
  u64 ds_full[kDsStages];
  u64 ds_empty[kDsStages];
  u64 dq_full[Shape<Config>::kConsumers];
  u64 dq_empty[Shape<Config>::kConsumers];
};

// Adds what warp `warp` of a warpgroup has put into its place to the tile `tile` of dQ's sums. By
// one thread. A warp's part is contiguous in mma/dq_sums.cuh's order.
template <class Config, class Params>
__device__ __forceinline__ void IssueDqAddition(const SharedStorage<Config>& shared,
                                                const Params& params, int tile, int warpgroup,
                                                int warp) {
  using S = Shape<Config>;
  const int row_tile = warp + (S::kByRows ? warpgroup * 4 : 0);
  const int first_column = S::kByRows ? 0 : warpgroup * S::kDqTiles;
  const int columns = S::kByRows ? S::kQkTiles : min(S::kDqTiles, S::kQkTiles - first_column);
  ptx::cp_reduce_async_bulk_add_f32(
      params.gradients.dq_sums + i64{tile} * S::kFloatsOfDqTile +
          (row_tile * S::kQkTiles + first_column) * S::kFloatsOfFragment,
      ptx::SharedAddress(&shared.dq[warpgroup * 4 + warp]),
      columns * S::kFloatsOfFragment * sizeof(float));
  ptx::cp_async_bulk_commit_group();
}

// ---- the computing warpgroups ----

template <class Config, class Params>
struct Consumer : ConsumerBase<Config, Params> {
  using Base = ConsumerBase<Config, Params>;
  using Base::CounterOf;
  using Base::Descriptor;
  using Base::FindRows;
  using Base::first_key;
  using Base::KeysOf;
  using Base::lane;
  using Base::params;
  using Base::RowsOf;
  using Base::shared;
  using Base::thread;
  using Base::warpgroup;
  using S = Shape<Config>;
  using Element = typename Config::Element;
  using Mask = typename Config::Mask;
  using Wgmma = typename Config::Wgmma;
  using Stats = typename Base::Stats;

  // Their parities say which place something has, and what the barriers of the place wait for.
  u32 tiles = 0;     // of keys so far
  u32 ds_count = 0;  // of steps so far, -2 and -1 included
  int age = 0;       // steps of this tile so far
  u32 added = 0;     // parts of dQ that warp 2 has been given

  // Layouts as in ptx/wgmma.cuh: rows are keys, but for dq.
  float dk[S::kSumsK];
  float dv[S::kSumsV];
  // Factors of S and dP, of this tile.
  u32 kept_k[S::kKeptWordsK];
  u32 kept_v[S::kKeptWordsV];
  u32 p[S::kPairs / 2];  // operands of dV and dK
  u32 ds[S::kPairs / 2];

  __device__ __forceinline__ Consumer(SharedStorage<Config>& shared, const Params& params)
      : Base(shared, params) {}

  // Of its part of dS and K for dQ.
  __device__ __forceinline__ u64 PartOf(const u16 (*panels)[Config::kBlockN][kPanelColumns],
                                        bool mine) const {
    return Descriptor(&panels[mine ? warpgroup : 0], Config::kBlockN);
  }
  // The weights `s` to p; `dp`, gradients of weights, to those of scores in ds and in their place.
  template <bool kFull>
  __device__ __forceinline__ void PackStep(const float (&s)[S::kPairs],
                                           const float (&dp)[S::kPairs], const Stats& deltas) {
    u32 place = 0;
    if constexpr (S::kStoresEarly) place = this->PlaceOfRows(shared.ds[ds_count % kDsStages]);
    constexpr int kValues = Base::kValues;
#pragma unroll
    for (int n = 0; n < Base::kLoads; ++n) {
      const LaneRows<S::kLaneRows> delta = deltas[n];
#pragma unroll
      for (int pair = 0; pair < kValues / 2; ++pair) {
        const int at = kValues / 2 * n + pair;
        float gradient[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float weight = s[2 * at + c];
          gradient[c] = weight * (dp[2 * at + c] - delta.value[pair / 2 * 2 + c]);
          // The dO * V of a masked key may be anything.
          if constexpr (!kFull) gradient[c] = weight == 0 ? 0.f : gradient[c];
        }
        p[at] = ptx::cvt_rn_x2_f32(s[2 * at + 1], s[2 * at], Element{});
        ds[at] = ptx::cvt_rn_x2_f32(gradient[1], gradient[0], Element{});
      }
      if constexpr (S::kStoresEarly) {
        static_assert(kValues == 8, "a load has the rows of two chunks");
        Base::template StoreChunks<2, Config::kBlockN>(place, 2 * n, &ds[4 * n]);
      }
    }
  }

  // Waits until all warpgroups have read what the next dS overwrites.
  __device__ __forceinline__ void WaitForDsSlot() const {
    Wait(shared.ds_empty[ds_count % kDsStages], (ds_count / kDsStages + 1) % 2);
  }
  // Tells them that this warp's part of it is there.
  __device__ __forceinline__ void PassDs() {
    ptx::fence_proxy_async_shared();
    WarpArrives(shared.ds_full[ds_count % kDsStages]);
    ++ds_count;
  }

  // Issues dQ of dS number `n`, `keys` its other operand.
  __device__ __forceinline__ void IssueDq(float (&dq)[4 * S::kDqTiles], u32 n, u64 keys) const {
    Wait(shared.ds_full[n % kDsStages], n / kDsStages % 2);
    ptx::wgmma_fence();
    Wgmma::Dq(dq, PartOf(shared.ds[n % kDsStages], S::kByRows), keys);
    ptx::wgmma_commit_group();
  }

  // Until the addition before has read its place. `lane`: this one.
  __device__ __forceinline__ void WaitForDqPlace(int lane) const {
    if constexpr (S::kAddsByWarp) {
      Wait(shared.dq_empty[warpgroup], ~added % 2);
    } else {
      if (lane == 0) ptx::cp_async_bulk_wait_group_read_0();
    }
    __syncwarp();
  }

  // Puts dQ of dS number `n`, which has been waited for, where an addition to memory finds it.
  __device__ __forceinline__ void StageDq(float (&dq)[4 * S::kDqTiles], u32 n) const {
    ptx::AccumulatorsReady(dq);
    WarpArrives(shared.ds_empty[n % kDsStages]);
    auto& fragments = shared.dq[warpgroup * 4 + thread / 32];
#pragma unroll
    for (int t = 0; t < S::kDqTiles; ++t) {
      *reinterpret_cast<Words<16>*>(&fragments[t][DqSumAt(lane(), 0)]) = {
          {__float_as_uint(dq[4 * t]), __float_as_uint(dq[4 * t + 1]),
           __float_as_uint(dq[4 * t + 2]), __float_as_uint(dq[4 * t + 3])}};
    }
  }

  // Adds it to the sums of `target`. A warp's part of it is contiguous in mma/dq_sums.cuh's order,
  // and one bulk addition of its own: additions from registers held the warp up until L2 had taken
  // them. `counted`: the warps before this one when they were last looked at.
  __device__ __forceinline__ void AddDq(const DqTarget& target, i32 counted) {
    if (target.tile < 0) return;
    ptx::fence_proxy_async_shared();
    if constexpr (S::kAddsByWarp) {
      WarpArrives(shared.dq_full[warpgroup]);
      ++added;
      return;
    }
    __syncwarp();
    if (lane() == 0) {
      // No fence: additions happen in L2 in the order they come there, and this one begins after
      // the answer has come.
      while (counted < target.warps_before) {
        counted = ptx::ld_relaxed_gpu_s32(CounterOf(target));
      }
      // Not kept from step to step: registers are scarce.
      IssueDqAddition<Config>(shared, params, target.tile, warpgroup,
                              static_cast<int>(ptx::Opaque(thread)) / 32);
    }
  }

  // Lets the next block add to `target`, once this warp's addition has been made.
  __device__ __forceinline__ void EndDqTurn(const DqTarget& target) const {
    if constexpr (Config::kDeterministic) {
      if (target.tile < 0 || lane() != 0) return;
      ptx::cp_async_bulk_wait_group_0();
      ptx::red_release_gpu_add_s32(CounterOf(target), 1);
    }
  }

  // Until the other warpgroup has issued its products. Barriers have constant numbers: one in a
  // register is read when shared memory has time, and what is to be written there next waits.
  __device__ __forceinline__ void WaitTurn() const {
    if (warpgroup == 0) {
      ptx::bar_sync(kFirstTurnBarrier, S::kConsumerThreads);
    } else {
      ptx::bar_sync(kFirstTurnBarrier + 1, S::kConsumerThreads);
    }
  }
  __device__ __forceinline__ void PassTurn() const {
    if (warpgroup == 0) {
      ptx::bar_arrive(kFirstTurnBarrier + 1, S::kConsumerThreads);
    } else {
      ptx::bar_arrive(kFirstTurnBarrier, S::kConsumerThreads);
    }
  }

  // Steps from a dS to its dQ.
  __device__ __forceinline__ int DqDelay() const { return 2 - warpgroup; }

  // Of this step, and of the one before.
  __device__ __forceinline__ int Stage() const { return ds_count % Config::kStages; }
  __device__ __forceinline__ int StageBefore() const { return (ds_count - 1) % Config::kStages; }

  // Until the rows of this step are in `stage`.
  __device__ __forceinline__ void WaitForRows(int stage) const {
    Wait(shared.rows_full[stage], (ds_count - kDsStages) / Config::kStages % 2);
  }

  // K of the tile number `tile`.
  __device__ __forceinline__ u64 KeysOfDq(u32 tile) const {
    return PartOf(shared.k[tile % kTileStages], !S::kByRows);
  }

  // dV and dK of the step before.
  __device__ __forceinline__ void IssueDvDk() {
    const int stage = StageBefore();
    // Sums begin with the first step of a tile.
    const u64 adds = age != 1;
    Wgmma::Dv(dv, p, RowsOf(shared.d_o[stage]), adds);
    Wgmma::Dk(dk, ds, RowsOf(shared.q[stage]), adds);
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void IssueScores(float (&s)[S::kPairs], int place, int stage) const {
    if constexpr (Config::kKeptK == 0) {
      Wgmma::Scores(s, KeysOf(shared.k[place]), RowsOf(shared.q[stage]));
    } else if constexpr (S::kAllOfK) {
      Wgmma::Scores(s, kept_k, RowsOf(shared.q[stage]));
    } else {
      Wgmma::Scores(s, kept_k, KeysOf(shared.k[place]), RowsOf(shared.q[stage]));
    }
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void IssueWeightGradients(float (&dp)[S::kPairs], int stage) const {
    if constexpr (Config::kKeptV == 0) {
      Wgmma::WeightGradients(dp, KeysOf(shared.v), RowsOf(shared.d_o[stage]));
    } else {
      static_assert(S::kAllOfV);
      Wgmma::WeightGradients(dp, kept_v, RowsOf(shared.d_o[stage]));
    }
    ptx::wgmma_commit_group();
  }

  // The first columns of this warp's 16 rows of a tile, as a product wants its first factor.
  // Returns what hangs on all of them, for ptx/mbarrier_behind.cuh.
  template <int kPanelStep, int kWords>
  __device__ __forceinline__ u32 Keep(u32 (&kept)[kWords],
                                      const u16 (*panels)[Config::kBlockN][kPanelColumns]) const {
    const int number = static_cast<int>(ptx::Opaque(thread));
    const int row = first_key + number / 32 * 16 + number % 16;
    const u32 first = ptx::SharedAddress(&panels[0][row][0]);
    u32 read = 0;
#pragma unroll
    for (int step = 0; step < kWords / 4; ++step) {
      // The swizzle of a chunk is one exclusive or.
      const int panel = step / 4, chunk = (16 * step - panel * kPanelStep) / 8 + number % 32 / 16;
      u32 words[4];
      ptx::ldmatrix_x4(words, first + panel * Config::kBlockN * kRowBytes + (chunk ^ row % 8) * 16);
#pragma unroll
      for (int n = 0; n < 4; ++n) kept[4 * step + n] = words[n];
      read |= words[0];
    }
    return read;
  }

  // At the begin of a tile, when no product is under way.
  __device__ __forceinline__ void KeepFactors() {
    if constexpr (Config::kKeptK > 0) {
      const int place = tiles % kTileStages;
      Wait(shared.k_full[place], tiles / kTileStages % 2);
      Keep<S::kPanelStepK>(kept_k, shared.k[place]);
    }
    if constexpr (Config::kKeptV > 0) {
      Wait(shared.v_full, tiles % 2);
      const u32 read = Keep<kPanelColumns>(kept_v, shared.v);
      __syncwarp();
      if (this->lane() == 0) {
        ptx::mbarrier_arrive_behind(ptx::SharedAddress(&shared.v_empty), read);
      }
    }
  }

  // This warp's 16 rows of a gradient, from the sums, to the place that its part of dQ goes
  // through: chunks of a row are permuted by its number, so that eight rows of a column lie in
  // different banks.
  static constexpr int kStoredRows = 16;
  static constexpr int kRowChunks =
      Config::kHeadDimQk > kPanelColumns || Config::kHeadDimV > kPanelColumns ? 16 : 8;
  __device__ __forceinline__ static int PlaceOfChunk(int row, int chunk) {
    return row * kRowChunks + (chunk ^ row % 8);
  }
  template <int kSums>
  __device__ __forceinline__ void StageSums(const float (&sums)[kSums], float scale, u32 place,
                                            int lane) const {
    constexpr int kChunks = kSums / 4;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; chunk += 2) {
      u32 words[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int first = 4 * chunk + 2 * n;
        words[n] = chunk + n / 2 < kChunks
                       ? ptx::cvt_rn_x2_f32(sums[first + 1] * scale, sums[first] * scale, Element{})
                       : 0;
      }
      const u32 address = place + PlaceOfChunk(lane % kStoredRows, chunk + lane / kStoredRows) * 16;
      if (chunk + 1 < kChunks) {
        ptx::stmatrix_x4(address, words[0], words[1], words[2], words[3]);
      } else {
        ptx::stmatrix_x2(address, words[0], words[1]);
      }
    }
  }

  // dK and dV of the tile in `stage`, whose sums are complete. One loop copies both from the place:
  // this is compiled twice.
  __device__ __forceinline__ void StoreTile(int stage) {
    const KeyTile& tile = shared.tiles[stage];
    // Addresses are for this place alone: not computed ahead of the steps.
    const int number = static_cast<int>(ptx::Opaque(thread));
    const int lane = number % 32, warp = number / 32;
    auto& place = shared.dq[warpgroup * 4 + warp];
    static_assert(kStoredRows * kRowChunks * 16 <= sizeof(place));
    const i64 first = i64{tile.kv_begin} + first_key + warp * kStoredRows;
    const int rows =
        static_cast<int>(Max(0, Min(SeqlenKv<Config>(params) - first, i64{kStoredRows})));
    const bool wide = (params.sm90.by_threads & abi::kGradientsByThreads) == 0;
    const auto* const staged = reinterpret_cast<const Words<16>*>(&place);
#pragma unroll 1
    for (int n = 0; n < 2; ++n) {
      const bool is_v = n == 0;
      // What has been there must have been read.
      WaitForDqPlace(lane);
      if (is_v) {
        StageSums(dv, 1.f, ptx::SharedAddress(&place), lane);
      } else {
        StageSums(dk, params.core.scale, ptx::SharedAddress(&place), lane);
      }
      __syncwarp();
      const abi::AttnBwdParams& gradients = params.gradients;
      const abi::TensorStrides& strides = is_v ? gradients.d_v_strides : gradients.d_k_strides;
      Element* const out = static_cast<Element*>(is_v ? gradients.d_v : gradients.d_k) +
                           tile.batch * strides.batch + tile.head_kv * strides.head +
                           first * strides.seq;
      const int chunks = (is_v ? Config::kHeadDimV : Config::kHeadDimQk) / 8;
#pragma unroll 2
      for (int at = lane; at < rows * kRowChunks; at += 32) {
        const int row = at / kRowChunks, chunk = at % kRowChunks;
        if (chunk >= chunks) continue;
        const Words<16> words = staged[PlaceOfChunk(row, chunk)];
        Element* const to = out + row * strides.seq + chunk * 8;
        if (wide) {
          *reinterpret_cast<Words<16>*>(to) = words;
        } else {
#pragma unroll
          for (int d = 0; d < 8; ++d) {
            to[d] = Element{static_cast<u16>(words.word[d / 2] >> d % 2 * 16)};
          }
        }
      }
    }
    __syncwarp();
    WarpArrives(shared.tile_empty[stage]);
  }

  // The rows of the tile m; `before`: where the dQ goes that is made meanwhile; `last_head`: of the
  // keys' group. A tile has at least two steps. No product may stand under a condition, which would
  // cost ptxas the pipeline (C7515).
  __device__ __forceinline__ void Step(const KeyTile& tile, int m, bool last_head,
                                       const DqTarget& before) {
    const int q_begin = m * Config::kBlockM;
    float dq[4 * S::kDqTiles];
    float s[S::kPairs], dp[S::kPairs];
    const int stage = Stage(), place = tiles % kTileStages;
    i32 counted = 0;
    if constexpr (Config::kDeterministic) {
      if (before.tile >= 0) counted = ptx::ld_relaxed_gpu_s32(CounterOf(before));
    }
    WaitTurn();
    ptx::wgmma_fence();
    IssueDvDk();
    // In place of keys that are still on their way, the zeros of step -1.
    const bool very_first = ds_count == kDsStages;
    const u32 number = ds_count - DqDelay();
    IssueDq(dq, number,
            very_first ? Descriptor(shared.q[Config::kStages - 1], Config::kBlockN)
                       : KeysOfDq(age < DqDelay() && tiles > 0 ? tiles - 1 : tiles));
    // Looked up here, where nobody waits for shared memory.
    const int full_begin = tile.full_begin, full_end = tile.full_end;
    const bool full = (m >= full_begin) & (m < full_end);
    Stats lse, delta;
    if constexpr (S::kStatsAhead) {
      WaitForRows(stage);
      lse = this->StatsOf(shared.lse, ds_count);
    }
    WaitForDqPlace(lane());
    ptx::wgmma_wait_group<1>();
    // The earlier, the better: the next rows are loaded in their place.
    if (!very_first) WarpArrives(shared.rows_empty[StageBefore()]);
    if constexpr (Config::kKeptK == 0) {
      if (age == 0) Wait(shared.k_full[place], tiles / kTileStages % 2);
    }
    if constexpr (!S::kStatsAhead) WaitForRows(stage);
    ptx::wgmma_fence();
    IssueScores(s, place, stage);
    ptx::wgmma_wait_group<1>();
    StageDq(dq, number);
    if (age == DqDelay() - 1 && tiles > 0) WarpArrives(shared.k_empty[place ^ 1]);
    // Not before dQ of step -2 has read its zeros.
    if (very_first) WarpArrives(shared.rows_empty[StageBefore()]);
    if constexpr (Config::kKeptV == 0) {
      if (age == 0) Wait(shared.v_full, tiles % 2);
    }
    ptx::wgmma_fence();
    IssueWeightGradients(dp, stage);
    if constexpr (S::kByRows) PassTurn();
    if constexpr (!S::kStatsAhead) lse = this->StatsOf(shared.lse, ds_count);
    ptx::wgmma_wait_group<1>();
    ptx::AccumulatorsReady(s);
    if constexpr (!S::kByRows) PassTurn();
    if constexpr (S::kStatsAhead) delta = this->StatsOf(shared.delta, ds_count);
    AddDq(before, counted);
    const bool last = last_head & (m == EndOfWalk<Config>(tile) - 1);
    if constexpr (S::kStoresEarly) WaitForDsSlot();
    if (full) {
      this->template Weights<true>(s, lse, q_begin);
    } else {
      this->template Weights<false>(s, lse, q_begin);
    }
    if constexpr (!S::kStatsAhead) delta = this->StatsOf(shared.delta, ds_count);
    ptx::wgmma_wait_group<0>();
    ptx::AccumulatorsReady(dp);
    if (Config::kKeptV == 0 && last) WarpArrives(shared.v_empty);
    if (full) {
      PackStep<true>(s, dp, delta);
    } else {
      PackStep<false>(s, dp, delta);
    }
    if constexpr (!S::kStoresEarly) {
      WaitForDsSlot();
      this->template StoreRows<Config::kBlockM / 8>(shared.ds[ds_count % kDsStages], ds);
    }
    PassDs();
    EndDqTurn(before);
    // While the other warpgroup has the tensor cores, and few registers are in use.
    if (age == 0 && !very_first) {
      ptx::AccumulatorsReady(dk);
      ptx::AccumulatorsReady(dv);
      StoreTile(place ^ 1);
    }
    ++age;
  }

  template <class Tile>
  __device__ __forceinline__ void Clear(Tile& tile) const {
    auto* words = reinterpret_cast<Words<16>*>(&tile);
    for (int n = warpgroup * kWarpgroup + thread; n < static_cast<int>(sizeof(Tile) / 16);
         n += S::kConsumerThreads) {
      words[n] = {{0, 0, 0, 0}};
    }
  }

  // Zeros for the products of steps -2 and -1.
  __device__ __forceinline__ void ClearFirstOperands() {
    Clear(shared.ds);
    Clear(shared.q[Config::kStages - 1]);
    Clear(shared.d_o[Config::kStages - 1]);
    ptx::fence_proxy_async_shared();
    ptx::bar_sync(kConsumersBarrier, S::kConsumerThreads);
#pragma unroll
    for (int n = 0; n < S::kPairs / 2; ++n) p[n] = ds[n] = 0;
    PassDs();
    PassDs();
    // Makes no dQ of step -2.
    if (warpgroup == 1) WarpArrives(shared.ds_empty[0]);
  }

  // Of this tile; `before`: where dQ of the last two steps goes.
  __device__ __forceinline__ void Steps(const KeyTile& tile, DqTarget (&before)[2]) {
    FindRows(tile);
    KeepFactors();
#pragma unroll 1
    for (int g = 0; g < Config::kGroup; ++g) {
      Problem problem = ProblemOf<Config>(tile, params);
      problem.h += g;
      const int first = static_cast<int>(DqTile(problem, 0, Config::kBlockM, params));
#pragma unroll 1
      for (int m = tile.begin; m < EndOfWalk<Config>(tile); ++m) {
        // By members: a choice between the two would put both onto the stack.
        const bool later = warpgroup == 1;
        Step(tile, m, g == Config::kGroup - 1,
             {later ? before[1].tile : before[0].tile,
              later ? before[1].warps_before : before[0].warps_before});
        before[0] = before[1];
        before[1].tile = m < tile.end ? first + m : -1;
        if constexpr (Config::kDeterministic) {
          before[1].warps_before = this->WarpsBefore(problem, m, tile.kv_begin);
        }
      }
    }
  }

  // All tiles of this block.
  __device__ __forceinline__ void Compute() {
#pragma unroll
    for (int n = 0; n < S::kSumsK; ++n) dk[n] = 0;
#pragma unroll
    for (int n = 0; n < S::kSumsV; ++n) dv[n] = 0;
    ClearFirstOperands();
    if (warpgroup == 1) PassTurn();
    DqTarget before[2];
#pragma unroll 1
    for (;;) {
      const int place = tiles % kTileStages;
      Wait(shared.tile_full[place], tiles / kTileStages % 2);
      const KeyTile& tile = shared.tiles[place];
      if (!tile.HasSteps()) break;
      age = 0;
      Steps(tile, before);
      ++tiles;
    }
    if (tiles == 0) return;
    // Takes what the last step of the other warpgroup passes.
    if (warpgroup == 0) WaitTurn();
    ptx::wgmma_fence();
    IssueDvDk();
    ptx::wgmma_wait_group<0>();
    ptx::AccumulatorsReady(dk);
    ptx::AccumulatorsReady(dv);
#pragma unroll 1
    for (u32 n = warpgroup; n < kDsStages; ++n) {
      const DqTarget target = n == 0 ? before[0] : before[1];
      const u32 number = ds_count - kDsStages + n;
      float dq[4 * S::kDqTiles];
      IssueDq(dq, number, KeysOfDq(tiles - 1));
      ptx::wgmma_wait_group<0>();
      WaitForDqPlace(lane());
      StageDq(dq, number);
      AddDq(target, /*counted=*/0);
      EndDqTurn(target);
    }
    StoreTile((tiles - 1) % kTileStages);
    // Shared memory outlives the additions that read it: StoreTile has waited for them.
  }
};

// ---- the loading warpgroup

template <class Config, class Params>
struct TileLoader : Loader<Config, Params> {
  using Base = Loader<Config, Params>;
  using Base::params;
  using Base::ring;
  using Base::shared;
  using S = Shape<Config>;

  u32 tiles = 0;  // of keys so far

  // Of this tile, and what the barriers of the place wait for.
  __device__ __forceinline__ int Place() const { return tiles % kTileStages; }
  __device__ __forceinline__ u32 Parity() const { return tiles / kTileStages % 2; }

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ __forceinline__ bool KeysByThreads() const {
    return (params.sm90.by_threads & abi::kKvByThreads) != 0;
  }

  // ---- warp 3

  // Zeros for keys that no row sees.
  template <int kColumns>
  __device__ __forceinline__ void ClearGradient(void* tensor, const abi::TensorStrides& strides,
                                                const KeyTile& tile) const {
    const int rows =
        static_cast<int>(Min(SeqlenKv<Config>(params) - tile.kv_begin, i64{Config::kBlockN}));
    u16* const out = static_cast<u16*>(tensor) + tile.batch * strides.batch +
                     tile.head_kv * strides.head + tile.kv_begin * strides.seq;
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
#pragma unroll 1
      for (int column = lane(); column < kColumns; column += 32) {
        out[row * strides.seq + column] = 0;
      }
    }
  }

  __device__ __forceinline__ u32 NextNumber() const {
    return DrawNumber<Config>(params) + (Config::kDeterministic ? 0 : gridDim.x);
  }

  // Tiles that have steps, and then one without.
  __device__ __forceinline__ void FindTiles() {
    u32 number = Config::kDeterministic ? NextNumber() : blockIdx.x;
#pragma unroll 1
    while (number < params.sm90.tiles) {
      const KeyTile tile = FindTile<Config>(number, params);
      if (tile.HasSteps()) {
        Pass(tile);
        // Numbers are drawn late: who draws a long tile early begins with it last.
        Wait(shared.tile_wanted, ~tiles % 2);
      } else {
        const abi::AttnBwdParams& gradients = params.gradients;
        ClearGradient<Config::kHeadDimQk>(gradients.d_k, gradients.d_k_strides, tile);
        ClearGradient<Config::kHeadDimV>(gradients.d_v, gradients.d_v_strides, tile);
      }
      number = NextNumber();
    }
    Pass({});
  }
  __device__ __forceinline__ void Pass(const KeyTile& tile) {
    Wait(shared.tile_empty[Place()], Parity() ^ 1);
    if (lane() == 0) shared.tiles[Place()] = tile;
    WarpArrives(shared.tile_full[Place()]);
    ++tiles;
  }

  // ---- thread 0

  __device__ __forceinline__ void LoadKByMap(const KeyTile& tile) const {
    if (KeysByThreads()) return;
    const u64& full = shared.k_full[Place()];
    Wait(shared.k_empty[Place()], Parity() ^ 1);
    ptx::mbarrier_arrive_expect_tx(ptx::SharedAddress(&full), S::kBytesK);
    Base::template LoadPanels<S::kPanelsQk, S::kPanelStepK>(shared.k[Place()], &params.sm90.k, full,
                                                            this->RowOfKeyMap(tile.kv_begin),
                                                            tile.head_kv, tile.batch);
  }
  __device__ __forceinline__ void LoadVByMap(const KeyTile& tile) const {
    if (KeysByThreads()) return;
    Wait(shared.v_empty, ~tiles % 2);
    ptx::mbarrier_arrive_expect_tx(ptx::SharedAddress(&shared.v_full), S::kBytesV);
    Base::template LoadPanels<S::kPanelsV>(shared.v, &params.sm90.v, shared.v_full, tile.kv_begin,
                                           tile.head_kv, tile.batch);
  }

  __device__ __forceinline__ void LoadByMaps() {
#pragma unroll 1
    for (;;) {
      Wait(shared.tile_full[Place()], Parity());
      const KeyTile& tile = shared.tiles[Place()];
      if (!tile.HasSteps()) return;
      LoadKByMap(tile);
      if constexpr (Config::kKeptV > 0) LoadVByMap(tile);
#pragma unroll 1
      for (int g = 0; g < Config::kGroup; ++g) {
#pragma unroll 1
        for (int m = tile.begin; m < EndOfWalk<Config>(tile); ++m) {
          if (g == Config::kGroup - 1 && m == max(tile.begin, tile.end - kWantedSteps)) {
            Arrive(shared.tile_wanted);
          }
          this->LoadRowsByMap(tile, tile.head_kv * Config::kGroup + g, m);
          // Unless it is kept its place becomes free after that of the rows.
          if (Config::kKeptV == 0 && g == 0 && m == tile.begin) LoadVByMap(tile);
          ring.Advance();
        }
      }
      Arrive(shared.tile_empty[Place()]);
      ++tiles;
    }
  }

  // ---- warp 2

  // dQ of every step, in the order in which it is made: that of warpgroup 1 first. By four lanes,
  // each a warp's part.
  __device__ __forceinline__ void AddDq() {
    u32 added = 0;
#pragma unroll 1
    for (;;) {
      Wait(shared.tile_full[Place()], Parity());
      const KeyTile& tile = shared.tiles[Place()];
      if (!tile.HasSteps()) return;
      int first =
          static_cast<int>(DqTile(ProblemOf<Config>(tile, params), 0, Config::kBlockM, params));
#pragma unroll 1
      for (int g = 0; g < Config::kGroup; ++g) {
#pragma unroll 1
        for (int m = tile.begin; m < tile.end; ++m, ++added) {
#pragma unroll 1
          for (int w = S::kConsumers - 1; w >= 0; --w) {
            Wait(shared.dq_full[w], added % 2);
            if (lane() < kWarpgroup / 32) {
              IssueDqAddition<Config>(shared, params, first + m, w, lane());
              ptx::cp_async_bulk_wait_group_read_0();
              Arrive(shared.dq_empty[w]);
            }
          }
        }
        first += static_cast<int>(params.gradients.tiles_of_head);
      }
      WarpArrives(shared.tile_empty[Place()]);
      ++tiles;
    }
  }

  // ---- warps 1 and 2, or warp 1

  __device__ __forceinline__ void LoadKByThreads(const KeyTile& tile) const {
    if (!KeysByThreads()) return;
    Wait(shared.k_empty[Place()], Parity() ^ 1);
    const abi::AttnFwdParams& core = params.core;
    CopyTile<S::kCopyThreads, Config::kHeadDimQk, S::kPanelsQk, S::kPanelStepK>(
        shared.k[Place()],
        Base::RowsOf(core.k, core.k_strides, tile.batch, tile.head_kv, tile.kv_begin),
        core.k_strides.seq, this->EndOfSeen(tile.kv_begin), this->FirstSeen(tile.kv_begin));
    WarpArrives(shared.k_full[Place()]);
  }
  __device__ __forceinline__ void LoadVByThreads(const KeyTile& tile) const {
    if (!KeysByThreads()) return;
    Wait(shared.v_empty, ~tiles % 2);
    const abi::AttnFwdParams& core = params.core;
    CopyTile<S::kCopyThreads, Config::kHeadDimV, S::kPanelsV>(
        shared.v, Base::RowsOf(core.v, core.v_strides, tile.batch, tile.head_kv, tile.kv_begin),
        core.v_strides.seq, this->ExistingKeys(tile.kv_begin));
    WarpArrives(shared.v_full);
  }

  __device__ __forceinline__ void LoadByThreads() {
#pragma unroll 1
    for (;;) {
      Wait(shared.tile_full[Place()], Parity());
      const KeyTile& tile = shared.tiles[Place()];
      if (!tile.HasSteps()) return;
      LoadKByThreads(tile);
      if constexpr (Config::kKeptV > 0) LoadVByThreads(tile);
#pragma unroll 1
      for (int g = 0; g < Config::kGroup; ++g) {
#pragma unroll 1
        for (int m = tile.begin; m < EndOfWalk<Config>(tile); ++m) {
          this->LoadRowsByThreads(tile, tile.head_kv * Config::kGroup + g, m);
          if (Config::kKeptV == 0 && g == 0 && m == tile.begin) LoadVByThreads(tile);
          ring.Advance();
        }
      }
      WarpArrives(shared.tile_empty[Place()]);
      ++tiles;
    }
  }
};

template <class Config, class Params>
__device__ __forceinline__ void InitialiseShared(SharedStorage<Config>& shared,
                                                 const Params& params) {
  using S = Shape<Config>;
  if (threadIdx.x == 0) {
    const auto init = [](u64& barrier, u32 arrivals) {
      ptx::mbarrier_init(ptx::SharedAddress(&barrier), arrivals);
    };
    const bool by_threads = (params.sm90.by_threads & abi::kKvByThreads) != 0;
    const u32 loaders = by_threads ? S::kCopyThreads / 32 : 1;
    for (int stage = 0; stage < kTileStages; ++stage) {
      init(shared.tile_full[stage], 1);
      init(shared.tile_empty[stage], kLoadingWarps - 1 + S::kConsumerWarps);
      init(shared.k_full[stage], loaders);
      init(shared.k_empty[stage], S::kConsumerWarps);
    }
    init(shared.tile_wanted, 1);
    init(shared.v_full, loaders);
    init(shared.v_empty, S::kConsumerWarps);
    InitialiseRowBarriers<Config>(shared);
    for (int stage = 0; stage < kDsStages; ++stage) {
      init(shared.ds_full[stage], S::kConsumerWarps);
      init(shared.ds_empty[stage], S::kConsumerWarps);
    }
    for (int w = 0; w < S::kConsumers; ++w) {
      init(shared.dq_full[w], kWarpgroup / 32);
      init(shared.dq_empty[w], kWarpgroup / 32);
    }
    ptx::fence_mbarrier_init();
  }
  ptx::griddepcontrol_wait();
  __syncthreads();
}

template <class Config, class Params>
__device__ __forceinline__ void Run(const Params& params) {
  using S = Shape<Config>;
  static_assert(MaskPolicy<typename Config::Mask, Params>);
  static_assert(Config::Mask::kIsInterval, "a key's rows must be an interval");
  static_assert(Config::Score::kIdentity && Config::Dropout::kIdentity);
  static_assert(kIsSame<typename Config::Lengths, LengthsUniform>,
                "tensor maps end where the longest sequence does");
  static_assert(Config::KvRows::kIsDense);
  static_assert(Config::kHeadDimQk % 8 == 0 && Config::kHeadDimV % 8 == 0);
  static_assert(S::kConsumers == 2 && Config::kStages == kDsStages);
  static_assert(
      S::kByRows ? S::kPanelsQk == 1 && S::kPanelsM == 2 : S::kPanelsQk == 2 && S::kPanelsM == 1,
      "two warpgroups share dQ");
  extern __shared__ __align__(1024) u8 shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(shared_bytes);
  // attn_bwd_finish may be set up while the last blocks run, as this kernel is while attn_bwd_prep
  // runs.
  ptx::griddepcontrol_launch_dependents();
  InitialiseShared(shared, params);
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < kLoadingWarps) {
    ptx::setmaxnreg_dec<Config::kLoaderRegisters>();
    TileLoader<Config, Params> loader = {{shared, params}};
    if (warp == kLoadingWarps - 1) {
      loader.FindTiles();
    } else if (S::kAddsByWarp && warp == 2) {
      loader.AddDq();
    } else if (warp > 0) {
      loader.LoadByThreads();
    } else if (threadIdx.x == 0) {
      loader.LoadByMaps();
    }
  } else {
    ptx::setmaxnreg_inc<Config::kConsumerRegisters>();
    Consumer<Config, Params>(shared, params).Compute();
  }
}

}  // namespace bwd_sm90
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_BWD_SM90_CUH_
