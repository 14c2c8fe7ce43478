// Gemma 2's soft cap on scores (Gemma Team, arXiv 2408.00118), as a snippet. The word `softcap=50`
// of a spec does the same; this shows how a rule calls a function so that it also compiles for the
// numbers that carry a derivative in the backward pass.
#include <cmath>

#include "examples/example.h"

namespace tilewright::examples {

Example GemmaSoftcap(const AttentionSpec&) {
  constexpr float kCap = 5;  // small, so that it bends the scores of a test
  Example example;
  example.score = "cap * Tanh(score / cap)";
  example.Scalar("cap", kCap);
  example.rules.score = [](double score, const reference::Where&) {
    return kCap * std::tanh(score / kCap);
  };
  example.rules.score_derivative = [](double score, const reference::Where&) {
    const double cosh = std::cosh(score / kCap);
    return 1 / (cosh * cosh);
  };
  return example;
}

}  // namespace tilewright::examples
