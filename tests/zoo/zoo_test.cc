// Every workload of tests/data/zoo.jsonl on its way through the pipeline, as far as a machine
// without a GPU goes: spec, text form, plan, source, cubin.
#include "zoo.h"

#include <algorithm>
#include <atomic>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "arch/arch_traits.h"
#include "arch/board_profile.h"
#include "artifact/kernel_source.h"
#include "compile/nvrtc_compiler.h"
#include "emit/emit_kernel.h"
#include "emit/template_bundle.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/planner.h"
#include "spec/canonical.h"
#include "spec/validate.h"

namespace tilewright {
namespace {

using ::testing::HasSubstr;

constexpr const char* kTargets[] = {"sm_80", "sm_90a", "sm_120a"};

// Larger than any family holds; the planner says so.
constexpr std::string_view kTooLarge = "msa-transformer-tied-rows";

const std::vector<ZooEntry>& Zoo() {
  static const auto& zoo = *new auto(ReadZoo(TILEWRIGHT_TEST_DATA "/zoo.jsonl"));
  if (!zoo.ok()) {
    ADD_FAILURE() << zoo.status();
    static const std::vector<ZooEntry>& none = *new std::vector<ZooEntry>;
    return none;
  }
  return *zoo;
}

absl::StatusOr<plan::Decision> PlanFor(const AttentionSpec& spec, std::string_view target) {
  const arch::ArchTraits traits = arch::FindArchTraits(target).value();
  const arch::BoardProfile board = arch::DefaultBoardProfile(target).value();
  return plan::Best({spec, traits, board});
}

// A kernel to compile, and the first entry that asked for it.
struct Job {
  std::string entry;
  std::string target;
  artifact::KernelSource source;
};

// Equal sources for equal targets are one job: lengths, batch and strides are no part of them.
class Jobs {
 public:
  void Add(const ZooEntry& entry, std::string_view target) {
    const AttentionSpec spec = spec::Canonicalise(entry.spec);
    const absl::StatusOr<plan::Decision> decision = PlanFor(spec, target);
    ASSERT_TRUE(decision.ok()) << entry.name << ": " << decision.status();
    for (const plan::KernelPlan& kernel : decision->plan.Kernels()) {
      absl::StatusOr<artifact::KernelSource> source = emit::EmitKernel(spec, kernel);
      ASSERT_TRUE(source.ok()) << entry.name << ": " << source.status();
      std::string identity = absl::StrCat(std::string(target), "\n", source->text);
      for (const artifact::SourceFile& header : source->generated_headers) {
        absl::StrAppend(&identity, "\n", header.name, "\n", header.text);
      }
      if (seen_.insert(std::move(identity)).second) {
        jobs_.push_back({entry.name, std::string(target), *std::move(source)});
        if (!plan::IsCompanion(kernel.family)) ++main_kernels_;
      }
    }
  }

  size_t size() const { return jobs_.size(); }
  // Without those that work for another one.
  size_t main_kernels() const { return main_kernels_; }

  // Compiles all, two at a time, and fails for each kernel that does not compile. `available` is
  // false on a machine without NVRTC.
  void Compile(bool* available) {
    const compile::NvrtcCompiler compiler({});
    *available = compiler.Identity().ok();
    if (!*available) return;
    std::atomic<size_t> next = 0;
    std::mutex mutex;
    std::vector<std::string> failures;
    const auto work = [&] {
      for (size_t n = next++; n < jobs_.size(); n = next++) {
        const Job& job = jobs_[n];
        const absl::StatusOr<artifact::KernelBinary> binary =
            compiler.Compile({.source = job.source,
                              .bundle = emit::EmbeddedTemplates().files,
                              .target = job.target,
                              .options = compile::CompileOptions(job.target, false)});
        std::string failure;
        if (!binary.ok()) {
          failure = binary.status().ToString();
        } else if (binary->cubin.empty() || binary->entry_name != job.source.entry_name) {
          failure = absl::StrCat("no cubin with ", job.source.entry_name);
        }
        if (failure.empty()) continue;
        std::lock_guard<std::mutex> lock(mutex);
        failures.push_back(absl::StrCat(job.entry, " for ", job.target, ": ", failure));
      }
    };
    std::thread second(work);
    work();
    second.join();
    for (const std::string& failure : failures) ADD_FAILURE() << failure;
  }

 private:
  std::vector<Job> jobs_;
  std::set<std::string> seen_;
  size_t main_kernels_ = 0;
};

TEST(ZooTest, EveryEntryIsASpecOrSaysWhyNot) {
  std::set<std::string> names, out;
  for (const ZooEntry& entry : Zoo()) {
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name << " is there twice";
    if (!entry.out.empty()) {
      out.insert(entry.name);
      EXPECT_EQ(entry.out.find('\n'), std::string::npos);
      continue;
    }
    const absl::Status status = spec::Validate(entry.spec);
    EXPECT_TRUE(status.ok()) << entry.name << ": " << status;
  }
  EXPECT_EQ(names.size(), 201);
  EXPECT_THAT(out, ::testing::ElementsAre("af2-ipa-12heads", "unimol-64heads-d8"));
}

TEST(ZooTest, EveryFeatureOfTheListReachesItsSpec) {
  // How many entries use each; a converter that drops one shows here.
  std::map<std::string, int> uses;
  for (const ZooEntry& entry : Zoo()) {
    const AttentionSpec& spec = entry.spec;
    if (!entry.out.empty()) continue;
    uses["top_left"] += spec.align == MaskAlign::kTopLeft;
    uses["window"] += spec.window_left >= 0;
    uses["softcap"] += spec.softcap > 0;
    uses["scale"] += spec.scale.has_value();
    uses["alibi"] += spec.alibi;
    uses["bias"] += !spec.bias.empty();
    uses["two_terms"] += spec.bias.size() == 2;
    uses["sinks"] += spec.sinks;
    uses["lse"] += spec.lse;
    uses["varlen"] += spec.varlen;
    uses["paged"] += spec.page_size > 0;
    uses["block_mask"] += spec.block_mask_q > 0;
    uses["score_snippet"] += !spec.score_snippet.empty();
    uses["mask_snippet"] += !spec.mask_snippet.empty();
    uses["stored_8_bit"] += spec.kv_type.has_value();
    uses["left_padding"] += spec.left_padding;
    uses["slots"] += spec.cache_batch_idx;
    uses["gqa"] += spec.heads_q != spec.heads_kv;
    uses["fp32"] += spec.type == ElementType::kFp32;
    uses["unequal_dims"] += spec.dim_qk != spec.dim_v;
  }
  const std::map<std::string, int> expected = {
      {"top_left", 5},      {"window", 8},       {"softcap", 6},      {"scale", 20},
      {"alibi", 5},         {"lse", 34},         {"bias", 42},        {"two_terms", 9},
      {"sinks", 1},         {"varlen", 19},      {"paged", 4},        {"block_mask", 3},
      {"score_snippet", 9}, {"mask_snippet", 9}, {"gqa", 53},         {"fp32", 14},
      {"unequal_dims", 18}, {"stored_8_bit", 2}, {"left_padding", 1}, {"slots", 1},
  };
  EXPECT_EQ(uses, expected);
}

TEST(ZooTest, EveryEntrySurvivesItsTextForm) {
  for (const ZooEntry& entry : Zoo()) {
    if (!entry.out.empty()) continue;
    const AttentionSpec spec = spec::Canonicalise(entry.spec);
    EXPECT_TRUE(spec::Canonicalise(spec) == spec) << entry.name;
    const std::string text = spec::ToText(spec);
    const absl::StatusOr<AttentionSpec> read =
        spec::ParseSpec(text, [&spec](std::string_view path) -> absl::StatusOr<std::string> {
          return path == "score_snippet" ? spec.score_snippet.text : spec.mask_snippet.text;
        });
    ASSERT_TRUE(read.ok()) << text << ": " << read.status();
    EXPECT_TRUE(*read == spec) << text;
  }
}

TEST(ZooTest, EveryEntryHasAPlanOnEveryArchitecture) {
  for (const arch::ArchTraits& row : arch::AllArchTraits()) {
    for (const ZooEntry& entry : Zoo()) {
      if (!entry.out.empty()) continue;
      const absl::StatusOr<plan::Decision> decision =
          PlanFor(spec::Canonicalise(entry.spec), row.target);
      if (entry.name == kTooLarge) {
        EXPECT_EQ(decision.status().code(), absl::StatusCode::kUnimplemented);
        EXPECT_THAT(std::string(decision.status().message()),
                    HasSubstr("dim_v = 8192: must be at most 4096"));
      } else {
        EXPECT_TRUE(decision.ok()) << entry.name << ": " << decision.status();
      }
    }
  }
}

TEST(ZooTest, EverySourceIsEmitted) {
  Jobs jobs;
  for (const char* target : kTargets) {
    for (const ZooEntry& entry : Zoo()) {
      if (entry.out.empty() && entry.name != kTooLarge) jobs.Add(entry, target);
    }
  }
  // Fewer kernels than entries on three targets: what may vary at run time is no part of a kernel.
  EXPECT_GT(jobs.main_kernels(), 150);
  EXPECT_LT(jobs.main_kernels(), std::size(kTargets) * Zoo().size());
}

TEST(ZooTest, ASampleCompiles) {
  const std::set<std::string> sample = {
      "llama3-8b-prefill-8k",             // the ordinary shape
      "llama3-8b-decode-b32-paged16",     // varlen, paged, one query
      "deepseek-v3-mla-decode-576-512",   // widest dims
      "gemma2-9b-local-softcap-window",   // softcap and window
      "mimo-v2-flash-swa-192-128-sinks",  // sinks, unequal dims
      "jina-bert-v2-alibi-bidirectional",
      "modernbert-base-local-varlen",  // packed
      "swin-t-stage1-win7-shifted",    // two bias terms, one by batch % 64
      "swinir-light-d10-win8",         // fp32, dim 10
      "moirai-binary-bias",            // both snippets
      "phi3-small-blocksparse",        // block mask
      "af2-triangle-end-crop256-train",
  };
  Jobs jobs;
  size_t found = 0;
  for (const ZooEntry& entry : Zoo()) {
    if (!sample.contains(entry.name)) continue;
    ++found;
    for (const char* target : kTargets) jobs.Add(entry, target);
  }
  EXPECT_EQ(found, sample.size());
  bool available = false;
  jobs.Compile(&available);
  if (!available) GTEST_SKIP() << "no NVRTC on this machine";
}

// Run by the ctest entry zoo_all (label slow).
TEST(ZooWholeListTest, EveryEntryCompiles) {
  Jobs jobs;
  for (const char* target : kTargets) {
    for (const ZooEntry& entry : Zoo()) {
      if (entry.out.empty() && entry.name != kTooLarge) jobs.Add(entry, target);
    }
  }
  bool available = false;
  jobs.Compile(&available);
  if (!available) GTEST_SKIP() << "no NVRTC on this machine";
  std::cout << jobs.size() << " kernels compiled\n";
}

}  // namespace
}  // namespace tilewright
