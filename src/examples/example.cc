#include "examples/example.h"

#include <cstring>
#include <random>
#include <utility>

namespace tilewright::examples {
namespace {

template <typename T>
std::vector<std::byte> Bytes(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

}  // namespace

Example& Example::Ints(std::string name, const std::vector<int32_t>& values) {
  ExampleArray& array = arrays.emplace_back();
  array.declaration.name = std::move(name);
  array.declaration.type = ElementType::kInt32;
  array.bytes = Bytes(values);
  return *this;
}

Example& Example::Floats(std::string name, const std::vector<float>& values) {
  ExampleArray& array = arrays.emplace_back();
  array.declaration.name = std::move(name);
  array.declaration.type = ElementType::kFp32;
  array.bytes = Bytes(values);
  return *this;
}

Example& Example::Scalar(std::string name, int64_t value) {
  ExampleScalar& scalar = scalars.emplace_back();
  scalar.declaration.name = std::move(name);
  scalar.declaration.type = ScalarType::kInt64;
  scalar.value = static_cast<double>(value);
  return *this;
}

Example& Example::Scalar(std::string name, float value) {
  ExampleScalar& scalar = scalars.emplace_back();
  scalar.declaration.name = std::move(name);
  scalar.declaration.type = ScalarType::kFloat;
  scalar.value = value;
  return *this;
}

void Example::AddTo(AttentionSpec* spec) const {
  spec->score_snippet.text = score;
  spec->mask_snippet.text = mask;
  spec->mask_tile_snippet.text = mask_tile;
  spec->snippet_arrays.clear();
  spec->snippet_scalars.clear();
  for (const ExampleArray& array : arrays) spec->snippet_arrays.push_back(array.declaration);
  for (const ExampleScalar& scalar : scalars) spec->snippet_scalars.push_back(scalar.declaration);
}

const std::vector<NamedExample>& AllExamples() {
  static const auto* examples = new std::vector<NamedExample>{
      {"chunked_attention", ChunkedAttention},
      {"decomposed_position", DecomposedPosition},
      {"dilated_window", DilatedWindow},
      {"document_mask", DocumentMask},
      {"gemma_softcap", GemmaSoftcap},
      {"neighbourhood_mask", NeighbourhoodMask},
      {"prefix_lm", PrefixLm},
      {"relative_shift", RelativeShift},
      {"streaming_sinks", StreamingSinks},
      {"t5_buckets", T5Buckets},
      {"tree_mask", TreeMask},
  };
  return *examples;
}

std::vector<float> ExampleTable(int64_t count) {
  std::minstd_rand random(5);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
  return values;
}

}  // namespace tilewright::examples
