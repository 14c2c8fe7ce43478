// What the kernel store costs on the host: a hit in memory (aim: 1 us), a verified hit on disk (200
// us for 40 KB), a key (50 us), a durable publish. The directory is made in $TMPDIR or /tmp.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "base/labelled_hash.h"
#include "base/log.h"
#include "cache/disk_store.h"
#include "cache/entry_format.h"
#include "cache/memory_store.h"

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

}  // namespace
}  // namespace tilewright::cache

BENCHMARK_MAIN();
