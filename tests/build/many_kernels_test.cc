// R61: memory stays flat over kernels without end. R9: what may not be reproducible is not kept.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

#include "arch/arch_traits.h"
#include "arch/board_profile.h"
#include "build/kernel_builder.h"
#include "cache/memory_store.h"
#include "plan/planner.h"
#include "spec/canonical.h"
#include "tests/support/child_process.h"
#include "tests/support/sanitizers.h"
#include "tests/support/standin_nvrtc.h"

namespace tilewright::build {
namespace {

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Kernels of one plan that differ in a constant of their mask.
AttentionSpec SpecNumber(int number) {
  AttentionSpec spec;
  spec.type = ElementType::kFp16;
  spec.heads_q = spec.heads_kv = 2;
  spec.seqlen_q = spec.seqlen_kv = 64;
  spec.dim_qk = spec.dim_v = 16;
  spec.mask_snippet = {"return j <= i + " + std::to_string(number) + ";", "number.cu"};
  return spec::Canonicalise(spec);
}

plan::KernelPlan PlanOf(const AttentionSpec& spec) {
  const auto traits = arch::FindArchTraits("sm_90a");
  const auto board = arch::DefaultBoardProfile("sm_90a");
  EXPECT_TRUE(traits.ok() && board.ok());
  // The family that compiles quickest.
  const auto decision = plan::Best(
      {.spec = spec, .traits = *traits, .board = *board, .family = plan::Family::kFwdSimple});
  EXPECT_TRUE(decision.ok()) << decision.status();
  return decision->plan;
}

// Builds the kernels [0, count) and returns by how much memory grew after the first tenth.
int64_t GrowthOver(int count, const compile::NvrtcCompiler& compiler) {
  cache::MemoryStore store(int64_t{4} << 20);
  const Logger logger(LogLevel::kOff);
  KernelBuilder builder(&emit::EmbeddedTemplates(), &store, &compiler, &logger, {});
  const plan::KernelPlan plan = PlanOf(SpecNumber(0));
  int64_t before = 0;
  for (int i = 0; i < count; ++i) {
    if (i == count / 10) before = ResidentBytes();
    const auto built = builder.Build(SpecNumber(i), plan);
    EXPECT_TRUE(built.ok()) << built.status();
    // The writer must keep pace, else what waits for it is what is measured.
    if (i % 100 == 99) {
      EXPECT_TRUE(builder.Flush(10'000));
    }
  }
  EXPECT_EQ(builder.counters().compiles, count);
  EXPECT_EQ(builder.counters().store_misses, count);
  return ResidentBytes() - before;
}

TEST(ManyKernelsTest, TenThousandKeysKeepTheMemoryFlat) {
  const int64_t growth = GrowthOver(10'000, testing::StandInCompiler());
#if TILEWRIGHT_ADDRESS_SANITIZER || TILEWRIGHT_THREAD_SANITIZER
  GTEST_SKIP() << "a sanitizer keeps memory of its own; grew by " << growth;
#endif
  EXPECT_LT(growth, int64_t{16} << 20);
}

TEST(ManyKernelsSlowTest, AThousandCompilesKeepTheMemoryFlat) {
  const compile::NvrtcCompiler compiler({});
  if (!compiler.Identity().ok()) GTEST_SKIP() << "no NVRTC: " << compiler.Identity().status();
  EXPECT_LT(GrowthOver(1000, compiler), int64_t{32} << 20);
}

TEST(ManyKernelsTest, WhatMayNotBeReproducibleIsNotPublished) {
  // In a child: the process is spoilt for good.
  const std::string told = testing::RunInChild([]() -> std::string {
    const compile::NvrtcCompiler compiler = testing::StandInCompiler();
    cache::MemoryStore store(0);
    const Logger logger(LogLevel::kOff);
    KernelBuilder builder(&emit::EmbeddedTemplates(), &store, &compiler, &logger, {});
    const plan::KernelPlan plan = PlanOf(SpecNumber(0));
    auto clean = builder.Build(SpecNumber(0), plan);
    auto request = builder.MakeRequest(SpecNumber(1), plan);
    if (!clean.ok() || !request.ok()) return "no kernel";
    request->options.push_back("--Ofast-compile=mid");
    const auto spoilt = builder.Build(*request);
    const auto after = builder.Build(SpecNumber(2), plan);
    if (!spoilt.ok() || !after.ok()) return "no kernel";
    builder.Flush(10'000);
    return std::to_string(store.List()->size()) + " of 3, dropped " +
           std::to_string(builder.counters().publish_drops);
  });
  EXPECT_EQ(told, "1 of 3, dropped 2");
}

}  // namespace
}  // namespace tilewright::build
