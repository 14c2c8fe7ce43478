// The specs that the GPU tests run: every feature of the forward alone, odd dims and lengths, and
// seeded random combinations. One list for numerics, determinism and the sanitizers.
#ifndef TILEWRIGHT_TESTS_GPU_SPEC_SWEEP_H_
#define TILEWRIGHT_TESTS_GPU_SPEC_SWEEP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cli/random_problem.h"
#include "reference/reference.h"
#include "tilewright/attention.h"

namespace tilewright::gpu_tests {

struct SweepCase {
  std::string name;  // letters, digits and underscores; unique
  AttentionSpec spec;
  cli::RandomProblemOptions problem;
  // The spec's snippets written in C++, for the reference.
  reference::Callables callables;
  // Small enough for compute-sanitizer, which runs a kernel a hundred times slower.
  bool sanitizer = false;
};

// Number of random combinations in the sweep.
inline constexpr int kRandomCombinations = 100;

// The whole list; equal on every machine and in every run.
const std::vector<SweepCase>& SpecSweep();

// Small cases of the sweep for compute-sanitizer, each feature at least once.
std::vector<SweepCase> SanitizerSweep();

// Size of SanitizerSweep().
inline constexpr int kSanitizerCases = 47;

}  // namespace tilewright::gpu_tests

#endif  // TILEWRIGHT_TESTS_GPU_SPEC_SWEEP_H_
