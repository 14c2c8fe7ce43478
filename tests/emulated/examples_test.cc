// The rules of src/examples in kernels of every family, against the same rules in C++.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "examples/example.h"
#include "spec/canonical.h"
#include "tests/emulated/emulated_call.h"
#include "tests/emulated/emulated_case.h"

namespace tilewright {
namespace {

using emulated::Emulation;
using emulated::Scenario;

// `sizes` with an example's snippets: the words that declare what they read, and the arguments.
Scenario ScenarioOf(const examples::NamedExample& named, const std::string& sizes) {
  const auto plain = spec::ParseSpec(sizes);
  EXPECT_TRUE(plain.ok()) << plain.status();
  const auto example = std::make_shared<const examples::Example>(named.make(*plain));
  AttentionSpec spec = *plain;
  example->AddTo(&spec);
  Scenario scenario;
  scenario.spec = sizes;
  if (!example->score.empty()) absl::StrAppend(&scenario.spec, " score=@score");
  if (!example->mask.empty()) absl::StrAppend(&scenario.spec, " mask=@mask");
  if (!example->mask_tile.empty()) absl::StrAppend(&scenario.spec, " mask_tile=@mask_tile");
  for (const examples::ExampleArray& array : example->arrays) {
    const bool ints = array.declaration.type == ElementType::kInt32;
    absl::StrAppend(&scenario.spec, " array=", array.declaration.name, ints ? ":int32" : ":fp32");
    scenario.memory.push_back(
        {array.bytes.data(), array.bytes.size(), false, array.declaration.name});
  }
  for (const examples::ExampleScalar& scalar : example->scalars) {
    const bool ints = scalar.declaration.type == ScalarType::kInt64;
    absl::StrAppend(&scenario.spec, " scalar=", scalar.declaration.name,
                    ints ? ":int64" : ":float");
  }
  scenario.score_snippet = example->score;
  scenario.mask_snippet = example->mask;
  scenario.mask_tile_snippet = example->mask_tile;
  scenario.rules = example->rules;
  scenario.change = [example](reference::HostCase& c) {
    for (size_t n = 0; n < example->arrays.size(); ++n) {
      c.args.snippet_arrays[n] = example->arrays[n].bytes.data();
    }
    for (size_t n = 0; n < example->scalars.size(); ++n) {
      const examples::ExampleScalar& scalar = example->scalars[n];
      if (scalar.declaration.type == ScalarType::kFloat) {
        c.args.snippet_scalars[n].f = static_cast<float>(scalar.value);
      } else {
        c.args.snippet_scalars[n].i = static_cast<int64_t>(scalar.value);
      }
    }
  };
  return scenario;
}

const std::vector<Emulation>& Emulations() {
  static const auto* all = [] {
    std::vector<Scenario> scenarios;
    for (const examples::NamedExample& example : examples::AllExamples()) {
      scenarios.push_back(ScenarioOf(example, "fwd fp32 b=2 h=2/1 s=40 d=16 lse"));
      scenarios.push_back(ScenarioOf(example, "fwd bf16 b=2 h=2/1 s=70/134 d=32 lse"));
    }
    std::vector<Emulation> served = emulated::Served(scenarios, emulated::ForwardFamilies());
    return new std::vector<Emulation>(std::move(served));
  }();
  return *all;
}

class EmulatedExamplesTest : public testing::TestWithParam<size_t> {};

TEST_P(EmulatedExamplesTest, AgreeWithTheReference) {
  emulated::CheckEmulation(Emulations(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, EmulatedExamplesTest, testing::Range(size_t{0}, Emulations().size()));

}  // namespace
}  // namespace tilewright
