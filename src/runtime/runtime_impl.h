// The parts of a Runtime, and how to make one over parts that are given. Not installed.
#ifndef TILEWRIGHT_RUNTIME_RUNTIME_IMPL_H_
#define TILEWRIGHT_RUNTIME_RUNTIME_IMPL_H_

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cache/artifact_store.h"
#include "device/device.h"
#include "emit/param_layout.h"
#include "plan/planner.h"
#include "runtime/kernel_table.h"
#include "tilewright/options.h"
#include "tilewright/runtime.h"

namespace tilewright {

// One kernel of a plan, with what its parameters are made from.
struct PreparedKernel {
  plan::KernelPlan plan;
  AttentionSpec spec;  // emit::SpecOfKernel
  emit::ParamLayout layout;
  std::shared_ptr<const ResidentKernel> resident;
};

// Everything that Run needs, and what Explain tells.
struct PreparedAttention::State {
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  // In a forked child the driver does not live: the kernels are left alone there.
  ~State();

  AttentionSpec spec;  // canonical
  std::string spec_text;
  Purpose purpose = Purpose::kAttend;  // each launch takes its own only
  CacheAppendSpec append;              // kAppend
  std::vector<uint64_t> frequencies;   // kAppend: RotaryFrequencies
  plan::Decision decision;
  std::vector<PreparedKernel> kernels;  // in order of launch; none: the spec has no heads
  std::string device_name;
  pid_t pid = 0;
  std::shared_ptr<const device::DeviceManager> devices;  // the table that `kernels` call

  // What a tuning in the background has put in the place of this one, which stays for those who
  // are just running it. Set at most once (KernelTable::mutex_ is not involved: Run takes no lock).
  mutable std::atomic<const State*> newer = nullptr;
  mutable std::shared_ptr<const State> newer_owner;
  const State& Newest() const {
    const State* newest = this;
    while (const State* next = newest->newer.load(std::memory_order_acquire)) newest = next;
    return *newest;
  }
  // What a run on `stream` takes: the newest. But what was put in the place of a kernel that has
  // been captured waits for the end of the capture: a graph has one kernel for one handle.
  const State& ForRun(Stream stream) const;
};

// What Create() takes from the system and tests replace.
struct RuntimeParts {
  // Called by the first Prepare, and again after a failure.
  std::function<absl::StatusOr<std::shared_ptr<device::DeviceManager>>()> open_devices;
  // Absent: the store that the options describe.
  std::unique_ptr<cache::ArtifactStore> store;
  KernelTable::Limits limits;

  static absl::StatusOr<std::unique_ptr<Runtime>> CreateRuntime(const RuntimeOptions& options,
                                                                RuntimeParts parts);
};

}  // namespace tilewright

#endif  // TILEWRIGHT_RUNTIME_RUNTIME_IMPL_H_
