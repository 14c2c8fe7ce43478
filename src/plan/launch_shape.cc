#include "plan/launch_shape.h"

#include <algorithm>

namespace tilewright::plan {

LaunchShape ComputeLaunchShape(const KernelPlan& plan, const AttentionSpec& spec,
                               const AttentionArgs& args) {
  LaunchShape shape;
  shape.block = static_cast<uint32_t>(plan.threads());
  shape.smem_bytes = static_cast<uint32_t>(plan.smem_bytes);
  const bool packed = spec.varlen && args.cu_seqlens_q != nullptr;
  if (args.batch <= 0 || spec.heads_q <= 0 || args.seqlen_q <= 0 || (packed && args.total_q <= 0)) {
    return shape;
  }
  static constexpr unsigned __int128 kMaxGrid = 0x7fffffff;
  const auto tiles_of = [](unsigned __int128 a, unsigned __int128 b) {
    return std::min(a * b, kMaxGrid);  // never more than 2^31 times 2^63
  };
  const int64_t row_tiles = (args.seqlen_q - 1) / plan.block_m + 1;
  shape.grid = static_cast<uint32_t>(tiles_of(tiles_of(spec.heads_q, args.batch), row_tiles));
  return shape;
}

}  // namespace tilewright::plan
