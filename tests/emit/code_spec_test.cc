#include "emit/code_spec.h"

#include <gtest/gtest.h>

#include "emit_cases.h"
#include "spec/validate.h"

namespace tilewright::emit {
namespace {

TEST(CodeSpecTest, IsItsOwnCodeSpec) {
  for (const AttentionSpec& spec :
       {SpecOf(kEverySlot, "true"), SpecOf("fwd bf16 b=3 h=6/2 s=9/8 d=64 exact causal lse")}) {
    const AttentionSpec code = CodeSpec(spec);
    EXPECT_EQ(CodeSpec(code), code);
    EXPECT_EQ(spec::Canonicalise(code), code);
    EXPECT_TRUE(spec::Validate(code).ok()) << spec::Validate(code);
  }
}

TEST(CodeSpecTest, KeepsTheRatioOfHeads) {
  const AttentionSpec code = CodeSpec(SpecOf("fwd bf16 b=3 h=24/8 s=9/8 d=64"));
  EXPECT_EQ(code.heads_q, 3);
  EXPECT_EQ(code.heads_kv, 1);
  EXPECT_EQ(CodeSpec(SpecOf("fwd bf16 b=3 h=0/0 s=9/8 d=64")).heads_q, 1);
}

TEST(CodeSpecTest, KeepsLengthsThatAreBakedIn) {
  const AttentionSpec code = CodeSpec(SpecOf("fwd bf16 b=3 h=4 s=9/8 d=64 exact"));
  EXPECT_EQ(code.batch, 3);
  EXPECT_EQ(code.seqlen_q, 9);
  EXPECT_EQ(code.seqlen_kv, 8);
}

TEST(CodeSpecTest, DropsAnAlignmentThatNothingLooksAt) {
  EXPECT_EQ(CodeSpec(SpecOf("fwd bf16 b=1 h=1 s=8 d=8 align=top_left")).align,
            MaskAlign::kBottomRight);
  EXPECT_EQ(CodeSpec(SpecOf("fwd bf16 b=1 h=1 s=8 d=8 alibi align=top_left")).align,
            MaskAlign::kTopLeft);
}

TEST(CodeSpecTest, TellsMasksOfTheDiagonalApart) {
  const auto mask_of = [](std::string_view words) {
    return DiagonalMaskOf(SpecOf("fwd bf16 b=1 h=1 s=8 d=8 " + std::string(words)));
  };
  EXPECT_EQ(mask_of(""), DiagonalMask::kNone);
  EXPECT_EQ(mask_of("causal"), DiagonalMask::kCausal);
  EXPECT_EQ(mask_of("window=-1,0"), DiagonalMask::kCausal);
  EXPECT_EQ(mask_of("causal window=7,3"), DiagonalMask::kWindow);
  EXPECT_EQ(mask_of("window=-1,3"), DiagonalMask::kWindow);
}

}  // namespace
}  // namespace tilewright::emit
