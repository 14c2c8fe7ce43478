// Gradients of attention on Hopper's warpgroup products (wgmma) with bulk copies (TMA): sm_90a,
// 16-bit operands, fp32 sums. Needs the row statistics of attn_bwd_prep, and attn_bwd_finish after
// it.
//
// Algorithm FlashAttention-3's backward (Shah et al., arXiv 2407.08608) with keys on the M side. A
//           block owns kBlockN keys of one (batch, key/value head), a warpgroup 64 of them. K and V
//           stay in shared memory, the sums of dK and dV in registers; the block walks over the
//           tiles of kBlockM rows of every query head of the group. A step:
//             S = K Q^T,  P = exp2(S - lse),  dP = V dO^T,  dS = P (dP - delta)
//             dV += P dO,  dK += dS Q         P and dS from registers
//             dQ = dS^T K                     dS through shared memory, of all keys; added to
//                                             memory by bulk additions (mma/dq_sums.cuh)
//           dQ is made one step late, so that warpgroups need not wait for each other's dS: one
//           computes weights while the other multiplies. S of the next step is issued before dQ is
//           waited for.
// Warps     Warpgroup 0 loads: thread 0 by tensor maps, warps 1 to 3 the row statistics and what no
//           tensor map describes. Warpgroups 1 and 2 compute. Of dQ each has 64 rows or, where
//           kBlockM is 64, 64 columns.
// Barriers  kv_full        a loading warp each, and the bytes, once a tile that has steps
//           kv_empty       a warpgroup each, when dK and dV have left shared memory
//           rows_full[s]   a loading warp each, and the bytes
//           rows_empty[s]  a computing warp each, after dV and dK of the step
//           ds_full[s]     a computing warp each, when it has written its dS
//           ds_empty[s]    a computing warp each, after dQ
//           named 1        the computing warpgroups, when all have read K and V
//           named 2 + w    warpgroup w of them, around its dK and dV in shared memory
// Masks     By selection of P and dS. A NaN of a masked key stays within its tile.
// Shared    k, v   [panel][kBlockN][64]           rows of 128 bytes, 128-byte swizzle, panels of 64
//           q, d_o [kStages][panel][kBlockM][64]  columns; columns beyond the dim are zeros
//           ds     [kStages][kBlockM / 64][kBlockN][64]  a row a key
//           dq     [warp][fragment][128]          a warp's part of dQ on its way to memory
//           lse (log2), delta  [kStages][kBlockM]
//           dK and dV in the end over k and v
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
#include "ptx/mbarrier.cuh"
#include "ptx/mma_sync.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/special.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace tilewright {
namespace bwd_sm90 {

inline constexpr int kWarpgroup = 128;     // threads
inline constexpr int kWarpgroupKeys = 64;  // M of a wgmma
inline constexpr int kPanelColumns = 64;   // 128 bytes, the width of the swizzle
inline constexpr int kRowBytes = 128;      // of a panel
inline constexpr int kUnit = 16;           // bytes that a descriptor counts in
inline constexpr int kLoadingWarps = 4;
inline constexpr int kCopyThreads = 96;
inline constexpr int kConsumersBarrier = 1;
inline constexpr int kFirstStoreBarrier = 2;

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
  // Warpgroups share dQ by rows; with one panel of rows, by panels of columns.
  static constexpr bool kByRows = Config::kBlockM > kPanelColumns;
  static constexpr int kQkTiles = Config::kHeadDimQk / 8;  // of 8 columns
  static constexpr int kDqTiles = kByRows ? kQkTiles : kPanelColumns / 8;
  static constexpr int kFloatsOfDqTile = Config::kBlockM * kQkTiles * 8;
  static constexpr int kFloatsOfFragment = 128;
};

template <class Config>
struct alignas(1024) SharedStorage {
  u16 k[Shape<Config>::kPanelsQk][Config::kBlockN][kPanelColumns];
  u16 v[Shape<Config>::kPanelsV][Config::kBlockN][kPanelColumns];
  u16 q[Config::kStages][Shape<Config>::kPanelsQk][Config::kBlockM][kPanelColumns];
  u16 d_o[Config::kStages][Shape<Config>::kPanelsV][Config::kBlockM][kPanelColumns];
  u16 ds[Config::kStages][Shape<Config>::kPanelsM][Config::kBlockN][kPanelColumns];
  alignas(16) float dq[Shape<Config>::kConsumerWarps][Shape<Config>::kDqTiles]
                      [Shape<Config>::kFloatsOfFragment];
  alignas(16) float lse[Config::kStages][Config::kBlockM];
  alignas(16) float delta[Config::kStages][Config::kBlockM];
  alignas(8) u64 kv_full;
  u64 kv_empty;
  u64 rows_full[Config::kStages];
  u64 rows_empty[Config::kStages];
  u64 ds_full[Config::kStages];
  u64 ds_empty[Config::kStages];
};

// A stage of a ring of buffers, and the parity of the phase that is waited for.
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

__device__ __forceinline__ void Arrive(const u64& barrier) {
  ptx::mbarrier_arrive(ptx::SharedAddress(&barrier));
}

// Of this warp, after all its lanes.
__device__ __forceinline__ void WarpArrives(const u64& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) Arrive(barrier);
}

// A block's keys, and the tiles of rows that see any of them. Small: it lives in registers.
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

template <class Config, class Params>
__device__ __forceinline__ Problem ProblemOf(const KeyTile& tile, const Params& params) {
  return MakeProblem<Config>(tile.batch, i64{tile.head_kv} * Config::kGroup, params);
}

template <class Config, class Params>
__device__ __forceinline__ KeyTile FindTile(u32 number, const Params& params) {
  using Mask = typename Config::Mask;
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
  tile.kv_begin = static_cast<int>(in_section / heads) * Config::kBlockN;
  const Problem problem = ProblemOf<Config>(tile, params);
  const i64 kv_end = Min(i64{tile.kv_begin} + Config::kBlockN, problem.seqlen_kv);
  if (tile.kv_begin >= kv_end) return tile;
  const RowTiles rows =
      RowTilesOfKeys<Mask>(problem, tile.kv_begin, kv_end, Config::kBlockM, params);
  tile.begin = static_cast<int>(rows.begin);
  tile.end = static_cast<int>(rows.end);
  if (tile.kv_begin + Config::kBlockN == kv_end) {
    const RowTiles full =
        FullRowTilesOfKeys<Mask>(problem, tile.kv_begin, kv_end, Config::kBlockM, rows, params);
    tile.full_begin = static_cast<int>(full.begin);
    tile.full_end = static_cast<int>(full.end);
  }
  return tile;
}

// Calls visit(tile) for the tiles of this block; abi::BwdSm90Args says in what order they come.
template <class Config, class Params, class Visit>
__device__ __forceinline__ void ForEachTile(const Params& params, const Visit& visit) {
#pragma unroll 1
  for (u32 n = blockIdx.x; n < params.sm90.tiles; n += gridDim.x) {
    visit(FindTile<Config>(n, params));
  }
}

// ---- the loading warpgroup ----

// Copies a tile element by element: rows from `valid_rows` on and columns beyond kColumns become
// zeros. By warps 1 to 3.
template <int kColumns, int kPanels, int kRows>
__device__ __forceinline__ void CopyTile(u16 (*tile)[kRows][kPanelColumns], const void* source,
                                         i64 row_stride, i64 valid_rows) {
  constexpr int kWidth = kPanels * kPanelColumns;
#pragma unroll 1
  for (int n = static_cast<int>(threadIdx.x) - 32; n < kRows * kWidth; n += kCopyThreads) {
    const int row = n / kWidth, column = n % kWidth;
    const int at = (column / 8 % 8 ^ row % 8) * 8 + column % 8;
    tile[column / kPanelColumns][row][at] =
        row < valid_rows && column < kColumns
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
  Ring<Config> ring = {0, 1};  // parities of the slots being empty: the first wait passes
  u32 kv_parity = 1;

  __device__ __forceinline__ static const void* RowsOf(const void* tensor,
                                                       const abi::TensorStrides& strides, i64 batch,
                                                       i64 head, i64 row) {
    return static_cast<const u16*>(tensor) + batch * strides.batch + head * strides.head +
           row * strides.seq;
  }

  template <int kPanels, int kRows>
  __device__ __forceinline__ static void LoadPanels(const u16 (*tile)[kRows][kPanelColumns],
                                                    const abi::TensorMap* map, const u64& full,
                                                    int row, int head, int batch) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      ptx::cp_async_bulk_tensor_4d_load(
          ptx::SharedAddress(&tile[panel]), map, ptx::SharedAddress(&full), panel * kPanelColumns,
          static_cast<int>(row), static_cast<int>(head), static_cast<int>(batch));
    }
  }

  // ---- thread 0

  __device__ __forceinline__ void LoadKeysByMap(const KeyTile& tile) {
    if ((params.sm90.by_threads & abi::kKvByThreads) != 0) return Arrive(shared.kv_full);
    ptx::mbarrier_arrive_expect_tx(ptx::SharedAddress(&shared.kv_full), S::kBytesK + S::kBytesV);
    LoadPanels<S::kPanelsQk>(shared.k, &params.sm90.k, shared.kv_full, tile.kv_begin, tile.head_kv,
                             tile.batch);
    LoadPanels<S::kPanelsV>(shared.v, &params.sm90.v, shared.kv_full, tile.kv_begin, tile.head_kv,
                            tile.batch);
  }

  __device__ __forceinline__ void LoadRowsByMap(const KeyTile& tile, int h, int m) {
    const u64& full = shared.rows_full[ring.stage];
    Wait(shared.rows_empty[ring.stage], ring.parity);
    if ((params.sm90.by_threads & abi::kQByThreads) != 0) return Arrive(full);
    const int row = m * Config::kBlockM;
    ptx::mbarrier_arrive_expect_tx(ptx::SharedAddress(&full), S::kBytesQ + S::kBytesDo);
    LoadPanels<S::kPanelsQk>(shared.q[ring.stage], &params.sm90.q, full, row, h, tile.batch);
    LoadPanels<S::kPanelsV>(shared.d_o[ring.stage], &params.sm90.d_o, full, row, h, tile.batch);
  }

  // ---- warps 1 to 3

  __device__ __forceinline__ void LoadKeysByThreads(const KeyTile& tile) {
    if ((params.sm90.by_threads & abi::kKvByThreads) != 0) {
      const abi::AttnFwdParams& core = params.core;
      const i64 valid = SeqlenKv<Config>(params) - tile.kv_begin;
      CopyTile<Config::kHeadDimQk, S::kPanelsQk>(
          shared.k, RowsOf(core.k, core.k_strides, tile.batch, tile.head_kv, tile.kv_begin),
          core.k_strides.seq, valid);
      CopyTile<Config::kHeadDimV, S::kPanelsV>(
          shared.v, RowsOf(core.v, core.v_strides, tile.batch, tile.head_kv, tile.kv_begin),
          core.v_strides.seq, valid);
    }
    WarpArrives(shared.kv_full);
  }

  __device__ __forceinline__ void LoadRowsByThreads(const KeyTile& tile, int h, int m) {
    constexpr int kRows = (Config::kBlockM + kCopyThreads - 1) / kCopyThreads;  // of a thread
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
      const int r = static_cast<int>(threadIdx.x) - 32 + n * kCopyThreads;
      mine[n] = {Infinity(), 0};
      if (r < valid) mine[n] = stats[r];
    }
    Wait(shared.rows_empty[ring.stage], ring.parity);
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      const int r = static_cast<int>(threadIdx.x) - 32 + n * kCopyThreads;
      if (r >= Config::kBlockM) break;
      shared.lse[ring.stage][r] = mine[n].lse * kLog2OfE;
      shared.delta[ring.stage][r] = mine[n].delta;
    }
    if ((params.sm90.by_threads & abi::kQByThreads) != 0) {
      CopyTile<Config::kHeadDimQk, S::kPanelsQk>(shared.q[ring.stage],
                                                 RowsOf(core.q, core.q_strides, tile.batch, h, row),
                                                 core.q_strides.seq, valid);
      CopyTile<Config::kHeadDimV, S::kPanelsV>(
          shared.d_o[ring.stage], RowsOf(gradients.d_o, gradients.d_o_strides, tile.batch, h, row),
          gradients.d_o_strides.seq, valid);
    }
    WarpArrives(shared.rows_full[ring.stage]);
  }

  // kByMap: the part of thread 0, otherwise that of warps 1 to 3.
  template <bool kByMap>
  __device__ __forceinline__ void LoadTiles() {
    ForEachTile<Config>(params, [&](const KeyTile& tile) {
      Wait(shared.kv_empty, kv_parity);
      kv_parity ^= 1;
      if (!tile.HasSteps()) return;
      if constexpr (kByMap) {
        LoadKeysByMap(tile);
      } else {
        LoadKeysByThreads(tile);
      }
#pragma unroll 1
      for (int g = 0; g < Config::kGroup; ++g) {
#pragma unroll 1
        for (int m = tile.begin; m < tile.end; ++m) {
          const int h = tile.head_kv * Config::kGroup + g;
          if constexpr (kByMap) {
            LoadRowsByMap(tile, h, m);
          } else {
            LoadRowsByThreads(tile, h, m);
          }
          ring.Advance();
        }
      }
    });
  }
};

// ---- the computing warpgroups ----

struct alignas(8) Pair {
  float value[2];
};

template <class Config, class Params>
struct Consumer {
  using S = Shape<Config>;
  using Element = typename Config::Element;
  using Mask = typename Config::Mask;
  using Wgmma = typename Config::Wgmma;

  SharedStorage<Config>& shared;
  const Params& params;
  const int warpgroup;  // of the consumers
  const int thread;     // of the warpgroup
  const float to_log2;
  u32 rows_count = 0;  // of steps so far: stage and parity of the ring of rows
  u32 ds_count = 0;    // likewise of the ring of dS; dQ is one behind
  u32 kv_parity = 0;

  // Rows of the tile's problem that see the keys of this thread's rows r and r + 8.
  int first_row[2];
  int end_row[2];

  // Layouts as in ptx/wgmma.cuh: rows are keys, but for dq.
  float dk[S::kSumsK];
  float dv[S::kSumsV];
  u32 p[S::kPairs / 2];  // operands of products that are under way from one step to the next
  u32 ds[S::kPairs / 2];

  __device__ __forceinline__ Consumer(SharedStorage<Config>& shared, const Params& params)
      : shared(shared),
        params(params),
        // Shuffled, so that the compiler knows that a warp agrees.
        warpgroup(__shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0) - 1),
        thread(static_cast<int>(threadIdx.x) % kWarpgroup),
        to_log2(params.core.scale * kLog2OfE) {}

  __device__ __forceinline__ static u64 Descriptor(const void* tile, int panel_rows) {
    return ptx::SwizzledDescriptor(ptx::SharedAddress(tile), panel_rows * kRowBytes);
  }
  // Of this warpgroup's keys, of its part of dS and K for dQ, and of a stage's rows.
  __device__ __forceinline__ u64 KeysOf(const u16 (*panels)[Config::kBlockN][kPanelColumns]) const {
    return Descriptor(&panels[0][warpgroup * kWarpgroupKeys], Config::kBlockN);
  }
  __device__ __forceinline__ u64 PartOf(const u16 (*panels)[Config::kBlockN][kPanelColumns],
                                        bool mine) const {
    return Descriptor(&panels[mine ? warpgroup : 0], Config::kBlockN);
  }
  __device__ __forceinline__ u64 RowsOf(const u16 (*panels)[Config::kBlockM][kPanelColumns]) const {
    return Descriptor(panels, Config::kBlockM);
  }

  __device__ __forceinline__ int lane() const { return thread % 32; }
  // The key of the block's tile that this thread's row r or r + 8 stands for.
  __device__ __forceinline__ int Key(int half) const {
    return warpgroup * kWarpgroupKeys + thread / 32 * 16 + lane() / 4 + half * 8;
  }

  __device__ __forceinline__ void FindRows(const KeyTile& tile) {
    const Problem problem = ProblemOf<Config>(tile, params);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const RowInterval rows = Mask::KeyRows(problem, tile.kv_begin + Key(half), params);
      const int mine = 2 * (lane() % 4);
      constexpr int kNone = 0x7fffffff;
      first_row[half] = rows.begin < rows.end ? static_cast<int>(Max(rows.begin, 0)) - mine : kNone;
      end_row[half] = static_cast<int>(Max(rows.end, 0)) - mine;
    }
  }

  // s from products to weights. Rows beyond the end have none, because of their LSE.
  template <bool kFull>
  __device__ __forceinline__ void Weights(float (&s)[S::kPairs], int stage, int q_begin) const {
    int begin[2] = {}, end[2] = {};
    if constexpr (!kFull) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        begin[half] = first_row[half] - q_begin;
        end[half] = end_row[half] - q_begin;
      }
    }
    const float* const lse = &shared.lse[stage][2 * (lane() % 4)];
#pragma unroll
    for (int n = 0; n < S::kPairs / 4; ++n) {
      const Pair reference = *reinterpret_cast<const Pair*>(lse + 8 * n);
#pragma unroll
      for (int at = 0; at < 4; ++at) {
        float& weight = s[4 * n + at];
        weight = ptx::ex2_approx_ftz(fmaf(weight, to_log2, -reference.value[at % 2]));
        if constexpr (!kFull) {
          const int column = 8 * n + at % 2;
          bool keep = column >= begin[at / 2];
          if constexpr (Mask::kCutsLeft) keep = keep && column < end[at / 2];
          weight = keep ? weight : 0.f;
        }
      }
    }
  }

  // The weights `s` to p; `dp`, gradients of weights, to those of scores in ds.
  template <bool kFull>
  __device__ __forceinline__ void PackStep(const float (&s)[S::kPairs],
                                           const float (&dp)[S::kPairs], int stage) {
    const float* const deltas = &shared.delta[stage][2 * (lane() % 4)];
#pragma unroll
    for (int n = 0; n < S::kPairs / 4; ++n) {
      const Pair delta = *reinterpret_cast<const Pair*>(deltas + 8 * n);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float gradient[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float weight = s[4 * n + 2 * half + c];
          gradient[c] = weight * (dp[4 * n + 2 * half + c] - delta.value[c]);
          // The dO * V of a masked key may be anything.
          if constexpr (!kFull) gradient[c] = weight == 0 ? 0.f : gradient[c];
        }
        const int at = 2 * n + half;
        p[at] = ptx::cvt_rn_x2_f32(s[2 * at + 1], s[2 * at], Element{});
        ds[at] = ptx::cvt_rn_x2_f32(gradient[1], gradient[0], Element{});
      }
    }
  }

  // This warp's 16 rows of panels of 64 columns.
  template <int kChunks, int kRows>
  __device__ __forceinline__ void StoreRows(u16 (*panels)[kRows][kPanelColumns],
                                            const u32 (&packed)[2 * kChunks]) const {
    const int row = warpgroup * kWarpgroupKeys + thread / 32 * 16 + lane() % 16;
    // A row starts on a multiple of 128 bytes: the swizzle of a chunk is one exclusive or.
    const u32 first = ptx::SharedAddress(&panels[0][row][(lane() / 16 ^ row % 8) * 8]);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; chunk += 2) {
      const u32 address = (first ^ chunk % 8 * 16) + chunk / 8 * kRows * kRowBytes;
      if (chunk + 1 < kChunks) {
        ptx::stmatrix_x4(address, packed[2 * chunk], packed[2 * chunk + 1], packed[2 * chunk + 2],
                         packed[2 * chunk + 3]);
      } else {
        ptx::stmatrix_x2(address, packed[2 * chunk], packed[2 * chunk + 1]);
      }
    }
  }

  // Waits until all warpgroups have read what the next dS overwrites.
  __device__ __forceinline__ void WaitForDsSlot() const {
    Wait(shared.ds_empty[ds_count % 2], (ds_count / 2 + 1) % 2);
  }
  // Tells them that this warp's part of it is there.
  __device__ __forceinline__ void PassDs() {
    ptx::fence_proxy_async_shared();
    WarpArrives(shared.ds_full[ds_count % 2]);
    ++ds_count;
  }

  // dQ of the last dS, without waiting for it.
  __device__ __forceinline__ void IssueDq(float (&dq)[4 * S::kDqTiles]) const {
    const u32 count = ds_count - 1;
    Wait(shared.ds_full[count % 2], count / 2 % 2);
    ptx::wgmma_fence();
    Wgmma::Dq(dq, PartOf(shared.ds[count % 2], S::kByRows), PartOf(shared.k, !S::kByRows));
    ptx::wgmma_commit_group();
  }

  // Adds dQ, which has been waited for, to the sums of tile number `tile`; negative: nowhere. A
  // warp's part of it is contiguous in mma/dq_sums.cuh's order, and one bulk addition of its own:
  // additions from registers held the warp up until L2 had taken them.
  __device__ __forceinline__ void AddDq(float (&dq)[4 * S::kDqTiles], int tile) const {
    ptx::AccumulatorsReady(dq);
    WarpArrives(shared.ds_empty[(ds_count - 1) % 2]);
    if (tile < 0) return;
    // The addition before must have read its place.
    if (lane() == 0) ptx::cp_async_bulk_wait_group_read_0();
    __syncwarp();
    auto& fragments = shared.dq[warpgroup * 4 + thread / 32];
#pragma unroll
    for (int n = 0; n < S::kDqTiles; ++n) {
      *reinterpret_cast<Words<16>*>(&fragments[n][DqSumAt(lane(), 0)]) = {
          {__float_as_uint(dq[4 * n]), __float_as_uint(dq[4 * n + 1]),
           __float_as_uint(dq[4 * n + 2]), __float_as_uint(dq[4 * n + 3])}};
    }
    ptx::fence_proxy_async_shared();
    __syncwarp();
    if (lane() == 0) {
      const int row_tile = thread / 32 + (S::kByRows ? warpgroup * 4 : 0);
      const int first_column = S::kByRows ? 0 : warpgroup * S::kDqTiles;
      const int columns = S::kByRows ? S::kQkTiles : min(S::kDqTiles, S::kQkTiles - first_column);
      ptx::cp_reduce_async_bulk_add_f32(
          params.gradients.dq_sums + i64{tile} * S::kFloatsOfDqTile +
              (row_tile * S::kQkTiles + first_column) * S::kFloatsOfFragment,
          ptx::SharedAddress(&fragments), columns * S::kFloatsOfFragment * sizeof(float));
      ptx::cp_async_bulk_commit_group();
    }
  }

  // One step, while dV and dK of the one before are being made. `before`: the tile of dQ of that,
  // or -1 at the first step, whose predecessor is none but takes its place in the ring of dS:
  // products under a condition cost ptxas the pipeline (C7515).
  __device__ __forceinline__ void Step(int q_begin, bool full, int before) {
    const int stage = static_cast<int>(rows_count % 2);
    float dq[4 * S::kDqTiles];
    IssueDq(dq);
    ptx::wgmma_wait_group<1>();
    if (before >= 0) WarpArrives(shared.rows_empty[stage ^ 1]);
    float s[S::kPairs], dp[S::kPairs];
    Wait(shared.rows_full[stage], rows_count / 2 % 2);
    ptx::wgmma_fence();
    Wgmma::Scores(s, KeysOf(shared.k), RowsOf(shared.q[stage]));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<1>();
    AddDq(dq, before);
    ptx::wgmma_fence();
    Wgmma::WeightGradients(dp, KeysOf(shared.v), RowsOf(shared.d_o[stage]));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<1>();
    ptx::AccumulatorsReady(s);
    if (full) {
      Weights<true>(s, stage, q_begin);
    } else {
      Weights<false>(s, stage, q_begin);
    }
    ptx::wgmma_wait_group<0>();
    ptx::AccumulatorsReady(dp);
    if (full) {
      PackStep<true>(s, dp, stage);
    } else {
      PackStep<false>(s, dp, stage);
    }
    WaitForDsSlot();
    StoreRows<Config::kBlockM / 8>(shared.ds[ds_count % 2], ds);
    PassDs();
    ptx::wgmma_fence();
    Wgmma::Dv(dv, p, RowsOf(shared.d_o[stage]));
    Wgmma::Dk(dk, ds, RowsOf(shared.q[stage]));
    ptx::wgmma_commit_group();
    ++rows_count;
  }

  __device__ __forceinline__ void Steps(const KeyTile& tile) {
    FindRows(tile);
    Wait(shared.kv_full, kv_parity);
    kv_parity ^= 1;
    WaitForDsSlot();
    PassDs();  // of no step
    int before = -1;
#pragma unroll 1
    for (int g = 0; g < Config::kGroup; ++g) {
      Problem problem = ProblemOf<Config>(tile, params);
      problem.h += g;
      const int first = static_cast<int>(DqTile(problem, 0, Config::kBlockM, params));
#pragma unroll 1
      for (int m = tile.begin; m < tile.end; ++m) {
        Step(m * Config::kBlockM, m >= tile.full_begin && m < tile.full_end, before);
        before = first + m;
      }
    }
    float dq[4 * S::kDqTiles];
    IssueDq(dq);
    ptx::wgmma_wait_group<0>();
    WarpArrives(shared.rows_empty[(rows_count - 1) % 2]);
    AddDq(dq, before);
  }

  // This warpgroup's rows of dK or dV to memory, from panels in shared memory: by its thread 0
  // from the map, or by all where no map describes the tensor.
  template <int kColumns, int kPanels>
  __device__ __forceinline__ void StoreGradient(const u16 (*panels)[Config::kBlockN][kPanelColumns],
                                                const abi::TensorMap* map, void* tensor,
                                                const abi::TensorStrides& strides,
                                                const KeyTile& tile) const {
    const int row = warpgroup * kWarpgroupKeys;
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

  // dK and dV of the tile, from the sums.
  __device__ __forceinline__ void Finish(const KeyTile& tile) {
    u32 packed_k[S::kSumsK / 2], packed_v[S::kSumsV / 2];
#pragma unroll
    for (int n = 0; n < S::kSumsK / 2; ++n) {
      packed_k[n] = ptx::cvt_rn_x2_f32(dk[2 * n + 1] * params.core.scale,
                                       dk[2 * n] * params.core.scale, Element{});
    }
#pragma unroll
    for (int n = 0; n < S::kSumsV / 2; ++n) {
      packed_v[n] = ptx::cvt_rn_x2_f32(dv[2 * n + 1], dv[2 * n], Element{});
    }
    ptx::bar_sync(kConsumersBarrier, S::kConsumerThreads);
    StoreRows<Config::kHeadDimQk / 8>(shared.k, packed_k);
    StoreRows<Config::kHeadDimV / 8>(shared.v, packed_v);
    ptx::fence_proxy_async_shared();
    ptx::bar_sync(kFirstStoreBarrier + warpgroup, kWarpgroup);
    const abi::AttnBwdParams& gradients = params.gradients;
    StoreGradient<Config::kHeadDimV, S::kPanelsV>(shared.v, &params.sm90.d_v, gradients.d_v,
                                                  gradients.d_v_strides, tile);
    StoreGradient<Config::kHeadDimQk, S::kPanelsQk>(shared.k, &params.sm90.d_k, gradients.d_k,
                                                    gradients.d_k_strides, tile);
    if ((params.sm90.by_threads & abi::kGradientsByThreads) != 0) {
      ptx::bar_sync(kFirstStoreBarrier + warpgroup, kWarpgroup);
    }
    if (thread == 0) {
      ptx::cp_async_bulk_commit_group();
      ptx::cp_async_bulk_wait_group_read_0();
      Arrive(shared.kv_empty);
    }
  }

  __device__ __forceinline__ void ComputeTiles() {
    ForEachTile<Config>(params, [&](const KeyTile& tile) {
#pragma unroll
      for (int n = 0; n < S::kSumsK; ++n) dk[n] = 0;
#pragma unroll
      for (int n = 0; n < S::kSumsV; ++n) dv[n] = 0;
      if (tile.HasSteps()) {
        Steps(tile);
        ptx::AccumulatorsReady(dk);
        ptx::AccumulatorsReady(dv);
      }
      Finish(tile);
    });
  }
};

template <class Config>
__device__ __forceinline__ void InitialiseShared(SharedStorage<Config>& shared) {
  constexpr u32 kWarps = Shape<Config>::kConsumerWarps;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(ptx::SharedAddress(&shared.kv_full), kLoadingWarps);
    ptx::mbarrier_init(ptx::SharedAddress(&shared.kv_empty), Shape<Config>::kConsumers);
    for (int stage = 0; stage < Config::kStages; ++stage) {
      ptx::mbarrier_init(ptx::SharedAddress(&shared.rows_full[stage]), kLoadingWarps);
      ptx::mbarrier_init(ptx::SharedAddress(&shared.rows_empty[stage]), kWarps);
      ptx::mbarrier_init(ptx::SharedAddress(&shared.ds_full[stage]), kWarps);
      ptx::mbarrier_init(ptx::SharedAddress(&shared.ds_empty[stage]), kWarps);
    }
    ptx::fence_mbarrier_init();
  }
  // The dS of no step, of which a first product is made.
  auto* ds = reinterpret_cast<Words<16>*>(&shared.ds);
  for (int n = static_cast<int>(threadIdx.x); n < static_cast<int>(sizeof(shared.ds) / 16);
       n += Shape<Config>::kThreads) {
    ds[n] = {{0, 0, 0, 0}};
  }
  ptx::fence_proxy_async_shared();
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
  static_assert(Config::KvRows::kIsDense && !Config::kDeterministic);
  static_assert(Config::kHeadDimQk % 8 == 0 && Config::kHeadDimV % 8 == 0);
  static_assert(S::kConsumers == 2 && Config::kStages == 2);
  static_assert(
      S::kByRows ? S::kPanelsQk == 1 && S::kPanelsM == 2 : S::kPanelsQk == 2 && S::kPanelsM == 1,
      "two warpgroups share dQ");
  extern __shared__ __align__(1024) u8 shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(shared_bytes);
  InitialiseShared(shared);
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < kLoadingWarps) {
    ptx::setmaxnreg_dec<Config::kLoaderRegisters>();
    Loader<Config, Params> loader = {shared, params};
    if (warp > 0) {
      loader.template LoadTiles<false>();
    } else if (threadIdx.x == 0) {
      loader.template LoadTiles<true>();
    }
  } else {
    ptx::setmaxnreg_inc<Config::kConsumerRegisters>();
    Consumer<Config, Params> consumer(shared, params);
    consumer.ComputeTiles();
    if (threadIdx.x % 32 == 0) ptx::cp_async_bulk_wait_group_0();
  }
}

}  // namespace bwd_sm90
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_BWD_SM90_CUH_
