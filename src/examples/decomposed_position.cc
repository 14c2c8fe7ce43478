// Decomposed relative position (SAM's and MViTv2's image encoders, Li et al., arXiv 2112.01526): of
// a query, a score for each row of the image and one for each column; a key gets the sum of the two
// that it lies in.
#include "examples/example.h"

namespace tilewright::examples {

Example DecomposedPosition(const AttentionSpec& spec) {
  constexpr int64_t kWidth = 12;
  const int64_t height = (spec.seqlen_kv + kWidth - 1) / kWidth;
  const int64_t queries = spec.batch * spec.heads_q * spec.seqlen_q;
  const std::vector<float> rows = ExampleTable(queries * height);
  const std::vector<float> columns = ExampleTable(queries * kWidth);
  Example example;
  // rows [batch, heads, seqlen_q, height], columns [batch, heads, seqlen_q, width]
  example.score = R"(
    const int64_t query = (b * heads + h) * seqlen_q + i;
    return score + rows[query * height + j / width] + columns[query * width + j % width];)";
  example.Floats("rows", rows).Floats("columns", columns);
  example.Scalar("heads", spec.heads_q).Scalar("height", height).Scalar("width", kWidth);
  example.rules.score = [=, heads = spec.heads_q](double score, const reference::Where& at) {
    const int64_t query = (at.b * heads + at.h) * at.seqlen_q + at.i;
    const int64_t y = at.j / kWidth, x = at.j - y * kWidth;
    return score + rows[query * height + y] + columns[query * kWidth + x];
  };
  example.rules.score_derivative = [](double, const reference::Where&) { return 1.0; };
  return example;
}

}  // namespace tilewright::examples
