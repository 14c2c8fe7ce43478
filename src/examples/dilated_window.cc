// Dilated sliding window (Longformer, Beltagy et al., arXiv 2004.05150): of the last `reach` tokens
// every `dilation`-th, the token itself among them.
#include "examples/example.h"

namespace tilewright::examples {

Example DilatedWindow(const AttentionSpec&) {
  constexpr int64_t kReach = 48, kDilation = 4;
  Example example;
  example.mask = R"(
    const int64_t back = i + (seqlen_kv - seqlen_q) - j;
    return back >= 0 && back < reach && back % dilation == 0;)";
  example.Scalar("reach", kReach).Scalar("dilation", kDilation);
  example.rules.mask = [](const reference::Where& at) {
    const int64_t token = at.i + (at.seqlen_kv - at.seqlen_q);
    for (int64_t back = 0; back < kReach; back += kDilation) {
      if (at.j == token - back) return true;
    }
    return false;
  };
  return example;
}

}  // namespace tilewright::examples
