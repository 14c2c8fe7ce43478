// Before a backward pass: what it needs of every query row, and clean scratch memory.
//
// Work     A block a tile of rows of one (batch, head), some lanes of a warp a row: delta =
//          dot(dO, O), by which the gradient of a softmax is p * (dp - delta) without another pass
//          over the keys (FlashAttention, Dao et al., arXiv 2205.14135, appendix B.2), and the
//          natural LSE.
// Scratch  Families that add up dQ in memory get their sums zeroed, each block those of its tile,
// and
//          their turns and other sums, each block its share.
#ifndef TILEWRIGHT_FAMILY_ATTN_BWD_PREP_CUH_
#define TILEWRIGHT_FAMILY_ATTN_BWD_PREP_CUH_

#include "abi/attn_bwd_params.h"
#include "core/concepts.cuh"
#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/problem.cuh"
#include "core/warp_reduce.cuh"
#include "core/words.cuh"
#include "mma/dq_sums.cuh"
#include "mma/tile_copy.cuh"
#include "policy/alibi_gradient.cuh"
#include "policy/dropout.cuh"
#include "policy/kv_rows.cuh"
#include "policy/lse.cuh"
#include "policy/mask_chain.cuh"
#include "policy/scale.cuh"
#include "policy/score_chain.cuh"
#include "policy/sink.cuh"
#include "ptx/griddep.cuh"

namespace tilewright {
namespace bwd_prep {

// None is used.
template <class Config>
struct SharedStorage {
  float none;
};

// Rows of a block's tile: those of a tile of dQ, where there are such.
template <class Config>
inline constexpr int kRows = Config::kBlockM != 0 ? Config::kBlockM : 64;
inline constexpr int kChunk = 8;  // elements that a lane multiplies at a time
// Rows whose copies are under way at a time; more would take registers from other blocks.
inline constexpr int kRowsInFlight = 4;

template <class Config>
__device__ __forceinline__ i64 DimStride(const abi::TensorStrides& strides) {
  return Config::kStridedInnermost ? strides.dim : 1;
}

// Of the elements from `column` on.
template <class Config, class Params>
__device__ __forceinline__ float DotOfChunk(const typename Config::Element* o,
                                            const typename Config::Element* d_o, int column,
                                            bool wide, const Params& params) {
  using Element = typename Config::Element;
  float sum = 0;
  if constexpr (sizeof(Element) == 2 && Config::kHeadDimV % kChunk == 0) {
    if (wide) {
      alignas(16) Element a[kChunk], b[kChunk];
      *reinterpret_cast<Words<16>*>(a) = *reinterpret_cast<const Words<16>*>(o + column);
      *reinterpret_cast<Words<16>*>(b) = *reinterpret_cast<const Words<16>*>(d_o + column);
#pragma unroll
      for (int d = 0; d < kChunk; ++d) {
        sum += static_cast<float>(a[d]) * static_cast<float>(b[d]);
      }
      return sum;
    }
  }
#pragma unroll 1
  for (int d = column; d < min(column + kChunk, Config::kHeadDimV); ++d) {
    sum += static_cast<float>(o[d * DimStride<Config>(params.core.o_strides)]) *
           static_cast<float>(d_o[d * DimStride<Config>(params.gradients.d_o_strides)]);
  }
  return sum;
}

template <class Config, class Params>
__device__ __forceinline__ void PrepareRows(const Problem& problem, i64 q_begin,
                                            const Params& params) {
  using Element = typename Config::Element;
  constexpr int kChunks = (Config::kHeadDimV + kChunk - 1) / kChunk;
  constexpr int kLanesOfRow = kChunks < 32 ? PowerOfTwoFrom(kChunks) : 32;
  constexpr int kRowsOfPass = kThreads<Config> / kLanesOfRow;
  const abi::AttnBwdParams& gradients = params.gradients;
  const int lane = static_cast<int>(threadIdx.x) % kLanesOfRow;
  const int rows = static_cast<int>(Min(kRows<Config>, problem.seqlen_q - q_begin));
  const bool wide = !Config::kStridedInnermost && Aligned16(params.core.o, params.core.o_strides) &&
                    Aligned16(gradients.d_o, gradients.d_o_strides);
  const auto first_row = [&](const void* tensor, const abi::TensorStrides& strides) {
    return static_cast<const Element*>(tensor) + problem.q_batch * strides.batch +
           problem.h * strides.head + (problem.q_row + q_begin) * strides.seq;
  };
  const Element* o = first_row(params.core.o, params.core.o_strides);
  const Element* d_o = first_row(gradients.d_o, gradients.d_o_strides);
#pragma unroll 1
  for (int begin = static_cast<int>(threadIdx.x) / kLanesOfRow; begin < kRows<Config>;
       begin += kRowsInFlight * kRowsOfPass) {
    float sums[kRowsInFlight] = {};
#pragma unroll
    for (int n = 0; n < kRowsInFlight; ++n) {
      const int row = begin + n * kRowsOfPass;
      if (row >= rows) continue;
      for (int chunk = lane; chunk < kChunks; chunk += kLanesOfRow) {
        sums[n] +=
            DotOfChunk<Config>(o + row * params.core.o_strides.seq,
                               d_o + row * gradients.d_o_strides.seq, chunk * kChunk, wide, params);
      }
    }
#pragma unroll
    for (int n = 0; n < kRowsInFlight; ++n) {
#pragma unroll
      for (int distance = kLanesOfRow / 2; distance > 0; distance /= 2) {
        sums[n] += __shfl_xor_sync(kAllLanes, sums[n], distance);
      }
      const int row = begin + n * kRowsOfPass;
      if (lane != 0 || row >= rows) continue;
      const i64 i = q_begin + row;
      const i64 at = (problem.q_batch * params.core.heads_q + problem.h) * gradients.stats_rows +
                     problem.q_row + i;
      gradients.row_stats[at] = {Config::Lse::Load(problem, i, params), sums[n]};
    }
  }
}

// dQ's sums of the tile.
template <class Config, class Params>
__device__ __forceinline__ void ClearDqSums(const Problem& problem, i64 q_begin,
                                            const Params& params) {
  auto* sums = reinterpret_cast<Words<16>*>(
      params.gradients.dq_sums +
      DqTile(problem, q_begin / kRows<Config>, kRows<Config>, params) * Config::kDqSumsOfTile);
  for (int n = static_cast<int>(threadIdx.x); n < Config::kDqSumsOfTile / 4;
       n += kThreads<Config>) {
    sums[n] = {{0, 0, 0, 0}};
  }
}

// What this thread clears of `count` things is those from `first` on, `step` apart.
__device__ __forceinline__ void ClearTerm(const abi::BiasGradientArgs& term, i64 first, i64 step) {
  const i64 count = term.batch * term.heads * term.rows * term.keys;
  for (i64 n = first; n < count; n += step) {
    const i64 j = n % term.keys, i = n / term.keys % term.rows;
    const i64 h = n / term.keys / term.rows % term.heads,
              b = n / term.keys / term.rows / term.heads;
    term.data[b * term.stride_batch + h * term.stride_head + i * term.stride_q +
              j * term.stride_kv] = 0;
  }
}

// What the blocks of the next kernel add to beside dQ.
template <class Config, class Params>
__device__ __forceinline__ void ClearSums(const Params& params) {
  const abi::AttnBwdParams& gradients = params.gradients;
  const i64 threads = static_cast<i64>(gridDim.x) * Config::kWarps * 32;
  const i64 first = static_cast<i64>(blockIdx.x) * Config::kWarps * 32 + threadIdx.x;
  if constexpr (Config::kDeterministic) {
    const i64 tiles = gradients.sums_batches * params.core.heads_q * gradients.tiles_of_head;
    for (i64 n = first; n < tiles; n += threads) gradients.dq_turns[n] = 0;
  }
  if (first == 0) *WorkCounter<Config>(params) = 0;
  if constexpr (Config::kBiasGradients > 0) {
    for (int t = 0; t < Config::kBiasGradients; ++t) {
      ClearTerm(params.bias_gradients[t], first, threads);
    }
  }
  if constexpr (!kIsSame<typename Config::AlibiGradient, AlibiGradientNone>) {
    ClearTerm(params.alibi_gradient, first, threads);
  }
}

template <class Config, class Params>
__device__ __forceinline__ void Run(const Params& params) {
  // The next kernel waits for this one before it reads or adds.
  ptx::griddepcontrol_launch_dependents();
  const i64 row_tiles = CeilDiv(SeqlenQ<Config>(params), kRows<Config>);
  const i64 tiles = Batch<Config>(params) * params.core.heads_q * row_tiles;
  for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    // The first heads last, so that what the next kernel begins with is in L2.
    const i64 at = tiles - 1 - tile, head = at / row_tiles;
    const i64 q_begin = at % row_tiles * kRows<Config>;
    const Problem problem =
        MakeProblem<Config>(head / params.core.heads_q, head % params.core.heads_q, params);
    if (q_begin >= problem.seqlen_q) continue;
    PrepareRows<Config>(problem, q_begin, params);
    if constexpr (Config::kDqSumsOfTile != 0) ClearDqSums<Config>(problem, q_begin, params);
  }
  if constexpr (Config::kDqSumsOfTile != 0) ClearSums<Config>(params);
}

}  // namespace bwd_prep
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_BWD_PREP_CUH_
