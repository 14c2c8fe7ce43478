// The relative shift of Transformer-XL and of Conformer's attention (Dai et al., arXiv 1901.02860):
// each query has a score for every distance, computed by a product of its own with the position
// vectors, and the "shift" is which of them a key gets. Here it is an index: no tensor is moved.
#include "examples/example.h"

namespace tilewright::examples {

Example RelativeShift(const AttentionSpec& spec) {
  const std::vector<float> position =
      ExampleTable(spec.batch * spec.heads_q * spec.seqlen_q * spec.seqlen_kv);
  Example example;
  // position [batch, heads, seqlen_q, seqlen_kv], scaled like the scores: entry p of a query is for
  // the distance seqlen_kv - 1 - p. Keys in front of the query have none and are masked.
  example.score = R"(
    const int64_t query = (b * heads + h) * seqlen_q + i;
    return score + position[query * seqlen_kv + j + (seqlen_q - 1 - i)];)";
  example.mask = "j <= i + (seqlen_kv - seqlen_q)";
  example.Floats("position", position).Scalar("heads", spec.heads_q);
  example.rules.score = [=, heads = spec.heads_q](double score, const reference::Where& at) {
    const int64_t distance = at.i + (at.seqlen_kv - at.seqlen_q) - at.j;
    const int64_t query = (at.b * heads + at.h) * at.seqlen_q + at.i;
    return score + position[(query + 1) * at.seqlen_kv - 1 - distance];
  };
  example.rules.score_derivative = [](double, const reference::Where&) { return 1.0; };
  example.rules.mask = [](const reference::Where& at) {
    return at.i + (at.seqlen_kv - at.seqlen_q) - at.j >= 0;
  };
  return example;
}

}  // namespace tilewright::examples
