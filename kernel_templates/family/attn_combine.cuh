// Merges the results of attention over parts of the keys, exactly: the weights of the parts are
// exp(lse_part - lse), where lse = ln(sum exp(lse_part)) is the LSE of all the keys.
//
// Algorithm A row is the work of kWarpsPerRow warps, which share its parts; lane l has the columns
//           l, l + 32, ... of a panel. The LSEs come first (a lane each), then O weighted by them.
//           A part without keys (-inf) is skipped: its O need not have been written. A sink joins
//           the sum here and nowhere else.
// Warps     kWarps = kBlockM rows * kWarpsPerRow.
// Barriers  kWarpsPerRow > 1: one before and one after the warps' sums are added.
// Shared    o [kWarps][kPanel + 1] fp32, with more than one warp a row.
#ifndef TILEWRIGHT_FAMILY_ATTN_COMBINE_CUH_
#define TILEWRIGHT_FAMILY_ATTN_COMBINE_CUH_

#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/online_softmax.cuh"
#include "core/problem.cuh"
#include "core/warp_reduce.cuh"
#include "policy/lse.cuh"
#include "policy/sink.cuh"

namespace tilewright {
namespace combine {

template <class Config>
inline constexpr int kWarpsPerRow = Config::kWarps / Config::kBlockM;
// Columns that are summed at a time: at most 512, which are 16 registers a lane.
template <class Config>
inline constexpr int kPanel = RoundUp(Config::kHeadDimV < 512 ? Config::kHeadDimV : 512, 32);

template <class Config>
struct SharedStorage {
  float o[kWarpsPerRow<Config> > 1 ? Config::kWarps : 1]
         [kWarpsPerRow<Config> > 1 ? kPanel<Config> + 1 : 1];
};

// One row's parts: part p is at o + p * o_stride and lse[p * lse_stride].
template <class Config>
struct RowParts {
  const typename Config::PartElement* o;
  const float* lse;
  i64 o_stride;
  i64 lse_stride;
  i64 parts;
};

// LSE of all parts, and of the sink; the same in every lane.
template <class Config>
__device__ __forceinline__ float TotalLse(const RowParts<Config>& row, float sink, int lane) {
  float highest = -Infinity(), sum = 0;
  for (i64 p = lane; p < row.parts; p += 32) {
    const float lse = row.lse[p * row.lse_stride];
    const float reference = SoftmaxReference(fmaxf(highest, lse));
    sum = sum * Exp(highest - reference) + Exp(lse - reference);
    highest = fmaxf(highest, lse);
  }
  const float all = WarpMax(highest);
  sum = WarpSum(sum * Exp(highest - SoftmaxReference(all)));
  return FinishSoftmax(all, sum, sink).lse;
}

// Adds the weighted columns [first, first + kPanel) of the parts `warp`, `warp` + kWarpsPerRow, ...
template <class Config>
__device__ __forceinline__ void AddParts(float (&o)[kPanel<Config> / 32],
                                         const RowParts<Config>& row, float lse, int first,
                                         int warp, int lane) {
  constexpr int kStep = kWarpsPerRow<Config>;
  for (i64 begin = warp; begin < row.parts; begin += 32 * kStep) {
    const i64 mine = begin + i64{lane} * kStep;
    const float part_lse = mine < row.parts ? row.lse[mine * row.lse_stride] : -Infinity();
    // A total of +inf makes NaN, as it should.
    const float weight = part_lse == -Infinity() ? 0.f : Exp(part_lse - lse);
    const int count = static_cast<int>(Min(CeilDiv(row.parts - begin, kStep), 32));
#pragma unroll 4
    for (int n = 0; n < count; ++n) {
      const bool empty = __shfl_sync(kAllLanes, part_lse, n) == -Infinity();
      const float w = __shfl_sync(kAllLanes, weight, n);
      if (empty) continue;
      const typename Config::PartElement* part = row.o + (begin + n * kStep) * row.o_stride;
#pragma unroll
      for (int k = 0; k < kPanel<Config> / 32; ++k) {
        const int d = first + k * 32 + lane;
        if (d < Config::kHeadDimV) o[k] = fmaf(w, static_cast<float>(part[d]), o[k]);
      }
    }
  }
}

template <class Config, class Params>
__device__ __forceinline__ void MergeRow(SharedStorage<Config>& shared, const Problem& problem,
                                         i64 i, const Params& params) {
  const abi::PartsArgs& args = params.parts;
  const abi::AttnFwdParams& core = params.core;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int block_warp = static_cast<int>(threadIdx.x / 32);
  const int warp = block_warp % kWarpsPerRow<Config>;
  const bool inside = i < problem.seqlen_q;
  const i64 row_index = problem.q_row + i;
  const RowParts<Config> row = {
      .o = static_cast<const typename Config::PartElement*>(args.o) +
           problem.q_batch * args.o_stride_batch + problem.h * args.o_stride_head +
           row_index * args.o_stride_seq,
      .lse = args.lse + problem.q_batch * args.lse_stride_batch + problem.h * args.lse_stride_head +
             row_index,
      .o_stride = args.o_stride_part,
      .lse_stride = args.lse_stride_part,
      .parts = inside ? args.parts : 0,
  };
  const float sink = Config::Sink::Logit(problem, params);
  const float lse = TotalLse<Config>(row, sink, lane);
  if (inside && warp == 0 && lane == 0) Config::Lse::Store(lse, problem, i, params);
  typename Config::OutElement* const out =
      static_cast<typename Config::OutElement*>(core.o) + problem.q_batch * core.o_strides.batch +
      problem.h * core.o_strides.head + row_index * core.o_strides.seq;
  for (int first = 0; first < Config::kHeadDimV; first += kPanel<Config>) {
    float o[kPanel<Config> / 32] = {};
    AddParts<Config>(o, row, lse, first, warp, lane);
    if constexpr (kWarpsPerRow < Config >> 1) {
#pragma unroll
      for (int k = 0; k < kPanel<Config> / 32; ++k) shared.o[block_warp][k * 32 + lane] = o[k];
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kPanel<Config> / 32; ++k) {
        o[k] = 0;
        for (int w = 0; w < kWarpsPerRow<Config>; ++w) {
          o[k] += shared.o[block_warp - warp + w][k * 32 + lane];
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int k = 0; k < kPanel<Config> / 32; ++k) {
      const int d = first + k * 32 + lane;
      if (inside && k % kWarpsPerRow<Config> == warp && d < Config::kHeadDimV) {
        FromFloat(o[k], &out[d]);
      }
    }
  }
}

template <class Config, class Params>
__device__ __forceinline__ void Run(const Params& params) {
  static_assert(Config::kWarps % Config::kBlockM == 0);
  extern __shared__ __align__(16) u8 shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(shared_bytes);
  const abi::AttnFwdParams& core = params.core;
  const i64 row_tiles = CeilDiv(core.seqlen_q, Config::kBlockM);
  const i64 tiles = core.batch * core.heads_q * row_tiles;
  for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const i64 bh = tile / row_tiles;
    Problem problem = {
        .b = bh / core.heads_q,
        .h = bh % core.heads_q,
        .h_kv = 0,
        .seqlen_q = core.seqlen_q,
        .seqlen_kv = 0,
        .q_batch = bh / core.heads_q,
        .q_row = 0,
        .kv_batch = 0,
        .kv_row = 0,
    };
    Config::Lengths::Apply(problem, params);
    const i64 i = tile % row_tiles * Config::kBlockM +
                  static_cast<int>(threadIdx.x / 32) / kWarpsPerRow<Config>;
    MergeRow<Config>(shared, problem, i, params);
  }
}

}  // namespace combine
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_COMBINE_CUH_
