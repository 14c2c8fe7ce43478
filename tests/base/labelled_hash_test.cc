#include "base/labelled_hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace tilewright {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(LabelledHashTest, WritesTheGrammar) {
  LabelledHash hash;
  hash.Add("target", "sm_90a").Add("source", "a\nb").Add("empty", "");
  EXPECT_EQ(hash.manifest(), "target 6\nsm_90a\nsource 3\na\nb\nempty 0\n\n");
  EXPECT_EQ(hash.digest(), Sha256(hash.manifest()));
}

TEST(LabelledHashTest, ReadsBackWhatItWrote) {
  LabelledHash hash;
  const std::string binary("\0 7\nx 3\n", 8);
  hash.Add("a", binary).Add("b.c_1", "2").Add("a", "again");
  const auto fields = ParseManifest(hash.manifest());
  ASSERT_TRUE(fields.ok()) << fields.status();
  EXPECT_THAT(*fields, ElementsAre(Pair("a", binary), Pair("b.c_1", "2"), Pair("a", "again")));
}

TEST(LabelledHashTest, BordersBetweenFieldsCount) {
  LabelledHash left;
  LabelledHash right;
  left.Add("a", "xy").Add("b", "z");
  right.Add("a", "x").Add("b", "yz");
  EXPECT_NE(left.digest(), right.digest());
}

TEST(LabelledHashTest, OrderCounts) {
  LabelledHash left;
  LabelledHash right;
  left.Add("a", "1").Add("b", "2");
  right.Add("b", "2").Add("a", "1");
  EXPECT_NE(left.digest(), right.digest());
}

TEST(LabelledHashTest, EmptyManifestHasNoFields) {
  const auto fields = ParseManifest("");
  ASSERT_TRUE(fields.ok());
  EXPECT_THAT(*fields, IsEmpty());
}

TEST(LabelledHashTest, RefusesWhatIsNoManifest) {
  for (const char* text : {
           "a",                            // no length
           " 1\nx\n",                      // no label
           "A 1\nx\n",                     // label in upper case
           "a 1\nx",                       // no line feed at the end
           "a 2\nx\n",                     // too short
           "a 0\nx\n",                     // too long
           "a 01\nx\n",                    // second spelling of 1
           "a +1\nx\n",                    // sign
           "a -1\nx\n",                    //
           "a \n\n",                       // no digits
           "a 1 \nx\n",                    // something after the digits
           "a 18446744073709551617\nx\n",  // 2^64 + 1
           "a 999999999999999999\nx\n",
       }) {
    const auto fields = ParseManifest(text);
    EXPECT_EQ(fields.status().code(), absl::StatusCode::kDataLoss) << text;
  }
}

TEST(LabelledHashTest, EveryTruncationIsRefusedOrShorter) {
  LabelledHash hash;
  hash.Add("first", "1234").Add("second", "x\ny");
  const std::string whole = hash.manifest();
  for (size_t size = 1; size < whole.size(); ++size) {
    const auto fields = ParseManifest(std::string_view(whole).substr(0, size));
    EXPECT_EQ(fields.ok(), size == std::string("first 4\n1234\n").size()) << size;
  }
}

TEST(LabelledHashTest, NamesTheFieldsThatDiffer) {
  const ManifestFields a = {{"target", "sm_80"}, {"source", "x"}, {"option", "1"}, {"option", "2"}};
  EXPECT_THAT(DifferingFields(a, a), IsEmpty());
  EXPECT_THAT(
      DifferingFields(a, {{"target", "sm_90a"}, {"source", "x"}, {"option", "1"}, {"option", "2"}}),
      ElementsAre("target"));
  EXPECT_THAT(
      DifferingFields(a, {{"target", "sm_80"}, {"source", "x"}, {"option", "2"}, {"option", "1"}}),
      ElementsAre("option"));
  EXPECT_THAT(
      DifferingFields(a, {{"target", "sm_80"}, {"option", "1"}, {"option", "2"}, {"emitter", "7"}}),
      ElementsAre("source", "emitter"));
}

TEST(LabelledHashDeathTest, ALabelWithASpaceIsABugOfOurs) {
  LabelledHash hash;
  EXPECT_DEATH(hash.Add("two words", ""), "broken invariant");
}

}  // namespace
}  // namespace tilewright
