// Gradients on the device against the fp64 reference, by the families that serve them; equal bits
// where the spec asks for them; inside a graph.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/memory.h"
#include "spec/canonical.h"
#include "tests/gpu/gpu_environment.h"
#include "tests/gpu/more_driver.h"
#include "tests/reference/backward_case.h"
#include "tests/reference/host_case.h"

namespace tilewright::gpu_tests {
namespace {

using reference::BackwardArrays;
using reference::HostCase;
using reference::PoisonAllBut;

struct BackwardSpec {
  std::string text;
  std::vector<int32_t> lengths_q = {};
  std::vector<int32_t> lengths_kv = {};
  std::function<void(HostCase&)> change = nullptr;
};

// Head dims of every kind, lengths on both sides of a tile, every feature.
std::vector<BackwardSpec> Specs() {
  std::vector<BackwardSpec> all;
  for (const char* dims : {"8", "16", "32", "33", "40", "64", "72", "80", "96", "104", "112", "128",
                           "160", "192/128", "256", "1/7", "24/200"}) {
    all.push_back({absl::StrCat("bwd bf16 b=2 h=4/2 s=193/300 d=", dims, " causal")});
    all.push_back({absl::StrCat("bwd fp16 b=1 h=3 s=130/257 d=", dims, " deterministic")});
  }
  for (const char* words : {"window=40,3",
                            "window=-1,20 align=top_left",
                            "softcap=20 causal",
                            "scale=-0.3",
                            "sinks sinks_grad causal",
                            "alibi alibi_grad",
                            "alibi alibi_grad deterministic causal",
                            "bias=fp32:1,4,193,300:grad",
                            "bias=bf16:2,1,193,1:grad bias=fp16:1,4,1,300:grad",
                            "bias=bf16:1,4,193,300:grad deterministic",
                            "dropout=0.2",
                            "dropout=0.5 deterministic",
                            "softcap=10 softcap_before_bias bias=fp32:2,4,193,300:grad",
                            "mask=bool:2,1,193,300",
                            "block_mask=64,64",
                            "block_mask=32,64 deterministic causal",
                            "layout=bhsd",
                            "layout=sbhd",
                            "exact causal",
                            "causal=top_left empty_lse=+inf",
                            "lse_base=2"}) {
    all.push_back({absl::StrCat("bwd bf16 b=2 h=4/2 s=193/300 d=64 ", words)});
  }
  for (const char* text :
       {"bwd bf16 b=1 h=71/1 s=130/200 d=64 causal", "bwd bf16 b=3 h=2 s=1/1 d=64",
        "bwd fp16 b=2 h=2 s=64/0 d=32", "bwd bf16 b=1 h=2 s=300/100 d=128 causal",
        "bwd bf16 b=1 h=2 s=2100/1500 d=64 causal deterministic",
        "bwd bf16 b=1 h=1 s=1100/2300 d=128 window=511,0",
        // Pairs of blocks: an odd number of tiles of keys, keys that no row sees.
        "bwd bf16 b=1 h=4/2 s=500/700 d=256 window=100,40", "bwd bf16 b=2 h=2 s=700/330 d=192/128",
        "bwd fp16 b=1 h=2 s=60/500 d=160 causal=top_left",
        // Many tiles of keys for each block, of one step or of none.
        "bwd bf16 b=8 h=32 s=60/500 d=64", "bwd bf16 b=8 h=32 s=50/500 d=128 window=-1,30"}) {
    all.push_back({text});
  }
  all.push_back({"bwd bf16 b=4 h=4/2 s=300/320 d=64 varlen layout=thd causal",
                 {300, 0, 7, 129},
                 {320, 5, 0, 257}});
  all.push_back({"bwd bf16 b=4 h=4/2 s=300/320 d=96 varlen layout=thd deterministic",
                 {300, 1, 64, 129},
                 {320, 5, 128, 257}});
  all.push_back({"bwd fp16 b=3 h=2 s=100/150 d=64 varlen causal", {}, {}, [](HostCase& c) {
                   c.seqused_kv = {150, 0, 77};
                   c.args.seqused_kv = c.seqused_kv.data();
                 }});
  // Logits far below 0, as where a softmax is shifted.
  all.push_back({"bwd bf16 b=2 h=2 s=1/128 d=64 bias=fp32:1,1,1,128", {}, {}, [](HostCase& c) {
                   for (int64_t n = 0; n < c.bias[0].count(); ++n) c.bias[0].Set(n, -128);
                 }});
  return all;
}

// Those that only attn_bwd_simple serves.
std::vector<BackwardSpec> SimpleSpecs() {
  return {{"bwd fp32 b=2 h=4/2 s=65/130 d=64 causal"},
          {"bwd fp32 b=1 h=2 s=70/37 d=1/300 window=20,5"},
          {"bwd bf16 b=1 h=2 s=40/70 d=576/512 causal"},
          {"bwd fp32 b=2 h=2 s=65/130 d=32 bias=fp32:1,2,65,130:grad alibi alibi_grad dropout=0.1"},
          {"bwd bf16 b=2 h=2 s=65/70 d=32 strided_innermost", {}, {}, [](HostCase& c) {
             for (Strides* strides : {&c.args.k.strides, &c.args.v.strides}) {
               *strides = {.batch = 70 * 64, .seq = 1, .head = 70 * 32, .dim = 70};
             }
           }}};
}

// The entries of tests/data/zoo.jsonl that are marked training: their dims, types, masks, biases
// and lengths, the long ones shortened by whole tiles, and of batches and heads a few, because of
// the fp64 reference.
std::vector<BackwardSpec> ZooSpecs() {
  std::vector<BackwardSpec> all;
  for (const char* text :
       {"bwd bf16 b=1 h=8/1 s=100/160 d=512 causal",
        "bwd bf16 b=2 h=7 s=256 d=128 causal=top_left alibi",
        "bwd bf16 b=1 h=3 s=256 d=64 block_mask=32,32",
        "bwd bf16 b=1 h=4 s=256 d=80 causal=top_left alibi",
        "bwd bf16 b=4 h=4 s=256 d=72",
        "bwd bf16 b=2 h=13 s=257 d=64",
        "bwd bf16 b=16 h=4 s=144 d=32 bias=bf16:1,4,144,144:grad",
        "bwd fp16 b=98 h=4 s=16 d=10",
        "bwd fp16 b=4 h=12 s=197 d=64 bias=fp16:1,12,197,197:grad",
        "bwd fp16 b=1 h=8 s=256 d=40",
        "bwd bf16 b=2 h=4 s=209 d=44 bias=bf16:2,4,209,209:grad",
        "bwd fp16 b=20 h=8 s=62 d=64",
        "bwd fp16 b=4 h=8 s=258 d=64",
        "bwd bf16 b=8 h=4 s=256 d=32 bias=bf16:1,4,256,256:grad bias=fp32:8,1,1,256",
        "bwd bf16 b=4 h=8 s=256 d=32 bias=bf16:1,8,256,256:grad bias=fp32:4,1,1,256",
        "bwd bf16 b=6 h=8/1 s=1/640 d=8 bias=fp32:6,1,1,640",
        "bwd bf16 b=70000 h=4 s=1/4 d=16 bias=fp32:1,1,1,4",
        "bwd fp32 b=1 h=12 s=192 d=29/40 scale=1 bias=fp32:1,12,192,192:grad",
        "bwd fp32 b=1 h=16 s=128 d=24 bias=fp32:1,16,128,128:grad",
        "bwd bf16 b=2 h=2 s=256 d=64/192 bias=bf16:2,2,256,256:grad",
        "bwd fp16 b=2 h=64 s=128 d=8 bias=fp16:2,64,128,128:grad",
        "bwd fp16 b=8 h=32 s=65 d=24 bias=fp16:8,32,65,65:grad",
        "bwd bf16 b=66000 h=1 s=13/3 d=64",
        "bwd fp16 b=60 h=6 s=144 d=32 bias=fp16:2,6,144,144:div:grad",
        "bwd fp16 b=8 h=8 s=128 d=16 bias=fp16:8,8,128,128:grad",
        "bwd fp16 b=16 h=8 s=1/129 d=16",
        "bwd fp32 b=6 h=4 s=128 d=16 bias=fp32:6,4,128,128:grad",
        "bwd fp32 b=8 h=4 s=50 d=16 causal=top_left",
        "bwd bf16 b=2 h=4 s=257 d=64 scale=1 bias=bf16:1,4,257,257:grad",
        "bwd fp32 b=2 h=6 s=192 d=64 bias=fp32:1,6,192,192:grad",
        "bwd fp32 b=4 h=1 s=60 d=128 causal=top_left bias=fp32:4,1,1,60",
        "bwd fp32 b=1 h=8 s=178 d=64"}) {
    all.push_back({text});
  }
  all.push_back({"bwd fp16 b=3 h=8 s=256 d=16 varlen layout=thd", {256, 256, 44}, {256, 256, 44}});
  // The ending node's triangle: batch and sequence have changed places.
  all.push_back({"bwd bf16 b=64 h=4 s=64 d=32 bias=bf16:1,4,64,64:grad bias=fp32:64,1,1,64",
                 {},
                 {},
                 [](HostCase& c) {
                   for (Tensor* tensor : {&c.args.q, &c.args.k, &c.args.v}) {
                     std::swap(tensor->strides.batch, tensor->strides.seq);
                   }
                 }});
  // Sequences one row of the same tensor apart.
  all.push_back({"bwd fp32 b=20 h=8 s=34 d=32", {}, {}, [](HostCase& c) {
                   for (Tensor* tensor : {&c.args.q, &c.args.k, &c.args.v}) {
                     tensor->strides.batch = tensor->strides.seq;
                     tensor->strides.seq *= 20;
                   }
                 }});
  return all;
}

// A case's arrays on the device.
class DeviceCase {
 public:
  DeviceCase(const device::DriverApi& api, device::StreamHandle stream, HostCase& c,
             BackwardArrays& arrays)
      : stream_(stream), memory_(reference::MemoryOf(c, arrays)), args_(arrays.Args(c)) {
    for (const reference::BackwardMemory& range : memory_) {
      buffers_.push_back(Allocate(api, range.bytes));
    }
    Upload();
    const auto move = [this](auto*& pointer) {
      using Pointer = std::remove_reference_t<decltype(pointer)>;
      pointer = static_cast<Pointer>(const_cast<void*>(OnDevice(pointer)));
    };
    for (Tensor* tensor : {&args_.q, &args_.k, &args_.v, &args_.d_o}) move(tensor->data);
    for (MutableTensor* tensor : {&args_.o, &args_.d_q, &args_.d_k, &args_.d_v}) move(tensor->data);
    for (BiasTensor& bias : args_.bias) move(bias.data);
    for (BiasGradient& bias : args_.d_bias) move(bias.data);
    move(args_.lse);
    move(args_.cu_seqlens_q);
    move(args_.cu_seqlens_kv);
    move(args_.seqused_kv);
    move(args_.alibi_slopes);
    move(args_.sinks);
    move(args_.block_mask);
    move(args_.d_alibi_slopes);
    move(args_.d_sinks);
  }

  void SetWorkspace(const device::DriverApi& api, size_t bytes) {
    workspace_ = Allocate(api, bytes);
    args_.workspace = workspace_.data();
    EXPECT_TRUE(bytes == 0 || workspace_.Fill(0xff, stream_).ok());
  }
  const AttentionArgs& args() const { return args_; }

  // All inputs, and poison in the outputs.
  void Upload() {
    for (size_t n = 0; n < memory_.size(); ++n) {
      EXPECT_TRUE(buffers_[n].CopyFromHost(memory_[n].data, memory_[n].bytes, stream_).ok());
    }
  }
  // What was written.
  void Download() {
    for (size_t n = 0; n < memory_.size(); ++n) {
      if (!memory_[n].written) continue;
      EXPECT_TRUE(buffers_[n].CopyToHost(memory_[n].data, memory_[n].bytes, stream_).ok());
    }
  }
  std::vector<std::string> Outputs() const {
    std::vector<std::string> outputs;
    for (const reference::BackwardMemory& range : memory_) {
      if (range.written) outputs.emplace_back(static_cast<const char*>(range.data), range.bytes);
    }
    return outputs;
  }

 private:
  static device::DeviceBuffer Allocate(const device::DriverApi& api, size_t bytes) {
    auto buffer = device::DeviceBuffer::Allocate(api, bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return buffer.ok() ? *std::move(buffer) : device::DeviceBuffer();
  }
  const void* OnDevice(const void* host) const {
    for (size_t n = 0; n < memory_.size(); ++n) {
      if (memory_[n].data == host) return buffers_[n].data();
    }
    return nullptr;
  }

  device::StreamHandle stream_;
  std::vector<reference::BackwardMemory> memory_;
  std::vector<device::DeviceBuffer> buffers_;
  device::DeviceBuffer workspace_;
  AttentionArgs args_;
};

class BackwardTest : public GpuTest {
 protected:
  // Compiles their kernels several at a time.
  static void Warmup(Runtime& runtime, const std::vector<BackwardSpec>& specs) {
    std::vector<AttentionSpec> parsed;
    for (const BackwardSpec& one : specs) {
      const auto spec = spec::ParseSpec(one.text, {});
      ASSERT_TRUE(spec.ok()) << one.text << ": " << spec.status();
      parsed.push_back(spec::Canonicalise(*spec));
    }
    const absl::Status status = runtime.Warmup(parsed);
    ASSERT_TRUE(status.ok()) << status;
  }

  // `one` by `runtime`, `repetitions` times on fresh data.
  void Check(Runtime& runtime, const BackwardSpec& one, int repetitions = 1) {
    SCOPED_TRACE(one.text);
    const auto spec = spec::ParseSpec(one.text, {});
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto prepared = runtime.Prepare(spec::Canonicalise(*spec));
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    for (int n = 0; n < repetitions; ++n) {
      HostCase c(spec::Canonicalise(*spec), 7 + n, one.lengths_q, one.lengths_kv);
      if (one.change) one.change(c);
      BackwardArrays arrays(c, {});
      DeviceCase on_device(gpu().api(), stream(), c, arrays);
      const auto bytes = prepared->workspace_bytes(on_device.args());
      ASSERT_TRUE(bytes.ok()) << bytes.status();
      on_device.SetWorkspace(gpu().api(), *bytes);
      const absl::Status run = runtime.Run(*prepared, on_device.args(), stream());
      ASSERT_TRUE(run.ok()) << run;
      on_device.Download();
      reference::ExpectGradients(c, {}, arrays);
      if (HasFailure()) FAIL() << prepared->Explain();
    }
  }
};

// The specs in parts, for shards of the suite to share: most of the time is compiling.
class BackwardPartTest : public BackwardTest, public ::testing::WithParamInterface<int> {
 public:
  static constexpr int kParts = 8;

 protected:
  static std::vector<BackwardSpec> PartOf(const std::vector<BackwardSpec>& all) {
    std::vector<BackwardSpec> part;
    for (size_t n = GetParam(); n < all.size(); n += kParts) part.push_back(all[n]);
    return part;
  }

  // A part of `specs` and of every third of the others: what a family does at a dim it does at all.
  void CheckPartByFamily(const std::string& family, std::vector<BackwardSpec> specs) {
    const TemporaryDirectory directory;
    RuntimeOptions options = OptionsFor(directory.path());
    options.family = family;
    const auto runtime = Runtime::Create(options);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    const std::vector<BackwardSpec> others = Specs();
    for (size_t n = 0; n < others.size(); n += 3) specs.push_back(others[n]);
    const std::vector<BackwardSpec> part = PartOf(specs);
    Warmup(**runtime, part);
    for (const BackwardSpec& one : part) Check(**runtime, one);
  }
};

TEST_P(BackwardPartTest, EverySpecIsRightByTheFamilyOfChoice) {
  const std::vector<BackwardSpec> specs = PartOf(Specs());
  Warmup(runtime(), specs);
  for (const BackwardSpec& one : specs) Check(runtime(), one);
}

TEST_P(BackwardPartTest, TrainingEntriesOfTheZooAreRight) {
  const std::vector<BackwardSpec> specs = PartOf(ZooSpecs());
  Warmup(runtime(), specs);
  for (const BackwardSpec& one : specs) Check(runtime(), one);
}

TEST_P(BackwardPartTest, EverySpecIsRightByTheSimpleFamily) {
  CheckPartByFamily("attn_bwd_simple", SimpleSpecs());
}

TEST_P(BackwardPartTest, EverySpecIsRightByThePortableFamily) {
  CheckPartByFamily("attn_bwd_sm80", {});
}

INSTANTIATE_TEST_SUITE_P(All, BackwardPartTest, ::testing::Range(0, BackwardPartTest::kParts));

// Configurations that broke other libraries; numbers as in tests/gpu/cases_test.cc.
TEST_F(BackwardTest, Case02ManySequencesOfOneRow) {
  // dQ's sums, whose rows are rounded up to tiles, take more than 2^32 bytes.
  Check(runtime(), {"bwd bf16 b=8300 h=16 s=1 d=128"});
}

TEST_F(BackwardTest, Case04UpstreamGradientOfAnyStride) {
  for (const char* text : {"bwd bf16 b=3 h=16 s=300 d=96 varlen layout=thd causal",
                           "bwd bf16 b=3 h=16 s=300 d=64 varlen layout=thd"}) {
    Check(runtime(), {text, {300, 7, 120}, {300, 7, 120}, [](HostCase& c) {
                        const int64_t row = c.spec.heads_q * c.spec.dim_v + 8 * c.spec.dim_v;
                        c.d_o_strides = {.batch = 0, .seq = row, .head = c.spec.dim_v, .dim = 1};
                        c.d_o = reference::Array(c.spec.type, c.args.total_q * row);
                        std::mt19937_64 random(5);
                        c.d_o.Fill(random, 1);
                      }});
  }
}

TEST_F(BackwardTest, Case06WithoutKeysTheGradientOfQIsZero) {
  for (int rows : {1, 64, 128, 256}) {
    for (int dim : {128, 192}) {
      Check(runtime(), {absl::StrCat("bwd bf16 b=2 h=2 s=", rows, "/0 d=", dim)});
    }
  }
}

// Rows beyond the reach of a causal mask, and gradients that no tensor map describes.
TEST_F(BackwardTest, HopperKernelOnOddMemory) {
  const auto misalign = [](HostCase& c) {
    // Of 16 bytes each row has one fewer element than the next multiple.
    const auto widen = [&](Tensor& tensor, reference::Array& array, int64_t rows, int64_t heads,
                           int64_t dim) {
      const int64_t row = heads * dim + 4;
      tensor.strides = {.batch = rows * row, .seq = row, .head = dim, .dim = 1};
      array = reference::Array(c.spec.type, c.spec.batch * rows * row);
      std::mt19937_64 random(static_cast<uint64_t>(array.count()));
      array.Fill(random, 1);
      tensor.data = array.data();
    };
    widen(c.args.q, c.q, c.spec.seqlen_q, c.spec.heads_q, c.spec.dim_qk);
    widen(c.args.k, c.k, c.spec.seqlen_kv, c.spec.heads_kv, c.spec.dim_qk);
    widen(c.args.v, c.v, c.spec.seqlen_kv, c.spec.heads_kv, c.spec.dim_v);
  };
  Check(runtime(), {"bwd bf16 b=2 h=4/2 s=150/200 d=64 causal", {}, {}, misalign});
  Check(runtime(), {"bwd bf16 b=1 h=2 s=300/170 d=128 causal", {}, {}, misalign});
  Check(runtime(), {"bwd bf16 b=1 h=2 s=300/170 d=160 causal", {}, {}, misalign});
}

// NaN in keys that no row sees.
TEST_F(BackwardTest, HiddenKeysMayHoldNaN) {
  struct Hidden {
    const char* spec;
    int64_t first, end;  // keys that some row sees
  };
  const Hidden cases[] = {
      {"bwd bf16 b=2 h=4/2 s=70/300 d=64 causal=top_left", 0, 70},
      {"bwd fp16 b=1 h=2 s=100/300 d=128 window=30,0", 170, 300},
      {"bwd bf16 b=1 h=2 s=50/300 d=96 window=20,9 align=top_left deterministic", 0, 59},
      {"bwd bf16 b=1 h=2/1 s=90/300 d=256 window=30,5 align=top_left", 0, 95},
      {"bwd bf16 b=1 h=2 s=90/300 d=192/128 window=30,0 deterministic", 180, 300},
      {"bwd fp16 b=2 h=2 s=70/200 d=64 window=10,0 softcap=20", 120, 200},
      {"bwd bf16 b=1 h=2 s=70/200 d=33 causal=top_left dropout=0.1", 0, 70},
  };
  for (const Hidden& one : cases) {
    Check(runtime(), {one.spec, {}, {}, PoisonAllBut(one.first, one.end)});
  }
}

TEST_F(BackwardTest, TwentyRepetitionsOnFreshDataAreRight) {
  Check(runtime(), {"bwd bf16 b=1 h=4/2 s=260/200 d=64 causal"}, 20);
  Check(runtime(), {"bwd bf16 b=1 h=2 s=130/200 d=128"}, 20);
  Check(runtime(), {"bwd bf16 b=2 h=8/4 s=400/460 d=256 causal"}, 20);
}

TEST_F(BackwardTest, DeterministicGradientsHaveEqualBits) {
  for (const char* text :
       {"bwd bf16 b=2 h=4/2 s=1100/1000 d=64 causal deterministic",
        "bwd bf16 b=2 h=2 s=1000 d=128 deterministic", "bwd fp16 b=1 h=2 s=500 d=256 deterministic",
        "bwd bf16 b=2 h=2 s=900 d=160 causal deterministic",
        "bwd bf16 b=2 h=2 s=500 d=40 deterministic alibi alibi_grad "
        "bias=bf16:1,2,500,500:grad"}) {
    SCOPED_TRACE(text);
    const auto spec = spec::ParseSpec(text, {});
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto prepared = runtime().Prepare(spec::Canonicalise(*spec));
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    HostCase c(spec::Canonicalise(*spec), 3);
    BackwardArrays arrays(c, {});
    DeviceCase on_device(gpu().api(), stream(), c, arrays);
    on_device.SetWorkspace(gpu().api(), *prepared->workspace_bytes(on_device.args()));
    std::vector<std::string> first;
    for (int n = 0; n < 100; ++n) {
      ASSERT_TRUE(runtime().Run(*prepared, on_device.args(), stream()).ok());
      on_device.Download();
      if (n == 0) {
        first = on_device.Outputs();
      } else {
        ASSERT_EQ(on_device.Outputs() == first, true) << "run " << n;
      }
    }
    reference::ExpectGradients(c, {}, arrays);
  }
}

TEST_F(BackwardTest, ABackwardInsideACaptureReplays) {
  const auto spec = spec::ParseSpec("bwd bf16 b=1 h=4/2 s=260/200 d=64 causal", {});
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto prepared = runtime().Prepare(spec::Canonicalise(*spec));
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  HostCase c(spec::Canonicalise(*spec), 3);
  BackwardArrays arrays(c, {});
  DeviceCase on_device(gpu().api(), stream(), c, arrays);
  on_device.SetWorkspace(gpu().api(), *prepared->workspace_bytes(on_device.args()));
  ASSERT_EQ(MoreDriver::Get().begin_capture(stream(), CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  const absl::Status run = runtime().Run(*prepared, on_device.args(), stream());
  const auto graph = Graph::End(gpu().api(), stream());
  ASSERT_TRUE(run.ok()) << run;
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (int n = 0; n < 2; ++n) {
    on_device.Upload();
    ASSERT_TRUE(graph->Launch(stream()).ok());
    on_device.Download();
    reference::ExpectGradients(c, {}, arrays);
  }
}

}  // namespace
}  // namespace tilewright::gpu_tests
