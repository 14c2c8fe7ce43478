// DeepGEMM 359: a kernel that failed to compile left a broken cubin in the cache and an error much
// later. Here: the error with the compiler's log at once, every time, and nothing stored.
#include <gtest/gtest.h>

#include <string>

#include "arch/arch_traits.h"
#include "arch/board_profile.h"
#include "base/log.h"
#include "build/kernel_builder.h"
#include "cache/open_store.h"
#include "compile/nvrtc_compiler.h"
#include "emit/template_bundle.h"
#include "plan/planner.h"
#include "spec/canonical.h"
#include "tests/support/temp_directory.h"

namespace tilewright {
namespace {

AttentionSpec SmallSpec() {
  AttentionSpec spec;
  spec.type = ElementType::kFp16;
  spec.heads_q = spec.heads_kv = 2;
  spec.seqlen_q = spec.seqlen_kv = 64;
  spec.dim_qk = spec.dim_v = 16;
  return spec;
}

class Case34Test : public ::testing::Test {
 protected:
  Case34Test() : logger_(LogLevel::kOff), compiler_({}) {
    opened_ = cache::OpenStore({.directory = directory_.path()}, logger_);
  }

  void SetUp() override {
    const auto identity = compiler_.Identity();
    if (!identity.ok()) GTEST_SKIP() << "no NVRTC: " << identity.status();
  }

  absl::StatusOr<build::BuiltKernel> Build(const AttentionSpec& spec,
                                           const emit::TemplateBundle& bundle) {
    const AttentionSpec canonical = spec::Canonicalise(spec);
    const auto traits = arch::FindArchTraits("sm_90a");
    const auto board = arch::DefaultBoardProfile("sm_90a");
    if (!traits.ok()) return traits.status();
    if (!board.ok()) return board.status();
    const auto decision = plan::Best({canonical, *traits, *board});
    if (!decision.ok()) return decision.status();
    build::KernelBuilder builder(&bundle, opened_.store.get(), &compiler_, &logger_, {});
    auto built = builder.Build(canonical, decision->plan);
    builder.Flush(10000);
    return built;
  }

  // What a new process would find.
  int64_t StoredEntries() {
    const auto reopened = cache::OpenStore({.directory = directory_.path()}, logger_);
    const auto entries = reopened.store->List();
    EXPECT_TRUE(entries.ok()) << entries.status();
    return entries.ok() ? static_cast<int64_t>(entries->size()) : -1;
  }

  testing::TempDirectory directory_;
  Logger logger_;
  compile::NvrtcCompiler compiler_;
  cache::OpenedStore opened_;
};

TEST_F(Case34Test, ABrokenSnippetIsTheCallersErrorEveryTimeAndLeavesNothing) {
  AttentionSpec spec = SmallSpec();
  spec.score_snippet.text = "return score +\n    no_such_name;";
  spec.score_snippet.file_name = "mine.cuh";
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto built = Build(spec, emit::EmbeddedTemplates());
    ASSERT_EQ(built.status().code(), absl::StatusCode::kInvalidArgument) << built.status();
    EXPECT_NE(built.status().message().find("mine.cuh"), absl::string_view::npos) << built.status();
    const auto log = built.status().GetPayload("tilewright/compile_log");
    ASSERT_TRUE(log.has_value());
    EXPECT_NE(std::string(*log).find("no_such_name"), std::string::npos) << *log;
  }
  EXPECT_EQ(StoredEntries(), 0);
  // The failure is not remembered against the next kernel.
  const auto sound = Build(SmallSpec(), emit::EmbeddedTemplates());
  ASSERT_TRUE(sound.ok()) << sound.status();
  EXPECT_EQ(sound->origin, build::BinaryOrigin::kCompiled);
  EXPECT_EQ(StoredEntries(), 1);
}

TEST_F(Case34Test, ABrokenTemplateIsOurErrorAndLeavesNothing) {
  emit::TemplateBundle broken = emit::EmbeddedTemplates();
  ASSERT_FALSE(broken.files.empty());
  for (artifact::SourceFile& file : broken.files) file.text += "\nthis is no C++;\n";
  broken.digest = Sha256("a broken bundle");
  const auto built = Build(SmallSpec(), broken);
  ASSERT_EQ(built.status().code(), absl::StatusCode::kInternal) << built.status();
  EXPECT_TRUE(built.status().GetPayload("tilewright/compile_log").has_value());
  EXPECT_EQ(StoredEntries(), 0);
  const auto sound = Build(SmallSpec(), emit::EmbeddedTemplates());
  EXPECT_TRUE(sound.ok()) << sound.status();
}

}  // namespace
}  // namespace tilewright
