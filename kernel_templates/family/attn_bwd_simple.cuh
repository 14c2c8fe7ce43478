// Gradients of attention, as plainly as tiles allow: the definition in code, the fallback that
// serves every spec on every architecture, and the oracle of the other families on the GPU. Needs
// the row statistics of attn_bwd_prep.
//
// With p = exp(s - lse), f the factor of dropout and dp = dO V^T, for every pair (i, j) that the
// mask keeps:
//   dV_j += p f dO_i,   ds = p (f dp - delta_i),   dQ_i += scale ds' K_j,   dK_j += scale ds' Q_i
// where ds' is ds taken back through the score policies. Scores are computed again from Q, K and
// the LSE; nothing that grows with rows x keys is kept.
//
// Work      The grid walks over pieces of work, of these kinds in turn:
//             a tile of kBlockM rows of dQ, or of dK, or of dV, and kColumns of its columns;
//             a tile of kBlockM rows and 32 keys of one bias term's gradient (all rows or keys
//             where the term broadcasts them), summed over the batches and heads that share it; one
//             slope of ALiBi; one sink.
//           Every sum has one block that adds it up in one order: no atomics, equal bits in every
//           run (but for what a user's gradient snippet adds).
// Roles     A warp owns kRowsPerWarp rows of the tile ("own": queries for dQ and biases, keys for
// dK
//           and dV), a lane is one of 32 of the other side; for the output a lane is the columns
//           lane, lane + 32, ... Weights travel between the two by shuffle.
// Masks     By selection: what a pair that is not kept would give is not looked at.
// Barriers  A __syncthreads before a panel is overwritten and one before it is read.
// Shared    own_qk [kBlockM][dim_qk], own_v [kBlockM][dim_v]   Q and dO, or K and V, of the own
// rows
//           panel  [32][kPanel + 4]                            of the other side
#ifndef TILEWRIGHT_FAMILY_ATTN_BWD_SIMPLE_CUH_
#define TILEWRIGHT_FAMILY_ATTN_BWD_SIMPLE_CUH_

#include "abi/attn_bwd_params.h"
#include "core/concepts.cuh"
#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/problem.cuh"
#include "core/warp_reduce.cuh"
#include "policy/alibi_gradient.cuh"
#include "policy/dropout.cuh"
#include "policy/kv_rows.cuh"
#include "policy/lse.cuh"
#include "policy/mask_chain.cuh"
#include "policy/row_tiles.cuh"
#include "policy/scale.cuh"
#include "policy/score_chain.cuh"
#include "policy/sink.cuh"

namespace tilewright {
namespace bwd_simple {

inline constexpr int kLanes = 32;
// Columns of an output that a block sums, at most: 8 registers a lane for each row.
inline constexpr int kMaxColumns = 256;
template <class Config>
inline constexpr int kColumns = static_cast<int>(Min(
    kMaxColumns,
    RoundUp(Config::kHeadDimQk > Config::kHeadDimV ? Config::kHeadDimQk : Config::kHeadDimV, 32)));

struct alignas(16) Float4 {
  float x, y, z, w;
};

template <class Config>
struct SharedStorage {
  static constexpr int kStrideQk = RoundUp(Config::kHeadDimQk, 4);
  static constexpr int kStrideV = RoundUp(Config::kHeadDimV, 4);
  alignas(16) float own_qk[Config::kBlockM][kStrideQk];
  alignas(16) float own_v[Config::kBlockM][kStrideV];
  alignas(16) float panel[kLanes][Config::kPanel + 4];
};

__device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x % 32); }
__device__ __forceinline__ int Warp() { return static_cast<int>(threadIdx.x / 32); }

// The rows of one tensor that belong to one problem.
template <class Element>
struct Rows {
  Element* first;
  i64 stride;
  i64 dim_stride;
  int dim;
  i64 length;
};

// One or the other, member by member: references would put both on the stack.
template <class Element>
__device__ __forceinline__ Rows<Element> Select(bool first, const Rows<Element>& a,
                                                const Rows<Element>& b) {
  return {first ? a.first : b.first, first ? a.stride : b.stride,
          first ? a.dim_stride : b.dim_stride, first ? a.dim : b.dim, first ? a.length : b.length};
}

// What a problem reads.
template <class Config>
struct Inputs {
  using Element = const typename Config::Element;
  Rows<Element> q, d_o, k, v;
};

template <class Config, class Element>
__device__ __forceinline__ Rows<Element> RowsOf(Element* tensor, const abi::TensorStrides& strides,
                                                i64 batch, i64 head, i64 row, int dim, i64 length) {
  return {tensor + batch * strides.batch + head * strides.head + row * strides.seq, strides.seq,
          Config::kStridedInnermost ? strides.dim : 1, dim, length};
}

template <class Config, class Params>
__device__ Inputs<Config> InputsOf(const Problem& p, const Params& params) {
  using Element = const typename Config::Element;
  const abi::AttnFwdParams& core = params.core;
  const abi::AttnBwdParams& gradients = params.gradients;
  return {RowsOf<Config>(static_cast<Element*>(core.q), core.q_strides, p.q_batch, p.h, p.q_row,
                         Config::kHeadDimQk, p.seqlen_q),
          RowsOf<Config>(static_cast<Element*>(gradients.d_o), gradients.d_o_strides, p.q_batch,
                         p.h, p.q_row, Config::kHeadDimV, p.seqlen_q),
          RowsOf<Config>(static_cast<Element*>(core.k), core.k_strides, p.kv_batch, p.h_kv,
                         p.kv_row, Config::kHeadDimQk, p.seqlen_kv),
          RowsOf<Config>(static_cast<Element*>(core.v), core.v_strides, p.kv_batch, p.h_kv,
                         p.kv_row, Config::kHeadDimV, p.seqlen_kv)};
}

// Rows beyond the length are zero.
template <class Config, int kStride, class Element>
__device__ void LoadOwn(float (&own)[Config::kBlockM][kStride], const Rows<Element>& rows,
                        i64 begin) {
#pragma unroll 1
  for (int r = Warp(); r < Config::kBlockM; r += Config::kWarps) {
    const Element* row = rows.first + (begin + r) * rows.stride;
#pragma unroll 1
    for (int d = Lane(); d < kStride; d += 32) {
      const bool inside = begin + r < rows.length && d < rows.dim;
      own[r][d] = inside ? static_cast<float>(row[d * rows.dim_stride]) : 0.f;
    }
  }
}

// Columns [d_begin, d_begin + kPanel) of 32 rows, between barriers. What lies beyond is zero.
template <class Config, class Element>
__device__ void LoadPanel(float (&panel)[kLanes][Config::kPanel + 4], const Rows<Element> rows,
                          i64 begin, int d_begin) {
  __syncthreads();
#pragma unroll 1
  for (int r = Warp(); r < kLanes; r += Config::kWarps) {
    const Element* row = rows.first + (begin + r) * rows.stride;
#pragma unroll 4
    for (int d = Lane(); d < Config::kPanel; d += 32) {
      const bool inside = begin + r < rows.length && d_begin + d < rows.dim;
      panel[r][d] = inside ? static_cast<float>(row[(d_begin + d) * rows.dim_stride]) : 0.f;
    }
  }
  __syncthreads();
}

// dots[r] = dot(own row r of this warp, row `begin` + lane of `other`)
template <class Config, int kStride, class Element>
__device__ void Dot(float (&dots)[Config::kRowsPerWarp], SharedStorage<Config>& shared,
                    const float (&own)[Config::kBlockM][kStride], const Rows<Element>& other,
                    i64 begin) {
#pragma unroll
  for (int r = 0; r < Config::kRowsPerWarp; ++r) dots[r] = 0;
#pragma unroll 1
  for (int d_begin = 0; d_begin < kStride; d_begin += Config::kPanel) {
    LoadPanel<Config>(shared.panel, other, begin, d_begin);
    const int width = static_cast<int>(Min(Config::kPanel, kStride - d_begin));
#pragma unroll 2
    for (int d = 0; d < width; d += 4) {
      const Float4 y = *reinterpret_cast<const Float4*>(&shared.panel[Lane()][d]);
#pragma unroll
      for (int r = 0; r < Config::kRowsPerWarp; ++r) {
        const Float4 x =
            *reinterpret_cast<const Float4*>(&own[Warp() * Config::kRowsPerWarp + r][d_begin + d]);
        dots[r] += x.x * y.x;
        dots[r] += x.y * y.y;
        dots[r] += x.z * y.z;
        dots[r] += x.w * y.w;
      }
    }
  }
}

// What one pair (i, j) gives; all 0 where `kept` is false.
struct Pair {
  bool kept;
  float weight;  // of dO_i in dV_j
  float d_dot;   // gradient of dot(q_i, k_j)
  float d_bias;  // gradient of the bias terms
};

template <class Config, class Params>
__device__ Pair MakePair(const Problem& problem, i64 i, i64 j, float dot, float d_weight, bool adds,
                         const Params& params) {
  Pair pair = {false, 0, 0, 0};
  if (i >= problem.seqlen_q || j >= problem.seqlen_kv) return pair;
  const abi::RowStats stats =
      params.gradients.row_stats[(problem.q_batch * params.core.heads_q + problem.h) *
                                     params.gradients.stats_rows +
                                 problem.q_row + i];
  if (stats.lse == Infinity() || !Config::Mask::Keep(problem, i, j, params)) return pair;
  const ScorePoint point =
      Config::Score::Differentiate(dot * params.core.scale, problem, i, j, params);
  const float p = expf(point.score - stats.lse);
  const float factor = Config::Dropout::Factor(problem, i, j, params);
  const float d_score = p * (factor * d_weight - stats.delta);
  const ScoreGradient gradient =
      Config::Score::Gradient(point, d_score, adds, problem, i, j, params);
  return {true, p * factor, gradient.dot * params.core.scale, gradient.bias};
}

// The pairs of this warp's rows and this lane. `own_is_key`: own rows are keys, lanes are queries.
template <class Config, class Params>
__device__ void MakePairs(Pair (&pairs)[Config::kRowsPerWarp], SharedStorage<Config>& shared,
                          const Problem& problem, const Inputs<Config>& in, bool own_is_key,
                          i64 own_begin, i64 other_begin, bool adds, const Params& params) {
  float dots[Config::kRowsPerWarp], d_weights[Config::kRowsPerWarp];
  Dot<Config>(dots, shared, shared.own_qk, Select(own_is_key, in.q, in.k), other_begin);
  Dot<Config>(d_weights, shared, shared.own_v, Select(own_is_key, in.d_o, in.v), other_begin);
#pragma unroll 1
  for (int r = 0; r < Config::kRowsPerWarp; ++r) {
    const i64 own = own_begin + Warp() * Config::kRowsPerWarp + r;
    const i64 other = other_begin + Lane();
    float dot = 0, d_weight = 0;
#pragma unroll
    for (int n = 0; n < Config::kRowsPerWarp; ++n) {
      if (n == r) dot = dots[n], d_weight = d_weights[n];
    }
    const Pair pair = MakePair<Config>(problem, own_is_key ? other : own, own_is_key ? own : other,
                                       dot, d_weight, adds, params);
#pragma unroll
    for (int n = 0; n < Config::kRowsPerWarp; ++n) {
      if (n == r) pairs[n] = pair;
    }
  }
}

template <class Config>
__device__ void LoadOwnRows(SharedStorage<Config>& shared, const Inputs<Config>& in,
                            bool own_is_key, i64 own_begin) {
  __syncthreads();  // the rows before them are read
  LoadOwn<Config>(shared.own_qk, Select(own_is_key, in.k, in.q), own_begin);
  LoadOwn<Config>(shared.own_v, Select(own_is_key, in.v, in.d_o), own_begin);
}

// Whether some row of [q_begin, q_end) may see a key of [kv_begin, kv_end).
template <class Config, class Params>
__device__ bool IsNeeded(const Problem& problem, i64 q_begin, i64 q_end, i64 kv_begin, i64 kv_end,
                         const Params& params) {
  const KeyInterval keys = KeysOfRows<typename Config::Mask>(problem, {q_begin, q_end}, params);
  return keys.begin < kv_end && keys.end > kv_begin &&
         !Config::Mask::Skip(problem, q_begin, q_end, kv_begin, kv_end, params);
}

// ---- dQ, dK, dV -------------------------------------------------------------------------------

enum class Output { kDq, kDk, kDv };

// A lane's part of kColumns columns of the gradient of this warp's rows.
template <class Config>
struct Sums {
  static constexpr int kPerLane = kColumns<Config> / 32;
  float at[Config::kRowsPerWarp][kPerLane];
};

// sums[r] += weights[r] * rows of `other`, over the pairs that are kept. A tile is summed on its
// own before it joins: over long sequences that loses a fraction of what one running sum does.
template <class Config, class Element>
__device__ void Accumulate(Sums<Config>& sums, SharedStorage<Config>& shared,
                           const Pair (&pairs)[Config::kRowsPerWarp], Output output,
                           const Rows<Element>& other, i64 begin, int column_begin) {
  constexpr int kPanelColumns = static_cast<int>(CeilDiv(Config::kPanel, 32));
  float weights[Config::kRowsPerWarp];
  u32 kept[Config::kRowsPerWarp];
#pragma unroll
  for (int r = 0; r < Config::kRowsPerWarp; ++r) {
    weights[r] = output == Output::kDv ? pairs[r].weight : pairs[r].d_dot;
    kept[r] = __ballot_sync(kAllLanes, pairs[r].kept);
  }
#pragma unroll
  for (int first = 0; first < Sums<Config>::kPerLane; first += kPanelColumns) {
    if (column_begin + first * 32 >= other.dim) break;
    LoadPanel<Config>(shared.panel, other, begin, column_begin + first * 32);
    float sum[Config::kRowsPerWarp][kPanelColumns] = {};
#pragma unroll 1
    for (int n = 0; n < kLanes; ++n) {
#pragma unroll
      for (int r = 0; r < Config::kRowsPerWarp; ++r) {
        const float weight = __shfl_sync(kAllLanes, weights[r], n);
        if ((kept[r] >> n & 1) == 0) continue;  // the same in all lanes
#pragma unroll
        for (int c = 0; c < kPanelColumns; ++c) {
          const int column = 32 * c + Lane();
          if (Config::kPanel % 32 == 0 || column < Config::kPanel) {
            sum[r][c] += weight * shared.panel[n][column];
          }
        }
      }
    }
#pragma unroll
    for (int r = 0; r < Config::kRowsPerWarp; ++r) {
#pragma unroll
      for (int c = 0; c < kPanelColumns && first + c < Sums<Config>::kPerLane; ++c) {
        sums.at[r][first + c] += sum[r][c];
      }
    }
  }
}

// Everything that one head adds to the own rows from `own_begin` on.
template <class Config, class Params>
__device__ void AddHead(Sums<Config>& sums, SharedStorage<Config>& shared, const Problem& problem,
                        Output output, i64 own_begin, int column_begin, const Params& params) {
  const bool own_is_key = output != Output::kDq;
  const Inputs<Config> in = InputsOf<Config>(problem, params);
  const i64 own_end =
      Min(own_begin + Config::kBlockM, own_is_key ? problem.seqlen_kv : problem.seqlen_q);
  if (own_begin >= own_end) return;
  LoadOwnRows(shared, in, own_is_key, own_begin);
  RowTiles others;
  if (own_is_key) {
    others = RowTilesOfKeys<typename Config::Mask>(problem, own_begin, own_end, kLanes, params);
  } else {
    const BlockRange range = Config::Mask::NBlocks(problem, own_begin, own_end, kLanes, params);
    others = {range.begin, range.end};
  }
  const i64 length = own_is_key ? problem.seqlen_q : problem.seqlen_kv;
  for (i64 n = others.begin; n < others.end; ++n) {
    const i64 begin = n * kLanes, end = Min(begin + kLanes, length);
    const bool needed = own_is_key
                            ? IsNeeded<Config>(problem, begin, end, own_begin, own_end, params)
                            : IsNeeded<Config>(problem, own_begin, own_end, begin, end, params);
    if (!needed) continue;
    Pair pairs[Config::kRowsPerWarp];
    // Each pair is met once in dQ's first columns: there a user's gradient snippet adds.
    const bool adds = output == Output::kDq && column_begin == 0;
    MakePairs<Config>(pairs, shared, problem, in, own_is_key, own_begin, begin, adds, params);
    const auto other =
        Select(output == Output::kDq, in.k, Select(output == Output::kDk, in.q, in.d_o));
    Accumulate<Config>(sums, shared, pairs, output, other, begin, column_begin);
  }
}

template <class Config, class Element>
__device__ void Store(const Sums<Config>& sums, const Rows<Element>& rows, i64 own_begin,
                      int column_begin) {
#pragma unroll
  for (int r = 0; r < Config::kRowsPerWarp; ++r) {
    const i64 own = own_begin + Warp() * Config::kRowsPerWarp + r;
    if (own >= rows.length) continue;
#pragma unroll
    for (int c = 0; c < Sums<Config>::kPerLane; ++c) {
      const int d = column_begin + 32 * c + Lane();
      if (d < rows.dim)
        FromFloat(sums.at[r][c], &rows.first[own * rows.stride + d * rows.dim_stride]);
    }
  }
}

// Piece number `piece` of one output: (b, head, tile, columns), columns fastest.
template <class Config, class Params>
__device__ void GradientTile(SharedStorage<Config>& shared, Output output, i64 piece, i64 tiles,
                             const Params& params) {
  using Element = typename Config::Element;
  const abi::AttnBwdParams& gradients = params.gradients;
  const bool own_is_key = output != Output::kDq;
  const int dim = output == Output::kDv ? Config::kHeadDimV : Config::kHeadDimQk;
  const i64 chunks = CeilDiv(dim, kColumns<Config>);
  const int column_begin = static_cast<int>(piece % chunks) * kColumns<Config>;
  const i64 own_begin = piece / chunks % tiles * Config::kBlockM;
  const i64 heads = own_is_key ? params.core.heads_kv : params.core.heads_q;
  const i64 head = piece / chunks / tiles % heads, b = piece / chunks / tiles / heads;
  const i64 group = own_is_key ? Config::kGroup : 1;
  Sums<Config> sums = {};
  Problem problem = {};
  for (i64 g = 0; g < group; ++g) {
    problem = MakeProblem<Config>(b, head * group + g, params);
    AddHead<Config>(sums, shared, problem, output, own_begin, column_begin, params);
  }
  Rows<Element> rows;
  if (output == Output::kDq) {
    rows = RowsOf<Config>(static_cast<Element*>(gradients.d_q), gradients.d_q_strides,
                          problem.q_batch, problem.h, problem.q_row, dim, problem.seqlen_q);
  } else {
    const bool is_k = output == Output::kDk;
    rows = RowsOf<Config>(static_cast<Element*>(is_k ? gradients.d_k : gradients.d_v),
                          is_k ? gradients.d_k_strides : gradients.d_v_strides, problem.kv_batch,
                          problem.h_kv, problem.kv_row, dim,
                          Config::Lengths::StoredKeys(problem, params));
  }
  Store<Config>(sums, rows, own_begin, column_begin);
}

// ---- gradients of biases and slopes -----------------------------------------------------------

// Sum of values[r] over the warps' rows (`over_rows`) and over lanes (`over_keys`), in place: the
// results are where r, warp and lane are 0 on the axes summed over.
template <class Config>
__device__ void Reduce(float (&values)[Config::kRowsPerWarp], SharedStorage<Config>& shared,
                       bool over_rows, bool over_keys) {
  if (over_keys) {
#pragma unroll
    for (int r = 0; r < Config::kRowsPerWarp; ++r) values[r] = WarpSum(values[r]);
  }
  if (!over_rows) return;
#pragma unroll
  for (int r = 1; r < Config::kRowsPerWarp; ++r) values[0] += values[r];
  __syncthreads();
  shared.panel[Warp()][Lane()] = values[0];
  __syncthreads();
  values[0] = 0;
  for (int w = 0; w < Config::kWarps; ++w) values[0] += shared.panel[w][Lane()];
}

// How much of the scores' gradient an element of a term gets.
enum class Per { kTerm, kDistance };

// Piece number `piece` of the gradient of one term: (batch, head, tile of rows, tile of keys), the
// last fastest.
template <class Config, Per kPer, class Params>
__device__ void BiasTile(SharedStorage<Config>& shared, const abi::BiasGradientArgs& term,
                         i64 piece, const Params& params) {
  const i64 n_tiles = CeilDiv(term.keys, kLanes), m_tiles = CeilDiv(term.rows, Config::kBlockM);
  const i64 n = piece % n_tiles, m = piece / n_tiles % m_tiles;
  const i64 term_head = piece / n_tiles / m_tiles % term.heads;
  const i64 term_batch = piece / n_tiles / m_tiles / term.heads;
  float sums[Config::kRowsPerWarp] = {};
  for (i64 b = 0; b < Batch<Config>(params); ++b) {
    if (b / term.batch_div % term.batch_mod != term_batch) continue;
    for (i64 h = 0; h < params.core.heads_q; ++h) {
      if (term.heads != 1 && h != term_head) continue;
      const Problem problem = MakeProblem<Config>(b, h, params);
      const Inputs<Config> in = InputsOf<Config>(problem, params);
      const i64 m_end = term.rows == 1 ? CeilDiv(problem.seqlen_q, Config::kBlockM) : m + 1;
      for (i64 own = m; own < m_end && own * Config::kBlockM < problem.seqlen_q; ++own) {
        const i64 q_begin = own * Config::kBlockM;
        const i64 q_end = Min(q_begin + Config::kBlockM, problem.seqlen_q);
        LoadOwnRows(shared, in, /*own_is_key=*/false, q_begin);
        const i64 n_end = term.keys == 1 ? CeilDiv(problem.seqlen_kv, kLanes) : n + 1;
        for (i64 other = n; other < n_end && other * kLanes < problem.seqlen_kv; ++other) {
          const i64 kv_begin = other * kLanes, kv_end = Min(kv_begin + kLanes, problem.seqlen_kv);
          if (!IsNeeded<Config>(problem, q_begin, q_end, kv_begin, kv_end, params)) continue;
          Pair pairs[Config::kRowsPerWarp];
          MakePairs<Config>(pairs, shared, problem, in, /*own_is_key=*/false, q_begin, kv_begin,
                            /*adds=*/false, params);
#pragma unroll
          for (int r = 0; r < Config::kRowsPerWarp; ++r) {
            float share = 1;
            if constexpr (kPer == Per::kDistance) {
              share = Config::AlibiGradient::Share(
                  problem, q_begin + Warp() * Config::kRowsPerWarp + r, kv_begin + Lane());
            }
            sums[r] += pairs[r].kept ? pairs[r].d_bias * share : 0.f;
          }
        }
      }
    }
  }
  const bool over_rows = term.rows == 1, over_keys = term.keys == 1;
  Reduce<Config>(sums, shared, over_rows, over_keys);
  if ((over_rows && Warp() != 0) || (over_keys && Lane() != 0)) return;
#pragma unroll
  for (int r = 0; r < Config::kRowsPerWarp; ++r) {
    const i64 i = over_rows ? 0 : m * Config::kBlockM + Warp() * Config::kRowsPerWarp + r;
    const i64 j = over_keys ? 0 : n * kLanes + Lane();
    if ((over_rows && r > 0) || i >= term.rows || j >= term.keys) continue;
    term.data[term_batch * term.stride_batch + term_head * term.stride_head + i * term.stride_q +
              j * term.stride_kv] = sums[r];
  }
}

// A sink is a key of value 0: its gradient is that of its score, -p_sink * delta, over all rows.
template <class Config, class Params>
__device__ void SinkGradient(SharedStorage<Config>& shared, i64 h, const Params& params) {
  float sums[Config::kRowsPerWarp] = {};
  for (i64 b = 0; b < Batch<Config>(params); ++b) {
    const Problem problem = MakeProblem<Config>(b, h, params);
    const float sink = Config::Sink::Logit(problem, params);
    const abi::RowStats* stats =
        params.gradients.row_stats + problem.q_row +
        (problem.q_batch * params.core.heads_q + problem.h) * params.gradients.stats_rows;
    for (i64 i = threadIdx.x; i < problem.seqlen_q; i += Config::kWarps * 32) {
      sums[0] -= expf(sink - stats[i].lse) * stats[i].delta;
    }
  }
  Reduce<Config>(sums, shared, /*over_rows=*/true, /*over_keys=*/true);
  if (threadIdx.x == 0) params.sinks_gradient.d_sinks[h] = sums[0];
}

// ---- the walk ---------------------------------------------------------------------------------

template <class Config, class Params>
__device__ void Run(const Params& params) {
  static_assert(MaskPolicy<typename Config::Mask, Params>);
  static_assert(ScorePolicy<typename Config::Score, Params>);
  static_assert(Config::kBlockM == Config::kWarps * Config::kRowsPerWarp);
  static_assert(Config::kPanel % 4 == 0, "rows of a panel are read by float4");
  static_assert(Config::kPanel >= 32 && Config::kWarps <= kLanes, "the panel is where sums meet");
  static_assert(Config::kPanel % 32 == 0);
  extern __shared__ __align__(16) u8 shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(shared_bytes);
  const i64 heads_of_rows = Batch<Config>(params) * params.core.heads_q;
  const i64 heads_of_keys = Batch<Config>(params) * params.core.heads_kv;
  const i64 m_tiles = CeilDiv(SeqlenQ<Config>(params), Config::kBlockM);
  const i64 n_tiles = CeilDiv(SeqlenKv<Config>(params), Config::kBlockM);
  const i64 chunks_qk = CeilDiv(Config::kHeadDimQk, kColumns<Config>);
  const i64 chunks_v = CeilDiv(Config::kHeadDimV, kColumns<Config>);
  const i64 pieces[] = {Config::kWritesTensors ? heads_of_rows * m_tiles * chunks_qk : 0,
                        Config::kWritesTensors ? heads_of_keys * n_tiles * chunks_qk : 0,
                        Config::kWritesTensors ? heads_of_keys * n_tiles * chunks_v : 0};
  for (i64 piece = blockIdx.x;; piece += gridDim.x) {
    i64 n = piece;
    if constexpr (Config::kWritesTensors) {
      if (n < pieces[0] + pieces[1] + pieces[2]) {
        const bool is_dq = n < pieces[0];
        if (!is_dq) n -= pieces[0];
        const bool is_dk = !is_dq && n < pieces[1];
        if (!is_dq && !is_dk) n -= pieces[1];
        GradientTile<Config>(shared,
                             is_dq   ? Output::kDq
                             : is_dk ? Output::kDk
                                     : Output::kDv,
                             n, is_dq ? m_tiles : n_tiles, params);
        continue;
      }
      n -= pieces[0] + pieces[1] + pieces[2];
    }
    bool done = false;
    if constexpr (Config::kBiasGradients > 0) {
      for (int t = 0; t < Config::kBiasGradients && !done; ++t) {
        const abi::BiasGradientArgs& term = params.bias_gradients[t];
        const i64 count = term.batch * term.heads * CeilDiv(term.rows, Config::kBlockM) *
                          CeilDiv(term.keys, kLanes);
        if (n < count) {
          BiasTile<Config, Per::kTerm>(shared, term, n, params);
          done = true;
        } else {
          n -= count;
        }
      }
    }
    if constexpr (!kIsSame<typename Config::AlibiGradient, AlibiGradientNone>) {
      const abi::BiasGradientArgs& slopes = params.alibi_gradient;
      const i64 count = slopes.batch * slopes.heads;
      if (!done && n < count) {
        BiasTile<Config, Per::kDistance>(shared, slopes, n, params);
        done = true;
      }
      if (!done) n -= count;
    }
    if constexpr (Config::kSinksGradient) {
      if (!done && n < params.core.heads_q) {
        SinkGradient<Config>(shared, n, params);
        done = true;
      }
    }
    if (!done) break;
  }
}

}  // namespace bwd_simple
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_BWD_SIMPLE_CUH_
