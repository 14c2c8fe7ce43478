// What the computing warpgroups of the families of the backward on warpgroup products share. See
// mma/bwd_key_tiles.cuh for what a family defines; here also
//   Shape  kPairs: keys times rows of a thread in a step; kEarlyStats: whether it has registers for
//          their statistics; kLimitsInShared: whether none for what masks need, which then is in
//          shared.limits; kWarpgroupsShareKeys: all have the
//   block's
//          64 keys, instead of 64 each
#ifndef TILEWRIGHT_MMA_BWD_CONSUMER_CUH_
#define TILEWRIGHT_MMA_BWD_CONSUMER_CUH_

#include "abi/attn_bwd_params.h"
#include "core/math.cuh"
#include "core/problem.cuh"
#include "core/warp_reduce.cuh"
#include "mma/bwd_key_tiles.cuh"
#include "policy/mask_chain.cuh"
#include "policy/row_tiles.cuh"
#include "ptx/special.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace tilewright {
namespace bwd_sm90 {

template <bool kFirst, class First, class Second>
struct Select {
  using Type = First;
};
template <class First, class Second>
struct Select<false, First, Second> {
  using Type = Second;
};

// Where a step's dQ goes.
struct DqTarget {
  int tile = -1;         // of dQ; negative: nowhere
  i32 warps_before = 0;  // deterministic: that add to it before this block's
};

// Rows of a tile's problem that see the keys of a thread's rows r and r + 8, less the thread's
// place in a fragment.
struct alignas(16) RowLimits {
  int first[2];
  int end[2];
};

template <class Config, class Params>
struct ConsumerBase {
  using S = Shape<Config>;
  using Mask = typename Config::Mask;

  SharedStorage<Config>& shared;
  const Params& params;
  const int warpgroup;  // of the consumers
  const int thread;     // of the warpgroup
  const int first_key;  // of the warpgroup's in the block's tile
  const float to_log2;

  RowLimits own_limits;  // where they are not in shared memory

  __device__ __forceinline__ ConsumerBase(SharedStorage<Config>& shared, const Params& params)
      : shared(shared),
        params(params),
        // Shuffled, so that the compiler knows that a warp agrees.
        warpgroup(__shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0) - 1),
        thread(static_cast<int>(threadIdx.x) % kWarpgroup),
        first_key(S::kWarpgroupsShareKeys ? 0 : warpgroup * kWarpgroupKeys),
        to_log2(params.core.scale * kLog2OfE) {}

  __device__ __forceinline__ i32* CounterOf(const DqTarget& target) const {
    return params.gradients.dq_turns + target.tile;
  }

  // Warps that add to the tile m of dQ before those of the block with keys from kv_begin on.
  __device__ __forceinline__ i32 WarpsBefore(const Problem& problem, i64 m, int kv_begin) const {
    const i64 keys_end =
        KeysOfRows<Mask>(problem, RowsOfTile(problem, m, Config::kBlockM), params).end;
    // Of blocks that add together.
    constexpr int kKeys = Config::kBlockN * Config::kCluster;
    constexpr int kWarps = S::kConsumerWarps * Config::kCluster;
    return static_cast<i32>(CeilDiv(keys_end, kKeys) - 1 - kv_begin / kKeys) * kWarps;
  }

  __device__ __forceinline__ static u64 Descriptor(const void* tile, int panel_rows) {
    return ptx::SwizzledDescriptor(ptx::SharedAddress(tile), panel_rows * kRowBytes);
  }
  // Of this warpgroup's keys, and of a stage's rows.
  __device__ __forceinline__ u64 KeysOf(const u16 (*panels)[Config::kBlockN][kPanelColumns]) const {
    return Descriptor(&panels[0][first_key], Config::kBlockN);
  }
  __device__ __forceinline__ u64 RowsOf(const u16 (*panels)[Config::kBlockM][kPanelColumns]) const {
    return Descriptor(panels, Config::kBlockM);
  }

  __device__ __forceinline__ int lane() const { return thread % 32; }

  __device__ __forceinline__ void FindRows(const KeyTile& tile) {
    const Problem problem = ProblemOf<Config>(tile, params);
    // Not kept from tile to tile.
    const int number = static_cast<int>(ptx::Opaque(thread));
    RowLimits limits;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = first_key + number / 32 * 16 + number % 32 / 4 + half * 8;
      const RowInterval rows = Mask::KeyRows(problem, tile.kv_begin + key, params);
      const int mine = 2 * (number % 4);
      constexpr int kNone = 0x7fffffff;
      limits.first[half] =
          rows.begin < rows.end ? static_cast<int>(Max(rows.begin, 0)) - mine : kNone;
      limits.end[half] = static_cast<int>(Max(rows.end, 0)) - mine;
    }
    if constexpr (S::kLimitsInShared) {
      shared.limits[warpgroup * kWarpgroup + number] = limits;
    } else {
      own_limits = limits;
    }
  }

  // The lane's pairs with the rows of a load.
  static constexpr int kValues = 2 * S::kLaneRows;
  static constexpr int kLoads = S::kPairs / kValues;

  // The lane's statistics of a step: loaded at once, ahead of the wait for a product, because
  // shared memory is busy with operands and slow; or, where registers are too few, when they are
  // used.
  struct EarlyStats {
    LaneRows<S::kLaneRows> loaded[kLoads];
    EarlyStats() = default;
    __device__ __forceinline__ explicit EarlyStats(const float* first) {
#pragma unroll
      for (int n = 0; n < kLoads; ++n) {
        loaded[n] = *reinterpret_cast<const LaneRows<S::kLaneRows>*>(first + 2 * kValues * n);
      }
    }
    __device__ __forceinline__ const LaneRows<S::kLaneRows>& operator[](int n) const {
      return loaded[n];
    }
  };
  struct LateStats {
    const float* first;
    LateStats() = default;
    __device__ __forceinline__ explicit LateStats(const float* first) : first(first) {}
    __device__ __forceinline__ LaneRows<S::kLaneRows> operator[](int n) const {
      return *reinterpret_cast<const LaneRows<S::kLaneRows>*>(first + 2 * kValues * n);
    }
  };
  using Stats = typename Select<S::kEarlyStats, EarlyStats, LateStats>::Type;

  // `rows`: shared.lse or shared.delta, in the step number `step`.
  __device__ __forceinline__ Stats StatsOf(const float (&rows)[kStatsStages][Config::kBlockM],
                                           u32 step) const {
    // Where registers are too few the address is not kept either.
    const int number = S::kEarlyStats ? thread : static_cast<int>(ptx::Opaque(thread));
    return Stats(&rows[step % kStatsStages][S::kLaneRows * (number % 4)]);
  }

  // s from products to weights. Rows beyond the end have none, because of their LSE.
  template <bool kFull>
  __device__ __forceinline__ void Weights(float (&s)[S::kPairs], const Stats& lse,
                                          int q_begin) const {
    int begin[2] = {}, end[2] = {};
    if constexpr (!kFull) {
      RowLimits limits = own_limits;
      if constexpr (S::kLimitsInShared) {
        limits = shared.limits[warpgroup * kWarpgroup + static_cast<int>(ptx::Opaque(thread))];
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        begin[half] = limits.first[half] - q_begin;
        end[half] = limits.end[half] - q_begin;
      }
    }
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
      const LaneRows<S::kLaneRows> reference = lse[n];
#pragma unroll
      for (int at = 0; at < kValues; ++at) {
        float& weight = s[kValues * n + at];
        weight = ptx::ex2_approx_ftz(fmaf(weight, to_log2, -reference.value[at / 4 * 2 + at % 2]));
        if constexpr (!kFull) {
          const int column = 2 * kValues * n + at / 4 * 8 + at % 2, half = at / 2 % 2;
          bool keep = column >= begin[half];
          if constexpr (Mask::kCutsLeft) keep = keep && column < end[half];
          weight = keep ? weight : 0.f;
        }
      }
    }
  }

  // The first chunk that this lane names of its warp's 16 rows of panels of 64 columns.
  template <int kRows>
  __device__ __forceinline__ u32 PlaceOfRows(u16 (*panels)[kRows][kPanelColumns]) const {
    // Not kept from step to step: registers are scarce.
    const int number = static_cast<int>(ptx::Opaque(thread));
    const int row = first_key + number / 32 * 16 + number % 16;
    return ptx::SharedAddress(&panels[0][row][(number % 32 / 16 ^ row % 8) * 8]);
  }
  // kCount chunks of 8 columns, one or two, from the even number `chunk` on.
  template <int kCount, int kRows>
  __device__ __forceinline__ static void StoreChunks(u32 place, int chunk, const u32* packed) {
    // A row starts on a multiple of 128 bytes: the swizzle of a chunk is one exclusive or.
    const u32 address = (place ^ chunk % 8 * 16) + chunk / 8 * kRows * kRowBytes;
    if constexpr (kCount == 2) {
      ptx::stmatrix_x4(address, packed[0], packed[1], packed[2], packed[3]);
    } else {
      ptx::stmatrix_x2(address, packed[0], packed[1]);
    }
  }
  // This warp's 16 rows.
  template <int kChunks, int kRows>
  __device__ __forceinline__ void StoreRows(u16 (*panels)[kRows][kPanelColumns],
                                            const u32 (&packed)[2 * kChunks]) const {
    const u32 place = PlaceOfRows(panels);
#pragma unroll
    for (int chunk = 0; chunk + 1 < kChunks; chunk += 2) {
      StoreChunks<2, kRows>(place, chunk, &packed[2 * chunk]);
    }
    if constexpr (kChunks % 2 == 1) {
      StoreChunks<1, kRows>(place, kChunks - 1, &packed[2 * kChunks - 2]);
    }
  }

  // This warpgroup's rows of dK or dV to memory, from panels in shared memory: by its thread 0
  // from the map, or by all where no map describes the tensor.
  template <int kColumns, int kPanels>
  __device__ __forceinline__ void StoreGradient(const u16 (*panels)[Config::kBlockN][kPanelColumns],
                                                const abi::TensorMap* map, void* tensor,
                                                const abi::TensorStrides& strides,
                                                const KeyTile& tile) const {
    const int row = first_key;
    const int first = tile.kv_begin + row;
    if ((params.sm90.by_threads & abi::kGradientsByThreads) == 0) {
      if (thread == 0) {
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          ptx::cp_async_bulk_tensor_4d_store(map, ptx::SharedAddress(&panels[panel][row]),
                                             panel * kPanelColumns, first, tile.head_kv,
                                             tile.batch);
        }
      }
      return;
    }
    const int rows =
        static_cast<int>(Max(0, Min(SeqlenKv<Config>(params) - first, kWarpgroupKeys)));
    u16* out = static_cast<u16*>(tensor) + tile.batch * strides.batch +
               tile.head_kv * strides.head + first * strides.seq;
#pragma unroll 1
    for (int n = thread; n < rows * kColumns; n += kWarpgroup) {
      const int r = n / kColumns, column = n % kColumns;
      const int at = (column / 8 % 8 ^ r % 8) * 8 + column % 8;
      out[r * strides.seq + column] = panels[column / kPanelColumns][row + r][at];
    }
  }
};

}  // namespace bwd_sm90
}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_BWD_CONSUMER_CUH_
