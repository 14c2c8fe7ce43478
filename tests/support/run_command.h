// Runs a shell command and keeps what it printed, for tests of programs as a user starts them.
#ifndef TILEWRIGHT_TESTS_SUPPORT_RUN_COMMAND_H_
#define TILEWRIGHT_TESTS_SUPPORT_RUN_COMMAND_H_

#include <sys/wait.h>

#include <cstddef>
#include <cstdio>
#include <string>

namespace tilewright::testing {

struct CommandOutput {
  std::string text;    // of standard output; end the command with 2>&1 for both
  int exit_code = -1;  // minus the signal that ended it; -1000 when it could not be started
};

inline CommandOutput RunCommand(const std::string& command) {
  CommandOutput output;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) {
    output.exit_code = -1000;
    return output;
  }
  char buffer[4096];
  for (size_t got; (got = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    output.text.append(buffer, got);
  }
  const int status = pclose(pipe);
  output.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return output;
}

}  // namespace tilewright::testing

#endif  // TILEWRIGHT_TESTS_SUPPORT_RUN_COMMAND_H_
