#include "bench/read_flags.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tilewright::bench {
namespace {

template <typename T>
T* Find(const std::vector<std::pair<std::string, T*>>& flags, const std::string& name) {
  const auto found = std::find_if(flags.begin(), flags.end(),
                                  [&](const auto& flag) { return flag.first == name; });
  return found == flags.end() ? nullptr : found->second;
}

}  // namespace

absl::Status ReadFlags(int argc, const char* const* argv, const FlagTargets& targets) {
  for (int n = 1; n < argc; ++n) {
    const std::string argument = argv[n];
    if (bool* const on = Find(targets.switches, argument)) {
      *on = true;
    } else if (std::string* const value = Find(targets.values, argument)) {
      if (++n == argc) return absl::InvalidArgumentError(absl::StrCat(argument, " has no value"));
      *value = argv[n];
    } else if (targets.words != nullptr && argument.substr(0, 1) != "-") {
      targets.words->push_back(argument);
    } else {
      return absl::InvalidArgumentError(absl::StrCat("unknown argument ", argument));
    }
  }
  return absl::OkStatus();
}

}  // namespace tilewright::bench
