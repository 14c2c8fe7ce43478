// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'fwd bf16 b=1 h=1/1 s=1/1 d=64/64 score=@distance.cuh mask=@documents.cuh array=ids:int32 array=table:bf16 scalar=gain:float scalar=period:int64' --plan 'attn_fwd_simple sm_90a m16n32 w4 r4 p64 smem=12800'
#include "family/attn_fwd_simple.cuh"
#include "user/mask_mod.cuh"
#include "user/score_mod.cuh"

namespace tilewright {

struct Params {
  abi::AttnFwdParams core;
  const i32* user_ids;
  const Bf16* user_table;
  alignas(8) float user_gain;
  alignas(8) i64 user_period;
};
// The host fills these bytes: src/emit/param_layout.cc.
static_assert(TILEWRIGHT_OFFSETOF(Params, core) == 0);
static_assert(TILEWRIGHT_OFFSETOF(Params, user_ids) == 232);
static_assert(TILEWRIGHT_OFFSETOF(Params, user_table) == 240);
static_assert(TILEWRIGHT_OFFSETOF(Params, user_gain) == 248);
static_assert(TILEWRIGHT_OFFSETOF(Params, user_period) == 256);
static_assert(sizeof(Params) == 264);

struct Config {
  // spec
  using Element = Bf16;
  using KvElement = Bf16;
  using OutElement = Bf16;
  static constexpr int kHeadDimQk = 64;
  static constexpr int kHeadDimV = 64;
  static constexpr int kGroup = 1;
  static constexpr bool kStridedInnermost = false;
  // sizes; 0: from params
  static constexpr i64 kBatch = 0;
  static constexpr i64 kSeqlenQ = 0;
  static constexpr i64 kSeqlenKv = 0;
  // plan
  static constexpr int kWarps = 4;
  static constexpr int kRowsPerWarp = 4;
  static constexpr int kBlockM = 16;
  static constexpr int kBlockN = 32;
  static constexpr int kPanel = 64;
  // policies
  using Lengths = LengthsUniform;
  using KvRows = KvRowsDense;
  using ScaleOfQ = ScaleNone;
  using ScaleOfKv = ScaleNone;
  using Score = ScoreChain<ScoreUser>;
  using Mask = MaskChain<MaskUser>;
  using Sink = SinkNone;
  using Dropout = DropoutNone;
  using Lse = LseNone;
};
static_assert(sizeof(fwd_simple::SharedStorage<Config>) == 12800,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(128, 1)
attn_fwd_simple__bf16_d64_score_mask__m16n32w4r4p64(const __grid_constant__ tilewright::Params params) {
  tilewright::fwd_simple::Run<tilewright::Config>(params);
}

// ==== user/score_mod.cuh
// The caller's score rule.
#ifndef TILEWRIGHT_USER_SCORE_MOD_CUH_
#define TILEWRIGHT_USER_SCORE_MOD_CUH_

#include "core/accumulate.cuh"
#include "core/convert.cuh"
#include "policy/score_chain.cuh"

namespace tilewright {

struct ScoreUser {
  static constexpr bool kHasSlopeOne = false;
  static constexpr bool kHasOwnGradient = false;

  template <class Scalar, class Params>
  TILEWRIGHT_HOST_DEVICE static Scalar Apply(
      [[maybe_unused]] Scalar score, const Problem& problem__, i64 i__, i64 j__,
      const Params& params__) {
    using int32_t [[maybe_unused]] = i32;
    using uint32_t [[maybe_unused]] = u32;
    using int64_t [[maybe_unused]] = i64;
    using uint64_t [[maybe_unused]] = u64;
    [[maybe_unused]] const i64 b = problem__.b, h = problem__.h;
    [[maybe_unused]] const i64 seqlen_q = problem__.seqlen_q;
    [[maybe_unused]] const i64 seqlen_kv = problem__.seqlen_kv;
    [[maybe_unused]] const i64 i = i__, j = j__;
    {
      [[maybe_unused]] const ::tilewright::i32* const ids = params__.user_ids;
      [[maybe_unused]] const ::tilewright::Bf16* const table = params__.user_table;
      [[maybe_unused]] const float gain = params__.user_gain;
      [[maybe_unused]] const ::tilewright::i64 period = params__.user_period;
      return static_cast<Scalar>(
#line 1 "distance.cuh"
score + gain * table[(i - j) % period]

#line 37 "user/score_mod.cuh"
      );
    }
  }
  template <class Params>
  using Head = ElementwiseScoreHead<ScoreUser, Params>;
};

}  // namespace tilewright

#endif  // TILEWRIGHT_USER_SCORE_MOD_CUH_

// ==== user/mask_mod.cuh
// The caller's mask rule.
#ifndef TILEWRIGHT_USER_MASK_MOD_CUH_
#define TILEWRIGHT_USER_MASK_MOD_CUH_

#include "core/convert.cuh"
#include "policy/mask_chain.cuh"

namespace tilewright {

struct MaskUser : MaskElementwise {
  template <class Params>
  TILEWRIGHT_HOST_DEVICE static bool Keep(
      const Problem& problem__, i64 i__, i64 j__,
      const Params& params__) {
    using int32_t [[maybe_unused]] = i32;
    using uint32_t [[maybe_unused]] = u32;
    using int64_t [[maybe_unused]] = i64;
    using uint64_t [[maybe_unused]] = u64;
    [[maybe_unused]] const i64 b = problem__.b, h = problem__.h;
    [[maybe_unused]] const i64 seqlen_q = problem__.seqlen_q;
    [[maybe_unused]] const i64 seqlen_kv = problem__.seqlen_kv;
    [[maybe_unused]] const i64 i = i__, j = j__;
    {
      [[maybe_unused]] const ::tilewright::i32* const ids = params__.user_ids;
      [[maybe_unused]] const ::tilewright::Bf16* const table = params__.user_table;
      [[maybe_unused]] const float gain = params__.user_gain;
      [[maybe_unused]] const ::tilewright::i64 period = params__.user_period;
      {
#line 1 "documents.cuh"
// One document only.
return ids[b * seqlen_kv + i] == ids[b * seqlen_kv + j];

#line 34 "user/mask_mod.cuh"
      }
    }
  }
  template <class Params>
  using Head = ElementwiseMaskHead<MaskUser, Params>;
};

}  // namespace tilewright

#endif  // TILEWRIGHT_USER_MASK_MOD_CUH_
