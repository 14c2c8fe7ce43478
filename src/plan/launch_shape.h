// Grid and block of a launch, from the plan and the sizes of a call. Pure arithmetic.
#ifndef TILEWRIGHT_PLAN_LAUNCH_SHAPE_H_
#define TILEWRIGHT_PLAN_LAUNCH_SHAPE_H_

#include <cstdint>

#include "plan/kernel_plan.h"
#include "tilewright/attention.h"

namespace tilewright::plan {

struct LaunchShape {
  uint32_t grid = 0;   // blocks, linear in x; 0: nothing to launch
  uint32_t block = 0;  // threads
  uint32_t smem_bytes = 0;
};

// Tiles beyond 2^31 - 1 are walked by the blocks in a grid-stride loop.
LaunchShape ComputeLaunchShape(const KernelPlan& plan, const AttentionSpec& spec,
                               const AttentionArgs& args);

}  // namespace tilewright::plan

#endif  // TILEWRIGHT_PLAN_LAUNCH_SHAPE_H_
