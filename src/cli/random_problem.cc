#include "cli/random_problem.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "reference/reference.h"
#include "spec/canonical.h"
#include "spec/validate.h"

namespace tilewright::cli {
namespace {

constexpr size_t kHostAlignment = 64;

// Every pointer that a call may carry. The one list that ArgsAt moves.
template <typename Visitor>
void ForEachPointer(AttentionArgs& args, const Visitor& visit) {
  visit(args.q.data);
  visit(args.k.data);
  visit(args.v.data);
  visit(args.o.data);
  visit(args.lse);
  visit(args.d_o.data);
  visit(args.d_q.data);
  visit(args.d_k.data);
  visit(args.d_v.data);
  visit(args.cu_seqlens_q);
  visit(args.cu_seqlens_kv);
  visit(args.seqused_q);
  visit(args.seqused_kv);
  visit(args.left_padding);
  visit(args.cache_batch_idx);
  visit(args.page_table);
  visit(args.alibi_slopes);
  for (BiasTensor& bias : args.bias) visit(bias.data);
  visit(args.sinks);
  visit(args.block_mask);
  visit(args.q_scale);
  visit(args.k_scale);
  visit(args.v_scale);
  visit(args.dropout_seed_ptr);
  visit(args.dropout_offset_ptr);
  for (const void*& array : args.snippet_arrays) visit(array);
  visit(args.d_alibi_slopes);
  for (BiasGradient& bias : args.d_bias) visit(bias.data);
  visit(args.d_sinks);
  for (float*& array : args.d_snippet_arrays) visit(array);
}

}  // namespace

void* HostProblem::AddBuffer(std::string name, size_t size, size_t start, bool output,
                             std::byte fill) {
  HostBuffer buffer;
  buffer.name = std::move(name);
  buffer.size = start + size;
  buffer.start = start;
  buffer.output = output;
  buffer.storage.assign(buffer.size + kHostAlignment, fill);
  const auto address = reinterpret_cast<uintptr_t>(buffer.storage.data());
  buffer.align_skip = (kHostAlignment - address % kHostAlignment) % kHostAlignment;
  buffers_.push_back(std::move(buffer));  // the storage's address survives the move
  return buffers_.back().base() + start;
}

const HostBuffer* HostProblem::FindBuffer(std::string_view name) const {
  for (const HostBuffer& buffer : buffers_) {
    if (buffer.name == name) return &buffer;
  }
  return nullptr;
}

size_t HostProblem::total_bytes() const {
  size_t bytes = 0;
  for (const HostBuffer& buffer : buffers_) bytes += buffer.size;
  return bytes;
}

AttentionArgs HostProblem::ArgsAt(absl::Span<void* const> bases) const {
  TILEWRIGHT_CHECK(bases.size() == buffers_.size());
  AttentionArgs moved = args_;
  ForEachPointer(moved, [&](auto*& pointer) {
    if (pointer == nullptr) return;
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    for (size_t n = 0; n < buffers_.size(); ++n) {
      // Inclusive: an array of no bytes still has its place.
      const auto base = reinterpret_cast<uintptr_t>(buffers_[n].base());
      if (address >= base && address <= base + buffers_[n].size) {
        void* at = static_cast<std::byte*>(bases[n]) + (address - base);
        pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(at);
        return;
      }
    }
    TILEWRIGHT_CHECK(false && "a pointer of args() lies in none of the buffers");
  });
  return moved;
}

int64_t HostProblem::LengthQ(int64_t b) const {
  int64_t length = args_.seqlen_q;
  if (spec_.varlen && args_.cu_seqlens_q != nullptr) {
    length = args_.cu_seqlens_q[b + 1] - args_.cu_seqlens_q[b];
  }
  if (spec_.varlen && args_.seqused_q != nullptr) {
    length = std::min<int64_t>(length, args_.seqused_q[b]);
  }
  return length;
}

int64_t HostProblem::LengthKv(int64_t b) const {
  int64_t length = args_.seqlen_kv;
  if (spec_.varlen && args_.cu_seqlens_kv != nullptr) {
    length = args_.cu_seqlens_kv[b + 1] - args_.cu_seqlens_kv[b];
  }
  if (spec_.varlen && args_.seqused_kv != nullptr) {
    length = std::min<int64_t>(length, args_.seqused_kv[b]);
  }
  return length;
}

namespace {

// Elements from the first to the one after the last that strides reach.
int64_t Reach(const Strides& strides, int64_t batch, int64_t seq, int64_t heads, int64_t dim) {
  if (batch == 0 || seq == 0 || heads == 0 || dim == 0) return 0;
  return (batch - 1) * strides.batch + (seq - 1) * strides.seq + (heads - 1) * strides.head +
         (dim - 1) * strides.dim + 1;
}

}  // namespace

void HostProblem::AddOutputs(const Strides& o_strides, size_t start_elements, std::byte poison) {
  const bool packed = spec_.varlen && args_.cu_seqlens_q != nullptr;
  const int64_t batch = packed ? 1 : args_.batch;
  const int64_t rows = packed ? args_.total_q : args_.seqlen_q;
  const int bytes = spec::ElementBytes(spec::OutType(spec_));
  args_.o.strides = o_strides;
  args_.o.data = AddBuffer(
      "o", static_cast<size_t>(Reach(o_strides, batch, rows, spec_.heads_q, spec_.dim_v) * bytes),
      start_elements * bytes, /*output=*/true, poison);
  if (spec_.lse || spec_.operation == Operation::kBackward) {
    args_.lse_stride_head = rows;
    args_.lse_stride_batch = packed ? 0 : rows * spec_.heads_q;
    args_.lse = static_cast<float*>(
        AddBuffer("lse", static_cast<size_t>(batch * spec_.heads_q * rows) * sizeof(float), 0,
                  /*output=*/true, poison));
  }
}

namespace {

// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014): the same
// numbers on every platform, which <random>'s distributions do not promise.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  // In [0, bound).
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(Next() % static_cast<uint64_t>(bound));
  }
  // Mean 0, variance 1: the sum of four 16-bit uniforms, whose tails end at 3.5.
  double Normal() {
    const uint64_t bits = Next();
    const int64_t sum = static_cast<int64_t>((bits & 0xffff) + ((bits >> 16) & 0xffff) +
                                             ((bits >> 32) & 0xffff) + (bits >> 48));
    return static_cast<double>(sum - 2 * 0xffff) * (1.7320508075688772 / 65536.0);
  }

 private:
  uint64_t state_;
};

// Stored values of this type have this standard deviation, so that int8 and fp8 use their range.
double StoredDeviation(ElementType type) {
  return type == ElementType::kInt8 ? 36 : 1;  // 3.5 deviations reach 127
}

class Builder {
 public:
  Builder(const AttentionSpec& spec, const RandomProblemOptions& options)
      : problem_(spec), spec_(problem_.spec()), options_(options), random_(options.seed) {}

  absl::StatusOr<HostProblem> Build() && {
    AttentionArgs& args = problem_.args();
    args.batch = spec_.batch;
    args.seqlen_q = spec_.seqlen_q;
    args.seqlen_kv = spec_.seqlen_kv;
    TILEWRIGHT_RETURN_IF_ERROR(AddLengths());
    if (spec_.left_padding) AddLeftPadding();
    if (spec_.cache_batch_idx) AddSlots();
    AddTensors();
    if (spec_.alibi) AddAlibi();
    for (size_t n = 0; n < spec_.bias.size(); ++n) AddBias(n);
    if (spec_.sinks) {
      float* sinks = AddFloats("sinks", spec_.heads_q);
      for (int64_t h = 0; h < spec_.heads_q; ++h) sinks[h] = static_cast<float>(random_.Normal());
      args.sinks = sinks;
    }
    if (spec_.block_mask_q > 0) AddBlockMask();
    AddScales();
    if (spec_.dropout > 0) AddDropout();
    TILEWRIGHT_RETURN_IF_ERROR(AddSnippetInputs());
    if (spec_.operation == Operation::kBackward) AddGradients();
    return std::move(problem_);
  }

 private:
  float* AddFloats(std::string name, int64_t count) {
    return static_cast<float*>(
        problem_.AddBuffer(std::move(name), static_cast<size_t>(count) * sizeof(float), Odd(4)));
  }
  int32_t* AddInts(std::string name, int64_t count) {
    return static_cast<int32_t*>(
        problem_.AddBuffer(std::move(name), static_cast<size_t>(count) * sizeof(int32_t), Odd(4)));
  }
  const int32_t* AddInts(std::string name, const std::vector<int64_t>& values) {
    int32_t* ints = AddInts(std::move(name), static_cast<int64_t>(values.size()));
    std::copy(values.begin(), values.end(), ints);
    return ints;
  }
  // Bytes from an aligned base to the first element.
  size_t Odd(int element_bytes) const { return options_.odd_strides ? element_bytes : 0; }

  // Lengths between 0 and `longest`, at least one of them `longest`.
  std::vector<int64_t> RandomLengths(int64_t longest) {
    std::vector<int64_t> lengths(spec_.batch);
    for (int64_t& length : lengths) {
      length = random_.Below(8) == 0 ? 0 : random_.Below(longest + 1);
    }
    if (!lengths.empty()) lengths[random_.Below(spec_.batch)] = longest;
    return lengths;
  }

  absl::Status CheckLengths(std::string_view name, const std::vector<int64_t>& lengths,
                            int64_t longest) const {
    if (static_cast<int64_t>(lengths.size()) != spec_.batch) {
      return absl::InvalidArgumentError(
          absl::StrCat(absl::string_view(name.data(), name.size()), " has ", lengths.size(),
                       " lengths; the spec's batch is ", spec_.batch));
    }
    for (int64_t length : lengths) {
      if (length < 0 || length > longest) {
        return absl::InvalidArgumentError(
            absl::StrCat(absl::string_view(name.data(), name.size()), " holds ", length,
                         "; a length must be between 0 and the spec's ", longest));
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddLengths() {
    lengths_q_.assign(spec_.batch, spec_.seqlen_q);
    lengths_kv_.assign(spec_.batch, spec_.seqlen_kv);
    if (!spec_.varlen) {
      if (!options_.lengths_q.empty() || !options_.lengths_kv.empty()) {
        return absl::InvalidArgumentError("lengths are given, but the spec does not say varlen");
      }
      return absl::OkStatus();
    }
    VarlenArrays arrays;
    if (options_.varlen_arrays.has_value()) {
      arrays = *options_.varlen_arrays;
    } else if (spec_.layout == Layout::kThd) {
      arrays.cu_seqlens_q = true;
      arrays.cu_seqlens_kv = spec_.page_size == 0;
      arrays.seqused_kv = spec_.page_size > 0;
    } else {
      arrays.seqused_kv = true;
    }
    AttentionArgs& args = problem_.args();
    if (arrays.cu_seqlens_q) {
      lengths_q_ = options_.lengths_q.empty() ? RandomLengths(spec_.seqlen_q) : options_.lengths_q;
      TILEWRIGHT_RETURN_IF_ERROR(CheckLengths("lengths_q", lengths_q_, spec_.seqlen_q));
      args.cu_seqlens_q = AddPrefixSums("cu_seqlens_q", lengths_q_);
      args.total_q = args.cu_seqlens_q[spec_.batch];
    } else if (!options_.lengths_q.empty() && !arrays.seqused_q) {
      return absl::InvalidArgumentError(
          "lengths of queries are given, but without cu_seqlens_q and seqused_q every sequence has "
          "all of them");
    }
    if (arrays.seqused_q) {
      // With both arrays it takes a part of the rows.
      if (arrays.cu_seqlens_q) {
        for (int64_t& length : lengths_q_) length = random_.Below(length + 1);
      } else {
        lengths_q_ =
            options_.lengths_q.empty() ? RandomLengths(spec_.seqlen_q) : options_.lengths_q;
        TILEWRIGHT_RETURN_IF_ERROR(CheckLengths("lengths_q", lengths_q_, spec_.seqlen_q));
      }
      args.seqused_q = AddInts("seqused_q", lengths_q_);
    }
    if (arrays.cu_seqlens_kv || arrays.seqused_kv) {
      lengths_kv_ =
          options_.lengths_kv.empty() ? RandomLengths(spec_.seqlen_kv) : options_.lengths_kv;
      TILEWRIGHT_RETURN_IF_ERROR(CheckLengths("lengths_kv", lengths_kv_, spec_.seqlen_kv));
    }
    if (arrays.cu_seqlens_kv) {
      // With both arrays, seqused_kv takes a part of what each sequence has room for.
      std::vector<int64_t> room = lengths_kv_;
      if (arrays.seqused_kv) {
        for (int64_t& length : room) {
          length = std::min(spec_.seqlen_kv, length + random_.Below(9));
        }
      }
      args.cu_seqlens_kv = AddPrefixSums("cu_seqlens_kv", room);
      args.total_kv = args.cu_seqlens_kv[spec_.batch];
    }
    if (arrays.seqused_kv) {
      args.seqused_kv = AddInts("seqused_kv", lengths_kv_);
    }
    return absl::OkStatus();
  }

  const int32_t* AddPrefixSums(std::string name, const std::vector<int64_t>& lengths) {
    int32_t* sums = AddInts(std::move(name), spec_.batch + 1);
    int64_t total = 0;
    for (int64_t b = 0; b <= spec_.batch; ++b) {
      sums[b] = static_cast<int32_t>(total);
      if (b < spec_.batch) total += lengths[b];
    }
    return sums;
  }

  // None, some and all of the keys of a sequence.
  void AddLeftPadding() {
    for (const int64_t length : lengths_kv_) {
      left_padding_.push_back(random_.Below(4) == 0 ? 0 : random_.Below(length + 2));
    }
    problem_.args().left_padding = AddInts("left_padding", left_padding_);
  }

  // Some of the slots of a larger cache, none of them twice.
  void AddSlots() {
    slots_ = spec_.batch + 2;
    std::vector<int64_t> order(slots_);
    std::iota(order.begin(), order.end(), 0);
    for (int64_t n = slots_ - 1; n > 0; --n) std::swap(order[n], order[random_.Below(n + 1)]);
    order.resize(spec_.batch);
    slot_of_ = order;
    problem_.args().cache_batch_idx = AddInts("cache_batch_idx", order);
  }
  int64_t SlotOf(int64_t b) const { return slot_of_.empty() ? b : slot_of_[b]; }
  int64_t Slots() const { return slot_of_.empty() ? spec_.batch : slots_; }

  // The strides of one tensor: the spec's, dense, or (odd_strides) padded by amounts that leave no
  // power of two in them.
  Strides ChooseStrides(int which, bool packed, int64_t batch, int64_t seq, int64_t heads,
                        int64_t dim) const {
    const bool paged_kv = spec_.page_size > 0 && (which == 1 || which == 2);
    if (!options_.odd_strides) {
      if (spec_.strides.has_value()) return (*spec_.strides)[which];
      Layout layout = spec_.layout;
      if (packed) layout = Layout::kThd;
      if (paged_kv && (layout == Layout::kThd || layout == Layout::kSbhd)) layout = Layout::kBshd;
      return DenseStrides(layout, batch, seq, heads, dim);
    }
    Strides strides;
    strides.dim = spec_.strided_innermost ? 2 : 1;
    const int64_t row = dim * strides.dim;
    if (spec_.layout == Layout::kBhsd && !packed) {
      strides.seq = row + 1;
      strides.head = strides.seq * seq + 3;
      strides.batch = strides.head * heads + 5;
    } else {
      strides.head = row + 1;
      strides.seq = strides.head * heads + 3;
      strides.batch = strides.seq * seq + 5;
    }
    if (packed) strides.batch = 0;
    return strides;
  }

  void* AddRandomTensor(std::string name, ElementType type, const Strides& strides, int64_t batch,
                        int64_t seq, int64_t heads, int64_t dim, double amplitude) {
    const int bytes = spec::ElementBytes(type);
    const int64_t count = Reach(strides, batch, seq, heads, dim);
    auto* data = static_cast<std::byte*>(
        problem_.AddBuffer(std::move(name), static_cast<size_t>(count) * bytes, Odd(bytes)));
    FillNormal(type, data, count, amplitude * StoredDeviation(type));
    return data;
  }

  void FillNormal(ElementType type, std::byte* data, int64_t count, double deviation) {
    const int bytes = spec::ElementBytes(type);
    for (int64_t n = 0; n < count; ++n) {
      reference::FromDouble(type, random_.Normal() * deviation, data + n * bytes);
    }
  }

  void AddTensors() {
    AttentionArgs& args = problem_.args();
    const bool packed_q = args.cu_seqlens_q != nullptr;
    const bool packed_kv = args.cu_seqlens_kv != nullptr && spec_.page_size == 0;
    const int64_t q_batch = packed_q ? 1 : spec_.batch;
    const int64_t q_rows = packed_q ? args.total_q : spec_.seqlen_q;
    args.q.strides = ChooseStrides(0, packed_q, q_batch, q_rows, spec_.heads_q, spec_.dim_qk);
    args.q.data = AddRandomTensor("q", spec_.type, args.q.strides, q_batch, q_rows, spec_.heads_q,
                                  spec_.dim_qk, options_.amplitude);

    int64_t kv_batch = packed_kv ? 1 : Slots();
    int64_t kv_rows = packed_kv ? args.total_kv : spec_.seqlen_kv;
    if (spec_.page_size > 0) {
      kv_batch = AddPageTable();
      kv_rows = spec_.page_size;
    }
    const ElementType kv_type = spec::KvType(spec_);
    args.k.strides = ChooseStrides(1, packed_kv, kv_batch, kv_rows, spec_.heads_kv, spec_.dim_qk);
    args.k.data = AddRandomTensor("k", kv_type, args.k.strides, kv_batch, kv_rows, spec_.heads_kv,
                                  spec_.dim_qk, options_.amplitude);
    args.v.strides = ChooseStrides(2, packed_kv, kv_batch, kv_rows, spec_.heads_kv, spec_.dim_v);
    args.v.data = AddRandomTensor("v", kv_type, args.v.strides, kv_batch, kv_rows, spec_.heads_kv,
                                  spec_.dim_v, options_.amplitude);
    if (options_.poison_unused_kv && kv_type != ElementType::kInt8) {
      PoisonUnused(kv_batch, kv_rows);
    }
    const Strides o_strides =
        ChooseStrides(3, packed_q, q_batch, q_rows, spec_.heads_q, spec_.dim_v);
    problem_.AddOutputs(o_strides, options_.odd_strides ? 1 : 0, options_.poison);
  }

  // Pages in random order with two that nobody uses. Returns how many there are.
  int64_t AddPageTable() {
    const int64_t max_pages = (spec_.seqlen_kv + spec_.page_size - 1) / spec_.page_size;
    int64_t needed = 0;
    for (int64_t length : lengths_kv_) needed += (length + spec_.page_size - 1) / spec_.page_size;
    const int64_t pages = needed + 2;
    std::vector<int32_t> order(pages);
    for (int64_t n = 0; n < pages; ++n) order[n] = static_cast<int32_t>(n);
    for (int64_t n = pages - 1; n > 0; --n) std::swap(order[n], order[random_.Below(n + 1)]);

    AttentionArgs& args = problem_.args();
    args.page_table_stride = max_pages + (options_.odd_strides ? 3 : 0);
    int32_t* table = AddInts("page_table", Slots() * args.page_table_stride);
    std::fill_n(table, Slots() * args.page_table_stride, std::numeric_limits<int32_t>::max());
    int64_t next = 0;
    for (int64_t b = 0; b < spec_.batch; ++b) {
      const int64_t used = (lengths_kv_[b] + spec_.page_size - 1) / spec_.page_size;
      for (int64_t p = 0; p < args.page_table_stride; ++p) {
        // Beyond the length nothing may be read: the entry points far outside.
        int32_t entry = std::numeric_limits<int32_t>::max();
        if (p < used) entry = order[next++];
        if (p < used && options_.negative_pages && random_.Below(5) == 0) entry = -1;
        table[SlotOf(b) * args.page_table_stride + p] = entry;
      }
    }
    args.page_table = table;
    return pages;
  }

  // The keys of a sequence that hold numbers.
  spec::KeyBounds UsedKeys(int64_t b) const {
    const spec::KeyBounds seen = spec::KeysInWindow(spec_, lengths_q_[b], lengths_kv_[b]);
    const int64_t padding = spec_.left_padding ? left_padding_[b] : 0;
    if (!options_.poison_hidden_kv) return {padding, lengths_kv_[b]};
    return {std::max<int64_t>(padding, seen.begin), seen.end};
  }

  void PoisonUnused(int64_t kv_batch, int64_t kv_rows) {
    const AttentionArgs& args = problem_.args();
    std::vector<bool> used(kv_batch * kv_rows, false);
    for (int64_t b = 0; b < spec_.batch; ++b) {
      const spec::KeyBounds keys = UsedKeys(b);
      for (int64_t j = keys.begin; j < keys.end; ++j) {
        if (spec_.page_size > 0) {
          const int32_t page =
              args.page_table[SlotOf(b) * args.page_table_stride + j / spec_.page_size];
          if (page >= 0) used[page * kv_rows + j % spec_.page_size] = true;
        } else if (args.cu_seqlens_kv != nullptr) {
          used[args.cu_seqlens_kv[b] + j] = true;
        } else {
          used[SlotOf(b) * kv_rows + j] = true;
        }
      }
    }
    PoisonRows(args.k, spec_.dim_qk, used, kv_rows);
    PoisonRows(args.v, spec_.dim_v, used, kv_rows);
  }

  void PoisonRows(const Tensor& tensor, int64_t dim, const std::vector<bool>& used,
                  int64_t kv_rows) {
    // Strides of 0 make rows share memory: what one sequence leaves unused, another reads.
    if (tensor.strides.batch == 0 && used.size() > static_cast<size_t>(kv_rows)) return;
    if (tensor.strides.seq == 0) return;
    const ElementType type = spec::KvType(spec_);
    const int bytes = spec::ElementBytes(type);
    auto* data = static_cast<std::byte*>(const_cast<void*>(tensor.data));
    for (size_t n = 0; n < used.size(); ++n) {
      if (used[n]) continue;
      const int64_t row = static_cast<int64_t>(n) / kv_rows * tensor.strides.batch +
                          static_cast<int64_t>(n) % kv_rows * tensor.strides.seq;
      for (int64_t h = 0; h < spec_.heads_kv; ++h) {
        for (int64_t d = 0; d < dim; ++d) {
          reference::FromDouble(
              type, std::numeric_limits<double>::quiet_NaN(),
              data + (row + h * tensor.strides.head + d * tensor.strides.dim) * bytes);
        }
      }
    }
  }

  // 2^(-8 (h + 1) / heads) as in the ALiBi paper (arXiv 2108.12409); a row per batch when odd.
  void AddAlibi() {
    AttentionArgs& args = problem_.args();
    const int64_t rows = options_.odd_strides ? spec_.batch : 1;
    const int64_t stride = spec_.heads_q + (options_.odd_strides ? 1 : 0);
    float* slopes = AddFloats("alibi_slopes", rows * stride);
    for (int64_t b = 0; b < rows; ++b) {
      for (int64_t h = 0; h < spec_.heads_q; ++h) {
        slopes[b * stride + h] = static_cast<float>(
            std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(spec_.heads_q)) *
            (1 + 0.1 * static_cast<double>(b)));
      }
    }
    args.alibi_slopes = slopes;
    args.alibi_stride_batch = options_.odd_strides ? stride : 0;
  }

  void AddBias(size_t n) {
    const BiasTerm& term = spec_.bias[n];
    const int bytes = spec::ElementBytes(term.type);
    const int64_t pad = options_.odd_strides ? 1 : 0;
    BiasTensor tensor;
    tensor.stride_kv = 1;
    tensor.stride_q = term.seqlen_kv + pad;
    tensor.stride_head = tensor.stride_q * term.seqlen_q + pad;
    tensor.stride_batch = tensor.stride_head * term.heads + pad;
    const int64_t count = term.batch * tensor.stride_batch;
    auto* data = static_cast<std::byte*>(problem_.AddBuffer(
        absl::StrCat("bias", n), static_cast<size_t>(count) * bytes, Odd(bytes)));
    if (term.type == ElementType::kBool) {
      for (int64_t e = 0; e < count; ++e) {
        data[e] = std::byte(random_.Uniform() < options_.keep_probability ? 1 : 0);
      }
      if (term.seqlen_q > 1 && term.seqlen_kv > 1) ClearSomeRows(term, tensor, data);
    } else {
      FillNormal(term.type, data, count, options_.bias_amplitude);
    }
    tensor.data = data;
    // Strides of broadcast extents are ignored; any value must do.
    constexpr int64_t kNonsense = 1000003;
    if (term.batch == 1) tensor.stride_batch = options_.odd_strides ? kNonsense : 0;
    if (term.heads == 1) tensor.stride_head = options_.odd_strides ? kNonsense : 0;
    if (term.seqlen_q == 1) tensor.stride_q = options_.odd_strides ? kNonsense : 0;
    if (term.seqlen_kv == 1) tensor.stride_kv = options_.odd_strides ? kNonsense : 0;
    problem_.args().bias[n] = tensor;
  }

  void ClearSomeRows(const BiasTerm& term, const BiasTensor& tensor, std::byte* data) {
    for (int64_t b = 0; b < term.batch; ++b) {
      for (int64_t h = 0; h < term.heads; ++h) {
        for (int64_t i = 0; i < term.seqlen_q; ++i) {
          if (random_.Below(16) != 0) continue;
          std::byte* row =
              data + b * tensor.stride_batch + h * tensor.stride_head + i * tensor.stride_q;
          std::fill(row, row + term.seqlen_kv, std::byte{0});
        }
      }
    }
  }

  void AddBlockMask() {
    AttentionArgs& args = problem_.args();
    const int64_t rows = (spec_.seqlen_q + spec_.block_mask_q - 1) / spec_.block_mask_q;
    const int64_t columns = (spec_.seqlen_kv + spec_.block_mask_kv - 1) / spec_.block_mask_kv;
    // One mask for all heads when odd: the head stride of 0 must broadcast.
    const int64_t heads = options_.odd_strides ? 1 : spec_.heads_q;
    const int64_t stride_q = columns + (options_.odd_strides ? 1 : 0);
    const int64_t count = spec_.batch * heads * rows * stride_q;
    auto* mask =
        static_cast<uint8_t*>(problem_.AddBuffer("block_mask", static_cast<size_t>(count), Odd(1)));
    for (int64_t n = 0; n < count; ++n) mask[n] = random_.Uniform() < options_.keep_probability;
    args.block_mask = mask;
    args.block_mask_strides = {heads * rows * stride_q, heads > 1 ? rows * stride_q : 0, stride_q};
  }

  // Positive, around the value that makes stored numbers unit variance.
  float* AddScale(std::string name, int64_t count, ElementType type) {
    float* scale = AddFloats(std::move(name), count);
    for (int64_t n = 0; n < count; ++n) {
      scale[n] = static_cast<float>((0.75 + 0.5 * random_.Uniform()) / StoredDeviation(type));
    }
    return scale;
  }

  void AddScales() {
    AttentionArgs& args = problem_.args();
    if (spec_.q_scale != ScaleKind::kNone) {
      args.q_scale =
          AddScale("q_scale", spec_.q_scale == ScaleKind::kPerHead ? spec_.heads_q : 1, spec_.type);
    }
    if (spec_.kv_scale == ScaleKind::kNone) return;
    const ElementType type = spec::KvType(spec_);
    int64_t count = 1;
    std::array<int64_t, 3> strides = {0, 0, 0};
    if (spec_.kv_scale == ScaleKind::kPerHead) {
      count = spec_.heads_kv;
      strides = {0, 1, 0};
    } else if (spec_.kv_scale == ScaleKind::kPerToken) {
      // [batch or page, heads_kv, token]; packed K and V have one batch of all tokens.
      const HostBuffer* k = problem_.FindBuffer("k");
      const bool packed = args.cu_seqlens_kv != nullptr && spec_.page_size == 0;
      int64_t batches = packed ? 1 : Slots();
      int64_t tokens = packed ? args.total_kv : spec_.seqlen_kv;
      if (spec_.page_size > 0) {
        tokens = spec_.page_size;
        const int64_t elements =
            static_cast<int64_t>(k->size - k->start) / spec::ElementBytes(type);
        batches = args.k.strides.batch > 0 ? (elements - 1) / args.k.strides.batch + 1 : 1;
      }
      const int64_t pad = options_.odd_strides ? 1 : 0;
      strides = {(tokens + pad) * spec_.heads_kv + pad, tokens + pad, 1};
      count = batches * strides[0];
      if (packed) strides[0] = 0;
    }
    args.k_scale = AddScale("k_scale", count, type);
    args.v_scale = AddScale("v_scale", count, type);
    args.k_scale_strides = strides;
    args.v_scale_strides = strides;
  }

  void AddDropout() {
    AttentionArgs& args = problem_.args();
    args.dropout_seed = random_.Next();
    args.dropout_offset = random_.Next();  // above 2^32: its high bits join the key
    if (!options_.dropout_by_pointer) return;
    auto* seed = static_cast<uint64_t*>(problem_.AddBuffer("dropout_seed", sizeof(uint64_t)));
    auto* offset = static_cast<uint64_t*>(problem_.AddBuffer("dropout_offset", sizeof(uint64_t)));
    *seed = std::exchange(args.dropout_seed, 0);
    *offset = std::exchange(args.dropout_offset, 0);
    args.dropout_seed_ptr = seed;
    args.dropout_offset_ptr = offset;
  }

  // What a backward pass adds to the arrays of a forward one. O and the LSE, which it reads, are
  // there but hold poison: a forward pass of the same spec fills them.
  void AddGradients() {
    AttentionArgs& args = problem_.args();
    const bool packed_q = args.cu_seqlens_q != nullptr, packed_kv = args.cu_seqlens_kv != nullptr;
    const int64_t q_batch = packed_q ? 1 : spec_.batch, kv_batch = packed_kv ? 1 : spec_.batch;
    const int64_t q_rows = packed_q ? args.total_q : spec_.seqlen_q;
    const int64_t kv_rows = packed_kv ? args.total_kv : spec_.seqlen_kv;
    args.d_o.strides = args.o.strides;
    args.d_o.data = AddRandomTensor("d_o", spec::OutType(spec_), args.o.strides, q_batch, q_rows,
                                    spec_.heads_q, spec_.dim_v, options_.amplitude);
    const auto add = [this](std::string name, const Tensor& like, int64_t batch, int64_t rows,
                            int64_t heads, int64_t dim) {
      const int bytes = spec::ElementBytes(spec_.type);
      const size_t size = static_cast<size_t>(Reach(like.strides, batch, rows, heads, dim)) * bytes;
      return MutableTensor{
          problem_.AddBuffer(std::move(name), size, Odd(bytes), /*output=*/true, options_.poison),
          like.strides};
    };
    args.d_q = add("d_q", args.q, q_batch, q_rows, spec_.heads_q, spec_.dim_qk);
    args.d_k = add("d_k", args.k, kv_batch, kv_rows, spec_.heads_kv, spec_.dim_qk);
    args.d_v = add("d_v", args.v, kv_batch, kv_rows, spec_.heads_kv, spec_.dim_v);
    const auto add_floats = [this](std::string name, int64_t count, std::byte fill) {
      return static_cast<float*>(problem_.AddBuffer(
          std::move(name), static_cast<size_t>(count) * sizeof(float), 0, /*output=*/true, fill));
    };
    for (size_t n = 0; n < spec_.bias.size(); ++n) {
      const BiasTerm& term = spec_.bias[n];
      if (!term.gradient) continue;
      BiasGradient gradient;
      gradient.stride_kv = 1;
      gradient.stride_q = term.seqlen_kv;
      gradient.stride_head = gradient.stride_q * term.seqlen_q;
      gradient.stride_batch = gradient.stride_head * term.heads;
      gradient.data = add_floats(absl::StrCat("d_bias", n), gradient.stride_batch * term.batch,
                                 options_.poison);
      args.d_bias[n] = gradient;
    }
    if (spec_.alibi_gradient) {
      const int64_t batches = args.alibi_stride_batch != 0 ? spec_.batch : 1;
      args.d_alibi_slopes = add_floats("d_alibi_slopes", batches * spec_.heads_q, options_.poison);
    }
    if (spec_.sinks_gradient) args.d_sinks = add_floats("d_sinks", spec_.heads_q, options_.poison);
    for (size_t n = 0; n < spec_.snippet_arrays.size(); ++n) {
      const SnippetArray& array = spec_.snippet_arrays[n];
      if (!array.gradient) continue;
      // As many elements as the array has; the caller clears what is added to.
      const HostBuffer* values = problem_.FindBuffer(absl::StrCat("array ", array.name));
      const auto count = static_cast<int64_t>(values->size) / spec::ElementBytes(array.type);
      args.d_snippet_arrays[n] =
          add_floats(absl::StrCat("d_array ", array.name), count, std::byte{0});
    }
  }

  absl::Status AddSnippetInputs() {
    AttentionArgs& args = problem_.args();
    for (size_t n = 0; n < spec_.snippet_arrays.size(); ++n) {
      const SnippetArray& array = spec_.snippet_arrays[n];
      const auto given = options_.snippet_arrays.find(array.name);
      if (given == options_.snippet_arrays.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("the snippet's array \"", array.name,
                         "\" has no values; its length is known only to the snippet"));
      }
      void* data = problem_.AddBuffer(absl::StrCat("array ", array.name), given->second.size());
      if (!given->second.empty()) {
        std::memcpy(data, given->second.data(), given->second.size());
      }
      args.snippet_arrays[n] = data;
    }
    for (size_t n = 0; n < spec_.snippet_scalars.size(); ++n) {
      const SnippetScalar& scalar = spec_.snippet_scalars[n];
      const auto given = options_.snippet_scalars.find(scalar.name);
      if (given == options_.snippet_scalars.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("the snippet's scalar \"", scalar.name, "\" has no value"));
      }
      if (scalar.type == ScalarType::kFloat) {
        args.snippet_scalars[n].f = static_cast<float>(given->second);
      } else {
        args.snippet_scalars[n].i = static_cast<int64_t>(given->second);
      }
    }
    return absl::OkStatus();
  }

  HostProblem problem_;
  const AttentionSpec& spec_;
  const RandomProblemOptions& options_;
  Random random_;
  std::vector<int64_t> lengths_q_;
  std::vector<int64_t> lengths_kv_;
  std::vector<int64_t> left_padding_;
  std::vector<int64_t> slot_of_;  // of each sequence; empty: its number
  int64_t slots_ = 0;
};

}  // namespace

absl::StatusOr<HostProblem> MakeRandomProblem(const AttentionSpec& spec,
                                              const RandomProblemOptions& options) {
  TILEWRIGHT_RETURN_IF_ERROR(spec::Validate(spec));
  return Builder(spec, options).Build();
}

}  // namespace tilewright::cli
