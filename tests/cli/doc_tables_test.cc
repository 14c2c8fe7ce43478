#include "cli/doc_tables.h"

#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spec/canonical.h"

namespace tilewright::cli {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

TEST(DocTablesTest, EveryWordOfASpecHasARow) {
  std::vector<std::string_view> keys;
  for (const WordDoc& word : WordDocs()) keys.push_back(word.key);
  EXPECT_THAT(keys, ElementsAreArray(spec::SpecWords()));
}

TEST(DocTablesTest, EveryExampleParsesAndKeepsItsWord) {
  for (const WordDoc& word : WordDocs()) {
    EXPECT_EQ(word.form.substr(0, word.key.size()), word.key);
    if (word.example.empty()) continue;
    const absl::StatusOr<AttentionSpec> spec = spec::ParseSpec(word.example);
    ASSERT_TRUE(spec.ok()) << word.example << ": " << spec.status();
    const std::string text = spec::ToText(*spec);
    EXPECT_THAT(text, HasSubstr(absl::StrCat(" ", AbslView(word.key)))) << "the word is lost";
  }
}

TEST(DocTablesTest, TheEnvironmentTableHasARowForEveryVariable) {
  const std::string table = EnvironmentTable();
  for (const EnvVariable& variable : EnvVariables()) {
    EXPECT_THAT(table, HasSubstr(absl::StrCat("| `", AbslView(variable.name), "` |")));
  }
}

}  // namespace
}  // namespace tilewright::cli
