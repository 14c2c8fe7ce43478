#include "tilewright/version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

namespace tilewright {
namespace {

TEST(VersionTest, IsThatOfTheProject) {
  std::ifstream file(TILEWRIGHT_SOURCE_DIR "/CMakeLists.txt");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_THAT(text,
              testing::HasSubstr("project(tilewright VERSION " TILEWRIGHT_VERSION_STRING " "));
}

TEST(VersionTest, TextAndNumbersAgree) {
  EXPECT_EQ(std::to_string(TILEWRIGHT_VERSION_MAJOR) + "." +
                std::to_string(TILEWRIGHT_VERSION_MINOR) + "." +
                std::to_string(TILEWRIGHT_VERSION_PATCH),
            TILEWRIGHT_VERSION_STRING);
}

}  // namespace
}  // namespace tilewright
