#include "compile/nvrtc_compiler.h"

#include <nvrtc.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/elapsed.h"
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

// How long a compile that was told to end may take to do so before it is left alone. NVRTC 13.0
// ends within 50 ms on an idle machine.
constexpr std::chrono::milliseconds kCancelGrace{300};

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

  // `callback(payload)` other than 0 cancels; does nothing where this NVRTC cannot be cancelled.
  absl::Status SetFlowCallback(int (*callback)(void*, void*), void* payload) {
    if (api_->nvrtcSetFlowCallback == nullptr) return absl::OkStatus();
    return api_->Check(api_->nvrtcSetFlowCallback(program_, callback, payload),
                       "nvrtcSetFlowCallback");
  }

  nvrtcResult Compile(const std::vector<std::string>& options) {
    std::vector<const char*> pointers;
    pointers.reserve(options.size());
    for (const std::string& option : options) pointers.push_back(option.c_str());
    return api_->nvrtcCompileProgram(program_, static_cast<int>(pointers.size()), pointers.data());
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

// Compiles that are inside NVRTC on threads of their own. At the end of a process NVRTC's
// destructors run, and one that goes on under them crashes; those that were left alone must be over
// by then too. Of types without destructors, for threads that outlive ours.
class CompilesAtExit {
 public:
  // While there is one, the process does not end.
  class Scope {
   public:
    Scope() { ++running_; }
    ~Scope() { --running_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };

  static absl::Status Check() {
    if (!ending_) return absl::OkStatus();
    return absl::CancelledError("the process is ending: nothing is compiled any more");
  }

  // Has the end of the process (or of this library) wait for compiles before anything that was
  // registered up to now is destroyed. NVRTC registers more while it first works: so once it is
  // loaded, whenever it asks whether it shall stop (not all versions ask), and whenever a compile
  // has ended or is left alone.
  static void Arm() {
    constexpr int kMost = 512;  // some compiles; glibc keeps a list, of 32 bytes each
    if (armed_.fetch_add(1) < kMost) {
      pid_ = getpid();
      std::atexit(&Await);
    }
  }

 private:
  static void Await() {
    // Longer than any stretch in which NVRTC does not ask whether it shall stop.
    constexpr std::chrono::seconds kMost{10};
    if (getpid() != pid_ || given_up_) return;  // the threads are the parent's
    ending_ = true;
    const auto last_moment = std::chrono::steady_clock::now() + kMost;
    while (running_ > 0 && std::chrono::steady_clock::now() < last_moment) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    given_up_ = running_ > 0;
  }

  static inline std::atomic<int> running_ = 0;
  static inline std::atomic<bool> ending_ = false;
  static inline std::atomic<bool> given_up_ = false;
  static inline std::atomic<int> armed_ = 0;
  static inline std::atomic<pid_t> pid_ = 0;
};

// One compile and everything that it reads: a caller that gives up leaves it to its thread.
struct Job {
  std::shared_ptr<const void> api_owner;
  std::vector<artifact::SourceFile> files;  // the unit, then its headers
  std::vector<std::string> options;
  std::optional<Program> program;

  std::atomic<bool> stop = false;
  const CompileControl* control = nullptr;  // only where the caller's own thread compiles
  Mutex mutex;
  CondVar finished;
  bool done ABSL_GUARDED_BY(mutex) = false;
  nvrtcResult result ABSL_GUARDED_BY(mutex) = NVRTC_ERROR_INTERNAL_ERROR;

  // As Program::Create. `files` and `options` are set.
  static absl::Status CreateProgram(Job& job, const NvrtcApi& api) {
    std::vector<const char*> texts;
    std::vector<const char*> names;
    for (size_t i = 1; i < job.files.size(); ++i) {
      texts.push_back(job.files[i].text.c_str());
      names.push_back(job.files[i].name.c_str());
    }
    absl::StatusOr<Program> created =
        Program::Create(api, job.files[0].text.c_str(), job.files[0].name.c_str(), texts, names);
    TILEWRIGHT_RETURN_IF_ERROR(created.status());
    job.program.emplace(*std::move(created));
    return job.program->SetFlowCallback(&ShallStop, &job);
  }

  // NVRTC wants to go on hearing what it has heard once.
  static int ShallStop(void* payload, void*) {
    auto* const job = static_cast<Job*>(payload);
    CompilesAtExit::Arm();
    if (!job->stop && job->control != nullptr && !CheckControl(*job->control, "").ok()) {
      job->stop = true;
    }
    return job->stop || !CompilesAtExit::Check().ok() ? 1 : 0;
  }

  void Compile() {
    const nvrtcResult compiled = program->Compile(options);
    MutexLock lock(&mutex);
    result = compiled;
    done = true;
    finished.SignalAll();
  }
};

struct JobOnThread {
  CompilesAtExit::Scope
      scope;  // released last: the job may be the only one left that holds NVRTC's program
  std::shared_ptr<Job> job;
};

void* CompileOnThread(void* argument) {
  const std::unique_ptr<JobOnThread> on_thread(static_cast<JobOnThread*>(argument));
  on_thread->job->Compile();
  return nullptr;
}

// A thread with a deep stack that compiles `job`; false where none is to be had.
bool StartThread(const std::shared_ptr<Job>& job, pthread_t* thread) {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  auto argument = std::make_unique<JobOnThread>();
  argument->job = job;
  // The program's signal handlers run on the program's own threads, but for faults of this one.
  sigset_t blocked;
  sigset_t before;
  sigfillset(&blocked);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&blocked, fault);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  const bool started = pthread_attr_setstacksize(&attributes, kCompileStackBytes) == 0 &&
                       pthread_create(thread, &attributes, CompileOnThread, argument.get()) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (started) (void)argument.release();
  return started;
}

// Compiles `job` until it is done or `control` ends it.
absl::StatusOr<nvrtcResult> Run(const std::shared_ptr<Job>& job, const CompileControl& control,
                                const std::string& what) {
  using Clock = std::chrono::steady_clock;
  TILEWRIGHT_RETURN_IF_ERROR(CheckControl(control, what));
  pthread_t thread = {};
  if (!StartThread(job, &thread)) {
    job->control = &control;
    job->Compile();
    TILEWRIGHT_RETURN_IF_ERROR(CheckControl(control, what));
    TILEWRIGHT_RETURN_IF_ERROR(CompilesAtExit::Check());
    MutexLock lock(&job->mutex);
    return job->result;
  }
  absl::Status ended;
  bool done = false;
  nvrtcResult result = NVRTC_ERROR_INTERNAL_ERROR;
  Clock::time_point last_moment = Clock::time_point::max();
  {
    MutexLock lock(&job->mutex);
    while (!job->done) {
      if (ended.ok()) {
        ended = CheckControl(control, what);
        if (!ended.ok()) {
          job->stop = true;
          last_moment = Clock::now() + kCancelGrace;
        }
      } else if (Clock::now() >= last_moment) {
        break;
      }
      job->finished.WaitUntil(&job->mutex, Clock::now() + kCancelPoll);
    }
    done = job->done;
    result = job->result;
  }
  if (done) {
    pthread_join(thread, nullptr);
  } else {
    pthread_detach(thread);
    CompilesAtExit::Arm();
  }
  if (!ended.ok()) return ended;
  TILEWRIGHT_RETURN_IF_ERROR(CompilesAtExit::Check());
  return result;
}

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

// Whether an option of the leaking kind has been given to NVRTC. Its state is the process's, and so
// is this.
std::atomic<bool>& ProcessLeaksState() {
  static std::atomic<bool> leaks = false;
  return leaks;
}

}  // namespace

bool LeaksState(std::string_view option) {
  return option.find("Ofast-compile") != std::string_view::npos;
}

absl::Status CheckControl(const CompileControl& control, std::string_view what) {
  if (control.cancelled != nullptr && control.cancelled->load()) {
    return absl::CancelledError(absl::StrCat("compiling ", AbslView(what), " was cancelled"));
  }
  if (std::chrono::steady_clock::now() >= control.deadline) {
    return absl::DeadlineExceededError(
        absl::StrCat("compiling ", AbslView(what),
                     " took longer than RuntimeOptions::compile_timeout_ms "
                     "(TILEWRIGHT_COMPILE_TIMEOUT_MS) allows"));
  }
  return absl::OkStatus();
}

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
  absl::StatusOr<std::shared_ptr<const Loaded>> Load(const CompileControl& control = {});
  static absl::Status Probe(const std::shared_ptr<Loaded>& loaded, const CompileControl& control);

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

absl::StatusOr<std::shared_ptr<const NvrtcCompiler::Impl::Loaded>> NvrtcCompiler::Impl::Load(
    const CompileControl& control) {
  MutexLock lock(&mutex);
  if (loaded != nullptr) return loaded;
  auto candidate = std::make_shared<Loaded>();
  TILEWRIGHT_ASSIGN_OR_RETURN(candidate->files, Files());
  TILEWRIGHT_ASSIGN_OR_RETURN(candidate->api, OpenNvrtc(candidate->files, fingerprints));
  is_loaded = true;
  CompilesAtExit::Arm();
  TILEWRIGHT_RETURN_IF_ERROR(Probe(candidate, control));
  loaded = std::move(candidate);
  return loaded;
}

absl::Status NvrtcCompiler::Impl::Probe(const std::shared_ptr<Loaded>& owner,
                                        const CompileControl& control) {
  const CompilesAtExit::Scope scope;
  TILEWRIGHT_RETURN_IF_ERROR(CompilesAtExit::Check());
  Loaded& loaded = *owner;
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
  auto job = std::make_shared<Job>();
  job->api_owner = owner;
  job->files = {{"tilewright_probe.cu", kProbeSource}};
  job->options = {"--no-source-include", "--modify-stack-limit=false"};
  if (KnowsOption(loaded.version_number, kNoCache)) job->options.emplace_back(kNoCache);
  TILEWRIGHT_RETURN_IF_ERROR(Job::CreateProgram(*job, api));
  TILEWRIGHT_ASSIGN_OR_RETURN(const nvrtcResult result,
                              Run(job, control, "an empty program, to see whether NVRTC works,"));
  if (result != NVRTC_SUCCESS) {
    TILEWRIGHT_ASSIGN_OR_RETURN(const std::string log, job->program->Log());
    return WithLog(absl::UnavailableError(absl::StrCat(
                       "NVRTC ", major, ".", minor, " (", loaded.files.library,
                       ") cannot compile an empty program: ", api.nvrtcGetErrorString(result), ": ",
                       ErrorExcerpt(log, kErrorLines), "; ", AbslView(kInstallNvrtcHint))),
                   log);
  }
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::string ptx, job->program->Ptx());
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

NvrtcCompiler::NvrtcCompiler(Options options) : impl_(std::make_shared<Impl>(std::move(options))) {}

absl::StatusOr<CompilerIdentity> NvrtcCompiler::Identity() const {
  MutexLock lock(&impl_->mutex);
  TILEWRIGHT_ASSIGN_OR_RETURN(const NvrtcFiles files, impl_->Files());
  CompilerIdentity identity{files.library, files.Id()};
  for (const std::string_view name : kOutputVariables) {
    if (const std::optional<std::string> value = GetEnv(name)) {
      absl::StrAppend(&identity.id, "; ", AbslView(name), "=", *value);
      if (LeaksState(*value)) ProcessLeaksState() = true;
    }
  }
  identity.reproducible = !ProcessLeaksState();
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

absl::StatusOr<artifact::KernelBinary> NvrtcCompiler::Compile(const CompileRequest& request,
                                                              const CompileControl& control) const {
  const CompilesAtExit::Scope scope;
  TILEWRIGHT_ASSIGN_OR_RETURN(const auto loaded, impl_->Load(control));
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

  auto job = std::make_shared<Job>();
  job->api_owner = loaded;
  job->files = {{request.source.unit_name, request.source.text}};
  job->files.insert(job->files.end(), request.bundle.begin(), request.bundle.end());
  job->files.insert(job->files.end(), request.source.generated_headers.begin(),
                    request.source.generated_headers.end());
  for (const std::string& option : request.options) {
    if (LeaksState(option)) ProcessLeaksState() = true;
    if (KnowsOption(loaded->version_number, option)) job->options.push_back(option);
  }

  const auto start = std::chrono::steady_clock::now();
  TILEWRIGHT_RETURN_IF_ERROR(CompilesAtExit::Check());
  TILEWRIGHT_RETURN_IF_ERROR(Job::CreateProgram(*job, api));
  TILEWRIGHT_ASSIGN_OR_RETURN(
      const nvrtcResult result,
      Run(job, control, absl::StrCat(request.source.entry_name, " for ", request.target)));
  CompilesAtExit::Arm();
  const Program& program = *job->program;
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
  binary.compile_ms = MillisecondsSince(start);
  binary.compiler = compiler;
  return binary;
}

}  // namespace tilewright::compile
