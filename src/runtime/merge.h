// A merge of parts (tilewright/merge.h) as the kernel attn_combine.
#ifndef TILEWRIGHT_RUNTIME_MERGE_H_
#define TILEWRIGHT_RUNTIME_MERGE_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "emit/param_layout.h"
#include "plan/planner.h"
#include "tilewright/attention.h"
#include "tilewright/merge.h"

namespace tilewright {

// The attention whose rows the merge completes: O of its type, parts of its kv_type.
// InvalidArgument names the field of `merge` that does not fit.
absl::StatusOr<AttentionSpec> AttentionOfMerge(const MergeSpec& merge);

plan::Decision PlanMerge(const AttentionSpec& attention, const std::string& target);

// The sizes of a call as plan::ComputeLaunchShape looks at them.
AttentionArgs AttentionArgsOfMerge(const MergeArgs& args);

// InvalidArgument names the field, its value and the rule.
absl::Status ValidateMergeArgs(const AttentionSpec& attention, const MergeArgs& args);

// Writes layout.size bytes.
void PackMergeArgs(const AttentionSpec& attention, const emit::ParamLayout& layout,
                   const MergeArgs& args, std::byte* params);

}  // namespace tilewright

#endif  // TILEWRIGHT_RUNTIME_MERGE_H_
