// Scores [0, 0, ln 3, ln 3] over values [0, 0, 1, 1] give 6 / 8 = 0.75 however the four keys are
// cut into blocks; the mean of the blocks' own results would give 0.5. The four keys are put into
// tiles of their own by masked keys between them, in every way that a path can mask keys, on the
// reference and on the device.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/accuracy.h"
#include "cli/random_problem.h"
#include "reference/reference.h"
#include "spec/validate.h"
#include "tests/gpu/gpu_environment.h"

namespace tilewright::gpu_tests {
namespace {

enum class Path { kBoolTerm, kInfiniteBias, kBlockMask, kPages, kSnippet };
constexpr Path kPaths[] = {Path::kBoolTerm, Path::kInfiniteBias, Path::kBlockMask, Path::kPages,
                           Path::kSnippet};

constexpr const char* PathName(Path path) {
  switch (path) {
    case Path::kBoolTerm:
      return "BoolTerm";
    case Path::kInfiniteBias:
      return "InfiniteBias";
    case Path::kBlockMask:
      return "BlockMask";
    case Path::kPages:
      return "Pages";
    case Path::kSnippet:
      return "Snippet";
  }
  return "";
}

// Keys are cut after the positions whose bit is set: bit n cuts between key n and key n + 1.
constexpr int kCuts = 8;
// No plan has tiles of more keys.
constexpr int64_t kTile = 256;
// A page for each key: a negative entry masks a single one.
constexpr int64_t kPage = 1;

// Where the four keys lie: blocks start at multiples of kTile, keys of a block are adjacent.
std::vector<int64_t> Positions(int cut) {
  std::vector<int64_t> positions;
  int64_t tile = 0;
  int64_t within = 0;
  for (int key = 0; key < 4; ++key) {
    positions.push_back(tile * kTile + within++);
    if (key < 3 && (cut >> key & 1) != 0) {
      ++tile;
      within = 0;
    }
  }
  return positions;
}

struct Example {
  cli::HostProblem problem;
  reference::Callables callables;
};

void Store(const cli::HostProblem& problem, const Tensor& tensor, int64_t row, int64_t dim,
           double first, double rest) {
  const ElementType type = spec::KvType(problem.spec());
  auto* at = static_cast<std::byte*>(const_cast<void*>(tensor.data)) +
             row * tensor.strides.seq * spec::ElementBytes(type);
  for (int64_t d = 0; d < dim; ++d) {
    reference::FromDouble(type, d == 0 ? first : rest, at + d * spec::ElementBytes(type));
  }
}

// One query row with q = e_0 and scale 1, so that the score of a key is its first element. Every
// element of V's row is the key's value. What is masked is NaN, except where scores of -inf do the
// masking: there the keys take part and only their weight is 0.
Example MakeExample(Path path, int cut, ElementType type, int64_t dim) {
  const std::vector<int64_t> positions = Positions(cut);
  const int64_t keys = (positions.back() / kTile + 1) * kTile;
  AttentionSpec spec;
  spec.type = type;
  spec.seqlen_kv = keys;
  spec.dim_qk = spec.dim_v = dim;
  spec.scale = 1;
  spec.lse = true;
  cli::RandomProblemOptions options;
  reference::Callables callables;
  std::vector<uint8_t> keep(keys, 0);
  for (const int64_t position : positions) keep[position] = 1;
  switch (path) {
    case Path::kBoolTerm:
      spec.bias = {{.type = ElementType::kBool, .seqlen_kv = keys}};
      break;
    case Path::kInfiniteBias:
      spec.bias = {{.type = ElementType::kFp32, .seqlen_kv = keys}};
      break;
    case Path::kBlockMask:
      spec.block_mask_q = spec.block_mask_kv = 1;
      break;
    case Path::kPages:
      spec.page_size = kPage;
      spec.varlen = true;
      options.lengths_kv = {positions.back() + 1};
      break;
    case Path::kSnippet:
      spec.snippet_arrays = {{.name = "keep", .type = ElementType::kBool}};
      spec.mask_snippet.text = "keep[j] != 0";
      options.snippet_arrays["keep"] = {};
      for (const uint8_t value : keep) options.snippet_arrays["keep"].push_back(std::byte{value});
      callables.mask = [keep](const reference::Where& at) { return keep[at.j] != 0; };
      break;
  }
  auto made = cli::MakeRandomProblem(spec, options);
  EXPECT_TRUE(made.ok()) << made.status();
  Example example{*std::move(made), std::move(callables)};
  cli::HostProblem& problem = example.problem;
  AttentionArgs& args = problem.args();

  auto* q = static_cast<std::byte*>(const_cast<void*>(args.q.data));
  for (int64_t d = 0; d < dim; ++d) {
    reference::FromDouble(type, d == 0 ? 1 : 0, q + d * spec::ElementBytes(type));
  }
  const double masked = path == Path::kInfiniteBias ? 5 : std::numeric_limits<double>::quiet_NaN();
  const double scores[] = {0, 0, std::log(3.0), std::log(3.0)};
  const double values[] = {0, 0, 1, 1};
  const auto row_of = [&](int64_t position) -> int64_t {
    return path == Path::kPages ? args.page_table[position] : position;
  };
  auto* table = const_cast<int32_t*>(args.page_table);
  for (int64_t position = 0; position < keys; ++position) {
    if (path == Path::kPages && position > positions.back()) break;  // beyond the length
    const int64_t row = row_of(position);
    Store(problem, args.k, row, dim, masked, masked);
    Store(problem, args.v, row, dim, masked, masked);
  }
  for (int key = 0; key < 4; ++key) {
    const int64_t row = row_of(positions[key]);
    Store(problem, args.k, row, dim, scores[key], 0);
    Store(problem, args.v, row, dim, values[key], values[key]);
  }
  if (path == Path::kBoolTerm) {
    auto* bytes = static_cast<uint8_t*>(const_cast<void*>(args.bias[0].data));
    std::copy(keep.begin(), keep.end(), bytes);
  } else if (path == Path::kInfiniteBias) {
    auto* floats = static_cast<float*>(const_cast<void*>(args.bias[0].data));
    for (int64_t j = 0; j < keys; ++j) floats[j] = keep[j] != 0 ? 0 : -INFINITY;
  } else if (path == Path::kBlockMask) {
    std::copy(keep.begin(), keep.end(), const_cast<uint8_t*>(args.block_mask));
  } else if (path == Path::kPages) {
    for (int64_t position = 0; position <= positions.back(); ++position) {
      if (keep[position] == 0) table[position] = -1;
    }
  }
  return example;
}

void Expect(const cli::HostProblem& problem, double o, double lse, int64_t d) {
  // ln 3 is rounded to the element type, which moves the answer by less than half a place of O.
  const bool fp32 = problem.spec().type == ElementType::kFp32;
  EXPECT_NEAR(o, 0.75, fp32 ? 1e-6 : 0) << "element " << d;
  const double rounding = problem.spec().type == ElementType::kBf16 ? 4e-3 : 5e-4;
  EXPECT_NEAR(lse, std::log(8.0), fp32 ? 1e-6 : rounding);
}

using Parameters = std::tuple<Path, int, ElementType, int64_t>;

class SeedExampleTest : public GpuTest, public ::testing::WithParamInterface<Parameters> {};

// Needs no device: the data mean what they are meant to.
class SeedExampleHostTest : public ::testing::TestWithParam<Parameters> {};

TEST_P(SeedExampleHostTest, TheReferenceGivesThreeQuarters) {
  const auto [path, cut, type, dim] = GetParam();
  const Example example = MakeExample(path, cut, type, dim);
  const cli::HostProblem& problem = example.problem;
  const auto rows = reference::AllRows(problem.spec(), problem.args());
  ASSERT_EQ(rows.size(), 1u);
  reference::Options options;
  options.callables = example.callables;
  const auto result = reference::Forward(problem.spec(), problem.args(), rows, options);
  ASSERT_TRUE(result.ok()) << result.status();
  std::vector<std::byte> rounded(4);
  for (int64_t d = 0; d < dim; ++d) {
    reference::FromDouble(type, result->o[d], rounded.data());
    Expect(problem, reference::ToDouble(type, rounded.data()), result->lse[0], d);
  }
}

TEST_P(SeedExampleTest, GivesThreeQuartersHoweverTheKeysAreCut) {
  const auto [path, cut, type, dim] = GetParam();
  Example example = MakeExample(path, cut, type, dim);
  cli::HostProblem& problem = example.problem;
  const absl::Status run = RunOnDevice(runtime(), problem, stream());
  ASSERT_TRUE(run.ok()) << run;
  for (int64_t d = 0; d < dim; ++d) {
    Expect(problem, cli::OutputAt(problem, {}, d), cli::LseAt(problem, {}), d);
  }
}

std::string Name(const ::testing::TestParamInfo<Parameters>& info) {
  const auto& [path, cut, type, dim] = info.param;
  std::string name = PathName(path);
  for (int key = 0; key < 4; ++key) {
    absl::StrAppend(&name, key > 0 && (cut >> (key - 1) & 1) != 0 ? "_" : "", key);
  }
  const char* word = type == ElementType::kFp32   ? "Fp32"
                     : type == ElementType::kBf16 ? "Bf16"
                                                  : "Fp16";
  return absl::StrCat(name, "_", word, "_d", dim);
}

const auto kEveryWay = ::testing::Combine(
    ::testing::ValuesIn(kPaths), ::testing::Range(0, kCuts),
    ::testing::Values(ElementType::kBf16, ElementType::kFp16, ElementType::kFp32),
    ::testing::Values<int64_t>(1, 64, 128));

INSTANTIATE_TEST_SUITE_P(EveryWay, SeedExampleTest, kEveryWay, Name);
INSTANTIATE_TEST_SUITE_P(EveryWay, SeedExampleHostTest, kEveryWay, Name);

}  // namespace
}  // namespace tilewright::gpu_tests
