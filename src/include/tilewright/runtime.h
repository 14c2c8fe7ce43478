// Runtime: turns attention specs into kernels and runs them.
//
//   auto runtime = tilewright::Runtime::Create({});
//   auto attention = (*runtime)->Prepare(spec);             // may compile, read the disk, block
//   absl::Status status = (*runtime)->Run(*attention, args, stream);   // launches; never blocks or
//   allocates
//
// Threads: every method of Runtime may be called from any thread at any time. Threads that prepare
// the same spec share one compile. A PreparedAttention is a handle, cheap to copy,
// usable from any thread; it keeps its kernel loaded, also after the Runtime is gone.
//
// Contexts: Prepare works for the device of the calling thread's current context, or for the
// primary context of RuntimeOptions::device_ordinal where the thread has none. Run wants the
// context that the operation was prepared for to be the current one of its thread, and refuses
// (FailedPrecondition) otherwise.
//
// Graph capture: Run is safe in a stream capture. Prepare during a capture serves what is already
// in memory and otherwise refuses with FailedPrecondition without touching the stream. It sees a
// capture on the stream it is given, and one that the legacy default stream depends on; of a
// capture on another non-blocking stream the driver tells it nothing, so give it the stream. A
// kernel that was launched into a capture stays loaded until the process ends, for its graph.
//
// Fork: a Runtime made before a fork refuses to work in the child (FailedPrecondition), because
// neither the driver nor its threads live there. Make another one.
#ifndef TILEWRIGHT_RUNTIME_H_
#define TILEWRIGHT_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tilewright/attention.h"
#include "tilewright/cache_append.h"
#include "tilewright/export.h"
#include "tilewright/merge.h"
#include "tilewright/options.h"

struct CUstream_st;  // CUstream of cuda.h is a pointer to it

namespace tilewright {

using Stream = CUstream_st*;  // nullptr: the default stream of the current context

// What happened so far, by this Runtime. Counters only grow.
struct RuntimeCounters {
  int64_t prepares = 0;
  int64_t memory_hits = 0;  // specs served from memory
  int64_t store_hits = 0;   // kernels read from disk or packs
  int64_t store_misses = 0;
  int64_t compiles = 0;  // that succeeded
  double compile_ms = 0;
  int64_t loads = 0;             // cubins that the driver took
  int64_t load_rejects = 0;      // cubins that the driver refused
  int64_t fallbacks = 0;         // specs served by the simple family for want of a faster one
  int64_t capture_refusals = 0;  // prepares refused because a capture was active
  int64_t evictions = 0;         // kernels dropped from memory to make room

  // Compiles that failed, for whatever reason; the next three are among them.
  int64_t compile_failures = 0;
  int64_t compile_timeouts = 0;  // RuntimeOptions::compile_timeout_ms
  int64_t compile_cancels = 0;   // CancelCompiles
  int64_t helper_crashes = 0;    // RuntimeOptions::isolate_compiler

  // store_hits by where the entry was, as the store counts them: it may be asked twice for one
  // kernel.
  int64_t store_memory_hits = 0;
  int64_t store_pack_hits = 0;
  int64_t store_disk_hits = 0;
  // store_misses by reason.
  int64_t misses_absent = 0;
  int64_t misses_corrupt = 0;     // failed verification
  int64_t misses_foreign = 0;     // owner, mode or kind of file that is not trusted
  int64_t misses_differ = 0;      // of another manifest or another compiler
  int64_t misses_unreadable = 0;  // the file system gave an error

  int64_t publishes = 0;  // entries written
  double publish_ms = 0;
  int64_t publish_failures = 0;
  int64_t publish_drops = 0;    // entries not written: too many waited, or not reproducible
  int64_t store_evictions = 0;  // entries deleted to keep cache_max_bytes
  int64_t lock_waits = 0;       // for another process that was compiling the same kernel
  double lock_wait_ms = 0;
  int64_t lock_timeouts = 0;
  int64_t warnings_suppressed = 0;  // repeated ones, that were not logged again

  int64_t tunes = 0;  // measurements that ended with a record
  double tune_ms = 0;
  int64_t tune_failures = 0;   // nothing could be measured: no memory, arguments unknown
  int64_t tune_postponed = 0;  // another process measured on this GPU, or the budget was spent
  int64_t record_hits = 0;     // specs that got their plan from a record of their bucket
  int64_t nearest_hits = 0;    // from a record of other sizes or another board
  int64_t tuned_swaps = 0;     // kernels replaced by tuned ones in the background
  int64_t churn_alarms = 0;    // minutes with more new kernels than churn_per_minute
};

// One prepared attention operation on one device.
class TILEWRIGHT_API PreparedAttention {
 public:
  struct TILEWRIGHT_LOCAL State;

  PreparedAttention() = default;
  explicit PreparedAttention(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  bool valid() const { return state_ != nullptr; }

  // The functions below need a valid() handle.

  // The spec in its canonical text form.
  const std::string& spec_text() const;
  // Family, tiles, registers, shared memory, where the kernel came from, in one paragraph.
  std::string Explain() const;
  // Bytes of scratch that Run needs in AttentionArgs::workspace for these sizes; 0 for most. Only
  // the sizes of `args` are looked at. InvalidArgument for negative ones.
  absl::StatusOr<size_t> workspace_bytes(const AttentionArgs& args) const;

  const State* state() const { return state_.get(); }

 private:
  std::shared_ptr<const State> state_;
};

class TILEWRIGHT_API Runtime {
 public:
  // Needs neither a GPU nor CUDA: both are looked for by Prepare. InvalidArgument for options that
  // contradict each other.
  static absl::StatusOr<std::unique_ptr<Runtime>> Create(const RuntimeOptions& options);

  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // The kernel for `spec` on the current device. Blocks for a compile (about a second) when neither
  // memory nor the store has it, and for RuntimeOptions::tune_budget_ms where the policy is to
  // measure at the first run; otherwise returns within milliseconds. `stream` is the one that
  // the caller is about to run on; it is only asked whether it is being captured.
  //   InvalidArgument     the spec is ill formed (the message names the field, its value and the
  //                       rule), or a user snippet does not compile (with its own file name and
  //                       line)
  //   Unimplemented       no family serves it
  //   FailedPrecondition  no device; frozen and not stored; a capture is active and something must
  //                       be loaded; a forked child
  //   Unavailable         the driver or NVRTC is missing or too old
  //   ResourceExhausted   no plan fits the device, or its memory is full
  //   DeadlineExceeded    the compile took longer than RuntimeOptions::compile_timeout_ms
  //   Cancelled           CancelCompiles was called meanwhile
  //   Internal            a kernel of ours failed to compile or to load; the compiler's own process
  //                       (RuntimeOptions::isolate_compiler) crashed
  // A failed compile has the compiler's log as payload "tilewright/compile_log".
  absl::StatusOr<PreparedAttention> Prepare(const AttentionSpec& spec, Stream stream = nullptr);

  // Prepares each spec, several at a time (RuntimeOptions::compile_threads); the first error in the
  // order of `specs` is returned after all have been tried.
  absl::Status Warmup(absl::Span<const AttentionSpec> specs);

  // Measures `spec` on the current device and keeps the result in the store, whatever the policy
  // (but kFrozen: FailedPrecondition); later calls of Prepare return the winner. Blocks for the
  // budget. The caller's own tensors are neither needed nor touched. Errors as of Prepare, and
  //   Unimplemented      arguments cannot be made up: snippets that read arrays
  //   ResourceExhausted  not one sequence of the problem fits tune_max_bytes
  //   Unavailable        another process is measuring on this GPU and went on for the whole budget
  absl::StatusOr<TuneResult> Tune(const AttentionSpec& spec, const TuneOptions& options = {},
                                  Stream stream = nullptr);

  // Waits until nothing is left to measure in the background, at most `timeout_ms`. False on
  // time-out.
  bool WaitForTuning(int timeout_ms);

  // Launches on `stream`. Takes no lock, allocates nothing, reads no environment. The outputs are
  // complete once the stream has executed the launch. Sizes of 0 launch nothing and succeed.
  //   InvalidArgument     a pointer, size or stride is wrong; nothing was launched
  //   FailedPrecondition  the current context is not the prepared one; a forked child
  //   Internal            the driver refused the launch
  absl::Status Run(const PreparedAttention& attention, const AttentionArgs& args,
                   Stream stream) const;

  // The kernel that merges parts (tilewright/merge.h), under the rules of Prepare. The handle is
  // for Merge, not for Run.
  absl::StatusOr<PreparedAttention> PrepareMerge(const MergeSpec& spec, Stream stream = nullptr);
  // Launches it, under the rules of Run.
  absl::Status Merge(const PreparedAttention& merge, const MergeArgs& args, Stream stream) const;

  // The kernel that writes new tokens into a cache (tilewright/cache_append.h), under the rules of
  // Prepare. The handle is for Append.
  absl::StatusOr<PreparedAttention> PrepareAppend(const CacheAppendSpec& spec,
                                                  Stream stream = nullptr);
  // Launches it, under the rules of Run.
  absl::Status Append(const PreparedAttention& append, const CacheAppendArgs& args,
                      Stream stream) const;

  // Ends the compiles of this Runtime that run or wait for their turn: the calls of Prepare and
  // Warmup that need them return Cancelled, within 50 ms where NVRTC is 12.8 or newer or compiles
  // in a process of its own; what they have finished stays. Later calls are not concerned.
  void CancelCompiles();

  // Reads no disk.
  RuntimeCounters counters() const;

  // Waits (at most a second) until entries being written to the store are on disk. The destructor
  // does it too; a write that hangs in the file system holds it up for five seconds.
  void Flush();

 private:
  struct TILEWRIGHT_LOCAL Impl;
  friend struct RuntimeParts;  // src/runtime/runtime_impl.h: the same over a driver and a store
                               // that are given
  explicit Runtime(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The text form of a spec, "fwd bf16 b=2 h=32/8 s=4096 d=128 causal lse" (README.md has the words),
// and back. Snippets are named by file: score=@FILE and mask=@FILE are read. InvalidArgument names
// the word that does not fit; NotFound the file that cannot be read.
TILEWRIGHT_API absl::StatusOr<AttentionSpec> ParseSpec(std::string_view text);
TILEWRIGHT_API std::string SpecText(const AttentionSpec& spec);

// Prepare and Run in one call, for programs that keep no handle.
TILEWRIGHT_API absl::Status Attention(Runtime& runtime, const AttentionSpec& spec,
                                      const AttentionArgs& args, Stream stream);

}  // namespace tilewright

#endif  // TILEWRIGHT_RUNTIME_H_
