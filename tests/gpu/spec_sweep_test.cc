// The sweep itself, without a device: that it is what it promises, and that its data make sense to
// the reference.
#include "tests/gpu/spec_sweep.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "arch/arch_traits.h"
#include "arch/board_profile.h"
#include "base/log.h"
#include "build/kernel_builder.h"
#include "cache/open_store.h"
#include "cli/accuracy.h"
#include "cli/random_problem.h"
#include "compile/nvrtc_compiler.h"
#include "emit/template_bundle.h"
#include "plan/planner.h"
#include "reference/reference.h"
#include "spec/canonical.h"
#include "spec/validate.h"
#include "tests/gpu/gpu_environment.h"
#include "tests/gpu/guarded_outputs.h"

namespace tilewright::gpu_tests {
namespace {

TEST(SpecSweepTest, HasThreeHundredSpecsOfDifferentNames) {
  EXPECT_GE(SpecSweep().size(), 300u);
  std::set<std::string> names;
  int random = 0;
  for (const SweepCase& one : SpecSweep()) {
    EXPECT_TRUE(names.insert(one.name).second) << one.name;
    random += one.name.starts_with("random_") ? 1 : 0;
  }
  EXPECT_EQ(random, kRandomCombinations);
}

TEST(SpecSweepTest, EverySpecIsValid) {
  for (const SweepCase& one : SpecSweep()) {
    const absl::Status valid = spec::Validate(one.spec);
    EXPECT_TRUE(valid.ok()) << one.name << ": " << valid;
  }
}

TEST(SpecSweepTest, CoversTheDimsAndLengthsPromised) {
  std::set<int64_t> dims;
  std::set<int64_t> lengths;
  std::set<int64_t> groups;
  for (const SweepCase& one : SpecSweep()) {
    dims.insert(one.spec.dim_qk);
    lengths.insert(one.spec.seqlen_q);
    if (one.spec.heads_kv > 0) groups.insert(spec::GroupSize(one.spec));
  }
  for (const int64_t dim : {1, 3, 7, 33, 36, 40, 72, 100, 261, 576, 1024}) {
    EXPECT_TRUE(dims.contains(dim)) << dim;
  }
  for (const int64_t length : {0, 1, 7, 49, 1023, 4097}) {
    EXPECT_TRUE(lengths.contains(length)) << length;
  }
  for (const int64_t group : {1, 2, 3, 7, 71}) EXPECT_TRUE(groups.contains(group)) << group;
}

// What a spec can ask for beyond sizes.
const std::vector<std::pair<const char*, std::function<bool(const AttentionSpec&)>>>& Features() {
  using S = AttentionSpec;
  static const auto* features =
      new std::vector<std::pair<const char*, std::function<bool(const S&)>>>{
          {"fp16", [](const S& s) { return s.type == ElementType::kFp16; }},
          {"fp32", [](const S& s) { return s.type == ElementType::kFp32; }},
          {"fp8 queries", [](const S& s) { return spec::ElementBytes(s.type) == 1; }},
          {"stored keys", [](const S& s) { return s.kv_type.has_value(); }},
          {"int8", [](const S& s) { return s.kv_type == ElementType::kInt8; }},
          {"causal", [](const S& s) { return s.causal; }},
          {"top_left", [](const S& s) { return s.align == MaskAlign::kTopLeft; }},
          {"window", [](const S& s) { return s.window_left >= 0; }},
          {"block mask", [](const S& s) { return s.block_mask_q > 0; }},
          {"softcap", [](const S& s) { return s.softcap > 0; }},
          {"alibi", [](const S& s) { return s.alibi; }},
          {"bias", [](const S& s) { return !s.bias.empty(); }},
          {"sinks", [](const S& s) { return s.sinks; }},
          {"dropout", [](const S& s) { return s.dropout > 0; }},
          {"score snippet", [](const S& s) { return !s.score_snippet.empty(); }},
          {"mask snippet", [](const S& s) { return !s.mask_snippet.empty(); }},
          {"varlen", [](const S& s) { return s.varlen; }},
          {"packed", [](const S& s) { return s.layout == Layout::kThd; }},
          {"paged", [](const S& s) { return s.page_size > 0; }},
          {"strides", [](const S& s) { return s.strides.has_value(); }},
          {"strided innermost", [](const S& s) { return s.strided_innermost; }},
          {"no lse", [](const S& s) { return !s.lse; }},
      };
  return *features;
}

TEST(SpecSweepTest, CoversEveryFeature) {
  for (const auto& [name, has] : Features()) {
    const auto uses = [&has = has](const SweepCase& one) { return has(one.spec); };
    EXPECT_TRUE(std::any_of(SpecSweep().begin(), SpecSweep().end(), uses)) << name;
  }
}

TEST(SpecSweepTest, TheSanitizersGetSmallSpecsWithEveryFeature) {
  const std::vector<SweepCase> chosen = SanitizerSweep();
  EXPECT_EQ(chosen.size(), static_cast<size_t>(kSanitizerCases));
  for (const auto& [name, has] : Features()) {
    const auto uses = [&has = has](const SweepCase& one) { return has(one.spec); };
    EXPECT_TRUE(std::any_of(chosen.begin(), chosen.end(), uses)) << name;
  }
  for (const SweepCase& one : chosen) {
    EXPECT_LE(one.spec.batch * one.spec.heads_q * one.spec.seqlen_q * one.spec.seqlen_kv, 500000)
        << one.name;
  }
}

// Fills the outputs with what the reference gives, rounded once.
void FillFromReference(cli::HostProblem& problem, const std::vector<reference::Row>& rows,
                       const reference::ForwardResult& result) {
  const AttentionSpec& spec = problem.spec();
  const AttentionArgs& args = problem.args();
  const ElementType type = spec::OutType(spec);
  for (size_t r = 0; r < rows.size(); ++r) {
    const reference::Row& row = rows[r];
    const bool packed = spec.varlen && args.cu_seqlens_q != nullptr;
    const int64_t first = packed ? args.cu_seqlens_q[row.b] : 0;
    const Strides& s = args.o.strides;
    const int64_t at = (packed ? first * s.seq : row.b * s.batch) + row.i * s.seq + row.h * s.head;
    for (int64_t d = 0; d < spec.dim_v; ++d) {
      reference::FromDouble(
          type, result.o[r * spec.dim_v + d],
          static_cast<std::byte*>(args.o.data) + (at + d * s.dim) * spec::ElementBytes(type));
    }
    if (!spec.lse) continue;
    args.lse[(packed ? first : row.b * args.lse_stride_batch) + row.i +
             row.h * args.lse_stride_head] = static_cast<float>(result.lse[r]);
  }
}

// The problem of a case with the straightforward computation's answers in its outputs.
void CheckOnHost(const SweepCase& one, int64_t row_limit) {
  SCOPED_TRACE(one.name);
  auto problem = cli::MakeRandomProblem(one.spec, one.problem);
  ASSERT_TRUE(problem.ok()) << problem.status();
  const absl::Status valid = spec::ValidateArgs(one.spec, problem->args());
  ASSERT_TRUE(valid.ok()) << valid;
  GuardOutputs(*problem);
  reference::Options options;
  options.callables = one.callables;
  const auto rows = reference::SampleRows(one.spec, problem->args(), row_limit, 5);
  const auto plain = reference::StraightforwardForward(one.spec, problem->args(), rows, options);
  ASSERT_TRUE(plain.ok()) << plain.status();
  FillFromReference(*problem, rows, *plain);
  const auto accuracy = cli::CheckAccuracy(*problem, rows, options);
  ASSERT_TRUE(accuracy.ok()) << accuracy.status();
  EXPECT_TRUE(accuracy->holds()) << accuracy->ToString();
  // With every row filled, the guards and the poison are satisfied as well.
  if (rows.size() == reference::AllRows(one.spec, problem->args()).size()) {
    EXPECT_EQ(CheckWrites(*problem), "");
  }
}

// A tenth of the sweep and a few rows each; the whole of it with --slow. The straightforward
// computation must pass the bar that it sets: if it does not, the bar or the data are wrong.
TEST(SpecSweepTest, TheReferenceAgreesWithTheStraightforwardComputation) {
  if (!GpuEnvironment::Get().missing().empty() || ProgramFlags().slow) {
    int index = 0;
    for (const SweepCase& one : SpecSweep()) {
      const bool small = one.spec.batch * one.spec.heads_q < 1000;
      if (ProgramFlags().slow || (small && index % 10 == 3)) {
        CheckOnHost(one, ProgramFlags().slow ? 4096 : 40);
      }
      ++index;
    }
  } else {
    GTEST_SKIP() << "the numerics tests cover it on a machine with a device";
  }
}

// The CUDA text of the rules is only ever compiled for a device: here for one that is elsewhere.
// All kernels of the sweep with --slow.
TEST(SpecSweepTest, TheKernelsOfSnippetsCompile) {
  if (GpuEnvironment::Get().missing().empty() && !ProgramFlags().slow) {
    GTEST_SKIP() << "the numerics tests cover it on a machine with a device";
  }
  const compile::NvrtcCompiler compiler({});
  const auto identity = compiler.Identity();
  if (!identity.ok()) GTEST_SKIP() << "no NVRTC: " << identity.status();
  const auto traits = arch::FindArchTraits("sm_90a");
  const auto board = arch::DefaultBoardProfile("sm_90a");
  ASSERT_TRUE(traits.ok() && board.ok());
  const Logger logger(LogLevel::kOff);
  const auto store = std::move(cache::OpenStore({.in_memory = true}, logger).store);
  build::KernelBuilder builder(&emit::EmbeddedTemplates(), store.get(), &compiler, &logger, {});
  std::vector<const SweepCase*> chosen;
  for (const SweepCase& one : SpecSweep()) {
    const bool snippet = !one.spec.score_snippet.empty() || !one.spec.mask_snippet.empty();
    const bool named = one.name.starts_with("snippet_");
    if (ProgramFlags().slow || (snippet && named)) chosen.push_back(&one);
  }
  EXPECT_GT(chosen.size(), 10u);
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (unsigned n = 0; n < std::max(1u, std::thread::hardware_concurrency()); ++n) {
    threads.emplace_back([&] {
      for (size_t at = next++; at < chosen.size(); at = next++) {
        const AttentionSpec spec = spec::Canonicalise(chosen[at]->spec);
        const auto decision = plan::Best({spec, *traits, *board});
        ASSERT_TRUE(decision.ok()) << chosen[at]->name << ": " << decision.status();
        const auto built = builder.Build(spec, decision->plan);
        ASSERT_TRUE(built.ok()) << chosen[at]->name << ": " << built.status();
        // A rule of tiles with divisions of 64 bits is a call; attn_fwd_sm90 keeps a few words
        // around it, once a tile.
        EXPECT_LE(built->binary.usage.spill_store_bytes,
                  spec.mask_tile_snippet.text.empty() ? 0 : 32)
            << chosen[at]->name << ": " << spec::ToText(spec) << " by "
            << decision->plan.ToString();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SpecSweepTest, WrongAnswersAreCaught) {
  const SweepCase& one = *std::find_if(SpecSweep().begin(), SpecSweep().end(),
                                       [](const auto& c) { return c.name == "odd_strides_bhsd"; });
  auto problem = cli::MakeRandomProblem(one.spec, one.problem);
  ASSERT_TRUE(problem.ok()) << problem.status();
  GuardOutputs(*problem);
  const auto rows = reference::AllRows(one.spec, problem->args());
  const auto exact = reference::Forward(one.spec, problem->args(), rows);
  ASSERT_TRUE(exact.ok()) << exact.status();
  FillFromReference(*problem, rows, *exact);
  ASSERT_EQ(CheckWrites(*problem), "");
  ASSERT_TRUE(cli::CheckAccuracy(*problem, rows)->holds());

  auto* o = static_cast<std::byte*>(problem->args().o.data);
  const std::byte first = o[0], second = o[1];
  // An element that was never written.
  o[0] = o[1] = kPoison;
  EXPECT_NE(CheckWrites(*problem).find("was not written"), std::string::npos);
  EXPECT_FALSE(cli::CheckAccuracy(*problem, rows)->holds());
  o[0] = first;
  o[1] = second;
  // A byte before the first element, and one between two rows (rows are 64 elements, 65 apart).
  for (const int64_t stray : {int64_t{-1}, int64_t{64 * 2}}) {
    const std::byte before = std::exchange(o[stray], std::byte{7});
    EXPECT_NE(CheckWrites(*problem).find("belongs to no element"), std::string::npos) << stray;
    o[stray] = before;
  }
  // A row of another query.
  std::copy(o + 5 * 130, o + 5 * 130 + 128, o);
  EXPECT_FALSE(cli::CheckAccuracy(*problem, rows)->holds());
}

}  // namespace
}  // namespace tilewright::gpu_tests
