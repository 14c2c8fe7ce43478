#include "cli/spec_arguments.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spec/canonical.h"
#include "test_files.h"

namespace tilewright::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Split(const std::vector<std::string>& arguments) {
  const absl::StatusOr<std::vector<std::string>> specs = SplitSpecs(arguments);
  EXPECT_TRUE(specs.ok()) << specs.status();
  return specs.value_or(std::vector<std::string>());
}

TEST(SpecArgumentsTest, SpecsMayBeQuotedOrNot) {
  EXPECT_THAT(Split({"fwd bf16 b=1", "bwd fp16 b=2"}), ElementsAre("fwd bf16 b=1", "bwd fp16 b=2"));
  EXPECT_THAT(Split({"fwd", "bf16", "b=1", "bwd", "fp16"}),
              ElementsAre("fwd bf16 b=1", "bwd fp16"));
  EXPECT_THAT(Split({" fwd bf16 b=1", "causal"}), ElementsAre(" fwd bf16 b=1 causal"));
  EXPECT_THAT(Split({}), ElementsAre());
}

TEST(SpecArgumentsTest, TheFirstWordMustBeAnOperation) {
  EXPECT_THAT(SplitSpecs(std::vector<std::string>{"forward bf16"}).status().message(),
              HasSubstr("\"forward bf16\""));
  EXPECT_THAT(JoinSpec(std::vector<std::string>{"fwd a", "fwd b"}).status().message(),
              HasSubstr("one spec, not 2"));
  EXPECT_FALSE(JoinSpec({}).ok());
}

TEST(SpecArgumentsTest, SpecFilesSkipCommentsAndEmptyLines) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("m.txt", "# matrix\nfwd bf16 b=1\n\n  fwd fp16 b=2  \r\n");
  const absl::StatusOr<std::vector<std::string>> specs = ReadSpecFile(path);
  ASSERT_TRUE(specs.ok());
  EXPECT_THAT(*specs, ElementsAre("fwd bf16 b=1", "fwd fp16 b=2"));
  EXPECT_EQ(ReadSpecFile("/nowhere/m.txt").status().code(), absl::StatusCode::kNotFound);
}

TEST(SpecArgumentsTest, SpecsComeFromArgumentsAndAFile) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("m.txt", "fwd fp16 b=2\n");
  const absl::StatusOr<std::vector<AttentionSpec>> specs =
      ReadSpecs(std::vector<std::string>{"fwd", "bf16", "b=3"}, path);
  ASSERT_TRUE(specs.ok()) << specs.status();
  ASSERT_EQ(specs->size(), 2u);
  EXPECT_EQ((*specs)[0].batch, 3);
  EXPECT_EQ((*specs)[1].batch, 2);
  EXPECT_THAT(ReadSpecs({}, "").status().message(), HasSubstr("no spec"));
  EXPECT_THAT(ReadSpecs(std::vector<std::string>{"append", "bf16", "h=0/8"}, "").status().message(),
              HasSubstr("\"append bf16 h=0/8\": this command takes attention, fwd or bwd"));
  EXPECT_EQ(ReadSpecs({}, "/nowhere/m.txt").status().code(), absl::StatusCode::kNotFound);
}

TEST(SpecArgumentsTest, InputsOfSnippetsAreDeclaredByTheirFilesAndValues) {
  const TemporaryFolder folder;
  Array table;
  table.type = ArrayType::kFp32;
  table.shape = {4};
  table.bytes.resize(16);
  ASSERT_TRUE(WriteArray(folder.path("t.npy"), table).ok());
  const std::string snippet = folder.Write("rule.cu", "score + gain * table[j % count]");
  const std::vector<std::string> arrays = {"table=" + folder.path("t.npy")};
  const std::vector<std::string> scalars = {"gain=0.5", "count=4"};
  const absl::StatusOr<SnippetInputs> inputs = ReadSnippetInputs(arrays, scalars);
  ASSERT_TRUE(inputs.ok()) << inputs.status();
  const absl::StatusOr<AttentionSpec> spec =
      ReadSpec("fwd fp32 b=1 h=1 s=4 d=8 score=@" + snippet, *inputs);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->score_snippet.text, "score + gain * table[j % count]");
  EXPECT_THAT(spec->snippet_arrays, ElementsAre(SnippetArray{"table", ElementType::kFp32}));
  EXPECT_THAT(spec->snippet_scalars, ElementsAre(SnippetScalar{"count", ScalarType::kInt64},
                                                 SnippetScalar{"gain", ScalarType::kFloat}));
  const absl::StatusOr<AttentionSpec> declared =
      ReadSpec("fwd fp32 b=1 h=1 s=4 d=8 array=table:bf16 score=@" + snippet, *inputs);
  EXPECT_THAT(declared.status().message(), HasSubstr("the spec declares it bf16"));
}

TEST(SpecArgumentsTest, InputsThatCannotBeReadAreNamed) {
  const std::vector<std::string> no_value = {"gain"};
  EXPECT_THAT(ReadSnippetInputs({}, no_value).status().message(), HasSubstr("NAME=VALUE"));
  const std::vector<std::string> no_number = {"gain=much"};
  EXPECT_THAT(ReadSnippetInputs({}, no_number).status().message(), HasSubstr("\"much\""));
  const std::vector<std::string> no_file = {"t=/nowhere/t.npy"};
  EXPECT_THAT(ReadSnippetInputs(no_file, {}).status().message(), HasSubstr("/nowhere/t.npy"));
}

}  // namespace
}  // namespace tilewright::cli
