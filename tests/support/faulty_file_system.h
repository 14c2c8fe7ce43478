// A file system that passes calls on, counts and records them, and fails those it is told to.
#ifndef TILEWRIGHT_TESTS_SUPPORT_FAULTY_FILE_SYSTEM_H_
#define TILEWRIGHT_TESTS_SUPPORT_FAULTY_FILE_SYSTEM_H_

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "base/mutex.h"

namespace tilewright::testing {

// The calls are thread-safe, as those of every FileSystem; the rest is for when none is under way,
// except what concerns hanging.
class FaultyFileSystem : public FileSystem {
 public:
  explicit FaultyFileSystem(FileSystem* base) : base_(base) {}

  // The call with this number, counted from 1, fails with `error`; the later ones too if `forever`.
  void FailAt(int64_t call, int error, bool forever = false) {
    fail_at_ = call;
    error_ = error;
    forever_ = forever;
  }
  // Failing calls have their effect all the same, as when the answer of a server is lost.
  void set_fail_after_effect(bool value) { fail_after_effect_ = value; }
  // The process kills itself before this call.
  void KillAt(int64_t call) { kill_at_ = call; }
  // Calls that log() names so do not return until Release(), like those to a server that is gone.
  void HangOn(std::string call) { hang_on_ = std::move(call); }
  void Release() {
    MutexLock lock(&mutex_);
    hang_on_.clear();
    changed_.SignalAll();
  }
  bool WaitUntilOneHangs(std::chrono::milliseconds timeout) {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    MutexLock lock(&mutex_);
    while (hanging_ == 0) {
      if (!changed_.WaitUntil(&mutex_, deadline)) return hanging_ > 0;
    }
    return true;
  }
  // Writes accept at most this many bytes.
  void set_longest_write(size_t bytes) { longest_write_ = bytes; }
  // Sync says that it did and does nothing.
  void set_sync_lies(bool value) { sync_lies_ = value; }
  void set_clock_offset_ns(int64_t offset) { clock_offset_ns_ = offset; }

  int64_t calls() const { return static_cast<int64_t>(log_.size()); }
  // Names of the calls so far, with the name of the file where there is one.
  const std::vector<std::string>& log() const { return log_; }
  void ClearLog() { log_.clear(); }

  int OpenRoot(const std::string& path, Handle* directory) override {
    return Do(
        "OpenRoot", "", [&] { return base_->OpenRoot(path, directory); },
        [&] { CloseQuietly(directory); });
  }
  int OpenDirectory(Handle parent, const std::string& name, Handle* directory) override {
    return Do(
        "OpenDirectory", name, [&] { return base_->OpenDirectory(parent, name, directory); },
        [&] { CloseQuietly(directory); });
  }
  int OpenFile(Handle directory, const std::string& name, Handle* file) override {
    return Do(
        "OpenFile", name, [&] { return base_->OpenFile(directory, name, file); },
        [&] { CloseQuietly(file); });
  }
  int CreateFile(Handle directory, const std::string& name, uint32_t mode, Handle* file) override {
    return Do(
        "CreateFile", name, [&] { return base_->CreateFile(directory, name, mode, file); },
        [&] { CloseQuietly(file); });
  }
  int OpenOrCreateFile(Handle directory, const std::string& name, uint32_t mode,
                       Handle* file) override {
    return Do(
        "OpenOrCreateFile", name,
        [&] { return base_->OpenOrCreateFile(directory, name, mode, file); },
        [&] { CloseQuietly(file); });
  }
  int Close(Handle handle) override {
    const int fault = Enter("Close", "");
    const int error = base_->Close(handle);
    return fault != 0 ? fault : error;
  }
  int Read(Handle file, char* data, size_t size, size_t* got) override {
    return Do("Read", "", [&] { return base_->Read(file, data, size, got); });
  }
  int ReadAt(Handle file, int64_t offset, char* data, size_t size, size_t* got) override {
    return Do("ReadAt", "", [&] { return base_->ReadAt(file, offset, data, size, got); });
  }
  int Write(Handle file, const char* data, size_t size, size_t* written) override {
    return Do("Write", "",
              [&] { return base_->Write(file, data, std::min(size, longest_write_), written); });
  }
  int Sync(Handle handle) override {
    return Do("Sync", "", [&] { return sync_lies_ ? 0 : base_->Sync(handle); });
  }
  int Stat(Handle handle, FileInfo* info) override {
    return Do("Stat", "", [&] { return base_->Stat(handle, info); });
  }
  int StatAt(Handle directory, const std::string& name, FileInfo* info) override {
    return Do("StatAt", name, [&] { return base_->StatAt(directory, name, info); });
  }
  int Space(Handle handle, SpaceInfo* info) override {
    return Do("Space", "", [&] { return base_->Space(handle, info); });
  }
  int List(Handle directory, std::vector<std::string>* names) override {
    return Do("List", "", [&] { return base_->List(directory, names); });
  }
  int MakeRoot(const std::string& path, uint32_t mode) override {
    return Do("MakeRoot", path, [&] { return base_->MakeRoot(path, mode); });
  }
  int MakeDirectory(Handle parent, const std::string& name, uint32_t mode) override {
    return Do("MakeDirectory", name, [&] { return base_->MakeDirectory(parent, name, mode); });
  }
  int Rename(Handle from_directory, const std::string& from, Handle to_directory,
             const std::string& to) override {
    return Do("Rename", to, [&] { return base_->Rename(from_directory, from, to_directory, to); });
  }
  int Unlink(Handle directory, const std::string& name) override {
    return Do("Unlink", name, [&] { return base_->Unlink(directory, name); });
  }
  int Touch(Handle directory, const std::string& name) override {
    return Do("Touch", name, [&] { return base_->Touch(directory, name); });
  }
  int TryLock(Handle file, int64_t offset) override {
    return Do("TryLock", "", [&] { return base_->TryLock(file, offset); });
  }
  int Unlock(Handle file, int64_t offset) override {
    return Do("Unlock", "", [&] { return base_->Unlock(file, offset); });
  }
  int64_t NowNs() override { return base_->NowNs() + clock_offset_ns_; }

 private:
  // The error that this call shall fail with.
  int Enter(const char* call, const std::string& name) {
    MutexLock lock(&mutex_);
    log_.push_back(name.empty() ? std::string(call) : std::string(call) + " " + name);
    while (log_.back() == hang_on_) {
      ++hanging_;
      changed_.SignalAll();
      changed_.Wait(&mutex_);
      --hanging_;
    }
    if (calls() == kill_at_) {
      std::raise(SIGKILL);
    }
    const bool fails = fail_at_ > 0 && (forever_ ? calls() >= fail_at_ : calls() == fail_at_);
    return fails ? error_ : 0;
  }

  template <typename Call, typename Undo>
  int Do(const char* name, const std::string& file, Call call, Undo undo_handle) {
    const int fault = Enter(name, file);
    if (fault == 0) return call();
    if (fail_after_effect_ && call() == 0) undo_handle();
    return fault;
  }
  template <typename Call>
  int Do(const char* name, const std::string& file, Call call) {
    return Do(name, file, call, [] {});
  }

  // The caller of an open that failed has no handle to close.
  void CloseQuietly(Handle* handle) {
    (void)base_->Close(*handle);
    *handle = kInvalid;
  }

  FileSystem* const base_;
  int64_t fail_at_ = 0;
  int error_ = 0;
  bool forever_ = false;
  bool fail_after_effect_ = false;
  int64_t kill_at_ = 0;
  size_t longest_write_ = SIZE_MAX;
  bool sync_lies_ = false;
  int64_t clock_offset_ns_ = 0;
  Mutex mutex_;
  CondVar changed_;
  std::string hang_on_;
  int hanging_ = 0;
  std::vector<std::string> log_;
};

}  // namespace tilewright::testing

#endif  // TILEWRIGHT_TESTS_SUPPORT_FAULTY_FILE_SYSTEM_H_
