// What a Runtime remembers: prepared specs, and the loaded kernels that they share.
#ifndef TILEWRIGHT_RUNTIME_KERNEL_TABLE_H_
#define TILEWRIGHT_RUNTIME_KERNEL_TABLE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/digest.h"
#include "base/shared_mutex.h"
#include "build/kernel_builder.h"
#include "device/device.h"
#include "device/module.h"
#include "spec/cache_append.h"
#include "spec/canonical.h"
#include "tilewright/attention.h"
#include "tilewright/runtime.h"

namespace tilewright {

// What a handle is for: the three that a Runtime prepares.
enum class Purpose { kAttend, kMerge, kAppend };

// A canonical spec in a context.
struct SpecKey {
  uint64_t context_id = 0;
  AttentionSpec spec = {};  // kMerge: whose parts are merged; kAppend: nothing
  Purpose purpose = Purpose::kAttend;
  CacheAppendSpec append = {};  // kAppend
  bool operator==(const SpecKey&) const = default;

  std::string ToText() const {
    return purpose == Purpose::kAppend ? spec::ToText(append) : spec::ToText(spec);
  }

  template <typename H>
  friend H AbslHashValue(H h, const SpecKey& key) {
    return H::combine(
        std::move(h), key.context_id, key.purpose,
        key.purpose == Purpose::kAppend ? spec::HashOf(key.append) : spec::SpecHash{}(key.spec));
  }
};

// A kernel in a context. Specs that differ only in what stays a run-time argument share it.
struct KernelKey {
  uint64_t context_id = 0;
  Digest source;
  int64_t smem_bytes = 0;  // of a block: an attribute of the loaded kernel, not of its source
  bool operator==(const KernelKey&) const = default;

  template <typename H>
  friend H AbslHashValue(H h, const KernelKey& key) {
    return H::combine(std::move(h), key.context_id, key.source, key.smem_bytes);
  }
};

struct ResidentKernel {
  std::shared_ptr<const device::LoadedKernel> loaded;
  build::BuiltKernel built;  // without its cubin, which the driver holds
};

// A kernel under its key, as a spec uses it.
struct TableKernel {
  KernelKey key;
  std::shared_ptr<const ResidentKernel> kernel;
};

// Thread-safe. Look-ups share a reader lock; both maps are bounded, and what was used longest ago
// goes first. Recency counts in insertions, so that a hit writes at most once between two of them.
class KernelTable {
 public:
  struct Limits {
    size_t kernels = 512;
    size_t specs = 4096;
  };

  explicit KernelTable(Limits limits) : limits_(limits) {}

  // nullptr when absent.
  std::shared_ptr<const PreparedAttention::State> Find(const SpecKey& key) const;
  std::shared_ptr<const ResidentKernel> FindKernel(const KernelKey& key) const;

  // Inserts or replaces; a spec that never launches has no kernels. Returns how many kernels were
  // dropped to make room, with the specs that use them.
  int64_t Insert(const SpecKey& key, std::shared_ptr<const PreparedAttention::State> state,
                 const std::vector<TableKernel>& kernels);

  size_t num_specs() const;
  size_t num_kernels() const;

 private:
  template <typename Value>
  struct Slot {
    std::shared_ptr<const Value> value;
    std::vector<KernelKey> kernel_keys;  // of a spec: the kernels it uses
    mutable std::atomic<int64_t> used = 0;
  };
  template <typename Key, typename Value>
  using Map = absl::flat_hash_map<Key, std::unique_ptr<Slot<Value>>>;

  template <typename Value>
  void Touch(const Slot<Value>& slot) const;

  const Limits limits_;
  mutable SharedMutex mutex_;       // guards the maps; what a slot counts is atomic
  std::atomic<int64_t> clock_ = 0;  // twice the number of insertions
  Map<SpecKey, PreparedAttention::State> specs_;
  Map<KernelKey, ResidentKernel> kernels_;
};

}  // namespace tilewright

#endif  // TILEWRIGHT_RUNTIME_KERNEL_TABLE_H_
