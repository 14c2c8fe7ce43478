#include "tune/tuning_db.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/support/temp_directory.h"
#include "tests/tune/test_records.h"

namespace tilewright::tune {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TuningDbTest : public ::testing::Test {
 protected:
  std::unique_ptr<TuningDb> Open() {
    return std::make_unique<TuningDb>(
        std::make_unique<cache::RecordFiles>(
            cache::RecordFilesOptions{.directory = directory_.path()}),
        std::vector<std::unique_ptr<cache::RecordFiles>>(), absl::Span<const ShippedRecord>(),
        &logger_);
  }
  Query QueryOf(const std::string& spec_text) {
    const AttentionSpec spec = spec::Canonicalise(*spec::ParseSpec(spec_text));
    Query query;
    query.bucket = BucketOf(spec);
    query.spec = spec::ToText(spec);
    query.environment = RequestOf({}).environment;
    query.candidates = candidates_;
    query.candidate_set = CandidateSetDigest(candidates_);
    query.code = "0123456789abcdef";
    return query;
  }

  testing::TempDirectory directory_;
  Logger logger_{LogLevel::kOff};
  std::vector<plan::KernelPlan> candidates_ = NumberedPlans(3);
};

constexpr char kSpec[] = "fwd bf16 b=2 h=8/2 s=512/512 d=64/64 causal";

TEST_F(TuningDbTest, AnswersByQualityOfMatch) {
  ASSERT_TRUE(Open()->Save(SampleRecord()).ok());
  const auto db = Open();
  const Match exact = db->Find(QueryOf(kSpec));
  EXPECT_EQ(exact.quality, MatchQuality::kExact);
  EXPECT_EQ(exact.plan, NumberedPlan(2));
  EXPECT_EQ(exact.source, "user");
  EXPECT_THAT(exact.stale, ElementsAre());
  EXPECT_THAT(exact.ToText(), HasSubstr("exact record (user)"));
  EXPECT_EQ(db->Find(QueryOf("fwd bf16 b=2 h=8/2 s=500/400 d=64/64 causal")).quality,
            MatchQuality::kBucket);
  const Match nearest = db->Find(QueryOf("fwd bf16 b=4 h=8/2 s=1024/1024 d=64/64 causal"));
  EXPECT_EQ(nearest.quality, MatchQuality::kNearest);
  EXPECT_EQ(nearest.plan, NumberedPlan(2));
  EXPECT_EQ(db->Find(QueryOf("fwd bf16 b=2 h=8/2 s=65536/65536 d=64/64 causal")).quality,
            MatchQuality::kNone);
  EXPECT_EQ(db->Find(QueryOf("fwd bf16 b=2 h=8/2 s=512/512 d=64/64")).quality, MatchQuality::kNone);
}

TEST_F(TuningDbTest, AnotherGpuOnlyHelpsOutAndOnlyOfTheSameTarget) {
  ASSERT_TRUE(Open()->Save(SampleRecord()).ok());
  const auto db = Open();
  const auto quality = [&](const std::function<void(Environment&)>& edit) {
    Query query = QueryOf(kSpec);
    edit(query.environment);
    return db->Find(query).quality;
  };
  EXPECT_EQ(quality([](auto& e) { e.gpu = std::string("NVIDIA H100"); }),
            MatchQuality::kOtherBoard);
  EXPECT_EQ(quality([](auto& e) { e.num_sms = 114; }), MatchQuality::kOtherBoard);
  EXPECT_EQ(quality([](auto& e) { e.memory_clock_khz = 1; }), MatchQuality::kOtherBoard);
  EXPECT_EQ(quality([](auto& e) { e.memory_bus_bits = 1; }), MatchQuality::kOtherBoard);
  EXPECT_EQ(quality([](auto& e) { e.l2_bytes = 1; }), MatchQuality::kOtherBoard);
  EXPECT_EQ(quality([](auto& e) { e.gpu += " MIG 1g.18gb"; }), MatchQuality::kOtherBoard);
  EXPECT_EQ(quality([](auto& e) { e.target = std::string("sm_80"); }), MatchQuality::kNone);
}

TEST_F(TuningDbTest, FlagsWhatIsStaleAndUsesItAllTheSame) {
  ASSERT_TRUE(Open()->Save(SampleRecord()).ok());
  const auto db = Open();
  const auto stale = [&](const std::function<void(Query&)>& edit) {
    Query query = QueryOf(kSpec);
    edit(query);
    const Match match = db->Find(query);
    EXPECT_EQ(match.quality, MatchQuality::kExact);
    EXPECT_EQ(match.plan, NumberedPlan(2));
    return match.stale;
  };
  EXPECT_THAT(stale([](Query& q) { q.environment.driver_version = 13010; }),
              ElementsAre("driver_version"));
  EXPECT_THAT(stale([](Query& q) { q.environment.driver_version = 0; }), ElementsAre());
  EXPECT_THAT(stale([](Query& q) { q.environment.product = std::string("0.2.0"); }),
              ElementsAre("product"));
  EXPECT_THAT(stale([](Query& q) { q.candidate_set = std::string("x"); }),
              ElementsAre("candidate_set"));
  EXPECT_THAT(stale([](Query& q) { q.code = std::string("x"); }), ElementsAre("code"));
}

TEST_F(TuningDbTest, TheDecisionDoesNotDependOnTheListOfCandidates) {
  ASSERT_TRUE(Open()->Save(SampleRecord()).ok());
  const auto db = Open();
  candidates_ = NumberedPlans(9);
  std::rotate(candidates_.begin(), candidates_.begin() + 5, candidates_.end());
  EXPECT_EQ(db->Find(QueryOf(kSpec)).plan, NumberedPlan(2));
}

TEST_F(TuningDbTest, AWinnerThatIsNoCandidateAnyMoreIsPassedOver) {
  ASSERT_TRUE(Open()->Save(SampleRecord()).ok());
  candidates_ = NumberedPlans(2);
  const Match match = Open()->Find(QueryOf(kSpec));
  EXPECT_EQ(match.quality, MatchQuality::kNone);
  EXPECT_FALSE(match.plan.has_value());
  EXPECT_THAT(match.ToText(), HasSubstr("no candidate any more"));
}

TEST_F(TuningDbTest, UnfinishedRecordsDecideNothingAndLieBesideFinishedOnes) {
  TuningRecord record = SampleRecord();
  record.winner.clear();
  ASSERT_TRUE(Open()->SaveUnfinished(record).ok());
  const auto unfinished = [&] {
    return Open()->Unfinished(record.bucket, record.environment, "cold");
  };
  const auto db = Open();
  EXPECT_EQ(db->Find(QueryOf(kSpec)).quality, MatchQuality::kNone);
  EXPECT_FALSE(db->Finished(record.bucket, record.environment, "cold").has_value());
  ASSERT_TRUE(unfinished().has_value());
  EXPECT_EQ(unfinished()->candidates[1].outcome, Outcome::kRejected);

  ASSERT_TRUE(Open()->Save(SampleRecord()).ok());
  EXPECT_FALSE(unfinished().has_value()) << "there is a newer one";
  ASSERT_TRUE(Open()->SaveUnfinished(record).ok());
  EXPECT_TRUE(unfinished().has_value());
  EXPECT_EQ(Open()->Find(QueryOf(kSpec)).quality, MatchQuality::kExact);
  EXPECT_TRUE(Open()->Finished(record.bucket, record.environment, "cold").has_value());
}

TEST_F(TuningDbTest, ShippedRecordsAreAllThatSomePoliciesSee) {
  TuningRecord shipped = SampleRecord();
  shipped.winner = shipped.default_plan;
  const std::string key = shipped.Key().ToHex();
  const std::string file = cache::SealRecord(shipped.ToJson());
  const std::string other(64, '0');
  const ShippedRecord files[] = {{other, "damaged"}, {key, file}, {other, file}};
  TuningDb db(std::make_unique<cache::RecordFiles>(
                  cache::RecordFilesOptions{.directory = directory_.path()}),
              {}, files, &logger_);
  ASSERT_TRUE(db.Save(SampleRecord()).ok());
  Query query = QueryOf(kSpec);
  EXPECT_EQ(db.Find(query).source, "user");
  query.measured_here = false;
  const Match match = db.Find(query);
  EXPECT_EQ(match.source, "shipped");
  EXPECT_EQ(match.plan, NumberedPlan(0));
  // Also for other sizes of the same kind, and for no other kind.
  query = QueryOf("fwd bf16 b=4 h=8/2 s=1024/1024 d=64/64 causal");
  query.measured_here = false;
  EXPECT_EQ(db.Find(query).quality, MatchQuality::kNearest);
  query = QueryOf("fwd bf16 b=4 h=8/2 s=1024/1024 d=64/64");
  query.measured_here = false;
  EXPECT_EQ(db.Find(query).quality, MatchQuality::kNone);
}

TEST_F(TuningDbTest, DamagedAndForeignRecordsAreAbsent) {
  ASSERT_TRUE(Open()->Save(SampleRecord()).ok());
  std::filesystem::path file;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path())) {
    if (entry.path().extension() == ".twt") file = entry.path();
  }
  ASSERT_FALSE(file.empty());
  // Another record under this name.
  const std::string other = SampleRecord("fwd bf16 b=64 h=8/2 s=512/512 d=64/64 causal").ToJson();
  std::ofstream(file) << cache::SealRecord(other);
  EXPECT_EQ(Open()->Find(QueryOf(kSpec)).quality, MatchQuality::kNone);
  std::ofstream(file) << "{}";
  EXPECT_EQ(Open()->Find(QueryOf(kSpec)).quality, MatchQuality::kNone);
  std::filesystem::resize_file(file, 0);
  EXPECT_EQ(Open()->Find(QueryOf(kSpec)).quality, MatchQuality::kNone);
}

TEST_F(TuningDbTest, SeesWhatOtherProcessesWriteAfterARefresh) {
  const auto here = Open();
  EXPECT_EQ(here->Find(QueryOf(kSpec)).quality, MatchQuality::kNone);
  ASSERT_TRUE(Open()->Save(SampleRecord()).ok());
  here->Refresh();
  EXPECT_EQ(here->Find(QueryOf(kSpec)).quality, MatchQuality::kExact);
}

TEST_F(TuningDbTest, WorksInMemoryAlone) {
  TuningDb db(nullptr, {}, {}, &logger_);
  EXPECT_EQ(db.Find(QueryOf(kSpec)).quality, MatchQuality::kNone);
  ASSERT_TRUE(db.Save(SampleRecord()).ok());
  db.Refresh();
  EXPECT_EQ(db.Find(QueryOf(kSpec)).quality, MatchQuality::kExact);
}

TEST_F(TuningDbTest, ARecordCopiedIntoAnotherStoreServesThere) {
  ASSERT_TRUE(Open()->Save(SampleRecord()).ok());
  testing::TempDirectory other;
  std::filesystem::copy(directory_.path() + "/v1", other.path() + "/v1",
                        std::filesystem::copy_options::recursive);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(other.path())) {
    std::filesystem::permissions(entry.path(), entry.is_directory()
                                                   ? std::filesystem::perms::owner_all
                                                   : std::filesystem::perms::owner_read);
  }
  TuningDb db(std::make_unique<cache::RecordFiles>(
                  cache::RecordFilesOptions{.directory = other.path(), .read_only = true}),
              {}, {}, &logger_);
  EXPECT_EQ(db.Find(QueryOf(kSpec)).quality, MatchQuality::kExact);
  EXPECT_FALSE(db.Save(SampleRecord()).ok());
}

}  // namespace
}  // namespace tilewright::tune
