// How a spec is computed: the family and every number the family leaves open. A plan is a value;
// equal plans of equal specs emit equal source.
#ifndef TILEWRIGHT_PLAN_KERNEL_PLAN_H_
#define TILEWRIGHT_PLAN_KERNEL_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tilewright::plan {

enum class Family { kFwdSm80, kFwdSimple };

// "attn_fwd_simple"
std::string_view FamilyName(Family family);
// The family of that name, or none for an empty one; InvalidArgument lists the known ones.
absl::StatusOr<std::optional<Family>> ParseFamily(std::string_view name);

struct KernelPlan {
  Family family = Family::kFwdSimple;
  std::string target;  // "sm_90a"
  int block_m = 0;     // query rows of a tile
  int block_n = 0;     // keys of a tile
  int warps = 0;
  int rows_per_warp = 0;   // block_m = warps * rows_per_warp
  int panel = 0;           // attn_fwd_simple: columns of K or V in shared memory at a time
  int stages = 0;          // attn_fwd_sm80: tiles of K and of V in shared memory, 1 or 2
  bool peeled = false;     // attn_fwd_sm80: a loop of its own for tiles that need no mask
  int64_t smem_bytes = 0;  // dynamic shared memory of a block

  int threads() const { return warps * 32; }
  // "attn_fwd_simple sm_90a m32n32 w4 r8 p128 smem=33280",
  // "attn_fwd_sm80 sm_90a m128n64 w4 r32 s2 peeled smem=104448"
  std::string ToString() const;
  bool operator==(const KernelPlan&) const = default;
};

// The plan that ToString prints as `text`. InvalidArgument for any other text; whether the plan is
// feasible for a spec is not asked.
absl::StatusOr<KernelPlan> ParsePlan(std::string_view text);

}  // namespace tilewright::plan

#endif  // TILEWRIGHT_PLAN_KERNEL_PLAN_H_
