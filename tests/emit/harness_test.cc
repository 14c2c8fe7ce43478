#include "emit/harness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "emit/param_layout.h"
#include "emit_cases.h"

namespace tilewright::emit {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

std::set<std::string> NamesOf(const std::vector<artifact::SourceFile>& files) {
  std::set<std::string> names;
  for (const artifact::SourceFile& file : files) names.insert(file.name);
  return names;
}

TEST(HarnessTest, StandaloneFilesIncludeEachOtherOnly) {
  for (std::string_view text : {std::string_view("fwd bf16 b=1 h=1 s=8 d=8"), kEverySlot}) {
    const std::vector<artifact::SourceFile> files =
        StandaloneFiles(Emit(SpecOf(text, "true")), EmbeddedTemplates());
    const std::set<std::string> names = NamesOf(files);
    EXPECT_EQ(names.size(), files.size());
    for (const artifact::SourceFile& file : files) {
      for (const absl::string_view line : absl::StrSplit(file.text, '\n')) {
        if (line.rfind("#include", 0) != 0) continue;
        const std::vector<std::string> quoted = absl::StrSplit(line, '"');
        ASSERT_EQ(quoted.size(), 3u) << file.name << ": " << line;
        EXPECT_THAT(names, Contains(quoted[1])) << file.name;
      }
    }
  }
}

TEST(HarnessTest, PoliciesNotInUseStayBehind) {
  const artifact::KernelSource source = Emit(SpecOf("fwd bf16 b=1 h=1 s=8 d=8 causal"));
  const std::set<std::string> names = NamesOf(StandaloneFiles(source, EmbeddedTemplates()));
  EXPECT_THAT(names, Contains(source.unit_name));
  EXPECT_THAT(names, Contains("family/attn_fwd_simple.cuh"));
  EXPECT_THAT(names, Contains("policy/mask_window.cuh"));
  EXPECT_THAT(names, Not(Contains("policy/score_alibi.cuh")));
}

TEST(HarnessTest, TheProgramFillsEverySlot) {
  const AttentionSpec spec = SpecOf(kEverySlot, "true");
  const artifact::KernelSource source = Emit(spec);
  const std::string text = HarnessProgram(spec, AnyPlan(), source).text;
  EXPECT_THAT(text, HasSubstr(absl::StrCat("#include \"", source.unit_name, "\"")));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("kernel = &", source.entry_name, ";")));
  for (const char* slot :
       {"core.q",     "core.k_strides", "core.lse",   "core.scale", "window",  "varlen",
        "page_table", "alibi",          "bias[0]",    "bias[1]",    "softcap", "sinks",
        "block_mask", "q_scale",        "k_scale",    "v_scale",    "dropout", "user_table",
        "user_codes", "user_gain",      "user_period"}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("  params.", slot, " = ")));
  }
}

TEST(HarnessTest, TheGridIsThatOfTheSpec) {
  // 2 batches, 8 heads, 5 tiles of 32 rows.
  const AttentionSpec spec = SpecOf("fwd bf16 b=2 h=8 s=130/64 d=128");
  EXPECT_THAT(HarnessProgram(spec, AnyPlan(), Emit(spec)).text,
              HasSubstr("constexpr unsigned kGrid = 80;"));
}

}  // namespace
}  // namespace tilewright::emit
