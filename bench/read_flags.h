// The command lines of the programs in bench/ and tests/gpu.
#ifndef TILEWRIGHT_BENCH_READ_FLAGS_H_
#define TILEWRIGHT_BENCH_READ_FLAGS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace tilewright::bench {

struct FlagTargets {
  std::vector<std::pair<std::string, std::string*>> values;  // "--results" FILE
  std::vector<std::pair<std::string, bool*>> switches;       // "--slow"
  // What does not begin with '-', in its order; without it such a word is an error.
  std::vector<std::string>* words = nullptr;
};

// Sets what the arguments after argv[0] name. InvalidArgument names the first that is unknown or
// lacks its value.
absl::Status ReadFlags(int argc, const char* const* argv, const FlagTargets& targets);

}  // namespace tilewright::bench

#endif  // TILEWRIGHT_BENCH_READ_FLAGS_H_
