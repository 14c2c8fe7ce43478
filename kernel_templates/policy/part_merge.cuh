// How the last of the blocks that share an item of attn_decode finds out that it is, and merges
// what they have left (policy/decode_work.cuh): no second kernel waits for its turn then.
//
// Blocks count themselves in a word behind the LSEs of the item's first part. Nobody initialises
// it: a workspace is as the caller has got it. A word is a count only if its upper bits are
// kCounting, a NaN that no arithmetic makes; any other word means that no block has arrived, and
// the last one leaves it so that the next call finds none.
#ifndef TILEWRIGHT_POLICY_PART_MERGE_CUH_
#define TILEWRIGHT_POLICY_PART_MERGE_CUH_

#include "abi/policy_args.h"
#include "core/math.cuh"
#include "core/online_softmax.cuh"
#include "core/types.cuh"
#include "core/warp_reduce.cuh"
#include "policy/decode_work.cuh"
#include "ptx/arrival.cuh"

namespace tilewright {

// Floats of a part's LSEs in the workspace: of its rows, and the word.
template <class Config>
inline constexpr int kPartLses = Config::kBlockM + 2;

inline constexpr u64 kCounting = 0xfff5a11dc7000000ull;
inline constexpr u64 kCountMask = 0xffffffull;

// Whether the caller is the last of `count` that arrive. What arrived blocks wrote before is
// visible to the last one. One thread of a block calls it, behind a barrier.
__device__ __forceinline__ bool ArriveLast(u64* word, int count) {
  // As it is in all calls but the first on a workspace: one trip to memory.
  const u64 arrived = ptx::atom_acq_rel_gpu_add_u64(word, 1);
  if ((arrived & ~kCountMask) == kCounting) {
    const bool last = (arrived & kCountMask) + 1 == static_cast<u64>(count);
    if (last) *word = kCounting;
    return last;
  }
  __threadfence();
  u64 expected = arrived + 1;
  while (true) {
    const u64 before = (expected & ~kCountMask) == kCounting ? expected & kCountMask : 0;
    const bool last = before + 1 == static_cast<u64>(count);
    const u64 seen = atomicCAS(word, expected, kCounting | (last ? 0 : before + 1));
    if (seen == expected) {
      __threadfence();
      return last;
    }
    expected = seen;
  }
}

struct alignas(16) FourColumns {
  float element[4];
};

// Four columns of a row, merged from all parts.
struct MergedRow {
  float value[4];
  SoftmaxEnd end;
};
// All lanes of a warp call it. Lanes 2 n and 2 n + 1 ask for the same columns and read every other
// part each.
template <class Config>
__device__ __forceinline__ MergedRow MergeParts(const PartSlots& slots, int row, int column,
                                                float sink, const abi::PartsArgs& args) {
  // Parts on their way at a time, of a lane.
  constexpr int kBatch = 8;
  const float* const lse = args.lse + row;
  const float* const o = static_cast<const float*>(args.o) + row * Config::kHeadDimV + column;
  float highest = -Infinity(), sum = 0, value[4] = {};
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x % 2); first < slots.count; first += 2 * kBatch) {
    float part_lse[kBatch], part_o[kBatch][4];
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const int part = first + 2 * n;
      const bool exists = part < slots.count;
      const i64 slot = slots.Of(exists ? part : 0);
      part_lse[n] = exists ? lse[slot * kPartLses<Config>] : -Infinity();
      const float* const source = o + slot * (Config::kBlockM * Config::kHeadDimV);
      if constexpr (Config::kHeadDimV % 4 == 0) {
        const FourColumns four = *reinterpret_cast<const FourColumns*>(source);
#pragma unroll
        for (int c = 0; c < 4; ++c) part_o[n][c] = four.element[c];
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          part_o[n][c] = column + c < Config::kHeadDimV ? source[c] : 0;
        }
      }
    }
    float top = highest;
#pragma unroll
    for (int n = 0; n < kBatch; ++n) top = fmaxf(top, part_lse[n]);
    const float reference = SoftmaxReference(top);
    const float factor = Exp(highest - reference);
    sum *= factor;
#pragma unroll
    for (int c = 0; c < 4; ++c) value[c] *= factor;
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      // Of a part without keys O has not been written.
      if (part_lse[n] == -Infinity()) continue;
      const float weight = Exp(part_lse[n] - reference);
      sum += weight;
#pragma unroll
      for (int c = 0; c < 4; ++c) value[c] = fmaf(weight, part_o[n][c], value[c]);
    }
    highest = top;
  }
  const float top = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 1));
  const float factor = Exp(highest - SoftmaxReference(top));
  sum *= factor;
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    value[c] *= factor;
    value[c] += __shfl_xor_sync(kAllLanes, value[c], 1);
  }
  return {{value[0], value[1], value[2], value[3]}, FinishSoftmax(top, sum, sink)};
}

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_PART_MERGE_CUH_
