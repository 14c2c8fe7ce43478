// The emulator on small kernels, right ones and wrong ones: each kind of fault is found, and what
// is no fault is not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reference/reference.h"
#include "tests/emulated/emulated_kernel.h"

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
};

constexpr int kWords = 256;

class EmulatorTest : public testing::Test {
 protected:
  EmulatorTest() { std::iota(in_.begin(), in_.end(), 1.f); }

  // Runs `body` on every thread. In scope: thread, lane, in, out and, with `bytes` of shared
  // memory, words (as float) and halves (as u16).
  std::vector<std::string> Run(std::string_view body, int threads = 64, size_t bytes = 1024,
                               unsigned grid = 1) {
    artifact::KernelSource source;
    source.entry_name = "small_kernel";
    source.text = absl::StrCat(
        "#include \"core/types.cuh\"\n#include \"ptx/cp_async.cuh\"\n#include "
        "\"ptx/ldmatrix.cuh\"\n#include \"ptx/mma_sync.cuh\"\n"
        "namespace tilewright {\nstruct Params { const float* in; float* out; };\n"
        "struct Config {};\nnamespace small {\ntemplate <class Config>\n"
        "void Run(const Params& params) {\n  extern __shared__ __align__(16) u8 shared_bytes[];\n"
        "  const int thread = threadIdx.x, lane = thread % 32;\n  const float* in = params.in;\n"
        "  float* out = params.out;\n  float* words = reinterpret_cast<float*>(shared_bytes);\n"
        "  u16* halves = reinterpret_cast<u16*>(shared_bytes);\n  ",
        absl::string_view(body.data(), body.size()),
        "\n}\n}\n}\nextern \"C\" __global__ void small_kernel(const __grid_constant__ "
        "tilewright::Params params) {\n  tilewright::small::Run<tilewright::Config>(params);\n}\n");
    const emulated::Kernel kernel(source);
    if (!kernel.error().empty()) return {kernel.error()};
    const Params params = {in_.data(), out_.data()};
    return kernel.Launch(&params, sizeof params, grid, threads, /*cluster=*/1, bytes,
                         {{in_.data(), in_.size() * sizeof(float), false, "in"},
                          {out_.data(), out_.size() * sizeof(float), true, "out"}});
  }

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

}  // namespace
}  // namespace tilewright
