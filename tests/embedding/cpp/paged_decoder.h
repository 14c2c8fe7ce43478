#include <cuda.h>
#include <tilewright/runtime.h>

// The keys and values of a layer on pages of 16 tokens: [pages][16][8][128] of bf16, on the device.
struct PagedCache {
  static constexpr int64_t kPage = 16, kHeadsKv = 8, kDim = 128;
  void *k, *v;
  const int32_t* table;  // [batch][max_pages]
  int32_t* lengths;      // [batch]: tokens in the cache; every step adds one
  int32_t* ticket;       // a word that is 0
};

class Decoder {
 public:
  static constexpr int64_t kHeads = 32, kPage = PagedCache::kPage, kDim = PagedCache::kDim;

  // Compiles once; later the kernels come from disk.
  static absl::StatusOr<Decoder> Create(tilewright::Runtime& runtime, int64_t batch,
                                        int64_t max_pages) {
    tilewright::AttentionSpec spec;
    spec.heads_q = kHeads;
    spec.heads_kv = PagedCache::kHeadsKv;
    spec.dim_qk = spec.dim_v = kDim;
    spec.batch = batch;
    spec.seqlen_kv = max_pages * kPage;
    spec.page_size = kPage;
    spec.varlen = true;  // lengths are on the device
    auto attention = runtime.Prepare(spec);
    if (!attention.ok()) return attention.status();
    auto append = runtime.PrepareAppend({.heads_q = kHeads,
                                         .heads_kv = PagedCache::kHeadsKv,
                                         .page_size = kPage,
                                         .rotary = tilewright::Rotary::kHalfSplit});
    if (!append.ok()) return append.status();
    Decoder decoder{&runtime, *attention, *append, max_pages};
    decoder.args_.batch = batch;
    decoder.args_.seqlen_q = 1;
    decoder.args_.seqlen_kv = spec.seqlen_kv;  // at least the longest; the host knows no lengths
    const auto scratch = attention->workspace_bytes(decoder.args_);
    CUdeviceptr memory = 0;
    if (!scratch.ok()) return scratch.status();
    if (*scratch > 0 && cuMemAlloc(&memory, *scratch) != CUDA_SUCCESS) {
      return absl::ResourceExhaustedError("no device memory");
    }
    decoder.args_.workspace = reinterpret_cast<void*>(memory);
    return decoder;
  }

  // A token of each sequence: q, o [batch][32][128], k, v [batch][8][128]. Rotates q and k, writes
  // k and v behind the others, attends to all. Two launches, that a CUDA graph may replay.
  absl::Status Step(const PagedCache& cache, void* q, void* k, void* v, void* o, CUstream stream) {
    constexpr int64_t kRow = PagedCache::kHeadsKv * kDim;
    const tilewright::Strides one = {kRow, kRow, kDim}, page = {kPage * kRow, kRow, kDim};
    const tilewright::Strides query = {kHeads * kDim, kHeads * kDim, kDim};
    tilewright::CacheAppendArgs fresh;
    fresh.batch = args_.batch;
    fresh.seqlen = 1;
    fresh.q = {q, query};
    fresh.q_out = {q, query};  // in place
    fresh.k = {k, one};
    fresh.v = {v, one};
    fresh.k_cache = {cache.k, page};
    fresh.v_cache = {cache.v, page};
    fresh.capacity = args_.seqlen_kv;
    fresh.page_table = args_.page_table = cache.table;
    fresh.page_table_stride = args_.page_table_stride = max_pages_;
    fresh.seqused_kv = fresh.new_seqused_kv = cache.lengths;
    fresh.ticket = cache.ticket;
    if (auto status = runtime_->Append(append_, fresh, stream); !status.ok()) return status;
    args_.q = {q, query};
    args_.k = {cache.k, page};
    args_.v = {cache.v, page};
    args_.o = {o, query};
    args_.seqused_kv = cache.lengths;
    return runtime_->Run(attention_, args_, stream);
  }

  tilewright::Runtime* runtime_;
  tilewright::PreparedAttention attention_, append_;
  int64_t max_pages_;
  tilewright::AttentionArgs args_ = {};
};
