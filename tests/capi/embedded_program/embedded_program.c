/* An application that ships its kernels within itself: kernels.h is what
 * `tilewright cache export --c-array kernels` wrote. It has no store on disk and no compiler.
 *
 *   embedded_program [DIGEST]     the digest that the pack must have
 */
#include <stdio.h>

#include "kernels.h"
#include "tilewright/tilewright_c.h"

int main(int argc, char** argv) {
  tw_options options;
  tw_runtime* runtime = NULL;
  tw_attention* attention = NULL;
  tw_counters counters;
  tw_status status;
  const char* digest = argc > 1 ? argv[1] : NULL;
  int i;

  tw_options_init(&options, sizeof options);
  options.cache_in_memory = 1;
  options.tune_policy =
      TW_TUNE_OFF; /* what is not shipped cannot be compiled, so nothing can be tuned */
  options.nvrtc_path = "/nowhere/libnvrtc.so";
  options.embedded_pack = kernels;
  options.embedded_pack_bytes = sizeof kernels;
  options.pack_sha256 = &digest;
  options.num_pack_sha256 = digest != NULL;
  status = tw_runtime_create(&options, &runtime);
  printf("create %s %s\n", tw_status_name(status), status == TW_OK ? "" : tw_last_error());
  if (status != TW_OK) return 1;
  for (i = 0; i < 2; ++i) {
    status = tw_prepare_text(runtime,
                             i == 0 ? "fwd bf16 b=1 h=2 s=64 d=16" : "fwd bf16 b=1 h=2 s=64 d=24",
                             NULL, &attention);
    printf("prepare %s %s\n", tw_status_name(status), status == TW_OK ? "" : tw_last_error());
    if (status == TW_OK) printf("%s", tw_explain(attention));
    tw_attention_destroy(attention);
    attention = NULL;
  }
  counters.size = sizeof counters;
  tw_runtime_counters(runtime, &counters);
  printf("compiles %d store_hits %d\n", (int)counters.compiles, (int)counters.store_hits);
  tw_runtime_destroy(runtime);
  return 0;
}
