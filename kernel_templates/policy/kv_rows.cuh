// Where the rows of K and V (and of their scales per token) lie:
//
//   Locate(problem, j, params) -> KvRow, for 0 <= j < seqlen_kv
//
// The element (j, d) of head h is at block * stride_batch + row * stride_seq + h * stride_head + d.
#ifndef TILEWRIGHT_POLICY_KV_ROWS_CUH_
#define TILEWRIGHT_POLICY_KV_ROWS_CUH_

#include "abi/policy_args.h"
#include "core/problem.cuh"

namespace tilewright {

struct KvRow {
  i64 block;  // batch or page; negative: there is no such row, and the key is masked
  i64 row;

  TILEWRIGHT_HOST_DEVICE bool exists() const { return block >= 0; }
  TILEWRIGHT_HOST_DEVICE static KvRow None() { return {-1, 0}; }
};

// One row after the other, packed or not.
struct KvRowsDense {
  // Whether row j + 1 of a sequence lies stride_seq behind row j.
  static constexpr bool kIsDense = true;

  template <class Params>
  TILEWRIGHT_HOST_DEVICE static KvRow Locate(const Problem& problem, i64 j, const Params&) {
    return {problem.kv_batch, problem.kv_row + j};
  }
};

// Pages of kPageSize rows, found through a table with a row per sequence (Kwon et al.,
// arXiv 2309.06180). A negative entry masks its keys.
template <i64 kPageSize>
struct KvRowsPaged {
  static constexpr bool kIsDense = false;

  template <class Params>
  TILEWRIGHT_HOST_DEVICE static KvRow Locate(const Problem& problem, i64 j, const Params& params) {
    const i64 page = params.page_table.table[problem.b * params.page_table.stride + j / kPageSize];
    return {page, j % kPageSize};
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_KV_ROWS_CUH_
