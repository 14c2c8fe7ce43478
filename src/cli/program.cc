#include "cli/program.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "cli/command.h"

namespace tilewright::cli {

void Console::Print(const Json& object) const {
  out << object.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
}

int Console::Fail(std::string_view command, const absl::Status& status, ExitCode exit_code) const {
  const std::string code = absl::StatusCodeToString(status.code());
  const std::string message(status.message());
  const absl::optional<absl::Cord> log = status.GetPayload("tilewright/compile_log");
  if (json) {
    Json error = {{"code", code}, {"message", message}};
    if (log.has_value()) error["compile_log"] = std::string(*log);
    Print({{"command", std::string(command)}, {"ok", false}, {"error", error}});
  } else {
    err << "tilewright " << command << ": " << code << ": " << message << "\n";
    if (log.has_value()) err << std::string(*log) << "\n";
  }
  return exit_code;
}

int RunProgram(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  Console console{out, err};
  // Known before the command line parses, so that its own complaints are JSON as well.
  console.json = std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();

  CLI::App app("Attention kernels written for one shape, compiled at run time.", "tilewright");
  app.require_subcommand(1);
  app.set_version_flag("--version", "tilewright " TILEWRIGHT_VERSION);
  app.failure_message(CLI::FailureMessage::help);
  Chosen chosen;
  AddRunCommand(app, chosen);
  AddEmitCommand(app, chosen);
  AddCompileCommand(app, chosen);
  AddExplainCommand(app, chosen);
  AddTuneCommand(app, chosen);
  AddBenchCommand(app, chosen);
  AddVerifyCommand(app, chosen);
  AddDoctorCommand(app, chosen);
  AddCacheCommand(app, chosen);
  for (CLI::App* command : app.get_subcommands({})) {
    if (command->get_subcommands({}).empty()) {
      command->add_flag("--json", console.json, "Print one JSON object")->group("Output");
    } else {
      for (CLI::App* verb : command->get_subcommands({})) {
        verb->add_flag("--json", console.json, "Print one JSON object")->group("Output");
      }
    }
  }

  // CLI11 would only say that a command is required.
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  if (!arguments.empty() && !arguments[0].empty() && arguments[0][0] != '-' &&
      std::find(names.begin(), names.end(), arguments[0]) == names.end()) {
    return console.Fail(arguments[0],
                        absl::InvalidArgumentError(
                            absl::StrCat("there is no command \"", arguments[0],
                                         "\"; the commands are ", absl::StrJoin(names, ", "))),
                        kExitUsage);
  }

  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 wants them
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      return app.exit(error, out, err);  // --help, --version
    }
    const std::string command =
        app.get_subcommands().empty() ? "" : app.get_subcommands().front()->get_name();
    if (console.json) {
      return console.Fail(command, absl::InvalidArgumentError(error.what()), kExitUsage);
    }
    err << "tilewright" << (command.empty() ? "" : " ") << command << ": " << error.what()
        << "\nRun tilewright " << command << (command.empty() ? "" : " ") << "--help.\n";
    return kExitUsage;
  }
  return chosen(console);
}

}  // namespace tilewright::cli
