#include "cache/disk_store.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/elapsed.h"
#include "base/text.h"
#include "cache/entry_format.h"
#include "cache/eviction.h"
#include "cache/key_locks.h"
#include "cache/store_directory.h"

namespace tilewright::cache {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kHourNs = 3600 * kSecondNs;
constexpr int64_t kBadLifeNs = 7 * 24 * kHourNs;
constexpr int64_t kFirstPauseNs = 1 * kSecondNs;
constexpr int64_t kLongestPauseNs = 64 * kSecondNs;
constexpr size_t kMaxBadFiles = 32;
constexpr int64_t kShards = 256;
// From here on each shard keeps its own 1/256 of the bytes, which needs no look at the others.
// Smaller stores would lose entries for the unevenness of their shards; they are cheap to scan.
constexpr int64_t kMinShardLimit = int64_t{1} << 20;
// Nothing is published on a disk as full as this.
constexpr int64_t kMaxFreeFloor = int64_t{256} << 20;
constexpr int kFreeFloorDivisor = 20;

constexpr char kTotalsName[] = "totals";
constexpr int64_t kMaxTotalsBytes = 64 * 1024;
// Whoever holds the lock only rewrites a small file.
constexpr int kTotalsLockMs = 200;

// Why an entry did not serve. In ascending order of what is worth telling.
struct Miss {
  enum Kind { kNone, kAbsent, kUnreadable, kManifestDiffers, kForeign, kCorrupt };
  Kind kind = kNone;
  std::string text;
};

}  // namespace

struct DiskStore::Impl {
  Impl(const DiskStoreOptions& options, const Logger& logger, FileSystem* file_system)
      : options(options),
        logger(logger),
        fs(*file_system),
        directory(file_system, options.directory,
                  TrustRules{.root_may_own = options.read_only || options.pack,
                             .group_shared = options.group_shared,
                             .hard_links = options.pack}),
        locks(std::make_shared<KeyLocks>(directory)) {}

  bool writable() const { return !options.read_only && !options.pack; }

  // ---- reading
  // `use` renews the stamp that eviction looks at.
  Miss Load(FileSystem::Handle shard, const std::string& name, const EntryName& id, bool use,
            Entry* entry);
  Miss LoadFrom(const Digest& digest, const std::optional<std::string>& variant,
                std::string_view manifest, Entry* entry);
  Miss Missed(const Fault& fault, const std::string& path);
  Miss Corrupt(FileSystem::Handle shard, const std::string& name, const FileInfo& info,
               absl::string_view why);
  void MoveAside(FileSystem::Handle shard, const std::string& name, const FileInfo& info);
  void Count(const Miss& miss);

  // ---- writing
  Fault Publish(const std::string& shard_name, const std::string& name, const std::string& bytes);
  Fault WriteTemporary(FileSystem::Handle temporaries, const std::string& bytes, bool sync,
                       std::string* name);
  Fault CheckFreeSpace(FileSystem::Handle handle);
  Fault ReadTotals(Totals* totals);
  bool Holds(FileSystem::Handle shard, const std::string& name, const std::string& bytes);
  int64_t PausedFor();
  void PauseAfter(const Fault& fault);
  void KeepWithinBytes(const std::string& shard, const std::string& name, int64_t bytes);
  GcReport Collect(const EvictionRequest& request);
  int64_t SweepLeftovers(bool dry_run, bool all);

  std::string PathOf(const std::string& shard, const std::string& name) const {
    return absl::StrCat(options.directory, "/v1/k/", shard, "/", name);
  }

  const DiskStoreOptions options;
  const Logger logger;
  FileSystem& fs;
  const StoreDirectory directory;
  const std::shared_ptr<KeyLocks> locks;

  std::atomic<int64_t> hits{0};
  std::atomic<int64_t> misses{0};
  std::atomic<int64_t> absent{0};
  std::atomic<int64_t> corrupt{0};
  std::atomic<int64_t> foreign{0};
  std::atomic<int64_t> manifest_differs{0};
  std::atomic<int64_t> unreadable{0};
  std::atomic<int64_t> publishes{0};
  std::atomic<int64_t> publish_ns{0};
  std::atomic<int64_t> publish_failures{0};
  std::atomic<int64_t> evictions{0};

  std::atomic<int64_t> paused_at_ns{0};
  std::atomic<int64_t> pause_ns{0};  // 0: not paused
  std::atomic<int64_t> swept_at_ns{0};
  // Bytes published since the last scan of a small store; starts as if one were due.
  std::atomic<int64_t> unscanned_bytes{std::numeric_limits<int64_t>::max() / 2};
};

// ---- opening --------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<DiskStore>> DiskStore::Open(const DiskStoreOptions& options,
                                                           const Logger& logger,
                                                           FileSystem* file_system) {
  if (options.directory.empty() || options.directory[0] != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("store directory is \"", options.directory, "\"; it must be absolute"));
  }
  auto impl = std::make_unique<Impl>(options, logger, file_system);
  ScopedHandle handle;
  // A pack may be empty; the user's store is made ready as far as the version's directory, so that
  // a place that cannot be written is found now and not at the first publish.
  const std::vector<std::string> components =
      impl->writable() ? std::vector<std::string>{"v1"} : std::vector<std::string>{};
  if (const Fault fault = impl->directory.Open(components, impl->writable(), &handle);
      !fault.ok()) {
    return StatusOf(fault);
  }
  return std::unique_ptr<DiskStore>(new DiskStore(std::move(impl)));
}

DiskStore::DiskStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DiskStore::~DiskStore() = default;

const DiskStoreOptions& DiskStore::options() const { return impl_->options; }

absl::StatusOr<DirectoryFacts> DiskStore::Describe() const {
  ScopedHandle root;
  FileInfo info;
  SpaceInfo space;
  Fault fault = impl_->directory.Open({}, /*create=*/false, &root);
  if (fault.ok()) fault = FaultOf(impl_->fs.Stat(root.get(), &info), "stat");
  if (fault.ok()) fault = FaultOf(impl_->fs.Space(root.get(), &space), "statfs");
  if (!fault.ok()) return StatusOf(fault);
  DirectoryFacts facts;
  facts.file_system = FileSystemName(space.type, &facts.network);
  facts.total_bytes = space.total;
  facts.free_bytes = space.free;
  facts.owner = info.owner;
  facts.mode = info.mode;
  return facts;
}

// ---- reading --------------------------------------------------------------------------------

Miss DiskStore::Impl::Missed(const Fault& fault, const std::string& path) {
  switch (fault.kind) {
    case Fault::kNone:
      return {};
    case Fault::kAbsent:
      return {Miss::kAbsent, "absent"};
    case Fault::kForeign:
      logger.EventOnce(LogLevel::kWarning, "store_foreign", "store_foreign",
                       {{"path", path}, {"reason", fault.text}});
      return {Miss::kForeign, absl::StrCat("foreign: ", fault.text)};
    case Fault::kIo:
      break;
  }
  logger.EventOnce(LogLevel::kWarning, absl::StrCat("store_unreadable ", fault.error),
                   "store_unreadable", {{"path", path}, {"reason", fault.text}});
  return {Miss::kUnreadable, absl::StrCat("unreadable: ", fault.text)};
}

Miss DiskStore::Impl::Corrupt(FileSystem::Handle shard, const std::string& name,
                              const FileInfo& info, absl::string_view why) {
  logger.EventOnce(LogLevel::kWarning, "store_corrupt", "store_corrupt",
                   {{"path", PathOf(name.substr(0, 2), name)}, {"reason", why}});
  if (writable()) MoveAside(shard, name, info);
  return {Miss::kCorrupt, absl::StrCat("corrupt: ", why)};
}

void DiskStore::Impl::MoveAside(FileSystem::Handle shard, const std::string& name,
                                const FileInfo& info) {
  FileInfo now;
  // Another process may have put a good entry in its place meanwhile.
  if (fs.StatAt(shard, name, &now) != 0 || now.inode != info.inode) return;
  ScopedHandle bad;
  std::vector<std::string> names;
  const bool kept = directory.Open({"v1", "bad"}, /*create=*/true, &bad).ok() &&
                    fs.List(bad.get(), &names) == 0 && names.size() < kMaxBadFiles &&
                    fs.Rename(shard, name, bad.get(), absl::StrCat(name, ".bad")) == 0;
  // Where it can be neither moved nor removed it stays a miss.
  if (!kept) (void)fs.Unlink(shard, name);
}

Miss DiskStore::Impl::Load(FileSystem::Handle shard, const std::string& name, const EntryName& id,
                           bool use, Entry* entry) {
  const std::string path = PathOf(name.substr(0, 2), name);
  FileSystem::Handle handle = FileSystem::kInvalid;
  if (const int error = fs.OpenFile(shard, name, &handle); error != 0) {
    return Missed(FaultOf(error, error == ELOOP ? "symbolic link" : "open"), path);
  }
  ScopedHandle file(&fs, handle);
  FileInfo info;
  if (const Fault fault = directory.CheckFile(handle, &info); !fault.ok()) {
    return Missed(fault, path);
  }
  if (info.size > kMaxEntryBytes) {
    return Corrupt(shard, name, info,
                   absl::StrCat("length: ", info.size, " bytes, at most ", kMaxEntryBytes));
  }
  // Into memory and not mapped: a file that another host truncates must not raise SIGBUS.
  std::string bytes;
  if (const int error = ReadExactly(fs, handle, static_cast<size_t>(info.size), &bytes);
      error != 0) {
    return Missed(FaultOf(error, "read"), path);
  }
  absl::StatusOr<Entry> parsed = ParseEntry(bytes);
  if (!parsed.ok()) return Corrupt(shard, name, info, parsed.status().message());
  if (Sha256(parsed->manifest) != id.digest || VariantHex(parsed->variant) != id.variant_hex) {
    return Corrupt(shard, name, info, "name: the entry is that of another key or variant");
  }
  *entry = *std::move(parsed);
  if (use && writable()) {
    // The stamp is for eviction only. A failure (a foreign file of a shared store) costs nothing.
    const int64_t age = fs.NowNs() - info.mtime_ns;
    if (age > kHourNs || age < -kHourNs) (void)fs.Touch(shard, name);
  }
  return {};
}

Miss DiskStore::Impl::LoadFrom(const Digest& digest, const std::optional<std::string>& variant,
                               std::string_view manifest, Entry* entry) {
  const std::string shard_name = ShardOf(digest);
  ScopedHandle shard;
  if (const Fault fault = directory.Open({"v1", "k", shard_name}, /*create=*/false, &shard);
      !fault.ok()) {
    Miss miss = Missed(fault, options.directory);
    Count(miss);
    return miss;
  }
  std::vector<std::string> names;
  if (variant.has_value()) {
    names.push_back(EntryFileName(digest, VariantHex(*variant)));
  } else {
    if (const int error = fs.List(shard.get(), &names); error != 0) {
      Miss miss = Missed(FaultOf(error, "list"), options.directory);
      Count(miss);
      return miss;
    }
    std::sort(names.begin(), names.end());
  }
  Miss worst = {Miss::kAbsent, "absent"};
  bool tried = false;
  for (const std::string& name : names) {
    const std::optional<EntryName> id = ParseEntryFileName(name);
    if (!id.has_value() || id->digest != digest) continue;
    tried = true;
    Miss miss = Load(shard.get(), name, *id, /*use=*/true, entry);
    if (miss.kind == Miss::kNone && entry->manifest != manifest) {
      miss = {Miss::kManifestDiffers, "manifest differs"};
    }
    if (miss.kind == Miss::kNone && variant.has_value() && entry->variant != *variant) {
      miss = {Miss::kManifestDiffers, "variant differs"};
    }
    if (miss.kind == Miss::kNone) return miss;
    Count(miss);
    if (miss.kind > worst.kind) worst = std::move(miss);
  }
  if (!tried) Count(worst);
  return worst;
}

void DiskStore::Impl::Count(const Miss& miss) {
  switch (miss.kind) {
    case Miss::kNone:
      return;
    case Miss::kAbsent:
      ++absent;
      return;
    case Miss::kUnreadable:
      ++unreadable;
      return;
    case Miss::kManifestDiffers:
      ++manifest_differs;
      return;
    case Miss::kForeign:
      ++foreign;
      return;
    case Miss::kCorrupt:
      ++corrupt;
      return;
  }
}

absl::StatusOr<EntryPtr> DiskStore::Get(const EntryKey& key, std::string_view manifest) {
  auto entry = std::make_shared<Entry>();
  const Miss miss = impl_->LoadFrom(key.digest, key.variant, manifest, entry.get());
  if (miss.kind == Miss::kNone) {
    ++impl_->hits;
    return entry;
  }
  ++impl_->misses;
  return absl::NotFoundError(miss.text);
}

absl::StatusOr<Entry> DiskStore::Read(const EntryInfo& info) {
  const std::string shard_name = ShardOf(info.digest);
  ScopedHandle shard;
  if (const Fault fault = impl_->directory.Open({"v1", "k", shard_name}, /*create=*/false, &shard);
      !fault.ok()) {
    return absl::NotFoundError(fault.text);
  }
  Entry entry;
  const Miss miss = impl_->Load(shard.get(), EntryFileName(info.digest, info.variant_hex),
                                EntryName{info.digest, info.variant_hex}, /*use=*/false, &entry);
  impl_->Count(miss);
  if (miss.kind == Miss::kNone) return entry;
  if (miss.kind == Miss::kCorrupt) return absl::DataLossError(miss.text);
  return absl::NotFoundError(miss.text);
}

absl::StatusOr<std::vector<EntryInfo>> DiskStore::List() {
  std::vector<StoredFile> files;
  for (const std::string& shard : ListShards(impl_->directory)) {
    ListShard(impl_->directory, shard, &files);
  }
  std::sort(files.begin(), files.end(),
            [](const StoredFile& a, const StoredFile& b) { return a.name < b.name; });
  std::vector<EntryInfo> entries;
  entries.reserve(files.size());
  for (const StoredFile& file : files) {
    entries.push_back({.digest = file.id.digest,
                       .variant_hex = file.id.variant_hex,
                       .bytes = file.info.size,
                       .mtime_s = file.info.mtime_ns / kSecondNs,
                       .path = impl_->PathOf(file.shard, file.name)});
  }
  return entries;
}

StoreStats DiskStore::Counters() {
  StoreStats stats;
  stats.hits = impl_->hits;
  stats.misses = impl_->misses;
  stats.absent = impl_->absent;
  stats.corrupt = impl_->corrupt;
  stats.foreign = impl_->foreign;
  stats.manifest_differs = impl_->manifest_differs;
  stats.unreadable = impl_->unreadable;
  stats.publishes = impl_->publishes;
  stats.publish_ms = static_cast<double>(impl_->publish_ns) * 1e-6;
  stats.publish_failures = impl_->publish_failures;
  stats.evictions = impl_->evictions;
  const LockStats locks = impl_->locks->stats();
  stats.lock_waits = locks.waits;
  stats.lock_wait_ms = locks.wait_ms;
  stats.lock_timeouts = locks.timeouts;
  stats.warnings_suppressed = impl_->logger.suppressed();
  return stats;
}

StoreStats DiskStore::Stats() {
  StoreStats stats = Counters();
  std::vector<StoredFile> files;
  for (const std::string& shard : ListShards(impl_->directory)) {
    ListShard(impl_->directory, shard, &files);
  }
  stats.entries = static_cast<int64_t>(files.size());
  for (const StoredFile& file : files) stats.bytes += file.info.allocated;
  return stats;
}

// ---- writing --------------------------------------------------------------------------------

int64_t DiskStore::Impl::PausedFor() {
  const int64_t pause = pause_ns;
  const int64_t since = fs.NowNs() - paused_at_ns;
  // A clock that was set back ends the pause rather than prolonging it.
  return pause > 0 && since >= 0 && since < pause ? pause - since : 0;
}

void DiskStore::Impl::PauseAfter(const Fault& fault) {
  if (fault.error != ENOSPC && fault.error != EDQUOT && fault.error != EROFS) return;
  pause_ns = std::clamp(2 * pause_ns.load(), kFirstPauseNs, kLongestPauseNs);
  paused_at_ns = fs.NowNs();
}

Fault DiskStore::Impl::CheckFreeSpace(FileSystem::Handle handle) {
  SpaceInfo space;
  // Without an answer the write itself will tell.
  if (fs.Space(handle, &space) != 0) return {};
  const int64_t floor = std::min(space.total / kFreeFloorDivisor, kMaxFreeFloor);
  if (space.free >= floor) return {};
  return FaultOf(ENOSPC, absl::StrCat("disk has ", space.free, " bytes free, fewer than ", floor));
}

bool DiskStore::Impl::Holds(FileSystem::Handle shard, const std::string& name,
                            const std::string& bytes) {
  FileSystem::Handle handle = FileSystem::kInvalid;
  if (fs.OpenFile(shard, name, &handle) != 0) return false;
  ScopedHandle file(&fs, handle);
  FileInfo info;
  std::string present;
  return directory.CheckFile(handle, &info).ok() &&
         info.size == static_cast<int64_t>(bytes.size()) &&
         ReadExactly(fs, handle, bytes.size(), &present) == 0 && present == bytes;
}

Fault DiskStore::Impl::WriteTemporary(FileSystem::Handle temporaries, const std::string& bytes,
                                      bool sync, std::string* name) {
  *name = RandomName();
  FileSystem::Handle handle = FileSystem::kInvalid;
  if (const int error = fs.CreateFile(temporaries, *name, directory.file_mode(), &handle);
      error != 0) {
    return FaultOf(error, "create temporary");
  }
  ScopedHandle file(&fs, handle);
  int error = WriteAll(fs, handle, bytes);
  const char* step = "write";
  if (error == 0 && sync) {
    error = SyncIfSupported(fs, handle);
    step = "sync";
  }
  // NFS reports what it could not write when the file is closed.
  const int close_error = file.Close();
  if (error == 0 && close_error != 0) {
    error = close_error;
    step = "close";
  }
  if (error != 0) (void)fs.Unlink(temporaries, *name);
  return FaultOf(error, step);
}

Fault DiskStore::Impl::Publish(const std::string& shard_name, const std::string& name,
                               const std::string& bytes) {
  ScopedHandle shard;
  ScopedHandle temporaries;
  Fault fault = directory.Open({"v1", "k", shard_name}, /*create=*/true, &shard);
  if (!fault.ok()) return fault;
  if (Holds(shard.get(), name, bytes)) return {};
  fault = directory.Open({"v1", "tmp"}, /*create=*/true, &temporaries);
  if (!fault.ok()) return fault;
  fault = CheckFreeSpace(temporaries.get());
  if (!fault.ok()) return fault;
  std::string temporary;
  fault = WriteTemporary(temporaries.get(), bytes, /*sync=*/true, &temporary);
  if (!fault.ok()) return fault;
  if (const int error = fs.Rename(temporaries.get(), temporary, shard.get(), name); error != 0) {
    (void)fs.Unlink(temporaries.get(), temporary);
    return FaultOf(error, "rename");
  }
  // The entry is whole and visible by now; that it may not survive a power cut is no failure.
  if (const int error = SyncIfSupported(fs, shard.get()); error != 0) {
    logger.EventOnce(LogLevel::kWarning, "store_sync", "store_sync_failed",
                     {{"path", PathOf(shard_name, name)}, {"reason", ErrnoText(error)}});
  }
  return {};
}

absl::Status DiskStore::Put(const Entry& entry) {
  Impl& impl = *impl_;
  if (!impl.writable()) {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", impl.options.directory, " is read-only"));
  }
  if (const int64_t pause = impl.PausedFor(); pause > 0) {
    ++impl.publish_failures;
    return absl::UnavailableError(absl::StrCat("store ", impl.options.directory,
                                               " could not be written and is left alone for ",
                                               pause / 1'000'000, " ms"));
  }
  absl::StatusOr<std::string> bytes = SerializeEntry(entry);
  if (!bytes.ok()) {
    ++impl.publish_failures;
    return std::move(bytes).status();
  }
  const auto start = std::chrono::steady_clock::now();
  const Digest digest = Sha256(entry.manifest);
  const std::string shard = ShardOf(digest);
  const std::string name = EntryFileName(digest, VariantHex(entry.variant));
  Fault fault = impl.Publish(shard, name, *bytes);
  // A directory went away meanwhile (a cleaner, `cache clear`): once more, which makes it again.
  if (fault.kind == Fault::kAbsent) fault = impl.Publish(shard, name, *bytes);
  if (!fault.ok()) {
    ++impl.publish_failures;
    impl.PauseAfter(fault);
    impl.logger.EventOnce(LogLevel::kWarning, absl::StrCat("store_publish ", fault.error),
                          "store_publish_failed",
                          {{"path", impl.PathOf(shard, name)}, {"reason", fault.text}});
    return StatusOf(fault);
  }
  impl.pause_ns = 0;
  impl.KeepWithinBytes(shard, name, static_cast<int64_t>(bytes->size()));
  ++impl.publishes;
  impl.publish_ns += static_cast<int64_t>(MillisecondsSince(start) * 1e6);
  return absl::OkStatus();
}

void DiskStore::Impl::KeepWithinBytes(const std::string& shard, const std::string& name,
                                      int64_t bytes) {
  const int64_t now = fs.NowNs();
  const int64_t swept = swept_at_ns.exchange(now);
  if (now - swept > kHourNs || now < swept) {
    SweepLeftovers(/*dry_run=*/false, /*all=*/false);
  } else {
    swept_at_ns = swept;
  }
  if (options.max_bytes <= 0) return;
  const int64_t shard_limit = options.max_bytes / kShards;
  if (shard_limit >= kMinShardLimit) {
    std::vector<StoredFile> files;
    ListShard(directory, shard, &files);
    evictions += Evict(directory, std::move(files), {.max_bytes = shard_limit, .keep = name})
                     .removed_entries;
    return;
  }
  if (unscanned_bytes.fetch_add(bytes) + bytes <= options.max_bytes / 20) return;
  unscanned_bytes = 0;
  Collect({.max_bytes = options.max_bytes, .keep = name});
}

absl::Status DiskStore::Remove(const Digest& digest, std::string_view variant_hex) {
  if (!impl_->writable()) {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", impl_->options.directory, " is read-only"));
  }
  ScopedHandle shard;
  Fault fault = impl_->directory.Open({"v1", "k", ShardOf(digest)}, /*create=*/false, &shard);
  if (fault.ok()) {
    fault = FaultOf(impl_->fs.Unlink(shard.get(), EntryFileName(digest, variant_hex)), "unlink");
  }
  return fault.kind == Fault::kAbsent ? absl::OkStatus() : StatusOf(fault);
}

std::unique_ptr<ArtifactStore::KeyLock> DiskStore::Lock(const Digest& digest, int timeout_ms) {
  if (!impl_->writable()) return nullptr;
  return impl_->locks->Lock(digest, timeout_ms);
}

// ---- totals ---------------------------------------------------------------------------------

// No fault where there are none yet, or what there is cannot be the sums: they begin anew.
Fault DiskStore::Impl::ReadTotals(Totals* totals) {
  totals->clear();
  ScopedHandle version;
  if (const Fault fault = directory.Open({"v1"}, /*create=*/false, &version); !fault.ok()) {
    return fault.error == ENOENT ? Fault{} : fault;
  }
  FileSystem::Handle handle = FileSystem::kInvalid;
  if (const int error = fs.OpenFile(version.get(), kTotalsName, &handle); error != 0) {
    const Fault fault = FaultOf(error, "open totals");
    return error == ENOENT || fault.kind == Fault::kForeign ? Fault{} : fault;
  }
  const ScopedHandle file(&fs, handle);
  FileInfo info;
  if (const Fault fault = directory.CheckFile(handle, &info); !fault.ok()) {
    return fault.kind == Fault::kForeign ? Fault{} : fault;
  }
  if (info.size > kMaxTotalsBytes) return {};
  std::string text;
  if (const int error = ReadExactly(fs, handle, static_cast<size_t>(info.size), &text);
      error != 0) {
    return FaultOf(error, "read totals");
  }
  *totals = ParseTotals(text).value_or(Totals{});
  return {};
}

Totals DiskStore::ReadTotals() {
  Totals totals;
  return impl_->ReadTotals(&totals).ok() ? totals : Totals{};
}

void DiskStore::AddToTotals(const Totals& more) {
  Impl& impl = *impl_;
  if (!impl.writable() || more.empty()) return;
  const std::unique_ptr<KeyLock> lock = impl.locks->Lock(Sha256(kTotalsName), kTotalsLockMs);
  if (lock == nullptr) return;
  Totals sum;
  // What cannot be read now may be there tomorrow: better to lose these counts than all before.
  if (!impl.ReadTotals(&sum).ok()) return;
  Accumulate(more, &sum);
  ScopedHandle version;
  ScopedHandle temporaries;
  std::string temporary;
  // Not synced: a process must not wait for the disk at its end for the sake of statistics. What a
  // power cut leaves does not parse, or has fewer lines, and those sums begin anew.
  if (!impl.directory.Open({"v1"}, /*create=*/true, &version).ok() ||
      !impl.directory.Open({"v1", "tmp"}, /*create=*/true, &temporaries).ok() ||
      !impl.WriteTemporary(temporaries.get(), SerializeTotals(sum), /*sync=*/false, &temporary)
           .ok()) {
    return;
  }
  if (impl.fs.Rename(temporaries.get(), temporary, version.get(), kTotalsName) != 0) {
    (void)impl.fs.Unlink(temporaries.get(), temporary);
  }
}

// ---- collecting -----------------------------------------------------------------------------

int64_t DiskStore::Impl::SweepLeftovers(bool dry_run, bool all) {
  const int64_t now = fs.NowNs();
  // Stamps of the future too: a clock that was wrong must not keep them for years.
  return Sweep(
             directory, "tmp", dry_run,
             [&](const FileInfo& info) { return all || std::abs(now - info.mtime_ns) > kHourNs; }) +
         Sweep(directory, "bad", dry_run, [&](const FileInfo& info) {
           return all || std::abs(now - info.ctime_ns) > kBadLifeNs;
         });
}

GcReport DiskStore::Impl::Collect(const EvictionRequest& request) {
  GcReport report;
  std::unique_ptr<KeyLock> lock;
  if (!request.dry_run) {
    lock = locks->LockForGc();
    if (lock == nullptr) return report;
  }
  report.ran = true;
  report.swept_files = SweepLeftovers(request.dry_run, /*all=*/false);
  std::vector<StoredFile> files;
  for (const std::string& shard : ListShards(directory)) ListShard(directory, shard, &files);
  const EvictionResult result = Evict(directory, std::move(files), request);
  report.removed_entries = result.removed_entries;
  report.removed_bytes = result.removed_bytes;
  report.entries = result.entries;
  report.bytes = result.bytes;
  if (!request.dry_run) evictions += result.removed_entries;
  return report;
}

absl::StatusOr<GcReport> DiskStore::Gc(const GcOptions& options) {
  if (!impl_->writable() && !options.dry_run) {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", impl_->options.directory, " is read-only"));
  }
  EvictionRequest request;
  request.max_bytes = options.max_bytes;
  request.dry_run = options.dry_run;
  if (options.older_than_s >= 0) {
    request.unused_since_ns = impl_->fs.NowNs() - options.older_than_s * kSecondNs;
  }
  return impl_->Collect(request);
}

absl::StatusOr<GcReport> DiskStore::Clear() {
  if (!impl_->writable()) {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", impl_->options.directory, " is read-only"));
  }
  GcReport report;
  report.ran = true;
  report.swept_files = impl_->SweepLeftovers(/*dry_run=*/false, /*all=*/true);
  std::vector<StoredFile> files;
  for (const std::string& shard : ListShards(impl_->directory)) {
    ListShard(impl_->directory, shard, &files);
  }
  const EvictionResult result = Evict(impl_->directory, std::move(files),
                                      {.unused_since_ns = std::numeric_limits<int64_t>::max()});
  report.removed_entries = result.removed_entries;
  report.removed_bytes = result.removed_bytes;
  report.entries = result.entries;
  report.bytes = result.bytes;
  return report;
}

}  // namespace tilewright::cache
