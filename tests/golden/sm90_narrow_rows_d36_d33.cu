// Emitted by tilewright. Sizes in the line below are placeholders.
// recreate: tilewright emit 'fwd bf16 b=1 h=1/1 s=1/1 d=36/33' --plan 'attn_fwd_sm90 sm_90a m256n80 w20 r16 s3 c4 x1 g132 narrow opt ones own_o smem=128000'
#include "family/attn_fwd_sm90.cuh"
#include "generated/wgmma.cuh"

namespace tilewright {

struct Params {
  abi::AttnFwdParams core;
  abi::FwdSm90Args sm90;
};
// The host fills these bytes: src/emit/param_layout.cc.
static_assert(TILEWRIGHT_OFFSETOF(Params, core) == 0);
static_assert(TILEWRIGHT_OFFSETOF(Params, sm90) == 256);
static_assert(sizeof(Params) == 960);

struct Config {
  // spec
  using Element = Bf16;
  using KvElement = Bf16;
  using OutElement = Bf16;
  static constexpr int kHeadDimQk = 36;
  static constexpr int kHeadDimV = 33;
  static constexpr int kGroup = 1;
  static constexpr bool kStridedInnermost = false;
  // sizes; 0: from params
  static constexpr i64 kBatch = 0;
  static constexpr i64 kSeqlenQ = 0;
  static constexpr i64 kSeqlenKv = 0;
  // plan
  static constexpr int kWarps = 20;
  static constexpr int kRowsPerWarp = 16;
  static constexpr int kBlockM = 256;
  static constexpr int kBlockN = 80;
  static constexpr int kStages = 3;
  static constexpr int kConsumers = 4;
  static constexpr int kSharers = 1;
  static constexpr int kCluster = 1;
  static constexpr int kStagedTerms = 0;
  static constexpr bool kScoresMayHide = false;
  static constexpr bool kOptimistic = true;
  static constexpr bool kOnes = true;
  static constexpr bool kPingPong = false;
  static constexpr bool kQInRegisters = false;
  static constexpr bool kNarrowRows = true;
  static constexpr bool kOwnO = true;
  static constexpr bool kOverV = false;
  static constexpr bool kSplit = false;
  static constexpr int kLoaderRegisters = 32;
  static constexpr int kConsumerRegisters = 112;
  using Wgmma = AttentionWgmma;
  // policies
  using Lengths = LengthsUniform;
  using KvRows = KvRowsDense;
  using ScaleOfQ = ScaleNone;
  using ScaleOfKv = ScaleNone;
  using Score = ScoreChain<>;
  using Mask = MaskChain<>;
  using Sink = SinkNone;
  using Dropout = DropoutNone;
  using Lse = LseNone;
};
static_assert(sizeof(fwd_sm90::SharedStorage<Config>) == 128000,
              "plan and kernel disagree on shared memory");

}  // namespace tilewright

extern "C" __global__ void __launch_bounds__(640, 1)
attn_fwd_sm90__bf16_d36v33__m256n80s3x1optonesonarrow(const __grid_constant__ tilewright::Params params) {
  tilewright::fwd_sm90::Run<tilewright::Config>(params);
}

// ==== generated/wgmma.cuh
// Emitted by tilewright for tiles of 256 rows and 80 keys.
#ifndef TILEWRIGHT_GENERATED_WGMMA_CUH_
#define TILEWRIGHT_GENERATED_WGMMA_CUH_

#include "core/types.cuh"

namespace tilewright {

struct AttentionWgmma {
  // d = q k^T: 3 steps of m64n80k16; what d held is ignored.
  static __device__ __forceinline__ void Scores(float (&d)[40], u64 q, u64 k) {
    asm volatile(
        "{.reg .b64 a, b; .reg .pred first, more;\n"
        "setp.ne.b32 first, 0, 0; setp.ne.b32 more, 1, 0;\n"
        "add.s64 a, %40, 0; add.s64 b, %41, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39}, a, b, first, 1, 1, 0, 0;\n"
        "add.s64 a, %40, 2; add.s64 b, %41, 2;\n"
        "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39}, a, b, more, 1, 1, 0, 0;\n"
        "add.s64 a, %40, 4; add.s64 b, %41, 4;\n"
        "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39}, a, b, more, 1, 1, 0, 0;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
          "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
          "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
          "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
        : "l"(q), "l"(k)
        : "memory");
  }
  // d += p v: 5 steps of m64n48k16.
  static __device__ __forceinline__ void Values(float (&d)[24], const u32 (&p)[20], u64 v) {
    asm volatile(
        "{.reg .b64 b; .reg .pred more;\n"
        "setp.ne.b32 more, 1, 0;\n"
        "add.s64 b, %44, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, {%24, %25, %26, %27}, b, more, 1, 1, 1;\n"
        "add.s64 b, %44, 128;\n"
        "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, {%28, %29, %30, %31}, b, more, 1, 1, 1;\n"
        "add.s64 b, %44, 256;\n"
        "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, {%32, %33, %34, %35}, b, more, 1, 1, 1;\n"
        "add.s64 b, %44, 384;\n"
        "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, {%36, %37, %38, %39}, b, more, 1, 1, 1;\n"
        "add.s64 b, %44, 512;\n"
        "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, {%40, %41, %42, %43}, b, more, 1, 1, 1;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
          "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
          "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
        : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "r"(p[4]), "r"(p[5]),
          "r"(p[6]), "r"(p[7]), "r"(p[8]), "r"(p[9]), "r"(p[10]), "r"(p[11]),
          "r"(p[12]), "r"(p[13]), "r"(p[14]), "r"(p[15]), "r"(p[16]), "r"(p[17]),
          "r"(p[18]), "r"(p[19]), "l"(v)
        : "memory");
  }
};

}  // namespace tilewright

#endif  // TILEWRIGHT_GENERATED_WGMMA_CUH_
