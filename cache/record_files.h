// Small texts under a key, one file each, beside the kernels of a store: ROOT/v1/t/ab/DIGEST.twt.
// What they mean is for src/tune to know. The directories, the rules of trust and the way to
// publish are those of the kernels (cache/README.md); unlike a kernel a record may change, the last
// writer wins, and nothing evicts it.
#ifndef TILEWRIGHT_CACHE_RECORD_FILES_H_
#define TILEWRIGHT_CACHE_RECORD_FILES_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/digest.h"
#include "base/file_system.h"
#include "cache/store_directory.h"

namespace tilewright::cache {

// A record's file is its text, which ends in a newline, and the line "sha256 DIGEST" over that
// text.
std::string SealRecord(std::string_view text);
// The text of a whole file; DataLoss when the seal is missing or does not fit.
absl::StatusOr<std::string> OpenRecord(std::string_view file);

// Larger files are not read.
inline constexpr int64_t kMaxRecordBytes = int64_t{1} << 20;

struct RecordFilesOptions {
  std::string directory = {};  // absolute: the root of a store
  bool read_only = false;
  bool pack = false;          // as DiskStoreOptions
  bool group_shared = false;  // as DiskStoreOptions
};

// Thread-safe, and safe among processes: a reader sees a whole record or none.
class RecordFiles {
 public:
  // `file_system` outlives the object. Nothing is opened yet.
  explicit RecordFiles(RecordFilesOptions options, FileSystem* file_system = &FileSystem::Posix());

  // NotFound ("absent"), DataLoss (torn or damaged), PermissionDenied (not to be trusted),
  // Unavailable (the file system gave an error).
  absl::StatusOr<std::string> Read(const Digest& key) const;

  // Replaces atomically. `durable`: survives a power cut, for some milliseconds more.
  // FailedPrecondition when read-only; else as Read.
  absl::Status Write(const Digest& key, std::string_view text, bool durable) const;

  // Also OK when there is no such record.
  absl::Status Remove(const Digest& key) const;

  // The keys present, ascending; none where there is no directory.
  std::vector<Digest> List() const;

  const RecordFilesOptions& options() const { return options_; }

 private:
  absl::Status WriteOnce(const Digest& key, const std::string& file, bool durable,
                         bool* vanished) const;

  const RecordFilesOptions options_;
  FileSystem* const file_system_;
  const StoreDirectory directory_;
};

}  // namespace tilewright::cache

#endif  // TILEWRIGHT_CACHE_RECORD_FILES_H_
