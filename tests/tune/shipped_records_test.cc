// The records of cache/tuned/: whole, legal, and made with the kernels and candidates of today.
#include "tune/shipped_records.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "cache/record_files.h"
#include "emit/template_bundle.h"
#include "plan/planner.h"
#include "spec/canonical.h"
#include "tune/code_digest.h"
#include "tune/record.h"

namespace tilewright::tune {
namespace {

constexpr char kRenew[] =
    "renew on an H200 with: tilewright tune --shapes bench/tuner_shapes.txt --force --budget 0 "
    "--records cache/tuned/h200";

std::vector<TuningRecord> Records() {
  std::vector<TuningRecord> records;
  for (const ShippedRecord& shipped : ShippedRecords()) {
    const auto text = cache::OpenRecord(shipped.file);
    EXPECT_TRUE(text.ok()) << text.status();
    if (!text.ok()) continue;
    auto record = ParseRecord(*text);
    EXPECT_TRUE(record.ok()) << record.status();
    if (!record.ok()) continue;
    EXPECT_EQ(record->Key().ToHex(), shipped.key) << record->spec;
    records.push_back(*std::move(record));
  }
  return records;
}

// The specs that shipped records are made of.
std::vector<std::string> ShapesToRecord() {
  std::ifstream file(TILEWRIGHT_SOURCE_DIR "/bench/tuner_shapes.txt");
  std::vector<std::string> specs;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') specs.push_back(line);
  }
  EXPECT_FALSE(specs.empty());
  return specs;
}

// The board that the record was measured on, as far as planning looks at it.
arch::BoardProfile BoardOf(const Environment& environment) {
  arch::BoardProfile board = *arch::DefaultBoardProfile(environment.target);
  board.name = environment.gpu;
  board.num_sms = environment.num_sms;
  board.l2_bytes = environment.l2_bytes;
  board.memory_clock_khz = environment.memory_clock_khz;
  board.memory_bus_bits = environment.memory_bus_bits;
  return board;
}

std::vector<plan::KernelPlan> CandidatesOf(const TuningRecord& record) {
  const auto parsed = spec::ParseSpec(record.spec);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  const AttentionSpec spec = spec::Canonicalise(*parsed);
  EXPECT_EQ(BucketOf(spec), record.bucket) << record.spec;
  const auto traits = arch::FindArchTraits(record.environment.target);
  const arch::BoardProfile board = BoardOf(record.environment);
  const plan::PlanRequest request = {spec, *traits, board};
  const auto decision = plan::Best(request);
  EXPECT_TRUE(decision.ok()) << decision.status();
  return decision.ok() ? plan::Candidates(request, *decision) : std::vector<plan::KernelPlan>();
}

TEST(ShippedRecordsTest, AreFinishedAndChecked) {
  for (const TuningRecord& record : Records()) {
    EXPECT_FALSE(record.winner.empty()) << record.spec;
    EXPECT_FALSE(record.checked_against.empty()) << record.spec;
    EXPECT_FALSE(record.budget_cut) << record.spec << " was cut short by its budget";
    const auto won =
        std::find_if(record.candidates.begin(), record.candidates.end(),
                     [&](const CandidateResult& one) { return one.plan == record.winner; });
    ASSERT_NE(won, record.candidates.end()) << record.spec;
    EXPECT_EQ(won->outcome, Outcome::kTimed) << record.spec;
    EXPECT_GE(won->samples, 10) << record.spec;
  }
}

// Not a failure: the look-up flags stale records and passes illegal ones over. But nobody should
// have to find out by surprise.
TEST(ShippedRecordsTest, AreOfTheKernelsAndCandidatesOfToday) {
  std::vector<std::string> stale;
  const std::vector<TuningRecord> records = Records();
  CodeDigests code(&emit::EmbeddedTemplates());
  for (const TuningRecord& record : records) {
    const std::vector<plan::KernelPlan> candidates = CandidatesOf(record);
    ASSERT_FALSE(candidates.empty());
    std::vector<std::string> why;
    const auto winner = plan::ParsePlan(record.winner);
    if (!winner.ok() ||
        std::find(candidates.begin(), candidates.end(), *winner) == candidates.end()) {
      why.emplace_back("its winner is no candidate any more");
    }
    if (record.candidate_set != CandidateSetDigest(candidates)) {
      why.emplace_back("the candidates have changed");
    }
    if (record.code != code.Of(candidates)) {
      why.emplace_back("the kernels have changed");
    }
    if (!why.empty()) stale.push_back(record.spec + ": " + absl::StrJoin(why, ", "));
  }
  for (const std::string& text : ShapesToRecord()) {
    const AttentionSpec spec = spec::Canonicalise(*spec::ParseSpec(text));
    const bool there = std::any_of(records.begin(), records.end(), [&](const TuningRecord& record) {
      return record.bucket == BucketOf(spec);
    });
    if (!there) stale.push_back(text + ": has no record");
  }
  if (!stale.empty()) {
    GTEST_SKIP() << "STALE or missing: " << stale.size() << ", and there are " << records.size()
                 << " shipped records; " << kRenew << "\n"
                 << absl::StrJoin(stale, "\n");
  }
}

}  // namespace
}  // namespace tilewright::tune
