#include "bench/read_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tilewright::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Status Read(std::vector<const char*> arguments, const FlagTargets& targets) {
  arguments.insert(arguments.begin(), "program");
  return ReadFlags(static_cast<int>(arguments.size()), arguments.data(), targets);
}

TEST(ReadFlagsTest, SetsWhatIsNamed) {
  std::string file = "default", commit = "default";
  bool slow = false, quiet = false;
  std::vector<std::string> words;
  const FlagTargets targets = {
      {{"--file", &file}, {"--commit", &commit}}, {{"--slow", &slow}, {"--quiet", &quiet}}, &words};
  ASSERT_TRUE(Read({"fwd d=64", "--slow", "--file", "--odd name", "bwd", ""}, targets).ok());
  EXPECT_EQ(file, "--odd name");
  EXPECT_EQ(commit, "default");
  EXPECT_TRUE(slow);
  EXPECT_FALSE(quiet);
  EXPECT_THAT(words, ElementsAre("fwd d=64", "bwd", ""));
}

TEST(ReadFlagsTest, NamesWhatItDoesNotKnow) {
  std::string file;
  std::vector<std::string> words;
  for (const auto& [argument, targets] : std::vector<std::pair<const char*, FlagTargets>>{
           {"--fil", {{{"--file", &file}}, {}, &words}}, {"word", {{{"--file", &file}}, {}}}}) {
    const absl::Status status = Read({argument}, targets);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(argument));
  }
  const absl::Status status = Read({"--file"}, {{{"--file", &file}}, {}});
  EXPECT_THAT(std::string(status.message()), HasSubstr("--file has no value"));
}

}  // namespace
}  // namespace tilewright::bench
