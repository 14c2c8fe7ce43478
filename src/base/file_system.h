// The calls that the kernel store makes to the file system, one virtual function each, so that
// tests can let each of them fail and can lose what was not synced.
//
// Every fallible call returns 0 or a positive errno value. Names are single path components below
// an open directory: nothing is looked up by path twice, no symbolic link is followed, and every
// descriptor is close-on-exec.
#ifndef TILEWRIGHT_BASE_FILE_SYSTEM_H_
#define TILEWRIGHT_BASE_FILE_SYSTEM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tilewright {

enum class FileType { kRegular, kDirectory, kSymlink, kOther };

struct FileInfo {
  FileType type = FileType::kOther;
  uint32_t mode = 0;  // permission bits, set-id and sticky bits included
  uint32_t owner = 0;
  uint64_t links = 0;
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t size = 0;
  int64_t allocated = 0;  // bytes of disk blocks
  int64_t mtime_ns = 0;   // since 1970
  int64_t ctime_ns = 0;
};

struct SpaceInfo {
  int64_t total = 0;  // bytes
  int64_t free = 0;   // bytes that this process may still use
  uint64_t type = 0;  // f_type of statfs(2)
};

// Thread-safe.
class FileSystem {
 public:
  // A number that stands for an open file or directory of this file system.
  using Handle = int;
  static constexpr Handle kInvalid = -1;

  virtual ~FileSystem() = default;

  // The real one. Never destroyed.
  static FileSystem& Posix();

  // Opens a directory for everything below. `path` is absolute; its last component must not be a
  // symbolic link (ELOOP, ENOTDIR).
  [[nodiscard]] virtual int OpenRoot(const std::string& path, Handle* directory) = 0;
  [[nodiscard]] virtual int OpenDirectory(Handle parent, const std::string& name,
                                          Handle* directory) = 0;
  // For reading. Does not block on a FIFO; what was opened is for Stat to tell.
  [[nodiscard]] virtual int OpenFile(Handle directory, const std::string& name, Handle* file) = 0;
  // For writing; EEXIST when the name exists in any form.
  [[nodiscard]] virtual int CreateFile(Handle directory, const std::string& name, uint32_t mode,
                                       Handle* file) = 0;
  // For reading and writing, created when absent: a file to lock.
  [[nodiscard]] virtual int OpenOrCreateFile(Handle directory, const std::string& name,
                                             uint32_t mode, Handle* file) = 0;
  // The handle is gone afterwards, also on error.
  [[nodiscard]] virtual int Close(Handle handle) = 0;

  // Up to `size` bytes; 0 bytes at the end of the file.
  [[nodiscard]] virtual int Read(Handle file, char* data, size_t size, size_t* got) = 0;
  // Up to `size` bytes from `offset` on; the position stays where it is.
  [[nodiscard]] virtual int ReadAt(Handle file, int64_t offset, char* data, size_t size,
                                   size_t* got) = 0;
  // Up to `size` bytes; may write fewer.
  [[nodiscard]] virtual int Write(Handle file, const char* data, size_t size, size_t* written) = 0;
  // Returns once the contents of a file, or the names in a directory, survive a power cut.
  [[nodiscard]] virtual int Sync(Handle handle) = 0;

  [[nodiscard]] virtual int Stat(Handle handle, FileInfo* info) = 0;
  [[nodiscard]] virtual int StatAt(Handle directory, const std::string& name, FileInfo* info) = 0;
  [[nodiscard]] virtual int Space(Handle handle, SpaceInfo* info) = 0;
  // Names in a directory without "." and "..", in no order.
  [[nodiscard]] virtual int List(Handle directory, std::vector<std::string>* names) = 0;

  // `path` is absolute.
  [[nodiscard]] virtual int MakeRoot(const std::string& path, uint32_t mode) = 0;
  [[nodiscard]] virtual int MakeDirectory(Handle parent, const std::string& name,
                                          uint32_t mode) = 0;
  // Replaces `to` atomically.
  [[nodiscard]] virtual int Rename(Handle from_directory, const std::string& from,
                                   Handle to_directory, const std::string& to) = 0;
  [[nodiscard]] virtual int Unlink(Handle directory, const std::string& name) = 0;
  // Sets the times of access and modification to now.
  [[nodiscard]] virtual int Touch(Handle directory, const std::string& name) = 0;

  // Locks one byte of a file against other processes, without waiting: EAGAIN or EACCES when
  // another process has it. The lock ends with Unlock, when this process closes any handle of the
  // file, and when it dies. A forked child does not have it.
  [[nodiscard]] virtual int TryLock(Handle file, int64_t offset) = 0;
  [[nodiscard]] virtual int Unlock(Handle file, int64_t offset) = 0;

  virtual int64_t NowNs() = 0;  // since 1970
};

// Owns a handle.
class ScopedHandle {
 public:
  ScopedHandle() = default;
  ScopedHandle(FileSystem* file_system, FileSystem::Handle handle)
      : file_system_(file_system), handle_(handle) {}
  ScopedHandle(ScopedHandle&& other) noexcept
      : file_system_(other.file_system_), handle_(other.Release()) {}
  ScopedHandle& operator=(ScopedHandle&& other) noexcept {
    if (this != &other) {
      (void)Close();
      file_system_ = other.file_system_;
      handle_ = other.Release();
    }
    return *this;
  }
  ~ScopedHandle() { (void)Close(); }

  bool valid() const { return handle_ != FileSystem::kInvalid; }
  FileSystem::Handle get() const { return handle_; }

  // For those who must know whether it went well (writers); 0 when nothing is held.
  [[nodiscard]] int Close() {
    if (!valid()) return 0;
    return file_system_->Close(Release());
  }

 private:
  FileSystem::Handle Release() { return std::exchange(handle_, FileSystem::kInvalid); }

  FileSystem* file_system_ = nullptr;
  FileSystem::Handle handle_ = FileSystem::kInvalid;
};

// Exactly `size` bytes from the current position. EIO when the file ends earlier or goes on after
// them: it changed while it was read.
[[nodiscard]] int ReadExactly(FileSystem& file_system, FileSystem::Handle file, size_t size,
                              std::string* data);

// `size` bytes from `offset` on. EIO when the file ends earlier.
[[nodiscard]] int ReadExactlyAt(FileSystem& file_system, FileSystem::Handle file, int64_t offset,
                                size_t size, std::string* data);

[[nodiscard]] int WriteAll(FileSystem& file_system, FileSystem::Handle file, std::string_view data);

// Makes the directory `path` and those above it that are missing. 0 when it exists in the end.
[[nodiscard]] int MakeDirectories(FileSystem& file_system, const std::string& path, uint32_t mode);

// "ENOSPC (No space left on device)"
std::string ErrnoText(int error);

// "ext4", "nfs", ... of SpaceInfo::type, or its hexadecimal number. `network` tells whether other
// hosts may write there too.
std::string FileSystemName(uint64_t type, bool* network);

// 32 random hex digits.
std::string RandomName();

}  // namespace tilewright

#endif  // TILEWRIGHT_BASE_FILE_SYSTEM_H_
