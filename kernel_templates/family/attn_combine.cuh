// Merges the results of attention over parts of the keys, exactly: the weights of the parts are
// exp(lse_part - lse), where lse = ln(sum exp(lse_part)) is the LSE of all the keys.
//
// Algorithm A row is the work of kWarpsPerRow warps, which share its parts; lane l has the columns
//           l, l + 32, ... of a panel. O is read in batches of parts; the first is on its way while
//           the LSEs (a lane each) become weights. A part without keys (-inf) is skipped: its O
//           need not have been written. A sink joins the sum here and nowhere else.
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
#include "policy/decode_work.cuh"
#include "policy/lse.cuh"
#include "policy/sink.cuh"
#include "ptx/griddep.cuh"

namespace tilewright {
namespace combine {

template <class Config>
inline constexpr int kWarpsPerRow = Config::kWarps / Config::kBlockM;
// Columns that are summed at a time: at most 512, which are 16 registers a lane.
template <class Config>
inline constexpr int kPanel = RoundUp(Config::kHeadDimV < 512 ? Config::kHeadDimV : 512, 32);

template <class Config>
inline constexpr int kPanelColumns = kPanel<Config> / 32;  // of a lane
// Parts that a warp reads at a time.
template <class Config>
inline constexpr int kBatch = kPanelColumns<Config> >= 16 ? 3
                              : kPanelColumns<Config> > 4 ? 6
                                                          : 12;

template <class Config>
struct SharedStorage {
  float o[kWarpsPerRow<Config> > 1 ? Config::kWarps : 1]
         [kWarpsPerRow<Config> > 1 ? kPanel<Config> + 1 : 1];
};

// One row's parts: part p is at o + p * o_stride and lse[p * lse_stride], the first one
// o_shift and lse_shift further.
template <class Config>
struct RowParts {
  const typename Config::PartElement* o;
  const float* lse;
  i64 o_stride;
  i64 lse_stride;
  i64 o_shift;
  i64 lse_shift;
  i64 parts;

  __device__ __forceinline__ float Lse(i64 p) const {
    return Config::PartLse::Natural(lse[p * lse_stride + (p == 0 ? lse_shift : 0)]);
  }
  __device__ __forceinline__ const typename Config::PartElement* O(i64 p) const {
    return o + p * o_stride + (p == 0 ? o_shift : 0);
  }
};

// The work of attn_decode, whose parts these are (Config::kTileRows).
template <class Config>
struct WorkConfig {
  using Mask = typename Config::Mask;
  using Lengths = typename Config::Lengths;
  static constexpr int kBlockM = Config::kTileRows;
  static constexpr int kBlockN = Config::kTileKeys;
  static constexpr int kStepKeys = Config::kTileStep;
  static constexpr int kChunk = Config::kChunk;
  static constexpr int kGroup = Config::kGroup;
  static constexpr i64 kBatch = Config::kBatch;
  static constexpr i64 kSeqlenQ = Config::kSeqlenQ;
  static constexpr i64 kSeqlenKv = Config::kSeqlenKv;
};

// Where attn_decode has left the parts of row i; one part: the row is complete.
template <class Config, class Params>
__device__ __forceinline__ RowParts<Config> DecodeParts(const Problem& problem, i64 i,
                                                        const Params& params) {
  using Work = WorkConfig<Config>;
  const abi::PartsArgs& args = params.parts;
  const int total = UnitsBefore<Work>(static_cast<int>(Batch<Work>(params)), params);
  const int lines = args.lines;
  const UnitShares shares = SharesOf<Work>(total, args.line_blocks);
  const DecodeSequence sequence = SequenceAt<Work>(problem, params);
  const int packed = static_cast<int>(i * Work::kGroup + problem.h % Work::kGroup);
  const int h_kv = static_cast<int>(problem.h_kv);
  const int head = DivideInts(h_kv, lines);
  const int item = head * sequence.row_tiles + packed / Work::kBlockM;
  const int begin = UnitsBefore<Work>(static_cast<int>(problem.b), params) + item * sequence.units;
  const int row = packed % Work::kBlockM;
  const PartSlots slots = SlotsOf<Work>(shares, lines, h_kv - head * lines, begin, sequence.units);
  constexpr i64 kSlot = i64{Work::kBlockM} * Config::kHeadDimV;
  const i64 further = slots.further, apart = slots.apart, shift = slots.first - slots.further;
  return {.o = static_cast<const typename Config::PartElement*>(args.o) + further * kSlot +
               row * Config::kHeadDimV,
          .lse = args.lse + further * Work::kBlockM + row,
          .o_stride = apart * kSlot,
          .lse_stride = apart * Work::kBlockM,
          .o_shift = shift * kSlot,
          .lse_shift = shift * Work::kBlockM,
          .parts = slots.count};
}

// LSE of all parts, and of the sink; the same in every lane.
template <class Config>
__device__ __forceinline__ float TotalLse(const RowParts<Config>& row, float sink, int lane) {
  float highest = -Infinity(), sum = 0;
  for (i64 p = lane; p < row.parts; p += 32) {
    const float lse = row.Lse(p);
    const float reference = SoftmaxReference(fmaxf(highest, lse));
    sum = sum * Exp(highest - reference) + Exp(lse - reference);
    highest = fmaxf(highest, lse);
  }
  const float all = WarpMax(highest);
  sum = WarpSum(sum * Exp(highest - SoftmaxReference(all)));
  return FinishSoftmax(all, sum, sink).lse;
}

// Columns [first, first + kPanel) of the parts begin, begin + kWarpsPerRow, ...
template <class Config>
__device__ __forceinline__ void ReadBatch(float (&o)[kBatch<Config>][kPanelColumns<Config>],
                                          const RowParts<Config>& row, int first, i64 begin,
                                          int lane) {
#pragma unroll
  for (int n = 0; n < kBatch<Config>; ++n) {
    const i64 part = begin + n * kWarpsPerRow<Config>;
#pragma unroll
    for (int k = 0; k < kPanelColumns<Config>; ++k) {
      const int d = first + k * 32 + lane;
      o[n][k] = part < row.parts && d < Config::kHeadDimV ? static_cast<float>(row.O(part)[d]) : 0;
    }
  }
}

// Adds a batch, weighted by exp(part_lse - lse): lane n has that of part n.
template <class Config>
__device__ __forceinline__ void AddBatch(float (&sum)[kPanelColumns<Config>],
                                         const float (&o)[kBatch<Config>][kPanelColumns<Config>],
                                         float part_lse, float lse) {
  // A total of +inf makes NaN, as it should.
  const float weight = part_lse == -Infinity() ? 0.f : Exp(part_lse - lse);
#pragma unroll
  for (int n = 0; n < kBatch<Config>; ++n) {
    const bool empty = __shfl_sync(kAllLanes, part_lse, n) == -Infinity();
    const float w = __shfl_sync(kAllLanes, weight, n);
    if (empty) continue;
#pragma unroll
    for (int k = 0; k < kPanelColumns<Config>; ++k) sum[k] = fmaf(w, o[n][k], sum[k]);
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
  RowParts<Config> row = {
      .o = static_cast<const typename Config::PartElement*>(args.o) +
           problem.q_batch * args.o_stride_batch + problem.h * args.o_stride_head +
           row_index * args.o_stride_seq,
      .lse = args.lse + problem.q_batch * args.lse_stride_batch + problem.h * args.lse_stride_head +
             row_index,
      .o_stride = args.o_stride_part,
      .lse_stride = args.lse_stride_part,
      .o_shift = 0,
      .lse_shift = 0,
      .parts = inside ? args.parts : 0,
  };
  bool writes = inside;
  if constexpr (Config::kTileRows != 0) {
    if (inside) row = DecodeParts<Config>(problem, i, params);
    // Everything so far could be known before the parts are there.
    ptx::griddepcontrol_wait();
    // All warps of the block have the same row, or each has one of its own and meets no barrier.
    if (row.parts <= 1) {
      if constexpr (kWarpsPerRow<Config> == Config::kWarps || kWarpsPerRow<Config> == 1) return;
      writes = false;
    }
  }
  typename Config::OutElement* const out =
      static_cast<typename Config::OutElement*>(core.o) + problem.q_batch * core.o_strides.batch +
      problem.h * core.o_strides.head + row_index * core.o_strides.seq;
  float lse = 0;
  bool has_lse = false;
  for (int first = 0; first < Config::kHeadDimV; first += kPanel<Config>) {
    float o[kPanelColumns<Config>] = {};
    i64 begin = warp;
    do {
      float batch[kBatch<Config>][kPanelColumns<Config>];
      ReadBatch<Config>(batch, row, first, begin, lane);
      const i64 mine = begin + i64{lane} * kWarpsPerRow<Config>;
      const float part_lse =
          lane < kBatch<Config> && mine < row.parts ? row.Lse(mine) : -Infinity();
      if (!has_lse) {
        lse = TotalLse<Config>(row, Config::Sink::Logit(problem, params), lane);
        if (writes && warp == 0 && lane == 0) Config::Lse::Store(lse, problem, i, params);
        has_lse = true;
      }
      AddBatch<Config>(o, batch, part_lse, lse);
      begin += kBatch<Config> * kWarpsPerRow<Config>;
    } while (begin < row.parts);
    if constexpr (kWarpsPerRow<Config> != 1) {
#pragma unroll
      for (int k = 0; k < kPanelColumns<Config>; ++k) shared.o[block_warp][k * 32 + lane] = o[k];
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kPanelColumns<Config>; ++k) {
        o[k] = 0;
        for (int w = 0; w < kWarpsPerRow<Config>; ++w) {
          o[k] += shared.o[block_warp - warp + w][k * 32 + lane];
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int k = 0; k < kPanelColumns<Config>; ++k) {
      const int d = first + k * 32 + lane;
      if (writes && k % kWarpsPerRow<Config> == warp && d < Config::kHeadDimV) {
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
  // The kernel of the next call may take its place; it waits for the end of this one.
  ptx::griddepcontrol_launch_dependents();
  if constexpr (Config::kTileRows == 0) ptx::griddepcontrol_wait();
  // Rows of all heads one after the other: after decode a head has few, and a block several heads'.
  const i64 rows = core.batch * core.heads_q * core.seqlen_q;
  const i64 tiles = CeilDiv(rows, Config::kBlockM);
  for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const i64 row =
        tile * Config::kBlockM + static_cast<int>(threadIdx.x / 32) / kWarpsPerRow<Config>;
    const i64 bh = Quotient(Min(row, rows - 1), core.seqlen_q);
    const i64 b = Quotient(bh, core.heads_q);
    const i64 h = bh - b * core.heads_q;
    Problem problem = {
        .b = b,
        .h = h,
        .h_kv = Quotient(h * core.heads_kv, core.heads_q),
        .seqlen_q = core.seqlen_q,
        .seqlen_kv = core.seqlen_kv,
        .q_batch = b,
        .q_row = 0,
        .kv_batch = 0,
        .kv_row = 0,
    };
    Config::Lengths::Apply(problem, params);
    // Behind the last row there is none: i is seqlen_q.
    MergeRow<Config>(shared, problem, row - bh * core.seqlen_q, params);
  }
}

}  // namespace combine
}  // namespace tilewright

#endif  // TILEWRIGHT_FAMILY_ATTN_COMBINE_CUH_
