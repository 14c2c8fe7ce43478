// The bytes of one entry on disk. The grammar and its history are in cache/README.md.
#ifndef TILEWRIGHT_CACHE_ENTRY_FORMAT_H_
#define TILEWRIGHT_CACHE_ENTRY_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/digest.h"
#include "cache/artifact_store.h"

namespace tilewright::cache {

// Larger files are not read: no kernel comes near it, and a damaged length must not exhaust memory.
inline constexpr int64_t kMaxEntryBytes = int64_t{256} << 20;

inline constexpr size_t kMaxSections = 64;

// InvalidArgument when a section has no name or the name of another one, or when the entry exceeds
// kMaxEntryBytes or kMaxSections.
absl::StatusOr<std::string> SerializeEntry(const Entry& entry);

// The entry of a whole file, or DataLoss that says what is wrong. Checks in this order: length,
// SHA-256 over everything, magic, schema, structure. Accepts exactly what SerializeEntry makes.
// Never reads outside `file`, whatever it holds.
absl::StatusOr<Entry> ParseEntry(std::string_view file);

// First 16 hex digits of the SHA-256 of a variant.
std::string VariantHex(std::string_view variant);

// "<64 hex>.<16 hex>.twk"
std::string EntryFileName(const Digest& digest, std::string_view variant_hex);

struct EntryName {
  Digest digest;
  std::string variant_hex;
};
// Nothing when the name is not that of an entry.
std::optional<EntryName> ParseEntryFileName(std::string_view name);

}  // namespace tilewright::cache

#endif  // TILEWRIGHT_CACHE_ENTRY_FORMAT_H_
