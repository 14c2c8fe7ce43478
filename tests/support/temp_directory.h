// A directory for one test, gone afterwards.
#ifndef TILEWRIGHT_TESTS_SUPPORT_TEMP_DIRECTORY_H_
#define TILEWRIGHT_TESTS_SUPPORT_TEMP_DIRECTORY_H_

#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>

namespace tilewright::testing {

class TempDirectory {
 public:
  TempDirectory() {
    // Memory where there is some: tests sync a lot.
    std::string pattern = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    pattern += "/tilewright_test_XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) {
      std::perror("mkdtemp");
      std::abort();
    }
    path_ = pattern;
  }
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace tilewright::testing

#endif  // TILEWRIGHT_TESTS_SUPPORT_TEMP_DIRECTORY_H_
