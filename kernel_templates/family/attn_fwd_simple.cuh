// Exact attention, forward, as plainly as tiles allow: the definition in code, the fallback that
// serves every spec on every architecture, and the oracle of the other families on the GPU.
//
// Work      A block of kWarps warps owns kBlockM = kWarps * kRowsPerWarp query rows of one (batch,
//           head); each warp owns kRowsPerWarp of them from the scores to the output.
// Roles     For scores a lane is a key (kBlockN = 32), for the output a lane is the columns lane,
//           lane + 32, ...; weights travel between the two by shuffle.
// Softmax   Online, in natural logarithms with accurate exp; everything is fp32.
// Masks     By selection: the scores of a masked key are not looked at, its V row is not
// multiplied. Barriers  A __syncthreads before a panel is overwritten and one before it is read; no
// others but
//           the one around Q, which is the first of these.
// Shared    q      [kBlockM][dim_qk up to a multiple of 4]
//           panel  [kBlockN][kPanel + 4]   kPanel columns of 32 rows of K, then of V. The 4 words
//                                          spread the rows over the banks: lanes that read one
//                                          float4 of each row meet no conflict where kPanel is a
//                                          multiple of 8.
#ifndef TILEWRIGHT_FAMILY_ATTN_FWD_SIMPLE_CUH_
#define TILEWRIGHT_FAMILY_ATTN_FWD_SIMPLE_CUH_

#include "core/concepts.cuh"
#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/online_softmax.cuh"
#include "core/problem.cuh"
#include "core/tile_walk.cuh"
#include "core/warp_reduce.cuh"
#include "policy/dropout.cuh"
#include "policy/kv_rows.cuh"
#include "policy/lse.cuh"
#include "policy/mask_chain.cuh"
#include "policy/scale.cuh"
#include "policy/score_chain.cuh"
#include "policy/sink.cuh"

namespace tilewright {
namespace fwd_simple {

struct alignas(16) Float4 {
  float x, y, z, w;
};

template <class Config>
struct SharedStorage {
  static constexpr int kQStride = RoundUp(Config::kHeadDimQk, 4);
  static constexpr int kPanelStride = Config::kPanel + 4;
  alignas(16) float q[Config::kBlockM][kQStride];
  alignas(16) float panel[Config::kBlockN][kPanelStride];
};

// A warp's rows. Element c of `o` is column lane + 32 * c.
template <class Config>
struct RowState {
  static constexpr int kColumns = static_cast<int>(CeilDiv(Config::kHeadDimV, 32));
  float o[Config::kRowsPerWarp][kColumns];
  float m[Config::kRowsPerWarp];  // the same in all lanes
  float l[Config::kRowsPerWarp];  // of this lane's keys
};

__device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x % 32); }
__device__ __forceinline__ int Warp() { return static_cast<int>(threadIdx.x / 32); }

template <class Config>
__device__ __forceinline__ i64 DimStride(const abi::TensorStrides& strides) {
  return Config::kStridedInnermost ? strides.dim : 1;
}

// Rows beyond the length are zero.
template <class Config, class Params>
__device__ void LoadQ(SharedStorage<Config>& shared, const Problem& problem, i64 q_begin,
                      const Params& params) {
  const abi::TensorStrides& strides = params.core.q_strides;
  const auto* q = static_cast<const typename Config::Element*>(params.core.q) +
                  problem.q_batch * strides.batch + problem.h * strides.head;
  const float scale = Config::ScaleOfQ::OfQuery(problem, params);
#pragma unroll 1
  for (int r = Warp(); r < Config::kBlockM; r += Config::kWarps) {
    const i64 i = q_begin + r;
    const auto* row = q + (problem.q_row + i) * strides.seq;
#pragma unroll 4
    for (int d = Lane(); d < SharedStorage<Config>::kQStride; d += 32) {
      const bool inside = i < problem.seqlen_q && d < Config::kHeadDimQk;
      shared.q[r][d] =
          inside ? static_cast<float>(row[d * DimStride<Config>(strides)]) * scale : 0.f;
    }
  }
}

enum class Operand { kK, kV };

// Columns [d_begin, d_begin + kPanel) of the keys from `kv_begin` on, between barriers. Keys beyond
// the length, on missing pages, and columns beyond the head dim are zero.
template <class Config, Operand kOperand, class Params>
__device__ void LoadPanel(SharedStorage<Config>& shared, const Problem& problem, i64 kv_begin,
                          int d_begin, const Params& params) {
  constexpr bool kIsK = kOperand == Operand::kK;
  constexpr int kHeadDim = kIsK ? Config::kHeadDimQk : Config::kHeadDimV;
  const abi::TensorStrides& strides = kIsK ? params.core.k_strides : params.core.v_strides;
  const auto* base =
      static_cast<const typename Config::KvElement*>(kIsK ? params.core.k : params.core.v) +
      problem.h_kv * strides.head;
  __syncthreads();
#pragma unroll 1
  for (int key = Warp(); key < Config::kBlockN; key += Config::kWarps) {
    const i64 j = kv_begin + key;
    const KvRow at =
        j < problem.seqlen_kv ? Config::KvRows::Locate(problem, j, params) : KvRow::None();
    const auto* row = base + at.block * strides.batch + at.row * strides.seq;
    float scale = 1;
    if (at.exists()) {
      scale = kIsK ? Config::ScaleOfKv::OfKey(problem, at, params)
                   : Config::ScaleOfKv::OfValue(problem, at, params);
    }
#pragma unroll 4
    for (int d = Lane(); d < Config::kPanel; d += 32) {
      const bool inside = at.exists() && d_begin + d < kHeadDim;
      shared.panel[key][d] =
          inside ? static_cast<float>(row[(d_begin + d) * DimStride<Config>(strides)]) * scale
                 : 0.f;
    }
  }
  __syncthreads();
}

// scores[r] = dot(row r of this warp, key of this lane)
template <class Config, class Params>
__device__ void Dot(float (&scores)[Config::kRowsPerWarp], SharedStorage<Config>& shared,
                    const Problem& problem, i64 kv_begin, const Params& params) {
#pragma unroll
  for (int r = 0; r < Config::kRowsPerWarp; ++r) scores[r] = 0;
#pragma unroll 1
  for (int d_begin = 0; d_begin < Config::kHeadDimQk; d_begin += Config::kPanel) {
    LoadPanel<Config, Operand::kK>(shared, problem, kv_begin, d_begin, params);
    const int width =
        static_cast<int>(Min(Config::kPanel, SharedStorage<Config>::kQStride - d_begin));
#pragma unroll 2
    for (int d = 0; d < width; d += 4) {
      const Float4 k = *reinterpret_cast<const Float4*>(&shared.panel[Lane()][d]);
#pragma unroll
      for (int r = 0; r < Config::kRowsPerWarp; ++r) {
        const Float4 q = *reinterpret_cast<const Float4*>(
            &shared.q[Warp() * Config::kRowsPerWarp + r][d_begin + d]);
        scores[r] += q.x * k.x;
        scores[r] += q.y * k.y;
        scores[r] += q.z * k.z;
        scores[r] += q.w * k.w;
      }
    }
  }
}

// Turns scores into weights relative to the new running maximum and rescales what was accumulated.
// Bit n of kept[r] says whether row r sees the tile's key n.
template <class Config, class Params>
__device__ void Softmax(float (&scores)[Config::kRowsPerWarp], u32 (&kept)[Config::kRowsPerWarp],
                        RowState<Config>& state, const Problem& problem, i64 row_begin,
                        i64 kv_begin, bool full, const Params& params) {
  const i64 j = kv_begin + Lane();
  const bool exists = j < problem.seqlen_kv && Config::KvRows::Locate(problem, j, params).exists();
#pragma unroll
  for (int r = 0; r < Config::kRowsPerWarp; ++r) {
    const i64 i = row_begin + r;
    const bool keep =
        exists && i < problem.seqlen_q && (full || Config::Mask::Keep(problem, i, j, params));
    kept[r] = __ballot_sync(kAllLanes, keep);
    const float score =
        keep ? Config::Score::Apply(scores[r] * params.core.scale, problem, i, j, params)
             : -Infinity();
    const float m = fmaxf(state.m[r], WarpMax(score));
    const float rescale = expf(state.m[r] - SoftmaxReference(m));
    const float weight = expf(score - SoftmaxReference(m));
    state.m[r] = m;
    state.l[r] = state.l[r] * rescale + weight;
#pragma unroll
    for (int c = 0; c < RowState<Config>::kColumns; ++c) state.o[r][c] *= rescale;
    scores[r] = keep ? weight * Config::Dropout::Factor(problem, i, j, params) : 0.f;
  }
}

// o[r] += weights[r] * V, over the keys that row r sees. A tile is summed on its own before it
// joins the output: over long sequences that loses a fraction of what one running sum does.
template <class Config, class Params>
__device__ void AccumulateV(RowState<Config>& state, const float (&weights)[Config::kRowsPerWarp],
                            const u32 (&kept)[Config::kRowsPerWarp], SharedStorage<Config>& shared,
                            const Problem& problem, i64 kv_begin, const Params& params) {
  constexpr int kRows = Config::kRowsPerWarp, kColumns = RowState<Config>::kColumns;
  constexpr int kPanelColumns = static_cast<int>(CeilDiv(Config::kPanel, 32));
  // Unrolled, for the columns of `o` live in registers.
#pragma unroll
  for (int first = 0; first < kColumns; first += kPanelColumns) {
    LoadPanel<Config, Operand::kV>(shared, problem, kv_begin, first * 32, params);
    float sum[kRows][kPanelColumns] = {};
    // Not unrolled: it would take most of the time of a compile.
#pragma unroll 1
    for (int key = 0; key < Config::kBlockN; ++key) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float weight = __shfl_sync(kAllLanes, weights[r], key);
        if ((kept[r] >> key & 1) == 0) continue;  // the same in all lanes
#pragma unroll
        for (int c = 0; c < kPanelColumns; ++c) {
          const int column = 32 * c + Lane();
          if (Config::kPanel % 32 == 0 || column < Config::kPanel) {
            sum[r][c] += weight * shared.panel[key][column];
          }
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kPanelColumns && first + c < kColumns; ++c) {
        state.o[r][first + c] += sum[r][c];
      }
    }
  }
}

template <class Config, class Params>
__device__ void StoreRows(const RowState<Config>& state, const Problem& problem, i64 row_begin,
                          const Params& params) {
  const abi::TensorStrides& strides = params.core.o_strides;
  auto* o = static_cast<typename Config::OutElement*>(params.core.o) +
            problem.q_batch * strides.batch + problem.h * strides.head;
  const float sink = Config::Sink::Logit(problem, params);
#pragma unroll
  for (int r = 0; r < Config::kRowsPerWarp; ++r) {
    const i64 i = row_begin + r;
    const SoftmaxEnd end = FinishSoftmax(state.m[r], WarpSum(state.l[r]), sink);
    if (i >= problem.seqlen_q) continue;
    auto* row = o + (problem.q_row + i) * strides.seq;
#pragma unroll
    for (int c = 0; c < RowState<Config>::kColumns; ++c) {
      const int d = 32 * c + Lane();
      if (d < Config::kHeadDimV) {
        FromFloat(end.empty ? 0.f : state.o[r][c] * end.o_scale,
                  &row[d * DimStride<Config>(strides)]);
      }
    }
    if (Lane() == 0) Config::Lse::Store(end.lse, problem, i, params);
  }
}

template <class Config, class Params>
__device__ void AttendTile(SharedStorage<Config>& shared, const Problem& problem, i64 q_begin,
                           const Params& params) {
  const i64 q_end = Min(q_begin + Config::kBlockM, problem.seqlen_q);
  const i64 row_begin = q_begin + Warp() * Config::kRowsPerWarp;
  RowState<Config> state;
#pragma unroll
  for (int r = 0; r < Config::kRowsPerWarp; ++r) {
    state.m[r] = -Infinity();
    state.l[r] = 0;
#pragma unroll
    for (int c = 0; c < RowState<Config>::kColumns; ++c) state.o[r][c] = 0;
  }
  __syncthreads();  // the block's previous tile is done with q
  LoadQ(shared, problem, q_begin, params);
  const BlockRange range = Config::Mask::NBlocks(problem, q_begin, q_end, Config::kBlockN, params);
  for (i64 n = range.begin; n < range.end; ++n) {
    const i64 kv_begin = n * Config::kBlockN;
    const i64 kv_end = Min(kv_begin + Config::kBlockN, problem.seqlen_kv);
    if (Config::Mask::Skip(problem, q_begin, q_end, kv_begin, kv_end, params)) continue;
    const bool full = n >= range.full_begin && n < range.full_end;
    float scores[Config::kRowsPerWarp];
    u32 kept[Config::kRowsPerWarp];
    Dot(scores, shared, problem, kv_begin, params);
    Softmax(scores, kept, state, problem, row_begin, kv_begin, full, params);
    AccumulateV(state, scores, kept, shared, problem, kv_begin, params);
  }
  StoreRows(state, problem, row_begin, params);
}

template <class Config, class Params>
__device__ void Run(const Params& params) {
  static_assert(MaskPolicy<typename Config::Mask, Params>);
  static_assert(ScorePolicy<typename Config::Score, Params>);
  static_assert(KvRowsPolicy<typename Config::KvRows, Params>);
  static_assert(Config::kBlockN == 32, "a lane is a key");
  static_assert(Config::kBlockM == Config::kWarps * Config::kRowsPerWarp);
  static_assert(Config::kPanel % 4 == 0, "rows of a panel are read by float4");
  static_assert(Config::kPanel % 32 == 0 || Config::kHeadDimV <= Config::kPanel,
                "where a lane's columns lie must not depend on the panel");
  extern __shared__ __align__(16) u8 shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(shared_bytes);
  WalkTiles<Config>(params, [&](const Problem& problem, i64 q_begin) {
    AttendTile<Config>(shared, problem, q_begin, params);
  });
}

}  // namespace fwd_simple
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_FWD_SIMPLE_CUH_
