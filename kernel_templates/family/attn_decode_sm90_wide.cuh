// attn_decode_sm90 for latent attention: V is the first columns of K (576/512 and the like). With
// 64 query rows or more to a key/value head the tensor cores are what bounds it, with fewer rows
// memory. 16-bit operands, sm_90a.
//
// Algorithm Packed rows and equal shares of all keys, as in attn_decode.cuh; the last block with
//           keys of a tile merges its parts (mma/packed_merge.cuh), or a cluster that has all of
//           them does (mma/cluster_merge.cuh).
//           A block has 64 rows; O is twice what a warpgroup's registers hold, so warpgroup w has
//           half w of its columns. Blocks of 64 keys go to the two in turn: one computes scores and
//           weights of a block, and both multiply these with their columns of V, which lie where K
//           does and are read a second time without being copied. (FlashMLA, DeepSeek 2025, shares
//           the work of a block in this way.) References follow the maxima, handed from block
//           to block.
// Order     of a warpgroup's own block n: scores; weights of n, published; weights n times V. The
//           other's weights (n - 1) are multiplied before the scores of n by warpgroup 0, behind
//           them by warpgroup 1, whose scores the tensor cores have while warpgroup 0 makes
//           weights. If both did as 1 does, a stage would be given back later, which took a quarter
//           more time: that is what is waited for longest.
// Cluster   Two blocks have the 128 rows of a tile and copy half of each block of keys for both
//           (kCluster); or they have two shares of the keys (kClusterShares).
// V apart   Where V is no part of K in memory its rows are copied over those of K as soon as the
//           scores are there. That is right, and slow.
// NaN, Inf  Rows of keys that no row of the tile sees are zeroed before they are multiplied.
// Warps     0 walks the pieces and copies keys, 1 to 3 copy Q, warpgroups 1 and 2 compute.
// Barriers  k_full[s][part]      1 arrival and the bytes. Stage s belongs to warpgroup s; parts 0
//                                and 1 are the columns of V of each warpgroup, 2 the rest of K
//           k_empty[s][part]     a warp each of the one that reads it last, of all blocks of the
//                                cluster: warpgroup `part`, and of part 2 the one that is not s
//           scores_done[s], v_full[s]    with V apart: K has been read, V is there
//           weights_full[s]      a warp each of warpgroup s
//           q_full, q_empty      warps 1 to 3; a warp each
//           named 1 + w          warpgroup w, before it writes over K: weights, zeroed rows
//           named 3              both, around the sums of rows
//           named 4              both, around the merging of parts
// Shared    q [panel][64][64], k [2][panel][64][64]. The weights of a block take the place of the
//           first panel of its part 2, which has been read when they are made.
#ifndef TILEWRIGHT_FAMILY_ATTN_DECODE_SM90_WIDE_CUH_
#define TILEWRIGHT_FAMILY_ATTN_DECODE_SM90_WIDE_CUH_

#include "core/concepts.cuh"
#include "mma/cluster_merge.cuh"
#include "mma/cut_off.cuh"
#include "mma/packed_merge.cuh"
#include "mma/packed_rows.cuh"
#include "policy/dropout.cuh"
#include "policy/mask_chain.cuh"
#include "policy/scale.cuh"
#include "policy/score_chain.cuh"
#include "ptx/griddep.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace tilewright {
namespace decode_sm90_wide {

using packed_rows::kPanelColumns;
using packed_rows::kRowBytes;
using packed_rows::kRows;
using packed_rows::kWarpgroup;
using packed_rows::Wait;

inline constexpr int kStages = 2;
inline constexpr int kParts = 3;
inline constexpr int kComputingWarps = 8;
inline constexpr int kFirstBarrier = 1;
inline constexpr int kSumsBarrier = 3;
inline constexpr int kMergeBarrier = 4;
inline constexpr int kSlack = 8;  // of references below the maxima

template <class Config>
struct Shape {
  static constexpr int kPanelsQk = RoundUp(Config::kHeadDimQk, kPanelColumns) / kPanelColumns;
  static constexpr int kPanelsV = Config::kHeadDimV / kPanelColumns;
  static constexpr int kOwnPanels = kPanelsV / 2;  // of a part of V
  static constexpr int kRestPanels = kPanelsQk - kPanelsV;
  static constexpr int kScores = Config::kBlockN / 2;  // a thread's
  static constexpr int kOutputs = kOwnPanels * kPanelColumns / 2;
  static constexpr int kPanelUnits = Config::kBlockN * kRowBytes / 16;  // of a descriptor
};

template <class Config>
struct alignas(1024) SharedStorage {
  u16 q[Shape<Config>::kPanelsQk][kRows][kPanelColumns];
  u16 k[kStages][Shape<Config>::kPanelsQk][Config::kBlockN][kPanelColumns];
  alignas(8) u64 k_full[kStages][kParts];
  u64 k_empty[kStages][kParts];
  u64 scores_done[kStages];
  u64 v_full[kStages];
  u64 weights_full[kStages];
  u64 q_full;
  u64 q_empty;
  packed_rows::PieceBoard board;
  packed_rows::MergeBoard merge;
  u32 missing[kStages];
  float reference[kStages][kRows];
  float sums[2][2][kRows];  // of pieces in turn, by warpgroup
};

// Warp 0.
template <class Config, class Params>
struct Loader {
  using S = Shape<Config>;
  SharedStorage<Config>& shared;
  const Params& params;
  const bool by_threads;
  const bool v_apart;
  int loaded = 0;  // blocks of keys

  __device__ __forceinline__ Loader(SharedStorage<Config>& shared, const Params& params)
      : shared(shared),
        params(params),
        by_threads((params.decode_sm90.by_threads & abi::kKvByThreads) != 0),
        v_apart(params.decode_sm90.v_in_k == 0) {}

  template <int kPanels>
  __device__ __forceinline__ void LoadPart(int stage, int part, const u64& full,
                                           const abi::TensorMap* map, const void* base,
                                           const abi::TensorStrides& strides,
                                           packed_rows::CopyPlace place, int head, i64 keys) const {
    const int first = part * S::kOwnPanels;
    auto* const tile = &shared.k[stage][first];
    if (by_threads) {
      packed_rows::CopyPanels<Config, kPanels, Config::kHeadDimQk>(tile, base, strides, first, full,
                                                                   place, head, keys);
    } else {
      packed_rows::LoadPanels<Config, kPanels>(tile, map, first, full, place, head);
    }
  }

  template <int kPanels>
  __device__ __forceinline__ void LoadPartOfK(int stage, int part, packed_rows::CopyPlace place,
                                              int head, i64 keys) const {
    LoadPart<kPanels>(stage, part, shared.k_full[stage][part], &params.decode_sm90.k, params.core.k,
                      params.core.k_strides, place, head, keys);
  }

  __device__ __forceinline__ void LoadKeys(const Problem& problem, int key,
                                           packed_rows::CopyPlace place) {
    const int stage = loaded % kStages;
    const u32 parity = loaded / kStages % 2 ^ 1;
    const int head = static_cast<int>(problem.h_kv);
    const i64 keys = problem.seqlen_kv - key;
    const u32 missing = packed_rows::MissingCopies(place);
    Wait(shared.k_empty[stage][0], parity);
    if (threadIdx.x == 0) shared.missing[stage] = missing;
    LoadPartOfK<S::kOwnPanels>(stage, 0, place, head, keys);
    Wait(shared.k_empty[stage][1], parity);
    LoadPartOfK<S::kOwnPanels>(stage, 1, place, head, keys);
    Wait(shared.k_empty[stage][2], parity);
    LoadPartOfK<S::kRestPanels>(stage, 2, place, head, keys);
    if (v_apart) {
      Wait(shared.scores_done[stage], parity ^ 1);
      LoadPart<S::kPanelsV>(stage, 0, shared.v_full[stage], &params.decode_sm90.v, params.core.v,
                            params.core.v_strides, place, head, keys);
    }
    ++loaded;
  }

  __device__ __forceinline__ void Run() {
    packed_rows::WaitBeforeWalk<Config>();
    PieceWalk<Config> walk(params);
    for (int n = 0;; ++n) {
      Piece piece = {};
      const bool more = walk.Next(&piece, params);
      packed_rows::TilePiece tile = {};
      tile.blocks = -1;
      if (more) tile = packed_rows::TilePieceOf<Config>(piece, params);
      if (more && piece.slot >= 0) {
        if constexpr (Config::kClusterShares > 1) {
          tile.of_cluster =
              params.parts.lines == 1 && walk.IsItemOfShares(piece, Config::kClusterShares);
        }
        tile.slots = walk.SlotsOfItem(piece, params.parts.lines);
      }
      shared.board.Publish(n, tile);
      if (n == 0) packed_rows::WaitBehindWalk<Config>();
      if (!more) return;
      packed_rows::CopyPlace place =
          packed_rows::PlaceOfCopy<Config>(piece.problem, tile.first_key, params);
#pragma unroll 1
      for (int block = 0; block < tile.blocks; ++block) {
        const int key = tile.first_key + block * Config::kBlockN;
        LoadKeys(piece.problem, key, place);
        // Its page is looked up while no stage is free.
        if (block + 1 < tile.blocks) {
          place = packed_rows::PlaceOfCopy<Config>(piece.problem, key + Config::kBlockN, params);
        }
        // Where two blocks have rows over these keys they wait for products, and a stage that is
        // free for its keys. Others wait for memory, which reads a quarter less a second when it is
        // asked for everything twice.
        const bool waits_for_products =
            Config::kCluster > 1 || piece.problem.seqlen_q * Config::kGroup > kRows;
        if (waits_for_products && !by_threads && block >= kStages && block + 1 < tile.blocks) {
          packed_rows::PrefetchPanels<Config, S::kPanelsQk>(&params.decode_sm90.k, place,
                                                            static_cast<int>(piece.problem.h_kv));
        }
      }
    }
  }
};

template <class Config, class Params>
struct Consumer {
  using S = Shape<Config>;
  using Element = typename Config::Element;

  SharedStorage<Config>& shared;
  const Params& params;
  const int warpgroup;
  const int thread;    // of the warpgroup
  const int row;       // of the block's 64: this thread's first, the other is 8 further
  const int tile_row;  // the same, of the tile
  const bool v_apart;
  const float to_log2;
  const u64 q_tile, k_tiles, v_tiles;  // descriptors
  int done = 0;                        // blocks of keys

  float o[S::kOutputs];
  float reference[2];  // log2 units
  float sum[2];        // of this warpgroup's weights, of this thread's columns until the end
  bool has_rows;       // this warp

  __device__ __forceinline__ Consumer(SharedStorage<Config>& shared, const Params& params)
      : shared(shared),
        params(params),
        // Shuffled, so that the compiler knows that a warp agrees.
        warpgroup(__shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0) - 1),
        thread(static_cast<int>(threadIdx.x) % kWarpgroup),
        row(thread / 32 * 16 + thread % 32 / 4),
        tile_row(packed_rows::RankInCluster<Config>() * kRows + row),
        v_apart(params.decode_sm90.v_in_k == 0),
        to_log2(packed_rows::ScoreUnit<Config>(params) * kLog2OfE),
        q_tile(ptx::SwizzledDescriptor(ptx::SharedAddress(&shared.q), 16)),
        k_tiles(ptx::SwizzledDescriptor(ptx::SharedAddress(&shared.k), 16)),
        v_tiles(ptx::SwizzledDescriptor(ptx::SharedAddress(&shared.k[0][warpgroup * S::kOwnPanels]),
                                        Config::kBlockN * kRowBytes)) {}

  __device__ __forceinline__ static u64 StageUnits(int stage) {
    return static_cast<u64>(stage * (S::kPanelsQk * S::kPanelUnits));
  }
  __device__ __forceinline__ static u32 ParityOf(int block) { return block / kStages % 2; }
  __device__ __forceinline__ void Release(int stage, int part) const {
    packed_rows::ArriveEverywhere<Config>(shared.k_empty[stage][part]);
  }

  // The scores of a block, part by part, as they arrive.
  __device__ __forceinline__ void IssueFirstScores(float (&s)[S::kScores], int block) const {
    const int stage = block % kStages;
    Wait(shared.k_full[stage][0], ParityOf(block));
    ptx::wgmma_fence();
    Config::Wgmma::ScoresOfFirst(s, q_tile, k_tiles + StageUnits(stage));
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void IssueFurtherScores(float (&s)[S::kScores], int block) const {
    const int stage = block % kStages;
    const u64 k_tile = k_tiles + StageUnits(stage);
    constexpr u64 kNext = S::kOwnPanels * S::kPanelUnits;
    Wait(shared.k_full[stage][1], ParityOf(block));
    ptx::wgmma_fence();
    Config::Wgmma::ScoresOfNext(s, q_tile + kNext, k_tile + kNext);
    Wait(shared.k_full[stage][2], ParityOf(block));
    ptx::wgmma_fence();
    Config::Wgmma::ScoresOfRest(s, q_tile + 2 * kNext, k_tile + 2 * kNext);
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void MoveReferences(const float (&after)[2]) {
    float factor[2];
    const bool moves = packed_rows::MoveFactors(reference, after, factor);
    reference[0] = after[0];
    reference[1] = after[1];
    if (!moves) return;
    sum[0] *= factor[0];
    sum[1] *= factor[1];
    packed_rows::ScaleRows(o, factor);
  }

  // Weights of the other warpgroup's block times this one's columns of V.
  __device__ __forceinline__ void IssueOther(int block) {
    const int stage = block % kStages;
    Wait(shared.weights_full[stage], ParityOf(block));
    const float after[2] = {shared.reference[stage][row], shared.reference[stage][row + 8]};
    MoveReferences(after);
    const u64 weights = k_tiles + StageUnits(stage) + S::kPanelsV * S::kPanelUnits;
    ptx::wgmma_fence();
    Config::Wgmma::ValuesOfOther(o, weights, v_tiles + StageUnits(stage));
    ptx::wgmma_commit_group();
  }
  // Behind the wait for these products. Gives the block back.
  __device__ __forceinline__ void EndOther(int block) {
    const int stage = block % kStages;
    ptx::AccumulatorsReady(o);
    __syncwarp();
    Release(stage, warpgroup);
    Release(stage, 2);
  }

  // What lies in place of this block's K before it is multiplied as V.
  __device__ __forceinline__ void PrepareValues(const packed_rows::TilePiece& tile, int block,
                                                int key) {
    const int stage = block % kStages;
    if (v_apart) {
      packed_rows::ArriveEverywhere<Config>(shared.scores_done[stage]);
      Wait(shared.v_full[stage], ParityOf(block));
    }
    const int begin = tile.bounds.seen_begin - key, end = tile.bounds.seen_end - key;
    if (begin <= 0 && end >= Config::kBlockN) return;
    // All warps of the warpgroup have read K.
    ptx::bar_sync(kFirstBarrier + warpgroup, kWarpgroup);
    packed_rows::ZeroUnseenRows<S::kPanelsV>(shared.k[stage], begin, end);
  }

  // A block of this warpgroup's own. kFollows: the one before has the other's weights. (Asked at
  // run time it would save a third of the code and cost 4 to 7 % of the speed.)
  template <bool kFollows, bool kScoresFirst>
  __device__ __forceinline__ void Step(const packed_rows::TilePiece& tile, int block, int key) {
    const int stage = block % kStages;
    float s[S::kScores];
    if constexpr (kScoresFirst) {
      IssueFirstScores(s, block);
      IssueFurtherScores(s, block);
      if constexpr (kFollows) IssueOther(block - 1);
      ptx::wgmma_wait_group<kFollows ? 1 : 0>();
    } else {
      if constexpr (kFollows) IssueOther(block - 1);
      IssueFirstScores(s, block);
      if constexpr (kFollows) {
        ptx::wgmma_wait_group<1>();
        EndOther(block - 1);
      }
      IssueFurtherScores(s, block);
      ptx::wgmma_wait_group<0>();
    }
    ptx::AccumulatorsReady(s);
    PrepareValues(tile, block, key);
    const bool full =
        key >= tile.bounds.full_begin && key + Config::kBlockN <= tile.bounds.full_end;
    u32 missing = 0;
    if constexpr (!Config::KvRows::kIsDense) missing = shared.missing[stage];
    float after[2] = {reference[0], reference[1]}, added[2] = {0, 0};
    // Scores of rows that do not exist are those of zeros.
    if (has_rows) {
      packed_rows::ApplyPoliciesToRows<Config>(s, tile.piece, tile_row, key, full,
                                               params.core.scale, missing, params);
      packed_rows::Weigh<kSlack>(s, reference, to_log2, after, added);
    }
    if constexpr (kScoresFirst && kFollows) {
      ptx::wgmma_wait_group<0>();
      EndOther(block - 1);
    }
    u32 p[S::kScores / 2];
#pragma unroll
    for (int n = 0; n < S::kScores / 2; ++n) {
      p[n] = ptx::cvt_rn_x2_f32(s[2 * n + 1], s[2 * n], Element{});
    }
    Publish(p, after, stage);
    MoveReferences(after);
    sum[0] += added[0];
    sum[1] += added[1];
    ptx::wgmma_fence();
    Config::Wgmma::ValuesOfOwn(o, p, v_tiles + StageUnits(stage));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::AccumulatorsReady(o);
    Release(stage, warpgroup);
  }

  // Hands weights and references of a block to the other warpgroup.
  __device__ __forceinline__ void Publish(const u32 (&p)[S::kScores / 2], const float (&after)[2],
                                          int stage) {
    const int lane = thread % 32;
    const int to = thread / 32 * 16 + lane % 16;
    // All warps of the warpgroup have read K, whose place the weights take, and have zeroed rows.
    ptx::bar_sync(kFirstBarrier + warpgroup, kWarpgroup);
    // Chunks n + lane / 16 of the row, of which there are 8: one address in a register, not four.
    const u32 first =
        ptx::SharedAddress(&shared.k[stage][S::kPanelsV][to][(lane / 16 ^ to % 8) * 8]);
#pragma unroll
    for (int n = 0; n < S::kScores / 4; n += 2) {
      ptx::stmatrix_x4(first ^ static_cast<u32>(n * 16), p[2 * n], p[2 * n + 1], p[2 * n + 2],
                       p[2 * n + 3]);
    }
    if (lane % 4 == 0) {
      shared.reference[stage][row] = after[0];
      shared.reference[stage][row + 8] = after[1];
    }
    ptx::fence_proxy_async_shared();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(ptx::SharedAddress(&shared.weights_full[stage]));
  }

  template <bool kScoresFirst>
  __device__ __forceinline__ void Attend(const packed_rows::TilePiece& tile) {
    const int last = done + tile.blocks;
    const auto key_of = [&](int block) {
      return tile.first_key + (block - done) * Config::kBlockN;
    };
    int own = done;
    if (own % kStages != warpgroup) {
      ++own;
    } else if (own < last) {
      Step<false, kScoresFirst>(tile, own, key_of(own));
      own += kStages;
    }
#pragma unroll 1
    for (; own < last; own += kStages) Step<true, kScoresFirst>(tile, own, key_of(own));
    // The last block is the other's.
    if (tile.blocks > 0 && own == last) {
      IssueOther(last - 1);
      ptx::wgmma_wait_group<0>();
      EndOther(last - 1);
    }
    done = last;
  }

  // All columns' sums of rows.
  __device__ __forceinline__ void ShareSums(int n) {
    const float own[2] = {packed_rows::SumOfRow(sum[0]), packed_rows::SumOfRow(sum[1])};
    if (thread % 4 == 0) {
      shared.sums[n % 2][warpgroup][row] = own[0];
      shared.sums[n % 2][warpgroup][row + 8] = own[1];
    }
    ptx::bar_sync(kSumsBarrier, 2 * kWarpgroup);
    sum[0] = own[0] + shared.sums[n % 2][1 - warpgroup][row];
    sum[1] = own[1] + shared.sums[n % 2][1 - warpgroup][row + 8];
  }

  // The one piece of this block and those of the cluster's other shares become their item.
  __device__ __forceinline__ void MergeInCluster(const packed_rows::TilePiece& tile) {
    using Columns = packed_rows::GatheredColumns<Config, S::kOutputs, kComputingWarps * 32>;
    using Sums = packed_rows::GatheredSums<Config>;
    static_assert(sizeof(Columns) <= sizeof(shared.k) && sizeof(Sums) <= sizeof(shared.q));
    Columns& columns = *reinterpret_cast<Columns*>(&shared.k);
    Sums& sums = *reinterpret_cast<Sums*>(&shared.q);
    const int computing = static_cast<int>(threadIdx.x) - kWarpgroup;
    __syncwarp();
    packed_rows::SyncCluster<Config>();
    if (has_rows) {
      packed_rows::SendParts<Config>(columns, sums, o, reference, sum, computing, row,
                                     warpgroup == 0);
    }
    __syncwarp();
    packed_rows::SyncCluster<Config>();
    if (has_rows) {
      packed_rows::MergeSentParts<Config>(
          columns, sums, o, tile.piece, computing, row, tile_row,
          warpgroup * S::kOwnPanels * kPanelColumns,
          warpgroup == 0 && packed_rows::ShareInCluster<Config>() == 0, params);
    }
  }

  __device__ __forceinline__ void Run() {
    for (int n = 0;; ++n) {
      const packed_rows::TilePiece& tile = shared.board.Await(n);
      if (tile.blocks < 0) {
        packed_rows::LeaveCluster<Config>();
        return;
      }
      reference[0] = reference[1] = kNoReference;
      sum[0] = sum[1] = 0;
#pragma unroll
      for (int i = 0; i < S::kOutputs; ++i) o[i] = 0;
      has_rows = packed_rows::HasRows<Config>(tile.piece, tile_row);
      Wait(shared.q_full, n % 2);
      if (warpgroup == 0) {
        Attend<false>(tile);
      } else {
        Attend<true>(tile);
      }
      __syncwarp();
      if (thread % 32 == 0) ptx::mbarrier_arrive(ptx::SharedAddress(&shared.q_empty));
      ShareSums(n);
      if constexpr (Config::kClusterShares > 1) {
        if (tile.of_cluster) {
          MergeInCluster(tile);
          return;
        }
      }
      packed_rows::StorePackedRows<Config>(
          o, tile.piece, tile_row, warpgroup * S::kOwnPanels * kPanelColumns, warpgroup == 0,
          packed_rows::kSlotLses<Config>, reference, sum, kLostByWgmma<Config>, params);
      if (tile.piece.slot >= 0) {
        packed_rows::MergeIfLast<Config, 2 * kWarpgroup>(
            shared.merge, tile, static_cast<int>(threadIdx.x) - kWarpgroup, kMergeBarrier, params);
      }
      shared.board.Release(n);
    }
  }
};

template <class Config>
__device__ __forceinline__ void InitialiseShared(SharedStorage<Config>& shared) {
  constexpr u32 kWarps = 4 * Config::kCluster;  // of a warpgroup
  if (threadIdx.x == 0) {
    const auto initialise = [](u64& barrier, u32 arrivals) {
      ptx::mbarrier_init(ptx::SharedAddress(&barrier), arrivals);
    };
    for (int stage = 0; stage < kStages; ++stage) {
      for (int part = 0; part < kParts; ++part) {
        initialise(shared.k_full[stage][part], 1);
        initialise(shared.k_empty[stage][part], kWarps);
      }
      initialise(shared.scores_done[stage], kWarps);
      initialise(shared.v_full[stage], 1);
      initialise(shared.weights_full[stage], 4);
    }
    initialise(shared.q_full, packed_rows::kQueryThreads / 32);
    initialise(shared.q_empty, kComputingWarps);
    shared.board.Initialise(kComputingWarps);
    ptx::fence_mbarrier_init();
  }
  packed_rows::SyncCluster<Config>();
}

template <class Config, class Params>
__device__ __forceinline__ void Run(const Params& params) {
  static_assert(MaskPolicy<typename Config::Mask, Params>);
  static_assert(ScorePolicy<typename Config::Score, Params>);
  static_assert(KvRowsPolicy<typename Config::KvRows, Params>);
  static_assert(Config::Dropout::kIdentity && Config::Mask::kIsInterval);
  static_assert(Config::Score::kIdentity || Config::Score::kIsPointwise);
  static_assert(sizeof(typename Config::KvElement) == 2 && Config::kBlockN == 64);
  static_assert(Config::kHeadDimV % (2 * kPanelColumns) == 0 &&
                Config::kHeadDimQk > Config::kHeadDimV && Config::kHeadDimQk % 8 == 0);
  static_assert(Config::kBlockM == kRows * Config::kCluster);
  static_assert(packed_rows::CopyRows<Config>() % 8 == 0, "pages are whole atoms of the swizzle");
  extern __shared__ __align__(1024) u8 shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(shared_bytes);
  if (threadIdx.x == 0 && (params.decode_sm90.by_threads & abi::kKvByThreads) == 0) {
    ptx::prefetch_tensormap(&params.decode_sm90.k);
  }
  InitialiseShared(shared);
  // The kernel of the next call may take its place behind this one; it waits for the end of it,
  // which is behind that of the kernel ahead.
  ptx::griddepcontrol_launch_dependents();
  if (__shfl_sync(kAllLanes, threadIdx.x / kWarpgroup, 0) == 0) {
    ptx::setmaxnreg_dec<Config::kLoaderRegisters>();
    if (threadIdx.x < 32) {
      Loader<Config, Params>(shared, params).Run();
    } else {
      packed_rows::LoadQueries<Config, Shape<Config>::kPanelsQk>(shared, params);
    }
    packed_rows::LeaveCluster<Config>();
  } else {
    ptx::setmaxnreg_inc<Config::kConsumerRegisters>();
    ptx::griddepcontrol_wait();
    Consumer<Config, Params>(shared, params).Run();
  }
}

}  // namespace decode_sm90_wide
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_DECODE_SM90_WIDE_CUH_
