#include "cli/problem_files.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "cli/attention_run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reference/reference.h"
#include "spec/canonical.h"
#include "spec/validate.h"
#include "test_files.h"

namespace tilewright::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Writes a buffer of a problem as an array; an empty path when there is no such buffer.
std::string Save(const TemporaryFolder& folder, const HostProblem& problem, const std::string& name,
                 ArrayType type, std::vector<int64_t> shape) {
  const HostBuffer* buffer = problem.FindBuffer(name);
  if (buffer == nullptr) return "";
  Array array;
  array.type = type;
  array.shape = std::move(shape);
  array.bytes.assign(buffer->base() + buffer->start, buffer->base() + buffer->size);
  EXPECT_EQ(array.elements() * ArrayTypeBytes(type), static_cast<int64_t>(array.bytes.size()))
      << name;
  const std::string path = folder.path(name + ".safetensors");
  EXPECT_TRUE(WriteArray(path, array).ok());
  return path;
}

HostProblem Random(const std::string& text, const RandomProblemOptions& options = {}) {
  const absl::StatusOr<AttentionSpec> spec = spec::ParseSpec(text);
  EXPECT_TRUE(spec.ok()) << spec.status();
  absl::StatusOr<HostProblem> problem = MakeRandomProblem(*spec, options);
  EXPECT_TRUE(problem.ok()) << problem.status();
  return *std::move(problem);
}

// The two problems have the same result at every row.
void ExpectSameResult(const HostProblem& a, const HostProblem& b) {
  const std::vector<reference::Row> rows = reference::AllRows(a.spec(), a.args());
  EXPECT_EQ(rows, reference::AllRows(b.spec(), b.args()));
  const absl::StatusOr<reference::ForwardResult> of_a =
      reference::Forward(a.spec(), a.args(), rows);
  const absl::StatusOr<reference::ForwardResult> of_b =
      reference::Forward(b.spec(), b.args(), rows);
  ASSERT_TRUE(of_a.ok()) << of_a.status();
  ASSERT_TRUE(of_b.ok()) << of_b.status();
  EXPECT_EQ(of_a->o, of_b->o);
  EXPECT_EQ(of_a->lse, of_b->lse);
}

TEST(ProblemFilesTest, DenseArraysInEachLayoutGiveTheProblemTheyCameFrom) {
  const struct {
    const char* layout;
    std::vector<int64_t> q, k, v;
  } cases[] = {
      {"bshd", {2, 5, 4, 8}, {2, 7, 2, 8}, {2, 7, 2, 6}},
      {"bhsd", {2, 4, 5, 8}, {2, 2, 7, 8}, {2, 2, 7, 6}},
      {"sbhd", {5, 2, 4, 8}, {7, 2, 2, 8}, {7, 2, 2, 6}},
  };
  for (const auto& c : cases) {
    const TemporaryFolder folder;
    const std::string words = std::string("layout=") + c.layout + " causal lse";
    const HostProblem random = Random(
        "fwd bf16 b=2 h=4/2 s=5/7 d=8/6 bias=fp32:1,4,5,7 mask=bool:2,1,1,7 alibi sinks " + words);
    ProblemFiles files;
    files.q = Save(folder, random, "q", ArrayType::kBf16, c.q);
    files.k = Save(folder, random, "k", ArrayType::kBf16, c.k);
    files.v = Save(folder, random, "v", ArrayType::kBf16, c.v);
    files.biases = {Save(folder, random, "bias0", ArrayType::kFp32, {1, 4, 5, 7})};
    files.masks = {Save(folder, random, "bias1", ArrayType::kBool, {2, 1, 1, 7})};
    files.alibi = Save(folder, random, "alibi_slopes", ArrayType::kFp32, {4});
    files.sinks = Save(folder, random, "sinks", ArrayType::kFp32, {4});
    absl::StatusOr<HostProblem> read = ProblemFromFiles(files, words, {});
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(spec::ToText(read->spec()), spec::ToText(spec::Canonicalise(random.spec())));
    ExpectSameResult(*read, random);

    ASSERT_TRUE(ComputeOnHost(*read, {}).ok());
    std::vector<int64_t> o_shape = c.q;
    o_shape.back() = 6;
    EXPECT_EQ(OutputArray(*read).shape, o_shape);
    EXPECT_THAT(LseArray(*read).shape, ElementsAre(2, 4, 5));
  }
}

TEST(ProblemFilesTest, PackedArrays) {
  const TemporaryFolder folder;
  RandomProblemOptions options;
  options.lengths_q = {3, 0, 5};
  options.lengths_kv = {4, 2, 7};
  const HostProblem random =
      Random("fwd fp16 b=3 h=4/2 s=5/7 d=8 layout=thd varlen causal lse", options);
  ProblemFiles files;
  files.q = Save(folder, random, "q", ArrayType::kFp16, {8, 4, 8});
  files.k = Save(folder, random, "k", ArrayType::kFp16, {13, 2, 8});
  files.v = Save(folder, random, "v", ArrayType::kFp16, {13, 2, 8});
  files.cu_seqlens_q = Save(folder, random, "cu_seqlens_q", ArrayType::kInt32, {4});
  files.cu_seqlens_kv = Save(folder, random, "cu_seqlens_kv", ArrayType::kInt32, {4});
  const absl::StatusOr<HostProblem> read = ProblemFromFiles(files, "causal lse", {});
  ASSERT_TRUE(read.ok()) << read.status();
  ExpectSameResult(*read, random);
  EXPECT_THAT(OutputArray(*read).shape, ElementsAre(8, 4, 8));
  EXPECT_THAT(LseArray(*read).shape, ElementsAre(4, 8));

  files.cu_seqlens_q.clear();
  EXPECT_THAT(ProblemFromFiles(files, "layout=thd", {}).status().message(),
              HasSubstr("--cu-seqlens-q"));
}

TEST(ProblemFilesTest, PagedArraysWithScales) {
  const TemporaryFolder folder;
  RandomProblemOptions options;
  options.lengths_kv = {9, 14};
  const HostProblem random =
      Random("fwd bf16 b=2 h=4/2 s=1/16 d=8 kv=e4m3 kv_scale=head paged=4 varlen lse", options);
  const int64_t pages = 3 + 4 + 2;
  ProblemFiles files;
  files.q = Save(folder, random, "q", ArrayType::kBf16, {2, 1, 4, 8});
  files.k = Save(folder, random, "k", ArrayType::kFp8E4m3, {pages, 4, 2, 8});
  files.v = Save(folder, random, "v", ArrayType::kFp8E4m3, {pages, 4, 2, 8});
  files.page_table = Save(folder, random, "page_table", ArrayType::kInt32, {2, 4});
  files.seqused_kv = Save(folder, random, "seqused_kv", ArrayType::kInt32, {2});
  files.k_scale = Save(folder, random, "k_scale", ArrayType::kFp32, {2});
  files.v_scale = Save(folder, random, "v_scale", ArrayType::kFp32, {2});
  const absl::StatusOr<HostProblem> read = ProblemFromFiles(files, "lse", {});
  ASSERT_TRUE(read.ok()) << read.status();
  ExpectSameResult(*read, random);

  files.seqused_kv.clear();  // now every entry of the table counts, and some point nowhere
  EXPECT_THAT(ProblemFromFiles(files, "lse", {}).status().message(), HasSubstr("names page"));
}

TEST(ProblemFilesTest, TheModelsAttentionIsReproduced) {
  const std::string folder = std::string(TILEWRIGHT_TEST_DATA) + "/minilm/";
  ProblemFiles files;
  files.q = folder + "q.npy";
  files.k = folder + "k.npy";
  files.v = folder + "v.npy";
  files.masks = {folder + "mask.npy"};
  absl::StatusOr<HostProblem> problem = ProblemFromFiles(files, "", {});
  ASSERT_TRUE(problem.ok()) << problem.status();
  EXPECT_EQ(spec::ToText(problem->spec()),
            "fwd fp32 b=2 h=12/12 s=79/79 d=32/32 mask=bool:2,1,1,79");
  ASSERT_TRUE(ComputeOnHost(*problem, {}).ok());
  const absl::StatusOr<Array> expected = ReadArray(folder + "o.npy");
  ASSERT_TRUE(expected.ok());
  const Array computed = OutputArray(*problem);
  ASSERT_EQ(computed.shape, expected->shape);
  for (int64_t n = 0; n < computed.elements(); ++n) {
    float a = 0, b = 0;
    std::memcpy(&a, computed.bytes.data() + 4 * n, 4);
    std::memcpy(&b, expected->bytes.data() + 4 * n, 4);
    ASSERT_NEAR(a, b, 2e-6) << n;
  }
}

TEST(ProblemFilesTest, ComplaintsNameFileDtypeAndShape) {
  const TemporaryFolder folder;
  const HostProblem random = Random("fwd fp32 b=2 h=4/2 s=5/7 d=8");
  const auto write = [&](const std::string& name, ArrayType type, std::vector<int64_t> shape) {
    Array array;
    array.type = type;
    array.shape = std::move(shape);
    array.bytes.resize(array.elements() * ArrayTypeBytes(type));
    EXPECT_TRUE(WriteArray(folder.path(name), array).ok());
    return folder.path(name);
  };
  ProblemFiles good;
  good.q = write("q.npy", ArrayType::kFp32, {2, 5, 4, 8});
  good.k = write("k.npy", ArrayType::kFp32, {2, 7, 2, 8});
  good.v = write("v.npy", ArrayType::kFp32, {2, 7, 2, 8});
  ASSERT_TRUE(ProblemFromFiles(good, "", {}).ok());
  const auto complaint = [&](const ProblemFiles& files, const std::string& words = "") {
    const absl::StatusOr<HostProblem> problem = ProblemFromFiles(files, words, {});
    EXPECT_FALSE(problem.ok());
    return std::string(problem.status().message());
  };
  ProblemFiles files = good;
  files.q = write("q3.npy", ArrayType::kFp32, {5, 4, 8});
  EXPECT_THAT(complaint(files), AllOf(HasSubstr("q3.npy: fp32 [5, 4, 8]"), HasSubstr("4 dim")));
  files = good;
  files.q = write("qi.npy", ArrayType::kInt64, {2, 5, 4, 8});
  EXPECT_THAT(complaint(files), AllOf(HasSubstr("qi.npy: int64"), HasSubstr("int64")));
  files = good;
  files.v = write("v2.npy", ArrayType::kFp16, {2, 7, 2, 8});
  EXPECT_THAT(complaint(files), AllOf(HasSubstr("v2.npy: fp16"), HasSubstr("k.npy: fp32")));
  files = good;
  files.v = write("v3.npy", ArrayType::kFp32, {2, 6, 2, 8});
  EXPECT_THAT(complaint(files), AllOf(HasSubstr("v3.npy: fp32 [2, 6, 2, 8]"), HasSubstr("k.npy")));
  files = good;
  files.k = write("k4.npy", ArrayType::kFp32, {2, 7, 2, 9});
  files.v = write("v4.npy", ArrayType::kFp32, {2, 7, 2, 9});
  EXPECT_THAT(complaint(files), AllOf(HasSubstr("k4.npy"), HasSubstr("last dimension")));
  files = good;
  files.k = write("k5.npy", ArrayType::kFp32, {2, 7, 3, 8});
  files.v = write("v5.npy", ArrayType::kFp32, {2, 7, 3, 8});
  EXPECT_THAT(complaint(files), AllOf(HasSubstr("heads_q"), HasSubstr("heads_kv")));
  files = good;
  files.masks = {write("m.npy", ArrayType::kFp32, {2, 1, 1, 7})};
  EXPECT_THAT(complaint(files), AllOf(HasSubstr("m.npy: fp32 [2, 1, 1, 7]"), HasSubstr("bool")));
  files.masks = {write("m2.npy", ArrayType::kBool, {2, 1, 1, 6})};
  EXPECT_FALSE(complaint(files).empty());
  files = good;
  files.sinks = write("s.npy", ArrayType::kFp32, {5});
  EXPECT_THAT(complaint(files), AllOf(HasSubstr("s.npy: fp32 [5]"), HasSubstr("[4]")));
  EXPECT_THAT(complaint(good, "sinks"), HasSubstr("--sinks"));
  EXPECT_THAT(complaint(good, "mask=bool:1,1,5,7"), HasSubstr("--mask"));
  EXPECT_THAT(complaint(good, "casual"), HasSubstr("\"causal\""));
}

}  // namespace
}  // namespace tilewright::cli
