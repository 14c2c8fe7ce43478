// Sums of dQ in fp32 that the blocks of a backward kernel add to in memory, and that
// attn_bwd_finish turns into dQ. A tile of block_m rows lies fragment by fragment (m16n8, as a warp
// holds them), so that a warp adds to memory without gaps.
#ifndef TILEWRIGHT_MMA_DQ_SUMS_CUH_
#define TILEWRIGHT_MMA_DQ_SUMS_CUH_

#include "abi/attn_bwd_params.h"
#include "core/math.cuh"
#include "core/problem.cuh"
#include "core/words.cuh"
#include "ptx/global_memory.cuh"

namespace tilewright {

// Number of the tile of `problem`'s rows from m * block_m on. Packed sequences follow one another;
// each may leave part of its last tile unused, so sequence b begins b tiles later than its row
// says.
template <class Params>
__device__ __forceinline__ i64 DqTile(const Problem& problem, i64 m, i64 block_m,
                                      const Params& params) {
  const i64 head = problem.q_batch * params.core.heads_q + problem.h;
  const bool packed = params.gradients.sums_batches != params.core.batch;
  const i64 first = packed ? problem.q_row / block_m + problem.b : 0;
  return head * params.gradients.tiles_of_head + first + m;
}

// What the blocks that share the work of a launch draw numbers from, cleared by attn_bwd_prep: it
// lies behind the turns of the tiles, where there are such.
template <class Config, class Params>
__device__ __forceinline__ i32* WorkCounter(const Params& params) {
  const abi::AttnBwdParams& gradients = params.gradients;
  if constexpr (!Config::kDeterministic) return gradients.dq_turns;
  return gradients.dq_turns +
         gradients.sums_batches * params.core.heads_q * gradients.tiles_of_head;
}

// Floats between c = 0 and element c of lane `lane`'s part of a fragment of 128: a lane's four are
// neighbours where one instruction adds four, otherwise the lanes are.
__device__ __forceinline__ constexpr int DqSumAt(int lane, int c) {
  return ptx::kHasRedV4 ? lane * 4 + c : c * 32 + lane;
}

// This lane's part.
__device__ __forceinline__ void LoadFragment(const float* fragment, float (&value)[4]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if constexpr (ptx::kHasRedV4) {
    const auto words = *reinterpret_cast<const Words<16>*>(fragment + DqSumAt(lane, 0));
#pragma unroll
    for (int c = 0; c < 4; ++c) value[c] = FloatOfBits(words.word[c]);
  } else {
#pragma unroll
    for (int c = 0; c < 4; ++c) value[c] = fragment[DqSumAt(lane, c)];
  }
}

__device__ __forceinline__ void AddFragment(float* fragment, const float (&value)[4]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if constexpr (ptx::kHasRedV4) {
    ptx::red_global_add_v4_f32(fragment + DqSumAt(lane, 0), value);
  } else {
#pragma unroll
    for (int c = 0; c < 4; ++c) ptx::red_global_add_f32(fragment + DqSumAt(lane, c), value[c]);
  }
}

}  // namespace tilewright

#endif  // TILEWRIGHT_MMA_DQ_SUMS_CUH_
