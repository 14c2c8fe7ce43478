// Rows of queries that share a key/value head, packed into tiles of 64 rows for warpgroup products
// (wgmma), and blocks of their keys by bulk copies: what the decode families of Hopper share.
//
// A block, or both blocks of a cluster, has one share of all keys (policy/decode_work.cuh). Warp 0
// walks its pieces, publishes each and copies keys; warps 1 to 3 bring the rows of Q; the computing
// warpgroups follow. Rows of tiles in shared memory have 128 bytes under the 128-byte swizzle.
#ifndef TILEWRIGHT_MMA_PACKED_ROWS_CUH_
#define TILEWRIGHT_MMA_PACKED_ROWS_CUH_

#include "abi/attn_fwd_params.h"
#include "abi/decode_sm90_args.h"
#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/warp_reduce.cuh"
#include "core/words.cuh"
#include "mma/cut_off.cuh"
#include "mma/score_tile.cuh"
#include "policy/decode_work.cuh"
#include "policy/kv_rows.cuh"
#include "policy/lse.cuh"
#include "policy/sink.cuh"
#include "ptx/cluster.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/griddep.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/tma.cuh"
#include "ptx/tma_prefetch.cuh"

namespace tilewright {
namespace packed_rows {

inline constexpr int kWarpgroup = 128;    // threads
inline constexpr int kRows = 64;          // M of a product
inline constexpr int kPanelColumns = 64;  // of 16 bits
inline constexpr int kRowBytes = 128;     // of a panel
inline constexpr int kQueryThreads = 96;  // warps 1 to 3
inline constexpr int kPieces = 2;         // published at a time

__device__ __forceinline__ void Wait(const u64& barrier, u32 parity) {
  while (!ptx::mbarrier_try_wait_parity(ptx::SharedAddress(&barrier), parity)) {
  }
}

// Whether this thread's warp has a row of the tile that exists; `row` as below.
template <class Config>
__device__ __forceinline__ bool HasRows(const Piece& piece, int row) {
  const int first = row - static_cast<int>(threadIdx.x) % 32 / 4;
  return piece.first_row + first < piece.problem.seqlen_q * Config::kGroup;
}

// Blocks of a cluster: kCluster, which have one share of the keys, for each of its shares.
template <class Config>
inline constexpr int kClusterBlocks = Config::kCluster* Config::kClusterShares;

// Among the blocks that have one share.
template <class Config>
__device__ __forceinline__ int RankInCluster() {
  return Config::kCluster > 1 ? static_cast<int>(ptx::cluster_ctarank()) % Config::kCluster : 0;
}
// The cluster's first block that has this one's share.
template <class Config>
__device__ __forceinline__ u32 FirstOfShare() {
  return Config::kClusterShares > 1 ? ptx::cluster_ctarank() / Config::kCluster * Config::kCluster
                                    : 0;
}

// Of all threads of all blocks.
template <class Config>
__device__ __forceinline__ void SyncCluster() {
  if constexpr (kClusterBlocks < Config >> 1) {
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
  } else {
    __syncthreads();
  }
}

// Before a warp ends: another block may still arrive at barriers of this one, and where a cluster
// has several shares warps that merge (mma/cluster_merge.cuh) meet all others twice.
template <class Config>
__device__ __forceinline__ void LeaveCluster() {
  __syncwarp();
  if constexpr (kClusterBlocks < Config >> 1) SyncCluster<Config>();
  if constexpr (Config::kClusterShares > 1) SyncCluster<Config>();
}

// Once for a warp, whose lanes have all come: at this barrier of every block that has this share.
template <class Config>
__device__ __forceinline__ void ArriveEverywhere(const u64& barrier) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const u32 address = ptx::SharedAddress(&barrier);
  if constexpr (Config::kCluster > 1) {
    if (lane < Config::kCluster) {
      ptx::mbarrier_arrive_cluster(ptx::mapa(address, FirstOfShare<Config>() + lane));
    }
  } else {
    if (lane == 0) ptx::mbarrier_arrive(address);
  }
}

// ---- pieces
// ----------------------------------------------------------------------------------------

// A piece of the block's share, and the keys of it that some row of the tile sees, in blocks of
// keys from `first_key` on.
struct TilePiece {
  Piece piece;
  KeyBounds bounds;
  int first_key;
  int blocks;       // -1: there are no more pieces
  PartSlots slots;  // of all parts of the item; set where it is merged (mma/packed_merge.cuh)
  // The cluster's blocks have all parts of the item, and nothing else (mma/cluster_merge.cuh).
  bool of_cluster;
};

// Where warp 0 leaves pieces for the other warps.
struct PieceBoard {
  TilePiece pieces[kPieces];
  u64 full[kPieces];   // 1 arrival
  u64 empty[kPieces];  // a warp each of those that compute

  __device__ __forceinline__ void Initialise(u32 computing_warps) {
#pragma unroll
    for (int n = 0; n < kPieces; ++n) {
      ptx::mbarrier_init(ptx::SharedAddress(&full[n]), 1);
      ptx::mbarrier_init(ptx::SharedAddress(&empty[n]), computing_warps);
    }
  }
  __device__ __forceinline__ static u32 Parity(int piece) {
    return static_cast<u32>(piece) / kPieces % 2;
  }
  // By a warp.
  __device__ __forceinline__ void Publish(int n, const TilePiece& piece) {
    Wait(empty[n % kPieces], Parity(n) ^ 1);
    if (threadIdx.x % 32 == 0) {
      pieces[n % kPieces] = piece;
      ptx::mbarrier_arrive(ptx::SharedAddress(&full[n % kPieces]));
    }
    __syncwarp();
  }
  __device__ __forceinline__ const TilePiece& Await(int n) const {
    Wait(full[n % kPieces], Parity(n));
    return pieces[n % kPieces];
  }
  // By a warp that computes.
  __device__ __forceinline__ void Release(int n) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::SharedAddress(&empty[n % kPieces]));
  }
};

template <class Config, class Params>
__device__ __forceinline__ TilePiece TilePieceOf(const Piece& piece, const Params& params) {
  const KeyBounds bounds = BoundsOf<Config>(piece, params);
  const int first = bounds.seen_begin / Config::kBlockN * Config::kBlockN;
  const int keys = bounds.seen_end - first;
  return {piece, bounds, first, keys > 0 ? (keys + Config::kBlockN - 1) / Config::kBlockN : 0,
          {},    false};
}

// By warp 0: around the first walk. What the kernel ahead has left can be read behind the wait, and
// where it says nothing about pieces the first one is found while that kernel ends.
template <class Config>
__device__ __forceinline__ void WaitBeforeWalk() {
  if constexpr (!kSequencesAreAlike<Config>) ptx::griddepcontrol_wait();
}
template <class Config>
__device__ __forceinline__ void WaitBehindWalk() {
  if constexpr (kSequencesAreAlike<Config>) ptx::griddepcontrol_wait();
}

// ---- copies of keys, by warp 0
// --------------------------------------------------------------------------------------

// Rows of keys that lie one behind the other for sure: those of a copy. The blocks that have a
// share together copy an equal part of each block of keys, for all.
template <class Config>
TILEWRIGHT_HOST_DEVICE constexpr int CopyRows() {
  constexpr int kPart = Config::kBlockN / Config::kCluster;
  if constexpr (Config::KvRows::kIsDense) {
    return kPart;
  } else {
    return static_cast<int>(Min(Config::KvRows::kPageRows, kPart));
  }
}

// Lane n has the place of the n-th copy of a block of keys: as coordinates of a tensor map, whose
// batch -1 is none and gives zeros.
struct CopyPlace {
  int row;
  int block;
};
template <class Config, class Params>
__device__ __forceinline__ CopyPlace PlaceOfCopy(const Problem& problem, int first_key,
                                                 const Params& params) {
  constexpr int kCopies = Config::kBlockN / CopyRows<Config>();
  static_assert(kCopies <= 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const i64 j = i64{first_key} + lane % kCopies * CopyRows<Config>();
  if constexpr (Config::KvRows::kIsDense) {
    return {static_cast<int>(problem.kv_row + j), static_cast<int>(problem.kv_batch)};
  } else {
    if (j >= problem.seqlen_kv) return {0, -1};
    const KvRow at = Config::KvRows::Locate(problem, j, params);
    if (!at.exists()) return {0, -1};
    return {static_cast<int>(at.row), static_cast<int>(at.block)};
  }
}

// Starts copies of kPanels panels of a block of keys from column 64 * first_panel on, `tile` being
// the first of them. kReadOnce: no other block reads these keys, so that what is read more often
// may stay in L2: the code, lengths and pages, parts to be merged.
template <class Config, int kPanels, bool kReadOnce = false>
__device__ __forceinline__ void LoadPanels(u16 (*tile)[Config::kBlockN][kPanelColumns],
                                           const abi::TensorMap* map, int first_panel,
                                           const u64& full, CopyPlace place, int head) {
  static_assert(kPanels <= 32);
  constexpr int kCopies = Config::kBlockN / CopyRows<Config>() / Config::kCluster;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const u32 barrier = ptx::SharedAddress(&full);
  const int first_copy = RankInCluster<Config>() * kCopies;
  if (lane == 0) ptx::mbarrier_arrive_expect_tx(barrier, kPanels * Config::kBlockN * kRowBytes);
  __syncwarp();
#pragma unroll
  for (int n = 0; n < kCopies; ++n) {
    const int copy = first_copy + n;
    const int row = __shfl_sync(kAllLanes, place.row, copy);
    const int block = __shfl_sync(kAllLanes, place.block, copy);
    if (lane < kPanels) {
      const u32 to = ptx::SharedAddress(&tile[lane][copy * CopyRows<Config>()]);
      const int column = (first_panel + lane) * kPanelColumns;
      if constexpr (Config::kCluster > 1) {
        constexpr u16 kAllBlocks = (1 << Config::kCluster) - 1;
        ptx::cp_async_bulk_tensor_4d_load_multicast(
            to, map, barrier, column, row, head, block,
            static_cast<u16>(kAllBlocks << FirstOfShare<Config>()));
      } else if constexpr (kReadOnce) {
        ptx::cp_async_bulk_tensor_4d_load_evict_first(to, map, barrier, column, row, head, block);
      } else {
        ptx::cp_async_bulk_tensor_4d_load(to, map, barrier, column, row, head, block);
      }
    }
  }
  __syncwarp();
}

// Lets L2 have what LoadPanels will copy of this block.
template <class Config, int kPanels>
__device__ __forceinline__ void PrefetchPanels(const abi::TensorMap* map, CopyPlace place,
                                               int head) {
  constexpr int kCopies = Config::kBlockN / CopyRows<Config>() / Config::kCluster;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first_copy = RankInCluster<Config>() * kCopies;
#pragma unroll
  for (int n = 0; n < kCopies; ++n) {
    const int row = __shfl_sync(kAllLanes, place.row, first_copy + n);
    const int block = __shfl_sync(kAllLanes, place.block, first_copy + n);
    if (lane < kPanels && block >= 0) {
      ptx::cp_async_bulk_prefetch_tensor_4d(map, lane * kPanelColumns, row, head, block);
    }
  }
}

// The same where no tensor map describes the tensor: element by element, every block its own.
// `base` is element 0 of head 0; columns from kDim on and rows from `keys` on become zeros.
template <class Config, int kPanels, int kDim>
__device__ __forceinline__ void CopyPanels(u16 (*tile)[Config::kBlockN][kPanelColumns],
                                           const void* base, const abi::TensorStrides& strides,
                                           int first_panel, const u64& full, CopyPlace place,
                                           i64 head, i64 keys) {
  constexpr int kCopyRows = CopyRows<Config>();
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
  for (int copy = 0; copy < Config::kBlockN / kCopyRows; ++copy) {
    const i64 row = __shfl_sync(kAllLanes, place.row, copy);
    const i64 block = __shfl_sync(kAllLanes, place.block, copy);
    const u16* const source =
        static_cast<const u16*>(base) + block * strides.batch + head * strides.head;
#pragma unroll 1
    for (int n = lane; n < kCopyRows * kPanels * kPanelColumns; n += 32) {
      const int from = n / (kPanels * kPanelColumns), column = n % (kPanels * kPanelColumns);
      const int to = copy * kCopyRows + from;
      const int global = first_panel * kPanelColumns + column;
      const bool exists = block >= 0 && to < keys && global < kDim;
      tile[column / kPanelColumns][to][(column / 8 % 8 ^ to % 8) * 8 + column % 8] =
          exists ? source[(row + from) * strides.seq + global] : u16{0};
    }
  }
  ptx::fence_proxy_async_shared();
  __syncwarp();
  if (lane == 0) ptx::mbarrier_arrive(ptx::SharedAddress(&full));
}

// Bit n: the n-th copy of the block of keys is of no page.
__device__ __forceinline__ u32 MissingCopies(CopyPlace place) {
  return __ballot_sync(kAllLanes, place.block < 0);
}

// ---- rows of Q, by warps 1 to 3
// -------------------------------------------------------------------------------------

// Copies the rows from `first_row` of the piece's tile on; columns behind the last are zeros. A
// warp has whole rows, so that the place of one is found once: the first scores wait for this. By
// kThreads threads, from warp 1 on.
template <class Config, int kPanels, int kThreads = kQueryThreads, int kTileRows, class Params>
__device__ __forceinline__ void LoadQueryRows(u16 (*tile)[kTileRows][kPanelColumns],
                                              const Piece& piece, int first_row,
                                              const Params& params) {
  constexpr int kChunks = kPanels * kPanelColumns / 8;  // of a row
  constexpr int kLanes = kChunks < 32 ? kChunks : 32;   // that copy a row
  constexpr int kWarpRows = 32 / kLanes;
  const abi::TensorStrides& strides = params.core.q_strides;
  const bool wide = reinterpret_cast<u64>(params.core.q) % 16 == 0 &&
                    (strides.batch | strides.seq | strides.head) % 8 == 0;
  const int warp = static_cast<int>(threadIdx.x) / 32 - 1;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const u16* const first = static_cast<const u16*>(params.core.q) +
                           piece.problem.q_batch * strides.batch +
                           piece.problem.q_row * strides.seq;
#pragma unroll 2
  for (int n = warp * kWarpRows; n < kTileRows; n += kThreads / 32 * kWarpRows) {
    const int row = n + lane / kLanes;
    if (lane >= kLanes * kWarpRows || row >= kTileRows) continue;
    const PackedRow at = RowAt<Config>(piece.problem, piece.first_row, first_row + row);
    const u16* const from = first + at.h * strides.head + at.i * strides.seq;
#pragma unroll
    for (int step = 0; step < kChunks; step += kLanes) {
      const int chunk = step + lane % kLanes;
      if (chunk >= kChunks) break;
      u16* const to = &tile[chunk / 8][row][(chunk % 8 ^ row % 8) * 8];
      const bool exists = at.inside && chunk * 8 < Config::kHeadDimQk;
      if (exists && wide) {
        ptx::cp_async_cg_16(ptx::SharedAddress(to), from + chunk * 8, 16);
      } else if (exists) {
#pragma unroll
        for (int c = 0; c < 8; ++c) to[c] = from[chunk * 8 + c];
      } else {
        *reinterpret_cast<Words<16>*>(to) = {{0, 0, 0, 0}};
      }
    }
  }
  ptx::cp_async_commit_group();
  ptx::cp_async_wait_group<0>();
  ptx::fence_proxy_async_shared();
  __syncwarp();
}

// Those of all pieces.
template <class Config, int kPanels, class Shared, class Params>
__device__ __forceinline__ void LoadQueries(Shared& shared, const Params& params) {
  const int first_row = RankInCluster<Config>() * (Config::kBlockM / Config::kCluster);
  ptx::griddepcontrol_wait();
  for (int n = 0;; ++n) {
    const TilePiece& tile = shared.board.Await(n);
    if (tile.blocks < 0) return;
    Wait(shared.q_empty, n % 2 ^ 1);
    LoadQueryRows<Config, kPanels>(shared.q, tile.piece, first_row, params);
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::SharedAddress(&shared.q_full));
  }
}

// ---- scores and results, by the warpgroups that compute. Layouts as in ptx/wgmma.cuh: [2] is of
// ---- rows r and r + 8, and `row` of the tile is this thread's r.

// What scores are multiples of before they are weighed.
template <class Config, class Params>
__device__ __forceinline__ float ScoreUnit(const Params& params) {
  if constexpr (Config::Score::kIdentity) {
    return params.core.scale;
  } else {
    return Config::Score::Unit(params);
  }
}

// Products of the block of keys from `key` on to scores, in multiples of the policy's unit. Those
// that are not kept become -inf by selection. `full`: every row sees all of these keys; `missing`:
// MissingCopies.
template <class Config, int kScores, class Params>
__device__ __forceinline__ void ApplyPoliciesToRows(float (&s)[kScores], const Piece& piece,
                                                    int row, int key, bool full, float scale,
                                                    [[maybe_unused]] u32 missing,
                                                    const Params& params) {
  constexpr int kKeys = kScores * 2;
  if constexpr (!Config::Score::kIdentity) Config::Score::ApplyToAll(s, scale, params);
  if (full && missing == 0) return;
  const int first_column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const PackedRow at = RowAt<Config>(piece.problem, piece.first_row, row + 8 * r);
    const KeyInterval keys = Config::Mask::RowKeys(piece.problem, at.i, params);
    const int begin = static_cast<int>(Max(0, Min(keys.begin - key, kKeys))) - first_column;
    const int end =
        (at.inside ? static_cast<int>(Max(0, Min(keys.end - key, kKeys))) : 0) - first_column;
#pragma unroll
    for (int n = 0; n < kScores / 4; ++n) {
      const bool exists =
          Config::KvRows::kIsDense || (missing >> (n * 8 / CopyRows<Config>()) & 1) == 0;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = n * 8 + c;
        float& score = s[4 * n + 2 * r + c];
        score = exists && column >= begin && column < end ? score : -Infinity();
      }
    }
  }
}

// Turns the scores of row r into weights below `reference`; returns the sum of this thread's.
template <int kScores>
__device__ __forceinline__ float WeighRow(float (&s)[kScores], int r, float to_log2,
                                          float reference) {
  constexpr int kChains = 4;
  static_assert(kScores / 4 >= kChains);
  float sums[kChains] = {};
#pragma unroll
  for (int n = 0; n < kScores / 4; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float& weight = s[4 * n + 2 * r + c];
      weight = ptx::ex2_approx_ftz(fmaf(weight, to_log2, -reference));
      sums[n % kChains] += weight;
    }
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Turns scores into weights. References move from `before` to `after`, near the maxima so far;
// `added`: the sums of this thread's weights. kSlack: to a maximum only where it is more than that
// far above, for to move means to scale all of O; weights up to 2^kSlack cost no precision.
template <int kSlack, int kScores>
__device__ __forceinline__ void Weigh(float (&s)[kScores], const float (&before)[2], float to_log2,
                                      float (&after)[2], float (&added)[2]) {
  constexpr int kChains = 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // In four chains: the other warpgroup waits for the weights.
    float highs[kChains];
#pragma unroll
    for (int n = 0; n < kScores / 4; ++n) {
      const float high = fmaxf(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]);
      highs[n % kChains] = n < kChains ? high : fmaxf(highs[n % kChains], high);
    }
    float highest = fmaxf(fmaxf(highs[0], highs[1]), fmaxf(highs[2], highs[3]));
    highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 2));
    const float top = highest * to_log2;
    if constexpr (kSlack == 0) {
      after[r] = fmaxf(before[r], top);
    } else {
      after[r] = top > before[r] + kSlack ? top : before[r];
    }
    added[r] = WeighRow(s, r, to_log2, after[r]);
  }
}

// Over the four lanes of a row.
__device__ __forceinline__ float SumOfRow(float part) {
  part += __shfl_xor_sync(kAllLanes, part, 1);
  return part + __shfl_xor_sync(kAllLanes, part, 2);
}

// Of this warp's rows: their part of O is to be multiplied by `factor`, when their references move
// from `before` to `after`. False: by 1 only.
__device__ __forceinline__ bool MoveFactors(const float (&before)[2], const float (&after)[2],
                                            float (&factor)[2]) {
  bool moves = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    factor[r] = before[r] == after[r] ? 1.f : ptx::ex2_approx_ftz(before[r] - after[r]);
    moves |= before[r] != after[r];
  }
  return __any_sync(kAllLanes, moves);
}

template <int kOutputs>
__device__ __forceinline__ void ScaleRows(float (&o)[kOutputs], const float (&factor)[2]) {
#pragma unroll
  for (int n = 0; n < kOutputs; ++n) o[n] *= factor[n / 2 % 2];
}

// Zeroes the rows of keys outside of [begin, end), which no row of the tile sees and may hold NaN
// or Inf, in kPanels panels of a block. By a warpgroup; its products may read them behind its next
// barrier.
template <int kPanels, int kKeys>
__device__ __forceinline__ void ZeroUnseenRows(u16 (*tile)[kKeys][kPanelColumns], int begin,
                                               int end) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
#pragma unroll 1
  for (int n = thread; n < kKeys * kPanels * 8; n += kWarpgroup) {
    const int key = n / 8 % kKeys;
    if (key >= begin && key < end) continue;
    u64* const chunk = reinterpret_cast<u64*>(&tile[n / 8 / kKeys][key][n % 8 * 8]);
    chunk[0] = chunk[1] = 0;
  }
  ptx::fence_proxy_async_shared();
}

struct alignas(8) TwoColumns {
  float element[2];
};

// Writes this thread's part of its rows, columns from `first_column` on of O, and where `with_lse`
// the LSE, to their place or to the piece's slot, whose LSEs are `slot_lses` floats. `sum` is that
// of all weights, `lost_places` what scores have lost (mma/cut_off.cuh).
template <class Config, int kOutputs, class Params>
__device__ __forceinline__ void StorePackedRows(float (&o)[kOutputs], const Piece& piece, int row,
                                                int first_column, bool with_lse, int slot_lses,
                                                const float (&reference)[2], const float (&sum)[2],
                                                float lost_places, const Params& params) {
  using OutElement = typename Config::OutElement;
  const abi::AttnFwdParams& core = params.core;
  const abi::TensorStrides& strides = core.o_strides;
  const bool complete = piece.slot < 0;
  const bool wide = reinterpret_cast<u64>(core.o) % 4 == 0 &&
                    (strides.batch | strides.seq | strides.head) % 2 == 0;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int column = first_column + lane % 4 * 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int tile_row = row + 8 * r;
    const PackedRow at = RowAt<Config>(piece.problem, piece.first_row, tile_row);
    if (!at.inside) continue;
    Problem problem = piece.problem;
    problem.h = at.h;
    const SoftmaxEnd end = FinishRow(reference[r], sum[r],
                                     complete ? Config::Sink::Logit(problem, params) : -Infinity());
    if (end.empty) {
      // What no key was added to may be NaN.
#pragma unroll
      for (int n = 0; n < kOutputs / 4; ++n) o[4 * n + 2 * r] = o[4 * n + 2 * r + 1] = 0;
    }
    const float scale = end.empty ? 0.f : end.o_scale;
    const float lse = WithCutOff<Config>(end.lse, lost_places, params);
    if (complete) {
      if (with_lse && lane % 4 == 0) Config::Lse::Store(lse, problem, at.i, params);
      OutElement* const out = static_cast<OutElement*>(core.o) + problem.q_batch * strides.batch +
                              at.h * strides.head + (problem.q_row + at.i) * strides.seq + column;
#pragma unroll
      for (int n = 0; n < kOutputs / 4; ++n) {
        const float low = o[4 * n + 2 * r] * scale, high = o[4 * n + 2 * r + 1] * scale;
        if (wide) {
          *reinterpret_cast<u32*>(out + n * 8) = ptx::cvt_rn_x2_f32(high, low, OutElement{});
        } else {
          FromFloat(low, &out[n * 8]);
          FromFloat(high, &out[n * 8 + 1]);
        }
      }
    } else {
      if (with_lse && lane % 4 == 0) {
        params.parts.lse[i64{piece.slot} * slot_lses + tile_row] = lse;
      }
      const i64 slot_row = i64{piece.slot} * Config::kBlockM + tile_row;
      float* const out =
          static_cast<float*>(params.parts.o) + slot_row * Config::kHeadDimV + column;
#pragma unroll
      for (int n = 0; n < kOutputs / 4; ++n) {
        *reinterpret_cast<TwoColumns*>(out + n * 8) = {
            {o[4 * n + 2 * r] * scale, o[4 * n + 2 * r + 1] * scale}};
      }
    }
  }
}

}  // namespace packed_rows
}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_PACKED_ROWS_CUH_
