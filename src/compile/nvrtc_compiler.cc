#include "compile/nvrtc_compiler.h"

#include <nvrtc.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/env.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "compile/compile_log.h"
#include "compile/library_file.h"
#include "compile/nvrtc_api.h"
#include "compile/nvrtc_search.h"

namespace tilewright::compile {
namespace {

constexpr absl::string_view kLogPayload = "tilewright/compile_log";
constexpr int kErrorLines = 6;

// Variables that libnvrtc 12.4 to 13.5 read and that change what it emits, or may. They cannot be
// taken out of the environment of the program that we are a guest of, so they are part of the
// identity.
constexpr std::array<std::string_view, 12> kOutputVariables = {"CAN_FINALIZE_DEBUG",
                                                               "EDG_AUXILIARY_INFO_DIR_NAME",
                                                               "EDG_BASE",
                                                               "EDG_FRONT_END_DAEMON",
                                                               "EDG_MAIN",
                                                               "EDG_MODULES_PATH",
                                                               "EDG_MULTIBYTE_CHAR_TEST_MODE",
                                                               "EDG_NATIVE_MULTIBYTE_TEST_MODE",
                                                               "LLVM_OVERRIDE_PRODUCER",
                                                               "NVRTC_APPEND_FLAGS",
                                                               "NVVM_IR_VER_CHK",
                                                               "NV_NVVM_VERSION"};

// An option that older versions reject.
struct DatedOption {
  std::string_view option;
  int since;  // as CUDA_VERSION
};
constexpr std::string_view kNoCache = "--no-cache";
constexpr std::string_view kRandomSeed = "--frandom-seed=tilewright";
constexpr std::array<DatedOption, 2> kDatedOptions = {DatedOption{kNoCache, 12090},
                                                      DatedOption{kRandomSeed, 12090}};

bool KnowsOption(int version, std::string_view option) {
  return std::none_of(kDatedOptions.begin(), kDatedOptions.end(), [&](const DatedOption& dated) {
    return dated.option == option && version < dated.since;
  });
}

// The kernel that asks NVRTC for the one part of its version that its API does not tell.
constexpr char kProbeSource[] =
    "extern \"C\" __device__ int tilewright_build = __CUDACC_VER_BUILD__;";
constexpr std::string_view kProbeAnswer = "tilewright_build = ";

// NVRTC would raise the process's stack limit while it compiles; told not to, it has what the
// caller's thread has, and overruns 256 KiB (NVRTC 13.0, a kernel of 20 lines). Only touched pages
// of the stack are ever backed by memory.
constexpr size_t kCompileStackBytes = size_t{64} << 20;

void* CallFunction(void* function) {
  (*static_cast<const std::function<void()>*>(function))();
  return nullptr;
}

// Runs `work` on a thread with a deep stack, or on this one where none is to be had.
void OnDeepStack(const std::function<void()>& work) {
  pthread_attr_t attributes;
  pthread_t thread = {};
  bool started = false;
  if (pthread_attr_init(&attributes) == 0) {
    // The program's signal handlers run on the program's own threads, but for faults of this one.
    sigset_t blocked;
    sigset_t before;
    sigfillset(&blocked);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&blocked, fault);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    started = pthread_attr_setstacksize(&attributes, kCompileStackBytes) == 0 &&
              pthread_create(&thread, &attributes, CallFunction,
                             const_cast<std::function<void()>*>(&work)) == 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
  }
  if (started) {
    pthread_join(thread, nullptr);
  } else {
    work();
  }
}

class Program {
 public:
  static absl::StatusOr<Program> Create(const NvrtcApi& api, const char* source, const char* name,
                                        const std::vector<const char*>& header_texts,
                                        const std::vector<const char*>& header_names) {
    Program program(&api);
    TILEWRIGHT_RETURN_IF_ERROR(
        api.Check(api.nvrtcCreateProgram(&program.program_, source, name,
                                         static_cast<int>(header_texts.size()), header_texts.data(),
                                         header_names.data()),
                  "nvrtcCreateProgram"));
    return program;
  }
  Program(Program&& other) noexcept
      : api_(other.api_), program_(std::exchange(other.program_, nullptr)) {}
  Program& operator=(Program&&) = delete;
  ~Program() {
    if (program_ != nullptr) api_->nvrtcDestroyProgram(&program_);
  }

  nvrtcResult Compile(const std::vector<std::string>& options) {
    std::vector<const char*> pointers;
    pointers.reserve(options.size());
    for (const std::string& option : options) pointers.push_back(option.c_str());
    nvrtcResult result = NVRTC_ERROR_INTERNAL_ERROR;
    OnDeepStack([&] {
      result =
          api_->nvrtcCompileProgram(program_, static_cast<int>(pointers.size()), pointers.data());
    });
    return result;
  }

  // NVRTC counts a terminating zero in the sizes of texts.
  absl::StatusOr<std::string> Log() const {
    TILEWRIGHT_ASSIGN_OR_RETURN(std::string log,
                                Output(api_->nvrtcGetProgramLogSize, "nvrtcGetProgramLogSize",
                                       api_->nvrtcGetProgramLog, "nvrtcGetProgramLog"));
    log.resize(std::strlen(log.c_str()));
    return log;
  }
  absl::StatusOr<std::string> Ptx() const {
    return Output(api_->nvrtcGetPTXSize, "nvrtcGetPTXSize", api_->nvrtcGetPTX, "nvrtcGetPTX");
  }
  absl::StatusOr<std::string> Cubin() const {
    return Output(api_->nvrtcGetCUBINSize, "nvrtcGetCUBINSize", api_->nvrtcGetCUBIN,
                  "nvrtcGetCUBIN");
  }

 private:
  explicit Program(const NvrtcApi* api) : api_(api) {}

  absl::StatusOr<std::string> Output(nvrtcResult (*get_size)(nvrtcProgram, size_t*),
                                     const char* size_call, nvrtcResult (*get)(nvrtcProgram, char*),
                                     const char* call) const {
    size_t bytes = 0;
    TILEWRIGHT_RETURN_IF_ERROR(api_->Check(get_size(program_, &bytes), size_call));
    std::string output(bytes, '\0');
    TILEWRIGHT_RETURN_IF_ERROR(api_->Check(get(program_, output.data()), call));
    return output;
  }

  const NvrtcApi* api_;
  nvrtcProgram program_ = nullptr;
};

absl::Status WithLog(absl::Status status, const std::string& log) {
  status.SetPayload(kLogPayload, absl::Cord(log));
  return status;
}

// The SM of "sm_90a": 90.
std::optional<int> SmOfTarget(std::string_view target) {
  constexpr std::string_view kPrefix = "sm_";
  if (target.substr(0, kPrefix.size()) != kPrefix) return std::nullopt;
  target.remove_prefix(kPrefix.size());
  int sm = 0;
  const auto [rest, error] = std::from_chars(target.data(), target.data() + target.size(), sm);
  if (error != std::errc()) return std::nullopt;
  return sm;
}

// Whether a snippet of the user's stands where the first error lies: the emitter names such a text
// by the user's own file, so it is a name that we have not given.
bool IsUserFile(const CompileRequest& request, const std::string& file) {
  constexpr std::string_view kUserFolder = "user/";
  if (file == request.source.unit_name) return false;
  const auto is_file = [&](const artifact::SourceFile& known) { return known.name == file; };
  if (std::any_of(request.bundle.begin(), request.bundle.end(), is_file)) return false;
  return file.compare(0, kUserFolder.size(), kUserFolder) == 0 ||
         std::none_of(request.source.generated_headers.begin(),
                      request.source.generated_headers.end(), is_file);
}

}  // namespace

std::vector<std::string> CompileOptions(std::string_view target, bool lineinfo) {
  std::vector<std::string> options = {
      absl::StrCat("--gpu-architecture=", AbslView(target)),
      "-std=c++20",
      "--minimal",
      "--no-source-include",
      "--modify-stack-limit=false",
      std::string(kRandomSeed),
      std::string(kNoCache),
      "--ptxas-options=-v",
  };
  if (lineinfo) options.push_back("-lineinfo");
  return options;
}

struct NvrtcCompiler::Impl {
  struct Loaded {
    NvrtcApi api;
    NvrtcFiles files;
    int version_number = 0;  // as CUDA_VERSION
    std::string version;     // "13.0.88"
    std::vector<int> archs;
  };

  explicit Impl(Options given) : options(std::move(given)) {}

  // The files that are mapped, or would be. Looks again only when a file of the last answer
  // changed.
  absl::StatusOr<NvrtcFiles> Files() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::StatusOr<std::shared_ptr<const Loaded>> Load();
  static absl::Status Probe(Loaded& loaded);

  const Options options;
  FingerprintCache fingerprints;
  std::atomic<bool> is_loaded = false;
  Mutex mutex;
  std::optional<NvrtcFiles> found ABSL_GUARDED_BY(mutex);
  std::shared_ptr<const Loaded> loaded ABSL_GUARDED_BY(mutex);
};

absl::StatusOr<NvrtcFiles> NvrtcCompiler::Impl::Files() {
  if (loaded != nullptr) return loaded->files;
  if (found) {
    const absl::StatusOr<std::string> library = fingerprints.Get(found->library);
    bool same = library.ok() && *library == found->library_fingerprint;
    for (const BuiltinsFile& file : found->builtins) {
      const absl::StatusOr<std::string> now = fingerprints.Get(file.path);
      same = same && now.ok() && *now == file.fingerprint;
    }
    if (same) return *found;
  }
  found.reset();
  TILEWRIGHT_ASSIGN_OR_RETURN(
      found, FindNvrtc(SearchPlaces::FromProcess(options.nvrtc_path), fingerprints));
  return *found;
}

absl::StatusOr<std::shared_ptr<const NvrtcCompiler::Impl::Loaded>> NvrtcCompiler::Impl::Load() {
  MutexLock lock(&mutex);
  if (loaded != nullptr) return loaded;
  auto candidate = std::make_shared<Loaded>();
  TILEWRIGHT_ASSIGN_OR_RETURN(candidate->files, Files());
  TILEWRIGHT_ASSIGN_OR_RETURN(candidate->api, OpenNvrtc(candidate->files, fingerprints));
  is_loaded = true;
  TILEWRIGHT_RETURN_IF_ERROR(Probe(*candidate));
  loaded = std::move(candidate);
  return loaded;
}

absl::Status NvrtcCompiler::Impl::Probe(Loaded& loaded) {
  const NvrtcApi& api = loaded.api;
  int major = 0;
  int minor = 0;
  TILEWRIGHT_RETURN_IF_ERROR(api.Check(api.nvrtcVersion(&major, &minor), "nvrtcVersion"));
  loaded.version_number = major * 1000 + minor * 10;
  int count = 0;
  TILEWRIGHT_RETURN_IF_ERROR(
      api.Check(api.nvrtcGetNumSupportedArchs(&count), "nvrtcGetNumSupportedArchs"));
  loaded.archs.resize(static_cast<size_t>(count));
  TILEWRIGHT_RETURN_IF_ERROR(
      api.Check(api.nvrtcGetSupportedArchs(loaded.archs.data()), "nvrtcGetSupportedArchs"));
  TILEWRIGHT_ASSIGN_OR_RETURN(Program program,
                              Program::Create(api, kProbeSource, "tilewright_probe.cu", {}, {}));
  std::vector<std::string> options = {"--no-source-include", "--modify-stack-limit=false"};
  if (KnowsOption(loaded.version_number, kNoCache)) options.emplace_back(kNoCache);
  const nvrtcResult result = program.Compile(options);
  if (result != NVRTC_SUCCESS) {
    TILEWRIGHT_ASSIGN_OR_RETURN(const std::string log, program.Log());
    return WithLog(absl::UnavailableError(absl::StrCat(
                       "NVRTC ", major, ".", minor, " (", loaded.files.library,
                       ") cannot compile an empty program: ", api.nvrtcGetErrorString(result), ": ",
                       ErrorExcerpt(log, kErrorLines), "; ", AbslView(kInstallNvrtcHint))),
                   log);
  }
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::string ptx, program.Ptx());
  const size_t answer = ptx.find(kProbeAnswer);
  int build = 0;
  if (answer == std::string::npos ||
      std::from_chars(ptx.data() + answer + kProbeAnswer.size(), ptx.data() + ptx.size(), build)
              .ec != std::errc()) {
    return absl::InternalError(absl::StrCat(
        "NVRTC ", major, ".", minor, " (", loaded.files.library,
        ") does not tell its build number: __CUDACC_VER_BUILD__ is not in its output"));
  }
  loaded.version = absl::StrCat(major, ".", minor, ".", build);
  return absl::OkStatus();
}

NvrtcCompiler::NvrtcCompiler(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
NvrtcCompiler::~NvrtcCompiler() = default;

absl::StatusOr<CompilerIdentity> NvrtcCompiler::Identity() const {
  MutexLock lock(&impl_->mutex);
  TILEWRIGHT_ASSIGN_OR_RETURN(const NvrtcFiles files, impl_->Files());
  CompilerIdentity identity{files.library, files.Id()};
  for (const std::string_view name : kOutputVariables) {
    if (const std::optional<std::string> value = GetEnv(name)) {
      absl::StrAppend(&identity.id, "; ", AbslView(name), "=", *value);
    }
  }
  return identity;
}

bool NvrtcCompiler::loaded() const { return impl_->is_loaded; }

absl::StatusOr<std::string> NvrtcCompiler::Version() const {
  TILEWRIGHT_ASSIGN_OR_RETURN(const auto loaded, impl_->Load());
  return loaded->version;
}

absl::StatusOr<std::vector<int>> NvrtcCompiler::SupportedArchs() const {
  TILEWRIGHT_ASSIGN_OR_RETURN(const auto loaded, impl_->Load());
  return loaded->archs;
}

absl::StatusOr<artifact::KernelBinary> NvrtcCompiler::Compile(const CompileRequest& request) const {
  TILEWRIGHT_ASSIGN_OR_RETURN(const auto loaded, impl_->Load());
  const NvrtcApi& api = loaded->api;
  const std::string compiler = absl::StrCat("nvrtc ", loaded->version);
  const auto unknown_target = [&]() {
    return absl::UnavailableError(absl::StrCat(
        "NVRTC ", loaded->version, " (", loaded->files.library, ") does not compile for ",
        request.target, "; it knows sm_", absl::StrJoin(loaded->archs, ", sm_"),
        "; for a newer target ", AbslView(kInstallNvrtcHint)));
  };
  const std::optional<int> sm = SmOfTarget(request.target);
  if (!sm || std::find(loaded->archs.begin(), loaded->archs.end(), *sm) == loaded->archs.end()) {
    return unknown_target();
  }

  std::vector<const char*> header_texts;
  std::vector<const char*> header_names;
  const auto add_header = [&](const artifact::SourceFile& file) {
    header_texts.push_back(file.text.c_str());
    header_names.push_back(file.name.c_str());
  };
  for (const artifact::SourceFile& file : request.bundle) add_header(file);
  for (const artifact::SourceFile& file : request.source.generated_headers) add_header(file);
  std::vector<std::string> options = request.options;
  options.erase(std::remove_if(options.begin(), options.end(),
                               [&](const std::string& option) {
                                 return !KnowsOption(loaded->version_number, option);
                               }),
                options.end());

  const auto start = std::chrono::steady_clock::now();
  TILEWRIGHT_ASSIGN_OR_RETURN(Program program, Program::Create(api, request.source.text.c_str(),
                                                               request.source.unit_name.c_str(),
                                                               header_texts, header_names));
  const nvrtcResult result = program.Compile(options);
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::string log, program.Log());
  if (result != NVRTC_SUCCESS) {
    // NVRTC has no result of its own for a target that it lacks: the log of one says so.
    if (log.find("--gpu-architecture") != std::string::npos ||
        log.find("--nv_arch") != std::string::npos) {
      return WithLog(unknown_target(), log);
    }
    const std::string what = absl::StrCat(
        request.source.entry_name, " does not compile for ", request.target, " with ", compiler,
        ": ", api.nvrtcGetErrorString(result), ":\n", ErrorExcerpt(log, kErrorLines));
    if (result == NVRTC_ERROR_BUILTIN_OPERATION_FAILURE) {
      return WithLog(absl::UnavailableError(what), log);
    }
    const std::optional<ErrorPlace> place = FirstErrorPlace(log);
    if (result == NVRTC_ERROR_COMPILATION && place && IsUserFile(request, place->file)) {
      return WithLog(absl::InvalidArgumentError(
                         absl::StrCat("error in ", place->file, " line ", place->line, ": ", what)),
                     log);
    }
    return WithLog(absl::InternalError(what), log);
  }

  artifact::KernelBinary binary;
  TILEWRIGHT_ASSIGN_OR_RETURN(binary.cubin, program.Cubin());
  const std::optional<artifact::ResourceUsage> usage =
      ParsePtxasReport(log, request.source.entry_name);
  if (binary.cubin.empty() || !usage) {
    return WithLog(
        absl::InternalError(absl::StrCat(
            request.source.unit_name, " compiled for ", request.target, " with ", compiler,
            binary.cubin.empty() ? " to nothing" : ", but ptxas reports no kernel of the name ",
            binary.cubin.empty() ? "" : request.source.entry_name)),
        log);
  }
  binary.entry_name = request.source.entry_name;
  binary.target = request.target;
  binary.log = WithoutTimings(log);
  binary.usage = *usage;
  binary.compile_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  binary.compiler = compiler;
  return binary;
}

}  // namespace tilewright::compile
