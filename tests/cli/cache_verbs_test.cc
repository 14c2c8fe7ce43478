// tilewright cache: packs, explanations, verification, making room.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "build/entry_codec.h"
#include "build/kernel_builder.h"
#include "cache/disk_store.h"
#include "cli/spec_arguments.h"
#include "cli/toolchain.h"
#include "emit/template_bundle.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "program_runner.h"
#include "tests/support/child_process.h"
#include "tests/support/run_command.h"

namespace tilewright::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::vector<std::string> kSpecs = {"fwd bf16 b=1 h=2 s=64 d=16",
                                         "fwd fp16 b=1 h=2 s=64 d=16 causal"};

class CacheVerbsTest : public ::testing::Test {
 protected:
  Json Compile(const std::string& archs = "sm_90a") {
    const Outcome outcome = Invoke({"compile", kSpecs[0], kSpecs[1], "--arch", archs, "--json"});
    EXPECT_EQ(outcome.exit_code, kExitFine) << outcome.out << outcome.err;
    return outcome.json();
  }
  // Fields that `cache explain` names.
  static std::vector<std::string> Fields(const Json& explained) {
    std::vector<std::string> fields;
    for (const Json& difference : explained["differs"]) {
      fields.push_back(difference["field"].get<std::string>());
    }
    return fields;
  }
  std::string OnlyEntry() {
    std::string path;
    for (const auto& file :
         std::filesystem::recursive_directory_iterator(folder_.path("store/v1/k"))) {
      if (file.is_regular_file()) path = file.path();
    }
    return path;
  }

  TemporaryFolder folder_;
  ScopedVariable store_{"TILEWRIGHT_CACHE_DIR", folder_.path("store")};
  const std::string pack_ = folder_.path("kernels.twp");
};

// R28: made without a GPU for two architectures, moved, used on an empty store.
TEST_F(CacheVerbsTest, AMovedPackOfTwoArchitecturesIsAllHits) {
  const std::string matrix = folder_.Write("m.txt", kSpecs[0] + "\n" + kSpecs[1] + "\n");
  const Outcome compiled =
      Invoke({"compile", "--matrix", matrix, "--arch", "sm_80", "--arch", "sm_90a", "--json"});
  ASSERT_EQ(compiled.exit_code, kExitFine) << compiled.out;
  ASSERT_EQ(compiled.json()["compiled"], 4);
  const Outcome exported = Invoke({"cache", "export", pack_, "--json"});
  ASSERT_EQ(exported.exit_code, kExitFine) << exported.out;
  ExpectShape(exported.json(), "cache_export.txt");
  EXPECT_EQ(exported.json()["entries"], 4);

  std::filesystem::create_directory(folder_.path("far"));
  const std::string moved = folder_.path("far/away");
  std::filesystem::rename(pack_, moved);
  std::filesystem::remove_all(folder_.path("store"));
  const ScopedVariable packs("TILEWRIGHT_CACHE_PACKS", moved);
  const Json used = Compile("sm_80,sm_90a");
  EXPECT_EQ(used["compiled"], 0);
  EXPECT_EQ(used["hits"], 4);
  // Frozen and without a compiler, it is all that is needed.
  const ScopedVariable frozen("TILEWRIGHT_FROZEN", "1");
  const ScopedVariable nvrtc("TILEWRIGHT_NVRTC_PATH", "/nowhere/libnvrtc.so");
  EXPECT_EQ(Compile("sm_80,sm_90a")["hits"], 4);

  // R29: pinned by its digest, and by another.
  const std::string digest = exported.json()["sha256"].get<std::string>();
  {
    const ScopedVariable pin("TILEWRIGHT_PACK_SHA256", digest);
    EXPECT_EQ(Compile("sm_80,sm_90a")["hits"], 4);
  }
  const ScopedVariable pin("TILEWRIGHT_PACK_SHA256", std::string(64, 'a'));
  const Outcome refused = Invoke({"compile", kSpecs[0], "--json"});
  EXPECT_EQ(refused.exit_code, kExitProblem);
  EXPECT_EQ(refused.json()["failed"], 1);
  const Json doctor = Invoke({"doctor", "--json"}).json();
  ASSERT_EQ(doctor["packs"].size(), 1u);
  EXPECT_EQ(doctor["packs"][0]["used"], false);
  EXPECT_THAT(doctor["packs"][0]["refused"].get<std::string>(), HasSubstr(digest));
}

TEST_F(CacheVerbsTest, ExportTakesWhatIsAskedForAndNamesWhatIsMissing) {
  Compile("sm_80,sm_90a");
  const auto count = [&](std::vector<std::string> filter) {
    std::vector<std::string> arguments = {"cache", "export", pack_, "--json"};
    arguments.insert(arguments.end(), filter.begin(), filter.end());
    const Outcome outcome = Invoke(arguments);
    EXPECT_EQ(outcome.exit_code, kExitFine) << outcome.out;
    return outcome.json()["entries"].get<int>();
  };
  EXPECT_EQ(count({}), 4);
  EXPECT_EQ(count({"--arch", "sm_80"}), 2);
  EXPECT_EQ(count({"--spec", kSpecs[0]}), 1);
  EXPECT_EQ(count({"--spec", kSpecs[0], "--arch", "sm_80,sm_90a"}), 2);
  const std::string matrix = folder_.Write("m.txt", kSpecs[0] + "\n" + kSpecs[1] + "\n");
  EXPECT_EQ(count({"--matrix", matrix, "--arch", "sm_80"}), 2);
  const Json list = Invoke({"cache", "ls", "--json"}).json();
  const std::string key = list["entries"][1]["key"].get<std::string>();
  EXPECT_EQ(count({"--key", key.substr(0, 12)}), 1);

  const Outcome missing =
      Invoke({"cache", "export", pack_, "--spec", "fwd bf16 b=1 h=2 s=64 d=8", "--json"});
  EXPECT_EQ(missing.exit_code, kExitProblem);
  EXPECT_THAT(missing.json()["error"]["message"].get<std::string>(), HasSubstr("d=8"));
  EXPECT_EQ(Invoke({"cache", "export", "--arch", "sm_75", pack_}).exit_code, kExitProblem);
  EXPECT_EQ(Invoke({"cache", "export", "/nowhere/x"}).exit_code, kExitProblem);
  EXPECT_EQ(Invoke({"cache", "export", pack_, "--spec", "fwd bf17"}).exit_code, kExitUsage);
  EXPECT_EQ(Invoke({"cache", "export", pack_, "--c-array", "2x"}).exit_code, kExitUsage);
  EXPECT_EQ(Invoke({"cache", "export"}).exit_code, kExitUsage);
}

TEST_F(CacheVerbsTest, ImportVerifiesAndPublishes) {
  Compile();
  const Json exported = Invoke({"cache", "export", pack_, "--json"}).json();
  const ScopedVariable elsewhere("TILEWRIGHT_CACHE_DIR", folder_.path("other"));
  const Outcome imported = Invoke(
      {"cache", "import", pack_, "--sha256", exported["sha256"].get<std::string>(), "--json"});
  ASSERT_EQ(imported.exit_code, kExitFine) << imported.out;
  ExpectShape(imported.json(), "cache_import.txt");
  EXPECT_EQ(imported.json()["imported"], 2);
  EXPECT_EQ(Compile()["hits"], 2);
  // A store's own directory is a source as well.
  std::filesystem::remove_all(folder_.path("other"));
  EXPECT_EQ(Invoke({"cache", "import", folder_.path("store"), "--json"}).json()["imported"], 2);

  const Outcome refused =
      Invoke({"cache", "import", pack_, "--sha256", std::string(64, '0'), "--json"});
  EXPECT_EQ(refused.exit_code, kExitProblem);
  EXPECT_EQ(Invoke({"cache", "import", pack_, "--sha256", "0"}).exit_code, kExitUsage);
  // One entry damaged: the other is taken.
  std::string bytes = ReadWhole(pack_);
  bytes[bytes.size() - 100] ^= 1;
  folder_.Write("kernels.twp", bytes);
  std::filesystem::remove_all(folder_.path("other"));
  const Outcome partly = Invoke({"cache", "import", pack_, "--json"});
  EXPECT_EQ(partly.exit_code, kExitProblem);
  EXPECT_EQ(partly.json()["imported"], 1);
  EXPECT_THAT(partly.json()["bad"][0]["reason"].get<std::string>(), StartsWith("corrupt: "));
  const ScopedVariable memory("TILEWRIGHT_CACHE_MODE", "memory");
  EXPECT_EQ(Invoke({"cache", "import", pack_}).exit_code, kExitProblem);
}

// R2, R10: one thing changed, a miss that names it.
TEST_F(CacheVerbsTest, ExplainNamesTheFieldOfAMiss) {
  ASSERT_EQ(Invoke({"compile", kSpecs[0]}).exit_code, kExitFine);
  const std::vector<std::string> explain = {"cache", "explain", kSpecs[0], "--json"};
  const Outcome stored = Invoke(explain);
  EXPECT_EQ(stored.exit_code, kExitFine) << stored.out;
  EXPECT_EQ(stored.json()["state"], "stored");
  EXPECT_TRUE(stored.json()["differs"].empty());
  {
    const ScopedVariable option("TILEWRIGHT_LINEINFO", "1");
    const Outcome missed = Invoke(explain);
    EXPECT_EQ(missed.exit_code, kExitProblem);
    ExpectShape(missed.json(), "cache_explain.txt");
    EXPECT_THAT(Fields(missed.json()), ::testing::ElementsAre("options"));
    EXPECT_EQ(missed.json()["differs"][0]["wanted"], "-lineinfo");
    EXPECT_EQ(missed.json()["against"]["key"], stored.json()["key"]);
    const Json top = Invoke({"explain", kSpecs[0], "--json"}).json();
    EXPECT_THAT(top["store"]["state"].get<std::string>(),
                HasSubstr("differs in options (wanted -lineinfo"));
  }
  {
    const std::filesystem::path templates = folder_.path("templates");
    for (const artifact::SourceFile& file : emit::EmbeddedTemplates().files) {
      std::filesystem::create_directories((templates / file.name).parent_path());
      std::ofstream(templates / file.name, std::ios::binary) << file.text;
    }
    const ScopedVariable directory("TILEWRIGHT_TEMPLATE_DIR", templates);
    EXPECT_EQ(Invoke(explain).json()["state"], "stored");
    std::ofstream(templates / emit::EmbeddedTemplates().files[0].name, std::ios::app) << " ";
    const Outcome missed = Invoke(explain);
    EXPECT_THAT(Fields(missed.json()), ::testing::ElementsAre("templates"));
    // And the program that compiles says it as well.
    const Json compiled = Invoke({"compile", kSpecs[0], "--json"}).json();
    EXPECT_THAT(compiled["kernels"][0]["miss_reason"].get<std::string>(),
                AllOf(StartsWith("absent; entry "), HasSubstr("differs in templates")));
  }
  {
    const ScopedVariable nvrtc("NV_NVVM_VERSION", "nvvm-latest");
    const Outcome missed = Invoke(explain);
    EXPECT_EQ(missed.exit_code, kExitProblem);
    EXPECT_THAT(Fields(missed.json()), ::testing::ElementsAre("compiler"));
  }
  const Json target = Invoke({"cache", "explain", kSpecs[0], "--arch", "sm_80", "--json"}).json();
  EXPECT_THAT(Fields(target), ::testing::Contains("target"));
}

// R3, R4: whoever asks, from wherever and under whatever name, the key is the same and the entry is
// a hit. Each time a process of its own, so that its addresses differ too.
TEST_F(CacheVerbsTest, EveryProcessFindsTheSameEntry) {
  namespace fs = std::filesystem;
  using tilewright::testing::RunCommand;
  ASSERT_EQ(Invoke({"compile", kSpecs[0]}).exit_code, kExitFine);
  const Json stored = Invoke({"cache", "explain", kSpecs[0], "--json"}).json();
  const std::string program = TILEWRIGHT_PROGRAM;
  const bool root = geteuid() == 0;
  const bool other_hosts = root && RunCommand("unshare --uts true 2>&1").exit_code == 0;
  const std::string as_user = "setpriv --reuid 12345 --regid 12345 --clear-groups ";
  const bool other_users =
      root && RunCommand(as_user + "test -x '" + program + "' 2>&1").exit_code == 0;
  const auto give_to = [&](uid_t user) {
    ASSERT_EQ(chown(folder_.path("").c_str(), user, user), 0);
    for (const auto& item : fs::recursive_directory_iterator(folder_.path(""))) {
      ASSERT_EQ(lchown(item.path().c_str(), user, user), 0);
    }
  };
  // What the compiler is found by stays; everything else of the environment goes.
  std::string compiler;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH", "TILEWRIGHT_NVRTC_PATH"}) {
    if (const char* value = getenv(name); value != nullptr) {
      compiler += std::string(name) + "='" + value + "' ";
    }
  }
  std::mt19937 dice(3);
  std::string store = folder_.path("store");
  for (int i = 0; i < 20; ++i) {
    const std::string number = std::to_string(i);
    const std::string moved = folder_.path("store of " + number);
    fs::rename(store, moved);
    store = moved;
    for (const auto& item : fs::recursive_directory_iterator(store)) {
      fs::last_write_time(item.path(), fs::file_time_type::clock::now() -
                                           std::chrono::seconds(dice() % 100'000'000));
    }
    const std::string place = folder_.path("place " + number);
    fs::create_directory(place);
    const char* const locales[] = {"C", "C.UTF-8", "de_DE.UTF-8", "tr_TR.UTF-8"};
    const char* const zones[] = {"UTC", "Asia/Kathmandu", "America/St_Johns"};
    std::string command = "cd '" + place + "' && ";
    const bool user = other_users && i % 3 == 2;
    give_to(user ? 12345 : geteuid());
    if (other_hosts) {
      command += "unshare --uts sh -c 'echo host" + number +
                 " > /proc/sys/kernel/hostname && exec \"$@\"' sh ";
    }
    if (user) command += as_user;
    command += "env -i " + compiler + "TILEWRIGHT_CACHE_DIR='" + store +
               "' LC_ALL=" + locales[dice() % 4] + " TZ=" + zones[dice() % 3] + " USER=user" +
               number + " PADDING=" + std::string(dice() % 5000, 'x') +
               " bash -c 'exec -a program" + number + " \"$@\"' bash '" + program +
               "' cache explain " + kSpecs[0] + " --json 2> /dev/null";
    const auto told = RunCommand(command);
    EXPECT_EQ(told.exit_code, kExitFine) << told.text;
    const Json json = Json::parse(told.text, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(json.is_object()) << told.text;
    EXPECT_EQ(json["key"], stored["key"]) << i;
    EXPECT_EQ(json["state"], "stored") << i;
  }
  give_to(geteuid());
}

// R63: every builder of a process counts on the same store.
TEST_F(CacheVerbsTest, StatsCountEachEventOnce) {
  const auto totals = [] { return Invoke({"cache", "stats", "--json"}).json()["totals"]; };
  Compile();
  Json sums = totals();
  EXPECT_EQ(sums["compiles"], 2);
  EXPECT_EQ(sums["publishes"], 2);
  EXPECT_EQ(sums["misses_absent"], 2);
  EXPECT_EQ(sums["store_disk_hits"], 0);
  Compile();
  sums = totals();
  EXPECT_EQ(sums["compiles"], 2);
  EXPECT_EQ(sums["store_disk_hits"], 2);
  // This one has a builder of its own for looking, on the same store.
  ASSERT_EQ(Invoke({"explain", kSpecs[0], "--json"}).json()["store"]["state"], "stored");
  EXPECT_EQ(totals()["store_disk_hits"], 3);
  EXPECT_EQ(totals()["compiles"], 2);
}

TEST_F(CacheVerbsTest, ExplainComparesTwoEntries) {
  Compile();
  const Json list = Invoke({"cache", "ls", "--json"}).json();
  const std::string one = list["entries"][0]["key"].get<std::string>();
  const std::string two = list["entries"][1]["key"].get<std::string>();
  const Outcome both = Invoke({"cache", "explain", one, "--against", two, "--json"});
  EXPECT_EQ(both.exit_code, kExitFine) << both.out;
  EXPECT_EQ(both.json()["against"]["key"], two);
  EXPECT_THAT(Fields(both.json()),
              AllOf(::testing::Contains("entry"), ::testing::Contains("unit_sha256"),
                    ::testing::Not(::testing::Contains("options"))));
  EXPECT_EQ(Invoke({"cache", "explain", one, "--json"}).json()["against"]["key"], two);
  const Outcome same = Invoke({"cache", "explain", one, "--against", one});
  EXPECT_THAT(same.out, HasSubstr("in nothing"));
  EXPECT_EQ(Invoke({"cache", "explain", "fedcba9876543210"}).exit_code, kExitProblem);
  EXPECT_EQ(Invoke({"cache", "explain", one, "--against", "fedcba98765432"}).exit_code,
            kExitProblem);
  EXPECT_EQ(Invoke({"cache", "explain", "fwd", "bf17", "b=1"}).exit_code, kExitUsage);
  EXPECT_EQ(Invoke({"cache", "explain", one, two}).exit_code, kExitUsage);
  EXPECT_EQ(Invoke({"cache", "explain"}).exit_code, kExitUsage);
}

TEST_F(CacheVerbsTest, VerifyFindsDamageAndRecompilesInFreshProcesses) {
  Compile();
  const Outcome good = Invoke({"cache", "verify", "--recompile", "2", "--json"});
  ASSERT_EQ(good.exit_code, kExitFine) << good.out;
  ExpectShape(good.json(), "cache_verify.txt");
  EXPECT_EQ(good.json()["entries"], 2);
  EXPECT_EQ(good.json()["identical"], 2);
  EXPECT_EQ(Invoke({"cache", "verify", "--recompile", "1", "--json"}).json()["recompiled"], 1);

  std::string bytes = ReadWhole(OnlyEntry());
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(OnlyEntry(), std::ios::binary | std::ios::trunc) << bytes;
  const Outcome bad = Invoke({"cache", "verify", "--json"});
  EXPECT_EQ(bad.exit_code, kExitProblem);
  ASSERT_EQ(bad.json()["bad"].size(), 1u);
  EXPECT_THAT(bad.json()["bad"][0]["reason"].get<std::string>(), HasSubstr("digest"));
  // It was moved aside.
  EXPECT_EQ(Invoke({"cache", "verify", "--json"}).json()["entries"], 1);
  EXPECT_EQ(Invoke({"cache", "verify", "--recompile", "-1"}).exit_code, kExitUsage);
}

// Partly unrolled loops over shared memory, as kernels have them: what NVRTC 13.0 makes of it
// depends on earlier compiles of the process.
constexpr char kLeakyText[] = R"(
extern "C" __global__ void leaky(const float* a, const float* b, float* c, int n, const int* page,
                                 long long stride) {
  __shared__ float s[4096];
  float acc[2] = {0.f, 0.f};
  float m = -1e30f, l = 0.f;
  for (int t = 0; t < n; t += 8) {
    __syncthreads();
    for (int i = threadIdx.x; i < 512; i += 128) {
      int row = t + i / 64;
      s[i] = row < n ? a[(long long)page[row / 16] * stride + (row % 16) * 64 + i % 64] : 0.f;
    }
    __syncthreads();
    float sc[8];
    #pragma unroll
    for (int j = 0; j < 8; ++j) {
      float x = 0.f;
      #pragma unroll 8
      for (int d = 0; d < 64; ++d) x += s[j * 64 + d] * b[d + threadIdx.x];
      sc[j] = t + j < n ? x : -1e30f;
    }
    float mm = m;
    #pragma unroll
    for (int j = 0; j < 8; ++j) mm = fmaxf(mm, sc[j]);
    float f = exp2f(m - mm);
    l *= f;
    m = mm;
    acc[0] *= f;
    acc[1] *= f;
    #pragma unroll
    for (int j = 0; j < 8; ++j) {
      float p = exp2f(sc[j] - m);
      l += p;
      #pragma unroll
      for (int i = 0; i < 2; ++i) acc[i] += p * s[j * 64 + i * 32 + threadIdx.x % 32];
    }
  }
  c[threadIdx.x * 2] = acc[0] / l;
  c[threadIdx.x * 2 + 1] = acc[1] / l;
}
)";

// Finding 4 of NVRTC 13.0: one compile with --Ofast-compile=mid changes every later one of the
// process. The store takes such an entry for good: every digest holds.
TEST_F(CacheVerbsTest, VerifyCatchesWhatALeakingCompilerMade) {
  constexpr int kNoLeak = 77;
  // In a child, so that the other tests keep a clean compiler.
  const int status = tilewright::testing::WaitForChild(tilewright::testing::StartChild([&] {
    const auto tools = Toolchain::Open();
    const auto spec = ReadSpec(kSpecs[0]);
    if (!tools.ok() || !spec.ok()) return 2;
    const auto decision = PlanForTarget(*spec, "sm_90a", (*tools)->options());
    if (!decision.ok()) return 3;
    const artifact::KernelSource source = {"leaky", "leaky.cu", kLeakyText, {}};
    const std::string manifest = (*tools)->builder().Key(source, decision->plan).manifest();
    const compile::NvrtcCompiler& compiler = (*tools)->compiler();
    const auto identity = compiler.Identity();
    if (!identity.ok()) return 4;
    const std::vector<std::string> options = compile::CompileOptions("sm_90a", false);
    std::vector<std::string> leaking = options;
    leaking.emplace_back("--Ofast-compile=mid");
    const auto compile = [&](const std::vector<std::string>& with) {
      return compiler.Compile({source, (*tools)->bundle().files, "sm_90a", with});
    };
    const auto clean = compile(options);
    if (!clean.ok() || !compile(leaking).ok()) return 5;
    const auto binary = compile(options);
    if (!binary.ok()) return 6;
    if (binary->cubin == clean->cubin) return kNoLeak;
    const cache::Entry entry =
        build::EncodeEntry({manifest, identity->id, "leaky", ""}, source, *binary);
    return (*tools)->disk()->Put(entry).ok() ? 0 : 7;
  }));
  if (status == kNoLeak) GTEST_SKIP() << "this version of NVRTC carries nothing over";
  ASSERT_EQ(status, 0);
  EXPECT_EQ(Invoke({"cache", "verify"}).exit_code, kExitFine);
  const Outcome outcome = Invoke({"cache", "verify", "--recompile", "1", "--json"});
  EXPECT_EQ(outcome.exit_code, kExitProblem) << outcome.out;
  EXPECT_EQ(outcome.json()["recompiled"], 1);
  ASSERT_EQ(outcome.json()["differ"].size(), 1u);
  EXPECT_NE(outcome.json()["differ"][0]["stored_sha256"],
            outcome.json()["differ"][0]["compiled_sha256"]);
}

TEST_F(CacheVerbsTest, GcAndClearMakeRoom) {
  Compile();
  const Outcome dry = Invoke({"cache", "gc", "--dry-run", "--max-bytes", "1K", "--json"});
  ASSERT_EQ(dry.exit_code, kExitFine) << dry.out;
  ExpectShape(dry.json(), "cache_gc.txt");
  EXPECT_EQ(dry.json()["removed"], 2);
  EXPECT_EQ(Invoke({"cache", "gc", "--json"}).json()["removed"], 0);
  EXPECT_EQ(Invoke({"cache", "gc", "--max-bytes", "0", "--json"}).json()["entries"], 2);
  EXPECT_EQ(Invoke({"cache", "clear", "--older-than", "3", "--yes", "--json"}).json()["removed"],
            0);
  // One entry was not used for four days.
  const std::string old = OnlyEntry();
  std::filesystem::last_write_time(
      old, std::filesystem::file_time_type::clock::now() - std::chrono::hours(96));
  EXPECT_EQ(Invoke({"cache", "clear", "--older-than", "3"}).exit_code, kExitUsage);
  const Outcome cleared = Invoke({"cache", "clear", "--older-than", "3", "--yes", "--json"});
  ExpectShape(cleared.json(), "cache_clear.txt");
  EXPECT_EQ(cleared.json()["removed"], 1);
  EXPECT_FALSE(std::filesystem::exists(old));
  EXPECT_EQ(Invoke({"cache", "gc", "--max-bytes", "1K", "--json"}).json()["removed"], 1);
  EXPECT_EQ(Invoke({"cache", "clear", "--yes", "--json"}).json()["removed"], 0);
  EXPECT_EQ(Invoke({"cache", "gc", "--max-bytes", "many"}).exit_code, kExitUsage);
  EXPECT_EQ(Invoke({"cache", "clear", "--older-than", "-1", "--yes"}).exit_code, kExitUsage);
  const ScopedVariable memory("TILEWRIGHT_CACHE_MODE", "memory");
  EXPECT_EQ(Invoke({"cache", "gc"}).exit_code, kExitProblem);
  EXPECT_EQ(Invoke({"cache", "clear", "--yes"}).exit_code, kExitProblem);
}

TEST_F(CacheVerbsTest, DoctorSaysWhomTheStoreTrusts) {
  const Json store = Invoke({"doctor", "--json"}).json()["store"];
  ExpectShape(store, "doctor_store.txt");
  EXPECT_EQ(store["trust"], "private");
  EXPECT_EQ(store["mode"], "0700");
  EXPECT_EQ(store["owner"], geteuid());
  EXPECT_FALSE(store["file_system"].get<std::string>().empty());
  std::filesystem::permissions(folder_.path("store"), std::filesystem::perms::all);
  const Outcome outcome = Invoke({"doctor"});
  EXPECT_EQ(outcome.exit_code, kExitProblem);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("kernels are not kept"), HasSubstr("0777")));
}

TEST_F(CacheVerbsTest, HelpNamesEveryVerb) {
  const Outcome help = Invoke({"cache", "--help"});
  for (const char* verb :
       {"stats", "ls", "show", "extract", "explain", "verify", "gc", "clear", "export", "import"}) {
    EXPECT_THAT(help.out, HasSubstr(verb));
    EXPECT_EQ(Invoke({"cache", verb, "--help"}).exit_code, kExitFine);
  }
}

}  // namespace
}  // namespace tilewright::cli
