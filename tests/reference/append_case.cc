#include "tests/reference/append_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "spec/cache_append.h"
#include "spec/validate.h"

namespace tilewright::reference {
namespace {

using enum ElementType;

struct Format {
  int mantissa_bits;
  int least_exponent;
  double largest;
};
Format FormatOf(ElementType type) {
  switch (type) {
    case kFp16:
      return {10, -14, 65504};
    case kBf16:
      return {7, -126, 3e38};
    case kFp8E4m3:
      return {3, -6, 448};
    case kFp8E5m2:
      return {2, -14, 57344};
    case kInt8:
      return {0, 0, 127};
    default:
      return {23, -126, 3e38};
  }
}

// Half the distance of the numbers around `value` that the type has.
double HalfStep(ElementType type, double value) {
  if (type == kInt8) return 0.5;
  const Format format = FormatOf(type);
  const int exponent = value == 0 ? format.least_exponent
                                  : std::max(std::ilogb(std::abs(value)), format.least_exponent);
  return std::ldexp(0.5, exponent - format.mantissa_bits);
}

Strides DenseRows(int64_t rows, int64_t heads, int64_t dim, int64_t pad) {
  Strides strides;
  strides.head = dim + pad;
  strides.seq = strides.head * heads + pad;
  strides.batch = strides.seq * rows + pad;
  return strides;
}

}  // namespace

std::vector<AppendScenario> AppendScenarios() {
  std::vector<AppendScenario> all;
  const auto add = [&all](std::string name, CacheAppendSpec spec,
                          std::vector<int32_t> before) -> AppendScenario& {
    AppendScenario& one = all.emplace_back();
    one.name = std::move(name);
    one.spec = spec;
    one.before = std::move(before);
    return one;
  };
  add("decode_paged_half_split",
      {.heads_q = 4, .heads_kv = 2, .page_size = 16, .rotary = Rotary::kHalfSplit},
      {0, 5, 31, 47, 16});
  add("copies", {.heads_kv = 2, .dim_qk = 64, .dim_v = 64}, {0, 5, 13}).seqlen = 3;
  add("copies_fp32_odd", {.type = kFp32, .heads_kv = 2, .dim_qk = 33, .dim_v = 7}, {0, 5})
      .odd_strides = true;
  {
    AppendScenario& one = add("packed_interleaved",
                              {.type = kFp16,
                               .heads_q = 3,
                               .heads_kv = 1,
                               .dim_qk = 64,
                               .dim_v = 40,
                               .rotary = Rotary::kInterleaved,
                               .rotary_begin = 16,
                               .rotary_dim = 32},
                              {0, 1, 20, 3});
    one.counts = {3, 0, 7, 1};
  }
  {
    AppendScenario& one = add("padded_odd_half",
                              {.heads_q = 2,
                               .heads_kv = 2,
                               .dim_qk = 36,
                               .dim_v = 20,
                               .rotary = Rotary::kHalfSplit,
                               .rotary_begin = 2,
                               .rotary_dim = 10},
                              {0, 9, 4});
    one.counts = {4, 0, 2};
    one.seqlen = 4;
    one.padded = one.odd_strides = true;
  }
  add("wide_odd_half",
      {.heads_q = 2,
       .heads_kv = 1,
       .dim_qk = 40,
       .dim_v = 24,
       .rotary = Rotary::kHalfSplit,
       .rotary_begin = 2,
       .rotary_dim = 26},
      {3, 9})
      .seqlen = 5;
  add("wide_odd_interleaved",
      {.heads_q = 2,
       .heads_kv = 1,
       .dim_qk = 40,
       .dim_v = 24,
       .rotary = Rotary::kInterleaved,
       .rotary_begin = 6,
       .rotary_dim = 26},
      {3, 9})
      .seqlen = 5;
  add("fp32_interleaved",
      {.type = kFp32,
       .heads_q = 2,
       .heads_kv = 2,
       .dim_qk = 40,
       .dim_v = 40,
       .rotary = Rotary::kInterleaved},
      {3, 11});
  add("e4m3_tensor",
      {.cache_type = kFp8E4m3,
       .cache_scale = ScaleKind::kPerTensor,
       .heads_q = 2,
       .heads_kv = 2,
       .rotary = Rotary::kHalfSplit},
      {3, 11});
  add("e5m2_head",
      {.type = kFp16,
       .cache_type = kFp8E5m2,
       .cache_scale = ScaleKind::kPerHead,
       .heads_kv = 3,
       .dim_qk = 64,
       .dim_v = 72},
      {3, 11, 0})
      .seqlen = 2;
  {
    AppendScenario& one = add("int8_token_slots_paged",
                              {.cache_type = kInt8,
                               .cache_scale = ScaleKind::kPerToken,
                               .heads_q = 2,
                               .heads_kv = 2,
                               .dim_qk = 80,
                               .dim_v = 48,
                               .page_size = 8,
                               .rotary = Rotary::kHalfSplit},
                              {0, 7, 8});
    one.seqlen = 3;
    one.slots = true;
  }
  {
    AppendScenario& one = add("e4m3_token_packed",
                              {.type = kFp32,
                               .cache_type = kFp8E4m3,
                               .cache_scale = ScaleKind::kPerToken,
                               .heads_kv = 2,
                               .dim_qk = 72,
                               .dim_v = 72,
                               .rotary = Rotary::kInterleaved},
                              {5, 0, 2});
    one.counts = {4, 6, 1};
    one.odd_strides = true;
  }
  add("int8_without_scale", {.cache_type = kInt8, .heads_kv = 1, .dim_qk = 16, .dim_v = 16}, {1});
  add("latent",
      {.heads_q = 3,
       .heads_kv = 1,
       .dim_qk = 576,
       .dim_v = 0,
       .page_size = 64,
       .rotary = Rotary::kInterleaved,
       .rotary_begin = 512},
      {3, 60})
      .seqlen = 2;
  {
    AppendScenario& one = add("table_fp32_positions",
                              {.heads_q = 2,
                               .heads_kv = 2,
                               .dim_qk = 64,
                               .dim_v = 64,
                               .rotary = Rotary::kHalfSplit,
                               .rotary_table = kFp32},
                              {3, 11});
    one.first_position = 0;
    one.slots = true;
  }
  add("table_bf16",
      {.heads_q = 2,
       .heads_kv = 1,
       .dim_qk = 32,
       .dim_v = 32,
       .rotary = Rotary::kInterleaved,
       .rotary_table = kBf16},
      {3, 11});
  {
    AppendScenario& one = add("no_place",
                              {.heads_q = 1,
                               .heads_kv = 1,
                               .dim_qk = 32,
                               .dim_v = 32,
                               .page_size = 4,
                               .rotary = Rotary::kHalfSplit},
                              {30, 2, 60, 64});
    one.seqlen = 9;
    one.missing_pages = true;
  }
  {
    AppendScenario& one = add("in_place_far",
                              {.heads_q = 5,
                               .heads_kv = 1,
                               .dim_qk = 128,
                               .dim_v = 128,
                               .rotary = Rotary::kHalfSplit,
                               .rotary_base = 500000},
                              {3, 11, 0});
    one.first_position = 100000000;
    one.in_place = true;
  }
  add("pages_of_one", {.heads_kv = 1, .dim_qk = 16, .dim_v = 16, .page_size = 1}, {3, 11, 0})
      .seqlen = 2;
  {
    AppendScenario& one =
        add("many_tokens", {.heads_kv = 1, .dim_qk = 32, .dim_v = 32, .rotary = Rotary::kHalfSplit},
            {3, 0});
    one.seqlen = 150;
    one.capacity = 160;
    one.writes_lengths = false;
  }
  add("queries_only", {.heads_q = 2, .heads_kv = 0, .dim_qk = 32, .rotary = Rotary::kInterleaved},
      {3, 7});
  add("nothing_new", {.heads_kv = 1}, {3, 7}).seqlen = 0;
  return all;
}

AppendCase::AppendCase(const AppendScenario& scenario) : spec(scenario.spec), scenario_(scenario) {
  std::mt19937_64 random(11);
  const auto batch = static_cast<int64_t>(scenario.before.size());
  const bool packed = !scenario.counts.empty() && !scenario.padded;
  int64_t tokens = batch * scenario.seqlen;
  args.batch = batch;
  args.seqlen = scenario.seqlen;
  if (packed) {
    cu_seqlens_ = {0};
    for (const int32_t count : scenario.counts) cu_seqlens_.push_back(cu_seqlens_.back() + count);
    args.cu_seqlens = cu_seqlens_.data();
    args.total = tokens = cu_seqlens_.back();
  } else if (scenario.padded) {
    seqused_ = scenario.counts;
    args.seqused = seqused_.data();
  }
  const int64_t pad = scenario.odd_strides ? 1 : 0;
  const int64_t new_batches = packed ? 1 : batch, new_rows = packed ? tokens : scenario.seqlen;
  const auto fill_new = [&](Array& array, Tensor& tensor, int64_t heads, int64_t dim) {
    tensor.strides = DenseRows(new_rows, heads, dim, pad);
    array = Array(spec.type, new_batches * tensor.strides.batch + pad);
    array.Fill(random, 2);
    tensor.data = static_cast<std::byte*>(array.data()) + pad * spec::ElementBytes(spec.type);
  };
  fill_new(q_, args.q, spec.heads_q, spec.dim_qk);
  fill_new(k_, args.k, spec.heads_kv, spec.dim_qk);
  fill_new(v_, args.v, spec.heads_kv, spec.dim_v);
  args.q_out = {const_cast<void*>(args.q.data), args.q.strides};
  if (!scenario.in_place) {
    q_out_ = q_;
    q_out_.Fill(random, 2);
    args.q_out.data = static_cast<std::byte*>(q_out_.data()) + pad * spec::ElementBytes(spec.type);
  }

  const bool paged = spec.page_size > 0;
  const int64_t slots = scenario.slots ? batch + 2 : batch;
  args.capacity = scenario.capacity;
  const int64_t pages = paged ? scenario.capacity / spec.page_size : 0;
  const int64_t blocks = paged ? slots * pages + 1 : slots;
  const int64_t rows = paged ? spec.page_size : scenario.capacity;
  if (scenario.slots) {
    for (int64_t b = 0; b < batch; ++b) slots_.push_back(static_cast<int32_t>(slots - 1 - b));
    args.cache_batch_idx = slots_.data();
  }
  if (paged) {
    table_.resize(slots * pages);
    std::iota(table_.begin(), table_.end(), 1);
    std::shuffle(table_.begin(), table_.end(), random);
    for (size_t n = 0; scenario.missing_pages && n < table_.size(); n += 3) table_[n] = -1;
    args.page_table = table_.data();
    args.page_table_stride = pages;
  }
  const ElementType cache_type = spec::CacheType(spec);
  const auto fill_cache = [&](Array& array, MutableTensor& tensor, int64_t dim) {
    tensor.strides = DenseRows(rows, spec.heads_kv, dim, pad);
    array = Array(cache_type, blocks * tensor.strides.batch + pad);
    array.Fill(random, 2);
    tensor.data = static_cast<std::byte*>(array.data()) + pad * spec::ElementBytes(cache_type);
  };
  fill_cache(k_cache_, args.k_cache, spec.dim_qk);
  fill_cache(v_cache_, args.v_cache, spec.dim_v);

  if (spec.cache_scale != ScaleKind::kNone) {
    int64_t count = spec.cache_scale == ScaleKind::kPerHead ? spec.heads_kv : 1;
    if (spec.cache_scale == ScaleKind::kPerToken) {
      count = blocks * spec.heads_kv * rows;
      args.k_scale_strides = args.v_scale_strides = {spec.heads_kv * rows, rows, 1};
    }
    const double around = cache_type == kInt8 ? 1.0 / 100 : 1.0 / 64;
    for (std::vector<float>* scale : {&k_scale_, &v_scale_}) {
      for (int64_t n = 0; n < count; ++n) {
        scale->push_back(static_cast<float>(around * (1 + 0.25 * static_cast<double>(n % 3))));
      }
    }
    args.k_scale = k_scale_.data();
    args.v_scale = v_scale_.data();
  }

  lengths_ = scenario.before;
  args.seqused_kv = lengths_.data();
  if (scenario.grows_in_place) {
    args.new_seqused_kv = lengths_.data();
    args.ticket = ticket_.data();
  } else if (scenario.writes_lengths) {
    new_lengths_.assign(batch, -7);
    args.new_seqused_kv = new_lengths_.data();
  }
  if (scenario.first_position >= 0) {
    for (int64_t t = 0; t < tokens; ++t) {
      positions_.push_back(scenario.first_position + static_cast<int32_t>(3 * t));
    }
    args.positions = positions_.data();
  }
  if (spec.rotary_table.has_value()) {
    const int64_t pairs = spec::RotaryPairs(spec);
    args.rotary_stride = pairs + 3;
    for (Array* table : {&cos_, &sin_}) {
      *table = Array(*spec.rotary_table, (scenario.capacity + 1) * args.rotary_stride);
      table->Fill(random, 1);
    }
    args.cos = cos_.data();
    args.sin = sin_.data();
  }
}

std::vector<AppendCase::Buffer> AppendCase::Buffers() {
  std::vector<Buffer> buffers;
  const auto array = [&](const char* name, Array& values, bool written) {
    buffers.push_back({name, values.data(), static_cast<size_t>(values.bytes()), written});
  };
  const auto numbers = [&](const char* name, auto& values, bool written) {
    buffers.push_back({name, values.data(), values.size() * sizeof(values[0]), written});
  };
  // The first six in this order: see CheckRow.
  array("q", q_, scenario_.in_place);
  array("q_out", q_out_, true);
  array("k_cache", k_cache_, true);
  array("v_cache", v_cache_, true);
  numbers("k_scale", k_scale_, spec.cache_scale == ScaleKind::kPerToken);
  numbers("v_scale", v_scale_, spec.cache_scale == ScaleKind::kPerToken);
  array("k", k_, false);
  array("v", v_, false);
  array("cos", cos_, false);
  array("sin", sin_, false);
  numbers("cu_seqlens", cu_seqlens_, false);
  numbers("seqused", seqused_, false);
  numbers("positions", positions_, false);
  numbers("page_table", table_, false);
  numbers("cache_batch_idx", slots_, false);
  numbers("seqused_kv", lengths_, scenario_.grows_in_place);
  numbers("new_seqused_kv", new_lengths_, true);
  numbers("ticket", ticket_, true);
  return buffers;
}

CacheAppendArgs AppendCase::ArgsAt(const std::vector<void*>& bases) {
  CacheAppendArgs moved = args;
  const std::vector<Buffer> buffers = Buffers();
  const auto move = [&](auto*& pointer) {
    const auto* const address = static_cast<const std::byte*>(static_cast<const void*>(pointer));
    for (size_t n = 0; n < buffers.size(); ++n) {
      auto* const base = static_cast<std::byte*>(buffers[n].data);
      if (address == nullptr || address < base || address > base + buffers[n].bytes) continue;
      void* const at = static_cast<std::byte*>(bases[n]) + (address - base);
      pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(at);
      return;
    }
  };
  move(moved.q.data);
  move(moved.q_out.data);
  move(moved.k.data);
  move(moved.v.data);
  move(moved.k_cache.data);
  move(moved.v_cache.data);
  move(moved.cos);
  move(moved.sin);
  move(moved.k_scale);
  move(moved.v_scale);
  move(moved.cu_seqlens);
  move(moved.seqused);
  move(moved.positions);
  move(moved.page_table);
  move(moved.cache_batch_idx);
  move(moved.seqused_kv);
  move(moved.new_seqused_kv);
  move(moved.ticket);
  return moved;
}

AppendCase::Expected AppendCase::Expect() {
  Expected expected;
  auto result = Append(spec, args);
  EXPECT_TRUE(result.ok()) << result.status();
  if (result.ok()) expected.result = *std::move(result);
  for (const Buffer& buffer : Buffers()) {
    const auto* const bytes = static_cast<const std::byte*>(buffer.data);
    expected.before.emplace_back(bytes, bytes + buffer.bytes);
  }
  return expected;
}

void AppendCase::CheckRow(const AppendedRow& row, std::vector<std::vector<bool>>& may_change) {
  using Which = AppendedRow::Tensor;
  const bool is_q = row.tensor == Which::kQ, is_k = row.tensor == Which::kK;
  const MutableTensor& tensor = is_q ? args.q_out : is_k ? args.k_cache : args.v_cache;
  const ElementType type = is_q ? spec.type : spec::CacheType(spec);
  const int bytes = spec::ElementBytes(type);
  const size_t buffer = is_q ? (scenario_.in_place ? 0 : 1) : is_k ? 2 : 3;
  const auto* const data = static_cast<const std::byte*>(tensor.data);
  const auto* const base = static_cast<const std::byte*>(Buffers()[buffer].data);
  double largest = 0;
  for (const double value : row.values) largest = std::max(largest, std::abs(value));
  double scale = 1;
  if (!is_q && spec.cache_scale != ScaleKind::kNone) {
    std::vector<float>& scales = is_k ? k_scale_ : v_scale_;
    scale = scales[row.scale_offset];
    if (spec.cache_scale == ScaleKind::kPerToken) {
      EXPECT_NEAR(scale, largest / FormatOf(type).largest, 1e-6 * scale);
      std::vector<bool>& may = may_change[is_k ? 4 : 5];
      std::fill_n(may.begin() + 4 * row.scale_offset, 4, true);
    }
  }
  // Of fp32 arithmetic; nothing is computed of what is copied.
  const bool rotated = spec.rotary != Rotary::kNone && row.tensor != Which::kV;
  const double slack = rotated || scale != 1 ? 6e-7 * largest / scale : 0;
  for (size_t d = 0; d < row.values.size(); ++d) {
    const int64_t at = (row.offset + static_cast<int64_t>(d)) * bytes;
    const double stored = ToDouble(type, data + at);
    const double largest_of_type = FormatOf(type).largest;
    const double wanted = std::clamp(row.values[d] / scale, -largest_of_type, largest_of_type);
    ASSERT_LE(std::abs(stored - wanted), HalfStep(type, wanted) + slack)
        << "column " << d << ": " << stored << " for " << wanted << " at " << at;
    std::fill_n(may_change[buffer].begin() + (data - base) + at, bytes, true);
  }
}

void AppendCase::Check(const Expected& expected) {
  const std::vector<Buffer> buffers = Buffers();
  std::vector<std::vector<bool>> may_change;
  for (const Buffer& buffer : buffers) may_change.emplace_back(buffer.bytes, false);
  for (const AppendedRow& row : expected.result.rows) {
    ASSERT_NO_FATAL_FAILURE(CheckRow(row, may_change));
  }
  const std::vector<int32_t>& lengths = scenario_.grows_in_place ? lengths_ : new_lengths_;
  if (args.new_seqused_kv != nullptr) {
    EXPECT_EQ(lengths, expected.result.new_lengths);
  }
  EXPECT_EQ(ticket_[0], 0);
  for (size_t n = 0; n < buffers.size(); ++n) {
    if (static_cast<void*>(const_cast<int32_t*>(lengths.data())) == buffers[n].data) continue;
    const auto* const bytes = static_cast<const std::byte*>(buffers[n].data);
    for (size_t at = 0; at < buffers[n].bytes; ++at) {
      ASSERT_TRUE(may_change[n][at] || bytes[at] == expected.before[n][at])
          << buffers[n].name << " has changed at byte " << at;
    }
  }
}

}  // namespace tilewright::reference
