// Documents packed into one sequence: a token sees its own document only. (Where every document
// starts on its own and only lengths differ, `varlen` is the better form: it has no mask at all.)
#include <algorithm>

#include "examples/example.h"

namespace tilewright::examples {

Example DocumentMask(const AttentionSpec& spec) {
  // Documents of 1, 2, 3, ... up to 40 tokens, other ones in every sequence.
  const int64_t length = std::max(spec.seqlen_q, spec.seqlen_kv);
  std::vector<int32_t> document;
  for (int64_t b = 0; b < spec.batch; ++b) {
    int32_t id = 0;
    for (int64_t token = 0, left = 1 + b; token < length; ++token) {
      document.push_back(id);
      if (--left == 0) left = 1 + ++id % 40;
    }
  }
  Example example;
  // document [batch, length]: of each token, its document's number
  example.mask = "document[b * length + i] == document[b * length + j]";
  example.Ints("document", document).Scalar("length", length);
  example.rules.mask = [=](const reference::Where& at) {
    const auto of = [&](int64_t token) { return document[at.b * length + token]; };
    return of(at.i) == of(at.j);
  };
  return example;
}

}  // namespace tilewright::examples
