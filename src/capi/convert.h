// Structs of the C interface as the types of the C++ one, and back.
#ifndef TILEWRIGHT_CAPI_CONVERT_H_
#define TILEWRIGHT_CAPI_CONVERT_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tilewright/attention.h"
#include "tilewright/options.h"
#include "tilewright/runtime.h"
#include "tilewright/tilewright_c.h"

namespace tilewright::capi {

// The defaults, with `size` set. Strings are null.
tw_options DefaultOptions();
tw_spec DefaultSpec();
tw_bias_term DefaultBiasTerm();
tw_args DefaultArgs();
tw_tune_options DefaultTuneOptions();
tw_merge_spec DefaultMergeSpec();
tw_merge_args DefaultMergeArgs();
tw_append_spec DefaultAppendSpec();
tw_append_args DefaultAppendArgs();

// The pointers of the result are into `options`.
tw_options ToC(const RuntimeOptions& options);
tw_counters ToC(const RuntimeCounters& counters);

// InvalidArgument names the field whose value the C++ type cannot hold. Everything else is for
// spec::Validate and ValidateArgs.
absl::StatusOr<RuntimeOptions> FromC(const tw_options* options);
absl::StatusOr<TuneOptions> FromC(const tw_tune_options* options);
absl::StatusOr<AttentionSpec> FromC(const tw_spec* spec);
absl::Status FromC(const tw_args* args, AttentionArgs* out);
absl::StatusOr<MergeSpec> FromC(const tw_merge_spec* spec);
absl::StatusOr<MergeArgs> FromC(const tw_merge_args* args);
absl::StatusOr<CacheAppendSpec> FromC(const tw_append_spec* spec);
absl::StatusOr<CacheAppendArgs> FromC(const tw_append_args* args);

}  // namespace tilewright::capi

#endif  // TILEWRIGHT_CAPI_CONVERT_H_
