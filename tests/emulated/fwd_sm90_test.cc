// Schedules of attn_fwd_sm90 that the planner seldom chooses: two blocks to a cluster, warpgroups
// in turns, row sums by the tensor cores, where O lies, one and three stages.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "plan/family_planner.h"
#include "spec/canonical.h"
#include "spec/validate.h"
#include "tests/emulated/case_changes.h"
#include "tests/emulated/emulated_call.h"
#include "tests/emulated/emulated_case.h"

namespace tilewright {
namespace {

using emulated::Emulation;
using plan::KernelPlan;

// The first plan of the family for `text`, changed.
Emulation Changed(const std::string& text, const std::function<void(KernelPlan&)>& change,
                  const std::function<void(reference::HostCase&)>& change_case = nullptr) {
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
  plan.smem_bytes = plan::FwdSm90SmemBytes(plan, canonical.dim_qk, canonical.dim_v,
                                           spec::ElementBytes(canonical.type));
  return {.scenario = {.spec = text, .change = change_case},
          .family = plan.family,
          .plan = plan.ToString()};
}

// Adds about `log2_of_key(head of K, key)`, in units of log2, to the scores.
void AddToScores(reference::HostCase& c,
                 const std::function<double(int64_t, int64_t)>& log2_of_key) {
  constexpr double kQuery = 16, kLn2 = 0.6931471805599453;
  const double unit = kLn2 * std::sqrt(static_cast<double>(c.spec.dim_qk)) / kQuery;
  for (int64_t i = 0; i < c.spec.seqlen_q; ++i) {
    for (int64_t h = 0; h < c.spec.heads_q; ++h) c.q.Set(c.QAt(0, i, h, 0), kQuery);
  }
  for (int64_t j = 0; j < c.spec.seqlen_kv; ++j) {
    for (int64_t h = 0; h < c.spec.heads_kv; ++h) {
      c.k.Set(c.KAt(0, j, h, 0), log2_of_key(h, j) * unit);
    }
  }
}

// What a head's scores jump by. 41 moves a reference, 86 more than a factor of one move can say,
// 168 is what a weight can take without overflow.
constexpr double kJumps[] = {30, 41, 100, 130, 168, 200, 300};

// One key of each head has all the weight, and then O is that key's V, exactly.
void OneKeyRules(reference::HostCase& c) {
  AddToScores(c, [&](int64_t h, int64_t j) { return j == 3 + h % 3 * 40 ? kJumps[h % 7] : 0.0; });
}

void FirstKeysRule(reference::HostCase& c) {
  AddToScores(c, [&](int64_t h, int64_t j) { return j <= 3 + h % 3 * 40 ? kJumps[h % 7] : 0.0; });
}

// The first bias term with rows that bulk copies do not take.
void MisalignBias(reference::HostCase& c) {
  const int64_t keys = c.spec.bias[0].seqlen_kv, pitch = keys + 1;
  const int64_t rows = c.bias[0].count() / keys;
  reference::Array wider(c.spec.bias[0].type, rows * pitch);
  for (int64_t n = 0; n < rows * pitch; ++n) {
    const int64_t column = n % pitch;
    wider.Set(n, column < keys ? c.bias[0].Get(n / pitch * keys + column)
                               : std::numeric_limits<float>::quiet_NaN());
  }
  c.bias[0] = std::move(wider);
  BiasTensor& tensor = c.args.bias[0];
  tensor.data = c.bias[0].data();
  for (int64_t* stride : {&tensor.stride_batch, &tensor.stride_head, &tensor.stride_q}) {
    *stride = *stride / keys * pitch;
  }
}

// A bias that hides the keys after a row, by -inf in head 0 and by a large number in head 1, or
// makes scores jump where few keys are left.
void BiasHidesOrJumps(reference::HostCase& c) {
  const BiasTerm& term = c.spec.bias[0];
  for (int64_t h = 0; h < term.heads; ++h) {
    for (int64_t i = 0; i < term.seqlen_q; ++i) {
      for (int64_t j = 0; j < term.seqlen_kv; ++j) {
        const int64_t at = (h * term.seqlen_q + i) * term.seqlen_kv + j;
        const double hidden = h == 0 ? -std::numeric_limits<double>::infinity() : -10000;
        if (h < 2 && j > i) c.bias[0].Set(at, hidden);
        if (h >= 2 && j == 3 + h % 3 * 40) c.bias[0].Set(at, kJumps[h - 2]);
      }
    }
  }
}

void Rows256(KernelPlan& plan) {
  plan.consumers = 4;
  plan.block_m = 256;
  plan.warps = 20;
  plan.block_n = 32;
  plan.max_grid = 1;
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
      // Q in registers or read from shared memory, against what the planner does with these tiles.
      Changed("fwd bf16 b=1 h=2/1 s=150/330 d=128 causal",
              [](KernelPlan& plan) {
                plan.q_in_registers = !plan.q_in_registers;
                plan.max_grid = 1;
              }),
      Changed("fwd fp16 b=1 h=3/1 s=200/330 d=72/64 window=100,40 lse",
              [](KernelPlan& plan) {
                plan.q_in_registers = true;
                plan.cluster = 2;
                plan.max_grid = 1;
                plan.ones = plan.own_o = plan.over_v = false;
              }),
      Changed("fwd bf16 b=1 h=2/1 s=300/130 d=96 causal lse",
              [](KernelPlan& plan) {
                plan.q_in_registers = plan.ping_pong = true;
                plan.max_grid = 1;
              }),
      // A bias term of the scores' own pairs of keys, ahead of its block, and terms behind it; rows
      // of odd lengths, and one that all rows share.
      Changed("fwd bf16 b=2 h=2/1 s=150/330 d=64 bias=bf16:1,2,150,330 lse", [](KernelPlan&) {}),
      Changed("fwd bf16 b=2 h=2/1 s=150/331 d=64 causal bias=fp32:2,1,150,331",
              [](KernelPlan& plan) { plan.cluster = 2; }),
      Changed("fwd fp16 b=2 h=2/1 s=150/330 d=72 window=90,20 bias=fp16:1,2,1,330 alibi softcap=5",
              [](KernelPlan&) {}),
      Changed("fwd bf16 b=1 h=2/1 s=70/1100 d=64 bias=bf16:1,2,70,1100 bias=fp16:1,1,70,1100 lse",
              [](KernelPlan&) {}),
      // Terms that pass through shared memory, by bulk copies and by threads.
      Changed("fwd bf16 b=2 h=2/1 s=150/336 d=64 bias=bf16:1,2,150,336 lse", [](KernelPlan&) {}),
      Changed("fwd fp16 b=1 h=2/1 s=150/336 d=64 window=90,20 bias=fp16:1,2,150,336 "
              "bias=fp16:1,1,150,336",
              [](KernelPlan& plan) { plan.max_grid = 1; }),
      Changed("fwd bf16 b=2 h=2/1 s=300/264 d=64 bias=bf16:1,2,300,264",
              [](KernelPlan& plan) {
                plan.cluster = 2;
                plan.ping_pong = plan.q_in_registers = true;
                plan.max_grid = 1;
              }),
      Changed(
          "fwd bf16 b=2 h=2/1 s=150/336 d=64 bias=bf16:2,1,150,336", [](KernelPlan&) {},
          MisalignBias),
      Changed(
          "fwd bf16 b=1 h=2/1 s=300/264 d=64 causal bias=bf16:1,2,300,264 bias=bf16:1,1,300,264 "
          "lse",
          [](KernelPlan& plan) { plan.cluster = 2; },
          [](reference::HostCase& c) {
            emulated::Misalign(c, 4);
            MisalignBias(c);
          }),
      Changed(
          "fwd bf16 b=1 h=9/3 s=200/200 d=64 bias=bf16:1,9,200,200", [](KernelPlan&) {},
          BiasHidesOrJumps),
      Changed(
          "fwd bf16 b=1 h=9/3 s=70/200 d=128 bias=bf16:1,9,70,200 lse",
          [](KernelPlan& plan) { plan.max_grid = 2; }, BiasHidesOrJumps),
      // In turns, which one warpgroup takes with blocks that hide all keys and the other with ones
      // that do not; and beside a mask.
      Changed(
          "fwd bf16 b=1 h=3/1 s=200/520 d=72 bias=bf16:1,3,200,520",
          [](KernelPlan& plan) { plan.ping_pong = plan.q_in_registers = true; }, BiasHidesOrJumps),
      Changed(
          "fwd bf16 b=1 h=3/1 s=140/392 d=64 causal bias=bf16:1,3,140,392",
          [](KernelPlan& plan) { plan.ping_pong = true; }, BiasHidesOrJumps),
      // O over a stage of V for each warpgroup: tiles of several blocks of keys, and of one.
      Changed("fwd bf16 b=1 h=3/1 s=200/200 d=256 causal lse",
              [](KernelPlan& plan) { plan.max_grid = 1; }),
      Changed("fwd bf16 b=1 h=3/1 s=200/50 d=256", [](KernelPlan& plan) { plan.max_grid = 1; }),
      // Four warpgroups, each with its own first and last block of keys.
      Changed("fwd bf16 b=1 h=2/1 s=300/430 d=32 window=90,20 lse", Rows256),
      Changed("fwd bf16 b=1 h=2/1 s=300/290 d=32 causal", Rows256),
      // Heads that are no multiples of 16 bytes: one, two and three panels, O in its places, Q and
      // K that begin alike and that do not, and what threads copy.
      Changed("fwd bf16 b=2 h=8 s=150/330 d=33 causal lse",
              [](KernelPlan& plan) {
                plan.own_o = plan.over_v = false;
                plan.max_grid = 3;
              }),
      Changed("fwd bf16 b=1 h=8/4 s=300/130 d=36/38", Rows256),
      Changed("fwd fp16 b=1 h=16/8 s=70/200 d=100/130 window=90,20 lse",
              [](KernelPlan& plan) { plan.q_in_registers = !plan.q_in_registers; }),
      Changed("fwd bf16 b=1 h=8/4 s=70/200 d=60/58 lse",
              [](KernelPlan& plan) { plan.own_o = plan.over_v = plan.ones = false; }),
      Changed("fwd bf16 b=1 h=8/4 s=140/1100 d=34 causal sinks", [](KernelPlan&) {}),
      Changed(
          "fwd bf16 b=3 h=16/8 s=70/900 d=33/50 paged=16 varlen lse causal", [](KernelPlan&) {},
          emulated::MakeLongPaged),
      Changed(
          "fwd bf16 b=1 h=8 s=70/200 d=36/33 causal lse", [](KernelPlan&) {},
          [](reference::HostCase& c) { emulated::Misalign(c, 2); }),
      Changed(
          "fwd bf16 b=1 h=8 s=70/200 d=36 lse", [](KernelPlan&) {}, OneKeyRules),
      // Warpgroups that share rows: O in each of its places, a last panel that is nobody's, pages
      // and copies by threads.
      Changed("fwd bf16 b=1 h=2/1 s=100/130 d=512/392 causal lse",
              [](KernelPlan& plan) {
                plan.own_o = false;
                plan.over_v = true;
                plan.stages = 1;
                plan.cluster = 2;
                plan.max_grid = 1;
              }),
      Changed("fwd fp16 b=1 h=3/1 s=70/200 d=264/392",
              [](KernelPlan& plan) {
                plan.own_o = true;
                plan.over_v = false;
                plan.stages = 1;
                plan.max_grid = 2;
              }),
      Changed(
          "fwd bf16 b=3 h=2/1 s=70/900 d=392/328 paged=16 varlen lse causal",
          [](KernelPlan& plan) { plan.own_o = plan.over_v = false; },
          [](reference::HostCase& c) {
            emulated::MakeLongPaged(c);
            emulated::Misalign(c, 1);
          }),
      Changed("fwd bf16 b=1 h=1 s=70/1100 d=392/328 lse", [](KernelPlan&) {}),
      Changed(
          "fwd bf16 b=1 h=7 s=70/200 d=328 causal lse", [](KernelPlan&) {}, OneKeyRules),
      // Warpgroups take turns, some have no rows, and tiles are computed once more.
      Changed(
          "fwd bf16 b=1 h=7 s=130/200 d=64",
          [](KernelPlan& plan) {
            Rows256(plan);
            plan.ping_pong = true;
          },
          OneKeyRules),
      Changed(
          "fwd bf16 b=1 h=7 s=130/200 d=64 causal",
          [](KernelPlan& plan) {
            Rows256(plan);
            plan.ping_pong = true;
          },
          FirstKeysRule),
      // e4m3: V is transposed on the way.
      Changed("fwd e4m3 b=1 h=4/2 s=200/330 d=128 out=bf16 q_scale=head kv_scale=head lse",
              [](KernelPlan& plan) { plan.max_grid = 2; }),
      Changed("fwd e4m3 b=1 h=2/1 s=150/330 d=64/256 out=fp16 causal",
              [](KernelPlan& plan) {
                plan.own_o = false;
                plan.over_v = true;
                plan.block_n = 128;
                plan.ping_pong = true;
                plan.max_grid = 1;
              }),
      Changed("fwd e4m3 b=1 h=2/1 s=150/330 d=80/48 out=bf16 window=60,20 softcap=3 sinks",
              [](KernelPlan& plan) { plan.stages = 3; }),
      Changed(
          "fwd e4m3 b=3 h=2/1 s=70/900 d=32 out=bf16 paged=16 varlen lse kv_scale=tensor",
          [](KernelPlan&) {}, emulated::MakeLongPaged),
      Changed("fwd e4m3 b=1 h=2/1 s=150/330 d=256 out=bf16", [](KernelPlan&) {}),
      Changed(
          "fwd e4m3 b=1 h=7 s=70/200 d=64 out=bf16", [](KernelPlan&) {}, OneKeyRules),
      Changed(
          "fwd e4m3 b=1 h=7 s=200/200 d=64 out=bf16 causal lse", [](KernelPlan&) {}, FirstKeysRule),
      // Dropout.
      Changed("fwd bf16 b=1 h=2/1 s=150/330 d=64 causal dropout=0.3 lse",
              [](KernelPlan& plan) { plan.cluster = 2; }),
      Changed("fwd bf16 b=1 h=2/1 s=70/1100 d=72 dropout=0.3", [](KernelPlan&) {}),
      Changed(
          "fwd bf16 b=1 h=7 s=70/200 d=328 dropout=0.2 lse", [](KernelPlan&) {}, OneKeyRules),
      Changed(
          "fwd bf16 b=1 h=7 s=70/200 d=64 dropout=0.2 lse", [](KernelPlan&) {}, OneKeyRules),
      // Pages: several to a block of keys, as large as one and larger, and copied by threads.
      Changed(
          "fwd bf16 b=3 h=2/1 s=70/900 d=64 paged=16 varlen lse causal", [](KernelPlan&) {},
          emulated::MakeLongPaged),
      Changed(
          "fwd fp16 b=3 h=2/1 s=70/900 d=40/24 paged=64 varlen lse", [](KernelPlan&) {},
          emulated::MakeLongPaged),
      Changed(
          "fwd bf16 b=3 h=2/1 s=40/900 d=24 paged=8 varlen lse", [](KernelPlan&) {},
          [](reference::HostCase& c) {
            emulated::MakeLongPaged(c);
            emulated::Misalign(c, 1);
          }),
      // Parts of the keys, with O's three places, and one that jumps in only one of them.
      Changed("fwd bf16 b=1 h=2/1 s=200/1100 d=72 causal sinks",
              [](KernelPlan& plan) {
                plan.own_o = false;
                plan.over_v = plan.stages * plan.block_n >= plan.block_m;
              }),
      Changed("fwd fp16 b=1 h=2/1 s=140/1100 d=64/40 lse",
              [](KernelPlan& plan) { plan.own_o = plan.over_v = false; }),
      Changed(
          "fwd bf16 b=1 h=7 s=70/1100 d=64 lse", [](KernelPlan&) {}, OneKeyRules),
      // One warpgroup a block, and several blocks on a multiprocessor.
      Changed("fwd bf16 b=1 h=2/1 s=150/330 d=64 causal",
              [](KernelPlan& plan) {
                plan.consumers = 1;
                plan.block_m = 64;
                plan.warps = 8;
                plan.blocks = 3;
                plan.max_grid = 2;
              }),
      Changed(
          "fwd bf16 b=1 h=7 s=70/200 d=64", [](KernelPlan&) {}, OneKeyRules),
      Changed(
          "fwd bf16 b=1 h=7 s=70/200 d=80 causal lse", [](KernelPlan&) {}, OneKeyRules),
      Changed(
          "fwd bf16 b=1 h=7 s=70/200 d=40", [](KernelPlan&) {}, FirstKeysRule),
      Changed(
          "fwd bf16 b=1 h=7 s=200/200 d=64 causal lse", [](KernelPlan&) {}, FirstKeysRule),
      Changed(
          "fwd fp16 b=1 h=7 s=70/200 d=64 lse", [](KernelPlan&) {}, OneKeyRules),
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
