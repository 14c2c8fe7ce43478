#include "base/file_system.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <set>
#include <string>

#include "tests/support/child_process.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/temp_directory.h"

namespace tilewright {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

class FileSystemTest : public ::testing::Test {
 protected:
  void SetUp() override {
    FileSystem::Handle handle = FileSystem::kInvalid;
    ASSERT_EQ(fs_.OpenRoot(temp_.path(), &handle), 0);
    root_ = ScopedHandle(&fs_, handle);
  }
  void Write(const std::string& name, const std::string& text) {
    FileSystem::Handle handle = FileSystem::kInvalid;
    ASSERT_EQ(fs_.CreateFile(root_.get(), name, 0600, &handle), 0);
    ScopedHandle file(&fs_, handle);
    ASSERT_EQ(WriteAll(fs_, handle, text), 0);
    ASSERT_EQ(fs_.Sync(handle), 0);
    ASSERT_EQ(file.Close(), 0);
  }
  ScopedHandle OpenForReading(const std::string& name) {
    FileSystem::Handle handle = FileSystem::kInvalid;
    EXPECT_EQ(fs_.OpenFile(root_.get(), name, &handle), 0);
    return ScopedHandle(&fs_, handle);
  }
  std::string Path(const std::string& name) const { return temp_.path() + "/" + name; }

  testing::TempDirectory temp_;
  FileSystem& fs_ = FileSystem::Posix();
  ScopedHandle root_;
};

TEST_F(FileSystemTest, ReadsWhatItWrote) {
  const std::string text(100000, 'x');
  Write("a", text);
  const ScopedHandle file = OpenForReading("a");
  std::string read;
  EXPECT_EQ(ReadExactly(fs_, file.get(), text.size(), &read), 0);
  EXPECT_EQ(read, text);
}

TEST_F(FileSystemTest, AFileOfAnotherSizeIsNotReadExactly) {
  Write("a", "12345");
  std::string read;
  EXPECT_EQ(ReadExactly(fs_, OpenForReading("a").get(), 6, &read), EIO);
  EXPECT_EQ(ReadExactly(fs_, OpenForReading("a").get(), 4, &read), EIO);
}

TEST_F(FileSystemTest, ShortWritesAreContinued) {
  testing::FaultyFileSystem faulty(&fs_);
  faulty.set_longest_write(7);
  FileSystem::Handle handle = FileSystem::kInvalid;
  ASSERT_EQ(faulty.CreateFile(root_.get(), "a", 0600, &handle), 0);
  const std::string text = "a text that is longer than seven bytes";
  EXPECT_EQ(WriteAll(faulty, handle, text), 0);
  EXPECT_EQ(faulty.Close(handle), 0);
  std::string read;
  EXPECT_EQ(ReadExactly(fs_, OpenForReading("a").get(), text.size(), &read), 0);
  EXPECT_EQ(read, text);
}

TEST_F(FileSystemTest, AWriteThatAcceptsNothingIsAFullDisk) {
  testing::FaultyFileSystem faulty(&fs_);
  faulty.set_longest_write(0);
  FileSystem::Handle handle = FileSystem::kInvalid;
  ASSERT_EQ(faulty.CreateFile(root_.get(), "a", 0600, &handle), 0);
  EXPECT_EQ(WriteAll(faulty, handle, "text"), ENOSPC);
  EXPECT_EQ(faulty.Close(handle), 0);
}

TEST_F(FileSystemTest, CreateRefusesWhatExists) {
  Write("a", "1");
  FileSystem::Handle handle = FileSystem::kInvalid;
  EXPECT_EQ(fs_.CreateFile(root_.get(), "a", 0600, &handle), EEXIST);
  ASSERT_EQ(symlink("nowhere", Path("link").c_str()), 0);
  EXPECT_EQ(fs_.CreateFile(root_.get(), "link", 0600, &handle), EEXIST);
}

TEST_F(FileSystemTest, NoSymbolicLinkIsFollowed) {
  Write("a", "1");
  ASSERT_EQ(mkdir(Path("d").c_str(), 0700), 0);
  ASSERT_EQ(symlink("a", Path("to_file").c_str()), 0);
  ASSERT_EQ(symlink("d", Path("to_directory").c_str()), 0);
  FileSystem::Handle handle = FileSystem::kInvalid;
  EXPECT_EQ(fs_.OpenFile(root_.get(), "to_file", &handle), ELOOP);
  EXPECT_EQ(fs_.OpenOrCreateFile(root_.get(), "to_file", 0600, &handle), ELOOP);
  EXPECT_EQ(fs_.OpenDirectory(root_.get(), "to_directory", &handle), ENOTDIR);
  EXPECT_EQ(fs_.OpenRoot(Path("to_directory"), &handle), ENOTDIR);
  EXPECT_EQ(fs_.OpenRoot(Path("to_directory/"), &handle), ENOTDIR);
  FileInfo info;
  ASSERT_EQ(fs_.StatAt(root_.get(), "to_file", &info), 0);
  EXPECT_EQ(info.type, FileType::kSymlink);
}

TEST_F(FileSystemTest, OpeningAFifoDoesNotBlock) {
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  const ScopedHandle file = OpenForReading("fifo");
  FileInfo info;
  ASSERT_EQ(fs_.Stat(file.get(), &info), 0);
  EXPECT_EQ(info.type, FileType::kOther);
}

TEST_F(FileSystemTest, StatTellsTheFacts) {
  Write("a", "12345");
  ASSERT_EQ(link(Path("a").c_str(), Path("b").c_str()), 0);
  FileInfo info;
  ASSERT_EQ(fs_.StatAt(root_.get(), "a", &info), 0);
  EXPECT_EQ(info.type, FileType::kRegular);
  EXPECT_EQ(info.size, 5);
  EXPECT_EQ(info.links, 2u);
  EXPECT_EQ(info.owner, geteuid());
  EXPECT_EQ(info.mode & 0777, 0600u);
  EXPECT_GE(info.allocated, 0);
  EXPECT_LT(std::abs(fs_.NowNs() - info.mtime_ns), int64_t{60} * 1'000'000'000);
  FileInfo missing;
  EXPECT_EQ(fs_.StatAt(root_.get(), "c", &missing), ENOENT);
}

TEST_F(FileSystemTest, TouchSetsTheTimesToNow) {
  Write("a", "1");
  const timespec old[2] = {{1000, 0}, {1000, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, Path("a").c_str(), old, 0), 0);
  ASSERT_EQ(fs_.Touch(root_.get(), "a"), 0);
  FileInfo info;
  ASSERT_EQ(fs_.StatAt(root_.get(), "a", &info), 0);
  EXPECT_LT(std::abs(fs_.NowNs() - info.mtime_ns), int64_t{60} * 1'000'000'000);
}

TEST_F(FileSystemTest, RenameReplacesAndUnlinkRemoves) {
  Write("a", "new");
  Write("b", "old");
  EXPECT_EQ(fs_.Rename(root_.get(), "a", root_.get(), "b"), 0);
  std::vector<std::string> names;
  ASSERT_EQ(fs_.List(root_.get(), &names), 0);
  EXPECT_THAT(names, UnorderedElementsAre("b"));
  std::string read;
  EXPECT_EQ(ReadExactly(fs_, OpenForReading("b").get(), 3, &read), 0);
  EXPECT_EQ(read, "new");
  EXPECT_EQ(fs_.Unlink(root_.get(), "b"), 0);
  EXPECT_EQ(fs_.Unlink(root_.get(), "b"), ENOENT);
}

TEST_F(FileSystemTest, ListCanBeRepeated) {
  Write("a", "1");
  Write("b", "2");
  std::vector<std::string> names;
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(fs_.List(root_.get(), &names), 0);
    EXPECT_THAT(names, UnorderedElementsAre("a", "b"));
  }
}

TEST_F(FileSystemTest, MakeDirectoriesMakesWhatIsMissing) {
  EXPECT_EQ(MakeDirectories(fs_, Path("x/y//z/"), 0700), 0);
  EXPECT_EQ(MakeDirectories(fs_, Path("x/y/z"), 0700), 0);
  struct stat stat;
  ASSERT_EQ(::stat(Path("x/y").c_str(), &stat), 0);
  EXPECT_EQ(stat.st_mode & 0777, 0700u);
  Write("file", "1");
  EXPECT_EQ(MakeDirectories(fs_, Path("file/below"), 0700), ENOTDIR);
}

TEST_F(FileSystemTest, DescriptorsAreCloseOnExec) {
  Write("a", "1");
  FileSystem::Handle lock = FileSystem::kInvalid;
  ASSERT_EQ(fs_.OpenOrCreateFile(root_.get(), "lock", 0600, &lock), 0);
  const ScopedHandle lock_file(&fs_, lock);
  const ScopedHandle file = OpenForReading("a");
  for (int descriptor : {root_.get(), lock, file.get()}) {
    EXPECT_NE(fcntl(descriptor, F_GETFD) & FD_CLOEXEC, 0);
  }
}

TEST_F(FileSystemTest, ALockKeepsOtherProcessesOutOfItsByteOnly) {
  FileSystem::Handle handle = FileSystem::kInvalid;
  ASSERT_EQ(fs_.OpenOrCreateFile(root_.get(), "lock", 0600, &handle), 0);
  ScopedHandle file(&fs_, handle);
  const int64_t far = (int64_t{1} << 62) + 5;
  ASSERT_EQ(fs_.TryLock(handle, far), 0);
  const auto other_process = [&](int64_t offset) {
    return testing::RunInChild([&]() -> std::string {
      FileSystem::Handle mine = FileSystem::kInvalid;
      if (fs_.OpenOrCreateFile(root_.get(), "lock", 0600, &mine) != 0) return "no file";
      const int error = fs_.TryLock(mine, offset);
      return error == 0 ? "locked" : error == EAGAIN || error == EACCES ? "busy" : "error";
    });
  };
  EXPECT_EQ(other_process(far), "busy");
  EXPECT_EQ(other_process(far + 1), "locked");
  EXPECT_EQ(fs_.Unlock(handle, far), 0);
  EXPECT_EQ(other_process(far), "locked");
}

// With flock a child that outlives its killed parent would keep the lock.
TEST_F(FileSystemTest, AForkedChildDoesNotHaveTheLock) {
  FileSystem::Handle handle = FileSystem::kInvalid;
  ASSERT_EQ(fs_.OpenOrCreateFile(root_.get(), "lock", 0600, &handle), 0);
  ScopedHandle file(&fs_, handle);
  int holder_ready[2];
  int grandchild_end[2];
  ASSERT_EQ(pipe(holder_ready), 0);
  ASSERT_EQ(pipe(grandchild_end), 0);
  const pid_t holder = testing::StartChild([&] {
    FileSystem::Handle mine = FileSystem::kInvalid;
    if (fs_.OpenOrCreateFile(root_.get(), "lock", 0600, &mine) != 0) return 1;
    if (fs_.TryLock(mine, 7) != 0) return 1;
    (void)testing::StartChild([&] {
      close(grandchild_end[1]);
      char byte = 0;
      (void)!write(holder_ready[1], "x", 1);
      (void)!read(grandchild_end[0], &byte, 1);  // until the test closes its end
      return 0;
    });
    pause();
    return 0;
  });
  char byte = 0;
  ASSERT_EQ(read(holder_ready[0], &byte, 1), 1);
  EXPECT_NE(fs_.TryLock(handle, 7), 0);
  kill(holder, SIGKILL);
  EXPECT_EQ(testing::WaitForChild(holder), -SIGKILL);
  EXPECT_EQ(fs_.TryLock(handle, 7), 0);
  for (int end : {holder_ready[0], holder_ready[1], grandchild_end[0], grandchild_end[1]}) {
    close(end);
  }
}

TEST_F(FileSystemTest, SpaceIsThatOfTheDisk) {
  SpaceInfo space;
  ASSERT_EQ(fs_.Space(root_.get(), &space), 0);
  EXPECT_GE(space.total, space.free);
  bool network = true;
  EXPECT_EQ(FileSystemName(0x01021994, &network), "tmpfs");
  EXPECT_FALSE(network);
  EXPECT_EQ(FileSystemName(0x6969, &network), "nfs");
  EXPECT_TRUE(network);
  EXPECT_EQ(FileSystemName(0xabc, &network), "0xabc");
  EXPECT_FALSE(network);
}

TEST(ErrnoTextTest, NamesTheError) {
  EXPECT_THAT(ErrnoText(ENOSPC), StartsWith("ENOSPC ("));
  EXPECT_THAT(ErrnoText(123456), HasSubstr("123456"));
}

TEST(RandomNameTest, NamesDiffer) {
  std::set<std::string> names;
  for (int i = 0; i < 1000; ++i) names.insert(RandomName());
  EXPECT_EQ(names.size(), 1000u);
  EXPECT_EQ(names.begin()->size(), 32u);
}

}  // namespace
}  // namespace tilewright
