// Specs of appending to a cache on a command line: compile, emit and explain take them.
#ifndef TILEWRIGHT_CLI_APPEND_KERNEL_H_
#define TILEWRIGHT_CLI_APPEND_KERNEL_H_

#include <string>

#include "absl/status/statusor.h"
#include "build/kernel_builder.h"
#include "cli/toolchain.h"
#include "plan/planner.h"

namespace tilewright::cli {

struct AppendKernel {
  plan::Decision decision;
  build::KernelRequest request;  // its spec_text is canonical
};

// `text` as spec::ParseCacheAppend reads it; planned for `target` with the board that is assumed
// for it. InvalidArgument where the text does not parse.
absl::StatusOr<AppendKernel> MakeAppendKernel(Toolchain& tools, const std::string& text,
                                              const std::string& target);

}  // namespace tilewright::cli

#endif  // TILEWRIGHT_CLI_APPEND_KERNEL_H_
