// T5's relative position (Raffel et al., arXiv 1910.10683): a learnt bias per head for each of 32
// buckets of distances, up to 7 one each, then logarithmically up to 128; half of the buckets for
// keys behind the query.
#include <cmath>
#include <cstdlib>

#include "examples/example.h"

namespace tilewright::examples {
namespace {

// As T5 computes it.
int64_t BucketOf(int64_t distance) {
  const int64_t side = distance > 0 ? 16 : 0, away = std::abs(distance);
  if (away < 8) return side + away;
  const double steps = std::log(static_cast<double>(away) / 8) / std::log(128.0 / 8) * 8;
  return side + std::min<int64_t>(8 + static_cast<int64_t>(steps + 1e-9), 15);
}

}  // namespace

Example T5Buckets(const AttentionSpec& spec) {
  const std::vector<float> table = ExampleTable(spec.heads_q * 32);
  Example example;
  // table [heads, 32]. The logarithmic buckets begin at 8 * 2^(n / 2), written as whole numbers so
  // that no rounding of a logarithm decides.
  example.score = R"(
    const int64_t distance = j - i;
    const int64_t side = distance > 0 ? 16 : 0;
    const int64_t away = distance < 0 ? -distance : distance;
    int64_t bucket = away;
    if (away >= 8) {
      bucket = 8 + (away >= 12) + (away >= 16) + (away >= 23) + (away >= 32) + (away >= 46) +
               (away >= 64) + (away >= 91);
    }
    return score + table[h * 32 + side + bucket];)";
  example.Floats("table", table);
  example.rules.score = [table](double score, const reference::Where& at) {
    return score + table[at.h * 32 + BucketOf(at.j - at.i)];
  };
  example.rules.score_derivative = [](double, const reference::Where&) { return 1.0; };
  return example;
}

}  // namespace tilewright::examples
