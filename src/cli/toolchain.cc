#include "cli/toolchain.h"

#include <utility>

#include "base/keep_forever.h"
#include "base/status_macros.h"

namespace tilewright::cli {

Toolchain::Toolchain(RuntimeOptions options)
    : options_(std::move(options)), logger_(options_.log_level, options_.log_sink) {}

Toolchain::~Toolchain() {
  if (builder_ != nullptr && !builder_->Shutdown()) KeepForever(std::move(store_.store));
}

absl::StatusOr<std::unique_ptr<Toolchain>> Toolchain::Open() {
  TILEWRIGHT_ASSIGN_OR_RETURN(RuntimeOptions options, RuntimeOptions::FromEnvironment());
  std::unique_ptr<Toolchain> tools(new Toolchain(std::move(options)));
  const RuntimeOptions& chosen = tools->options_;
  tools->bundle_ = &emit::EmbeddedTemplates();
  if (!chosen.template_dir.empty()) {
    TILEWRIGHT_ASSIGN_OR_RETURN(tools->own_bundle_, emit::ReadTemplates(chosen.template_dir));
    tools->bundle_ = &tools->own_bundle_;
  }
  cache::StoreOptions store;
  store.directory = chosen.cache_dir;
  store.packs = chosen.cache_packs;
  store.pack_sha256 = chosen.pack_sha256;
  store.read_only = chosen.cache_read_only;
  store.in_memory = chosen.cache_in_memory;
  store.max_bytes = chosen.cache_max_bytes;
  store.group_shared = chosen.cache_group_shared;
  tools->store_ = cache::OpenStore(store, tools->logger_);
  tools->compiler_ =
      std::make_unique<compile::NvrtcCompiler>(compile::NvrtcCompiler::Options{chosen.nvrtc_path});
  build::BuilderOptions builder;
  builder.lineinfo = chosen.lineinfo;
  builder.explain_misses = true;
  builder.frozen = chosen.tune_policy == TunePolicy::kFrozen;
  builder.lock_timeout_ms = chosen.lock_timeout_ms;
  builder.pool = {.threads = chosen.compile_threads,
                  .timeout_ms = chosen.compile_timeout_ms,
                  .isolate = chosen.isolate_compiler,
                  .helper = chosen.compiler_helper};
  tools->builder_ = std::make_unique<build::KernelBuilder>(
      tools->bundle_, tools->store_.store.get(), tools->compiler_.get(), &tools->logger_, builder);
  tools->records_ = OpenTuningDb(chosen, &tools->logger_);
  tools->code_ = std::make_unique<tune::CodeDigests>(tools->bundle_);
  return tools;
}

absl::StatusOr<plan::Decision> Toolchain::Plan(const AttentionSpec& spec, const std::string& target,
                                               tune::Match* match) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const arch::ArchTraits traits, arch::FindArchTraits(target));
  TILEWRIGHT_ASSIGN_OR_RETURN(const arch::BoardProfile board,
                              arch::DefaultBoardProfile(traits.target));
  TILEWRIGHT_ASSIGN_OR_RETURN(plan::Decision decision, PlanFor(spec, traits, board, options_));
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::optional<plan::Family> family,
                              plan::ParseFamily(options_.family));
  const tune::Match found = FindRecord(
      *records_, options_, *code_, spec,
      tune::MakeEnvironment(board, traits.target, /*driver_version=*/0),
      plan::Candidates({spec, traits, board, options_.allow_fallback, family}, decision));
  if (found.plan.has_value()) {
    decision.TakeMeasured(*found.plan, found.ToText());
  }
  if (match != nullptr) *match = found;
  return decision;
}

absl::StatusOr<std::vector<plan::Decision>> Toolchain::Candidates(const AttentionSpec& spec,
                                                                  const std::string& target,
                                                                  int most) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const arch::ArchTraits traits, arch::FindArchTraits(target));
  TILEWRIGHT_ASSIGN_OR_RETURN(const arch::BoardProfile board,
                              arch::DefaultBoardProfile(traits.target));
  TILEWRIGHT_ASSIGN_OR_RETURN(const plan::Decision decision,
                              PlanFor(spec, traits, board, options_));
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::optional<plan::Family> family,
                              plan::ParseFamily(options_.family));
  const plan::PlanRequest request = {spec, traits, board, options_.allow_fallback, family};
  std::vector<plan::KernelPlan> plans = plan::Candidates(request, decision);
  if (most > 0 && plans.size() > static_cast<size_t>(most)) plans.resize(most);
  if (auto reference = plan::ReferenceOf(request, decision)) {
    plans.push_back(*std::move(reference));
  }
  std::vector<plan::Decision> decisions;
  for (plan::KernelPlan& plan : plans) {
    decisions.push_back(decision);
    decisions.back().plan = std::move(plan);
  }
  return decisions;
}

std::unique_ptr<build::KernelBuilder> Toolchain::LookupBuilder() {
  build::BuilderOptions frozen;
  frozen.lineinfo = options_.lineinfo;
  frozen.frozen = true;
  frozen.add_to_totals = false;
  frozen.lock_timeout_ms = options_.lock_timeout_ms;
  return std::make_unique<build::KernelBuilder>(bundle_, store_.store.get(), compiler_.get(),
                                                &logger_, frozen);
}

absl::StatusOr<plan::Decision> PlanFor(const AttentionSpec& spec, const arch::ArchTraits& traits,
                                       const arch::BoardProfile& board,
                                       const RuntimeOptions& options) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::optional<plan::Family> family,
                              plan::ParseFamily(options.family));
  return plan::Best({spec, traits, board, options.allow_fallback, family});
}

absl::StatusOr<plan::Decision> PlanForTarget(const AttentionSpec& spec, const std::string& target,
                                             const RuntimeOptions& options) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const arch::ArchTraits traits, arch::FindArchTraits(target));
  TILEWRIGHT_ASSIGN_OR_RETURN(const arch::BoardProfile board,
                              arch::DefaultBoardProfile(traits.target));
  return PlanFor(spec, traits, board, options);
}

}  // namespace tilewright::cli
