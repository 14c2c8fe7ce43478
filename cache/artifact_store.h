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
#include "cache/totals.h"

namespace tilewright::cache {

// One named part of an entry: "cubin", "source", "facts".
struct Section {
  std::string name = {};
  std::string bytes = {};
};

// What is stored under a key. The manifest is the text that the key is the SHA-256 of
// (base/labelled_hash.h); the variant tells apart entries of one key that different compilers made.
struct Entry {
  std::string manifest = {};
  std::string variant = {};  // compiler identity, any bytes
  std::vector<Section> sections = {};

  // nullptr when there is no such section.
  const std::string* Find(std::string_view name) const;
};

// Entries are handed out shared: a hit in memory copies no kernel.
using EntryPtr = std::shared_ptr<const Entry>;

struct EntryKey {
  Digest digest = {};                       // SHA-256 of the manifest
  std::optional<std::string> variant = {};  // absent: any compiler's entry will do
};

struct EntryInfo {
  Digest digest = {};
  std::string variant_hex =
      {};  // first 16 digits of the SHA-256 of the variant, as in the file name
  int64_t bytes = 0;
  int64_t mtime_s = 0;    // for people and eviction, never for validity
  std::string path = {};  // empty in memory
};

// Counters of one store since it was opened; they only grow, but `entries` and `bytes`.
struct StoreStats {
  int64_t hits = 0;
  int64_t memory_hits = 0;  // hits of a layered store, by layer; 0 in its layers themselves
  int64_t pack_hits = 0;
  int64_t disk_hits = 0;

  int64_t misses = 0;
  int64_t absent = 0;            // misses by reason: there is no such entry,
  int64_t corrupt = 0;           // it failed verification and was moved aside,
  int64_t foreign = 0;           // it was refused: owner, mode, link, not a regular file,
  int64_t manifest_differs = 0;  // it is of another manifest or another compiler,
  int64_t unreadable = 0;        // the file system answered with an error

  int64_t publishes = 0;
  double publish_ms = 0;
  int64_t publish_failures = 0;
  int64_t evictions = 0;
  int64_t lock_waits = 0;  // locks that were not free at once
  double lock_wait_ms = 0;
  int64_t lock_timeouts = 0;
  int64_t warnings_suppressed = 0;  // repeated warnings that were counted and not logged

  int64_t entries = 0;  // present now
  int64_t bytes = 0;    // present now, on disk: of allocated blocks
};

// Thread-safe, and safe among processes. No method ever throws.
class ArtifactStore {
 public:
  virtual ~ArtifactStore() = default;

  // The verified entry whose manifest equals `manifest` byte for byte, or NotFound whose message
  // says why it is a miss ("absent", "corrupt: ...", "foreign: ...", "manifest differs", "variant
  // differs", "unreadable: ..."). Never another error, never null.
  virtual absl::StatusOr<EntryPtr> Get(const EntryKey& key, std::string_view manifest) = 0;

  // Publishes atomically. Losing a race against an equal entry is success. A failure leaves nothing
  // visible behind.
  virtual absl::Status Put(const Entry& entry) = 0;

  // Also OK when there was no such entry.
  virtual absl::Status Remove(const Digest& digest, std::string_view variant_hex) = 0;
  // In ascending order of digest.
  virtual absl::StatusOr<std::vector<EntryInfo>> List() = 0;
  // The entry itself, verified, for `cache show`. NotFound or DataLoss.
  virtual absl::StatusOr<Entry> Read(const EntryInfo& info) = 0;
  // Looks at every file to count `entries` and `bytes`: for people, not for a hot path.
  virtual StoreStats Stats() = 0;
  // The same without `entries` and `bytes`: where those would have to be counted on disk they are
  // 0.
  virtual StoreStats Counters() { return Stats(); }

  // Adds counters to those that the store keeps for all processes, where it keeps any. Failures are
  // silent: the sums are for people.
  virtual void AddToTotals(const Totals&) {}
  // Empty where nothing was kept.
  virtual Totals ReadTotals() { return {}; }

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
