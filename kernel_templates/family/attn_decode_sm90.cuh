// Few query rows over many keys where so many rows share a key/value head that the tensor cores are
// what bounds it: warpgroup products and bulk copies, 16-bit operands, head dims up to 256, sm_90a.
// attn_decode_sm90_wide.cuh is the same for latent attention.
//
// Algorithm As attn_decode.cuh: packed rows, equal shares of all keys, attn_combine behind it. Each
//           of kConsumers warpgroups has 64 rows of the tile and, where there are more of them than
//           the rows need, an equal part of each block's keys: kTeams of them have the same rows
//           and are merged at the end of a piece. Two warpgroups issue Q K^T of a block of keys
//           before P V of the one before, whose products the softmax runs under (FlashAttention-3,
//           Shah et al., arXiv 2407.08608); of four, each has the others' products for that.
//           References are the maxima so far.
// NaN, Inf  Rows of V that no row of the tile sees are zeroed before they are multiplied.
// Warps     0 walks the pieces and copies keys, 1 to 3 copy Q, the further warpgroups compute.
// Barriers  k_full[s], v_full[s]     1 arrival and the bytes
//           k_empty[s], v_empty[s]   a warp each
//           q_full, q_empty          warps 1 to 3; a warp each
//           named 1                  all warpgroups, around rows of V that are zeroed
//           named 2, 3               those of the same rows, around results that are handed over
// Shared    q [panel][kBlockM][64], k and v [kStages][panel][kBlockN][64]
//           handed [team - 1][row group][kOutputs + 4][128] fp32
#ifndef TILEWRIGHT_FAMILY_ATTN_DECODE_SM90_CUH_
#define TILEWRIGHT_FAMILY_ATTN_DECODE_SM90_CUH_

#include "core/concepts.cuh"
#include "mma/cut_off.cuh"
#include "mma/packed_rows.cuh"
#include "policy/dropout.cuh"
#include "policy/mask_chain.cuh"
#include "policy/scale.cuh"
#include "policy/score_chain.cuh"
#include "ptx/griddep.cuh"
#include "ptx/ldmatrix.cuh"
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

inline constexpr int kZeroedBarrier = 1;
inline constexpr int kHandedBarrier = 2;  // of the first 64 rows; the next is that of the second
inline constexpr int kSlack = 8;          // of references below the maxima

template <class Config>
struct Shape {
  static constexpr int kPanelsQk = RoundUp(Config::kHeadDimQk, kPanelColumns) / kPanelColumns;
  static constexpr int kPanelsV = RoundUp(Config::kHeadDimV, kPanelColumns) / kPanelColumns;
  static constexpr int kComputingWarps = 4 * Config::kConsumers;
  static constexpr int kRowGroups = Config::kBlockM / kRows;
  // Warpgroups that have the same rows, and the keys of a block that each of them has.
  static constexpr int kTeams = Config::kTeams;
  static constexpr int kTeamKeys = Config::kBlockN / kTeams;
  // Scores are issued before the products of the weights ahead: their registers are then apart.
  static constexpr bool kOverlaps = Config::kConsumers <= 2;
  static constexpr int kScores = kTeamKeys / 2;  // a thread's
  static constexpr int kOutputs = Config::kHeadDimV / 2;
};

// What the further teams leave for the first one.
template <class Config, bool kHasTeams>
struct Handed {
  using S = Shape<Config>;
  // O, two references and two sums of each thread.
  float handed[S::kTeams - 1][S::kRowGroups][S::kOutputs + 4][kWarpgroup];
};
template <class Config>
struct Handed<Config, false> {};

template <class Config>
struct Tiles {
  u16 q[Shape<Config>::kPanelsQk][Config::kBlockM][kPanelColumns];
  u16 k[Config::kStages][Shape<Config>::kPanelsQk][Config::kBlockN][kPanelColumns];
  u16 v[Config::kStages][Shape<Config>::kPanelsV][Config::kBlockN][kPanelColumns];
};

template <class Config>
struct alignas(1024) SharedStorage : Tiles<Config>, Handed<Config, (Shape<Config>::kTeams > 1)> {
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
  const int row_group;
  const int team;
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

  // Of those that compute. Shuffled, so that the compiler knows that a warp agrees.
  __device__ __forceinline__ static int Warpgroup() {
    return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0) - 1;
  }

  __device__ __forceinline__ Consumer(SharedStorage<Config>& shared, const Params& params)
      : shared(shared),
        params(params),
        row_group(Warpgroup() % S::kRowGroups),
        team(Warpgroup() / S::kRowGroups),
        row(row_group * kRows + static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16 +
            static_cast<int>(threadIdx.x) % 32 / 4),
        to_log2(packed_rows::ScoreUnit<Config>(params) * kLog2OfE),
        q_tile(ptx::SwizzledDescriptor(ptx::SharedAddress(&shared.q[0][row_group * kRows]), 16)),
        k_tiles(
            ptx::SwizzledDescriptor(ptx::SharedAddress(&shared.k[0][0][team * S::kTeamKeys]), 16)),
        v_tiles(ptx::SwizzledDescriptor(ptx::SharedAddress(&shared.v[0][0][team * S::kTeamKeys]),
                                        Config::kBlockN * kRowBytes)) {}

  __device__ __forceinline__ static void Release(const u64& empty) {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::SharedAddress(&empty));
  }

  // Weights of the block at `place` times its V. `begin`, `end`: its keys that some row sees.
  __device__ __forceinline__ void IssueValues(int of_stage, u32 of_parity, int begin, int end) {
    Wait(shared.v_full[of_stage], of_parity);
    if (begin > 0 || end < Config::kBlockN) {
      if (row_group == 0 && team == 0) {
        packed_rows::ZeroUnseenRows<S::kPanelsV>(shared.v[of_stage], begin, end);
      }
      ptx::bar_sync(kZeroedBarrier, Config::kConsumers * kWarpgroup);
    }
    ptx::wgmma_fence();
    Config::Wgmma::Values(o, p, v_tiles + static_cast<u64>(of_stage * (sizeof(shared.v[0]) >> 4)));
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void IssueValues(const packed_rows::TilePiece& tile, int of_stage,
                                              u32 of_parity, int key) {
    IssueValues(of_stage, of_parity, tile.bounds.seen_begin - key, tile.bounds.seen_end - key);
  }
  __device__ __forceinline__ void AwaitValues(int of_stage) {
    ptx::wgmma_wait_group<0>();
    ptx::AccumulatorsReady(o);
    Release(shared.v_empty[of_stage]);
  }

  // Turns the scores of keys that all rows see into weights below the references as they are,
  // without a look at the maxima. False where a weight may be more than 2^kSlack: `s` has the
  // scores once more.
  __device__ __forceinline__ bool WeighAsBefore(float (&s)[S::kScores],
                                                const packed_rows::TilePiece& tile, int own_key,
                                                float (&added)[2]) const {
    packed_rows::ApplyPoliciesToRows<Config>(s, tile.piece, row, own_key, true, params.core.scale,
                                             0, params);
#pragma unroll
    for (int r = 0; r < 2; ++r) added[r] = packed_rows::WeighRow(s, r, to_log2, reference[r]);
    constexpr float kMost = 1 << kSlack;
    if (!__any_sync(kAllLanes, added[0] > kMost || added[1] > kMost)) return true;
    ScoresAgain(s);
    return false;
  }

  // Of this warp alone, for which the others do not wait: by mma.sync, whose sums lie where those
  // of a warpgroup's product do.
  __device__ __forceinline__ void ScoresAgain(float (&s)[S::kScores]) const {
    // Rows of both tiles are read by eights, so that a lane's is the same of each in the swizzle.
    const u32 lane = threadIdx.x % 32, swizzle = lane % 8;
    const u32 q_rows = ptx::SharedAddress(&shared.q[0][row]) + (lane % 16 - lane / 4) * kRowBytes;
    const u32 k_rows = ptx::SharedAddress(&shared.k[stage][0][team * S::kTeamKeys]) +
                       (lane / 16 * 8 + swizzle) * kRowBytes;
    float sums[S::kScores / 4][4] = {};
#pragma unroll 1
    for (u32 step = 0; step < RoundUp(Config::kHeadDimQk, 16) / 16; ++step) {
      const u32 panel = step / 4, chunk = step % 4 * 2;
      u32 q[4];
      ptx::ldmatrix_x4(
          q, q_rows + panel * (Config::kBlockM * kRowBytes) + ((chunk + lane / 16) ^ swizzle) * 16);
      const u32 keys =
          k_rows + panel * (Config::kBlockN * kRowBytes) + ((chunk + lane / 8 % 2) ^ swizzle) * 16;
#pragma unroll
      for (int n = 0; n < S::kTeamKeys / 16; ++n) {
        u32 k[4];
        ptx::ldmatrix_x4(k, keys + n * 16 * kRowBytes);
        ptx::mma_m16n8k16(sums[2 * n], q, k[0], k[1], Element{});
        ptx::mma_m16n8k16(sums[2 * n + 1], q, k[2], k[3], Element{});
      }
    }
#pragma unroll
    for (int n = 0; n < S::kScores; ++n) s[n] = sums[n / 4][n % 4];
  }

  template <bool kFirst>
  __device__ __forceinline__ void Step(const packed_rows::TilePiece& tile, int key) {
    const int before = stage == 0 ? Config::kStages - 1 : stage - 1;
    float s[S::kScores];
    Wait(shared.k_full[stage], parity);
    if constexpr (!kFirst && !S::kOverlaps) AwaitValues(before);
    ptx::wgmma_fence();
    Config::Wgmma::Scores(s, q_tile,
                          k_tiles + static_cast<u64>(stage * (sizeof(shared.k[0]) >> 4)));
    ptx::wgmma_commit_group();
    constexpr bool kUnderValues = !kFirst && S::kOverlaps;
    if constexpr (kUnderValues) {
      IssueValues(tile, before, stage == 0 ? parity ^ 1 : parity, key - Config::kBlockN);
    }
    ptx::wgmma_wait_group<kUnderValues ? 1 : 0>();
    ptx::AccumulatorsReady(s);
    u32 missing = 0;
    if constexpr (!Config::KvRows::kIsDense) {
      missing = shared.missing[stage] >> (team * S::kTeamKeys / packed_rows::CopyRows<Config>());
      __syncwarp();
    }
    if constexpr (S::kOverlaps) Release(shared.k_empty[stage]);
    float after[2] = {reference[0], reference[1]}, factor[2], added[2] = {0, 0};
    // Scores of rows that do not exist are those of zeros.
    if (has_rows) {
      const int own_key = key + team * S::kTeamKeys;
      const bool full =
          own_key >= tile.bounds.full_begin && own_key + S::kTeamKeys <= tile.bounds.full_end;
      bool weighed = false;
      if constexpr (!kFirst && !S::kOverlaps) {
        if (full && missing == 0) weighed = WeighAsBefore(s, tile, own_key, added);
      }
      if (!weighed) {
        packed_rows::ApplyPoliciesToRows<Config>(s, tile.piece, row, own_key, full,
                                                 params.core.scale, missing, params);
        packed_rows::Weigh<kSlack>(s, reference, to_log2, after, added);
      }
    }
    if constexpr (!S::kOverlaps) Release(shared.k_empty[stage]);
    const bool moves = packed_rows::MoveFactors(reference, after, factor);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reference[r] = after[r];
      sum[r] = fmaf(sum[r], factor[r], added[r]);
    }
    if constexpr (kUnderValues) AwaitValues(before);
    if constexpr (!kFirst) {
      if (moves) packed_rows::ScaleRows(o, factor);
    }
#pragma unroll
    for (int n = 0; n < S::kScores / 2; ++n) {
      p[n] = ptx::cvt_rn_x2_f32(s[2 * n + 1], s[2 * n], Element{});
    }
    if constexpr (!S::kOverlaps) IssueValues(tile, stage, parity, key);
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
    if constexpr (S::kOverlaps) {
      IssueValues(tile, last, stage == 0 ? parity ^ 1 : parity, end - Config::kBlockN);
    }
    AwaitValues(last);
  }

  // Gives the first team what the others have of its rows.
  __device__ __forceinline__ void MergeTeams() {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    const auto meet = [this] { ptx::bar_sync(kHandedBarrier + row_group, S::kTeams * kWarpgroup); };
    if (team != 0) {
      float(&to)[S::kOutputs + 4][kWarpgroup] = shared.handed[team - 1][row_group];
#pragma unroll
      for (int i = 0; i < S::kOutputs; ++i) to[i][thread] = o[i];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        to[S::kOutputs + r][thread] = reference[r];
        to[S::kOutputs + 2 + r][thread] = sum[r];
      }
    }
    meet();
    if (team == 0) {
#pragma unroll
      for (int t = 0; t < S::kTeams - 1; ++t) {
        const float(&from)[S::kOutputs + 4][kWarpgroup] = shared.handed[t][row_group];
        const float other[2] = {from[S::kOutputs][thread], from[S::kOutputs + 1][thread]};
        const float after[2] = {fmaxf(reference[0], other[0]), fmaxf(reference[1], other[1])};
        float factor[2], other_factor[2];
        packed_rows::MoveFactors(reference, after, factor);
        packed_rows::MoveFactors(other, after, other_factor);
#pragma unroll
        for (int i = 0; i < S::kOutputs; ++i) {
          const int r = i / 2 % 2;
          o[i] = fmaf(from[i][thread], other_factor[r], o[i] * factor[r]);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          reference[r] = after[r];
          sum[r] = fmaf(from[S::kOutputs + 2 + r][thread], other_factor[r], sum[r] * factor[r]);
        }
      }
    }
    meet();  // the place may be taken
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
      if constexpr (S::kTeams > 1) MergeTeams();
      if (team == 0) {
        const float total[2] = {packed_rows::SumOfRow(sum[0]), packed_rows::SumOfRow(sum[1])};
        packed_rows::StorePackedRows<Config>(o, tile.piece, row, 0, true, Config::kBlockM,
                                             reference, total, kLostByWgmma<Config>, params);
      }
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
      initialise(shared.k_empty[stage], Shape<Config>::kComputingWarps);
      initialise(shared.v_empty[stage], Shape<Config>::kComputingWarps);
    }
    initialise(shared.q_full, packed_rows::kQueryThreads / 32);
    initialise(shared.q_empty, Shape<Config>::kComputingWarps);
    shared.board.Initialise(Shape<Config>::kComputingWarps);
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
  using S = Shape<Config>;
  static_assert(Config::kBlockM == S::kRowGroups * kRows && S::kRowGroups <= 2);
  static_assert(Config::kConsumers == S::kTeams * S::kRowGroups);
  static_assert(Config::kBlockN == S::kTeams * S::kTeamKeys && S::kTeamKeys % 16 == 0);
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
