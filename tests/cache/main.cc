// The test program of this folder, which can also be started as a set-user-id program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/auxv.h>

#include <string>

#include "cache/open_store.h"
#include "tests/cache/setuid_program.h"

namespace tilewright::cache {

std::string RunLocateStoreIn(const std::string& program, const std::string& directory) {
  FILE* pipe = popen((program + " --locate-store " + directory).c_str(), "r");
  if (pipe == nullptr) return "popen failed";
  std::string text;
  char buffer[512];
  while (fgets(buffer, sizeof(buffer), pipe) != nullptr) text += buffer;
  pclose(pipe);
  return text;
}

}  // namespace tilewright::cache

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--locate-store") {
    if (getauxval(AT_SECURE) == 0) {
      fputs("not set-user-id", stdout);
      return 0;
    }
    const auto opened = tilewright::cache::OpenStore(
        {.directory = argv[2]}, tilewright::Logger(tilewright::LogLevel::kOff));
    fputs(opened.location.why.c_str(), stdout);
    return opened.disk == nullptr ? 0 : 1;
  }
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
