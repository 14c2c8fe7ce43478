// Guard zones around the outputs of a host problem, and the check that a kernel wrote every element
// of them and nothing else.
#ifndef TILEWRIGHT_TESTS_GPU_GUARDED_OUTPUTS_H_
#define TILEWRIGHT_TESTS_GPU_GUARDED_OUTPUTS_H_

#include <cstddef>
#include <string>

#include "cli/random_problem.h"

namespace tilewright::gpu_tests {

inline constexpr size_t kGuardBytes = 4096;

// All bits set: a NaN of every output type, and not the NaN that arithmetic produces.
inline constexpr std::byte kPoison{0xff};

// Puts the problem's o and lse, and of a backward d_q, d_k and d_v, into arrays with kGuardBytes of
// poison before and after, at the same offset from an aligned address as before.
void GuardOutputs(cli::HostProblem& problem);

// Empty, or what is wrong: a byte outside the elements that is no longer poison, or an element of
// one of them that still is.
std::string CheckWrites(const cli::HostProblem& problem);

}  // namespace tilewright::gpu_tests

#endif  // TILEWRIGHT_TESTS_GPU_GUARDED_OUTPUTS_H_
