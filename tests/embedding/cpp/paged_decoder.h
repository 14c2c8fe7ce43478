#include <cuda.h>
#include <tilewright/runtime.h>

// Keys and values of every layer lie on pages of 16 tokens: [pages][16][heads_kv][dim].
struct PagedCache {
  static constexpr int64_t kPage = 16, kHeadsKv = 8, kDim = 128;
  void* k;
  void* v;
  const int32_t* table;    // [batch][max_pages], device
  const int32_t* lengths;  // [batch], device: tokens in the cache
  int64_t max_pages;
};

class Decoder {
 public:
  static absl::StatusOr<Decoder> Create(tilewright::Runtime& runtime, int64_t batch,
                                        int64_t max_tokens) {
    tilewright::AttentionSpec spec;
    spec.batch = batch;  // what planning looks at; Run takes any
    spec.heads_q = 32;
    spec.heads_kv = PagedCache::kHeadsKv;
    spec.seqlen_q = 1;
    spec.seqlen_kv = max_tokens;
    spec.dim_qk = spec.dim_v = PagedCache::kDim;
    spec.varlen = true;
    spec.page_size = PagedCache::kPage;
    auto attention = runtime.Prepare(spec);  // compiles once, then comes from disk
    if (!attention.ok()) return attention.status();
    return Decoder(runtime, *attention);
  }

  // q and o: [batch][32][128] of bf16. Launches only: may be captured in a CUDA graph.
  absl::Status Attend(const PagedCache& cache, const void* q, void* o, int64_t batch,
                      int64_t max_tokens, CUstream stream) {
    constexpr int64_t kToken = PagedCache::kHeadsKv * PagedCache::kDim;
    constexpr int64_t kRow = 32 * PagedCache::kDim;
    const tilewright::Strides page = {PagedCache::kPage * kToken, kToken, PagedCache::kDim};
    tilewright::AttentionArgs args;
    args.batch = batch;
    args.seqlen_q = 1;
    args.seqlen_kv = max_tokens;  // at least the longest; not read on the host
    args.q = {q, {kRow, kRow, PagedCache::kDim}};
    args.k = {cache.k, page};
    args.v = {cache.v, page};
    args.o = {o, {kRow, kRow, PagedCache::kDim}};
    args.page_table = cache.table;
    args.page_table_stride = cache.max_pages;
    args.seqused_kv = cache.lengths;
    args.workspace = workspace_;
    return runtime_->Run(attention_, args, stream);
  }

  // Before the first call and before a capture: scratch for these sizes.
  absl::Status Reserve(int64_t batch, int64_t max_tokens) {
    tilewright::AttentionArgs sizes;
    sizes.batch = batch;
    sizes.seqlen_q = 1;
    sizes.seqlen_kv = max_tokens;
    const auto bytes = attention_.workspace_bytes(sizes);
    if (!bytes.ok() || *bytes == 0) return bytes.status();
    CUdeviceptr memory = 0;
    if (cuMemAlloc(&memory, *bytes) != CUDA_SUCCESS) return absl::ResourceExhaustedError("memory");
    workspace_ = reinterpret_cast<void*>(memory);
    return absl::OkStatus();
  }

 private:
  Decoder(tilewright::Runtime& runtime, tilewright::PreparedAttention attention)
      : runtime_(&runtime), attention_(std::move(attention)) {}
  tilewright::Runtime* runtime_;
  tilewright::PreparedAttention attention_;
  void* workspace_ = nullptr;
};
