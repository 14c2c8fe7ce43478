// TensorRT-LLM 16098 and cudf 5469: one cache directory that machines with different GPUs share
// served the cubin of the wrong one. Here the architecture is part of the key, and the ELF header
// of what is served is that of the target.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "arch/arch_traits.h"
#include "arch/board_profile.h"
#include "base/log.h"
#include "build/cubin_check.h"
#include "build/kernel_builder.h"
#include "cache/open_store.h"
#include "compile/nvrtc_compiler.h"
#include "emit/template_bundle.h"
#include "plan/planner.h"
#include "spec/canonical.h"
#include "tests/support/temp_directory.h"

namespace tilewright {
namespace {

TEST(Case35Test, TwoArchitecturesShareADirectory) {
  const compile::NvrtcCompiler compiler({});
  const auto identity = compiler.Identity();
  if (!identity.ok()) GTEST_SKIP() << "no NVRTC: " << identity.status();
  const testing::TempDirectory directory;
  const Logger logger(LogLevel::kOff);
  AttentionSpec spec;
  spec.type = ElementType::kFp16;
  spec.heads_q = spec.heads_kv = 2;
  spec.seqlen_q = spec.seqlen_kv = 64;
  spec.dim_qk = spec.dim_v = 16;
  spec = spec::Canonicalise(spec);

  // Each pass is a machine of its own kind on the same directory, twice.
  std::vector<Digest> keys;
  for (const bool warm : {false, true}) {
    for (const std::string target : {"sm_80", "sm_90a"}) {
      SCOPED_TRACE(target);
      auto opened = cache::OpenStore({.directory = directory.path()}, logger);
      build::KernelBuilder builder(&emit::EmbeddedTemplates(), opened.store.get(), &compiler,
                                   &logger, {});
      const auto traits = arch::FindArchTraits(target);
      const auto board = arch::DefaultBoardProfile(target);
      ASSERT_TRUE(traits.ok()) << traits.status();
      ASSERT_TRUE(board.ok()) << board.status();
      const auto decision = plan::Best({spec, *traits, *board});
      ASSERT_TRUE(decision.ok()) << decision.status();
      const auto built = builder.Build(spec, decision->plan);
      ASSERT_TRUE(built.ok()) << built.status();
      EXPECT_EQ(built->origin, warm ? build::BinaryOrigin::kStore : build::BinaryOrigin::kCompiled);
      EXPECT_EQ(built->binary.target, target);
      const absl::Status own = build::CheckCubin(built->binary.cubin, target);
      EXPECT_TRUE(own.ok()) << own;
      EXPECT_FALSE(
          build::CheckCubin(built->binary.cubin, target == "sm_80" ? "sm_90a" : "sm_80").ok());
      keys.push_back(built->key);
      ASSERT_TRUE(builder.Flush(10000));
    }
  }
  EXPECT_NE(keys[0], keys[1]);
  EXPECT_EQ(keys[0], keys[2]);
  EXPECT_EQ(keys[1], keys[3]);
}

}  // namespace
}  // namespace tilewright
