#include "cache/eviction.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

namespace tilewright::cache {
namespace {

// As much as the clocks of hosts that share a store may differ.
constexpr int64_t kHourNs = int64_t{3600} * 1'000'000'000;

bool IsShardName(const std::string& name) {
  return name.size() == 2 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Whether the file went away, or would have.
bool RemoveUnchanged(FileSystem& file_system, FileSystem::Handle shard, const StoredFile& file,
                     bool dry_run) {
  if (dry_run) return true;
  FileInfo now;
  if (file_system.StatAt(shard, file.name, &now) != 0 || now.inode != file.info.inode ||
      now.mtime_ns != file.info.mtime_ns) {
    return false;
  }
  return file_system.Unlink(shard, file.name) == 0;
}

}  // namespace

std::vector<std::string> ListShards(const StoreDirectory& directory) {
  std::vector<std::string> shards;
  ScopedHandle keys;
  if (!directory.Open({"v1", "k"}, /*create=*/false, &keys).ok()) return shards;
  if (directory.file_system().List(keys.get(), &shards) != 0) shards.clear();
  shards.erase(std::remove_if(shards.begin(), shards.end(),
                              [](const std::string& name) { return !IsShardName(name); }),
               shards.end());
  std::sort(shards.begin(), shards.end());
  return shards;
}

void ListShard(const StoreDirectory& directory, const std::string& shard,
               std::vector<StoredFile>* files) {
  FileSystem& file_system = directory.file_system();
  ScopedHandle handle;
  std::vector<std::string> names;
  if (!directory.Open({"v1", "k", shard}, /*create=*/false, &handle).ok() ||
      file_system.List(handle.get(), &names) != 0) {
    return;
  }
  for (std::string& name : names) {
    std::optional<EntryName> id = ParseEntryFileName(name);
    FileInfo info;
    if (!id.has_value() || file_system.StatAt(handle.get(), name, &info) != 0 ||
        info.type != FileType::kRegular) {
      continue;
    }
    files->push_back({shard, std::move(name), *std::move(id), info});
  }
}

EvictionResult Evict(const StoreDirectory& directory, std::vector<StoredFile> files,
                     const EvictionRequest& request) {
  EvictionResult result;
  for (const StoredFile& file : files) result.bytes += file.info.allocated;
  result.entries = static_cast<int64_t>(files.size());
  // A stamp of the future was made by a wrong clock, and a use would have renewed it since: it is
  // the oldest, or it would outlive all that is in use.
  const int64_t latest = directory.file_system().NowNs() + kHourNs;
  const auto used_ns = [latest](const StoredFile& file) {
    return file.info.mtime_ns > latest ? std::numeric_limits<int64_t>::min() : file.info.mtime_ns;
  };
  // Ties in the order of names, so that two processes that evict at once choose the same files.
  std::sort(files.begin(), files.end(), [&](const StoredFile& a, const StoredFile& b) {
    return std::make_pair(used_ns(a), std::string_view(a.name)) <
           std::make_pair(used_ns(b), std::string_view(b.name));
  });
  ScopedHandle shard;
  std::string open_shard;
  for (const StoredFile& file : files) {
    const bool too_old = used_ns(file) < request.unused_since_ns;
    const bool too_much = request.max_bytes > 0 && result.bytes > request.max_bytes;
    if (!too_old && !too_much) break;
    if (file.name == request.keep) continue;
    if (file.shard != open_shard) {
      open_shard.clear();
      if (!directory.Open({"v1", "k", file.shard}, /*create=*/false, &shard).ok()) continue;
      open_shard = file.shard;
    }
    if (!RemoveUnchanged(directory.file_system(), shard.get(), file, request.dry_run)) continue;
    ++result.removed_entries;
    result.removed_bytes += file.info.allocated;
    --result.entries;
    result.bytes -= file.info.allocated;
  }
  return result;
}

int64_t Sweep(const StoreDirectory& directory, const std::string& name, bool dry_run,
              const std::function<bool(const FileInfo&)>& stale) {
  FileSystem& file_system = directory.file_system();
  ScopedHandle handle;
  std::vector<std::string> names;
  if (!directory.Open({"v1", name}, /*create=*/false, &handle).ok() ||
      file_system.List(handle.get(), &names) != 0) {
    return 0;
  }
  int64_t swept = 0;
  for (const std::string& file : names) {
    FileInfo info;
    if (file_system.StatAt(handle.get(), file, &info) != 0 || info.type != FileType::kRegular ||
        !stale(info)) {
      continue;
    }
    if (dry_run || file_system.Unlink(handle.get(), file) == 0) ++swept;
  }
  return swept;
}

}  // namespace tilewright::cache
