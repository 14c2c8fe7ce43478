// The directories of a store on disk, opened component by component from its root, and the rules by
// which a directory or a file there is trusted (R22, R23, R25).
#ifndef TILEWRIGHT_CACHE_STORE_DIRECTORY_H_
#define TILEWRIGHT_CACHE_STORE_DIRECTORY_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/digest.h"
#include "base/file_system.h"

namespace tilewright::cache {

// Why something in the store could not be used.
struct Fault {
  enum Kind {
    kNone,
    kAbsent,   // it is not there, or not any more
    kForeign,  // refused: it must not be trusted
    kIo,       // the file system answered with an error
  };
  Kind kind = kNone;
  int error = 0;     // errno, where there is one
  std::string text;  // for people

  bool ok() const { return kind == kNone; }
};

struct TrustRules {
  bool root_may_own = false;  // besides the effective user
  bool group_shared = false;  // any owner, and the group may write
  bool hard_links = false;    // files may have several names
};

// A fault for an errno value: ENOENT, ESTALE and EBUSY say that another process or host took the
// file away, ELOOP, ENOTDIR and ENXIO that something else lies in its place.
Fault FaultOf(int error, const std::string& what);

// NotFound, PermissionDenied, ResourceExhausted (disk full, quota) or Unavailable.
absl::Status StatusOf(const Fault& fault);

// The directory of a key among its like: the first two of its hex digits.
std::string ShardOf(const Digest& digest);

// `path` without symbolic links on the way, for places that a person named and whose contents are
// held to the rules all the same; as it is where it cannot be told.
std::string WithoutLinks(const std::string& path);

class StoreDirectory {
 public:
  StoreDirectory(FileSystem* file_system, std::string path, TrustRules rules)
      : file_system_(file_system), path_(std::move(path)), rules_(rules) {}

  FileSystem& file_system() const { return *file_system_; }
  const std::string& path() const { return path_; }

  // Opens root/components[0]/..., each a trusted directory. `create` makes what is missing, and
  // waits until the new names survive a power cut unless they need not be `durable`.
  Fault Open(const std::vector<std::string>& components, bool create, ScopedHandle* directory,
             bool durable = true) const;

  // Whether an open file may be trusted; fills `info`.
  Fault CheckFile(FileSystem::Handle file, FileInfo* info) const;

  // Permission bits for new ones. In a shared store the umask decides; 0700 and 0600 elsewhere.
  uint32_t directory_mode() const { return rules_.group_shared ? 0777 : 0700; }
  uint32_t file_mode() const { return rules_.group_shared ? 0666 : 0600; }

 private:
  Fault OpenRoot(bool create, ScopedHandle* directory) const;
  Fault CheckDirectory(FileSystem::Handle directory, const std::string& path) const;
  Fault CheckOwnerAndMode(const FileInfo& info, const std::string& what) const;

  FileSystem* file_system_;
  std::string path_;
  TrustRules rules_;
};

// As FileSystem::Sync, where the file system knows it; some network ones do not.
int SyncIfSupported(FileSystem& file_system, FileSystem::Handle handle);

}  // namespace tilewright::cache

#endif  // TILEWRIGHT_CACHE_STORE_DIRECTORY_H_
