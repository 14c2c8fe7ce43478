// Child processes of the tests: what a process does from start to exit, where the exit itself is
// what is tested. The program runs one with --scenario NAME --cache DIR.
#ifndef TILEWRIGHT_TESTS_GPU_SCENARIOS_H_
#define TILEWRIGHT_TESTS_GPU_SCENARIOS_H_

#include <string>
#include <vector>

#include "tilewright/attention.h"
#include "tilewright/options.h"

namespace tilewright::gpu_tests {

// Those whose exit must be clean and silent.
std::vector<std::string> ExitScenarios();

// The spec of the scenarios "fault_while_tuning" and "tune_after_a_fault", the options of both, and
// where they keep things below their directory: kernels and records, templates.
AttentionSpec FaultSpec();
RuntimeOptions FaultOptions(const std::string& cache_dir);
std::string FaultStore(const std::string& cache_dir);
std::string FaultTemplates(const std::string& cache_dir);

// Runs a scenario to the end of the process or to a return, 0 when all went well; 2 when there is
// no such scenario. Complaints go to stderr.
int RunScenario(const std::string& name, const std::string& cache_dir);

struct ChildResult {
  int status = -1;     // exit status; -1: ended by a signal or not started
  std::string output;  // stdout and stderr
};
ChildResult RunChild(const std::string& scenario, const std::string& cache_dir);

}  // namespace tilewright::gpu_tests

#endif  // TILEWRIGHT_TESTS_GPU_SCENARIOS_H_
