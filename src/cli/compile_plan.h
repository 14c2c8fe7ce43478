// tilewright compile --plan: the kernels that callers of a spec with other sizes can reach.
#ifndef TILEWRIGHT_CLI_COMPILE_PLAN_H_
#define TILEWRIGHT_CLI_COMPILE_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/command.h"
#include "cli/toolchain.h"
#include "tilewright/attention.h"

namespace tilewright::cli {

struct PlannedKernel {
  std::string plan;
  std::string key;         // 64 hex digits
  int64_t default_of = 0;  // buckets whose default it is; 0: only a measurement can choose it
  std::string example;     // the first such bucket, else the first that may be measured with it
};

// Every kernel that Prepare may choose for `spec` with any batch up to `max_batch` and lengths up
// to `max_seqlen`, whatever the records say: the defaults first, by how many buckets they serve.
// Plans that share their kernel count once.
absl::StatusOr<std::vector<PlannedKernel>> PlanKernels(Toolchain& tools, const AttentionSpec& spec,
                                                       const std::string& target, int64_t max_batch,
                                                       int64_t max_seqlen);

// The command: a table, or {"command", "ok", "specs": [{"spec", "target", "planned", "defaults",
// "kernels"}]}.
int ListPlannedKernels(Toolchain& tools, const std::vector<std::string>& specs,
                       const std::vector<std::string>& targets, int64_t max_batch,
                       int64_t max_seqlen, const Console& console);

}  // namespace tilewright::cli

#endif  // TILEWRIGHT_CLI_COMPILE_PLAN_H_
