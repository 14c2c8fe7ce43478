// README.md says what the code says.
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/doc_tables.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "program_runner.h"
#include "test_files.h"

namespace tilewright::cli {
namespace {

using ::testing::HasSubstr;

std::string Readme() { return ReadWhole(TILEWRIGHT_SOURCE_DIR "/README.md"); }

TEST(ReadmeTest, TablesAreThoseOfTheCode) {
  const std::string readme = Readme();
  EXPECT_THAT(readme, HasSubstr("<!-- word-table -->\n" + WordTable() + "<!-- end -->"))
      << "run make readme";
  EXPECT_THAT(readme, HasSubstr("<!-- env-table -->\n" + EnvironmentTable() + "<!-- end -->"))
      << "run make readme";
}

TEST(ReadmeTest, SaysWhatEachLineOfExplainMeans) {
  const TemporaryFolder folder;
  const ScopedVariable store("TILEWRIGHT_CACHE_DIR", folder.path("store"));
  const Outcome outcome =
      Invoke({"explain", "fwd bf16 b=1 h=8/4 s=300 d=40 causal", "--arch", "sm_90a"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string readme = Readme();
  const size_t begin = readme.find("## How to read explain");
  ASSERT_NE(begin, std::string::npos);
  const std::string section = readme.substr(begin, readme.find("\n## ", begin) - begin);
  std::istringstream lines(outcome.out);
  int words = 0;
  for (std::string line; std::getline(lines, line); ++words) {
    EXPECT_THAT(section, HasSubstr(absl::StrCat("`", line.substr(0, line.find(' ')), "`")));
  }
  EXPECT_GT(words, 7);
}

}  // namespace
}  // namespace tilewright::cli
