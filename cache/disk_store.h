// A store in one directory: one self-contained file per entry, verified on every load, published by
// rename. cache/README.md has the layout, the rules and where they come from.
#ifndef TILEWRIGHT_CACHE_DISK_STORE_H_
#define TILEWRIGHT_CACHE_DISK_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "base/log.h"
#include "cache/artifact_store.h"

namespace tilewright::cache {

struct DiskStoreOptions {
  std::string directory = {};  // absolute
  bool read_only = false;      // no write, no lock, no time stamp
  bool pack = false;           // read-only, may belong to root, files may have several links
  bool group_shared = false;   // owners and group may differ; new files follow the umask
  int64_t max_bytes = 0;       // of allocated blocks; 0: no limit
};

struct GcOptions {
  int64_t max_bytes = 0;      // 0: no limit; then only leftovers are swept
  int64_t older_than_s = -1;  // also remove entries unused for longer; negative: keep them
  bool dry_run = false;       // report what would go
};

struct GcReport {
  bool ran = false;  // false: another process is collecting
  int64_t removed_entries = 0;
  int64_t removed_bytes = 0;
  int64_t swept_files = 0;  // temporaries and entries moved aside
  int64_t entries = 0;      // left
  int64_t bytes = 0;
};

// The place of a store, for `doctor`.
struct DirectoryFacts {
  std::string file_system;  // "ext4", "nfs", ...
  bool network = false;     // other hosts may use it too; locks may not reach them
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
  uint32_t owner = 0;
  uint32_t mode = 0;  // permission bits
};

class DiskStore : public ArtifactStore {
 public:
  // Checks the directory and makes it unless `read_only`. FailedPrecondition or PermissionDenied
  // that name the path and the rule when it cannot be used; NotFound when it is read-only and
  // missing. `file_system` outlives the store.
  static absl::StatusOr<std::unique_ptr<DiskStore>> Open(
      const DiskStoreOptions& options, const Logger& logger,
      FileSystem* file_system = &FileSystem::Posix());
  ~DiskStore() override;

  absl::StatusOr<EntryPtr> Get(const EntryKey& key, std::string_view manifest) override;
  absl::Status Put(const Entry& entry) override;
  absl::Status Remove(const Digest& digest, std::string_view variant_hex) override;
  absl::StatusOr<std::vector<EntryInfo>> List() override;
  absl::StatusOr<Entry> Read(const EntryInfo& info) override;
  StoreStats Stats() override;
  StoreStats Counters() override;
  void AddToTotals(const Totals& more) override;
  Totals ReadTotals() override;
  std::unique_ptr<KeyLock> Lock(const Digest& digest, int timeout_ms) override;

  // Evicts the entries unused for longest until the rest fits, and sweeps temporaries older than an
  // hour and moved-aside entries older than a week. One process at a time; others return at once.
  // Safe beside readers and writers: whoever loses a file under it compiles again.
  absl::StatusOr<GcReport> Gc(const GcOptions& options);

  // Removes all entries, temporaries and moved-aside files (the directory stays).
  absl::StatusOr<GcReport> Clear();

  const DiskStoreOptions& options() const;
  // Unavailable, or PermissionDenied, when the directory has become unusable.
  absl::StatusOr<DirectoryFacts> Describe() const;

 private:
  struct Impl;
  explicit DiskStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tilewright::cache

#endif  // TILEWRIGHT_CACHE_DISK_STORE_H_
