#include "cache/record_files.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace tilewright::cache {
namespace {

constexpr absl::string_view kSealLabel = "sha256 ";
constexpr absl::string_view kSuffix = ".twt";
constexpr size_t kHexDigits = 64;

std::string NameOf(const Digest& key) { return absl::StrCat(key.ToHex(), kSuffix); }

TrustRules RulesOf(const RecordFilesOptions& options) {
  return {.root_may_own = options.pack,
          .group_shared = options.group_shared,
          .hard_links = options.pack};
}

}  // namespace

std::string SealRecord(std::string_view text) {
  return absl::StrCat(AbslView(text), kSealLabel, Sha256(text).ToHex(), "\n");
}

absl::StatusOr<std::string> OpenRecord(std::string_view file) {
  const size_t seal_bytes = kSealLabel.size() + kHexDigits + 1;
  if (file.size() < seal_bytes) return absl::DataLossError("the record has no seal");
  const std::string_view text = file.substr(0, file.size() - seal_bytes);
  if (file != SealRecord(text)) return absl::DataLossError("the record does not fit its seal");
  return std::string(text);
}

RecordFiles::RecordFiles(RecordFilesOptions options, FileSystem* file_system)
    : options_(std::move(options)),
      file_system_(file_system),
      directory_(file_system, options_.directory, RulesOf(options_)) {}

absl::StatusOr<std::string> RecordFiles::Read(const Digest& key) const {
  ScopedHandle shard;
  TILEWRIGHT_RETURN_IF_ERROR(
      StatusOf(directory_.Open({"v1", "t", ShardOf(key)}, /*create=*/false, &shard)));
  FileSystem::Handle handle = FileSystem::kInvalid;
  if (const int error = file_system_->OpenFile(shard.get(), NameOf(key), &handle); error != 0) {
    return StatusOf(FaultOf(error, "open"));
  }
  const ScopedHandle file(file_system_, handle);
  FileInfo info;
  TILEWRIGHT_RETURN_IF_ERROR(StatusOf(directory_.CheckFile(handle, &info)));
  if (info.size > kMaxRecordBytes) return absl::DataLossError("the record is too long");
  std::string bytes;
  if (const int error = ReadExactly(*file_system_, handle, static_cast<size_t>(info.size), &bytes);
      error != 0) {
    return StatusOf(FaultOf(error, "read"));
  }
  return OpenRecord(bytes);
}

absl::Status RecordFiles::WriteOnce(const Digest& key, const std::string& file, bool durable,
                                    bool* vanished) const {
  ScopedHandle shard;
  ScopedHandle temporaries;
  Fault fault = directory_.Open({"v1", "t", ShardOf(key)}, /*create=*/true, &shard);
  if (fault.ok()) fault = directory_.Open({"v1", "tmp"}, /*create=*/true, &temporaries);
  const std::string temporary = RandomName();
  FileSystem::Handle handle = FileSystem::kInvalid;
  if (fault.ok()) {
    fault = FaultOf(
        file_system_->CreateFile(temporaries.get(), temporary, directory_.file_mode(), &handle),
        "create temporary");
  }
  if (fault.ok()) {
    ScopedHandle written(file_system_, handle);
    int error = WriteAll(*file_system_, handle, file);
    if (error == 0 && durable) error = SyncIfSupported(*file_system_, handle);
    // NFS reports what it could not write when the file is closed.
    const int close_error = written.Close();
    if (error == 0) error = close_error;
    if (error == 0) {
      error = file_system_->Rename(temporaries.get(), temporary, shard.get(), NameOf(key));
    }
    if (error != 0) (void)file_system_->Unlink(temporaries.get(), temporary);
    fault = FaultOf(error, "write");
    // Whole and visible by now: that the name may not survive a power cut is no failure.
    if (error == 0 && durable) (void)SyncIfSupported(*file_system_, shard.get());
  }
  *vanished = fault.kind == Fault::kAbsent;
  return StatusOf(fault);
}

absl::Status RecordFiles::Write(const Digest& key, std::string_view text, bool durable) const {
  if (options_.read_only || options_.pack) {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", options_.directory, " is read-only"));
  }
  const std::string file = SealRecord(text);
  bool vanished = false;
  absl::Status status = WriteOnce(key, file, durable, &vanished);
  // A directory went away meanwhile (a cleaner, `cache clear`): once more, which makes it again.
  if (vanished) status = WriteOnce(key, file, durable, &vanished);
  return status;
}

absl::Status RecordFiles::Remove(const Digest& key) const {
  if (options_.read_only || options_.pack) {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", options_.directory, " is read-only"));
  }
  ScopedHandle shard;
  Fault fault = directory_.Open({"v1", "t", ShardOf(key)}, /*create=*/false, &shard);
  if (fault.ok()) fault = FaultOf(file_system_->Unlink(shard.get(), NameOf(key)), "unlink");
  if (fault.kind == Fault::kAbsent) return absl::OkStatus();
  return StatusOf(fault);
}

std::vector<Digest> RecordFiles::List() const {
  std::vector<Digest> keys;
  ScopedHandle root;
  std::vector<std::string> shards;
  if (!directory_.Open({"v1", "t"}, /*create=*/false, &root).ok() ||
      file_system_->List(root.get(), &shards) != 0) {
    return keys;
  }
  for (const std::string& name : shards) {
    ScopedHandle shard;
    std::vector<std::string> files;
    if (!directory_.Open({"v1", "t", name}, /*create=*/false, &shard).ok() ||
        file_system_->List(shard.get(), &files) != 0) {
      continue;
    }
    for (const std::string& file : files) {
      absl::string_view hex = file;
      if (!absl::ConsumeSuffix(&hex, kSuffix)) continue;
      const std::optional<Digest> key = Digest::FromHex(StdView(hex));
      if (key.has_value() && ShardOf(*key) == name) keys.push_back(*key);
    }
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

}  // namespace tilewright::cache
