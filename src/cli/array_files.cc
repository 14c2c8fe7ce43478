#include "cli/array_files.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tilewright::cli {
namespace {

using nlohmann::json;

struct TypeRow {
  ArrayType type;
  absl::string_view name;
  int bytes;
  absl::string_view npy;  // empty: .npy has no such type
  absl::string_view safetensors;
  std::optional<ElementType> element;
};

constexpr TypeRow kTypes[] = {
    {ArrayType::kFp16, "fp16", 2, "<f2", "F16", ElementType::kFp16},
    {ArrayType::kBf16, "bf16", 2, "", "BF16", ElementType::kBf16},
    {ArrayType::kFp32, "fp32", 4, "<f4", "F32", ElementType::kFp32},
    {ArrayType::kFp8E4m3, "e4m3", 1, "", "F8_E4M3", ElementType::kFp8E4m3},
    {ArrayType::kFp8E5m2, "e5m2", 1, "", "F8_E5M2", ElementType::kFp8E5m2},
    {ArrayType::kInt8, "int8", 1, "|i1", "I8", ElementType::kInt8},
    {ArrayType::kBool, "bool", 1, "|b1", "BOOL", ElementType::kBool},
    {ArrayType::kInt32, "int32", 4, "<i4", "I32", ElementType::kInt32},
    {ArrayType::kInt64, "int64", 8, "<i8", "I64", std::nullopt},
};

const TypeRow& RowOf(ArrayType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row;
  }
  TILEWRIGHT_CHECK(false && "an array type without a row");
  return kTypes[0];
}

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// Elements of a shape, or nothing when the product does not fit.
std::optional<int64_t> Product(absl::Span<const int64_t> shape) {
  int64_t product = 1;
  for (int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(product, extent, &product)) return std::nullopt;
  }
  return product;
}

class File {
 public:
  File(const std::string& path, const char* mode) : file_(std::fopen(path.c_str(), mode)) {}
  ~File() {
    if (file_ != nullptr) std::fclose(file_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  FILE* get() const { return file_; }
  // False when the file system could not take everything.
  bool Close() { return std::fclose(std::exchange(file_, nullptr)) == 0; }

 private:
  FILE* file_;
};

absl::StatusOr<std::string> ReadWholeFile(const std::string& path) {
  File file(path, "rb");
  if (file.get() == nullptr) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot open: ", std::strerror(errno)));
  }
  std::string text;
  char block[1 << 16];
  size_t got = 0;
  while ((got = std::fread(block, 1, sizeof(block), file.get())) > 0) text.append(block, got);
  if (std::ferror(file.get()) != 0) {
    return absl::DataLossError(absl::StrCat(path, ": cannot read: ", std::strerror(errno)));
  }
  return text;
}

absl::Status WriteWholeFile(const std::string& path, std::string_view head,
                            absl::Span<const absl::Span<const std::byte>> parts) {
  File file(path, "wb");
  if (file.get() == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": cannot open for writing: ", std::strerror(errno)));
  }
  bool complete = std::fwrite(head.data(), 1, head.size(), file.get()) == head.size();
  for (absl::Span<const std::byte> part : parts) {
    complete = complete && std::fwrite(part.data(), 1, part.size(), file.get()) == part.size();
  }
  if (!file.Close() || !complete) {
    return absl::DataLossError(absl::StrCat(path, ": cannot write: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

std::vector<std::byte> ToBytes(std::string_view text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return std::vector<std::byte>(begin, begin + text.size());
}

// ---- .npy
// ---------------------------------------------------------------------------------------- magic
// "\x93NUMPY", version (2 bytes), header length (2 bytes in version 1, else 4, little endian),
// header: a Python dict literal with the keys descr, fortran_order, shape; then the data.

constexpr std::string_view kNpyMagic("\x93NUMPY", 6);

// The text after 'key': in the header, up to the comma or bracket that ends it.
absl::StatusOr<absl::string_view> HeaderValue(const std::string& path, absl::string_view header,
                                              absl::string_view key) {
  const std::string quoted = absl::StrCat("'", key, "'");
  size_t at = header.find(quoted);
  if (at == absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the .npy header has no key ", quoted, ": ", header));
  }
  at = header.find(':', at + quoted.size());
  if (at == absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the .npy header has no value for ", quoted, ": ", header));
  }
  absl::string_view rest = absl::StripLeadingAsciiWhitespace(header.substr(at + 1));
  if (absl::StartsWith(rest, "(")) return rest.substr(0, rest.find(')') + 1);
  return absl::StripTrailingAsciiWhitespace(rest.substr(0, rest.find_first_of(",}")));
}

absl::StatusOr<std::vector<int64_t>> ParseShape(const std::string& path, absl::string_view text) {
  absl::string_view inner = text;
  if (!absl::ConsumePrefix(&inner, "(") || !absl::ConsumeSuffix(&inner, ")")) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the shape ", text, " is not a tuple"));
  }
  std::vector<int64_t> shape;
  for (absl::string_view part : absl::StrSplit(inner, ',')) {
    part = absl::StripAsciiWhitespace(part);
    if (part.empty()) continue;  // "(3,)" and "()"
    int64_t extent = 0;
    if (!absl::SimpleAtoi(part, &extent) || extent < 0) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": extent \"", part, "\" of the shape ",
                                                     text, " is not a number >= 0"));
    }
    shape.push_back(extent);
  }
  return shape;
}

absl::StatusOr<Array> ReadNpy(const std::string& path) {
  TILEWRIGHT_ASSIGN_OR_RETURN(std::string text, ReadWholeFile(path));
  if (!absl::StartsWith(text, View(kNpyMagic))) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not a .npy file (it does not begin with \\x93NUMPY)"));
  }
  // The fixed part, as if followed by zeros where the file ends earlier.
  unsigned char prefix[12] = {};
  std::memcpy(prefix, text.data(), std::min(text.size(), sizeof(prefix)));
  const size_t length_bytes = prefix[6] == 1 ? 2 : 4;
  const size_t header_at = 8 + length_bytes;
  uint32_t header_bytes = 0;
  std::memcpy(&header_bytes, prefix + 8, length_bytes);
  if (text.size() < header_at || text.size() - header_at < header_bytes) {
    return absl::DataLossError(
        absl::StrCat(path, ": ends inside its .npy header, after ", text.size(), " bytes"));
  }
  const absl::string_view header = absl::string_view(text).substr(header_at, header_bytes);
  TILEWRIGHT_ASSIGN_OR_RETURN(absl::string_view descr, HeaderValue(path, header, "descr"));
  TILEWRIGHT_ASSIGN_OR_RETURN(absl::string_view order, HeaderValue(path, header, "fortran_order"));
  TILEWRIGHT_ASSIGN_OR_RETURN(absl::string_view shape, HeaderValue(path, header, "shape"));

  Array array;
  array.file = path;
  TILEWRIGHT_ASSIGN_OR_RETURN(array.shape, ParseShape(path, shape));
  absl::ConsumePrefix(&descr, "'");
  absl::ConsumeSuffix(&descr, "'");
  const TypeRow* type = nullptr;
  for (const TypeRow& row : kTypes) {
    if (!row.npy.empty() && row.npy == descr) type = &row;
  }
  if (type == nullptr) {
    std::vector<absl::string_view> known;
    for (const TypeRow& row : kTypes) {
      if (!row.npy.empty()) known.push_back(row.npy);
    }
    return absl::InvalidArgumentError(absl::StrCat(path, ": dtype '", descr, "' with shape ",
                                                   ShapeText(array.shape), " is not one of ",
                                                   absl::StrJoin(known, ", ")));
  }
  array.type = type->type;
  if (order != "False") {
    return absl::InvalidArgumentError(absl::StrCat(array.Describe(),
                                                   " is in Fortran order; save it in C order "
                                                   "(numpy.ascontiguousarray)"));
  }
  const std::optional<int64_t> elements = Product(array.shape);
  const uint64_t present = text.size() - header_at - header_bytes;
  if (!elements.has_value() ||
      static_cast<uint64_t>(*elements) > std::numeric_limits<int64_t>::max() / 8 ||
      static_cast<uint64_t>(*elements) * type->bytes != present) {
    return absl::DataLossError(absl::StrCat(
        array.Describe(), " needs ",
        elements.has_value() ? absl::StrCat(*elements, " elements") : "more than 2^63 elements",
        " of ", type->bytes, " bytes, the file holds ", present, " bytes of data"));
  }
  array.bytes = ToBytes(std::string_view(text).substr(header_at + header_bytes));
  return array;
}

absl::Status WriteNpy(const std::string& path, const Array& array) {
  const TypeRow& type = RowOf(array.type);
  if (type.npy.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": .npy has no dtype for ", type.name, " ",
                                                   ShapeText(array.shape),
                                                   "; write a .safetensors file"));
  }
  std::string header =
      absl::StrCat("{'descr': '", type.npy, "', 'fortran_order': False, 'shape': (",
                   absl::StrJoin(array.shape, ", "), array.shape.size() == 1 ? ",), }" : "), }");
  // The data begin at a multiple of 64 bytes.
  while ((10 + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  std::string head(kNpyMagic);
  head += '\x01';
  head += '\x00';
  head += static_cast<char>(header.size() & 0xff);
  head += static_cast<char>(header.size() >> 8);
  head += header;
  const absl::Span<const std::byte> data = array.bytes;
  return WriteWholeFile(path, head, {data});
}

// ---- .safetensors
// ---------------------------------------------------------------------------------- header length
// (8 bytes, little endian), header: JSON {name: {dtype, shape, data_offsets: [begin, end)}}, then
// the data that the offsets count from.

// Splits "FILE.safetensors:NAME".
std::pair<std::string, std::string> SplitTensorName(const std::string& path) {
  constexpr absl::string_view kExtension = ".safetensors:";
  const size_t at = path.find(kExtension.data(), 0, kExtension.size());
  if (at == std::string::npos) return {path, ""};
  return {path.substr(0, at + kExtension.size() - 1), path.substr(at + kExtension.size())};
}

absl::StatusOr<Array> ReadTensor(const std::string& file, const json& entry,
                                 std::string_view data) {
  const auto bad = [&](std::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": ", View(what), " in the header: ", entry.dump()));
  };
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string()) {
    return bad("no dtype");
  }
  if (!entry.contains("shape") || !entry["shape"].is_array()) return bad("no shape");
  Array array;
  array.file = file;
  for (const json& extent : entry["shape"]) {
    if (!extent.is_number_unsigned()) return bad("an extent that is not a number >= 0");
    array.shape.push_back(extent.get<int64_t>());
  }
  const std::string dtype = entry["dtype"].get<std::string>();
  const TypeRow* type = nullptr;
  for (const TypeRow& row : kTypes) {
    if (row.safetensors == dtype) type = &row;
  }
  if (type == nullptr) {
    std::vector<absl::string_view> known;
    for (const TypeRow& row : kTypes) known.push_back(row.safetensors);
    return absl::InvalidArgumentError(absl::StrCat(file, ": dtype ", dtype, " with shape ",
                                                   ShapeText(array.shape), " is not one of ",
                                                   absl::StrJoin(known, ", ")));
  }
  array.type = type->type;
  const json offsets = entry.value("data_offsets", json());
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return bad("no data_offsets");
  }
  const uint64_t begin = offsets[0].get<uint64_t>();
  const uint64_t end = offsets[1].get<uint64_t>();
  if (end < begin || end > data.size()) {
    return absl::DataLossError(absl::StrCat(array.Describe(), " lies at bytes ", begin, " to ", end,
                                            " of ", data.size(), " bytes of data"));
  }
  const std::optional<int64_t> elements = Product(array.shape);
  if (!elements.has_value() ||
      static_cast<uint64_t>(*elements) > std::numeric_limits<int64_t>::max() / 8 ||
      static_cast<uint64_t>(*elements) * type->bytes != end - begin) {
    return absl::DataLossError(
        absl::StrCat(array.Describe(), " does not fill its ", end - begin, " bytes"));
  }
  array.bytes = ToBytes(data.substr(begin, end - begin));
  return array;
}

}  // namespace

std::string_view ArrayTypeName(ArrayType type) {
  const absl::string_view name = RowOf(type).name;
  return {name.data(), name.size()};
}

int ArrayTypeBytes(ArrayType type) { return RowOf(type).bytes; }

absl::StatusOr<ElementType> ToElementType(ArrayType type) {
  const TypeRow& row = RowOf(type);
  if (!row.element.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype ", row.name, " is not an element type of a tensor"));
  }
  return *row.element;
}

ArrayType FromElementType(ElementType type) {
  for (const TypeRow& row : kTypes) {
    if (row.element == type) return row.type;
  }
  TILEWRIGHT_CHECK(false && "an element type without a row");
  return ArrayType::kFp32;
}

int64_t Array::elements() const { return Product(shape).value_or(0); }

std::string Array::Describe() const {
  return absl::StrCat(file.empty() ? "array" : file, ": ", View(ArrayTypeName(type)), " ",
                      ShapeText(shape));
}

std::string ShapeText(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<std::vector<NamedArray>> ReadSafetensors(const std::string& path) {
  TILEWRIGHT_ASSIGN_OR_RETURN(std::string text, ReadWholeFile(path));
  uint64_t header_bytes = 0;
  if (text.size() >= 8) std::memcpy(&header_bytes, text.data(), 8);
  if (text.size() < 8 || header_bytes > text.size() - 8) {
    return absl::DataLossError(
        absl::StrCat(path, ": ends inside its .safetensors header, after ", text.size(), " bytes"));
  }
  const json header = json::parse(text.begin() + 8, text.begin() + 8 + header_bytes, nullptr,
                                  /*allow_exceptions=*/false);
  if (!header.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not a .safetensors file (its header is not a JSON object)"));
  }
  const std::string_view data = std::string_view(text).substr(8 + header_bytes);
  std::vector<NamedArray> arrays;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    TILEWRIGHT_ASSIGN_OR_RETURN(Array array,
                                ReadTensor(absl::StrCat(path, ":", name), entry, data));
    arrays.push_back({name, std::move(array)});
  }
  return arrays;
}

absl::Status WriteSafetensors(const std::string& path, absl::Span<const NamedArray> arrays) {
  json header = json::object();
  uint64_t offset = 0;
  std::vector<absl::Span<const std::byte>> parts;
  for (const NamedArray& named : arrays) {
    const uint64_t end = offset + named.array.bytes.size();
    header[named.name] = {{"dtype", std::string(RowOf(named.array.type).safetensors)},
                          {"shape", named.array.shape},
                          {"data_offsets", {offset, end}}};
    parts.push_back(named.array.bytes);
    offset = end;
  }
  std::string text = header.dump();
  while (text.size() % 8 != 0) text += ' ';  // the data begin at a multiple of 8 bytes
  const uint64_t header_bytes = text.size();
  std::string head(8, '\0');
  std::memcpy(head.data(), &header_bytes, 8);
  return WriteWholeFile(path, head + text, parts);
}

absl::StatusOr<Array> ReadArray(const std::string& path) {
  if (absl::EndsWith(path, ".npy")) return ReadNpy(path);
  const auto [file, name] = SplitTensorName(path);
  if (!absl::EndsWith(file, ".safetensors")) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the name ends neither in .npy nor in .safetensors"));
  }
  TILEWRIGHT_ASSIGN_OR_RETURN(std::vector<NamedArray> arrays, ReadSafetensors(file));
  if (name.empty() && arrays.size() == 1) return std::move(arrays[0].array);
  std::vector<std::string> names;
  for (NamedArray& named : arrays) {
    if (!name.empty() && named.name == name) return std::move(named.array);
    names.push_back(named.name);
  }
  return absl::NotFoundError(absl::StrCat(
      file, name.empty() ? ": say which tensor with FILE:NAME; it holds " : ": no tensor \"", name,
      name.empty() ? "" : "\"; it holds ", absl::StrJoin(names, ", ")));
}

absl::Status WriteArray(const std::string& path, const Array& array) {
  if (absl::EndsWith(path, ".npy")) return WriteNpy(path, array);
  const auto [file, name] = SplitTensorName(path);
  if (absl::EndsWith(file, ".safetensors")) {
    const NamedArray named = {name.empty() ? "data" : name, array};
    return WriteSafetensors(file, {&named, 1});
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": the name ends neither in .npy nor in .safetensors"));
}

}  // namespace tilewright::cli
