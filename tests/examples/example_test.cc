#include "examples/example.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "tests/examples/snippet_functions.h"

namespace tilewright::examples {

void PrintTo(const NamedExample& example, std::ostream* out) { *out << example.name; }

namespace {

// As many keys as rows, more, and fewer.
AttentionSpec SpecOf(int64_t seqlen_q, int64_t seqlen_kv) {
  AttentionSpec spec;
  spec.batch = 2;
  spec.heads_q = 3;
  spec.seqlen_q = seqlen_q;
  spec.seqlen_kv = seqlen_kv;
  return spec;
}

class ExampleTest : public testing::TestWithParam<NamedExample> {};

TEST_P(ExampleTest, TheTextSaysWhatTheRuleInCppSays) {
  for (const AttentionSpec& sizes : {SpecOf(60, 60), SpecOf(17, 150), SpecOf(50, 33)}) {
    AttentionSpec spec = sizes;
    const Example example = GetParam().make(spec);
    example.AddTo(&spec);
    ASSERT_FALSE(spec.score_snippet.empty() && spec.mask_snippet.empty());
    const SnippetFunctions functions(example, spec);
    ASSERT_EQ(functions.error(), "");
    int kept = 0, masked = 0;
    reference::Where at = {};
    at.seqlen_q = spec.seqlen_q;
    at.seqlen_kv = spec.seqlen_kv;
    for (at.b = 0; at.b < spec.batch; ++at.b) {
      for (at.h = 0; at.h < spec.heads_q; ++at.h) {
        for (at.i = 0; at.i < spec.seqlen_q; ++at.i) {
          for (at.j = 0; at.j < spec.seqlen_kv; ++at.j) {
            SCOPED_TRACE(testing::Message()
                         << "b " << at.b << " h " << at.h << " i " << at.i << " j " << at.j
                         << " of " << spec.seqlen_q << " and " << spec.seqlen_kv);
            if (example.rules.mask) {
              const bool keeps = example.rules.mask(at);
              ASSERT_EQ(functions.Keeps(at), keeps);
              ++(keeps ? kept : masked);
              if (!keeps) continue;
            }
            if (!example.rules.score) continue;
            const double score = static_cast<double>((at.i * 7 + at.j * 3) % 41 - 20) / 4;
            const double expected = example.rules.score(score, at);
            const ScoreResults results = functions.Score(score, at);
            ASSERT_NEAR(results.as_double, expected, 1e-6 * (1 + std::abs(expected)));
            ASSERT_NEAR(results.as_float, expected, 1e-6 * (1 + std::abs(expected)));
            ASSERT_NEAR(results.dual_value, expected, 1e-6 * (1 + std::abs(expected)));
            ASSERT_NEAR(results.dual_derivative, example.rules.score_derivative(score, at), 1e-6);
          }
        }
      }
    }
    EXPECT_TRUE(!example.rules.mask || (kept > 0 && masked > 0)) << kept << " " << masked;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ExampleTest, testing::ValuesIn(AllExamples()),
                         [](const auto& info) { return info.param.name; });

// ---- what a reader finds

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(AllExamplesTest, AreTheFilesOfTheFolder) {
  std::set<std::string> files, names;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(TILEWRIGHT_SOURCE_DIR) + "/src/examples")) {
    if (entry.path().extension() == ".cc") files.insert(entry.path().stem());
  }
  files.erase("example");
  for (const NamedExample& example : AllExamples()) names.insert(example.name);
  EXPECT_EQ(names, files);
}

TEST(AllExamplesTest, TheReadmeNamesThemAll) {
  const std::string readme = ReadFile(std::string(TILEWRIGHT_SOURCE_DIR) + "/README.md");
  for (const NamedExample& example : AllExamples()) {
    EXPECT_THAT(readme, testing::HasSubstr("src/examples/" + example.name + ".cc"));
  }
}

}  // namespace
}  // namespace tilewright::examples
