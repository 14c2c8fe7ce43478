// Random problems of every kind that a spec can ask for: which features come together, on which
// sizes, is drawn from a seed, weighted to what programs have. The sweep takes a hundred of them;
// gpu_test --fuzz takes any number.
#ifndef TILEWRIGHT_TESTS_GPU_RANDOM_CASE_H_
#define TILEWRIGHT_TESTS_GPU_RANDOM_CASE_H_

#include <cstdint>
#include <string>

#include "tests/gpu/spec_sweep.h"
#include "tilewright/attention.h"

namespace tilewright::gpu_tests {

// What a draw may be; the reference of each takes at most some hundred milliseconds.
struct RandomKinds {
  bool decode = true;    // few queries over many keys
  bool backward = true;  // gradients; only features that a backward has
};

struct RandomCase {
  SweepCase one;
  // The spec that the kernel is prepared for: as one.spec, for other typical sizes now and then,
  // since Run accepts any.
  AttentionSpec prepared;
};

// Equal seeds give equal cases on every machine. The case's spec is valid; its name is the seed's.
RandomCase DrawCase(uint64_t seed, const RandomKinds& kinds = {});

}  // namespace tilewright::gpu_tests

#endif  // TILEWRIGHT_TESTS_GPU_RANDOM_CASE_H_
