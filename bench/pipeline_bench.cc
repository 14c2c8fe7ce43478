// Times of the pipeline on a machine with a GPU:
//   cold_first_call   an unknown spec to its first answer (Create, Prepare, Run, synchronised) in a
//                     new process with an empty store, beyond cuInit and the context
//   warm_prepare      Prepare in a new process with a store that has the kernel, beyond cuInit and
//                     the context; Create beside it, and whether libnvrtc got mapped
//   run_overhead      host time of Run beyond that of the driver calls it makes, which are recorded
//                     and replayed in the same process, in alternation
//
//   pipeline_bench [--results FILE] [--commit HASH] [--repeats N] [SPEC...]
//
// Each process-wide figure comes from N children (the program starts itself with --child), of which
// the median counts and the worst is shown. Exits with 1 when a row does not hold.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/elapsed.h"
#include "base/status_macros.h"
#include "bench/read_flags.h"
#include "bench/result_file.h"
#include "compile/nvrtc_compiler.h"
#include "device/driver_api.h"
#include "device/memory.h"
#include "runtime/runtime_impl.h"
#include "spec/validate.h"
#include "tilewright/runtime.h"

namespace tilewright::bench {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr double kColdLimitMs = 600;
constexpr double kWarmLimitMs = 3;
constexpr double kRunLimitUs = 1;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// ---- in a child ---------------------------------------------------------------------------------

// The driver with the primary context of device 0 current, and what that took.
struct Machine {
  std::shared_ptr<device::DeviceManager> devices;
  double milliseconds = 0;
};

absl::StatusOr<Machine> OpenMachine() {
  const auto start = Clock::now();
  Machine machine;
  TILEWRIGHT_ASSIGN_OR_RETURN(machine.devices, device::DeviceManager::Create());
  TILEWRIGHT_ASSIGN_OR_RETURN(const auto current, machine.devices->CurrentOrPrimary(0));
  TILEWRIGHT_CU_RETURN_IF_ERROR(machine.devices->api(), cuCtxSetCurrent, current.context);
  // The driver creates much of a context when it is first used.
  TILEWRIGHT_CU_RETURN_IF_ERROR(machine.devices->api(), cuCtxSynchronize);
  machine.milliseconds = MillisecondsSince(start);
  return machine;
}

// Device memory for a plain spec, or one of decoding from a paged cache. Zeros do, lengths and
// pages too, since only host time is measured.
struct Problem {
  std::vector<device::DeviceBuffer> buffers;
  AttentionArgs args;
};

absl::StatusOr<Problem> MakeProblem(const device::DriverApi& api, const AttentionSpec& spec) {
  AttentionSpec plain;
  plain.type = spec.type;
  plain.batch = spec.batch;
  plain.heads_q = spec.heads_q;
  plain.heads_kv = spec.heads_kv;
  plain.seqlen_q = spec.seqlen_q;
  plain.seqlen_kv = spec.seqlen_kv;
  plain.dim_qk = spec.dim_qk;
  plain.dim_v = spec.dim_v;
  plain.layout = spec.layout;
  plain.causal = spec.causal;
  plain.align = spec.align;
  plain.window_left = spec.window_left;
  plain.window_right = spec.window_right;
  plain.scale = spec.scale;
  plain.softcap = spec.softcap;
  plain.lse = spec.lse;
  plain.varlen = spec.varlen;
  plain.page_size = spec.page_size;
  if (plain != spec) {
    return absl::InvalidArgumentError(
        absl::StrCat("this benchmark makes no arrays for \"", SpecText(spec), "\""));
  }
  Problem problem;
  problem.args.batch = spec.batch;
  problem.args.seqlen_q = spec.seqlen_q;
  problem.args.seqlen_kv = spec.seqlen_kv;
  const std::array<Strides, 4> strides = spec::EffectiveStrides(spec);
  const int64_t bytes = spec::ElementBytes(spec.type);
  const auto allocate = [&](int64_t size) -> absl::StatusOr<void*> {
    TILEWRIGHT_ASSIGN_OR_RETURN(device::DeviceBuffer buffer,
                                device::DeviceBuffer::Allocate(api, static_cast<size_t>(size)));
    TILEWRIGHT_RETURN_IF_ERROR(buffer.Fill(0, nullptr));
    problem.buffers.push_back(std::move(buffer));
    return problem.buffers.back().data();
  };
  const int64_t rows_q = spec.batch * spec.seqlen_q * spec.heads_q;
  const int64_t page_size = std::max<int64_t>(spec.page_size, 1);
  const int64_t pages = (spec.seqlen_kv + page_size - 1) / page_size;  // of a sequence
  const int64_t rows_kv = spec.batch * pages * page_size * spec.heads_kv;
  problem.args.q.strides = strides[0];
  problem.args.k.strides = strides[1];
  problem.args.v.strides = strides[2];
  problem.args.o.strides = strides[3];
  TILEWRIGHT_ASSIGN_OR_RETURN(problem.args.q.data, allocate(rows_q * spec.dim_qk * bytes));
  TILEWRIGHT_ASSIGN_OR_RETURN(problem.args.k.data, allocate(rows_kv * spec.dim_qk * bytes));
  TILEWRIGHT_ASSIGN_OR_RETURN(problem.args.v.data, allocate(rows_kv * spec.dim_v * bytes));
  TILEWRIGHT_ASSIGN_OR_RETURN(problem.args.o.data, allocate(rows_q * spec.dim_v * bytes));
  if (spec.lse) {
    TILEWRIGHT_ASSIGN_OR_RETURN(void* lse, allocate(rows_q * int64_t{sizeof(float)}));
    problem.args.lse = static_cast<float*>(lse);
  }
  constexpr int64_t kIntBytes = sizeof(int32_t);
  if (spec.varlen) {
    TILEWRIGHT_ASSIGN_OR_RETURN(void* lengths, allocate(spec.batch * kIntBytes));
    problem.args.seqused_kv = static_cast<int32_t*>(lengths);
  }
  if (spec.page_size != 0) {
    TILEWRIGHT_ASSIGN_OR_RETURN(void* table, allocate(spec.batch * pages * kIntBytes));
    problem.args.page_table = static_cast<int32_t*>(table);
    problem.args.page_table_stride = pages;
  }
  TILEWRIGHT_CU_RETURN_IF_ERROR(api, cuCtxSynchronize);
  return problem;
}

// What a call of `prepared` needs besides, which must outlive it.
absl::StatusOr<device::DeviceBuffer> AddWorkspace(const device::DriverApi& api,
                                                  const PreparedAttention& prepared,
                                                  AttentionArgs& args) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const size_t bytes, prepared.workspace_bytes(args));
  if (bytes == 0) return device::DeviceBuffer();
  TILEWRIGHT_ASSIGN_OR_RETURN(device::DeviceBuffer buffer,
                              device::DeviceBuffer::Allocate(api, bytes));
  args.workspace = buffer.data();
  return buffer;
}

// TILEWRIGHT_FAMILY chooses the family under test.
RuntimeOptions OptionsFor(const std::string& cache_dir) {
  RuntimeOptions options;
  if (const auto environment = RuntimeOptions::FromEnvironment(); environment.ok()) {
    options.family = environment->family;
  }
  options.cache_dir = cache_dir;
  options.tune_policy = TunePolicy::kOff;
  return options;
}

bool CompilerIsMapped() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (absl::StrContains(line, "nvrtc")) return true;
  }
  return false;
}

// Both the cold and the warm figure: what differs is the store.
absl::StatusOr<Json> MeasureStart(const std::string& cache_dir, const AttentionSpec& spec) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const Machine machine, OpenMachine());
  const device::DriverApi& api = machine.devices->api();
  TILEWRIGHT_ASSIGN_OR_RETURN(Problem problem, MakeProblem(api, spec));

  const auto start = Clock::now();
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime,
                              Runtime::Create(OptionsFor(cache_dir)));
  const double created = MillisecondsSince(start);
  TILEWRIGHT_ASSIGN_OR_RETURN(const PreparedAttention prepared, runtime->Prepare(spec));
  const double ready = MillisecondsSince(start);
  TILEWRIGHT_ASSIGN_OR_RETURN(const device::DeviceBuffer workspace,
                              AddWorkspace(api, prepared, problem.args));
  TILEWRIGHT_RETURN_IF_ERROR(runtime->Run(prepared, problem.args, nullptr));
  TILEWRIGHT_CU_RETURN_IF_ERROR(api, cuCtxSynchronize);
  const double answered = MillisecondsSince(start);

  const RuntimeCounters counters = runtime->counters();
  Json result = {{"context_ms", machine.milliseconds},
                 {"create_ms", created},
                 {"prepare_ms", ready - created},
                 {"first_answer_ms", answered},
                 {"compiles", counters.compiles},
                 {"compile_ms", counters.compile_ms},
                 {"store_hits", counters.store_hits},
                 {"nvrtc_mapped", CompilerIsMapped()},
                 {"spec", SpecText(spec)},
                 {"plan", prepared.state()->decision.plan.ToString()}};
  return result;
}

// A driver table that notes what is called through it and passes it on.
class CallRecorder {
 public:
  // One object at a time: the driver's functions have no place for a context of ours.
  explicit CallRecorder(const device::DriverApi& real) {
    real_ = &real;
    table_ = real;
#define TILEWRIGHT_RECORD(name) table_.name = Forward<&device::DriverApi::name>::Call;
    TILEWRIGHT_DRIVER_FUNCTIONS(TILEWRIGHT_RECORD)
#undef TILEWRIGHT_RECORD
    table_.cuCtxGetCurrent = GetCurrent;
    table_.cuCtxGetId = GetId;
    table_.cuStreamIsCapturing = IsCapturing;
    table_.cuLaunchKernelEx = Launch;
  }

  const device::DriverApi* table() const { return &table_; }

  // From here on, calls are counted and the launch is kept, whose parameters are `bytes` long.
  void Start(size_t bytes) {
    get_current_ = get_id_ = is_capturing_ = launches_ = others_ = 0;
    params_.assign(bytes, std::byte{0});
    recording_ = true;
  }
  void Stop() { recording_ = false; }

  int get_current() const { return get_current_; }
  int get_id() const { return get_id_; }
  int is_capturing() const { return is_capturing_; }
  int launches() const { return launches_; }
  int others() const { return others_; }

  // The recorded calls again, on the real driver.
  absl::Status Replay() const {
    CUcontext context = nullptr;
    for (int n = 0; n < get_current_; ++n) real_->cuCtxGetCurrent(&context);
    unsigned long long id = 0;
    for (int n = 0; n < get_id_; ++n) real_->cuCtxGetId(context, &id);
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    for (int n = 0; n < is_capturing_; ++n) {
      real_->cuStreamIsCapturing(config_.hStream, &capture);
    }
    void* arguments[] = {params_.data()};
    const CUresult result = real_->cuLaunchKernelEx(&config_, function_, arguments, nullptr);
    return real_->Check(result, "cuLaunchKernelEx", __FILE__, __LINE__);
  }

 private:
  template <auto member>
  struct Forward;
  template <typename... Arguments, CUresult (*device::DriverApi::*member)(Arguments...)>
  struct Forward<member> {
    static CUresult Call(Arguments... arguments) {
      if (recording_) ++others_;
      return (real_->*member)(arguments...);
    }
  };

  static CUresult GetCurrent(CUcontext* context) {
    if (recording_) ++get_current_;
    return real_->cuCtxGetCurrent(context);
  }

  static CUresult GetId(CUcontext context, unsigned long long* id) {
    if (recording_) ++get_id_;
    return real_->cuCtxGetId(context, id);
  }

  static CUresult IsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    if (recording_) ++is_capturing_;
    return real_->cuStreamIsCapturing(stream, status);
  }

  static CUresult Launch(const CUlaunchConfig* config, CUfunction function, void** arguments,
                         void** extra) {
    if (recording_ && arguments != nullptr) {
      ++launches_;
      config_ = *config;
      attributes_.assign(config->attrs, config->attrs + config->numAttrs);
      config_.attrs = attributes_.data();
      function_ = function;
      std::memcpy(params_.data(), arguments[0], params_.size());
    } else if (recording_) {
      ++others_;
    }
    return real_->cuLaunchKernelEx(config, function, arguments, extra);
  }

  device::DriverApi table_;
  static inline const device::DriverApi* real_ = nullptr;
  static inline bool recording_ = false;
  static inline int get_current_ = 0;
  static inline int get_id_ = 0;
  static inline int is_capturing_ = 0;
  static inline int launches_ = 0;
  static inline int others_ = 0;
  static inline CUlaunchConfig config_ = {};
  static inline std::vector<CUlaunchAttribute> attributes_;
  static inline CUfunction function_ = nullptr;
  static inline std::vector<std::byte> params_;
};

absl::StatusOr<Json> MeasureRun(const std::string& cache_dir, const AttentionSpec& spec) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const Machine machine, OpenMachine());
  const device::DriverApi& api = machine.devices->api();
  TILEWRIGHT_ASSIGN_OR_RETURN(Problem problem, MakeProblem(api, spec));
  TILEWRIGHT_ASSIGN_OR_RETURN(const device::OwnedStream stream, device::OwnedStream::Create(api));

  // A runtime over a recording driver tells which calls one Run makes.
  CallRecorder recorder(api);
  RuntimeParts parts;
  parts.open_devices = [&] { return device::DeviceManager::Create(recorder.table()); };
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> recorded,
                              RuntimeParts::CreateRuntime(OptionsFor(cache_dir), std::move(parts)));
  TILEWRIGHT_ASSIGN_OR_RETURN(const PreparedAttention to_record, recorded->Prepare(spec));
  TILEWRIGHT_ASSIGN_OR_RETURN(const device::DeviceBuffer workspace,
                              AddWorkspace(api, to_record, problem.args));
  recorder.Start(static_cast<size_t>(to_record.state()->kernels[0].layout.size));
  TILEWRIGHT_RETURN_IF_ERROR(recorded->Run(to_record, problem.args, stream.get()));
  recorder.Stop();
  if (recorder.launches() != 1 || recorder.others() != 0) {
    return absl::InternalError(absl::StrCat("Run made ", recorder.launches(), " launches and ",
                                            recorder.others(),
                                            " calls that this benchmark cannot replay"));
  }

  TILEWRIGHT_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime,
                              Runtime::Create(OptionsFor(cache_dir)));
  TILEWRIGHT_ASSIGN_OR_RETURN(const PreparedAttention prepared, runtime->Prepare(spec));
  // Fewer launches than the driver queues, so that none waits for the device.
  constexpr int kLaunches = 200;
  constexpr int kRounds = 101;
  std::vector<double> through_us, bare_us;
  std::mt19937 coin(1);
  for (int round = -5; round < kRounds; ++round) {  // the first five warm up
    const bool through_first = coin() % 2 == 0;
    for (const bool through : {through_first, !through_first}) {
      const auto start = Clock::now();
      for (int n = 0; n < kLaunches; ++n) {
        TILEWRIGHT_RETURN_IF_ERROR(through ? runtime->Run(prepared, problem.args, stream.get())
                                           : recorder.Replay());
      }
      const double us = MillisecondsSince(start) * 1000 / kLaunches;
      TILEWRIGHT_RETURN_IF_ERROR(stream.Synchronize());
      if (round >= 0) (through ? through_us : bare_us).push_back(us);
    }
  }
  Json result = {{"run_us", Median(through_us)},
                 {"driver_us", Median(bare_us)},
                 {"driver_calls",
                  absl::StrCat(recorder.get_current(), " cuCtxGetCurrent, ", recorder.get_id(),
                               " cuCtxGetId, ", recorder.is_capturing(), " cuStreamIsCapturing, ",
                               recorder.launches(), " cuLaunchKernelEx")},
                 {"plan", prepared.state()->decision.plan.ToString()}};
  return result;
}

// Prints one line of JSON.
int Child(const std::string& what, const std::string& cache_dir, const std::string& spec_text) {
  const auto spec = ParseSpec(spec_text);
  absl::StatusOr<Json> result = absl::InvalidArgumentError(absl::StrCat("no child \"", what, "\""));
  if (!spec.ok()) {
    result = spec.status();
  } else if (what == "start") {
    result = MeasureStart(cache_dir, *spec);
  } else if (what == "run") {
    result = MeasureRun(cache_dir, *spec);
  }
  const Json line = result.ok() ? *result : Json{{"error", result.status().ToString()}};
  std::printf("%s\n", line.dump().c_str());
  return result.ok() ? 0 : 1;
}

// ---- in the parent ------------------------------------------------------------------------------

absl::StatusOr<Json> StartChild(const std::string& what, const std::string& cache_dir,
                                const std::string& spec_text) {
  char program[4096] = "";
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (length <= 0) return absl::InternalError("cannot read /proc/self/exe");
  const std::string command =
      absl::StrCat("'", absl::string_view(program, static_cast<size_t>(length)), "' --child ", what,
                   " --cache '", cache_dir, "' '", spec_text, "'");
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return absl::InternalError("cannot start a child");
  std::string output;
  char buffer[4096];
  for (size_t got; (got = fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, got);
  const int status = pclose(pipe);
  // The figures are the last line; a driver or a library may have said something before.
  while (!output.empty() && output.back() == '\n') output.pop_back();
  const size_t last = output.rfind('\n') + 1;  // 0 when there is one line only
  Json line = Json::parse(output.substr(last), nullptr, /*allow_exceptions=*/false);
  if (line.is_discarded()) {
    return absl::InternalError(absl::StrCat("a child ended with ", status, " and said: ", output));
  }
  if (line.contains("error")) return absl::InternalError(line["error"].get<std::string>());
  return line;
}

class Directory {
 public:
  Directory() {
    char name[] = "/tmp/tilewright_pipeline_XXXXXX";
    if (mkdtemp(name) != nullptr) path_ = name;
  }
  ~Directory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string RowName(const char* figure, const AttentionSpec& spec) {
  return absl::StrCat(figure, "_d", spec.dim_qk);
}

double Worst(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

// The cold and the warm row of one spec.
void MeasureSpec(const AttentionSpec& spec, int repeats, std::vector<Json>& rows) {
  const std::string text = SpecText(spec);
  std::vector<double> cold, compile, warm, warm_create, warm_answer, context;
  bool mapped = false;
  std::string plan;
  const auto fail = [&](const std::string& why) {
    rows.push_back(FailedRow(RowName("cold_first_call", spec), why));
    rows.push_back(FailedRow(RowName("warm_prepare", spec), why));
  };
  for (int n = 0; n < repeats; ++n) {
    const Directory directory;
    const auto first = StartChild("start", directory.path(), text);
    if (!first.ok()) return fail(first.status().ToString());
    const auto second = StartChild("start", directory.path(), text);
    if (!second.ok()) return fail(second.status().ToString());
    if ((*first)["compiles"] != 1 || (*second)["compiles"] != 0 || (*second)["store_hits"] != 1) {
      return fail(absl::StrCat("unexpected counters: ", first->dump(), " then ", second->dump()));
    }
    cold.push_back((*first)["first_answer_ms"]);
    compile.push_back((*first)["compile_ms"]);
    context.push_back((*first)["context_ms"]);
    warm.push_back((*second)["prepare_ms"]);
    warm_create.push_back((*second)["create_ms"]);
    warm_answer.push_back((*second)["first_answer_ms"]);
    mapped |= (*second)["nvrtc_mapped"].get<bool>();
    plan = (*first)["plan"];
  }
  Json row = AtMostRow(RowName("cold_first_call", spec), Median(cold), "ms", kColdLimitMs);
  row["spec"] = text;
  row["worst"] = Worst(cold);
  row["compile_ms"] = Median(compile);
  row["context_ms"] = Median(context);
  row["plan"] = plan;
  rows.push_back(row);
  row = AtMostRow(RowName("warm_prepare", spec), Median(warm), "ms", kWarmLimitMs);
  row["spec"] = text;
  row["worst"] = Worst(warm);
  row["create_ms"] = Median(warm_create);
  row["first_answer_ms"] = Median(warm_answer);
  row["plan"] = plan;
  rows.push_back(row);
  row = AtMostRow(RowName("warm_maps_nvrtc", spec), mapped ? 1 : 0, "libraries", 0);
  row["spec"] = text;
  rows.push_back(row);
}

void MeasureOverhead(int repeats, std::vector<Json>& rows) {
  // One small tile, so that the device keeps up with the launches.
  const std::string text = "fwd bf16 b=1 h=1 s=16 d=64 causal";
  const Directory directory;
  std::vector<double> overhead, run, driver;
  Json last;
  for (int n = 0; n < repeats; ++n) {
    auto measured = StartChild("run", directory.path(), text);
    if (!measured.ok()) {
      rows.push_back(FailedRow("run_overhead", measured.status().ToString()));
      return;
    }
    last = *std::move(measured);
    run.push_back(last["run_us"]);
    driver.push_back(last["driver_us"]);
    overhead.push_back(run.back() - driver.back());
  }
  Json row = AtMostRow("run_overhead", Median(overhead), "us", kRunLimitUs);
  row["spec"] = text;
  row["worst"] = Worst(overhead);
  row["run_us"] = Median(run);
  row["driver_us"] = Median(driver);
  row["driver_calls"] = last["driver_calls"];
  row["plan"] = last["plan"];
  rows.push_back(row);
}

struct Flags {
  std::string results;
  std::string commit;
  std::string child;
  std::string cache_dir;
  int repeats = 7;
  std::vector<std::string> specs;
};

absl::StatusOr<Flags> ParseFlags(int argc, char** argv) {
  Flags flags;
  std::string repeats = absl::StrCat(flags.repeats);
  TILEWRIGHT_RETURN_IF_ERROR(ReadFlags(argc, argv,
                                       {{{"--results", &flags.results},
                                         {"--commit", &flags.commit},
                                         {"--child", &flags.child},
                                         {"--cache", &flags.cache_dir},
                                         {"--repeats", &repeats}},
                                        {},
                                        &flags.specs}));
  if (!absl::SimpleAtoi(repeats, &flags.repeats) || flags.repeats < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--repeats = ", repeats, ": must be an integer from 1"));
  }
  return flags;
}

absl::Status Write(const Flags& flags, const std::vector<Json>& rows) {
  ResultHeader header;
  header.topic = "pipeline";
  header.commit = flags.commit;
  const auto environment = RuntimeOptions::FromEnvironment();
  const std::string family = environment.ok() ? environment->family : "";
  header.command = absl::StrCat(
      family.empty() ? "" : absl::StrCat("TILEWRIGHT_FAMILY=", family, " "),
      "pipeline_bench --repeats ", flags.repeats, " --results ",
      std::filesystem::path(flags.results).filename().string(), " --commit ", flags.commit);
  const auto devices = device::DeviceManager::Create();
  if (devices.ok() && !(*devices)->devices().empty()) {
    header.device = (*devices)->devices()[0].board.name;
    header.driver = InstalledDriverVersion();
  }
  const auto nvrtc = compile::NvrtcCompiler({}).Version();
  if (nvrtc.ok()) header.nvrtc = *nvrtc;
  return WriteResultFile(flags.results, header, rows);
}

int Parent(Flags flags) {
  if (flags.specs.empty()) {
    flags.specs = {"fwd bf16 b=2 h=16 s=1024 d=128 causal lse", "fwd fp16 b=4 h=8 s=1000 d=64",
                   "fwd bf16 b=1 h=16/1 s=256/1024 d=576/512 causal lse",
                   "fwd fp32 b=2 h=4 s=512 d=72 window=100,0 softcap=20"};
  }
  std::vector<Json> rows;
  for (const std::string& text : flags.specs) {
    const auto spec = ParseSpec(text);
    if (!spec.ok()) {
      std::fprintf(stderr, "%s\n", spec.status().ToString().c_str());
      return 2;
    }
    MeasureSpec(*spec, flags.repeats, rows);
  }
  MeasureOverhead(flags.repeats, rows);
  bool all_hold = true;
  for (const Json& row : rows) {
    const bool holds = row["holds"];
    all_hold &= holds;
    if (row.contains("why")) {
      std::printf("%-24s FAILED: %s\n", row["name"].get<std::string>().c_str(),
                  row["why"].get<std::string>().c_str());
    } else {
      std::printf("%-24s %10.3f %-9s (limit %g)%s\n", row["name"].get<std::string>().c_str(),
                  row["value"].get<double>(), row["unit"].get<std::string>().c_str(),
                  row["peer_value"].get<double>(), holds ? "" : "  DOES NOT HOLD");
    }
  }
  if (!flags.results.empty()) {
    const absl::Status written = Write(flags, rows);
    if (!written.ok()) {
      std::fprintf(stderr, "%s\n", written.ToString().c_str());
      return 1;
    }
  }
  return all_hold ? 0 : 1;
}

}  // namespace
}  // namespace tilewright::bench

int main(int argc, char** argv) {
  absl::StatusOr<tilewright::bench::Flags> flags = tilewright::bench::ParseFlags(argc, argv);
  if (!flags.ok()) {
    std::fprintf(stderr, "%s\n", std::string(flags.status().message()).c_str());
    return 2;
  }
  if (flags->child.empty()) return tilewright::bench::Parent(*std::move(flags));
  if (flags->specs.size() != 1) return 2;
  return tilewright::bench::Child(flags->child, flags->cache_dir, flags->specs[0]);
}
