// Score and mask rules in both forms: CUDA text for the kernels and C++ for the reference.
#ifndef TILEWRIGHT_TESTS_GPU_SNIPPET_RULES_H_
#define TILEWRIGHT_TESTS_GPU_SNIPPET_RULES_H_

#include <functional>
#include <string>
#include <vector>

#include "tests/gpu/spec_sweep.h"

namespace tilewright::gpu_tests {

struct SnippetRule {
  std::string name;
  // Adds the rule, its arrays and its scalars to a case whose sizes are set.
  std::function<void(SweepCase&)> apply;
};

// The rules of src/examples, and some that only a test has a use for.
const std::vector<SnippetRule>& SnippetRules();

}  // namespace tilewright::gpu_tests

#endif  // TILEWRIGHT_TESTS_GPU_SNIPPET_RULES_H_
