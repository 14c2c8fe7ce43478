// README.md says what the code says.
#include <string>

#include "cli/doc_tables.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "quick_start.h"
#include "test_files.h"
#include "tilewright/runtime.h"

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

TEST(ReadmeTest, TheQuickStartIsTheOneThatCompiles) {
  const std::string file = ReadWhole(TILEWRIGHT_SOURCE_DIR "/tests/cli/quick_start.cc");
  const std::string dashes = "// ----\n";
  const size_t begin = file.find(dashes) + dashes.size();
  const size_t end = file.find(dashes, begin);
  ASSERT_NE(end, std::string::npos);
  EXPECT_THAT(Readme(), HasSubstr("```cpp\n" + file.substr(begin, end - begin) + "```"));
}

TEST(ReadmeTest, TheQuickStartSaysWhatIsMissing) {
  RuntimeOptions options;
  options.cache_in_memory = true;
  absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Create(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  // Null tensors: on a machine with a GPU they are refused, on others the missing driver is named.
  const absl::Status status =
      CausalAttention(**runtime, nullptr, nullptr, nullptr, nullptr, nullptr);
  EXPECT_FALSE(status.ok());
  const bool no_device = absl::IsUnavailable(status) || absl::IsFailedPrecondition(status);
  EXPECT_TRUE(no_device || absl::IsInvalidArgument(status)) << status;
}

}  // namespace
}  // namespace tilewright::cli
