// README.md says what the code says.
#include <string>

#include "cli/doc_tables.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
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

}  // namespace
}  // namespace tilewright::cli
