// How a spec is computed: the family and every number the family leaves open. A plan is a value;
// equal plans of equal specs emit equal source. It may take several kernels, launched one after the
// other on one stream.
#ifndef TILEWRIGHT_PLAN_KERNEL_PLAN_H_
#define TILEWRIGHT_PLAN_KERNEL_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tilewright::plan {

enum class Family {
  kDecodeSm90,
  kDecode,
  kDecodeWide,
  kFwdSmall,
  kFwdSm90,
  kFwdSm80,
  kFwdSimple,
  kCombine,
  kBwdSm90,
  kBwdSm80,
  kBwdSimple,
  kBwdPrep,
  kBwdFinish,
  kBwdTerms,     // attn_bwd_simple for the gradients of biases, slopes and sinks alone
  kCacheAppend,  // no attention: plan/cache_append_planner.h
};

// Families that only work for the kernel that a plan is about, before or after it.
bool IsCompanion(Family family);

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
  int rows_per_warp = 0;  // block_m = warps * rows_per_warp
  int panel = 0;          // attn_fwd_simple: columns of K or V in shared memory at a time
  int stages = 0;         // tiles of K and of V in shared memory; attn_fwd_sm80: 1 or 2
  bool peeled = false;    // attn_fwd_sm80: a loop of its own for tiles that need no mask
  // attn_fwd_sm80, _sm90, _small: rows typically no multiples of 16 bytes
  bool narrow_rows = false;
  int column_warps = 1;  // attn_fwd_sm80: warps that share rows, each with a part of O's columns;
                         // attn_fwd_sm90: warpgroups, all of `consumers` or 1
  int tf32_terms = 0;    // attn_fwd_sm80, fp32: products of TF32 for one of fp32, 1 or 3
  bool turing = false;   // attn_fwd_sm80: only instructions that sm_75 has
  // The keys of a tile may be cut into parts, which attn_combine merges; attn_combine: its parts
  // are such, and not those of a caller.
  bool split = false;
  // attn_decode: keys of a warp's step; block_n is that of all its teams. attn_fwd_small: keys that
  // a warp takes at a time, of block_n.
  int step = 0;
  // attn_fwd_small: bit n says that the sum kept from tile to tile has bias term n in it; for how
  // many keys there is room; whether it is one term of 16 bits and stays so, or else fp32.
  int kept_terms = 0;
  int kept_keys = 0;
  bool packed_terms = false;
  int staged_terms = 0;   // attn_fwd_sm90: first bias terms, that pass through shared memory
  int shared_stages = 0;  // attn_decode_wide: stages where V is part of K
  int chunk = 0;          // attn_decode: blocks of keys in each part; 0: shares that fill the board
  int tile_rows = 0;      // attn_combine after attn_decode: rows of its tiles
  int slots = 0;          // with split: blocks that run at a time on the board planned for
  // attn_fwd_sm90, attn_decode_sm90, attn_bwd_sm90: `warps` are those of a loading warpgroup and of
  // `consumers` computing ones, with 64 query rows each (or all the same 64, see column_warps), or
  // 64 keys. attn_decode_sm90 with 16 rows: one that loads and `column_warps` that compute.
  int consumers = 0;  // 1 to 4; backward 2; 0: no warpgroups
  int blocks = 0;     // that share a multiprocessor; 0: one
  // Blocks that load K and V for each other, 1 or 2; of attn_decode, that share items: 4; of
  // attn_decode_sm90 either or both (BlocksOfShare).
  int cluster = 0;
  // At most so many clusters, or blocks of attn_fwd_small, which walk the tiles; 0: one for each.
  int max_grid = 0;
  bool optimistic = false;      // no row maxima in tiles that need no mask
  bool ones = false;            // row sums by the tensor cores, from a panel of ones behind V
  bool ping_pong = false;       // warpgroups take turns in issuing products
  bool q_in_registers = false;  // rather than read from shared memory for every block of keys
  bool own_o = false;           // O has shared memory of its own; otherwise it lies over Q,
  bool over_v = false;          // or over the stages of V
  int key_warps = 0;            // warps (attn_decode_sm90: warpgroups) along a tile's keys
  int dq_row_warps = 0;         // attn_bwd_sm80: likewise along the rows of a tile of dQ
  int64_t smem_bytes = 0;       // dynamic shared memory of a block

  // The kernels of companion families, in order of launch; these have none of their own.
  std::vector<KernelPlan> before = {};
  std::vector<KernelPlan> after = {};

  int threads() const { return warps * 32; }
  // What runs, in order: before, this one, after; each without followers of its own.
  std::vector<KernelPlan> Kernels() const;
  // "attn_fwd_simple sm_90a m32n32 w4 r8 p128 smem=33280",
  // "attn_fwd_sm90 sm_90a m128n128 w12 r16 s2 c2 x1 g132 opt ones pp own_o smem=230400",
  // "attn_fwd_sm80 sm_90a m64n64 w4 r16 s2 split slots=264 smem=70656 +
  //  attn_combine sm_90a m4n0 w4 r1 smem=0" in one line
  std::string ToString() const;
  bool operator==(const KernelPlan&) const = default;
};

// The plan that ToString prints as `text`. InvalidArgument for any other text; whether the plan is
// feasible for a spec is not asked.
absl::StatusOr<KernelPlan> ParsePlan(std::string_view text);

}  // namespace tilewright::plan

#endif  // TILEWRIGHT_PLAN_KERNEL_PLAN_H_
