// How far a command with many steps has come, on the error stream: a bar that redraws itself on a
// terminal, elsewhere plain lines, and those only once the work has taken a while.
#ifndef TILEWRIGHT_CLI_PROGRESS_H_
#define TILEWRIGHT_CLI_PROGRESS_H_

#include <chrono>
#include <cstddef>
#include <ostream>
#include <string>
#include <string_view>

#include "base/mutex.h"

namespace tilewright::cli {

// Threads: Advance may be called from any.
class Progress {
 public:
  enum class Mode { kNone, kLines, kBar };

  // What suits `stream`: a bar where it is standard error and that is a terminal, else lines.
  static Mode ModeFor(const std::ostream& stream);
  using Clock = std::chrono::steady_clock;

  // Least time between two plain lines.
  static constexpr std::chrono::seconds kLineInterval{5};

  // `verb` is what is done to each of the `total` things: "compiled".
  Progress(std::ostream& stream, Mode mode, std::string verb, size_t total,
           Clock::time_point start = Clock::now());
  // Leaves a terminal as if no bar had been there.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // One more thing is done; `what` names it.
  void Advance(std::string_view what, Clock::time_point now = Clock::now());

  // Takes the bar away so that a line can be printed; the next Advance draws it again.
  void Clear();

 private:
  std::ostream& stream_;
  const Mode mode_;
  const std::string verb_;
  const size_t total_;
  Mutex mutex_;
  size_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  bool drawn_ ABSL_GUARDED_BY(mutex_) = false;
  Clock::time_point last_line_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tilewright::cli

#endif  // TILEWRIGHT_CLI_PROGRESS_H_
