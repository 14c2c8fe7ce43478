// Appending to a cache (tilewright/cache_append.h) on the CPU: cache_append as PrepareAppend emits
// it, against the fp64 reference, and what must not be written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "emit/emit_cache_append.h"
#include "plan/cache_append_planner.h"
#include "runtime/cache_append.h"
#include "runtime/pack_args.h"
#include "spec/cache_append.h"
#include "tests/emulated/emulated_kernel.h"
#include "tests/reference/append_case.h"

namespace tilewright {
namespace {

using reference::AppendCase;

// Runs the case's call `calls` times.
void RunCase(AppendCase& c, int calls = 1) {
  const CacheAppendSpec spec = spec::Canonicalise(c.spec);
  SCOPED_TRACE(spec::ToText(spec));
  const auto plan = plan::PlanCacheAppend(spec, "sm_90a", /*num_sms=*/3);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const emulated::Kernel kernel(emit::EmitCacheAppend(spec, *plan));
  ASSERT_EQ(kernel.error(), "");
  for (int call = 0; call < calls; ++call) {
    const auto expected = c.Expect();
    ASSERT_TRUE(spec::ValidateArgs(spec, c.args).ok()) << spec::ValidateArgs(spec, c.args);
    alignas(16) std::byte params[kMaxParamBytes];
    PackAppendArgs(spec, RotaryFrequencies(spec), c.args,
                   plan::CacheAppendTileTokens(*plan, c.args), params);
    const plan::LaunchShape shape = plan::CacheAppendLaunch(*plan, c.args);
    std::vector<cuda_on_host::MemoryRange> memory;
    for (const AppendCase::Buffer& buffer : c.Buffers()) {
      if (buffer.bytes == 0) continue;
      memory.push_back({buffer.data, buffer.bytes, buffer.written, buffer.name});
    }
    EXPECT_THAT(
        kernel.Launch(params, emit::CacheAppendParamBytes(spec), shape.grid,
                      static_cast<int>(shape.block), /*cluster=*/1, shape.smem_bytes, memory),
        testing::IsEmpty());
    c.Check(expected);
  }
}

class CacheAppendTest : public testing::TestWithParam<reference::AppendScenario> {};

TEST_P(CacheAppendTest, WritesWhatTheReferenceSays) {
  AppendCase c(GetParam());
  RunCase(c);
}

INSTANTIATE_TEST_SUITE_P(All, CacheAppendTest, testing::ValuesIn(reference::AppendScenarios()),
                         [](const auto& info) { return info.param.name; });

// The lengths grow where they lie, and the next call goes on from there.
TEST(CacheAppendLengthsTest, GrowInPlaceFromCallToCall) {
  reference::AppendScenario scenario = reference::AppendScenarios().front();
  scenario.grows_in_place = true;
  AppendCase c(scenario);
  RunCase(c, 3);
}

}  // namespace
}  // namespace tilewright
