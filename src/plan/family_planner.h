// What the planner asks of a kernel family. A family is one row of the table in planner.cc.
#ifndef TILEWRIGHT_PLAN_FAMILY_PLANNER_H_
#define TILEWRIGHT_PLAN_FAMILY_PLANNER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plan/kernel_plan.h"
#include "plan/planner.h"
#include "spec/validate.h"
#include "tilewright/attention.h"

namespace tilewright::plan {

// A family's answer to a request: plans, or a refusal.
struct FamilyAnswer {
  std::vector<KernelPlan> plans;         // feasible ones, best first
  std::string why;                       // what made the first one best
  std::string refusal;                   // why there is no plan, or why some were dropped; in words
  std::optional<AttentionSpec> nearest;  // with no plan: a spec near the request that has one
};

using FamilyPlanner = FamilyAnswer (*)(const PlanRequest& request);

// One family in the order of asking. `last_resort`: slower than another family wherever that one
// serves, so it comes last and is used only with allow_fallback.
struct FamilyRow {
  Family family;
  bool last_resort;
  FamilyPlanner plan;
  Operation operation = Operation::kForward;  // asked about specs of this one only
};

// Best() over a table of families; Best itself uses the one in planner.cc.
absl::StatusOr<Decision> BestOf(absl::Span<const FamilyRow> families, const PlanRequest& request);

// For n >= 0 and positive divisors; no sum that could overflow.
inline int64_t CeilDiv(int64_t n, int64_t divisor) {
  return n / divisor + (n % divisor != 0 ? 1 : 0);
}
inline int64_t RoundUp(int64_t n, int64_t multiple) { return CeilDiv(n, multiple) * multiple; }

// Families with tensor maps count rows, and tiles of 64 and more of them, with 31 bits. What is
// left above is for tiles that begin behind the last row.
inline constexpr int64_t kMostCountedRows = (int64_t{1} << 31) - 4096;
bool CountsWith31Bits(const AttentionSpec& spec);
// The refusal of a spec that does not, and the nearest one that does.
std::string RefuseBeyond31Bits(const AttentionSpec& spec, AttentionSpec& nearest);

inline bool IsHalf(ElementType type) {
  return type == ElementType::kFp16 || type == ElementType::kBf16;
}
// Whether Q, K, V and O are all fp16, or all bf16.
inline bool HasOneHalfType(const AttentionSpec& spec) {
  return IsHalf(spec.type) && spec::KvType(spec) == spec.type && spec::OutType(spec) == spec.type;
}

// Whether a tensor's rows start on multiples of 16 bytes, as bulk copies of 16-bit elements want.
inline bool StridesFitBulkCopies(const Strides& strides) {
  return (strides.batch | strides.seq | strides.head) % 8 == 0;
}

// Bytes of dynamic shared memory of attn_fwd_simple: sizeof(SharedStorage<Config>) of
// kernel_templates/family/attn_fwd_simple.cuh, which the emitted source asserts. Q is whole, as
// fp32 [block_m][dim_qk rounded up to 4]; K and then V share one panel of fp32
// [32 keys][panel + 4], the 4 shifting neighbouring keys to other banks.
int64_t FwdSimpleSmemBytes(int block_m, int64_t dim_qk, int panel);

FamilyAnswer PlanFwdSimple(const PlanRequest& request);

// Likewise of attn_fwd_sm80: Core<Config>::Shared of kernel_templates/mma/*_core.cuh. Reads the
// plan's tile sizes, stages, column_warps and tf32_terms.
int64_t FwdSm80SmemBytes(const KernelPlan& plan, int64_t dim_qk, int64_t dim_v);

FamilyAnswer PlanFwdSm80(const PlanRequest& request);

// Whether rows of Q, K or V, of 16-bit elements, are no multiples of 16 bytes, by the typical
// strides.
bool HasNarrowRows(const AttentionSpec& spec);

// Likewise of attn_fwd_small: two tiles of Q, `stages` of K and V, the kept terms and the steps.
int64_t FwdSmallSmemBytes(const KernelPlan& plan, int64_t dim_qk, int64_t dim_v);

FamilyAnswer PlanFwdSmall(const PlanRequest& request);

// attn_decode does not cut up to so many keys: they are not worth a second kernel.
inline constexpr int64_t kDecodeFewKeys = 512;
// Bytes of K and V from which on a block's share of them is cut, so that multiprocessors that read
// faster than others take more.
inline constexpr int64_t kDecodeLongShare = int64_t{16} << 20;
// Whether a spec has so many sequences of so few keys that the families for short queries are
// quicker than attn_decode, whose blocks do more for a sequence than read it. False for what those
// families do not serve, and where a plan must not depend on the batch.
bool HasManyFewKeys(const PlanRequest& request);

// Of attn_decode: the rings of all teams and what lies beside them.
int64_t DecodeSmemBytes(const KernelPlan& plan, const AttentionSpec& spec);

FamilyAnswer PlanDecode(const PlanRequest& request);

// Of attn_decode_wide: Q, the ring, the weights and what lies beside them.
int64_t DecodeWideSmemBytes(const KernelPlan& plan, const AttentionSpec& spec);

FamilyAnswer PlanDecodeWide(const PlanRequest& request);

FamilyAnswer PlanDecodeSm90(const PlanRequest& request);

// The kernel that merges the parts of a split plan, for KernelPlan::after: `warps_per_row` warps
// (1, 2 or 4) share the parts of a row, more of them where there are few rows and many parts.
KernelPlan PlanCombine(const std::string& target, int64_t dim_v, int warps_per_row);
int64_t CombineSmemBytes(int warps, int warps_per_row, int64_t dim_v);

// Lets the keys be cut into parts where the spec's tiles of rows fill less than half of the board,
// `resident` blocks on each multiprocessor, and there are keys to cut. A sequence's parts depend on
// the rest of the batch, so batch_invariant has none.
void OfferParts(const PlanRequest& request, int64_t resident, KernelPlan& plan);

// Shared memory of attn_fwd_sm90, for the tiles, stages and flags of `plan`: panels of 64 columns
// of Q, K, V and, with own_o, O, the barriers, rounded up to the 1024 bytes of a swizzle pattern.
int64_t FwdSm90SmemBytes(const KernelPlan& plan, int64_t dim_qk, int64_t dim_v,
                         int64_t element_bytes = 2);

// By how many columns rows of `columns` 16-bit elements, side by side, begin at most behind a
// multiple of 16 bytes: MostShift of kernel_templates/core/math.cuh.
inline int64_t MostShift(int64_t columns) {
  return columns % 8 == 0 ? 0 : 8 - (columns & -columns);
}

// Columns that rows of Q and K, and of V and O, have in the shared memory of attn_fwd_sm90. Where
// they are no multiples of 16 bytes (`narrow`) their neighbours' come with them.
struct StoredDims {
  int64_t qk;
  int64_t v;
};
inline StoredDims StoredDimsOf(bool narrow, int64_t dim_qk, int64_t dim_v) {
  if (!narrow) return {dim_qk, dim_v};
  return {RoundUp(dim_qk + MostShift(dim_qk), 16), RoundUp(dim_v + MostShift(dim_v), 8)};
}

FamilyAnswer PlanFwdSm90(const PlanRequest& request);

// attn_bwd_simple, with attn_bwd_prep before it.
int64_t BwdSimpleSmemBytes(int block_m, int64_t dim_qk, int64_t dim_v, int panel);
// Columns of dQ, dK or dV that a block of it sums at most: kMaxColumns of the kernel.
inline constexpr int64_t kBwdSimpleColumns = 256;
FamilyAnswer PlanBwdSimple(const PlanRequest& request);

// The kernel for the gradients of biases, slopes and sinks, for KernelPlan::after.
KernelPlan PlanBwdTerms(const PlanRequest& request);
// The kernel that goes before every backward; `block_m`: rows of a tile of dQ's sums, 0 for none.
KernelPlan PlanBwdPrep(const std::string& target, int block_m);

// The kernel that goes after a family that adds dQ up in memory, in tiles of `block_m` rows.
KernelPlan PlanBwdFinish(const std::string& target, int block_m);

// What neither attn_bwd_sm80 nor attn_bwd_sm90 serves, in words, with `nearest` changed to what
// they do; empty when there is nothing of that kind.
std::string RefuseBackwardOnTensorCores(const AttentionSpec& spec, AttentionSpec& nearest);

// attn_bwd_sm90, with attn_bwd_prep before it and attn_bwd_finish after it.
int64_t BwdSm90SmemBytes(int block_m, int block_n, int stages, int64_t dim_qk, int64_t dim_v);
// Steps of 16 columns of K and of V, as factors of S and dP, that a thread keeps in registers, for
// shared memory is what limits the kernel: 4 registers a step. Of V all or none.
struct BwdKeptSteps {
  int k = 0;
  int v = 0;
};
BwdKeptSteps BwdSm90KeptSteps(const KernelPlan& plan, int64_t dim_qk, int64_t dim_v);
// Columns of dQ that a warpgroup makes of a step; with one panel of rows also those from the begin
// of K's first panel to that of its second one.
int BwdSm90DqColumns(const KernelPlan& plan, int64_t dim_qk);
FamilyAnswer PlanBwdSm90(const PlanRequest& request);

// attn_bwd_sm80, with attn_bwd_prep before it and attn_bwd_finish after it.
int64_t BwdSm80SmemBytes(int block_m, int block_n, int stages, int64_t dim_qk, int64_t dim_v);
FamilyAnswer PlanBwdSm80(const PlanRequest& request);

}  // namespace tilewright::plan

#endif  // TILEWRIGHT_PLAN_FAMILY_PLANNER_H_
