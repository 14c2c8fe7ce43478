// Chunked attention (Llama 4): the sequence is cut into chunks, and a token sees those of its own
// chunk that are not behind it.
#include "examples/example.h"

namespace tilewright::examples {

Example ChunkedAttention(const AttentionSpec&) {
  constexpr int64_t kChunk = 20;
  Example example;
  // Row i is token i + (seqlen_kv - seqlen_q): the queries are the last tokens.
  example.mask = R"(
    const int64_t token = i + (seqlen_kv - seqlen_q);
    return j <= token && token / chunk == j / chunk;)";
  example.mask_tile = R"(
    const int64_t first = i_begin + (seqlen_kv - seqlen_q), last = i_end - 1 + (seqlen_kv - seqlen_q);
    if (j_begin > last) return none;
    if (first < 0) return some;
    if ((j_end - 1) / chunk < first / chunk) return none;
    return j_end - 1 <= first && j_begin / chunk == last / chunk ? all : some;)";
  example.Scalar("chunk", kChunk);
  example.rules.mask = [](const reference::Where& at) {
    const int64_t token = at.i + (at.seqlen_kv - at.seqlen_q);
    for (int64_t j = token / kChunk * kChunk; j <= token; ++j) {
      if (j == at.j && token >= 0) return true;
    }
    return false;
  };
  return example;
}

}  // namespace tilewright::examples
