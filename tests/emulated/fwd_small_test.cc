// Blocks of attn_fwd_small that attend to many tiles, some of which have to be computed again.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "plan/family_planner.h"
#include "spec/canonical.h"
#include "tests/emulated/case_changes.h"
#include "tests/emulated/emulated_call.h"
#include "tests/emulated/emulated_case.h"

namespace tilewright {
namespace {

using emulated::Emulation;
using emulated::PoisonKeysFrom;
using reference::HostCase;

// Keys that a mask hides, with scores far above the others, and bias rows of nothing but -inf, or
// half of it.
void HideTheHighest(HostCase& c) {
  const int64_t keys = c.spec.seqlen_kv;
  for (int64_t b = 0; b < c.spec.batch; ++b) {
    for (int64_t i = 0; i < c.spec.seqlen_q; ++i) c.q.Set(c.QAt(b, i, 0, 0), 8);
    for (int64_t j = 0; j < keys; ++j) {
      const bool is_high = j % 7 == 3;
      c.k.Set(c.KAt(b, j, 0, 0), is_high ? 400 : 0);
      c.bias[1].Set(b * keys + j, is_high ? 0 : 1);
    }
  }
  const float infinity = std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < keys; ++j) {
    c.bias[0].Set(5 * keys + j, -infinity);
    if (j % 2 == 0) c.bias[0].Set(9 * keys + j, -infinity);
  }
}

// Every plan of the family for `planned`, or for `text`, on so many blocks.
std::vector<Emulation> OnBlocks(int blocks, const std::string& text,
                                const std::function<void(HostCase&)>& change = nullptr,
                                const std::string& planned = "") {
  const auto spec = spec::ParseSpec(planned.empty() ? text : planned);
  EXPECT_TRUE(spec.ok()) << spec.status();
  const auto plans = emulated::PlansOf(spec::Canonicalise(*spec), plan::Family::kFwdSmall);
  EXPECT_TRUE(plans.ok()) << plans.status();
  std::vector<Emulation> emulations;
  for (plan::KernelPlan plan : *plans) {
    plan.max_grid = blocks;
    emulations.push_back({.scenario = {.spec = text, .change = change},
                          .family = plan.family,
                          .plan = plan.ToString()});
  }
  return emulations;
}

const std::vector<Emulation>& Cases() {
  static const auto& cases = *new std::vector<Emulation>([] {
    std::vector<Emulation> all;
    const auto add = [&all](const std::vector<Emulation>& some) {
      all.insert(all.end(), some.begin(), some.end());
    };
    // The tiles of a block are those of one head, or of several.
    add(OnBlocks(2, "fwd bf16 b=9 h=2 s=49 d=32 lse"));
    add(OnBlocks(3, "fwd fp16 b=9 h=2 s=20/40 d=24 causal"));
    // The same with narrow rows: of all tensors, of V and O, of Q and K, and with kept terms.
    add(OnBlocks(4, "fwd fp16 b=9 h=2 s=30 d=30 lse"));
    add(OnBlocks(2, "fwd fp16 b=40 h=1 s=16 d=6"));
    add(OnBlocks(4, "fwd bf16 b=9 h=2 s=20/90 d=32/30"));
    add(OnBlocks(4, "fwd bf16 b=9 h=2 s=20/40 d=30/32"));
    add(OnBlocks(4, "fwd fp16 b=9 h=2 s=40 d=30 bias=fp16:1,2,40,40 mask=bool:9,1,1,40"));
    // Two heads side by side, which share one of K and V.
    add(OnBlocks(2, "fwd bf16 b=5 h=4/2 s=20/33 d=24/40"));
    // Sizes that were not planned for: longer, another number of tiles, several blocks of keys.
    add(OnBlocks(2, "fwd bf16 b=3 h=2 s=70/90 d=16 lse", nullptr,
                 "fwd bf16 b=9 h=2 s=40 d=16 lse"));
    add(OnBlocks(3, "fwd bf16 b=5 h=2 s=30/90 d=16", nullptr, "fwd bf16 b=9 h=2 s=40 d=16"));
    add(OnBlocks(2, "fwd bf16 b=2 h=2 s=70/90 d=16 bias=bf16:1,2,70,90 mask=bool:2,1,1,90", nullptr,
                 "fwd bf16 b=9 h=2 s=40 d=16 bias=bf16:1,2,40,40 mask=bool:9,1,1,40"));
    // Blocks of keys that a tile skips; narrow rows.
    add(OnBlocks(1, "fwd bf16 b=3 h=1 s=50/150 d=16/33 window=20,10 lse"));
    add(OnBlocks(4, "fwd bf16 b=8 h=2 s=49 d=32 bias=bf16:1,2,49,49 bias=bf16:2,1,49,49"));
    // Three blocks of keys, and masks of each batch.
    add(OnBlocks(2, "fwd bf16 b=5 h=1 s=129/260 d=16 bias=bf16:1,1,129,260 mask=bool:5,1,1,260"));
    // Tiles that are computed again, one after the other.
    add(OnBlocks(1, "fwd bf16 b=3 h=1 s=20/40 d=16 causal=top_left",
                 [](HostCase& c) { PoisonKeysFrom(c, 20); }));
    add(OnBlocks(2, "fwd bf16 b=4 h=1 s=140/300 d=16 bias=bf16:1,1,140,300 causal=top_left lse",
                 [](HostCase& c) { PoisonKeysFrom(c, 140); }));
    add(OnBlocks(1, "fwd bf16 b=3 h=1 s=20/300 d=16 bias=bf16:1,1,20,300 mask=bool:3,1,1,300",
                 HideTheHighest));
    add(OnBlocks(1, "fwd fp16 b=3 h=1 s=20/300 d=16 bias=fp16:1,1,20,300 mask=bool:3,1,1,300 lse",
                 HideTheHighest));
    add(OnBlocks(1, "fwd bf16 b=3 h=1 s=20/300 d=16 scale=2 bias=bf16:1,1,20,300 lse"));
    return all;
  }());
  return cases;
}

class EmulatedFwdSmallTest : public testing::TestWithParam<size_t> {};

TEST_P(EmulatedFwdSmallTest, AgreesWithReference) { emulated::CheckEmulation(Cases(), GetParam()); }

INSTANTIATE_TEST_SUITE_P(All, EmulatedFwdSmallTest, testing::Range(size_t{0}, Cases().size()));

}  // namespace
}  // namespace tilewright
