// Runs the program within the test, for tests of its commands.
#ifndef TILEWRIGHT_TESTS_CLI_PROGRAM_RUNNER_H_
#define TILEWRIGHT_TESTS_CLI_PROGRAM_RUNNER_H_

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/program.h"
#include "gtest/gtest.h"
#include "test_files.h"

namespace tilewright::cli {

using Json = nlohmann::ordered_json;

struct Outcome {
  int exit_code = 0;
  std::string out;
  std::string err;
  Json json() const {
    Json parsed = Json::parse(out, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(parsed.is_object()) << out;
    return parsed;
  }
};

inline Outcome Invoke(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  Outcome outcome;
  outcome.exit_code = RunProgram(arguments, out, err);
  outcome.out = out.str();
  outcome.err = err.str();
  return outcome;
}

// Sets a variable for the life of the object.
class ScopedVariable {
 public:
  ScopedVariable(std::string name, const std::string& value) : name_(std::move(name)) {
    setenv(name_.c_str(), value.c_str(), 1);
  }
  ~ScopedVariable() { unsetenv(name_.c_str()); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  std::string name_;
};

// One line for each value of a JSON object: its path and its type. Arrays show their first element.
inline void AppendShape(const Json& value, const std::string& path, std::string& shape) {
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      AppendShape(member, path.empty() ? key : path + "." + key, shape);
    }
  } else if (value.is_array() && !value.empty()) {
    AppendShape(value[0], path + "[]", shape);
  } else {
    shape += path + " " + value.type_name() + "\n";
  }
}

inline void ExpectShape(const Json& value, const std::string& golden) {
  std::string shape;
  AppendShape(value, "", shape);
  EXPECT_EQ(shape, ReadWhole(std::string(TILEWRIGHT_SOURCE_DIR "/tests/cli/golden/") + golden));
}

}  // namespace tilewright::cli

#endif  // TILEWRIGHT_TESTS_CLI_PROGRAM_RUNNER_H_
