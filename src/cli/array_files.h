// Arrays in files: NumPy's .npy (format versions 1 to 3) and .safetensors. Every complaint names
// the file, and the dtype and shape found and expected where these are the matter.
//
//   type    .npy          .safetensors
//   fp16    <f2           F16
//   bf16    -             BF16
//   fp32    <f4           F32
//   e4m3    -             F8_E4M3
//   e5m2    -             F8_E5M2
//   int8    |i1           I8
//   bool    |b1           BOOL
//   int32   <i4           I32
//   int64   <i8           I64
#ifndef TILEWRIGHT_CLI_ARRAY_FILES_H_
#define TILEWRIGHT_CLI_ARRAY_FILES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tilewright/attention.h"

namespace tilewright::cli {

// What a file may hold: the library's element types, and int64 which only files know.
enum class ArrayType { kFp16, kBf16, kFp32, kFp8E4m3, kFp8E5m2, kInt8, kBool, kInt32, kInt64 };

std::string_view ArrayTypeName(ArrayType type);  // "fp16"
int ArrayTypeBytes(ArrayType type);
// InvalidArgument for int64, which no tensor of a spec has.
absl::StatusOr<ElementType> ToElementType(ArrayType type);
ArrayType FromElementType(ElementType type);

// A dense array in C order.
struct Array {
  ArrayType type = ArrayType::kFp32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
  std::string file;  // where it came from, for complaints: "q.npy" or "layer.safetensors:q"

  int64_t elements() const;
  // "q.npy: fp32 [2, 79, 12, 32]"
  std::string Describe() const;
};

// "[2, 79, 12, 32]"
std::string ShapeText(absl::Span<const int64_t> shape);

// Reads FILE.npy, FILE.safetensors:NAME, or FILE.safetensors that holds one tensor.
//   NotFound         the file cannot be opened, or has no such tensor
//   InvalidArgument  not such a file, a dtype that is not in the table, Fortran order, big endian
//   DataLoss         the file ends early
absl::StatusOr<Array> ReadArray(const std::string& path);

// Writes .npy or .safetensors (as tensor NAME of "FILE.safetensors:NAME", or "data") by the
// extension. InvalidArgument for a type that the format lacks.
absl::Status WriteArray(const std::string& path, const Array& array);

// A whole .safetensors file.
struct NamedArray {
  std::string name;
  Array array;
};
absl::StatusOr<std::vector<NamedArray>> ReadSafetensors(const std::string& path);
absl::Status WriteSafetensors(const std::string& path, absl::Span<const NamedArray> arrays);

}  // namespace tilewright::cli

#endif  // TILEWRIGHT_CLI_ARRAY_FILES_H_
