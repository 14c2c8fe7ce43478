#include "capi/convert.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "capi/struct_io.h"

namespace tilewright::capi {
namespace {

// The numbers of tilewright_c.h are those of the C++ enumerators.
static_assert(static_cast<int>(ElementType::kFp16) == TW_FP16);
static_assert(static_cast<int>(ElementType::kBf16) == TW_BF16);
static_assert(static_cast<int>(ElementType::kFp32) == TW_FP32);
static_assert(static_cast<int>(ElementType::kFp8E4m3) == TW_FP8_E4M3);
static_assert(static_cast<int>(ElementType::kFp8E5m2) == TW_FP8_E5M2);
static_assert(static_cast<int>(ElementType::kInt8) == TW_INT8);
static_assert(static_cast<int>(ElementType::kBool) == TW_BOOL);
static_assert(static_cast<int>(ElementType::kInt32) == TW_INT32);
static_assert(static_cast<int>(Operation::kForward) == TW_FORWARD);
static_assert(static_cast<int>(Operation::kBackward) == TW_BACKWARD);
static_assert(static_cast<int>(Layout::kBshd) == TW_BSHD);
static_assert(static_cast<int>(Layout::kBhsd) == TW_BHSD);
static_assert(static_cast<int>(Layout::kSbhd) == TW_SBHD);
static_assert(static_cast<int>(Layout::kThd) == TW_THD);
static_assert(static_cast<int>(MaskAlign::kBottomRight) == TW_BOTTOM_RIGHT);
static_assert(static_cast<int>(MaskAlign::kTopLeft) == TW_TOP_LEFT);
static_assert(static_cast<int>(LseBase::kE) == TW_LSE_BASE_E);
static_assert(static_cast<int>(LseBase::kTwo) == TW_LSE_BASE_TWO);
static_assert(static_cast<int>(EmptyLse::kMinusInf) == TW_EMPTY_LSE_MINUS_INF);
static_assert(static_cast<int>(EmptyLse::kPlusInf) == TW_EMPTY_LSE_PLUS_INF);
static_assert(static_cast<int>(ScaleKind::kNone) == TW_SCALE_NONE);
static_assert(static_cast<int>(ScaleKind::kPerTensor) == TW_SCALE_PER_TENSOR);
static_assert(static_cast<int>(ScaleKind::kPerHead) == TW_SCALE_PER_HEAD);
static_assert(static_cast<int>(ScaleKind::kPerToken) == TW_SCALE_PER_TOKEN);
static_assert(static_cast<int>(BatchMap::kMod) == TW_BATCH_MOD);
static_assert(static_cast<int>(BatchMap::kDiv) == TW_BATCH_DIV);
static_assert(static_cast<int>(ScalarType::kFloat) == TW_SCALAR_FLOAT);
static_assert(static_cast<int>(ScalarType::kInt64) == TW_SCALAR_INT64);
static_assert(static_cast<int>(TunePolicy::kFirstRun) == TW_TUNE_FIRST_RUN);
static_assert(static_cast<int>(TunePolicy::kBackground) == TW_TUNE_BACKGROUND);
static_assert(static_cast<int>(TunePolicy::kCachedOnly) == TW_TUNE_CACHED_ONLY);
static_assert(static_cast<int>(TunePolicy::kOff) == TW_TUNE_OFF);
static_assert(static_cast<int>(TunePolicy::kFrozen) == TW_TUNE_FROZEN);
static_assert(static_cast<int>(LogLevel::kDebug) == TW_LOG_DEBUG);
static_assert(static_cast<int>(LogLevel::kInfo) == TW_LOG_INFO);
static_assert(static_cast<int>(LogLevel::kWarning) == TW_LOG_WARNING);
static_assert(static_cast<int>(LogLevel::kError) == TW_LOG_ERROR);
static_assert(static_cast<int>(LogLevel::kOff) == TW_LOG_OFF);

// Most elements that any array of a struct may have; a larger count is a wild one.
constexpr size_t kMaxElements = 1024;

std::string Text(const char* text) { return text == nullptr ? std::string() : std::string(text); }

// `last` is the largest enumerator; the smallest is 0.
absl::Status CheckEnum(const std::string& field, int32_t value, int32_t last) {
  if (value >= 0 && value <= last) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " = ", value, ": must be in [0, ", last, "]"));
}

// `value` is a type of its own, or TW_SAME_TYPE, which leaves `type` as it is.
absl::Status SetType(const std::string& field, int32_t value, std::optional<ElementType>* type) {
  if (value == TW_SAME_TYPE) return absl::OkStatus();
  TILEWRIGHT_RETURN_IF_ERROR(CheckEnum(field, value, TW_INT32));
  *type = static_cast<ElementType>(value);
  return absl::OkStatus();
}

absl::Status CheckArray(const std::string& field, const void* elements, size_t count) {
  if (count > kMaxElements) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_", field, " = ", count, ": must be at most ", kMaxElements));
  }
  if (count > 0 && elements == nullptr) return NullError(field.c_str());
  return absl::OkStatus();
}

// Calls `use` with each of the `count` structs at `elements`, whose distance is the size that the
// first one states.
template <typename Struct, typename Use>
absl::Status ForEachElement(const char* name, const Struct* elements, size_t count,
                            const Struct& defaults, const Use& use) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(elements);
  for (size_t i = 0; i < count; ++i) {
    Struct element;
    TILEWRIGHT_RETURN_IF_ERROR(ReadStruct(name, bytes, defaults, &element));
    TILEWRIGHT_RETURN_IF_ERROR(use(element));
    bytes += element.size;
    if (element.size != elements->size) {
      return absl::InvalidArgumentError(absl::StrCat(name, "[", i, "].size = ", element.size,
                                                     ": must be that of the first element, ",
                                                     elements->size));
    }
  }
  return absl::OkStatus();
}

Strides FromC(const tw_strides& s) { return {s.batch, s.seq, s.head, s.dim}; }
Tensor FromC(const tw_tensor& tensor) { return {tensor.data, FromC(tensor.strides)}; }
tw_strides ToC(const Strides& s) { return {s.batch, s.seq, s.head, s.dim}; }

absl::Status ReadArrays(const tw_spec& c, AttentionSpec* spec) {
  TILEWRIGHT_RETURN_IF_ERROR(CheckArray("bias", c.bias, c.num_bias));
  TILEWRIGHT_RETURN_IF_ERROR(CheckArray("snippet_arrays", c.snippet_arrays, c.num_snippet_arrays));
  TILEWRIGHT_RETURN_IF_ERROR(
      CheckArray("snippet_scalars", c.snippet_scalars, c.num_snippet_scalars));
  TILEWRIGHT_RETURN_IF_ERROR(ForEachElement(
      "tw_bias_term", c.bias, c.num_bias, DefaultBiasTerm(), [&](const tw_bias_term& term) {
        spec->bias.push_back({static_cast<ElementType>(term.type), term.batch, term.heads,
                              term.seqlen_q, term.seqlen_kv, static_cast<BatchMap>(term.batch_map),
                              term.gradient != 0});
        return CheckEnum(absl::StrCat("bias[", spec->bias.size() - 1, "].type"), term.type,
                         TW_INT32);
      }));
  TILEWRIGHT_RETURN_IF_ERROR(ForEachElement(
      "tw_snippet_array", c.snippet_arrays, c.num_snippet_arrays, tw_snippet_array{},
      [&](const tw_snippet_array& array) {
        spec->snippet_arrays.push_back(
            {Text(array.name), static_cast<ElementType>(array.type), array.gradient != 0});
        return CheckEnum(absl::StrCat("snippet_arrays[", spec->snippet_arrays.size() - 1, "].type"),
                         array.type, TW_INT32);
      }));
  return ForEachElement(
      "tw_snippet_scalar", c.snippet_scalars, c.num_snippet_scalars, tw_snippet_scalar{},
      [&](const tw_snippet_scalar& scalar) {
        spec->snippet_scalars.push_back({Text(scalar.name), static_cast<ScalarType>(scalar.type)});
        return CheckEnum(
            absl::StrCat("snippet_scalars[", spec->snippet_scalars.size() - 1, "].type"),
            scalar.type, TW_SCALAR_INT64);
      });
}

}  // namespace

tw_options ToC(const RuntimeOptions& options) {
  tw_options c = {};
  c.size = sizeof(c);
  c.cache_dir = options.cache_dir.c_str();
  c.cache_read_only = options.cache_read_only;
  c.cache_in_memory = options.cache_in_memory;
  c.cache_group_shared = options.cache_group_shared;
  c.device_ordinal = options.device_ordinal;
  c.cache_max_bytes = options.cache_max_bytes;
  c.nvrtc_path = options.nvrtc_path.c_str();
  c.template_dir = options.template_dir.c_str();
  c.family = options.family.c_str();
  c.allow_fallback = options.allow_fallback;
  c.tune_policy = static_cast<int32_t>(options.tune_policy);
  c.tune_budget_ms = options.tune_budget_ms;
  c.tune_total_ms = options.tune_total_ms;
  c.tune_candidates = options.tune_candidates;
  c.tune_max_bytes = options.tune_max_bytes;
  c.churn_per_minute = options.churn_per_minute;
  c.lineinfo = options.lineinfo;
  c.compile_threads = options.compile_threads;
  c.compile_timeout_ms = options.compile_timeout_ms;
  c.isolate_compiler = options.isolate_compiler ? 1 : 0;
  c.compiler_helper = options.compiler_helper.c_str();
  c.lock_timeout_ms = options.lock_timeout_ms;
  c.log_level = static_cast<int32_t>(options.log_level);
  return c;
}

tw_options DefaultOptions() {
  const RuntimeOptions defaults;
  tw_options c = ToC(defaults);
  c.cache_dir = nullptr;
  c.nvrtc_path = nullptr;
  c.template_dir = nullptr;
  c.compiler_helper = nullptr;
  c.family = nullptr;
  return c;
}

tw_spec DefaultSpec() {
  const AttentionSpec defaults;
  tw_spec c = {};
  c.size = sizeof(c);
  c.operation = static_cast<int32_t>(defaults.operation);
  c.type = static_cast<int32_t>(defaults.type);
  c.kv_type = TW_SAME_TYPE;
  c.out_type = TW_SAME_TYPE;
  c.batch = defaults.batch;
  c.heads_q = defaults.heads_q;
  c.heads_kv = defaults.heads_kv;
  c.seqlen_q = defaults.seqlen_q;
  c.seqlen_kv = defaults.seqlen_kv;
  c.dim_qk = defaults.dim_qk;
  c.dim_v = defaults.dim_v;
  c.layout = static_cast<int32_t>(defaults.layout);
  c.align = static_cast<int32_t>(defaults.align);
  c.window_left = defaults.window_left;
  c.window_right = defaults.window_right;
  return c;
}

tw_bias_term DefaultBiasTerm() {
  const BiasTerm defaults;
  tw_bias_term c = {};
  c.size = sizeof(c);
  c.type = static_cast<int32_t>(defaults.type);
  c.batch_map = static_cast<int32_t>(defaults.batch_map);
  c.batch = defaults.batch;
  c.heads = defaults.heads;
  c.seqlen_q = defaults.seqlen_q;
  c.seqlen_kv = defaults.seqlen_kv;
  return c;
}

tw_tune_options DefaultTuneOptions() {
  tw_tune_options c = {};
  c.size = sizeof(c);
  return c;
}

tw_args DefaultArgs() {
  tw_args c = {};
  c.size = sizeof(c);
  for (tw_tensor* tensor : {&c.q, &c.k, &c.v, &c.o, &c.d_o, &c.d_q, &c.d_k, &c.d_v})
    tensor->strides = ToC(Strides());
  return c;
}

tw_counters ToC(const RuntimeCounters& counters) {
  tw_counters c = {};
  c.size = sizeof(c);
  c.prepares = counters.prepares;
  c.memory_hits = counters.memory_hits;
  c.store_hits = counters.store_hits;
  c.store_misses = counters.store_misses;
  c.compiles = counters.compiles;
  c.compile_ms = counters.compile_ms;
  c.loads = counters.loads;
  c.load_rejects = counters.load_rejects;
  c.fallbacks = counters.fallbacks;
  c.capture_refusals = counters.capture_refusals;
  c.evictions = counters.evictions;
  c.compile_failures = counters.compile_failures;
  c.compile_timeouts = counters.compile_timeouts;
  c.compile_cancels = counters.compile_cancels;
  c.helper_crashes = counters.helper_crashes;
  c.store_memory_hits = counters.store_memory_hits;
  c.store_pack_hits = counters.store_pack_hits;
  c.store_disk_hits = counters.store_disk_hits;
  c.misses_absent = counters.misses_absent;
  c.misses_corrupt = counters.misses_corrupt;
  c.misses_foreign = counters.misses_foreign;
  c.misses_differ = counters.misses_differ;
  c.misses_unreadable = counters.misses_unreadable;
  c.publishes = counters.publishes;
  c.publish_ms = counters.publish_ms;
  c.publish_failures = counters.publish_failures;
  c.publish_drops = counters.publish_drops;
  c.store_evictions = counters.store_evictions;
  c.lock_waits = counters.lock_waits;
  c.lock_wait_ms = counters.lock_wait_ms;
  c.lock_timeouts = counters.lock_timeouts;
  c.warnings_suppressed = counters.warnings_suppressed;
  c.tunes = counters.tunes;
  c.tune_ms = counters.tune_ms;
  c.tune_failures = counters.tune_failures;
  c.tune_postponed = counters.tune_postponed;
  c.record_hits = counters.record_hits;
  c.nearest_hits = counters.nearest_hits;
  c.tuned_swaps = counters.tuned_swaps;
  c.churn_alarms = counters.churn_alarms;
  return c;
}

absl::StatusOr<RuntimeOptions> FromC(const tw_options* options) {
  tw_options c;
  TILEWRIGHT_RETURN_IF_ERROR(ReadStruct("tw_options", options, DefaultOptions(), &c));
  TILEWRIGHT_RETURN_IF_ERROR(CheckEnum("tune_policy", c.tune_policy, TW_TUNE_FROZEN));
  TILEWRIGHT_RETURN_IF_ERROR(CheckEnum("log_level", c.log_level, TW_LOG_OFF));
  TILEWRIGHT_RETURN_IF_ERROR(CheckArray("cache_packs", c.cache_packs, c.num_cache_packs));
  if (c.embedded_pack_bytes > 0 && c.embedded_pack == nullptr) return NullError("embedded_pack");
  TILEWRIGHT_RETURN_IF_ERROR(CheckArray("pack_sha256", c.pack_sha256, c.num_pack_sha256));
  RuntimeOptions result;
  result.cache_dir = Text(c.cache_dir);
  for (size_t i = 0; i < c.num_cache_packs; ++i) {
    result.cache_packs.push_back(Text(c.cache_packs[i]));
  }
  result.embedded_pack = {c.embedded_pack, c.embedded_pack_bytes};
  for (size_t i = 0; i < c.num_pack_sha256; ++i) {
    result.pack_sha256.push_back(Text(c.pack_sha256[i]));
  }
  result.cache_read_only = c.cache_read_only != 0;
  result.cache_in_memory = c.cache_in_memory != 0;
  result.cache_group_shared = c.cache_group_shared != 0;
  result.device_ordinal = c.device_ordinal;
  result.cache_max_bytes = c.cache_max_bytes;
  result.nvrtc_path = Text(c.nvrtc_path);
  result.template_dir = Text(c.template_dir);
  result.family = Text(c.family);
  result.allow_fallback = c.allow_fallback != 0;
  result.tune_policy = static_cast<TunePolicy>(c.tune_policy);
  result.tune_budget_ms = c.tune_budget_ms;
  result.tune_total_ms = c.tune_total_ms;
  result.tune_candidates = c.tune_candidates;
  result.tune_max_bytes = c.tune_max_bytes;
  result.churn_per_minute = c.churn_per_minute;
  if (c.device_allocate != nullptr) {
    result.device_allocate = [allocate = c.device_allocate, user = c.device_memory_user](
                                 size_t bytes) { return allocate(user, bytes); };
  }
  if (c.device_release != nullptr) {
    result.device_release = [release = c.device_release,
                             user = c.device_memory_user](void* memory) { release(user, memory); };
  }
  result.lineinfo = c.lineinfo != 0;
  result.compile_threads = c.compile_threads;
  result.compile_timeout_ms = c.compile_timeout_ms;
  result.isolate_compiler = c.isolate_compiler != 0;
  result.compiler_helper = Text(c.compiler_helper);
  result.lock_timeout_ms = c.lock_timeout_ms;
  result.log_level = static_cast<LogLevel>(c.log_level);
  if (c.log_sink != nullptr) {
    result.log_sink = [sink = c.log_sink, user = c.log_user](LogLevel level,
                                                             std::string_view line) {
      sink(user, static_cast<int32_t>(level), line.data(), line.size());
    };
  }
  return result;
}

absl::StatusOr<TuneOptions> FromC(const tw_tune_options* options) {
  TuneOptions result;
  if (options == nullptr) return result;
  tw_tune_options c;
  TILEWRIGHT_RETURN_IF_ERROR(ReadStruct("tw_tune_options", options, DefaultTuneOptions(), &c));
  TILEWRIGHT_RETURN_IF_ERROR(CheckArray("lengths_q", c.lengths_q, c.num_lengths_q));
  TILEWRIGHT_RETURN_IF_ERROR(CheckArray("lengths_kv", c.lengths_kv, c.num_lengths_kv));
  result.budget_ms = c.budget_ms;
  result.max_candidates = c.max_candidates;
  result.force = c.force != 0;
  result.hot = c.hot != 0;
  result.lengths_q.assign(c.lengths_q, c.lengths_q + c.num_lengths_q);
  result.lengths_kv.assign(c.lengths_kv, c.lengths_kv + c.num_lengths_kv);
  if (c.progress != nullptr) {
    result.progress = [observer = c.progress,
                       user = c.progress_user](const TuneProgress& progress) {
      tw_tune_progress now = {};
      now.size = sizeof(now);
      now.candidates = progress.candidates;
      now.settled = progress.settled;
      now.rounds = progress.rounds;
      now.done = progress.done ? 1 : 0;
      now.elapsed_ms = progress.elapsed_ms;
      now.budget_ms = progress.budget_ms;
      now.best_relative = progress.best_relative;
      now.best = progress.best.c_str();
      observer(user, &now);
    };
  }
  return result;
}

absl::StatusOr<AttentionSpec> FromC(const tw_spec* c_spec) {
  tw_spec c;
  TILEWRIGHT_RETURN_IF_ERROR(ReadStruct("tw_spec", c_spec, DefaultSpec(), &c));
  TILEWRIGHT_RETURN_IF_ERROR(CheckEnum("type", c.type, TW_INT32));
  AttentionSpec spec;
  spec.operation = static_cast<Operation>(c.operation);
  spec.type = static_cast<ElementType>(c.type);
  TILEWRIGHT_RETURN_IF_ERROR(SetType("kv_type", c.kv_type, &spec.kv_type));
  TILEWRIGHT_RETURN_IF_ERROR(SetType("out_type", c.out_type, &spec.out_type));
  spec.batch = c.batch;
  spec.heads_q = c.heads_q;
  spec.heads_kv = c.heads_kv;
  spec.seqlen_q = c.seqlen_q;
  spec.seqlen_kv = c.seqlen_kv;
  spec.dim_qk = c.dim_qk;
  spec.dim_v = c.dim_v;
  spec.layout = static_cast<Layout>(c.layout);
  spec.strided_innermost = c.strided_innermost != 0;
  if (c.strides != nullptr) {
    spec.strides = {FromC(c.strides[0]), FromC(c.strides[1]), FromC(c.strides[2]),
                    FromC(c.strides[3])};
  }
  spec.causal = c.causal != 0;
  spec.align = static_cast<MaskAlign>(c.align);
  spec.window_left = c.window_left;
  spec.window_right = c.window_right;
  spec.block_mask_q = c.block_mask_q;
  spec.block_mask_kv = c.block_mask_kv;
  if (c.has_scale != 0) spec.scale = c.scale;
  spec.softcap = c.softcap;
  spec.softcap_before_bias = c.softcap_before_bias != 0;
  spec.alibi = c.alibi != 0;
  spec.sinks = c.sinks != 0;
  spec.dropout = c.dropout;
  spec.q_scale = static_cast<ScaleKind>(c.q_scale);
  spec.kv_scale = static_cast<ScaleKind>(c.kv_scale);
  spec.varlen = c.varlen != 0;
  spec.score_snippet = {Text(c.score_snippet), Text(c.score_snippet_file)};
  spec.score_gradient_snippet = {Text(c.score_gradient_snippet),
                                 Text(c.score_gradient_snippet_file)};
  spec.alibi_gradient = c.alibi_gradient != 0;
  spec.sinks_gradient = c.sinks_gradient != 0;
  spec.mask_snippet = {Text(c.mask_snippet), Text(c.mask_snippet_file)};
  spec.mask_tile_snippet = {Text(c.mask_tile_snippet), Text(c.mask_tile_snippet_file)};
  spec.page_size = c.page_size;
  spec.lse = c.lse != 0;
  spec.lse_base = static_cast<LseBase>(c.lse_base);
  spec.empty_lse = static_cast<EmptyLse>(c.empty_lse);
  spec.allow_tf32 = c.allow_tf32 != 0;
  spec.deterministic = c.deterministic != 0;
  spec.batch_invariant = c.batch_invariant != 0;
  spec.exact = c.exact != 0;
  spec.left_padding = c.left_padding != 0;
  spec.cache_batch_idx = c.cache_batch_idx != 0;
  TILEWRIGHT_RETURN_IF_ERROR(ReadArrays(c, &spec));
  return spec;
}

absl::Status FromC(const tw_args* c_args, AttentionArgs* out) {
  tw_args c;
  TILEWRIGHT_RETURN_IF_ERROR(ReadStruct("tw_args", c_args, DefaultArgs(), &c));
  out->batch = c.batch;
  out->seqlen_q = c.seqlen_q;
  out->seqlen_kv = c.seqlen_kv;
  out->q = FromC(c.q);
  out->k = FromC(c.k);
  out->v = FromC(c.v);
  out->o = {c.o.data, FromC(c.o.strides)};
  out->lse = c.lse;
  out->lse_stride_batch = c.lse_stride_batch;
  out->lse_stride_head = c.lse_stride_head;
  out->cu_seqlens_q = c.cu_seqlens_q;
  out->cu_seqlens_kv = c.cu_seqlens_kv;
  out->seqused_kv = c.seqused_kv;
  out->seqused_q = c.seqused_q;
  out->left_padding = c.left_padding;
  out->cache_batch_idx = c.cache_batch_idx;
  out->total_q = c.total_q;
  out->total_kv = c.total_kv;
  out->page_table = c.page_table;
  out->page_table_stride = c.page_table_stride;
  out->alibi_slopes = c.alibi_slopes;
  out->alibi_stride_batch = c.alibi_stride_batch;
  for (size_t i = 0; i < out->bias.size(); ++i) {
    out->bias[i] = {c.bias[i].data, c.bias[i].stride_batch, c.bias[i].stride_head,
                    c.bias[i].stride_q, c.bias[i].stride_kv};
  }
  out->sinks = c.sinks;
  out->block_mask = c.block_mask;
  std::copy_n(c.block_mask_strides, 3, out->block_mask_strides.begin());
  out->q_scale = c.q_scale;
  out->k_scale = c.k_scale;
  out->v_scale = c.v_scale;
  std::copy_n(c.k_scale_strides, 3, out->k_scale_strides.begin());
  std::copy_n(c.v_scale_strides, 3, out->v_scale_strides.begin());
  out->dropout_seed = c.dropout_seed;
  out->dropout_offset = c.dropout_offset;
  out->dropout_seed_ptr = c.dropout_seed_ptr;
  out->dropout_offset_ptr = c.dropout_offset_ptr;
  std::copy_n(c.snippet_arrays, 8, out->snippet_arrays.begin());
  for (size_t i = 0; i < out->snippet_scalars.size(); ++i) {
    out->snippet_scalars[i].i = c.snippet_scalars[i].i;
  }
  out->workspace = c.workspace;
  out->d_o = FromC(c.d_o);
  out->d_q = {c.d_q.data, FromC(c.d_q.strides)};
  out->d_k = {c.d_k.data, FromC(c.d_k.strides)};
  out->d_v = {c.d_v.data, FromC(c.d_v.strides)};
  out->d_alibi_slopes = c.d_alibi_slopes;
  for (size_t i = 0; i < out->d_bias.size(); ++i) {
    out->d_bias[i] = {c.d_bias[i].data, c.d_bias[i].stride_batch, c.d_bias[i].stride_head,
                      c.d_bias[i].stride_q, c.d_bias[i].stride_kv};
  }
  out->d_sinks = c.d_sinks;
  std::copy_n(c.d_snippet_arrays, 8, out->d_snippet_arrays.begin());
  return absl::OkStatus();
}

tw_merge_spec DefaultMergeSpec() {
  const MergeSpec defaults;
  tw_merge_spec c = {};
  c.size = sizeof(c);
  c.part_type = static_cast<int32_t>(defaults.part_type);
  c.out_type = static_cast<int32_t>(defaults.out_type);
  c.heads = defaults.heads;
  c.dim_v = defaults.dim_v;
  c.lse = defaults.lse ? 1 : 0;
  c.lse_base = static_cast<int32_t>(defaults.lse_base);
  c.empty_lse = static_cast<int32_t>(defaults.empty_lse);
  return c;
}

tw_merge_args DefaultMergeArgs() {
  tw_merge_args c = {};
  c.size = sizeof(c);
  c.o_parts.strides.dim = c.o.strides.dim = 1;
  return c;
}

absl::StatusOr<MergeSpec> FromC(const tw_merge_spec* spec) {
  tw_merge_spec c;
  TILEWRIGHT_RETURN_IF_ERROR(ReadStruct("tw_merge_spec", spec, DefaultMergeSpec(), &c));
  TILEWRIGHT_RETURN_IF_ERROR(CheckEnum("part_type", c.part_type, TW_BOOL));
  TILEWRIGHT_RETURN_IF_ERROR(CheckEnum("out_type", c.out_type, TW_BOOL));
  TILEWRIGHT_RETURN_IF_ERROR(CheckEnum("lse_base", c.lse_base, TW_LSE_BASE_TWO));
  TILEWRIGHT_RETURN_IF_ERROR(CheckEnum("empty_lse", c.empty_lse, TW_EMPTY_LSE_PLUS_INF));
  return MergeSpec{.part_type = static_cast<ElementType>(c.part_type),
                   .out_type = static_cast<ElementType>(c.out_type),
                   .heads = c.heads,
                   .dim_v = c.dim_v,
                   .lse = c.lse != 0,
                   .lse_base = static_cast<LseBase>(c.lse_base),
                   .empty_lse = static_cast<EmptyLse>(c.empty_lse)};
}

absl::StatusOr<MergeArgs> FromC(const tw_merge_args* args) {
  tw_merge_args c;
  TILEWRIGHT_RETURN_IF_ERROR(ReadStruct("tw_merge_args", args, DefaultMergeArgs(), &c));
  return MergeArgs{.parts = c.parts,
                   .batch = c.batch,
                   .seqlen_q = c.seqlen_q,
                   .o_parts = {c.o_parts.data, FromC(c.o_parts.strides)},
                   .o_stride_part = c.o_stride_part,
                   .lse_parts = c.lse_parts,
                   .lse_stride_part = c.lse_stride_part,
                   .lse_stride_batch = c.lse_stride_batch,
                   .lse_stride_head = c.lse_stride_head,
                   .o = {c.o.data, FromC(c.o.strides)},
                   .lse = c.lse,
                   .lse_out_stride_batch = c.lse_out_stride_batch,
                   .lse_out_stride_head = c.lse_out_stride_head};
}

tw_append_spec DefaultAppendSpec() {
  const CacheAppendSpec defaults;
  tw_append_spec c = {};
  c.size = sizeof(c);
  c.type = static_cast<int32_t>(defaults.type);
  c.cache_type = TW_SAME_TYPE;
  c.heads_q = defaults.heads_q;
  c.heads_kv = defaults.heads_kv;
  c.dim_qk = defaults.dim_qk;
  c.dim_v = defaults.dim_v;
  c.rotary_base = defaults.rotary_base;
  c.rotary_table = TW_SAME_TYPE;
  return c;
}

tw_append_args DefaultAppendArgs() {
  tw_append_args c = {};
  c.size = sizeof(c);
  for (tw_tensor* tensor : {&c.q, &c.q_out, &c.k, &c.v, &c.k_cache, &c.v_cache}) {
    tensor->strides.dim = 1;
  }
  return c;
}

absl::StatusOr<CacheAppendSpec> FromC(const tw_append_spec* spec) {
  tw_append_spec c;
  TILEWRIGHT_RETURN_IF_ERROR(ReadStruct("tw_append_spec", spec, DefaultAppendSpec(), &c));
  TILEWRIGHT_RETURN_IF_ERROR(CheckEnum("type", c.type, TW_INT32));
  CacheAppendSpec out;
  out.type = static_cast<ElementType>(c.type);
  TILEWRIGHT_RETURN_IF_ERROR(SetType("cache_type", c.cache_type, &out.cache_type));
  TILEWRIGHT_RETURN_IF_ERROR(SetType("rotary_table", c.rotary_table, &out.rotary_table));
  out.cache_scale = static_cast<ScaleKind>(c.cache_scale);
  out.rotary = static_cast<Rotary>(c.rotary);
  out.heads_q = c.heads_q;
  out.heads_kv = c.heads_kv;
  out.dim_qk = c.dim_qk;
  out.dim_v = c.dim_v;
  out.page_size = c.page_size;
  out.rotary_begin = c.rotary_begin;
  out.rotary_dim = c.rotary_dim;
  out.rotary_base = c.rotary_base;
  return out;
}

absl::StatusOr<CacheAppendArgs> FromC(const tw_append_args* args) {
  tw_append_args c;
  TILEWRIGHT_RETURN_IF_ERROR(ReadStruct("tw_append_args", args, DefaultAppendArgs(), &c));
  CacheAppendArgs out;
  out.batch = c.batch;
  out.seqlen = c.seqlen;
  out.total = c.total;
  out.q = FromC(c.q);
  out.q_out = {c.q_out.data, FromC(c.q_out.strides)};
  out.k = FromC(c.k);
  out.v = FromC(c.v);
  out.cu_seqlens = c.cu_seqlens;
  out.seqused = c.seqused;
  out.positions = c.positions;
  out.k_cache = {c.k_cache.data, FromC(c.k_cache.strides)};
  out.v_cache = {c.v_cache.data, FromC(c.v_cache.strides)};
  out.capacity = c.capacity;
  out.page_table = c.page_table;
  out.page_table_stride = c.page_table_stride;
  out.cache_batch_idx = c.cache_batch_idx;
  out.k_scale = c.k_scale;
  out.v_scale = c.v_scale;
  std::copy_n(c.k_scale_strides, 3, out.k_scale_strides.begin());
  std::copy_n(c.v_scale_strides, 3, out.v_scale_strides.begin());
  out.seqused_kv = c.seqused_kv;
  out.new_seqused_kv = c.new_seqused_kv;
  out.ticket = c.ticket;
  out.cos = c.cos;
  out.sin = c.sin;
  out.rotary_stride = c.rotary_stride;
  return out;
}

}  // namespace tilewright::capi
