// Tree attention for speculative decoding (SpecInfer, Miao et al., arXiv 2305.09781; Medusa): the
// queries are drafted tokens that form a tree behind the tokens already accepted. A draft sees all
// accepted tokens, itself and the drafts that lead to it.
#include "examples/example.h"

namespace tilewright::examples {

Example TreeMask(const AttentionSpec& spec) {
  // Three drafts follow each one; drafts are numbered level by level.
  const int64_t words = (spec.seqlen_q + 31) / 32;
  std::vector<int32_t> parent, ancestors(static_cast<size_t>(spec.seqlen_q * words));
  for (int64_t i = 0; i < spec.seqlen_q; ++i) {
    parent.push_back(i == 0 ? -1 : static_cast<int32_t>((i - 1) / 3));
    for (int64_t node = i; node >= 0; node = parent[node]) {
      ancestors[i * words + node / 32] |= static_cast<int32_t>(1u << node % 32);
    }
  }
  Example example;
  // ancestors [seqlen_q, words]: bit n of a draft's words is set when it sees draft n
  example.mask = R"(
    const int64_t draft = j - (seqlen_kv - seqlen_q);
    return draft < 0 || (ancestors[i * words + draft / 32] >> draft % 32 & 1) != 0;)";
  example.Ints("ancestors", ancestors).Scalar("words", words);
  example.rules.mask = [parent](const reference::Where& at) {
    const int64_t draft = at.j - (at.seqlen_kv - at.seqlen_q);
    if (draft < 0) return true;
    for (int64_t node = at.i; node >= 0; node = parent[node]) {
      if (node == draft) return true;
    }
    return false;
  };
  return example;
}

}  // namespace tilewright::examples
