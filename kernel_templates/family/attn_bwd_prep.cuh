// Before a backward pass: what it needs of every query row, and clean scratch memory.
//
// Work     A warp a row of every (batch, head): delta = dot(dO, O), by which the gradient of a
//          softmax is p * (dp - delta) without another pass over the keys (FlashAttention, Dao et
//          al., arXiv 2205.14135, appendix B.2), and the natural LSE.
// Scratch  Families that add up dQ in memory get their sums and turns zeroed, each block its share.
#ifndef TILEWRIGHT_FAMILY_ATTN_BWD_PREP_CUH_
#define TILEWRIGHT_FAMILY_ATTN_BWD_PREP_CUH_

#include "abi/attn_bwd_params.h"
#include "core/concepts.cuh"
#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/problem.cuh"
#include "core/warp_reduce.cuh"
#include "core/words.cuh"
#include "mma/tile_copy.cuh"
#include "policy/alibi_gradient.cuh"
#include "policy/dropout.cuh"
#include "policy/kv_rows.cuh"
#include "policy/lse.cuh"
#include "policy/mask_chain.cuh"
#include "policy/scale.cuh"
#include "policy/score_chain.cuh"
#include "policy/sink.cuh"

namespace tilewright {
namespace bwd_prep {

// None is used.
template <class Config>
struct SharedStorage {
  float none;
};

template <class Config>
__device__ __forceinline__ i64 DimStride(const abi::TensorStrides& strides) {
  return Config::kStridedInnermost ? strides.dim : 1;
}

template <class Config, class Params>
__device__ __forceinline__ void PrepareRow(const Problem& problem, i64 i, const Params& params) {
  using Element = typename Config::Element;
  const abi::AttnBwdParams& gradients = params.gradients;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto row = [&](const void* tensor, const abi::TensorStrides& strides) {
    return static_cast<const Element*>(tensor) + problem.q_batch * strides.batch +
           problem.h * strides.head + (problem.q_row + i) * strides.seq;
  };
  const Element* o = row(params.core.o, params.core.o_strides);
  const Element* d_o = row(gradients.d_o, gradients.d_o_strides);
  float sum = 0;
#pragma unroll 4
  for (int d = lane; d < Config::kHeadDimV; d += 32) {
    sum += static_cast<float>(o[d * DimStride<Config>(params.core.o_strides)]) *
           static_cast<float>(d_o[d * DimStride<Config>(gradients.d_o_strides)]);
  }
  sum = WarpSum(sum);
  if (lane == 0) {
    const i64 at = (problem.q_batch * params.core.heads_q + problem.h) * gradients.stats_rows +
                   problem.q_row + i;
    gradients.row_stats[at] = {Config::Lse::Load(problem, i, params), sum};
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

// The scratch memory and the gradients that the blocks of the next kernel add to.
template <class Config, class Params>
__device__ __forceinline__ void ClearSums(const Params& params) {
  const abi::AttnBwdParams& gradients = params.gradients;
  const i64 threads = static_cast<i64>(gridDim.x) * Config::kWarps * 32;
  const i64 first = static_cast<i64>(blockIdx.x) * Config::kWarps * 32 + threadIdx.x;
  const i64 tiles = gradients.sums_batches * params.core.heads_q * gradients.tiles_of_head;
  auto* sums = reinterpret_cast<Words<16>*>(gradients.dq_sums);
  for (i64 n = first; n < tiles * (Config::kDqSumsOfTile / 4); n += threads) {
    sums[n] = {{0, 0, 0, 0}};
  }
  if constexpr (Config::kDeterministic) {
    // One more than tiles: the counter of the blocks' work.
    for (i64 n = first; n <= tiles; n += threads) gradients.dq_turns[n] = 0;
  }
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
  const i64 rows = SeqlenQ<Config>(params);
  const i64 heads = params.core.heads_q;
  const i64 step = static_cast<i64>(gridDim.x) * Config::kWarps;
  for (i64 n = static_cast<i64>(blockIdx.x) * Config::kWarps + threadIdx.x / 32;
       n < Batch<Config>(params) * heads * rows; n += step) {
    // Heads of one row are neighbours, as they are in memory in most layouts.
    const i64 h = n % heads, i = n / heads % rows, b = n / heads / rows;
    const Problem problem = MakeProblem<Config>(b, h, params);
    if (i < problem.seqlen_q) PrepareRow<Config>(problem, i, params);
  }
  if constexpr (Config::kDqSumsOfTile != 0) ClearSums<Config>(params);
}

}  // namespace bwd_prep
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_BWD_PREP_CUH_
