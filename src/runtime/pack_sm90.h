// The arguments of a Hopper kernel beside those of PackArgs: tensor maps, and the order of tiles.
#ifndef TILEWRIGHT_RUNTIME_PACK_SM90_H_
#define TILEWRIGHT_RUNTIME_PACK_SM90_H_

#include <cstddef>

#include "absl/status/status.h"
#include "device/device.h"
#include "emit/param_layout.h"
#include "plan/kernel_plan.h"
#include "tilewright/attention.h"

namespace tilewright {

// Writes the slot kFwdSm90, kBwdSm90 or kDecodeSm90 of `layout` to `params`, and kBiasMap; nothing
// where there is none. `spec` and `args` as for PackArgs, which has been called. Unimplemented for
// lengths or tiles that 31 bits do not count. Allocates nothing.
absl::Status PackSm90(const device::DriverApi& api, const plan::KernelPlan& plan,
                      const AttentionSpec& spec, const emit::ParamLayout& layout,
                      const AttentionArgs& args, std::byte* params);

}  // namespace tilewright

#endif  // TILEWRIGHT_RUNTIME_PACK_SM90_H_
