#include "tune/choose.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tilewright::tune {
namespace {

// Of a normal distribution: deviation = kMadToDeviation * MAD, and the standard error of the median
// of n samples is kMedianError * deviation / sqrt(n).
constexpr double kMadToDeviation = 1.4826;
constexpr double kMedianError = 1.2533;
constexpr double kErrors = 3;

// NaN (not timed) comes last.
bool ByNumber(double a, double b) { return std::isnan(b) ? !std::isnan(a) : a < b; }

constexpr int kRoundsForDouble = 5;
constexpr int kRoundsForBands = 8;

}  // namespace

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

Estimate Summarise(absl::Span<const double> values) {
  std::vector<double> finite;
  for (const double value : values) {
    if (std::isfinite(value)) finite.push_back(value);
  }
  Estimate estimate;
  estimate.samples = static_cast<int>(finite.size());
  estimate.median = Median(finite);
  if (finite.size() < 2 || estimate.median <= 0) {
    estimate.band = finite.empty() ? 0 : 1;  // one sample says nothing of its spread
    return estimate;
  }
  for (double& value : finite) value = std::abs(value - estimate.median);
  const double deviation = kMadToDeviation * Median(finite) / estimate.median;
  estimate.band =
      kErrors * kMedianError * deviation / std::sqrt(static_cast<double>(estimate.samples));
  return estimate;
}

Estimate RelativeTo(absl::Span<const double> candidate, absl::Span<const double> reference) {
  std::vector<double> ratios;
  for (size_t n = 0; n < std::min(candidate.size(), reference.size()); ++n) {
    if (reference[n] > 0) ratios.push_back(candidate[n] / reference[n]);
  }
  return Summarise(ratios);
}

Choice Choose(const Rounds& rounds, const std::vector<bool>& eligible) {
  std::vector<Estimate> relative(rounds.size());
  double best = std::numeric_limits<double>::infinity();
  size_t best_index = 0;
  for (size_t n = 0; n < rounds.size(); ++n) {
    relative[n] = RelativeTo(rounds[n], rounds[0]);
    if (!eligible[n] || relative[n].samples == 0) continue;
    if (relative[n].median < best) {
      best = relative[n].median;
      best_index = n;
    }
  }
  Choice choice;
  if (!std::isfinite(best)) return choice;
  const auto band_to = [&](size_t n) {
    return std::max(kTie, std::max(relative[n].band, relative[best_index].band));
  };
  choice.index = choice.quickest = static_cast<int>(best_index);
  // The default comes first, so that the first one within the band is the default where it is.
  for (size_t n = 0; n < rounds.size(); ++n) {
    if (!eligible[n] || relative[n].samples == 0) continue;
    if (relative[n].median <= best * (1 + band_to(n))) {
      choice.index = static_cast<int>(n);
      break;
    }
  }
  choice.relative = relative[static_cast<size_t>(choice.index)].median;
  choice.band = band_to(static_cast<size_t>(choice.index));
  return choice;
}

std::vector<bool> StillInTheRunning(const Rounds& rounds, const std::vector<bool>& running,
                                    bool default_may_win) {
  std::vector<bool> still = running;
  std::vector<Estimate> relative(rounds.size());
  double best = default_may_win ? 1 : std::numeric_limits<double>::infinity();
  double best_band = 0;
  for (size_t n = 1; n < rounds.size(); ++n) {
    relative[n] = RelativeTo(rounds[n], rounds[0]);
    if (running[n] && relative[n].samples >= kRoundsForDouble && relative[n].median < best) {
      best = relative[n].median;
      best_band = relative[n].band;
    }
  }
  for (size_t n = 1; n < rounds.size(); ++n) {
    if (!running[n]) continue;
    const Estimate& one = relative[n];
    // Outliers can be most of five samples; the quickest of them says what it could be.
    const double quickest = *std::min_element(rounds[n].begin(), rounds[n].end(), ByNumber) /
                            Summarise(rounds[0]).median;
    if (one.samples >= kRoundsForDouble && one.median > 2 * best && quickest > 1.5 * best) {
      still[n] = false;
    }
    if (one.samples >= kRoundsForBands &&
        one.median * (1 - one.band) > best * (1 + std::max(kTie, best_band))) {
      still[n] = false;
    }
  }
  return still;
}

bool IsDisturbed(absl::Span<const double> default_before, double default_now) {
  constexpr int kNeeded = 3;
  const Estimate before = Summarise(default_before);
  return before.samples >= kNeeded && default_now > kDisturbed * before.median;
}

}  // namespace tilewright::tune
