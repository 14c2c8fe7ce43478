// A Runtime over the recording driver, and arguments of calls for it.
#ifndef TILEWRIGHT_TESTS_RUNTIME_TEST_RUNTIME_H_
#define TILEWRIGHT_TESTS_RUNTIME_TEST_RUNTIME_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "cache/memory_store.h"
#include "runtime/runtime_impl.h"
#include "tests/device/fake_driver.h"
#include "tilewright/runtime.h"

namespace tilewright {

// Keeps the lines of a logger.
class LogLines {
 public:
  LogSink sink() {
    return [this](LogLevel, std::string_view line) {
      MutexLock lock(&mutex_);
      lines_.emplace_back(line);
    };
  }
  int Count(std::string_view event) {
    MutexLock lock(&mutex_);
    int count = 0;
    for (const std::string& line : lines_) {
      count += line.substr(0, line.find(' ')) == event ? 1 : 0;
    }
    return count;
  }

 private:
  Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

// Quiet, and nothing on disk.
inline RuntimeOptions TestOptions() {
  RuntimeOptions options;
  options.cache_in_memory = true;
  options.log_level = LogLevel::kOff;
  // One kernel for all lengths, whatever other families are there.
  options.family = "attn_fwd_simple";
  // Tests that count compiles and launches mean those of the spec; tests/runtime/tuning_test.cc
  // tunes.
  options.tune_policy = TunePolicy::kOff;
  return options;
}

inline RuntimeParts PartsOn(device::FakeDriver& driver) {
  RuntimeParts parts;
  parts.open_devices = [&driver] { return device::DeviceManager::Create(&driver.api()); };
  return parts;
}

inline absl::StatusOr<std::unique_ptr<Runtime>> MakeRuntime(
    device::FakeDriver& driver, const RuntimeOptions& options = TestOptions()) {
  return RuntimeParts::CreateRuntime(options, PartsOn(driver));
}

// A store that several runtimes share, one after the other.
class SharedStore : public cache::ArtifactStore {
 public:
  explicit SharedStore(cache::ArtifactStore* store) : store_(store) {}
  absl::StatusOr<cache::EntryPtr> Get(const cache::EntryKey& key, std::string_view text) override {
    return store_->Get(key, text);
  }
  absl::Status Put(const cache::Entry& entry) override { return store_->Put(entry); }
  absl::Status Remove(const Digest& digest, std::string_view variant_hex) override {
    return store_->Remove(digest, variant_hex);
  }
  absl::StatusOr<std::vector<cache::EntryInfo>> List() override { return store_->List(); }
  absl::StatusOr<cache::Entry> Read(const cache::EntryInfo& info) override {
    return store_->Read(info);
  }
  cache::StoreStats Stats() override { return store_->Stats(); }
  std::unique_ptr<KeyLock> Lock(const Digest& digest, int timeout_ms) override {
    return store_->Lock(digest, timeout_ms);
  }

 private:
  cache::ArtifactStore* store_;
};

// Small, and quick to compile.
inline AttentionSpec SmallSpec() {
  AttentionSpec spec;
  spec.type = ElementType::kFp16;
  spec.batch = 2;
  spec.heads_q = 4;
  spec.heads_kv = 2;
  spec.seqlen_q = spec.seqlen_kv = 64;
  spec.dim_qk = spec.dim_v = 16;
  return spec;
}

// Memory that looks like a device's: never touched, but aligned.
template <typename T>
T* FakePointer(uintptr_t index) {
  return reinterpret_cast<T*>(uintptr_t{0x7f0000000000} + (index << 24));
}

// Dense arguments of the sizes of `spec`, without its optional features.
inline AttentionArgs DenseArgs(const AttentionSpec& spec) {
  AttentionArgs args;
  args.batch = spec.batch;
  args.seqlen_q = spec.seqlen_q;
  args.seqlen_kv = spec.seqlen_kv;
  args.q = {FakePointer<void>(1),
            DenseStrides(spec.layout, spec.batch, spec.seqlen_q, spec.heads_q, spec.dim_qk)};
  args.k = {FakePointer<void>(2),
            DenseStrides(spec.layout, spec.batch, spec.seqlen_kv, spec.heads_kv, spec.dim_qk)};
  args.v = {FakePointer<void>(3),
            DenseStrides(spec.layout, spec.batch, spec.seqlen_kv, spec.heads_kv, spec.dim_v)};
  args.o = {FakePointer<void>(4),
            DenseStrides(spec.layout, spec.batch, spec.seqlen_q, spec.heads_q, spec.dim_v)};
  if (spec.lse) args.lse = FakePointer<float>(5);
  return args;
}

}  // namespace tilewright

#endif  // TILEWRIGHT_TESTS_RUNTIME_TEST_RUNTIME_H_
