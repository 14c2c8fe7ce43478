// The gradients of a backward HostProblem against the fp64 reference, and by it.
#ifndef TILEWRIGHT_CLI_GRADIENTS_H_
#define TILEWRIGHT_CLI_GRADIENTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/random_problem.h"

namespace tilewright::cli {

struct GradientError {
  std::string name;         // "dq", "dbias0", ...
  double relative = 0;      // ||x - ref|| / ||ref||, absolute where the reference is 0
  double relative_bar = 0;  // 1.5 times that of the straightforward computation
  // Values that are not finite, or not 0 in a row of zeros, beyond what fp32 leaves where a row
  // sees one key and dP - D cancels. A single 0 is no rule: two keys that agree in one dimension
  // give it.
  int64_t mismatches = 0;
  double worst_mismatch = 0;  // the largest of them, by magnitude; NaN counts as infinite
  bool holds() const { return mismatches == 0 && relative <= relative_bar; }
};

struct GradientAccuracy {
  std::vector<GradientError> gradients;
  bool holds() const;
  // "dq 2.4e-03 (bar 3.6e-03), dk ..."
  std::string ToString() const;
};

// Multiplications and additions of the reference for all gradients.
double ReferenceBackwardFlops(const HostProblem& problem);

// What problem.args() holds in d_q, d_k, ... (host memory) against the reference. Computes all
// gradients twice on the host: see ReferenceBackwardFlops.
absl::StatusOr<GradientAccuracy> CheckGradients(const HostProblem& problem);

// Writes the gradients of the fp64 reference, rounded once.
absl::Status ComputeGradientsOnHost(HostProblem& problem);

}  // namespace tilewright::cli

#endif  // TILEWRIGHT_CLI_GRADIENTS_H_
