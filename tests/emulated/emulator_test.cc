// The emulator on small kernels, right ones and wrong ones: each kind of fault is found, and what
// is no fault is not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reference/reference.h"
#include "tests/emulated/emulated_kernel.h"
#include "tests/emulated/emulator/tensor_map.h"

namespace tilewright {
namespace {

using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// What a kernel of these tests gets.
struct Params {
  const float* in;
  float* out;
  const void* map;  // of `in` or of `out`, if the test makes one
};

constexpr int kWords = 256;

class EmulatorTest : public testing::Test {
 protected:
  EmulatorTest() { std::iota(in_.begin(), in_.end(), 1.f); }

  // Runs `body` on every thread. In scope: thread, lane, in, out and, with `bytes` of shared
  // memory, words (as float) and halves (as u16).
  std::vector<std::string> Run(std::string_view body, int threads = 64, size_t bytes = 1024,
                               unsigned grid = 1, int cluster = 1) {
    artifact::KernelSource source;
    source.generated_headers.push_back({"user/products.cuh", products_});
    source.entry_name = "small_kernel";
    source.text = absl::StrCat(
        "#include \"core/types.cuh\"\n#include \"ptx/cp_async.cuh\"\n#include "
        "\"ptx/ldmatrix.cuh\"\n#include \"ptx/mma_sync.cuh\"\n"
        "#include \"ptx/mbarrier.cuh\"\n#include \"ptx/named_barrier.cuh\"\n"
        "#include \"ptx/cluster.cuh\"\n#include \"ptx/wgmma.cuh\"\n"
        "#include \"emulator/bulk_copy.h\"\n#include \"user/products.cuh\"\n"
        "namespace tilewright {\nstruct Params { const float* in; float* out; const void* map; };\n"
        "struct Config {};\nnamespace small {\ntemplate <class Config>\n"
        "void Run(const Params& params) {\n  extern __shared__ __align__(1024) u8 shared_bytes[];\n"
        "  [[maybe_unused]] const void* map = params.map;\n"
        "  [[maybe_unused]] const u32 base = ptx::SharedAddress(shared_bytes);\n"
        "  const int thread = threadIdx.x, lane = thread % 32;\n  const float* in = params.in;\n"
        "  float* out = params.out;\n  float* words = reinterpret_cast<float*>(shared_bytes);\n"
        "  u16* halves = reinterpret_cast<u16*>(shared_bytes);\n  ",
        absl::string_view(body.data(), body.size()),
        "\n}\n}\n}\nextern \"C\" __global__ void small_kernel(const __grid_constant__ "
        "tilewright::Params params) {\n  tilewright::small::Run<tilewright::Config>(params);\n}\n");
    const emulated::Kernel kernel(source);
    if (!kernel.error().empty()) return {kernel.error()};
    const Params params = {in_.data(), out_.data(), &map_};
    return kernel.Launch(&params, sizeof params, grid, threads, cluster, bytes,
                         {{&map_, sizeof map_, false, "map"},
                          {in_.data(), in_.size() * sizeof(float), false, "in"},
                          {out_.data(), out_.size() * sizeof(float), true, "out"}});
  }

  // A map of `data` as rows of `columns` elements of `bytes` bytes, boxes of `box_rows` rows of
  // `box_columns`.
  void MakeMap(void* data, int bytes, int columns, int rows, int box_columns, int box_rows,
               int swizzle) {
    map_ = {};
    map_.dimensions = 2;
    map_.element_bytes = static_cast<uint8_t>(bytes);
    map_.swizzle = static_cast<uint8_t>(swizzle);
    map_.base = reinterpret_cast<uint64_t>(data);
    map_.extents[0] = static_cast<uint64_t>(columns);
    map_.extents[1] = static_cast<uint64_t>(rows);
    map_.strides[0] = static_cast<uint64_t>(columns * bytes);
    map_.box[0] = static_cast<uint32_t>(box_columns);
    map_.box[1] = static_cast<uint32_t>(box_rows);
  }

  cuda_on_host::HostTensorMap map_;
  std::string products_;
  std::vector<float> in_ = std::vector<float>(kWords);
  std::vector<float> out_ = std::vector<float>(kWords, -1);
};

TEST_F(EmulatorTest, RunsEveryThreadOfEveryBlock) {
  EXPECT_THAT(Run("out[blockIdx.x * blockDim.x + thread] = gridDim.x * 1000 + thread;", 64, 0, 4),
              IsEmpty());
  for (int n = 0; n < kWords; ++n) EXPECT_EQ(out_[n], 4000 + n % 64);
}

// ---- memory

TEST_F(EmulatorTest, FindsAReadBehindTheInput) {
  EXPECT_THAT(
      Run("if (thread == 5) out[0] = in[256];"),
      ElementsAre(testing::AllOf(HasSubstr("block 0 thread 5: reads 4 bytes"),
                                 HasSubstr("where nothing is (at 1024 of the 1024 bytes of in)"),
                                 HasSubstr("kernel.cc:"))));
}

TEST_F(EmulatorTest, FindsAWriteToTheInput) {
  EXPECT_THAT(Run("const_cast<float*>(in)[thread] = 0;"),
              ElementsAre(HasSubstr("writes in, an input")));
}

TEST_F(EmulatorTest, FindsAnAccessBehindSharedMemory) {
  EXPECT_THAT(
      Run("words[thread + 200] = 0;"),
      ElementsAre(HasSubstr("thread 56: writes 4 bytes at 1024 of shared memory, which has 1024")));
}

TEST_F(EmulatorTest, FindsReadsOfWhatNobodyWrote) {
  EXPECT_THAT(
      Run("if (thread < 32) words[thread] = 0;\n__syncthreads();\nout[thread] = words[thread];"),
      ElementsAre(
          HasSubstr("thread 63: reads 4 bytes at 252 of shared memory that nobody has written")));
  EXPECT_TRUE(std::isnan(out_[63]));
}

TEST_F(EmulatorTest, FindsMisalignedAccesses) {
  EXPECT_THAT(
      Run("out[thread] = *reinterpret_cast<const float*>(reinterpret_cast<const char*>(in) + 2);"),
      ElementsAre(HasSubstr("is not a multiple of 4")));
  EXPECT_THAT(Run("struct alignas(16) Vec { float x[4]; };\n"
                  "*reinterpret_cast<Vec*>(out + 1) = *reinterpret_cast<const Vec*>(in);",
                  32),
              Contains(HasSubstr("is not a multiple of 16")));
}

// ---- races

TEST_F(EmulatorTest, FindsAMissingBarrier) {
  EXPECT_THAT(
      Run("words[thread] = in[thread];\n__syncthreads();\nout[thread] = words[63 - thread];"),
      IsEmpty());
  EXPECT_EQ(out_[0], 64);
  const auto faults =
      Run("words[thread] = in[thread];\n__syncwarp();\nif (thread >= 32) out[thread] = "
          "words[thread - 32];");
  EXPECT_THAT(faults,
              Contains(HasSubstr("reads 4 bytes at 124 of shared memory that thread 31 writes, "
                                 "with nothing to order them")));
}

TEST_F(EmulatorTest, FindsAWriteBeforeTheReaderIsDone) {
  EXPECT_THAT(Run("words[thread] = 1;\n__syncthreads();\nout[thread] = words[63 - thread];\n"
                  "words[thread] = 2;"),
              Contains(HasSubstr("that thread 63 reads, with nothing to order them")));
  EXPECT_THAT(Run("words[thread] = 1;\n__syncthreads();\nout[thread] = words[63 - thread];\n"
                  "__syncthreads();\nwords[thread] = 2;"),
              IsEmpty());
}

TEST_F(EmulatorTest, OrdersLanesBySyncwarpOnly) {
  EXPECT_THAT(Run("words[thread] = in[thread];\n__syncwarp();\nout[thread] = words[thread ^ 1];"),
              IsEmpty());
  EXPECT_THAT(
      Run("words[thread] = in[thread];\n__shfl_sync(~0u, 0, 0);\nout[thread] = words[thread ^ 1];"),
      Contains(HasSubstr("with nothing to order them")));
}

TEST_F(EmulatorTest, TakesAtomicsOfManyThreads) {
  EXPECT_THAT(Run("if (thread == 0) words[0] = 0;\n__syncthreads();\natomicAdd(words, 1.f);\n"
                  "__syncthreads();\nout[thread] = words[0];"),
              IsEmpty());
  EXPECT_EQ(out_[17], 64);
  EXPECT_THAT(Run("if (thread == 0) words[0] = 0;\n__syncthreads();\natomicAdd(words, 1.f);\n"
                  "out[thread] = words[0];"),
              Contains(HasSubstr("with nothing to order them")));
}

TEST_F(EmulatorTest, FindsRacesInGlobalMemory) {
  EXPECT_THAT(Run("out[thread / 2] = thread;"),
              Contains(HasSubstr("of out that thread 0 writes, with nothing to order them")));
  EXPECT_THAT(Run("out[thread] = 1;\n__syncthreads();\nout[63 - thread] = 2;"), IsEmpty());
  EXPECT_THAT(Run("if (thread == 0) out[blockIdx.x / 2] = 1;", 64, 0, 4),
              Contains(HasSubstr("writes 4 bytes at 0 of out that block 0 writes, with nothing")));
  EXPECT_THAT(Run("atomicAdd(out, 1.f);", 64, 0, 4), IsEmpty());
  EXPECT_THAT(
      Run("atomicAdd(out, 1.f);\n__syncthreads();\nif (thread == 0) out[1] = out[0];", 64, 0, 2),
      Contains(HasSubstr("updates 4 bytes at 0 of out that block 0 reads")));
}

TEST_F(EmulatorTest, TakesTurnsOfBlocksForOrdered) {
  // A block adds when those before it have.
  const std::string turn = "int* const turn = reinterpret_cast<int*>(out + 1);\n";
  const std::string body = "if (thread == 0) { out[0] = out[0] + 1; }\n__syncthreads();\n";
  out_[0] = out_[1] = 0;
  EXPECT_THAT(Run(absl::StrCat(turn,
                               "if (thread == 0) { while (atomicAdd(turn, 0) != blockIdx.x) {} }\n"
                               "__syncthreads();\n",
                               body, "if (thread == 0) atomicAdd(turn, 1);"),
                  64, 0, 4),
              IsEmpty());
  EXPECT_EQ(out_[0], 4);
  EXPECT_THAT(Run(body, 64, 0, 4), Contains(HasSubstr("with nothing to order them")));
}

// ---- barriers and warps

TEST_F(EmulatorTest, FindsThreadsThatWaitForEver) {
  EXPECT_THAT(Run("if (thread != 3) __syncthreads();"),
              ElementsAre(HasSubstr("threads wait for ever: 63 at __syncthreads, 1 have ended")));
  EXPECT_THAT(Run("if (lane < 16) __syncwarp(); else __syncthreads();"),
              ElementsAre(HasSubstr(
                  "threads wait for ever: 32 at __syncthreads, 32 at __syncwarp, 0 have")));
}

TEST_F(EmulatorTest, FindsLanesAtDifferentInstructions) {
  EXPECT_THAT(Run("if (lane == 9) __syncwarp(); else __any_sync(~0u, 1);"),
              ElementsAre(HasSubstr(
                  "thread 9: comes to __syncwarp while lanes of its warp are at __ballot")));
  EXPECT_THAT(
      Run("__shfl_sync(0xffffu, 1, 0);"),
      ElementsAre(HasSubstr("thread 16: __shfl_sync with a mask that leaves the caller out")));
}

TEST_F(EmulatorTest, VotesAndShuffles) {
  EXPECT_THAT(
      Run("const int up = __shfl_up_sync(~0u, lane, 1), half = __shfl_sync(~0u, lane, 3, 16);\n"
          "const int other = __shfl_xor_sync(~0u, lane, 8), last = __shfl_down_sync(~0u, lane, 2, "
          "8);\n"
          "const int any = __syncthreads_or(thread == 40), all = __syncthreads_and(thread != 40);\n"
          "const int count = __syncthreads_count(thread % 3 == 0);\n"
          "const unsigned mask = __ballot_sync(~0u, lane % 2);\n"
          "if (thread == 13) { out[0] = up; out[1] = half; out[2] = other; out[3] = last;\n"
          "  out[4] = any; out[5] = all; out[6] = count; out[7] = mask == 0xaaaaaaaau; }\n"
          "if (thread == 16) { out[8] = half; out[9] = last; out[10] = up; }"),
      IsEmpty());
  EXPECT_THAT(std::vector<float>(out_.begin(), out_.begin() + 11),
              ElementsAre(12, 3, 5, 15, 1, 0, 22, 1, 19, 18, 15));
}

// ---- cp.async

constexpr std::string_view kCopy =
    "tilewright::ptx::cp_async_ca<4>(tilewright::ptx::SharedAddress(words + thread), in + thread, "
    "4);\n";

TEST_F(EmulatorTest, CopiesBecomeVisibleAtTheWait) {
  EXPECT_THAT(Run(absl::StrCat(std::string(kCopy),
                               "tilewright::ptx::cp_async_commit_group();\n"
                               "tilewright::ptx::cp_async_wait_group<0>();\n__syncthreads();\nout["
                               "thread] = words[63 - thread];")),
              IsEmpty());
  EXPECT_EQ(out_[0], 64);
}

TEST_F(EmulatorTest, FindsAMissingWait) {
  EXPECT_THAT(Run(absl::StrCat(
                  std::string(kCopy),
                  "tilewright::ptx::cp_async_commit_group();\n__syncthreads();\n"
                  "out[thread] = words[thread];\ntilewright::ptx::cp_async_wait_group<0>();\n")),
              Contains(HasSubstr("while a copy to it is in flight")));
  EXPECT_TRUE(std::isnan(out_[9]));
}

TEST_F(EmulatorTest, FindsAMissingCommit) {
  EXPECT_THAT(
      Run(absl::StrCat(std::string(kCopy),
                       "tilewright::ptx::cp_async_wait_group<0>();\n__syncthreads();\n"
                       "out[thread] = words[thread];\n")),
      testing::AllOf(
          Contains(HasSubstr("while a copy to it is in flight")),
          Contains(HasSubstr("ends while copies to 256 bytes of shared memory are in flight"))));
}

TEST_F(EmulatorTest, FindsAWaitWithoutABarrier) {
  EXPECT_THAT(Run(absl::StrCat(std::string(kCopy),
                               "tilewright::ptx::cp_async_commit_group();\n"
                               "tilewright::ptx::cp_async_wait_group<0>();\n__syncwarp();\n"
                               "if (thread >= 32) out[thread] = words[thread - 32];")),
              Contains(HasSubstr("with nothing to order them")));
}

TEST_F(EmulatorTest, WaitsForTheOldestGroups) {
  const std::string second =
      "tilewright::ptx::cp_async_ca<4>(tilewright::ptx::SharedAddress(words + 64 + thread), in + "
      "64 + thread, 2);\n"
      "tilewright::ptx::cp_async_commit_group();\n";
  const std::string begin =
      absl::StrCat(std::string(kCopy), "tilewright::ptx::cp_async_commit_group();\n", second);
  EXPECT_THAT(
      Run(absl::StrCat(begin,
                       "tilewright::ptx::cp_async_wait_group<1>();\nout[thread] = words[thread];\n"
                       "tilewright::ptx::cp_async_wait_group<0>();\n"
                       "out[64 + thread] = words[64 + thread];")),
      IsEmpty());
  EXPECT_EQ(out_[9], 10);
  EXPECT_EQ(out_[64 + 9], 0);  // 74.0f has its bits in the upper half, and 2 bytes were copied
  EXPECT_THAT(
      Run(absl::StrCat(
          begin,
          "tilewright::ptx::cp_async_wait_group<1>();\n"
          "out[thread] = words[64 + thread];\ntilewright::ptx::cp_async_wait_group<0>();\n")),
      Contains(HasSubstr("while a copy to it is in flight")));
}

TEST_F(EmulatorTest, ChecksTheAddressesOfCopies) {
  const auto copy = [&](const char* destination, const char* source, int bytes) {
    return Run(absl::StrCat(
        "if (thread == 0) tilewright::ptx::cp_async_cg_16(tilewright::ptx::SharedAddress(",
        destination, "), ", source, ", ", bytes,
        ");\n"
        "tilewright::ptx::cp_async_commit_group();\ntilewright::ptx::cp_async_wait_group<0>();"));
  };
  EXPECT_THAT(copy("words + 1", "in", 16),
              ElementsAre(HasSubstr("shared address that is not a multiple of 16")));
  EXPECT_THAT(copy("words", "in + 1", 16),
              ElementsAre(HasSubstr("source of cp.async is not a multiple of 16")));
  EXPECT_THAT(copy("words", "in + 1", 0), IsEmpty());
  EXPECT_THAT(copy("words", "in + 256", 0), IsEmpty());
  EXPECT_THAT(copy("words", "in + 252", 16), IsEmpty());
  EXPECT_THAT(copy("words", "in + 256", 16), ElementsAre(HasSubstr("where nothing is")));
  EXPECT_THAT(copy("in", "in", 16),
              ElementsAre(HasSubstr("takes the shared address of what is no shared memory")));
}

// ---- tensor cores

// 16 x 8 products of random numbers against sums in double, through ldmatrix as families use it.
TEST_F(EmulatorTest, MultipliesMatrices) {
  std::mt19937 random(3);
  std::vector<float> a(16 * 16), b(16 * 8);  // b as [k][n]
  for (float& x : a) x = static_cast<float>(static_cast<int>(random() % 65) - 32) / 8;
  for (float& x : b) x = static_cast<float>(static_cast<int>(random() % 65) - 32) / 8;
  for (const ElementType type : {ElementType::kFp16, ElementType::kBf16}) {
    // In: a as 16 x 16, then b as 16 x 8, in 16-bit elements.
    auto* bytes = reinterpret_cast<std::byte*>(in_.data());
    for (size_t n = 0; n < a.size(); ++n) reference::FromDouble(type, a[n], bytes + 2 * n);
    for (size_t n = 0; n < b.size(); ++n) reference::FromDouble(type, b[n], bytes + 512 + 2 * n);
    const std::string element = type == ElementType::kFp16 ? "Fp16{}" : "Bf16{}";
    EXPECT_THAT(
        Run(absl::StrCat(
                "for (int n = thread; n < 192; n += 32) words[n] = in[n];\n__syncwarp();\n"
                "unsigned a[4], b[2];\nfloat d[4] = {1, 2, 3, 4};\n"
                "ptx::ldmatrix_x4(a, ptx::SharedAddress(halves + lane % 16 * 16 + lane / 16 * "
                "8));\n"
                "ptx::ldmatrix_x2_trans(b, ptx::SharedAddress(halves + 256 + lane % 16 * 8));\n"
                "ptx::mma_m16n8k16(d, a, b[0], b[1], ",
                element,
                ");\n"
                "for (int c = 0; c < 4; ++c)\n"
                "  out[(lane / 4 + c / 2 * 8) * 8 + lane % 4 * 2 + c % 2] = d[c];"),
            32),
        IsEmpty());
    for (int m = 0; m < 16; ++m) {
      for (int n = 0; n < 8; ++n) {
        double sum = 1 + m / 8 * 2 + n % 2;
        for (int k = 0; k < 16; ++k) sum += static_cast<double>(a[m * 16 + k]) * b[k * 8 + n];
        ASSERT_EQ(out_[m * 8 + n], sum) << m << " " << n;
      }
    }
  }
}

TEST_F(EmulatorTest, ChecksTheAddressesOfLdmatrix) {
  EXPECT_THAT(Run("halves[lane] = 0;\n__syncwarp();\nunsigned r[2];\n"
                  "ptx::ldmatrix_x2(r, ptx::SharedAddress(halves + lane % 16));",
                  32),
              ElementsAre(HasSubstr("ldmatrix from an address that is not a multiple of 16")));
  EXPECT_THAT(
      Run("unsigned r[2];\nptx::ldmatrix_x2(r, ptx::SharedAddress(halves + lane % 16 * 8));", 32),
      Contains(HasSubstr("that nobody has written")));
}

// ---- mbarriers and named barriers

// Thread 0 writes in turn what the others read; `full` and `empty` are mbarriers.
std::string Handover(const std::string& wait_full, const std::string& release) {
  return absl::StrCat(R"(
    const u32 full = base + 512, empty = base + 520;
    if (thread == 0) {
      ptx::mbarrier_init(full, 1);
      ptx::mbarrier_init(empty, 32);
      ptx::fence_mbarrier_init();
    }
    __syncthreads();
    for (int round = 0; round < 3; ++round) {
      if (thread == 0) {
        while (!ptx::mbarrier_try_wait_parity(empty, (round & 1) ^ 1)) {}
        words[0] = in[round];
        ptx::mbarrier_arrive(full);
      } else if (thread >= 32) {
        )",
                      wait_full, R"(
        if (thread == 40) out[round] = words[0];
        else if (words[0] != in[round]) out[round] = -2;
        )",
                      release, R"(
      }
    })");
}
constexpr char kWaitFull[] = "while (!ptx::mbarrier_try_wait_parity(full, round & 1)) {}";
constexpr char kRelease[] = "ptx::mbarrier_arrive(empty);";

TEST_F(EmulatorTest, HandsOverByMbarriers) {
  EXPECT_THAT(Run(Handover(kWaitFull, kRelease)), IsEmpty());
  EXPECT_THAT(std::vector<float>(out_.begin(), out_.begin() + 4), ElementsAre(1, 2, 3, -1));
}

TEST_F(EmulatorTest, FindsMisuseOfMbarriers) {
  EXPECT_THAT(Run(Handover("", kRelease)), Contains(HasSubstr("with nothing to order them")));
  EXPECT_THAT(Run(Handover(kWaitFull, "")),
              ElementsAre(HasSubstr("1 at the mbarrier at 520 for parity 0, 31 have ended")));
  EXPECT_THAT(Run(Handover(kWaitFull, "ptx::mbarrier_arrive(empty); ptx::mbarrier_arrive(empty);")),
              Contains(HasSubstr("with nothing to order them")));
  EXPECT_THAT(Run("ptx::mbarrier_arrive(base);"),
              ElementsAre(HasSubstr("the mbarrier at 0 has not been initialised")));
}

TEST_F(EmulatorTest, WaitsAtNamedBarriers) {
  const auto kernel = [](int arriving, int waiting) {
    return absl::StrCat("if (thread < 32) { words[thread] = in[thread]; ptx::bar_arrive(3, ",
                        arriving, "); }\nelse { ptx::bar_sync(3, ", waiting,
                        "); out[thread] = words[thread - 32]; }");
  };
  EXPECT_THAT(Run(kernel(64, 64)), IsEmpty());
  EXPECT_EQ(out_[33], 2);
  EXPECT_THAT(Run(kernel(64, 96)),
              ElementsAre(HasSubstr("named barrier 3 with 96 threads where others wait with 64")));
  EXPECT_THAT(Run("if (thread < 32) ptx::bar_sync(2, 64);"),
              ElementsAre(HasSubstr("threads wait for ever: 32 at named barrier 2")));
}

// ---- bulk copies

// A box of `in` at (x, y) to shared memory, waited for and then stored at (x, y) of `out`.
std::string Load(
    int x, int y, int bytes,
    const std::string& wait = "while (!ptx::mbarrier_try_wait_parity(barrier, 0)) {}") {
  return absl::StrCat(R"(
    const u32 barrier = base + 8192;
    if (thread == 0) {
      ptx::mbarrier_init(barrier, 1);
      ptx::fence_mbarrier_init();
    }
    __syncthreads();
    if (thread == 0) {
      const int at[2] = {)",
                      x, ", ", y, R"(};
      ptx::mbarrier_arrive_expect_tx(barrier, )",
                      bytes, R"();
      cuda_on_host::StartBulkLoad(base, map, barrier, at, 2, cuda_on_host::OwnBlock());
    }
    )",
                      wait, R"(
    out[thread] = words[thread];
    out[64 + thread] = words[64 + thread];
    )");
}

TEST_F(EmulatorTest, LoadsBoxesWithZerosOutside) {
  // 10 rows of 24; boxes of 4 rows of 32.
  MakeMap(in_.data(), 4, 24, 10, 32, 4, 0);
  EXPECT_THAT(Run(Load(-4, 8, 512), 64, 9000), IsEmpty());
  for (int row = 0; row < 4; ++row) {
    for (int column = 0; column < 32; ++column) {
      const bool inside = column >= 4 && column < 28 && row < 2;
      ASSERT_EQ(out_[row * 32 + column], inside ? 1 + (8 + row) * 24 + column - 4 : 0)
          << row << " " << column;
    }
  }
}

TEST_F(EmulatorTest, SwizzlesChunksByTheirRow) {
  MakeMap(in_.data(), 4, 32, 8, 32, 4, 3);
  EXPECT_THAT(Run(Load(0, 1, 512), 64, 9000), IsEmpty());
  // Row 2 of the box: chunk 5 lies where chunk 7 would.
  EXPECT_EQ(out_[2 * 32 + 7 * 4], 1 + 3 * 32 + 5 * 4);
}

TEST_F(EmulatorTest, FindsMisuseOfBulkLoads) {
  MakeMap(in_.data(), 4, 32, 8, 32, 4, 3);
  EXPECT_THAT(Run(Load(0, 0, 512, "__syncthreads();"), 64, 9000),
              Contains(HasSubstr("while a copy to it is in flight")));
  EXPECT_THAT(Run(Load(0, 0, 1024), 64, 9000),
              ElementsAre(HasSubstr("threads wait for ever: 64 at the mbarrier")));
  EXPECT_THAT(Run(Load(-2, 0, 512), 64, 9000),
              ElementsAre(HasSubstr("from column -2, not on a multiple of 16 bytes")));
  MakeMap(in_.data(), 4, 32, 9, 32, 4, 3);
  EXPECT_THAT(Run(Load(0, 8, 512), 64, 9000), ElementsAre(HasSubstr("where nothing is")));
  map_.mark = 0;
  EXPECT_THAT(Run(Load(0, 0, 512), 64, 9000), ElementsAre(HasSubstr("by what is no tensor map")));
}

std::string Store(const std::string& fence, const std::string& wait) {
  return absl::StrCat("words[thread] = thread; words[64 + thread] = 64 + thread;\n", fence, R"(
    __syncthreads();
    if (thread == 0) {
      const int at[2] = {8, 6};
      cuda_on_host::StartBulkStore(map, base, at, 2);
      cuda_on_host::CommitBulkStores();
    )",
                      wait, "\n}");
}
constexpr char kFence[] = "cuda_on_host::FenceProxyAsync();";
constexpr char kWaitStores[] = "cuda_on_host::WaitForBulkStores(0);";

TEST_F(EmulatorTest, StoresWhatLiesInsideTheTensor) {
  MakeMap(out_.data(), 4, 32, 8, 32, 4, 0);
  EXPECT_THAT(Run(Store(kFence, kWaitStores)), IsEmpty());
  for (int n = 0; n < kWords; ++n) {
    const int row = n / 32 - 6, column = n % 32 - 8;
    ASSERT_EQ(out_[n], row >= 0 && column >= 0 ? row * 32 + column : -1) << n;
  }
}

TEST_F(EmulatorTest, FindsMisuseOfBulkStores) {
  MakeMap(out_.data(), 4, 32, 8, 32, 4, 0);
  EXPECT_THAT(Run(Store("", kWaitStores)),
              Contains(HasSubstr("wrote without a fence.proxy.async")));
  EXPECT_THAT(Run(Store(kFence, "")),
              Contains(HasSubstr("ends without waiting for its bulk stores")));
  EXPECT_THAT(Run(Store(kFence, "words[40] = 0;" + std::string(kWaitStores))),
              Contains(HasSubstr("with nothing to order them")));
}

// ---- wgmma

// d (64 x 16) += a (64 x 16) b (16 x 16) in bf16; `b_along_n`: rows of b are rows of shared memory.
std::string Products(bool a_in_registers, bool b_along_n) {
  std::string d = "%0", bindings = "\"+f\"(d[0])";
  for (int n = 1; n < 8; ++n) {
    absl::StrAppend(&d, ", %", n);
    absl::StrAppend(&bindings, ", \"+f\"(d[", n, "])");
  }
  const std::string a = a_in_registers ? "{%8, %9, %10, %11}" : "a";
  return absl::StrCat(
      "#include \"core/types.cuh\"\nnamespace tilewright {\n"
      "inline void Multiply(float (&d)[8], const u32 (&p)[4], u64 qa, u64 vb) {\n"
      "  asm volatile(\n    \"{.reg .b64 a, b; .reg .pred more;\\n\"\n    \"setp.ne.b32 more, 1, "
      "0;",
      a_in_registers ? " add.s64 b, %12, 0;" : " add.s64 a, %8, 0; add.s64 b, %9, 0;",
      "\\n\"\n    \"wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {", d, "}, ", a,
      ", b, more, 1, 1", a_in_registers ? "" : ", 0", b_along_n ? ", 1" : ", 0",
      ";\\n\"\n    \"}\\n\"\n    : ", bindings, "\n    : ",
      a_in_registers ? "\"r\"(p[0]), \"r\"(p[1]), \"r\"(p[2]), \"r\"(p[3]), \"l\"(vb)"
                     : "\"l\"(qa), \"l\"(vb)",
      "\n    : \"memory\");\n}\n}\n");
}

// Fills rows of 128 bytes, swizzled, with small integers: a at 0, b at 8192. Then multiplies.
std::string Multiply(const std::string& before, const std::string& after) {
  return absl::StrCat(R"(
    const auto put = [&](int at, int row, int column, int value) {
      Bf16 element;
      FromFloat(static_cast<float>(value), &element);
      halves[(at + row * 128) / 2 + (column / 8 ^ row % 8) * 8 + column % 8] = element.bits;
    };
    for (int n = thread; n < 64 * 64; n += 128) {
      put(0, n / 64, n % 64, (n / 64 * 3 + n % 64 * 5) % 7 - 3);
      put(8192, n / 64, n % 64, (n / 64 + n % 64 * 2) % 5 - 2);
    }
    cuda_on_host::FenceProxyAsync();
    __syncthreads();
    float d[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    u32 p[4];
    const int row = thread / 32 * 16 + lane / 4, k = lane % 4 * 2;
    for (int n = 0; n < 4; ++n) {
      const int r = row + n % 2 * 8, c = k + n / 2 * 8;
      p[n] = halves[r * 64 + (c / 8 ^ r % 8) * 8 + c % 8] |
             static_cast<u32>(halves[r * 64 + (c / 8 ^ r % 8) * 8 + c % 8 + 1]) << 16;
    }
    )",
                      before, R"(
    Multiply(d, p, ptx::SwizzledDescriptor(base, 16), ptx::SwizzledDescriptor(base + 8192, 16));
    ptx::wgmma_commit_group();
    )",
                      after, R"(
    for (int n = 0; n < 2; ++n) out[thread * 2 + n] = d[n * 6];
    )");
}
constexpr char kFenceProducts[] = "ptx::wgmma_fence();";
constexpr char kWaitProducts[] = "ptx::wgmma_wait_group<0>();";

TEST_F(EmulatorTest, MultipliesByWarpgroup) {
  for (const bool a_in_registers : {false, true}) {
    for (const bool b_along_n : {false, true}) {
      products_ = Products(a_in_registers, b_along_n);
      EXPECT_THAT(Run(Multiply(kFenceProducts, kWaitProducts), 128, 16384), IsEmpty());
      for (int thread = 0; thread < 128; ++thread) {
        for (int n = 0; n < 2; ++n) {
          // d[0]: row r, column 2q; d[6]: row r + 8, column 8 + 2q.
          const int row = thread / 32 * 16 + thread % 32 / 4 + n * 8,
                    column = thread % 4 * 2 + n * 8;
          double sum = n == 0 ? 1 : 7;
          for (int k = 0; k < 16; ++k) {
            const int b_row = b_along_n ? k : column, b_column = b_along_n ? column : k;
            sum += ((row * 3 + k * 5) % 7 - 3) * ((b_row + b_column * 2) % 5 - 2);
          }
          ASSERT_EQ(out_[thread * 2 + n], sum) << a_in_registers << b_along_n << " " << thread;
        }
      }
    }
  }
}

TEST_F(EmulatorTest, FindsMisuseOfProducts) {
  products_ = Products(true, true);
  const auto faults = [&](const std::string& before, const std::string& after) {
    return Run(Multiply(before, after), 128, 16384);
  };
  EXPECT_THAT(faults("", kWaitProducts), Contains(HasSubstr("without a wgmma.fence")));
  EXPECT_THAT(faults(kFenceProducts, absl::StrCat("p[1] = 0;", kWaitProducts)),
              Contains(HasSubstr("an operand of wgmma changes in registers before the wait")));
  EXPECT_THAT(faults(kFenceProducts, absl::StrCat("d[1] = 0;", kWaitProducts)),
              Contains(HasSubstr("an accumulator of wgmma changes before the wait")));
  EXPECT_THAT(faults(kFenceProducts, absl::StrCat("put(8192, 3, 3, 0);", kWaitProducts)),
              Contains(HasSubstr("with nothing to order them")));
  EXPECT_THAT(
      faults(absl::StrCat("put(8192, 3, 3, 0); __syncthreads();", kFenceProducts), kWaitProducts),
      Contains(HasSubstr("wrote without a fence.proxy.async")));
  // Without a wait the accumulators are what they were.
  EXPECT_THAT(faults(kFenceProducts, ""), IsEmpty());
  EXPECT_EQ(out_[0], 1);
}

// ---- clusters

TEST_F(EmulatorTest, BlocksOfAClusterReachEachOther) {
  const std::string kernel = R"(
    const int rank = ptx::cluster_ctarank();
    int* counter = reinterpret_cast<int*>(shared_bytes);
    if (thread == 0) *counter = 0;
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
    ptx::red_max_cluster(ptx::mapa(base, rank ^ 1), 100 * rank + thread);
    )";
  const std::string sync = "ptx::barrier_cluster_arrive(); ptx::barrier_cluster_wait();";
  const std::string end = "if (thread == 0) out[blockIdx.x] = *counter;";
  EXPECT_THAT(Run(kernel + sync + end, 64, 1024, 4, 2), IsEmpty());
  EXPECT_THAT(std::vector<float>(out_.begin(), out_.begin() + 4), ElementsAre(163, 63, 163, 63));
  EXPECT_THAT(Run(kernel + end, 64, 1024, 4, 2), Contains(HasSubstr("with nothing to order them")));
  EXPECT_THAT(Run("ptx::mapa(base, 2);", 64, 1024, 2, 2),
              ElementsAre(HasSubstr("mapa to block 2 of a cluster of 2")));
}

TEST_F(EmulatorTest, LoadsForAllBlocksOfACluster) {
  MakeMap(in_.data(), 4, 32, 8, 32, 2, 0);
  const std::string kernel = R"(
    const u32 barrier = base + 512;
    const int rank = ptx::cluster_ctarank();
    if (thread == 0) {
      ptx::mbarrier_init(barrier, 1);
      ptx::fence_mbarrier_init();
    }
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
    if (thread == 0) {
      const int at[2] = {0, 2 * rank};
      ptx::mbarrier_arrive_expect_tx(barrier, 512);
      cuda_on_host::StartBulkLoad(base + 256 * rank, map, barrier, at, 2, 3);
    }
    while (!ptx::mbarrier_try_wait_parity(barrier, 0)) {}
    for (int n = 0; n < 2; ++n) out[blockIdx.x * 128 + n * 64 + thread] = words[n * 64 + thread];
    )";
  EXPECT_THAT(Run(kernel, 64, 1024, 2, 2), IsEmpty());
  for (int n = 0; n < kWords; ++n) EXPECT_EQ(out_[n], 1 + n % 128);
}

TEST_F(EmulatorTest, CopiesToAnotherBlockOfACluster) {
  const std::string begin = R"(
    const u32 barrier = base + 512;
    const int rank = ptx::cluster_ctarank();
    if (thread == 0) {
      ptx::mbarrier_init(barrier, 1);
      ptx::fence_mbarrier_init();
    }
    if (thread < 16) words[thread] = 100 * rank + thread;
    )";
  const std::string copy = R"(
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
    if (thread == 0) {
      ptx::mbarrier_arrive_expect_tx(barrier, 64);
      cuda_on_host::StartClusterCopy(ptx::mapa(base + 256, rank ^ 1), base, 64,
                                     ptx::mapa(barrier, rank ^ 1));
    }
    )";
  const std::string wait = "while (!ptx::mbarrier_try_wait_parity(barrier, 0)) {}";
  const std::string end = "if (thread < 16) out[blockIdx.x * 16 + thread] = words[64 + thread];";
  const std::string fence = "cuda_on_host::FenceProxyAsync();";
  EXPECT_THAT(Run(begin + fence + copy + wait + end, 64, 1024, 2, 2), IsEmpty());
  for (int n = 0; n < 32; ++n) EXPECT_EQ(out_[n], n < 16 ? 100 + n : n - 16);
  EXPECT_THAT(Run(begin + copy + wait + end, 64, 1024, 2, 2),
              Contains(HasSubstr("wrote without a fence.proxy.async")));
  EXPECT_THAT(Run(begin + fence + copy + end + wait, 64, 1024, 2, 2),
              Contains(HasSubstr("reads 4 bytes at 256 of shared memory")));
}

// ---- completeness

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// A kernel that meets an instruction without a stand-in does not compile here: better told by name.
TEST(StandInsTest, EveryInstructionHasOne) {
  const std::filesystem::path root = TILEWRIGHT_SOURCE_DIR;
  static const std::regex kFunction(R"re(__forceinline__\s+[\w:]+[\s*&]+(\w+)\()re");
  int functions = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root / "kernel_templates" / "ptx")) {
    const std::string name = entry.path().filename();
    if (name == "convert.cuh") continue;  // core/convert.cuh does without on the host
    const std::string text = ReadFile(entry.path());
    const std::string stand_ins = ReadFile(root / "tests" / "emulated" / "ptx" / name);
    for (std::sregex_iterator it(text.begin(), text.end(), kFunction), end; it != end; ++it) {
      ++functions;
      const std::regex call("\\b" + (*it)[1].str() + "\\(");
      EXPECT_TRUE(std::regex_search(stand_ins, call))
          << (*it)[1] << " of ptx/" << name << " is missing in tests/emulated/ptx/" << name;
    }
  }
  EXPECT_GT(functions, 10);
}

}  // namespace
}  // namespace tilewright
