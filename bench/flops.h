// Floating-point operations of an attention operation, counted exactly: the one formula behind
// every TFLOP/s that this project reports. bench/compare.py has the same rule in Python, and
// tests/bench/flops_cases.json ties the two together.
//
// `pairs` counts the (query, key) pairs that causal masks and windows allow for the spec's lengths.
// Masks that lie in memory (bool terms, block masks, snippets, per-sequence lengths) do not change
// the count: it says how much work the spec describes, not what the data happens to skip.
#ifndef TILEWRIGHT_BENCH_FLOPS_H_
#define TILEWRIGHT_BENCH_FLOPS_H_

#include <algorithm>
#include <cstdint>

#include "tilewright/attention.h"

namespace tilewright::bench {

// Allowed (i, j) with 0 <= i < seqlen_q and 0 <= j < seqlen_kv. One addition a row: exact, and no
// closed form to get wrong.
inline int64_t AllowedPairs(const AttentionSpec& spec) {
  const int64_t right = spec.causal ? 0 : spec.window_right;
  const int64_t offset = spec.align == MaskAlign::kTopLeft ? 0 : spec.seqlen_kv - spec.seqlen_q;
  int64_t pairs = 0;
  for (int64_t i = 0; i < spec.seqlen_q; ++i) {
    const int64_t diagonal = i + offset;
    const int64_t first =
        spec.window_left < 0 ? 0 : std::max<int64_t>(0, diagonal - spec.window_left);
    const int64_t last =
        right < 0 ? spec.seqlen_kv - 1 : std::min(spec.seqlen_kv - 1, diagonal + right);
    pairs += std::max<int64_t>(0, last - first + 1);
  }
  return pairs;
}

// Forward: 2 * pairs * heads * batch * (dim_qk + dim_v). Backward: 2.5 times that.
inline double Flops(const AttentionSpec& spec) {
  const double forward = 2.0 * static_cast<double>(AllowedPairs(spec)) *
                         static_cast<double>(spec.heads_q) * static_cast<double>(spec.batch) *
                         static_cast<double>(spec.dim_qk + spec.dim_v);
  return spec.operation == Operation::kBackward ? 2.5 * forward : forward;
}

// TFLOP/s of `flops` in `milliseconds`.
inline double TeraFlops(double flops, double milliseconds) { return flops / milliseconds * 1e-9; }

}  // namespace tilewright::bench

#endif  // TILEWRIGHT_BENCH_FLOPS_H_
