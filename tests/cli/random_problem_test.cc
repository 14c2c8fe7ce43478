#include "cli/random_problem.h"

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "cli/accuracy.h"
#include "cli/attention_run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reference/reference.h"
#include "spec/canonical.h"
#include "spec/validate.h"

namespace tilewright::cli {
namespace {

using ::testing::HasSubstr;

AttentionSpec Spec(const std::string& text) {
  const absl::StatusOr<AttentionSpec> spec = spec::ParseSpec(text);
  EXPECT_TRUE(spec.ok()) << text << ": " << spec.status();
  return *spec;
}

// Specs that between them use every input of a call.
const char* const kSpecs[] = {
    "fwd bf16 b=2 h=4/2 s=17/33 d=24/40 causal lse",
    "fwd fp32 b=2 h=2 s=9/12 d=7 layout=bhsd window=3,2",
    "fwd fp16 b=2 h=2 s=9/12 d=8 layout=sbhd alibi sinks lse",
    "fwd fp16 b=4 h=2 s=9/12 d=8 bias=fp16:1,2,9,12 bias=fp32:2,1,1,12:div mask=bool:4,1,9,12 lse",
    "fwd bf16 b=3 h=2 s=20/30 d=8 layout=thd varlen lse",
    "fwd bf16 b=3 h=2 s=20/30 d=8 varlen lse",
    "fwd bf16 b=3 h=2 s=5/30 d=8 paged=4 varlen lse",
    "fwd bf16 b=3 h=2 s=5/30 d=8 layout=bhsd paged=4 varlen",
    "fwd bf16 b=3 h=2 s=5/30 d=8 layout=thd paged=4 varlen kv=int8 kv_scale=token",
    "fwd bf16 b=2 h=4/2 s=9/12 d=8 kv=e4m3 kv_scale=head lse",
    "fwd bf16 b=2 h=4/2 s=9/12 d=8 kv=int8 kv_scale=token",
    "fwd e4m3 b=2 h=4/2 s=9/12 d=8 out=bf16 q_scale=head kv_scale=tensor lse",
    "fwd fp32 b=2 h=2 s=70/65 d=8 block_mask=32,16 lse",
    "fwd fp32 b=2 h=2 s=9/12 d=8 dropout=0.25",
    "fwd fp32 b=2 h=2 s=9/12 d=8 strided_innermost lse",
    "fwd fp32 b=0 h=2 s=9/12 d=8",
    "fwd fp32 b=2 h=2 s=0/12 d=8 lse",
    "fwd fp32 b=2 h=2 s=9/0 d=8 lse",
};

class RandomProblemOfEachSpecTest : public testing::TestWithParam<std::tuple<const char*, bool>> {
 protected:
  RandomProblemOptions Options() const {
    RandomProblemOptions options;
    options.odd_strides = std::get<1>(GetParam());
    options.dropout_by_pointer = std::get<1>(GetParam());
    return options;
  }
};

TEST_P(RandomProblemOfEachSpecTest, IsAValidCallWhoseResultIsFinite) {
  const AttentionSpec spec = Spec(std::get<0>(GetParam()));
  absl::StatusOr<HostProblem> problem = MakeRandomProblem(spec, Options());
  ASSERT_TRUE(problem.ok()) << problem.status();
  const absl::Status valid = spec::ValidateArgs(spec, problem->args());
  ASSERT_TRUE(valid.ok()) << valid;
  const std::vector<reference::Row> rows = reference::AllRows(spec, problem->args());
  const absl::StatusOr<reference::ForwardResult> result =
      reference::Forward(spec, problem->args(), rows);
  ASSERT_TRUE(result.ok()) << result.status();
  for (double value : result->o) ASSERT_TRUE(std::isfinite(value));

  // What the host computes, stored and read back, is within the bar of itself.
  ASSERT_TRUE(ComputeOnHost(*problem, {}).ok());
  const absl::StatusOr<Accuracy> accuracy = CheckAccuracy(*problem, rows);
  ASSERT_TRUE(accuracy.ok()) << accuracy.status();
  EXPECT_TRUE(accuracy->holds()) << accuracy->ToString();
  EXPECT_EQ(accuracy->rows, static_cast<int64_t>(rows.size()));
}

TEST_P(RandomProblemOfEachSpecTest, IsTheSameForTheSameSeedOnly) {
  const AttentionSpec spec = Spec(std::get<0>(GetParam()));
  const absl::StatusOr<HostProblem> a = MakeRandomProblem(spec, Options());
  const absl::StatusOr<HostProblem> b = MakeRandomProblem(spec, Options());
  RandomProblemOptions other = Options();
  other.seed = 2;
  const absl::StatusOr<HostProblem> c = MakeRandomProblem(spec, other);
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  const auto bytes = [](const HostProblem& problem) {
    std::vector<std::byte> all;
    for (const HostBuffer& buffer : problem.buffers()) {
      all.insert(all.end(), buffer.base(), buffer.base() + buffer.size);
    }
    return all;
  };
  EXPECT_EQ(bytes(*a), bytes(*b));
  const bool has_elements = spec.batch > 0;
  if (has_elements) {
    EXPECT_NE(bytes(*a), bytes(*c));
  }
}

TEST_P(RandomProblemOfEachSpecTest, MovesEveryPointerIntoOtherMemory) {
  const AttentionSpec spec = Spec(std::get<0>(GetParam()));
  absl::StatusOr<HostProblem> problem = MakeRandomProblem(spec, Options());
  ASSERT_TRUE(problem.ok()) << problem.status();
  std::vector<std::vector<std::byte>> copies;
  std::vector<void*> bases;
  for (const HostBuffer& buffer : problem->buffers()) {
    copies.emplace_back(buffer.base(), buffer.base() + buffer.size);
    copies.back().reserve(1);
    bases.push_back(copies.back().data());
  }
  const AttentionArgs moved = problem->ArgsAt(bases);
  const std::vector<reference::Row> rows = reference::AllRows(spec, moved);
  const absl::StatusOr<reference::ForwardResult> there = reference::Forward(spec, moved, rows);
  const absl::StatusOr<reference::ForwardResult> here =
      reference::Forward(spec, problem->args(), rows);
  ASSERT_TRUE(there.ok()) << there.status();
  ASSERT_TRUE(here.ok()) << here.status();
  EXPECT_EQ(there->o, here->o);
  // Nothing points into the original any more.
  for (HostBuffer& buffer : problem->buffers()) {
    std::fill(buffer.base(), buffer.base() + buffer.size, std::byte{0x7b});
  }
  const absl::StatusOr<reference::ForwardResult> again = reference::Forward(spec, moved, rows);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->o, here->o);
}

INSTANTIATE_TEST_SUITE_P(Each, RandomProblemOfEachSpecTest,
                         testing::Combine(testing::ValuesIn(kSpecs), testing::Bool()));

TEST(RandomProblemTest, ScoresHaveUnitVariance) {
  const AttentionSpec spec = Spec("fwd fp32 b=1 h=1 s=400/400 d=64");
  const absl::StatusOr<HostProblem> problem = MakeRandomProblem(spec);
  ASSERT_TRUE(problem.ok());
  const auto* q = static_cast<const float*>(problem->args().q.data);
  double sum = 0, squared = 0;
  const int count = 400 * 64;
  for (int n = 0; n < count; ++n) {
    sum += q[n];
    squared += static_cast<double>(q[n]) * q[n];
  }
  EXPECT_NEAR(sum / count, 0, 0.03);
  EXPECT_NEAR(squared / count, 1, 0.05);
}

TEST(RandomProblemTest, RowsBeyondALengthArePoisoned) {
  const AttentionSpec spec = Spec("fwd fp32 b=2 h=1 s=2/6 d=4 varlen");
  RandomProblemOptions options;
  options.lengths_kv = {6, 2};
  const absl::StatusOr<HostProblem> problem = MakeRandomProblem(spec, options);
  ASSERT_TRUE(problem.ok()) << problem.status();
  const auto* k = static_cast<const float*>(problem->args().k.data);
  for (int row = 0; row < 12; ++row) {
    const bool used = row < 8;
    EXPECT_EQ(std::isnan(k[row * 4]), !used) << row;
  }
  EXPECT_EQ(problem->LengthKv(0), 6);
  EXPECT_EQ(problem->LengthKv(1), 2);
}

TEST(RandomProblemTest, KeysThatAWindowHidesArePoisonedWhereAskedFor) {
  const struct {
    const char* words;
    int first, end;  // keys that some row sees
  } cases[] = {{"causal=top_left", 0, 3},
               {"window=1,0", 6, 10},
               {"window=1,2 align=top_left", 0, 5},
               {"window=9223372036854775807,0", 0, 10},
               {"window=9223372036854775807,1 align=top_left", 0, 4}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.words);
    const AttentionSpec spec = Spec(std::string("fwd fp32 b=1 h=1 s=3/10 d=4 ") + c.words);
    for (const bool hidden : {false, true}) {
      RandomProblemOptions options;
      options.poison_hidden_kv = hidden;
      const absl::StatusOr<HostProblem> problem = MakeRandomProblem(spec, options);
      ASSERT_TRUE(problem.ok()) << problem.status();
      const auto* k = static_cast<const float*>(problem->args().k.data);
      for (int row = 0; row < 10; ++row) {
        EXPECT_EQ(std::isnan(k[row * 4]), hidden && (row < c.first || row >= c.end)) << row;
      }
    }
  }
}

TEST(RandomProblemTest, PagesAreDistinctAndEntriesBeyondTheLengthPointNowhere) {
  const AttentionSpec spec = Spec("fwd fp32 b=2 h=1 s=1/16 d=4 paged=4 varlen");
  RandomProblemOptions options;
  options.lengths_kv = {16, 5};
  const absl::StatusOr<HostProblem> problem = MakeRandomProblem(spec, options);
  ASSERT_TRUE(problem.ok()) << problem.status();
  const AttentionArgs& args = problem->args();
  std::set<int32_t> pages;
  for (int p = 0; p < 4; ++p) pages.insert(args.page_table[p]);
  for (int p = 0; p < 2; ++p) pages.insert(args.page_table[args.page_table_stride + p]);
  EXPECT_EQ(pages.size(), 6);
  EXPECT_EQ(*pages.rbegin() < 8, true);
  EXPECT_EQ(args.page_table[args.page_table_stride + 2], 0x7fffffff);
}

TEST(RandomProblemTest, OutputsArePoisoned) {
  const AttentionSpec spec = Spec("fwd fp32 b=1 h=1 s=2/6 d=4 lse");
  RandomProblemOptions options;
  options.poison = std::byte{0xab};
  const absl::StatusOr<HostProblem> problem = MakeRandomProblem(spec, options);
  ASSERT_TRUE(problem.ok());
  for (const char* name : {"o", "lse"}) {
    const HostBuffer* buffer = problem->FindBuffer(name);
    ASSERT_NE(buffer, nullptr);
    EXPECT_TRUE(buffer->output);
    for (size_t n = 0; n < buffer->size; ++n) ASSERT_EQ(buffer->base()[n], std::byte{0xab});
  }
}

TEST(RandomProblemTest, LengthsThatDoNotFitAreRefused) {
  RandomProblemOptions options;
  options.lengths_kv = {7, 1};
  absl::StatusOr<HostProblem> problem =
      MakeRandomProblem(Spec("fwd fp32 b=2 h=1 s=2/6 d=4 varlen"), options);
  EXPECT_THAT(problem.status().message(), HasSubstr("holds 7"));
  options.lengths_kv = {1};
  problem = MakeRandomProblem(Spec("fwd fp32 b=2 h=1 s=2/6 d=4 varlen"), options);
  EXPECT_THAT(problem.status().message(), HasSubstr("the spec's batch is 2"));
  problem = MakeRandomProblem(Spec("fwd fp32 b=2 h=1 s=2/6 d=4"), options);
  EXPECT_THAT(problem.status().message(), HasSubstr("varlen"));
}

TEST(RandomProblemTest, MissingSnippetInputsAreNamed) {
  AttentionSpec spec = Spec("fwd fp32 b=1 h=1 s=2/6 d=4");
  spec.score_snippet.text = "score * gain + table[j]";
  spec.snippet_arrays = {{"table", ElementType::kFp32}};
  spec.snippet_scalars = {{"gain", ScalarType::kFloat}};
  RandomProblemOptions options;
  EXPECT_THAT(MakeRandomProblem(spec, options).status().message(), HasSubstr("\"table\""));
  options.snippet_arrays["table"] = std::vector<std::byte>(24);
  EXPECT_THAT(MakeRandomProblem(spec, options).status().message(), HasSubstr("\"gain\""));
  options.snippet_scalars["gain"] = 0.5;
  const absl::StatusOr<HostProblem> problem = MakeRandomProblem(spec, options);
  ASSERT_TRUE(problem.ok()) << problem.status();
  EXPECT_EQ(problem->args().snippet_scalars[0].f, 0.5F);
  EXPECT_NE(problem->args().snippet_arrays[0], nullptr);
}

TEST(RandomProblemTest, ABackwardHasGradientsAsOutputs) {
  const absl::StatusOr<HostProblem> problem =
      MakeRandomProblem(Spec("bwd bf16 b=2 h=4/2 s=5/6 d=8 bias=fp32:1,4,5,6:grad"));
  ASSERT_TRUE(problem.ok()) << problem.status();
  const AttentionArgs& args = problem->args();
  EXPECT_NE(args.d_o.data, nullptr);
  EXPECT_NE(args.lse, nullptr);
  EXPECT_FALSE(problem->FindBuffer("d_o")->output);
  for (const char* name : {"d_q", "d_k", "d_v", "d_bias0"}) {
    ASSERT_NE(problem->FindBuffer(name), nullptr) << name;
    EXPECT_TRUE(problem->FindBuffer(name)->output) << name;
  }
  EXPECT_EQ(problem->FindBuffer("d_k")->size, 2u * 6 * 2 * 8 * 2);
}

}  // namespace
}  // namespace tilewright::cli
