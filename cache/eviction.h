// Keeps a store on disk within its bytes and free of leftovers (R26, R27).
#ifndef TILEWRIGHT_CACHE_EVICTION_H_
#define TILEWRIGHT_CACHE_EVICTION_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "cache/entry_format.h"
#include "cache/store_directory.h"

namespace tilewright::cache {

// One entry file as a scan of its directory found it.
struct StoredFile {
  std::string shard;  // two hex digits
  std::string name;
  EntryName id;
  FileInfo info;
};

// Names of the shards that exist, in ascending order.
std::vector<std::string> ListShards(const StoreDirectory& directory);

// Appends the entries of one shard, in no order. What cannot be read is left out.
void ListShard(const StoreDirectory& directory, const std::string& shard,
               std::vector<StoredFile>* files);

struct EvictionRequest {
  int64_t max_bytes = 0;        // of allocated blocks; 0: no limit
  int64_t unused_since_ns = 0;  // entries with an older stamp go in any case
  std::string keep = {};        // file name of an entry that must stay
  bool dry_run = false;
};

struct EvictionResult {
  int64_t removed_entries = 0;
  int64_t removed_bytes = 0;
  int64_t entries = 0;  // left
  int64_t bytes = 0;
};

// Removes files, the longest unused first, until the rest fits. A file whose stamp or identity has
// changed since it was listed is in use and stays.
EvictionResult Evict(const StoreDirectory& directory, std::vector<StoredFile> files,
                     const EvictionRequest& request);

// Removes the regular files of a directory for which `stale` holds; returns how many.
int64_t Sweep(const StoreDirectory& directory, const std::string& name, bool dry_run,
              const std::function<bool(const FileInfo&)>& stale);

}  // namespace tilewright::cache

#endif  // TILEWRIGHT_CACHE_EVICTION_H_
