// Folders and small ELF files for the tests of src/compile.
#ifndef TILEWRIGHT_TESTS_COMPILE_TEST_FILES_H_
#define TILEWRIGHT_TESTS_COMPILE_TEST_FILES_H_

#include <optional>
#include <string>
#include <string_view>

namespace tilewright::compile {

// A folder that is deleted with its content at the end of the scope.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

// Sets a variable of the environment for a scope. The tests' threads do not read it meanwhile.
class ScopedEnv {
 public:
  ScopedEnv(const char* name, const char* value);
  ~ScopedEnv();
  ScopedEnv(const ScopedEnv&) = delete;
  ScopedEnv& operator=(const ScopedEnv&) = delete;

 private:
  const char* const name_;
  std::optional<std::string> before_;
};

// Makes the folders above `path`, too.
void WriteFile(const std::string& path, std::string_view content);
std::string ReadFile(const std::string& path);

// A shared library of this machine as far as its headers go, with `build_id` (raw bytes; empty:
// none) among its notes, `payload` in its one segment and section headers at its end.
std::string SmallLibrary(std::string_view build_id, std::string_view payload);

// Puts the file `from` under the name `to`, sharing its bytes where the file system can.
void LinkOrCopy(const std::string& from, const std::string& to);

}  // namespace tilewright::compile

#endif  // TILEWRIGHT_TESTS_COMPILE_TEST_FILES_H_
