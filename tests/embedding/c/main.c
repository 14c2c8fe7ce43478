#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <tilewright/tilewright_c.h>

static void Check(tw_status status) {
  if (status == TW_OK) return;
  fprintf(stderr, "%s: %s\n", tw_status_name(status), tw_last_error());
  exit(1);
}

int main(void) {
  enum { kCount = 2 * 1000 * 8 * 72, kBytes = kCount * sizeof(float) };
  float* host = malloc(kBytes);
  CUcontext context;
  CUdeviceptr in, out;
  for (int i = 0; i < kCount; ++i) host[i] = 0.5f;
  cuInit(0);
  cuDevicePrimaryCtxRetain(&context, 0);
  cuCtxSetCurrent(context);
  cuMemAlloc(&in, kBytes);
  cuMemAlloc(&out, kBytes);
  cuMemcpyHtoD(in, host, kBytes);

  tw_runtime* runtime;
  tw_attention* attention;
  tw_args args;
  Check(tw_runtime_create(NULL, &runtime)); /* with the options of the environment */
  Check(tw_prepare_text(runtime, "fwd fp32 b=2 h=8 s=1000 d=72 causal", NULL, &attention));
  Check(tw_args_init(&args, sizeof args));
  args.batch = 2;
  args.seqlen_q = args.seqlen_kv = 1000;
  args.q.data = (void*)in;
  Check(tw_dense_strides(TW_BSHD, 2, 1000, 8, 72, &args.q.strides));
  args.k = args.v = args.o = args.q;
  args.o.data = (void*)out;
  Check(tw_run(runtime, attention, &args, NULL)); /* launches and returns */
  cuMemcpyDtoH(host, out, kBytes);
  printf("tilewright %s: %g\n%s", tw_version(), host[0], tw_explain(attention));
}
