#include "tune/device_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <string>

#include "spec/canonical.h"
#include "spec/validate.h"
#include "tests/device/fake_driver.h"
#include "tune/bucket.h"

namespace tilewright::tune {
namespace {

using ::testing::HasSubstr;

// A kernel in C++: the memory of the fake device is that of the host.
class HostTrial : public Trial {
 public:
  using Kernel = std::function<void(const AttentionArgs&)>;
  explicit HostTrial(Kernel kernel, size_t workspace = 0)
      : kernel_(std::move(kernel)), workspace_(workspace) {}
  absl::StatusOr<size_t> WorkspaceBytes(const AttentionArgs&) const override { return workspace_; }
  absl::Status Launch(const AttentionArgs& args, device::StreamHandle) const override {
    ++launches;
    kernel_(args);
    return absl::OkStatus();
  }
  mutable int launches = 0;

 private:
  const Kernel kernel_;
  const size_t workspace_;
};

class DeviceBenchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    manager_ = *device::DeviceManager::Create(&driver_.api());
    where_ = *manager_->CurrentOrPrimary(0);
    options_.min_flush_bytes = 4096;
    options_.max_bytes = int64_t{64} << 20;
    options_.pause_ms = 0;
  }
  absl::StatusOr<std::unique_ptr<DeviceBench>> Make(const Trial& first,
                                                    const Trial* reference = nullptr) {
    return DeviceBench::Create(driver_.api(), where_, spec_, first, reference, "reference",
                               options_);
  }
  // Writes bf16 ones to every element of o, and 2 to the LSE.
  void Ones(const AttentionArgs& args) const {
    auto* o = static_cast<uint16_t*>(args.o.data);
    const int64_t elements = args.batch * args.seqlen_q * spec_.heads_q * spec_.dim_v;
    for (int64_t n = 0; n < elements; ++n) o[n] = 0x3f80;
    if (spec_.lse) {
      for (int64_t n = 0; n < args.batch * spec_.heads_q * args.seqlen_q; ++n) args.lse[n] = 2;
    }
  }

  device::FakeDriver driver_;
  std::shared_ptr<device::DeviceManager> manager_;
  device::DeviceManager::Current where_;
  AttentionSpec spec_ =
      spec::Canonicalise(*spec::ParseSpec("fwd bf16 b=2 h=4/2 s=64/64 d=32/32 causal lse"));
  BenchOptions options_;
};

TEST_F(DeviceBenchTest, AcceptsWhatIsRightAndNamesWhatIsNot) {
  const HostTrial right([this](const AttentionArgs& args) { Ones(args); });
  const auto bench = Make(right, &right);
  ASSERT_TRUE(bench.ok()) << bench.status();
  EXPECT_TRUE((*bench)->Check(right).ok());

  // Right where the one before it has left the right value.
  const HostTrial incomplete([this](const AttentionArgs& args) {
    auto* o = static_cast<uint16_t*>(args.o.data);
    const uint16_t left = o[3];
    Ones(args);
    o[3] = left;
  });
  absl::Status status = (*bench)->Check(incomplete);
  EXPECT_THAT(std::string(status.message()), HasSubstr("o[3] is"));

  const HostTrial off([this](const AttentionArgs& args) {
    Ones(args);
    static_cast<uint16_t*>(args.o.data)[17] = 0x4000;
  });
  status = (*bench)->Check(off);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("o[17] is 2, the reference has 1"));

  const HostTrial wrong_lse([this](const AttentionArgs& args) {
    Ones(args);
    args.lse[5] = 2.1f;
  });
  EXPECT_THAT(std::string((*bench)->Check(wrong_lse).message()), HasSubstr("lse[5]"));

  const HostTrial rounding([this](const AttentionArgs& args) {
    Ones(args);
    static_cast<uint16_t*>(args.o.data)[3] = 0x3f81;  // the next bf16
  });
  EXPECT_TRUE((*bench)->Check(rounding).ok());
}

TEST_F(DeviceBenchTest, SeesWritesOutsideOfTheOutputs) {
  const HostTrial right([this](const AttentionArgs& args) { Ones(args); });
  const auto bench = Make(right);
  ASSERT_TRUE(bench.ok()) << bench.status();
  for (const int64_t at : {int64_t{-1}, int64_t{2 * 64 * 4 * 32}}) {
    const HostTrial stray([this, at](const AttentionArgs& args) {
      Ones(args);
      static_cast<uint16_t*>(args.o.data)[at] = 0;
    });
    const absl::Status status = (*bench)->Check(stray);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << at;
    EXPECT_THAT(std::string(status.message()), HasSubstr("wrote outside its arrays"));
    // Put right for the next.
    EXPECT_TRUE((*bench)->Check(right).ok());
  }
}

TEST_F(DeviceBenchTest, WhatOneDoesToTheInputsIsNotBlamedOnTheNext) {
  // Writes what Q begins with to every element.
  const auto copies = [this](const AttentionArgs& args) {
    Ones(args);
    auto* o = static_cast<uint16_t*>(args.o.data);
    for (int64_t n = 0; n < args.batch * args.seqlen_q * spec_.heads_q * spec_.dim_v; ++n) {
      o[n] = *static_cast<const uint16_t*>(args.q.data);
    }
  };
  const HostTrial right(copies);
  const auto bench = Make(right);
  ASSERT_TRUE(bench.ok()) << bench.status();
  const HostTrial vandal([&](const AttentionArgs& args) {
    copies(args);
    static_cast<uint16_t*>(args.o.data)[0] ^= 0x100;
    *static_cast<uint16_t*>(const_cast<void*>(args.q.data)) ^= 0x300;
  });
  EXPECT_EQ((*bench)->Check(vandal).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE((*bench)->Check(right).ok());
}

TEST_F(DeviceBenchTest, SeesWritesThatGoAstrayAtOneOfTheTwoSizesOnly) {
  spec_ = WithSizes(spec_, 4, 512, 512);  // the check takes fewer
  const HostTrial right([this](const AttentionArgs& args) { Ones(args); });
  const auto bench = Make(right);
  ASSERT_TRUE(bench.ok()) << bench.status();
  for (const bool timed : {false, true}) {
    const HostTrial stray([this, timed](const AttentionArgs& args) {
      Ones(args);
      if ((args.batch == 4) != timed) return;
      static_cast<uint16_t*>(args.o.data)[args.batch * args.seqlen_q * 4 * 32] = 0;
    });
    EXPECT_THAT(std::string((*bench)->Check(stray).message()),
                HasSubstr("wrote outside its arrays"));
  }
}

TEST_F(DeviceBenchTest, GradientsAreCheckedEachByItsName) {
  spec_ = spec::Canonicalise(*spec::ParseSpec(
      "bwd bf16 b=2 h=4/2 s=64/64 d=32/32 sinks sinks_grad bias=bf16:1,4,64,64:grad"));
  const auto gradients = [](const AttentionArgs& args) {
    const int64_t rows = 2 * 64;
    for (int64_t n = 0; n < rows * 4 * 32; ++n) static_cast<uint16_t*>(args.d_q.data)[n] = 0x3f80;
    for (int64_t n = 0; n < rows * 2 * 32; ++n) static_cast<uint16_t*>(args.d_k.data)[n] = 0x3f80;
    for (int64_t n = 0; n < rows * 2 * 32; ++n) static_cast<uint16_t*>(args.d_v.data)[n] = 0x3f80;
    for (int64_t n = 0; n < 4 * 64 * 64; ++n) args.d_bias[0].data[n] = 1;
    for (int64_t n = 0; n < 4; ++n) args.d_sinks[n] = 1;
  };
  const HostTrial right(gradients);
  const auto bench = Make(right);
  ASSERT_TRUE(bench.ok()) << bench.status();
  EXPECT_TRUE((*bench)->Check(right).ok()) << (*bench)->Check(right);
  const std::function<void(const AttentionArgs&)> faults[] = {
      [](const AttentionArgs& args) { static_cast<uint16_t*>(args.d_k.data)[7] = 0x4040; },
      [](const AttentionArgs& args) { args.d_bias[0].data[9] = 3; },
      [](const AttentionArgs& args) { args.d_sinks[2] = 3; }};
  const char* const names[] = {"d_k[7]", "d_bias0[9]", "d_sinks[2]"};
  for (int n = 0; n < 3; ++n) {
    const HostTrial off([&](const AttentionArgs& args) {
      gradients(args);
      faults[n](args);
    });
    EXPECT_THAT(std::string((*bench)->Check(off).message()), HasSubstr(names[n]));
  }
}

TEST_F(DeviceBenchTest, TimesEachTrialOnceInOrderWithAColdCache) {
  const HostTrial one([this](const AttentionArgs& args) { Ones(args); });
  const HostTrial two([this](const AttentionArgs& args) { Ones(args); }, 1 << 16);
  const auto bench = Make(one);
  ASSERT_TRUE(bench.ok()) << bench.status();
  const int fills = driver_.CallCount("cuMemsetD8Async");
  const int launches = one.launches;
  const Trial* const both[] = {&one, &two, &one};
  const auto times = (*bench)->Round(both);
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_EQ(times->size(), 3u);
  EXPECT_EQ(one.launches, launches + 3) << "once untimed before the first";
  EXPECT_EQ(two.launches, 1);
  EXPECT_EQ(driver_.CallCount("cuMemsetD8Async") - fills, 4) << "one each and a head start";
  EXPECT_EQ(driver_.CallCount("cuEventRecord"), 6);
  EXPECT_EQ(driver_.CallCount("cuCtxSynchronize"), 0);
}

TEST_F(DeviceBenchTest, GivesBackAllThatItTookAlsoFromTheCallersAllocator) {
  const HostTrial right([this](const AttentionArgs& args) { Ones(args); }, 4096);
  {
    const auto bench = Make(right);
    ASSERT_TRUE(bench.ok()) << bench.status();
    EXPECT_GT(driver_.live_allocations(), 0);
  }
  EXPECT_EQ(driver_.live_allocations(), 0);
  EXPECT_EQ(driver_.live_streams(), 0);
  EXPECT_EQ(driver_.live_events(), 0);
  EXPECT_TRUE(driver_.context_stack().empty());

  // The application's pool, here of the driver's memory so that the fake knows it.
  int held = 0;
  size_t most = 0;
  const device::DriverApi& api = driver_.api();
  const device::DeviceAllocator pool = {[&](size_t bytes) -> void* {
                                          most = std::max(most, bytes);
                                          CUdeviceptr at = 0;
                                          if (api.cuMemAlloc(&at, bytes) != CUDA_SUCCESS)
                                            return nullptr;
                                          ++held;
                                          return reinterpret_cast<void*>(at);
                                        },
                                        [&](void* memory) {
                                          --held;
                                          api.cuMemFree(reinterpret_cast<CUdeviceptr>(memory));
                                        }};
  options_.scratch.allocator = &pool;
  {
    const auto bench = Make(right);
    ASSERT_TRUE(bench.ok()) << bench.status();
    EXPECT_TRUE((*bench)->Check(right).ok());
    EXPECT_GE(held, 4);
    EXPECT_EQ(driver_.live_allocations(), held) << "nothing beside the pool";
  }
  EXPECT_EQ(held, 0);
}

TEST_F(DeviceBenchTest, AFailureOnTheWayGivesBackToo) {
  const HostTrial right([this](const AttentionArgs& args) { Ones(args); });
  for (int skip = 0; skip < 3; ++skip) {
    driver_.Fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, 1, skip);
    const auto bench = Make(right);
    EXPECT_EQ(bench.status().code(), absl::StatusCode::kResourceExhausted) << skip;
    EXPECT_EQ(driver_.live_allocations(), 0);
    EXPECT_EQ(driver_.live_streams(), 0);
    driver_.StopFailing("cuMemAlloc");
  }
}

TEST_F(DeviceBenchTest, TakesNoMoreThanItsShareAndASmallerBatchThen) {
  spec_ = WithSizes(spec_, 64, 512, 512);
  options_.max_bytes = int64_t{8} << 20;
  const HostTrial right([this](const AttentionArgs& args) { Ones(args); });
  const auto bench = Make(right);
  ASSERT_TRUE(bench.ok()) << bench.status();
  EXPECT_LE(driver_.live_bytes(), size_t{8} << 20);
  EXPECT_THAT((*bench)->timed_spec(), HasSubstr("s=512/512"));
  EXPECT_THAT((*bench)->timed_spec(), Not(HasSubstr("b=64")));
  options_.max_bytes = int64_t{64} << 10;
  EXPECT_EQ(Make(right).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(driver_.live_allocations(), 1 + 2) << "of the first bench";
}

TEST_F(DeviceBenchTest, LeavesACaptureElsewhereValid) {
  driver_.SetGlobalCapture(true);
  const HostTrial right([this](const AttentionArgs& args) { Ones(args); });
  {
    const auto bench = Make(right);
    ASSERT_TRUE(bench.ok()) << bench.status();
    // A capture forbids to allocate, which either may have to.
    const HostTrial more([this](const AttentionArgs& args) { Ones(args); }, /*workspace=*/4096);
    EXPECT_TRUE((*bench)->Check(more).ok());
    const HostTrial most([this](const AttentionArgs& args) { Ones(args); }, /*workspace=*/8192);
    const Trial* const trials[] = {&most};
    EXPECT_TRUE((*bench)->Round(trials).ok());
  }
  EXPECT_FALSE(driver_.capture_spoilt());
}

TEST(CompareOutputTest, NamesTheElementWhereverItIs) {
  AttentionSpec spec = *spec::ParseSpec("fwd fp16 b=1 h=1/1 s=1/1 d=32/32");
  for (const ElementType type : {ElementType::kFp16, ElementType::kBf16, ElementType::kFp32}) {
    spec.type = type;
    const auto bytes = static_cast<size_t>(spec::ElementBytes(type));
    const auto output = [&](const std::map<size_t, float>& others) {
      ScratchOutput made = {"o", type, std::string(10'001 * bytes, '\0')};
      for (size_t n = 0; n < 10'001; ++n) {
        const auto other = others.find(n);
        const float value = other == others.end() ? 0.5f : other->second;
        uint32_t bits = 0;
        std::memcpy(&bits, &value, sizeof(bits));
        // Exact for what is used here.
        if (type == ElementType::kFp16) {
          const uint32_t exponent = bits >> 23 & 0xff;
          bits = bits >> 16 & 0x8000;
          bits |= exponent == 0xff ? 0x7c00 : exponent == 0 ? 0 : (exponent - 112) << 10;
        } else if (type == ElementType::kBf16) {
          bits >>= 16;
        }
        std::memcpy(&made.bytes[n * bytes], &bits, bytes);
      }
      return made;
    };
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const ScratchOutput reference = output({{7, kInfinity}, {5000, -kInfinity}});
    EXPECT_TRUE(CompareOutput(spec, reference, reference).ok());
    const auto says = [&](const std::map<size_t, float>& others) {
      return std::string(CompareOutput(spec, output(others), reference).message());
    };
    EXPECT_THAT(says({{7, kInfinity}, {5000, -kInfinity}, {9999, 8.0f}}),
                HasSubstr("o[9999] is 8"));
    EXPECT_THAT(says({{7, kInfinity}, {5000, kInfinity}}), HasSubstr("o[5000] is inf"));
    EXPECT_THAT(says({{7, kInfinity}}), HasSubstr("o[5000] is 0.5, the reference has -inf"));
    EXPECT_THAT(says({{7, kInfinity}, {5000, -kInfinity}, {10'000, kInfinity}}),
                HasSubstr("o[10000] is inf"));
  }
}

// Every kind of argument has memory, fits its spec, and holds what the spec says.
TEST(ScratchTest, MakesArgumentsForEveryFeature) {
  device::FakeDriver driver;
  const auto manager = *device::DeviceManager::Create(&driver.api());
  driver.api().cuCtxSetCurrent(driver.MakeContext(0));
  const auto stream = *device::OwnedStream::Create(driver.api());
  for (const char* text :
       {"fwd bf16 b=3 h=6/2 s=70/130 d=32/48 causal lse",
        "fwd fp16 b=3 h=4/4 s=40/40 d=16/16 layout=bhsd bias=fp16:1,4,40,40 mask=bool:3,1,1,40",
        "fwd bf16 b=4 h=4/2 s=64/64 d=32/32 layout=thd varlen causal lse",
        "fwd bf16 b=4 h=4/2 s=1/512 d=32/32 paged=16 varlen lse",
        "fwd fp32 b=2 h=4/4 s=33/65 d=24/24 alibi sinks dropout=0.1",
        "fwd bf16 b=2 h=4/4 s=128/128 d=64/64 block_mask=64,64 window=32,16 softcap=30",
        "fwd bf16 b=2 h=4/4 s=16/64 d=64/64 kv=int8 kv_scale=token",
        "fwd e4m3 b=2 h=4/4 s=16/64 d=64/64 out=bf16 q_scale=head kv_scale=head",
        "bwd bf16 b=2 h=4/2 s=70/90 d=40/24 causal",
        "bwd fp16 b=4 h=4/4 s=64/64 d=32/32 layout=thd varlen alibi alibi_grad",
        "bwd bf16 b=2 h=4/4 s=48/48 d=32/32 sinks sinks_grad dropout=0.1 "
        "bias=bf16:1,4,48,48:grad"}) {
    const auto parsed = spec::ParseSpec(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    const AttentionSpec spec = spec::Canonicalise(*parsed);
    auto problem = ScratchProblem::Create(driver.api(), spec, {}, stream.get());
    ASSERT_TRUE(problem.ok()) << text << ": " << problem.status();
    EXPECT_EQ(problem->bytes(), *ScratchBytes(spec, {})) << text;
    EXPECT_TRUE(spec::ValidateArgs(spec, problem->args()).ok())
        << text << ": " << spec::ValidateArgs(spec, problem->args());
    EXPECT_TRUE(problem->CheckGuards(stream.get()).ok()) << text;
    const auto outputs = problem->ReadOutputs(stream.get());
    ASSERT_TRUE(outputs.ok());
    EXPECT_GE(outputs->size(), spec.operation == Operation::kBackward ? 3u : spec.lse ? 2u : 1u);
    for (const ScratchOutput& output : *outputs) {
      EXPECT_FALSE(output.bytes.empty()) << text;
      EXPECT_EQ(output.bytes.find_first_not_of('\xff'), std::string::npos)
          << text << ": " << output.name << " is not poisoned";
    }
    // Random values, not zeros.
    const auto* q = static_cast<const unsigned char*>(problem->args().q.data);
    EXPECT_NE(std::string(q, q + 64), std::string(64, '\0')) << text;
  }
}

TEST(ScratchTest, LengthsAreAMixOrTheCallers) {
  device::FakeDriver driver;
  const auto manager = *device::DeviceManager::Create(&driver.api());
  driver.api().cuCtxSetCurrent(driver.MakeContext(0));
  const auto stream = *device::OwnedStream::Create(driver.api());
  const AttentionSpec spec = spec::Canonicalise(
      *spec::ParseSpec("fwd bf16 b=4 h=2/2 s=100/100 d=16/16 layout=thd varlen"));
  const auto mixed = ScratchProblem::Create(driver.api(), spec, {}, stream.get());
  ASSERT_TRUE(mixed.ok()) << mixed.status();
  const int32_t* sums = mixed->args().cu_seqlens_q;
  EXPECT_EQ(sums[1] - sums[0], 100);
  for (int b = 0; b < 4; ++b) {
    EXPECT_GE(sums[b + 1] - sums[b], 25);
    EXPECT_LE(sums[b + 1] - sums[b], 100);
    EXPECT_EQ(sums[b], mixed->args().cu_seqlens_kv[b]) << "self-attention";
  }
  ScratchOptions given;
  given.lengths_q = given.lengths_kv = {1, 100, 0, 7};
  const auto own = ScratchProblem::Create(driver.api(), spec, given, stream.get());
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ(own->args().total_q, 108);
  given.lengths_q = {1, 2};
  EXPECT_EQ(ScratchBytes(spec, given).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ScratchTest, RefusesWhatCannotBeMadeUp) {
  AttentionSpec spec;
  spec.score_snippet = {"score + table[i]", "rule.cu"};
  spec.snippet_arrays = {{"table", ElementType::kFp32}};
  EXPECT_EQ(ScratchBytes(spec, {}).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(SizesTest, CheckedSizesAreSmallAndKeepTheRestOfTheLastTile) {
  const AttentionSpec spec =
      spec::Canonicalise(*spec::ParseSpec("fwd bf16 b=64 h=32/32 s=8209/8209 d=128/128 causal"));
  const AttentionSpec check = CheckSpec(spec, int64_t{1} << 30, 2e10, {});
  EXPECT_LE(check.batch, 3);
  EXPECT_LT(check.seqlen_q, 2048);
  EXPECT_EQ(check.seqlen_q % 128, 8209 % 128);
  EXPECT_EQ(check.seqlen_q, check.seqlen_kv);
  const AttentionSpec timed = TimedSpec(spec, int64_t{1} << 40, 4e12, {});
  EXPECT_EQ(timed.seqlen_q, 8209);
  EXPECT_LT(timed.batch, 64);
  EXPECT_GE(timed.batch * 32 * 65, 2048);
}

TEST(SizesTest, BiasTablesOfFewerBatchesStayWhole) {
  const AttentionSpec spec = spec::Canonicalise(*spec::ParseSpec(
      "fwd fp16 b=4096 h=3/3 s=49/49 d=32/32 bias=fp16:1,3,49,49 bias=fp16:64,1,49,49"));
  const AttentionSpec timed = TimedSpec(spec, int64_t{32} << 20, 4e12, {});
  EXPECT_LT(timed.batch, 4096);
  EXPECT_EQ(timed.batch % 64, 0);
  EXPECT_EQ(timed.bias[1].batch, 64);
  const AttentionSpec check = CheckSpec(spec, int64_t{1} << 30, 2e10, {});
  EXPECT_TRUE(spec::Validate(check).ok()) << spec::Validate(check);
  EXPECT_EQ(check.batch, 64);
}

}  // namespace
}  // namespace tilewright::tune
