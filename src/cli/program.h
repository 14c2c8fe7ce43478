// The program `tilewright`, callable from tests.
#ifndef TILEWRIGHT_CLI_PROGRAM_H_
#define TILEWRIGHT_CLI_PROGRAM_H_

#include <ostream>
#include <string>
#include <vector>

namespace tilewright::cli {

enum ExitCode {
  kExitFine = 0,
  kExitProblem = 1,  // the command ran and found something wrong, or could not do its work
  kExitUsage = 2,    // the command line or a spec in it is ill formed
};

// Runs one command line (without the program's name). Results go to `out`, complaints to `err`;
// with --json, `out` receives exactly one JSON object, complaints included.
int RunProgram(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace tilewright::cli

#endif  // TILEWRIGHT_CLI_PROGRAM_H_
