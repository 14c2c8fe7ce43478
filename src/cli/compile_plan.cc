#include "cli/compile_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/spec_arguments.h"
#include "spec/canonical.h"
#include "tune/bucket.h"

namespace tilewright::cli {

absl::StatusOr<std::vector<PlannedKernel>> PlanKernels(Toolchain& tools, const AttentionSpec& spec,
                                                       const std::string& target, int64_t max_batch,
                                                       int64_t max_seqlen) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const arch::ArchTraits traits, arch::FindArchTraits(target));
  TILEWRIGHT_ASSIGN_OR_RETURN(const arch::BoardProfile board,
                              arch::DefaultBoardProfile(traits.target));
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::optional<plan::Family> family,
                              plan::ParseFamily(tools.options().family));
  // Emitting is the dear part: once for each plan.
  std::map<std::string, std::vector<std::string>> keys_of;  // by plan
  std::map<std::string, PlannedKernel> by_key;
  for (const AttentionSpec& one : tune::ReachableSpecs(spec, max_batch, max_seqlen)) {
    const plan::PlanRequest request = {one, traits, board, tools.options().allow_fallback, family};
    TILEWRIGHT_ASSIGN_OR_RETURN(const plan::Decision decision, plan::Best(request));
    for (const plan::KernelPlan& plan : plan::Candidates(request, decision)) {
      const bool is_default = plan == decision.plan;
      const auto [keys, unseen] = keys_of.try_emplace(plan.ToString());
      if (unseen) {
        TILEWRIGHT_ASSIGN_OR_RETURN(const std::vector<build::KernelRequest> requests,
                                    tools.builder().MakeRequests(one, plan));
        for (const build::KernelRequest& built : requests) {
          keys->second.push_back(built.key.ToHex());
          const auto [at, inserted] = by_key.try_emplace(keys->second.back());
          if (!inserted) continue;
          at->second.key = at->first;
          at->second.plan = built.plan.ToString();
          at->second.example = spec::ToText(one);
        }
      }
      for (const std::string& key : keys->second) {
        PlannedKernel& kernel = by_key[key];
        if (is_default && kernel.default_of++ == 0) kernel.example = spec::ToText(one);
      }
    }
  }
  std::vector<PlannedKernel> kernels;
  for (auto& [key, kernel] : by_key) kernels.push_back(std::move(kernel));
  std::stable_sort(kernels.begin(), kernels.end(), [](const auto& a, const auto& b) {
    return a.default_of != b.default_of ? a.default_of > b.default_of : a.plan < b.plan;
  });
  return kernels;
}

int ListPlannedKernels(Toolchain& tools, const std::vector<std::string>& specs,
                       const std::vector<std::string>& targets, int64_t max_batch,
                       int64_t max_seqlen, const Console& console) {
  constexpr char kCommand[] = "compile";
  Json all = Json::array();
  for (const std::string& text : specs) {
    const absl::StatusOr<AttentionSpec> spec = ReadSpec(text);
    if (!spec.ok()) return console.Fail(kCommand, spec.status(), kExitUsage);
    for (const std::string& target : targets) {
      const absl::StatusOr<std::vector<PlannedKernel>> kernels =
          PlanKernels(tools, *spec, target, max_batch, max_seqlen);
      if (!kernels.ok()) return console.Fail(kCommand, kernels.status());
      const auto defaults = std::count_if(kernels->begin(), kernels->end(),
                                          [](const auto& one) { return one.default_of > 0; });
      if (!console.json) {
        console.out << absl::StreamFormat(
            "%s for %s: %d kernels, %d of them without a measurement (batch up to %d, lengths up "
            "to %d)\n",
            spec::ToText(*spec), target, kernels->size(), defaults, max_batch, max_seqlen);
        for (const PlannedKernel& kernel : *kernels) {
          console.out << absl::StreamFormat("  %-64s default of %4d buckets, %s\n", kernel.plan,
                                            kernel.default_of, kernel.example);
        }
      }
      Json list = Json::array();
      for (const PlannedKernel& kernel : *kernels) {
        list.push_back({{"plan", kernel.plan},
                        {"key", kernel.key},
                        {"default_of", kernel.default_of},
                        {"example", kernel.example}});
      }
      all.push_back({{"spec", spec::ToText(*spec)},
                     {"target", target},
                     {"planned", kernels->size()},
                     {"defaults", defaults},
                     {"kernels", std::move(list)}});
    }
  }
  if (console.json) {
    console.Print({{"command", kCommand}, {"ok", true}, {"specs", std::move(all)}});
  }
  return kExitFine;
}

}  // namespace tilewright::cli
