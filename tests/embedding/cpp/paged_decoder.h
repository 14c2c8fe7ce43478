#include <cuda.h>
#include <tilewright/runtime.h>

// Decodes with the cache of a layer: keys and values on pages of 16 tokens, [pages][16][8][128] of
// bf16, and 32 query heads. All pointers are the device's.
struct PagedDecoder {
  static constexpr int64_t kPage = 16, kHeads = 32, kHeadsKv = 8, kDim = 128;
  int64_t batch, max_pages;
  void *k, *v;
  int32_t* table;    // [batch][max_pages]
  int32_t* lengths;  // [batch]: tokens in the cache; a step adds one
  int32_t* ticket;   // a word that is 0

  tilewright::Runtime* runtime = nullptr;
  tilewright::PreparedAttention attention = {}, append = {};
  tilewright::AttentionArgs args = {};

  absl::Status Prepare() {  // compiles once; later the kernels come from disk
    args.batch = batch, args.seqlen_q = 1;
    args.seqlen_kv = max_pages * kPage;  // the host knows no more of lengths
    tilewright::AttentionSpec spec = {.batch = batch, .heads_q = kHeads, .heads_kv = kHeadsKv};
    spec.seqlen_kv = args.seqlen_kv;
    spec.dim_qk = spec.dim_v = kDim;
    spec.page_size = kPage;
    spec.varlen = true;
    auto attends = runtime->Prepare(spec);
    if (!attends.ok()) return attends.status();
    auto appends = runtime->PrepareAppend({.heads_q = kHeads,
                                           .heads_kv = kHeadsKv,
                                           .page_size = kPage,
                                           .rotary = tilewright::Rotary::kHalfSplit});
    if (!appends.ok()) return appends.status();
    attention = *attends, append = *appends;
    auto scratch = attention.workspace_bytes(args);
    if (!scratch.ok() || *scratch == 0) return scratch.status();
    const CUresult result = cuMemAlloc(reinterpret_cast<CUdeviceptr*>(&args.workspace), *scratch);
    return result == CUDA_SUCCESS ? absl::OkStatus() : absl::ResourceExhaustedError("no memory");
  }

  // One more token of each sequence, new_q and o [batch][32][128], new_k and new_v [batch][8][128]:
  // rotates it, writes it into the cache, attends to all that is there. Two launches and nothing
  // else, which a CUDA graph may replay for every token.
  absl::Status Step(void* new_q, void* new_k, void* new_v, void* o, CUstream stream) {
    const tilewright::Strides row = {kHeadsKv * kDim, kHeadsKv * kDim, kDim};
    const tilewright::Strides query = {kHeads * kDim, kHeads * kDim, kDim};
    const tilewright::Strides page = {kPage * kHeadsKv * kDim, kHeadsKv * kDim, kDim};
    tilewright::CacheAppendArgs token = {.batch = batch, .seqlen = 1};
    token.q = args.q = {new_q, query}, token.q_out = {new_q, query};
    token.k = {new_k, row}, token.v = {new_v, row};
    token.k_cache = {k, page}, token.v_cache = {v, page};
    token.capacity = max_pages * kPage;
    token.page_table = args.page_table = table;
    token.page_table_stride = args.page_table_stride = max_pages;
    token.seqused_kv = token.new_seqused_kv = lengths, token.ticket = ticket;
    const absl::Status status = runtime->Append(append, token, stream);
    if (!status.ok()) return status;
    args.k = {k, page}, args.v = {v, page}, args.o = {o, query}, args.seqused_kv = lengths;
    return runtime->Run(attention, args, stream);
  }
};
