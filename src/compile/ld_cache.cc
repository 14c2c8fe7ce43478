#include "compile/ld_cache.h"

#include <cstdint>
#include <cstring>
#include <optional>

namespace tilewright::compile {
namespace {

// Layout and flag values: dl-cache.h and ldconfig.h of glibc.
constexpr std::string_view kOldMagic = "ld.so-1.7.0";
constexpr std::string_view kNewMagic = "glibc-ld.so.cache1.1";
constexpr size_t kOldHeaderBytes = 16;
constexpr size_t kOldEntryBytes = 12;
constexpr size_t kNewHeaderBytes = 48;
constexpr size_t kNewEntryBytes = 24;
constexpr size_t kTableAlignment = 8;
#if defined(__aarch64__)
constexpr uint32_t kFlags = 0x0a03;  // AArch64 libc6
#else
constexpr uint32_t kFlags = 0x0303;  // x86-64 libc6
#endif

std::optional<uint32_t> Word(std::string_view bytes, size_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(uint32_t)) return std::nullopt;
  uint32_t word;
  std::memcpy(&word, bytes.data() + offset, sizeof(word));
  return word;
}

std::optional<std::string_view> Text(std::string_view bytes, size_t offset) {
  if (offset >= bytes.size()) return std::nullopt;
  const size_t end = bytes.find('\0', offset);
  if (end == std::string_view::npos) return std::nullopt;
  return bytes.substr(offset, end - offset);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> LibrariesInLdCache(std::string_view bytes,
                                                                    std::string_view prefix) {
  std::vector<std::pair<std::string, std::string>> found;
  if (bytes.substr(0, kOldMagic.size()) == kOldMagic) {
    const std::optional<uint32_t> count = Word(bytes, kOldMagic.size() + 1);
    if (!count) return found;
    const size_t end = kOldHeaderBytes + size_t{*count} * kOldEntryBytes;
    const size_t aligned = (end + kTableAlignment - 1) / kTableAlignment * kTableAlignment;
    if (aligned > bytes.size()) return found;
    bytes.remove_prefix(aligned);
  }
  if (bytes.substr(0, kNewMagic.size()) != kNewMagic) return found;
  const std::optional<uint32_t> count = Word(bytes, kNewMagic.size());
  if (!count) return found;
  for (uint32_t i = 0; i < *count; ++i) {
    const size_t entry = kNewHeaderBytes + size_t{i} * kNewEntryBytes;
    const std::optional<uint32_t> flags = Word(bytes, entry);
    const std::optional<uint32_t> key = Word(bytes, entry + 4);
    const std::optional<uint32_t> value = Word(bytes, entry + 8);
    if (!flags || !key || !value) break;
    if (*flags != kFlags) continue;
    const std::optional<std::string_view> name = Text(bytes, *key);
    if (!name || name->substr(0, prefix.size()) != prefix) continue;
    if (const std::optional<std::string_view> path = Text(bytes, *value)) {
      found.emplace_back(*name, *path);
    }
  }
  return found;
}

}  // namespace tilewright::compile
