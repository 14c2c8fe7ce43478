#include "cache/store_directory.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tilewright::cache {
namespace {

Fault Foreign(std::string text) { return {Fault::kForeign, 0, std::move(text)}; }

}  // namespace

Fault FaultOf(int error, const std::string& what) {
  Fault fault;
  if (error == 0) return fault;
  fault.error = error;
  fault.text = absl::StrCat(what, ": ", ErrnoText(error));
  switch (error) {
    case ENOENT:
    case ESTALE:
    case EBUSY:
      fault.kind = Fault::kAbsent;
      break;
    case ELOOP:
    case ENOTDIR:
    case ENXIO:
      fault.kind = Fault::kForeign;
      break;
    default:
      fault.kind = Fault::kIo;
  }
  return fault;
}

std::string WithoutLinks(const std::string& path) {
  std::error_code error;
  const std::filesystem::path resolved = std::filesystem::canonical(path, error);
  return error ? path : resolved.string();
}

absl::Status StatusOf(const Fault& fault) {
  switch (fault.kind) {
    case Fault::kNone:
      return absl::OkStatus();
    case Fault::kAbsent:
      return absl::NotFoundError(fault.text);
    case Fault::kForeign:
      return absl::PermissionDeniedError(fault.text);
    case Fault::kIo:
      break;
  }
  if (fault.error == ENOSPC || fault.error == EDQUOT) {
    return absl::ResourceExhaustedError(fault.text);
  }
  if (fault.error == EACCES || fault.error == EPERM) return absl::PermissionDeniedError(fault.text);
  return absl::UnavailableError(fault.text);
}

std::string ShardOf(const Digest& digest) { return digest.ToHex().substr(0, 2); }

Fault StoreDirectory::CheckOwnerAndMode(const FileInfo& info, const std::string& what) const {
  const uint32_t user = geteuid();
  if (!rules_.group_shared && info.owner != user && !(rules_.root_may_own && info.owner == 0)) {
    return Foreign(absl::StrCat(what, " belongs to user ", info.owner, "; it must belong to user ",
                                user, rules_.root_may_own ? " or root" : ""));
  }
  const uint32_t forbidden = rules_.group_shared ? 0002 : 0022;
  if ((info.mode & forbidden) != 0) {
    return Foreign(absl::StrFormat("%s has mode %04o; %s must not be able to write to it", what,
                                   info.mode, rules_.group_shared ? "others" : "group and others"));
  }
  return {};
}

Fault StoreDirectory::CheckDirectory(FileSystem::Handle directory, const std::string& path) const {
  FileInfo info;
  if (const int error = file_system_->Stat(directory, &info); error != 0) {
    return FaultOf(error, absl::StrCat("stat ", path));
  }
  if (info.type != FileType::kDirectory) return Foreign(absl::StrCat(path, " is no directory"));
  return CheckOwnerAndMode(info, absl::StrCat("directory ", path));
}

Fault StoreDirectory::CheckFile(FileSystem::Handle file, FileInfo* info) const {
  if (const int error = file_system_->Stat(file, info); error != 0) return FaultOf(error, "stat");
  if (info->type != FileType::kRegular) return Foreign("not a regular file");
  if (info->links > 1 && !rules_.hard_links) {
    return Foreign(absl::StrCat("file has ", info->links, " names (hard links); it must have one"));
  }
  return CheckOwnerAndMode(*info, "file");
}

Fault StoreDirectory::OpenRoot(bool create, ScopedHandle* directory) const {
  FileSystem::Handle handle = FileSystem::kInvalid;
  int error = file_system_->OpenRoot(path_, &handle);
  if (error == ENOENT && create) {
    error = MakeDirectories(*file_system_, path_, directory_mode());
    if (error == 0) error = file_system_->OpenRoot(path_, &handle);
  }
  if (error != 0) {
    return FaultOf(error, absl::StrCat(error == ELOOP || error == ENOTDIR
                                           ? "not a directory, or a symbolic link: "
                                           : "open ",
                                       path_));
  }
  *directory = ScopedHandle(file_system_, handle);
  return CheckDirectory(handle, path_);
}

Fault StoreDirectory::Open(const std::vector<std::string>& components, bool create,
                           ScopedHandle* directory, bool durable) const {
  ScopedHandle current;
  if (Fault fault = OpenRoot(create, &current); !fault.ok()) return fault;
  std::string path = path_;
  for (const std::string& component : components) {
    absl::StrAppend(&path, "/", component);
    FileSystem::Handle handle = FileSystem::kInvalid;
    int error = file_system_->OpenDirectory(current.get(), component, &handle);
    if (error == ENOENT && create) {
      error = file_system_->MakeDirectory(current.get(), component, directory_mode());
      // The new name must survive a power cut as well as what will be published below it. Where
      // that fails the entry may be lost, which is a miss and no more.
      if (error == 0 && durable) (void)SyncIfSupported(*file_system_, current.get());
      if (error == 0 || error == EEXIST) {
        error = file_system_->OpenDirectory(current.get(), component, &handle);
      }
    }
    if (error != 0) return FaultOf(error, absl::StrCat("open ", path));
    current = ScopedHandle(file_system_, handle);
    if (Fault fault = CheckDirectory(handle, path); !fault.ok()) return fault;
  }
  *directory = std::move(current);
  return {};
}

int SyncIfSupported(FileSystem& file_system, FileSystem::Handle handle) {
  const int error = file_system.Sync(handle);
  return error == EINVAL || error == ENOSYS || error == ENOTSUP ? 0 : error;
}

}  // namespace tilewright::cache
