// The GPU tests as a program:
//   gpu_test [GoogleTest's flags] [--slow] [--sanitizer] [--results FILE] [--commit HASH]
//   gpu_test --fuzz COUNT[@SEED] --gtest_filter='FuzzTest.*'   so many random problems
//   gpu_test --sms 4 --gtest_filter='*NumericsTest*:*BackwardPartTest*'   as if on a small GPU
//   compute-sanitizer --tool memcheck gpu_test --sanitizer
// Exits with 1 when a test failed, also when it only could not write its results.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "bench/read_flags.h"
#include "bench/result_file.h"
#include "compile/nvrtc_compiler.h"
#include "tests/gpu/gpu_environment.h"
#include "tests/gpu/scenarios.h"
#include "tests/gpu/spec_sweep.h"
#include "tests/gpu/summary.h"

namespace tilewright::gpu_tests {
namespace {

std::string SanitizerFilter() {
  std::string filter;
  for (const SweepCase& one : SanitizerSweep()) {
    absl::StrAppend(&filter, filter.empty() ? "" : ":", "*MatchesTheReference/", one.name);
  }
  return filter;
}

absl::Status WriteResults(const Flags& flags) {
  const GpuEnvironment& gpu = GpuEnvironment::Get();
  bench::ResultHeader header;
  header.topic = "gpu_tests";
  header.commit = flags.commit;
  const std::string family = OptionsFor("").family;
  header.command = absl::StrCat(
      family.empty() ? "" : absl::StrCat("TILEWRIGHT_FAMILY=", family, " "), "gpu_test --results ",
      std::filesystem::path(flags.results).filename().string(), " --commit ", flags.commit);
  if (gpu.missing().empty()) {
    header.device = gpu.device().board.name;
    header.driver = bench::InstalledDriverVersion();
  }
  const compile::NvrtcCompiler compiler({});
  const auto version = compiler.Version();
  if (version.ok()) header.nvrtc = *version;
  const ::testing::UnitTest& tests = *::testing::UnitTest::GetInstance();
  return bench::WriteResultFile(
      flags.results, header,
      Summary::Get().Rows(tests.test_to_run_count() - tests.skipped_test_count(),
                          tests.failed_test_count(), tests.skipped_test_count()));
}

}  // namespace
}  // namespace tilewright::gpu_tests

int main(int argc, char** argv) {
  using namespace tilewright::gpu_tests;
  ::testing::InitGoogleTest(&argc, argv);
  Flags& flags = ProgramFlags();
  std::string sms = "0";
  const absl::Status read =
      tilewright::bench::ReadFlags(argc, argv,
                                   {{{"--results", &flags.results},
                                     {"--commit", &flags.commit},
                                     {"--scenario", &flags.scenario},
                                     {"--cache", &flags.cache_dir},
                                     {"--fuzz", &flags.fuzz},
                                     {"--sms", &sms}},
                                    {{"--slow", &flags.slow}, {"--sanitizer", &flags.sanitizer}}});
  if (!read.ok()) {
    std::fprintf(stderr, "%s\n", std::string(read.message()).c_str());
    return 2;
  }
  if (!absl::SimpleAtoi(sms, &flags.sms) || flags.sms < 0) {
    std::fprintf(stderr, "--sms is %s; it must be a number of multiprocessors\n", sms.c_str());
    return 2;
  }
  if (!flags.scenario.empty()) return RunScenario(flags.scenario, flags.cache_dir);
  if (flags.sanitizer) ::testing::GTEST_FLAG(filter) = SanitizerFilter();
  const std::string& missing = GpuEnvironment::Get().missing();
  if (!missing.empty()) {
    std::fprintf(stderr, "*** The GPU tests are SKIPPED: %s\n", missing.c_str());
  }
  int status = RUN_ALL_TESTS();
  if (!flags.results.empty()) {
    const absl::Status written = WriteResults(flags);
    if (!written.ok()) {
      std::fprintf(stderr, "%s\n", written.ToString().c_str());
      status = 1;
    }
  }
  return status;
}
