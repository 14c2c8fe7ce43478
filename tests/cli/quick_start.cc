// The quick start of README.md: the part between the two lines of dashes stands there word by word
// (readme_test.cc compares), so that it compiles.
#include "quick_start.h"

// ----
#include "tilewright/runtime.h"

// Causal attention, 32 query heads over 8 key/value heads; bf16 device memory [2, 4096, heads,
// 128].
absl::Status CausalAttention(tilewright::Runtime& runtime, const void* q, const void* k,
                             const void* v, void* o, tilewright::Stream stream) {
  tilewright::AttentionSpec spec;
  spec.batch = 2;
  spec.heads_q = 32;
  spec.heads_kv = 8;
  spec.seqlen_q = spec.seqlen_kv = 4096;
  spec.dim_qk = spec.dim_v = 128;
  spec.causal = true;
  auto attention = runtime.Prepare(spec);  // compiled once, then kept in memory and on disk
  if (!attention.ok()) return attention.status();

  tilewright::AttentionArgs args;
  args.batch = 2;
  args.seqlen_q = args.seqlen_kv = 4096;
  args.q = {q, DenseStrides(spec.layout, 2, 4096, 32, 128)};
  args.k = {k, DenseStrides(spec.layout, 2, 4096, 8, 128)};
  args.v = {v, DenseStrides(spec.layout, 2, 4096, 8, 128)};
  args.o = {o, DenseStrides(spec.layout, 2, 4096, 32, 128)};
  return runtime.Run(*attention, args, stream);  // launches; takes no lock, allocates nothing
}
// ----
