// What the families of the backward on warpgroup products share: which keys a block has, and the
// warpgroup that loads.
//
// A family defines, for its Config,
//   Shape          kPanelsQk, kPanelsV, kBytesK, kBytesV, kBytesQ, kBytesDo: of tiles in shared
//                  memory; kConsumerWarps; kCopyThreads: those of the warps from 1 on that load
//                  what no map describes; kLaneRows: statistics that a lane reads at a time, 2 or
//                  4; kBeginsWithZeros: whether the last stage of rows holds what a step before the
//                  first one reads
//   SharedStorage  k, v, q, d_o, lse, delta, rows_full, rows_empty
#ifndef TILEWRIGHT_MMA_BWD_KEY_TILES_CUH_
#define TILEWRIGHT_MMA_BWD_KEY_TILES_CUH_

#include "abi/attn_bwd_params.h"
#include "abi/tensor_map.h"
#include "core/math.cuh"
#include "core/problem.cuh"
#include "core/warp_reduce.cuh"
#include "mma/dq_sums.cuh"
#include "policy/row_tiles.cuh"
#include "ptx/cluster.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/griddep.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"

namespace tilewright {
namespace bwd_sm90 {

inline constexpr int kWarpgroup = 128;     // threads
inline constexpr int kWarpgroupKeys = 64;  // M of a wgmma
inline constexpr int kPanelColumns = 64;   // 128 bytes, the width of the swizzle
inline constexpr int kRowBytes = 128;      // of a panel
inline constexpr int kUnit = 16;           // bytes that a descriptor counts in
inline constexpr int kLoadingWarps = 4;
inline constexpr int kStatsStages = 2;

template <class Config>
struct Shape;
template <class Config>
struct SharedStorage;

// A block's keys, and the tiles of rows that see any of them. The blocks of a cluster walk over
// those that see any of their keys.
struct KeyTile {
  int batch;
  int head_kv;
  int kv_begin;
  int begin;  // tiles of rows
  int end;
  int full_begin;  // those whose rows all see all keys
  int full_end;
  __device__ __forceinline__ bool HasSteps() const { return begin < end; }
};

// A stage of a ring of buffers, and the parity of the phase that is waited for.
template <int kStages>
struct Ring {
  int stage = 0;
  u32 parity = 0;
  __device__ __forceinline__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

__device__ __forceinline__ void Wait(const u64& barrier, u32 parity) {
  while (!ptx::mbarrier_try_wait_parity(ptx::SharedAddress(&barrier), parity)) {
  }
}

__device__ __forceinline__ void Arrive(const u64& barrier) {
  ptx::mbarrier_arrive(ptx::SharedAddress(&barrier));
}

// Of this warp, after all its lanes.
__device__ __forceinline__ void WarpArrives(const u64& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) Arrive(barrier);
}

template <class Config, class Params>
__device__ __forceinline__ Problem ProblemOf(const KeyTile& tile, const Params& params) {
  return MakeProblem<Config>(tile.batch, i64{tile.head_kv} * Config::kGroup, params);
}

// policy/row_tiles.cuh's search by the lanes of a warp: a block begins with four of them, and one
// thread alone takes some thousand clocks for these.
struct SearchByWarp {
  template <class Holds>
  __device__ __forceinline__ static i64 First(i64 from, i64 to, const Holds& holds) {
    // Tiles are counted with 31 bits.
    int low = static_cast<int>(from), high = static_cast<int>(to);
    while (low < high) {
      const int step = (high - low + 31) / 32;
      const int m = low + static_cast<int>(threadIdx.x % 32) * step;
      const u32 found = __ballot_sync(kAllLanes, m >= high || holds(m));
      // Lanes from here on have found it.
      const int first = found == 0 ? 32 : __ffs(static_cast<int>(found)) - 1;
      high = min(high, low + first * step);
      if (first == 0) break;
      low += (first - 1) * step + 1;
    }
    return high;
  }
};

template <class Config>
__device__ __forceinline__ u32 RankInCluster() {
  if constexpr (Config::kCluster > 1) return ptx::cluster_ctarank();
  return 0;
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

// Which tiles of rows see the keys of `tile`. By all lanes of a warp.
template <class Config, class Params>
__device__ __forceinline__ void FindRowsOfTile(KeyTile& tile, const Params& params) {
  using Mask = typename Config::Mask;
  const Problem problem = ProblemOf<Config>(tile, params);
  const i64 kv_end = Min(i64{tile.kv_begin} + Config::kBlockN, problem.seqlen_kv);
  if (tile.kv_begin >= kv_end) return;
  const RowTiles rows =
      RowTilesOfKeys<Mask, SearchByWarp>(problem, tile.kv_begin, kv_end, Config::kBlockM, params);
  tile.begin = static_cast<int>(rows.begin);
  tile.end = static_cast<int>(rows.end);
  if (tile.kv_begin + Config::kBlockN == kv_end) {
    const RowTiles full = FullRowTilesOfKeys<Mask, SearchByWarp>(problem, tile.kv_begin, kv_end,
                                                                 Config::kBlockM, rows, params);
    tile.full_begin = static_cast<int>(full.begin);
    tile.full_end = static_cast<int>(full.end);
  }
}

// The keys of block `rank` of a cluster, which have neighbours. abi::BwdSm90Args says in what order
// tiles come; deterministic, the keys of a head the other way.
template <class Config, class Params>
__device__ __forceinline__ KeyTile FindKeys(u32 number, u32 rank, const Params& params) {
  const abi::BwdSm90Args& args = params.sm90;
  const u32 section = number / (args.section_heads * args.key_tiles);
  const u32 in_section = number - section * args.section_heads * args.key_tiles;
  const u32 first_head = section * args.section_heads;
  const u32 heads = min(args.section_heads, args.heads - first_head);
  const u32 head = first_head + in_section % heads;
  const u32 heads_kv = static_cast<u32>(params.core.heads_kv);
  KeyTile tile = {};
  tile.batch = static_cast<int>(head / heads_kv);
  tile.head_kv = static_cast<int>(head % heads_kv);
  const u32 n = in_section / heads;
  const u32 first = (Config::kDeterministic ? args.key_tiles - 1 - n : n) * Config::kCluster;
  tile.kv_begin = static_cast<int>(first + rank) * Config::kBlockN;
  return tile;
}

// By all lanes of a warp.
template <class Config, class Params>
__device__ __forceinline__ KeyTile FindTile(u32 number, const Params& params) {
  KeyTile tile = FindKeys<Config>(number, /*rank=*/0, params);
  FindRowsOfTile<Config>(tile, params);
  return tile;
}

// Where the statistics of a tile's row r lie: see LaneRows.
template <int kLaneRows>
__device__ __forceinline__ constexpr int PlaceOfRow(int r) {
  return kLaneRows == 2 ? r : r / 16 * 16 + r % 8 / 2 * 4 + r / 8 % 2 * 2 + r % 2;
}

// A number that no block has drawn before. By all lanes of a warp, after attn_bwd_prep.
template <class Config, class Params>
__device__ __forceinline__ u32 DrawNumber(const Params& params) {
  i32 number = 0;
  if (threadIdx.x % 32 == 0) number = atomicAdd(WorkCounter<Config>(params), 1);
  return static_cast<u32>(__shfl_sync(kAllLanes, number, 0));
}

// By one thread.
template <class Config>
__device__ __forceinline__ void InitialiseRowBarriers(SharedStorage<Config>& shared) {
  for (int stage = 0; stage < Config::kStages; ++stage) {
    ptx::mbarrier_init(ptx::SharedAddress(&shared.rows_full[stage]),
                       1 + Shape<Config>::kCopyThreads / 32);
    ptx::mbarrier_init(ptx::SharedAddress(&shared.rows_empty[stage]),
                       Shape<Config>::kConsumerWarps * Config::kCluster);
  }
}

// Statistics of rows that one lane has in fragments, neighbours in shared memory: of rows 2q and
// 2q + 1 of a lane with number q of its quad and, with four, 2q + 8 and 2q + 9. Reading four takes
// as long as reading one.
template <int kCount>
struct alignas(4 * kCount) LaneRows {
  float value[kCount];
};

// ---- the loading warpgroup ----

// Copies a tile element by element: rows outside [first_row, valid_rows) and columns beyond
// kColumns become zeros. By the warps from 1 on, kThreads in all. kPanelStep: columns from a
// panel's first to the next one's.
template <int kThreads, int kColumns, int kPanels, int kPanelStep = kPanelColumns, int kRows>
__device__ __forceinline__ void CopyTile(u16 (*tile)[kRows][kPanelColumns], const void* source,
                                         i64 row_stride, int valid_rows, int first_row = 0) {
  constexpr int kWidth = kPanels * kPanelColumns;
#pragma unroll 1
  for (int n = static_cast<int>(threadIdx.x) - 32; n < kRows * kWidth; n += kThreads) {
    const int row = n / kWidth, panel = n % kWidth / kPanelColumns, in_panel = n % kPanelColumns;
    const int column = panel * kPanelStep + in_panel;
    const int at = (in_panel / 8 ^ row % 8) * 8 + in_panel % 8;
    tile[panel][row][at] = row >= first_row && row < valid_rows && column < kColumns
                               ? static_cast<const u16*>(source)[row * row_stride + column]
                               : u16{0};
  }
  ptx::fence_proxy_async_shared();
}

template <class Config, class Params>
struct Loader {
  using S = Shape<Config>;
  SharedStorage<Config>& shared;
  const Params& params;
  Ring<Config::kStages> ring = {0, 1};  // parities of the slots being empty: the first wait passes

  __device__ __forceinline__ static const void* RowsOf(const void* tensor,
                                                       const abi::TensorStrides& strides, i64 batch,
                                                       i64 head, i64 row) {
    return static_cast<const u16*>(tensor) + batch * strides.batch + head * strides.head +
           row * strides.seq;
  }

  template <int kPanels, int kPanelStep = kPanelColumns, int kRows>
  __device__ __forceinline__ static void LoadPanels(const u16 (*tile)[kRows][kPanelColumns],
                                                    const abi::TensorMap* map, const u64& full,
                                                    int row, int head, int batch) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      ptx::cp_async_bulk_tensor_4d_load(
          ptx::SharedAddress(&tile[panel]), map, ptx::SharedAddress(&full), panel * kPanelStep,
          static_cast<int>(row), static_cast<int>(head), static_cast<int>(batch));
    }
  }

  // Where a key lies in the map of K, which begins later only under masks that cut left.
  __device__ __forceinline__ int RowOfKeyMap(int key) const {
    return Config::Mask::kCutsLeft ? key - static_cast<int>(params.sm90.first_key) : key;
  }

  // The blocks of a cluster load the panels of a step in turns, each for all; kFirst: of the step.
  template <int kFirst, int kPanels, int kRows>
  __device__ __forceinline__ static void LoadRowPanels(const u16 (*tile)[kRows][kPanelColumns],
                                                       const abi::TensorMap* map, const u64& full,
                                                       int row, int head, int batch) {
    if constexpr (Config::kCluster == 1) {
      LoadPanels<kPanels>(tile, map, full, row, head, batch);
    } else {
      constexpr u16 kAllBlocks = (1 << Config::kCluster) - 1;
      const u32 rank = RankInCluster<Config>();
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        if ((kFirst + panel) % Config::kCluster != rank) continue;
        ptx::cp_async_bulk_tensor_4d_load_multicast(
            ptx::SharedAddress(&tile[panel]), map, ptx::SharedAddress(&full), panel * kPanelColumns,
            row, head, batch, kAllBlocks);
      }
    }
  }

  // Until the step has passed that had `slot`.
  __device__ __forceinline__ void WaitForSlot(const Ring<Config::kStages>& slot) const {
    const bool was_zeros = S::kBeginsWithZeros && slot.stage == Config::kStages - 1;
    Wait(shared.rows_empty[slot.stage], slot.parity ^ (was_zeros ? 1 : 0));
  }

  // ---- thread 0

  __device__ __forceinline__ void LoadRowsByMap(const KeyTile& tile, int h, int m) {
    const u64& full = shared.rows_full[ring.stage];
    WaitForSlot(ring);
    if ((params.sm90.by_threads & abi::kQByThreads) != 0) return Arrive(full);
    const int row = m * Config::kBlockM;
    ptx::mbarrier_arrive_expect_tx(ptx::SharedAddress(&full), S::kBytesQ + S::kBytesDo);
    LoadRowPanels<0, S::kPanelsQk>(shared.q[ring.stage], &params.sm90.q, full, row, h, tile.batch);
    LoadRowPanels<S::kPanelsQk, S::kPanelsV>(shared.d_o[ring.stage], &params.sm90.d_o, full, row, h,
                                             tile.batch);
  }

  // ---- the copying warps

  // Which of the keys from `key` on some row sees.
  __device__ __forceinline__ int FirstSeen(int key) const {
    return Config::Mask::kCutsLeft ? static_cast<int>(params.sm90.first_key) - key : 0;
  }
  __device__ __forceinline__ int EndOfSeen(int key) const {
    if constexpr (Config::Mask::kHidesKeys) return static_cast<int>(params.sm90.end_key) - key;
    return ExistingKeys(key);
  }

  __device__ __forceinline__ int ExistingKeys(int key) const {
    return static_cast<int>(Min(SeqlenKv<Config>(params) - key, i64{Config::kBlockN}));
  }

  __device__ __forceinline__ void LoadRowsByThreads(const KeyTile& tile, int h, int m) {
    constexpr int kRows = (Config::kBlockM + S::kCopyThreads - 1) / S::kCopyThreads;  // of a thread
    const abi::AttnFwdParams& core = params.core;
    const abi::AttnBwdParams& gradients = params.gradients;
    const int row = m * Config::kBlockM;
    const int valid = static_cast<int>(Min(SeqlenQ<Config>(params) - row, Config::kBlockM));
    const abi::RowStats* stats =
        gradients.row_stats + (tile.batch * core.heads_q + h) * gradients.stats_rows + row;
    // On their way while the slot is waited for. Rows beyond the end have no weights.
    abi::RowStats mine[kRows];
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      const int r = static_cast<int>(threadIdx.x) - 32 + n * S::kCopyThreads;
      mine[n] = {Infinity(), 0};
      if (r < valid) mine[n] = stats[r];
    }
    // They have as many places as rows, free at the same time.
    static_assert(kStatsStages == Config::kStages);
    WaitForSlot(ring);
    const int slot = ring.stage;
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      const int r = static_cast<int>(threadIdx.x) - 32 + n * S::kCopyThreads;
      if (r >= Config::kBlockM) break;
      shared.lse[slot][PlaceOfRow<S::kLaneRows>(r)] = mine[n].lse * kLog2OfE;
      shared.delta[slot][PlaceOfRow<S::kLaneRows>(r)] = mine[n].delta;
    }
    if ((params.sm90.by_threads & abi::kQByThreads) != 0) {
      CopyTile<S::kCopyThreads, Config::kHeadDimQk, S::kPanelsQk>(
          shared.q[ring.stage], RowsOf(core.q, core.q_strides, tile.batch, h, row),
          core.q_strides.seq, valid);
      CopyTile<S::kCopyThreads, Config::kHeadDimV, S::kPanelsV>(
          shared.d_o[ring.stage], RowsOf(gradients.d_o, gradients.d_o_strides, tile.batch, h, row),
          gradients.d_o_strides.seq, valid);
    }
    WarpArrives(shared.rows_full[ring.stage]);
  }
};

}  // namespace bwd_sm90
}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_BWD_KEY_TILES_CUH_
