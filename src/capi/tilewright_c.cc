#include "tilewright/tilewright_c.h"

#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "capi/convert.h"
#include "capi/struct_io.h"
#include "tilewright/runtime.h"
#include "tilewright/version.h"

struct tw_runtime {
  std::unique_ptr<tilewright::Runtime> runtime;
};

struct tw_attention {
  explicit tw_attention(tilewright::PreparedAttention prepared) : prepared(std::move(prepared)) {}

  const tilewright::PreparedAttention prepared;
  mutable std::once_flag explained;
  mutable std::string explanation;
};

namespace tilewright::capi {
namespace {

// What tw_last_error and tw_last_error_log return. A literal stands in where memory has run out.
struct LastError {
  std::string text;
  std::string log;
  const char* literal = nullptr;
};

LastError& ThreadError() {
  thread_local LastError error;
  return error;
}

tw_status ToCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kCancelled:
      return TW_CANCELLED;
    case absl::StatusCode::kDeadlineExceeded:
      return TW_DEADLINE_EXCEEDED;
    case absl::StatusCode::kInvalidArgument:
      return TW_INVALID_ARGUMENT;
    case absl::StatusCode::kNotFound:
      return TW_NOT_FOUND;
    case absl::StatusCode::kResourceExhausted:
      return TW_RESOURCE_EXHAUSTED;
    case absl::StatusCode::kFailedPrecondition:
      return TW_FAILED_PRECONDITION;
    case absl::StatusCode::kUnimplemented:
      return TW_UNIMPLEMENTED;
    case absl::StatusCode::kUnavailable:
      return TW_UNAVAILABLE;
    default:
      return TW_INTERNAL;
  }
}

tw_status Fail(tw_status code, const char* literal) noexcept {
  LastError& error = ThreadError();
  error.literal = literal;
  error.log.clear();
  return code;
}

tw_status Report(const absl::Status& status) {
  if (status.ok()) return TW_OK;
  LastError& error = ThreadError();
  error.text = std::string(status.message());
  error.log.clear();
  if (const auto log = status.GetPayload("tilewright/compile_log")) {
    error.log = std::string(*log);
  }
  error.literal = nullptr;
  return ToCode(status.code());
}

// Runs `body`, which returns a Status. The library does not throw, but what it builds on may: out
// of memory, above all.
template <typename Body>
tw_status Guarded(const Body& body) noexcept {
  try {
    return Report(body());
  } catch (const std::bad_alloc&) {
    return Fail(TW_RESOURCE_EXHAUSTED, "out of host memory");
  } catch (...) {
    return Fail(TW_INTERNAL, "an exception reached the C interface");
  }
}

absl::Status CheckText(const char* what, const char* text) {
  return text == nullptr ? NullError(what) : absl::OkStatus();
}

absl::Status PrepareInto(tw_runtime* runtime, const AttentionSpec& spec, void* stream,
                         tw_attention** attention) {
  TILEWRIGHT_ASSIGN_OR_RETURN(PreparedAttention prepared,
                              runtime->runtime->Prepare(spec, static_cast<Stream>(stream)));
  *attention = new tw_attention(std::move(prepared));
  return absl::OkStatus();
}

// The record stays for the thread's next call.
absl::Status TuneInto(tw_runtime* runtime, const AttentionSpec& spec,
                      const tw_tune_options* options, void* stream, const char** record) {
  thread_local TuneResult held;
  TILEWRIGHT_ASSIGN_OR_RETURN(const TuneOptions how, FromC(options));
  TILEWRIGHT_ASSIGN_OR_RETURN(held, runtime->runtime->Tune(spec, how, static_cast<Stream>(stream)));
  if (record != nullptr) *record = held.record.c_str();
  return absl::OkStatus();
}

}  // namespace
}  // namespace tilewright::capi

using tilewright::AttentionArgs;
using tilewright::AttentionSpec;
using tilewright::CacheAppendArgs;
using tilewright::CacheAppendSpec;
using tilewright::MergeArgs;
using tilewright::MergeSpec;
using tilewright::PreparedAttention;
using tilewright::RuntimeOptions;
using tilewright::Stream;
using tilewright::capi::DefaultAppendArgs;
using tilewright::capi::DefaultAppendSpec;
using tilewright::capi::DefaultMergeArgs;
using tilewright::capi::DefaultMergeSpec;
using tilewright::capi::FromC;
using tilewright::capi::Guarded;
using tilewright::capi::NullError;
using tilewright::capi::ToC;
using tilewright::capi::WriteStruct;

extern "C" {

TW_API const char* tw_status_name(tw_status status) {
  switch (status) {
    case TW_OK:
      return "TW_OK";
    case TW_CANCELLED:
      return "TW_CANCELLED";
    case TW_DEADLINE_EXCEEDED:
      return "TW_DEADLINE_EXCEEDED";
    case TW_INVALID_ARGUMENT:
      return "TW_INVALID_ARGUMENT";
    case TW_NOT_FOUND:
      return "TW_NOT_FOUND";
    case TW_RESOURCE_EXHAUSTED:
      return "TW_RESOURCE_EXHAUSTED";
    case TW_FAILED_PRECONDITION:
      return "TW_FAILED_PRECONDITION";
    case TW_UNIMPLEMENTED:
      return "TW_UNIMPLEMENTED";
    case TW_INTERNAL:
      return "TW_INTERNAL";
    case TW_UNAVAILABLE:
      return "TW_UNAVAILABLE";
    default:
      return "TW_UNKNOWN";
  }
}

TW_API const char* tw_last_error(void) {
  const auto& error = tilewright::capi::ThreadError();
  return error.literal != nullptr ? error.literal : error.text.c_str();
}

TW_API const char* tw_last_error_log(void) { return tilewright::capi::ThreadError().log.c_str(); }

TW_API const char* tw_version(void) { return TILEWRIGHT_VERSION_STRING; }

TW_API tw_status tw_options_init(tw_options* options, size_t size) {
  return Guarded(
      [&] { return WriteStruct("tw_options", options, size, tilewright::capi::DefaultOptions()); });
}

TW_API tw_status tw_options_from_environment(tw_options* options, size_t size) {
  return Guarded([&]() -> absl::Status {
    thread_local RuntimeOptions held;
    thread_local std::vector<const char*> packs;
    thread_local std::vector<const char*> digests;
    TILEWRIGHT_ASSIGN_OR_RETURN(held, RuntimeOptions::FromEnvironment());
    packs.clear();
    digests.clear();
    for (const std::string& pack : held.cache_packs) packs.push_back(pack.c_str());
    tw_options c = ToC(held);
    c.cache_packs = packs.data();
    c.num_cache_packs = packs.size();
    for (const std::string& digest : held.pack_sha256) digests.push_back(digest.c_str());
    c.pack_sha256 = digests.data();
    c.num_pack_sha256 = digests.size();
    return WriteStruct("tw_options", options, size, c);
  });
}

TW_API tw_status tw_spec_init(tw_spec* spec, size_t size) {
  return Guarded(
      [&] { return WriteStruct("tw_spec", spec, size, tilewright::capi::DefaultSpec()); });
}

TW_API tw_status tw_bias_term_init(tw_bias_term* term, size_t size) {
  return Guarded(
      [&] { return WriteStruct("tw_bias_term", term, size, tilewright::capi::DefaultBiasTerm()); });
}

TW_API tw_status tw_args_init(tw_args* args, size_t size) {
  return Guarded(
      [&] { return WriteStruct("tw_args", args, size, tilewright::capi::DefaultArgs()); });
}

TW_API tw_status tw_dense_strides(int32_t layout, int64_t batch, int64_t seqlen, int64_t heads,
                                  int64_t dim, tw_strides* strides) {
  return Guarded([&]() -> absl::Status {
    if (strides == nullptr) return NullError("strides");
    if (layout < TW_BSHD || layout > TW_THD) {
      return absl::InvalidArgumentError(
          absl::StrCat("layout = ", layout, ": must be in [", TW_BSHD, ", ", TW_THD, "]"));
    }
    const tilewright::Strides dense = tilewright::DenseStrides(
        static_cast<tilewright::Layout>(layout), batch, seqlen, heads, dim);
    *strides = {dense.batch, dense.seq, dense.head, dense.dim};
    return absl::OkStatus();
  });
}

TW_API tw_status tw_runtime_create(const tw_options* options, tw_runtime** runtime) {
  return Guarded([&]() -> absl::Status {
    if (runtime == nullptr) return NullError("runtime");
    RuntimeOptions converted;
    if (options == nullptr) {
      TILEWRIGHT_ASSIGN_OR_RETURN(converted, RuntimeOptions::FromEnvironment());
    } else {
      TILEWRIGHT_ASSIGN_OR_RETURN(converted, FromC(options));
    }
    TILEWRIGHT_ASSIGN_OR_RETURN(auto created, tilewright::Runtime::Create(converted));
    *runtime = new tw_runtime{std::move(created)};
    return absl::OkStatus();
  });
}

TW_API void tw_runtime_destroy(tw_runtime* runtime) { delete runtime; }

TW_API tw_status tw_prepare(tw_runtime* runtime, const tw_spec* spec, void* stream,
                            tw_attention** attention) {
  return Guarded([&]() -> absl::Status {
    if (runtime == nullptr) return NullError("runtime");
    if (attention == nullptr) return NullError("attention");
    TILEWRIGHT_ASSIGN_OR_RETURN(const AttentionSpec converted, FromC(spec));
    return tilewright::capi::PrepareInto(runtime, converted, stream, attention);
  });
}

TW_API tw_status tw_prepare_text(tw_runtime* runtime, const char* spec, void* stream,
                                 tw_attention** attention) {
  return Guarded([&]() -> absl::Status {
    if (runtime == nullptr) return NullError("runtime");
    if (attention == nullptr) return NullError("attention");
    TILEWRIGHT_RETURN_IF_ERROR(tilewright::capi::CheckText("spec", spec));
    TILEWRIGHT_ASSIGN_OR_RETURN(const AttentionSpec parsed, tilewright::ParseSpec(spec));
    return tilewright::capi::PrepareInto(runtime, parsed, stream, attention);
  });
}

TW_API void tw_attention_destroy(tw_attention* attention) { delete attention; }

TW_API tw_status tw_warmup(tw_runtime* runtime, const tw_spec* const* specs, size_t num_specs) {
  return Guarded([&]() -> absl::Status {
    if (runtime == nullptr) return NullError("runtime");
    if (specs == nullptr && num_specs > 0) return NullError("specs");
    std::vector<AttentionSpec> converted;
    for (size_t i = 0; i < num_specs; ++i) {
      TILEWRIGHT_ASSIGN_OR_RETURN(AttentionSpec spec, FromC(specs[i]));
      converted.push_back(std::move(spec));
    }
    return runtime->runtime->Warmup(converted);
  });
}

TW_API tw_status tw_run(const tw_runtime* runtime, const tw_attention* attention,
                        const tw_args* args, void* stream) {
  return Guarded([&]() -> absl::Status {
    if (runtime == nullptr) return NullError("runtime");
    if (attention == nullptr) return NullError("attention");
    AttentionArgs converted;
    TILEWRIGHT_RETURN_IF_ERROR(FromC(args, &converted));
    return runtime->runtime->Run(attention->prepared, converted, static_cast<Stream>(stream));
  });
}

TW_API tw_status tw_attention_once(tw_runtime* runtime, const tw_spec* spec, const tw_args* args,
                                   void* stream) {
  return Guarded([&]() -> absl::Status {
    if (runtime == nullptr) return NullError("runtime");
    TILEWRIGHT_ASSIGN_OR_RETURN(const AttentionSpec converted_spec, FromC(spec));
    AttentionArgs converted_args;
    TILEWRIGHT_RETURN_IF_ERROR(FromC(args, &converted_args));
    return tilewright::Attention(*runtime->runtime, converted_spec, converted_args,
                                 static_cast<Stream>(stream));
  });
}

TW_API tw_status tw_workspace_bytes(const tw_attention* attention, const tw_args* args,
                                    size_t* bytes) {
  return Guarded([&]() -> absl::Status {
    if (attention == nullptr) return NullError("attention");
    if (bytes == nullptr) return NullError("bytes");
    AttentionArgs converted;
    TILEWRIGHT_RETURN_IF_ERROR(FromC(args, &converted));
    TILEWRIGHT_ASSIGN_OR_RETURN(*bytes, attention->prepared.workspace_bytes(converted));
    return absl::OkStatus();
  });
}

TW_API const char* tw_spec_text(const tw_attention* attention) {
  return attention == nullptr ? "" : attention->prepared.spec_text().c_str();
}

TW_API const char* tw_explain(const tw_attention* attention) {
  if (attention == nullptr) return "";
  const tw_status status = Guarded([&] {
    std::call_once(attention->explained,
                   [&] { attention->explanation = attention->prepared.Explain(); });
    return absl::OkStatus();
  });
  return status == TW_OK ? attention->explanation.c_str() : "";
}

TW_API tw_status tw_runtime_counters(const tw_runtime* runtime, tw_counters* counters) {
  return Guarded([&]() -> absl::Status {
    if (runtime == nullptr) return NullError("runtime");
    if (counters == nullptr) return NullError("counters");
    return WriteStruct("tw_counters", counters, counters->size, ToC(runtime->runtime->counters()));
  });
}

TW_API tw_status tw_tune_options_init(tw_tune_options* options, size_t size) {
  return Guarded([&] {
    return WriteStruct("tw_tune_options", options, size, tilewright::capi::DefaultTuneOptions());
  });
}

TW_API tw_status tw_tune(tw_runtime* runtime, const tw_spec* spec, const tw_tune_options* options,
                         void* stream, const char** record) {
  return Guarded([&]() -> absl::Status {
    if (runtime == nullptr) return NullError("runtime");
    TILEWRIGHT_ASSIGN_OR_RETURN(const AttentionSpec converted, FromC(spec));
    return tilewright::capi::TuneInto(runtime, converted, options, stream, record);
  });
}

TW_API tw_status tw_tune_text(tw_runtime* runtime, const char* spec, const tw_tune_options* options,
                              void* stream, const char** record) {
  return Guarded([&]() -> absl::Status {
    if (runtime == nullptr) return NullError("runtime");
    TILEWRIGHT_RETURN_IF_ERROR(tilewright::capi::CheckText("spec", spec));
    TILEWRIGHT_ASSIGN_OR_RETURN(const AttentionSpec parsed, tilewright::ParseSpec(spec));
    return tilewright::capi::TuneInto(runtime, parsed, options, stream, record);
  });
}

TW_API tw_status tw_wait_for_tuning(tw_runtime* runtime, int32_t timeout_ms, int32_t* idle) {
  return Guarded([&]() -> absl::Status {
    if (runtime == nullptr) return NullError("runtime");
    if (idle == nullptr) return NullError("idle");
    *idle = runtime->runtime->WaitForTuning(timeout_ms) ? 1 : 0;
    return absl::OkStatus();
  });
}

TW_API tw_status tw_merge_spec_init(tw_merge_spec* spec, size_t size) {
  return Guarded([&] { return WriteStruct("tw_merge_spec", spec, size, DefaultMergeSpec()); });
}

TW_API tw_status tw_merge_args_init(tw_merge_args* args, size_t size) {
  return Guarded([&] { return WriteStruct("tw_merge_args", args, size, DefaultMergeArgs()); });
}

TW_API tw_status tw_prepare_merge(tw_runtime* runtime, const tw_merge_spec* spec, void* stream,
                                  tw_attention** merge) {
  return Guarded([&]() -> absl::Status {
    if (runtime == nullptr) return NullError("runtime");
    if (merge == nullptr) return NullError("merge");
    TILEWRIGHT_ASSIGN_OR_RETURN(const MergeSpec converted, FromC(spec));
    TILEWRIGHT_ASSIGN_OR_RETURN(
        PreparedAttention prepared,
        runtime->runtime->PrepareMerge(converted, static_cast<Stream>(stream)));
    *merge = new tw_attention(std::move(prepared));
    return absl::OkStatus();
  });
}

TW_API tw_status tw_merge(const tw_runtime* runtime, const tw_attention* merge,
                          const tw_merge_args* args, void* stream) {
  return Guarded([&]() -> absl::Status {
    if (runtime == nullptr) return NullError("runtime");
    if (merge == nullptr) return NullError("merge");
    TILEWRIGHT_ASSIGN_OR_RETURN(const MergeArgs converted, FromC(args));
    return runtime->runtime->Merge(merge->prepared, converted, static_cast<Stream>(stream));
  });
}

TW_API tw_status tw_append_spec_init(tw_append_spec* spec, size_t size) {
  return Guarded([&] { return WriteStruct("tw_append_spec", spec, size, DefaultAppendSpec()); });
}

TW_API tw_status tw_append_args_init(tw_append_args* args, size_t size) {
  return Guarded([&] { return WriteStruct("tw_append_args", args, size, DefaultAppendArgs()); });
}

TW_API tw_status tw_prepare_append(tw_runtime* runtime, const tw_append_spec* spec, void* stream,
                                   tw_attention** append) {
  return Guarded([&]() -> absl::Status {
    if (runtime == nullptr) return NullError("runtime");
    if (append == nullptr) return NullError("append");
    TILEWRIGHT_ASSIGN_OR_RETURN(const CacheAppendSpec converted, FromC(spec));
    TILEWRIGHT_ASSIGN_OR_RETURN(
        PreparedAttention prepared,
        runtime->runtime->PrepareAppend(converted, static_cast<Stream>(stream)));
    *append = new tw_attention(std::move(prepared));
    return absl::OkStatus();
  });
}

TW_API tw_status tw_append(const tw_runtime* runtime, const tw_attention* append,
                           const tw_append_args* args, void* stream) {
  return Guarded([&]() -> absl::Status {
    if (runtime == nullptr) return NullError("runtime");
    if (append == nullptr) return NullError("append");
    TILEWRIGHT_ASSIGN_OR_RETURN(const CacheAppendArgs converted, FromC(args));
    return runtime->runtime->Append(append->prepared, converted, static_cast<Stream>(stream));
  });
}

TW_API tw_status tw_cancel_compiles(tw_runtime* runtime) {
  return Guarded([&]() -> absl::Status {
    if (runtime == nullptr) return NullError("runtime");
    runtime->runtime->CancelCompiles();
    return absl::OkStatus();
  });
}

TW_API tw_status tw_flush(tw_runtime* runtime) {
  return Guarded([&]() -> absl::Status {
    if (runtime == nullptr) return NullError("runtime");
    runtime->runtime->Flush();
    return absl::OkStatus();
  });
}

}  // extern "C"
