#include "build/cubin_check.h"

#include <elf.h>

#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tilewright::build {
namespace {

// e_machine of CUDA images, and the value of e_ident[EI_ABIVERSION] from which on e_flags keeps the
// SM in bits 8-15; before, it was in bits 0-7. Both seen in files: 12.9 writes version 7, 13.0
// version 8.
constexpr uint16_t kMachineCuda = 190;
constexpr uint8_t kAbiVersionSmInSecondByte = 8;

// 90 of "sm_90a".
std::optional<int> SmOf(std::string_view target) {
  constexpr std::string_view kPrefix = "sm_";
  if (target.substr(0, kPrefix.size()) != kPrefix) return std::nullopt;
  int sm = 0;
  const char* begin = target.data() + kPrefix.size();
  const auto [rest, error] = std::from_chars(begin, target.data() + target.size(), sm);
  if (error != std::errc() || rest == begin) return std::nullopt;
  return sm;
}

// Whether `count` records of `size` bytes from `offset` on lie within `total` bytes.
bool TableFits(uint64_t offset, uint64_t size, uint64_t count, uint64_t total) {
  return offset <= total && size * count <= total - offset;  // 16-bit factors cannot overflow
}

}  // namespace

absl::Status CheckCubin(std::string_view cubin, std::string_view target) {
  Elf64_Ehdr header;
  if (cubin.size() < sizeof(header)) {
    return absl::DataLossError(
        absl::StrCat("cubin has ", cubin.size(), " bytes, fewer than an ELF header"));
  }
  std::memcpy(&header, cubin.data(), sizeof(header));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return absl::DataLossError("cubin does not start with the ELF magic");
  }
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB) {
    return absl::DataLossError("cubin is not a 64-bit little-endian ELF file");
  }
  if (header.e_machine != kMachineCuda) {
    return absl::DataLossError(
        absl::StrCat("cubin is an ELF file for machine ", header.e_machine, ", not CUDA"));
  }
  if (!TableFits(header.e_shoff, header.e_shentsize, header.e_shnum, cubin.size()) ||
      !TableFits(header.e_phoff, header.e_phentsize, header.e_phnum, cubin.size())) {
    return absl::DataLossError("cubin is cut short: a header table lies outside the file");
  }
  const std::optional<int> expected = SmOf(target);
  const bool second_byte = header.e_ident[EI_ABIVERSION] >= kAbiVersionSmInSecondByte;
  const int sm = static_cast<int>((header.e_flags >> (second_byte ? 8 : 0)) & 0xff);
  if (!expected.has_value() || sm != *expected) {
    return absl::DataLossError(
        absl::StrCat("cubin is for sm_", sm, ", expected ", AbslView(target)));
  }
  return absl::OkStatus();
}

}  // namespace tilewright::build
