#include "cli/append_kernel.h"

#include "base/status_macros.h"
#include "emit/emit_cache_append.h"
#include "plan/cache_append_planner.h"
#include "spec/cache_append.h"

namespace tilewright::cli {

absl::StatusOr<AppendKernel> MakeAppendKernel(Toolchain& tools, const std::string& text,
                                              const std::string& target) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const CacheAppendSpec given, spec::ParseCacheAppend(text));
  const CacheAppendSpec spec = spec::Canonicalise(given);
  TILEWRIGHT_ASSIGN_OR_RETURN(const arch::ArchTraits traits, arch::FindArchTraits(target));
  TILEWRIGHT_ASSIGN_OR_RETURN(const arch::BoardProfile board,
                              arch::DefaultBoardProfile(traits.target));
  AppendKernel kernel;
  TILEWRIGHT_ASSIGN_OR_RETURN(
      kernel.decision, plan::DecideCacheAppend(spec, std::string(traits.target), board.num_sms));
  kernel.request = tools.builder().MakeRequest(spec::ToText(spec), kernel.decision.plan,
                                               emit::EmitCacheAppend(spec, kernel.decision.plan));
  return kernel;
}

}  // namespace tilewright::cli
