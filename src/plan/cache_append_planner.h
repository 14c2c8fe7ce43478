// cache_append: how new tokens are written into a cache.
#ifndef TILEWRIGHT_PLAN_CACHE_APPEND_PLANNER_H_
#define TILEWRIGHT_PLAN_CACHE_APPEND_PLANNER_H_

#include <string>

#include "absl/status/statusor.h"
#include "plan/kernel_plan.h"
#include "plan/launch_shape.h"
#include "tilewright/cache_append.h"

namespace tilewright::plan {

// block_m is the tokens of a tile. `spec` is valid. ResourceExhausted when the sines of one token
// do not fit.
absl::StatusOr<KernelPlan> PlanCacheAppend(const CacheAppendSpec& spec, const std::string& target);

// sizeof(SharedStorage<Config>) of kernel_templates/family/cache_append.cuh.
int64_t CacheAppendSmemBytes(const CacheAppendSpec& spec, int tokens);

LaunchShape CacheAppendLaunch(const KernelPlan& plan, const CacheAppendArgs& args);

}  // namespace tilewright::plan

#endif  // TILEWRIGHT_PLAN_CACHE_APPEND_PLANNER_H_
