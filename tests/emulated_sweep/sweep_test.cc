// The sweep of the GPU tests (tests/gpu/spec_sweep.h) without a GPU: every case that is small
// enough, in every family that serves it, within the accuracy bar and without a fault.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "cli/accuracy.h"
#include "cli/random_problem.h"
#include "spec/canonical.h"
#include "tests/emulated/emulated_call.h"
#include "tests/gpu/spec_sweep.h"

namespace tilewright {
namespace {

using gpu_tests::SweepCase;

struct SweepEmulation {
  SweepCase one;
  plan::Family family;
  std::string name;
};

void PrintTo(const SweepEmulation& emulation, std::ostream* out) { *out << emulation.name; }

// Multiplications; a thousand million take the emulator some seconds.
bool IsSmall(const AttentionSpec& spec) {
  constexpr double kMost = 3e8;
  return static_cast<double>(spec.batch * spec.heads_q * std::max<int64_t>(spec.seqlen_q, 16)) *
             static_cast<double>(std::max<int64_t>(spec.seqlen_kv, 16) *
                                 (spec.dim_qk + spec.dim_v)) <
         kMost;
}

std::vector<SweepEmulation> Emulations() {
  std::vector<SweepEmulation> all;
  for (const SweepCase& one : gpu_tests::SpecSweep()) {
    if (!IsSmall(one.spec)) continue;
    for (const plan::Family family : emulated::ForwardFamilies()) {
      const auto plans = emulated::PlansOf(spec::Canonicalise(one.spec), family);
      if (!plans.ok() && absl::IsUnimplemented(plans.status())) continue;
      all.push_back({one, family, std::string(plan::FamilyName(family)) + "_" + one.name});
    }
  }
  return all;
}

class EmulatedSweepTest : public testing::TestWithParam<SweepEmulation> {};

TEST_P(EmulatedSweepTest, IsAccurateAndWithoutFaults) {
  const SweepCase& one = GetParam().one;
  const AttentionSpec spec = spec::Canonicalise(one.spec);
  SCOPED_TRACE(spec::ToText(spec));
  const auto plans = emulated::PlansOf(spec, GetParam().family);
  ASSERT_TRUE(plans.ok()) << plans.status();
  const plan::KernelPlan& plan = (*plans)[std::hash<std::string>{}(one.name) % plans->size()];
  SCOPED_TRACE(plan.ToString());
  auto source = emulated::EmitCall(spec, plan);
  ASSERT_TRUE(source.ok()) << source.status();
  auto problem = cli::MakeRandomProblem(spec, one.problem);
  ASSERT_TRUE(problem.ok()) << problem.status();
  std::vector<cuda_on_host::MemoryRange> memory;
  for (cli::HostBuffer& buffer : problem->buffers()) {
    memory.push_back({buffer.base(), buffer.size, buffer.output, buffer.name});
  }
  EXPECT_THAT(emulated::Call(*std::move(source)).Run(problem->args(), memory), testing::IsEmpty());
  const auto rows = reference::AllRows(spec, problem->args());
  const auto accuracy =
      cli::CheckAccuracy(*problem, rows, {.callables = one.callables, .threads = 1});
  ASSERT_TRUE(accuracy.ok()) << accuracy.status();
  EXPECT_TRUE(accuracy->holds()) << accuracy->ToString() << " " << accuracy->first_mismatch;
}

INSTANTIATE_TEST_SUITE_P(Sweep, EmulatedSweepTest, testing::ValuesIn(Emulations()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tilewright
