#include "tune/scratch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "spec/canonical.h"
#include "spec/validate.h"

namespace tilewright::tune {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kGuardBytes = 4096;
constexpr uint8_t kGuardByte = 0xa5;
constexpr uint8_t kPoison = 0xff;

// Elements after which random data repeats: prime, so that no tile meets its own copy.
constexpr size_t kPeriod = 262139;

// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // In [low, high].
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Next() % static_cast<uint64_t>(high - low + 1));
  }

 private:
  uint64_t state_;
};

// A random element: any sign and significand, an exponent between 2^-3 and 2^0.
uint32_t RandomBits(ElementType type, uint64_t random) {
  const uint32_t exponent = static_cast<uint32_t>(random >> 60) & 3;
  switch (type) {
    case ElementType::kFp16:
      return (random & 0x83ff) | ((12 + exponent) << 10);
    case ElementType::kBf16:
      return (random & 0x807f) | ((124 + exponent) << 7);
    case ElementType::kFp32:
      return (random & 0x807fffff) | ((124 + exponent) << 23);
    case ElementType::kFp8E4m3:
      return (random & 0x87) | ((4 + exponent) << 3);
    case ElementType::kFp8E5m2:
      return (random & 0x83) | ((12 + exponent) << 2);
    case ElementType::kInt8:
      return random & 0xff;
    case ElementType::kBool:
      return (random & 3) != 0 ? 1 : 0;
    case ElementType::kInt32:
      return 0;
  }
  return 0;
}

std::string RandomBlock(ElementType type, size_t count, uint64_t seed) {
  const auto bytes = static_cast<size_t>(spec::ElementBytes(type));
  std::string block(count * bytes, '\0');
  Random random(seed);
  for (size_t n = 0; n < count; ++n) {
    const uint32_t bits = RandomBits(type, random.Next());
    std::memcpy(&block[n * bytes], &bits, bytes);
  }
  return block;
}

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// One array of the call and where its address goes.
struct Item {
  std::string name;
  size_t bytes = 0;
  std::string host;                       // what it holds, from the start on; repeated to `bytes`
  bool output = false;                    // poisoned instead
  ElementType type = ElementType::kFp32;  // of an output
  std::function<void(AttentionArgs&, void*)> set;
};

// Elements from the first to the one after the last that strides reach.
int64_t Reach(const Strides& strides, int64_t batch, int64_t seq, int64_t heads, int64_t dim) {
  if (batch == 0 || seq == 0 || heads == 0 || dim == 0) return 0;
  return (batch - 1) * strides.batch + (seq - 1) * strides.seq + (heads - 1) * strides.head +
         (dim - 1) * strides.dim + 1;
}

// Lists the arrays of a call. Without `with_data` only their sizes.
class Lister {
 public:
  Lister(const AttentionSpec& spec, const ScratchOptions& options, bool with_data)
      : spec_(spec), options_(options), with_data_(with_data), random_(options.seed) {}

  absl::Status List() {
    if (!spec_.snippet_arrays.empty()) {
      return absl::UnimplementedError(absl::StrCat("the snippet's array \"",
                                                   spec_.snippet_arrays.front().name,
                                                   "\" has a length that only the snippet knows"));
    }
    args.batch = spec_.batch;
    args.seqlen_q = spec_.seqlen_q;
    args.seqlen_kv = spec_.seqlen_kv;
    TILEWRIGHT_RETURN_IF_ERROR(AddLengths());
    if (spec_.cache_batch_idx) {
      std::vector<int32_t> slots(static_cast<size_t>(spec_.batch));
      std::iota(slots.begin(), slots.end(), 0);
      AddHost("cache_batch_idx", slots, [](AttentionArgs& a, void* at) {
        a.cache_batch_idx = static_cast<const int32_t*>(at);
      });
    }
    AddTensors();
    if (spec_.alibi) AddAlibi();
    for (size_t n = 0; n < spec_.bias.size(); ++n) AddBias(n);
    if (spec_.sinks) {
      AddRandom("sinks", ElementType::kFp32, spec_.heads_q,
                [](AttentionArgs& a, void* at) { a.sinks = static_cast<const float*>(at); });
      if (spec_.sinks_gradient) {
        AddOutput("d_sinks", ElementType::kFp32, spec_.heads_q,
                  [](AttentionArgs& a, void* at) { a.d_sinks = static_cast<float*>(at); });
      }
    }
    if (spec_.block_mask_q > 0) AddBlockMask();
    AddScales();
    if (spec_.dropout > 0) {
      args.dropout_seed = random_.Next();
      args.dropout_offset = random_.Next();
    }
    for (size_t n = 0; n < spec_.snippet_scalars.size(); ++n) {
      if (spec_.snippet_scalars[n].type == ScalarType::kFloat) {
        args.snippet_scalars[n].f = 0.5f;
      } else {
        args.snippet_scalars[n].i = 1;
      }
    }
    return absl::OkStatus();
  }

  AttentionArgs args;
  std::vector<Item> items;

 private:
  using Setter = std::function<void(AttentionArgs&, void*)>;

  void AddRandom(std::string name, ElementType type, int64_t count, Setter set) {
    const auto bytes = static_cast<size_t>(spec::ElementBytes(type));
    Item item;
    item.name = std::move(name);
    item.bytes = static_cast<size_t>(count) * bytes;
    const uint64_t seed = random_.Next();
    if (with_data_) {
      item.host = RandomBlock(type, std::min(kPeriod, static_cast<size_t>(count)), seed);
    }
    item.set = std::move(set);
    items.push_back(std::move(item));
  }

  template <typename T>
  void AddHost(std::string name, const std::vector<T>& values, Setter set) {
    Item item;
    item.name = std::move(name);
    item.host = BytesOf(values);
    item.bytes = item.host.size();
    item.set = std::move(set);
    items.push_back(std::move(item));
  }

  void AddOutput(std::string name, ElementType type, int64_t count, Setter set) {
    Item item;
    item.name = std::move(name);
    item.output = true;
    item.type = type;
    item.bytes = static_cast<size_t>(count * spec::ElementBytes(type));
    item.set = std::move(set);
    items.push_back(std::move(item));
  }

  std::vector<int64_t> MixOfLengths(int64_t longest) {
    std::vector<int64_t> lengths;
    for (int64_t b = 0; b < spec_.batch; ++b) {
      lengths.push_back(b == 0 ? longest : random_.Between((longest + 3) / 4, longest));
    }
    return lengths;
  }

  absl::Status Check(const char* name, const std::vector<int64_t>& lengths, int64_t longest) const {
    const bool fit = static_cast<int64_t>(lengths.size()) == spec_.batch &&
                     std::all_of(lengths.begin(), lengths.end(),
                                 [&](int64_t length) { return length >= 0 && length <= longest; });
    if (fit) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(name, " has ", lengths.size(), " lengths; there must be one for each of the ",
                     spec_.batch, " sequences, between 0 and ", longest));
  }

  absl::Status AddLengths() {
    lengths_q_.assign(static_cast<size_t>(spec_.batch), spec_.seqlen_q);
    lengths_kv_.assign(static_cast<size_t>(spec_.batch), spec_.seqlen_kv);
    if (!spec_.varlen) return absl::OkStatus();
    const bool packed = spec_.layout == Layout::kThd;
    const bool paged = spec_.page_size > 0;
    lengths_kv_ = options_.lengths_kv.empty() ? MixOfLengths(spec_.seqlen_kv) : options_.lengths_kv;
    TILEWRIGHT_RETURN_IF_ERROR(Check("lengths_kv", lengths_kv_, spec_.seqlen_kv));
    if (packed) {
      if (!options_.lengths_q.empty()) {
        lengths_q_ = options_.lengths_q;
      } else {
        // Of self-attention a sequence has as many queries as keys.
        lengths_q_ = spec_.seqlen_q == spec_.seqlen_kv ? lengths_kv_ : MixOfLengths(spec_.seqlen_q);
      }
      TILEWRIGHT_RETURN_IF_ERROR(Check("lengths_q", lengths_q_, spec_.seqlen_q));
      args.total_q = AddPrefixSums("cu_seqlens_q", lengths_q_, [](AttentionArgs& a, void* at) {
        a.cu_seqlens_q = static_cast<const int32_t*>(at);
      });
    }
    if (packed && !paged) {
      args.total_kv = AddPrefixSums("cu_seqlens_kv", lengths_kv_, [](AttentionArgs& a, void* at) {
        a.cu_seqlens_kv = static_cast<const int32_t*>(at);
      });
    } else {
      std::vector<int32_t> used(lengths_kv_.begin(), lengths_kv_.end());
      AddHost("seqused_kv", used,
              [](AttentionArgs& a, void* at) { a.seqused_kv = static_cast<const int32_t*>(at); });
    }
    if (spec_.left_padding) {
      AddHost("left_padding", std::vector<int32_t>(static_cast<size_t>(spec_.batch), 0),
              [](AttentionArgs& a, void* at) { a.left_padding = static_cast<const int32_t*>(at); });
    }
    return absl::OkStatus();
  }

  int64_t AddPrefixSums(std::string name, const std::vector<int64_t>& lengths, Setter set) {
    std::vector<int32_t> sums = {0};
    int64_t total = 0;
    for (const int64_t length : lengths) {
      total += length;
      sums.push_back(static_cast<int32_t>(total));
    }
    AddHost(std::move(name), sums, std::move(set));
    return total;
  }

  void AddTensors() {
    const bool packed_q = args.total_q > 0;
    const bool packed_kv = args.total_kv > 0;
    const std::array<Strides, 4> strides = spec::EffectiveStrides(spec_);
    const int64_t q_batch = packed_q ? 1 : spec_.batch;
    const int64_t q_rows = packed_q ? args.total_q : spec_.seqlen_q;
    int64_t kv_batch = packed_kv ? 1 : spec_.batch;
    int64_t kv_rows = packed_kv ? args.total_kv : spec_.seqlen_kv;
    if (spec_.page_size > 0) {
      kv_batch = AddPageTable();
      kv_rows = spec_.page_size;
    }
    args.q.strides = strides[0];
    args.k.strides = strides[1];
    args.v.strides = strides[2];
    args.o.strides = strides[3];
    const ElementType kv_type = spec::KvType(spec_);
    AddRandom("q", spec_.type, Reach(strides[0], q_batch, q_rows, spec_.heads_q, spec_.dim_qk),
              [](AttentionArgs& a, void* at) { a.q.data = at; });
    AddRandom("k", kv_type, Reach(strides[1], kv_batch, kv_rows, spec_.heads_kv, spec_.dim_qk),
              [](AttentionArgs& a, void* at) { a.k.data = at; });
    AddRandom("v", kv_type, Reach(strides[2], kv_batch, kv_rows, spec_.heads_kv, spec_.dim_v),
              [](AttentionArgs& a, void* at) { a.v.data = at; });
    const bool backward = spec_.operation == Operation::kBackward;
    if (spec_.lse || backward) {
      args.lse_stride_head = q_rows;
      args.lse_stride_batch = packed_q ? 0 : q_rows * spec_.heads_q;
    }
    const int64_t o_count = Reach(strides[3], q_batch, q_rows, spec_.heads_q, spec_.dim_v);
    const int64_t lse_count = q_batch * spec_.heads_q * q_rows;
    const ElementType o_type = spec::OutType(spec_);
    const Setter set_o = [](AttentionArgs& a, void* at) { a.o.data = at; };
    const Setter set_lse = [](AttentionArgs& a, void* at) { a.lse = static_cast<float*>(at); };
    if (!backward) {
      AddOutput("o", o_type, o_count, set_o);
      if (spec_.lse) AddOutput("lse", ElementType::kFp32, lse_count, set_lse);
      return;
    }
    AddRandom("o", o_type, o_count, set_o);
    AddLse(lse_count, set_lse);
    args.d_o.strides = strides[3];
    args.d_q.strides = strides[0];
    args.d_k.strides = strides[1];
    args.d_v.strides = strides[2];
    AddRandom("d_o", o_type, o_count, [](AttentionArgs& a, void* at) { a.d_o.data = at; });
    AddOutput("d_q", spec_.type, Reach(strides[0], q_batch, q_rows, spec_.heads_q, spec_.dim_qk),
              [](AttentionArgs& a, void* at) { a.d_q.data = at; });
    AddOutput("d_k", kv_type, Reach(strides[1], kv_batch, kv_rows, spec_.heads_kv, spec_.dim_qk),
              [](AttentionArgs& a, void* at) { a.d_k.data = at; });
    AddOutput("d_v", kv_type, Reach(strides[2], kv_batch, kv_rows, spec_.heads_kv, spec_.dim_v),
              [](AttentionArgs& a, void* at) { a.d_v.data = at; });
  }

  // What the forward would have written, about: of n scores with deviation s it is log n + s^2 / 2,
  // or their largest where that is more. Weights then neither overflow nor vanish.
  void AddLse(int64_t count, const Setter& set) {
    constexpr double kMeanSquare = 0.775;  // of RandomBits
    const double deviation =
        kMeanSquare * std::abs(spec::EffectiveScale(spec_)) * std::sqrt(double(spec_.dim_qk));
    const double keys = std::log(static_cast<double>(std::max<int64_t>(spec_.seqlen_kv, 2)));
    const double lse = std::max(keys + deviation * deviation / 2, deviation * std::sqrt(2 * keys));
    const double of_base = spec_.lse_base == LseBase::kE ? lse : lse / std::log(2.0);
    Item item;
    item.name = "lse";
    item.bytes = static_cast<size_t>(count) * sizeof(float);
    item.host = BytesOf(std::vector<float>(std::min(kPeriod, static_cast<size_t>(count)),
                                           static_cast<float>(of_base)));
    item.set = set;
    items.push_back(std::move(item));
  }

  // Every page once, in random order. Returns how many there are.
  int64_t AddPageTable() {
    const auto pages_of = [this](int64_t length) {
      return (length + spec_.page_size - 1) / spec_.page_size;
    };
    const int64_t columns = pages_of(spec_.seqlen_kv);
    int64_t pages = 0;
    for (const int64_t length : lengths_kv_) pages += pages_of(length);
    std::vector<int32_t> order(static_cast<size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    for (size_t n = order.size(); n > 1; --n) {
      std::swap(order[n - 1], order[static_cast<size_t>(random_.Next() % n)]);
    }
    std::vector<int32_t> table(static_cast<size_t>(spec_.batch * columns), -1);
    size_t next = 0;
    for (int64_t b = 0; b < spec_.batch; ++b) {
      for (int64_t p = 0; p < pages_of(lengths_kv_[static_cast<size_t>(b)]); ++p) {
        table[static_cast<size_t>(b * columns + p)] = order[next++];
      }
    }
    args.page_table_stride = columns;
    AddHost("page_table", table,
            [](AttentionArgs& a, void* at) { a.page_table = static_cast<const int32_t*>(at); });
    return std::max<int64_t>(pages, 1);
  }

  void AddAlibi() {
    // Slopes that fall from head to head, as models have them.
    std::vector<float> slopes;
    for (int64_t h = 0; h < spec_.heads_q; ++h) {
      slopes.push_back(1.0f / static_cast<float>(int64_t{2} << (8 * h / spec_.heads_q)));
    }
    AddHost("alibi_slopes", slopes,
            [](AttentionArgs& a, void* at) { a.alibi_slopes = static_cast<const float*>(at); });
    if (!spec_.alibi_gradient) return;
    AddOutput("d_alibi_slopes", ElementType::kFp32, spec_.heads_q,
              [](AttentionArgs& a, void* at) { a.d_alibi_slopes = static_cast<float*>(at); });
  }

  void AddBias(size_t n) {
    const BiasTerm& term = spec_.bias[n];
    BiasTensor& tensor = args.bias[n];
    tensor.stride_kv = 1;
    tensor.stride_q = term.seqlen_kv;
    tensor.stride_head = term.seqlen_q * term.seqlen_kv;
    tensor.stride_batch = term.heads * tensor.stride_head;
    AddRandom(absl::StrCat("bias", n), term.type, term.batch * tensor.stride_batch,
              [n](AttentionArgs& a, void* at) { a.bias[n].data = at; });
    if (!term.gradient) return;
    BiasGradient& gradient = args.d_bias[n];
    gradient.stride_kv = 1;
    gradient.stride_q = term.seqlen_kv;
    gradient.stride_head = tensor.stride_head;
    gradient.stride_batch = tensor.stride_batch;
    AddOutput(absl::StrCat("d_bias", n), ElementType::kFp32, term.batch * tensor.stride_batch,
              [n](AttentionArgs& a, void* at) { a.d_bias[n].data = static_cast<float*>(at); });
  }

  void AddBlockMask() {
    const int64_t rows = (spec_.seqlen_q + spec_.block_mask_q - 1) / spec_.block_mask_q;
    const int64_t columns = (spec_.seqlen_kv + spec_.block_mask_kv - 1) / spec_.block_mask_kv;
    args.block_mask_strides = {spec_.heads_q * rows * columns, rows * columns, columns};
    AddRandom("block_mask", ElementType::kBool, spec_.batch * spec_.heads_q * rows * columns,
              [](AttentionArgs& a, void* at) { a.block_mask = static_cast<const uint8_t*>(at); });
  }

  // Stored int8 values reach 127; scales bring them near 1.
  void AddScale(std::string name, int64_t count, ElementType type, Setter set) {
    const std::vector<float> scales(static_cast<size_t>(count),
                                    type == ElementType::kInt8 ? 1.0f / 64 : 1.0f);
    AddHost(std::move(name), scales, std::move(set));
  }

  void AddScales() {
    if (spec_.q_scale != ScaleKind::kNone) {
      AddScale("q_scale", spec_.q_scale == ScaleKind::kPerHead ? spec_.heads_q : 1, spec_.type,
               [](AttentionArgs& a, void* at) { a.q_scale = static_cast<const float*>(at); });
    }
    if (spec_.kv_scale == ScaleKind::kNone) return;
    int64_t count = 1;
    std::array<int64_t, 3> strides = {0, 0, 0};
    if (spec_.kv_scale == ScaleKind::kPerHead) {
      count = spec_.heads_kv;
      strides = {0, 1, 0};
    } else if (spec_.kv_scale == ScaleKind::kPerToken) {
      const bool packed = args.total_kv > 0;
      int64_t batches = packed ? 1 : spec_.batch;
      int64_t tokens = packed ? args.total_kv : spec_.seqlen_kv;
      if (spec_.page_size > 0) {
        tokens = spec_.page_size;
        batches = 0;
        for (const int64_t length : lengths_kv_) {
          batches += (length + spec_.page_size - 1) / spec_.page_size;
        }
      }
      strides = {packed ? 0 : tokens * spec_.heads_kv, tokens, 1};
      count = std::max<int64_t>(1, batches * tokens * spec_.heads_kv);
    }
    args.k_scale_strides = args.v_scale_strides = strides;
    const ElementType type = spec::KvType(spec_);
    AddScale("k_scale", count, type,
             [](AttentionArgs& a, void* at) { a.k_scale = static_cast<const float*>(at); });
    AddScale("v_scale", count, type,
             [](AttentionArgs& a, void* at) { a.v_scale = static_cast<const float*>(at); });
  }

  const AttentionSpec& spec_;
  const ScratchOptions& options_;
  const bool with_data_;
  Random random_;
  std::vector<int64_t> lengths_q_;
  std::vector<int64_t> lengths_kv_;
};

size_t RoundUp(size_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

// Guards lie before the first array, between any two and behind the last.
size_t TotalBytes(const std::vector<Item>& items) {
  size_t total = kGuardBytes;
  for (const Item& item : items) total += RoundUp(item.bytes) + kGuardBytes;
  return total;
}

}  // namespace

absl::StatusOr<size_t> ScratchBytes(const AttentionSpec& spec, const ScratchOptions& options) {
  Lister lister(spec, options, /*with_data=*/false);
  TILEWRIGHT_RETURN_IF_ERROR(lister.List());
  return TotalBytes(lister.items);
}

absl::StatusOr<ScratchProblem> ScratchProblem::Create(const device::DriverApi& api,
                                                      const AttentionSpec& spec,
                                                      const ScratchOptions& options,
                                                      device::StreamHandle stream) {
  static const device::DeviceAllocator from_driver;
  ScratchProblem problem;
  problem.spec_ = spec;
  problem.options_ = options;
  TILEWRIGHT_ASSIGN_OR_RETURN(const size_t bytes, ScratchBytes(spec, options));
  TILEWRIGHT_ASSIGN_OR_RETURN(
      problem.memory_,
      device::DeviceBuffer::Allocate(
          api, bytes, options.allocator != nullptr ? *options.allocator : from_driver));
  TILEWRIGHT_RETURN_IF_ERROR(problem.Restore(stream));
  return problem;
}

absl::Status ScratchProblem::Restore(device::StreamHandle stream) {
  Lister lister(spec_, options_, /*with_data=*/true);
  TILEWRIGHT_RETURN_IF_ERROR(lister.List());
  TILEWRIGHT_RETURN_IF_ERROR(memory_.Fill(kGuardByte, stream));
  args_ = lister.args;
  regions_.clear();
  size_t offset = kGuardBytes;
  for (const Item& item : lister.items) {
    if (!item.output) {
      TILEWRIGHT_RETURN_IF_ERROR(
          memory_.CopyFromHost(item.host.data(), item.host.size(), stream, offset));
      TILEWRIGHT_RETURN_IF_ERROR(memory_.Repeat(offset, item.host.size(), item.bytes, stream));
    }
    item.set(args_, static_cast<char*>(memory_.data()) + offset);
    regions_.push_back({item.name, offset, item.bytes, item.output, item.type});
    offset += RoundUp(item.bytes) + kGuardBytes;
  }
  TILEWRIGHT_RETURN_IF_ERROR(PoisonOutputs(stream));
  // The host copies end with this function. A copy to the host waits for all before it.
  char last = 0;
  return memory_.CopyToHost(&last, 1, stream, memory_.size() - 1);
}

absl::Status ScratchProblem::PoisonOutputs(device::StreamHandle stream) {
  for (const Region& region : regions_) {
    if (!region.output) continue;
    TILEWRIGHT_RETURN_IF_ERROR(memory_.FillRange(kPoison, region.offset, region.bytes, stream));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ScratchOutput>> ScratchProblem::ReadOutputs(
    device::StreamHandle stream) const {
  std::vector<ScratchOutput> outputs;
  for (const Region& region : regions_) {
    if (!region.output) continue;
    ScratchOutput output = {region.name, region.type, std::string(region.bytes, '\0')};
    TILEWRIGHT_RETURN_IF_ERROR(
        memory_.CopyToHost(output.bytes.data(), output.bytes.size(), stream, region.offset));
    outputs.push_back(std::move(output));
  }
  return outputs;
}

absl::Status ScratchProblem::CheckGuards(device::StreamHandle stream) const {
  size_t end = 0;  // of the region before
  std::string before = "the first array";
  const auto check = [&](size_t next, const std::string& after) -> absl::Status {
    std::string guard(next - end, '\0');
    TILEWRIGHT_RETURN_IF_ERROR(memory_.CopyToHost(guard.data(), guard.size(), stream, end));
    for (size_t n = 0; n < guard.size(); ++n) {
      if (static_cast<uint8_t>(guard[n]) == kGuardByte) continue;
      return absl::FailedPreconditionError(absl::StrCat("wrote outside its arrays: ", n,
                                                        " bytes behind ", before, ", ",
                                                        guard.size() - n, " before ", after));
    }
    return absl::OkStatus();
  };
  for (const Region& region : regions_) {
    TILEWRIGHT_RETURN_IF_ERROR(check(region.offset, region.name));
    end = region.offset + region.bytes;
    before = region.name;
  }
  return check(memory_.size(), "the end");
}

}  // namespace tilewright::tune
