// Everything between a spec and a stored kernel, set up from the environment: options, log,
// templates, store, compiler, builder. Needs neither a GPU nor NVRTC until something must compile.
#ifndef TILEWRIGHT_CLI_TOOLCHAIN_H_
#define TILEWRIGHT_CLI_TOOLCHAIN_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "arch/arch_traits.h"
#include "base/log.h"
#include "build/kernel_builder.h"
#include "cache/open_store.h"
#include "compile/nvrtc_compiler.h"
#include "emit/template_bundle.h"
#include "plan/planner.h"
#include "runtime/tuning.h"
#include "tilewright/options.h"

namespace tilewright::cli {

// The target that commands assume without --arch on a machine without a GPU.
inline constexpr char kDefaultTarget[] = "sm_90a";

class Toolchain {
 public:
  // InvalidArgument for an environment variable that does not parse; NotFound for an empty
  // TILEWRIGHT_TEMPLATE_DIR.
  static absl::StatusOr<std::unique_ptr<Toolchain>> Open();
  ~Toolchain();

  const RuntimeOptions& options() const { return options_; }
  const Logger& logger() const { return logger_; }
  const emit::TemplateBundle& bundle() const { return *bundle_; }
  cache::ArtifactStore& store() { return *store_.store; }
  const cache::StoreLocation& location() const { return store_.location; }
  // The user's store on disk; nullptr when there is none.
  cache::DiskStore* disk() { return store_.disk; }
  const std::vector<cache::PackState>& packs() const { return store_.packs; }
  const compile::NvrtcCompiler& compiler() const { return *compiler_; }
  build::KernelBuilder& builder() { return *builder_; }

  // The plan that a runtime here gives `spec` on a target with the board that is assumed for it,
  // tuning records considered; `match` says which one.
  absl::StatusOr<plan::Decision> Plan(const AttentionSpec& spec, const std::string& target,
                                      tune::Match* match = nullptr);

  // What a tuning of `spec` there would compile: the default first, at most `most` candidates
  // (0: all), and what their results are compared with.
  absl::StatusOr<std::vector<plan::Decision>> Candidates(const AttentionSpec& spec,
                                                         const std::string& target, int most);

  // A builder that never compiles: what is stored, or FailedPrecondition.
  std::unique_ptr<build::KernelBuilder> LookupBuilder();

 private:
  explicit Toolchain(RuntimeOptions options);

  RuntimeOptions options_;
  Logger logger_;
  emit::TemplateBundle own_bundle_;  // of TILEWRIGHT_TEMPLATE_DIR
  const emit::TemplateBundle* bundle_ = nullptr;
  cache::OpenedStore store_;
  std::unique_ptr<compile::NvrtcCompiler> compiler_;
  std::unique_ptr<build::KernelBuilder> builder_;
  std::unique_ptr<tune::TuningDb> records_;
  std::unique_ptr<tune::CodeDigests> code_;
};

// The plan that the cost model makes for `spec` with these options.
absl::StatusOr<plan::Decision> PlanFor(const AttentionSpec& spec, const arch::ArchTraits& traits,
                                       const arch::BoardProfile& board,
                                       const RuntimeOptions& options);

// The plan for `spec` on a target with the board that is assumed for it.
absl::StatusOr<plan::Decision> PlanForTarget(const AttentionSpec& spec, const std::string& target,
                                             const RuntimeOptions& options);

}  // namespace tilewright::cli

#endif  // TILEWRIGHT_CLI_TOOLCHAIN_H_
