// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'fwd bf16 b=1 h=1/1 s=1/1 d=64/64 sinks lse' --plan 'attn_fwd_sm80 sm_90a m64n64 w4 r16 s2 split smem=46080'
#include "family/attn_fwd_sm80.cuh"

namespace tilewright {

struct Params {
  abi::AttnFwdParams core;
  abi::SinkArgs sinks;
  abi::PartsArgs parts;
};
// The host fills these bytes: src/emit/param_layout.cc.
static_assert(TILEWRIGHT_OFFSETOF(Params, core) == 0);
static_assert(TILEWRIGHT_OFFSETOF(Params, sinks) == 232);
static_assert(TILEWRIGHT_OFFSETOF(Params, parts) == 240);
static_assert(sizeof(Params) == 336);

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
  static constexpr int kRowsPerWarp = 16;
  static constexpr int kBlockM = 64;
  static constexpr int kBlockN = 64;
  static constexpr int kColumnWarps = 1;
  static constexpr int kTf32Terms = 0;
  static constexpr bool kTuring = false;
  static constexpr int kStages = 2;
  static constexpr bool kPeeled = false;
  static constexpr bool kSplit = true;
  static constexpr bool kNarrowRows = false;
  static constexpr int kRunKeys = 2;
  // policies
  using Lengths = LengthsUniform;
  using KvRows = KvRowsDense;
  using ScaleOfQ = ScaleNone;
  using ScaleOfKv = ScaleNone;
  using Score = ScoreChain<>;
  using Mask = MaskChain<>;
  using Sink = SinkPerHead;
  using Dropout = DropoutNone;
  using Lse = LseStored<false, false>;
};
static_assert(sizeof(fwd_sm80::SharedStorage<Config>) == 46080,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(128, 1)
attn_fwd_sm80__bf16_d64_sinks_lse__m64n64w4s2split(const __grid_constant__ tilewright::Params params) {
  tilewright::fwd_sm80::Run<tilewright::Config>(params);
}

// ==== the next kernel
// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'fwd bf16 b=1 h=1/1 s=1/1 d=64/64 kv=fp32 sinks lse' --plan 'attn_combine sm_90a m4n0 w4 r0 split smem=4'
#include "family/attn_combine.cuh"

namespace tilewright {

struct Params {
  abi::AttnFwdParams core;
  abi::SinkArgs sinks;
  abi::PartsArgs parts;
};
// The host fills these bytes: src/emit/param_layout.cc.
static_assert(TILEWRIGHT_OFFSETOF(Params, core) == 0);
static_assert(TILEWRIGHT_OFFSETOF(Params, sinks) == 232);
static_assert(TILEWRIGHT_OFFSETOF(Params, parts) == 240);
static_assert(sizeof(Params) == 336);

struct Config {
  // spec
  using PartElement = float;
  using OutElement = Bf16;
  static constexpr int kHeadDimV = 64;
  // plan
  static constexpr int kWarps = 4;
  static constexpr int kBlockM = 4;
  static constexpr int kTileRows = 0;
  // policies
  using Lengths = LengthsUniform;
  using Sink = SinkPerHead;
  using Lse = LseStored<false, false>;
  using PartLse = LsePartNatural;
};
static_assert(sizeof(combine::SharedStorage<Config>) == 4,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(128, 1)
attn_combine__bf16_kvfp32_d64_sinks_lse__m4w4(const __grid_constant__ tilewright::Params params) {
  tilewright::combine::Run<tilewright::Config>(params);
}
