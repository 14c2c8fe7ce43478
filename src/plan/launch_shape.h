// What a call of a plan comes to: how many parts its keys are cut into, the scratch memory it
// needs, and the grid and block of each kernel. Pure arithmetic on the sizes of the call.
#ifndef TILEWRIGHT_PLAN_LAUNCH_SHAPE_H_
#define TILEWRIGHT_PLAN_LAUNCH_SHAPE_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "plan/kernel_plan.h"
#include "tilewright/attention.h"

namespace tilewright::plan {

// What lies in AttentionArgs::workspace. A plan uses some of these regions, in this order.
enum class Region {
  kPartialO,    // fp32 [parts][batch][heads_q][seqlen_q][dim_v]; packed: [parts][heads_q][total_q]
                // [dim_v]. attn_decode: [slots][block_m][dim_v], see policy/decode_work.cuh
  kPartialLse,  // fp32, the same without dim_v
  kRowStats,    // abi::RowStats [batch][heads_q][seqlen_q]; packed: [heads_q][total_q]
  kDqSums,      // fp32, tiles of block_m rows: kernel_templates/mma/dq_sums.cuh
  kDqTurns,     // int32, deterministic one a tile of kDqSums; and one more, which blocks draw from
};
inline constexpr int kNumRegions = 5;

struct CallPlan {
  // Of the keys of each tile of rows. attn_decode: blocks that share all keys, or 1 where each
  // takes whole items.
  int64_t parts = 1;
  int64_t lines = 1;  // attn_decode: of heads, see policy/decode_work.cuh; divides parts
  int64_t workspace_bytes = 0;
  int64_t dq_tiles_of_head = 0;                   // see DqTilesOfHead
  std::array<int64_t, kNumRegions> offsets = {};  // bytes from the start of the workspace

  int64_t offset(Region region) const { return offsets[static_cast<size_t>(region)]; }
};

// `plan` as a whole, not one of its kernels. Only the sizes of `args` are looked at, so that it is
// the same for workspace_bytes as for the call.
CallPlan PlanCall(const KernelPlan& plan, const AttentionSpec& spec, const AttentionArgs& args);

// Tiles of kDqSums of one head of one batch, or of one head of all packed sequences, for tiles of
// `block_m` rows.
int64_t DqTilesOfHead(int block_m, const AttentionSpec& spec, const AttentionArgs& args);
// Floats of one such tile: rows of whole fragments of 8 columns.
int64_t DqSumsOfTile(int block_m, int64_t dim_qk);

// Blocks that have a share of the keys of attn_decode_sm90 together, 64 rows each where warpgroups
// share columns of O. A cluster has one share or several.
int BlocksOfShare(const KernelPlan& plan);

struct LaunchShape {
  uint32_t grid = 0;   // blocks, linear in x; 0: nothing to launch
  uint32_t block = 0;  // threads
  uint32_t smem_bytes = 0;
  bool overlaps =
      false;  // may start before the kernel ahead of it has ended, for whose end it waits
};

// Tiles beyond 2^31 - 1 are walked by the blocks in a grid-stride loop.
LaunchShape ComputeLaunchShape(const KernelPlan& kernel, const AttentionSpec& spec,
                               const AttentionArgs& args, const CallPlan& call = {});

}  // namespace tilewright::plan

#endif  // TILEWRIGHT_PLAN_LAUNCH_SHAPE_H_
