// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'fwd bf16 b=1 h=4/1 s=1/1 d=128/128 kv=e4m3 kv_scale=token varlen paged=16' --plan 'attn_decode sm_90a m16n128 w4 r16 s2 k32 split smem=78080'
#include "family/attn_decode.cuh"

namespace tilewright {

struct Params {
  abi::AttnFwdParams core;
  abi::VarlenArgs varlen;
  abi::PageTableArgs page_table;
  abi::ScaleArgs k_scale;
  abi::ScaleArgs v_scale;
  abi::PartsArgs parts;
};
// The host fills these bytes: src/emit/param_layout.cc.
static_assert(TILEWRIGHT_OFFSETOF(Params, core) == 0);
static_assert(TILEWRIGHT_OFFSETOF(Params, varlen) == 232);
static_assert(TILEWRIGHT_OFFSETOF(Params, page_table) == 264);
static_assert(TILEWRIGHT_OFFSETOF(Params, k_scale) == 280);
static_assert(TILEWRIGHT_OFFSETOF(Params, v_scale) == 312);
static_assert(TILEWRIGHT_OFFSETOF(Params, parts) == 344);
static_assert(sizeof(Params) == 440);

struct Config {
  // spec
  using Element = Bf16;
  using KvElement = Fp8E4m3;
  using OutElement = Bf16;
  static constexpr int kHeadDimQk = 128;
  static constexpr int kHeadDimV = 128;
  static constexpr int kGroup = 4;
  static constexpr bool kStridedInnermost = false;
  // sizes; 0: from params
  static constexpr i64 kBatch = 0;
  static constexpr i64 kSeqlenQ = 0;
  static constexpr i64 kSeqlenKv = 0;
  // plan
  static constexpr int kWarps = 4;
  static constexpr int kRowsPerWarp = 16;
  static constexpr int kBlockM = 16;
  static constexpr int kBlockN = 128;
  static constexpr int kTeams = 4;
  static constexpr int kRowWarps = 1;
  static constexpr int kRowTiles = 2;
  static constexpr int kStepKeys = 32;
  static constexpr int kStages = 2;
  static constexpr int kChunk = 0;
  static constexpr int kPageRows = 16;
  static constexpr bool kScalePerToken = true;
  // policies
  using Lengths = LengthsVarlen;
  using KvRows = KvRowsPaged<16>;
  using ScaleOfQ = ScaleNone;
  using ScaleOfKv = ScaleKv;
  using Score = ScoreChain<>;
  using Mask = MaskChain<>;
  using Sink = SinkNone;
  using Dropout = DropoutNone;
  using Lse = LseNone;
};
static_assert(sizeof(decode::SharedStorage<Config>) == 78080,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(128, 1)
attn_decode__bf16_kve4m3_d128_gqa4_kvscale_varlen_paged16__m16n128w4k32s2(const __grid_constant__ tilewright::Params params) {
  tilewright::decode::Run<tilewright::Config>(params);
}

// ==== the next kernel
// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'fwd bf16 b=1 h=4/1 s=1/1 d=128/128 kv=fp32 varlen' --plan 'attn_combine sm_90a m1n128 w4 r0 t16 split smem=2064'
#include "family/attn_combine.cuh"

namespace tilewright {

struct Params {
  abi::AttnFwdParams core;
  abi::VarlenArgs varlen;
  abi::PartsArgs parts;
};
// The host fills these bytes: src/emit/param_layout.cc.
static_assert(TILEWRIGHT_OFFSETOF(Params, core) == 0);
static_assert(TILEWRIGHT_OFFSETOF(Params, varlen) == 232);
static_assert(TILEWRIGHT_OFFSETOF(Params, parts) == 264);
static_assert(sizeof(Params) == 360);

struct Config {
  // spec
  using PartElement = float;
  using OutElement = Bf16;
  static constexpr int kHeadDimV = 128;
  // plan
  static constexpr int kWarps = 4;
  static constexpr int kBlockM = 1;
  static constexpr int kTileRows = 16;
  static constexpr int kTileKeys = 128;
  static constexpr int kTileStep = 0;
  static constexpr int kChunk = 0;
  static constexpr int kGroup = 4;
  static constexpr i64 kBatch = 0;
  static constexpr i64 kSeqlenQ = 0;
  static constexpr i64 kSeqlenKv = 0;
  // policies
  using Lengths = LengthsVarlen;
  using Mask = MaskChain<>;
  using Sink = SinkNone;
  using Lse = LseNone;
  using PartLse = LsePartNatural;
};
static_assert(sizeof(combine::SharedStorage<Config>) == 2064,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(128, 1)
attn_combine__bf16_kvfp32_d128_gqa4_varlen__m1w4t16n128k0c0(const __grid_constant__ tilewright::Params params) {
  tilewright::combine::Run<tilewright::Config>(params);
}
