// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'fwd fp16 b=1 h=4/1 s=1/1 d=72/72 scale=-1 varlen lse' --plan 'attn_fwd_sm80 sm_80 m64n64 w4 r16 s1 smem=31744'
#include "family/attn_fwd_sm80.cuh"
#include "policy/score_unfolded.cuh"

namespace tilewright {

struct Params {
  abi::AttnFwdParams core;
  abi::VarlenArgs varlen;
};
// The host fills these bytes: src/emit/param_layout.cc.
static_assert(TILEWRIGHT_OFFSETOF(Params, core) == 0);
static_assert(TILEWRIGHT_OFFSETOF(Params, varlen) == 232);
static_assert(sizeof(Params) == 264);

struct Config {
  // spec
  using Element = Fp16;
  using KvElement = Fp16;
  using OutElement = Fp16;
  static constexpr int kHeadDimQk = 72;
  static constexpr int kHeadDimV = 72;
  static constexpr int kGroup = 4;
  static constexpr bool kStridedInnermost = false;
  // sizes; 0: from params
  static constexpr i64 kBatch = 0;
  static constexpr i64 kSeqlenQ = 0;
  static constexpr i64 kSeqlenKv = 0;
  // plan
  static constexpr int kWarps = 4;
  static constexpr int kRowsPerWarp = 16;
  static constexpr int kBlockM = 64;
  static constexpr int kBlockN = 64;
  static constexpr int kColumnWarps = 1;
  static constexpr int kTf32Terms = 0;
  static constexpr bool kTuring = false;
  static constexpr int kStages = 1;
  static constexpr bool kPeeled = false;
  static constexpr bool kSplit = false;
  static constexpr bool kNarrowRows = false;
  static constexpr int kRunKeys = 2;
  // policies
  using Lengths = LengthsVarlen;
  using KvRows = KvRowsDense;
  using ScaleOfQ = ScaleNone;
  using ScaleOfKv = ScaleNone;
  using Score = ScoreChain<ScoreUnfolded>;
  using Mask = MaskChain<>;
  using Sink = SinkNone;
  using Dropout = DropoutNone;
  using Lse = LseStored<false, false>;
};
static_assert(sizeof(fwd_sm80::SharedStorage<Config>) == 31744,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(128, 1)
attn_fwd_sm80__fp16_d72_gqa4_unfolded_varlen_lse__m64n64w4s1(const __grid_constant__ tilewright::Params params) {
  tilewright::fwd_sm80::Run<tilewright::Config>(params);
}
