// Runs the kernels of a backward pass without a GPU, as emulated_test.cc does those of a forward:
// every gradient against the fp64 reference, within 1.5 times the error of the straightforward
// computation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reference/reference.h"
#include "spec/canonical.h"
#include "spec/validate.h"
#include "tests/emulated/emulated_call.h"
#include "tests/reference/backward_case.h"
#include "tests/reference/host_case.h"

namespace tilewright {
namespace {

using reference::HostCase;
using reference::PoisonAllBut;
using reference::PoisonRows;

struct Scenario {
  std::string spec;
  std::vector<int32_t> lengths_q = {};
  std::vector<int32_t> lengths_kv = {};
  std::function<void(HostCase&)> change = nullptr;  // of the random problem
  std::string score_snippet = "";
  std::string score_gradient_snippet = "";
  std::string mask_snippet = "";
  reference::Callables rules = {};  // what the snippets say
};

void SetLengths(HostCase& c, std::vector<int32_t> lengths) {
  c.seqused_kv = std::move(lengths);
  c.args.seqused_kv = c.seqused_kv.data();
}

// The same memory read with keys innermost.
void Transpose(HostCase& c) {
  for (Strides* strides : {&c.args.k.strides, &c.args.v.strides}) {
    strides->dim = c.spec.seqlen_kv;
    strides->seq = 1;
  }
}

// All logits far below 0, as where a softmax is shifted.
void ShiftLogits(HostCase& c) {
  for (int64_t n = 0; n < c.bias[0].count(); ++n) c.bias[0].Set(n, -128);
}

// Rows of Q, K and V that no tensor map describes.
void MisalignRows(HostCase& c) {
  const auto widen = [&](Tensor& tensor, reference::Array& array, int64_t rows, int64_t heads,
                         int64_t dim) {
    const int64_t row = heads * dim + 4;
    tensor.strides = {.batch = rows * row, .seq = row, .head = dim, .dim = 1};
    array = reference::Array(c.spec.type, c.spec.batch * rows * row);
    std::mt19937_64 random(static_cast<uint64_t>(array.count()));
    array.Fill(random, 1);
    tensor.data = array.data();
  };
  widen(c.args.q, c.q, c.spec.seqlen_q, c.spec.heads_q, c.spec.dim_qk);
  widen(c.args.k, c.k, c.spec.seqlen_kv, c.spec.heads_kv, c.spec.dim_qk);
  widen(c.args.v, c.v, c.spec.seqlen_kv, c.spec.heads_kv, c.spec.dim_v);
}

// Of attn_bwd_sm90.
std::vector<Scenario> Sm90Scenarios() {
  return {
      {"bwd bf16 b=1 h=2/1 s=150/170 d=64 causal"},
      {"bwd bf16 b=2 h=2 s=60/300 d=64"},  // many tiles of one step
      {"bwd bf16 b=2 h=2 s=50/300 d=96 window=-1,30"},
      {"bwd fp16 b=2 h=2/1 s=130/260 d=128"},
      {"bwd bf16 b=1 h=2 s=70/300 d=72/40 causal=top_left"},
      {"bwd bf16 b=1 h=1 s=300/150 d=40 window=30,5 lse_base=2"},
      {"bwd bf16 b=2 h=4/2 s=150/270 d=64 causal deterministic"},
      {"bwd bf16 b=1 h=2/1 s=150/170 d=256 causal"},
      {"bwd fp16 b=2 h=1 s=70/130 d=160 window=40,10"},
      {"bwd bf16 b=1 h=2/1 s=140/150 d=136 causal deterministic"},
      {"bwd bf16 b=1 h=2/1 s=130/100 d=192/128"},
      {"bwd bf16 b=1 h=1 s=70/80 d=64/136 causal", {}, {}, MisalignRows},
      {"bwd fp16 b=1 h=2 s=300/290 d=104 window=100,40 deterministic"},
      {"bwd fp16 b=1 h=2 s=200/100 d=128 causal sinks sinks_grad"},
      {"bwd bf16 b=1 h=3/1 s=64/128 d=96 layout=sbhd"},
      {"bwd bf16 b=1 h=2/1 s=140/200 d=112 causal deterministic"},
      {"bwd bf16 b=1 h=1 s=70/130 d=232 causal", {}, {}, MisalignRows},
      {"bwd bf16 b=2 h=2/1 s=33/0 d=16 sinks sinks_grad"},
      {"bwd bf16 b=2 h=2/1 s=140/133 d=16/24 exact layout=bhsd empty_lse=+inf"},
      {"bwd bf16 b=1 h=2/1 s=150/70 d=64 causal", {}, {}, MisalignRows},
      {"bwd fp16 b=2 h=1 s=70/130 d=80", {}, {}, MisalignRows},
      {"bwd bf16 b=1 h=2 s=260/390 d=40/80 causal"},  // an odd number of tiles of keys
      {"bwd bf16 b=1 h=2/1 s=200/150 d=256"},         // likewise
      // Keys that no row sees, in tiles with others and on both sides of them.
      {"bwd bf16 b=1 h=2/1 s=70/300 d=64 causal=top_left", {}, {}, PoisonAllBut(0, 70)},
      {"bwd fp16 b=2 h=1 s=100/300 d=128 window=30,0", {}, {}, PoisonAllBut(170, 300)},
      {"bwd bf16 b=1 h=1 s=50/300 d=96 window=20,9 align=top_left", {}, {}, PoisonAllBut(0, 59)},
      {"bwd bf16 b=1 h=1 s=50/300 d=72 window=20,9",
       {},
       {},
       [](HostCase& c) {
         MisalignRows(c);
         PoisonAllBut(230, 300)(c);
       }},
      {"bwd bf16 b=1 h=2/1 s=70/300 d=256 causal=top_left", {}, {}, PoisonAllBut(0, 70)},
      {"bwd fp16 b=1 h=1 s=90/300 d=160 window=30,0 deterministic", {}, {}, PoisonAllBut(180, 300)},
      {"bwd bf16 b=1 h=1 s=40/200 d=192/128 window=30,5",
       {},
       {},
       [](HostCase& c) {
         MisalignRows(c);
         PoisonAllBut(130, 200)(c);
       }},
  };
}

std::vector<Scenario> Scenarios(plan::Family family) {
  if (family == plan::Family::kBwdSm90) return Sm90Scenarios();
  const bool simple = family == plan::Family::kBwdSimple;
  std::vector<Scenario> all = {
      {"bwd bf16 b=1 h=2/1 s=70/37 d=64 causal"},
      {"bwd fp16 b=2 h=4/2 s=37/150 d=72/40 causal deterministic"},
      {"bwd bf16 b=1 h=1 s=90/170 d=33/57 window=20,3"},
      {"bwd fp16 b=1 h=1 s=170/90 d=96/80 window=30,5 align=top_left scale=-0.3 deterministic"},
      {"bwd bf16 b=1 h=3/1 s=130 d=128 softcap=5 causal=top_left sinks sinks_grad lse_base=2"},
      {"bwd bf16 b=4 h=2/1 s=20/50 d=32 bias=fp32:1,2,20,50:grad bias=bf16:2,1,20,50:mod:grad "
       "bias=fp16:2,1,1,50:div:grad bias=bool:4,1,1,50 alibi alibi_grad softcap=5"},
      // Full tiles and others, keys that are neighbours and one for all.
      {"bwd bf16 b=2 h=2/1 s=130/200 d=32 bias=bf16:1,2,130,200:grad bias=fp32:2,1,130,1:grad"},
      {"bwd fp16 b=3 h=2 s=70/140 d=24 causal bias=fp32:1,2,70,140:grad"},
      {"bwd fp16 b=2 h=2/1 s=70/50 d=32 bias=fp32:1,2,70,1:grad alibi alibi_grad softcap=5 "
       "softcap_before_bias deterministic causal"},
      {"bwd bf16 b=1 h=2/1 s=70/137 d=48 dropout=0.3 sinks sinks_grad"},
      {"bwd fp16 b=2 h=2 s=70/290 d=16 block_mask=128,24 causal layout=sbhd deterministic"},
      {"bwd fp16 b=4 h=2/1 s=140/150 d=16 varlen layout=thd causal empty_lse=+inf",
       {140, 0, 3, 77},
       {150, 3, 0, 133}},
      {"bwd bf16 b=3 h=2/1 s=40/50 d=24 varlen deterministic",
       {},
       {},
       [](HostCase& c) {
         SetLengths(c, {50, 0, 13});
       }},
      {"bwd bf16 b=1 h=1 s=40/70 d=256 causal"},
      {"bwd fp16 b=1 h=1 s=1/128 d=64 bias=fp32:1,1,1,128", {}, {}, ShiftLogits},
      {"bwd bf16 b=2 h=2/1 s=33/0 d=16 sinks sinks_grad"},
      {"bwd bf16 b=2 h=2/1 s=40/33 d=16/24 exact layout=bhsd"},
      // Keys that no row sees, in tiles with others and on both sides of them.
      {"bwd bf16 b=1 h=2/1 s=40/150 d=32 causal=top_left", {}, {}, PoisonAllBut(0, 40)},
      {"bwd fp16 b=2 h=1 s=70/200 d=64 window=10,0 deterministic", {}, {}, PoisonAllBut(120, 200)},
      {"bwd bf16 b=1 h=1 s=40/170 d=33 window=20,9 align=top_left", {}, {}, PoisonAllBut(0, 49)},
      {"bwd bf16 b=1 h=1 s=40/170 d=24 window=20,9 alibi dropout=0.1",
       {},
       {},
       PoisonAllBut(110, 170)},
      {"bwd fp16 b=2 h=2/1 s=70/80 d=16 varlen layout=thd window=5,0",
       {70, 20},
       {70, 80},
       [](HostCase& c) { PoisonRows(c, 0, 70, 70 + 55); }},  // of the second sequence
      {"bwd bf16 b=3 h=2/1 s=40/50 d=24 varlen",
       {},
       {},
       [](HostCase& c) {
         SetLengths(c, {50, 0, 13});
         PoisonRows(c, 1, 0, 50);
         PoisonRows(c, 2, 13, 50);
       }},
  };
  if (simple) {
    const std::vector<Scenario> more = {
        {"bwd fp32 b=2 h=2/1 s=37/70 d=36 causal"},
        {"bwd fp32 b=1 h=2/1 s=70/37 d=1/7 causal=top_left"},
        {"bwd fp32 b=1 h=1 s=40/45 d=33/290 window=7,3"},
        {"bwd bf16 b=1 h=1 s=20/24 d=576/512"},
        {"bwd bf16 b=2 h=2 s=20/30 d=8/16 strided_innermost layout=bhsd", {}, {}, Transpose},
        {"bwd fp32 b=1 h=2 s=40/50 d=16 dropout=0.5 alibi alibi_grad"},
    };
    all.insert(all.end(), more.begin(), more.end());
  }
  // A rule and its derivative: by dual numbers, and written out.
  Scenario snippets = {"bwd bf16 b=2 h=2 s=80/148 d=32 score=@score mask=@mask"};
  snippets.score_snippet =
      "auto x = score * (1 + h) - 0.25f * (i - j) / 32; return x < 0 ? tanhf(x) : x * x / 8 + x;";
  snippets.mask_snippet = "i / 16 == j / 16 && j + 4 < seqlen_kv";
  snippets.rules.score = [](double score, const reference::Where& at) {
    const double x =
        score * static_cast<double>(1 + at.h) - 0.25 * static_cast<double>(at.i - at.j) / 32;
    return x < 0 ? std::tanh(x) : x * x / 8 + x;
  };
  snippets.rules.score_derivative = [](double score, const reference::Where& at) {
    const double slope = static_cast<double>(1 + at.h);
    const double x = score * slope - 0.25 * static_cast<double>(at.i - at.j) / 32;
    return slope * (x < 0 ? 1 - std::tanh(x) * std::tanh(x) : x / 4 + 1);
  };
  snippets.rules.mask = [](const reference::Where& at) {
    return at.i / 16 == at.j / 16 && at.j + 4 < at.seqlen_kv;
  };
  all.push_back(snippets);
  snippets.spec = "bwd fp16 b=2 h=2 s=80/48 d=32 score=@score score_grad=@gradient mask=@mask";
  snippets.score_gradient_snippet =
      "const float x = score * (1 + h) - 0.25f * (i - j) / 32;\n"
      "return d_score * (1 + h) * (x < 0 ? 1 - tanhf(x) * tanhf(x) : x / 4 + 1);";
  all.push_back(snippets);
  return all;
}

// A scenario as one family computes it.
struct Emulation {
  Scenario scenario;
  plan::Family family;
};

class EmulatedBackwardTest : public testing::TestWithParam<Emulation> {};

TEST_P(EmulatedBackwardTest, AgreesWithTheReference) {
  const Scenario& scenario = GetParam().scenario;
  SCOPED_TRACE(scenario.spec);
  const auto parsed = spec::ParseSpec(scenario.spec, [&](std::string_view file) {
    return file == "score"      ? scenario.score_snippet
           : file == "gradient" ? scenario.score_gradient_snippet
                                : scenario.mask_snippet;
  });
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const AttentionSpec spec = spec::Canonicalise(*parsed);
  const auto candidates = emulated::PlansOf(spec, GetParam().family);
  ASSERT_TRUE(candidates.ok()) << candidates.status();
  // Others than the best one run here, and so that all kinds of them do.
  const std::vector<plan::KernelPlan>& plans = *candidates;
  const plan::KernelPlan& plan = plans[std::hash<std::string>{}(scenario.spec) % plans.size()];
  SCOPED_TRACE(plan.ToString());

  HostCase c(spec, 7, scenario.lengths_q, scenario.lengths_kv);
  if (scenario.change) scenario.change(c);
  const reference::Options options = {.callables = scenario.rules, .threads = 1};
  reference::BackwardArrays arrays(c, options);
  std::vector<cuda_on_host::MemoryRange> memory;
  for (const reference::BackwardMemory& range : reference::MemoryOf(c, arrays)) {
    memory.push_back({range.data, range.bytes, range.written, range.name});
  }
  auto source = emulated::EmitCall(spec, plan);
  ASSERT_TRUE(source.ok()) << source.status();
  const emulated::Call call(*std::move(source));
  EXPECT_THAT(call.Run(arrays.Args(c), memory), testing::IsEmpty());
  reference::ExpectGradients(c, options, arrays);
}

std::vector<Emulation> Emulations() {
  std::vector<Emulation> all;
  for (plan::Family family :
       {plan::Family::kBwdSimple, plan::Family::kBwdSm80, plan::Family::kBwdSm90}) {
    for (Scenario& scenario : Scenarios(family)) all.push_back({std::move(scenario), family});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, EmulatedBackwardTest, testing::ValuesIn(Emulations()),
                         [](const testing::TestParamInfo<Emulation>& info) {
                           return absl::StrCat(
                               std::string(plan::FamilyName(info.param.family)).substr(9), "_",
                               info.index);
                         });

}  // namespace
}  // namespace tilewright
