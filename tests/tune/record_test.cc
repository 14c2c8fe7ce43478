#include "tune/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "spec/canonical.h"
#include "tests/tune/test_records.h"

namespace tilewright::tune {
namespace {

using testing::HasSubstr;

TEST(RecordTest, ReadsBackWhatItWrites) {
  const TuningRecord record = SampleRecord();
  const auto read = ParseRecord(record.ToJson());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->ToJson(), record.ToJson());
  EXPECT_EQ(read->bucket, record.bucket);
  EXPECT_EQ(read->winner, record.winner);
  ASSERT_EQ(read->candidates.size(), record.candidates.size());
  EXPECT_EQ(read->candidates[1].outcome, Outcome::kRejected);
  EXPECT_EQ(read->Key(), record.Key());
}

TEST(RecordTest, NamesWhatIsMissingOrWrong) {
  const std::string good = SampleRecord().ToJson();
  const auto error = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return std::string(ParseRecord(text).status().message());
  };
  EXPECT_THAT(error("\"winner\":", "\"loser\":"), HasSubstr("\"winner\""));
  EXPECT_THAT(error("\"schema\": 1", "\"schema\": 2"), HasSubstr("schema is 2"));
  EXPECT_THAT(error("\"gpu\": \"NVIDIA H200\"", "\"gpu\": 3"), HasSubstr("\"gpu\""));
  EXPECT_THAT(error("\"outcome\": \"rejected\"", "\"outcome\": \"odd\""), HasSubstr("odd"));
  EXPECT_FALSE(ParseRecord("").ok());
  EXPECT_FALSE(ParseRecord("[1, 2]").ok());
  EXPECT_FALSE(ParseRecord("{\"schema\": 1, \"bucket\": 4}").ok());
}

TEST(RecordTest, TheKeyIsOfBucketGpuAndPolicyAlone) {
  const TuningRecord record = SampleRecord();
  const auto changed = [&](const std::function<void(TuningRecord&)>& edit) {
    TuningRecord other = record;
    edit(other);
    return other.Key() != record.Key();
  };
  EXPECT_TRUE(changed([](auto& r) { r.environment.gpu = std::string("NVIDIA H100"); }));
  EXPECT_TRUE(changed([](auto& r) { r.environment.num_sms = 114; }));
  EXPECT_TRUE(changed([](auto& r) { r.environment.memory_clock_khz = 1; }));
  EXPECT_TRUE(changed([](auto& r) { r.environment.memory_bus_bits = 1; }));
  EXPECT_TRUE(changed([](auto& r) { r.environment.l2_bytes = 1; }));
  EXPECT_TRUE(changed([](auto& r) { r.environment.target = std::string("sm_80"); }));
  EXPECT_TRUE(changed([](auto& r) { r.bucket.batch = 64; }));
  EXPECT_TRUE(changed([](auto& r) { r.policy = std::string("hot"); }));
  EXPECT_FALSE(changed([](auto& r) { r.environment.driver_version = 1; }));
  EXPECT_FALSE(changed([](auto& r) { r.environment.product = std::string("9"); }));
  EXPECT_FALSE(changed([](auto& r) { r.candidate_set = std::string("x"); }));
}

TEST(RecordTest, TheCandidateSetHasNoOrder) {
  std::vector<plan::KernelPlan> plans = NumberedPlans(4);
  const std::string digest = CandidateSetDigest(plans);
  std::reverse(plans.begin(), plans.end());
  EXPECT_EQ(CandidateSetDigest(plans), digest);
  plans.pop_back();
  EXPECT_NE(CandidateSetDigest(plans), digest);
}

}  // namespace
}  // namespace tilewright::tune
