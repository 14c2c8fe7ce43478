// The one table of environment variables, and the only getenv of the project.
#ifndef TILEWRIGHT_BASE_ENV_H_
#define TILEWRIGHT_BASE_ENV_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace tilewright {

struct EnvVariable {
  std::string_view name;    // TILEWRIGHT_...
  std::string_view option;  // the RuntimeOptions field it sets
  std::string_view values;  // what it accepts, for people
  std::string_view doc;     // one line
};

// Every TILEWRIGHT_* variable, in the order of the README's table. RuntimeOptions::FromEnvironment
// (env.cc) reads exactly these.
absl::Span<const EnvVariable> EnvVariables();

// The value of any variable, or nullopt when unset. Also for foreign ones (HOME, XDG_CACHE_HOME,
// CUDA_HOME, PATH).
std::optional<std::string> GetEnv(std::string_view name);

// TILEWRIGHT_* names in the environment that the table does not know.
std::vector<std::string> UnknownEnvVariables();

}  // namespace tilewright

#endif  // TILEWRIGHT_BASE_ENV_H_
