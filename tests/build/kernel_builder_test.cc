#include "build/kernel_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "arch/arch_traits.h"
#include "arch/board_profile.h"
#include "base/mutex.h"
#include "build/entry_codec.h"
#include "cache/disk_store.h"
#include "cache/memory_store.h"
#include "cache/open_store.h"
#include "plan/planner.h"
#include "spec/canonical.h"
#include "tests/device/fake_driver.h"
#include "tests/support/temp_directory.h"

namespace tilewright::build {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr char kTarget[] = "sm_90a";

AttentionSpec SmallSpec() {
  AttentionSpec spec;
  spec.type = ElementType::kFp16;
  spec.heads_q = spec.heads_kv = 2;
  spec.seqlen_q = spec.seqlen_kv = 64;
  spec.dim_qk = spec.dim_v = 16;
  return spec::Canonicalise(spec);
}

plan::KernelPlan PlanOf(const AttentionSpec& spec, const std::string& target = kTarget) {
  const auto traits = arch::FindArchTraits(target);
  const auto board = arch::DefaultBoardProfile(target);
  EXPECT_TRUE(traits.ok() && board.ok());
  const auto decision = plan::Best({spec, *traits, *board});
  EXPECT_TRUE(decision.ok()) << decision.status();
  return decision->plan;
}

// A logger that keeps its lines.
class Lines {
 public:
  LogSink sink() {
    return [this](LogLevel, std::string_view line) {
      MutexLock lock(&mutex_);
      lines_.emplace_back(line);
    };
  }
  // Those of one event.
  std::vector<std::string> Of(const std::string& event) {
    MutexLock lock(&mutex_);
    std::vector<std::string> found;
    for (const std::string& line : lines_) {
      if (line.substr(0, line.find(' ')) == event) found.push_back(line);
    }
    return found;
  }

 private:
  Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

class KernelBuilderTest : public ::testing::Test {
 protected:
  KernelBuilderTest() : logger_(LogLevel::kDebug, lines_.sink()), compiler_({}) {}

  void SetUp() override {
    const auto identity = compiler_.Identity();
    if (!identity.ok()) GTEST_SKIP() << "no NVRTC: " << identity.status();
    variant_ = identity->id;
  }

  std::unique_ptr<KernelBuilder> MakeBuilder(BuilderOptions options = {},
                                             cache::ArtifactStore* store = nullptr) {
    return std::make_unique<KernelBuilder>(&emit::EmbeddedTemplates(),
                                           store != nullptr ? store : &store_, &compiler_, &logger_,
                                           options);
  }

  // The entry of a spec in the store, changed by `edit`.
  template <typename Edit>
  void EditStored(KernelBuilder& builder, const AttentionSpec& spec, const Edit& edit) {
    ASSERT_TRUE(builder.Flush(10000));
    const auto request = builder.MakeRequest(spec, PlanOf(spec));
    ASSERT_TRUE(request.ok());
    const auto found = store_.Get({request->key, variant_}, request->manifest.manifest());
    ASSERT_TRUE(found.ok()) << found.status();
    cache::Entry entry = **found;
    ASSERT_TRUE(store_.Remove(request->key, Sha256(variant_).ToHex().substr(0, 16)).ok());
    edit(&entry);
    ASSERT_TRUE(store_.Put(entry).ok());
  }

  Lines lines_;
  const Logger logger_;
  const compile::NvrtcCompiler compiler_;
  std::string variant_;
  cache::MemoryStore store_{0};
};

// R10
TEST_F(KernelBuilderTest, AMissNamesTheFieldThatDiffersFromTheNearestEntry) {
  const AttentionSpec spec = SmallSpec();
  {
    const auto builder = MakeBuilder({.lineinfo = true});
    ASSERT_TRUE(builder->Build(spec, PlanOf(spec)).ok());
    ASSERT_TRUE(builder->Flush(10000));
  }
  const auto silent = MakeBuilder({.frozen = true});
  EXPECT_THAT(std::string(silent->Build(spec, PlanOf(spec)).status().message()),
              HasSubstr("(absent; key "));
  const auto builder = MakeBuilder({.explain_misses = true});
  const auto built = builder->Build(spec, PlanOf(spec));
  ASSERT_TRUE(built.ok()) << built.status();
  EXPECT_THAT(built->miss_reason,
              HasSubstr("differs in options (wanted nothing, stored -lineinfo)"));
  EXPECT_THAT(lines_.Of("store_miss").back(), HasSubstr("differs in options"));
  // Another kernel is no explanation.
  AttentionSpec other = spec;
  other.causal = true;
  const auto another = builder->Build(spec::Canonicalise(other), PlanOf(spec::Canonicalise(other)));
  ASSERT_TRUE(another.ok());
  EXPECT_EQ(another->miss_reason, "absent");
}

TEST_F(KernelBuilderTest, CompilesOnceAndServesFromTheStoreAfterwards) {
  const AttentionSpec spec = SmallSpec();
  {
    const auto builder = MakeBuilder();
    const auto built = builder->Build(spec, PlanOf(spec));
    ASSERT_TRUE(built.ok()) << built.status();
    EXPECT_EQ(built->origin, BinaryOrigin::kCompiled);
    EXPECT_EQ(built->miss_reason, "absent");
    EXPECT_EQ(built->binary.target, kTarget);
    EXPECT_GT(built->binary.usage.registers, 0);
    EXPECT_EQ(builder->counters().compiles, 1);
    EXPECT_EQ(builder->counters().store_misses, 1);
    EXPECT_EQ(builder->counters().store_hits, 0);
    EXPECT_EQ(builder->counters().compile_ms, built->binary.compile_ms);
  }
  const auto builder = MakeBuilder();
  const auto built = builder->Build(spec, PlanOf(spec));
  ASSERT_TRUE(built.ok()) << built.status();
  EXPECT_EQ(built->origin, BinaryOrigin::kStore);
  EXPECT_EQ(built->variant, variant_);
  EXPECT_EQ(builder->counters().compiles, 0);
  EXPECT_EQ(builder->counters().store_hits, 1);
  EXPECT_EQ(builder->counters().store_misses, 0);
  ASSERT_EQ(lines_.Of("store_miss").size(), 1u);
  EXPECT_THAT(lines_.Of("store_miss")[0], HasSubstr("reason=absent"));
  ASSERT_EQ(lines_.Of("compile").size(), 1u);
  EXPECT_THAT(lines_.Of("compile")[0],
              ::testing::AllOf(HasSubstr(" ms="), HasSubstr(" regs="), HasSubstr(" spills=")));
  EXPECT_EQ(lines_.Of("store_hit").size(), 1u);
}

// R63
TEST_F(KernelBuilderTest, AddsWhatHappenedToTheTotalsOfTheStore) {
  const tilewright::testing::TempDirectory directory;
  const auto store = cache::DiskStore::Open({.directory = directory.path()}, logger_);
  ASSERT_TRUE(store.ok()) << store.status();
  const AttentionSpec spec = SmallSpec();
  for (int process = 0; process < 3; ++process) {
    const auto builder = MakeBuilder({}, store->get());
    ASSERT_TRUE(builder->Build(spec, PlanOf(spec)).ok());
  }
  MakeBuilder({}, store->get());  // builds nothing, adds nothing
  const cache::Totals totals = (*store)->ReadTotals();
  EXPECT_EQ(totals.at("compiles"), 1);
  EXPECT_EQ(totals.at("misses_absent"), 1);
  EXPECT_GT(totals.at("compile_ms"), 0);
  EXPECT_EQ(totals.at("misses_corrupt"), 0);
}

TEST_F(KernelBuilderTest, ServesAgainBeforeTheEntryIsPublished) {
  // Every Put of this store comes late.
  class Late : public cache::MemoryStore {
   public:
    Late() : MemoryStore(0) {}
    absl::Status Put(const cache::Entry& entry) override {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      return MemoryStore::Put(entry);
    }
  } late;
  const AttentionSpec spec = SmallSpec();
  const auto builder = MakeBuilder({}, &late);
  ASSERT_TRUE(builder->Build(spec, PlanOf(spec)).ok());
  const auto again = builder->Build(spec, PlanOf(spec));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(builder->counters().compiles, 1);
}

TEST_F(KernelBuilderTest, ThreadsShareOneCompile) {
  const AttentionSpec spec = SmallSpec();
  const auto builder = MakeBuilder();
  const plan::KernelPlan plan = PlanOf(spec);
  std::vector<std::string> cubins(64);
  std::vector<std::thread> threads;
  for (std::string& cubin : cubins) {
    threads.emplace_back([&] {
      const auto built = builder->Build(spec, plan);
      if (built.ok()) cubin = built->binary.cubin;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(cubins[0].empty());
  for (const std::string& cubin : cubins) EXPECT_EQ(cubin, cubins[0]);
  EXPECT_EQ(builder->counters().compiles, 1);
}

TEST_F(KernelBuilderTest, KeyFollowsEverythingTheCompilerReceives) {
  const AttentionSpec spec = SmallSpec();
  const auto builder = MakeBuilder();
  const plan::KernelPlan plan = PlanOf(spec);
  const artifact::KernelSource source = builder->MakeRequest(spec, plan)->source;
  const ManifestFields base = *ParseManifest(builder->Key(source, plan).manifest());
  const auto differing = [&](const LabelledHash& other) {
    EXPECT_NE(other.digest(), builder->Key(source, plan).digest());
    return DifferingFields(base, *ParseManifest(other.manifest()));
  };

  artifact::KernelSource text = source;
  text.text += " ";
  EXPECT_THAT(differing(builder->Key(text, plan)), ::testing::ElementsAre("unit_sha256"));
  artifact::KernelSource entry = source;
  entry.entry_name += "x";
  EXPECT_THAT(differing(builder->Key(entry, plan)), ::testing::ElementsAre("entry"));
  artifact::KernelSource header = source;
  header.generated_headers.push_back({"user/score.cuh", "x"});
  EXPECT_THAT(differing(builder->Key(header, plan)), Contains("header_sha256"));
  artifact::KernelSource renamed = header;
  renamed.generated_headers.back().name = "user/mask.cuh";
  EXPECT_NE(builder->Key(header, plan).digest(), builder->Key(renamed, plan).digest());
  artifact::KernelSource changed = header;
  changed.generated_headers.back().text = "y";
  EXPECT_NE(builder->Key(header, plan).digest(), builder->Key(changed, plan).digest());

  plan::KernelPlan other_target = plan;
  other_target.target = "sm_80";
  EXPECT_THAT(differing(builder->Key(source, other_target)), Contains("target"));
  EXPECT_THAT(differing(MakeBuilder({.lineinfo = true})->Key(source, plan)),
              ::testing::ElementsAre("options"));
  emit::TemplateBundle bundle = emit::EmbeddedTemplates();
  bundle.digest = Sha256("another");
  const KernelBuilder with_bundle(&bundle, &store_, &compiler_, &logger_, {});
  EXPECT_THAT(differing(with_bundle.Key(source, plan)), ::testing::ElementsAre("templates"));
}

// Case 35 of the list of cases that broke others: one cache, two architectures.
TEST_F(KernelBuilderTest, ArchitecturesShareAStoreWithoutMeeting) {
  const AttentionSpec spec = SmallSpec();
  const auto builder = MakeBuilder();
  const auto hopper = builder->Build(spec, PlanOf(spec, "sm_90a"));
  const auto ampere = builder->Build(spec, PlanOf(spec, "sm_80"));
  ASSERT_TRUE(hopper.ok() && ampere.ok());
  EXPECT_NE(hopper->key, ampere->key);
  ASSERT_TRUE(builder->Flush(10000));
  const auto second = MakeBuilder();
  EXPECT_EQ(second->Build(spec, PlanOf(spec, "sm_80"))->binary.cubin, ampere->binary.cubin);
  EXPECT_EQ(second->Build(spec, PlanOf(spec, "sm_90a"))->binary.cubin, hopper->binary.cubin);
  EXPECT_EQ(second->counters().compiles, 0);
}

TEST_F(KernelBuilderTest, SpecsThatDifferInRunTimeValuesShareAKey) {
  const auto builder = MakeBuilder();
  AttentionSpec longer = SmallSpec();
  longer.batch = 7;
  longer.seqlen_q = longer.seqlen_kv = 65;
  const AttentionSpec spec = SmallSpec();
  const plan::KernelPlan plan = PlanOf(spec);
  EXPECT_EQ(builder->MakeRequest(spec, plan)->key, builder->MakeRequest(longer, plan)->key);
  longer.exact = true;
  AttentionSpec exact = spec;
  exact.exact = true;
  EXPECT_NE(builder->MakeRequest(exact, plan)->key, builder->MakeRequest(longer, plan)->key);
}

TEST_F(KernelBuilderTest, FrozenRefusesAMissAndNamesTheSpec) {
  const AttentionSpec spec = SmallSpec();
  const auto frozen = MakeBuilder({.frozen = true});
  const auto missing = frozen->Build(spec, PlanOf(spec));
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr(spec::ToText(spec)));
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("absent"));
  EXPECT_EQ(frozen->counters().compiles, 0);
  EXPECT_EQ(frozen->counters().store_misses, 1);

  ASSERT_TRUE(MakeBuilder()->Build(spec, PlanOf(spec)).ok());
  EXPECT_TRUE(frozen->Build(spec, PlanOf(spec)).ok());
}

// Case 34: what does not compile is an error with the log at once, and leaves nothing behind.
TEST_F(KernelBuilderTest, AFailedCompileStoresNothingAndIsForgotten) {
  AttentionSpec spec = SmallSpec();
  spec.score_snippet = {"score +\nno_such_name", "my_rule.cu"};
  const auto builder = MakeBuilder();
  for (int attempt = 1; attempt <= 2; ++attempt) {
    const auto built = builder->Build(spec, PlanOf(spec));
    EXPECT_EQ(built.status().code(), absl::StatusCode::kInvalidArgument) << built.status();
    EXPECT_THAT(std::string(built.status().message()), HasSubstr("my_rule.cu"));
    EXPECT_THAT(std::string(built.status().message()), HasSubstr("no_such_name"));
    const auto log = built.status().GetPayload("tilewright/compile_log");
    ASSERT_TRUE(log.has_value());
    EXPECT_THAT(std::string(*log), HasSubstr("no_such_name"));
    EXPECT_EQ(builder->counters().store_misses, attempt);
  }
  EXPECT_EQ(builder->counters().compiles, 0);
  ASSERT_TRUE(builder->Flush(10000));
  EXPECT_TRUE(store_.List()->empty());
}

TEST_F(KernelBuilderTest, WithoutNvrtcAnyVerifiedEntryServesAndAMissSaysWhatToInstall) {
  const AttentionSpec spec = SmallSpec();
  ASSERT_TRUE(MakeBuilder()->Build(spec, PlanOf(spec)).ok());
  const compile::NvrtcCompiler missing({.nvrtc_path = "/nonexistent/libnvrtc.so"});
  KernelBuilder builder(&emit::EmbeddedTemplates(), &store_, &missing, &logger_, {});
  const auto served = builder.Build(spec, PlanOf(spec));
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_EQ(served->origin, BinaryOrigin::kStore);

  AttentionSpec unknown = spec;
  unknown.dim_v = 24;
  const auto refused = builder.Build(unknown, PlanOf(unknown));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("/nonexistent/libnvrtc.so"));
}

TEST_F(KernelBuilderTest, AnEntryThatCannotBeMeantIsRecompiledOnce) {
  const AttentionSpec spec = SmallSpec();
  const auto builder = MakeBuilder();
  ASSERT_TRUE(builder->Build(spec, PlanOf(spec)).ok());
  EditStored(*builder, spec, [](cache::Entry* entry) {
    for (cache::Section& section : entry->sections) {
      if (section.name == "cubin") section.bytes.resize(section.bytes.size() / 2);
    }
  });
  const auto again = builder->Build(spec, PlanOf(spec));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->origin, BinaryOrigin::kCompiled);
  EXPECT_THAT(again->miss_reason, HasSubstr("corrupt: cubin is cut short"));
  ASSERT_TRUE(builder->Flush(10000));
  EXPECT_EQ(builder->Build(spec, PlanOf(spec))->origin, BinaryOrigin::kStore);
  EXPECT_EQ(builder->counters().compiles, 2);
}

// ---- loading --------------------------------------------------------------------------------

class KernelBuilderLoadTest : public KernelBuilderTest {
 protected:
  void SetUp() override {
    KernelBuilderTest::SetUp();
    if (IsSkipped()) return;
    auto manager = device::DeviceManager::Create(&driver_.api());
    ASSERT_TRUE(manager.ok()) << manager.status();
    manager_ = *manager;
    const auto where = manager_->CurrentOrPrimary(0);
    ASSERT_TRUE(where.ok()) << where.status();
    where_ = *where;
  }

  device::FakeDriver driver_;
  std::shared_ptr<device::DeviceManager> manager_;
  device::DeviceManager::Current where_;
};

TEST_F(KernelBuilderLoadTest, LoadsWhatItBuilt) {
  const AttentionSpec spec = SmallSpec();
  const auto builder = MakeBuilder();
  const auto loaded = builder->BuildAndLoad(spec, PlanOf(spec), driver_.api(), where_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->kernel->context(), where_.context);
  EXPECT_EQ(driver_.loaded_libraries(), 1);
  EXPECT_EQ(builder->counters().loads, 1);
  EXPECT_EQ(lines_.Of("load").size(), 1u);
}

TEST_F(KernelBuilderLoadTest, AStoredImageThatTheDriverRefusesIsCompiledOnceMore) {
  const AttentionSpec spec = SmallSpec();
  ASSERT_TRUE(MakeBuilder()->Build(spec, PlanOf(spec)).ok());
  driver_.Fail("cuLibraryLoadData", CUDA_ERROR_INVALID_IMAGE, 1);
  const auto builder = MakeBuilder();
  const auto loaded = builder->BuildAndLoad(spec, PlanOf(spec), driver_.api(), where_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->built.origin, BinaryOrigin::kCompiled);
  EXPECT_THAT(loaded->built.miss_reason, HasSubstr("rejected by the driver"));
  EXPECT_EQ(builder->counters().load_rejects, 1);
  EXPECT_EQ(builder->counters().compiles, 1);
  ASSERT_TRUE(builder->Flush(10000));
  EXPECT_EQ(store_.List()->size(), 1u);
}

TEST_F(KernelBuilderLoadTest, ARefusalThatLastsNamesArchitectureDriverAndCompiler) {
  const AttentionSpec spec = SmallSpec();
  ASSERT_TRUE(MakeBuilder()->Build(spec, PlanOf(spec)).ok());
  driver_.Fail("cuLibraryLoadData", CUDA_ERROR_NO_BINARY_FOR_GPU, -1);
  const auto builder = MakeBuilder();
  const auto loaded = builder->BuildAndLoad(spec, PlanOf(spec), driver_.api(), where_);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInternal);
  const std::string message(loaded.status().message());
  EXPECT_THAT(message, HasSubstr("sm_90a"));
  EXPECT_THAT(message, HasSubstr("driver 13.0"));
  EXPECT_THAT(message, HasSubstr("nvrtc"));
  EXPECT_THAT(message, HasSubstr("CUDA_ERROR_NO_BINARY_FOR_GPU"));
  EXPECT_EQ(builder->counters().compiles, 1);
  EXPECT_EQ(builder->counters().load_rejects, 2);
  // No negative entry, and not the refused one either.
  ASSERT_TRUE(builder->Flush(10000));
  EXPECT_TRUE(store_.List()->empty());
  driver_.StopFailing("cuLibraryLoadData");
  EXPECT_TRUE(builder->BuildAndLoad(spec, PlanOf(spec), driver_.api(), where_).ok());
}

TEST_F(KernelBuilderLoadTest, AFailureOfAnotherKindKeepsTheEntry) {
  const AttentionSpec spec = SmallSpec();
  ASSERT_TRUE(MakeBuilder()->Build(spec, PlanOf(spec)).ok());
  driver_.Fail("cuLibraryLoadData", CUDA_ERROR_OUT_OF_MEMORY, 1);
  const auto builder = MakeBuilder();
  const auto loaded = builder->BuildAndLoad(spec, PlanOf(spec), driver_.api(), where_);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(builder->counters().compiles, 0);
  EXPECT_EQ(builder->counters().load_rejects, 0);
  EXPECT_EQ(store_.List()->size(), 1u);
}

TEST_F(KernelBuilderLoadTest, FrozenDoesNotReplaceARefusedImage) {
  const AttentionSpec spec = SmallSpec();
  ASSERT_TRUE(MakeBuilder()->Build(spec, PlanOf(spec)).ok());
  driver_.Fail("cuLibraryLoadData", CUDA_ERROR_INVALID_IMAGE, 1);
  const auto builder = MakeBuilder({.frozen = true});
  const auto loaded = builder->BuildAndLoad(spec, PlanOf(spec), driver_.api(), where_);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("rejected by the driver"));
  EXPECT_EQ(builder->counters().compiles, 0);
}

// ---- processes ------------------------------------------------------------------------------

TEST_F(KernelBuilderTest, AForkedChildMayDropTheBuilder) {
  const AttentionSpec spec = SmallSpec();
  auto builder = MakeBuilder();
  ASSERT_TRUE(builder->Build(spec, PlanOf(spec)).ok());  // the writer thread runs
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(10);  // a destructor that waits for the thread would wait for ever
    builder.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(KernelBuilderTest, ProcessesShareOneCompile) {
  const std::filesystem::path directory = std::filesystem::path(::testing::TempDir()) /
                                          ("tilewright_builder_" + std::to_string(getpid()));
  std::filesystem::create_directories(directory);
  std::filesystem::permissions(directory, std::filesystem::perms::owner_all);
  const AttentionSpec spec = SmallSpec();
  constexpr int kProcesses = 6;
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      cache::StoreOptions options;
      options.directory = directory / "store";
      cache::OpenedStore opened = cache::OpenStore(options, Logger(LogLevel::kOff));
      int compiles = 100;  // of a process that failed
      {
        const auto builder = MakeBuilder({}, opened.store.get());
        if (builder->Build(spec, PlanOf(spec)).ok()) compiles = builder->counters().compiles;
      }
      _exit(compiles);
    }
    children.push_back(child);
  }
  int compiles = 0;
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << status;
    compiles += WEXITSTATUS(status);
  }
  EXPECT_EQ(compiles, 1);
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace tilewright::build
