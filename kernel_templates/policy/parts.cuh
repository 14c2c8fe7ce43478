// Parts of the keys: how a family cuts the work of a tile of rows, and where a part's result goes.
// With Config::kSplit the parameters have `parts` (abi::PartsArgs); attn_combine merges what was
// written.
#ifndef TILEWRIGHT_POLICY_PARTS_CUH_
#define TILEWRIGHT_POLICY_PARTS_CUH_

#include "abi/policy_args.h"
#include "core/problem.cuh"
#include "policy/mask_chain.cuh"

namespace tilewright {

template <class Config, class Params>
TILEWRIGHT_HOST_DEVICE i64 NumParts([[maybe_unused]] const Params& params) {
  if constexpr (Config::kSplit) {
    return params.parts.parts;
  } else {
    return 1;
  }
}

// The blocks of one part: contiguous, and as many as those of any other, or one less.
TILEWRIGHT_HOST_DEVICE BlockRange PartOf(const BlockRange& range, i64 part, i64 parts) {
  const i64 count = range.end - range.begin;
  const BlockRange own = {range.begin + count * part / parts,
                          range.begin + count * (part + 1) / parts, range.full_begin,
                          range.full_end};
  const i64 full_begin = Max(own.begin, range.full_begin), full_end = Min(own.end, range.full_end);
  if (full_begin >= full_end) return {own.begin, own.end, own.begin, own.begin};
  return {own.begin, own.end, full_begin, full_end};
}

// Where the result of a part of row i goes.
struct PartRow {
  float* o;
  float* lse;  // natural, without the sink
};
TILEWRIGHT_HOST_DEVICE PartRow PartRowAt(const Problem& problem, i64 i, i64 part,
                                         const abi::PartsArgs& parts) {
  const i64 row = problem.q_row + i;
  return {static_cast<float*>(parts.o) + part * parts.o_stride_part +
              problem.q_batch * parts.o_stride_batch + problem.h * parts.o_stride_head +
              row * parts.o_stride_seq,
          parts.lse + part * parts.lse_stride_part + problem.q_batch * parts.lse_stride_batch +
              problem.h * parts.lse_stride_head + row};
}

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_PARTS_CUH_
