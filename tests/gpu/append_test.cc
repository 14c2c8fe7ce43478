// Runtime::Append and Runtime::Merge on the device: against their references, and with attention in
// one CUDA graph whose lengths grow from replay to replay.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cli/accuracy.h"
#include "cli/random_problem.h"
#include "reference/reference.h"
#include "spec/validate.h"
#include "tests/gpu/gpu_environment.h"
#include "tests/gpu/more_driver.h"
#include "tests/reference/append_case.h"

namespace tilewright::gpu_tests {
namespace {

using reference::AppendCase;

// Arrays of the host on the device.
class Copies {
 public:
  Copies(const device::DriverApi& api, device::StreamHandle stream) : api_(api), stream_(stream) {}

  void* Add(const void* data, size_t bytes) {
    auto buffer = device::DeviceBuffer::Allocate(api_, bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    if (!buffer.ok()) return nullptr;
    EXPECT_TRUE(buffer->CopyFromHost(data, bytes, stream_).ok());
    buffers_.push_back(*std::move(buffer));
    return buffers_.back().data();
  }
  template <typename T>
  T* Add(const std::vector<T>& values) {
    return static_cast<T*>(Add(values.data(), values.size() * sizeof(T)));
  }
  // Of the n-th that was added.
  void Fetch(size_t n, void* data, size_t bytes) const {
    EXPECT_TRUE(buffers_[n].CopyToHost(data, bytes, stream_).ok());
  }
  void Refresh(size_t n, const void* data, size_t bytes) {
    EXPECT_TRUE(buffers_[n].CopyFromHost(data, bytes, stream_).ok());
  }
  size_t count() const { return buffers_.size(); }

 private:
  const device::DriverApi& api_;
  const device::StreamHandle stream_;
  std::vector<device::DeviceBuffer> buffers_;
};

class AppendTest : public GpuTest,
                   public ::testing::WithParamInterface<reference::AppendScenario> {};

TEST_P(AppendTest, WritesWhatTheReferenceSays) {
  AppendCase c(GetParam());
  const auto append = runtime().PrepareAppend(c.spec);
  ASSERT_TRUE(append.ok()) << append.status();
  const AppendCase::Expected expected = c.Expect();
  Copies copies(gpu().api(), stream());
  std::vector<void*> bases;
  for (const AppendCase::Buffer& buffer : c.Buffers()) {
    bases.push_back(copies.Add(buffer.data, buffer.bytes));
  }
  const absl::Status run = runtime().Append(*append, c.ArgsAt(bases), stream());
  ASSERT_TRUE(run.ok()) << run;
  const std::vector<AppendCase::Buffer> buffers = c.Buffers();
  for (size_t n = 0; n < buffers.size(); ++n) {
    copies.Fetch(n, buffers[n].data, buffers[n].bytes);
  }
  c.Check(expected);
}

INSTANTIATE_TEST_SUITE_P(All, AppendTest, ::testing::ValuesIn(reference::AppendScenarios()),
                         [](const auto& info) { return info.param.name; });

// A step of a decoder, again and again: each replay appends a token to every sequence and attends
// to all that are there, with lengths that only the device knows.
TEST_F(GpuTest, AGraphAppendsAndAttendsWhileLengthsGrow) {
  constexpr int64_t kBatch = 3, kHeadsQ = 4, kHeads = 2, kDim = 64, kPage = 16, kPages = 4;
  constexpr int64_t kRow = kHeads * kDim, kQueryRow = kHeadsQ * kDim;
  const auto append = runtime().PrepareAppend({.heads_q = kHeadsQ,
                                               .heads_kv = kHeads,
                                               .dim_qk = kDim,
                                               .dim_v = kDim,
                                               .page_size = kPage,
                                               .rotary = Rotary::kHalfSplit});
  ASSERT_TRUE(append.ok()) << append.status();
  AttentionSpec spec;
  spec.batch = kBatch;
  spec.heads_q = kHeadsQ;
  spec.heads_kv = kHeads;
  spec.seqlen_q = 1;
  spec.seqlen_kv = kPage * kPages;
  spec.dim_qk = spec.dim_v = kDim;
  spec.varlen = true;
  spec.page_size = kPage;
  const auto attention = runtime().Prepare(spec);
  ASSERT_TRUE(attention.ok()) << attention.status();

  std::mt19937_64 random(4);
  const auto filled = [&random](int64_t count) {
    reference::Array array(ElementType::kBf16, count);
    array.Fill(random, 2);
    return array;
  };
  const int64_t cache_elements = (kBatch * kPages + 1) * kPage * kRow;
  reference::Array q = filled(kBatch * kQueryRow), k = filled(kBatch * kRow),
                   v = filled(kBatch * kRow), o = filled(kBatch * kQueryRow),
                   k_cache = filled(cache_elements), v_cache = filled(cache_elements);
  std::vector<int32_t> lengths = {15, 0, 40}, ticket = {0}, table;
  for (int64_t n = 0; n < kBatch * kPages; ++n) {
    table.push_back(static_cast<int32_t>(kBatch * kPages - n));
  }
  Copies copies(gpu().api(), stream());
  reference::Array* const arrays[] = {&q, &k, &v, &o, &k_cache, &v_cache};
  void* at[6];
  for (int n = 0; n < 6; ++n) at[n] = copies.Add(arrays[n]->data(), arrays[n]->bytes());
  int32_t* const device_lengths = copies.Add(lengths);
  int32_t* const device_ticket = copies.Add(ticket);
  const int32_t* const device_table = copies.Add(table);

  const Strides row = {.batch = kRow, .seq = kRow, .head = kDim};
  const Strides query_row = {.batch = kQueryRow, .seq = kQueryRow, .head = kDim};
  const Strides page = {.batch = kPage * kRow, .seq = kRow, .head = kDim};
  CacheAppendArgs append_args;
  append_args.batch = kBatch;
  append_args.seqlen = 1;
  append_args.q = {at[0], query_row};
  append_args.q_out = {at[0], query_row};
  append_args.k = {at[1], row};
  append_args.v = {at[2], row};
  append_args.k_cache = {at[4], page};
  append_args.v_cache = {at[5], page};
  append_args.capacity = kPage * kPages;
  append_args.page_table = device_table;
  append_args.page_table_stride = kPages;
  append_args.seqused_kv = append_args.new_seqused_kv = device_lengths;
  append_args.ticket = device_ticket;
  AttentionArgs args;
  args.batch = kBatch;
  args.seqlen_q = 1;
  args.seqlen_kv = kPage * kPages;
  args.q = {at[0], query_row};
  args.o = {at[3], query_row};
  args.k = {at[4], page};
  args.v = {at[5], page};
  args.page_table = device_table;
  args.page_table_stride = kPages;
  args.seqused_kv = device_lengths;
  const auto scratch_bytes = attention->workspace_bytes(args);
  ASSERT_TRUE(scratch_bytes.ok()) << scratch_bytes.status();
  args.workspace = copies.Add(std::vector<std::byte>(*scratch_bytes + 256));

  ASSERT_TRUE(gpu()
                  .api()
                  .Check(MoreDriver::Get().begin_capture(stream(), CU_STREAM_CAPTURE_MODE_GLOBAL),
                         "cuStreamBeginCapture", __FILE__, __LINE__)
                  .ok());
  const absl::Status appended = runtime().Append(*append, append_args, stream());
  const absl::Status attended = runtime().Run(*attention, args, stream());
  const auto graph = Graph::End(gpu().api(), stream());
  ASSERT_TRUE(appended.ok()) << appended;
  ASSERT_TRUE(attended.ok()) << attended;
  ASSERT_TRUE(graph.ok()) << graph.status();

  for (int step = 1; step <= 3; ++step) {
    for (int n = 0; n < 3; ++n) {
      arrays[n]->Fill(random, 2);
      copies.Refresh(n, arrays[n]->data(), arrays[n]->bytes());
    }
    ASSERT_TRUE(graph->Launch(stream()).ok());
    for (int n = 0; n < 6; ++n) copies.Fetch(n, arrays[n]->data(), arrays[n]->bytes());
    copies.Fetch(6, lengths.data(), lengths.size() * sizeof(int32_t));
    EXPECT_EQ(lengths, (std::vector<int32_t>{15 + step, step, 40 + step}));
    // The reference attends to the cache and the rotated queries as they are now.
    AttentionArgs host = args;
    host.q.data = q.data();
    host.o.data = o.data();
    host.k.data = k_cache.data();
    host.v.data = v_cache.data();
    host.page_table = table.data();
    host.seqused_kv = lengths.data();
    const auto expected = reference::Forward(spec, host, reference::AllRows(spec, host));
    ASSERT_TRUE(expected.ok()) << expected.status();
    double squares = 0, norm = 0;
    for (int64_t n = 0; n < kBatch * kQueryRow; ++n) {
      squares += std::pow(o.Get(n) - expected->o[n], 2);
      norm += std::pow(expected->o[n], 2);
    }
    EXPECT_LE(std::sqrt(squares / norm), 5e-3) << "replay " << step;
  }
}

// Attention over three parts of the keys, one of them empty, merged: the attention over all.
TEST_F(GpuTest, MergedPartsAreTheAttentionOverAllKeys) {
  AttentionSpec whole;
  whole.batch = 2;
  whole.heads_q = 4;
  whole.heads_kv = 2;
  whole.seqlen_q = 3;
  whole.seqlen_kv = 300;
  whole.dim_qk = whole.dim_v = 64;
  whole.lse = true;
  auto problem = cli::MakeRandomProblem(whole, WithSeed(5));
  ASSERT_TRUE(problem.ok()) << problem.status();
  std::vector<void*> bases;
  Copies copies(gpu().api(), stream());
  for (const cli::HostBuffer& buffer : problem->buffers()) {
    bases.push_back(copies.Add(buffer.base(), buffer.size));
  }
  AttentionArgs args = problem->ArgsAt(bases);
  for (const ElementType part_type : {ElementType::kFp32, ElementType::kBf16}) {
    AttentionSpec part = whole;
    part.out_type = part_type;
    const auto attention = runtime().Prepare(part);
    const auto merge = runtime().PrepareMerge(
        {.part_type = part_type, .heads = whole.heads_q, .dim_v = whole.dim_v});
    ASSERT_TRUE(attention.ok() && merge.ok()) << attention.status() << merge.status();
    const int64_t rows = whole.batch * whole.heads_q * whole.seqlen_q;
    const int64_t o_elements = rows * whole.dim_v;
    const int bytes = spec::ElementBytes(part_type);
    // Poisoned: nothing of an empty part is read.
    auto* const o_parts = static_cast<std::byte*>(
        copies.Add(std::vector<std::byte>(3 * o_elements * bytes, std::byte{0xff})));
    float* const lse_parts = copies.Add(std::vector<float>(3 * rows, NAN));
    const int64_t cuts[] = {0, 100, 100, 300};
    for (int p = 0; p < 3; ++p) {
      AttentionArgs one = args;
      one.seqlen_kv = cuts[p + 1] - cuts[p];
      one.k.data = static_cast<const std::byte*>(args.k.data) + cuts[p] * args.k.strides.seq * 2;
      one.v.data = static_cast<const std::byte*>(args.v.data) + cuts[p] * args.v.strides.seq * 2;
      one.o.data = o_parts + p * o_elements * bytes;
      one.lse = lse_parts + p * rows;
      const auto scratch = attention->workspace_bytes(one);
      ASSERT_TRUE(scratch.ok()) << scratch.status();
      one.workspace = copies.Add(std::vector<std::byte>(*scratch + 256));
      const absl::Status run = runtime().Run(*attention, one, stream());
      ASSERT_TRUE(run.ok()) << run;
    }
    const MergeArgs merge_args = {.parts = 3,
                                  .batch = whole.batch,
                                  .seqlen_q = whole.seqlen_q,
                                  .o_parts = {o_parts, args.o.strides},
                                  .o_stride_part = o_elements,
                                  .lse_parts = lse_parts,
                                  .lse_stride_part = rows,
                                  .lse_stride_batch = whole.heads_q * whole.seqlen_q,
                                  .lse_stride_head = whole.seqlen_q,
                                  .o = args.o,
                                  .lse = args.lse};
    const absl::Status merged = runtime().Merge(*merge, merge_args, stream());
    ASSERT_TRUE(merged.ok()) << merged;
    for (size_t n = 0; n < problem->buffers().size(); ++n) {
      cli::HostBuffer& buffer = problem->buffers()[n];
      if (buffer.output) copies.Fetch(n, buffer.base(), buffer.size);
    }
    const auto accuracy =
        cli::CheckAccuracy(*problem, reference::AllRows(problem->spec(), problem->args()));
    ASSERT_TRUE(accuracy.ok()) << accuracy.status();
    if (part_type == ElementType::kFp32) {
      EXPECT_TRUE(accuracy->holds()) << accuracy->ToString();
    } else {
      // Rounded once more than the bar allows for.
      EXPECT_LE(accuracy->o_relative, 2 * accuracy->o_relative_bar) << accuracy->ToString();
      EXPECT_LE(accuracy->lse_error, 1);
    }
  }
}

// flashinfer PR 4051: two states without keys merge to one, whatever their O.
TEST_F(GpuTest, Case23TwoEmptyStatesMergeToAnEmptyOne) {
  constexpr int64_t kRows = 3, kDim = 64, kParts = 2;
  const auto merge =
      runtime().PrepareMerge({.out_type = ElementType::kFp32, .heads = 1, .dim_v = kDim});
  ASSERT_TRUE(merge.ok()) << merge.status();
  Copies copies(gpu().api(), stream());
  std::vector<float> o(kRows * kDim, NAN), lse(kRows, NAN);
  void* const o_out = copies.Add(o);
  float* const lse_out = copies.Add(lse);
  const Strides strides = {.batch = kRows * kDim, .seq = kDim, .head = kDim};
  const MergeArgs args = {
      .parts = kParts,
      .batch = 1,
      .seqlen_q = kRows,
      .o_parts = {copies.Add(std::vector<float>(kParts * kRows * kDim, NAN)), strides},
      .o_stride_part = kRows * kDim,
      .lse_parts = copies.Add(std::vector<float>(kParts * kRows, -INFINITY)),
      .lse_stride_part = kRows,
      .lse_stride_batch = kRows,
      .lse_stride_head = kRows,
      .o = {o_out, strides},
      .lse = lse_out};
  const absl::Status merged = runtime().Merge(*merge, args, stream());
  ASSERT_TRUE(merged.ok()) << merged;
  copies.Fetch(0, o.data(), o.size() * sizeof(float));
  copies.Fetch(1, lse.data(), lse.size() * sizeof(float));
  for (const float value : o) EXPECT_EQ(value, 0);
  for (const float value : lse) EXPECT_EQ(value, -INFINITY);
}

}  // namespace
}  // namespace tilewright::gpu_tests
