// A program in C, with a driver that records and with one that is too old; and what the shared
// library shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "tests/support/run_command.h"

namespace {

using testing::HasSubstr;
using testing::Not;

using Output = tilewright::testing::CommandOutput;
using tilewright::testing::RunCommand;

class CProgramTest : public testing::Test {
 protected:
  CProgramTest()
      : directory_(std::filesystem::path(testing::TempDir()) /
                   ("tilewright_c_" + std::to_string(getpid()))) {}
  ~CProgramTest() override { std::filesystem::remove_all(directory_); }

  // With the libcuda.so.1 of a folder.
  Output RunWith(const std::string& driver_folder) const {
    return RunCommand("LD_LIBRARY_PATH='" + driver_folder + "' '" TILEWRIGHT_C_PROGRAM "' '" +
                      directory_.string() + "' 2>&1");
  }

  const std::filesystem::path directory_;
};

TEST_F(CProgramTest, PreparesRunsAndExplains) {
  const Output cold = RunWith(TILEWRIGHT_RECORDING_LIBCUDA_DIR);
  if (cold.text.find("TW_UNAVAILABLE") != std::string::npos) GTEST_SKIP() << cold.text;
  EXPECT_EQ(cold.exit_code, 0) << cold.text;
  EXPECT_THAT(cold.text, HasSubstr("prepare TW_OK"));
  EXPECT_THAT(cold.text, HasSubstr("prepare_text TW_OK"));
  EXPECT_THAT(cold.text, HasSubstr("spec fwd fp32 b=2 h=4/4 s=64/64 d=32/32 causal lse"));
  EXPECT_THAT(cold.text, HasSubstr("explain 1"));
  EXPECT_THAT(cold.text, HasSubstr("workspace_bytes 0"));
  EXPECT_THAT(cold.text, HasSubstr("run TW_OK"));
  EXPECT_THAT(cold.text, HasSubstr("launch attn_fwd_sm80__fp32_d32_causal_lse"));
  EXPECT_THAT(cold.text, HasSubstr("run_null_q TW_INVALID_ARGUMENT q.data = null: must be set"));
  EXPECT_THAT(cold.text, HasSubstr("memory_hits 2"));
  EXPECT_THAT(cold.text, HasSubstr("compiles 1 store_hits 0"));
  size_t launches = 0;
  for (size_t at = 0; (at = cold.text.find("launch ", at)) != std::string::npos; ++at) ++launches;
  EXPECT_EQ(launches, 2u) << cold.text;

  const Output warm = RunWith(TILEWRIGHT_RECORDING_LIBCUDA_DIR);
  EXPECT_EQ(warm.exit_code, 0) << warm.text;
  EXPECT_THAT(warm.text, HasSubstr("compiles 0 store_hits 1"));
}

TEST_F(CProgramTest, SaysThatTheDriverIsTooOld) {
  const Output output = RunWith(TILEWRIGHT_OLD_LIBCUDA_DIR);
  EXPECT_EQ(output.exit_code, 1);
  EXPECT_THAT(output.text, HasSubstr("create TW_OK"));
  EXPECT_THAT(output.text, HasSubstr("prepare TW_UNAVAILABLE"));
  EXPECT_THAT(output.text, HasSubstr("11.8"));
  EXPECT_THAT(output.text, HasSubstr("12.4"));
}

// The functions that the header declares.
std::set<std::string> DeclaredFunctions() {
  std::ifstream file(TILEWRIGHT_SOURCE_DIR "/src/include/tilewright/tilewright_c.h");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::regex declaration("\nTW_API [^(]*\\b(tw_[a-z_]+)\\(");
  std::set<std::string> names;
  for (std::sregex_iterator it(text.begin(), text.end(), declaration), end; it != end; ++it) {
    names.insert((*it)[1]);
  }
  return names;
}

TEST(SharedLibraryTest, ShowsItsInterfacesAndNothingElse) {
  const Output symbols = RunCommand("nm -DC --defined-only '" TILEWRIGHT_SHARED_LIBRARY "'");
  if (symbols.exit_code == 127) GTEST_SKIP() << "no nm";
  ASSERT_EQ(symbols.exit_code, 0);
  std::set<std::string> c_functions;
  std::set<std::string> cpp_names;
  std::istringstream lines(symbols.text);
  for (std::string line; std::getline(lines, line);) {
    const std::string name = line.substr(line.find(' ', line.find(' ') + 1) + 1);
    if (name.rfind("tilewright::", 0) == 0) {
      // Without arguments, and without the ABI tag of functions that return strings.
      cpp_names.insert(name.substr(0, name.find_first_of("([")));
    } else {
      c_functions.insert(name);
    }
  }
  EXPECT_THAT(DeclaredFunctions(), testing::Contains("tw_run"));
  EXPECT_EQ(c_functions, DeclaredFunctions());
  EXPECT_THAT(cpp_names,
              testing::IsSupersetOf({"tilewright::Runtime::Create", "tilewright::Runtime::~Runtime",
                                     "tilewright::ParseSpec", "tilewright::SpecText",
                                     "tilewright::RuntimeOptions::FromEnvironment"}));
  for (const std::string& name : cpp_names) {
    EXPECT_THAT(name, Not(testing::ContainsRegex("::(Impl|State|spec|plan|build|device)::")));
  }
}

TEST(SharedLibraryTest, NeedsNeitherDriverNorCompilerToStart) {
  const Output needed = RunCommand("readelf -d '" TILEWRIGHT_SHARED_LIBRARY "'");
  if (needed.exit_code == 127) GTEST_SKIP() << "no readelf";
  EXPECT_THAT(needed.text, HasSubstr("NEEDED"));
  EXPECT_THAT(needed.text, Not(HasSubstr("libcuda")));
  EXPECT_THAT(needed.text, Not(HasSubstr("libnvrtc")));
}

}  // namespace
