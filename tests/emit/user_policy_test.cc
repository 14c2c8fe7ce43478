#include "emit/user_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "emit_cases.h"

namespace tilewright::emit {
namespace {

using testing::HasSubstr;

TEST(UserPolicyTest, TheWordReturnMakesABody) {
  EXPECT_FALSE(IsFunctionBody("score * 2"));
  EXPECT_TRUE(IsFunctionBody("return score;"));
  EXPECT_TRUE(IsFunctionBody("if (i < j) return(score); return 0;"));
  EXPECT_FALSE(IsFunctionBody("returned + to_return"));
  EXPECT_FALSE(IsFunctionBody("score  // return it unchanged"));
  EXPECT_FALSE(IsFunctionBody("/* return\n */ score"));
  EXPECT_FALSE(IsFunctionBody("'r' == \"return \\\" return\"[0]"));
  EXPECT_TRUE(IsFunctionBody("// no\nreturn score;"));
  EXPECT_FALSE(IsFunctionBody("/* return"));
  EXPECT_FALSE(IsFunctionBody("\"return"));
}

TEST(UserPolicyTest, AnExpressionIsReturned) {
  AttentionSpec spec;
  spec.score_snippet = {.text = "score * 2", .file_name = "my.cuh"};
  const artifact::SourceFile file = UserScorePolicy(spec);
  EXPECT_EQ(file.name, kUserScoreHeader);
  EXPECT_THAT(file.text, HasSubstr("return static_cast<Scalar>(\n#line 1 \"my.cuh\"\nscore * 2\n"));
}

TEST(UserPolicyTest, ABodyStandsAlone) {
  AttentionSpec spec;
  spec.mask_snippet = {.text = "return i > j;", .file_name = ""};
  const artifact::SourceFile file = UserMaskPolicy(spec);
  EXPECT_EQ(file.name, kUserMaskHeader);
  EXPECT_THAT(file.text, HasSubstr("      {\n#line 1 \"mask_snippet\"\nreturn i > j;\n"));
}

TEST(UserPolicyTest, ARuleOfTilesAnswersForSkippedAndWholeOnes) {
  AttentionSpec spec;
  spec.mask_snippet.text = "i >= j";
  EXPECT_THAT(UserMaskPolicy(spec).text, testing::Not(HasSubstr("Skip")));
  spec.mask_tile_snippet = {.text = "j_begin >= i_end ? none : some", .file_name = "tile.cuh"};
  const std::string text = UserMaskPolicy(spec).text;
  EXPECT_THAT(text, HasSubstr("return TileRule(problem__, i_begin__, i_end__, j_begin__, j_end__, "
                              "params__) == kNone;"));
  EXPECT_THAT(text, HasSubstr("params__) == kAll;"));
  EXPECT_THAT(text, HasSubstr("#line 1 \"tile.cuh\"\nj_begin >= i_end ? none : some\n"));
}

TEST(UserPolicyTest, LinesAfterTheSnippetAreTheHeadersOwn) {
  AttentionSpec spec;
  spec.score_snippet.text = "score +\n\n1\n";
  const std::string text = UserScorePolicy(spec).text;
  const std::string header(kUserScoreHeader);
  const size_t at = text.find(" \"" + header + "\"\n");
  ASSERT_NE(at, std::string::npos);
  const auto line = std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n') + 1;
  // A #line names the line below it.
  EXPECT_THAT(text, HasSubstr(absl::StrCat("#line ", line + 1, " \"", header, "\"\n")));
}

TEST(UserPolicyTest, ArraysAndScalarsAreLocals) {
  AttentionSpec spec;
  spec.score_snippet.text = "score";
  spec.snippet_arrays = {{"table", ElementType::kBf16},
                         {"codes", ElementType::kInt8},
                         {"flags", ElementType::kBool},
                         {"ids", ElementType::kInt32}};
  spec.snippet_scalars = {{"gain", ScalarType::kFloat}, {"period", ScalarType::kInt64}};
  const std::string text = UserScorePolicy(spec).text;
  EXPECT_THAT(text, HasSubstr("const ::tilewright::Bf16* const table = params__.user_table;"));
  EXPECT_THAT(text, HasSubstr("const signed char* const codes = params__.user_codes;"));
  EXPECT_THAT(text, HasSubstr("const ::tilewright::Bool8* const flags = params__.user_flags;"));
  EXPECT_THAT(text, HasSubstr("const ::tilewright::i32* const ids = params__.user_ids;"));
  EXPECT_THAT(text, HasSubstr("const float gain = params__.user_gain;"));
  EXPECT_THAT(text, HasSubstr("const ::tilewright::i64 period = params__.user_period;"));
}

}  // namespace
}  // namespace tilewright::emit
