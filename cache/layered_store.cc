#include "cache/layered_store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "cache/entry_format.h"

namespace tilewright::cache {

LayeredStore::LayeredStore(std::unique_ptr<MemoryStore> memory, std::vector<StoreLayer> packs,
                           StoreLayer user)
    : memory_(std::move(memory)), packs_(std::move(packs)), user_(std::move(user)) {
  TILEWRIGHT_CHECK(memory_ != nullptr);
}

bool LayeredStore::IsRemoved(const Digest& digest, const std::string& variant) {
  MutexLock lock(&mutex_);
  return !removed_.empty() && removed_.contains(std::make_pair(digest, VariantHex(variant)));
}

absl::StatusOr<EntryPtr> LayeredStore::Get(const EntryKey& key, std::string_view manifest) {
  absl::StatusOr<EntryPtr> entry = memory_->Get(key, manifest);
  if (entry.ok()) {
    MutexLock lock(&mutex_);
    ++stats_.hits;
    ++stats_.memory_hits;
    return entry;
  }
  std::vector<std::string> reasons;
  const auto look_in = [&](ArtifactStore& store) {
    entry = store.Get(key, manifest);
    if (entry.ok()) return true;
    if (entry.status().message() != "absent") reasons.emplace_back(entry.status().message());
    return false;
  };
  bool from_pack = false;
  for (const StoreLayer& pack : packs_) {
    if (look_in(*pack.store) && !IsRemoved(key.digest, (*entry)->variant)) {
      from_pack = true;
      break;
    }
  }
  const bool found = from_pack || (user_.store != nullptr && look_in(*user_.store));
  {
    MutexLock lock(&mutex_);
    ++(found ? stats_.hits : stats_.misses);
    if (found) ++(from_pack ? stats_.pack_hits : stats_.disk_hits);
    if (!found && reasons.empty()) ++stats_.absent;
  }
  if (!found) {
    return absl::NotFoundError(reasons.empty() ? "absent" : absl::StrJoin(reasons, "; "));
  }
  memory_->Keep(*entry);
  return entry;
}

absl::Status LayeredStore::Put(const Entry& entry) {
  absl::Status status = memory_->Put(entry);
  return user_.store == nullptr ? status : user_.store->Put(entry);
}

absl::Status LayeredStore::Remove(const Digest& digest, std::string_view variant_hex) {
  if (!packs_.empty()) {
    MutexLock lock(&mutex_);
    removed_.emplace(digest, variant_hex);
  }
  absl::Status status = memory_->Remove(digest, variant_hex);
  return user_.store == nullptr ? status : user_.store->Remove(digest, variant_hex);
}

absl::StatusOr<std::vector<EntryInfo>> LayeredStore::List() {
  std::vector<EntryInfo> all;
  absl::flat_hash_set<std::pair<Digest, std::string>> on_disk;
  const auto add = [&](ArtifactStore& store) -> absl::Status {
    absl::StatusOr<std::vector<EntryInfo>> entries = store.List();
    if (!entries.ok()) return std::move(entries).status();
    for (EntryInfo& info : *entries) {
      on_disk.emplace(info.digest, info.variant_hex);
      all.push_back(std::move(info));
    }
    return absl::OkStatus();
  };
  for (const StoreLayer& pack : packs_) {
    if (absl::Status status = add(*pack.store); !status.ok()) return status;
  }
  if (user_.store != nullptr) {
    if (absl::Status status = add(*user_.store); !status.ok()) return status;
  }
  absl::StatusOr<std::vector<EntryInfo>> in_memory = memory_->List();
  if (!in_memory.ok()) return in_memory;
  for (EntryInfo& info : *in_memory) {
    if (!on_disk.contains(std::make_pair(info.digest, info.variant_hex))) {
      all.push_back(std::move(info));
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const EntryInfo& a, const EntryInfo& b) {
    return std::tie(a.digest, a.variant_hex) < std::tie(b.digest, b.variant_hex);
  });
  return all;
}

absl::StatusOr<Entry> LayeredStore::Read(const EntryInfo& info) {
  if (info.path.empty()) return memory_->Read(info);
  const auto lies_in = [&](const StoreLayer& layer) {
    return layer.store != nullptr && info.path.starts_with(layer.place + "/");
  };
  for (const StoreLayer& pack : packs_) {
    if (lies_in(pack)) return pack.store->Read(info);
  }
  if (lies_in(user_)) return user_.store->Read(info);
  return absl::NotFoundError(absl::StrCat(info.path, " lies in no layer of this store"));
}

StoreStats LayeredStore::Stats() { return Sum(&ArtifactStore::Stats); }

StoreStats LayeredStore::Counters() { return Sum(&ArtifactStore::Counters); }

StoreStats LayeredStore::Sum(StoreStats (ArtifactStore::*ask)()) {
  StoreStats stats;
  {
    MutexLock lock(&mutex_);
    stats = stats_;
  }
  const auto add_reading = [&](const StoreStats& layer) {
    stats.corrupt += layer.corrupt;
    stats.foreign += layer.foreign;
    stats.manifest_differs += layer.manifest_differs;
    stats.unreadable += layer.unreadable;
    stats.entries += layer.entries;
    stats.bytes += layer.bytes;
  };
  for (const StoreLayer& pack : packs_) add_reading((pack.store.get()->*ask)());
  ArtifactStore* const writing = user_.store != nullptr ? user_.store.get() : memory_.get();
  const StoreStats writer = (writing->*ask)();
  add_reading(writer);
  stats.publishes = writer.publishes;
  stats.publish_ms = writer.publish_ms;
  stats.publish_failures = writer.publish_failures;
  stats.evictions = writer.evictions;
  stats.lock_waits = writer.lock_waits;
  stats.lock_wait_ms = writer.lock_wait_ms;
  stats.lock_timeouts = writer.lock_timeouts;
  stats.warnings_suppressed = writer.warnings_suppressed;
  return stats;
}

void LayeredStore::AddToTotals(const Totals& more) {
  if (user_.store != nullptr) user_.store->AddToTotals(more);
}

Totals LayeredStore::ReadTotals() {
  return user_.store != nullptr ? user_.store->ReadTotals() : Totals{};
}

std::unique_ptr<ArtifactStore::KeyLock> LayeredStore::Lock(const Digest& digest, int timeout_ms) {
  return user_.store == nullptr ? nullptr : user_.store->Lock(digest, timeout_ms);
}

}  // namespace tilewright::cache
