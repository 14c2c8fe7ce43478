#include "base/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

namespace tilewright {
namespace {

// Repeats a system call that a signal interrupted.
template <typename Call>
auto Retry(Call call) {
  while (true) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

// 0 or errno for a call that says -1 on failure.
template <typename Call>
int ErrorOf(Call call) {
  return Retry(call) == -1 ? errno : 0;
}

// At most 146 years from 1970, so that the difference of any two fits: a file may bear any stamp.
int64_t Nanoseconds(const timespec& time) {
  constexpr int64_t kMostSeconds = std::numeric_limits<int64_t>::max() / 2 / 1'000'000'000;
  return std::clamp<int64_t>(time.tv_sec, -kMostSeconds, kMostSeconds) * 1'000'000'000 +
         time.tv_nsec;
}

FileInfo ToFileInfo(const struct stat& stat) {
  FileInfo info;
  if (S_ISREG(stat.st_mode)) info.type = FileType::kRegular;
  if (S_ISDIR(stat.st_mode)) info.type = FileType::kDirectory;
  if (S_ISLNK(stat.st_mode)) info.type = FileType::kSymlink;
  info.mode = stat.st_mode & 07777;
  info.owner = stat.st_uid;
  info.links = stat.st_nlink;
  info.device = stat.st_dev;
  info.inode = stat.st_ino;
  info.size = stat.st_size;
  info.allocated = static_cast<int64_t>(stat.st_blocks) * 512;  // POSIX leaves the unit open; Linux
  info.mtime_ns = Nanoseconds(stat.st_mtim);
  info.ctime_ns = Nanoseconds(stat.st_ctim);
  return info;
}

class PosixFileSystem : public FileSystem {
 public:
  int OpenRoot(const std::string& path, Handle* directory) override {
    // A trailing slash would make open follow a link in the last component.
    std::string trimmed = path;
    while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
    return Open(AT_FDCWD, trimmed, O_RDONLY | O_DIRECTORY, 0, directory);
  }

  int OpenDirectory(Handle parent, const std::string& name, Handle* directory) override {
    return Open(parent, name, O_RDONLY | O_DIRECTORY, 0, directory);
  }

  int OpenFile(Handle directory, const std::string& name, Handle* file) override {
    return Open(directory, name, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, file);
  }

  int CreateFile(Handle directory, const std::string& name, uint32_t mode, Handle* file) override {
    return Open(directory, name, O_WRONLY | O_CREAT | O_EXCL, mode, file);
  }

  int OpenOrCreateFile(Handle directory, const std::string& name, uint32_t mode,
                       Handle* file) override {
    return Open(directory, name, O_RDWR | O_CREAT | O_NONBLOCK | O_NOCTTY, mode, file);
  }

  int Close(Handle handle) override {
    // Linux has released the descriptor even when a signal interrupted close: no second try.
    return close(handle) == -1 && errno != EINTR ? errno : 0;
  }

  int Read(Handle file, char* data, size_t size, size_t* got) override {
    const ssize_t count = Retry([&] { return read(file, data, size); });
    *got = count < 0 ? 0 : static_cast<size_t>(count);
    return count < 0 ? errno : 0;
  }

  int ReadAt(Handle file, int64_t offset, char* data, size_t size, size_t* got) override {
    const ssize_t count = Retry([&] { return pread(file, data, size, offset); });
    *got = count < 0 ? 0 : static_cast<size_t>(count);
    return count < 0 ? errno : 0;
  }

  int Write(Handle file, const char* data, size_t size, size_t* written) override {
    const ssize_t count = Retry([&] { return write(file, data, size); });
    *written = count < 0 ? 0 : static_cast<size_t>(count);
    return count < 0 ? errno : 0;
  }

  int Sync(Handle handle) override {
    return ErrorOf([&] { return fsync(handle); });
  }

  int Stat(Handle handle, FileInfo* info) override {
    struct stat stat;
    const int error = ErrorOf([&] { return fstat(handle, &stat); });
    if (error == 0) *info = ToFileInfo(stat);
    return error;
  }

  int StatAt(Handle directory, const std::string& name, FileInfo* info) override {
    struct stat stat;
    const int error =
        ErrorOf([&] { return fstatat(directory, name.c_str(), &stat, AT_SYMLINK_NOFOLLOW); });
    if (error == 0) *info = ToFileInfo(stat);
    return error;
  }

  int Space(Handle handle, SpaceInfo* info) override {
    struct statfs stat;
    const int error = ErrorOf([&] { return fstatfs(handle, &stat); });
    if (error != 0) return error;
    const auto block = static_cast<int64_t>(stat.f_bsize);
    info->total = static_cast<int64_t>(stat.f_blocks) * block;
    info->free = static_cast<int64_t>(stat.f_bavail) * block;
    info->type = static_cast<uint64_t>(stat.f_type) & 0xffffffffu;
    return 0;
  }

  int List(Handle directory, std::vector<std::string>* names) override {
    names->clear();
    // A descriptor of its own: the position in the stream belongs to the open file description.
    Handle copy = kInvalid;
    const int error = Open(directory, ".", O_RDONLY | O_DIRECTORY, 0, &copy);
    if (error != 0) return error;
    DIR* stream = fdopendir(copy);
    if (stream == nullptr) {
      const int open_error = errno;
      close(copy);
      return open_error;
    }
    int read_error = 0;
    while (true) {
      errno = 0;
      const dirent* entry = readdir(stream);
      if (entry == nullptr) {
        read_error = errno;
        break;
      }
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names->emplace_back(name);
    }
    closedir(stream);
    return read_error;
  }

  int MakeRoot(const std::string& path, uint32_t mode) override {
    return ErrorOf([&] { return mkdir(path.c_str(), mode); });
  }

  int MakeDirectory(Handle parent, const std::string& name, uint32_t mode) override {
    return ErrorOf([&] { return mkdirat(parent, name.c_str(), mode); });
  }

  int Rename(Handle from_directory, const std::string& from, Handle to_directory,
             const std::string& to) override {
    return ErrorOf(
        [&] { return renameat(from_directory, from.c_str(), to_directory, to.c_str()); });
  }

  int Unlink(Handle directory, const std::string& name) override {
    return ErrorOf([&] { return unlinkat(directory, name.c_str(), 0); });
  }

  int Touch(Handle directory, const std::string& name) override {
    return ErrorOf(
        [&] { return utimensat(directory, name.c_str(), nullptr, AT_SYMLINK_NOFOLLOW); });
  }

  int TryLock(Handle file, int64_t offset) override { return SetLock(file, offset, F_WRLCK); }
  int Unlock(Handle file, int64_t offset) override { return SetLock(file, offset, F_UNLCK); }

  int64_t NowNs() override {
    timespec now = {};
    clock_gettime(CLOCK_REALTIME, &now);
    return Nanoseconds(now);
  }

 private:
  static int Open(Handle directory, const std::string& name, int flags, uint32_t mode,
                  Handle* handle) {
    const int descriptor = Retry(
        [&] { return openat(directory, name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, mode); });
    *handle = descriptor;
    return descriptor == -1 ? errno : 0;
  }

  // The record locks of POSIX and not flock: a forked child does not inherit them, so it cannot
  // keep the lock of a parent that died; and a lock of one byte needs no file of its own per key.
  static int SetLock(Handle file, int64_t offset, short type) {
    struct flock lock = {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = offset;
    lock.l_len = 1;
    return ErrorOf([&] { return fcntl(file, F_SETLK, &lock); });
  }
};

}  // namespace

FileSystem& FileSystem::Posix() {
  static PosixFileSystem* const file_system = new PosixFileSystem();  // has no state to tear down
  return *file_system;
}

int ReadExactly(FileSystem& file_system, FileSystem::Handle file, size_t size, std::string* data) {
  data->resize(size);
  size_t done = 0;
  while (done < size) {
    size_t got = 0;
    const int error = file_system.Read(file, data->data() + done, size - done, &got);
    if (error != 0) return error;
    if (got == 0) return EIO;
    done += got;
  }
  char more = 0;
  size_t got = 0;
  const int error = file_system.Read(file, &more, 1, &got);
  if (error != 0) return error;
  return got == 0 ? 0 : EIO;
}

int ReadExactlyAt(FileSystem& file_system, FileSystem::Handle file, int64_t offset, size_t size,
                  std::string* data) {
  data->resize(size);
  size_t done = 0;
  while (done < size) {
    size_t got = 0;
    const int error = file_system.ReadAt(file, offset + static_cast<int64_t>(done),
                                         data->data() + done, size - done, &got);
    if (error != 0) return error;
    if (got == 0) return EIO;
    done += got;
  }
  return 0;
}

int WriteAll(FileSystem& file_system, FileSystem::Handle file, std::string_view data) {
  while (!data.empty()) {
    size_t written = 0;
    const int error = file_system.Write(file, data.data(), data.size(), &written);
    if (error != 0) return error;
    if (written == 0) return ENOSPC;  // a disk that accepts nothing, and says so in no other way
    data.remove_prefix(written);
  }
  return 0;
}

int MakeDirectories(FileSystem& file_system, const std::string& path, uint32_t mode) {
  // From the whole path upwards until something can be made, then down again: the usual case, all
  // but the last directory exist, is one call.
  int error = file_system.MakeRoot(path, mode);
  if (error == ENOENT) {
    size_t end = path.find_last_not_of('/');
    end = end == std::string::npos ? end : path.find_last_of('/', end);
    end = end == std::string::npos ? end : path.find_last_not_of('/', end);
    if (end == std::string::npos) return error;
    error = MakeDirectories(file_system, path.substr(0, end + 1), mode);
    if (error == 0) error = file_system.MakeRoot(path, mode);
  }
  return error == EEXIST ? 0 : error;
}

std::string ErrnoText(int error) {
  const char* name = strerrorname_np(error);
  const char* text = strerrordesc_np(error);
  if (name == nullptr || text == nullptr) return absl::StrCat("errno ", error);
  return absl::StrCat(name, " (", text, ")");
}

std::string FileSystemName(uint64_t type, bool* network) {
  struct Known {
    uint64_t type;
    const char* name;
    bool network;
  };
  // statfs(2); the numbers without a macro are those of file systems outside the kernel tree.
  static constexpr Known kKnown[] = {
      {EXT4_SUPER_MAGIC, "ext4", false},
      {XFS_SUPER_MAGIC, "xfs", false},
      {BTRFS_SUPER_MAGIC, "btrfs", false},
      {TMPFS_MAGIC, "tmpfs", false},
      {OVERLAYFS_SUPER_MAGIC, "overlay", false},
      {F2FS_SUPER_MAGIC, "f2fs", false},
      {0x2fc12fc1, "zfs", false},
      {NFS_SUPER_MAGIC, "nfs", true},
      {0x0bd00bd0, "lustre", true},
      {0x47504653, "gpfs", true},
      {0x19830326, "beegfs", true},
      {CEPH_SUPER_MAGIC, "ceph", true},
      {AFS_SUPER_MAGIC, "afs", true},
      {SMB_SUPER_MAGIC, "smb", true},
      {CIFS_SUPER_MAGIC, "cifs", true},
      {SMB2_SUPER_MAGIC, "smb2", true},
      {FUSE_SUPER_MAGIC, "fuse", true},
      {V9FS_MAGIC, "9p", true},
  };
  for (const Known& known : kKnown) {
    if (known.type == type) {
      *network = known.network;
      return known.name;
    }
  }
  *network = false;
  return absl::StrCat("0x", absl::Hex(type));
}

std::string RandomName() {
  uint64_t words[2] = {};
  if (getrandom(words, sizeof(words), 0) != static_cast<ssize_t>(sizeof(words))) {
    // No randomness (an old kernel, a sandbox): unique is enough, the creator asks for O_EXCL.
    timespec now = {};
    clock_gettime(CLOCK_MONOTONIC, &now);
    words[0] = static_cast<uint64_t>(getpid()) << 32 | static_cast<uint64_t>(gettid());
    words[1] = static_cast<uint64_t>(Nanoseconds(now));
  }
  return absl::StrCat(absl::Hex(words[0], absl::kZeroPad16), absl::Hex(words[1], absl::kZeroPad16));
}

}  // namespace tilewright
