// Schedules of attn_fwd_sm90 that the planner seldom chooses: two blocks to a cluster, warpgroups
// in turns, row sums by the tensor cores, where O lies, one and three stages.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "plan/family_planner.h"
#include "spec/canonical.h"
#include "tests/emulated/emulated_call.h"
#include "tests/emulated/emulated_case.h"

namespace tilewright {
namespace {

using emulated::Emulation;
using plan::KernelPlan;

// The first plan of the family for `text`, changed.
Emulation Changed(const std::string& text, const std::function<void(KernelPlan&)>& change) {
  const auto spec = spec::ParseSpec(text);
  EXPECT_TRUE(spec.ok()) << spec.status();
  const AttentionSpec canonical = spec::Canonicalise(*spec);
  const auto plans = emulated::PlansOf(canonical, plan::Family::kFwdSm90);
  EXPECT_TRUE(plans.ok()) << plans.status();
  // The smallest: quickest here.
  KernelPlan plan = *std::min_element(
      plans->begin(), plans->end(),
      [](const KernelPlan& a, const KernelPlan& b) { return a.smem_bytes < b.smem_bytes; });
  change(plan);
  plan.smem_bytes = plan::FwdSm90SmemBytes(plan, canonical.dim_qk, canonical.dim_v);
  return {.scenario = {.spec = text}, .family = plan.family, .plan = plan.ToString()};
}

const std::vector<Emulation>& Emulations() {
  static const auto* all = new std::vector<Emulation>{
      Changed("fwd bf16 b=1 h=2/1 s=300/330 d=64 causal lse",
              [](KernelPlan& plan) {
                plan.cluster = 2;
                plan.max_grid = 1;
              }),
      Changed("fwd fp16 b=1 h=3/1 s=200/170 d=128 lse",
              [](KernelPlan& plan) {
                plan.cluster = 2;
                plan.max_grid = 0;
              }),
      Changed("fwd bf16 b=1 h=2 s=300/330 d=32 window=100,40 lse",
              [](KernelPlan& plan) {
                plan.cluster = 2;
                plan.own_o = plan.over_v = false;
              }),
      Changed("fwd fp16 b=1 h=2/1 s=150/330 d=64 causal lse",
              [](KernelPlan& plan) {
                plan.ping_pong = true;
                plan.max_grid = 2;
              }),
      Changed("fwd bf16 b=1 h=2/1 s=150/330 d=64 causal",
              [](KernelPlan& plan) {
                plan.ones = true;
                plan.over_v = false;
                plan.own_o = true;
              }),
      Changed("fwd bf16 b=1 h=2/1 s=150/330 d=72 causal lse",
              [](KernelPlan& plan) {
                plan.own_o = false;
                plan.over_v = plan.stages * plan.block_n >= plan.block_m;
              }),
      Changed("fwd fp16 b=1 h=2/1 s=150/330 d=64/40 lse",
              [](KernelPlan& plan) {
                plan.own_o = plan.over_v = false;
                plan.max_grid = 1;
              }),
      Changed("fwd bf16 b=1 h=1 s=150/330 d=40 causal lse",
              [](KernelPlan& plan) { plan.stages = 1; }),
      Changed("fwd bf16 b=1 h=1 s=150/330 d=40 softcap=5 lse",
              [](KernelPlan& plan) { plan.stages = 3; }),
  };
  return *all;
}

class EmulatedFwdSm90Test : public testing::TestWithParam<size_t> {};

TEST_P(EmulatedFwdSm90Test, AgreesWithTheReference) {
  emulated::CheckEmulation(Emulations(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, EmulatedFwdSm90Test, testing::Range(size_t{0}, Emulations().size()));

}  // namespace
}  // namespace tilewright
