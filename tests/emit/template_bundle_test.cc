#include "emit/template_bundle.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace tilewright::emit {
namespace {

namespace fs = std::filesystem;

class TemplateBundleTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::path(testing::TempDir()) / absl::StrCat("tilewright_bundle_", getpid());
    fs::create_directories(directory_ / "core");
  }
  void TearDown() override { fs::remove_all(directory_); }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(directory_ / name, std::ios::binary) << text;
  }
  fs::path directory_;
};

TEST_F(TemplateBundleTest, EmbedsTheFilesOfTheTree) {
  const TemplateBundle& embedded = EmbeddedTemplates();
  const absl::StatusOr<TemplateBundle> tree =
      ReadTemplates(std::string(TILEWRIGHT_SOURCE_DIR) + "/kernel_templates");
  ASSERT_TRUE(tree.ok()) << tree.status();
  ASSERT_EQ(embedded.files.size(), tree->files.size());
  for (size_t n = 0; n < embedded.files.size(); ++n) {
    EXPECT_EQ(embedded.files[n].name, tree->files[n].name);
    EXPECT_EQ(embedded.files[n].text, tree->files[n].text) << embedded.files[n].name;
  }
  EXPECT_EQ(embedded.digest, tree->digest);
}

TEST_F(TemplateBundleTest, SortsByNameAndReadsHeadersOnly) {
  Write("core/b.cuh", "b");
  Write("a.h", "a");
  Write("README.md", "no");
  const absl::StatusOr<TemplateBundle> bundle = ReadTemplates(directory_.string());
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  ASSERT_EQ(bundle->files.size(), 2u);
  EXPECT_EQ(bundle->files[0].name, "a.h");
  EXPECT_EQ(bundle->files[1].name, "core/b.cuh");
  EXPECT_EQ(bundle->files[1].text, "b");
}

TEST_F(TemplateBundleTest, TheDigestCoversNamesAndTexts) {
  Write("a.h", "a");
  const Digest first = ReadTemplates(directory_.string())->digest;
  Write("a.h", "b");
  const Digest other_text = ReadTemplates(directory_.string())->digest;
  fs::rename(directory_ / "a.h", directory_ / "c.h");
  const Digest other_name = ReadTemplates(directory_.string())->digest;
  EXPECT_NE(first, other_text);
  EXPECT_NE(other_text, other_name);
}

TEST_F(TemplateBundleTest, ADirectoryWithoutTemplatesIsNotFound) {
  const absl::StatusOr<TemplateBundle> empty = ReadTemplates(directory_.string());
  EXPECT_EQ(empty.status().code(), absl::StatusCode::kNotFound);
  const absl::StatusOr<TemplateBundle> missing = ReadTemplates((directory_ / "no").string());
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find((directory_ / "no").string()), std::string::npos);
}

}  // namespace
}  // namespace tilewright::emit
