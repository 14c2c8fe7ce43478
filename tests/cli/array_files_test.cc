#include "cli/array_files.h"

#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "test_files.h"

namespace tilewright::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Array MakeArray(ArrayType type, std::vector<int64_t> shape) {
  Array array;
  array.type = type;
  array.shape = std::move(shape);
  array.bytes.resize(array.elements() * ArrayTypeBytes(type));
  for (size_t n = 0; n < array.bytes.size(); ++n) {
    array.bytes[n] = std::byte(type == ArrayType::kBool ? n % 2 : (37 * n + 11) % 256);
  }
  return array;
}

void ExpectSame(const Array& read, const Array& written) {
  EXPECT_EQ(read.type, written.type);
  EXPECT_EQ(read.shape, written.shape);
  EXPECT_EQ(read.bytes, written.bytes);
}

// A version 1 .npy file with this header text.
std::string Npy(const std::string& header, const std::string& data, char version = 1) {
  std::string text("\x93NUMPY", 6);
  text += version;
  text += '\0';
  const auto size = static_cast<uint32_t>(header.size());
  text.append(reinterpret_cast<const char*>(&size), version == 1 ? 2 : 4);
  return text + header + data;
}

std::string Safetensors(const std::string& header, const std::string& data) {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + header + data;
}

TEST(ArrayFilesTest, NpyRoundTripsEveryTypeThatItHas) {
  const TemporaryFolder folder;
  for (ArrayType type : {ArrayType::kFp16, ArrayType::kFp32, ArrayType::kInt8, ArrayType::kBool,
                         ArrayType::kInt32, ArrayType::kInt64}) {
    const Array written = MakeArray(type, {2, 3, 5});
    ASSERT_TRUE(WriteArray(folder.path("a.npy"), written).ok());
    const absl::StatusOr<Array> read = ReadArray(folder.path("a.npy"));
    ASSERT_TRUE(read.ok()) << read.status();
    ExpectSame(*read, written);
  }
}

TEST(ArrayFilesTest, SafetensorsRoundTripsEveryType) {
  const TemporaryFolder folder;
  std::vector<NamedArray> written;
  for (ArrayType type : {ArrayType::kFp16, ArrayType::kBf16, ArrayType::kFp32, ArrayType::kFp8E4m3,
                         ArrayType::kFp8E5m2, ArrayType::kInt8, ArrayType::kBool, ArrayType::kInt32,
                         ArrayType::kInt64}) {
    written.push_back({std::string(ArrayTypeName(type)), MakeArray(type, {3, 7})});
  }
  ASSERT_TRUE(WriteSafetensors(folder.path("a.safetensors"), written).ok());
  for (const NamedArray& named : written) {
    const absl::StatusOr<Array> read = ReadArray(folder.path("a.safetensors:" + named.name));
    ASSERT_TRUE(read.ok()) << read.status();
    ExpectSame(*read, named.array);
  }
}

TEST(ArrayFilesTest, ShapesOfRankZeroOneAndExtentZeroRoundTrip) {
  const TemporaryFolder folder;
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{}, {4}, {0}, {2, 0, 3}}) {
    for (const char* name : {"a.npy", "a.safetensors"}) {
      const Array written = MakeArray(ArrayType::kFp32, shape);
      ASSERT_TRUE(WriteArray(folder.path(name), written).ok());
      const absl::StatusOr<Array> read = ReadArray(folder.path(name));
      ASSERT_TRUE(read.ok()) << read.status();
      ExpectSame(*read, written);
    }
  }
}

TEST(ArrayFilesTest, NpyDataBeginAtAMultipleOf64) {
  const TemporaryFolder folder;
  const Array written = MakeArray(ArrayType::kFp32, {1000, 1});
  ASSERT_TRUE(WriteArray(folder.path("a.npy"), written).ok());
  EXPECT_EQ((ReadWhole(folder.path("a.npy")).size() - written.bytes.size()) % 64, 0);
}

TEST(ArrayFilesTest, ReadsWhatNumpyWrote) {
  const absl::StatusOr<Array> q = ReadArray(TILEWRIGHT_TEST_DATA "/minilm/q.npy");
  ASSERT_TRUE(q.ok()) << q.status();
  EXPECT_EQ(q->type, ArrayType::kFp32);
  EXPECT_THAT(q->shape, ElementsAre(2, 79, 12, 32));
  const absl::StatusOr<Array> mask = ReadArray(TILEWRIGHT_TEST_DATA "/minilm/mask.npy");
  ASSERT_TRUE(mask.ok()) << mask.status();
  EXPECT_EQ(mask->type, ArrayType::kBool);
  EXPECT_THAT(mask->shape, ElementsAre(2, 1, 1, 79));
}

TEST(ArrayFilesTest, ReadsNpyVersionsTwoAndThreeAndKeysInAnyOrder) {
  const TemporaryFolder folder;
  for (char version : {2, 3}) {
    const std::string path = folder.Write(
        "a.npy",
        Npy("{\"shape\": (1, 2), 'fortran_order': False, 'descr': '<i4'}", "abcdefgh", version));
    const absl::StatusOr<Array> quoted = ReadArray(path);
    EXPECT_FALSE(quoted.ok());  // numpy writes single quotes
    folder.Write("a.npy", Npy("{'shape': (1, 2), 'fortran_order': False, 'descr': '<i4', }\n",
                              "abcdefgh", version));
    const absl::StatusOr<Array> read = ReadArray(path);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->type, ArrayType::kInt32);
    EXPECT_THAT(read->shape, ElementsAre(1, 2));
  }
}

TEST(ArrayFilesTest, ComplaintsNameFileDtypeAndShape) {
  const TemporaryFolder folder;
  const auto complaint = [&](const std::string& name, const std::string& text) {
    const absl::StatusOr<Array> read = ReadArray(folder.Write(name, text));
    EXPECT_FALSE(read.ok());
    return std::string(read.status().message());
  };
  EXPECT_THAT(
      complaint("big.npy",
                Npy("{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", "abcd")),
      AllOf(HasSubstr("big.npy"), HasSubstr("'>f4'"), HasSubstr("[1]"), HasSubstr("<f2, <f4")));
  EXPECT_THAT(
      complaint("f.npy", Npy("{'descr': '<f4', 'fortran_order': True, 'shape': (1, 1), }", "abcd")),
      AllOf(HasSubstr("f.npy: fp32 [1, 1]"), HasSubstr("Fortran order")));
  EXPECT_THAT(
      complaint("s.npy", Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", "abcd")),
      AllOf(HasSubstr("s.npy: fp32 [3]"), HasSubstr("3 elements"), HasSubstr("4 bytes of data")));
  EXPECT_THAT(
      complaint("neg.npy", Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", "")),
      AllOf(HasSubstr("neg.npy"), HasSubstr("\"-1\"")));
  EXPECT_THAT(complaint("huge.npy", Npy("{'descr': '<f4', 'fortran_order': False, 'shape': "
                                        "(4611686018427387904, 4611686018427387904), }",
                                        "")),
              HasSubstr("2^63"));
  EXPECT_THAT(complaint("key.npy", Npy("{'descr': '<f4', 'shape': (1,), }", "abcd")),
              HasSubstr("'fortran_order'"));
  EXPECT_THAT(complaint("short.npy", std::string("\x93NUMPY\x01", 7)), HasSubstr("7 bytes"));
  EXPECT_THAT(complaint("text.npy", "hello"), HasSubstr("not a .npy file"));
  EXPECT_THAT(complaint("a.txt", "hello"), HasSubstr("neither in .npy nor in .safetensors"));

  EXPECT_THAT(complaint("a.safetensors", "abc"), HasSubstr("after 3 bytes"));
  EXPECT_THAT(complaint("b.safetensors", Safetensors("[1]", "")), HasSubstr("not a JSON object"));
  EXPECT_THAT(complaint("c.safetensors",
                        Safetensors(R"({"x":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})",
                                    "abcdefgh")),
              AllOf(HasSubstr("c.safetensors:x"), HasSubstr("F64"), HasSubstr("[1]")));
  EXPECT_THAT(
      complaint("d.safetensors",
                Safetensors(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", "abcd")),
      AllOf(HasSubstr("x: fp32 [1]"), HasSubstr("0 to 8 of 4")));
  EXPECT_THAT(
      complaint("e.safetensors",
                Safetensors(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "abcd")),
      AllOf(HasSubstr("x: fp32 [2]"), HasSubstr("4 bytes")));
  EXPECT_THAT(complaint("g.safetensors", Safetensors(R"({"x":{"dtype":"F32","shape":[1]}})", "")),
              HasSubstr("no data_offsets"));
}

TEST(ArrayFilesTest, ATensorIsFoundByNameOrAsTheOnlyOne) {
  const TemporaryFolder folder;
  const NamedArray one[] = {{"q", MakeArray(ArrayType::kBf16, {2, 2})}};
  const NamedArray two[] = {one[0], {"k", MakeArray(ArrayType::kBf16, {1})}};
  ASSERT_TRUE(WriteSafetensors(folder.path("one.safetensors"), one).ok());
  ASSERT_TRUE(WriteSafetensors(folder.path("two.safetensors"), two).ok());
  EXPECT_TRUE(ReadArray(folder.path("one.safetensors")).ok());
  EXPECT_TRUE(ReadArray(folder.path("two.safetensors:k")).ok());
  const absl::StatusOr<Array> unnamed = ReadArray(folder.path("two.safetensors"));
  EXPECT_THAT(unnamed.status().message(), AllOf(HasSubstr("FILE:NAME"), HasSubstr("k, q")));
  const absl::StatusOr<Array> missing = ReadArray(folder.path("two.safetensors:v"));
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), AllOf(HasSubstr("\"v\""), HasSubstr("k, q")));
}

TEST(ArrayFilesTest, MissingAndUnwritableFilesAreNamed) {
  EXPECT_EQ(ReadArray("/nowhere/q.npy").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(ReadArray("/nowhere/q.npy").status().message(), HasSubstr("/nowhere/q.npy"));
  EXPECT_THAT(WriteArray("/nowhere/q.npy", MakeArray(ArrayType::kFp32, {1})).message(),
              HasSubstr("/nowhere/q.npy"));
  EXPECT_THAT(WriteArray("q.npy", MakeArray(ArrayType::kBf16, {1})).message(),
              AllOf(HasSubstr("bf16"), HasSubstr(".safetensors")));
}

}  // namespace
}  // namespace tilewright::cli
