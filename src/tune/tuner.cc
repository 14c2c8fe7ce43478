#include "tune/tuner.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "spec/canonical.h"
#include "tune/choose.h"
#include "tune/resources.h"

namespace tilewright::tune {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;

constexpr int kLeastRounds = 10;    // samples before anything is decided
constexpr int kFewestRounds = 3;    // at the end of the budget
constexpr int kRounds = 20;         // and of what stays in the running
constexpr int kConfirmRounds = 24;  // of the winner against the default
// More of both, while kernels of a few microseconds lie within bands wider than a tie or on the
// edge of one, and for so long.
constexpr int kMostRounds = 400;
constexpr milliseconds kLongerRounds(300);
constexpr int kMostDisturbed = 12;  // rounds to discard before taking them as they come
constexpr milliseconds kPoll(20);   // of waiting for compiles
// Of the budget, for giving back what was taken and for writing the record.
constexpr milliseconds kClosing(40);
// Of max_candidates, the share that is kept for plans like one that beat the default.
constexpr int kLaterShare = 3;
// Share of the budget that stays for measuring whatever has been compiled by then, at least what
// the candidates' own times ask for.
constexpr double kMeasureShare = 0.125;

std::string UtcNow() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  char text[32] = {};
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &utc);
  return text;
}

// Of a compile: it failed for want of a compiler or of time, not because of what was compiled.
bool SaysNothing(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsCancelled(status) ||
         absl::IsDeadlineExceeded(status);
}

// Whether two plans have the same keys a tile, shape of warps and stages but for one of the three.
bool AreNeighbours(const plan::KernelPlan& a, const plan::KernelPlan& b) {
  const auto shape = [](const plan::KernelPlan& plan) {
    return std::tuple(plan.block_m, plan.warps, plan.rows_per_warp);
  };
  const int differences = (a.block_n != b.block_n ? 1 : 0) + (shape(a) != shape(b) ? 1 : 0) +
                          (a.stages != b.stages ? 1 : 0);
  return a.family == b.family && differences <= 1;
}

// Whether more rounds would hardly change that a candidate is, or is not, quicker by more than a
// tie.
bool IsClear(const Estimate& relative) {
  return relative.band <= kTie && std::abs(relative.median * (1 + kTie) - 1) > relative.band;
}

// What is not worth finding out a second time.
bool IsVerdict(Outcome outcome) {
  return outcome == Outcome::kRejected || outcome == Outcome::kFailed ||
         outcome == Outcome::kWrong || outcome == Outcome::kSuspect;
}

}  // namespace

// One tuning. Its queue outlives it in the hands of workers that a budget left behind.
class Tuner::Session {
 public:
  struct Candidate {
    plan::KernelPlan plan;
    CandidateResult result;
    std::shared_ptr<const Trial> trial;
    bool settled = false;  // built and checked, or out
    bool tried = true;     // not left out for the sake of max_candidates
  };

  // What workers share with the tuning thread.
  struct Queue {
    Mutex mutex;
    CondVar changed;
    std::vector<size_t> waiting ABSL_GUARDED_BY(mutex);  // indices, next last
    std::vector<plan::KernelPlan> plans;                 // by index
    std::vector<std::optional<absl::StatusOr<KernelFacts>>> facts ABSL_GUARDED_BY(mutex);
    std::atomic<bool> abandoned = false;
  };

  Session(Tuner* tuner, const TuneRequest& request, std::shared_ptr<Workshop> workshop)
      : tuner_(*tuner),
        request_(request),
        workshop_(std::move(workshop)),
        queue_(std::make_shared<Queue>()),
        start_(tuner->now_()),
        deadline_(request.deadline) {
    if (deadline_ != TimePoint::max() && deadline_ - start_ > 10 * kClosing) deadline_ -= kClosing;
  }
  ~Session() { queue_->abandoned = true; }

  absl::StatusOr<TuningRecord> Run(const OpenBench& open_bench);

 private:
  // On the device, until destroyed.
  class Turn {
   public:
    explicit Turn(const TuneRequest& request) : request_(request) {}
    ~Turn() {
      if (request_.end_turn) request_.end_turn();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    const TuneRequest& request_;
  };
  absl::StatusOr<std::unique_ptr<Turn>> TakeTurn();

  bool TimeIsUp(TimePoint deadline) const { return tuner_.stop_ || tuner_.now_() >= deadline; }
  double ElapsedMs() const { return duration<double, std::milli>(tuner_.now_() - start_).count(); }

  void ListCandidates();
  // Makes the queue, and starts with what comes first.
  void StartCompiles();
  // `next`: indices, the first one last.
  void StartWorkers(const std::vector<size_t>& next);
  static void Work(Queue& queue, Workshop& workshop);
  // The compile of candidate `index`, or nothing at the deadline.
  std::optional<absl::StatusOr<KernelFacts>> WaitFor(size_t index, TimePoint deadline);
  // Rejects, loads and checks; a candidate's faults are its result. Aborted when the device can do
  // no more.
  absl::Status Settle(size_t index, const absl::StatusOr<KernelFacts>& facts);
  absl::Status SettleAll();
  TimePoint MeasureFrom() const;
  // When timing ends for the sake of a confirmation.
  TimePoint ConfirmFrom() const;
  // Times those that were not and, to hold them against, the default and `best`.
  absl::Status Measure(size_t best);
  // Where a plan beats the default, the cost model has misjudged something: untried plans like that
  // one, as many as max_candidates allows and if there is time.
  std::vector<size_t> Neighbours(size_t best);
  absl::StatusOr<Choice> MeasureAndChoose(std::unique_ptr<Turn>& turn);
  // Times the candidates of `running` once more; false when the round was discarded.
  absl::StatusOr<bool> TimeRound(const std::vector<bool>& running, Rounds& rounds);
  void Note(const Conditions& conditions);
  absl::StatusOr<bool> ConfirmBeatsDefault(size_t index, double* relative, double* band);
  void Report(Progress::Stage stage);
  void Save() {
    if (request_.save) request_.save(record_);
  }
  void CopyResults();

  Tuner& tuner_;
  const TuneRequest& request_;
  const std::shared_ptr<Workshop> workshop_;
  const std::shared_ptr<Queue> queue_;
  const TimePoint start_;
  TimePoint deadline_;
  TimePoint::duration waited_ = {};  // for turns, by which the deadline was put off
  std::vector<Candidate> candidates_;
  std::unique_ptr<TestBench> bench_;
  TuningRecord record_;
  Rounds rounds_;
  double trial_ms_ = 0;  // a first guess of what the default takes in a round
  double round_ms_ = 0;  // and all candidates
  std::string best_;
  double best_relative_ = 1;
};

absl::StatusOr<std::unique_ptr<Tuner::Session::Turn>> Tuner::Session::TakeTurn() {
  const TimePoint asked = tuner_.now_();
  if (request_.take_turn) TILEWRIGHT_RETURN_IF_ERROR(request_.take_turn());
  if (request_.patient && deadline_ != TimePoint::max()) {
    const TimePoint::duration waited = tuner_.now_() - asked;
    deadline_ += waited;
    waited_ += waited;
  }
  return std::make_unique<Turn>(request_);
}

void Tuner::Session::ListCandidates() {
  for (const plan::KernelPlan& plan : request_.candidates) {
    Candidate candidate;
    candidate.plan = plan;
    candidate.result.plan = plan.ToString();
    const std::string why = WhyNoBlockFits(plan, request_.traits);
    if (!why.empty()) {
      candidate.result.outcome = Outcome::kRejected;
      candidate.result.reason = why;
      candidate.settled = true;
    }
    candidates_.push_back(std::move(candidate));
  }
  const std::optional<TuningRecord>& before = request_.unfinished;
  if (before.has_value() && before->code == request_.code &&
      before->environment.product == request_.environment.product) {
    // Never the default: without it there is nothing to compare with.
    for (size_t n = 1; n < candidates_.size(); ++n) {
      for (const CandidateResult& known : before->candidates) {
        if (known.plan == candidates_[n].result.plan && IsVerdict(known.outcome)) {
          candidates_[n].result = known;
          candidates_[n].settled = true;
        }
      }
    }
  }
  int open = 0;
  for (Candidate& candidate : candidates_) {
    if (candidate.settled) continue;
    ++open;
    const int first = request_.max_candidates - request_.max_candidates / kLaterShare;
    if (request_.max_candidates > 0 && open > first) {
      candidate.result.reason = "ranked below the candidates that were tried";
      candidate.settled = true;
      candidate.tried = false;
    }
  }
}

void Tuner::Session::Work(Queue& queue, Workshop& workshop) {
  while (!queue.abandoned) {
    size_t index = 0;
    {
      MutexLock lock(&queue.mutex);
      if (queue.waiting.empty()) return;
      index = queue.waiting.back();
      queue.waiting.pop_back();
    }
    absl::StatusOr<KernelFacts> facts = workshop.Compile(queue.plans[index]);
    MutexLock lock(&queue.mutex);
    queue.facts[index] = std::move(facts);
    queue.changed.SignalAll();
  }
}

void Tuner::Session::StartCompiles() {
  {
    MutexLock lock(&queue_->mutex);
    queue_->facts.resize(candidates_.size() + 2);
  }
  for (const Candidate& candidate : candidates_) queue_->plans.push_back(candidate.plan);
  queue_->plans.push_back(request_.reference.value_or(plan::KernelPlan()));
  queue_->plans.push_back(request_.starter.value_or(plan::KernelPlan()));
  std::vector<size_t> next;
  for (size_t n = candidates_.size(); n-- > 1;) {
    if (!candidates_[n].settled) next.push_back(n);
  }
  // The reference is waited for by all the others, and they by the default.
  if (request_.reference.has_value()) next.push_back(candidates_.size());
  if (request_.starter.has_value()) next.push_back(candidates_.size() + 1);
  next.push_back(0);
  StartWorkers(next);
}

void Tuner::Session::StartWorkers(const std::vector<size_t>& next) {
  {
    MutexLock lock(&queue_->mutex);
    queue_->waiting.insert(queue_->waiting.end(), next.begin(), next.end());
  }
  MutexLock lock(&tuner_.mutex_);
  std::erase_if(tuner_.workers_, [](auto& worker) {
    if (!*worker.second) return false;
    worker.first.join();
    return true;
  });
  const size_t threads = std::min(next.size(), static_cast<size_t>(std::max(tuner_.threads_, 1)));
  for (size_t n = 0; n < threads; ++n) {
    auto ended = std::make_shared<std::atomic<bool>>(false);
    try {
      tuner_.workers_.emplace_back(std::thread([queue = queue_, workshop = workshop_, ended] {
                                     Work(*queue, *workshop);
                                     *ended = true;
                                   }),
                                   ended);
    } catch (const std::system_error&) {
      break;  // no more threads to be had: those there do the work, or the budget ends
    }
  }
}

std::optional<absl::StatusOr<KernelFacts>> Tuner::Session::WaitFor(size_t index,
                                                                   TimePoint deadline) {
  MutexLock lock(&queue_->mutex);
  while (!queue_->facts[index].has_value()) {
    if (TimeIsUp(deadline)) return std::nullopt;
    queue_->changed.WaitUntil(&queue_->mutex, std::chrono::steady_clock::now() + kPoll);
  }
  return queue_->facts[index];
}

absl::Status Tuner::Session::Settle(size_t index, const absl::StatusOr<KernelFacts>& facts) {
  Candidate& candidate = candidates_[index];
  CandidateResult& result = candidate.result;
  candidate.settled = true;
  const auto out = [&](Outcome outcome, std::string reason) {
    result.outcome = outcome;
    result.reason = std::move(reason);
    tuner_.logger_->Event(
        LogLevel::kDebug, "tune_candidate",
        {{"plan", result.plan}, {"outcome", OutcomeName(outcome)}, {"reason", result.reason}});
  };
  if (!facts.ok()) {
    out(SaysNothing(facts.status()) ? Outcome::kUntried : Outcome::kFailed,
        std::string(facts.status().message()));
    return absl::OkStatus();
  }
  result.registers = facts->registers;
  result.compile_ms = facts->compile_ms;
  if (const std::string why = WhyRejected(*facts, candidate.plan, request_.traits);
      !why.empty() && index != 0) {
    out(Outcome::kRejected, why);
    return absl::OkStatus();
  }
  absl::StatusOr<std::shared_ptr<const Trial>> trial = workshop_->Load(candidate.plan);
  if (!trial.ok()) {
    out(Outcome::kFailed, std::string(trial.status().message()));
    return absl::OkStatus();
  }
  if (bench_ != nullptr) {
    // A kernel that hangs, or that the process does not survive, is found in the record by the next
    // one, which leaves it alone.
    result.outcome = Outcome::kSuspect;
    result.reason = "the process ended while it was tried on the device";
    TILEWRIGHT_ASSIGN_OR_RETURN(const std::unique_ptr<Turn> turn, TakeTurn());
    CopyResults();
    Save();
    const absl::Status right = bench_->Check(**trial);
    if (absl::IsFailedPrecondition(right)) {
      out(Outcome::kWrong, std::string(right.message()));
      return absl::OkStatus();
    }
    if (!right.ok()) {
      out(Outcome::kFailed, std::string(right.message()));
      // After a fault in a kernel nothing more runs in its context, whoever launches it.
      const absl::Status alive = bench_->Check(*candidates_[0].trial);
      if (alive.ok() || absl::IsFailedPrecondition(alive)) return absl::OkStatus();
      CopyResults();
      Save();
      return absl::AbortedError(
          absl::StrCat(result.plan, " took the device's context down: ", right.message()));
    }
    out(Outcome::kChecked, "");
  }
  candidate.trial = *std::move(trial);
  return absl::OkStatus();
}

// When compiling ends for the sake of measuring.
TimePoint Tuner::Session::MeasureFrom() const {
  if (deadline_ == TimePoint::max()) return deadline_;
  const double budget_ms = duration<double, std::milli>(deadline_ - start_ - waited_).count();
  const double asked_ms = (kRounds + kConfirmRounds) * round_ms_;
  const double kept_ms =
      std::min(0.6 * budget_ms, std::max(kMeasureShare * budget_ms, 1.2 * asked_ms));
  return deadline_ -
         std::chrono::duration_cast<TimePoint::duration>(duration<double, std::milli>(kept_ms));
}

TimePoint Tuner::Session::ConfirmFrom() const {
  if (deadline_ == TimePoint::max()) return deadline_;
  return deadline_ - std::chrono::duration_cast<TimePoint::duration>(
                         duration<double, std::milli>(2 * kLeastRounds * trial_ms_));
}

absl::Status Tuner::Session::SettleAll() {
  for (size_t n = 1; n < candidates_.size(); ++n) {
    if (candidates_[n].settled) continue;
    const std::optional<absl::StatusOr<KernelFacts>> facts = WaitFor(n, MeasureFrom());
    if (!facts.has_value()) {
      record_.budget_cut = true;
      candidates_[n].result.reason = "the budget ended before it was compiled";
      continue;  // one behind it may be done
    }
    TILEWRIGHT_RETURN_IF_ERROR(Settle(n, *facts));
    CopyResults();
    Save();
    Report(Progress::Stage::kCompiling);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Tuner::Session::TimeRound(const std::vector<bool>& running, Rounds& rounds) {
  // Another order each time: what a candidate leaves behind in caches and clocks meets others.
  const size_t turn = rounds[0].size();
  std::vector<size_t> order;
  for (size_t n = 0; n < candidates_.size(); ++n) {
    const size_t index = (n + turn) % candidates_.size();
    if (running[index]) order.push_back(index);
  }
  if (turn % 2 == 1) std::reverse(order.begin(), order.end());
  std::vector<const Trial*> trials;
  for (const size_t index : order) trials.push_back(candidates_[index].trial.get());
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::vector<double> times, bench_->Round(trials));
  const Conditions conditions = bench_->Observe();
  Note(conditions);
  double default_ms = 0;
  for (size_t n = 0; n < order.size(); ++n) {
    if (order[n] == 0) default_ms = times[n];
  }
  if (record_.disturbed < kMostDisturbed && !TimeIsUp(deadline_) &&
      (conditions.throttled || IsDisturbed(rounds[0], default_ms))) {
    ++record_.disturbed;
    bench_->Pause();
    return false;
  }
  for (std::vector<double>& series : rounds) {
    series.push_back(std::numeric_limits<double>::quiet_NaN());
  }
  for (size_t n = 0; n < order.size(); ++n) rounds[order[n]].back() = times[n];
  return true;
}

void Tuner::Session::Note(const Conditions& conditions) {
  ClockSummary& clocks = record_.clocks;
  if (!conditions.known) {
    clocks.why_unknown = conditions.why_unknown;
    return;
  }
  const bool first = clocks.most_sm_mhz == 0;
  clocks.least_sm_mhz =
      first ? conditions.sm_clock_mhz : std::min(clocks.least_sm_mhz, conditions.sm_clock_mhz);
  clocks.most_sm_mhz = std::max(clocks.most_sm_mhz, conditions.sm_clock_mhz);
  clocks.most_celsius = std::max(clocks.most_celsius, conditions.temperature_c);
  for (const absl::string_view limit : absl::StrSplit(conditions.limits, ' ', absl::SkipEmpty())) {
    if (absl::StrContains(clocks.limits, limit)) continue;
    absl::StrAppend(&clocks.limits, clocks.limits.empty() ? "" : " ", limit);
  }
}

absl::StatusOr<bool> Tuner::Session::ConfirmBeatsDefault(size_t index, double* relative,
                                                         double* band) {
  Report(Progress::Stage::kConfirming);
  Rounds rounds(candidates_.size());
  std::vector<bool> two(candidates_.size(), false);
  two[0] = two[index] = true;
  const TimePoint longer = tuner_.now_() + kLongerRounds;
  while (static_cast<int>(rounds[0].size()) < kMostRounds) {
    const auto done = static_cast<int>(rounds[0].size());
    if (done >= kFewestRounds && TimeIsUp(deadline_)) break;
    if (done >= kConfirmRounds &&
        (tuner_.now_() >= longer || IsClear(RelativeTo(rounds[index], rounds[0])))) {
      break;
    }
    TILEWRIGHT_RETURN_IF_ERROR(TimeRound(two, rounds).status());
  }
  const Estimate estimate = RelativeTo(rounds[index], rounds[0]);
  *relative = estimate.median;
  *band = std::max(kTie, estimate.band);
  return estimate.median * (1 + *band) < 1;
}

absl::Status Tuner::Session::Measure(size_t best) {
  std::vector<bool> running;
  for (Candidate& candidate : candidates_) {
    running.push_back(candidate.trial != nullptr && candidate.result.outcome == Outcome::kChecked);
  }
  running[0] = true;
  running[best] = true;
  rounds_.assign(candidates_.size(), {});
  const size_t started = static_cast<size_t>(std::count(running.begin(), running.end(), true));
  // One round that does not count: clocks rise, instruction caches fill.
  TILEWRIGHT_RETURN_IF_ERROR(TimeRound(running, rounds_).status());
  rounds_.assign(candidates_.size(), {});
  const int rounds = started > 1 ? kRounds : kLeastRounds;
  const TimePoint longer = tuner_.now_() + kLongerRounds;
  bool clear = false;
  while (static_cast<int>(rounds_[0].size()) < (started > 1 ? kMostRounds : rounds)) {
    if (static_cast<int>(rounds_[0].size()) >= rounds && (clear || tuner_.now_() >= longer)) break;
    // MeasureFrom has left time for all of them unless the budget is tiny.
    if (TimeIsUp(ConfirmFrom()) && static_cast<int>(rounds_[0].size()) >= kFewestRounds) break;
    TILEWRIGHT_RETURN_IF_ERROR(TimeRound(running, rounds_).status());
    const std::vector<bool> still =
        StillInTheRunning(rounds_, running, candidates_[0].result.outcome != Outcome::kWrong);
    for (size_t n = 0; n < still.size(); ++n) {
      if (running[n] && !still[n]) candidates_[n].result.outcome = Outcome::kStopped;
    }
    running = still;
    const Choice so_far = Choose(rounds_, running);
    best_ = candidates_[static_cast<size_t>(so_far.index)].result.plan;
    best_relative_ = so_far.relative;
    clear = so_far.band <= kTie &&
            (so_far.quickest == 0 ||
             IsClear(RelativeTo(rounds_[static_cast<size_t>(so_far.quickest)], rounds_[0])));
    Report(Progress::Stage::kTiming);
  }
  record_.rounds += static_cast<int>(rounds_[0].size());
  for (size_t n = 0; n < candidates_.size(); ++n) {
    CandidateResult& result = candidates_[n].result;
    const Estimate relative = RelativeTo(rounds_[n], rounds_[0]);
    if (relative.samples == 0) continue;
    result.ms = Summarise(rounds_[n]).median;
    result.relative = relative.median;
    result.band = relative.band;
    result.samples = relative.samples;
    if (running[n] && result.outcome == Outcome::kChecked) result.outcome = Outcome::kTimed;
    if (result.outcome == Outcome::kStopped) {
      result.reason = absl::StrFormat("%.2f times the default's time after %d rounds",
                                      relative.median, relative.samples);
    }
  }
  return absl::OkStatus();
}

std::vector<size_t> Tuner::Session::Neighbours(size_t best) {
  std::vector<size_t> near;
  if (best == 0 || TimeIsUp(MeasureFrom())) return near;
  const auto most = static_cast<size_t>(request_.max_candidates / kLaterShare);
  for (size_t n = 1; n < candidates_.size() && near.size() < most; ++n) {
    if (!candidates_[n].tried && AreNeighbours(candidates_[n].plan, candidates_[best].plan)) {
      near.push_back(n);
    }
  }
  return near;
}

absl::StatusOr<Choice> Tuner::Session::MeasureAndChoose(std::unique_ptr<Turn>& turn) {
  const auto choose = [this] {
    std::vector<bool> eligible;
    for (const Candidate& candidate : candidates_) {
      eligible.push_back(candidate.result.outcome == Outcome::kTimed);
    }
    return Choose(rounds_, eligible);  // of those in the last rounds
  };
  TILEWRIGHT_ASSIGN_OR_RETURN(turn, TakeTurn());
  if (TimeIsUp(deadline_)) {
    return absl::DeadlineExceededError("the budget ended before the candidates were timed");
  }
  TILEWRIGHT_RETURN_IF_ERROR(Measure(0));
  const Choice first = choose();
  const auto best = static_cast<size_t>(first.index);
  std::vector<size_t> near = Neighbours(best);
  if (near.empty()) return first;
  turn.reset();
  for (const size_t index : near) {
    candidates_[index].tried = true;
    candidates_[index].settled = false;
    candidates_[index].result.reason.clear();
  }
  std::reverse(near.begin(), near.end());
  StartWorkers(near);
  TILEWRIGHT_RETURN_IF_ERROR(SettleAll());
  TILEWRIGHT_ASSIGN_OR_RETURN(turn, TakeTurn());
  const bool more = std::any_of(candidates_.begin(), candidates_.end(), [](const Candidate& one) {
    return one.result.outcome == Outcome::kChecked;
  });
  if (!more || TimeIsUp(ConfirmFrom())) return first;
  TILEWRIGHT_RETURN_IF_ERROR(Measure(best));
  return choose();
}

void Tuner::Session::CopyResults() {
  record_.candidates.clear();
  for (const Candidate& candidate : candidates_) record_.candidates.push_back(candidate.result);
}

void Tuner::Session::Report(Progress::Stage stage) {
  if (!request_.progress) return;
  Progress progress;
  progress.stage = stage;
  for (const Candidate& candidate : candidates_) {
    progress.candidates += candidate.tried ? 1 : 0;
    progress.settled += candidate.tried && candidate.settled ? 1 : 0;
  }
  progress.rounds = rounds_.empty() ? 0 : static_cast<int>(rounds_[0].size());
  progress.elapsed_ms = ElapsedMs();
  if (deadline_ != TimePoint::max()) {
    progress.budget_ms = duration<double, std::milli>(deadline_ - start_).count();
  }
  progress.best = best_;
  progress.best_relative = best_relative_;
  request_.progress(progress);
}

absl::StatusOr<TuningRecord> Tuner::Session::Run(const OpenBench& open_bench) {
  if (request_.candidates.empty()) return absl::InvalidArgumentError("there is no candidate");
  record_.bucket = BucketOf(request_.spec);
  record_.spec = spec::ToText(request_.spec);
  record_.environment = request_.environment;
  record_.policy = request_.policy;
  record_.candidate_set = CandidateSetDigest(request_.candidates);
  record_.code = request_.code;
  record_.default_plan = request_.candidates.front().ToString();
  record_.date = UtcNow();
  ListCandidates();
  StartCompiles();
  Report(Progress::Stage::kCompiling);

  const std::optional<absl::StatusOr<KernelFacts>> first = WaitFor(0, deadline_);
  if (!first.has_value()) {
    if (tuner_.stop_) return absl::CancelledError("the tuning was stopped");
    return absl::DeadlineExceededError("the budget ended before the default was compiled");
  }
  TILEWRIGHT_RETURN_IF_ERROR(first->status());
  TILEWRIGHT_RETURN_IF_ERROR(Settle(0, *first));
  if (candidates_[0].trial == nullptr) return absl::InternalError(candidates_[0].result.reason);
  if (TimeIsUp(deadline_)) {
    return absl::DeadlineExceededError("the budget ended with the compile of the default");
  }
  std::shared_ptr<const Trial> reference;
  if (request_.reference.has_value()) {
    const std::optional<absl::StatusOr<KernelFacts>> built = WaitFor(candidates_.size(), deadline_);
    if (!built.has_value()) {
      return absl::DeadlineExceededError("the budget ended with the compile of the reference");
    }
    const absl::StatusOr<std::shared_ptr<const Trial>> trial =
        built->ok() ? workshop_->Load(*request_.reference)
                    : absl::StatusOr<std::shared_ptr<const Trial>>(built->status());
    if (trial.ok()) {
      reference = *trial;
    } else {
      record_.note = absl::StrCat("compared with the default, as the reference failed: ",
                                  trial.status().message());
    }
  }
  TILEWRIGHT_ASSIGN_OR_RETURN(std::unique_ptr<Turn> turn, TakeTurn());
  TILEWRIGHT_ASSIGN_OR_RETURN(bench_, open_bench(*candidates_[0].trial, reference.get()));
  record_.checked_against = bench_->reference();
  record_.timed = bench_->timed_spec();
  const absl::Status right = bench_->Check(*candidates_[0].trial);
  if (absl::IsFailedPrecondition(right)) {
    candidates_[0].result.outcome = Outcome::kWrong;
    candidates_[0].result.reason = std::string(right.message());
    tuner_.logger_->Event(
        LogLevel::kError, "tune_default_wrong",
        {{"spec", record_.spec}, {"plan", record_.default_plan}, {"reason", right.message()}});
  } else {
    TILEWRIGHT_RETURN_IF_ERROR(right);
    candidates_[0].result.outcome = Outcome::kChecked;
  }
  const Trial* const only[] = {candidates_[0].trial.get()};
  const TimePoint before = tuner_.now_();
  TILEWRIGHT_RETURN_IF_ERROR(bench_->Round(only).status());
  const auto open = std::count_if(candidates_.begin(), candidates_.end(), [](const auto& one) {
    return !one.settled || one.trial != nullptr;
  });
  trial_ms_ = duration<double, std::milli>(tuner_.now_() - before).count();
  round_ms_ = trial_ms_ * static_cast<double>(open);
  turn.reset();
  CopyResults();
  Save();
  TILEWRIGHT_RETURN_IF_ERROR(SettleAll());
  // A record would say that the default had been measured against others.
  const bool alone = std::all_of(candidates_.begin() + 1, candidates_.end(), [](const auto& one) {
    return one.result.outcome == Outcome::kUntried;
  });
  if (alone && candidates_.size() > 1) {
    const std::string text =
        absl::StrCat("no other candidate could be built: ", candidates_[1].result.reason);
    return record_.budget_cut ? absl::DeadlineExceededError(text) : absl::UnavailableError(text);
  }
  TILEWRIGHT_ASSIGN_OR_RETURN(const Choice choice, MeasureAndChoose(turn));
  // Not kept, however quick, and no confirmation is needed to leave it.
  const bool default_wrong = candidates_[0].result.outcome == Outcome::kWrong;
  size_t winner = static_cast<size_t>(choice.index);
  record_.band = choice.band;
  if (winner != 0 && !default_wrong) {
    double relative = 1;
    TILEWRIGHT_ASSIGN_OR_RETURN(const bool beats,
                                ConfirmBeatsDefault(winner, &relative, &record_.band));
    if (!beats) {
      record_.note = absl::StrFormat("%s took %.3f of the default's time in a second run: a tie",
                                     candidates_[winner].result.plan, relative);
      winner = 0;
    }
  }
  if (winner == 0 && default_wrong) {
    return absl::InternalError(
        absl::StrCat("no candidate computes what the reference does: ", record_.default_plan, ": ",
                     candidates_[0].result.reason));
  }
  record_.winner = candidates_[winner].result.plan;
  record_.winner_ms = candidates_[winner].result.ms;
  record_.default_ms = candidates_[0].result.ms;
  CopyResults();
  record_.tune_ms = ElapsedMs();
  best_ = record_.winner;
  best_relative_ = candidates_[winner].result.relative;
  Report(Progress::Stage::kDone);
  tuner_.logger_->Event(LogLevel::kInfo, "tune",
                        {{"spec", record_.spec},
                         {"winner", record_.winner},
                         {"ms", record_.winner_ms},
                         {"default_ms", record_.default_ms},
                         {"candidates", record_.candidates.size()},
                         {"took_ms", record_.tune_ms}});
  return record_;
}

Tuner::Tuner(int threads, const Logger* logger, std::function<TimePoint()> now)
    : threads_(threads), logger_(logger), now_(std::move(now)) {}

Tuner::~Tuner() {
  stop_ = true;
  std::vector<std::pair<std::thread, std::shared_ptr<std::atomic<bool>>>> workers;
  {
    MutexLock lock(&mutex_);
    workers.swap(workers_);
  }
  for (auto& [thread, ended] : workers) thread.join();
}

absl::StatusOr<TuningRecord> Tuner::Tune(const TuneRequest& request,
                                         const std::shared_ptr<Workshop>& workshop,
                                         const OpenBench& open_bench) {
  Session session(this, request, workshop);
  return session.Run(open_bench);
}

}  // namespace tilewright::tune
