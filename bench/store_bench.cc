// What the kernel store costs on the host: a hit in memory (aim: 1 us), a verified hit on disk (200
// us for 40 KB) and in a pack, a key (50 us), a durable publish. The directory is made in $TMPDIR
// or /tmp.
//
//   store_bench [--results FILE --commit HASH] [options of Google Benchmark]
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/labelled_hash.h"
#include "base/log.h"
#include "bench/result_file.h"
#include "cache/disk_store.h"
#include "cache/entry_format.h"
#include "cache/layered_store.h"
#include "cache/memory_store.h"
#include "cache/pack.h"

namespace tilewright::cache {
namespace {

constexpr size_t kCubinBytes = 40000;
constexpr size_t kSourceBytes = 4000;

std::string Bytes(size_t size) {
  std::string bytes(size, '\0');
  uint32_t state = 1;
  for (char& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<char>(state >> 24);
  }
  return bytes;
}

// The fields of a kernel's key, of usual sizes.
LabelledHash Key(int number) {
  LabelledHash key;
  key.Add("schema", "1")
      .Add("unit", Bytes(kSourceBytes))
      .Add("bundle", std::string(64, 'b'))
      .Add("target", "sm_90a")
      .Add("options", "--std=c++20 --gpu-architecture=sm_90a --no-cache --frandom-seed=1")
      .Add("number", std::to_string(number));
  return key;
}

Entry KernelEntry(int number) {
  return {.manifest = Key(number).manifest(),
          .variant = "nvrtc 13.0.88",
          .sections = {{"cubin", Bytes(kCubinBytes)},
                       {"source", Bytes(kSourceBytes)},
                       {"facts", "registers=168"}}};
}

class Directory {
 public:
  Directory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "store_bench_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  ~Directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::unique_ptr<DiskStore> Open() const {
    auto store = DiskStore::Open({.directory = path_}, Logger(LogLevel::kOff));
    return store.ok() ? *std::move(store) : nullptr;
  }

 private:
  std::string path_;
};

void MemoryHit(benchmark::State& state) {
  MemoryStore store(0);
  const Entry entry = KernelEntry(1);
  const EntryKey key = {.digest = Sha256(entry.manifest), .variant = entry.variant};
  if (!store.Put(entry).ok()) return state.SkipWithError("publish failed");
  for (auto _ : state) {
    if (!store.Get(key, entry.manifest).ok()) return state.SkipWithError("miss");
  }
}
BENCHMARK(MemoryHit);

// What a runtime asks: memory over the user's directory.
void LayeredMemoryHit(benchmark::State& state) {
  LayeredStore store(std::make_unique<MemoryStore>(0), {}, {});
  const Entry entry = KernelEntry(1);
  const EntryKey key = {.digest = Sha256(entry.manifest), .variant = entry.variant};
  if (!store.Put(entry).ok()) return state.SkipWithError("publish failed");
  for (auto _ : state) {
    if (!store.Get(key, entry.manifest).ok()) return state.SkipWithError("miss");
  }
}
BENCHMARK(LayeredMemoryHit);

void PackHit(benchmark::State& state) {
  const Directory directory;
  MemoryStore memory(0);
  for (int i = 0; i < 100; ++i) {
    if (!memory.Put(KernelEntry(i)).ok()) return state.SkipWithError("publish failed");
  }
  const std::string path = directory.path() + "/pack";
  if (!WritePack(memory, *memory.List(), path).ok()) return state.SkipWithError("no pack");
  const auto pack = PackStore::Open(path, {}, Logger(LogLevel::kOff));
  const Entry entry = KernelEntry(1);
  const EntryKey key = {.digest = Sha256(entry.manifest), .variant = entry.variant};
  if (!pack.ok()) return state.SkipWithError("pack refused");
  for (auto _ : state) {
    if (!(*pack)->Get(key, entry.manifest).ok()) return state.SkipWithError("miss");
  }
}
BENCHMARK(PackHit)->Unit(benchmark::kMicrosecond);

void DiskHit(benchmark::State& state) {
  const Directory directory;
  const auto store = directory.Open();
  const Entry entry = KernelEntry(1);
  const EntryKey key = {.digest = Sha256(entry.manifest), .variant = entry.variant};
  if (store == nullptr || !store->Put(entry).ok()) return state.SkipWithError("publish failed");
  for (auto _ : state) {
    if (!store->Get(key, entry.manifest).ok()) return state.SkipWithError("miss");
  }
}
BENCHMARK(DiskHit)->Unit(benchmark::kMicrosecond);

// Without NVRTC any compiler's entry will do: the shard is listed.
void DiskHitOfAnyVariant(benchmark::State& state) {
  const Directory directory;
  const auto store = directory.Open();
  const Entry entry = KernelEntry(1);
  const EntryKey key = {.digest = Sha256(entry.manifest), .variant = std::nullopt};
  if (store == nullptr || !store->Put(entry).ok()) return state.SkipWithError("publish failed");
  for (auto _ : state) {
    if (!store->Get(key, entry.manifest).ok()) return state.SkipWithError("miss");
  }
}
BENCHMARK(DiskHitOfAnyVariant)->Unit(benchmark::kMicrosecond);

void DiskMiss(benchmark::State& state) {
  const Directory directory;
  const auto store = directory.Open();
  const Entry entry = KernelEntry(1);
  const EntryKey key = {.digest = Sha256(entry.manifest), .variant = entry.variant};
  if (store == nullptr) return state.SkipWithError("no store");
  for (auto _ : state) {
    if (store->Get(key, entry.manifest).ok()) return state.SkipWithError("hit");
  }
}
BENCHMARK(DiskMiss)->Unit(benchmark::kMicrosecond);

void KeyOfAKernel(benchmark::State& state) {
  const std::string unit = Bytes(kSourceBytes);
  for (auto _ : state) {
    LabelledHash key;
    key.Add("unit", unit).Add("bundle", std::string(64, 'b')).Add("target", "sm_90a");
    benchmark::DoNotOptimize(key.digest());
  }
}
BENCHMARK(KeyOfAKernel)->Unit(benchmark::kMicrosecond);

void Publish(benchmark::State& state) {
  const Directory directory;
  const auto store = directory.Open();
  if (store == nullptr) return state.SkipWithError("no store");
  int number = 0;
  for (auto _ : state) {
    state.PauseTiming();
    const Entry entry = KernelEntry(++number);
    state.ResumeTiming();
    if (!store->Put(entry).ok()) return state.SkipWithError("publish failed");
  }
}
BENCHMARK(Publish)->Unit(benchmark::kMillisecond);

void LockAndRelease(benchmark::State& state) {
  const Directory directory;
  const auto store = directory.Open();
  if (store == nullptr) return state.SkipWithError("no store");
  const Digest digest = Sha256("key");
  for (auto _ : state) {
    if (store->Lock(digest, 0) == nullptr) return state.SkipWithError("no lock");
  }
}
BENCHMARK(LockAndRelease)->Unit(benchmark::kMicrosecond);

// Microseconds that must hold (R66), by name of the benchmark.
constexpr struct {
  const char* name;
  double us;
} kLimits[] = {{"MemoryHit", 1}, {"LayeredMemoryHit", 1},      {"PackHit", 200},
               {"DiskHit", 200}, {"DiskHitOfAnyVariant", 200}, {"KeyOfAKernel", 50}};

// Prints as usual and keeps a row of each result.
class RowReporter : public benchmark::ConsoleReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    benchmark::ConsoleReporter::ReportRuns(runs);
    for (const Run& run : runs) {
      const std::string name = run.benchmark_name();
      if (run.error_occurred) {
        rows_.push_back(bench::FailedRow(name, run.error_message));
        continue;
      }
      const double us =
          run.GetAdjustedRealTime() / benchmark::GetTimeUnitMultiplier(run.time_unit) * 1e6;
      nlohmann::ordered_json row = {{"name", name}, {"value", us}, {"unit", "us"}, {"holds", true}};
      for (const auto& limit : kLimits) {
        if (name == limit.name) row = bench::AtMostRow(name, us, "us", limit.us);
      }
      rows_.push_back(std::move(row));
    }
  }
  const std::vector<nlohmann::ordered_json>& rows() const { return rows_; }

 private:
  std::vector<nlohmann::ordered_json> rows_;
};

// The processor, as Linux names it.
std::string ProcessorName() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

// Takes NAME VALUE out of the arguments.
std::string TakeFlag(const std::string& name, std::vector<char*>* arguments) {
  for (size_t i = 1; i + 1 < arguments->size(); ++i) {
    if (name != (*arguments)[i]) continue;
    const std::string value = (*arguments)[i + 1];
    arguments->erase(arguments->begin() + static_cast<int64_t>(i),
                     arguments->begin() + static_cast<int64_t>(i) + 2);
    return value;
  }
  return "";
}

int Main(int argc, char** argv) {
  std::vector<char*> arguments(argv, argv + argc);
  const std::string results = TakeFlag("--results", &arguments);
  const std::string commit = TakeFlag("--commit", &arguments);
  int count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 2;
  RowReporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  benchmark::Shutdown();
  int status = 0;
  for (const nlohmann::ordered_json& row : reporter.rows()) {
    if (row["holds"] == true) continue;
    std::fprintf(stderr, "does not hold: %s\n", row.dump().c_str());
    status = 1;
  }
  if (results.empty()) return status;
  const absl::Status written = bench::WriteResultFile(
      results,
      {.topic = "store",
       .commit = commit,
       .device = ProcessorName(),
       .driver = "none",
       .nvrtc = "none",
       .command = "store_bench --results " + results + " --commit " + commit},
      reporter.rows());
  if (written.ok()) return status;
  std::fprintf(stderr, "%s\n", written.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace tilewright::cache

int main(int argc, char** argv) { return tilewright::cache::Main(argc, argv); }
