#include "compile/nvrtc_compiler.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tests/compile/test_files.h"
#include "tests/support/process_state.h"

namespace tilewright::compile {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kTarget[] = "sm_90a";

artifact::KernelSource Kernel(const std::string& text) {
  return {.entry_name = "k", .unit_name = "k.cu", .text = text, .generated_headers = {}};
}

artifact::KernelSource ReverseKernel() {
  return Kernel(
      "extern \"C\" __global__ void k(float* p) {\n"
      "  __shared__ float s[256];\n"
      "  s[threadIdx.x] = p[threadIdx.x];\n"
      "  __syncthreads();\n"
      "  p[threadIdx.x] = s[255 - threadIdx.x];\n"
      "}\n");
}

absl::StatusOr<artifact::KernelBinary> Compile(
    const NvrtcCompiler& compiler, const artifact::KernelSource& source,
    const std::string& target = kTarget, const std::vector<artifact::SourceFile>& bundle = {}) {
  return compiler.Compile({source, bundle, target, CompileOptions(target, false)});
}

std::string LogPayload(const absl::Status& status) {
  const auto payload = status.GetPayload("tilewright/compile_log");
  return payload ? std::string(*payload) : "";
}

// Names in /proc/self/maps that hold `part`.
int CountMapped(const std::string& part) {
  const std::string maps = ReadFile("/proc/self/maps");
  int count = 0;
  for (size_t at = maps.find(part); at != std::string::npos; at = maps.find(part, at + 1)) ++count;
  return count;
}

// Runs the statements in a fresh process (this program started again) and expects them to hold.
// What a process has mapped stays mapped, so tests about that need a process of their own.
#define EXPECT_IN_FRESH_PROCESS(...)                         \
  do {                                                       \
    GTEST_FLAG_SET(death_test_style, "threadsafe");          \
    EXPECT_EXIT(                                             \
        {                                                    \
          __VA_ARGS__;                                       \
          std::_Exit(::testing::Test::HasFailure() ? 1 : 0); \
        },                                                   \
        ::testing::ExitedWithCode(0), "");                   \
  } while (false)

// ---- with whatever NVRTC the search finds
// ---------------------------------------------------------

class NvrtcCompilerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto identity = compiler_.Identity();
    if (!identity.ok()) GTEST_SKIP() << "no NVRTC here: " << identity.status();
    library_ = identity->path;
  }
  const NvrtcCompiler compiler_{NvrtcCompiler::Options()};
  std::string library_;
};

TEST(CompileOptionsTest, AreTheGoldenList) {
  EXPECT_THAT(CompileOptions("sm_90a", false),
              ElementsAre("--gpu-architecture=sm_90a", "-std=c++20", "--minimal",
                          "--no-source-include", "--modify-stack-limit=false",
                          "--frandom-seed=tilewright", "--no-cache", "--ptxas-options=-v"));
  std::vector<std::string> lineinfo = CompileOptions("sm_80", true);
  EXPECT_EQ(lineinfo.front(), "--gpu-architecture=sm_80");
  EXPECT_EQ(lineinfo.back(), "-lineinfo");
  EXPECT_EQ(lineinfo.size(), CompileOptions("sm_80", false).size() + 1);
}

// R9: nothing that a user may set adds an option, and none of ours is of the kind that leaks.
TEST(CompileOptionsTest, NoneLeaksIntoLaterCompiles) {
  for (const bool lineinfo : {false, true}) {
    for (const std::string& option : CompileOptions("sm_90a", lineinfo)) {
      EXPECT_FALSE(LeaksState(option)) << option;
    }
  }
  EXPECT_TRUE(LeaksState("--Ofast-compile=mid"));
  EXPECT_TRUE(LeaksState("-Ofast-compile=max"));
}

TEST_F(NvrtcCompilerTest, AnOptionThatLeaksSpoilsTheProcess) {
  EXPECT_IN_FRESH_PROCESS({
    const NvrtcCompiler compiler{NvrtcCompiler::Options()};
    const artifact::KernelSource source = ReverseKernel();
    EXPECT_TRUE(compiler.Identity()->reproducible);
    EXPECT_TRUE(Compile(compiler, source).ok());
    EXPECT_TRUE(compiler.Identity()->reproducible);
    std::vector<std::string> options = CompileOptions(kTarget, false);
    options.push_back("--Ofast-compile=mid");
    (void)compiler.Compile({source, {}, kTarget, options}).ok();
    EXPECT_FALSE(compiler.Identity()->reproducible);
    EXPECT_FALSE(NvrtcCompiler({}).Identity()->reproducible);
  });
  EXPECT_IN_FRESH_PROCESS({
    const ScopedEnv variable("NVRTC_APPEND_FLAGS", "--Ofast-compile=mid");
    EXPECT_FALSE(NvrtcCompiler({}).Identity()->reproducible);
  });
}

TEST_F(NvrtcCompilerTest, IdentityMapsNothing) {
  EXPECT_IN_FRESH_PROCESS({
    const NvrtcCompiler compiler{NvrtcCompiler::Options()};
    EXPECT_TRUE(compiler.Identity().ok());
    EXPECT_FALSE(compiler.loaded());
    EXPECT_EQ(CountMapped("nvrtc"), 0);
    EXPECT_TRUE(Compile(compiler, ReverseKernel()).ok());
    EXPECT_TRUE(compiler.loaded());
    EXPECT_GT(CountMapped("libnvrtc.so"), 0);
    EXPECT_GT(CountMapped("libnvrtc-builtins"), 0);
  });
}

TEST_F(NvrtcCompilerTest, IdentityStaysThatOfTheMappedFiles) {
  const auto before = compiler_.Identity();
  ASSERT_TRUE(Compile(compiler_, ReverseKernel()).ok());
  const auto after = compiler_.Identity();
  ASSERT_TRUE(before.ok() && after.ok());
  EXPECT_EQ(before->id, after->id);
  EXPECT_EQ(before->path, after->path);
  EXPECT_THAT(after->id, Not(HasSubstr(fs::path(library_).parent_path().string())));
}

TEST_F(NvrtcCompilerTest, IdentityCoversTheEnvironmentThatChangesTheOutput) {
  const std::string plain = compiler_.Identity()->id;
  for (const char* name : {"NV_NVVM_VERSION", "LLVM_OVERRIDE_PRODUCER", "NVRTC_APPEND_FLAGS",
                           "NVVM_IR_VER_CHK", "EDG_BASE", "CAN_FINALIZE_DEBUG"}) {
    const ScopedEnv variable(name, "tw");
    EXPECT_EQ(compiler_.Identity()->id, plain + "; " + name + "=tw");
  }
  EXPECT_EQ(compiler_.Identity()->id, plain);
}

TEST_F(NvrtcCompilerTest, HeadersComeFromMemoryOnly) {
  artifact::KernelSource source = Kernel(
      "#include \"generated/values.cuh\"\n"
      "extern \"C\" __global__ void k(int* p) { *p = kFromBundle + kGenerated; }\n");
  source.generated_headers = {
      {"generated/values.cuh",
       "#include \"core/more.cuh\"\nconstexpr int kGenerated = 1 + kFromBundle;\n"}};
  const std::vector<artifact::SourceFile> bundle = {
      {"core/more.cuh", "#pragma once\nconstexpr int kFromBundle = 41;\n"}};
  const auto binary = Compile(compiler_, source, kTarget, bundle);
  EXPECT_TRUE(binary.ok()) << binary.status();

  // A file of the working directory must not be found.
  TempFolder folder;
  WriteFile(folder / "on_disk.cuh", "constexpr int kOnDisk = 1;\n");
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  const auto from_disk =
      Compile(compiler_, Kernel("#include \"on_disk.cuh\"\nextern \"C\" __global__ void k() {}\n"));
  fs::current_path(before);
  EXPECT_EQ(from_disk.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(LogPayload(from_disk.status()), HasSubstr("could not open source file"));
}

TEST_F(NvrtcCompilerTest, FailedCompileIsReportedWithItsWholeLog) {
  const auto binary = Compile(
      compiler_,
      Kernel(
          "extern \"C\" __global__ void k(int* p) {\n  *p = first_mistake;\n  *p = second;\n}\n"));
  ASSERT_EQ(binary.status().code(), absl::StatusCode::kInternal);
  const std::string message(binary.status().message());
  EXPECT_THAT(message, HasSubstr("k does not compile for sm_90a with nvrtc "));
  EXPECT_THAT(message, HasSubstr("k.cu(2): error: identifier \"first_mistake\" is undefined"));
  EXPECT_THAT(LogPayload(binary.status()), HasSubstr("\"first_mistake\""));
  EXPECT_THAT(LogPayload(binary.status()), HasSubstr("identifier \"second\" is undefined"));
}

TEST_F(NvrtcCompilerTest, ErrorsOfPtxasAreReported) {
  const auto binary = Compile(compiler_, Kernel("extern \"C\" __global__ void k(int* p) {\n"
                                                "  __shared__ int s[100000];\n"
                                                "  s[threadIdx.x] = *p;\n"
                                                "  __syncthreads();\n"
                                                "  *p = s[5];\n}\n"));
  EXPECT_EQ(binary.status().code(), absl::StatusCode::kInternal) << binary.status();
}

artifact::KernelSource WithUserMod(const std::string& header_text) {
  artifact::KernelSource source = Kernel(
      "#include \"core/base.cuh\"\n#include \"user/score_mod.cuh\"\n"
      "extern \"C\" __global__ void k(float* p) { *p = ScoreMod(*p); }\n");
  source.generated_headers = {{"generated/other.cuh", "int broken here;\n"},
                              {"user/score_mod.cuh", header_text}};
  return source;
}

TEST_F(NvrtcCompilerTest, ErrorInTheUsersSnippetIsInvalidArgument) {
  const std::vector<artifact::SourceFile> bundle = {{"core/base.cuh", "#pragma once\n"}};
  const auto binary =
      Compile(compiler_,
              WithUserMod("#pragma once\n#line 1 \"my mods/alibi.cu\"\n"
                          "__device__ float ScoreMod(float x) {\n  return x + slope;\n}\n"),
              kTarget, bundle);
  ASSERT_EQ(binary.status().code(), absl::StatusCode::kInvalidArgument) << binary.status();
  EXPECT_THAT(std::string(binary.status().message()),
              StartsWith("error in my mods/alibi.cu line 2: "));
  EXPECT_THAT(std::string(binary.status().message()), HasSubstr("\"slope\" is undefined"));
  EXPECT_THAT(LogPayload(binary.status()), HasSubstr("slope"));
  const auto unnamed = Compile(compiler_, WithUserMod("nonsense;\n"), kTarget, bundle);
  EXPECT_EQ(unnamed.status().code(), absl::StatusCode::kInvalidArgument) << unnamed.status();
}

TEST_F(NvrtcCompilerTest, ErrorsInOurOwnFilesAreInternal) {
  const std::string good = "__device__ float ScoreMod(float x) { return x; }\n";
  const auto in_bundle =
      Compile(compiler_, WithUserMod(good), kTarget, {{"core/base.cuh", "not C++;\n"}});
  EXPECT_EQ(in_bundle.status().code(), absl::StatusCode::kInternal);
  const auto in_generated = Compile(compiler_, WithUserMod(good), kTarget,
                                    {{"core/base.cuh", "#include \"generated/other.cuh\"\n"}});
  EXPECT_EQ(in_generated.status().code(), absl::StatusCode::kInternal);
}

TEST_F(NvrtcCompilerTest, UnknownTargetIsUnavailableAndNamesVersionTargetAndPath) {
  const std::string version = *compiler_.Version();
  for (const char* target : {"sm_35", "sm_90f", "sm_90x", "sm_999", "gfx942", ""}) {
    const auto binary = Compile(compiler_, ReverseKernel(), target);
    EXPECT_EQ(binary.status().code(), absl::StatusCode::kUnavailable)
        << target << ": " << binary.status();
    const std::string message(binary.status().message());
    EXPECT_THAT(message, HasSubstr("NVRTC " + version));
    EXPECT_THAT(message, HasSubstr(std::string("does not compile for ") + target));
    EXPECT_THAT(message, HasSubstr(library_));
    EXPECT_THAT(message, HasSubstr("pip install"));
  }
}

TEST_F(NvrtcCompilerTest, UnitWithoutTheNamedKernelIsInternal) {
  artifact::KernelSource source = ReverseKernel();
  source.entry_name = "another";
  const auto binary = Compile(compiler_, source);
  EXPECT_EQ(binary.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(binary.status().message()), HasSubstr("another"));
}

TEST_F(NvrtcCompilerTest, SpillsAndStackAreReported) {
  const auto binary = Compile(compiler_, Kernel(R"(
extern "C" __global__ void __launch_bounds__(1024, 2) k(float* p, int n) {
  float a[128];
#pragma unroll
  for (int i = 0; i < 128; ++i) a[i] = p[i * 1024 + threadIdx.x];
  for (int r = 0; r < n; ++r) {
#pragma unroll
    for (int i = 0; i < 128; ++i) a[i] = a[i] * a[(i + 37) % 128] + p[r];
  }
#pragma unroll
  for (int i = 0; i < 128; ++i) p[i * 1024 + threadIdx.x] = a[i];
}
)"));
  ASSERT_TRUE(binary.ok()) << binary.status();
  EXPECT_LE(binary->usage.registers, 32);
  EXPECT_GT(binary->usage.spill_store_bytes, 100);
  EXPECT_GT(binary->usage.spill_load_bytes, 100);
  EXPECT_GT(binary->usage.stack_bytes, 100);
}

TEST_F(NvrtcCompilerTest, ParallelCompilesAgreeWithASingleOne) {
  const auto alone = Compile(compiler_, ReverseKernel());
  ASSERT_TRUE(alone.ok());
  std::atomic<int> equal = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 4; ++i) {
        // Half of them fail, and must not disturb the others.
        if (t % 2 == 1) {
          if (Compile(compiler_, Kernel("nonsense")).status().code() ==
              absl::StatusCode::kInternal) {
            ++equal;
          }
          continue;
        }
        const auto binary = Compile(compiler_, ReverseKernel());
        if (binary.ok() && binary->cubin == alone->cubin && binary->log == alone->log) ++equal;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, 8 * 4);
}

TEST_F(NvrtcCompilerTest, ProcessStateStaysAsItWas) {
  EXPECT_IN_FRESH_PROCESS({
    using tilewright::testing::ProcessState;
    const ProcessState before = ProcessState::Now();
    rlimit stack_before = {};
    getrlimit(RLIMIT_STACK, &stack_before);
    std::atomic<bool> done = false;
    std::atomic<int> raised = 0;
    // NVRTC's own default is to raise the limit of the stack while it compiles.
    std::thread watcher([&] {
      while (!done) {
        rlimit now = {};
        getrlimit(RLIMIT_STACK, &now);
        if (now.rlim_cur != stack_before.rlim_cur) ++raised;
      }
    });
    const NvrtcCompiler compiler{NvrtcCompiler::Options()};
    EXPECT_TRUE(Compile(compiler, ReverseKernel()).ok());
    EXPECT_FALSE(Compile(compiler, Kernel("nonsense")).ok());
    done = true;
    watcher.join();
    EXPECT_EQ(raised, 0);
    EXPECT_TRUE(before == ProcessState::Now());
  });
}

TEST_F(NvrtcCompilerTest, ACallersShallowStackIsEnough) {
  EXPECT_IN_FRESH_PROCESS({
    pthread_attr_t attributes;
    ASSERT_EQ(pthread_attr_init(&attributes), 0);
    ASSERT_EQ(pthread_attr_setstacksize(&attributes, size_t{192} << 10), 0);
    pthread_t thread = {};
    bool compiled = false;
    const auto compile = [](void* result) -> void* {
      const NvrtcCompiler compiler{NvrtcCompiler::Options()};
      // Recursion of the front end's: 100 instantiations deep.
      const auto binary = Compile(
          compiler,
          Kernel("template <int N> struct Deep {\n"
                 "  static __device__ float Of(const float* p, float x) {\n"
                 "    return Deep<N - 1>::Of(p, x * p[N] + p[N + 1]);\n  }\n};\n"
                 "template <> struct Deep<0> {\n"
                 "  static __device__ float Of(const float*, float x) { return x; }\n};\n"
                 "extern \"C\" __global__ void k(float* p) { *p = Deep<100>::Of(p, *p); }\n"));
      *static_cast<bool*>(result) = binary.ok();
      return nullptr;
    };
    ASSERT_EQ(pthread_create(&thread, &attributes, compile, &compiled), 0);
    pthread_join(thread, nullptr);
    EXPECT_TRUE(compiled);
  });
}

int64_t ResidentBytes() {
  const std::string statm = ReadFile("/proc/self/statm");
  return std::strtoll(statm.c_str() + statm.find(' '), nullptr, 10) * sysconf(_SC_PAGESIZE);
}

TEST_F(NvrtcCompilerTest, ManyCompilesKeepTheMemoryFlat) {
  // A program that is not destroyed keeps its copy of the source, at the least.
  const std::string ballast(size_t{512} << 10, ' ');
  const auto compile_some = [&](int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_TRUE(Compile(compiler_, Kernel("extern \"C\" __global__ void k() {}" + ballast)).ok());
      ASSERT_FALSE(Compile(compiler_, Kernel("nonsense" + ballast)).ok());
    }
  };
  compile_some(10);
  const int64_t before = ResidentBytes();
  compile_some(100);
  EXPECT_LT(ResidentBytes() - before, int64_t{16} << 20);
}

TEST_F(NvrtcCompilerTest, NeverTouchesTheDriver) {
  EXPECT_IN_FRESH_PROCESS({
    // Whoever asks for libcuda.so.1 from here on gets one that ends the process in cuInit.
    EXPECT_NE(dlopen(TILEWRIGHT_ABORTING_LIBCUDA, RTLD_NOW | RTLD_GLOBAL), nullptr);
    const NvrtcCompiler compiler{NvrtcCompiler::Options()};
    EXPECT_TRUE(compiler.Identity().ok());
    EXPECT_TRUE(Compile(compiler, ReverseKernel()).ok());
    EXPECT_TRUE(Compile(compiler, ReverseKernel()).ok());
  });
}

// ---- damaged installations
// ------------------------------------------------------------------------

class DamagedNvrtcTest : public NvrtcCompilerTest {
 protected:
  void SetUp() override {
    NvrtcCompilerTest::SetUp();
    if (IsSkipped()) return;
    LinkOrCopy(library_, Library());
    for (const auto& entry : fs::directory_iterator(fs::path(library_).parent_path())) {
      const std::string name = entry.path().filename().string();
      if (name.rfind("libnvrtc-builtins.so.", 0) == 0) builtins_.push_back(entry.path().string());
    }
    if (builtins_.empty()) GTEST_SKIP() << "no builtins beside " << library_;
  }
  std::string Library() const { return folder_ / fs::path(library_).filename().string(); }
  std::string Copied(const std::string& path) const {
    return folder_ / fs::path(path).filename().string();
  }
  NvrtcCompiler::Options Options() const { return {.nvrtc_path = Library()}; }

  TempFolder folder_;
  std::vector<std::string> builtins_;
};

TEST_F(DamagedNvrtcTest, AWholeCopyCompilesAndHasTheSameIdentity) {
  for (const std::string& path : builtins_) LinkOrCopy(path, Copied(path));
  EXPECT_IN_FRESH_PROCESS({
    const NvrtcCompiler compiler(Options());
    EXPECT_EQ(compiler.Identity()->id, compiler_.Identity()->id);
    EXPECT_EQ(compiler.Identity()->path, Library());
    EXPECT_TRUE(Compile(compiler, ReverseKernel()).ok());
    EXPECT_GT(CountMapped(folder_.path() + "/libnvrtc-builtins"), 0);
  });
}

TEST_F(DamagedNvrtcTest, TruncatedBuiltinsAreAnErrorAndNoCrash) {
  for (const std::string& path : builtins_) {
    const std::string whole = ReadFile(path);
    WriteFile(Copied(path), std::string_view(whole).substr(0, whole.size() / 2));
  }
  EXPECT_IN_FRESH_PROCESS({
    const NvrtcCompiler compiler(Options());
    for (const absl::Status& status :
         {compiler.Identity().status(), Compile(compiler, ReverseKernel()).status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
      EXPECT_THAT(std::string(status.message()), HasSubstr("is truncated"));
      EXPECT_THAT(std::string(status.message()), HasSubstr("libnvrtc-builtins"));
    }
    EXPECT_FALSE(compiler.loaded());
  });
}

TEST_F(DamagedNvrtcTest, RepairIsNoticedWithoutARestart) {
  for (const std::string& path : builtins_) WriteFile(Copied(path), "not a library");
  EXPECT_IN_FRESH_PROCESS({
    const NvrtcCompiler compiler(Options());
    EXPECT_FALSE(Compile(compiler, ReverseKernel()).ok());
    for (const std::string& path : builtins_) {
      fs::remove(Copied(path));
      LinkOrCopy(path, Copied(path));
    }
    EXPECT_TRUE(Compile(compiler, ReverseKernel()).ok());
  });
}

TEST_F(DamagedNvrtcTest, OtherBuiltinsOfTheSameNameInTheProcessAreRefused) {
  for (const std::string& path : builtins_) LinkOrCopy(path, Copied(path));
  TempFolder other;
  std::vector<std::string> others;
  for (const std::string& path : builtins_) {
    // Loads like the original, but is another file by its size.
    others.push_back(other / fs::path(path).filename().string());
    WriteFile(others.back(), ReadFile(path) + "and more");
  }
  EXPECT_IN_FRESH_PROCESS({
    for (const std::string& path : others) EXPECT_NE(dlopen(path.c_str(), RTLD_NOW), nullptr);
    const NvrtcCompiler compiler(Options());
    const auto binary = Compile(compiler, ReverseKernel());
    EXPECT_EQ(binary.status().code(), absl::StatusCode::kUnavailable) << binary.status();
    EXPECT_THAT(std::string(binary.status().message()), HasSubstr("has mapped another"));
  });
}

TEST(MissingNvrtcTest, IsUnavailableAndSaysWhatToInstall) {
  const NvrtcCompiler compiler({.nvrtc_path = "/nonexistent/libnvrtc.so.13"});
  for (const absl::Status& status :
       {compiler.Identity().status(), compiler.Version().status(),
        compiler.SupportedArchs().status(), Compile(compiler, ReverseKernel()).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("/nonexistent/libnvrtc.so.13"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("pip install nvidia-cuda-nvrtc"));
  }
  EXPECT_FALSE(compiler.loaded());
}

// ---- every version at hand
// ------------------------------------------------------------------------

// The one that the search finds (as ""), and every libnvrtc below TILEWRIGHT_TEST_NVRTC_DIR.
std::vector<std::string> Versions() {
  std::vector<std::string> paths = {""};
  std::error_code error;
  for (fs::recursive_directory_iterator it(TILEWRIGHT_TEST_NVRTC_DIR, error), end;
       !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.rfind("libnvrtc.so.", 0) == 0) paths.push_back(it->path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

class EveryNvrtcTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const auto identity = compiler_.Identity();
    if (!identity.ok()) GTEST_SKIP() << "no NVRTC here: " << identity.status();
  }
  const NvrtcCompiler compiler_{NvrtcCompiler::Options{.nvrtc_path = GetParam()}};
};

TEST_P(EveryNvrtcTest, CompilesAndReports) {
  const auto version = compiler_.Version();
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_THAT(*version, MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  const auto archs = compiler_.SupportedArchs();
  ASSERT_TRUE(archs.ok()) << archs.status();
  EXPECT_THAT(*archs, Contains(80));
  EXPECT_THAT(*archs, Contains(90));
  for (const char* target : {"sm_80", "sm_90a"}) {
    const auto binary = Compile(compiler_, ReverseKernel(), target);
    ASSERT_TRUE(binary.ok()) << binary.status();
    EXPECT_EQ(binary->entry_name, "k");
    EXPECT_EQ(binary->target, target);
    EXPECT_EQ(binary->compiler, "nvrtc " + *version);
    EXPECT_EQ(binary->cubin.substr(0, 4),
              "\x7f"
              "ELF");
    EXPECT_NE(binary->cubin.find("k\0", 0, 2), std::string::npos);
    EXPECT_GT(binary->usage.registers, 4);
    EXPECT_LE(binary->usage.registers, 32);
    EXPECT_EQ(binary->usage.static_smem_bytes, 1024);
    EXPECT_EQ(binary->usage.spill_store_bytes, 0);
    EXPECT_GT(binary->compile_ms, 0);
    EXPECT_THAT(binary->log, HasSubstr("Compiling entry function 'k'"));
    const auto again = Compile(compiler_, ReverseKernel(), target);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->cubin, binary->cubin);
    EXPECT_EQ(again->log, binary->log);
  }
}

TEST_P(EveryNvrtcTest, CompilesCxx20WithLineInfo) {
  const auto source = Kernel(
      "template <class T> concept Small = sizeof(T) <= 4;\n"
      "template <Small T> __device__ T Twice(T x) { return x + x; }\n"
      "extern \"C\" __global__ void k(float* p) { *p = Twice(*p); }\n");
  const auto plain = compiler_.Compile({source, {}, kTarget, CompileOptions(kTarget, false)});
  const auto lines = compiler_.Compile({source, {}, kTarget, CompileOptions(kTarget, true)});
  ASSERT_TRUE(plain.ok()) << plain.status();
  ASSERT_TRUE(lines.ok()) << lines.status();
  EXPECT_EQ(plain->cubin.find("debug_line"), std::string::npos);
  EXPECT_NE(lines->cubin.find("debug_line"), std::string::npos);
}

TEST_P(EveryNvrtcTest, ErrorsAreToldApart) {
  const auto internal = Compile(compiler_, Kernel("int broken = nothing;\n"));
  EXPECT_EQ(internal.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(LogPayload(internal.status()), HasSubstr("k.cu(1): error"));
  artifact::KernelSource source =
      Kernel("#include \"user/mask_mod.cuh\"\nextern \"C\" __global__ void k() {}\n");
  source.generated_headers = {{"user/mask_mod.cuh", "#line 1 \"mine.cu\"\nsyntax error\n"}};
  EXPECT_EQ(Compile(compiler_, source).status().code(), absl::StatusCode::kInvalidArgument);
  for (const char* target : {"sm_35", "sm_90f", "sm_999"}) {
    EXPECT_EQ(Compile(compiler_, ReverseKernel(), target).status().code(),
              absl::StatusCode::kUnavailable)
        << target;
  }
}

INSTANTIATE_TEST_SUITE_P(Nvrtc, EveryNvrtcTest, ::testing::ValuesIn(Versions()),
                         [](const ::testing::TestParamInfo<std::string>& info) {
                           std::string name = info.param.empty() ? "found" : info.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !std::isalnum(c); },
                               '_');
                           return name;
                         });

TEST(EveryNvrtcTest, MoreThanOneVersionIsAtHand) {
  if (Versions().size() < 2) {
    GTEST_SKIP() << "no further libnvrtc.so.* below " TILEWRIGHT_TEST_NVRTC_DIR
                    ": one version is tested only (pip install --target puts them there)";
  }
  std::vector<std::string> versions;
  for (const std::string& path : Versions()) {
    const NvrtcCompiler compiler({.nvrtc_path = path});
    if (const auto version = compiler.Version(); version.ok()) versions.push_back(*version);
  }
  std::sort(versions.begin(), versions.end());
  versions.erase(std::unique(versions.begin(), versions.end()), versions.end());
  EXPECT_GE(versions.size(), 2u);
}

}  // namespace
}  // namespace tilewright::compile
