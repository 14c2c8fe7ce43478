// Spec and plan in, loadable kernel out: emit -> key -> store -> (compile -> store). The only place
// that knows all of these stages.
#ifndef TILEWRIGHT_BUILD_KERNEL_BUILDER_H_
#define TILEWRIGHT_BUILD_KERNEL_BUILDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "artifact/kernel_binary.h"
#include "artifact/kernel_source.h"
#include "base/labelled_hash.h"
#include "base/log.h"
#include "cache/artifact_store.h"
#include "compile/compile_pool.h"
#include "compile/nvrtc_compiler.h"
#include "device/module.h"
#include "emit/template_bundle.h"
#include "plan/kernel_plan.h"
#include "tilewright/attention.h"

namespace tilewright::build {

enum class BinaryOrigin { kStore, kCompiled };

struct BuiltKernel {
  artifact::KernelBinary binary;
  BinaryOrigin origin = BinaryOrigin::kStore;
  Digest key;
  std::string variant;      // identity of the compiler that made it
  std::string miss_reason;  // why the store did not serve it, when it did not
};

struct BuilderOptions {
  bool lineinfo = false;
  bool frozen = false;  // a miss is FailedPrecondition that names the spec
  // A miss names the field in which the nearest stored entry of the same kernel differs. Costs a
  // look at the entries used last, some milliseconds.
  bool explain_misses = false;
  bool add_to_totals = true;  // false where another builder of the same store does
  int lock_timeout_ms = 30000;
  compile::CompilePoolOptions pool = {};
};

// Counters of one builder; they only grow. A kernel that threads shared counts once.
struct BuilderCounters {
  int64_t store_hits = 0;
  int64_t store_misses = 0;
  int64_t compiles = 0;  // those that succeeded
  double compile_ms = 0;
  int64_t compile_failures = 0;  // of any kind; the next three are among them
  int64_t compile_timeouts = 0;
  int64_t compile_cancels = 0;
  int64_t helper_crashes = 0;
  int64_t loads = 0;
  int64_t load_rejects = 0;
  // store_misses by the reason that the store gave.
  int64_t misses_absent = 0;
  int64_t misses_corrupt = 0;
  int64_t misses_foreign = 0;
  int64_t misses_differ = 0;
  int64_t misses_unreadable = 0;
  int64_t publish_drops = 0;  // entries that were not written: too many waited, or not reproducible
};

// Everything that identifies a kernel before it is built.
struct KernelRequest {
  std::string spec_text;  // for logs, errors and people; no part of the key
  plan::KernelPlan plan;  // of the one kernel
  artifact::KernelSource source;
  std::vector<std::string> options;  // of the compiler
  LabelledHash manifest;
  Digest key;  // of the manifest
};

// What NvrtcCompiler calls not reproducible is handed out, but not published.
//
// Thread-safe. Threads and processes that ask for one key compile it once (single flight in the
// process, a lock in the store among processes). Publishing happens on a writer thread after the
// kernel was handed out.
//
// Fork: the writer thread does not exist in a child. A builder made before a fork must not be used
// in the child; its destructor does nothing there.
class KernelBuilder {
 public:
  // The pointers must outlive the builder.
  KernelBuilder(const emit::TemplateBundle* bundle, cache::ArtifactStore* store,
                const compile::NvrtcCompiler* compiler, const Logger* logger,
                const BuilderOptions& options);
  // Shutdown() without a limit, unless it was called.
  ~KernelBuilder();
  KernelBuilder(const KernelBuilder&) = delete;
  KernelBuilder& operator=(const KernelBuilder&) = delete;

  // The manifest that the key of this source is the digest of.
  LabelledHash Key(const artifact::KernelSource& source, const plan::KernelPlan& plan) const;

  // Emits the source of one kernel and computes its key. `spec` is canonical, `plan` feasible for
  // it; its followers are not looked at.
  absl::StatusOr<KernelRequest> MakeRequest(const AttentionSpec& spec,
                                            const plan::KernelPlan& plan) const;

  // The same for a source that is not of an attention; `spec_text` is what people call it.
  KernelRequest MakeRequest(std::string spec_text, const plan::KernelPlan& plan,
                            artifact::KernelSource source) const;

  // The same for each kernel of the plan, in order of launch.
  absl::StatusOr<std::vector<KernelRequest>> MakeRequests(const AttentionSpec& spec,
                                                          const plan::KernelPlan& plan) const;

  // From the store, or compiled. Needs no driver and no GPU.
  //   FailedPrecondition  frozen and not stored
  //   DeadlineExceeded, Cancelled, Unavailable, InvalidArgument, Internal  as CompilePool::Compile
  absl::StatusOr<BuiltKernel> Build(const AttentionSpec& spec, const plan::KernelPlan& plan);
  absl::StatusOr<BuiltKernel> Build(const KernelRequest& request);

  // Whether Build would find it compiled.
  bool IsStored(const KernelRequest& request);

  // Build, then load on `where`. A stored image that the driver refuses is dropped and compiled
  // once more. Internal when the driver refuses what this compiler makes: the message names
  // architecture, driver and compiler.
  struct Loaded {
    BuiltKernel built;
    std::shared_ptr<const device::LoadedKernel> kernel;
  };
  absl::StatusOr<Loaded> BuildAndLoad(const AttentionSpec& spec, const plan::KernelPlan& plan,
                                      const device::DriverApi& api,
                                      const device::DeviceManager::Current& where);
  absl::StatusOr<Loaded> BuildAndLoad(const KernelRequest& request, const device::DriverApi& api,
                                      const device::DeviceManager::Current& where);

  // Waits until pending entries are published, at most `timeout_ms`. False on time-out.
  bool Flush(int timeout_ms = 1000);

  // Ends the writer thread, once: adds the counters to the totals of the store, waits up to a
  // second for what is pending, drops what has not begun by then, and waits for the call in
  // progress until `timeout_ms` have passed. False when the store has not come back from it (a file
  // system that hangs): the thread is left to it, the logger falls silent, and the store must never
  // be destroyed. Nothing may be built afterwards.
  [[nodiscard]] bool Shutdown(int timeout_ms = 5000);

  // Ends compiles that run or wait for their turn with Cancelled; later ones are not concerned.
  void CancelCompiles();

  BuilderCounters counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tilewright::build

#endif  // TILEWRIGHT_BUILD_KERNEL_BUILDER_H_
