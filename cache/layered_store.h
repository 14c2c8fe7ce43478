// Memory over read-only packs over the user's directory.
#ifndef TILEWRIGHT_CACHE_LAYERED_STORE_H_
#define TILEWRIGHT_CACHE_LAYERED_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "base/mutex.h"
#include "cache/artifact_store.h"
#include "cache/memory_store.h"

namespace tilewright::cache {

// One layer below memory. The paths of its entries begin with PLACE/.
struct StoreLayer {
  std::string place;
  std::unique_ptr<ArtifactStore> store;
};

class LayeredStore : public ArtifactStore {
 public:
  // `memory` must not be null; the user's store may be: then the store lives in memory. Entries
  // that were found below are kept in memory, and published ones too, so that a store that cannot
  // be written still serves its own process.
  LayeredStore(std::unique_ptr<MemoryStore> memory, std::vector<StoreLayer> packs, StoreLayer user);

  absl::StatusOr<EntryPtr> Get(const EntryKey& key, std::string_view manifest) override;
  absl::Status Put(const Entry& entry) override;
  // A pack cannot be changed; its entry is passed over from now on by this store.
  absl::Status Remove(const Digest& digest, std::string_view variant_hex) override;
  // Entries of all packs and of the user's directory, and those that are in memory only.
  absl::StatusOr<std::vector<EntryInfo>> List() override;
  absl::StatusOr<Entry> Read(const EntryInfo& info) override;
  StoreStats Stats() override;
  StoreStats Counters() override;
  // The user's directory keeps them.
  void AddToTotals(const Totals& more) override;
  Totals ReadTotals() override;
  std::unique_ptr<KeyLock> Lock(const Digest& digest, int timeout_ms) override;

 private:
  // Of the layers as `ask` answers for each.
  StoreStats Sum(StoreStats (ArtifactStore::*ask)());

  bool IsRemoved(const Digest& digest, const std::string& variant);

  const std::unique_ptr<MemoryStore> memory_;
  const std::vector<StoreLayer> packs_;
  const StoreLayer user_;

  Mutex mutex_;
  absl::flat_hash_set<std::pair<Digest, std::string>> removed_ ABSL_GUARDED_BY(mutex_);
  StoreStats stats_ ABSL_GUARDED_BY(mutex_);  // what only this layer knows
};

}  // namespace tilewright::cache

#endif  // TILEWRIGHT_CACHE_LAYERED_STORE_H_
