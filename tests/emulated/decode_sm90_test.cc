// attn_decode_sm90: rows of one warpgroup and rows shared by two, V in K's memory and apart from
// it, copies by tensor map and by threads, pages, masks, and rows of keys that nobody sees.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "plan/launch_shape.h"
#include "spec/canonical.h"
#include "tests/emulated/case_changes.h"
#include "tests/emulated/emulated_call.h"
#include "tests/emulated/emulated_case.h"

namespace tilewright {
namespace {

using emulated::Emulation;
using emulated::MakeLongPaged;
using emulated::Misalign;
using emulated::Scenario;
using emulated::ShareKeys;
using reference::HostCase;

// What lies behind the sequences is read with the block that holds their last key.
void PutNanBehind(HostCase& c, const std::vector<int32_t>& lengths) {
  emulated::SetLengths(c, lengths);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int64_t b = 0; b < c.spec.batch; ++b) {
    for (int64_t j = c.seqused_kv[b]; j < c.spec.seqlen_kv; ++j) {
      for (int64_t d = 0; d < c.spec.dim_qk; ++d) c.k.Set(c.KAt(b, j, 0, d), nan);
      for (int64_t d = 0; d < c.spec.dim_v; ++d) c.v.Set(c.VAt(b, j, 0, d), nan);
    }
  }
}

void PutNanBehindLengths(HostCase& c) { PutNanBehind(c, {700, 65}); }

// Every block of keys has scores far above those ahead of it, one by more than a weight can take.
void RaiseScores(HostCase& c) {
  for (int64_t h = 0; h < c.spec.heads_q; ++h) c.q.Set(c.QAt(0, 0, h, 0), 16);
  for (int64_t j = 0; j < c.spec.seqlen_kv; ++j) {
    c.k.Set(c.KAt(0, j, 0, 0), 0.2 * static_cast<double>(j) + (j < 400 ? 0 : 100));
  }
}

// A scenario, by the planner's first plan but with `slots` shares of the keys, of which a cluster
// has so many.
Emulation InClusters(Scenario scenario, int of_cluster, int slots) {
  const auto spec = spec::ParseSpec(scenario.spec);
  EXPECT_TRUE(spec.ok()) << spec.status();
  const auto plans = emulated::PlansOf(spec::Canonicalise(*spec), plan::Family::kDecodeSm90);
  EXPECT_TRUE(plans.ok()) << plans.status();
  plan::KernelPlan plan = plans->front();
  plan.cluster = plan::BlocksOfShare(plan) * of_cluster;
  plan.slots = slots;
  return {std::move(scenario), plan::Family::kDecodeSm90, plan.ToString()};
}

const std::vector<Emulation>& Emulations() {
  static const auto* all = [] {
    const auto misalign = [](HostCase& c) { Misalign(c, 1); };
    const std::vector<Scenario> scenarios = {
        {"fwd bf16 b=2 h=71/1 s=1/700 d=64 lse"},
        {"fwd fp16 b=3 h=40/1 s=2/900 d=72/40 paged=16 varlen causal softcap=20 lse",
         {},
         {},
         MakeLongPaged},
        {"fwd bf16 b=1 h=132/2 s=3/900 d=128 window=200,0 batch_invariant sinks lse"},
        {"fwd bf16 b=1 h=40/1 s=1/600 d=40 lse", {}, {}, misalign},
        {"fwd bf16 b=2 h=33/1 s=1/1000 d=64 varlen lse", {}, {}, PutNanBehindLengths},
        {"fwd bf16 b=1 h=71/1 s=1/700 d=64 lse", {}, {}, RaiseScores},
        {"fwd bf16 b=2 h=70/1 s=1/700 d=320/256 lse", {}, {}, ShareKeys},
        {"fwd bf16 b=1 h=130/1 s=2/1100 d=264/256 causal softcap=20 lse", {}, {}, ShareKeys},
        {"fwd fp16 b=3 h=40/1 s=1/900 d=320/256 paged=8 varlen sinks lse", {}, {}, MakeLongPaged},
        {"fwd bf16 b=3 h=72/1 s=1/900 d=320/256 paged=64 varlen lse batch_invariant",
         {},
         {},
         MakeLongPaged},
        {"fwd bf16 b=1 h=70/1 s=1/600 d=320/256 lse", {}, {}, misalign},
        {"fwd bf16 b=2 h=66/1 s=1/1000 d=320/256 varlen lse", {}, {}, PutNanBehindLengths},
        {"fwd bf16 b=1 h=70/1 s=3/700 d=320/256 window=200,0", {}, {}, ShareKeys},
        // Up to 16 rows.
        {"fwd bf16 b=3 h=16/1 s=1/700 d=320/256 sinks lse", {}, {}, ShareKeys},
        {"fwd bf16 b=1 h=7/1 s=2/1100 d=264/256 causal softcap=20 lse", {}, {}, ShareKeys},
        {"fwd fp16 b=3 h=10/1 s=1/900 d=320/256 paged=8 varlen lse", {}, {}, MakeLongPaged},
        {"fwd bf16 b=3 h=12/1 s=1/900 d=576/512 paged=64 varlen lse batch_invariant",
         {},
         {},
         MakeLongPaged},
        {"fwd bf16 b=1 h=12/1 s=1/600 d=320/256 lse", {}, {}, misalign},
        {"fwd bf16 b=2 h=8/1 s=1/1000 d=320/256 varlen lse", {}, {}, PutNanBehindLengths},
        {"fwd bf16 b=1 h=8/1 s=2/700 d=320/256 window=200,0", {}, {}, ShareKeys},
    };
    auto* emulations =
        new std::vector<Emulation>(emulated::Served(scenarios, {plan::Family::kDecodeSm90}));
    // A cluster has all parts of a sequence and merges them; then parts of two sequences.
    emulations->push_back(
        InClusters({"fwd bf16 b=2 h=70/1 s=1/1100 d=320/256 sinks lse", {}, {}, ShareKeys}, 2, 4));
    emulations->push_back(InClusters({"fwd fp16 b=2 h=20/1 s=1/1000 d=264/256 varlen lse",
                                      {},
                                      {},
                                      [](HostCase& c) {
                                        PutNanBehind(c, {1000, 970});
                                      }},
                                     4, 8));
    emulations->push_back(
        InClusters({"fwd bf16 b=2 h=70/1 s=1/600 d=320/256 lse", {}, {}, misalign}, 2, 4));
    emulations->push_back(InClusters(
        {"fwd bf16 b=2 h=66/1 s=1/1100 d=320/256 varlen lse", {}, {}, PutNanBehindLengths}, 2, 3));
    return emulations;
  }();
  return *all;
}

class DecodeSm90Test : public testing::TestWithParam<size_t> {};

TEST_P(DecodeSm90Test, AgreesWithTheReference) {
  emulated::CheckEmulation(Emulations(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, DecodeSm90Test, testing::Range(size_t{0}, Emulations().size()));

}  // namespace
}  // namespace tilewright
