// After a backward pass that added dQ up in memory: dQ = scale * sums, in the caller's type and
// layout.
//
// Work     A block a tile of kBlockM rows; a thread 8 columns of a row, which lie in 4 places of a
//          fragment (mma/dq_sums.cuh), neighbours along the row.
#ifndef TILEWRIGHT_FAMILY_ATTN_BWD_FINISH_CUH_
#define TILEWRIGHT_FAMILY_ATTN_BWD_FINISH_CUH_

#include "core/convert.cuh"
#include "core/tile_walk.cuh"
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

namespace tilewright {
namespace bwd_finish {

// None is used.
template <class Config>
struct SharedStorage {
  float none;
};

template <class Config, class Params>
__device__ __forceinline__ void FinishTile(const Problem& problem, i64 q_begin,
                                           const Params& params) {
  using Element = typename Config::Element;
  constexpr int kColumnTiles = RoundUp(Config::kHeadDimQk, 8) / 8;
  const abi::AttnBwdParams& gradients = params.gradients;
  const abi::TensorStrides& strides = gradients.d_q_strides;
  const bool wide = Config::kHeadDimQk % 8 == 0 && Aligned16(gradients.d_q, strides);
  const float* tile =
      gradients.dq_sums + DqTile(problem, q_begin / Config::kBlockM, Config::kBlockM, params) *
                              (Config::kBlockM * kColumnTiles * 8);
  Element* first = static_cast<Element*>(gradients.d_q) + problem.q_batch * strides.batch +
                   problem.h * strides.head + (problem.q_row + q_begin) * strides.seq;
  const int rows = static_cast<int>(Min(Config::kBlockM, problem.seqlen_q - q_begin));
  for (int n = static_cast<int>(threadIdx.x); n < rows * kColumnTiles; n += kThreads<Config>) {
    const int row = n / kColumnTiles, column = n % kColumnTiles;
    const float* fragment = tile + (row / 16 * kColumnTiles + column) * 128;
    alignas(16) Element values[8];
#pragma unroll
    for (int d = 0; d < 8; ++d) {
      const int lane = row % 8 * 4 + d / 2, c = row / 8 % 2 * 2 + d % 2;
      FromFloat(fragment[DqSumAt(lane, c)] * params.core.scale, &values[d]);
    }
    Element* out = first + row * strides.seq + column * 8;
    if (wide) {
      *reinterpret_cast<Words<16>*>(out) = *reinterpret_cast<const Words<16>*>(values);
    } else {
#pragma unroll
      for (int d = 0; d < 8; ++d) {
        if (column * 8 + d < Config::kHeadDimQk) out[d] = values[d];
      }
    }
  }
}

template <class Config, class Params>
__device__ __forceinline__ void Run(const Params& params) {
  WalkTiles<Config>(params, [&](const Problem& problem, i64 q_begin) {
    FinishTile<Config>(problem, q_begin, params);
  });
}

}  // namespace bwd_finish
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_BWD_FINISH_CUH_
