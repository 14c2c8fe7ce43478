// Exact attention, forward, on Hopper's warpgroup products (wgmma) with bulk copies (TMA): sm_90a,
// 16-bit or e4m3 operands, fp32 accumulators.
//
// Algorithm FlashAttention-2's tiles (Dao, arXiv 2307.08691) in FlashAttention-3's arrangement
//           (Shah et al., arXiv 2407.08608): warps that load beside warpgroups that compute,
//           Q K^T of a block of keys issued before P V of the one before, so that one's softmax
//           runs under the other's products. Scores are in units of log2. The reference of a row
//           need not be its maximum: numerator and denominator share it.
// Softmax   Lazy: the reference moves when a score passes it by kLazyLog2 (FlashAttention-4's
//           idea). Optimistic: the first block sets it kMargin above its maximum, and blocks that
//           need no mask neither look for a maximum nor rescale; a weight of 2 or more, one bit
//           of the packed weights, sends the warp to Rereference. Scores may rise so far within
//           one block that a weight overflows: then the row's sum is not finite in the end.
// Sums      O is divided by the sum of the weights as they were multiplied, rounded to 16 bits or
//           to e4m3: where one key has nearly all the weight, its rounding cancels. Columns of
//           ones behind V make it (kOnes); elsewhere a thread unpacks and adds what it has packed
//           while the products run. An LSE needs the sum of the weights themselves beside it.
// Redo      Tiles whose sums are not finite, or whose O is not where a mask may hide V rows with
//           Inf or NaN, are computed once more when all tiles are done: with the exact softmax in
//           every block of keys, and in the second case with the unseen rows of V zeroed. What
//           has to be repeated is a range of the block's tiles.
// e4m3      A product takes operands of 8 bits along their rows only, so warps 1 to 3 of the
//           loading warpgroup transpose V. They leave the keys of each 16 in the order (0, 1, 8,
//           9, 2, 3, 10, 11, ...), in which a thread's scores are the operand's registers.
//           Weights go up to 256. Optimistic references lie kMarginOfE4m3 above what gives the
//           first block's largest score that weight, and a weight of 256 or more sends the warp
//           to Rereference. Such rows need kOnes: products of e4m3 keep some 14 bits of a sum, so
//           a block's weights are summed by a product with ones of its own, and the blocks' sums
//           in fp32. Exact references are maxima: then a row that has nearly all its weight on
//           one key is exact without that.
// Warps     Warpgroup 0 loads (one thread; where no tensor map describes a tensor three warps
//           copy), warpgroups 1 to kConsumers own 64 query rows each. With kCluster 2 the blocks
//           of a pair own neighbouring tiles of rows and load half of each block of keys for
//           both.
// Sharing   O of 64 rows and more than 320 columns does not fit a warpgroup's registers. With
//           kSharers 2 both warpgroups own the same rows: each has the scores of half of a
//           block's keys and half of O's columns. They tell each other the maxima of their rows,
//           and the weights of both lie in shared memory for the products of both.
// Narrow    Rows that are no multiples of 16 bytes (kNarrowRows). A bulk copy begins at such a
//           multiple, so it takes the head's columns with its neighbours' around them, up to 7
//           before. Warps 1 to 3 of the loading warpgroup clear these columns of K, and a computing
//           warpgroup those of its rows of Q, which it moves to where K has them. The neighbours'
//           columns of V become columns of O that nobody stores.
// Barriers  q_full[w], k_full[s], v_full[s] 1 arrival, the loader's, and the bytes
//           q_empty[w]                      the 64 rows of warpgroup w: a warp each, after its
//                                           last Q K^T; with O over Q a warpgroup each, when O
//                                           has been read
//           o_read                          with O over V: a warpgroup each of the cluster, when O
//                                           has been read and V may be loaded again
//           k_empty[s], v_empty[s]          a warp each, of all blocks of the cluster
//           named 1 + w                     warpgroup w of the consumers, around O in shared memory
//           named 8 + w                     ping-pong: whose turn it is to issue products
//           bias_full[w], bias_empty[w]     as k_full and k_empty, of warpgroup w's tiles of bias
//                                           terms, of which there is one stage
//           raw_full[s], raw_empty[s]       e4m3: as k_full and k_empty, of V as it was loaded;
//                                           v_full then waits for the three transposing warps.
//                                           Narrow rows: raw_full is of K as it was loaded, and
//                                           k_full waits for the three clearing warps
//           tiles_done                      a warp each, when all its tiles are done; a cluster
//                                           meets at its own barrier instead
//           named 13                        warpgroups that share rows, around what they exchange
//           named 14                        the consumers, after they have zeroed unseen rows of V,
//                                           and before they write O over V; where each has a stage
//                                           of V for its rows of O, that one's v_empty instead
//           named 15                        the loading warpgroup, around a copy by threads
// Shared    weights [2][panel][kBlockM][64] of warpgroups that share rows: those that are
//                                           multiplied, and those that come next
//           q [panel][kBlockM][64]          rows of 128 bytes, 128-byte swizzle, panels of 64
//           k [kStages][panel][kBlockN][64] columns; columns beyond the dim are zeros
//           v [kStages][panel][kBlockN][64] kOnes: ones in the 8 columns behind the last, so that
//                                           P V sums the rows of P as well; copies leave them alone
//           raw [kStages][panel][kBlockN][128] e4m3: V as it was loaded, and
//                                           v [kStages][panel of 128 keys][dim_v][128]
//           o [panel][kBlockM][64]          or over q, or over all stages of v; or each warpgroup's
//                                           [panel][64][64] over a stage of v
//           bias [warpgroup][term]          tiles of the first kStagedTerms bias terms: with one
//                                           stage the next is on its way while the weights of this
//                                           block are made and the products of the next begin
#ifndef TILEWRIGHT_FAMILY_ATTN_FWD_SM90_CUH_
#define TILEWRIGHT_FAMILY_ATTN_FWD_SM90_CUH_

#include "abi/attn_fwd_params.h"
#include "abi/tensor_map.h"
#include "core/block_walk.cuh"
#include "core/concepts.cuh"
#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/online_softmax.cuh"
#include "core/problem.cuh"
#include "core/warp_reduce.cuh"
#include "core/words.cuh"
#include "mma/bias_tile.cuh"
#include "policy/bias_fragment.cuh"
#include "policy/dropout.cuh"
#include "policy/kv_rows.cuh"
#include "policy/lse.cuh"
#include "policy/mask_chain.cuh"
#include "policy/mask_window.cuh"
#include "policy/parts.cuh"
#include "policy/scale.cuh"
#include "policy/score_chain.cuh"
#include "policy/sink.cuh"
#include "policy/tile_order.cuh"
#include "ptx/cluster.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mbarrier_behind.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/special.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tma.cuh"
#include "ptx/tma_prefetch.cuh"
#include "ptx/wgmma.cuh"

namespace tilewright {
namespace fwd_sm90 {

inline constexpr int kWarpgroup = 128;     // threads
inline constexpr int kWarpgroupRows = 64;  // M of a wgmma
inline constexpr int kPanelColumns = 64;   // of 16 bits: 128 bytes, the width of the swizzle
inline constexpr int kRowBytes = 128;      // of a panel
inline constexpr int kChunkColumns = 8;    // of 16 bits: 16 bytes, the unit of the swizzle
inline constexpr int kChunkBytes = 16;
inline constexpr int kOnesColumns = 8;  // the smallest step of N
inline constexpr int kFirstEpilogueBarrier = 1;
inline constexpr int kFirstTurnBarrier = 8;
inline constexpr int kSharersBarrier = 13;
inline constexpr int kConsumersBarrier = 14;
inline constexpr int kCopyBarrier = 15;
inline constexpr int kCopyThreads = 96;
inline constexpr int kTransposingWarps = 3;
inline constexpr int kClearingWarps = 3;
inline constexpr int kBiasWarps = 3;
inline constexpr float kLargestWeightLog2 = 8;  // of e4m3, which ends at 448

// How far above the maximum of its first block an optimistic row's reference lies, in log2: what
// scores may rise later without anybody looking. Weights of about 2^-40 are exact in bf16, which
// has fp32's exponents.
inline constexpr float kMargin = 40;
// Likewise of e4m3, below kLargestWeightLog2: what is given up of the range of small weights.
inline constexpr float kMarginOfE4m3 = 2;
// Products of 16 columns are added to a score with its last places cut off, not rounded: a score
// that large products make early loses 0.44 of its last place for each 16 columns on average (H200;
// an LSE of 244 at d 256: -0.40e-6, between -0.66 and -0.11), one that grows evenly half of that.
// What lies between is given back, in places of the score, or as a share of it.
inline constexpr float kCutOffPlaces = 0.38f;
inline constexpr float kCutOff = 0.2f * 0x1p-23f;
// Set in a bf16 of 2 or more, of Inf and of NaN; both halves of a pair.
inline constexpr u32 kTwoOrMore = 0x40004000u;
// Set in an e4m3 byte of 2^kLargestWeightLog2 or more, and of NaN, when kCarry has been added.
inline constexpr u32 kLargestOrMore = 0x80808080u, kCarry = 0x08080808u;
// References below that are of rows whose keys a term or a rule has masked so far, by a large
// number or by -inf, as it seems.
inline constexpr float kLowestReference = -256;

template <class Config>
struct Shape {
  using Element = typename Config::Element;
  static constexpr bool kTransposes = sizeof(Element) == 1;
  static constexpr int kColumns = kRowBytes / sizeof(Element);  // of a panel of Q, K or V
  static constexpr int kSharers = Config::kSharers;
  static constexpr int kQueryTiles = Config::kConsumers / kSharers;
  static constexpr int kBlockM = kQueryTiles * kWarpgroupRows;
  static constexpr int kOwnKeys = Config::kBlockN / kSharers;  // whose scores a warpgroup has
  static constexpr int kThreads = (Config::kConsumers + 1) * kWarpgroup;
  // Columns that rows of Q and K, and of V and O, have in shared memory: narrow ones with those of
  // their neighbours. A product of Q and K takes 16 at a time, a copy 8.
  static constexpr int kCopiedDimQk =
      RoundUp(Config::kHeadDimQk + MostShift(Config::kHeadDimQk), kChunkColumns);
  static constexpr int kDimQk =
      Config::kNarrowRows ? RoundUp(kCopiedDimQk, 16) : Config::kHeadDimQk;
  static constexpr int kDimV = RoundUp(Config::kHeadDimV + MostShift(Config::kHeadDimV), 8);
  static constexpr int kPanelsQk = RoundUp(kDimQk, kColumns) / kColumns;
  // Of a copy: of narrow rows in one panel no more than must be. What products take of K besides is
  // zero from the beginning.
  static constexpr int kBoxColumnsQk =
      Config::kNarrowRows && kPanelsQk == 1 ? kCopiedDimQk : kColumns;
  static constexpr int kZeroColumnsQk = Max(kDimQk - kPanelsQk * kBoxColumnsQk, 0);
  // Each warpgroup that shares rows has as many: the last may lie behind all columns.
  static constexpr int kPanelsV = RoundUp(RoundUp(kDimV, kColumns) / kColumns, kSharers);
  static constexpr int kOwnPanelsV = kPanelsV / kSharers;
  static constexpr int kPanelsO =
      kTransposes ? RoundUp(kDimV, kPanelColumns) / kPanelColumns : kPanelsV;
  static constexpr int kOwnPanelsO = kPanelsO / kSharers;
  // In shared memory: the ones may need a panel of their own.
  static constexpr int kStoredPanelsV =
      kTransposes     ? RoundUp(Config::kBlockN, kColumns) / kColumns
      : Config::kOnes ? RoundUp(kDimV + kOnesColumns, kPanelColumns) / kPanelColumns
                      : kPanelsV;
  static constexpr int kStoredRowsV = kTransposes ? kDimV : Config::kBlockN;
  // Of the last panel of V in the map of its own that it has where ones are behind it; else 0.
  static constexpr bool kOnesBehindV = Config::kOnes && !kTransposes;
  static constexpr bool kOnesApart = Config::kOnes && kTransposes;
  static constexpr int kTailColumns = kOnesBehindV ? kDimV % kPanelColumns : 0;
  static constexpr int kOwnColumns = kSharers == 1 ? kDimV : kOwnPanelsV * kPanelColumns;  // of O
  static constexpr int kScores = kOwnKeys / 2;  // a thread's
  static constexpr int kQueryWords = Config::kQInRegisters ? RoundUp(kDimQk, 16) / 16 * 4 : 1;
  static constexpr int kOutputs = kOwnColumns / 2;
  static constexpr int kWeightWords = kScores * sizeof(Element) / 4;  // of packed weights
  static constexpr int kPanelsWeights = RoundUp(Config::kBlockN, kPanelColumns) / kPanelColumns;
  static constexpr int kSums = kOutputs + (kOnesBehindV ? kOnesColumns / 2 : 0);
  static constexpr int kBytesQ = kPanelsQk * kWarpgroupRows * kBoxColumnsQk *
                                 static_cast<int>(sizeof(Element));  // of a warpgroup
  static constexpr int kBytesK = kPanelsQk * Config::kBlockN * kRowBytes;
  static constexpr int kBytesV = kPanelsV * Config::kBlockN * kRowBytes;
  static constexpr int kTileRows = kBlockM * Config::kCluster;  // of a cluster
};

// A mask under which every key is seen by some row of its (batch, head), so that its V row may
// reach any row of the tile.
template <class Mask>
inline constexpr bool kSeesEveryKey = false;
template <>
inline constexpr bool kSeesEveryKey<MaskChain<>> = true;
template <>
inline constexpr bool kSeesEveryKey<MaskChain<MaskCausal<Align::kBottomRight>>> = true;

// The last page of a sequence may end behind it.
template <class Config>
inline constexpr bool kHidesValues =
    !(kSeesEveryKey<typename Config::Mask> && kIsSame<typename Config::Lengths, LengthsUniform> &&
      Config::KvRows::kIsDense);
template <class Config>
inline constexpr bool kMayRedo = Config::kOptimistic || kHidesValues<Config>;
// Whether that has code of its own: to zero rows of V, or because with three or four warpgroups the
// bounds that a mask gives the second pass would not fit the registers beside the first.
template <class Config>
inline constexpr bool kRedoesApart = kHidesValues<Config> ||
                                     (Config::kConsumers > 2 &&
                                      !kIsSame<typename Config::Mask, MaskChain<>>);
// Rules for each element are long, and each loop has them unrolled over a block: where every block
// has them the loop of the second pass is the only one.
template <class Config>
inline constexpr bool kOneLoop = !Config::Mask::kIsInterval;

// The rows of a block of keys that lie one behind the other for sure: what a copy of K or V takes.
template <class Config>
TILEWRIGHT_HOST_DEVICE constexpr int PieceRows() {
  constexpr int kRows = Config::kBlockN / Config::kCluster;
  if constexpr (Config::KvRows::kIsDense) {
    return kRows;
  } else {
    return static_cast<int>(Min(Config::KvRows::kPageRows, kRows));
  }
}

template <class Config, bool kOwn>
struct OutputTile {
  u16 rows[Shape<Config>::kPanelsO][Shape<Config>::kBlockM][kPanelColumns];
};
template <class Config>
struct OutputTile<Config, false> {};

// A base class, which takes no place if it is empty.
template <class Config, bool kShares>
struct SharedWeights {
  u16 weights[2][Shape<Config>::kPanelsWeights][Shape<Config>::kBlockM][kPanelColumns];
};
template <class Config>
struct SharedWeights<Config, false> {};

// Another, of V as it was loaded.
template <class Config, bool kTransposes>
struct RawValues {
  u16 raw[Config::kStages][Shape<Config>::kPanelsV][Config::kBlockN][kPanelColumns];
};
template <class Config>
struct RawValues<Config, false> {};

// And of ones, for the sums of weights of e4m3.
template <class Config, bool kOnesApart>
struct OnesTile {
  u16 ones[kOnesColumns][kPanelColumns];
};
template <class Config>
struct OnesTile<Config, false> {};

// And of the first bias terms, a tile for each computing warpgroup.
template <class Config, bool kStages>
struct StagedBias {
  BiasTile<Shape<Config>::kOwnKeys> bias[Config::kConsumers][Config::kStagedTerms];
};
template <class Config>
struct StagedBias<Config, false> {};

// Rows of a tile for threads to copy; see CopyTile.
struct CopyRequest {
  enum Tensor { kNone, kQ, kK, kV, kBias };
  const u16* source;
  i64 row_stride;
  int valid_rows;
  int first_row;
  int rows;
  Tensor tensor;
  int stage;
  int valid_columns;  // of a bias term, whose number is `term`
  int term;
  i64 column_stride;
};

template <class Config>
struct alignas(1024) SharedStorage : SharedWeights<Config, (Config::kSharers > 1)>,
                                     RawValues<Config, Shape<Config>::kTransposes>,
                                     OnesTile<Config, Shape<Config>::kOnesApart>,
                                     StagedBias<Config, (Config::kStagedTerms > 0)> {
  static constexpr int kSharedRows = Config::kSharers > 1 ? kWarpgroupRows : 1;
  static constexpr int kBiasTiles = Config::kStagedTerms > 0 ? Config::kConsumers : 1;
  u16 q[Shape<Config>::kPanelsQk][Shape<Config>::kBlockM][kPanelColumns];
  u16 k[Config::kStages][Shape<Config>::kPanelsQk][Config::kBlockN][kPanelColumns];
  u16 v[Config::kStages][Shape<Config>::kStoredPanelsV][Shape<Config>::kStoredRowsV][kPanelColumns];
  OutputTile<Config, Config::kOwnO> o;
  alignas(8) u64 q_full[Shape<Config>::kQueryTiles];
  u64 q_empty[Shape<Config>::kQueryTiles];
  u64 o_read;
  u64 tiles_done;
  u64 raw_full[Config::kStages];
  u64 raw_empty[Config::kStages];
  u64 k_full[Config::kStages];
  u64 k_empty[Config::kStages];
  u64 v_full[Config::kStages];
  u64 v_empty[Config::kStages];
  u64 bias_full[kBiasTiles];  // unused without tiles of bias terms
  u64 bias_empty[kBiasTiles];
  u32 missing[Config::kStages];  // the pieces of K that are on no page; unused without pages
  int redo_begin;                // of the block's tiles, counted from 0
  int redo_end;
  CopyRequest copy;
  // Of a row, from each warpgroup that shares it; unused otherwise.
  float highest[Config::kSharers][kSharedRows];
  float sums[Config::kSharers][kSharedRows][2];  // of rounded weights, and for an LSE
};

// Element (key, column) of a stage of V, under the swizzle.
template <class Config>
__device__ __forceinline__ auto* ValueAt(SharedStorage<Config>& shared, int stage, int key,
                                         int column) {
  if constexpr (Shape<Config>::kTransposes) {
    const int place = key / 16 * 16 + key % 8 / 2 * 4 + key % 16 / 8 * 2 + key % 2;
    auto* const row = reinterpret_cast<u8*>(shared.v[stage][place / kRowBytes][column]);
    return &row[(place / 16 % 8 ^ column % 8) * 16 + place % 16];
  } else {
    const int at = (column / 8 % 8 ^ key % 8) * 8 + column % 8;
    return &shared.v[stage][column / kPanelColumns][key][at];
  }
}

// Whether narrow rows lie shifted in shared memory: where threads copy none does.
template <class Config, class Params>
__device__ __forceinline__ bool ShiftsRows(const Params& params) {
  return Config::kNarrowRows &&
         (params.sm90.by_threads & (abi::kQByThreads | abi::kKvByThreads)) == 0;
}

// Columns by which rows of a head begin behind a multiple of 16 bytes, in memory and in shared
// memory.
template <class Config, class Params>
__device__ __forceinline__ int ShiftOfHead(i64 head, const abi::TensorStrides& strides,
                                           const Params& params) {
  const u32 column = static_cast<u32>(head) * static_cast<u32>(strides.head);
  return ShiftsRows<Config>(params) ? static_cast<int>(column % kChunkColumns) : 0;
}

// Zeroes what rows of a tile of Q or K have beside their head below kColumns: it begins `shift`
// columns in. By stores alone, for the products of a block wait for them.
template <class Config, int kColumns, int kRows>
__device__ __forceinline__ void ClearNeighbours(u16 (*tile)[kRows][kPanelColumns], int shift,
                                                int first_row, int rows, int thread, int threads) {
  // Heads begin and end on multiples of that.
  constexpr int kUnit = kChunkColumns - MostShift(Config::kHeadDimQk);
#pragma unroll 1
  for (int row = first_row + thread; row < first_row + rows; row += threads) {
#pragma unroll
    for (int n = 0; n < kColumns - Config::kHeadDimQk; n += kUnit) {
      const int column = n < shift ? n : n + Config::kHeadDimQk;
      const int at = (column / 8 % 8 ^ row % 8) * kChunkColumns + column % kChunkColumns;
      *reinterpret_cast<Words<2 * kUnit>*>(&tile[column / kPanelColumns][row][at]) = {};
    }
  }
}

// A stage of a ring of buffers, and the parity of the phase that fills it.
template <class Config>
struct Ring {
  int stage = 0;
  u32 parity = 0;
  __device__ __forceinline__ void Advance() {
    if (++stage == Config::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

__device__ __forceinline__ void Wait(const u64& barrier, u32 parity) {
  while (!ptx::mbarrier_try_wait_parity(ptx::SharedAddress(&barrier), parity)) {
  }
}

// All threads of all blocks of the cluster.
template <class Config>
__device__ __forceinline__ void SyncCluster() {
  if constexpr (Config::kCluster > 1) {
    __syncwarp();  // one lane may have loaded while the others went ahead
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
  } else {
    __syncthreads();
  }
}

template <class Config>
__device__ __forceinline__ u32 RankInCluster() {
  if constexpr (Config::kCluster > 1) return ptx::cluster_ctarank();
  return 0;
}

// The tiles of this cluster.
template <class Config>
__device__ __forceinline__ Series AllTiles() {
  return {blockIdx.x / Config::kCluster, gridDim.x / Config::kCluster, 0, kEndOfSeries};
}

// Calls visit(problem, first row of the cluster's tile, part of its keys, which tile of the
// series). The parts of a head are as many heads to FindTile.
template <class Config, class Params, class Visit>
__device__ __forceinline__ void ForEachTile(const Series& series, const Params& params,
                                            const Visit& visit) {
#pragma unroll 1
  for (u32 count = series.first; count < series.last; ++count) {
    // Without a mask all tiles are equally long.
    constexpr bool kMayPair = !kIsSame<typename Config::Mask, MaskChain<>>;
    const TileAt at = FindTile<kMayPair>(series, count, params.sm90);
    if (at.last) break;
    if (!at.exists) continue;
    const u32 heads_q = static_cast<u32>(params.core.heads_q);
    const u32 parts = static_cast<u32>(NumParts<Config>(params));
    const u32 head = at.head / parts;
    // Batches that have one bias read it together.
    const u32 batches = static_cast<u32>(params.core.batch);
    const Problem problem = Config::kStagedTerms > 0
                                ? MakeProblem<Config>(head % batches, head / batches, params)
                                : MakeProblem<Config>(head / heads_q, head % heads_q, params);
    const i64 q_begin = i64{at.row_tile} * Shape<Config>::kTileRows;
    // Shorter sequences than the longest have fewer tiles.
    if (q_begin < problem.seqlen_q) {
      visit(problem, q_begin, static_cast<int>(at.head % parts), static_cast<int>(count));
    }
  }
}

template <class Config, class Params>
__device__ __forceinline__ BlockWalk<Config, Params> WalkOf(const Problem& problem, i64 q_begin,
                                                            int part, const Params& params) {
  const i64 q_end = Min(q_begin + Shape<Config>::kTileRows, problem.seqlen_q);
  BlockRange range = Config::Mask::NBlocks(problem, q_begin, q_end, Config::kBlockN, params);
  if constexpr (Config::kSplit) range = PartOf(range, part, params.parts.parts);
  return {problem, q_begin, q_end, range, params};
}

// ---- the loading warpgroup ----

// Copies rows of a tile element by element: `source` is the first of them, rows from `valid_rows`
// on and columns from kColumns to kWidth become zeros. By the warps that serve a CopyRequest.
template <int kColumns, int kWidth, int kRows>
__device__ __forceinline__ void CopyTile(u16 (*tile)[kRows][kPanelColumns],
                                         const CopyRequest& request) {
  const u16* source = request.source;
  const i64 row_stride = request.row_stride;
  const int valid_rows = request.valid_rows;
#pragma unroll 1
  for (int n = static_cast<int>(threadIdx.x) - 32; n < request.rows * kWidth; n += kCopyThreads) {
    const int from = n / kWidth, column = n % kWidth;
    const int row = request.first_row + from;
    const int at = (column / 8 % 8 ^ row % 8) * 8 + column % 8;
    tile[column / kPanelColumns][row][at] =
        from < valid_rows && column < kColumns ? source[from * row_stride + column] : u16{0};
  }
  ptx::fence_proxy_async_shared();
}

// Likewise of a bias term, whose columns need not be neighbours, and may be too few.
template <int kPanels>
__device__ __forceinline__ void CopyBiasTile(u16 (&panels)[kPanels][kBiasTileRows][kPanelColumns],
                                             const CopyRequest& request) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x) / 32 - 1; row < kBiasTileRows;
       row += kCopyThreads / 32) {
    const u16* const source = request.source + row * request.row_stride;
    const int existing = row < request.valid_rows ? request.valid_columns : 0;
#pragma unroll 1
    for (int column = lane; column < kPanels * kPanelColumns; column += 32) {
      panels[column / kPanelColumns][row][(column / 8 % 8 ^ row % 8) * 8 + column % 8] =
          column < existing ? source[column * request.column_stride] : u16{0};
    }
  }
  ptx::fence_proxy_async_shared();
}

// What warps 1 to 3 of the loading warpgroup do where no tensor map describes a tensor.
template <class Config>
__device__ __forceinline__ void ServeCopyRequests(SharedStorage<Config>& shared) {
  using S = Shape<Config>;
  for (;;) {
    ptx::bar_sync(kCopyBarrier, kWarpgroup);
    const CopyRequest& request = shared.copy;
    switch (request.tensor) {
      case CopyRequest::kNone:
        return;
      case CopyRequest::kQ:
        CopyTile<Config::kHeadDimQk, S::kPanelsQk * kPanelColumns>(shared.q, request);
        break;
      case CopyRequest::kK:
        CopyTile<Config::kHeadDimQk, S::kPanelsQk * kPanelColumns>(shared.k[request.stage],
                                                                   request);
        break;
      case CopyRequest::kV:
        CopyTile<Config::kHeadDimV, S::kSharers == 1 ? S::kDimV : S::kPanelsV * kPanelColumns>(
            shared.v[request.stage], request);
        break;
      case CopyRequest::kBias:
        if constexpr (Config::kStagedTerms > 0) {
          CopyBiasTile(shared.bias[request.stage][request.term].panels, request);
        }
        break;
    }
    ptx::bar_sync(kCopyBarrier, kWarpgroup);
  }
}

// Runs in thread 0; where threads copy, in warp 0.
template <class Config, class Params>
struct Loader {
  using S = Shape<Config>;
  SharedStorage<Config>& shared;
  const Params& params;
  const u32 rank;
  Ring<Config> k_ring = {0, 1};  // parities of the slots being empty: the first wait passes
  Ring<Config> v_ring = {0, 1};  // of V as it was loaded and as it was transposed, where it is
  u32 q_parity = 1;
  u32 o_parity = 1;
  u32 bias_parity = 1;
  static constexpr bool kStagesBias = Config::kStagedTerms > 0;
  int bias_batch[kStagesBias ? Config::kStagedTerms : 1] = {};  // of the tile at hand

  // Whether threads copy Q, K and V, and whether some tensor at all: then bias terms as well.
  __device__ __forceinline__ bool QkvByThreads() const {
    if constexpr (S::kTransposes) return false;
    return (params.sm90.by_threads & (abi::kQByThreads | abi::kKvByThreads)) != 0;
  }
  __device__ __forceinline__ bool BiasByThreads() const {
    if constexpr (!kStagesBias) return false;
    return (params.sm90.by_threads & abi::kBiasByThreads) != 0;
  }
  __device__ __forceinline__ bool ByThreads() const { return QkvByThreads() || BiasByThreads(); }
  // The thread that asks for bulk copies, and arrives for all.
  __device__ __forceinline__ static bool IsFirst() { return !kStagesBias || threadIdx.x == 0; }

  // Whether this thread has a part in loading, or in a barrier of the whole cluster.
  __device__ __forceinline__ bool TakesPart() const {
    return Config::kCluster > 1 || ByThreads() || threadIdx.x == 0 ||
           ((S::kTransposes || Config::kNarrowRows) && threadIdx.x >= 32) ||
           (kStagesBias && threadIdx.x % 32 == 0);
  }

  // Has warps 1 to 3 copy `rows` rows of a tile from `first_row` on, every block of a cluster its
  // own. `source` is the first of them, and `valid_rows` exist.
  __device__ __forceinline__ void Copy(CopyRequest::Tensor tensor, int stage, const u16* source,
                                       i64 row_stride, i64 valid_rows, int first_row,
                                       int rows) const {
    if (threadIdx.x == 0) {
      shared.copy.source = source;
      shared.copy.row_stride = row_stride;
      shared.copy.valid_rows = static_cast<int>(Min(valid_rows, rows));
      shared.copy.first_row = first_row;
      shared.copy.rows = rows;
      shared.copy.tensor = tensor;
      shared.copy.stage = stage;
    }
    __syncwarp();
    ptx::bar_sync(kCopyBarrier, kWarpgroup);
    ptx::bar_sync(kCopyBarrier, kWarpgroup);
  }

  // Element (row, 0) of a head.
  __device__ __forceinline__ static const u16* RowOf(const void* base,
                                                     const abi::TensorStrides& strides, i64 batch,
                                                     i64 head, i64 row) {
    return static_cast<const u16*>(base) + batch * strides.batch + head * strides.head +
           row * strides.seq;
  }

  // Where a head begins, as coordinates of the maps. Rows of those of narrow heads have the columns
  // of all heads.
  struct HeadAt {
    int column;
    int head;
  };
  __device__ __forceinline__ static HeadAt FindHead(i64 head, const abi::TensorStrides& strides) {
    if constexpr (!Config::kNarrowRows) return {0, static_cast<int>(head)};
    const u32 column = static_cast<u32>(head) * static_cast<u32>(strides.head);
    return {static_cast<int>(column / kChunkColumns * kChunkColumns), 0};
  }

  // Where the rows of a piece begin: as coordinates of the map, whose batch -1 is none and gives
  // zeros.
  __device__ __forceinline__ KvRow Piece(const Problem& problem, i64 j) const {
    if constexpr (Config::KvRows::kIsDense) {
      return {problem.kv_batch, problem.kv_row + j};
    } else {
      if (j >= problem.seqlen_kv) return KvRow::None();
      const KvRow at = Config::KvRows::Locate(problem, j, params);
      return at.exists() ? at : KvRow::None();
    }
  }

  // A block of keys, `tile` being this stage's panels, each block of the cluster loading its part
  // for all. `missing` becomes the pieces that do not exist, before anyone can see the rows. The
  // last panel comes from `last_map` and has kLastColumns.
  template <int kPanels, int kLastColumns>
  __device__ __forceinline__ void LoadKeys(u16 (*tile)[Config::kBlockN][kPanelColumns],
                                           const abi::TensorMap* map,
                                           const abi::TensorMap* last_map, const u64& full,
                                           const abi::TensorStrides& strides,
                                           const Problem& problem, int block, u32* missing) const {
    constexpr int kRows = PieceRows<Config>();
    constexpr int kPieces = Config::kBlockN / Config::kCluster / kRows;
    const u32 barrier = ptx::SharedAddress(&full);
    const int first_row = static_cast<int>(rank) * (Config::kBlockN / Config::kCluster);
    const HeadAt head = FindHead(problem.h_kv, strides);
    const i64 first_key = i64{block} * Config::kBlockN + first_row;
    if constexpr (!Config::KvRows::kIsDense) {
      u32 not_there = 0;
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const bool exists = Piece(problem, first_key + piece * kRows).exists();
        not_there |= exists ? 0u : 1u << piece;
      }
      *missing = not_there;
    }
    ptx::mbarrier_arrive_expect_tx(
        barrier,
        ((kPanels - 1) * kRowBytes + kLastColumns * static_cast<int>(sizeof(typename S::Element))) *
            Config::kBlockN);
    // A few at a time: their places have been read just now, and registers are few.
    constexpr int kTogether = kPieces < 2 ? kPieces : 2;
#pragma unroll 1
    for (int first = 0; first < kPieces; first += kTogether) {
      int row[kTogether], b[kTogether];
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
        const KvRow at = Piece(problem, first_key + (first + n) * kRows);
        row[n] = static_cast<int>(at.row);
        b[n] = static_cast<int>(at.block);
      }
#pragma unroll
      for (int n = 0; n < kTogether && first + n < kPieces; ++n) {
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          const u32 destination = ptx::SharedAddress(&tile[panel][first_row + (first + n) * kRows]);
          const abi::TensorMap* const from = panel + 1 == kPanels ? last_map : map;
          if constexpr (Config::kCluster > 1) {
            constexpr u16 kAllBlocks = (1 << Config::kCluster) - 1;
            ptx::cp_async_bulk_tensor_4d_load_multicast(destination, from, barrier,
                                                        head.column + panel * S::kColumns, row[n],
                                                        head.head, b[n], kAllBlocks);
          } else {
            ptx::cp_async_bulk_tensor_4d_load(destination, from, barrier,
                                              head.column + panel * S::kColumns, row[n], head.head,
                                              b[n]);
          }
        }
      }
    }
  }

  // The same by the threads, piece by piece.
  __device__ __forceinline__ void CopyKeys(CopyRequest::Tensor tensor, int stage, const void* base,
                                           const abi::TensorStrides& strides, const u64& full,
                                           const Problem& problem, int block, u32* missing) const {
    constexpr int kRows = Config::KvRows::kIsDense ? Config::kBlockN : PieceRows<Config>();
    u32 not_there = 0;
#pragma unroll 1
    for (int row = 0; row < Config::kBlockN; row += kRows) {
      const i64 j = i64{block} * Config::kBlockN + row;
      const KvRow at = Piece(problem, j);
      const bool exists = Config::KvRows::kIsDense || at.exists();
      not_there |= exists ? 0u : 1u << (row / kRows);
      Copy(tensor, stage, RowOf(base, strides, exists ? at.block : 0, problem.h_kv, at.row),
           strides.seq, exists ? problem.seqlen_kv - j : 0, row, kRows);
    }
    if (threadIdx.x == 0) {
      if constexpr (!Config::KvRows::kIsDense) *missing = not_there;
      ptx::mbarrier_arrive(ptx::SharedAddress(&full));
    }
  }

  __device__ __forceinline__ void FindBias(const Problem& problem) {
    if constexpr (kStagesBias) {
#pragma unroll
      for (int term = 0; term < Config::kStagedTerms; ++term) {
        const abi::BiasArgs& bias = params.bias[term];
        bias_batch[term] =
            static_cast<int>(Remainder(Quotient(problem.b, bias.batch_div), bias.batch_mod));
      }
    }
  }
  // Where warpgroup n's tiles of bias terms of a block begin.
  struct BiasOrigin {
    i64 row;
    i64 key;
  };
  __device__ __forceinline__ static BiasOrigin BiasOriginOf(i64 q_begin, int block, int n) {
    const i64 first_key = i64{block} * Config::kBlockN;
    if constexpr (Config::kSharers > 1) return {q_begin, first_key + n * S::kOwnKeys};
    return {q_begin + n * kWarpgroupRows, first_key};
  }

  // Bias terms of a block's scores, by one thread.
  __device__ __forceinline__ void LoadBias(const Problem& problem, i64 q_begin, int block, int n) {
    if constexpr (kStagesBias) {
      constexpr int kBoxColumns = static_cast<int>(Min(S::kOwnKeys, kBiasPanelColumns));
      constexpr int kPanels = BiasTile<S::kOwnKeys>::kPanels;
      const u32 barrier = ptx::SharedAddress(&shared.bias_full[n]);
      const BiasOrigin at = BiasOriginOf(q_begin, block, n);
      Wait(shared.bias_empty[n], bias_parity);
      ptx::mbarrier_arrive_expect_tx(
          barrier, Config::kStagedTerms * kPanels * kBiasTileRows * kBoxColumns * 2);
#pragma unroll
      for (int term = 0; term < Config::kStagedTerms; ++term) {
        const abi::BiasArgs& bias = params.bias[term];
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          ptx::cp_async_bulk_tensor_4d_load(
              ptx::SharedAddress(&shared.bias[n][term].panels[panel]), &params.bias_maps[term],
              barrier, static_cast<int>(at.key) + panel * kBiasPanelColumns,
              static_cast<int>(at.row), bias.stride_head != 0 ? static_cast<int>(problem.h) : 0,
              bias.stride_batch != 0 ? bias_batch[term] : 0);
        }
      }
    }
  }

  // Has them come to L2: their one place in shared memory is given back late, and memory takes
  // longer than is left then.
  __device__ __forceinline__ void PrefetchBias(const Problem& problem, i64 q_begin, int block,
                                               int n) const {
    if constexpr (kStagesBias) {
      const BiasOrigin at = BiasOriginOf(q_begin, block, n);
#pragma unroll
      for (int term = 0; term < Config::kStagedTerms; ++term) {
        const abi::BiasArgs& bias = params.bias[term];
#pragma unroll
        for (int panel = 0; panel < BiasTile<S::kOwnKeys>::kPanels; ++panel) {
          ptx::cp_async_bulk_prefetch_tensor_4d(
              &params.bias_maps[term], static_cast<int>(at.key) + panel * kBiasPanelColumns,
              static_cast<int>(at.row), bias.stride_head != 0 ? static_cast<int>(problem.h) : 0,
              bias.stride_batch != 0 ? bias_batch[term] : 0);
        }
      }
    }
  }

  // The same by the threads, for each warpgroup.
  __device__ __forceinline__ void CopyBias(const Problem& problem, i64 q_begin, int block) {
    if constexpr (kStagesBias) {
      if (!ByThreads()) return;
#pragma unroll 1
      for (int n = 0; n < Config::kConsumers; ++n) {
        const BiasOrigin at = BiasOriginOf(q_begin, block, n);
        Wait(shared.bias_empty[n], bias_parity);
#pragma unroll
        for (int term = 0; term < Config::kStagedTerms; ++term) {
          const abi::BiasArgs& bias = params.bias[term];
          if (threadIdx.x == 0) {
            shared.copy.valid_columns =
                static_cast<int>(Max(Min(problem.seqlen_kv - at.key, S::kOwnKeys), 0));
            shared.copy.term = term;
            shared.copy.column_stride = bias.stride_kv;
          }
          Copy(CopyRequest::kBias, n,
               static_cast<const u16*>(bias.data) + bias_batch[term] * bias.stride_batch +
                   problem.h * bias.stride_head + at.row * bias.stride_q + at.key * bias.stride_kv,
               bias.stride_q, problem.seqlen_q - at.row, 0, kBiasTileRows);
        }
        if (threadIdx.x == 0) ptx::mbarrier_arrive(ptx::SharedAddress(&shared.bias_full[n]));
      }
      bias_parity ^= 1;
    }
  }

  // K of a block, and what else its scores need.
  __device__ __forceinline__ void LoadK(const Problem& problem, i64 q_begin, int block) {
    const int stage = k_ring.stage;
    Wait(shared.k_empty[stage], k_ring.parity);
    u32* const missing = &shared.missing[stage];
    if (QkvByThreads()) {
      CopyKeys(CopyRequest::kK, stage, params.core.k, params.core.k_strides, shared.k_full[stage],
               problem, block, missing);
    } else if (IsFirst()) {
      const abi::TensorMap* const map = &params.sm90.k;
      const u64& full = Config::kNarrowRows ? shared.raw_full[stage] : shared.k_full[stage];
      LoadKeys<S::kPanelsQk, S::kBoxColumnsQk>(shared.k[stage], map, map, full,
                                               params.core.k_strides, problem, block, missing);
    }
    k_ring.Advance();
    CopyBias(problem, q_begin, block);
  }

  __device__ __forceinline__ void LoadV(const Problem& problem, int block) {
    if constexpr (S::kTransposes) {
      u32 missing;  // as of K
      const int stage = v_ring.stage;
      Wait(shared.raw_empty[stage], v_ring.parity);
      LoadKeys<S::kPanelsV, S::kColumns>(shared.raw[stage], &params.sm90.v, &params.sm90.v,
                                         shared.raw_full[stage], params.core.v_strides, problem,
                                         block, &missing);
      v_ring.Advance();
    } else {
      const int stage = v_ring.stage;
      Wait(shared.v_empty[stage], v_ring.parity);
      u32 missing;  // as of K
      if (QkvByThreads()) {
        CopyKeys(CopyRequest::kV, stage, params.core.v, params.core.v_strides, shared.v_full[stage],
                 problem, block, &missing);
      } else if (IsFirst()) {
        constexpr bool kHasTail = S::kTailColumns != 0;
        const abi::TensorMap* const map = &params.sm90.v;
        LoadKeys<S::kPanelsV, kHasTail ? S::kTailColumns : kPanelColumns>(
            shared.v[stage], map, kHasTail ? &params.sm90.v_tail : map, shared.v_full[stage],
            params.core.v_strides, problem, block, &missing);
      }
      v_ring.Advance();
    }
  }

  // The rows of each computing warpgroup, as soon as it has read those of the tile before.
  __device__ __forceinline__ void LoadQ(const Problem& problem, i64 q_begin) {
    const u32 parity = q_parity;
    q_parity ^= 1;
    if (QkvByThreads()) {
#pragma unroll 1
      for (int n = 0; n < S::kQueryTiles; ++n) Wait(shared.q_empty[n], parity);
      const abi::TensorStrides& strides = params.core.q_strides;
      Copy(CopyRequest::kQ, 0,
           RowOf(params.core.q, strides, problem.q_batch, problem.h, problem.q_row + q_begin),
           strides.seq, problem.seqlen_q - q_begin, 0, S::kBlockM);
      if (threadIdx.x == 0) {
#pragma unroll 1
        for (int n = 0; n < S::kQueryTiles; ++n) {
          ptx::mbarrier_arrive(ptx::SharedAddress(&shared.q_full[n]));
        }
      }
      return;
    }
    if (!IsFirst()) return;
    const HeadAt head = FindHead(problem.h, params.core.q_strides);
#pragma unroll 1
    for (int n = 0; n < S::kQueryTiles; ++n) {
      Wait(shared.q_empty[n], parity);
      const u32 barrier = ptx::SharedAddress(&shared.q_full[n]);
      ptx::mbarrier_arrive_expect_tx(barrier, S::kBytesQ);
#pragma unroll
      for (int panel = 0; panel < S::kPanelsQk; ++panel) {
        ptx::cp_async_bulk_tensor_4d_load(
            ptx::SharedAddress(&shared.q[panel][n * kWarpgroupRows]), &params.sm90.q, barrier,
            head.column + panel * S::kColumns,
            static_cast<int>(problem.q_row + q_begin) + n * kWarpgroupRows, head.head,
            static_cast<int>(problem.q_batch));
      }
    }
  }

  // Has what a tile needs next come to L2 while its place is waited for: V of its first block of
  // keys, and K of its second.
  template <class Walk>
  __device__ __forceinline__ void PrefetchKeys(const Problem& problem, int block,
                                               const Walk& walk) const {
    if constexpr (Config::KvRows::kIsDense && Config::kCluster == 1) {
      const auto prefetch = [&](const abi::TensorMap& map, const abi::TensorStrides& strides,
                                int panels, int block) {
        const HeadAt head = FindHead(problem.h_kv, strides);
        const int row = static_cast<int>(problem.kv_row) + block * Config::kBlockN;
#pragma unroll 1
        for (int panel = 0; panel < panels; ++panel) {
          ptx::cp_async_bulk_prefetch_tensor_4d(&map, head.column + panel * S::kColumns, row,
                                                head.head, static_cast<int>(problem.kv_batch));
        }
      };
      prefetch(params.sm90.v, params.core.v_strides, S::kPanelsV, block);
      const int next = walk.Below(block);
      if (next >= walk.begin) {
        prefetch(params.sm90.k, params.core.k_strides, S::kPanelsQk, next);
      }
    }
  }

  __device__ __forceinline__ void LoadTiles(const Series& series) {
    ForEachTile<Config>(series, params, [&](const Problem& problem, i64 tile_begin, int part, int) {
      const auto walk = WalkOf<Config>(problem, tile_begin, part, params);
      const i64 q_begin = tile_begin + rank * S::kBlockM;
      int block = walk.Below(walk.end);
      if (ByThreads()) FindBias(problem);
      // V of a block follows K of the next: one place in the code for each copy. K before Q: it may
      // arrive while the consumers still read the Q of the tile before.
      int before = block;
#pragma unroll 1
      for (int count = 0;; ++count) {
        if constexpr (Config::kStages > 1) {
          if (count > 0) LoadV(problem, before);
        }
        const bool more = block >= walk.begin;
        if (more) LoadK(problem, q_begin, block);
        if (count == 0) {
          LoadQ(problem, q_begin);
          if constexpr (Config::kOverV && !S::kTransposes) {
            if (more && IsFirst() && !QkvByThreads()) PrefetchKeys(problem, block, walk);
            WaitForOutput();
          }
        }
        if constexpr (Config::kStages == 1) {
          // In the order in which slots become free: K of the next block but one is read before V
          // of the next.
          if (count != 1 && before >= walk.begin) LoadV(problem, before);
        }
        if (!more) break;
        before = block;
        block = walk.Below(block);
      }
    });
  }

  // Until O over V has been read.
  __device__ __forceinline__ void WaitForOutput() {
    Wait(shared.o_read, o_parity);
    o_parity ^= 1;
  }

  // A block of V, by warps 1 to 3: pieces of 32 keys and 16 columns, a lane having of columns 2n
  // and 2n + 1 the keys that come together. All keys of a piece's columns are under way at a time.
  // Eight lanes store to eight places under the swizzle: even columns before odd ones, or the other
  // way round. One warp's own chain of instructions is what a block takes: addresses are few, and
  // differ by what the instructions add.
  __device__ __forceinline__ void TransposeValues() {
    constexpr int kPieces = Config::kBlockN / 32, kPieceColumns = 16;
    constexpr int kTogether = Config::kLoaderRegisters < 40 ? 1 : kPieces;
    // Nothing of it is to be kept in registers from block to block.
    const int thread = static_cast<int>(ptx::Opaque(threadIdx.x));
    const int lane = thread % 32, warp = thread / 32;
    const u32 first = lane < 16 ? 0x6420 : 0x7531, second = first ^ 0x1111;
    const int lane_column = lane % 8 * 2 + (lane / 8 % 2 ^ lane % 8 / 4);
    const u32 from = ptx::SharedAddress(&shared.raw[v_ring.stage][0][lane]) +
                     static_cast<u32>(lane % 8 * kChunkBytes);
    const u32 to = ptx::SharedAddress(&shared.v[v_ring.stage][0][lane_column]) +
                   static_cast<u32>((lane / 16 ^ lane_column % 8) * kChunkBytes);
    // Both rings have as many places; one is full when the other may be filled.
    Wait(shared.raw_full[v_ring.stage], v_ring.parity ^ 1);
    Wait(shared.v_empty[v_ring.stage], v_ring.parity);
#pragma unroll 1
    for (u32 chunk = warp - 1; chunk < Config::kHeadDimV / kPieceColumns;
         chunk += kTransposingWarps) {
      const u32 source =
          (from ^ chunk % 8 * kChunkBytes) + chunk / 8 * static_cast<u32>(sizeof(shared.raw[0][0]));
      const u32 row = to + chunk * (kPieceColumns * kRowBytes);
#pragma unroll
      for (int begin = 0; begin < kPieces; begin += kTogether) {
        u32 pairs[kTogether][4];
#pragma unroll
        for (int n = 0; n < kTogether && begin + n < kPieces; ++n) {
          ptx::ldmatrix_x4_trans(pairs[n], source + (begin + n) * 32 * kRowBytes);
        }
#pragma unroll
        for (int n = 0; n < kTogether && begin + n < kPieces; ++n) {
          const int piece = begin + n;
          const u32 panel = piece / 4 * static_cast<u32>(sizeof(shared.v[0][0]));
          ptx::stmatrix_x4((row ^ piece % 4 * 2 * kChunkBytes) + panel,
                           __byte_perm(pairs[n][0], pairs[n][1], first),
                           __byte_perm(pairs[n][0], pairs[n][1], second),
                           __byte_perm(pairs[n][2], pairs[n][3], first),
                           __byte_perm(pairs[n][2], pairs[n][3], second));
        }
      }
    }
    ptx::fence_proxy_async_shared();
    __syncwarp();
    if (lane == 0) {
      ptx::mbarrier_arrive(ptx::SharedAddress(&shared.raw_empty[v_ring.stage]));
      ptx::mbarrier_arrive(ptx::SharedAddress(&shared.v_full[v_ring.stage]));
    }
    v_ring.Advance();
  }

  __device__ __forceinline__ void TransposeTiles(const Series& series) {
    ForEachTile<Config>(series, params, [&](const Problem& problem, i64 q_begin, int part, int) {
      const auto walk = WalkOf<Config>(problem, q_begin, part, params);
      if constexpr (Config::kOverV) WaitForOutput();
#pragma unroll 1
      for (int block = walk.Below(walk.end); block >= walk.begin; block = walk.Below(block)) {
        TransposeValues();
      }
    });
  }

  // A block of K, by warps 1 to 3: a NaN of a neighbour would reach every score.
  __device__ __forceinline__ void ClearKeys(int shift) {
    const int stage = k_ring.stage;
    Wait(shared.raw_full[stage], k_ring.parity ^ 1);
    ClearNeighbours<Config, S::kDimQk - S::kZeroColumnsQk>(
        shared.k[stage], shift, /*first_row=*/0, Config::kBlockN,
        static_cast<int>(threadIdx.x) - 32, kClearingWarps * 32);
    ptx::fence_proxy_async_shared();
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::SharedAddress(&shared.k_full[stage]));
    k_ring.Advance();
  }

  __device__ __forceinline__ void ClearTiles(const Series& series) {
    ForEachTile<Config>(series, params, [&](const Problem& problem, i64 q_begin, int part, int) {
      const auto walk = WalkOf<Config>(problem, q_begin, part, params);
      const int shift = ShiftOfHead<Config>(problem.h_kv, params.core.k_strides, params);
#pragma unroll 1
      for (int block = walk.Below(walk.end); block >= walk.begin; block = walk.Below(block)) {
        ClearKeys(shift);
      }
    });
  }

  // The bias terms of warpgroups, a warp's first thread for each third one. On its own, for
  // warpgroups do not keep step.
  __device__ __forceinline__ void LoadBiases(const Series& series) {
    const int first = static_cast<int>(threadIdx.x) / 32 - 1;
    ForEachTile<Config>(series, params, [&](const Problem& problem, i64 tile_begin, int part, int) {
      const auto walk = WalkOf<Config>(problem, tile_begin, part, params);
      const i64 q_begin = tile_begin + rank * S::kBlockM;
      FindBias(problem);
      int block = walk.Below(walk.end);
#pragma unroll 1
      while (block >= walk.begin) {
        const int next = walk.Below(block);
#pragma unroll 1
        for (int n = first; n < Config::kConsumers; n += kBiasWarps) {
          LoadBias(problem, q_begin, block, n);
          if (next >= walk.begin) PrefetchBias(problem, q_begin, next, n);
        }
        bias_parity ^= 1;
        block = next;
      }
    });
  }

  // The part of the loading warpgroup in a pass over the tiles.
  __device__ __forceinline__ void Load(const Series& series) {
    if constexpr (S::kTransposes) {
      if (threadIdx.x == 0) LoadTiles(series);
      if (threadIdx.x >= 32) TransposeTiles(series);
      return;
    }
    if (threadIdx.x < (ByThreads() ? 32 : 1)) {
      LoadTiles(series);
    } else if (ByThreads() && threadIdx.x >= 32) {
      ServeCopyRequests(shared);
    } else if constexpr (kStagesBias) {
      if (threadIdx.x % 32 == 0) LoadBiases(series);
    } else if constexpr (Config::kNarrowRows) {
      if (threadIdx.x >= 32) ClearTiles(series);
    }
    if (ByThreads() && threadIdx.x < 32) {
      if (threadIdx.x == 0) shared.copy.tensor = CopyRequest::kNone;
      __syncwarp();
      ptx::bar_sync(kCopyBarrier, kWarpgroup);
    }
  }
};

// ---- the computing warpgroups ----

template <class Config, class Params>
struct Consumer {
  using S = Shape<Config>;
  using Element = typename Config::Element;
  // The first two bias terms, by fragments, and the scores behind them.
  using Bias = FirstBias<typename Config::Score>;
  using SecondBias = FirstBias<typename Bias::Rest>;
  using RestOfScore = typename SecondBias::Rest;
  // Without a chain of scores the scale is folded into the exponent, as the unit of a pointwise one
  // is.
  static constexpr bool kPlainScores = Config::Score::kIdentity;
  static constexpr bool kPointwise = Config::Score::kIsPointwise;
  static constexpr bool kOverQ = !Config::kOwnO && !Config::kOverV;
  // Rows of O over a stage of V for each warpgroup: none waits until the others have read the last.
  static constexpr bool kOverOwnStage =
      Config::kOverV && Config::kCluster == 1 && Config::kSharers == 1 &&
      Config::kStages >= Config::kConsumers &&
      sizeof(OutputTile<Config, true>) <= Config::kConsumers * sizeof(SharedStorage<Config>::v[0]);
  // Who gives Q back when its last product has been made: with its own copy that is no product.
  static constexpr bool kReadsQ = !Config::kQInRegisters;
  static constexpr bool kNeedsLse = !kIsSame<typename Config::Lse, LseNone> || Config::kSplit;
  static constexpr bool kShares = Config::kSharers > 1;
  // Whether blocks that nobody looks at must wait until every row has seen a key.
  static constexpr bool kChecksRows = Config::kOptimistic && Config::kScoresMayHide;
  // Without a mask that orders rows the last block is the only one that is cut, and is taken by a
  // step without products of a block before. A second attempt takes all blocks so, and so are those
  // taken that scores have hidden from some row: slowly, but there is no third loop to compile.
  static constexpr bool kOrdersRows = !kIsSame<typename Config::Mask, MaskChain<>>;
  static constexpr bool kRepeatsFirst =
      !kOrdersRows && (kChecksRows || (kMayRedo<Config> && !kRedoesApart<Config>));
  static constexpr bool kDrops = !Config::Dropout::kIdentity;
  static constexpr bool kHasScales = !kIsSame<typename Config::ScaleOfQ, ScaleNone> ||
                                     !kIsSame<typename Config::ScaleOfKv, ScaleNone>;
  static constexpr bool kStagesBias = Config::kStagedTerms > 0;
  static constexpr bool kStagesSecondBias = Config::kStagedTerms > 1;
  // Weights are summed up as they are, and as they are multiplied.
  static constexpr bool kSums = kNeedsLse || (S::kTransposes && !Config::kOnes);
  static constexpr bool kSumsRounded = !Config::kOnes && !S::kTransposes;
  static constexpr bool kOnesApart = S::kOnesApart;

  SharedStorage<Config>& shared;
  const Params& params;
  const u32 rank;
  const int warpgroup;  // of the consumers
  const int thread;     // of the warpgroup
  const int rows_of;    // which 64 rows of the tile are this warpgroup's
  const int share;      // which part of the block's keys and of O's columns; 0 if it shares nothing
  float to_log2;
  // What stored values are multiplied by: scores, and those of V.
  float scale_of_scores = 1, scale_of_values = 1;
  const u64 q_tile, k_tiles, v_tiles;  // descriptors
  Ring<Config> k_ring = {};
  Ring<Config> v_ring = {};
  u32 q_parity = 0;
  u32 bias_parity = 0;
  int weights = 0;  // where the next ones go, if they are shared

  // Of the tile at hand. Layouts as in ptx/wgmma.cuh; [2]: rows r and r + 8.
  u32 q[S::kQueryWords];  // with kQInRegisters
  float o[S::kSums];
  u32 p[S::kWeightWords];
  // Of the block at hand, or of the next one.
  typename BiasOf<Bias, S::kOwnKeys, kStagesBias>::Type bias;
  typename BiasOf<SecondBias, S::kOwnKeys, kStagesSecondBias>::Type second_bias;
  u32 kept[2];         // with kDrops: bits 2j and 2j + 1 of the weights at columns 8j
  float reference[2];  // log2
  // Sums of weights, of this thread's columns only, until the end.
  float sum[2];      // unused without an LSE
  float rounded[2];  // as multiplied: those that O has; unused with ones behind V
  float block_sums[kOnesApart ? kOnesColumns / 2 : 1];  // with kOnesApart, of whole rows

  __device__ __forceinline__ Consumer(SharedStorage<Config>& shared, const Params& params)
      : shared(shared),
        params(params),
        rank(RankInCluster<Config>()),
        // Shuffled, so that the compiler knows that a warp agrees.
        warpgroup(__shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0) - 1),
        thread(static_cast<int>(threadIdx.x) % kWarpgroup),
        rows_of(kShares ? 0 : warpgroup),
        share(kShares ? warpgroup : 0),
        to_log2(ScoreUnit(params) * kLog2OfE),
        q_tile(ptx::SwizzledDescriptor(ptx::SharedAddress(&shared.q[0][rows_of * kWarpgroupRows]),
                                       16)),
        k_tiles(
            ptx::SwizzledDescriptor(ptx::SharedAddress(&shared.k[0][0][share * S::kOwnKeys]), 16)),
        v_tiles(ptx::SwizzledDescriptor(ptx::SharedAddress(&shared.v[0][share * S::kOwnPanelsV]),
                                        Config::kBlockN * kRowBytes)) {}

  // Additions that cut a score off.
  static constexpr int kCuts = S::kTransposes ? 0 : RoundUp(S::kDimQk, 16) / 16;
  // Scores that nothing is added to lose what CutOff says; an LSE of such gets it back in the end.
  __device__ __forceinline__ static float Scale(const Params& params) {
    constexpr float kShare = kPlainScores ? 0 : static_cast<float>(kCuts) * kCutOff;
    return params.core.scale * (1 + kShare);
  }
  // What an LSE without sink has lost because the scores that rule it were cut off.
  __device__ __forceinline__ float CutOff(float lse) const {
    if constexpr (!kPlainScores || kCuts == 0) return 0;
    const float unit = params.core.scale * scale_of_scores;
    const float product = lse / unit;
    if (!(fabsf(product) < Infinity())) return 0;
    // A power of two: the value of a last place.
    const float place = FloatOfBits(BitsOfFloat(product) & 0xff800000u) * 0x1p-23f;
    return place * unit * (kCutOffPlaces * static_cast<float>(kCuts));
  }
  __device__ __forceinline__ static float ScoreUnit(const Params& params) {
    if constexpr (kPlainScores) return Scale(params);
    if constexpr (kPointwise) return Config::Score::Unit(params);
    return 1;
  }

  // Scales of stored values are those of a head.
  __device__ __forceinline__ void ReadScales(const Problem& problem) {
    if constexpr (kHasScales) {
      const KvRow any = {problem.kv_batch, 0};
      scale_of_scores = Config::ScaleOfQ::OfQuery(problem, params) *
                        Config::ScaleOfKv::OfKey(problem, any, params);
      scale_of_values = Config::ScaleOfKv::OfValue(problem, any, params);
      if constexpr (kPlainScores) to_log2 = Scale(params) * scale_of_scores * kLog2OfE;
    }
  }

  __device__ __forceinline__ int lane() const { return thread % 32; }
  // The row of the block's tile that this thread's [r] stands for.
  __device__ __forceinline__ int Row(int r) const {
    return rows_of * kWarpgroupRows + thread / 32 * 16 + lane() / 4 + r * 8;
  }

  // At this barrier of a block of the cluster.
  __device__ __forceinline__ void ArriveAt(const u64& barrier, u32 block) const {
    const u32 address = ptx::SharedAddress(&barrier);
    if constexpr (Config::kCluster > 1) {
      ptx::mbarrier_arrive_cluster(ptx::mapa(address, block));
    } else {
      ptx::mbarrier_arrive(address);
    }
  }

  // Tells the loaders of all blocks of the cluster that this warp has read a slot.
  __device__ __forceinline__ void Release(const u64& empty) const {
    if (lane() < Config::kCluster) ArriveAt(empty, lane());
  }

  __device__ __forceinline__ void IssueScores(float (&s)[S::kScores]) const {
    const u64 k_tile = k_tiles + static_cast<u64>(k_ring.stage * (sizeof(shared.k[0]) >> 4));
    ptx::wgmma_fence();
    if constexpr (Config::kQInRegisters) {
      Config::Wgmma::Scores(s, q, k_tile);
    } else {
      Config::Wgmma::Scores(s, q_tile, k_tile);
    }
    ptx::wgmma_commit_group();
  }

  // Has this warpgroup's rows of Q begin where those of K do, with zeros around them. By each warp
  // its own 16 rows.
  __device__ __forceinline__ void PlaceQueries(const Problem& problem) {
    if constexpr (Config::kNarrowRows) {
      const int from = ShiftOfHead<Config>(problem.h, params.core.q_strides, params);
      const int to = ShiftOfHead<Config>(problem.h_kv, params.core.k_strides, params);
      const int first_row = rows_of * kWarpgroupRows + thread / 32 * 16;
      if (from == to) {
        ClearNeighbours<Config, S::kDimQk>(shared.q, to, first_row, 16, lane(), 32);
      } else {
        MoveQueries(from, to, first_row);
      }
      ptx::fence_proxy_async_shared();
      ptx::bar_sync(kFirstEpilogueBarrier + warpgroup, kWarpgroup);
    }
  }
  __device__ __forceinline__ void MoveQueries(int from, int to, int first_row) {
    if constexpr (Config::kNarrowRows) {
      constexpr int kTogether = 4;
      const auto query = [&](int row, int column) {
        return &shared.q[column / kPanelColumns][row]
                        [(column / 8 % 8 ^ row % 8) * kChunkColumns + column % kChunkColumns];
      };
#pragma unroll 1
      for (int row = first_row; row < first_row + 16; row += kTogether) {
        u32 pairs[kTogether][S::kPanelsQk] = {};
#pragma unroll
        for (int n = 0; n < kTogether; ++n) {
#pragma unroll
          for (int panel = 0; panel < S::kPanelsQk; ++panel) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const int column = panel * kPanelColumns + 2 * lane() + half - to;  // of the head
              if (static_cast<u32>(column) < static_cast<u32>(Config::kHeadDimQk)) {
                pairs[n][panel] |= u32{*query(row + n, column + from)} << (16 * half);
              }
            }
          }
        }
        __syncwarp();
#pragma unroll
        for (int n = 0; n < kTogether; ++n) {
#pragma unroll
          for (int panel = 0; panel < S::kPanelsQk; ++panel) {
            const int column = panel * kPanelColumns + 2 * lane();
            if (column < S::kDimQk) {
              reinterpret_cast<Words<4>*>(query(row + n, column))->word[0] = pairs[n][panel];
            }
          }
        }
      }
    }
  }

  // The rows of Q, once it is there, as the operand of products; where it lay it is needed no more.
  __device__ __forceinline__ void ReadQueries() {
    if constexpr (Config::kQInRegisters) {
      // One address, which is not to be kept in registers from tile to tile.
      const int thread = static_cast<int>(ptx::Opaque(this->thread)), lane = thread % 32;
      const int row = rows_of * kWarpgroupRows + thread / 32 * 16 + lane % 16;
      const u32 from = ptx::SharedAddress(&shared.q[0][row][(lane / 16 ^ row % 8) * kChunkColumns]);
      u32 read = 0;
#pragma unroll
      for (int step = 0; step < S::kQueryWords / 4; ++step) {
        u32 matrices[4];
        ptx::ldmatrix_x4(matrices, (from ^ 2 * step % 8 * kChunkBytes) +
                                       static_cast<u32>(step / 4 * sizeof(shared.q[0])));
#pragma unroll
        for (int n = 0; n < 4; ++n) q[4 * step + n] = matrices[n];
        read |= matrices[0];
      }
      __syncwarp();
      if (!kOverQ && lane == 0) {
        ptx::mbarrier_arrive_behind(ptx::SharedAddress(&shared.q_empty[rows_of]), read);
      }
    }
  }

  // Adds up packed weights. Where they stay what they are: once their products have been issued,
  // which need not be there yet.
  __device__ __forceinline__ void SumIssued() {
    if constexpr (!kDrops) SumWeights();
  }
  __device__ __forceinline__ void SumWeights() {
    if constexpr (kSumsRounded) {
#pragma unroll
      for (int n = 0; n < S::kScores / 2; ++n) {
        const Element low = {static_cast<u16>(p[n])}, high = {static_cast<u16>(p[n] >> 16)};
        rounded[n % 2] += static_cast<float>(low) + static_cast<float>(high);
      }
    }
  }

  __device__ __forceinline__ void IssueValues() {
    const u64 v_tile = v_tiles + static_cast<u64>(v_ring.stage * (sizeof(shared.v[0]) >> 4));
    ptx::wgmma_fence();
    if constexpr (kShares) {
      const u32 tile = ptx::SharedAddress(&shared.weights[weights ^ 1]);
      Config::Wgmma::Values(o, ptx::SwizzledDescriptor(tile, 16), v_tile);
    } else {
      Config::Wgmma::Values(o, p, v_tile);
    }
    if constexpr (kOnesApart) {
      const u32 ones = ptx::SharedAddress(&shared.ones);
      Config::Wgmma::Sums(block_sums, p, ptx::SwizzledDescriptor(ones, 16));
    }
    ptx::wgmma_commit_group();
  }

  // Until all products have been made.
  __device__ __forceinline__ void WaitForValues() {
    ptx::wgmma_wait_group<0>();
    ptx::AccumulatorsReady(o);
    if constexpr (kOnesApart) {
      ptx::AccumulatorsReady(block_sums);
      rounded[0] += block_sums[0];
      rounded[1] += block_sums[2];
    }
  }

  // The bias terms of a tile's scores, if the chain begins with some that come by pairs.
  __device__ __forceinline__ void FindBias(const Problem& problem, i64 q_begin) {
    const i64 last = problem.seqlen_q - 1;
    const i64 rows[2] = {Min(q_begin + Row(0), last), Min(q_begin + Row(1), last)};
    if constexpr (Bias::kExists && !kStagesBias) bias.SetRows(problem, rows, params);
    if constexpr (SecondBias::kExists && !kStagesSecondBias) {
      second_bias.SetRows(problem, rows, params);
    }
  }
  // Their pairs of the next scores.
  __device__ __forceinline__ void LoadBias(const Problem& problem, int block) {
    const i64 first_key = i64{block} * Config::kBlockN + share * S::kOwnKeys + lane() % 4 * 2;
    if constexpr (Bias::kExists && !kStagesBias) bias.Load(first_key, problem.seqlen_kv);
    if constexpr (SecondBias::kExists && !kStagesSecondBias) {
      second_bias.Load(first_key, problem.seqlen_kv);
    }
  }
  // Those of this block's scores that have come to shared memory; AddBias reads on.
  __device__ __forceinline__ void StartBias() {
    if constexpr (kStagesBias) {
      Wait(shared.bias_full[warpgroup], bias_parity);
      bias.Start(shared.bias[warpgroup][0], thread);
      if constexpr (kStagesSecondBias) second_bias.Start(shared.bias[warpgroup][1], thread);
    }
  }
  __device__ __forceinline__ void AddBias(float (&s)[S::kScores]) {
    const float scale = Scale(params) * scale_of_scores;
    if constexpr (kStagesBias) {
      u32 read = bias.AddTo(s, scale);
      if constexpr (kStagesSecondBias) read |= second_bias.AddTo(s, 1);
      ReleaseBias(read);
    } else {
#pragma unroll
      for (int n = 0; n < S::kScores; ++n) s[n] = fmaf(s[n], scale, bias.At(n));
    }
    if constexpr (SecondBias::kExists && !kStagesSecondBias) {
#pragma unroll
      for (int n = 0; n < S::kScores; ++n) s[n] += second_bias.At(n);
    }
  }
  // `read`: of what has been read, so that nothing is written there before.
  __device__ __forceinline__ void ReleaseBias(u32 read) {
    if constexpr (kStagesBias) {
      __syncwarp();
      if (lane() == 0) {
        ptx::mbarrier_arrive_behind(ptx::SharedAddress(&shared.bias_empty[warpgroup]), read);
      }
      bias_parity ^= 1;
    }
  }

  // Draws what dropout keeps of this thread's weights, while products run. Random words come for
  // four keys of a row, of which a thread has two: neighbours draw for a row each.
  __device__ __forceinline__ void DrawKept(const Problem& problem, i64 q_begin, int block) {
    if constexpr (kDrops) {
      static_assert(S::kOwnKeys <= 128, "two bits of a word for eight keys");
      const typename Config::Dropout::template Head<Params> head(problem, params);
      const int drawn = lane() % 2;
      const i64 i = q_begin + Row(drawn);
      const i64 first = i64{block} * Config::kBlockN + share * S::kOwnKeys + lane() % 4 / 2 * 4;
      u32 own = 0, others = 0;
#pragma unroll
      for (int n = 0; n < S::kOwnKeys / 8; ++n) {
        const u32 four = head.KeptOfFour(i, first + 8 * n);
        const u32 low = four & 3, high = four >> 2;
        own |= (drawn == 0 ? low : high) << (2 * n);
        others |= (drawn == 0 ? high : low) << (2 * n);
      }
      const u32 received = __shfl_xor_sync(kAllLanes, others, 1);
      kept[0] = drawn == 0 ? own : received;
      kept[1] = drawn == 0 ? received : own;
    }
  }

  // Rows are divided by the sums of all weights, so these are added up first.
  __device__ __forceinline__ void DropWeights() {
    if constexpr (kDrops) {
      SumWeights();
#pragma unroll
      for (int n = 0; n < S::kScores / 2; ++n) {
        const u32 bits = kept[n % 2] >> (n / 2 * 2);
        p[n] &= ((bits & 1) != 0 ? 0xffffu : 0u) | ((bits & 2) != 0 ? 0xffff0000u : 0u);
      }
    }
  }

  // Hands packed weights to all warpgroups that share these rows. One barrier does: a slot is
  // written again two blocks later, and in between all exchange maxima, behind their products.
  __device__ __forceinline__ void ShareWeights() {
    if constexpr (kShares) {
      const int row = thread / 32 * 16 + lane() % 16;
#pragma unroll
      for (int n = 0; n < S::kOwnKeys / 8; n += 2) {
        const int chunk = share * (S::kOwnKeys / 8) + n + lane() / 16;
        const u16* const address =
            &shared.weights[weights][chunk / 8][row][(chunk % 8 ^ row % 8) * 8];
        ptx::stmatrix_x4(ptx::SharedAddress(address), p[2 * n], p[2 * n + 1], p[2 * n + 2],
                         p[2 * n + 3]);
      }
      weights ^= 1;
      ptx::fence_proxy_async_shared();
      SyncSharers();
    }
  }

  __device__ __forceinline__ static void SyncSharers() {
    ptx::bar_sync(kSharersBarrier, Config::kSharers * kWarpgroup);
  }

  // The maxima of rows over all keys of the block, from those over this warpgroup's.
  __device__ __forceinline__ void ShareMaxima(float (&highest)[2]) {
    if constexpr (kShares) {
      if (lane() % 4 == 0) {
        shared.highest[share][Row(0)] = highest[0];
        shared.highest[share][Row(1)] = highest[1];
      }
      SyncSharers();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int other = 0; other < Config::kSharers; ++other) {
          highest[r] = fmaxf(highest[r], shared.highest[other][Row(r)]);
        }
      }
    }
  }

  // Sums of rows over all keys, from those of this thread.
  __device__ __forceinline__ void ShareSums(float (&multiplied)[2], float (&total)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (kSumsRounded) multiplied[r] = SumOfRow(rounded[r]);
      if constexpr (kOnesApart) multiplied[r] = rounded[r];
      if constexpr (kSums) total[r] = SumOfRow(sum[r]);
      if constexpr (S::kTransposes && !Config::kOnes) multiplied[r] = total[r];
    }
    if constexpr (kShares) {
      if (lane() % 4 == 0) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          shared.sums[share][Row(r)][0] = multiplied[r];
          shared.sums[share][Row(r)][1] = kNeedsLse ? total[r] : 0.f;
        }
      }
      SyncSharers();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        multiplied[r] = total[r] = 0;
#pragma unroll
        for (int other = 0; other < Config::kSharers; ++other) {
          multiplied[r] += shared.sums[other][Row(r)][0];
          total[r] += shared.sums[other][Row(r)][1];
        }
      }
    }
  }

  // Scores that are not kept become -inf by selection. Rows beyond the length follow the last one,
  // so that what policies read exists and every row has a reference.
  template <bool kMasked>
  __device__ __forceinline__ void ApplyPolicies(float (&s)[S::kScores], const Problem& problem,
                                                i64 q_begin, int block) {
    if constexpr (!kMasked && kPlainScores) return;
    if constexpr (kPointwise) {
      Config::Score::ApplyToAll(s, Scale(params) * scale_of_scores, params);
    } else if constexpr (Bias::kExists) {
      AddBias(s);
    } else if constexpr (!kPlainScores) {
#pragma unroll
      for (int n = 0; n < S::kScores; ++n) s[n] *= Scale(params) * scale_of_scores;
    }
    using Rest = RestOfScore;
    if constexpr (!kMasked && (kPointwise || Rest::kIdentity)) return;
    const i64 kv_begin = i64{block} * Config::kBlockN + share * S::kOwnKeys;
    const int first_column = lane() % 4 * 2;
    // The rows' keys as columns of the block, counted from this thread's first.
    int begin[2] = {0, 0}, end[2] = {S::kOwnKeys, S::kOwnKeys};
    if constexpr (kMasked) {
      bool cuts = false;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const i64 i = Min(q_begin + Row(r), problem.seqlen_q - 1);
        const KeyInterval keys = Config::Mask::RowKeys(problem, i, params);
        const auto first = static_cast<int>(Max(0, Min(keys.begin - kv_begin, S::kOwnKeys)));
        const auto last = static_cast<int>(Max(0, Min(keys.end - kv_begin, S::kOwnKeys)));
        cuts = cuts || (Config::Mask::kCutsLeft && first > 0) || last < S::kOwnKeys;
        begin[r] = first - first_column;
        end[r] = last - first_column;
      }
      if constexpr (Config::Mask::kIsInterval && (Rest::kIdentity || kPointwise)) {
        if (!__any_sync(kAllLanes, cuts)) return;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const i64 i = Min(q_begin + Row(r), problem.seqlen_q - 1);
      const typename Rest::template Row<Params> row(problem, i, kv_begin + first_column, params);
#pragma unroll
      for (int n = 0; n < S::kOwnKeys / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int column = n * 8 + c;
          float& score = s[4 * n + 2 * r + c];
          bool keep = true;
          if constexpr (kMasked) {
            keep = column < end[r];
            if constexpr (Config::Mask::kCutsLeft) keep = keep && column >= begin[r];
            if constexpr (!Config::Mask::kIsInterval) {
              keep =
                  keep && Config::Mask::Keep(problem, i, kv_begin + first_column + column, params);
            }
          }
          if constexpr (Rest::kIdentity || kPointwise) {
            score = keep ? score : -Infinity();
          } else {
            score = keep ? row.Apply(score, column) : -Infinity();
          }
        }
      }
    }
  }

  // Has the references follow the maxima. Returns whether O has to be multiplied by `factor`, the
  // same in all lanes. kFirst: there is nothing before.
  template <bool kFirst, bool kOptimistic>
  __device__ __forceinline__ bool MoveReferences(const float (&s)[S::kScores], float (&factor)[2]) {
    constexpr float kAbove = S::kTransposes ? (kOptimistic ? kMarginOfE4m3 : 0) - kLargestWeightLog2
                             : kOptimistic  ? kMargin
                                            : 0;
    constexpr float kSlack = S::kTransposes ? kLargestWeightLog2 : kOptimistic ? 0 : kLazyLog2;
    float highest[2];
    bool moves = kFirst;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float value = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
      for (int n = 1; n < S::kScores / 4; ++n) {
        value = fmaxf(value, fmaxf(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]));
      }
      value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
      highest[r] = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2)) * to_log2;
    }
    ShareMaxima(highest);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (!kFirst) moves |= highest[r] > reference[r] + kSlack;
    }
    if constexpr (!kFirst) moves = __any_sync(kAllLanes, moves);
    if (moves) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if constexpr (kFirst) {
          reference[r] = highest[r] + kAbove;
          sum[r] = rounded[r] = 0;
        } else {
          const float before = reference[r];
          const float after = fmaxf(before, highest[r] + kAbove);
          // A row that has seen no key yet has reference -inf and nothing to scale.
          factor[r] = before == after ? 1.f : ptx::ex2_approx_ftz(before - after);
          reference[r] = after;
          sum[r] *= factor[r];
        }
      }
    }
    return !kFirst && moves;
  }

  // Scores to weights. kMayLack: some row may have no reference yet.
  template <bool kMayLack>
  __device__ __forceinline__ void MakeWeights(float (&s)[S::kScores]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // While every score of a row is -inf its reference is too; exp2(-inf - 0) is the 0 we want.
      const float subtract = kMayLack && reference[r] == -Infinity() ? 0.f : reference[r];
#pragma unroll
      for (int n = 0; n < S::kScores / 4; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& weight = s[4 * n + 2 * r + c];
          weight = ptx::ex2_approx_ftz(fmaf(weight, to_log2, -subtract));
          if constexpr (kSums) sum[r] += weight;
        }
      }
    }
  }
  template <bool kFirst, bool kOptimistic>
  __device__ __forceinline__ bool ExactSoftmax(float (&s)[S::kScores], float (&factor)[2]) {
    const bool moves = MoveReferences<kFirst, kOptimistic>(s, factor);
    MakeWeights<true>(s);
    return moves;
  }
  // Whether scores may have hidden all keys so far from some row of this warpgroup. Asked between
  // steps: a branch within one has ptxas wait for the products of the block before ahead of all
  // exponentials.
  __device__ __forceinline__ bool SomeRowLacksKeys() const {
    if constexpr (!kChecksRows) return false;
    const bool lacks = fminf(reference[0], reference[1]) < kLowestReference;
    const bool some = ptx::bar_red_or(kFirstEpilogueBarrier + warpgroup, kWarpgroup, lacks);
    // A vote, so that the compiler knows that a warp agrees: else the descriptors of products leave
    // the uniform registers.
    return __any_sync(kAllLanes, some);
  }

  __device__ __forceinline__ void ScaleOutput(const float (&factor)[2]) {
#pragma unroll
    for (int n = 0; n < S::kSums; ++n) o[n] *= factor[n / 2 % 2];
#pragma unroll
    for (int r = 0; r < 2; ++r) rounded[r] *= factor[r];
  }

  __device__ __forceinline__ void PackWeights(const float (&s)[S::kScores]) {
    if constexpr (S::kTransposes) {
#pragma unroll
      for (int n = 0; n < S::kWeightWords; ++n) {
        const int at = n / 2 * 8 + n % 2 * 2;
        p[n] = ptx::cvt_rn_satfinite_x4_f32(s[at + 5], s[at + 4], s[at + 1], s[at], Element{});
      }
    } else {
#pragma unroll
      for (int n = 0; n < S::kScores / 2; ++n) {
        p[n] = ptx::cvt_rn_x2_f32(s[2 * n + 1], s[2 * n], Element{});
      }
    }
  }

  // The rare path of the optimistic softmax: where a weight of this block is 2 or more, every row
  // of the warp gets a reference kMargin above its largest weight, or keeps its own if that is
  // higher. Rows that have not offended are moved with the others because they rise together more
  // often than not. All factors are powers of two.
  __device__ __forceinline__ void Rereference(float (&s)[S::kScores]) {
    u32 bits = 0;
#pragma unroll
    for (int n = 0; n < S::kWeightWords; ++n) bits |= S::kTransposes ? p[n] + kCarry : p[n];
    constexpr u32 kRisen = S::kTransposes ? kLargestOrMore : kTwoOrMore;
    if (!__any_sync(kAllLanes, (bits & kRisen) != 0)) return;
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = 0;
#pragma unroll
      for (int n = 0; n < S::kScores / 4; ++n) {
        largest = fmaxf(largest, fmaxf(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      const int exponent = static_cast<int>(BitsOfFloat(largest) >> 23) - 127;
      constexpr float kBelow = S::kTransposes ? kMarginOfE4m3 - kLargestWeightLog2 : kMargin;
      const int rise = max(0, exponent + 1 + static_cast<int>(kBelow));
      // In two steps: 2^-rise may be too small for fp32, and then is 0, which is near enough for
      // what was added before, but not for the weights that rose.
      const float first = FloatOfBits(static_cast<u32>(127 - rise / 2) << 23);
      const float second = FloatOfBits(static_cast<u32>(127 - (rise - rise / 2)) << 23);
#pragma unroll
      for (int n = 0; n < S::kScores / 4; ++n) {
        s[4 * n + 2 * r] = s[4 * n + 2 * r] * first * second;
        s[4 * n + 2 * r + 1] = s[4 * n + 2 * r + 1] * first * second;
      }
      factor[r] = first * second;
      // An e4m3 weight says nothing of an overflow; what O is divided by has to.
      if (S::kTransposes && !(largest < Infinity())) factor[r] = Infinity() * 0.f;
      reference[r] += static_cast<float>(rise);
      sum[r] = sum[r] * first * second;  // these weights are in it
    }
    ScaleOutput(factor);
    PackWeights(s);
  }

  __device__ __forceinline__ void WaitTurn() const {
    if constexpr (Config::kPingPong) {
      ptx::bar_sync(kFirstTurnBarrier + warpgroup, 2 * kWarpgroup);
    }
  }
  __device__ __forceinline__ void PassTurn() const {
    if constexpr (Config::kPingPong) {
      const int next = warpgroup + 1 == Config::kConsumers ? 0 : warpgroup + 1;
      ptx::bar_arrive(kFirstTurnBarrier + next, 2 * kWarpgroup);
    }
  }

  // The pieces of the block of keys at hand that are on no page.
  __device__ __forceinline__ u32 MissingPieces() const {
    if constexpr (Config::KvRows::kIsDense) {
      return 0;
    } else {
      // By the lane that will release the stage: racecheck does not know that a warp's barrier
      // orders what the others read before that.
      u32 missing = 0;
      if (lane() == 0) missing = shared.missing[k_ring.stage];
      return __shfl_sync(kAllLanes, missing, 0);
    }
  }
  __device__ __forceinline__ void MaskMissing(float (&s)[S::kScores], u32 missing) const {
    if constexpr (!Config::KvRows::kIsDense) {
      if (missing == 0) return;
#pragma unroll
      for (int n = 0; n < S::kScores; ++n) {
        const int key = share * S::kOwnKeys + n / 4 * 8;
        if ((missing >> (key / PieceRows<Config>()) & 1) != 0) s[n] = -Infinity();
      }
    }
  }

  // Of rows that have seen no key.
  __device__ __forceinline__ void StartRows() {
    reference[0] = reference[1] = -Infinity();
    sum[0] = sum[1] = rounded[0] = rounded[1] = 0;
  }

  // One block of keys: its scores and weights, and the products of the weights of the block before.
  // kFirst: there is none, or its products have been made: `scales` is of use to the latter, whose
  // O is not 0. `last`: Q is needed no more.
  template <bool kMasked, bool kFirst>
  __device__ __forceinline__ void Step(const Problem& problem, i64 q_begin, int block, bool last,
                                       bool scales = false) {
    float s[S::kScores];
    Wait(shared.k_full[k_ring.stage], k_ring.parity);
    if constexpr (!kFirst) WaitTurn();
    IssueScores(s);
    if constexpr (!kFirst) {
      Wait(shared.v_full[v_ring.stage], v_ring.parity);
      IssueValues();
      PassTurn();
      SumIssued();
    }
    DrawKept(problem, q_begin, block);
    StartBias();
    ptx::wgmma_wait_group<kFirst ? 0 : 1>();
    ptx::AccumulatorsReady(s);
    const u32 missing = MissingPieces();
    Release(shared.k_empty[k_ring.stage]);
    if (last) ReleaseQueries();
    k_ring.Advance();
    ApplyPolicies<kMasked>(s, problem, q_begin, block);
    MaskMissing(s, missing);
    // There are no keys below 0, and nobody will use those of block 0 once more.
    LoadBias(problem, max(block - 1, 0));
    constexpr bool kExact = !Config::kOptimistic || kMasked || kFirst;
    float factor[2] = {1, 1};
    bool rescale = false;
    if constexpr (kExact) {
      constexpr bool kStarts = kFirst && !kRepeatsFirst;
      rescale = ExactSoftmax<kStarts, Config::kOptimistic>(s, factor);
      if constexpr (kFirst && kRepeatsFirst) rescale = rescale && scales;
    } else {
      MakeWeights<false>(s);  // without looking at maxima
    }
    if constexpr (!kFirst) {
      WaitForValues();
      Release(shared.v_empty[v_ring.stage]);
      v_ring.Advance();
    }
    PackWeights(s);
    if (rescale) ScaleOutput(factor);
    if constexpr (!kExact) Rereference(s);
    DropWeights();
    ShareWeights();
  }

  // The products of the last block's weights.
  __device__ __forceinline__ void LastValues() {
    Wait(shared.v_full[v_ring.stage], v_ring.parity);
    IssueValues();
    SumIssued();
    WaitForValues();
    Release(shared.v_empty[v_ring.stage]);
    v_ring.Advance();
  }

  // A block of keys that only other warpgroups' rows see. A tile's first block has no turns.
  __device__ __forceinline__ void PassBlock(bool has_turn = true) {
    Wait(shared.k_full[k_ring.stage], k_ring.parity);
    if (has_turn) {
      WaitTurn();
      PassTurn();
    }
    Release(shared.k_empty[k_ring.stage]);
    k_ring.Advance();
    if constexpr (kStagesBias) Wait(shared.bias_full[warpgroup], bias_parity);
    ReleaseBias(0);
    Wait(shared.v_full[v_ring.stage], v_ring.parity);
    Release(shared.v_empty[v_ring.stage]);
    v_ring.Advance();
  }

  // What this warpgroup's rows need of a tile's blocks of keys, by intervals of keys alone: [begin,
  // last], and from exact_begin on with masks and the exact softmax. Below full_begin masks cut
  // again.
  struct OwnBlocks {
    int begin;
    int last;
    int exact_begin;
    int full_begin;
  };
  template <class Walk>
  __device__ __forceinline__ OwnBlocks BlocksOfRows(const Walk& walk, const Problem& problem,
                                                    i64 q_begin) const {
    if constexpr (!Config::Mask::kIsInterval) {
      return {walk.begin, walk.end, walk.full_end, walk.full_begin};
    }
    const i64 first_row = q_begin + rows_of * kWarpgroupRows, last_row = problem.seqlen_q - 1;
    const KeyInterval first = Config::Mask::RowKeys(problem, Min(first_row, last_row), params);
    const KeyInterval last =
        Config::Mask::RowKeys(problem, Min(first_row + kWarpgroupRows - 1, last_row), params);
    // Every row has a reference before an optimistic softmax begins if the block with the last key
    // of the first one still runs the exact one.
    const i64 exact_key = Max(Config::kOptimistic ? first.end - 1 : first.end, 0);
    return {static_cast<int>(Max(first.begin, 0) / Config::kBlockN),
            static_cast<int>(Max(last.end - 1, 0) / Config::kBlockN),
            static_cast<int>(exact_key / Config::kBlockN),
            static_cast<int>(CeilDiv(Max(last.begin, 0), Config::kBlockN))};
  }

  template <class Walk>
  __device__ __forceinline__ void Attend(const Walk& walk, const Problem& problem, i64 q_begin,
                                         bool exactly) {
    int block = walk.Below(walk.end);
    if (block < walk.begin) return;
    if (!kShares && q_begin + rows_of * kWarpgroupRows >= problem.seqlen_q) {
      // No row of this warpgroup exists.
      StartRows();
      ReleaseQueries();
      bool has_turn = false;
#pragma unroll 1
      for (; block >= walk.begin; block = walk.Below(block)) {
        PassBlock(has_turn);
        has_turn = !kRepeatsFirst || !exactly;  // such a second attempt is of first blocks alone
      }
      return;
    }
    OwnBlocks own = BlocksOfRows(walk, problem, q_begin);
    if constexpr (kOrdersRows) {
      if (!kRedoesApart<Config> && exactly) own.exact_begin = walk.begin;
      // At least one remains, so that every row has a reference.
      for (; block > own.last && walk.Below(block) >= walk.begin; block = walk.Below(block)) {
        PassBlock();
      }
    }
    const int begin = Config::Mask::kCutsLeft ? max(walk.begin, own.begin) : walk.begin;
    LoadBias(problem, block);
    if constexpr (kRepeatsFirst) StartRows();
    bool alone = false;  // only a first block is taken, and others follow
#pragma unroll 1
    do {
      int next = walk.Below(block);
      if (alone && !exactly) {
        // The other warpgroup may be taking this block with a turn.
        WaitTurn();
        PassTurn();
      }
      Step<true, true>(problem, q_begin, block, next < begin, alone || exactly);
      block = next;
      alone = kRepeatsFirst && block >= begin && (exactly || SomeRowLacksKeys());
      if constexpr (kOrdersRows) {
#pragma unroll 1
        for (; block >= begin && (block >= own.exact_begin || SomeRowLacksKeys()); block = next) {
          next = walk.Below(block);
          Step<true, false>(problem, q_begin, block, next < begin);
        }
      }
#pragma unroll 1
      for (; kHasFullBlocks<Config> && !alone && block >= begin && block >= own.full_begin;
           block = next) {
        next = walk.Below(block);
        Step<false, false>(problem, q_begin, block, next < begin);
      }
      if constexpr (Config::Mask::kCutsLeft) {
#pragma unroll 1
        for (; block >= begin; block = next) {
          next = walk.Below(block);
          Step<true, false>(problem, q_begin, block, next < begin);
        }
      }
      LastValues();
    } while (alone);
    if constexpr (Config::Mask::kCutsLeft) {
#pragma unroll 1
      for (; block >= walk.begin; block = walk.Below(block)) PassBlock();
    }
  }

  // A barrier of this block only.
  __device__ __forceinline__ void ReleaseHere(const u64& empty) const {
    if (lane() == 0) ptx::mbarrier_arrive(ptx::SharedAddress(&empty));
  }

  // Where products read Q from shared memory: this warp's have read its rows.
  __device__ __forceinline__ void ReleaseQueries() const {
    if constexpr (!kOverQ && kReadsQ) ReleaseHere(shared.q_empty[rows_of]);
  }

  // Zeroes the rows of a block of V that no row of the tile may see.
  __device__ __forceinline__ void ZeroUnseenValues(const Problem& problem, i64 q_begin, int block) {
    for (int key = warpgroup * kWarpgroup + thread; key < Config::kBlockN;
         key += Config::kConsumers * kWarpgroup) {
      const i64 j = i64{block} * Config::kBlockN + key;
      bool seen = false;
      for (i64 i = q_begin; i < Min(q_begin + S::kBlockM, problem.seqlen_q) && !seen; ++i) {
        seen = Config::Mask::Keep(problem, i, j, params);
      }
      if (seen) continue;
#pragma unroll 1
      for (int n = 0; n < S::kDimV; ++n) *ValueAt(shared, v_ring.stage, key, n) = 0;
    }
    ptx::fence_proxy_async_shared();
    ptx::bar_sync(kConsumersBarrier, Config::kConsumers * kWarpgroup);
  }

  // The tile once more: every block with the exact softmax and all masks, one product at a time.
  // `exactly`: unseen rows of V are zeroed.
  template <class Walk>
  __device__ __forceinline__ void AttendAgain(const Walk& walk, const Problem& problem, i64 q_begin,
                                              bool exactly) {
    StartRows();
#pragma unroll 1
    for (int block = walk.Below(walk.end); block >= walk.begin; block = walk.Below(block)) {
      float s[S::kScores];
      Wait(shared.k_full[k_ring.stage], k_ring.parity);
      const u32 missing = MissingPieces();
      IssueScores(s);
      DrawKept(problem, q_begin, block);
      LoadBias(problem, block);
      StartBias();
      ptx::wgmma_wait_group<0>();
      ptx::AccumulatorsReady(s);
      Release(shared.k_empty[k_ring.stage]);
      k_ring.Advance();
      ApplyPolicies<true>(s, problem, q_begin, block);
      MaskMissing(s, missing);
      float factor[2] = {1, 1};
      if (ExactSoftmax<false, false>(s, factor)) ScaleOutput(factor);
      PackWeights(s);
      DropWeights();
      ShareWeights();
      Wait(shared.v_full[v_ring.stage], v_ring.parity);
      if (kHidesValues<Config> && exactly) ZeroUnseenValues(problem, q_begin, block);
      IssueValues();
      SumIssued();
      WaitForValues();
      Release(shared.v_empty[v_ring.stage]);
      v_ring.Advance();
    }
    ReleaseQueries();
  }

  // Marks tile `count` of the block's series, in all blocks of the cluster, for AttendAgain.
  __device__ __forceinline__ void MarkForRedo(int count) const {
    if constexpr (Config::kCluster > 1) {
      if (lane() < Config::kCluster) {
        ptx::red_min_cluster(ptx::mapa(ptx::SharedAddress(&shared.redo_begin), lane()), count);
        ptx::red_max_cluster(ptx::mapa(ptx::SharedAddress(&shared.redo_end), lane()), count + 1);
      }
    } else {
      if (lane() == 0) {
        atomicMin(&shared.redo_begin, count);
        atomicMax(&shared.redo_end, count + 1);
      }
    }
  }

  // This warpgroup's rows of a panel of O in shared memory.
  __device__ __forceinline__ u16 (*OutputRows(int panel))[kPanelColumns] {
    if constexpr (Config::kOwnO) {
      return &shared.o.rows[panel][rows_of * kWarpgroupRows];
    } else if constexpr (kOverOwnStage) {
      return reinterpret_cast<u16(*)[kWarpgroupRows][kPanelColumns]>(
          &shared.v[StageOfO().stage])[panel];
    } else if constexpr (Config::kOverV) {
      static_assert(sizeof(OutputTile<Config, true>) <= Config::kStages * sizeof(shared.v[0]) &&
                        !S::kOnesBehindV,
                    "O is larger than the stages of V");
      return &reinterpret_cast<u16(*)[S::kBlockM][kPanelColumns]>(
          &shared.v)[panel][rows_of * kWarpgroupRows];
    } else {
      static_assert(S::kPanelsO <= S::kPanelsQk, "O is wider than Q");
      return &shared.q[panel][rows_of * kWarpgroupRows];
    }
  }

  // With kOverOwnStage: the first warpgroup takes the stage that was read longest ago, the next one
  // that after it. The parity is of what was last read there.
  __device__ __forceinline__ Ring<Config> StageOfO() const {
    Ring<Config> ring = {v_ring.stage + rows_of, v_ring.parity ^ 1};
    if (ring.stage >= Config::kStages) {
      ring.stage -= Config::kStages;
      ring.parity ^= 1;
    }
    return ring;
  }

  // Until what lies where this warpgroup's rows of O go has been read.
  __device__ __forceinline__ void WaitForPlaceOfO() const {
    if constexpr (Config::kOwnO) {
      // By the store of the tile before.
      if (thread == 0) ptx::cp_async_bulk_wait_group_read_0();
      ptx::bar_sync(kFirstEpilogueBarrier + warpgroup, kWarpgroup);
    } else if constexpr (kOverOwnStage) {
      const Ring<Config> ring = StageOfO();
      Wait(shared.v_empty[ring.stage], ring.parity);
    } else if constexpr (Config::kOverV) {
      // By the other warpgroups.
      ptx::bar_sync(kConsumersBarrier, Config::kConsumers * kWarpgroup);
    }
  }

  // Of what the four lanes of a row have.
  __device__ __forceinline__ static float SumOfRow(float part) {
    part += __shfl_xor_sync(kAllLanes, part, 1);
    return part + __shfl_xor_sync(kAllLanes, part, 2);
  }

  // The ends of this thread's two rows, if they exist. `suspicious`: some row's result is not to be
  // trusted.
  struct RowEnds {
    float o_scale[2];
    bool empty[2];
    float lse[2];  // with kNeedsLse
    bool suspicious;
  };
  template <bool kHasSink>
  __device__ __forceinline__ RowEnds EndRows(const Problem& problem, i64 q_begin, bool no_keys,
                                             float sink) const {
    RowEnds ends;
    ends.suspicious = false;
    float sums[2], totals[2];
    if constexpr (S::kOnesBehindV) {
      sums[0] = o[S::kOutputs];
      sums[1] = o[S::kOutputs + 2];
    }
    ShareSums(sums, totals);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float highest = no_keys ? -Infinity() : reference[r] * kLn2;
      const float multiplied = no_keys ? 0.f : sums[r];
      float total_weight = multiplied, rescale = 1;
      if constexpr (kHasSink) {
        const float reference = SoftmaxReference(sink > highest ? sink : highest);
        rescale = Exp(highest - reference);
        total_weight = multiplied * rescale + Exp(sink - reference);
      }
      ends.empty[r] = multiplied == 0;
      // A division would have code for subnormal sums, which there are not.
      ends.o_scale[r] = ends.empty[r] ? 0.f
                                      : rescale * ptx::rcp_approx_ftz(total_weight) *
                                            Config::Dropout::Scale(params) * scale_of_values;
      float probe = multiplied * 0.f;  // stays 0: 0 * finite
      if constexpr (kNeedsLse) {
        const float total = no_keys ? 0.f : totals[r];
        probe = fmaf(total, 0.f, probe);
        const float lost = CutOff(FinishSoftmax(highest, total, -Infinity()).lse);
        ends.lse[r] = FinishSoftmax(highest + lost, total, sink).lse;
      }
      if (q_begin + Row(r) < problem.seqlen_q) {
        if constexpr (kHidesValues<Config>) {
#pragma unroll
          for (int n = 0; n < S::kOutputs / 4; ++n) {
            probe = fmaf(o[4 * n + 2 * r], 0.f, probe);
            probe = fmaf(o[4 * n + 2 * r + 1], 0.f, probe);
          }
        }
        ends.suspicious |= probe != 0;
      }
    }
    return ends;
  }

  // Of narrow rows, which have their neighbours' columns beside them.
  __device__ __forceinline__ static bool IsColumnOfO(int column) {
    return static_cast<u32>(column) < static_cast<u32>(Config::kHeadDimV);
  }

  // Writes the result of a part of the keys from registers. Returns whether some row's is not to be
  // trusted.
  __device__ __forceinline__ bool StorePart(const Problem& problem, i64 q_begin, int part,
                                            bool no_keys) const {
    const RowEnds ends = EndRows<false>(problem, q_begin, no_keys, -Infinity());
    const int shift = ShiftOfHead<Config>(problem.h_kv, params.core.v_strides, params);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const i64 i = q_begin + Row(r);
      if (i >= problem.seqlen_q) continue;
      const PartRow row = PartRowAt(problem, i, part, params.parts);
      if (lane() % 4 == 0 && share == 0) *row.lse = ends.lse[r];
      if (ends.empty[r]) continue;
#pragma unroll
      for (int n = 0; n < S::kOutputs / 4; ++n) {
        const int column = share * S::kOwnColumns + 8 * n + lane() % 4 * 2;
        if (kShares && column >= Config::kHeadDimV) break;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int at = column + c - shift;
          if (Config::kNarrowRows && !IsColumnOfO(at)) continue;
          row.o[at] = o[4 * n + 2 * r + c] * ends.o_scale[r];
        }
      }
    }
    return ends.suspicious;
  }

  // Stores LSE, and leaves O, divided by the sums, in shared memory. Returns whether some row's
  // result is not to be trusted.
  __device__ __forceinline__ bool FinishRows(const Problem& problem, i64 q_begin, bool no_keys) {
    constexpr bool kHasSink = !kIsSame<typename Config::Sink, SinkNone>;
    const RowEnds ends =
        EndRows<kHasSink>(problem, q_begin, no_keys, Config::Sink::Logit(problem, params));
    if constexpr (!kIsSame<typename Config::Lse, LseNone>) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const i64 i = q_begin + Row(r);
        if (lane() % 4 == 0 && share == 0 && i < problem.seqlen_q) {
          Config::Lse::Store(ends.lse[r], problem, i, params);
        }
      }
    }
    const float(&o_scale)[2] = ends.o_scale;
    WaitForPlaceOfO();
    // Addresses are not to be kept in registers from tile to tile, where O and scores need them.
    int thread = this->thread;
    if constexpr (S::kTransposes || kStagesBias) thread = static_cast<int>(ptx::Opaque(thread));
    const int lane = thread % 32;
    const int row = thread / 32 * 16 + lane % 16;
    constexpr int kChunks = S::kOwnColumns / 8;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; chunk += 2) {
      u32 pair[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int at = 4 * chunk + 2 * n;
        pair[n] = at + 1 < S::kOutputs
                      ? ptx::cvt_rn_x2_f32(o[at + 1] * o_scale[n % 2], o[at] * o_scale[n % 2],
                                           typename Config::OutElement{})
                      : 0;
      }
      const int my_chunk = chunk + lane / 16;
      u16* address =
          &OutputRows(share * S::kOwnPanelsO + chunk / 8)[row][(my_chunk % 8 ^ row % 8) * 8];
      if (chunk + 1 < kChunks) {
        ptx::stmatrix_x4(ptx::SharedAddress(address), pair[0], pair[1], pair[2], pair[3]);
      } else {
        ptx::stmatrix_x2(ptx::SharedAddress(address), pair[0], pair[1]);
      }
    }
    return ends.suspicious;
  }

  // Stores the head's columns of rows that lie as V's do. Where O in memory does too, whole chunks.
  __device__ __forceinline__ void StoreNarrowRows(const Problem& problem, i64 first, i64 rows) {
    const abi::TensorStrides& strides = params.core.o_strides;
    const int shift = ShiftOfHead<Config>(problem.h_kv, params.core.v_strides, params);
    // Of the column 0 that the neighbours' lie from.
    u16* const out = static_cast<u16*>(params.core.o) + problem.q_batch * strides.batch +
                     problem.h * strides.head + (problem.q_row + first) * strides.seq - shift;
    const bool by_chunks = reinterpret_cast<u64>(out) % 16 == 0 && strides.seq % kChunkColumns == 0;
    constexpr int kChunks = S::kDimV / kChunkColumns;
#pragma unroll 1
    for (int n = thread; n < rows * kChunks; n += kWarpgroup) {
      const int row = n / kChunks, chunk = n % kChunks;
      const u16* const from = &OutputRows(chunk / 8)[row][(chunk % 8 ^ row % 8) * kChunkColumns];
      u16* const to = out + row * strides.seq + chunk * kChunkColumns;
      const Words<16> words = *reinterpret_cast<const Words<16>*>(from);
      const int column = chunk * kChunkColumns - shift;
      if (by_chunks && column >= 0 && column + kChunkColumns <= Config::kHeadDimV) {
        *reinterpret_cast<Words<16>*>(to) = words;
        continue;
      }
#pragma unroll
      for (int c = 0; c < kChunkColumns; c += 2) {
        const u32 pair = words.word[c / 2];
        const bool low = IsColumnOfO(column + c), high = IsColumnOfO(column + c + 1);
        if (by_chunks && low && high) {
          reinterpret_cast<Words<4>*>(to + c)->word[0] = pair;
        } else {
          if (low) to[c] = static_cast<u16>(pair);
          if (high) to[c + 1] = static_cast<u16>(pair >> 16);
        }
      }
    }
    if constexpr (!Config::kOwnO) ptx::bar_sync(kFirstEpilogueBarrier + warpgroup, kWarpgroup);
  }

  // Stores this warpgroup's rows of O, by its thread 0 or, where the map does not end where the
  // sequence does or cannot describe O, by all.
  __device__ __forceinline__ void StoreRows(const Problem& problem, i64 q_begin) {
    const i64 first = q_begin + rows_of * kWarpgroupRows;
    const i64 rows = Min(problem.seqlen_q - first, kWarpgroupRows);
    constexpr bool kClips = kIsSame<typename Config::Lengths, LengthsUniform>;
    ptx::fence_proxy_async_shared();
    ptx::bar_sync(kFirstEpilogueBarrier + warpgroup, kWarpgroup);
    if constexpr (Config::kNarrowRows) {
      StoreNarrowRows(problem, first, rows);
    } else if ((params.sm90.by_threads & abi::kOByThreads) == 0 &&
               (kClips || rows == kWarpgroupRows)) {
      if (thread == 0) {
#pragma unroll
        for (int n = 0; n < S::kOwnPanelsO; ++n) {
          const int panel = share * S::kOwnPanelsO + n;
          ptx::cp_async_bulk_tensor_4d_store(
              &params.sm90.o, ptx::SharedAddress(OutputRows(panel)), panel * kPanelColumns,
              static_cast<int>(problem.q_row + first), static_cast<int>(problem.h),
              static_cast<int>(problem.q_batch));
        }
        ptx::cp_async_bulk_commit_group();
      }
    } else {
      const abi::TensorStrides& strides = params.core.o_strides;
      u16* out = static_cast<u16*>(params.core.o) + problem.q_batch * strides.batch +
                 problem.h * strides.head + (problem.q_row + first) * strides.seq;
#pragma unroll 1
      for (int n = thread; n < rows * S::kOwnColumns; n += kWarpgroup) {
        const int row = n / S::kOwnColumns;
        const int column = share * S::kOwnColumns + n % S::kOwnColumns;
        if (kShares && column >= Config::kHeadDimV) continue;
        const int at = (column / 8 % 8 ^ row % 8) * 8 + column % 8;
        out[row * strides.seq + column] = OutputRows(column / kPanelColumns)[row][at];
      }
      if constexpr (!Config::kOwnO) ptx::bar_sync(kFirstEpilogueBarrier + warpgroup, kWarpgroup);
    }
    if constexpr (!Config::kOwnO) {
      if (thread == 0) {
        ptx::cp_async_bulk_wait_group_read_0();
        ReleaseOutput();
      }
    }
  }

  // By one thread: the Q or the V that O lay over may be loaded again.
  __device__ __forceinline__ void ReleaseOutput() const {
    if constexpr (kOverQ) {
      ptx::mbarrier_arrive(ptx::SharedAddress(&shared.q_empty[rows_of]));
    } else {
#pragma unroll
      for (u32 block = 0; block < Config::kCluster; ++block) ArriveAt(shared.o_read, block);
    }
  }

  // `exactly`: a second attempt. kAgain: with the loop of such, an instantiation of its own: where
  // their accumulators met, ptxas 13.0 ran out of registers for the pipeline (C7511).
  template <bool kAgain>
  __device__ __forceinline__ void ComputeTiles(const Series& series, bool exactly) {
    ForEachTile<Config>(series, params,
                        [&](const Problem& problem, i64 tile_begin, int part, int count) {
                          const i64 q_begin = tile_begin + rank * S::kBlockM;
                          const auto walk = WalkOf<Config>(problem, tile_begin, part, params);
                          const bool no_keys = walk.Below(walk.end) < walk.begin;
                          ReadScales(problem);
#pragma unroll
                          for (int n = 0; n < S::kSums; ++n) o[n] = 0;
                          Wait(shared.q_full[rows_of], q_parity);
                          q_parity ^= 1;
                          PlaceQueries(problem);
                          ReadQueries();
                          FindBias(problem, q_begin);
                          if (!no_keys) {
                            if constexpr (kAgain) {
                              AttendAgain(walk, problem, q_begin, exactly);
                            } else {
                              Attend(walk, problem, q_begin, exactly);
                            }
                          } else {
                            ReleaseQueries();
                          }
                          const auto mark = [&](bool suspicious) {
                            if constexpr (kMayRedo<Config>) {
                              if (!exactly && __any_sync(kAllLanes, suspicious)) MarkForRedo(count);
                            }
                          };
                          if constexpr (Config::kSplit) {
                            if (params.parts.parts > 1) {
                              mark(StorePart(problem, q_begin, part, no_keys));
                              if constexpr (!Config::kOwnO) {
                                ptx::bar_sync(kFirstEpilogueBarrier + warpgroup, kWarpgroup);
                                if (thread == 0) ReleaseOutput();
                              }
                              return;
                            }
                          }
                          mark(FinishRows(problem, q_begin, no_keys));
                          StoreRows(problem, q_begin);
                        });
  }
};

// ---- both ----

// Waits for all tiles of the cluster. Roles come here from different code, which barriers of a
// block do not allow, and a mbarrier does.
template <class Config>
__device__ __forceinline__ void WaitForTiles(const SharedStorage<Config>& shared) {
  if constexpr (Config::kCluster > 1) {
    SyncCluster<Config>();
  } else {
    Wait(shared.tiles_done, 0);
  }
}

template <class Config, class Params>
__device__ __forceinline__ void InitialiseShared(SharedStorage<Config>& shared,
                                                 const Params& params) {
  constexpr u32 kConsumerWarps = Config::kConsumers * 4;
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int n = 0; n < Shape<Config>::kQueryTiles; ++n) {
      ptx::mbarrier_init(ptx::SharedAddress(&shared.q_full[n]), 1);
      ptx::mbarrier_init(ptx::SharedAddress(&shared.q_empty[n]),
                         Config::kSharers * (Config::kOwnO || Config::kOverV ? 4 : 1));
    }
    ptx::mbarrier_init(ptx::SharedAddress(&shared.o_read), Config::kConsumers * Config::kCluster);
    ptx::mbarrier_init(ptx::SharedAddress(&shared.tiles_done), kConsumerWarps);
    if constexpr (Config::kStagedTerms > 0) {
      for (int n = 0; n < Config::kConsumers; ++n) {
        ptx::mbarrier_init(ptx::SharedAddress(&shared.bias_full[n]), 1);
        ptx::mbarrier_init(ptx::SharedAddress(&shared.bias_empty[n]), 4);
      }
    }
#pragma unroll 1
    for (int stage = 0; stage < Config::kStages; ++stage) {
      ptx::mbarrier_init(ptx::SharedAddress(&shared.k_full[stage]),
                         ShiftsRows<Config>(params) ? kClearingWarps : 1);
      ptx::mbarrier_init(ptx::SharedAddress(&shared.raw_full[stage]), 1);
      ptx::mbarrier_init(ptx::SharedAddress(&shared.raw_empty[stage]), kTransposingWarps);
      ptx::mbarrier_init(ptx::SharedAddress(&shared.v_full[stage]),
                         Shape<Config>::kTransposes ? kTransposingWarps : 1);
      ptx::mbarrier_init(ptx::SharedAddress(&shared.k_empty[stage]),
                         kConsumerWarps * Config::kCluster);
      ptx::mbarrier_init(ptx::SharedAddress(&shared.v_empty[stage]),
                         kConsumerWarps * Config::kCluster);
    }
    ptx::fence_mbarrier_init();
    shared.redo_begin = 0x7fffffff;
    shared.redo_end = 0;
  }
  typename Config::Element one;
  FromFloat(1.f, &one);
  if constexpr (Shape<Config>::kOnesBehindV) {
    constexpr int kElements = Config::kBlockN * kOnesColumns;
#pragma unroll 1
    for (int n = threadIdx.x; n < Config::kStages * kElements; n += Shape<Config>::kThreads) {
      const int column = Shape<Config>::kDimV + n % kOnesColumns;
      *ValueAt(shared, n / kElements, n % kElements / kOnesColumns, column) = one.bits;
    }
    ptx::fence_proxy_async_shared();
  }
  if constexpr (Config::kNarrowRows && Shape<Config>::kZeroColumnsQk > 0) {
    static_assert(Shape<Config>::kZeroColumnsQk == kChunkColumns);
    constexpr int kChunk = Shape<Config>::kBoxColumnsQk / kChunkColumns;
#pragma unroll 1
    for (int n = threadIdx.x; n < Config::kStages * Config::kBlockN; n += Shape<Config>::kThreads) {
      const int row = n % Config::kBlockN;
      *reinterpret_cast<Words<16>*>(
          &shared.k[n / Config::kBlockN][0][row][(kChunk ^ row % 8) * kChunkColumns]) = {};
    }
    ptx::fence_proxy_async_shared();
  }
  if constexpr (Shape<Config>::kOnesApart) {
#pragma unroll 1
    for (int n = threadIdx.x; n < kOnesColumns * kPanelColumns; n += Shape<Config>::kThreads) {
      shared.ones[n / kPanelColumns][n % kPanelColumns] = static_cast<u16>(one.bits * 0x101);
    }
    ptx::fence_proxy_async_shared();
  }
  SyncCluster<Config>();
}

template <class Config, class Params>
__device__ __forceinline__ void Run(const Params& params) {
  static_assert(MaskPolicy<typename Config::Mask, Params>);
  static_assert(ScorePolicy<typename Config::Score, Params>);
  static_assert(KvRowsPolicy<typename Config::KvRows, Params>);
  static_assert(Config::KvRows::kIsDense ||
                    (PieceRows<Config>() % 8 == 0 && Config::kBlockN % PieceRows<Config>() == 0 &&
                     Config::kBlockN / PieceRows<Config>() <= 32 && Config::kCluster == 1),
                "pages are whole atoms of the swizzle, and blocks whole pages or parts of one");
  static_assert(
      !Shape<Config>::kTransposes ||
          (Config::kOptimistic == Config::kOnes && Config::kCluster == 1 && Config::kSharers == 1 &&
           Config::Dropout::kIdentity && Config::kBlockN % 32 == 0 && Config::kHeadDimV % 16 == 0 &&
           Config::kHeadDimQk % 16 == 0),
      "what e4m3 has been written for");
  static_assert(Config::Dropout::kIdentity || !Config::kOnes,
                "rows are divided by the sums of all weights");
  static_assert(
      Config::kSharers == 1 || (Config::kSharers == Config::kConsumers && !Config::kOptimistic &&
                                !Config::kOnes && !Config::kPingPong),
      "all warpgroups share rows or none; what they exchange are exact maxima");
  static_assert(Shape<Config>::kOwnKeys % 16 == 0);
  static_assert(Config::kNarrowRows
                    ? Config::kStagedTerms == 0 && Config::kSharers == 1 && Config::kCluster == 1
                    : Config::kHeadDimQk % 8 == 0 && Config::kHeadDimV % 8 == 0,
                "what narrow rows have been written for");
  static_assert(!Config::kOptimistic || Shape<Config>::kTransposes ||
                    (kIsSame<typename Config::Element, Bf16>),
                "the margin needs the exponents of bf16");
  extern __shared__ __align__(1024) u8 shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(shared_bytes);
  InitialiseShared(shared, params);
  if (__shfl_sync(kAllLanes, threadIdx.x / kWarpgroup, 0) == 0) {
    if constexpr (Config::kLoaderRegisters != 0) ptx::setmaxnreg_dec<Config::kLoaderRegisters>();
    if (threadIdx.x == 0 && params.sm90.by_threads == 0) {
      ptx::prefetch_tensormap(&params.sm90.q);
      ptx::prefetch_tensormap(&params.sm90.k);
      ptx::prefetch_tensormap(&params.sm90.v);
      if constexpr (Shape<Config>::kTailColumns != 0) {
        ptx::prefetch_tensormap(&params.sm90.v_tail);
      }
    }
    Loader<Config, Params> loader = {shared, params, RankInCluster<Config>()};
    Series series = AllTiles<Config>();
#pragma unroll 1
    while (series.first < series.last && loader.TakesPart()) {
      loader.Load(series);
      // A second pass is one over some tiles.
      if (!kMayRedo<Config> || series.last != kEndOfSeries) break;
      WaitForTiles(shared);
      series.first = shared.redo_begin;
      series.last = shared.redo_end;
    }
  } else {
    if constexpr (Config::kConsumerRegisters != 0) {
      ptx::setmaxnreg_inc<Config::kConsumerRegisters>();
    }
    Consumer<Config, Params> consumer(shared, params);
    if constexpr (Config::kPingPong) {
      if (consumer.warpgroup + 1 == Config::kConsumers) {
        ptx::bar_arrive(kFirstTurnBarrier, 2 * kWarpgroup);
      }
    }
    Series series = AllTiles<Config>();
    // Leaves in `series` the tiles that are to be repeated; such a tile is stored behind its first
    // attempt.
    const auto start_again = [&] {
      __syncwarp();
      if (Config::kCluster == 1) consumer.ReleaseHere(shared.tiles_done);
      WaitForTiles(shared);
      // Shuffled, so that the compiler knows that a warp agrees.
      series.first = __shfl_sync(kAllLanes, shared.redo_begin, 0);
      series.last = __shfl_sync(kAllLanes, shared.redo_end, 0);
      if (consumer.thread == 0) ptx::cp_async_bulk_wait_group_0();
      return series.first < series.last;
    };
    if constexpr (kMayRedo<Config> && (!kRedoesApart<Config> || kOneLoop<Config>)) {
      bool exactly = false;
#pragma unroll 1
      do {
        consumer.template ComputeTiles<kOneLoop<Config>>(series, exactly);
        exactly = !exactly;
      } while (exactly && start_again());
    } else {
      consumer.template ComputeTiles<false>(series, false);
      if constexpr (kMayRedo<Config>) {
        if (start_again()) consumer.template ComputeTiles<true>(series, true);
      }
    }
    if constexpr (Config::kPingPong) {
      // The last turn passed is taken by nobody else.
      if (consumer.warpgroup == 0) consumer.WaitTurn();
    }
    if (consumer.thread == 0) ptx::cp_async_bulk_wait_group_read_0();
  }
  // The other block may still arrive at this one's barriers.
  if constexpr (Config::kCluster > 1) SyncCluster<Config>();
}

}  // namespace fwd_sm90
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_FWD_SM90_CUH_
