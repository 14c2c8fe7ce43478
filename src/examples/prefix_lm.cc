// Prefix-LM: the first prefix[b] tokens (a prompt, an image) see each other, the others what is not
// behind them.
#include "examples/example.h"

namespace tilewright::examples {

Example PrefixLm(const AttentionSpec& spec) {
  std::vector<int32_t> prefix;
  for (int64_t b = 0; b < spec.batch; ++b) prefix.push_back(static_cast<int32_t>(3 + 11 * b));
  Example example;
  // prefix [batch]
  example.mask = "j < prefix[b] || j <= i + (seqlen_kv - seqlen_q)";
  example.mask_tile = R"(
    const int64_t shift = seqlen_kv - seqlen_q;
    if (j_end <= prefix[b] || j_end - 1 <= i_begin + shift) return all;
    return j_begin >= prefix[b] && j_begin > i_end - 1 + shift ? none : some;)";
  example.Ints("prefix", prefix);
  example.rules.mask = [prefix](const reference::Where& at) {
    const int64_t token = at.i + (at.seqlen_kv - at.seqlen_q);
    return at.j <= token || at.j < prefix[at.b];
  };
  return example;
}

}  // namespace tilewright::examples
