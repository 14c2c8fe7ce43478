#include "runtime/kernel_table.h"

#include <algorithm>
#include <mutex>
#include <shared_mutex>

#include "runtime/runtime_impl.h"

namespace tilewright {
namespace {

// The key that was used longest ago and is not to be kept.
template <typename Map, typename Keep>
typename Map::iterator Oldest(Map& map, const Keep& keep) {
  auto oldest = map.end();
  int64_t used = 0;
  for (auto it = map.begin(); it != map.end(); ++it) {
    if (keep(it->first)) continue;
    const int64_t at = it->second->used.load(std::memory_order_relaxed);
    if (oldest == map.end() || at < used) {
      oldest = it;
      used = at;
    }
  }
  return oldest;
}

}  // namespace

template <typename Value>
void KernelTable::Touch(const Slot<Value>& slot) const {
  // Odd: after what was inserted last, before what comes next.
  const int64_t now = clock_.load(std::memory_order_relaxed) + 1;
  if (slot.used.load(std::memory_order_relaxed) != now) {
    slot.used.store(now, std::memory_order_relaxed);
  }
}

std::shared_ptr<const PreparedAttention::State> KernelTable::Find(const SpecKey& key) const {
  std::shared_lock<SharedMutex> lock(mutex_);
  const auto it = specs_.find(key);
  if (it == specs_.end()) return nullptr;
  Touch(*it->second);
  return it->second->value;
}

std::shared_ptr<const ResidentKernel> KernelTable::FindKernel(const KernelKey& key) const {
  std::shared_lock<SharedMutex> lock(mutex_);
  const auto it = kernels_.find(key);
  if (it == kernels_.end()) return nullptr;
  Touch(*it->second);
  return it->second->value;
}

int64_t KernelTable::Insert(const SpecKey& key,
                            std::shared_ptr<const PreparedAttention::State> state,
                            const std::vector<TableKernel>& kernels) {
  // Outlive the lock: the last reference to a kernel unloads it, which takes the driver its time.
  std::vector<std::shared_ptr<const PreparedAttention::State>> dropped_states;
  std::vector<std::shared_ptr<const ResidentKernel>> replaced_kernels, dropped_kernels;
  {
    std::unique_lock<SharedMutex> lock(mutex_);
    const int64_t now = clock_.fetch_add(2, std::memory_order_relaxed) + 2;
    auto& spec_slot = specs_[key];
    if (spec_slot == nullptr) spec_slot = std::make_unique<Slot<PreparedAttention::State>>();
    dropped_states.push_back(std::exchange(spec_slot->value, std::move(state)));
    spec_slot->kernel_keys.clear();
    spec_slot->used = now;
    for (const TableKernel& used : kernels) {
      spec_slot->kernel_keys.push_back(used.key);
      auto& kernel_slot = kernels_[used.key];
      if (kernel_slot == nullptr) kernel_slot = std::make_unique<Slot<ResidentKernel>>();
      replaced_kernels.push_back(std::exchange(kernel_slot->value, used.kernel));
      kernel_slot->used = now;
    }
    const auto is_this_spec = [&](const SpecKey& other) { return other == key; };
    const auto is_used_here = [&](const KernelKey& other) {
      return std::any_of(kernels.begin(), kernels.end(),
                         [&](const TableKernel& used) { return used.key == other; });
    };

    while (specs_.size() > limits_.specs) {
      const auto oldest = Oldest(specs_, is_this_spec);
      if (oldest == specs_.end()) break;
      dropped_states.push_back(std::move(oldest->second->value));
      specs_.erase(oldest);
    }
    // A kernel is as recent as the most recent of its specs.
    if (kernels_.size() > limits_.kernels) {
      for (const auto& [spec, slot] : specs_) {
        const int64_t used = slot->used.load(std::memory_order_relaxed);
        for (const KernelKey& kernel_key : slot->kernel_keys) {
          const auto it = kernels_.find(kernel_key);
          if (it == kernels_.end()) continue;
          if (it->second->used.load(std::memory_order_relaxed) < used) it->second->used = used;
        }
      }
    }
    while (kernels_.size() > limits_.kernels) {
      const auto oldest = Oldest(kernels_, is_used_here);
      if (oldest == kernels_.end()) break;
      const KernelKey victim = oldest->first;
      dropped_kernels.push_back(std::move(oldest->second->value));
      kernels_.erase(oldest);
      for (auto it = specs_.begin(); it != specs_.end();) {
        auto here = it++;
        const std::vector<KernelKey>& used = here->second->kernel_keys;
        if (std::find(used.begin(), used.end(), victim) != used.end()) {
          dropped_states.push_back(std::move(here->second->value));
          specs_.erase(here);
        }
      }
    }
  }
  return static_cast<int64_t>(dropped_kernels.size());
}

size_t KernelTable::num_specs() const {
  std::shared_lock<SharedMutex> lock(mutex_);
  return specs_.size();
}

size_t KernelTable::num_kernels() const {
  std::shared_lock<SharedMutex> lock(mutex_);
  return kernels_.size();
}

}  // namespace tilewright
