// A store of verified byte entries. It knows nothing of kernels. The numbered rules it follows and
// the format on disk are in cache/README.md.
#ifndef TILEWRIGHT_CACHE_ARTIFACT_STORE_H_
#define TILEWRIGHT_CACHE_ARTIFACT_STORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/digest.h"

namespace tilewright::cache {

// One named part of an entry: "cubin", "source", "facts".
struct Section {
  std::string name;
  std::string bytes;
};

// What is stored under a key. The manifest is the text that the key is the SHA-256 of
// (base/labelled_hash.h); the variant tells apart entries of one key that different compilers made.
struct Entry {
  std::string manifest;
  std::string variant;  // compiler identity, any bytes
  std::vector<Section> sections;

  // nullptr when there is no such section.
  const std::string* Find(std::string_view name) const;
};

struct EntryKey {
  Digest digest;                       // SHA-256 of the manifest
  std::optional<std::string> variant;  // absent: any compiler's entry will do
};

struct EntryInfo {
  Digest digest;
  std::string variant_hex;  // first 16 digits of the SHA-256 of the variant, as in the file name
  int64_t bytes = 0;
  int64_t mtime_s = 0;  // for people and eviction, never for validity
  std::string path;     // empty in memory
};

// Counters of one store; they only grow.
struct StoreStats {
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t corrupt = 0;  // entries that failed verification and were moved aside
  int64_t foreign = 0;  // refused: owner, mode, link, not a regular file
  int64_t publishes = 0;
  int64_t publish_failures = 0;
  int64_t evictions = 0;
  int64_t entries = 0;  // present now
  int64_t bytes = 0;    // present now
};

// Thread-safe, and safe among processes. No method ever throws.
class ArtifactStore {
 public:
  virtual ~ArtifactStore() = default;

  // The verified entry whose manifest equals `manifest` byte for byte, or NotFound whose message
  // says why it is a miss ("absent", "corrupt: ...", "foreign: ...", "manifest differs"). Never
  // another error.
  virtual absl::StatusOr<Entry> Get(const EntryKey& key, std::string_view manifest) = 0;

  // Publishes atomically. Losing a race against an equal entry is success. A failure leaves nothing
  // visible behind.
  virtual absl::Status Put(const Entry& entry) = 0;

  virtual absl::Status Remove(const Digest& digest, std::string_view variant_hex) = 0;
  // In ascending order of digest.
  virtual absl::StatusOr<std::vector<EntryInfo>> List() = 0;
  // The entry itself, verified, for `cache show`. NotFound or DataLoss.
  virtual absl::StatusOr<Entry> Read(const EntryInfo& info) = 0;
  virtual StoreStats Stats() = 0;

  // Excludes other processes of this host that are about to produce the same key, for at most
  // `timeout_ms`. An object that holds the lock until it is destroyed, or nullptr when it could not
  // be had (time-out, no locks here): the caller goes on regardless.
  class KeyLock {
   public:
    virtual ~KeyLock() = default;
  };
  virtual std::unique_ptr<KeyLock> Lock(const Digest& digest, int timeout_ms) = 0;
};

}  // namespace tilewright::cache

#endif  // TILEWRIGHT_CACHE_ARTIFACT_STORE_H_
