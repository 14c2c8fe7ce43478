// The softmax of a row whose scores arrive in blocks (Milakov, Gimelshein, arXiv 1805.02867): a
// running maximum m, the sum of exp(s - m), and the end of it. Scores are natural logits.
#ifndef TILEWRIGHT_CORE_ONLINE_SOFTMAX_CUH_
#define TILEWRIGHT_CORE_ONLINE_SOFTMAX_CUH_

#include "core/math.cuh"

namespace tilewright {

// What to subtract from scores whose maximum is `m`: not -inf, for -inf - -inf is NaN where
// exp(-inf - 0) is the 0 that a row without keys needs.
TILEWRIGHT_HOST_DEVICE float SoftmaxReference(float m) { return m == -Infinity() ? 0.f : m; }

// How far scores may pass a row's reference before it moves, in units of log2: weights then stay
// below 2^8, far from the limits of every operand type. (The idea of not rescaling for small moves
// is FlashAttention-4's.)
inline constexpr float kLazyLog2 = 8;

struct SoftmaxEnd {
  bool empty;     // no key had a weight: the output is 0 whatever was accumulated
  float o_scale;  // output = accumulated * o_scale
  float lse;      // natural; -inf when there is neither key nor sink
};

// `m` and `l` are the maximum and the sum of the row (l is 0 or at least 1, or NaN), `sink` a
// further logit that joins the sum but has no value, -inf for none.
TILEWRIGHT_HOST_DEVICE SoftmaxEnd FinishSoftmax(float m, float l, float sink) {
  const float reference = SoftmaxReference(sink > m ? sink : m);
  const float rescale = Exp(m - reference);
  const float total = l * rescale + Exp(sink - reference);
  return {l == 0, rescale / total, total == 0 ? -Infinity() : reference + Log(total)};
}

}  // namespace tilewright

#endif  // TILEWRIGHT_CORE_ONLINE_SOFTMAX_CUH_
