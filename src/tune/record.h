// A tuning record: what was measured for a bucket on a kind of GPU, and what was chosen. One small
// file each; plans are kept by value, in their text form, never as the number of a candidate.
#ifndef TILEWRIGHT_TUNE_RECORD_H_
#define TILEWRIGHT_TUNE_RECORD_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "arch/board_profile.h"
#include "base/digest.h"
#include "plan/kernel_plan.h"
#include "tune/bucket.h"

namespace tilewright::tune {

// Where and with what a measurement was made. The first part must be the same for a record to be
// one of this GPU; a difference in the second makes it stale: used, flagged, measured again when
// there is time.
struct Environment {
  std::string gpu;     // as the driver says it; a MIG slice has its profile in its name
  std::string target;  // "sm_90a"
  int num_sms = 0;
  int memory_clock_khz = 0;
  int memory_bus_bits = 0;
  int64_t l2_bytes = 0;

  std::string product;     // version of Tilewright
  int driver_version = 0;  // as CUDA_VERSION; 0: unknown (a look-up without a device)

  bool SameGpu(const Environment& other) const;
};

Environment MakeEnvironment(const arch::BoardProfile& board, std::string_view target,
                            int driver_version);

enum class Outcome {
  kUntried,   // the budget ended before
  kChecked,   // built and right, not timed (yet)
  kTimed,     // timed to the end
  kStopped,   // timing ended early: it could not win
  kRejected,  // by its resources, before or after the compile
  kFailed,    // it did not compile, load or launch
  kWrong,     // its result differs from the reference
  kSuspect,   // it was being tried on the device when the process ended
};
std::string_view OutcomeName(Outcome outcome);

struct CandidateResult {
  std::string plan;  // KernelPlan::ToString()
  Outcome outcome = Outcome::kUntried;
  std::string reason = {};  // of what was not timed to the end
  double ms = 0;            // median
  double relative = 0;      // time over the default's, median over the rounds that timed both
  double band = 0;          // noise band of `relative`
  int samples = 0;
  int registers = 0;
  double compile_ms = 0;  // 0: it came from the store
};

// What the device's clocks did over all rounds, by NVML.
struct ClockSummary {
  std::string why_unknown = {};  // empty: the rest is known
  int least_sm_mhz = 0;
  int most_sm_mhz = 0;
  int most_celsius = 0;
  std::string limits = {};  // each that held the clocks down in some round
};

struct TuningRecord {
  Bucket bucket;
  std::string spec;   // that asked for it, in words
  std::string timed;  // and with the sizes that it was timed at
  Environment environment;
  std::string policy = "cold";  // state of the L2 cache: "cold" or "hot"
  std::string candidate_set;    // CandidateSetDigest
  std::string code;             // digest of the templates of all candidates
  std::string checked_against;  // family that results were compared with

  // Empty while a tuning is under way, or was killed: nothing to use, but what was found out about
  // candidates stays found out.
  std::string winner;
  std::string default_plan;
  double winner_ms = 0;
  double default_ms = 0;
  double band = 0;    // noise band of the decision
  int rounds = 0;     // timed
  int disturbed = 0;  // rounds discarded: clocks fell, or another program ran
  ClockSummary clocks;
  bool budget_cut = false;  // candidates stayed untried
  std::string note;         // why the default stayed, clocks, ...
  std::string date;         // "2026-11-29 20:15:00", UTC
  double tune_ms = 0;       // how long it took
  std::vector<CandidateResult> candidates;

  Digest Key() const;
  // Indented JSON that ends in a newline.
  std::string ToJson() const;
};

// InvalidArgument names what is missing or of the wrong type.
absl::StatusOr<TuningRecord> ParseRecord(std::string_view json);

// Of the bucket and the first part of the environment: where the record lies.
Digest RecordKey(const Bucket& bucket, const Environment& environment, std::string_view policy);

// The same for any order of the same plans.
std::string CandidateSetDigest(absl::Span<const plan::KernelPlan> candidates);

}  // namespace tilewright::tune

#endif  // TILEWRIGHT_TUNE_RECORD_H_
