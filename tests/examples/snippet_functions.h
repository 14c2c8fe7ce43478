// The snippets of a spec as functions of the host: the text as the emitter wraps it for kernels,
// compiled by the C++ compiler that built this program.
#ifndef TILEWRIGHT_TESTS_EXAMPLES_SNIPPET_FUNCTIONS_H_
#define TILEWRIGHT_TESTS_EXAMPLES_SNIPPET_FUNCTIONS_H_

#include <filesystem>
#include <string>
#include <vector>

#include "examples/example.h"
#include "reference/reference.h"
#include "tilewright/attention.h"

namespace tilewright::examples {

// Values and derivative of a score rule, as each Scalar type computes them.
struct ScoreResults {
  float as_float = 0;
  double as_double = 0;
  float dual_value = 0;
  float dual_derivative = 0;
};

class SnippetFunctions {
 public:
  // `example` outlives this.
  SnippetFunctions(const Example& example, const AttentionSpec& spec);
  ~SnippetFunctions();
  SnippetFunctions(const SnippetFunctions&) = delete;
  SnippetFunctions& operator=(const SnippetFunctions&) = delete;

  // Why they could not be compiled; empty when they were.
  const std::string& error() const { return error_; }
  ScoreResults Score(double score, const reference::Where& at) const;
  bool Keeps(const reference::Where& at) const;

 private:
  std::filesystem::path folder_;
  std::string error_;
  void* library_ = nullptr;
  std::vector<const void*> arrays_;
  std::vector<SnippetValue> scalars_;
};

}  // namespace tilewright::examples

#endif  // TILEWRIGHT_TESTS_EXAMPLES_SNIPPET_FUNCTIONS_H_
