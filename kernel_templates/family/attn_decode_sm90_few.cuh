// attn_decode_sm90 for latent attention (V is the first columns of K: 576/512 and the like) of up
// to 16 query rows to a key/value head, for which memory is the limit. 16-bit operands, sm_90a.
//
// Algorithm Packed rows and equal shares of all keys, as in attn_decode.cuh; the last block with
//           keys of a tile merges its parts (mma/packed_merge.cuh). A warpgroup product has 64
//           rows, so these are products of a warp (mma.sync), of all 16 rows each. For scores a
//           warp has 8 of a block's 32 keys and every other 16 columns of K; what the two that
//           have the same keys have found is added by all warps, each of which makes all weights
//           and has an eighth of O's columns.
// L2        No other block reads these keys, and L2 is told so.
// V apart   Where V is no part of K in memory its rows are copied over those of K as soon as the
//           scores are there. That is right, and slow.
// NaN, Inf  Rows of keys that no row of the tile sees are zeroed before they are multiplied.
// Warps     0 walks the pieces and copies keys, 1 to 8 compute and copy Q.
// Barriers  k_full[s]        1 arrival and the bytes
//           k_empty[s]       a warp each
//           scores_done[s], v_full[s]    with V apart: K has been read, V is there
//           named 1          warps that compute: around the copy of Q and the sums of scores, and
//                            behind zeroed rows
//           named 2          likewise, around the merging of parts
// Shared    k [stage][panel][32][64], q [panel][16][64], and each half's part of the scores.
#ifndef TILEWRIGHT_FAMILY_ATTN_DECODE_SM90_FEW_CUH_
#define TILEWRIGHT_FAMILY_ATTN_DECODE_SM90_FEW_CUH_

#include "core/concepts.cuh"
#include "core/words.cuh"
#include "mma/cut_off.cuh"
#include "mma/packed_merge.cuh"
#include "mma/packed_rows.cuh"
#include "policy/dropout.cuh"
#include "policy/mask_chain.cuh"
#include "policy/scale.cuh"
#include "policy/score_chain.cuh"
#include "ptx/griddep.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/tma.cuh"

namespace tilewright {
namespace decode_sm90_few {

using packed_rows::kPanelColumns;
using packed_rows::kRowBytes;
using packed_rows::Wait;

inline constexpr int kRows = 16;
inline constexpr int kComputingWarps = 8;
inline constexpr int kComputing = 32 * kComputingWarps;
inline constexpr int kWorkBarrier = 1;
inline constexpr int kMergeBarrier = 2;
inline constexpr int kSlack = 8;   // of references below the maxima
inline constexpr int kHalves = 2;  // of K's columns

template <class Config>
struct Shape {
  static constexpr int kPanelsQk = RoundUp(Config::kHeadDimQk, kPanelColumns) / kPanelColumns;
  static constexpr int kPanelsV = Config::kHeadDimV / kPanelColumns;
  static constexpr int kKeyTiles = kComputingWarps / kHalves;
  static constexpr int kSteps = kPanelsQk * 4 / kHalves;  // of 16 columns, a warp's
  static constexpr int kScores = Config::kBlockN / 2;     // a thread's
  static constexpr int kOwnColumns = Config::kHeadDimV / kComputingWarps;
  static constexpr int kOutputs = kOwnColumns / 2;
};

template <class Config>
struct alignas(1024) SharedStorage {
  u16 k[Config::kStages][Shape<Config>::kPanelsQk][Config::kBlockN][kPanelColumns];
  u16 q[Shape<Config>::kPanelsQk][kRows][kPanelColumns];
  Words<16> scores[kHalves][Shape<Config>::kKeyTiles][32];  // by half of the columns
  alignas(8) u64 k_full[Config::kStages];
  u64 k_empty[Config::kStages];
  u64 scores_done[Config::kStages];
  u64 v_full[Config::kStages];
  packed_rows::PieceBoard board;
  packed_rows::MergeBoard merge;
  u32 missing[Config::kStages];
};

// The stages in turn.
template <class Config>
struct Turn {
  int stage = 0;
  u32 parity = 0;

  __device__ __forceinline__ void Next() {
    if (++stage < Config::kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// Warp 0.
template <class Config, class Params>
struct Loader {
  using S = Shape<Config>;
  SharedStorage<Config>& shared;
  const Params& params;
  Turn<Config> turn;

  __device__ __forceinline__ Loader(SharedStorage<Config>& shared, const Params& params)
      : shared(shared), params(params) {}

  template <int kPanels>
  __device__ __forceinline__ void Load(const u64& full, const abi::TensorMap* map, const void* base,
                                       const abi::TensorStrides& strides,
                                       packed_rows::CopyPlace place, int head, i64 keys) const {
    auto* const tile = &shared.k[turn.stage][0];
    if ((params.decode_sm90.by_threads & abi::kKvByThreads) != 0) {
      packed_rows::CopyPanels<Config, kPanels, Config::kHeadDimQk>(tile, base, strides, 0, full,
                                                                   place, head, keys);
    } else {
      packed_rows::LoadPanels<Config, kPanels, true>(tile, map, 0, full, place, head);
    }
  }

  __device__ __forceinline__ void LoadKeys(const Problem& problem, int key,
                                           packed_rows::CopyPlace place) {
    const int stage = turn.stage;
    const int head = static_cast<int>(problem.h_kv);
    const i64 keys = problem.seqlen_kv - key;
    const u32 missing = packed_rows::MissingCopies(place);
    Wait(shared.k_empty[stage], turn.parity ^ 1);
    if (threadIdx.x == 0) shared.missing[stage] = missing;
    Load<S::kPanelsQk>(shared.k_full[stage], &params.decode_sm90.k, params.core.k,
                       params.core.k_strides, place, head, keys);
    if (params.decode_sm90.v_in_k == 0) {
      Wait(shared.scores_done[stage], turn.parity);
      Load<S::kPanelsV>(shared.v_full[stage], &params.decode_sm90.v, params.core.v,
                        params.core.v_strides, place, head, keys);
    }
    turn.Next();
  }

  __device__ __forceinline__ void Run() {
    packed_rows::WaitBeforeWalk<Config>();
    PieceWalk<Config> walk(params);
    for (int n = 0;; ++n) {
      Piece piece = {};
      const bool more = walk.Next(&piece, params);
      packed_rows::TilePiece tile = {};
      tile.blocks = -1;
      packed_rows::CopyPlace place = {};
      const auto find_place = [&](int key) {
        place = packed_rows::PlaceOfCopy<Config>(piece.problem, key, params);
      };
      if (more) {
        tile = packed_rows::TilePieceOf<Config>(piece, params);
        // Its page is on the way while the piece is handed to the other warps.
        if constexpr (!kSequencesAreAlike<Config>) find_place(tile.first_key);
      }
      // Where parts are to be merged is found while no stage is free, if one will be awaited: the
      // block of keys behind that tells the other warps.
      const bool merges = more && piece.slot >= 0;
      const bool merges_later = merges && tile.blocks > Config::kStages;
      if (merges && !merges_later) tile.slots = walk.SlotsOfItem(piece, params.parts.lines);
      shared.board.Publish(n, tile);
      if (n == 0) packed_rows::WaitBehindWalk<Config>();
      if (!more) return;
      if constexpr (kSequencesAreAlike<Config>) find_place(tile.first_key);
#pragma unroll 1
      for (int block = 0; block < tile.blocks; ++block) {
        const int key = tile.first_key + block * Config::kBlockN;
        LoadKeys(piece.problem, key, place);
        // Its page is looked up while no stage is free.
        if (block + 1 < tile.blocks) find_place(key + Config::kBlockN);
        if (block == Config::kStages - 1 && merges_later) {
          const PartSlots slots = walk.SlotsOfItem(piece, params.parts.lines);
          if (threadIdx.x == 0) shared.board.pieces[n % packed_rows::kPieces].slots = slots;
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
  const int warp;  // of those that compute
  const int lane;
  const int row;  // this thread's first, the other is 8 further
  const int key_tile, column_half;
  const float to_log2;
  // Of this lane, in panel 0: row and chunk of 16 rows of Q and the warp's first 16 columns; row
  // and chunk of the warp's keys and its columns of the panel; in stage 0, the same of 16 keys and
  // the warp's first 16 columns of V.
  const u32 q_place, k_place, v_place;
  Turn<Config> turn;

  u32 q[S::kSteps][4];
  float o[S::kOutputs];
  float reference[2];  // log2 units
  float sum[2];        // of this thread's keys

  __device__ __forceinline__ Consumer(SharedStorage<Config>& shared, const Params& params)
      : shared(shared),
        params(params),
        // Shuffled, so that the compiler knows that a warp agrees.
        warp(__shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0) - 1),
        lane(static_cast<int>(threadIdx.x) % 32),
        row(lane / 4),
        key_tile(warp / kHalves),
        column_half(warp % kHalves),
        to_log2(packed_rows::ScoreUnit<Config>(params) * kLog2OfE),
        q_place(Place(shared.q[0], lane % 16, 2 * column_half + lane / 16)),
        k_place(Place(shared.k[0][0], key_tile * 8 + lane % 8,
                      lane / 16 * 4 + 2 * column_half + lane / 8 % 2)),
        v_place(Place(shared.k[0][warp * S::kOwnColumns / kPanelColumns], lane % 16,
                      warp * S::kOwnColumns % kPanelColumns / 8 + lane / 16)) {}

  template <int kTileRows>
  __device__ __forceinline__ static u32 Place(const u16 (&panel)[kTileRows][kPanelColumns],
                                              int at_row, int chunk) {
    return ptx::SharedAddress(&panel[at_row][(chunk ^ at_row % 8) * 8]);
  }
  __device__ __forceinline__ u32 StageBytes() const {
    return static_cast<u32>(turn.stage) * static_cast<u32>(sizeof(shared.k[0]));
  }

  // This warp's columns of all rows become operands.
  __device__ __forceinline__ void LoadQueries(const Piece& piece) {
    // Those of the piece ahead have.
    ptx::bar_sync(kWorkBarrier, kComputing);
    packed_rows::LoadQueryRows<Config, S::kPanelsQk, kComputing>(shared.q, piece, 0, params);
    ptx::bar_sync(kWorkBarrier, kComputing);
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      // Two steps to a panel: chunks 0 to 3 and 4 to 7.
      ptx::ldmatrix_x4(q[step], (step % 2 == 0 ? q_place : q_place ^ 64) +
                                    static_cast<u32>(step / 2 * kRows * kRowBytes));
    }
  }

  static constexpr int kChains = 4;  // sums of a score

  // Scores of this warp's keys from its columns.
  __device__ __forceinline__ void MultiplyKeys(float (&s)[4]) const {
    float part[kChains][4] = {};
    const u32 first = k_place + StageBytes();
#pragma unroll
    for (int panel = 0; panel < S::kPanelsQk; ++panel) {
      u32 k[4];
      ptx::ldmatrix_x4(k, first + static_cast<u32>(panel * Config::kBlockN * kRowBytes));
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int step = 2 * panel + n;
        ptx::mma_m16n8k16(part[step % kChains], q[step], k[2 * n], k[2 * n + 1], Element{});
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = (part[0][i] + part[1][i]) + (part[2][i] + part[3][i]);
  }

  // Scores of all keys of the block, from those of the warps.
  __device__ __forceinline__ void ShareScores(const float (&own)[4], float (&s)[S::kScores]) {
    // Those of the block ahead have been read.
    ptx::bar_sync(kWorkBarrier, kComputing);
    Words<16> words;
#pragma unroll
    for (int i = 0; i < 4; ++i) words.word[i] = __float_as_uint(own[i]);
    shared.scores[column_half][key_tile][lane] = words;
    ptx::bar_sync(kWorkBarrier, kComputing);
#pragma unroll
    for (int n = 0; n < S::kKeyTiles; ++n) {
      const Words<16> first = shared.scores[0][n][lane], second = shared.scores[1][n][lane];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[4 * n + i] = __uint_as_float(first.word[i]) + __uint_as_float(second.word[i]);
      }
    }
  }

  // What lies in place of this block's K before it is multiplied as V. All warps have read K.
  __device__ __forceinline__ void PrepareValues(const packed_rows::TilePiece& tile, int key) {
    const int stage = turn.stage;
    if (params.decode_sm90.v_in_k == 0) {
      packed_rows::ArriveEverywhere<Config>(shared.scores_done[stage]);
      Wait(shared.v_full[stage], turn.parity);
    }
    const int begin = tile.bounds.seen_begin - key, end = tile.bounds.seen_end - key;
    if (begin <= 0 && end >= Config::kBlockN) return;
    if (warp < packed_rows::kWarpgroup / 32) {
      packed_rows::ZeroUnseenRows<S::kPanelsV>(shared.k[stage], begin, end);
    }
    ptx::bar_sync(kWorkBarrier, kComputing);
  }

  __device__ __forceinline__ void MultiplyValues(const u32 (&p)[S::kScores / 2]) {
    const u32 first = v_place + StageBytes();
#pragma unroll
    for (int step = 0; step < Config::kBlockN / 16; ++step) {
      const u32 a[4] = {p[4 * step], p[4 * step + 1], p[4 * step + 2], p[4 * step + 3]};
#pragma unroll
      for (int n = 0; n < S::kOutputs / 8; ++n) {
        const u32 place =
            (first ^ static_cast<u32>(n * 32)) + static_cast<u32>(step * 16 * kRowBytes);
        u32 v[4];
        ptx::ldmatrix_x4_trans(v, place);
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          float(&d)[4] = reinterpret_cast<float(&)[4]>(o[8 * n + 4 * t]);
          ptx::mma_m16n8k16(d, a, v[2 * t], v[2 * t + 1], Element{});
        }
      }
    }
  }

  __device__ __forceinline__ void Step(const packed_rows::TilePiece& tile, int key) {
    const int stage = turn.stage;
    Wait(shared.k_full[stage], turn.parity);
    float own[4];
    MultiplyKeys(own);
    float s[S::kScores];
    ShareScores(own, s);
    PrepareValues(tile, key);
    const bool full =
        key >= tile.bounds.full_begin && key + Config::kBlockN <= tile.bounds.full_end;
    u32 missing = 0;
    if constexpr (!Config::KvRows::kIsDense) missing = shared.missing[stage];
    packed_rows::ApplyPoliciesToRows<Config>(s, tile.piece, row, key, full, params.core.scale,
                                             missing, params);
    float after[2], added[2], factor[2];
    packed_rows::Weigh<kSlack>(s, reference, to_log2, after, added);
    if (packed_rows::MoveFactors(reference, after, factor)) {
      sum[0] *= factor[0];
      sum[1] *= factor[1];
      packed_rows::ScaleRows(o, factor);
    }
    u32 p[S::kScores / 2];
#pragma unroll
    for (int n = 0; n < S::kScores / 2; ++n) {
      p[n] = ptx::cvt_rn_x2_f32(s[2 * n + 1], s[2 * n], Element{});
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reference[r] = after[r];
      sum[r] += added[r];
    }
    MultiplyValues(p);
    __syncwarp();
    packed_rows::ArriveEverywhere<Config>(shared.k_empty[stage]);
    turn.Next();
  }

  __device__ __forceinline__ void Run() {
    for (int n = 0;; ++n) {
      const packed_rows::TilePiece& tile = shared.board.Await(n);
      if (tile.blocks < 0) return;
      LoadQueries(tile.piece);
      reference[0] = reference[1] = kNoReference;
      sum[0] = sum[1] = 0;
#pragma unroll
      for (int i = 0; i < S::kOutputs; ++i) o[i] = 0;
#pragma unroll 1
      for (int block = 0; block < tile.blocks; ++block) {
        Step(tile, tile.first_key + block * Config::kBlockN);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) sum[r] = packed_rows::SumOfRow(sum[r]);
      packed_rows::StorePackedRows<Config>(
          o, tile.piece, row, warp * S::kOwnColumns, warp == 0, packed_rows::kSlotLses<Config>,
          reference, sum, kLostPlaces<(S::kSteps + kChains - 1) / kChains>, params);
      if (tile.piece.slot >= 0) {
        packed_rows::MergeIfLast<Config, kComputing>(
            shared.merge, tile, static_cast<int>(threadIdx.x) - 32, kMergeBarrier, params);
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
      initialise(shared.k_empty[stage], kComputingWarps);
      initialise(shared.scores_done[stage], kComputingWarps);
      initialise(shared.v_full[stage], 1);
    }
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
  static_assert(sizeof(typename Config::KvElement) == 2);
  static_assert(Config::kBlockM == kRows && Config::kBlockN == 32 && Config::kCluster == 1);
  static_assert(Config::kHeadDimV % (kComputingWarps * 32) == 0 &&
                Config::kHeadDimV <= kComputingWarps * kPanelColumns &&
                Config::kHeadDimQk > Config::kHeadDimV && Config::kHeadDimQk % 8 == 0);
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
  if (__shfl_sync(kAllLanes, threadIdx.x / 32, 0) == 0) {
    Loader<Config, Params>(shared, params).Run();
  } else {
    ptx::griddepcontrol_wait();
    Consumer<Config, Params>(shared, params).Run();
  }
}

}  // namespace decode_sm90_few
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_DECODE_SM90_FEW_CUH_
