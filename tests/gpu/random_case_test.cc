// Random problems: without a device, that every one of them is planned, emitted and launched as it
// should on every architecture; with one, gpu_test --fuzz COUNT[@SEED] runs them.
#include "tests/gpu/random_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "arch/arch_traits.h"
#include "arch/board_profile.h"
#include "emit/code_spec.h"
#include "emit/emit_kernel.h"
#include "emit/param_layout.h"
#include "plan/launch_shape.h"
#include "plan/planner.h"
#include "spec/canonical.h"
#include "spec/validate.h"
#include "tests/gpu/gpu_environment.h"

namespace tilewright::gpu_tests {
namespace {

struct FuzzRange {
  uint64_t first = 1;
  uint64_t count = 0;
};

// "COUNT" or "COUNT@SEED"; none of another text.
std::optional<FuzzRange> ParseRange(std::string_view text) {
  FuzzRange range;
  const size_t at = std::min(text.find('@'), text.size());
  const auto read = [](std::string_view digits, uint64_t& value) {
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return parsed.ec == std::errc() && parsed.ptr == digits.data() + digits.size();
  };
  if (!read(text.substr(0, at), range.count)) return std::nullopt;
  if (at < text.size() && !read(text.substr(at + 1), range.first)) return std::nullopt;
  return range;
}

// What --fuzz asks for, or the first few.
FuzzRange Range() {
  const std::string& text = ProgramFlags().fuzz;
  if (text.empty()) return {.first = 1, .count = 60};
  const auto range = ParseRange(text);
  EXPECT_TRUE(range.has_value()) << "--fuzz " << text << ": must be COUNT or COUNT@SEED";
  return range.value_or(FuzzRange());
}

// The text names the snippets by file; here are their texts.
spec::SnippetReader ReaderOf(const AttentionSpec& spec) {
  return [&spec](std::string_view file) -> absl::StatusOr<std::string> {
    if (file == "score_snippet") return spec.score_snippet.text;
    if (file == "mask_snippet") return spec.mask_snippet.text;
    return spec.mask_tile_snippet.text;
  };
}

std::string LayoutText(const emit::ParamLayout& layout) {
  std::string text = absl::StrCat(layout.size, ":");
  for (const emit::ParamSlot& slot : layout.slots) {
    absl::StrAppend(&text, static_cast<int>(slot.kind), ",", slot.index, ",", slot.offset, ",",
                    slot.size, ";");
  }
  return text;
}

// Every plan that a tuner could choose on `traits`.
void CheckPlans(const AttentionSpec& spec, const AttentionArgs& args,
                const arch::ArchTraits& traits, std::map<std::string, std::string>& layouts) {
  SCOPED_TRACE(std::string(traits.target));
  const auto board = arch::DefaultBoardProfile(traits.target);
  ASSERT_TRUE(board.ok()) << board.status();
  const plan::PlanRequest request = {spec, traits, *board};
  const auto decision = plan::Best(request);
  ASSERT_TRUE(decision.ok()) << decision.status();
  for (const plan::KernelPlan& plan : plan::Candidates(request, *decision)) {
    SCOPED_TRACE(plan.ToString());
    const auto parsed = plan::ParsePlan(plan.ToString());
    EXPECT_TRUE(parsed.ok() && *parsed == plan) << parsed.status();
    const plan::CallPlan call = plan::PlanCall(plan, spec, args);
    EXPECT_GE(call.workspace_bytes, 0);
    for (const plan::KernelPlan& kernel : plan.Kernels()) {
      EXPECT_LE(kernel.smem_bytes, traits.smem_per_block_optin);
      EXPECT_LE(kernel.threads(), 1024);
      const auto source = emit::EmitKernel(spec, kernel);
      ASSERT_TRUE(source.ok()) << source.status();
      // What lies where in the parameters follows from the text, which the key is made of.
      const std::string layout =
          LayoutText(emit::MakeParamLayout(emit::SpecOfKernel(spec, kernel), kernel));
      const auto [known, added] = layouts.try_emplace(source->text, layout);
      EXPECT_EQ(known->second, layout);
      const plan::LaunchShape shape = plan::ComputeLaunchShape(kernel, spec, args, call);
      EXPECT_LE(shape.smem_bytes, static_cast<uint32_t>(traits.smem_per_block_optin));
      EXPECT_LE(shape.grid, 0x7fffffffu);
    }
  }
}

TEST(RandomCaseTest, EveryArchitectureHasPlansThatFit) {
  const FuzzRange range = Range();
  std::map<std::string, std::string> layouts;
  for (uint64_t seed = range.first; seed < range.first + range.count; ++seed) {
    const RandomCase drawn = DrawCase(seed);
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", spec::ToText(drawn.one.spec)));
    for (const AttentionSpec* spec : {&drawn.one.spec, &drawn.prepared}) {
      const absl::Status valid = spec::Validate(*spec);
      ASSERT_TRUE(valid.ok()) << valid << " " << spec::ToText(*spec);
    }
    const AttentionSpec canonical = spec::Canonicalise(drawn.prepared);
    EXPECT_TRUE(spec::Canonicalise(canonical) == canonical);
    const auto read = spec::ParseSpec(spec::ToText(canonical), ReaderOf(canonical));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(spec::Canonicalise(*read) == canonical) << spec::ToText(*read);

    auto problem = cli::MakeRandomProblem(drawn.one.spec, drawn.one.problem);
    ASSERT_TRUE(problem.ok()) << problem.status();
    const absl::Status callable = spec::ValidateArgs(drawn.prepared, problem->args());
    ASSERT_TRUE(callable.ok()) << callable;
    for (const arch::ArchTraits& traits : arch::AllArchTraits()) {
      CheckPlans(canonical, problem->args(), traits, layouts);
    }
    if (HasFailure()) break;  // one of a kind says what to mend
  }
}

TEST(RandomCaseTest, ASeedGivesOneCase) {
  for (const uint64_t seed : {1, 2, 3}) {
    EXPECT_TRUE(DrawCase(seed).one.spec == DrawCase(seed).one.spec);
    EXPECT_EQ(DrawCase(seed, {.backward = false}).one.spec.operation, Operation::kForward);
  }
}

class FuzzTest : public GpuTest {};

// One line a case, before it runs, so that a crash names its seed.
TEST_F(FuzzTest, RandomCasesMatchTheReference) {
  if (ProgramFlags().fuzz.empty()) GTEST_SKIP() << "gpu_test --fuzz COUNT[@SEED]";
  const FuzzRange range = Range();
  for (uint64_t seed = range.first; seed < range.first + range.count; ++seed) {
    const RandomCase drawn = DrawCase(seed);
    std::string text = spec::ToText(drawn.one.spec);
    CheckOptions options;
    options.callables = drawn.one.callables;
    if (!(drawn.prepared == drawn.one.spec)) {
      options.prepared = drawn.prepared;
      absl::StrAppend(&text, " prepared as ", spec::ToText(drawn.prepared));
    }
    std::printf("fuzz %llu %s\n", static_cast<unsigned long long>(seed), text.c_str());
    std::fflush(stdout);
    SCOPED_TRACE(absl::StrCat("--fuzz 1@", seed));
    CheckSpec(runtime(), drawn.one.spec, stream(), drawn.one.problem, options);
  }
}

}  // namespace
}  // namespace tilewright::gpu_tests
