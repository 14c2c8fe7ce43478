// A pack from the program, embedded in an application in C, in place of a compiler and a disk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/run_command.h"
#include "tests/support/sanitizers.h"
#include "tilewright/tilewright_c.h"

namespace {

using testing::HasSubstr;

using Output = tilewright::testing::CommandOutput;

Output RunCommand(const std::string& command) {
  return tilewright::testing::RunCommand(command + " 2>&1");
}

class EmbeddedPackTest : public testing::Test {
 protected:
  EmbeddedPackTest()
      : directory_(std::filesystem::path(testing::TempDir()) /
                   ("tilewright_embedded_" + std::to_string(getpid()))) {
    std::filesystem::create_directory(directory_);
    std::filesystem::permissions(directory_, std::filesystem::perms::owner_all);
  }
  ~EmbeddedPackTest() override { std::filesystem::remove_all(directory_); }

  std::string path(const std::string& name) const { return (directory_ / name).string(); }

  const std::filesystem::path directory_;
};

TEST_F(EmbeddedPackTest, AnApplicationShipsItsKernelsInItself) {
#if TILEWRIGHT_ADDRESS_SANITIZER || TILEWRIGHT_THREAD_SANITIZER
  GTEST_SKIP() << "an application without a sanitizer cannot link a library that has one";
#endif
  const std::string program =
      "TILEWRIGHT_CACHE_DIR='" + path("store") + "' '" TILEWRIGHT_PROGRAM "' ";
  const std::string spec = "'fwd bf16 b=1 h=2 s=64 d=16'";
  const Output compiled = RunCommand(program + "compile " + spec + " --arch sm_80,sm_90a");
  if (compiled.text.find("UNAVAILABLE") != std::string::npos) GTEST_SKIP() << compiled.text;
  ASSERT_EQ(compiled.exit_code, 0) << compiled.text;
  const Output exported =
      RunCommand(program + "cache export --c-array kernels '" + path("kernels.h") + "'");
  ASSERT_EQ(exported.exit_code, 0) << exported.text;
  std::filesystem::remove_all(path("store"));
  const std::string digest = exported.text.substr(exported.text.size() - 65, 64);

  const std::string library = TILEWRIGHT_SHARED_LIBRARY;
  const Output built = RunCommand("'" TILEWRIGHT_C_COMPILER
                                  "' -std=c11 -Wall -Wextra -Werror -pedantic "
                                  "-I'" TILEWRIGHT_SOURCE_DIR "/src/include' -I'" +
                                  directory_.string() +
                                  "' '" TILEWRIGHT_SOURCE_DIR
                                  "/tests/capi/embedded_program/embedded_program.c' -o '" +
                                  path("application") + "' '" + library + "' -Wl,-rpath,'" +
                                  std::filesystem::path(library).parent_path().string() + "'");
  ASSERT_EQ(built.exit_code, 0) << built.text;
  const std::string application = "env -i LD_LIBRARY_PATH='" TILEWRIGHT_RECORDING_LIBCUDA_DIR
                                  "' '" +
                                  path("application") + "' ";
  const Output output = RunCommand(application);
  EXPECT_EQ(output.exit_code, 0) << output.text;
  EXPECT_THAT(output.text, HasSubstr("prepare TW_OK"));
  EXPECT_THAT(output.text, HasSubstr("origin    store"));
  // What is not in the pack needs the compiler that is not there.
  EXPECT_THAT(output.text, HasSubstr("prepare TW_UNAVAILABLE"));
  EXPECT_THAT(output.text, HasSubstr("compiles 0 store_hits 1"));

  const Output pinned = RunCommand(application + digest);
  EXPECT_THAT(pinned.text, HasSubstr("compiles 0 store_hits 1"));
  const Output other = RunCommand(application + std::string(64, 'a'));
  EXPECT_THAT(other.text, HasSubstr("store_pack_refused"));
  EXPECT_THAT(other.text, HasSubstr(digest));
  EXPECT_THAT(other.text, HasSubstr("compiles 0 store_hits 0"));
  const Output wrong = RunCommand(application + "abc");
  EXPECT_THAT(wrong.text, HasSubstr("create TW_INVALID_ARGUMENT"));
  EXPECT_THAT(wrong.text, HasSubstr("pack_sha256 = abc"));
}

TEST(PackOptionsTest, FieldsAreCheckedAndReadFromTheEnvironment) {
  tw_options options;
  ASSERT_EQ(tw_options_init(&options, sizeof options), TW_OK);
  EXPECT_EQ(options.embedded_pack, nullptr);
  EXPECT_EQ(options.embedded_pack_bytes, 0u);
  EXPECT_EQ(options.num_pack_sha256, 0u);
  tw_runtime* runtime = nullptr;
  options.embedded_pack_bytes = 1;
  EXPECT_EQ(tw_runtime_create(&options, &runtime), TW_INVALID_ARGUMENT);
  EXPECT_THAT(tw_last_error(), HasSubstr("embedded_pack = null"));
  options.embedded_pack_bytes = 0;
  options.num_pack_sha256 = 1;
  EXPECT_EQ(tw_runtime_create(&options, &runtime), TW_INVALID_ARGUMENT);
  EXPECT_THAT(tw_last_error(), HasSubstr("pack_sha256 = null"));

  const std::string digest(64, 'b');
  ASSERT_EQ(setenv("TILEWRIGHT_PACK_SHA256", (std::string(64, 'a') + ":" + digest).c_str(), 1), 0);
  EXPECT_EQ(tw_options_from_environment(&options, sizeof options), TW_OK) << tw_last_error();
  ASSERT_EQ(options.num_pack_sha256, 2u);
  EXPECT_EQ(options.pack_sha256[1], digest);
  ASSERT_EQ(setenv("TILEWRIGHT_PACK_SHA256", "abc", 1), 0);
  EXPECT_EQ(tw_options_from_environment(&options, sizeof options), TW_INVALID_ARGUMENT);
  EXPECT_THAT(tw_last_error(), HasSubstr("TILEWRIGHT_PACK_SHA256"));
  unsetenv("TILEWRIGHT_PACK_SHA256");
}

}  // namespace
