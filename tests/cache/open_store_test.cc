#include "cache/open_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/cache/setuid_program.h"
#include "tests/cache/test_entries.h"
#include "tests/support/child_process.h"
#include "tests/support/temp_directory.h"

namespace tilewright::cache {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Every case runs in a child, so that it may change the environment, the user and the directory.
class OpenStoreTest : public ::testing::Test {
 protected:
  void SetUp() override { chmod(temp_.path().c_str(), 0755); }

  // "directory|why|warnings", after a publish and a look-up that must hit.
  static std::string Describe(const StoreOptions& options) {
    int warnings = 0;
    const Logger logger(LogLevel::kWarning, [&](LogLevel, std::string_view) { ++warnings; });
    const OpenedStore opened = OpenStore(options, logger);
    if (opened.store == nullptr) return "no store";
    const bool published = opened.store->Put(NumberedEntry(1)).ok();
    if (!Serves(*opened.store, NumberedEntry(1))) return "no hit";
    if (opened.disk != nullptr && published && opened.disk->List()->size() != 1)
      return "not on disk";
    return opened.location.directory + "|" + opened.location.why + "|" + std::to_string(warnings);
  }

  testing::TempDirectory temp_;
};

TEST_F(OpenStoreTest, TheExplicitDirectoryComesFirst) {
  EXPECT_EQ(testing::RunInChild([&] {
              setenv("XDG_CACHE_HOME", (temp_.path() + "/xdg").c_str(), 1);
              return Describe({.directory = temp_.path() + "/mine/"});
            }),
            temp_.path() + "/mine|TILEWRIGHT_CACHE_DIR|0");
}

TEST_F(OpenStoreTest, ARelativeDirectoryIsThatOfTheMomentOfOpening) {
  EXPECT_EQ(testing::RunInChild([&]() -> std::string {
              if (chdir(temp_.path().c_str()) != 0) return "chdir failed";
              const OpenedStore opened = OpenStore({.directory = "rel"}, Logger(LogLevel::kOff));
              if (chdir("/") != 0) return "chdir failed";
              if (!opened.store->Put(NumberedEntry(1)).ok()) return "put failed";
              return opened.disk->List()->front().path.substr(0, temp_.path().size() + 4);
            }),
            temp_.path() + "/rel");
}

TEST_F(OpenStoreTest, ThenXdgThenHomeThenPasswd) {
  const std::string xdg = temp_.path() + "/xdg";
  const std::string home = temp_.path() + "/home";
  EXPECT_EQ(testing::RunInChild([&] {
              setenv("XDG_CACHE_HOME", xdg.c_str(), 1);
              setenv("HOME", home.c_str(), 1);
              return Describe({});
            }),
            xdg + "/tilewright|XDG_CACHE_HOME|0");
  for (const char* ignored : {"", "relative/xdg"}) {
    EXPECT_EQ(testing::RunInChild([&] {
                setenv("XDG_CACHE_HOME", ignored, 1);
                setenv("HOME", home.c_str(), 1);
                return Describe({});
              }),
              home + "/.cache/tilewright|HOME|0");
    fs::remove_all(home);
  }
  struct stat stat = {};
  EXPECT_EQ(testing::RunInChild([&] {
              clearenv();
              setenv("HOME", "not/absolute", 1);
              return LocateStore({}).directory + "|" + LocateStore({}).why;
            }),
            std::string(getpwuid(geteuid())->pw_dir) + "/.cache/tilewright|passwd");
  EXPECT_NE(::stat("not", &stat), 0);
}

TEST_F(OpenStoreTest, MissingDirectoriesAreMadePrivate) {
  const std::string home = temp_.path() + "/home";
  (void)testing::RunInChild([&] {
    clearenv();
    setenv("HOME", home.c_str(), 1);
    return Describe({});
  });
  for (const std::string& path : {home, home + "/.cache", home + "/.cache/tilewright"}) {
    struct stat stat = {};
    ASSERT_EQ(::stat(path.c_str(), &stat), 0) << path;
    EXPECT_EQ(stat.st_mode & 0777, 0700u) << path;
  }
}

TEST_F(OpenStoreTest, AnUnknownUserWithoutAHomeGetsMemoryAndOneWarning) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  EXPECT_THAT(testing::RunInChild([&]() -> std::string {
                clearenv();
                if (setuid(12345) != 0) return "setuid failed";
                return Describe({});
              }),
              ::testing::MatchesRegex("\\|memory only: neither .*\\|1"));
}

TEST_F(OpenStoreTest, AHomeThatCannotBeWrittenGivesMemoryAndOneWarning) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  for (const char* home : {"/", "/nonexistent", "/proc"}) {
    EXPECT_THAT(testing::RunInChild([&]() -> std::string {
                  clearenv();
                  setenv("HOME", home, 1);
                  if (setuid(12345) != 0) return "setuid failed";
                  return Describe({});
                }),
                ::testing::MatchesRegex("\\|memory only: .*\\|1"))
        << home;
  }
}

TEST_F(OpenStoreTest, AUnwritableStoreThatExistsStillGivesHits) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  const std::string directory = temp_.path() + "/store";
  EXPECT_EQ(testing::RunInChild([&]() -> std::string {
              fs::create_directory(directory);
              if (chown(directory.c_str(), 12345, 12345) != 0) return "chown failed";
              chmod(directory.c_str(), 0700);
              if (setuid(12345) != 0) return "setuid failed";
              const Logger quiet(LogLevel::kOff);
              if (!OpenStore({.directory = directory}, quiet).store->Put(NumberedEntry(1)).ok()) {
                return "put failed";
              }
              for (const auto& item : fs::recursive_directory_iterator(directory)) {
                if (item.is_directory()) fs::permissions(item.path(), fs::perms(0500));
              }
              chmod(directory.c_str(), 0500);
              const OpenedStore opened = OpenStore({.directory = directory}, quiet);
              if (opened.disk == nullptr) return opened.location.why;
              if (!Serves(*opened.store, NumberedEntry(1))) return "no hit";
              if (opened.store->Put(NumberedEntry(2)).ok()) return "published";
              if (!Serves(*opened.store, NumberedEntry(2))) return "not in memory";
              for (const auto& item : fs::recursive_directory_iterator(directory)) {
                if (item.is_directory()) fs::permissions(item.path(), fs::perms(0700));
              }
              return "fine";
            }),
            "fine");
}

TEST_F(OpenStoreTest, ARefusedDirectoryGivesMemoryAndSaysWhy) {
  const std::string directory = temp_.path() + "/store";
  fs::create_directory(directory);
  chmod(directory.c_str(), 0777);
  const std::string text = testing::RunInChild([&] { return Describe({.directory = directory}); });
  EXPECT_THAT(text, StartsWith("|memory only: directory " + directory + " has mode 0777"));
  EXPECT_THAT(text, ::testing::EndsWith("|1"));
}

TEST_F(OpenStoreTest, AFileInTheWayGivesMemory) {
  const std::string file = temp_.path() + "/file";
  std::ofstream(file) << "x";
  EXPECT_THAT(testing::RunInChild([&] { return Describe({.directory = file}); }),
              ::testing::MatchesRegex("\\|memory only: .*\\|1"));
  EXPECT_THAT(testing::RunInChild([&] { return Describe({.directory = file + "/below"}); }),
              ::testing::MatchesRegex("\\|memory only: .*\\|1"));
}

TEST_F(OpenStoreTest, MemoryOnRequestTouchesNothingAndWarnsOfNothing) {
  EXPECT_EQ(testing::RunInChild([&] {
              setenv("HOME", temp_.path().c_str(), 1);
              unsetenv("XDG_CACHE_HOME");
              return Describe({.in_memory = true});
            }),
            "|memory only was asked for|0");
  EXPECT_TRUE(fs::is_empty(temp_.path()));
}

TEST_F(OpenStoreTest, PacksAreReadAndBadOnesLeftOut) {
  const std::string pack = temp_.path() + "/pack";
  const Logger quiet(LogLevel::kOff);
  ASSERT_TRUE(OpenStore({.directory = pack}, quiet).store->Put(NumberedEntry(7)).ok());
  std::vector<std::string> lines;
  const Logger logger(LogLevel::kWarning,
                      [&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  const OpenedStore opened = OpenStore(
      {.directory = temp_.path() + "/user", .packs = {temp_.path() + "/missing", pack}}, logger);
  EXPECT_TRUE(Serves(*opened.store, NumberedEntry(7)));
  EXPECT_EQ(opened.store->Stats().pack_hits, 1);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], StartsWith("store_pack_refused path=" + temp_.path() + "/missing"));
}

TEST_F(OpenStoreTest, ReadOnlyServesAndNeverWrites) {
  const std::string directory = temp_.path() + "/store";
  const Logger quiet(LogLevel::kOff);
  ASSERT_TRUE(OpenStore({.directory = directory}, quiet).store->Put(NumberedEntry(1)).ok());
  const OpenedStore opened = OpenStore({.directory = directory, .read_only = true}, quiet);
  EXPECT_TRUE(Serves(*opened.store, NumberedEntry(1)));
  EXPECT_FALSE(opened.store->Put(NumberedEntry(2)).ok());
  EXPECT_TRUE(Serves(*opened.store, NumberedEntry(2)));
  EXPECT_EQ(opened.disk->List()->size(), 1u);
}

TEST_F(OpenStoreTest, ASetUserIdProgramUsesNoDisk) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to make a set-user-id program";
  // /tmp, as memory file systems are often mounted without set-user-id.
  const std::string program = "/tmp/tilewright_setuid_" + std::to_string(getpid());
  std::error_code error;
  fs::copy_file("/proc/self/exe", program, error);
  ASSERT_FALSE(error) << error.message();
  ASSERT_EQ(chmod(program.c_str(), 04755), 0);
  const std::string text = testing::RunInChild([&]() -> std::string {
    if (setgid(12345) != 0 || setuid(12345) != 0) return "setuid failed";
    return RunLocateStoreIn(program, temp_.path() + "/explicit");
  });
  fs::remove(program);
  if (text == "not set-user-id") GTEST_SKIP() << "/tmp does not honour the set-user-id bit";
  EXPECT_THAT(text, HasSubstr("set-user-id"));
  EXPECT_FALSE(fs::exists(temp_.path() + "/explicit"));
}

}  // namespace
}  // namespace tilewright::cache
