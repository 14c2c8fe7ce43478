#include "tune/bucket.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>

#include "arch/arch_traits.h"
#include "arch/board_profile.h"
#include "plan/planner.h"
#include "spec/canonical.h"

namespace tilewright::tune {
namespace {

AttentionSpec Spec(const std::string& text) { return spec::Canonicalise(*spec::ParseSpec(text)); }
Bucket BucketOfText(const std::string& text) { return BucketOf(Spec(text)); }

TEST(BucketTest, RoundsUpToEdgesThatAreTheirOwnBucket) {
  for (int64_t n = 1; n <= 70'000; ++n) {
    const int64_t edge = RoundLength(n);
    ASSERT_GE(edge, n);
    ASSERT_EQ(RoundLength(edge), edge) << n;
    ASSERT_LE(edge, 2 * n);
    if (n > 64) {
      ASSERT_LE(edge, n + n / 2) << "half-way steps";
    }
    ASSERT_LE(RoundLength(n), RoundLength(n + 1));
    ASSERT_EQ(RoundBatch(RoundBatch(n)), RoundBatch(n));
  }
  EXPECT_EQ(RoundLength(65), 96);
  EXPECT_EQ(RoundLength(97), 128);
  EXPECT_EQ(RoundLength(0), 1);
  EXPECT_EQ(RoundLength(int64_t{1} << 50), int64_t{1} << 50);
}

TEST(BucketTest, DropsWhatCostsNoTimeAndKeepsWhatChangesTheKernel) {
  const std::string base = "fwd bf16 b=2 h=8/2 s=512/512 d=64/64 causal";
  const Bucket bucket = BucketOfText(base);
  EXPECT_EQ(bucket.ToText(), "fwd bf16 b=1 h=8/2 s=1/1 d=64/64 causal @ b<=2 s<=512/512");
  EXPECT_EQ(BucketOfText(base + " scale=0.5"), bucket);
  EXPECT_EQ(BucketOfText("fwd bf16 b=2 h=8/2 s=400/385 d=64/64 causal"), bucket);
  for (const char* other :
       {"fwd fp16 b=2 h=8/2 s=512/512 d=64/64 causal",
        "fwd bf16 b=2 h=8/4 s=512/512 d=64/64 causal",
        "fwd bf16 b=2 h=8/2 s=512/512 d=72/64 causal", "fwd bf16 b=2 h=8/2 s=512/512 d=64/64",
        "fwd bf16 b=2 h=8/2 s=512/512 d=64/64 causal lse",
        "fwd bf16 b=2 h=8/2 s=512/512 d=64/64 causal alibi",
        "fwd bf16 b=2 h=8/2 s=512/512 d=64/64 causal layout=bhsd"}) {
    EXPECT_NE(BucketOfText(other).kind, bucket.kind) << other;
  }
}

TEST(BucketTest, ExactSpecsShareNothing) {
  EXPECT_NE(BucketOfText("fwd bf16 b=2 h=8/2 s=511/511 d=64/64 exact"),
            BucketOfText("fwd bf16 b=2 h=8/2 s=512/512 d=64/64 exact"));
}

TEST(BucketTest, TellsBroadcastBiasesFromFullOnesAndStridesByAlignment) {
  const auto with = [](const std::string& words) {
    return BucketOfText("fwd fp16 b=8 h=4/4 s=96/96 d=32/32 " + words).kind;
  };
  EXPECT_NE(with("bias=fp16:1,4,96,96"), with("bias=fp16:8,4,96,96"));
  EXPECT_NE(with("bias=fp16:8,4,96,96"), with("bias=fp16:4,4,96,96"));
  EXPECT_NE(with("bias=fp16:1,4,96,96"), with("bias=fp16:1,4,1,96"));
  EXPECT_EQ(with("bias=fp16:1,4,96,96"),
            BucketOfText("fwd fp16 b=8 h=4/4 s=90/90 d=32/32 bias=fp16:1,4,90,90").kind);
  AttentionSpec wide = Spec("fwd fp16 b=8 h=4/4 s=96/96 d=32/32");
  AttentionSpec odd = wide;
  wide.strides = {Strides{40960, 384, 32, 1}, Strides{40960, 384, 32, 1},
                  Strides{40960, 384, 32, 1}, Strides{40960, 384, 32, 1}};
  odd.strides = wide.strides;
  (*odd.strides)[1].seq = 387;
  EXPECT_NE(BucketOf(wide).kind, BucketOf(odd).kind);
  AttentionSpec longer = wide;
  for (Strides& strides : *longer.strides) strides.batch = 2 * 40960;
  EXPECT_EQ(BucketOf(wide).kind, BucketOf(longer).kind);
}

TEST(BucketTest, SnippetsAreToldApartByTheirText) {
  AttentionSpec one = Spec("fwd bf16 b=1 h=1/1 s=64/64 d=64/64");
  one.score_snippet = {"score * 2.f", "a.cu"};
  AttentionSpec renamed = one;
  renamed.score_snippet.file_name = "b.cu";
  AttentionSpec other = one;
  other.score_snippet.text = "score * 3.f";
  EXPECT_EQ(BucketOf(one), BucketOf(renamed));
  EXPECT_NE(BucketOf(one), BucketOf(other));

  AttentionSpec backward = one;
  backward.operation = Operation::kBackward;
  backward.score_gradient_snippet = {"2.f * d_score", "a.cu"};
  renamed = other = backward;
  renamed.score_gradient_snippet.file_name = "b.cu";
  other.score_gradient_snippet.text = "d_score * 2.f";
  EXPECT_EQ(BucketOf(backward), BucketOf(renamed));
  EXPECT_NE(BucketOf(backward), BucketOf(other));
}

TEST(BucketTest, MeasuresDistanceInOctaves) {
  const Bucket one = BucketOfText("fwd bf16 b=2 h=8/2 s=512/512 d=64/64");
  EXPECT_EQ(Distance(one, one), 0);
  EXPECT_DOUBLE_EQ(Distance(one, BucketOfText("fwd bf16 b=8 h=8/2 s=512/1024 d=64/64")), 3);
  EXPECT_GT(Distance(one, BucketOfText("fwd fp16 b=2 h=8/2 s=512/512 d=64/64")), 1e9);
}

// R52: the plan that wins at one size of a bucket is legal at both of its edges.
TEST(BucketTest, APlanOfOneSizeIsACandidateAtBothEdgesOfItsBucket) {
  const arch::ArchTraits traits = *arch::FindArchTraits("sm_90a");
  const arch::BoardProfile board = *arch::DefaultBoardProfile("sm_90a");
  std::mt19937_64 random(7);
  const auto draw = [&](int64_t most) { return 1 + static_cast<int64_t>(random() % most); };
  const auto candidates = [&](const AttentionSpec& spec) {
    const plan::PlanRequest request = {spec, traits, board};
    const auto decision = plan::Best(request);
    EXPECT_TRUE(decision.ok()) << decision.status();
    return plan::Candidates(request, *decision);
  };
  for (int n = 0; n < 300; ++n) {
    AttentionSpec spec = Spec("fwd bf16 b=1 h=4/2 s=1/1 d=64/64 lse");
    spec.dim_qk = spec.dim_v = 8 * draw(24);
    spec = WithSizes(spec, draw(64), draw(5000), draw(5000));
    const Bucket bucket = BucketOf(spec);
    const auto here = candidates(spec);
    const auto edge = candidates(WithSizes(spec, bucket.batch, bucket.seqlen_q, bucket.seqlen_kv));
    for (const plan::KernelPlan& plan : here) {
      // Families of last resort may offer fewer rows to shorter queries.
      if (plan.family == plan::Family::kFwdSimple) continue;
      // Whether keys are cut into parts depends on sizes, and is legal for all.
      const auto same = [&](const plan::KernelPlan& other) {
        return other.family == plan.family && other.block_m == plan.block_m &&
               other.block_n == plan.block_n && other.warps == plan.warps &&
               other.stages == plan.stages && other.smem_bytes == plan.smem_bytes;
      };
      EXPECT_TRUE(std::any_of(edge.begin(), edge.end(), same))
          << plan.ToString() << " of " << spec::ToText(spec);
    }
  }
}

TEST(BucketTest, ReachableSpecsCoverEveryBucketOnce) {
  const AttentionSpec spec = Spec("fwd bf16 b=1 h=8/8 s=64/128 d=64/64");
  const auto specs = ReachableSpecs(spec, 8, 300);
  std::set<std::string> buckets;
  for (const AttentionSpec& one : specs) buckets.insert(BucketOf(one).ToText());
  EXPECT_EQ(buckets.size(), specs.size());
  std::mt19937_64 random(3);
  for (int n = 0; n < 2000; ++n) {
    const int64_t batch = 1 + static_cast<int64_t>(random() % 8);
    const int64_t q = 1 + static_cast<int64_t>(random() % 300);
    const int64_t kv = 1 + static_cast<int64_t>(random() % 300);
    const Bucket bucket = BucketOf(WithSizes(spec, batch, q, kv));
    if (bucket.seqlen_q > 300 || bucket.seqlen_kv > 300) continue;
    EXPECT_EQ(buckets.count(bucket.ToText()), 1u) << bucket.ToText();
  }
}

}  // namespace
}  // namespace tilewright::tune
