// StreamingLLM (Xiao et al., arXiv 2309.17453): a causal window, and the first tokens besides,
// which take the attention that a model has no better use for.
#include "examples/example.h"

namespace tilewright::examples {

Example StreamingSinks(const AttentionSpec&) {
  constexpr int64_t kFirst = 4, kWindow = 24;
  Example example;
  example.mask = R"(
    const int64_t back = i + (seqlen_kv - seqlen_q) - j;
    return back >= 0 && (back < window || j < first);)";
  example.Scalar("first", kFirst).Scalar("window", kWindow);
  example.rules.mask = [](const reference::Where& at) {
    const int64_t token = at.i + (at.seqlen_kv - at.seqlen_q);
    const bool recent = at.j > token - kWindow && at.j <= token;
    return recent || (at.j < kFirst && at.j <= token);
  };
  return example;
}

}  // namespace tilewright::examples
