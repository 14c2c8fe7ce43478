// Emitted by tilewright for 'append bf16 h=32/8 d=128/128 cache=e4m3 scale=token paged=16 rotary=half_split:0,128:10000', but for its rotary base.
#include "family/cache_append.cuh"

namespace tilewright {

struct Params {
  abi::CacheAppendParams core;
  u64 frequencies[64];
};
// The host fills these bytes: src/runtime/cache_append.cc.
static_assert(sizeof(Params) == 952);

struct Config {
  // spec
  using Element = Bf16;
  using CacheElement = Fp8E4m3;
  static constexpr int kHeadsQ = 32;
  static constexpr int kHeadsKv = 8;
  static constexpr int kDimQk = 128;
  static constexpr int kDimV = 128;
  static constexpr i64 kPageRows = 16;
  static constexpr bool kScaled = true;
  static constexpr bool kScalePerToken = true;
  // rotary embedding
  static constexpr bool kHalfSplit = true;
  static constexpr bool kInterleaved = false;
  static constexpr int kRotaryBegin = 0;
  static constexpr int kRotaryDim = 128;
  static constexpr bool kRotaryTable = false;
  using TableElement = float;
  // plan
  static constexpr int kTokens = 16;
  static constexpr int kWarps = 8;
};
static_assert(sizeof(cache_append::SharedStorage<Config>) == 9360,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(256, 2)
cache_append__bf16_cachee4m3_tokenscale_h32x8_d128v128_paged16_half0x128__m16w8(const __grid_constant__ tilewright::Params params) {
  tilewright::cache_append::Run<tilewright::Config>(params);
}
