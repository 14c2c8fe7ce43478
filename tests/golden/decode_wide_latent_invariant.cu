// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'fwd bf16 b=1 h=128/1 s=1/1 d=576/512 varlen paged=64 lse' --plan 'attn_decode_wide sm_90a m32n32 w8 r16 s2 k32 ss4 ch16 split smem=190480'
#include "family/attn_decode_wide.cuh"

namespace tilewright {

struct Params {
  abi::AttnFwdParams core;
  abi::VarlenArgs varlen;
  abi::PageTableArgs page_table;
  abi::PartsArgs parts;
};
// The host fills these bytes: src/emit/param_layout.cc.
static_assert(TILEWRIGHT_OFFSETOF(Params, core) == 0);
static_assert(TILEWRIGHT_OFFSETOF(Params, varlen) == 232);
static_assert(TILEWRIGHT_OFFSETOF(Params, page_table) == 264);
static_assert(TILEWRIGHT_OFFSETOF(Params, parts) == 280);
static_assert(sizeof(Params) == 376);

struct Config {
  // spec
  using Element = Bf16;
  using KvElement = Bf16;
  using OutElement = Bf16;
  static constexpr int kHeadDimQk = 576;
  static constexpr int kHeadDimV = 512;
  static constexpr int kGroup = 128;
  static constexpr bool kStridedInnermost = false;
  // sizes; 0: from params
  static constexpr i64 kBatch = 0;
  static constexpr i64 kSeqlenQ = 0;
  static constexpr i64 kSeqlenKv = 0;
  // plan
  static constexpr int kWarps = 8;
  static constexpr int kRowsPerWarp = 16;
  static constexpr int kBlockM = 32;
  static constexpr int kBlockN = 32;
  static constexpr int kStepKeys = 32;
  static constexpr int kStages = 2;
  static constexpr int kSharedStages = 4;
  static constexpr int kChunk = 16;
  static constexpr int kPageRows = 64;
  static constexpr bool kScalePerToken = false;
  // policies
  using Lengths = LengthsVarlen;
  using KvRows = KvRowsPaged<64>;
  using ScaleOfQ = ScaleNone;
  using ScaleOfKv = ScaleNone;
  using Score = ScoreChain<>;
  using Mask = MaskChain<>;
  using Sink = SinkNone;
  using Dropout = DropoutNone;
  using Lse = LseStored<false, false>;
};
static_assert(sizeof(decode_wide::SharedStorage<Config>) == 190480,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(256, 1)
attn_decode_wide__bf16_d576v512_gqa128_varlen_paged64_lse__m32n32w8k32s2or4c16(const __grid_constant__ tilewright::Params params) {
  tilewright::decode_wide::Run<tilewright::Config>(params);
}

// ==== the next kernel
// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'fwd bf16 b=1 h=128/1 s=1/1 d=512/512 kv=fp32 varlen lse' --plan 'attn_combine sm_90a m1n32 w4 r0 ch16 t32 split smem=8208'
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
  static constexpr int kHeadDimV = 512;
  // plan
  static constexpr int kWarps = 4;
  static constexpr int kBlockM = 1;
  static constexpr int kTileRows = 32;
  static constexpr int kTileKeys = 32;
  static constexpr int kTileStep = 0;
  static constexpr int kChunk = 16;
  static constexpr int kGroup = 128;
  static constexpr i64 kBatch = 0;
  static constexpr i64 kSeqlenQ = 0;
  static constexpr i64 kSeqlenKv = 0;
  // policies
  using Lengths = LengthsVarlen;
  using Mask = MaskChain<>;
  using Sink = SinkNone;
  using Lse = LseStored<false, false>;
  using PartLse = LsePartNatural;
};
static_assert(sizeof(combine::SharedStorage<Config>) == 8208,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(128, 1)
attn_combine__bf16_kvfp32_d512_gqa128_varlen_lse__m1w4t32n32k0c16(const __grid_constant__ tilewright::Params params) {
  tilewright::combine::Run<tilewright::Config>(params);
}
