#include "tune/code_digest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tilewright::tune {
namespace {

plan::KernelPlan PlanOf(plan::Family family) {
  plan::KernelPlan plan;
  plan.family = family;
  return plan;
}

plan::KernelPlan PlanInParts() {
  plan::KernelPlan plan = PlanOf(plan::Family::kFwdSm80);
  plan.after = {PlanOf(plan::Family::kCombine)};
  return plan;
}

plan::KernelPlan Backward() {
  plan::KernelPlan plan = PlanOf(plan::Family::kBwdSm80);
  plan.before = {PlanOf(plan::Family::kBwdPrep)};
  plan.after = {PlanOf(plan::Family::kBwdFinish)};
  return plan;
}

// With a line behind the text of one file.
std::string DigestWithChanged(const std::string& file,
                              const std::vector<plan::KernelPlan>& candidates) {
  emit::TemplateBundle bundle = emit::EmbeddedTemplates();
  for (artifact::SourceFile& one : bundle.files) {
    if (one.name == file) one.text += "// changed\n";
  }
  return CodeDigests(&bundle).Of(candidates);
}

bool Matters(const std::string& file, const std::vector<plan::KernelPlan>& candidates) {
  return DigestWithChanged(file, candidates) != DigestWithChanged("no file", candidates);
}

TEST(CodeDigestsTest, ChangesWithTheTemplatesOfEveryCandidate) {
  const std::vector<plan::KernelPlan> both = {PlanOf(plan::Family::kFwdSm90),
                                              PlanOf(plan::Family::kFwdSm80)};
  EXPECT_TRUE(Matters("family/attn_fwd_sm90.cuh", both));
  EXPECT_TRUE(Matters("family/attn_fwd_sm80.cuh", both)) << "it may be the quickest now";
  EXPECT_FALSE(Matters("family/attn_fwd_small.cuh", both));
  EXPECT_TRUE(Matters("family/attn_fwd_small.cuh", {PlanOf(plan::Family::kFwdSmall)}));
}

TEST(CodeDigestsTest, ChangesWithKernelsBeforeAndAfterAndWithWhatIsIncluded) {
  EXPECT_TRUE(Matters("family/attn_combine.cuh", {PlanInParts()}));
  EXPECT_FALSE(Matters("family/attn_combine.cuh", {PlanOf(plan::Family::kFwdSm80)}));
  EXPECT_TRUE(Matters("family/attn_bwd_prep.cuh", {Backward()}));
  EXPECT_TRUE(Matters("family/attn_bwd_finish.cuh", {Backward()}));
  plan::KernelPlan terms = Backward();
  terms.after.push_back(PlanOf(plan::Family::kBwdTerms));
  EXPECT_TRUE(Matters("family/attn_bwd_simple.cuh", {terms}));
  EXPECT_TRUE(Matters("core/types.cuh", {PlanOf(plan::Family::kFwdSm80)}));
  EXPECT_FALSE(Matters("ptx/wgmma.cuh", {PlanOf(plan::Family::kFwdSm80)}));
}

TEST(CodeDigestsTest, SaysTheSameForTheSameFamiliesInAnyOrder) {
  CodeDigests code(&emit::EmbeddedTemplates());
  const std::string once = code.Of(std::vector{PlanOf(plan::Family::kFwdSm90), PlanInParts()});
  EXPECT_EQ(once.size(), 16u);
  EXPECT_EQ(code.Of(std::vector{PlanInParts(), PlanOf(plan::Family::kFwdSm90), PlanInParts()}),
            once);
  EXPECT_NE(code.Of(std::vector{PlanInParts()}), once);
}

}  // namespace
}  // namespace tilewright::tune
