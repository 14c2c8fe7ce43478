// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'fwd bf16 b=1 h=1/1 s=1/1 d=128/128 causal' --plan 'attn_fwd_sm80 sm_90a m128n64 w4 r32 s2 peeled smem=104448'
#include "family/attn_fwd_sm80.cuh"
#include "policy/mask_window.cuh"

namespace tilewright {

struct Params {
  abi::AttnFwdParams core;
};
// The host fills these bytes: src/emit/param_layout.cc.
static_assert(TILEWRIGHT_OFFSETOF(Params, core) == 0);
static_assert(sizeof(Params) == 232);

struct Config {
  // spec
  using Element = Bf16;
  using KvElement = Bf16;
  using OutElement = Bf16;
  static constexpr int kHeadDimQk = 128;
  static constexpr int kHeadDimV = 128;
  static constexpr int kGroup = 1;
  static constexpr bool kStridedInnermost = false;
  // sizes; 0: from params
  static constexpr i64 kBatch = 0;
  static constexpr i64 kSeqlenQ = 0;
  static constexpr i64 kSeqlenKv = 0;
  // plan
  static constexpr int kWarps = 4;
  static constexpr int kRowsPerWarp = 32;
  static constexpr int kBlockM = 128;
  static constexpr int kBlockN = 64;
  static constexpr int kColumnWarps = 1;
  static constexpr int kTf32Terms = 0;
  static constexpr bool kTuring = false;
  static constexpr int kStages = 2;
  static constexpr bool kPeeled = true;
  static constexpr bool kSplit = false;
  static constexpr bool kNarrowRows = false;
  static constexpr int kRunKeys = 2;
  // policies
  using Lengths = LengthsUniform;
  using KvRows = KvRowsDense;
  using ScaleOfQ = ScaleNone;
  using ScaleOfKv = ScaleNone;
  using Score = ScoreChain<>;
  using Mask = MaskChain<MaskCausal<Align::kBottomRight>>;
  using Sink = SinkNone;
  using Dropout = DropoutNone;
  using Lse = LseNone;
};
static_assert(sizeof(fwd_sm80::SharedStorage<Config>) == 104448,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(128, 1)
attn_fwd_sm80__bf16_d128_causal__m128n64w4s2peeled(const __grid_constant__ tilewright::Params params) {
  tilewright::fwd_sm80::Run<tilewright::Config>(params);
}
