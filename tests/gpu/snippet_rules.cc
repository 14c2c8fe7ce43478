#include "tests/gpu/snippet_rules.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <utility>

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

void AddInts(SweepCase& c, const std::string& name, const std::vector<int32_t>& values) {
  c.spec.snippet_arrays.push_back({.name = name, .type = ElementType::kInt32});
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

// T5's bidirectional buckets for 32 buckets and a largest distance of 128 (Raffel et al.,
// arXiv 1910.10683). The logarithmic half is written with its integer borders 8 * 2^(n/2), so that
// no rounding of a logarithm decides a bucket.
int64_t T5Bucket(int64_t distance) {
  const int64_t side = distance > 0 ? 16 : 0;
  const int64_t away = distance < 0 ? -distance : distance;
  if (away < 8) return side + away;
  int64_t bucket = side + 8;
  for (const int64_t border : {12, 16, 23, 32, 46, 64, 91}) bucket += away >= border ? 1 : 0;
  return bucket;
}

void ApplyT5(SweepCase& c) {
  const auto table = std::make_shared<std::vector<float>>(RandomFloats(c.spec.heads_q * 32, 5));
  AddFloats(c, "table", *table);
  c.spec.score_snippet.text = R"(
    const long long distance = j - i;
    const long long side = distance > 0 ? 16 : 0;
    const long long away = distance < 0 ? -distance : distance;
    long long bucket = side + away;
    if (away >= 8) {
      bucket = side + 8 + (away >= 12) + (away >= 16) + (away >= 23) + (away >= 32) +
               (away >= 46) + (away >= 64) + (away >= 91);
    }
    return score + table[h * 32 + bucket];)";
  c.callables.score = [table](double score, const Where& at) {
    return score + (*table)[at.h * 32 + T5Bucket(at.j - at.i)];
  };
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

void ApplyDocuments(SweepCase& c) {
  const int64_t length = std::max<int64_t>({c.spec.seqlen_q, c.spec.seqlen_kv, 1});
  std::vector<int32_t> ids(c.spec.batch * length);
  std::mt19937 bits(7);
  for (int64_t b = 0; b < c.spec.batch; ++b) {
    int32_t id = 0;
    for (int64_t i = 0; i < length; ++i) {
      if (bits() % 16 == 0) ++id;
      ids[b * length + i] = id;
    }
  }
  AddInts(c, "document", ids);
  AddInt(c, "pitch", length);
  c.spec.mask_snippet.text = "document[b * pitch + i] == document[b * pitch + j]";
  c.callables.mask = [length, ids = std::move(ids)](const Where& at) {
    return ids[at.b * length + at.i] == ids[at.b * length + at.j];
  };
}

void ApplyPrefixLm(SweepCase& c) {
  std::vector<int32_t> prefix(c.spec.batch);
  for (int64_t b = 0; b < c.spec.batch; ++b) prefix[b] = static_cast<int32_t>(3 + 11 * b);
  AddInts(c, "prefix", prefix);
  c.spec.mask_snippet.text = "j < prefix[b] || j <= i";
  c.callables.mask = [prefix](const Where& at) { return at.j < prefix[at.b] || at.j <= at.i; };
}

// Speculative decoding: the queries are nodes of a tree behind a common prefix of keys; a node sees
// the prefix, itself and its ancestors.
void ApplyTree(SweepCase& c) {
  std::vector<int32_t> parent(std::max<int64_t>(c.spec.seqlen_q, 1));
  for (size_t i = 0; i < parent.size(); ++i) {
    parent[i] = i == 0 ? -1 : static_cast<int32_t>((i - 1) / 3);
  }
  AddInts(c, "parent", parent);
  c.spec.mask_snippet.text = R"(
    const long long prefix = seqlen_kv - seqlen_q;
    if (j < prefix) return true;
    for (long long node = i; node >= 0; node = parent[node]) {
      if (node == j - prefix) return true;
    }
    return false;)";
  c.callables.mask = [parent](const Where& at) {
    const int64_t prefix = at.seqlen_kv - at.seqlen_q;
    if (at.j < prefix) return true;
    for (int64_t node = at.i; node >= 0; node = parent[node]) {
      if (node == at.j - prefix) return true;
    }
    return false;
  };
}

void ApplyNeighbourhood(SweepCase& c) {
  AddInt(c, "width", 12);
  AddInt(c, "radius", 2);
  c.spec.mask_snippet.text = R"(
    const long long dx = j % width - i % width;
    const long long dy = j / width - i / width;
    return dx <= radius && -dx <= radius && dy <= radius && -dy <= radius;)";
  c.callables.mask = [](const Where& at) {
    return std::abs(at.j % 12 - at.i % 12) <= 2 && std::abs(at.j / 12 - at.i / 12) <= 2;
  };
}

void ApplyDilated(SweepCase& c) {
  AddInt(c, "reach", 48);
  AddInt(c, "dilation", 4);
  c.spec.mask_snippet.text = R"(
    const long long back = i + (seqlen_kv - seqlen_q) - j;
    return back >= 0 && back < reach && back % dilation == 0;)";
  c.callables.mask = [](const Where& at) {
    const int64_t back = at.i + (at.seqlen_kv - at.seqlen_q) - at.j;
    return back >= 0 && back < 48 && back % 4 == 0;
  };
}

void ApplyChunks(SweepCase& c) {
  AddInt(c, "chunk", 20);
  c.spec.mask_snippet.text = "i / chunk == j / chunk";
  c.callables.mask = [](const Where& at) { return at.i / 20 == at.j / 20; };
}

void ApplyPerHeadParity(SweepCase& c) {
  c.spec.mask_snippet.text = "(i + j + h) % 2 == 0";
  c.callables.mask = [](const Where& at) { return (at.i + at.j + at.h) % 2 == 0; };
}

}  // namespace

const std::vector<SnippetRule>& SnippetRules() {
  static const auto* rules = new std::vector<SnippetRule>{
      {"t5_buckets", ApplyT5, true},
      {"temperature", ApplyTemperature, true},
      {"distance_decay", ApplyDistanceDecay, true},
      {"infinite_scores", ApplyInfiniteScores, true},
      {"documents", ApplyDocuments, false},
      {"prefix_lm", ApplyPrefixLm, false},
      {"tree", ApplyTree, false},
      {"neighbourhood", ApplyNeighbourhood, false},
      {"dilated", ApplyDilated, false},
      {"chunks", ApplyChunks, false},
      {"head_parity", ApplyPerHeadParity, false},
  };
  return *rules;
}

}  // namespace tilewright::gpu_tests
