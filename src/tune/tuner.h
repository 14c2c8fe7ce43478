// Finds the quickest plan of a spec by measuring: candidates are compiled in parallel, checked,
// timed in interleaved rounds, and the default stays unless another is quicker beyond doubt.
#ifndef TILEWRIGHT_TUNE_TUNER_H_
#define TILEWRIGHT_TUNE_TUNER_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "arch/arch_traits.h"
#include "base/log.h"
#include "base/mutex.h"
#include "plan/kernel_plan.h"
#include "tilewright/attention.h"
#include "tune/record.h"
#include "tune/workshop.h"

namespace tilewright::tune {

using TimePoint = std::chrono::steady_clock::time_point;

// Where a tuning is.
struct Progress {
  enum class Stage { kCompiling, kTiming, kConfirming, kDone };
  Stage stage = Stage::kCompiling;
  int candidates = 0;  // that will be tried
  int settled = 0;     // built and checked, or out
  int rounds = 0;
  double elapsed_ms = 0;
  double budget_ms = 0;
  std::string best;  // plan text of the best so far; empty before any was timed
  double best_relative = 1;
};

struct TuneRequest {
  AttentionSpec spec;  // canonical
  arch::ArchTraits traits;
  Environment environment;
  std::vector<plan::KernelPlan> candidates;  // the default first
  // What results are compared with: compiled beside the candidates, never timed. Absent: the
  // default.
  std::optional<plan::KernelPlan> reference;
  // Compiled with the default, in case that takes longer than the budget; never timed.
  std::optional<plan::KernelPlan> starter;
  std::string code;  // CodeDigests of the candidates
  std::string policy = "cold";
  int max_candidates = 0;  // 0: all
  TimePoint deadline = TimePoint::max();
  // Asked before the device is used, and told afterwards; between two turns it is left to others,
  // as while compiles are waited for. May wait until the deadline; an error ends the tuning.
  std::function<absl::Status()> take_turn;
  std::function<void()> end_turn;
  // The budget does not run while a turn is waited for.
  bool patient = false;
  // What is already known: outcomes of candidates that were rejected, failed, wrong or suspect with
  // the same code are not found out again.
  std::optional<TuningRecord> unfinished;
  // Called by the tuning thread after each step.
  std::function<void(const Progress&)> progress;
  // Called before each candidate is tried on the device, which it may take down with it, and after
  // it is settled, with a record that has no winner yet.
  std::function<void(const TuningRecord&)> save;
};

// Tunings of one runtime. Thread-safe; each Tune works with its own bench.
class Tuner {
 public:
  // `threads`: compiles at a time. `now` is replaced by tests of budgets.
  Tuner(
      int threads, const Logger* logger,
      std::function<TimePoint()> now = [] { return std::chrono::steady_clock::now(); });
  // Waits for compiles that a budget left behind. Whoever wants that to be short cancels them
  // first.
  ~Tuner();
  Tuner(const Tuner&) = delete;
  Tuner& operator=(const Tuner&) = delete;

  // Opens the bench for the default's trial and that of the reference (null: there is none), which
  // are loaded by then.
  using OpenBench = std::function<absl::StatusOr<std::unique_ptr<TestBench>>(
      const Trial& first, const Trial* reference)>;

  // The finished record, whose winner is one of the candidates. An error when the default cannot be
  // built, or when nothing could be measured (no memory for the problem; no time, which is
  // DeadlineExceeded): the caller goes on with the default. Aborted: a candidate took the device's
  // context down, and nothing more runs in it; what was saved last names the candidate. `workshop`
  // must stay until this Tuner is destroyed.
  absl::StatusOr<TuningRecord> Tune(const TuneRequest& request,
                                    const std::shared_ptr<Workshop>& workshop,
                                    const OpenBench& open_bench);

  // Ends running tunings early, with what they have.
  void Stop() { stop_ = true; }
  bool stopped() const { return stop_; }

 private:
  class Session;
  const int threads_;
  const Logger* const logger_;
  const std::function<TimePoint()> now_;
  std::atomic<bool> stop_ = false;
  Mutex mutex_;
  std::vector<std::pair<std::thread, std::shared_ptr<std::atomic<bool>>>> workers_
      ABSL_GUARDED_BY(mutex_);  // with whether it has ended
};

}  // namespace tilewright::tune

#endif  // TILEWRIGHT_TUNE_TUNER_H_
