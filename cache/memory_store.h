// A store in the memory of this process, bounded in bytes; what was used longest ago goes first.
#ifndef TILEWRIGHT_CACHE_MEMORY_STORE_H_
#define TILEWRIGHT_CACHE_MEMORY_STORE_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/lru_map.h"
#include "base/mutex.h"
#include "cache/artifact_store.h"

namespace tilewright::cache {

class MemoryStore : public ArtifactStore {
 public:
  // `max_bytes` of manifests, variants and sections; 0: no bound.
  explicit MemoryStore(int64_t max_bytes) : entries_(max_bytes) {}

  absl::StatusOr<EntryPtr> Get(const EntryKey& key, std::string_view manifest) override;
  absl::Status Put(const Entry& entry) override;
  // As Put, without a copy.
  void Keep(EntryPtr entry);
  absl::Status Remove(const Digest& digest, std::string_view variant_hex) override;
  absl::StatusOr<std::vector<EntryInfo>> List() override;
  absl::StatusOr<Entry> Read(const EntryInfo& info) override;
  StoreStats Stats() override;
  // nullptr: nobody else can see this store.
  std::unique_ptr<KeyLock> Lock(const Digest& digest, int timeout_ms) override;

 private:
  // The entries of one key, one per compiler; almost always a single one.
  using Variants = std::vector<EntryPtr>;

  Mutex mutex_;
  LruMap<Digest, Variants> entries_ ABSL_GUARDED_BY(mutex_);
  StoreStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tilewright::cache

#endif  // TILEWRIGHT_CACHE_MEMORY_STORE_H_
