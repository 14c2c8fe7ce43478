// One attention problem: a batch and a query head, with the lengths and the place of its rows. What
// every policy looks at.
#ifndef TILEWRIGHT_CORE_PROBLEM_CUH_
#define TILEWRIGHT_CORE_PROBLEM_CUH_

#include "abi/attn_fwd_params.h"
#include "abi/policy_args.h"
#include "core/math.cuh"
#include "core/types.cuh"

namespace tilewright {

struct Problem {
  i64 b;
  i64 h;     // query head
  i64 h_kv;  // its key/value head
  i64 seqlen_q;
  i64 seqlen_kv;
  // Row i of Q, O and LSE is row `q_row + i` of batch `q_batch`; packed tensors have batch 0 only.
  i64 q_batch;
  i64 q_row;
  i64 kv_batch;
  i64 kv_row;

  // Key that row 0's diagonal goes through when the diagonals end in the lower right corner.
  TILEWRIGHT_HOST_DEVICE i64 diagonal() const { return seqlen_kv - seqlen_q; }
};

// A tile of rows of a problem. Families keep it in shared memory, since most of it is looked at
// seldom and registers are scarce.
struct RowTile {
  Problem problem;
  i64 q_begin;
  i64 part;  // of its keys: policy/parts.cuh
  // Where the rows of K and V begin.
  const void* k;
  const void* v;
  // Columns by which these rows lie off a multiple of 16 bytes (mma/tile_copy.cuh), or kNotShifted.
  int k_shift;
  int v_shift;
};

// Where the lengths come from: the first of the two for a spec without varlen.
struct LengthsUniform {
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static void Apply(Problem&, const Params&) {}
  // Rows of K and V that belong to the sequence, also where seqused_kv ends it earlier.
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static i64 StoredKeys(const Problem& problem, const Params&) {
    return problem.seqlen_kv;
  }
};

// Any of the arrays may be null: what it would say then stays as in the dense case.
struct LengthsVarlen {
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static void Apply(Problem& problem, const Params& params) {
    const abi::VarlenArgs& varlen = params.varlen;
    if (varlen.cu_seqlens_q != nullptr) {
      problem.q_batch = 0;
      problem.q_row = varlen.cu_seqlens_q[problem.b];
      problem.seqlen_q = varlen.cu_seqlens_q[problem.b + 1] - problem.q_row;
    }
    if (varlen.cu_seqlens_kv != nullptr) {
      problem.kv_batch = 0;
      problem.kv_row = varlen.cu_seqlens_kv[problem.b];
      problem.seqlen_kv = varlen.cu_seqlens_kv[problem.b + 1] - problem.kv_row;
    }
    if (varlen.seqused_q != nullptr) {
      problem.seqlen_q = Min(problem.seqlen_q, varlen.seqused_q[problem.b]);
    }
    if (varlen.seqused_kv != nullptr) {
      problem.seqlen_kv = Min(problem.seqlen_kv, varlen.seqused_kv[problem.b]);
    }
  }
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static i64 StoredKeys(const Problem& problem, const Params& params) {
    const i32* cu_seqlens_kv = params.varlen.cu_seqlens_kv;
    if (cu_seqlens_kv == nullptr) return params.core.seqlen_kv;
    return cu_seqlens_kv[problem.b + 1] - cu_seqlens_kv[problem.b];
  }
};

// Sequences lie in slots of a cache: kv_batch is the slot, also where it is a row of the page
// table.
template <class Base>
struct LengthsOfSlots : Base {
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static void Apply(Problem& problem, const Params& params) {
    Base::Apply(problem, params);
    problem.kv_batch = params.cache_slots.slots[problem.b];
  }
};

// Config::kSeqlenQ, kSeqlenKv and kBatch are 0 unless the spec bakes the sizes in (`exact`).
template <class Config, class Params>
TILEWRIGHT_HOST_DEVICE i64 SeqlenQ(const Params& params) {
  return Config::kSeqlenQ != 0 ? Config::kSeqlenQ : params.core.seqlen_q;
}
template <class Config, class Params>
TILEWRIGHT_HOST_DEVICE i64 SeqlenKv(const Params& params) {
  return Config::kSeqlenKv != 0 ? Config::kSeqlenKv : params.core.seqlen_kv;
}
template <class Config, class Params>
TILEWRIGHT_HOST_DEVICE i64 Batch(const Params& params) {
  return Config::kBatch != 0 ? Config::kBatch : params.core.batch;
}

template <class Config, class Params>
TILEWRIGHT_HOST_DEVICE Problem MakeProblem(i64 b, i64 h, const Params& params) {
  Problem problem = {
      .b = b,
      .h = h,
      .h_kv = h / Config::kGroup,
      .seqlen_q = SeqlenQ<Config>(params),
      .seqlen_kv = SeqlenKv<Config>(params),
      .q_batch = b,
      .q_row = 0,
      .kv_batch = b,
      .kv_row = 0,
  };
  Config::Lengths::Apply(problem, params);
  return problem;
}

}  // namespace tilewright

#endif  // TILEWRIGHT_CORE_PROBLEM_CUH_
