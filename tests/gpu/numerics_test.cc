// Every spec of the sweep against the fp64 reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/gpu/gpu_environment.h"
#include "tests/gpu/spec_sweep.h"

namespace tilewright::gpu_tests {

// So that a failure's parameter reads as a name.
void PrintTo(const SweepCase& one, std::ostream* out) { *out << one.name; }

namespace {

class NumericsTest : public GpuTest, public ::testing::WithParamInterface<SweepCase> {
 public:
  // Compiles the kernels of the tests that will run, on all cores. What fails here fails again,
  // with its error, in its own test.
  static void SetUpTestSuite() {
    GpuEnvironment& gpu = GpuEnvironment::Get();
    if (!gpu.missing().empty()) return;
    std::vector<AttentionSpec> specs;
    const ::testing::TestSuite& suite = *::testing::UnitTest::GetInstance()->current_test_suite();
    for (int n = 0; n < suite.total_test_count(); ++n) {
      if (!suite.GetTestInfo(n)->should_run()) continue;
      const std::string name = suite.GetTestInfo(n)->name();
      for (const SweepCase& one : SpecSweep()) {
        if (absl::EndsWith(name, absl::StrCat("/", one.name))) specs.push_back(one.spec);
      }
    }
    std::atomic<size_t> next = 0;
    std::vector<std::thread> threads;
    for (unsigned n = 0; n < std::max(1u, std::thread::hardware_concurrency()); ++n) {
      threads.emplace_back([&] {
        for (size_t at = next++; at < specs.size(); at = next++) {
          gpu.runtime().Prepare(specs[at]).status().IgnoreError();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

TEST_P(NumericsTest, MatchesTheReference) {
  const SweepCase& one = GetParam();
  CheckOptions options;
  options.callables = one.callables;
  if (ProgramFlags().sanitizer) options.second_run = false;
  CheckSpec(runtime(), one.spec, stream(), one.problem, options);
}

INSTANTIATE_TEST_SUITE_P(Sweep, NumericsTest, ::testing::ValuesIn(SpecSweep()),
                         [](const ::testing::TestParamInfo<SweepCase>& info) {
                           return info.param.name;
                         });

}  // namespace
}  // namespace tilewright::gpu_tests
