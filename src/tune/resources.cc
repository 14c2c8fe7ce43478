#include "tune/resources.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace tilewright::tune {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kWarpLanes = 32;
// ptxas gives out registers in steps of 8 a thread.
constexpr int kRegisterStep = 8;

// Notes of ptxas that change nothing: a wait (C7517) or an arrive (C7519) was put in for us.
bool IsHarmless(absl::string_view code) { return code == "C7517" || code == "C7519"; }

}  // namespace

std::string WhyNoBlockFits(const plan::KernelPlan& plan, const arch::ArchTraits& traits) {
  if (plan.threads() < 1 || plan.threads() > kMaxThreads) {
    return absl::StrCat(plan.threads(), " threads: a block has 1 to ", kMaxThreads);
  }
  if (plan.warps > traits.max_warps_per_sm) {
    return absl::StrCat(plan.warps, " warps: an SM holds ", traits.max_warps_per_sm);
  }
  if (plan.smem_bytes > traits.smem_per_block_optin) {
    return absl::StrCat(plan.smem_bytes, " bytes of shared memory: a block has at most ",
                        traits.smem_per_block_optin);
  }
  return "";
}

std::string WhyRejected(const KernelFacts& facts, const plan::KernelPlan& plan,
                        const arch::ArchTraits& traits) {
  if (facts.spill_bytes > 0) {
    return absl::StrCat("spills ", facts.spill_bytes, " bytes a thread to local memory");
  }
  for (const absl::string_view line : absl::StrSplit(facts.log, '\n')) {
    for (size_t at = line.find("C75"); at != absl::string_view::npos;
         at = line.find("C75", at + 1)) {
      const absl::string_view code = line.substr(at, 5);
      if (code.size() == 5 && !IsHarmless(code)) {
        return absl::StrCat("ptxas notes ", code, ": ", line.substr(0, 160));
      }
    }
  }
  const int64_t registers =
      int64_t{(facts.registers + kRegisterStep - 1) / kRegisterStep * kRegisterStep} * plan.warps *
      kWarpLanes;
  if (registers > traits.regs_per_sm) {
    return absl::StrCat(registers, " registers a block: an SM has ", traits.regs_per_sm);
  }
  return "";
}

}  // namespace tilewright::tune
