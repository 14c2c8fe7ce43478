// Where the rows of K and V (and of their scales per token) lie:
//
//   Locate(problem, j, params) -> KvRow, for 0 <= j < seqlen_kv
//
// The element (j, d) of head h is at block * stride_batch + row * stride_seq + h * stride_head + d.
#ifndef TILEWRIGHT_POLICY_KV_ROWS_CUH_
#define TILEWRIGHT_POLICY_KV_ROWS_CUH_

#include "abi/policy_args.h"
#include "core/problem.cuh"
#include "policy/key_runs.cuh"

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

// Pages of kPageSize rows, found through a table with a row per sequence, or (kBySlot) per slot of
// the cache (Kwon et al., arXiv 2309.06180). A negative entry masks its keys.
template <i64 kPageSize, bool kBySlot = false>
struct KvRowsPaged {
  static constexpr bool kIsDense = false;
  static constexpr i64 kPageRows = kPageSize;  // rows of a page lie stride_seq apart

  // The pages of the sequence.
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static const i32* TableOf(const Problem& problem, const Params& params) {
    const i64 row = kBySlot ? problem.kv_batch : problem.b;
    return params.page_table.table + row * params.page_table.stride;
  }
  // The page of key j.
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static i32 PageOf(const Problem& problem, i64 j, const Params& params) {
    return TableOf(problem, params)[j / kPageSize];
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static KvRow Locate(const Problem& problem, i64 j, const Params& params) {
    return {PageOf(problem, j, params), j % kPageSize};
  }

  // Which of a lane's keys lie on a page: keys from j, a multiple of Runs::kKeys, on; the first
  // `existing` of them are below the length.
  template <class Runs, class Params>
  TILEWRIGHT_HOST_DEVICE static u32 Existing(const Problem& problem, i64 j, int existing,
                                             const Params& params) {
    constexpr int kTogether = kPageSize % Runs::kKeys == 0 ? Runs::kKeys : 1;
    u32 set = 0;
    TILEWRIGHT_UNROLL
    for (int n = 0; n < Runs::kCount; n += kTogether) {
      const bool exists =
          Runs::Offset(n) < existing && Locate(problem, j + Runs::Offset(n), params).exists();
      set |= exists ? ((1u << kTogether) - 1) << n : 0u;
    }
    return set;
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_POLICY_KV_ROWS_CUH_
