#include "tests/gpu/gpu_environment.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "cli/accuracy.h"
#include "cli/attention_run.h"
#include "cli/device_problem.h"
#include "cli/gradients.h"
#include "device/driver_api.h"
#include "runtime/runtime_impl.h"
#include "spec/canonical.h"
#include "tests/gpu/guarded_outputs.h"
#include "tests/gpu/summary.h"

namespace tilewright::gpu_tests {

Flags& ProgramFlags() {
  static auto* flags = new Flags;
  return *flags;
}

// TILEWRIGHT_FAMILY chooses the family under test.
RuntimeOptions OptionsFor(const std::string& cache_dir) {
  RuntimeOptions options;
  if (const auto environment = RuntimeOptions::FromEnvironment(); environment.ok()) {
    options.family = environment->family;
  }
  options.cache_dir = cache_dir;
  options.tune_policy = TunePolicy::kOff;
  return options;
}

GpuEnvironment& GpuEnvironment::Get() {
  // Never destroyed: the driver may be gone when static destructors run.
  static auto* environment = new GpuEnvironment;
  return *environment;
}

namespace {

// cuDeviceGetAttribute of a driver whose devices have as many multiprocessors as --sms says.
const device::DriverApi* whole_driver = nullptr;
CUresult CUDAAPI GetAttributeOfFew(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (attribute != CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) {
    return whole_driver->cuDeviceGetAttribute(value, attribute, device);
  }
  *value = ProgramFlags().sms;
  return CUDA_SUCCESS;
}

absl::StatusOr<std::shared_ptr<device::DeviceManager>> OpenDevices() {
  if (ProgramFlags().sms == 0) return device::DeviceManager::Create();
  TILEWRIGHT_ASSIGN_OR_RETURN(whole_driver, device::LoadDriver());
  static auto* few = new device::DriverApi(*whole_driver);
  few->cuDeviceGetAttribute = &GetAttributeOfFew;
  return device::DeviceManager::Create(few);
}

}  // namespace

GpuEnvironment::GpuEnvironment() {
  auto devices = OpenDevices();
  if (!devices.ok()) {
    missing_ = absl::StrCat("no GPU: ", devices.status().message());
    return;
  }
  devices_ = *std::move(devices);
  auto current = devices_->CurrentOrPrimary(0);
  if (!current.ok()) {
    missing_ = absl::StrCat("no context on device 0: ", current.status().message());
    return;
  }
  current_ = *current;
  // In memory: what these tests check of the disk they check on stores of their own.
  RuntimeOptions options = OptionsFor("");
  options.cache_in_memory = true;
  options.compile_threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  RuntimeParts parts;
  parts.open_devices = [this] {
    return absl::StatusOr<std::shared_ptr<device::DeviceManager>>(devices_);
  };
  auto runtime = RuntimeParts::CreateRuntime(options, std::move(parts));
  TILEWRIGHT_CHECK(runtime.ok());
  runtime_ = *std::move(runtime);
}

void GpuTest::SetUp() {
  if (!gpu().missing().empty()) GTEST_SKIP() << gpu().missing();
  auto context = device::ScopedContext::Push(gpu().api(), gpu().context());
  ASSERT_TRUE(context.ok()) << context.status();
  context_.emplace(*std::move(context));
  auto stream = device::OwnedStream::Create(gpu().api());
  ASSERT_TRUE(stream.ok()) << stream.status();
  stream_ = *std::move(stream);
}

void GpuTest::TearDown() {
  stream_ = device::OwnedStream();
  context_.reset();
}

namespace {

// Prepares and launches `spec` once. Returns its workspace, full of NaN before, which the kernels
// use until the stream has come that far.
absl::StatusOr<device::DeviceBuffer> Launch(Runtime& runtime, const AttentionSpec& spec,
                                            AttentionArgs args, device::StreamHandle stream) {
  const device::DriverApi& api = GpuEnvironment::Get().api();
  TILEWRIGHT_ASSIGN_OR_RETURN(const PreparedAttention prepared, runtime.Prepare(spec));
  TILEWRIGHT_ASSIGN_OR_RETURN(const size_t scratch, prepared.workspace_bytes(args));
  TILEWRIGHT_ASSIGN_OR_RETURN(device::DeviceBuffer workspace,
                              device::DeviceBuffer::Allocate(api, scratch));
  if (scratch > 0) TILEWRIGHT_RETURN_IF_ERROR(workspace.Fill(0xff, stream));
  args.workspace = workspace.data();
  TILEWRIGHT_RETURN_IF_ERROR(runtime.Run(prepared, args, stream));
  return workspace;
}

}  // namespace

absl::Status RunOnDevice(Runtime& runtime, cli::HostProblem& problem, device::StreamHandle stream,
                         const AttentionSpec* prepared) {
  const device::DriverApi& api = GpuEnvironment::Get().api();
  const AttentionSpec& spec = prepared != nullptr ? *prepared : problem.spec();
  TILEWRIGHT_ASSIGN_OR_RETURN(const cli::DeviceProblem on_device,
                              cli::DeviceProblem::Upload(api, problem, stream));
  device::DeviceBuffer forward_workspace;
  if (spec.operation == Operation::kBackward) {
    TILEWRIGHT_ASSIGN_OR_RETURN(forward_workspace,
                                Launch(runtime, cli::ForwardOf(spec), on_device.args(), stream));
  }
  TILEWRIGHT_ASSIGN_OR_RETURN(const device::DeviceBuffer workspace,
                              Launch(runtime, spec, on_device.args(), stream));
  return on_device.Download(problem, stream);
}

cli::RandomProblemOptions WithSeed(uint64_t seed) {
  cli::RandomProblemOptions options;
  options.seed = seed;
  return options;
}

cli::RandomProblemOptions WithLengths(std::vector<int64_t> queries, std::vector<int64_t> keys) {
  cli::RandomProblemOptions options;
  options.lengths_q = std::move(queries);
  options.lengths_kv = std::move(keys);
  return options;
}

std::vector<std::vector<std::byte>> OutputBytes(const cli::HostProblem& problem) {
  std::vector<std::vector<std::byte>> outputs;
  for (const cli::HostBuffer& buffer : problem.buffers()) {
    if (buffer.output) outputs.emplace_back(buffer.base(), buffer.base() + buffer.size);
  }
  return outputs;
}

void PoisonOutputs(cli::HostProblem& problem, std::byte poison) {
  for (cli::HostBuffer& buffer : problem.buffers()) {
    if (buffer.output) std::fill_n(buffer.base(), buffer.size, poison);
  }
}

namespace {

// How near the outputs of a problem come to the reference, and whether near enough.
struct Judgement {
  bool holds = false;
  std::string text;
  std::optional<cli::Accuracy> accuracy = std::nullopt;  // of a forward
};
absl::StatusOr<Judgement> Judge(const cli::HostProblem& problem, const CheckOptions& options) {
  if (problem.spec().operation == Operation::kBackward) {
    TILEWRIGHT_ASSIGN_OR_RETURN(const cli::GradientAccuracy gradients,
                                cli::CheckGradients(problem));
    return Judgement{gradients.holds(), gradients.ToString()};
  }
  const auto rows =
      reference::SampleRows(problem.spec(), problem.args(), options.row_limit, /*seed=*/17);
  reference::Options reference_options;
  reference_options.callables = options.callables;
  TILEWRIGHT_ASSIGN_OR_RETURN(cli::Accuracy accuracy,
                              cli::CheckAccuracy(problem, rows, reference_options));
  accuracy.lse_error /= options.lse_bars;
  return Judgement{accuracy.holds(), accuracy.ToString(), accuracy};
}

}  // namespace

void CheckProblem(Runtime& runtime, cli::HostProblem& problem, device::StreamHandle stream,
                  const CheckOptions& options) {
  const std::string text = spec::ToText(spec::Canonicalise(problem.spec()));
  SCOPED_TRACE(text);
  GuardOutputs(problem);
  const AttentionSpec* prepared = options.prepared.has_value() ? &*options.prepared : nullptr;
  const absl::Status first = RunOnDevice(runtime, problem, stream, prepared);
  if (!first.ok()) {
    Summary::Get().RecordFailure(text);
    FAIL() << first;
  }
  const std::string wrong = CheckWrites(problem);
  EXPECT_EQ(wrong, "");
  const auto judgement = Judge(problem, options);
  if (!judgement.ok()) {
    Summary::Get().RecordFailure(text);
    FAIL() << judgement.status();
  }
  EXPECT_TRUE(judgement->holds) << judgement->text;

  // Additions to gradients have an order only where the spec asks for one.
  const bool ordered =
      problem.spec().operation == Operation::kForward || problem.spec().deterministic;
  bool same = true;
  if (options.second_run && ordered) {
    const auto once = OutputBytes(problem);
    PoisonOutputs(problem);
    const absl::Status second = RunOnDevice(runtime, problem, stream, prepared);
    EXPECT_TRUE(second.ok()) << second;
    same = second.ok() && OutputBytes(problem) == once;
    EXPECT_TRUE(same) << "two runs of the same kernel on the same data differ";
  }
  if (judgement->accuracy.has_value()) {
    Summary::Get().Record(text, *judgement->accuracy, wrong.empty() && judgement->holds && same);
  }
}

void CheckSpec(Runtime& runtime, const AttentionSpec& spec, device::StreamHandle stream,
               const cli::RandomProblemOptions& problem_options, const CheckOptions& options) {
  auto problem = cli::MakeRandomProblem(spec, problem_options);
  ASSERT_TRUE(problem.ok()) << problem.status();
  CheckProblem(runtime, *problem, stream, options);
}

}  // namespace tilewright::gpu_tests
