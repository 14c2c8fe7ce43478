// cache_append: how new tokens are written into a cache.
#ifndef TILEWRIGHT_PLAN_CACHE_APPEND_PLANNER_H_
#define TILEWRIGHT_PLAN_CACHE_APPEND_PLANNER_H_

#include <string>

#include "absl/status/statusor.h"
#include "plan/kernel_plan.h"
#include "plan/launch_shape.h"
#include "plan/planner.h"
#include "tilewright/cache_append.h"

namespace tilewright::plan {

// block_m is the most tokens of a tile, slots the blocks that run at a time on a board of
// `num_sms`. `spec` is valid. ResourceExhausted when the sines of one token do not fit.
absl::StatusOr<KernelPlan> PlanCacheAppend(const CacheAppendSpec& spec, const std::string& target,
                                           int num_sms);

// The same with its reasons, as explain prints them.
absl::StatusOr<Decision> DecideCacheAppend(const CacheAppendSpec& spec, const std::string& target,
                                           int num_sms);

// sizeof(SharedStorage<Config>) of kernel_templates/family/cache_append.cuh.
int64_t CacheAppendSmemBytes(const CacheAppendSpec& spec, int tokens);

// Tokens of a tile in a call: so many that every block that may run has a tile.
int CacheAppendTileTokens(const KernelPlan& plan, const CacheAppendArgs& args);

LaunchShape CacheAppendLaunch(const KernelPlan& plan, const CacheAppendArgs& args);

}  // namespace tilewright::plan

#endif  // TILEWRIGHT_PLAN_CACHE_APPEND_PLANNER_H_
