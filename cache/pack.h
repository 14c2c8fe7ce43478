// A pack: many entries in one file that is only read. It lies anywhere (an image layer, a network
// mount, a byte array in a program), names no other file, and can be pinned by the SHA-256 of its
// manifest. The grammar is in cache/README.md.
#ifndef TILEWRIGHT_CACHE_PACK_H_
#define TILEWRIGHT_CACHE_PACK_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/digest.h"
#include "base/file_system.h"
#include "base/log.h"
#include "cache/artifact_store.h"
#include "cache/entry_format.h"

namespace tilewright::cache {

// One line of a pack's manifest and where its entry lies.
struct PackedEntry {
  EntryName name;
  int64_t offset = 0;  // in the file
  int64_t bytes = 0;
  Digest sha256;  // of these bytes
};

struct PackIndex {
  Digest digest;                     // SHA-256 of the manifest: what a pin names
  std::vector<PackedEntry> entries;  // in ascending order of name, without gaps
};

// Bytes before the manifest: enough for PackHeaderBytes.
inline constexpr size_t kPackPrefixBytes = 24;

// Bytes in front of the first entry of a file that begins with `prefix` (kPackPrefixBytes) and is
// `file_bytes` long. DataLoss when it is no pack.
absl::StatusOr<size_t> PackHeaderBytes(std::string_view prefix, int64_t file_bytes);

// The index of a pack from its whole header. DataLoss that says what is wrong. Never reads outside
// `header`, whatever it holds.
absl::StatusOr<PackIndex> ParsePackHeader(std::string_view header, int64_t file_bytes);

struct PackSummary {
  Digest digest;
  int64_t entries = 0;
  int64_t bytes = 0;  // of the file
};

// Writes `entries` of `from` as a pack and replaces `path` (absolute) by it, all or nothing. The
// same entries make the same bytes, in whatever order they are named; one that is named twice is
// written once. DataLoss or NotFound when one cannot be read, Unavailable or ResourceExhausted when
// the file cannot be written.
absl::StatusOr<PackSummary> WritePack(ArtifactStore& from, std::vector<EntryInfo> entries,
                                      const std::string& path,
                                      FileSystem* file_system = &FileSystem::Posix());

// Serves the entries of one pack; each is verified on every load, against the manifest and in
// itself. Put and Remove are FailedPrecondition. Thread-safe; takes no lock.
class PackStore : public ArtifactStore {
 public:
  // A file that belongs to the effective user or root and that nobody else may write to, or,
  // whoever owns it, one whose digest is among `pins`. With pins, a pack that has none of them is
  // refused whole (PermissionDenied). Symbolic links on the way are followed: what they lead to is
  // held to the rules. NotFound, PermissionDenied, DataLoss or Unavailable name the path and the
  // reason. `file_system` outlives the store.
  static absl::StatusOr<std::unique_ptr<PackStore>> Open(
      const std::string& path, absl::Span<const Digest> pins, const Logger& logger,
      FileSystem* file_system = &FileSystem::Posix());

  // A pack in memory, which outlives the store. `place` stands for its path. Errors as Open.
  static absl::StatusOr<std::unique_ptr<PackStore>> OpenBytes(std::string_view bytes,
                                                              const std::string& place,
                                                              absl::Span<const Digest> pins,
                                                              const Logger& logger);

  absl::StatusOr<EntryPtr> Get(const EntryKey& key, std::string_view manifest) override;
  absl::Status Put(const Entry& entry) override;
  absl::Status Remove(const Digest& digest, std::string_view variant_hex) override;
  absl::StatusOr<std::vector<EntryInfo>> List() override;
  absl::StatusOr<Entry> Read(const EntryInfo& info) override;
  StoreStats Stats() override;
  // nullptr: there is nothing to publish.
  std::unique_ptr<KeyLock> Lock(const Digest& digest, int timeout_ms) override;

  // Paths of the entries are PLACE/NAME.
  const std::string& place() const { return place_; }
  const Digest& digest() const { return index_.digest; }

 private:
  PackStore(std::string place, const Logger& logger) : place_(std::move(place)), logger_(logger) {}

  absl::Status TakeIndex(PackIndex index, absl::Span<const Digest> pins);
  // NotFound or DataLoss, counted.
  absl::Status Load(const PackedEntry& packed, Entry* entry);

  std::string place_;
  const Logger logger_;
  FileSystem* file_system_ = nullptr;  // of a file
  ScopedHandle file_;
  std::string_view bytes_;  // of a pack in memory
  int64_t mtime_s_ = 0;
  PackIndex index_;
  absl::flat_hash_map<Digest, std::vector<size_t>> by_digest_;  // indices of entries

  std::atomic<int64_t> hits_{0};
  std::atomic<int64_t> misses_{0};
  std::atomic<int64_t> absent_{0};
  std::atomic<int64_t> corrupt_{0};
  std::atomic<int64_t> manifest_differs_{0};
  std::atomic<int64_t> unreadable_{0};
};

}  // namespace tilewright::cache

#endif  // TILEWRIGHT_CACHE_PACK_H_
