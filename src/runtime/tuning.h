// Which plan a spec gets: the cost model's, a record's, or one that is measured now or later. The
// part of a Runtime that knows tuning policies.
#ifndef TILEWRIGHT_RUNTIME_TUNING_H_
#define TILEWRIGHT_RUNTIME_TUNING_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "base/log.h"
#include "base/mutex.h"
#include "device/device.h"
#include "device/memory.h"
#include "emit/template_bundle.h"
#include "plan/planner.h"
#include "tilewright/options.h"
#include "tilewright/runtime.h"
#include "tune/code_digest.h"
#include "tune/tuner.h"
#include "tune/tuning_db.h"

namespace tilewright {

// The store's directory for records, and where further ones are read from.
std::unique_ptr<tune::TuningDb> OpenTuningDb(const RuntimeOptions& options, const Logger* logger);

// The policies of `options` on the records of one spec: which are asked, and for what. Shared with
// the program's commands that plan without a runtime.
//   `environment`  of the device, or of the board that is planned for
tune::Match FindRecord(tune::TuningDb& db, const RuntimeOptions& options, tune::CodeDigests& code,
                       const AttentionSpec& spec, const tune::Environment& environment,
                       const std::vector<plan::KernelPlan>& candidates);

// Thread-safe.
class Tuning {
 public:
  // `devices` gives the driver's table once there is one. The pointers outlive the object.
  Tuning(const RuntimeOptions& options, const emit::TemplateBundle* bundle, const Logger* logger,
         std::function<const device::DriverApi&()> api);
  // Stops, and waits for the compiles that a tuning has under way: cancel them before.
  ~Tuning();
  // Ends what is being tuned, with what is known by then; what waits for its turn is dropped.
  void Stop();

  enum class Measure { kNo, kNow, kLater };
  struct Verdict {
    tune::Match match;
    Measure measure = Measure::kNo;
    std::string why_not;  // what the policy would have measured, and cannot be
  };
  // Looks for a record and says whether to measure, by the policy.
  Verdict Judge(const device::DeviceManager::Current& where, const AttentionSpec& spec,
                const std::vector<plan::KernelPlan>& candidates);

  struct Job {
    device::DeviceManager::Current where;
    AttentionSpec spec;
    std::vector<plan::KernelPlan> candidates;  // plan::Candidates
    std::shared_ptr<tune::Workshop> workshop;
    std::optional<plan::KernelPlan> reference;
    std::optional<plan::KernelPlan> starter;
  };
  struct Measured {
    tune::TuningRecord record;
    bool fresh = true;  // false: it was there
  };
  enum class Caller {
    kFirstCall,   // Prepare, which the time is counted against (tune_total_ms)
    kWarmup,      // the same, but the budget does not run while another tuner is at work on the GPU
    kBackground,  // nobody waits: likewise
    kOnDemand,    // Runtime::Tune
  };
  // Compiles and measures in the calling thread. What another process has measured meanwhile is
  // taken instead. An error says why nothing was measured: the caller goes on with the plan it has.
  //   Unavailable       another tuner was at work on the GPU for the whole budget, or no candidate
  //                     could be compiled
  //   DeadlineExceeded  the budget ended with the compile of the default
  //   ...               as Tuner::Tune; nothing of the kind is tried again by this runtime
  absl::StatusOr<Measured> MeasureNow(const Job& job, const TuneOptions& options, Caller caller);
  // Measures in a thread of this object, one job after the other. There `before` is called when the
  // job's turn comes, and `done` with a result that has a winner.
  void MeasureLater(Job job, std::function<void()> before,
                    std::function<void(const tune::TuningRecord&)> done);

  // Waits until nothing is left to measure later. False on time-out.
  bool WaitUntilIdle(int timeout_ms);

  struct Counters {
    int64_t tunes = 0;
    double tune_ms = 0;
    int64_t failures = 0;
    int64_t postponed = 0;
    int64_t record_hits = 0;
    int64_t nearest_hits = 0;
  };
  Counters counters() const;

  tune::TuningDb& db() { return *db_; }

 private:
  struct Later {
    Job job;
    std::function<void()> before;
    std::function<void(const tune::TuningRecord&)> done;
  };

  void WorkLater();
  absl::StatusOr<Measured> MeasureWithin(const Job& job, const TuneOptions& options,
                                         tune::TimePoint deadline, bool patient);
  // The user's record that says what this request would, if there is one.
  std::optional<tune::TuningRecord> AlreadyThere(const tune::TuneRequest& request);

  const RuntimeOptions& options_;
  tune::CodeDigests code_;
  const Logger* const logger_;
  const std::function<const device::DriverApi&()> api_;
  const device::DeviceAllocator allocator_;
  const std::unique_ptr<tune::TuningDb> db_;
  tune::Tuner tuner_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Later> later_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;  // with one that is no longer in later_
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
  // Buckets that could not be measured: not tried again by this runtime.
  absl::flat_hash_set<std::string> given_up_ ABSL_GUARDED_BY(mutex_);
  double spent_ms_ ABSL_GUARDED_BY(mutex_) = 0;  // of tune_total_ms, by tunings that block
  Counters counters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tilewright

#endif  // TILEWRIGHT_RUNTIME_TUNING_H_
