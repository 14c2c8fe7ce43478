#include "tests/gpu/snippet_rules.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <utility>

#include "examples/example.h"

namespace tilewright::gpu_tests {
namespace {

using reference::Where;

template <typename T>
std::vector<std::byte> Bytes(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

void AddFloats(SweepCase& c, const std::string& name, const std::vector<float>& values) {
  c.spec.snippet_arrays.push_back({.name = name, .type = ElementType::kFp32});
  c.problem.snippet_arrays[name] = Bytes(values);
}

void AddInt(SweepCase& c, const std::string& name, int64_t value) {
  c.spec.snippet_scalars.push_back({.name = name, .type = ScalarType::kInt64});
  c.problem.snippet_scalars[name] = static_cast<double>(value);
}

void AddFloat(SweepCase& c, const std::string& name, float value) {
  c.spec.snippet_scalars.push_back({.name = name, .type = ScalarType::kFloat});
  c.problem.snippet_scalars[name] = value;
}

std::vector<float> RandomFloats(int64_t count, uint32_t seed) {
  std::mt19937 bits(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(bits() % 2001) / 1000.0f - 1.0f;
  return values;
}

void ApplyTemperature(SweepCase& c) {
  const auto factor = std::make_shared<std::vector<float>>(RandomFloats(c.spec.heads_q, 6));
  AddFloats(c, "factor", *factor);
  c.spec.score_snippet.text = "score * (1.0f + 0.5f * factor[h])";
  c.callables.score = [factor](double score, const Where& at) {
    return score * (1.0 + 0.5 * (*factor)[at.h]);
  };
}

void ApplyDistanceDecay(SweepCase& c) {
  AddFloat(c, "rate", 0.125f);
  AddInt(c, "reach", 40);
  c.spec.score_snippet.text = R"(
    const long long back = i + (seqlen_kv - seqlen_q) - j;
    return back > reach ? score - rate * (float)(back - reach) : score;)";
  c.callables.score = [](double score, const Where& at) {
    const int64_t back = at.i + (at.seqlen_kv - at.seqlen_q) - at.j;
    return back > 40 ? score - 0.125 * static_cast<double>(back - 40) : score;
  };
}

// Scores of -inf are masked keys by another name.
void ApplyInfiniteScores(SweepCase& c) {
  c.spec.score_snippet.text = "(j * 7 + i * 3 + b) % 5 == 0 ? -__int_as_float(0x7f800000) : score";
  c.callables.score = [](double score, const Where& at) {
    return (at.j * 7 + at.i * 3 + at.b) % 5 == 0 ? -INFINITY : score;
  };
}

void ApplyPerHeadParity(SweepCase& c) {
  c.spec.mask_snippet.text = "(i + j + h) % 2 == 0";
  c.callables.mask = [](const Where& at) { return (at.i + at.j + at.h) % 2 == 0; };
}

void ApplyExample(SweepCase& c, const examples::NamedExample& named) {
  const examples::Example example = named.make(c.spec);
  if (!example.score.empty()) c.spec.score_snippet.text = example.score;
  if (!example.mask.empty()) {
    c.spec.mask_snippet.text = example.mask;
    c.spec.mask_tile_snippet.text = example.mask_tile;
  }
  for (const examples::ExampleArray& array : example.arrays) {
    c.spec.snippet_arrays.push_back(array.declaration);
    c.problem.snippet_arrays[array.declaration.name] = array.bytes;
  }
  for (const examples::ExampleScalar& scalar : example.scalars) {
    c.spec.snippet_scalars.push_back(scalar.declaration);
    c.problem.snippet_scalars[scalar.declaration.name] = scalar.value;
  }
  if (example.rules.score) {
    c.callables.score = example.rules.score;
    c.callables.score_derivative = example.rules.score_derivative;
  }
  if (example.rules.mask) c.callables.mask = example.rules.mask;
}

}  // namespace

const std::vector<SnippetRule>& SnippetRules() {
  static const auto* rules = [] {
    auto* all = new std::vector<SnippetRule>{
        {"temperature", ApplyTemperature},
        {"distance_decay", ApplyDistanceDecay},
        {"infinite_scores", ApplyInfiniteScores},
        {"head_parity", ApplyPerHeadParity},
    };
    for (const examples::NamedExample& example : examples::AllExamples()) {
      all->push_back({example.name, [example](SweepCase& c) { ApplyExample(c, example); }});
    }
    return all;
  }();
  return *rules;
}

}  // namespace tilewright::gpu_tests
