// What the commands of the program have in common: one file a command, each adding itself to the
// CLI11 application with an Add...Command function.
#ifndef TILEWRIGHT_CLI_COMMAND_H_
#define TILEWRIGHT_CLI_COMMAND_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "cli/program.h"
#include "cli/progress.h"

namespace tilewright::cli {

using Json = nlohmann::ordered_json;

// Where a command writes, and how.
struct Console {
  std::ostream& out;
  std::ostream& err;
  bool json = false;

  // How progress is shown: see progress.h. With `json` not at all.
  Progress::Mode progress_mode() const {
    return json ? Progress::Mode::kNone : Progress::ModeFor(err);
  }

  // One JSON object, indented, ending in a newline. Bytes that are not UTF-8 are replaced.
  void Print(const Json& object) const;

  // Reports a failure: a line to `err`, or {"command", "ok": false, "error": {"code", "message",
  // "compile_log"}} to `out`. Returns `exit_code`.
  int Fail(std::string_view command, const absl::Status& status,
           ExitCode exit_code = kExitProblem) const;
};

// The command that the command line chose; set by the subcommand's callback.
using Chosen = std::function<int(const Console&)>;

void AddRunCommand(CLI::App& app, Chosen& chosen);
void AddEmitCommand(CLI::App& app, Chosen& chosen);
void AddCompileCommand(CLI::App& app, Chosen& chosen);
void AddExplainCommand(CLI::App& app, Chosen& chosen);
void AddTuneCommand(CLI::App& app, Chosen& chosen);
void AddBenchCommand(CLI::App& app, Chosen& chosen);
void AddVerifyCommand(CLI::App& app, Chosen& chosen);
void AddDoctorCommand(CLI::App& app, Chosen& chosen);
void AddCacheCommand(CLI::App& app, Chosen& chosen);

}  // namespace tilewright::cli

#endif  // TILEWRIGHT_CLI_COMMAND_H_
