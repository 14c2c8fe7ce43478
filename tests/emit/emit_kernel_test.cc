#include "emit/emit_kernel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "emit_cases.h"

namespace tilewright::emit {
namespace {

using testing::HasSubstr;
using testing::Not;

void ExpectSameSource(const artifact::KernelSource& a, const artifact::KernelSource& b) {
  EXPECT_EQ(a.entry_name, b.entry_name);
  EXPECT_EQ(a.unit_name, b.unit_name);
  EXPECT_EQ(a.text, b.text);
  ASSERT_EQ(a.generated_headers.size(), b.generated_headers.size());
  for (size_t n = 0; n < a.generated_headers.size(); ++n) {
    EXPECT_EQ(a.generated_headers[n].name, b.generated_headers[n].name);
    EXPECT_EQ(a.generated_headers[n].text, b.generated_headers[n].text);
  }
}

TEST(EmitKernelTest, EqualInputsGiveEqualBytes) {
  ExpectSameSource(Emit(SpecOf(kEverySlot, "true")), Emit(SpecOf(kEverySlot, "true")));
}

// Each pair differs in what stays a run-time argument.
TEST(EmitKernelTest, RunTimeArgumentsLeaveNoTrace) {
  const char* const pairs[][2] = {
      {"fwd bf16 b=2 h=8/2 s=64/128 d=64", "fwd bf16 b=7 h=8/2 s=1001/77 d=64"},
      {"fwd bf16 b=2 h=8/2 s=64 d=64", "fwd bf16 b=2 h=32/8 s=64 d=64"},
      {"fwd bf16 b=2 h=8 s=64 d=64", "fwd bf16 b=2 h=8 s=64 d=64 layout=bhsd"},
      {"fwd bf16 b=2 h=8 s=64 d=64",
       "fwd bf16 b=2 h=8 s=64 d=64 strides=99999,777,88,1;99999,777,88,1;99999,777,88,1;99999,777,"
       "88,1"},
      {"fwd bf16 b=2 h=8 s=64 d=64", "fwd bf16 b=2 h=8 s=64 d=64 scale=0.7"},
      {"fwd bf16 b=2 h=8 s=64 d=64 window=5,0", "fwd bf16 b=2 h=8 s=64 d=64 window=1023,77"},
      {"fwd bf16 b=2 h=8 s=64 d=64 softcap=50", "fwd bf16 b=2 h=8 s=64 d=64 softcap=30"},
      {"fwd bf16 b=2 h=8 s=64 d=64 dropout=0.1", "fwd bf16 b=2 h=8 s=64 d=64 dropout=0.9"},
      {"fwd bf16 b=4 h=8 s=64 d=64 bias=fp16:1,8,64,64",
       "fwd bf16 b=4 h=8 s=64 d=64 bias=fp16:2,1,1,64:div"},
      {"fwd bf16 b=2 h=8 s=64 d=64", "fwd bf16 b=2 h=8 s=64 d=64 batch_invariant"},
  };
  for (const auto& [a, b] : pairs) {
    SCOPED_TRACE(b);
    ExpectSameSource(Emit(SpecOf(a)), Emit(SpecOf(b)));
  }
}

// Each spec differs from the plain one in what is baked in.
TEST(EmitKernelTest, WhatShapesCodeChangesTextAndName) {
  const std::string plain = "fwd bf16 b=2 h=8/2 s=64/128 d=64/64";
  const artifact::KernelSource source = Emit(SpecOf(plain));
  for (const char* other :
       {"fwd fp16 b=2 h=8/2 s=64/128 d=64/64", "fwd bf16 b=2 h=8/4 s=64/128 d=64/64",
        "fwd bf16 b=2 h=8/2 s=64/128 d=64/72"}) {
    EXPECT_NE(Emit(SpecOf(other)).text, source.text) << other;
    EXPECT_NE(Emit(SpecOf(other)).entry_name, source.entry_name) << other;
  }
  for (const char* words : {"causal",
                            "causal=top_left",
                            "window=3,0",
                            "window=3,0 align=top_left",
                            "out=fp32",
                            "kv=e4m3",
                            "kv=int8 kv_scale=head",
                            "softcap=5",
                            "alibi",
                            "alibi align=top_left",
                            "bias=fp32:1,1,64,128",
                            "bias=bool:1,1,64,128",
                            "sinks",
                            "dropout=0.5",
                            "varlen",
                            "paged=16",
                            "paged=64",
                            "block_mask=64,64",
                            "block_mask=64,128",
                            "lse",
                            "lse lse_base=2",
                            "lse empty_lse=+inf",
                            "strided_innermost",
                            "exact",
                            "score=@a",
                            "mask=@a"}) {
    const artifact::KernelSource changed = Emit(SpecOf(plain + " " + words, "true"));
    EXPECT_NE(changed.text, source.text) << words;
    EXPECT_NE(changed.entry_name, source.entry_name) << words;
  }
  plan::KernelPlan plan = AnyPlan();
  plan.rows_per_warp = 4;
  plan.block_m = 16;
  EXPECT_NE(Emit(SpecOf(plain), plan).entry_name, source.entry_name);
}

TEST(EmitKernelTest, NamesFamilySpecAndPlan) {
  EXPECT_EQ(Emit(SpecOf("fwd bf16 b=2 h=8/1 s=64/128 d=128 causal paged=16 varlen lse")).entry_name,
            "attn_fwd_simple__bf16_d128_gqa8_causal_varlen_paged16_lse__m32n32w4r8p128");
  EXPECT_EQ(Emit(SpecOf("fwd fp16 b=2 h=8 s=64 d=192/128 softcap=5 alibi softcap_before_bias"))
                .entry_name,
            "attn_fwd_simple__fp16_d192v128_softcapfirst_alibi__m32n32w4r8p128");
  const artifact::KernelSource source = Emit(SpecOf(kEverySlot, "true"));
  EXPECT_EQ(source.unit_name, source.entry_name + ".cu");
  EXPECT_THAT(source.text, HasSubstr("\n" + source.entry_name + "("));
  EXPECT_THAT(source.entry_name, testing::MatchesRegex("[a-z0-9_]+"));
}

TEST(EmitKernelTest, PoliciesStandInTheOrderOfTheDefinition) {
  const std::string words =
      "alibi bias=fp16:1,1,8,8 bias=bool:1,1,8,8 bias=fp32:1,1,8,8 softcap=5 ";
  const std::string plain = "fwd bf16 b=1 h=1 s=8 d=8 score=@a mask=@a causal " + words;
  const std::string text = Emit(SpecOf(plain, "true")).text;
  EXPECT_THAT(text, HasSubstr("using Score = ScoreChain<ScoreBias<0, Fp16>, ScoreBias<2, float>, "
                              "ScoreAlibi<Align::kBottomRight>, ScoreSoftcap, ScoreUser>;"));
  EXPECT_THAT(text, HasSubstr("using Mask = MaskChain<MaskCausal<Align::kBottomRight>, "
                              "MaskBias<1>, MaskUser>;"));
  EXPECT_THAT(Emit(SpecOf(plain + "softcap_before_bias", "true")).text,
              HasSubstr("using Score = ScoreChain<ScoreSoftcap, ScoreBias<0, Fp16>, "));
}

TEST(EmitKernelTest, TheCommentRecreatesTheText) {
  for (std::string_view text :
       {std::string_view("fwd bf16 b=2 h=8/2 s=64 d=64 causal window=9,0"),
        std::string_view("fwd bf16 b=2 h=8 s=64/99 d=64/72 exact lse"), kEverySlot}) {
    const artifact::KernelSource source = Emit(SpecOf(text, "true"));
    // recreate: tilewright emit 'SPEC' --plan 'PLAN'
    const size_t line = source.text.find("recreate: tilewright emit '");
    ASSERT_NE(line, std::string::npos);
    const std::vector<std::string> words = absl::StrSplit(source.text.substr(line), '\'');
    ASSERT_GE(words.size(), 5u);
    EXPECT_EQ(words[2], " --plan ");
    const absl::StatusOr<plan::KernelPlan> plan = plan::ParsePlan(words[3]);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ExpectSameSource(Emit(SpecOf(words[1], "true"), *plan), source);
  }
}

TEST(EmitKernelTest, FileNamesCannotLeaveTheirComment) {
  AttentionSpec spec = SpecOf("fwd bf16 b=1 h=1 s=8 d=8");
  spec.score_snippet = {.text = "score", .file_name = "a\n#error \"b\" \\"};
  const artifact::KernelSource source = Emit(spec);
  EXPECT_THAT(source.text, Not(HasSubstr("\n#error")));
  ASSERT_EQ(source.generated_headers.size(), 1u);
  EXPECT_THAT(source.generated_headers[0].text, Not(HasSubstr("\n#error")));
  EXPECT_THAT(source.generated_headers[0].text, HasSubstr("#line 1 \"a?#error \\\"b\\\" \\\\\"\n"));
}

}  // namespace
}  // namespace tilewright::emit
