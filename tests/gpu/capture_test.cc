// Run and Prepare under stream capture.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "cli/accuracy.h"
#include "cli/device_problem.h"
#include "cli/random_problem.h"
#include "tests/gpu/gpu_environment.h"
#include "tests/gpu/more_driver.h"

namespace tilewright::gpu_tests {
namespace {

AttentionSpec SmallSpec() {
  AttentionSpec spec;
  spec.batch = 2;
  spec.heads_q = 4;
  spec.heads_kv = 2;
  spec.seqlen_q = 60;
  spec.seqlen_kv = 90;
  spec.dim_qk = spec.dim_v = 48;
  spec.causal = true;
  spec.lse = true;
  return spec;
}

class CaptureTest : public GpuTest {
 protected:
  absl::Status BeginCapture(CUstream on, CUstreamCaptureMode mode) {
    return gpu().api().Check(MoreDriver::Get().begin_capture(on, mode), "cuStreamBeginCapture",
                             __FILE__, __LINE__);
  }

  // Whether the answers that `problem` holds are right.
  static void ExpectRight(const cli::HostProblem& problem) {
    const auto rows = reference::AllRows(problem.spec(), problem.args());
    const auto accuracy = cli::CheckAccuracy(problem, rows);
    ASSERT_TRUE(accuracy.ok()) << accuracy.status();
    EXPECT_TRUE(accuracy->holds()) << accuracy->ToString();
  }
};

constexpr CUstreamCaptureMode kModes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                          CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                          CU_STREAM_CAPTURE_MODE_RELAXED};

TEST_F(CaptureTest, ARunInsideACaptureReplaysOnNewData) {
  for (const CUstreamCaptureMode mode : kModes) {
    SCOPED_TRACE(static_cast<int>(mode));
    const auto prepared = runtime().Prepare(SmallSpec());
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    auto problem = cli::MakeRandomProblem(SmallSpec(), WithSeed(1));
    auto other = cli::MakeRandomProblem(SmallSpec(), WithSeed(2));
    ASSERT_TRUE(problem.ok() && other.ok());
    // One device buffer a host buffer, filled anew for each replay.
    std::vector<device::DeviceBuffer> buffers;
    std::vector<void*> bases;
    for (const cli::HostBuffer& buffer : problem->buffers()) {
      auto copy = device::DeviceBuffer::Allocate(gpu().api(), buffer.size);
      ASSERT_TRUE(copy.ok()) << copy.status();
      bases.push_back(copy->data());
      buffers.push_back(*std::move(copy));
    }
    const AttentionArgs args = problem->ArgsAt(bases);

    ASSERT_TRUE(BeginCapture(stream(), mode).ok());
    const absl::Status run = runtime().Run(*prepared, args, stream());
    const auto graph = Graph::End(gpu().api(), stream());
    ASSERT_TRUE(run.ok()) << run;
    ASSERT_TRUE(graph.ok()) << graph.status();

    for (cli::HostProblem* data : {&*problem, &*other}) {
      for (size_t n = 0; n < buffers.size(); ++n) {
        const cli::HostBuffer& buffer = data->buffers()[n];
        ASSERT_EQ(buffer.size, buffers[n].size());
        ASSERT_TRUE(buffers[n].CopyFromHost(buffer.base(), buffer.size, stream()).ok());
      }
      ASSERT_TRUE(graph->Launch(stream()).ok());
      for (size_t n = 0; n < buffers.size(); ++n) {
        cli::HostBuffer& buffer = data->buffers()[n];
        if (!buffer.output) continue;
        ASSERT_TRUE(buffers[n].CopyToHost(buffer.base(), buffer.size, stream()).ok());
      }
      ExpectRight(*data);
    }
  }
}

TEST_F(CaptureTest, AReplayReadsTheDropoutSeedFromMemory) {
  AttentionSpec spec = SmallSpec();
  spec.dropout = 0.4f;
  const auto prepared = runtime().Prepare(spec);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  cli::RandomProblemOptions options = WithSeed(3);
  options.dropout_by_pointer = true;
  auto problem = cli::MakeRandomProblem(spec, options);
  ASSERT_TRUE(problem.ok()) << problem.status();
  std::vector<device::DeviceBuffer> buffers;
  std::vector<void*> bases;
  size_t seed_buffer = 0;
  for (const cli::HostBuffer& buffer : problem->buffers()) {
    if (buffer.name == "dropout_seed") seed_buffer = buffers.size();
    auto copy = device::DeviceBuffer::Allocate(gpu().api(), buffer.size);
    ASSERT_TRUE(copy.ok()) << copy.status();
    ASSERT_TRUE(copy->CopyFromHost(buffer.base(), buffer.size, stream()).ok());
    bases.push_back(copy->data());
    buffers.push_back(*std::move(copy));
  }
  ASSERT_TRUE(BeginCapture(stream(), CU_STREAM_CAPTURE_MODE_GLOBAL).ok());
  const absl::Status run = runtime().Run(*prepared, problem->ArgsAt(bases), stream());
  const auto graph = Graph::End(gpu().api(), stream());
  ASSERT_TRUE(run.ok()) << run;
  ASSERT_TRUE(graph.ok()) << graph.status();

  std::vector<std::vector<std::byte>> results;
  for (const uint64_t seed : {uint64_t{11}, uint64_t{12}}) {
    cli::HostBuffer& host_seed = problem->buffers()[seed_buffer];
    std::memcpy(host_seed.base() + host_seed.start, &seed, sizeof seed);
    ASSERT_TRUE(buffers[seed_buffer].CopyFromHost(host_seed.base(), host_seed.size, stream()).ok());
    ASSERT_TRUE(graph->Launch(stream()).ok());
    for (size_t n = 0; n < buffers.size(); ++n) {
      cli::HostBuffer& buffer = problem->buffers()[n];
      if (!buffer.output) continue;
      ASSERT_TRUE(buffers[n].CopyToHost(buffer.base(), buffer.size, stream()).ok());
    }
    ExpectRight(*problem);
    results.push_back(OutputBytes(*problem)[0]);
  }
  EXPECT_NE(results[0], results[1]);
}

// What Prepare is asked for during a capture that it was not asked for before it.
class CapturePrepareTest
    : public CaptureTest,
      public ::testing::WithParamInterface<std::tuple<CUstreamCaptureMode, bool>> {};

TEST_P(CapturePrepareTest, RefusesTheUnknownAndLeavesTheCaptureValid) {
  const auto [mode, blocking] = GetParam();
  TemporaryDirectory directory;
  auto runtime = Runtime::Create(OptionsFor(directory.path()));
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const auto known = (*runtime)->Prepare(SmallSpec());
  ASSERT_TRUE(known.ok()) << known.status();
  auto problem = cli::MakeRandomProblem(SmallSpec());
  ASSERT_TRUE(problem.ok()) << problem.status();
  const BlockingStream legacy(gpu().api());
  const CUstream captured = blocking ? legacy.get() : stream();
  const auto on_device = cli::DeviceProblem::Upload(gpu().api(), *problem, captured);
  ASSERT_TRUE(on_device.ok()) << on_device.status();
  ASSERT_EQ(gpu().api().cuStreamSynchronize(captured), CUDA_SUCCESS);

  ASSERT_TRUE(BeginCapture(captured, mode).ok());
  const absl::Status run = (*runtime)->Run(*known, on_device->args(), captured);
  AttentionSpec unknown = SmallSpec();
  unknown.dim_qk = 56;
  const auto refused = (*runtime)->Prepare(unknown, captured);
  // A capture on a blocking stream is seen without being told of the stream.
  absl::Status refused_blind = absl::FailedPreconditionError("");
  if (blocking) refused_blind = (*runtime)->Prepare(unknown).status();
  const auto again = (*runtime)->Prepare(SmallSpec(), captured);
  const auto graph = Graph::End(gpu().api(), captured);

  EXPECT_TRUE(run.ok()) << run;
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition) << refused.status();
  EXPECT_NE(std::string(refused.status().message()).find("captur"), std::string::npos)
      << refused.status();
  EXPECT_EQ(refused_blind.code(), absl::StatusCode::kFailedPrecondition) << refused_blind;
  EXPECT_TRUE(again.ok()) << "what is in memory is served: " << again.status();
  EXPECT_EQ((*runtime)->counters().capture_refusals, blocking ? 2 : 1);
  EXPECT_EQ((*runtime)->counters().compiles, 1);
  ASSERT_TRUE(graph.ok()) << "the refusal broke the capture: " << graph.status();
  ASSERT_TRUE(graph->Launch(captured).ok());
  ASSERT_TRUE(on_device->Download(*problem, captured).ok());
  ExpectRight(*problem);

  // Once the capture is over, the same call serves.
  const auto later = (*runtime)->Prepare(unknown, captured);
  EXPECT_TRUE(later.ok()) << later.status();
}

std::string ModeName(const ::testing::TestParamInfo<CapturePrepareTest::ParamType>& info) {
  const char* const modes[] = {"Global", "ThreadLocal", "Relaxed"};
  return std::string(modes[std::get<0>(info.param)]) +
         (std::get<1>(info.param) ? "Blocking" : "NonBlocking");
}
INSTANTIATE_TEST_SUITE_P(Modes, CapturePrepareTest,
                         ::testing::Combine(::testing::ValuesIn(kModes), ::testing::Bool()),
                         ModeName);

// A kernel that is on disk but not in memory needs a load, which a capture forbids as well.
TEST_F(CaptureTest, PrepareOfAStoredKernelIsRefusedToo) {
  TemporaryDirectory directory;
  {
    auto first = Runtime::Create(OptionsFor(directory.path()));
    ASSERT_TRUE(first.ok()) << first.status();
    ASSERT_TRUE((*first)->Prepare(SmallSpec()).ok());
  }
  auto second = Runtime::Create(OptionsFor(directory.path()));
  ASSERT_TRUE(second.ok()) << second.status();
  ASSERT_TRUE(BeginCapture(stream(), CU_STREAM_CAPTURE_MODE_GLOBAL).ok());
  const auto refused = (*second)->Prepare(SmallSpec(), stream());
  const auto graph = Graph::End(gpu().api(), stream());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition) << refused.status();
  EXPECT_TRUE(graph.ok()) << graph.status();
  EXPECT_TRUE((*second)->Prepare(SmallSpec(), stream()).ok());
  EXPECT_EQ((*second)->counters().store_hits, 1);
  EXPECT_EQ((*second)->counters().compiles, 0);
}

// The driver counts an unload among the calls that spoil a capture in global mode, whichever stream
// captures and whichever thread unloads.
TEST_F(CaptureTest, UnloadingAKernelLeavesACaptureElsewhereValid) {
  for (const CUstreamCaptureMode mode : kModes) {
    for (const bool other_thread : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "mode " << mode << ", other thread " << other_thread);
      TemporaryDirectory directory;
      auto unloaded = Runtime::Create(OptionsFor(directory.path()));
      ASSERT_TRUE(unloaded.ok()) << unloaded.status();
      AttentionSpec other = SmallSpec();
      other.dim_qk = 56;
      {
        auto loaded = cli::MakeRandomProblem(other);
        ASSERT_TRUE(loaded.ok()) << loaded.status();
        ASSERT_TRUE(RunOnDevice(**unloaded, *loaded, stream()).ok());
      }
      const auto prepared = runtime().Prepare(SmallSpec());
      ASSERT_TRUE(prepared.ok()) << prepared.status();
      auto problem = cli::MakeRandomProblem(SmallSpec());
      ASSERT_TRUE(problem.ok()) << problem.status();
      const auto on_device = cli::DeviceProblem::Upload(gpu().api(), *problem, stream());
      ASSERT_TRUE(on_device.ok()) << on_device.status();
      ASSERT_EQ(gpu().api().cuStreamSynchronize(stream()), CUDA_SUCCESS);

      ASSERT_TRUE(BeginCapture(stream(), mode).ok());
      const absl::Status run = runtime().Run(*prepared, on_device->args(), stream());
      if (other_thread) {
        std::thread([&] { unloaded->reset(); }).join();
      } else {
        unloaded->reset();
      }
      const auto graph = Graph::End(gpu().api(), stream());
      EXPECT_TRUE(run.ok()) << run;
      ASSERT_TRUE(graph.ok()) << "the unload broke the capture: " << graph.status();
      ASSERT_TRUE(graph->Launch(stream()).ok());
      ASSERT_TRUE(on_device->Download(*problem, stream()).ok());
      ExpectRight(*problem);
    }
  }
}

}  // namespace
}  // namespace tilewright::gpu_tests
