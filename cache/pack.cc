#include "cache/pack.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/text.h"
#include "cache/store_directory.h"

namespace tilewright::cache {
namespace {

constexpr std::string_view kMagic("\x89TWP\r\n\x1a\n", 8);
constexpr absl::string_view kTitle = "tilewright pack 1";
constexpr size_t kCheckBytes = 32;
// A million entries; a damaged length must not exhaust memory.
constexpr uint64_t kMaxManifestBytes = uint64_t{256} << 20;
constexpr int64_t kSecondNs = 1'000'000'000;

absl::Status Damaged(absl::string_view what) { return absl::DataLossError(what); }

void AppendU64(uint64_t value, std::string* out) {
  for (int i = 0; i < 8; ++i) out->push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

uint64_t ReadU64(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) value |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  return value;
}

std::string_view BytesOf(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()};
}

std::string MakeHeader(const std::vector<PackedEntry>& entries, PackSummary* summary) {
  std::string manifest = absl::StrCat(kTitle, "\n");
  int64_t entry_bytes = 0;
  for (const PackedEntry& entry : entries) {
    absl::StrAppend(&manifest, EntryFileName(entry.name.digest, entry.name.variant_hex), " ",
                    entry.bytes, " ", entry.sha256.ToHex(), "\n");
    entry_bytes += entry.bytes;
  }
  const size_t header_bytes = kPackPrefixBytes + manifest.size() + kCheckBytes;
  summary->digest = Sha256(manifest);
  summary->entries = static_cast<int64_t>(entries.size());
  summary->bytes = static_cast<int64_t>(header_bytes) + entry_bytes;
  std::string header(kMagic);
  AppendU64(static_cast<uint64_t>(summary->bytes), &header);
  AppendU64(manifest.size(), &header);
  header += manifest;
  header += BytesOf(Sha256(header));
  return header;
}

// One line of a manifest, exactly as MakeHeader writes it.
std::optional<PackedEntry> ParseLine(absl::string_view line) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  if (words.size() != 3) return std::nullopt;
  const std::optional<EntryName> name = ParseEntryFileName(StdView(words[0]));
  const std::optional<Digest> sha256 = Digest::FromHex(StdView(words[2]));
  PackedEntry entry;
  if (!name.has_value() || !sha256.has_value() || !absl::SimpleAtoi(words[1], &entry.bytes) ||
      entry.bytes <= 0 || entry.bytes > kMaxEntryBytes || absl::StrCat(entry.bytes) != words[1] ||
      sha256->ToHex() != words[2] || EntryFileName(name->digest, name->variant_hex) != words[0]) {
    return std::nullopt;
  }
  entry.name = *name;
  entry.sha256 = *sha256;
  return entry;
}

auto OrderOf(const EntryInfo& info) { return std::tie(info.digest, info.variant_hex); }

absl::Status FileError(int error, absl::string_view what, const std::string& path) {
  const std::string text = absl::StrCat(path, ": ", what, ": ", ErrnoText(error));
  if (error == ENOENT) return absl::NotFoundError(text);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(text);
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(text);
  return absl::UnavailableError(text);
}

std::pair<std::string, std::string> SplitPath(const std::string& path) {
  const std::filesystem::path whole(path);
  return {whole.parent_path().string(), whole.filename().string()};
}

// Writes header and entries to an open file.
absl::Status WriteContents(ArtifactStore& from, const std::vector<EntryInfo>& infos,
                           const std::vector<PackedEntry>& packed, const std::string& header,
                           const std::string& path, FileSystem& file_system,
                           FileSystem::Handle file) {
  if (const int error = WriteAll(file_system, file, header); error != 0) {
    return FileError(error, "write", path);
  }
  for (size_t i = 0; i < infos.size(); ++i) {
    const absl::StatusOr<Entry> entry = from.Read(infos[i]);
    if (!entry.ok()) return entry.status();
    const absl::StatusOr<std::string> bytes = SerializeEntry(*entry);
    if (!bytes.ok()) return bytes.status();
    if (Sha256(*bytes) != packed[i].sha256) {
      return absl::DataLossError(
          absl::StrCat(infos[i].digest.ToHex(), ": the entry was replaced while it was packed"));
    }
    if (const int error = WriteAll(file_system, file, *bytes); error != 0) {
      return FileError(error, "write", path);
    }
  }
  const int error = SyncIfSupported(file_system, file);
  return error == 0 ? absl::OkStatus() : FileError(error, "sync", path);
}

}  // namespace

absl::StatusOr<size_t> PackHeaderBytes(std::string_view prefix, int64_t file_bytes) {
  if (prefix.size() < kPackPrefixBytes || prefix.substr(0, kMagic.size()) != kMagic) {
    return Damaged("magic: not a pack of kernels");
  }
  const uint64_t length = ReadU64(prefix.substr(8));
  if (length != static_cast<uint64_t>(file_bytes)) {
    return Damaged(absl::StrCat("length: ", file_bytes, " bytes, its header says ", length));
  }
  const uint64_t manifest = ReadU64(prefix.substr(16));
  if (manifest > kMaxManifestBytes || kPackPrefixBytes + manifest + kCheckBytes > length) {
    return Damaged(absl::StrCat("length: a manifest of ", manifest, " bytes"));
  }
  return kPackPrefixBytes + manifest + kCheckBytes;
}

absl::StatusOr<PackIndex> ParsePackHeader(std::string_view header, int64_t file_bytes) {
  const absl::StatusOr<size_t> header_bytes = PackHeaderBytes(header, file_bytes);
  if (!header_bytes.ok()) return header_bytes.status();
  if (header.size() != *header_bytes) return Damaged("length: of the header");
  const std::string_view checked = header.substr(0, header.size() - kCheckBytes);
  if (header.substr(checked.size()) != BytesOf(Sha256(checked))) {
    return Damaged("digest: the header does not have the SHA-256 that it ends with");
  }
  const std::string_view manifest = checked.substr(kPackPrefixBytes);
  if (manifest.empty() || manifest.back() != '\n') return Damaged("manifest: has no last line");
  PackIndex index;
  index.digest = Sha256(manifest);
  int64_t offset = static_cast<int64_t>(header.size());
  bool first = true;
  for (const absl::string_view line :
       absl::StrSplit(AbslView(manifest.substr(0, manifest.size() - 1)), '\n')) {
    if (std::exchange(first, false)) {
      if (line != kTitle) return Damaged("manifest: of another version of the format");
      continue;
    }
    std::optional<PackedEntry> entry = ParseLine(line);
    if (!entry.has_value()) {
      return Damaged(absl::StrCat("manifest: line ", index.entries.size() + 2));
    }
    if (!index.entries.empty()) {
      const EntryName& before = index.entries.back().name;
      if (std::tie(before.digest, before.variant_hex) >=
          std::tie(entry->name.digest, entry->name.variant_hex)) {
        return Damaged("manifest: not in ascending order");
      }
    }
    if (entry->bytes > file_bytes - offset) return Damaged("manifest: entries beyond the end");
    entry->offset = offset;
    offset += entry->bytes;
    index.entries.push_back(*std::move(entry));
  }
  if (offset != file_bytes) return Damaged("manifest: bytes that belong to no entry");
  return index;
}

absl::StatusOr<PackSummary> WritePack(ArtifactStore& from, std::vector<EntryInfo> entries,
                                      const std::string& path, FileSystem* file_system) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const EntryInfo& a, const EntryInfo& b) { return OrderOf(a) < OrderOf(b); });
  entries.erase(
      std::unique(entries.begin(), entries.end(),
                  [](const EntryInfo& a, const EntryInfo& b) { return OrderOf(a) == OrderOf(b); }),
      entries.end());
  // Twice through the store rather than once with everything in memory.
  std::vector<PackedEntry> packed;
  for (const EntryInfo& info : entries) {
    const absl::StatusOr<Entry> entry = from.Read(info);
    if (!entry.ok()) return entry.status();
    const absl::StatusOr<std::string> bytes = SerializeEntry(*entry);
    if (!bytes.ok()) return bytes.status();
    packed.push_back({.name = {info.digest, info.variant_hex},
                      .offset = 0,
                      .bytes = static_cast<int64_t>(bytes->size()),
                      .sha256 = Sha256(*bytes)});
  }
  PackSummary summary;
  const std::string header = MakeHeader(packed, &summary);

  const auto [folder, name] = SplitPath(path);
  const std::string parent = WithoutLinks(folder);
  FileSystem::Handle handle = FileSystem::kInvalid;
  if (const int error = file_system->OpenRoot(parent, &handle); error != 0) {
    return FileError(error, "open", parent);
  }
  const ScopedHandle directory(file_system, handle);
  const std::string temporary = absl::StrCat(".", name, ".", RandomName());
  if (const int error = file_system->CreateFile(directory.get(), temporary, 0644, &handle);
      error != 0) {
    return FileError(error, "create a file", parent);
  }
  ScopedHandle file(file_system, handle);
  absl::Status status =
      WriteContents(from, entries, packed, header, path, *file_system, file.get());
  if (const int error = file.Close(); error != 0 && status.ok()) {
    status = FileError(error, "close", path);
  }
  if (status.ok()) {
    if (const int error = file_system->Rename(directory.get(), temporary, directory.get(), name);
        error != 0) {
      status = FileError(error, "rename", path);
    }
  }
  if (!status.ok()) {
    (void)file_system->Unlink(directory.get(), temporary);
    return status;
  }
  if (const int error = SyncIfSupported(*file_system, directory.get()); error != 0) {
    return FileError(error, "sync", parent);
  }
  return summary;
}

absl::Status PackStore::TakeIndex(PackIndex index, absl::Span<const Digest> pins) {
  if (!pins.empty() && std::find(pins.begin(), pins.end(), index.digest) == pins.end()) {
    return absl::PermissionDeniedError(
        absl::StrCat(place_, ": the pack's digest is ", index.digest.ToHex(),
                     ", which is not the pinned one (", pins.front().ToHex(), ")"));
  }
  index_ = std::move(index);
  for (size_t i = 0; i < index_.entries.size(); ++i) {
    by_digest_[index_.entries[i].name.digest].push_back(i);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PackStore>> PackStore::Open(const std::string& path,
                                                           absl::Span<const Digest> pins,
                                                           const Logger& logger,
                                                           FileSystem* file_system) {
  const auto [parent, name] = SplitPath(WithoutLinks(path));
  FileSystem::Handle handle = FileSystem::kInvalid;
  if (const int error = file_system->OpenRoot(parent, &handle); error != 0) {
    return FileError(error, "open", path);
  }
  const ScopedHandle directory(file_system, handle);
  if (const int error = file_system->OpenFile(directory.get(), name, &handle); error != 0) {
    return FileError(error, "open", path);
  }
  std::unique_ptr<PackStore> store(new PackStore(path, logger));
  store->file_system_ = file_system;
  store->file_ = ScopedHandle(file_system, handle);
  const StoreDirectory rules(file_system, parent, {.root_may_own = true, .hard_links = true});
  FileInfo info;
  const Fault fault = rules.CheckFile(handle, &info);
  if (fault.kind == Fault::kIo || fault.kind == Fault::kAbsent || info.type != FileType::kRegular) {
    return absl::UnavailableError(absl::StrCat(path, ": ", fault.text));
  }
  // The digest that is pinned says who made it, better than the owner does.
  if (!fault.ok() && pins.empty()) {
    return absl::PermissionDeniedError(absl::StrCat(path, ": ", fault.text));
  }
  store->mtime_s_ = info.mtime_ns / kSecondNs;
  std::string header;
  const size_t prefix = std::min<size_t>(kPackPrefixBytes, static_cast<size_t>(info.size));
  if (const int error = ReadExactlyAt(*file_system, handle, 0, prefix, &header); error != 0) {
    return FileError(error, "read", path);
  }
  const absl::StatusOr<size_t> header_bytes = PackHeaderBytes(header, info.size);
  if (!header_bytes.ok()) {
    return Damaged(absl::StrCat(path, ": ", header_bytes.status().message()));
  }
  if (const int error = ReadExactlyAt(*file_system, handle, 0, *header_bytes, &header);
      error != 0) {
    return FileError(error, "read", path);
  }
  absl::StatusOr<PackIndex> index = ParsePackHeader(header, info.size);
  if (!index.ok()) return Damaged(absl::StrCat(path, ": ", index.status().message()));
  if (absl::Status status = store->TakeIndex(*std::move(index), pins); !status.ok()) return status;
  return store;
}

absl::StatusOr<std::unique_ptr<PackStore>> PackStore::OpenBytes(std::string_view bytes,
                                                                const std::string& place,
                                                                absl::Span<const Digest> pins,
                                                                const Logger& logger) {
  const auto size = static_cast<int64_t>(bytes.size());
  const absl::StatusOr<size_t> header_bytes = PackHeaderBytes(bytes, size);
  if (!header_bytes.ok()) {
    return Damaged(absl::StrCat(place, ": ", header_bytes.status().message()));
  }
  absl::StatusOr<PackIndex> index = ParsePackHeader(bytes.substr(0, *header_bytes), size);
  if (!index.ok()) return Damaged(absl::StrCat(place, ": ", index.status().message()));
  std::unique_ptr<PackStore> store(new PackStore(place, logger));
  store->bytes_ = bytes;
  if (absl::Status status = store->TakeIndex(*std::move(index), pins); !status.ok()) return status;
  return store;
}

absl::Status PackStore::Load(const PackedEntry& packed, Entry* entry) {
  std::string read;
  std::string_view bytes;
  if (file_.valid()) {
    if (const int error = ReadExactlyAt(*file_system_, file_.get(), packed.offset,
                                        static_cast<size_t>(packed.bytes), &read);
        error != 0) {
      ++unreadable_;
      const std::string text = absl::StrCat("unreadable: read: ", ErrnoText(error));
      logger_.EventOnce(LogLevel::kWarning, absl::StrCat("store_unreadable ", error),
                        "store_unreadable", {{"path", place_}, {"reason", text}});
      return absl::NotFoundError(text);
    }
    bytes = read;
  } else {
    bytes = bytes_.substr(static_cast<size_t>(packed.offset), static_cast<size_t>(packed.bytes));
  }
  std::string why;
  if (Sha256(bytes) != packed.sha256) {
    why = "digest: the entry does not have the SHA-256 that the pack's manifest names";
  } else if (absl::StatusOr<Entry> parsed = ParseEntry(bytes); !parsed.ok()) {
    why = std::string(parsed.status().message());
  } else if (Sha256(parsed->manifest) != packed.name.digest ||
             VariantHex(parsed->variant) != packed.name.variant_hex) {
    why = "name: the entry is that of another key or variant";
  } else {
    *entry = *std::move(parsed);
    return absl::OkStatus();
  }
  ++corrupt_;
  logger_.EventOnce(LogLevel::kWarning, "store_corrupt", "store_corrupt",
                    {{"path", place_}, {"reason", why}});
  return absl::DataLossError(absl::StrCat("corrupt: ", why));
}

absl::StatusOr<EntryPtr> PackStore::Get(const EntryKey& key, std::string_view manifest) {
  std::string worst = "absent";
  bool tried = false;
  if (const auto found = by_digest_.find(key.digest); found != by_digest_.end()) {
    for (const size_t i : found->second) {
      const PackedEntry& packed = index_.entries[i];
      if (key.variant.has_value() && VariantHex(*key.variant) != packed.name.variant_hex) continue;
      tried = true;
      auto entry = std::make_shared<Entry>();
      const absl::Status status = Load(packed, entry.get());
      if (!status.ok()) {
        worst = std::string(status.message());
      } else if (entry->manifest != manifest) {
        ++manifest_differs_;
        worst = "manifest differs";
      } else if (key.variant.has_value() && entry->variant != *key.variant) {
        ++manifest_differs_;
        worst = "variant differs";
      } else {
        ++hits_;
        return entry;
      }
    }
  }
  ++misses_;
  if (!tried) ++absent_;
  return absl::NotFoundError(worst);
}

absl::Status PackStore::Put(const Entry&) {
  return absl::FailedPreconditionError(absl::StrCat(place_, " is a pack, which is only read"));
}

absl::Status PackStore::Remove(const Digest&, std::string_view) {
  return absl::FailedPreconditionError(absl::StrCat(place_, " is a pack, which is only read"));
}

absl::StatusOr<std::vector<EntryInfo>> PackStore::List() {
  std::vector<EntryInfo> infos;
  infos.reserve(index_.entries.size());
  for (const PackedEntry& packed : index_.entries) {
    infos.push_back({.digest = packed.name.digest,
                     .variant_hex = packed.name.variant_hex,
                     .bytes = packed.bytes,
                     .mtime_s = mtime_s_,
                     .path = absl::StrCat(
                         place_, "/", EntryFileName(packed.name.digest, packed.name.variant_hex))});
  }
  return infos;
}

absl::StatusOr<Entry> PackStore::Read(const EntryInfo& info) {
  if (const auto found = by_digest_.find(info.digest); found != by_digest_.end()) {
    for (const size_t i : found->second) {
      if (index_.entries[i].name.variant_hex != info.variant_hex) continue;
      Entry entry;
      if (absl::Status status = Load(index_.entries[i], &entry); !status.ok()) return status;
      return entry;
    }
  }
  return absl::NotFoundError("absent");
}

StoreStats PackStore::Stats() {
  StoreStats stats;
  stats.hits = hits_;
  stats.misses = misses_;
  stats.absent = absent_;
  stats.corrupt = corrupt_;
  stats.manifest_differs = manifest_differs_;
  stats.unreadable = unreadable_;
  stats.warnings_suppressed = logger_.suppressed();
  stats.entries = static_cast<int64_t>(index_.entries.size());
  for (const PackedEntry& packed : index_.entries) stats.bytes += packed.bytes;
  return stats;
}

std::unique_ptr<ArtifactStore::KeyLock> PackStore::Lock(const Digest&, int) { return nullptr; }

}  // namespace tilewright::cache
