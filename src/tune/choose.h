// The arithmetic of a decision: from the times of interleaved rounds to the plan that is kept. No
// device, no clock.
#ifndef TILEWRIGHT_TUNE_CHOOSE_H_
#define TILEWRIGHT_TUNE_CHOOSE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace tilewright::tune {

// Differences below this are nobody's gain: 2 %.
inline constexpr double kTie = 0.02;

// A round takes as long again as this before it counts as disturbed (throttled clocks, another
// program on the GPU).
inline constexpr double kDisturbed = 1.25;

double Median(std::vector<double> values);  // 0 of none

// A median and how far it may be off: three standard errors of a median, the deviation estimated by
// the median absolute deviation, so that single outliers count for nothing. Relative to the median.
struct Estimate {
  double median = 0;
  double band = 0;
  int samples = 0;
};
Estimate Summarise(absl::Span<const double> values);

// Milliseconds of one candidate in each round; NaN where it was not timed. Candidate 0 is the
// default and is timed in every round.
using Rounds = std::vector<std::vector<double>>;  // [candidate][round]

// Time of a candidate over that of the default, from the rounds that timed both: what changes
// slowly, clocks and temperature, cancels.
Estimate RelativeTo(absl::Span<const double> candidate, absl::Span<const double> reference);

// The candidate to keep: the quickest, unless the default is within max(2 %, noise band) of it,
// else the first in the order of candidates that is within that of the quickest. `eligible` may
// leave out candidates (wrong results); the default may be one of them.
struct Choice {
  int index = 0;
  int quickest = 0;     // by its median, whatever the bands say
  double relative = 1;  // time of `index` over the default's
  double band = 0;      // noise band that ties were judged by, at least kTie
};
Choice Choose(const Rounds& rounds, const std::vector<bool>& eligible);

// Leaves out candidates that further rounds cannot make the winner: after 5 rounds those that take
// twice the time of the best and never come near it, after 8 those that are slower than the best by
// more than both noise bands. The default stays; `default_may_win` says whether the others have to
// be quicker than it.
std::vector<bool> StillInTheRunning(const Rounds& rounds, const std::vector<bool>& running,
                                    bool default_may_win = true);

// Whether the default's time in the round just timed says that the round was disturbed. Judged by
// its median over the rounds before, of which there must be three.
bool IsDisturbed(absl::Span<const double> default_before, double default_now);

}  // namespace tilewright::tune

#endif  // TILEWRIGHT_TUNE_CHOOSE_H_
