// A kernel of the sm_80 target on a later GPU: NVRTC makes PTX of it, which the driver compiles.
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "arch/arch_traits.h"
#include "base/status_macros.h"
#include "cli/accuracy.h"
#include "cli/device_problem.h"
#include "cli/random_problem.h"
#include "compile/nvrtc_api.h"
#include "compile/nvrtc_search.h"
#include "device/module.h"
#include "emit/emit_kernel.h"
#include "emit/param_layout.h"
#include "emit/template_bundle.h"
#include "plan/launch_shape.h"
#include "plan/planner.h"
#include "reference/reference.h"
#include "runtime/pack_args.h"
#include "spec/canonical.h"
#include "tests/gpu/gpu_environment.h"

namespace tilewright::gpu_tests {
namespace {

absl::StatusOr<std::string> CompileToPtx(const artifact::KernelSource& source) {
  compile::FingerprintCache fingerprints;
  TILEWRIGHT_ASSIGN_OR_RETURN(
      const compile::NvrtcFiles files,
      compile::FindNvrtc(compile::SearchPlaces::FromProcess(""), fingerprints));
  TILEWRIGHT_ASSIGN_OR_RETURN(const compile::NvrtcApi api, compile::OpenNvrtc(files, fingerprints));
  std::vector<const char*> texts, names;
  for (const artifact::SourceFile& file : emit::EmbeddedTemplates().files) {
    texts.push_back(file.text.c_str());
    names.push_back(file.name.c_str());
  }
  nvrtcProgram program = nullptr;
  TILEWRIGHT_RETURN_IF_ERROR(
      api.Check(api.nvrtcCreateProgram(&program, source.text.c_str(), "kernel.cu",
                                       static_cast<int>(texts.size()), texts.data(), names.data()),
                "nvrtcCreateProgram"));
  const std::vector<const char*> options = {"--gpu-architecture=compute_80", "-std=c++20"};
  absl::Status status =
      api.Check(api.nvrtcCompileProgram(program, static_cast<int>(options.size()), options.data()),
                "nvrtcCompileProgram");
  size_t size = 0;
  if (status.ok()) status = api.Check(api.nvrtcGetPTXSize(program, &size), "nvrtcGetPTXSize");
  std::string ptx(size, '\0');
  if (status.ok()) status = api.Check(api.nvrtcGetPTX(program, ptx.data()), "nvrtcGetPTX");
  api.nvrtcDestroyProgram(&program);
  TILEWRIGHT_RETURN_IF_ERROR(status);
  return ptx;
}

class OlderTargetTest : public GpuTest {
 protected:
  // Plans `text` for sm_80, runs that kernel on this device and compares.
  void Check(const std::string& text, plan::Family family) {
    SCOPED_TRACE(text);
    const auto parsed = spec::ParseSpec(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    const AttentionSpec spec = spec::Canonicalise(*parsed);
    const auto traits = arch::ArchTraitsForDevice(8, 0);
    ASSERT_TRUE(traits.ok()) << traits.status();
    const auto decision = plan::Best({spec, *traits, gpu().device().board});
    ASSERT_TRUE(decision.ok()) << decision.status();
    const plan::KernelPlan& plan = decision->plan;
    ASSERT_EQ(plan.family, family);
    ASSERT_TRUE(plan.after.empty()) << plan.ToString();
    const auto source = emit::EmitKernel(spec, plan);
    ASSERT_TRUE(source.ok()) << source.status();
    const auto ptx = CompileToPtx(*source);
    ASSERT_TRUE(ptx.ok()) << ptx.status();
    ASSERT_NE(ptx->find(".target sm_80"), std::string::npos);

    const auto devices = device::DeviceManager::Create();
    ASSERT_TRUE(devices.ok()) << devices.status();
    const auto where = (*devices)->CurrentOrPrimary(0);
    ASSERT_TRUE(where.ok()) << where.status();
    const auto kernel = device::LoadedKernel::Load(
        (*devices)->api(), *where, *ptx,
        {.entry_name = source->entry_name, .dynamic_smem_bytes = plan.smem_bytes});
    ASSERT_TRUE(kernel.ok()) << kernel.status();
    auto problem = cli::MakeRandomProblem(spec, WithSeed(3));
    ASSERT_TRUE(problem.ok()) << problem.status();
    const auto on_device = cli::DeviceProblem::Upload(gpu().api(), *problem, stream());
    ASSERT_TRUE(on_device.ok()) << on_device.status();
    const emit::ParamLayout layout = emit::MakeParamLayout(spec, plan);
    std::vector<std::byte> params(layout.size);
    PackArgs(spec, layout, on_device->args(), params.data());
    const plan::LaunchShape shape = plan::ComputeLaunchShape(plan, spec, on_device->args(), {});
    const absl::Status launched = (*kernel)->Launch(
        {.grid = shape.grid, .block = shape.block, .smem_bytes = shape.smem_bytes}, params.data(),
        stream());
    ASSERT_TRUE(launched.ok()) << launched;
    const absl::Status downloaded = on_device->Download(*problem, stream());
    ASSERT_TRUE(downloaded.ok()) << downloaded;
    const auto rows = reference::SampleRows(spec, problem->args(), 1024, /*seed=*/17);
    const auto accuracy = cli::CheckAccuracy(*problem, rows, {});
    ASSERT_TRUE(accuracy.ok()) << accuracy.status();
    EXPECT_TRUE(accuracy->holds()) << accuracy->ToString();
  }
};

TEST_F(OlderTargetTest, KernelsOfSm80RunHere) {
  Check("fwd bf16 b=2 h=4/2 s=300/500 d=128 causal lse", plan::Family::kFwdSm80);
  Check("fwd fp16 b=2 h=4 s=200 d=72 bias=fp16:1,4,200,200 softcap=20", plan::Family::kFwdSm80);
  Check("fwd bf16 b=400 h=4 s=49 d=32 lse", plan::Family::kFwdSmall);
}

}  // namespace
}  // namespace tilewright::gpu_tests
