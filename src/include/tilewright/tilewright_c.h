/* The C interface of Tilewright: everything that the C++ interface does, for C11 and for every
 * language that can call C. What the operation computes is in tilewright/attention.h.
 *
 *   tw_runtime* runtime = NULL;
 *   tw_attention* attention = NULL;
 *   tw_args args;
 *   if (tw_runtime_create(NULL, &runtime) != TW_OK ||
 *       tw_prepare_text(runtime, "fwd bf16 b=2 h=16 s=4096 d=128 causal", NULL, &attention) !=
 * TW_OK) fprintf(stderr, "%s\n", tw_last_error()); tw_args_init(&args, sizeof args); args.batch =
 * 2; ... tw_run(runtime, attention, &args, stream);
 *
 * Growth: each struct that is passed by pointer begins with its size as the caller knows it. Fill
 * one with its _init function, which sets the size and the defaults, then set fields. A library
 * that is newer than its caller takes the default for fields beyond that size; one that is older
 * refuses a size that it does not know (TW_INVALID_ARGUMENT) unless the bytes beyond its own are 0.
 * The small value structs inside (tw_strides, tw_tensor, tw_bias_tensor) are final. Enumerations
 * are passed as int32_t; their values never change.
 *
 * Errors: functions that can fail return a tw_status; nothing is written through an output pointer
 * on failure, no exception leaves the library, and no null pointer crashes it. tw_last_error() has
 * the text: the field, its value and the rule that it breaks.
 *
 * Threads: every function may be called from any thread at any time, but a handle must not be
 * destroyed while another call uses it. Error texts belong to the thread.
 */
#ifndef TILEWRIGHT_TILEWRIGHT_C_H_
#define TILEWRIGHT_TILEWRIGHT_C_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define TW_API
#else
#define TW_API __attribute__((visibility("default")))
#endif

/* NOLINTBEGIN(readability-identifier-naming): names of C. */

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status ---------------------------------------------------------------------------------- */

typedef int32_t tw_status;
enum {
  TW_OK = 0,
  TW_CANCELLED = 1,          /* tw_cancel_compiles was called meanwhile */
  TW_INVALID_ARGUMENT = 3,   /* spec, args or options ill formed; a user snippet does not compile */
  TW_DEADLINE_EXCEEDED = 4,  /* a compile took longer than compile_timeout_ms */
  TW_NOT_FOUND = 5,          /* a file that was named */
  TW_RESOURCE_EXHAUSTED = 8, /* no plan fits the device; no memory */
  TW_FAILED_PRECONDITION = 9, /* no device, another context, frozen and not stored, in a capture */
  TW_UNIMPLEMENTED = 12,      /* well formed, but no kernel family serves it */
  TW_INTERNAL = 13,           /* a kernel of the library failed to compile, load or launch */
  TW_UNAVAILABLE = 14         /* the CUDA driver or NVRTC is missing or too old */
};

/* "TW_INVALID_ARGUMENT"; "TW_UNKNOWN" for other numbers. */
TW_API const char* tw_status_name(tw_status status);

/* The text of this thread's last failed call, "" before the first. Valid until the thread's next
 * failing call. */
TW_API const char* tw_last_error(void);

/* The whole compiler log that goes with tw_last_error(), "" when there is none. */
TW_API const char* tw_last_error_log(void);

/* "0.1.0" */
TW_API const char* tw_version(void);

/* ---- options --------------------------------------------------------------------------------- */

enum {
  TW_TUNE_FIRST_RUN = 0,
  TW_TUNE_BACKGROUND = 1,
  TW_TUNE_CACHED_ONLY = 2,
  TW_TUNE_OFF = 3,
  TW_TUNE_FROZEN = 4
};
enum { TW_LOG_DEBUG = 0, TW_LOG_INFO = 1, TW_LOG_WARNING = 2, TW_LOG_ERROR = 3, TW_LOG_OFF = 4 };

/* Receives one event, a line of `length` bytes without a newline. From any thread. */
typedef void (*tw_log_sink)(void* user, int32_t level, const char* line, size_t length);

/* Memory of the device for measurements, from any thread with the device's context current; null
 * when there is none. */
typedef void* (*tw_device_allocate)(void* user, size_t bytes);
typedef void (*tw_device_release)(void* user, void* memory);

/* As RuntimeOptions (tilewright/options.h), field by field. Null strings are empty ones. Strings
 * are copied by tw_runtime_create. */
typedef struct tw_options {
  size_t size;
  const char* cache_dir;
  const char* const* cache_packs; /* num_cache_packs strings */
  size_t num_cache_packs;
  int32_t cache_read_only;
  int32_t cache_in_memory;
  int32_t cache_group_shared;
  int32_t device_ordinal;
  int64_t cache_max_bytes;
  const char* nvrtc_path;
  const char* template_dir;
  int32_t allow_fallback;
  int32_t tune_policy; /* TW_TUNE_... */
  int32_t lineinfo;
  int32_t compile_threads;
  int32_t lock_timeout_ms;
  int32_t log_level;                  /* TW_LOG_... */
  tw_log_sink log_sink;               /* null: stderr */
  void* log_user;                     /* handed to log_sink */
  const unsigned char* embedded_pack; /* embedded_pack_bytes bytes, not copied */
  size_t embedded_pack_bytes;
  const char* const* pack_sha256; /* num_pack_sha256 strings */
  size_t num_pack_sha256;
  const char* compiler_helper;
  int32_t compile_timeout_ms;
  int32_t isolate_compiler;
  const char* family;
  int32_t tune_budget_ms;
  int32_t tune_total_ms;
  int32_t tune_candidates;
  int32_t churn_per_minute;
  int64_t tune_max_bytes;
  tw_device_allocate device_allocate; /* both, or neither */
  tw_device_release device_release;
  void* device_memory_user; /* handed to the two */
} tw_options;

/* The defaults. `size` is sizeof(tw_options). */
TW_API tw_status tw_options_init(tw_options* options, size_t size);

/* The defaults overridden by the TILEWRIGHT_* variables of the environment. The strings stay valid
 * until the thread's next call of this function. TW_INVALID_ARGUMENT names a variable that does not
 * parse. */
TW_API tw_status tw_options_from_environment(tw_options* options, size_t size);

/* ---- what to compute ------------------------------------------------------------------------- */

enum { TW_FORWARD = 0, TW_BACKWARD = 1 };
enum {
  TW_FP16 = 0,
  TW_BF16 = 1,
  TW_FP32 = 2,
  TW_FP8_E4M3 = 3,
  TW_FP8_E5M2 = 4,
  TW_INT8 = 5,
  TW_BOOL = 6,
  TW_INT32 = 7,
  TW_SAME_TYPE = -1 /* kv_type, out_type: as `type` */
};
enum { TW_BSHD = 0, TW_BHSD = 1, TW_SBHD = 2, TW_THD = 3 };
enum { TW_BOTTOM_RIGHT = 0, TW_TOP_LEFT = 1 };
enum { TW_LSE_BASE_E = 0, TW_LSE_BASE_TWO = 1 };
enum { TW_EMPTY_LSE_MINUS_INF = 0, TW_EMPTY_LSE_PLUS_INF = 1 };
enum { TW_SCALE_NONE = 0, TW_SCALE_PER_TENSOR = 1, TW_SCALE_PER_HEAD = 2, TW_SCALE_PER_TOKEN = 3 };
enum { TW_BATCH_MOD = 0, TW_BATCH_DIV = 1 };
enum { TW_SCALAR_FLOAT = 0, TW_SCALAR_INT64 = 1 };

/* In elements. */
typedef struct tw_strides {
  int64_t batch;
  int64_t seq;
  int64_t head;
  int64_t dim;
} tw_strides;

/* Elements of arrays carry their size too, which is also the distance between two of them. */
typedef struct tw_bias_term {
  size_t size;
  int32_t type;      /* TW_FP16, TW_BF16, TW_FP32 or TW_BOOL */
  int32_t batch_map; /* TW_BATCH_... */
  int64_t batch;
  int64_t heads;
  int64_t seqlen_q;
  int64_t seqlen_kv;
  int32_t gradient;
  int32_t reserved; /* 0 */
} tw_bias_term;

typedef struct tw_snippet_array {
  size_t size;
  const char* name;
  int32_t type;
  int32_t gradient;
} tw_snippet_array;

typedef struct tw_snippet_scalar {
  size_t size;
  const char* name;
  int32_t type;     /* TW_SCALAR_... */
  int32_t reserved; /* 0 */
} tw_snippet_scalar;

/* As AttentionSpec (tilewright/attention.h), field by field. Copied by tw_prepare. */
typedef struct tw_spec {
  size_t size;
  int32_t operation;
  int32_t type;
  int32_t kv_type;
  int32_t out_type;
  int64_t batch;
  int64_t heads_q;
  int64_t heads_kv;
  int64_t seqlen_q;
  int64_t seqlen_kv;
  int64_t dim_qk;
  int64_t dim_v;
  int32_t layout;
  int32_t strided_innermost;
  const tw_strides* strides; /* null, or 4: q, k, v, o */
  int32_t causal;
  int32_t align;
  int64_t window_left;
  int64_t window_right;
  int64_t block_mask_q;
  int64_t block_mask_kv;
  int32_t has_scale; /* 0: 1 / sqrt(dim_qk) */
  float scale;
  float softcap;
  int32_t softcap_before_bias;
  int32_t alibi;
  int32_t sinks;
  const tw_bias_term* bias; /* num_bias terms */
  size_t num_bias;
  float dropout;
  int32_t q_scale;  /* TW_SCALE_... */
  int32_t kv_scale; /* TW_SCALE_... */
  int32_t varlen;
  const char* score_snippet; /* null: none */
  const char* score_snippet_file;
  const char* mask_snippet; /* null: none */
  const char* mask_snippet_file;
  const tw_snippet_array* snippet_arrays;
  size_t num_snippet_arrays;
  const tw_snippet_scalar* snippet_scalars;
  size_t num_snippet_scalars;
  int64_t page_size;
  int32_t lse;
  int32_t lse_base;
  int32_t empty_lse;
  int32_t allow_tf32;
  int32_t deterministic;
  int32_t batch_invariant;
  int32_t exact;
  int32_t reserved; /* 0 */
  int32_t alibi_gradient;
  int32_t sinks_gradient;
  const char* score_gradient_snippet; /* null: none */
  const char* score_gradient_snippet_file;
  const char* mask_tile_snippet; /* null: none */
  const char* mask_tile_snippet_file;
  int32_t left_padding;
  int32_t cache_batch_idx;
} tw_spec;

TW_API tw_status tw_spec_init(tw_spec* spec, size_t size);
TW_API tw_status tw_bias_term_init(tw_bias_term* term, size_t size);

/* Strides of a dense [batch, seqlen, heads, dim] tensor stored in `layout` (TW_BSHD, ...). */
TW_API tw_status tw_dense_strides(int32_t layout, int64_t batch, int64_t seqlen, int64_t heads,
                                  int64_t dim, tw_strides* strides);

/* ---- the memory of a call -------------------------------------------------------------------- */

typedef struct tw_tensor {
  void* data; /* of Q, K and V only read */
  tw_strides strides;
} tw_tensor;

typedef struct tw_bias_tensor {
  const void* data;
  int64_t stride_batch;
  int64_t stride_head;
  int64_t stride_q;
  int64_t stride_kv;
} tw_bias_tensor;

typedef struct tw_bias_gradient {
  float* data;
  int64_t stride_batch;
  int64_t stride_head;
  int64_t stride_q;
  int64_t stride_kv;
} tw_bias_gradient;

typedef union tw_snippet_value {
  float f;
  int64_t i;
} tw_snippet_value;

/* As AttentionArgs (tilewright/attention.h), field by field. Pointers are device pointers. */
typedef struct tw_args {
  size_t size;
  int64_t batch;
  int64_t seqlen_q;
  int64_t seqlen_kv;
  tw_tensor q;
  tw_tensor k;
  tw_tensor v;
  tw_tensor o;
  float* lse;
  int64_t lse_stride_batch;
  int64_t lse_stride_head;
  const int32_t* cu_seqlens_q;
  const int32_t* cu_seqlens_kv;
  const int32_t* seqused_kv;
  int64_t total_q;
  int64_t total_kv;
  const int32_t* page_table;
  int64_t page_table_stride;
  const float* alibi_slopes;
  int64_t alibi_stride_batch;
  tw_bias_tensor bias[4];
  const float* sinks;
  const uint8_t* block_mask;
  int64_t block_mask_strides[3];
  const float* q_scale;
  const float* k_scale;
  const float* v_scale;
  int64_t k_scale_strides[3];
  int64_t v_scale_strides[3];
  uint64_t dropout_seed;
  uint64_t dropout_offset;
  const uint64_t* dropout_seed_ptr;
  const uint64_t* dropout_offset_ptr;
  const void* snippet_arrays[8];
  tw_snippet_value snippet_scalars[8];
  void* workspace;
  tw_tensor d_o; /* only read */
  tw_tensor d_q;
  tw_tensor d_k;
  tw_tensor d_v;
  float* d_alibi_slopes;
  tw_bias_gradient d_bias[4];
  float* d_sinks;
  float* d_snippet_arrays[8];
  const int32_t* seqused_q;
  const int32_t* left_padding;
  const int32_t* cache_batch_idx;
} tw_args;

TW_API tw_status tw_args_init(tw_args* args, size_t size);

/* ---- the runtime ----------------------------------------------------------------------------- */

typedef struct tw_runtime tw_runtime;
typedef struct tw_attention tw_attention; /* one prepared operation on one device; immutable */

/* Needs neither a GPU nor CUDA. `options` null: tw_options_from_environment. */
TW_API tw_status tw_runtime_create(const tw_options* options, tw_runtime** runtime);

/* Prepared operations stay usable with another runtime of the process. Null is ignored. */
TW_API void tw_runtime_destroy(tw_runtime* runtime);

/* The kernel for `spec` on the current device. May compile and block. `stream` is a CUstream or
 * cudaStream_t, the one that the caller is about to run on; it is only asked whether it is being
 * captured. */
TW_API tw_status tw_prepare(tw_runtime* runtime, const tw_spec* spec, void* stream,
                            tw_attention** attention);

/* The same for the text form of a spec: "fwd bf16 b=2 h=32/8 s=4096 d=128 causal lse". */
TW_API tw_status tw_prepare_text(tw_runtime* runtime, const char* spec, void* stream,
                                 tw_attention** attention);

/* Null is ignored. */
TW_API void tw_attention_destroy(tw_attention* attention);

/* Prepares each spec, several at a time; the first error is returned after all have been tried. */
TW_API tw_status tw_warmup(tw_runtime* runtime, const tw_spec* const* specs, size_t num_specs);

/* Launches on `stream` (null: the default stream of the current context) and returns. Never blocks,
 * never allocates device memory. Nothing is launched on failure. */
TW_API tw_status tw_run(const tw_runtime* runtime, const tw_attention* attention,
                        const tw_args* args, void* stream);

/* tw_prepare and tw_run in one call. */
TW_API tw_status tw_attention_once(tw_runtime* runtime, const tw_spec* spec, const tw_args* args,
                                   void* stream);

/* Bytes of scratch that tw_run needs in args->workspace for the sizes in `args`. */
TW_API tw_status tw_workspace_bytes(const tw_attention* attention, const tw_args* args,
                                    size_t* bytes);

/* How far a measurement is, as TuneProgress (tilewright/options.h). */
typedef struct tw_tune_progress {
  size_t size;
  int32_t candidates; /* that will be tried */
  int32_t settled;    /* compiled and checked, or out */
  int32_t rounds;     /* timed so far */
  int32_t done;
  double elapsed_ms;
  double budget_ms;     /* 0: no limit */
  double best_relative; /* the time of the plan that is ahead over the default's */
  const char* best;     /* that plan, in words, valid during the call; "" before any was timed */
} tw_tune_progress;

/* Called by the thread that measures; must not call back into the runtime. */
typedef void (*tw_tune_observer)(void* user, const tw_tune_progress* progress);

/* As TuneOptions (tilewright/options.h). */
typedef struct tw_tune_options {
  size_t size;
  int32_t budget_ms;      /* 0: no limit */
  int32_t max_candidates; /* 0: all */
  int32_t force;
  int32_t hot;
  const int64_t* lengths_q; /* of varlen specs, one a sequence; null: a mix */
  size_t num_lengths_q;
  const int64_t* lengths_kv;
  size_t num_lengths_kv;
  tw_tune_observer progress; /* null: none */
  void* progress_user;       /* handed to progress */
} tw_tune_options;

TW_API tw_status tw_tune_options_init(tw_tune_options* options, size_t size);

/* Measures a spec and keeps the result in the store, see Runtime::Tune (tilewright/runtime.h).
 * `options` may be null. `record` may be null; else it is given the tuning record as JSON, valid
 * until the thread's next call of this function or of tw_tune_text. */
TW_API tw_status tw_tune(tw_runtime* runtime, const tw_spec* spec, const tw_tune_options* options,
                         void* stream, const char** record);

/* The same for a spec in words. */
TW_API tw_status tw_tune_text(tw_runtime* runtime, const char* spec, const tw_tune_options* options,
                              void* stream, const char** record);

/* Waits until nothing is left to measure in the background (TW_TUNE_BACKGROUND), at most
 * `timeout_ms`; then *idle is 0, else 1. */
TW_API tw_status tw_wait_for_tuning(tw_runtime* runtime, int32_t timeout_ms, int32_t* idle);

/* The spec in its canonical text form, and a paragraph on the plan, the kernel and where it came
 * from, as it was at the first call. Valid as long as the handle; "" for a null one. */
TW_API const char* tw_spec_text(const tw_attention* attention);
TW_API const char* tw_explain(const tw_attention* attention);

/* As RuntimeCounters (tilewright/runtime.h). Set `size` before the call. */
typedef struct tw_counters {
  size_t size;
  int64_t prepares;
  int64_t memory_hits;
  int64_t store_hits;
  int64_t store_misses;
  int64_t compiles;
  double compile_ms;
  int64_t loads;
  int64_t load_rejects;
  int64_t fallbacks;
  int64_t capture_refusals;
  int64_t evictions;
  int64_t compile_failures;
  int64_t compile_timeouts;
  int64_t compile_cancels;
  int64_t helper_crashes;
  int64_t store_memory_hits;
  int64_t store_pack_hits;
  int64_t store_disk_hits;
  int64_t misses_absent;
  int64_t misses_corrupt;
  int64_t misses_foreign;
  int64_t misses_differ;
  int64_t misses_unreadable;
  int64_t publishes;
  double publish_ms;
  int64_t publish_failures;
  int64_t publish_drops;
  int64_t store_evictions;
  int64_t lock_waits;
  double lock_wait_ms;
  int64_t lock_timeouts;
  int64_t warnings_suppressed;
  int64_t tunes;
  double tune_ms;
  int64_t tune_failures;
  int64_t tune_postponed;
  int64_t record_hits;
  int64_t nearest_hits;
  int64_t tuned_swaps;
  int64_t churn_alarms;
} tw_counters;

TW_API tw_status tw_runtime_counters(const tw_runtime* runtime, tw_counters* counters);

/* Ends compiles of this runtime that run or wait, with TW_CANCELLED. */
TW_API tw_status tw_cancel_compiles(tw_runtime* runtime);

/* Waits (at most a second) until entries being written to the store are on disk. */
TW_API tw_status tw_flush(tw_runtime* runtime);

/* ---- merging parts ----------------------------------------------------------------------------
 */

/* tilewright/merge.h says what the fields mean. */
typedef struct tw_merge_spec {
  size_t size;
  int32_t part_type;
  int32_t out_type;
  int64_t heads;
  int64_t dim_v;
  int32_t lse; /* boolean */
  int32_t lse_base;
  int32_t empty_lse;
  int32_t reserved;
} tw_merge_spec;

typedef struct tw_merge_args {
  size_t size;
  int64_t parts;
  int64_t batch;
  int64_t seqlen_q;
  tw_tensor o_parts;
  int64_t o_stride_part;
  const float* lse_parts;
  int64_t lse_stride_part;
  int64_t lse_stride_batch;
  int64_t lse_stride_head;
  tw_tensor o;
  float* lse;
  int64_t lse_out_stride_batch;
  int64_t lse_out_stride_head;
} tw_merge_args;

TW_API tw_status tw_merge_spec_init(tw_merge_spec* spec, size_t size);
TW_API tw_status tw_merge_args_init(tw_merge_args* args, size_t size);

/* The kernel that merges results of attention over parts of the keys; as tw_prepare. */
TW_API tw_status tw_prepare_merge(tw_runtime* runtime, const tw_merge_spec* spec, void* stream,
                                  tw_attention** merge);

/* Launches it; as tw_run. */
TW_API tw_status tw_merge(const tw_runtime* runtime, const tw_attention* merge,
                          const tw_merge_args* args, void* stream);

/* tilewright/cache_append.h says what the fields mean. */
enum { TW_ROTARY_NONE = 0, TW_ROTARY_HALF_SPLIT = 1, TW_ROTARY_INTERLEAVED = 2 };

typedef struct tw_append_spec {
  size_t size;
  int32_t type;
  int32_t cache_type; /* or TW_SAME_TYPE */
  int32_t cache_scale;
  int32_t rotary;
  int64_t heads_q;
  int64_t heads_kv;
  int64_t dim_qk;
  int64_t dim_v;
  int64_t page_size;
  int64_t rotary_begin;
  int64_t rotary_dim;
  double rotary_base;
  int32_t rotary_table; /* TW_SAME_TYPE: there is none */
  int32_t reserved;
} tw_append_spec;

typedef struct tw_append_args {
  size_t size;
  int64_t batch;
  int64_t seqlen;
  int64_t total;
  tw_tensor q;
  tw_tensor q_out;
  tw_tensor k;
  tw_tensor v;
  const int32_t* cu_seqlens;
  const int32_t* seqused;
  const int32_t* positions;
  tw_tensor k_cache;
  tw_tensor v_cache;
  int64_t capacity;
  const int32_t* page_table;
  int64_t page_table_stride;
  const int32_t* cache_batch_idx;
  float* k_scale;
  float* v_scale;
  int64_t k_scale_strides[3];
  int64_t v_scale_strides[3];
  const int32_t* seqused_kv;
  int32_t* new_seqused_kv;
  int32_t* ticket;
  const void* cos;
  const void* sin;
  int64_t rotary_stride;
} tw_append_args;

TW_API tw_status tw_append_spec_init(tw_append_spec* spec, size_t size);
TW_API tw_status tw_append_args_init(tw_append_args* args, size_t size);

/* The kernel that writes new tokens into a cache of keys and values; as tw_prepare. */
TW_API tw_status tw_prepare_append(tw_runtime* runtime, const tw_append_spec* spec, void* stream,
                                   tw_attention** append);

/* Launches it; as tw_run. */
TW_API tw_status tw_append(const tw_runtime* runtime, const tw_attention* append,
                           const tw_append_args* args, void* stream);

#ifdef __cplusplus
} /* extern "C" */
#endif

/* NOLINTEND(readability-identifier-naming) */

#endif /* TILEWRIGHT_TILEWRIGHT_C_H_ */
