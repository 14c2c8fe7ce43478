// Gradients of attention on mma.sync tensor cores with cp.async copies: sm_80 and later, 16-bit
// operands, fp32 sums. Needs the row statistics of attn_bwd_prep, and attn_bwd_finish after it.
//
// Algorithm FlashAttention-2 (Dao, arXiv 2307.08691), turned on its side. A block owns kBlockN keys
//           of one (batch, key/value head), keeps their K and V in shared memory and the sums of dK
//           and dV in registers, and walks over the tiles of kBlockM rows of every query head of
//           the group. A step, S and the rest transposed (keys are rows of the fragments):
//             S = K Q^T,  P = exp2(S - lse),  dP = V dO^T,  dS = P (dP - delta)
//             dV += P dO,  dK += dS Q,  dQ = dS^T K  (added to memory: mma/dq_sums.cuh)
// Warps     kKeyWarps x kSplit. A warp has kBlockN / kKeyWarps keys; of S and dP 1 / kSplit of the
//           rows, of dK and dV 1 / kSplit of the columns. dQ is shared out as kDqRowWarps x the
//           rest.
// Barriers  pair  when the warps of the same keys have written p and ds: dV and dK need no others
//           A     when ds is complete, all have read Q and dO, and (two stages) the next step's
//           have
//                 arrived. dQ and the next step then run without a barrier between them.
//           B     (one stage) when dQ has been read and the next step's Q and dO have arrived
// Turns     kDeterministic: the blocks of keys add to a tile of dQ one after the other, the last
//           first, so that under a causal mask nobody waits long. Thread 0 asks for the turn at the
//           start of a step and has it before A; the turn ends in the next step, when the additions
//           have arrived. A block takes its tile of keys from a counter: it waits only for blocks
//           that have started.
// Masks     By selection of P and dS. A NaN of a masked key stays within its tile, and one of a key
//           that a window or a left padding hides from every row goes nowhere: its K becomes zeros.
// Shared    k, v    [kBlockN][pitch]            rows an odd number of 16-byte chunks apart
//           q, d_o  [kStages][kBlockM][pitch]
//           p       [kBlockN][pitch]            16-bit operands of the second half of a step
//           ds      [kStages][kBlockN][pitch]
//           stats   [kStages][kBlockM]          lse and delta of the rows
//           keys    [kStages][kBlockM]          keys of the rows as columns of the tile
#ifndef TILEWRIGHT_FAMILY_ATTN_BWD_SM80_CUH_
#define TILEWRIGHT_FAMILY_ATTN_BWD_SM80_CUH_

#include "abi/attn_bwd_params.h"
#include "core/concepts.cuh"
#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/problem.cuh"
#include "core/warp_reduce.cuh"
#include "mma/dq_sums.cuh"
#include "mma/multiply.cuh"
#include "mma/tile_copy.cuh"
#include "policy/alibi_gradient.cuh"
#include "policy/dropout.cuh"
#include "policy/kv_rows.cuh"
#include "policy/lse.cuh"
#include "policy/mask_chain.cuh"
#include "policy/row_tiles.cuh"
#include "policy/scale.cuh"
#include "policy/score_chain.cuh"
#include "policy/sink.cuh"
#include "ptx/global_memory.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/special.cuh"

namespace tilewright {
namespace bwd_sm80 {

// Keys of a row, as columns of the block's tile of keys.
struct KeyColumns {
  u16 begin;
  u16 end;
};

// Sizes of the fragments' arrays.
template <class Config>
struct Shape {
  static constexpr int kSplit = Config::kWarps / Config::kKeyWarps;
  static constexpr int kKeys = Config::kBlockN / Config::kKeyWarps;  // of a warp
  static constexpr int kRows = Config::kBlockM / kSplit;             // of a warp, in S and dP
  static constexpr int kKeyTiles = kKeys / 16;
  static constexpr int kRowTiles = kRows / 8;
  static constexpr int kQkTiles = RoundUp(Config::kHeadDimQk, 8) / 8;
  static constexpr int kVTiles = RoundUp(Config::kHeadDimV, 8) / 8;
  // Of a warp, in dK, dV and dQ: see FirstColumnTile.
  static constexpr int kDkTiles = static_cast<int>(CeilDiv(kQkTiles, kSplit));
  static constexpr int kDvTiles = static_cast<int>(CeilDiv(kVTiles, kSplit));
  static constexpr int kDqRowTiles = Config::kBlockM / 16 / Config::kDqRowWarps;
  static constexpr int kDqTiles =
      static_cast<int>(CeilDiv(kQkTiles, Config::kWarps / Config::kDqRowWarps));
};

template <class Config>
struct SharedStorage {
  using Element = typename Config::Element;
  static constexpr int kPitchQk = Pitch(RoundUp(Config::kHeadDimQk, 16));
  static constexpr int kPitchV = Pitch(RoundUp(Config::kHeadDimV, 16));
  static constexpr int kPitchM = Pitch(Config::kBlockM);

  alignas(16) Element k[Config::kBlockN][kPitchQk];
  alignas(16) Element v[Config::kBlockN][kPitchV];
  alignas(16) Element q[Config::kStages][Config::kBlockM][kPitchQk];
  alignas(16) Element d_o[Config::kStages][Config::kBlockM][kPitchV];
  alignas(16) Element p[Config::kBlockN][kPitchM];
  alignas(16) Element ds[Config::kStages][Config::kBlockN][kPitchM];
  alignas(16) abi::RowStats stats[Config::kStages][Config::kBlockM];
  alignas(16) KeyColumns keys[Config::kStages][Config::kBlockM];
  alignas(16) i32 work[4];  // the block's tile, deterministic
};

// The first of the kTiles column tiles, of kAll, that warp number `share` of several computes.
// Where they do not share out evenly the last ones begin earlier, and compute again what is not
// theirs.
template <int kAll, int kTiles>
__device__ __forceinline__ int FirstColumnTile(int share) {
  return static_cast<int>(Min(share * kTiles, kAll - kTiles));
}

// Copies rows [0, valid_rows) of a tensor to a tile; the others and the columns up to the next
// multiple of an MMA step become zeros.
template <class Config, int kColumns, class Element, int kRows, int kPitch>
__device__ __forceinline__ void StartRowsCopy(Element (&tile)[kRows][kPitch], int valid_rows,
                                              bool wide, const Element* first, i64 stride) {
  using Shape = TileShape<kColumns, 16, /*kRunKeys=*/2>;
  const DenseRows<Element> rows = {first, stride};
  if (wide) {
    StartWideCopy<Config, Shape>(tile, valid_rows, rows);
  } else {
    CopyRows<Config, Shape, 1>(tile, valid_rows, rows);
  }
}

// A lane's element c of fragment (m, n): this key and row of the warp's part.
__device__ __forceinline__ int KeyOf(int m, int c) {
  return static_cast<int>(m * 16 + threadIdx.x % 32 / 4 + c / 2 * 8);
}
__device__ __forceinline__ int QueryOf(int n, int c) {
  return static_cast<int>(n * 8 + threadIdx.x % 4 * 2 + c % 2);
}

template <class Config>
using Fragments = float[Shape<Config>::kKeyTiles][Shape<Config>::kRowTiles][4];

// A tile of rows of one head of the group.
struct Step {
  int g;
  i64 m;
};

// One block's walk over the steps of one tile of keys.
template <class Config, class Params>
struct KeyTile {
  using Element = typename Config::Element;
  using Mask = typename Config::Mask;
  using Score = typename Config::Score;
  using S = Shape<Config>;
  using Points = ScorePoint[S::kKeyTiles][S::kRowTiles][4];

  SharedStorage<Config>& shared;
  const Params& params;
  Problem problem;  // of the step at hand
  i64 kv_begin;
  i64 kv_end;
  RowTiles rows;
  RowTiles full_rows;  // tiles whose rows all see all keys
  bool wide_q;
  bool wide_d_o;
  int warp_key;  // first key and first row of this warp's part of S
  int warp_row;

  float dk[S::kKeyTiles][S::kDkTiles][4];
  float dv[S::kKeyTiles][S::kDvTiles][4];
  // Where gradients of terms go.
  struct TermsAt {
    float* at[Config::kBiasGradients + 1];
  };
  TermsAt batch_terms = {};
  float d_slope = 0;
  i32 turn_seen = 0;
  i32* last_turn = nullptr;

  __device__ __forceinline__ void SetHead(int g) { problem.h = problem.h_kv * Config::kGroup + g; }

  // The first step at or after `step` that the mask needs; g == kGroup when there is none.
  __device__ __forceinline__ Step NeededFrom(Step step) {
    while (step.g < Config::kGroup) {
      for (; step.m < rows.end; ++step.m) {
        Problem other = problem;
        other.h = problem.h_kv * Config::kGroup + step.g;
        const RowRange range = RowsOfTile(problem, step.m, Config::kBlockM);
        if (!Mask::Skip(other, range.begin, range.end, kv_begin, kv_end, params)) return step;
        if constexpr (Config::kDeterministic) PassTurn(other, step.m);
      }
      ++step.g;
      step.m = rows.begin;
    }
    return step;
  }

  // Starts the copies of a step's Q, dO and statistics.
  __device__ __forceinline__ void StartRows(int stage, const Step& step) {
    const abi::AttnFwdParams& core = params.core;
    const abi::AttnBwdParams& gradients = params.gradients;
    const i64 h = problem.h_kv * Config::kGroup + step.g;
    const i64 q_begin = step.m * Config::kBlockM;
    const int valid = static_cast<int>(Min(Config::kBlockM, problem.seqlen_q - q_begin));
    const i64 row = problem.q_row + q_begin;
    const Element* q = static_cast<const Element*>(core.q) +
                       problem.q_batch * core.q_strides.batch + h * core.q_strides.head +
                       row * core.q_strides.seq;
    StartRowsCopy<Config, Config::kHeadDimQk>(shared.q[stage], valid, wide_q, q,
                                              core.q_strides.seq);
    const abi::TensorStrides& strides = gradients.d_o_strides;
    const Element* d_o = static_cast<const Element*>(gradients.d_o) +
                         problem.q_batch * strides.batch + h * strides.head + row * strides.seq;
    StartRowsCopy<Config, Config::kHeadDimV>(shared.d_o[stage], valid, wide_d_o, d_o, strides.seq);
    const abi::RowStats* stats =
        gradients.row_stats + (problem.q_batch * core.heads_q + h) * gradients.stats_rows + row;
    for (int r = static_cast<int>(threadIdx.x); r < Config::kBlockM; r += kThreads<Config>) {
      const bool exists = r < valid;
      ptx::cp_async_ca<8>(ptx::SharedAddress(&shared.stats[stage][r]), exists ? stats + r : stats,
                          exists ? 8 : 0);
    }
    ptx::cp_async_commit_group();
  }

  __device__ __forceinline__ bool IsFull(i64 m) const {
    return m >= full_rows.begin && m < full_rows.end;
  }

  // Which keys the rows of a step see, for the element tests.
  __device__ __forceinline__ void FindKeys(int stage, const Step& step) {
    if (step.g == Config::kGroup || IsFull(step.m)) return;
    for (int r = static_cast<int>(threadIdx.x); r < Config::kBlockM; r += kThreads<Config>) {
      const i64 i = step.m * Config::kBlockM + r;
      const KeyInterval keys = Mask::RowKeys(problem, i, params);
      const bool inside = i < problem.seqlen_q;
      shared.keys[stage][r] = {
          static_cast<u16>(Max(0, Min(keys.begin - kv_begin, Config::kBlockN))),
          static_cast<u16>(inside ? Max(0, Min(keys.end - kv_begin, Config::kBlockN)) : 0)};
    }
  }

  __device__ __forceinline__ bool Keeps(int key, int row, const KeyColumns& keys, i64 q_begin,
                                        bool full) const {
    bool keep = full || (key >= keys.begin && key < keys.end);
    if constexpr (!Mask::kIsInterval) {
      keep = keep && Mask::Keep(problem, q_begin + row, kv_begin + key, params);
    }
    return keep;
  }

  // Whether scores are the scaled products and terms that do not depend on them. Then terms are
  // looked up by rows, what depends on the problem alone having been computed once a step (for the
  // offset of a bias a division of 64 bits), and all derivatives are 1.
  static constexpr bool kAddsTerms = !Score::kIdentity && Score::kHasSlopeOne;
  using LaneRuns = KeyRuns<2 * S::kKeyTiles, 1, 8>;

  // Of one row: s from products to scores, for the lane's keys in the set `keep`.
  template <class Head>
  __device__ __forceinline__ void AddTerms(float (&scores)[LaneRuns::kCount], u32 keep,
                                           const Head& head, i64 i) const {
#pragma unroll
    for (float& score : scores) score *= params.core.scale;
    if (keep == 0) return;  // the row need not exist
    const i64 j = kv_begin + warp_key + KeyOf(0, 0);
    const typename Head::Row row(head, {i, j, static_cast<int>(Max(0, kv_end - j))});
    row.template Apply<LaneRuns>(scores, keep);
  }

  // s from products to weights, where kAddsTerms.
  template <bool full>
  __device__ __forceinline__ void WeightsWithTerms(Fragments<Config>& s, int stage, i64 q_begin) {
    const typename Score::template Head<Params> head(problem, params);
#pragma unroll
    for (int n = 0; n < S::kRowTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int row = warp_row + QueryOf(n, c);
        const float reference = shared.stats[stage][row].lse * kLog2OfE;
        const KeyColumns keys = full ? KeyColumns{} : shared.keys[stage][row];
        float scores[LaneRuns::kCount];
        u32 keep = 0;
#pragma unroll
        for (int at = 0; at < LaneRuns::kCount; ++at) {
          scores[at] = s[at / 2][n][at % 2 * 2 + c];
          if (Keeps(warp_key + KeyOf(at / 2, at % 2 * 2), row, keys, q_begin, full)) {
            keep |= 1u << at;
          }
        }
        AddTerms(scores, keep, head, q_begin + row);
#pragma unroll
        for (int at = 0; at < LaneRuns::kCount; ++at) {
          const float weight = ptx::ex2_approx_ftz(fmaf(scores[at], kLog2OfE, -reference));
          s[at / 2][n][at % 2 * 2 + c] = (keep >> at & 1) != 0 ? weight : 0.f;
        }
      }
    }
  }

  // A weight that dropout drops is kept with its sign turned.
  __device__ __forceinline__ void DropWeights(Fragments<Config>& s, i64 q_begin) const {
#pragma unroll
    for (int n = 0; n < S::kRowTiles; ++n) {
#pragma unroll
      for (int m = 0; m < S::kKeyTiles; ++m) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          float& weight = s[m][n][c];
          const float factor = Config::Dropout::Factor(problem, q_begin + warp_row + QueryOf(n, c),
                                                       kv_begin + warp_key + KeyOf(m, c), params);
          weight = factor == 0 ? -weight : weight;
        }
      }
    }
  }

  // s from products to weights. `points` remembers what the gradient of a score needs.
  template <bool full>
  __device__ __forceinline__ void Weights(Fragments<Config>& s, Points& points, int stage,
                                          i64 q_begin) {
    if constexpr (kAddsTerms) {
      WeightsWithTerms<full>(s, stage, q_begin);
      if constexpr (!Config::Dropout::kIdentity) DropWeights(s, q_begin);
      return;
    }
    const float to_log2 = Score::kIdentity ? params.core.scale * kLog2OfE : kLog2OfE;
#pragma unroll
    for (int n = 0; n < S::kRowTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int row = warp_row + QueryOf(n, c);
        const float reference = shared.stats[stage][row].lse * kLog2OfE;
        const KeyColumns keys = full ? KeyColumns{} : shared.keys[stage][row];
#pragma unroll
        for (int m = 0; m < S::kKeyTiles; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& weight = s[m][n][2 * half + c];
            const int key = warp_key + KeyOf(m, 2 * half);
            if constexpr (Score::kIdentity) {
              weight = ptx::ex2_approx_ftz(fmaf(weight, to_log2, -reference));
              if (!full) weight = Keeps(key, row, keys, q_begin, false) ? weight : 0.f;
            } else {
              ScorePoint& point = points[m][n][2 * half + c];
              point = {};
              if (Keeps(key, row, keys, q_begin, full)) {
                point = Score::Differentiate(weight * params.core.scale, problem, q_begin + row,
                                             kv_begin + key, params);
                weight = ptx::ex2_approx_ftz(fmaf(point.score, to_log2, -reference));
              } else {
                weight = 0;
              }
            }
            if constexpr (!Config::Dropout::kIdentity) {
              // A weight that dropout drops is kept with its sign turned.
              const float factor =
                  Config::Dropout::Factor(problem, q_begin + row, kv_begin + key, params);
              weight = factor == 0 ? -weight : weight;
            }
          }
        }
      }
    }
  }

  // dp from the gradients of weights to those of products (without the scale).
  template <bool full>
  __device__ __forceinline__ void ScoreGradients(const Fragments<Config>& s, Fragments<Config>& dp,
                                                 const Points& points, int stage, i64 q_begin) {
    [[maybe_unused]] TermsAt terms = FindTerms(q_begin);
    MoveTerms(terms, warp_row + QueryOf(0, 0), warp_key + KeyOf(0, 0));
#pragma unroll
    for (int n = 0; n < S::kRowTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int row = warp_row + QueryOf(n, c);
        const float delta = shared.stats[stage][row].delta;
        [[maybe_unused]] TermsAt at_row = terms;
        MoveTerms(at_row, 8 * n + c, 0);  // QueryOf(n, c) less that of the first
#pragma unroll
        for (int m = 0; m < S::kKeyTiles; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float weight = s[m][n][2 * half + c];
            float& gradient = dp[m][n][2 * half + c];
            if constexpr (Config::Dropout::kIdentity) {
              gradient = weight * (gradient - delta);
            } else {
              const float kept = weight < 0 ? 0.f : params.dropout.keep_scale;
              gradient = fabsf(weight) * (kept * gradient - delta);
            }
            // The dO * V of a masked key may be anything.
            if (!full) gradient = weight == 0 ? 0.f : gradient;
            if constexpr (kPairwiseGradients) {
              const ScorePoint point =
                  kAddsTerms ? ScorePoint{0, 1, 1, 0} : points[m][n][2 * half + c];
              if (weight != 0) {
                gradient = PairGradient(point, gradient, q_begin + row,
                                        kv_begin + warp_key + KeyOf(m, 2 * half), at_row);
              }
              MoveTerms(at_row, 0, 8);
            } else if constexpr (!Score::kHasSlopeOne) {
              gradient *= points[m][n][2 * half + c].by_dot;
            }
          }
        }
      }
    }
  }

  // Whether a pair's gradient goes elsewhere too, or through a snippet.
  static constexpr bool kAddsToBiases = Config::kBiasGradients > 0 && !Config::kDeterministic;
  static constexpr bool kAddsToSlopes =
      !kIsSame<typename Config::AlibiGradient, AlibiGradientNone> && !Config::kDeterministic;
  // The gradients of scores are those of the biases too: they are added when they are all there.
  static constexpr bool kAddsScores =
      kAddsTerms && kAddsToBiases && !kAddsToSlopes && !Config::kHasScoreGradient;
  static constexpr bool kPairwiseGradients =
      Config::kHasScoreGradient || kAddsToSlopes || (kAddsToBiases && !kAddsScores);

  // Where the gradients of the terms at the tile's first row and key go: found once a step.
  __device__ __forceinline__ TermsAt FindTerms(i64 q_begin) const {
    TermsAt terms = batch_terms;
    if constexpr (kAddsToBiases) {
#pragma unroll
      for (int t = 0; t < Config::kBiasGradients; ++t) {
        const abi::BiasGradientArgs& term = params.bias_gradients[t];
        terms.at[t] +=
            problem.h * term.stride_head + q_begin * term.stride_q + kv_begin * term.stride_kv;
      }
    }
    return terms;
  }
  // Those of the batch: once a tile of keys, for there are divisions of 64 bits.
  __device__ __forceinline__ void FindBatchTerms() {
    if constexpr (kAddsToBiases) {
#pragma unroll
      for (int t = 0; t < Config::kBiasGradients; ++t) {
        const abi::BiasGradientArgs& term = params.bias_gradients[t];
        batch_terms.at[t] =
            term.data +
            Remainder(Quotient(problem.b, term.batch_div), term.batch_mod) * term.stride_batch;
      }
    }
  }

  __device__ __forceinline__ void MoveTerms(TermsAt& terms, int rows, int keys) const {
    if constexpr (kAddsToBiases) {
#pragma unroll
      for (int t = 0; t < Config::kBiasGradients; ++t) {
        const abi::BiasGradientArgs& term = params.bias_gradients[t];
        terms.at[t] += rows * term.stride_q + keys * term.stride_kv;
      }
    }
  }

  // `terms`: of the pair.
  __device__ __forceinline__ float PairGradient(const ScorePoint& point, float d_score, i64 i,
                                                i64 j, const TermsAt& terms) {
    const ScoreGradient gradient =
        Score::Gradient(point, d_score, /*adds=*/true, problem, i, j, params);
    if constexpr (kAddsToBiases) {
#pragma unroll
      for (int t = 0; t < Config::kBiasGradients; ++t) {
        ptx::red_global_add_f32(terms.at[t], gradient.bias);
      }
    }
    if constexpr (kAddsToSlopes) {
      d_slope += gradient.bias * Config::AlibiGradient::Share(problem, i, j);
    }
    return gradient.dot;
  }

  // Adds gradients of scores to those of the biases. All pairs of a full tile exist, and where keys
  // are neighbours one address serves a row.
  __device__ __forceinline__ void AddScoreGradients(const Fragments<Config>& s,
                                                    const Fragments<Config>& dp, i64 q_begin,
                                                    bool full) const {
    if constexpr (kAddsScores) {
      TermsAt terms = FindTerms(q_begin);
      MoveTerms(terms, warp_row + QueryOf(0, 0), warp_key + KeyOf(0, 0));
#pragma unroll
      for (int t = 0; t < Config::kBiasGradients; ++t) {
        const abi::BiasGradientArgs& term = params.bias_gradients[t];
        if (full && term.stride_kv == 1) {
          AddToTerm<true>(s, dp, terms.at[t], term.stride_q, 1);
        } else {
          AddToTerm<false>(s, dp, terms.at[t], term.stride_q, term.stride_kv);
        }
      }
    }
  }
  // `first`: of the lane's first pair.
  template <bool kAllExist>
  __device__ __forceinline__ static void AddToTerm(const Fragments<Config>& s,
                                                   const Fragments<Config>& dp, float* first,
                                                   i64 stride_q, i64 stride_kv) {
#pragma unroll
    for (int n = 0; n < S::kRowTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float* const row = first + (8 * n + c) * stride_q;
#pragma unroll
        for (int m = 0; m < S::kKeyTiles; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            if (!kAllExist && s[m][n][2 * half + c] == 0) continue;
            ptx::red_global_add_f32(row + (16 * m + 8 * half) * stride_kv, dp[m][n][2 * half + c]);
          }
        }
      }
    }
  }

  // The 16-bit form of a warp's part of P (with `scale`, dropped ones 0) or dS.
  __device__ __forceinline__ void StoreOperand(
      Element (&tile)[Config::kBlockN][SharedStorage<Config>::kPitchM],
      const Fragments<Config>& values, bool is_weight) {
#pragma unroll
    for (int m = 0; m < S::kKeyTiles; ++m) {
#pragma unroll
      for (int n = 0; n < S::kRowTiles; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float low = values[m][n][2 * half], high = values[m][n][2 * half + 1];
          if constexpr (!Config::Dropout::kIdentity) {
            if (is_weight) {
              low = low < 0 ? 0.f : low * params.dropout.keep_scale;
              high = high < 0 ? 0.f : high * params.dropout.keep_scale;
            }
          }
          *reinterpret_cast<u32*>(&tile[warp_key + KeyOf(m, 2 * half)][warp_row + QueryOf(n, 0)]) =
              ptx::cvt_rn_x2_f32(high, low, Element{});
        }
      }
    }
  }

  // ---- turns --------------------------------------------------------------------------------

  // How many blocks of keys add to the tile before this one.
  __device__ __forceinline__ i32 TurnOf(i64 m) const {
    const RowRange range = RowsOfTile(problem, m, Config::kBlockM);
    const i64 keys_end = KeysOfRows<Mask>(problem, range, params).end;
    return static_cast<i32>(CeilDiv(keys_end, Config::kBlockN) - 1 - kv_begin / Config::kBlockN);
  }
  __device__ __forceinline__ i32* TurnAt(const Problem& at, i64 m) const {
    return params.gradients.dq_turns + DqTile(at, m, Config::kBlockM, params);
  }
  // Thread 0 asks early whose turn it is, so that the answer is there when it is needed.
  __device__ __forceinline__ void AskForTurn(i64 m) {
    if (threadIdx.x == 0) turn_seen = ptx::ld_relaxed_gpu_s32(TurnAt(problem, m));
  }
  // Between AskForTurn and barrier A. No fence: additions happen in L2 in the order they come
  // there, this block's begin after the answer has come, and they read nothing here.
  __device__ __forceinline__ void TellTurn(i64 m) const {
    if (threadIdx.x == 0) {
      const i32 turn = TurnOf(m);
      i32 seen = turn_seen;
      while (seen != turn) seen = ptx::ld_relaxed_gpu_s32(TurnAt(problem, m));
    }
  }
  // Lets the next block add once all warps have: in the middle of the next step, when the additions
  // have long been done. The barrier puts them before thread 0's release.
  __device__ __forceinline__ void EndLastTurn() {
    if (last_turn == nullptr) return;
    constexpr int kBarrier = 1 + Config::kKeyWarps;
    if (threadIdx.x < 32) {
      ptx::bar_sync(kBarrier, kThreads<Config>);
      if (threadIdx.x == 0) ptx::red_release_gpu_add_s32(last_turn, 1);
    } else {
      ptx::bar_arrive(kBarrier, kThreads<Config>);
    }
    last_turn = nullptr;
  }
  // A tile that this block has nothing to add to.
  __device__ __forceinline__ void PassTurn(const Problem& at, i64 m) const {
    if (threadIdx.x == 0) {
      const i32 turn = TurnOf(m);
      while (ptx::ld_acquire_gpu_s32(TurnAt(at, m)) != turn) {
      }
      ptx::red_release_gpu_add_s32(TurnAt(at, m), 1);
    }
  }

  // ---- a step -------------------------------------------------------------------------------

  // dQ of the step's rows from ds and K, to memory.
  __device__ __forceinline__ void AddDq(int stage, i64 m) {
    constexpr int kColumnWarps = Config::kWarps / Config::kDqRowWarps;
    const int warp = static_cast<int>(threadIdx.x / 32);
    const int first_row = warp / kColumnWarps * S::kDqRowTiles;
    const int share = warp % kColumnWarps;
    const int first_column = FirstColumnTile<S::kQkTiles, S::kDqTiles>(share);
    float dq[S::kDqRowTiles][S::kDqTiles][4];
    Clear(dq);
    Multiply<Element, SumIndex::kAcrossRows, SumIndex::kAcrossRows, Config::kBlockN / 16,
             SharedStorage<Config>::kPitchM, SharedStorage<Config>::kPitchQk>(
        dq, LeftAddress<SumIndex::kAcrossRows>(shared.ds[stage], 0, first_row * 16),
        RightAddress<SumIndex::kAcrossRows>(shared.k, 0, first_column * 8));
    float* tile = params.gradients.dq_sums +
                  DqTile(problem, m, Config::kBlockM, params) * (Config::kBlockM * S::kQkTiles * 8);
#pragma unroll
    for (int r = 0; r < S::kDqRowTiles; ++r) {
#pragma unroll
      for (int n = 0; n < S::kDqTiles; ++n) {
        const int column = first_column + n;
        if (kColumnWarps * S::kDqTiles != S::kQkTiles && column < share * S::kDqTiles) continue;
        AddFragment(tile + ((first_row + r) * S::kQkTiles + column) * 128, dq[r][n]);
      }
    }
    if constexpr (Config::kDeterministic) last_turn = TurnAt(problem, m);
  }

  // From the products to P and dS in shared memory.
  template <bool full>
  __device__ __forceinline__ void Softmax(Fragments<Config>& s, Fragments<Config>& dp, int stage,
                                          i64 q_begin) {
    Points points;
    Weights<full>(s, points, stage, q_begin);
    StoreOperand(shared.p, s, /*is_weight=*/true);
    ScoreGradients<full>(s, dp, points, stage, q_begin);
    StoreOperand(shared.ds[stage], dp, /*is_weight=*/false);
  }

  // Step `step`, whose Q and dO have arrived in `stage`, while those of `next` are on their way to
  // the other stage. Returns the step after `next`.
  __device__ __forceinline__ Step Run(const Step& step, const Step& next, int stage) {
    constexpr auto kAlong = SumIndex::kAlongRow;
    constexpr auto kAcross = SumIndex::kAcrossRows;
    using Shared = SharedStorage<Config>;
    SetHead(step.g);
    if constexpr (Config::kDeterministic) AskForTurn(step.m);
    Fragments<Config> s, dp;
    Clear(s);
    Multiply<Element, kAlong, kAlong, RoundUp(Config::kHeadDimQk, 16) / 16, Shared::kPitchQk,
             Shared::kPitchQk>(s, LeftAddress<kAlong>(shared.k, warp_key, 0),
                               RightAddress<kAlong>(shared.q[stage], warp_row, 0));
    Clear(dp);
    Multiply<Element, kAlong, kAlong, RoundUp(Config::kHeadDimV, 16) / 16, Shared::kPitchV,
             Shared::kPitchV>(dp, LeftAddress<kAlong>(shared.v, warp_key, 0),
                              RightAddress<kAlong>(shared.d_o[stage], warp_row, 0));
    if constexpr (Config::kDeterministic) EndLastTurn();
    const i64 q_begin = step.m * Config::kBlockM;
    if constexpr (kPairwiseGradients || kAddsScores) {
      // Where pairs have gradients of their own the code for these is long: once, not twice.
      Points points;
      if (IsFull(step.m)) {
        Weights<true>(s, points, stage, q_begin);
      } else {
        Weights<false>(s, points, stage, q_begin);
      }
      StoreOperand(shared.p, s, /*is_weight=*/true);
      ScoreGradients<false>(s, dp, points, stage, q_begin);
      StoreOperand(shared.ds[stage], dp, /*is_weight=*/false);
      AddScoreGradients(s, dp, q_begin, IsFull(step.m));
    } else if (IsFull(step.m)) {
      Softmax<true>(s, dp, stage, q_begin);
    } else {
      Softmax<false>(s, dp, stage, q_begin);
    }
    const int split = static_cast<int>(threadIdx.x / 32) % S::kSplit;
    ptx::bar_sync(1 + static_cast<int>(threadIdx.x / 32) / S::kSplit, S::kSplit * 32);
    Multiply<Element, kAlong, kAcross, Config::kBlockM / 16, Shared::kPitchM, Shared::kPitchV>(
        dv, LeftAddress<kAlong>(shared.p, warp_key, 0),
        RightAddress<kAcross>(shared.d_o[stage], 0,
                              FirstColumnTile<S::kVTiles, S::kDvTiles>(split) * 8));
    Multiply<Element, kAlong, kAcross, Config::kBlockM / 16, Shared::kPitchM, Shared::kPitchQk>(
        dk, LeftAddress<kAlong>(shared.ds[stage], warp_key, 0),
        RightAddress<kAcross>(shared.q[stage], 0,
                              FirstColumnTile<S::kQkTiles, S::kDkTiles>(split) * 8));
    if constexpr (Config::kDeterministic) TellTurn(step.m);
    constexpr int kOther = Config::kStages - 1;
    if constexpr (Config::kStages == 2) {
      FindKeys(stage ^ kOther, next);
      ptx::cp_async_wait_group<0>();
    }
    __syncthreads();  // A
    // With one stage the next step's rows come now, with two those of the step after it.
    const Step after = NeededFrom({next.g, next.m + 1});
    const Step& start = Config::kStages == 2 ? after : next;
    if (start.g < Config::kGroup) StartRows(stage, start);
    if constexpr (Config::kStages == 1) FindKeys(0, next);
    AddDq(stage, step.m);
    if constexpr (kAddsToSlopes) {
      if (next.g != step.g) AddSlope();
    }
    if constexpr (Config::kStages == 1) {
      ptx::cp_async_wait_group<0>();
      __syncthreads();  // B
    }
    return after;
  }

  __device__ __forceinline__ void AddSlope() {
    const float sum = WarpSum(d_slope);
    d_slope = 0;
    const abi::BiasGradientArgs& slopes = params.alibi_gradient;
    if (threadIdx.x % 32 == 0) {
      ptx::red_global_add_f32(
          slopes.data + problem.b / slopes.batch_div % slopes.batch_mod * slopes.stride_batch +
              problem.h * slopes.stride_head,
          sum);
    }
  }

  // A warp's part of dK or dV to shared memory.
  template <int kAll, int kTiles, int kPitch>
  __device__ __forceinline__ void StoreSums(Element (&tile)[Config::kBlockN][kPitch],
                                            const float (&sums)[S::kKeyTiles][kTiles][4],
                                            float scale) {
    const int share = static_cast<int>(threadIdx.x / 32) % S::kSplit;
    const int first = FirstColumnTile<kAll, kTiles>(share);
#pragma unroll
    for (int m = 0; m < S::kKeyTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        if (S::kSplit * kTiles != kAll && first + n < share * kTiles) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          *reinterpret_cast<u32*>(
              &tile[warp_key + KeyOf(m, 2 * half)][(first + n) * 8 + QueryOf(0, 0)]) =
              ptx::cvt_rn_x2_f32(sums[m][n][2 * half + 1] * scale, sums[m][n][2 * half] * scale,
                                 Element{});
        }
      }
    }
  }
};

// Rows [0, rows) of a shared tile to memory, by all threads.
template <int kColumns, int kThreads, class Element, int kRows, int kPitch>
__device__ __forceinline__ void CopyOut(const Element (&tile)[kRows][kPitch], int rows, bool wide,
                                        Element* out, i64 stride) {
  const int thread = static_cast<int>(threadIdx.x);
  if (wide && kColumns % 8 == 0) {
    constexpr int kChunks = RoundUp(kColumns, 8) / 8;
    for (int n = thread; n < rows * kChunks; n += kThreads) {
      const int row = n / kChunks, column = n % kChunks * 8;
      *reinterpret_cast<Words<16>*>(out + row * stride + column) =
          *reinterpret_cast<const Words<16>*>(&tile[row][column]);
    }
  } else {
    for (int n = thread; n < rows * kColumns; n += kThreads) {
      const int row = n / kColumns, column = n % kColumns;
      out[row * stride + column] = tile[row][column];
    }
  }
}

// Zeroes K of a tile but for rows [begin, end). A call, so that its registers are not those of the
// loop.
template <class Config>
__device__ __noinline__ void ClearKeysBut(typename Config::Element* k, i64 begin, i64 end) {
  constexpr int kPitch = SharedStorage<Config>::kPitchQk;
  for (int n = static_cast<int>(threadIdx.x); n < Config::kBlockN * kPitch; n += kThreads<Config>) {
    if (n / kPitch < begin || n / kPitch >= end) k[n] = typename Config::Element{};
  }
  __syncthreads();
}

template <class Config, class Params>
__device__ __forceinline__ void ProcessKeys(SharedStorage<Config>& shared, const Problem& problem,
                                            i64 kv_begin, const Params& params) {
  using Element = typename Config::Element;
  using S = Shape<Config>;
  const abi::AttnFwdParams& core = params.core;
  const abi::AttnBwdParams& gradients = params.gradients;
  const int warp = static_cast<int>(threadIdx.x / 32);
  KeyTile<Config, Params> tile = {
      .shared = shared,
      .params = params,
      .problem = problem,
      .kv_begin = kv_begin,
      .kv_end = Min(kv_begin + Config::kBlockN, problem.seqlen_kv),
      .rows = {0, 0},
      .full_rows = {0, 0},
      .wide_q = Aligned16(core.q, core.q_strides),
      .wide_d_o = Aligned16(gradients.d_o, gradients.d_o_strides),
      .warp_key = warp / S::kSplit * S::kKeys,
      .warp_row = warp % S::kSplit * S::kRows,
  };
  Clear(tile.dk);
  Clear(tile.dv);
  tile.FindBatchTerms();
  if (kv_begin < problem.seqlen_kv) {
    tile.rows = RowTilesOfKeys<typename Config::Mask>(problem, kv_begin, tile.kv_end,
                                                      Config::kBlockM, params);
    if (kv_begin + Config::kBlockN <= problem.seqlen_kv) {
      tile.full_rows = FullRowTilesOfKeys<typename Config::Mask>(
          problem, kv_begin, tile.kv_end, Config::kBlockM, tile.rows, params);
    }
  }
  __syncthreads();  // the block's previous tile is out of shared memory
  Step step = tile.NeededFrom({0, tile.rows.begin});
  if (step.g < Config::kGroup) {
    const int keys = static_cast<int>(tile.kv_end - kv_begin);
    const auto first_key = [&](const void* tensor, const abi::TensorStrides& strides) {
      return static_cast<const Element*>(tensor) + problem.kv_batch * strides.batch +
             problem.h_kv * strides.head + (problem.kv_row + kv_begin) * strides.seq;
    };
    StartRowsCopy<Config, Config::kHeadDimQk>(shared.k, keys, Aligned16(core.k, core.k_strides),
                                              first_key(core.k, core.k_strides),
                                              core.k_strides.seq);
    StartRowsCopy<Config, Config::kHeadDimV>(shared.v, keys, Aligned16(core.v, core.v_strides),
                                             first_key(core.v, core.v_strides), core.v_strides.seq);
    tile.StartRows(0, step);
    tile.FindKeys(0, step);
    Step next = tile.NeededFrom({step.g, step.m + 1});
    if constexpr (Config::kStages == 2) {
      if (next.g < Config::kGroup) tile.StartRows(1, next);
      ptx::cp_async_wait_group<1>();
    }
    if (Config::kStages == 1 || next.g == Config::kGroup) ptx::cp_async_wait_group<0>();
    __syncthreads();
    // dQ would make a NaN of 0 times that of a key that no row sees: K becomes zeros there.
    if constexpr (Config::Mask::kHidesKeys) {
      const KeyInterval seen =
          KeysOfRows<typename Config::Mask>(problem, {0, problem.seqlen_q}, params);
      if (seen.begin > kv_begin || seen.end < tile.kv_end) {
        ClearKeysBut<Config>(&shared.k[0][0], seen.begin - kv_begin, seen.end - kv_begin);
      }
    }
    for (int stage = 0; step.g < Config::kGroup; stage ^= Config::kStages - 1) {
      const Step after = tile.Run(step, next, stage);
      step = next;
      next = after;
    }
  }
  if constexpr (Config::kDeterministic) tile.EndLastTurn();
  __syncthreads();  // K and V have been read: their place takes dK and dV
  tile.template StoreSums<S::kQkTiles>(shared.k, tile.dk, core.scale);
  tile.template StoreSums<S::kVTiles>(shared.v, tile.dv, 1.f);
  __syncthreads();
  // Rows beyond seqused_kv belong to the sequence too; their sums are 0.
  const int rows = static_cast<int>(
      Min(Config::kBlockN, Config::Lengths::StoredKeys(problem, params) - kv_begin));
  const auto first_row = [&](void* tensor, const abi::TensorStrides& strides) {
    return static_cast<Element*>(tensor) + problem.kv_batch * strides.batch +
           problem.h_kv * strides.head + (problem.kv_row + kv_begin) * strides.seq;
  };
  CopyOut<Config::kHeadDimQk, kThreads<Config>>(
      shared.k, rows, Aligned16(gradients.d_k, gradients.d_k_strides),
      first_row(gradients.d_k, gradients.d_k_strides), gradients.d_k_strides.seq);
  CopyOut<Config::kHeadDimV, kThreads<Config>>(
      shared.v, rows, Aligned16(gradients.d_v, gradients.d_v_strides),
      first_row(gradients.d_v, gradients.d_v_strides), gradients.d_v_strides.seq);
}

template <class Config, class Params>
__device__ __forceinline__ void Run(const Params& params) {
  static_assert(MaskPolicy<typename Config::Mask, Params>);
  static_assert(ScorePolicy<typename Config::Score, Params>);
  static_assert(Config::KvRows::kIsDense,
                "dK and dV of a page that two sequences share have no row");
  static_assert(Config::kBlockN % (16 * Config::kKeyWarps) == 0);
  static_assert(Shape<Config>::kRows % 16 == 0);
  static_assert(Config::kBlockM % (16 * Config::kDqRowWarps) == 0);
  extern __shared__ __align__(16) u8 shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(shared_bytes);
  const i64 n_tiles = CeilDiv(SeqlenKv<Config>(params), Config::kBlockN);
  const i64 tiles = Batch<Config>(params) * params.core.heads_kv * n_tiles;
  // Tiles of one head are neighbours, so that blocks that run together share Q and dO in L2. Its
  // first keys come first: under a causal mask these have the most rows. Deterministic, the last.
  for (i64 ticket = blockIdx.x;; ticket += gridDim.x) {
    i64 at = ticket;
    if constexpr (Config::kDeterministic) {
      __syncthreads();  // the number before it has been read
      if (threadIdx.x == 0) {
        shared.work[0] = atomicAdd(WorkCounter<Config>(params), 1);
      }
      __syncthreads();
      at = shared.work[0];
    }
    if (at >= tiles) break;
    const i64 head = at / n_tiles;
    const i64 n = Config::kDeterministic ? n_tiles - 1 - at % n_tiles : at % n_tiles;
    const Problem problem = MakeProblem<Config>(
        head / params.core.heads_kv, head % params.core.heads_kv * Config::kGroup, params);
    const i64 kv_begin = n * Config::kBlockN;
    if (kv_begin < Config::Lengths::StoredKeys(problem, params)) {
      ProcessKeys<Config>(shared, problem, kv_begin, params);
    }
  }
}

}  // namespace bwd_sm80
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_BWD_SM80_CUH_
