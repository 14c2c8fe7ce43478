// A backward pass of a HostCase: what it reads beside the inputs of the forward, what it writes,
// and whether that is right. Shared by the tests that run kernels, on the CPU and on a GPU.
#ifndef TILEWRIGHT_TESTS_REFERENCE_BACKWARD_CASE_H_
#define TILEWRIGHT_TESTS_REFERENCE_BACKWARD_CASE_H_

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "reference/reference.h"
#include "tests/reference/host_case.h"
#include "tilewright/attention.h"

namespace tilewright::reference {

// Host arrays of one call; what is written holds kPoison before.
struct BackwardArrays {
  // O and LSE as the fp64 forward gives them, rounded to their types. Packed sequences follow one
  // another; every row of Q belongs to one.
  BackwardArrays(HostCase& c, const Options& options);

  // The case's args with everything that a backward pass needs.
  AttentionArgs Args(HostCase& c);

  static constexpr float kPoison = 12345.f;
  Array o, d_q, d_k, d_v;
  std::vector<float> lse, d_slopes, d_sinks;
  std::array<std::vector<float>, 4> d_bias;
};

// One array of the case or of `arrays`, which the args point into.
struct BackwardMemory {
  std::string name;
  void* data;
  size_t bytes;
  bool written;
};
std::vector<BackwardMemory> MemoryOf(HostCase& c, BackwardArrays& arrays);

// Every gradient against the fp64 reference: an error of at most 1.5 times that of the
// straightforward computation (fp32: 5e-6 of the norm). Failures are the test's.
void ExpectGradients(HostCase& c, const Options& options, const BackwardArrays& arrays);

}  // namespace tilewright::reference

#endif  // TILEWRIGHT_TESTS_REFERENCE_BACKWARD_CASE_H_
