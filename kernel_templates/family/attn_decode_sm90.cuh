// Few query rows over many keys where so many rows share a key/value head that the tensor cores are
// what bounds it: warpgroup products and bulk copies, 16-bit operands, head dims up to 256, sm_90a.
// attn_decode_sm90_wide.cuh is the same for latent attention.
//
// Algorithm As attn_decode.cuh: packed rows, equal shares of all keys, attn_combine behind it. The
//           two warpgroups that compute have 64 rows of the tile each, and Q K^T of a block of keys
//           is issued before P V of the one before, whose products the softmax runs under
//           (FlashAttention-3, Shah et al., arXiv 2407.08608). References are the maxima so far.
// NaN, Inf  Rows of V that no row of the tile sees are zeroed before they are multiplied.
// Warps     0 walks the pieces and copies keys, 1 to 3 copy Q, warpgroups 1 and 2 compute.
// Barriers  k_full[s], v_full[s]     1 arrival and the bytes
//           k_empty[s], v_empty[s]   a warp each
//           q_full, q_empty          warps 1 to 3; a warp each
//           named 1                  both warpgroups, around rows of V that are zeroed
// Shared    q [panel][kBlockM][64], k and v [kStages][panel][kBlockN][64]
#ifndef TILEWRIGHT_FAMILY_ATTN_DECODE_SM90_CUH_
#define TILEWRIGHT_FAMILY_ATTN_DECODE_SM90_CUH_

#include "core/concepts.cuh"
#include "mma/packed_rows.cuh"
#include "policy/dropout.cuh"
#include "policy/mask_chain.cuh"
#include "policy/scale.cuh"
#include "policy/score_chain.cuh"
#include "ptx/griddep.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace tilewright {
namespace decode_sm90 {

using packed_rows::kPanelColumns;
using packed_rows::kRowBytes;
using packed_rows::kRows;
using packed_rows::kWarpgroup;
using packed_rows::Wait;

inline constexpr int kComputingWarps = 8;
inline constexpr int kZeroedBarrier = 1;

template <class Config>
struct Shape {
  static constexpr int kPanelsQk = RoundUp(Config::kHeadDimQk, kPanelColumns) / kPanelColumns;
  static constexpr int kPanelsV = RoundUp(Config::kHeadDimV, kPanelColumns) / kPanelColumns;
  static constexpr int kScores = Config::kBlockN / 2;  // a thread's
  static constexpr int kOutputs = Config::kHeadDimV / 2;
};

template <class Config>
struct alignas(1024) SharedStorage {
  u16 q[Shape<Config>::kPanelsQk][Config::kBlockM][kPanelColumns];
  u16 k[Config::kStages][Shape<Config>::kPanelsQk][Config::kBlockN][kPanelColumns];
  u16 v[Config::kStages][Shape<Config>::kPanelsV][Config::kBlockN][kPanelColumns];
  alignas(8) u64 k_full[Config::kStages];
  u64 k_empty[Config::kStages];
  u64 v_full[Config::kStages];
  u64 v_empty[Config::kStages];
  u64 q_full;
  u64 q_empty;
  packed_rows::PieceBoard board;
  u32 missing[Config::kStages];
};

// Warp 0.
template <class Config, class Params>
__device__ __forceinline__ void LoadPieces(SharedStorage<Config>& shared, const Params& params) {
  using S = Shape<Config>;
  const bool by_threads = (params.decode_sm90.by_threads & abi::kKvByThreads) != 0;
  packed_rows::WaitBeforeWalk<Config>();
  PieceWalk<Config> walk(params);
  int stage = 0;
  u32 parity = 1;  // of slots that are empty: the first wait passes
  for (int n = 0;; ++n) {
    Piece piece = {};
    const bool more = walk.Next(&piece, params);
    packed_rows::TilePiece tile = {};
    tile.blocks = -1;
    if (more) tile = packed_rows::TilePieceOf<Config>(piece, params);
    shared.board.Publish(n, tile);
    if (n == 0) packed_rows::WaitBehindWalk<Config>();
    if (!more) return;
    const int head = static_cast<int>(piece.problem.h_kv);
#pragma unroll 1
    for (int block = 0; block < tile.blocks; ++block) {
      const int key = tile.first_key + block * Config::kBlockN;
      const i64 keys = piece.problem.seqlen_kv - key;
      const packed_rows::CopyPlace place =
          packed_rows::PlaceOfCopy<Config>(piece.problem, key, params);
      const u32 missing = packed_rows::MissingCopies(place);
      Wait(shared.k_empty[stage], parity);
      if (threadIdx.x == 0) shared.missing[stage] = missing;
      if (by_threads) {
        packed_rows::CopyPanels<Config, S::kPanelsQk, Config::kHeadDimQk>(
            shared.k[stage], params.core.k, params.core.k_strides, 0, shared.k_full[stage], place,
            head, keys);
      } else {
        packed_rows::LoadPanels<Config, S::kPanelsQk>(shared.k[stage], &params.decode_sm90.k, 0,
                                                      shared.k_full[stage], place, head);
      }
      Wait(shared.v_empty[stage], parity);
      if (by_threads) {
        packed_rows::CopyPanels<Config, S::kPanelsV, Config::kHeadDimV>(
            shared.v[stage], params.core.v, params.core.v_strides, 0, shared.v_full[stage], place,
            head, keys);
      } else {
        packed_rows::LoadPanels<Config, S::kPanelsV>(shared.v[stage], &params.decode_sm90.v, 0,
                                                     shared.v_full[stage], place, head);
      }
      if (++stage == Config::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
}

template <class Config, class Params>
struct Consumer {
  using S = Shape<Config>;
  using Element = typename Config::Element;

  SharedStorage<Config>& shared;
  const Params& params;
  const int warpgroup;
  const int row;  // of the tile: this thread's first, the other is 8 further
  const float to_log2;
  const u64 q_tile, k_tiles, v_tiles;  // descriptors
  int stage = 0;                       // of the block whose scores are next
  u32 parity = 0;

  float o[S::kOutputs];
  u32 p[S::kScores / 2];
  float reference[2];  // log2 units
  float sum[2];        // of this thread's columns, until the end
  bool has_rows;       // this warp

  __device__ __forceinline__ Consumer(SharedStorage<Config>& shared, const Params& params)
      : shared(shared),
        params(params),
        // Shuffled, so that the compiler knows that a warp agrees.
        warpgroup(__shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0) - 1),
        row(warpgroup * kRows + static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16 +
            static_cast<int>(threadIdx.x) % 32 / 4),
        to_log2(packed_rows::ScoreUnit<Config>(params) * kLog2OfE),
        q_tile(ptx::SwizzledDescriptor(ptx::SharedAddress(&shared.q[0][warpgroup * kRows]), 16)),
        k_tiles(ptx::SwizzledDescriptor(ptx::SharedAddress(&shared.k), 16)),
        v_tiles(
            ptx::SwizzledDescriptor(ptx::SharedAddress(&shared.v), Config::kBlockN * kRowBytes)) {}

  __device__ __forceinline__ static void Release(const u64& empty) {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::SharedAddress(&empty));
  }

  // Weights of the block at `place` times its V. `begin`, `end`: its keys that some row sees.
  __device__ __forceinline__ void IssueValues(int of_stage, u32 of_parity, int begin, int end) {
    Wait(shared.v_full[of_stage], of_parity);
    if (begin > 0 || end < Config::kBlockN) {
      if (warpgroup == 0) {
        packed_rows::ZeroUnseenRows<S::kPanelsV>(shared.v[of_stage], begin, end);
      }
      ptx::bar_sync(kZeroedBarrier, 2 * kWarpgroup);
    }
    ptx::wgmma_fence();
    Config::Wgmma::Values(o, p, v_tiles + static_cast<u64>(of_stage * (sizeof(shared.v[0]) >> 4)));
    ptx::wgmma_commit_group();
  }

  template <bool kFirst>
  __device__ __forceinline__ void Step(const packed_rows::TilePiece& tile, int key) {
    const int before = stage == 0 ? Config::kStages - 1 : stage - 1;
    float s[S::kScores];
    Wait(shared.k_full[stage], parity);
    ptx::wgmma_fence();
    Config::Wgmma::Scores(s, q_tile,
                          k_tiles + static_cast<u64>(stage * (sizeof(shared.k[0]) >> 4)));
    ptx::wgmma_commit_group();
    if constexpr (!kFirst) {
      const int key_before = key - Config::kBlockN;
      IssueValues(before, stage == 0 ? parity ^ 1 : parity, tile.bounds.seen_begin - key_before,
                  tile.bounds.seen_end - key_before);
    }
    ptx::wgmma_wait_group<kFirst ? 0 : 1>();
    ptx::AccumulatorsReady(s);
    u32 missing = 0;
    if constexpr (!Config::KvRows::kIsDense) {
      missing = shared.missing[stage];
      __syncwarp();
    }
    Release(shared.k_empty[stage]);
    float after[2] = {reference[0], reference[1]}, factor[2], added[2] = {0, 0};
    // Scores of rows that do not exist are those of zeros.
    if (has_rows) {
      const bool full =
          key >= tile.bounds.full_begin && key + Config::kBlockN <= tile.bounds.full_end;
      packed_rows::ApplyPoliciesToRows<Config>(s, tile.piece, row, key, full, params.core.scale,
                                               missing, params);
      packed_rows::Weigh(s, reference, to_log2, after, added);
    }
    const bool moves = packed_rows::MoveFactors(reference, after, factor);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reference[r] = after[r];
      sum[r] = fmaf(sum[r], factor[r], added[r]);
    }
    if constexpr (!kFirst) {
      ptx::wgmma_wait_group<0>();
      ptx::AccumulatorsReady(o);
      Release(shared.v_empty[before]);
      if (moves) packed_rows::ScaleRows(o, factor);
    }
#pragma unroll
    for (int n = 0; n < S::kScores / 2; ++n) {
      p[n] = ptx::cvt_rn_x2_f32(s[2 * n + 1], s[2 * n], Element{});
    }
    if (++stage == Config::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }

  __device__ __forceinline__ void Attend(const packed_rows::TilePiece& tile) {
    if (tile.blocks == 0) return;
    const int end = tile.first_key + tile.blocks * Config::kBlockN;
    int key = tile.first_key;
    Step<true>(tile, key);
#pragma unroll 1
    for (key += Config::kBlockN; key < end; key += Config::kBlockN) Step<false>(tile, key);
    const int last = stage == 0 ? Config::kStages - 1 : stage - 1;
    const int last_key = end - Config::kBlockN;
    IssueValues(last, stage == 0 ? parity ^ 1 : parity, tile.bounds.seen_begin - last_key,
                tile.bounds.seen_end - last_key);
    ptx::wgmma_wait_group<0>();
    ptx::AccumulatorsReady(o);
    Release(shared.v_empty[last]);
  }

  __device__ __forceinline__ void Run() {
    for (int n = 0;; ++n) {
      const packed_rows::TilePiece& tile = shared.board.Await(n);
      if (tile.blocks < 0) return;
      reference[0] = reference[1] = kNoReference;
      sum[0] = sum[1] = 0;
#pragma unroll
      for (int i = 0; i < S::kOutputs; ++i) o[i] = 0;
      has_rows = packed_rows::HasRows<Config>(tile.piece, row);
      Wait(shared.q_full, n % 2);
      Attend(tile);
      __syncwarp();
      Release(shared.q_empty);
      const float total[2] = {packed_rows::SumOfRow(sum[0]), packed_rows::SumOfRow(sum[1])};
      packed_rows::StorePackedRows<Config>(o, tile.piece, row, 0, true, Config::kBlockM, reference,
                                           total, params);
      shared.board.Release(n);
    }
  }
};

template <class Config>
__device__ __forceinline__ void InitialiseShared(SharedStorage<Config>& shared) {
  if (threadIdx.x == 0) {
    const auto initialise = [](u64& barrier, u32 arrivals) {
      ptx::mbarrier_init(ptx::SharedAddress(&barrier), arrivals);
    };
    for (int stage = 0; stage < Config::kStages; ++stage) {
      initialise(shared.k_full[stage], 1);
      initialise(shared.v_full[stage], 1);
      initialise(shared.k_empty[stage], kComputingWarps);
      initialise(shared.v_empty[stage], kComputingWarps);
    }
    initialise(shared.q_full, packed_rows::kQueryThreads / 32);
    initialise(shared.q_empty, kComputingWarps);
    shared.board.Initialise(kComputingWarps);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
}

template <class Config, class Params>
__device__ __forceinline__ void Run(const Params& params) {
  static_assert(MaskPolicy<typename Config::Mask, Params>);
  static_assert(ScorePolicy<typename Config::Score, Params>);
  static_assert(KvRowsPolicy<typename Config::KvRows, Params>);
  static_assert(Config::Dropout::kIdentity && Config::Mask::kIsInterval);
  static_assert(Config::Score::kIdentity || Config::Score::kIsPointwise);
  static_assert(sizeof(typename Config::KvElement) == 2 &&
                packed_rows::kClusterBlocks<Config> == 1);
  static_assert(Config::kBlockM == 2 * kRows && Config::kBlockN % 16 == 0);
  static_assert(Config::kHeadDimQk % 8 == 0 && Config::kHeadDimV % 8 == 0);
  static_assert(packed_rows::CopyRows<Config>() % 8 == 0, "pages are whole atoms of the swizzle");
  extern __shared__ __align__(1024) u8 shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(shared_bytes);
  if (threadIdx.x == 0 && (params.decode_sm90.by_threads & abi::kKvByThreads) == 0) {
    ptx::prefetch_tensormap(&params.decode_sm90.k);
  }
  InitialiseShared(shared);
  // attn_combine may take its place behind this kernel; it waits for the end of it, which is behind
  // that of the kernel ahead.
  ptx::griddepcontrol_launch_dependents();
  if (__shfl_sync(kAllLanes, threadIdx.x / kWarpgroup, 0) == 0) {
    ptx::setmaxnreg_dec<Config::kLoaderRegisters>();
    if (threadIdx.x < 32) {
      LoadPieces(shared, params);
    } else {
      packed_rows::LoadQueries<Config, Shape<Config>::kPanelsQk>(shared, params);
    }
  } else {
    ptx::setmaxnreg_inc<Config::kConsumerRegisters>();
    ptx::griddepcontrol_wait();
    Consumer<Config, Params>(shared, params).Run();
  }
}

}  // namespace decode_sm90
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_DECODE_SM90_CUH_
