// What a candidate may use of the hardware: before it is compiled, and after.
#ifndef TILEWRIGHT_TUNE_RESOURCES_H_
#define TILEWRIGHT_TUNE_RESOURCES_H_

#include <string>

#include "arch/arch_traits.h"
#include "plan/kernel_plan.h"
#include "tune/workshop.h"

namespace tilewright::tune {

// Why no block of this plan can be resident on an SM, from its threads and shared memory alone;
// empty when one can. Exact: what it rejects does not launch.
std::string WhyNoBlockFits(const plan::KernelPlan& plan, const arch::ArchTraits& traits);

// Why a compiled candidate is not worth timing: registers in local memory, wgmma instructions that
// ptxas serialised (a C75xx line of its log), more registers than a block may have. Empty when it
// is.
std::string WhyRejected(const KernelFacts& facts, const plan::KernelPlan& plan,
                        const arch::ArchTraits& traits);

}  // namespace tilewright::tune

#endif  // TILEWRIGHT_TUNE_RESOURCES_H_
