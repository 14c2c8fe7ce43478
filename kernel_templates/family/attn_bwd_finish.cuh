// After a backward pass that added dQ up in memory: dQ = scale * sums, in the caller's type and
// layout.
//
// Work     A block a tile of kBlockM rows; a warp 16 rows of 32 columns at a time, which are four
//          fragments (mma/dq_sums.cuh). The four lanes that hold a row exchange what they have, so
//          that each then has eight neighbouring columns of one fragment.
#ifndef TILEWRIGHT_FAMILY_ATTN_BWD_FINISH_CUH_
#define TILEWRIGHT_FAMILY_ATTN_BWD_FINISH_CUH_

#include "core/convert.cuh"
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
#include "ptx/mma_sync.cuh"

namespace tilewright {
namespace bwd_finish {

// None is used.
template <class Config>
struct SharedStorage {
  float none;
};

inline constexpr int kFragmentsOfGroup = 4;
inline constexpr int kFragmentRows = 16;
inline constexpr int kFragmentColumns = 8;
inline constexpr int kFloatsOfFragment = kFragmentRows * kFragmentColumns;

// word[n] of lane q becomes word[q] of lane n, of four neighbouring lanes.
__device__ __forceinline__ void TransposeInQuad(u32 (&word)[4]) {
  const int q = static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    const bool upper = (q & distance) != 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if ((n & distance) != 0) continue;
      const u32 sent = upper ? word[n] : word[n + distance];
      const u32 received = __shfl_xor_sync(kAllLanes, sent, distance);
      if (upper) {
        word[n] = received;
      } else {
        word[n + distance] = received;
      }
    }
  }
}

template <class Config>
__device__ __forceinline__ void StoreChunk(typename Config::Element* out, const u32 (&words)[4],
                                           int column, bool wide) {
  using Element = typename Config::Element;
  if (wide) {
    *reinterpret_cast<Words<16>*>(out) = {{words[0], words[1], words[2], words[3]}};
    return;
  }
#pragma unroll
  for (int d = 0; d < kFragmentColumns; ++d) {
    if (column + d >= Config::kHeadDimQk) return;
    out[d] = Element{static_cast<u16>(words[d / 2] >> d % 2 * 16)};
  }
}

template <class Config, class Params>
__device__ __forceinline__ void FinishTile(const Problem& problem, i64 q_begin,
                                           const Params& params) {
  using Element = typename Config::Element;
  constexpr int kColumnTiles = RoundUp(Config::kHeadDimQk, kFragmentColumns) / kFragmentColumns;
  constexpr int kGroups = (kColumnTiles + kFragmentsOfGroup - 1) / kFragmentsOfGroup;
  constexpr int kItems = Config::kBlockM / kFragmentRows * kGroups;
  const abi::AttnBwdParams& gradients = params.gradients;
  const abi::TensorStrides& strides = gradients.d_q_strides;
  const bool wide = Config::kHeadDimQk % kFragmentColumns == 0 && Aligned16(gradients.d_q, strides);
  const float* tile =
      gradients.dq_sums + DqTile(problem, q_begin / Config::kBlockM, Config::kBlockM, params) *
                              (Config::kBlockM * kColumnTiles * kFragmentColumns);
  Element* first = static_cast<Element*>(gradients.d_q) + problem.q_batch * strides.batch +
                   problem.h * strides.head + (problem.q_row + q_begin) * strides.seq;
  const int rows = static_cast<int>(Min(Config::kBlockM, problem.seqlen_q - q_begin));
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 2
  for (int item = static_cast<int>(threadIdx.x) / 32; item < kItems; item += Config::kWarps) {
    const int row = item / kGroups * kFragmentRows + lane / 4, group = item % kGroups;
    // Pairs of neighbours in rows r and r + 8 of each fragment.
    u32 upper[kFragmentsOfGroup] = {}, lower[kFragmentsOfGroup] = {};
#pragma unroll
    for (int n = 0; n < kFragmentsOfGroup; ++n) {
      const int column_tile = group * kFragmentsOfGroup + n;
      if (column_tile >= kColumnTiles) break;
      const float* fragment =
          tile + (item / kGroups * kColumnTiles + column_tile) * kFloatsOfFragment;
      float value[4];
      LoadFragment(fragment, value);
#pragma unroll
      for (float& v : value) v *= params.core.scale;
      upper[n] = ptx::cvt_rn_x2_f32(value[1], value[0], Element{});
      lower[n] = ptx::cvt_rn_x2_f32(value[3], value[2], Element{});
    }
    TransposeInQuad(upper);
    TransposeInQuad(lower);
    const int column = (group * kFragmentsOfGroup + lane % 4) * kFragmentColumns;
    if (column >= Config::kHeadDimQk) continue;
    Element* out = first + row * strides.seq + column;
    if (row < rows) StoreChunk<Config>(out, upper, column, wide);
    if (row + 8 < rows) StoreChunk<Config>(out + 8 * strides.seq, lower, column, wide);
  }
}

template <class Config, class Params>
__device__ __forceinline__ void Run(const Params& params) {
  ptx::griddepcontrol_wait();
  const i64 row_tiles = CeilDiv(SeqlenQ<Config>(params), Config::kBlockM);
  const i64 tiles = Batch<Config>(params) * params.core.heads_q * row_tiles;
  for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    // The last heads first: their sums are in L2.
    const i64 at = tiles - 1 - tile, head = at / row_tiles;
    const i64 q_begin = at % row_tiles * Config::kBlockM;
    const Problem problem =
        MakeProblem<Config>(head / params.core.heads_q, head % params.core.heads_q, params);
    if (q_begin < problem.seqlen_q) FinishTile<Config>(problem, q_begin, params);
  }
}

}  // namespace bwd_finish
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_BWD_FINISH_CUH_
