// Chooses a plan: arithmetic on the spec, the architecture's row and the board's numbers; no CUDA,
// no measuring.
#ifndef TILEWRIGHT_PLAN_PLANNER_H_
#define TILEWRIGHT_PLAN_PLANNER_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "arch/arch_traits.h"
#include "arch/board_profile.h"
#include "plan/kernel_plan.h"
#include "tilewright/attention.h"

namespace tilewright::plan {

struct PlanRequest {
  const AttentionSpec& spec;  // canonical
  const arch::ArchTraits& traits;
  const arch::BoardProfile& board;
  bool allow_fallback = true;
  std::optional<Family> family =
      std::nullopt;  // ask this family only, whatever the others could do
};

// A family that was asked and cannot, or candidates it dropped, with the reason in words.
struct Refusal {
  Family family;
  std::string reason;
};

struct Decision {
  KernelPlan plan;  // candidates[0], unless a measurement chose another one of them
  std::vector<KernelPlan> candidates;  // feasible ones of the family, best first
  std::string tuned;                   // which measurement chose the plan; empty: none did
  std::vector<Refusal> refusals;
  std::string why;        // one sentence
  bool fallback = false;  // the simple family, because no faster one could

  // Takes the plan that a measurement chose, `by` saying which. `why` says so where it is another
  // one than the model's.
  void TakeMeasured(KernelPlan measured, std::string by);
};

// The plan to run. Unimplemented names why no family serves the spec, and the nearest that one
// would.
absl::StatusOr<Decision> Best(const PlanRequest& request);

// All that may be measured for a spec, the decision's plan (of Best(request)) first: its family's
// candidates, and after every two of them one of another family that serves the spec and is not
// slower by nature. So the first few hold some of each.
std::vector<KernelPlan> Candidates(const PlanRequest& request, const Decision& decision);

// A plan whose kernel compiles in about half the time of the decision's, or less, to serve calls
// until that one is there. It needs no workspace. None where compiling is not what takes long.
std::optional<KernelPlan> StarterOf(const PlanRequest& request, const Decision& decision);

// The plan of the simple family, the definition in code, that results of these candidates are
// compared with. None where it does not serve the spec, or is the family itself.
std::optional<KernelPlan> ReferenceOf(const PlanRequest& request, const Decision& decision);

}  // namespace tilewright::plan

#endif  // TILEWRIGHT_PLAN_PLANNER_H_
