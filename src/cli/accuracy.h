// How far a result is from the fp64 reference, and whether that is within the accuracy bar:
//   16-bit outputs   ||x - ref|| / ||ref|| at most 1.5 times that of the straightforward
//   computation
//                    in the same types; the largest absolute error likewise, plus one ulp
//   fp32 outputs     ||x - ref|| / ||ref|| below 5e-6
//   LSE              5e-5 absolute up to |lse| = 100, 1e-6 relative beyond; 2e-3 for fp8 inputs
// Infinities and NaN of the reference must be matched exactly.
#ifndef TILEWRIGHT_CLI_ACCURACY_H_
#define TILEWRIGHT_CLI_ACCURACY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/random_problem.h"
#include "reference/reference.h"

namespace tilewright::cli {

struct Accuracy {
  int64_t rows = 0;  // compared
  double o_relative = 0;
  double o_relative_bar = 0;
  double o_max_abs = 0;
  double o_max_abs_bar = 0;  // infinite for fp32
  bool has_lse = false;
  double lse_error = 0;    // largest share of its own bar, 1 is the bar
  int64_t mismatches = 0;  // NaN or infinity where the reference has another value, or the reverse
  std::string first_mismatch;

  bool holds() const {
    return mismatches == 0 && o_relative <= o_relative_bar && o_max_abs <= o_max_abs_bar &&
           lse_error <= 1;
  }
  // "error 1.2e-03 (bar 2.9e-03), max abs 3.1e-03 (bar 8.7e-03), lse 0.04 of its bar, 4096 rows"
  std::string ToString() const;
};

// The o and lse arrays that problem.args() points at (host memory) against the reference, at the
// given rows.
absl::StatusOr<Accuracy> CheckAccuracy(const HostProblem& problem,
                                       absl::Span<const reference::Row> rows,
                                       const reference::Options& options = {});

// Element (row, d) of o, and lse of a row, as doubles, from a host problem.
double OutputAt(const HostProblem& problem, const reference::Row& row, int64_t d);
double LseAt(const HostProblem& problem, const reference::Row& row);

}  // namespace tilewright::cli

#endif  // TILEWRIGHT_CLI_ACCURACY_H_
