/* A program in C that knows Tilewright only by its header and its shared library. Prepares one
 * operation, runs it, and says what came of it, one line each:
 *
 *   c_program CACHE_DIR
 *   prepare TW_OK
 *   run TW_OK
 */
#include <stdio.h>
#include <string.h>

#include "tilewright/tilewright_c.h"

static int Report(const char* what, tw_status status) {
  printf("%s %s %s\n", what, tw_status_name(status), status == TW_OK ? "" : tw_last_error());
  return status == TW_OK ? 0 : 1;
}

static void SetStrides(tw_tensor* tensor, void* data, int64_t seqlen, int64_t heads, int64_t dim) {
  tensor->data = data;
  tw_dense_strides(TW_BSHD, 2, seqlen, heads, dim, &tensor->strides);
}

int main(int argc, char** argv) {
  static float memory[2 * 64 * 4 * 32];
  static float lse[2 * 4 * 64];
  tw_options options;
  tw_spec spec;
  tw_args args;
  tw_counters counters;
  tw_runtime* runtime = NULL;
  tw_attention* attention = NULL;
  tw_attention* same = NULL;
  size_t workspace = 1;
  int failed = 0;

  if (argc != 2) return 2;
  if (Report("options", tw_options_init(&options, sizeof options))) return 1;
  options.cache_dir = argv[1];
  options.log_level = TW_LOG_ERROR;
  options.tune_policy = TW_TUNE_OFF; /* one kernel is one compile */
  if (Report("create", tw_runtime_create(&options, &runtime))) return 1;

  tw_spec_init(&spec, sizeof spec);
  spec.type = TW_FP32;
  spec.batch = 2;
  spec.heads_q = 4;
  spec.heads_kv = 4;
  spec.seqlen_q = 64;
  spec.seqlen_kv = 64;
  spec.dim_qk = 32;
  spec.dim_v = 32;
  spec.causal = 1;
  spec.lse = 1;
  failed |= Report("prepare", tw_prepare(runtime, &spec, NULL, &attention));
  if (attention == NULL) {
    tw_runtime_destroy(runtime);
    return 1;
  }
  failed |= Report("prepare_text", tw_prepare_text(runtime, tw_spec_text(attention), NULL, &same));
  printf("spec %s\n", tw_spec_text(attention));
  printf("explain %d\n", strstr(tw_explain(attention), "plan") != NULL);

  tw_args_init(&args, sizeof args);
  args.batch = 2;
  args.seqlen_q = 64;
  args.seqlen_kv = 64;
  SetStrides(&args.q, memory, 64, 4, 32);
  SetStrides(&args.k, memory, 64, 4, 32);
  SetStrides(&args.v, memory, 64, 4, 32);
  SetStrides(&args.o, memory, 64, 4, 32);
  args.lse = lse;
  failed |= Report("workspace", tw_workspace_bytes(attention, &args, &workspace));
  printf("workspace_bytes %d\n", (int)workspace);
  failed |= Report("run", tw_run(runtime, attention, &args, NULL));
  failed |= Report("once", tw_attention_once(runtime, &spec, &args, NULL));
  args.q.data = NULL;
  Report("run_null_q", tw_run(runtime, attention, &args, NULL));

  counters.size = sizeof counters;
  failed |= Report("counters", tw_runtime_counters(runtime, &counters));
  printf("memory_hits %d\n", (int)counters.memory_hits);
  printf("compiles %d store_hits %d\n", (int)counters.compiles, (int)counters.store_hits);
  failed |= Report("flush", tw_flush(runtime));
  tw_attention_destroy(same);
  tw_attention_destroy(attention);
  tw_runtime_destroy(runtime);
  return failed;
}
