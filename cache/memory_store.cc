#include "cache/memory_store.h"

#include <algorithm>
#include <utility>

#include "cache/entry_format.h"

namespace tilewright::cache {
namespace {

int64_t BytesOf(const Entry& entry) {
  size_t bytes = entry.manifest.size() + entry.variant.size();
  for (const Section& section : entry.sections) bytes += section.name.size() + section.bytes.size();
  return static_cast<int64_t>(bytes);
}

int64_t BytesOf(const std::vector<EntryPtr>& variants) {
  int64_t bytes = 0;
  for (const auto& entry : variants) bytes += BytesOf(*entry);
  return bytes;
}

}  // namespace

absl::StatusOr<EntryPtr> MemoryStore::Get(const EntryKey& key, std::string_view manifest) {
  MutexLock lock(&mutex_);
  bool other_manifest = false;
  if (const Variants* variants = entries_.Find(key.digest)) {
    for (const EntryPtr& entry : *variants) {
      if (key.variant.has_value() && entry->variant != *key.variant) continue;
      if (entry->manifest == manifest) {
        ++stats_.hits;
        return entry;
      }
      other_manifest = true;
    }
  }
  ++stats_.misses;
  ++(other_manifest ? stats_.manifest_differs : stats_.absent);
  return absl::NotFoundError(other_manifest ? "manifest differs" : "absent");
}

absl::Status MemoryStore::Put(const Entry& entry) {
  Keep(std::make_shared<const Entry>(entry));
  return absl::OkStatus();
}

void MemoryStore::Keep(EntryPtr entry) {
  const Digest digest = Sha256(entry->manifest);
  MutexLock lock(&mutex_);
  Variants variants;
  if (const Variants* present = entries_.Find(digest)) {
    for (const auto& other : *present) {
      if (other->variant != entry->variant) variants.push_back(other);
    }
  }
  variants.push_back(std::move(entry));
  const int64_t bytes = BytesOf(variants);
  stats_.evictions += entries_.Insert(digest, std::move(variants), bytes);
  ++stats_.publishes;
}

absl::Status MemoryStore::Remove(const Digest& digest, std::string_view variant_hex) {
  MutexLock lock(&mutex_);
  const Variants* present = entries_.Find(digest);
  if (present == nullptr) return absl::OkStatus();
  Variants rest;
  for (const auto& entry : *present) {
    if (VariantHex(entry->variant) != variant_hex) rest.push_back(entry);
  }
  if (rest.empty()) {
    entries_.Erase(digest);
  } else {
    const int64_t bytes = BytesOf(rest);
    entries_.Insert(digest, std::move(rest), bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<EntryInfo>> MemoryStore::List() {
  std::vector<EntryInfo> infos;
  {
    MutexLock lock(&mutex_);
    entries_.ForEach([&](const Digest& digest, const Variants& variants) {
      for (const auto& entry : variants) {
        infos.push_back({.digest = digest,
                         .variant_hex = VariantHex(entry->variant),
                         .bytes = BytesOf(*entry),
                         .mtime_s = 0,
                         .path = ""});
      }
    });
  }
  std::sort(infos.begin(), infos.end(), [](const EntryInfo& a, const EntryInfo& b) {
    return std::tie(a.digest, a.variant_hex) < std::tie(b.digest, b.variant_hex);
  });
  return infos;
}

absl::StatusOr<Entry> MemoryStore::Read(const EntryInfo& info) {
  MutexLock lock(&mutex_);
  if (const Variants* variants = entries_.Find(info.digest)) {
    for (const auto& entry : *variants) {
      if (VariantHex(entry->variant) == info.variant_hex) return *entry;
    }
  }
  return absl::NotFoundError("absent");
}

StoreStats MemoryStore::Stats() {
  MutexLock lock(&mutex_);
  StoreStats stats = stats_;
  stats.bytes = entries_.cost();
  entries_.ForEach([&](const Digest&, const Variants& variants) {
    stats.entries += static_cast<int64_t>(variants.size());
  });
  return stats;
}

std::unique_ptr<ArtifactStore::KeyLock> MemoryStore::Lock(const Digest&, int) { return nullptr; }

}  // namespace tilewright::cache
