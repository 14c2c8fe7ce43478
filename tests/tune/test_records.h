// Records for tests.
#ifndef TILEWRIGHT_TESTS_TUNE_TEST_RECORDS_H_
#define TILEWRIGHT_TESTS_TUNE_TEST_RECORDS_H_

#include <functional>
#include <string>

#include "spec/canonical.h"
#include "tests/tune/simulated.h"
#include "tune/record.h"

namespace tilewright::tune {

// Of `spec_text` on the GPU of RequestOf: candidate 2 won, 1 was rejected.
inline TuningRecord SampleRecord(
    const std::string& spec_text = "fwd bf16 b=2 h=8/2 s=512/512 d=64/64 causal") {
  const AttentionSpec spec = spec::Canonicalise(*spec::ParseSpec(spec_text));
  TuningRecord record;
  record.bucket = BucketOf(spec);
  record.spec = record.timed = spec::ToText(spec);
  record.environment = RequestOf({}).environment;
  record.candidate_set = CandidateSetDigest(NumberedPlans(3));
  record.code = "0123456789abcdef";
  record.checked_against = "attn_fwd_simple";
  record.default_plan = NumberedPlan(0).ToString();
  record.winner = NumberedPlan(2).ToString();
  record.default_ms = 1.25;
  record.winner_ms = 1;
  record.band = 0.02;
  record.rounds = 20;
  record.date = "2026-11-29 20:00:00";
  record.tune_ms = 2100;
  CandidateResult first = {.plan = record.default_plan, .outcome = Outcome::kTimed};
  first.ms = 1.25;
  first.relative = 1;
  first.samples = 20;
  CandidateResult second = {.plan = NumberedPlan(1).ToString(), .outcome = Outcome::kRejected};
  second.reason = "spills 8 bytes a thread to local memory";
  CandidateResult third = first;
  third.plan = record.winner;
  third.ms = 1;
  third.relative = 0.8;
  third.band = 0.004;
  record.candidates = {first, second, third};
  return record;
}

}  // namespace tilewright::tune

#endif  // TILEWRIGHT_TESTS_TUNE_TEST_RECORDS_H_
