// Configurations that broke other attention libraries in public, by their number in the list of
// cases; each test names the report. Sizes too large for a quick run have a stand-in here that
// reaches the same index magnitudes through strides, and the full size runs with --slow.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/accuracy.h"
#include "cli/device_problem.h"
#include "cli/random_problem.h"
#include "reference/reference.h"
#include "spec/validate.h"
#include "tests/gpu/gpu_environment.h"
#include "tests/gpu/guarded_outputs.h"

namespace tilewright::gpu_tests {
namespace {

AttentionSpec MakeSpec(int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t seqlen_q,
                       int64_t seqlen_kv, int64_t dim) {
  AttentionSpec spec;
  spec.batch = batch;
  spec.heads_q = heads_q;
  spec.heads_kv = heads_kv;
  spec.seqlen_q = seqlen_q;
  spec.seqlen_kv = seqlen_kv;
  spec.dim_qk = spec.dim_v = dim;
  spec.lse = true;
  return spec;
}

class CasesTest : public GpuTest {
 protected:
  void Check(const AttentionSpec& spec, const cli::RandomProblemOptions& problem = {},
             const CheckOptions& options = {}) {
    CheckSpec(runtime(), spec, stream(), problem, options);
  }

  cli::HostProblem Make(const AttentionSpec& spec, const cli::RandomProblemOptions& options = {}) {
    auto problem = cli::MakeRandomProblem(spec, options);
    EXPECT_TRUE(problem.ok()) << problem.status();
    return *std::move(problem);
  }

  void Run(cli::HostProblem& problem) {
    const absl::Status run = RunOnDevice(runtime(), problem, stream());
    ASSERT_TRUE(run.ok()) << run;
  }

  static std::vector<double> Outputs(const cli::HostProblem& problem) {
    std::vector<double> values;
    for (const reference::Row& row : reference::AllRows(problem.spec(), problem.args())) {
      for (int64_t d = 0; d < problem.spec().dim_v; ++d) {
        values.push_back(cli::OutputAt(problem, row, d));
      }
      if (problem.spec().lse) values.push_back(cli::LseAt(problem, row));
    }
    return values;
  }
};

// ---- case 1
// ---------------------------------------------------------------------------------------

// Element offsets beyond 2^31 and byte offsets beyond 2^32, by one dimension of stride 2^30 at a
// time, in a buffer that Q, K and V share as in the report.
enum class Wide { kBatch, kSeq, kHead };

class WideStridesTest : public CasesTest, public ::testing::WithParamInterface<Wide> {};

TEST_P(WideStridesTest, Case01OffsetsBeyond32Bits) {
  constexpr int64_t kWide = int64_t{1} << 30;
  constexpr int64_t kCount = 4;  // the last begins 3 * 2^30 elements in
  AttentionSpec spec = MakeSpec(2, 2, 2, 5, 5, 72);
  if (GetParam() == Wide::kBatch) spec.batch = kCount;
  if (GetParam() == Wide::kSeq) spec.seqlen_q = spec.seqlen_kv = kCount;
  if (GetParam() == Wide::kHead) spec.heads_q = spec.heads_kv = kCount;
  cli::HostProblem problem = Make(spec);
  AttentionArgs& host = problem.args();
  host.k = host.v = host.q;
  const Strides dense = host.q.strides;

  Strides wide = dense;
  if (GetParam() == Wide::kBatch) wide.batch = kWide;
  if (GetParam() == Wide::kSeq) wide.seq = kWide;
  if (GetParam() == Wide::kHead) wide.head = kWide;
  const int64_t elements = (spec.batch - 1) * wide.batch + (spec.seqlen_q - 1) * wide.seq +
                           (spec.heads_q - 1) * wide.head + spec.dim_qk;
  const size_t bytes = static_cast<size_t>(elements) * 2;
  if (gpu().device().board.memory_bytes < static_cast<int64_t>(3 * bytes)) {
    GTEST_SKIP() << "needs " << 3 * bytes << " bytes of device memory";
  }
  auto inputs = device::DeviceBuffer::Allocate(gpu().api(), bytes);
  auto outputs = device::DeviceBuffer::Allocate(gpu().api(), bytes);
  ASSERT_TRUE(inputs.ok()) << inputs.status();
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  ASSERT_TRUE(inputs->Fill(0xff, stream()).ok());
  ASSERT_TRUE(outputs->Fill(0xff, stream()).ok());
  const auto on_device = cli::DeviceProblem::Upload(gpu().api(), problem, stream());
  ASSERT_TRUE(on_device.ok()) << on_device.status();
  const auto rows = reference::AllRows(spec, host);
  const auto offset = [](const Strides& s, const reference::Row& row) {
    return static_cast<size_t>(row.b * s.batch + row.i * s.seq + row.h * s.head) * 2;
  };
  const size_t row_bytes = static_cast<size_t>(spec.dim_qk) * 2;
  for (const reference::Row& row : rows) {
    ASSERT_TRUE(inputs
                    ->CopyFromHost(static_cast<const std::byte*>(host.q.data) + offset(dense, row),
                                   row_bytes, stream(), offset(wide, row))
                    .ok());
  }
  AttentionArgs args = on_device->args();
  args.q = args.k = args.v = {inputs->data(), wide};
  args.o = {outputs->data(), wide};
  const auto prepared = runtime().Prepare(spec);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const absl::Status run = runtime().Run(*prepared, args, stream());
  ASSERT_TRUE(run.ok()) << run;
  ASSERT_TRUE(on_device->Download(problem, stream()).ok());  // lse
  for (const reference::Row& row : rows) {
    ASSERT_TRUE(outputs
                    ->CopyToHost(static_cast<std::byte*>(host.o.data) + offset(dense, row),
                                 row_bytes, stream(), offset(wide, row))
                    .ok());
  }
  const auto accuracy = cli::CheckAccuracy(problem, rows);
  ASSERT_TRUE(accuracy.ok()) << accuracy.status();
  EXPECT_TRUE(accuracy->holds()) << accuracy->ToString();
}

INSTANTIATE_TEST_SUITE_P(Dimensions, WideStridesTest,
                         ::testing::Values(Wide::kBatch, Wide::kSeq, Wide::kHead),
                         [](const ::testing::TestParamInfo<Wide>& info) {
                           return std::string(info.param == Wide::kBatch ? "Batch"
                                              : info.param == Wide::kSeq ? "Seq"
                                                                         : "Head");
                         });

// flash-attention 2214: one tensor [1600, 16, 729, 72] read both ways.
TEST_F(CasesTest, Case01FullSizeBhsd) {
  if (SkipUnlessSlow()) GTEST_SKIP() << kSlowReason;
  AttentionSpec spec = MakeSpec(1600, 16, 16, 729, 729, 72);
  spec.layout = Layout::kBhsd;
  Check(spec, {}, {.second_run = false});
}
TEST_F(CasesTest, Case01FullSizeBshd) {
  if (SkipUnlessSlow()) GTEST_SKIP() << kSlowReason;
  Check(MakeSpec(1600, 729, 729, 16, 16, 72), {}, {.second_run = false});
}

// ---- cases 5, 6, 7
// --------------------------------------------------------------------------------

// flash-attention 2591.
TEST_F(CasesTest, Case05SmallDims) {
  for (const int64_t dim : {8, 16}) {
    for (const int64_t length : {256, 257, 1024}) Check(MakeSpec(2, 4, 4, length, length, dim));
  }
}

// flash-attention 2470.
TEST_F(CasesTest, Case06NoKeys) {
  for (const int64_t dim : {128, 192}) {
    for (const int64_t length : {1, 64, 128, 256}) {
      cli::HostProblem problem = Make(MakeSpec(2, 4, 4, length, 0, dim));
      Run(problem);
      for (const reference::Row& row : reference::AllRows(problem.spec(), problem.args())) {
        for (int64_t d = 0; d < dim; ++d) ASSERT_EQ(cli::OutputAt(problem, row, d), 0);
        ASSERT_EQ(cli::LseAt(problem, row), -std::numeric_limits<double>::infinity());
      }
      Check(problem.spec());
    }
  }
}

// flash-attention 2503: nothing to do is success, and nothing is written.
TEST_F(CasesTest, Case07NothingToDo) {
  AttentionSpec packed = MakeSpec(3, 4, 4, 0, 20, 64);
  packed.varlen = true;
  packed.layout = Layout::kThd;
  AttentionSpec no_batch = MakeSpec(0, 4, 4, 20, 20, 64);
  AttentionSpec no_queries = MakeSpec(2, 4, 4, 0, 20, 64);
  AttentionSpec no_heads = MakeSpec(2, 0, 0, 20, 20, 64);
  for (const AttentionSpec& spec : {packed, no_batch, no_queries, no_heads}) {
    cli::HostProblem problem = Make(spec);
    GuardOutputs(problem);
    const auto before = OutputBytes(problem);
    Run(problem);
    EXPECT_EQ(OutputBytes(problem), before);
  }
  // A kernel prepared for other sizes, run on none.
  const AttentionSpec usual = MakeSpec(2, 4, 4, 20, 20, 64);
  cli::HostProblem problem = Make(usual);
  const auto before = OutputBytes(problem);
  problem.args().batch = 0;
  Run(problem);
  EXPECT_EQ(OutputBytes(problem), before);
}

// ---- cases 9, 10, 11, 13, 14
// ----------------------------------------------------------------------

// flash-attention 1537: cu_q [0, 1, 1, 2], cu_k [0, 3, 3, 8].
TEST_F(CasesTest, Case09EmptySequenceInTheMiddle) {
  AttentionSpec spec = MakeSpec(3, 9, 3, 1, 5, 64);
  spec.varlen = spec.causal = true;
  spec.layout = Layout::kThd;
  spec.scale = 1;
  Check(spec, WithLengths({1, 0, 1}, {3, 0, 5}));
}

// flash-attention 1619: one token in all, cu [0, 0, 0, 0, 1].
TEST_F(CasesTest, Case10OneTokenGivesItsValue) {
  AttentionSpec spec = MakeSpec(4, 21, 7, 1, 1, 120);
  spec.varlen = true;
  spec.layout = Layout::kThd;
  spec.scale = std::sqrt(120.0f);
  const cli::RandomProblemOptions lengths = WithLengths({0, 0, 0, 1}, {0, 0, 0, 1});
  cli::HostProblem problem = Make(spec, lengths);
  Run(problem);
  const AttentionArgs& args = problem.args();
  for (int64_t h = 0; h < spec.heads_q; ++h) {
    for (int64_t d = 0; d < spec.dim_v; ++d) {
      const auto* v = static_cast<const std::byte*>(args.v.data) +
                      (h / 3 * args.v.strides.head + d) * spec::ElementBytes(spec.type);
      ASSERT_EQ(cli::OutputAt(problem, {.b = 3, .h = h, .i = 0}, d),
                reference::ToDouble(spec.type, v));
    }
  }
  Check(spec, lengths);
}

// flash-attention 1214.
TEST_F(CasesTest, Case11VarlenBottomRight) {
  AttentionSpec spec = MakeSpec(1, 16, 16, 3, 7, 192);
  spec.varlen = spec.causal = true;
  spec.layout = Layout::kThd;
  Check(spec, WithLengths({3}, {7}));
}

// flashinfer 4299.
TEST_F(CasesTest, Case13EveryDim) {
  for (const int64_t dim : {72, 80, 96, 104, 112, 120}) {
    AttentionSpec spec = MakeSpec(1, 8, 8, 128, 256, dim);
    spec.causal = true;
    Check(spec);
  }
}

// flashinfer 1048.
TEST_F(CasesTest, Case14Dim32) {
  for (const ElementType type : {ElementType::kBf16, ElementType::kFp16, ElementType::kFp32}) {
    AttentionSpec spec = MakeSpec(2, 8, 2, 130, 200, 32);
    spec.type = type;
    spec.causal = true;
    Check(spec);
  }
}

// ---- cases 17, 18
// ---------------------------------------------------------------------------------

// xformers 845: 65,536 problems in the batch. The inputs are one problem read 65,536 times.
TEST_F(CasesTest, Case17LargeBatch) {
  AttentionSpec spec = MakeSpec(65536, 16, 16, 1, 3, 80);
  const Strides shared = {0, 16 * 80, 80};
  spec.strides = std::array<Strides, 4>{shared, shared, shared, {16 * 80, 16 * 80, 80}};
  Check(spec, {}, {.second_run = false});
}
TEST_F(CasesTest, Case17FullSize) {
  if (SkipUnlessSlow()) GTEST_SKIP() << kSlowReason;
  Check(MakeSpec(65536, 16, 16, 8, 8, 80), {}, {.second_run = false});
}

// pytorch 142228: [1, 65536 heads, 10, 16] fp32.
TEST_F(CasesTest, Case18ManyHeads) {
  AttentionSpec spec = MakeSpec(1, 65536, 65536, 10, 10, 16);
  spec.type = ElementType::kFp32;
  spec.layout = Layout::kBhsd;
  Check(spec, {}, {.second_run = false});
}

// ---- case 19
// --------------------------------------------------------------------------------------

// pytorch 162588: more than 100,000 keys under an additive mask of 0 and -inf in blocks, some of
// which leave a row nothing.
constexpr int64_t kLongLength = 100352;
constexpr int64_t kMaskBlock = 1024;

// 0 or -inf for a block of queries and keys.
bool BlockKept(int64_t query_block, int64_t key_block) {
  if (query_block % 13 == 5) return false;
  return (query_block * 31 + key_block * 17) % 3 != 0;
}

// Adds the mask as term 0 of a problem that was made without it: random terms of this size would
// only be overwritten.
void AddBlockedMask(cli::HostProblem& problem, int64_t rows, int64_t rows_per_block) {
  problem.spec().bias = {{.type = ElementType::kBf16, .seqlen_q = rows, .seqlen_kv = kLongLength}};
  auto* mask = static_cast<uint16_t*>(
      problem.AddBuffer("bias0", static_cast<size_t>(rows * kLongLength) * sizeof(uint16_t)));
  constexpr uint16_t kMinusInfinity = 0xff80;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t block = 0; block * kMaskBlock < kLongLength; ++block) {
      const int64_t first = block * kMaskBlock;
      const int64_t last = std::min(kLongLength, first + kMaskBlock);
      std::fill(mask + i * kLongLength + first, mask + i * kLongLength + last,
                BlockKept(i / rows_per_block, block) ? uint16_t{0} : kMinusInfinity);
    }
  }
  problem.args().bias[0] = {.data = mask, .stride_q = kLongLength, .stride_kv = 1};
}

TEST_F(CasesTest, Case19LongAdditiveMask) {
  cli::HostProblem problem = Make(MakeSpec(1, 1, 1, 60, kLongLength, 64));
  AddBlockedMask(problem, 60, 4);
  CheckProblem(runtime(), problem, stream());
}
TEST_F(CasesTest, Case19FullSize) {
  if (SkipUnlessSlow()) GTEST_SKIP() << kSlowReason;
  cli::HostProblem problem = Make(MakeSpec(1, 1, 1, kLongLength, kLongLength, 64));
  AddBlockedMask(problem, kLongLength, kMaskBlock);
  CheckProblem(runtime(), problem, stream(), {.row_limit = 300, .second_run = false});
}

// ---- cases 20, 26, 27, 28
// -------------------------------------------------------------------------

// pytorch 191937: K and V expanded over the heads (stride 0), Skv % 32 == 1, d 512, a mask.
TEST_F(CasesTest, Case20ExpandedKeysEqualTheirCopy) {
  AttentionSpec spec = MakeSpec(2, 4, 4, 40, 97, 512);
  spec.bias = {{.type = ElementType::kBool, .batch = 2, .seqlen_q = 40, .seqlen_kv = 97}};
  cli::HostProblem expanded = Make(spec);
  cli::HostProblem contiguous = Make(spec);
  // The copy holds head 0 in every head.
  for (Tensor AttentionArgs::*tensor : {&AttentionArgs::k, &AttentionArgs::v}) {
    const Strides& s = (contiguous.args().*tensor).strides;
    auto* data = static_cast<uint16_t*>(const_cast<void*>((contiguous.args().*tensor).data));
    for (int64_t b = 0; b < spec.batch; ++b) {
      for (int64_t j = 0; j < spec.seqlen_kv; ++j) {
        for (int64_t h = 1; h < spec.heads_kv; ++h) {
          uint16_t* row = data + b * s.batch + j * s.seq;
          std::copy(row, row + spec.dim_qk, row + h * s.head);
        }
      }
    }
    (expanded.args().*tensor).strides.head = 0;
  }
  Run(expanded);
  Run(contiguous);
  EXPECT_EQ(Outputs(expanded), Outputs(contiguous));
  PoisonOutputs(expanded);
  CheckProblem(runtime(), expanded, stream());
}

// pytorch 103963: an 8x8 boolean mask with rows that keep nothing.
TEST_F(CasesTest, Case26RowsThatKeepNothing) {
  AttentionSpec spec = MakeSpec(2, 3, 3, 8, 8, 64);
  spec.bias = {{.type = ElementType::kBool, .seqlen_q = 8, .seqlen_kv = 8}};
  cli::HostProblem problem = Make(spec);
  auto* mask = static_cast<uint8_t*>(const_cast<void*>(problem.args().bias[0].data));
  for (int64_t i = 0; i < 8; ++i) {
    for (int64_t j = 0; j < 8; ++j) mask[i * 8 + j] = i % 3 != 1 && (i + j) % 2 == 0;
  }
  CheckProblem(runtime(), problem, stream());
  for (const reference::Row& row : reference::AllRows(spec, problem.args())) {
    if (row.i % 3 != 1) continue;
    for (int64_t d = 0; d < spec.dim_v; ++d) EXPECT_EQ(cli::OutputAt(problem, row, d), 0);
  }
}

// pytorch 101967: NaN in K and V where no query may look.
TEST_F(CasesTest, Case27NanInMaskedKeysDoesNotLeak) {
  AttentionSpec spec = MakeSpec(2, 4, 2, 70, 150, 64);
  spec.bias = {{.type = ElementType::kBool, .batch = 2, .seqlen_kv = 150}};
  cli::HostProblem clean = Make(spec);
  cli::HostProblem poisoned = Make(spec);
  const auto* keep = static_cast<const uint8_t*>(clean.args().bias[0].data);
  int64_t masked = 0;
  for (int64_t b = 0; b < spec.batch; ++b) {
    for (int64_t j = 0; j < spec.seqlen_kv; ++j) {
      if (keep[b * spec.seqlen_kv + j] != 0) continue;
      ++masked;
      for (const Tensor* tensor : {&poisoned.args().k, &poisoned.args().v}) {
        const Strides& s = tensor->strides;
        auto* row =
            static_cast<uint16_t*>(const_cast<void*>(tensor->data)) + b * s.batch + j * s.seq;
        // Infinities too: 0 * inf is NaN just as well.
        const uint16_t bad = j % 2 == 0 ? 0x7fc0 : 0x7f80;
        for (int64_t h = 0; h < spec.heads_kv; ++h) {
          std::fill(row + h * s.head, row + h * s.head + spec.dim_qk, bad);
        }
      }
    }
  }
  ASSERT_GT(masked, 10);
  Run(clean);
  Run(poisoned);
  EXPECT_EQ(Outputs(poisoned), Outputs(clean));
  PoisonOutputs(poisoned);
  CheckProblem(runtime(), poisoned, stream());
}

// xformers 1263: additive bias with a row stride of 498.
TEST_F(CasesTest, Case28BiasRowsOfAnyStride) {
  for (const ElementType type : {ElementType::kFp16, ElementType::kBf16, ElementType::kFp32}) {
    AttentionSpec spec = MakeSpec(2, 4, 4, 498, 498, 64);
    spec.bias = {{.type = type, .batch = 2, .heads = 4, .seqlen_q = 498, .seqlen_kv = 498}};
    Check(spec);
  }
}

// ---- cases 29, 30, 33
// -----------------------------------------------------------------------------

// vllm flash-attention 185: slices of one packed buffer that begins at an odd place.
TEST_F(CasesTest, Case29SlicesOfOnePackedBuffer) {
  for (const ElementType type : {ElementType::kBf16, ElementType::kFp32}) {
    AttentionSpec spec = MakeSpec(2, 4, 4, 90, 90, 40);
    spec.type = type;
    spec.causal = true;
    cli::HostProblem contiguous = Make(spec);
    cli::HostProblem packed = Make(spec);
    const int64_t bytes = spec::ElementBytes(type);
    const int64_t row = 4 * 40;
    const Strides slice = {90 * 3 * row, 3 * row, 40};
    auto* buffer = static_cast<std::byte*>(packed.AddBuffer(
        "qkv", static_cast<size_t>(2 * 90 * 3 * row * bytes), static_cast<size_t>(3 * bytes)));
    int64_t part = 0;
    for (Tensor AttentionArgs::*tensor :
         {&AttentionArgs::q, &AttentionArgs::k, &AttentionArgs::v}) {
      const Tensor from = contiguous.args().*tensor;
      std::byte* to = buffer + part++ * row * bytes;
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t i = 0; i < 90; ++i) {
          std::memcpy(to + (b * slice.batch + i * slice.seq) * bytes,
                      static_cast<const std::byte*>(from.data) +
                          (b * from.strides.batch + i * from.strides.seq) * bytes,
                      row * bytes);
        }
      }
      packed.args().*tensor = {to, slice};
    }
    Run(contiguous);
    Run(packed);
    EXPECT_EQ(Outputs(packed), Outputs(contiguous));
    PoisonOutputs(packed);
    CheckProblem(runtime(), packed, stream());
  }
}

// FlagAttention 45: K with a doubled row stride beside a contiguous V, and the reverse.
TEST_F(CasesTest, Case30DoubledRowStride) {
  AttentionSpec spec = MakeSpec(2, 4, 4, 90, 130, 64);
  spec.causal = true;
  cli::HostProblem contiguous = Make(spec);
  Run(contiguous);
  for (Tensor AttentionArgs::*tensor : {&AttentionArgs::k, &AttentionArgs::v}) {
    cli::HostProblem doubled = Make(spec);
    const Tensor from = doubled.args().*tensor;
    const int64_t row = from.strides.seq;
    const Strides twice = {2 * from.strides.batch, 2 * row, from.strides.head};
    auto* to = static_cast<uint16_t*>(doubled.AddBuffer(
        "doubled", static_cast<size_t>(spec.batch * twice.batch) * 2, 0, false, std::byte{0xff}));
    for (int64_t n = 0; n < spec.batch * spec.seqlen_kv; ++n) {
      std::memcpy(to + n * 2 * row, static_cast<const uint16_t*>(from.data) + n * row,
                  static_cast<size_t>(row) * 2);
    }
    doubled.args().*tensor = {to, twice};
    Run(doubled);
    EXPECT_EQ(Outputs(doubled), Outputs(contiguous));
  }
}

// llama.cpp 20375: the heads of a vision transformer, served by a family of tensor cores. (Its time
// is a row of bench/peers_portable.json.)
TEST_F(CasesTest, Case32HeadsOf88And577Tokens) {
  const AttentionSpec spec = MakeSpec(2, 16, 16, 577, 577, 88);
  const auto prepared = runtime().Prepare(spec);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->Explain().find("attn_fwd_simple sm_"), std::string::npos)
      << prepared->Explain();
  Check(spec);
}

// triton 2626: one key fewer than a multiple of every tile.
TEST_F(CasesTest, Case33OneKeyFewer) {
  for (const int64_t length : {4095, 4096}) {
    for (const bool causal : {false, true}) {
      AttentionSpec spec = MakeSpec(1, 2, 1, length, length, 64);
      spec.causal = causal;
      Check(spec);
    }
  }
}

// ---- cases 34, 35
// ---------------------------------------------------------------------------------

// DeepGEMM 359: a kernel that fails to compile says so at once, with the compiler's log; nothing is
// stored, and the next spec is served. (tests/regress has the same without a device.)
TEST_F(CasesTest, Case34AFailedCompileStoresNothing) {
  TemporaryDirectory directory;
  auto own = Runtime::Create(OptionsFor(directory.path()));
  ASSERT_TRUE(own.ok()) << own.status();
  AttentionSpec spec = MakeSpec(1, 2, 2, 20, 20, 32);
  spec.score_snippet = {.text = "return score +\n  no_such_name;", .file_name = "mine.cuh"};
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto failed = (*own)->Prepare(spec);
    ASSERT_EQ(failed.status().code(), absl::StatusCode::kInvalidArgument) << failed.status();
    EXPECT_NE(failed.status().message().find("mine.cuh"), std::string::npos) << failed.status();
    const auto log = failed.status().GetPayload("tilewright/compile_log");
    ASSERT_TRUE(log.has_value());
    EXPECT_NE(std::string(*log).find("no_such_name"), std::string::npos);
  }
  (*own)->Flush();
  EXPECT_EQ((*own)->counters().loads, 0);
  spec.score_snippet = {};
  const auto served = (*own)->Prepare(spec);
  EXPECT_TRUE(served.ok()) << served.status();
  own->reset();
  // Only the kernel that compiled is on disk.
  auto again = Runtime::Create(OptionsFor(directory.path()));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE((*again)->Prepare(spec).ok());
  EXPECT_EQ((*again)->counters().store_hits, 1);
  spec.score_snippet = {.text = "return score +\n  no_such_name;", .file_name = "mine.cuh"};
  EXPECT_FALSE((*again)->Prepare(spec).ok());
  EXPECT_EQ((*again)->counters().store_hits, 1);
}

}  // namespace
}  // namespace tilewright::gpu_tests
