// Which build a shared library on disk is, found without mapping it: the loader and mmap leave
// their mark in the process (and a truncated file kills it), pread does neither.
#ifndef TILEWRIGHT_COMPILE_LIBRARY_FILE_H_
#define TILEWRIGHT_COMPILE_LIBRARY_FILE_H_

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"

namespace tilewright::compile {

// "build-id:<hex> size:<bytes>" from the ELF notes, or "sha256:<hex> size:<bytes>" for a library
// that was linked without a build id (the digest is that of the digests of its 1 MiB pieces).
// NotFound, PermissionDenied, or DataLoss when the file is no shared library for this machine or
// ends before its headers say.
absl::StatusOr<std::string> FingerprintLibrary(const std::string& path);

// Remembers fingerprints for as long as a file's device, inode, size and times of change stay, only
// to spare reading it again. Failures are not remembered. Thread-safe.
class FingerprintCache {
 public:
  absl::StatusOr<std::string> Get(const std::string& path);

 private:
  struct Seen {
    std::string stamp;
    std::string fingerprint;
  };
  Mutex mutex_;
  absl::flat_hash_map<std::string, Seen> seen_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tilewright::compile

#endif  // TILEWRIGHT_COMPILE_LIBRARY_FILE_H_
