// How a Runtime behaves. Every field has a default that suits a program which only wants the
// answer; the paragraph above each says what changing it costs. RuntimeOptions::FromEnvironment()
// is the only place where Tilewright looks at the process environment.
#ifndef TILEWRIGHT_OPTIONS_H_
#define TILEWRIGHT_OPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tilewright/export.h"

namespace tilewright {

// How the plan of a spec is chosen. Measurements are kept in the store as tuning records, one for
// each bucket of sizes and kind of GPU, and never repeated. What is `deterministic` is never
// measured and only takes shipped records, what is `batch_invariant` takes none: their plan is a
// function of spec, GPU and version. Nothing is ever measured during a stream capture.
enum class TunePolicy {
  kFirstRun,    // Prepare measures candidates within a budget and returns the best
  kBackground,  // Prepare returns after one compile, of a kernel that compiles soon where the
                // default does not; the default and then a tuned kernel replace it, also in the
                // handles that are out
  kCachedOnly,  // use stored tuning records, never measure
  kOff,         // trust the cost model and the shipped records
  kFrozen,      // neither compile nor measure: what is not stored is FailedPrecondition
};

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// Receives one event per call, a single line without a newline. May be called from any thread; must
// not call back into the runtime.
using LogSink = std::function<void(LogLevel, std::string_view line)>;

// Where a measurement is.
struct TuneProgress {
  int candidates = 0;  // that will be tried
  int settled = 0;     // compiled and checked, or out
  int rounds = 0;      // timed so far
  double elapsed_ms = 0;
  double budget_ms = 0;      // 0: no limit
  std::string best;          // the plan that is ahead, in words; empty before any was timed
  double best_relative = 1;  // its time over the default's
  bool done = false;
};

// Of one call of Runtime::Tune.
struct TuneOptions {
  int budget_ms = 0;       // 0: no limit
  int max_candidates = 0;  // as RuntimeOptions::tune_candidates; 0: all
  bool force = false;      // measure although there is a record
  bool hot = false;        // with the inputs in the L2 cache; such records are never looked up
  // The real lengths of a varlen spec, one a sequence; empty: a mix.
  std::vector<int64_t> lengths_q;
  std::vector<int64_t> lengths_kv;
  // Called by the thread that measures; must not call back into the runtime.
  std::function<void(const TuneProgress&)> progress;
};

// What came of it.
struct TuneResult {
  bool measured = false;  // false: a record was there
  std::string winner;     // plans, in words
  std::string default_plan;
  double winner_ms = 0;
  double default_ms = 0;
  std::string record;  // all that was found out, as JSON
};

struct RuntimeOptions {
  // Directory of the user's kernel store. Empty: $XDG_CACHE_HOME/tilewright, then
  // $HOME/.cache/tilewright, then the home directory of the password database, then memory only. A
  // directory that cannot be used safely (foreign owner, writable by others, a symbolic link) is
  // refused with a warning and the store lives in memory.
  std::string cache_dir;

  // Packs: files that `tilewright cache export` made, and directories with the layout of a store.
  // They are only read, and searched in this order before the user's directory. One that cannot be
  // used is left out with a warning. A pack of another version holds other keys, so it only misses.
  std::vector<std::string> cache_packs;

  // The bytes of a pack file within the program, which must outlive the runtime: kernels for known
  // shapes come without a compile, a file or a directory. Searched before cache_packs.
  absl::Span<const uint8_t> embedded_pack;

  // SHA-256 digests (64 hex digits) of pack manifests, as `tilewright cache export` prints them.
  // With any, every pack must have one of them, the embedded one too, and is refused whole
  // otherwise; the owner of a pack file that has one does not matter.
  std::vector<std::string> pack_sha256;

  // Never write to the store, take no locks in it.
  bool cache_read_only = false;

  // Keep the store in memory only; nothing on disk is read or written.
  bool cache_in_memory = false;

  // The store may belong to, and be written by, a group: files and directories that group members
  // own or may write are accepted, and new ones follow the umask and the setgid bit of the
  // directory. Whoever can write to the store can run code on the GPU of everybody who uses it.
  bool cache_group_shared = false;

  // Bytes of disk that the user's store may take; 0: no limit.
  int64_t cache_max_bytes = int64_t{2} << 30;

  // Path of libnvrtc. Empty: searched beside the program, in CUDA_HOME and CUDA_PATH, through the
  // loader's paths and in /usr/local/cuda. NVRTC is opened on the first kernel that is not in the
  // store, never before.
  std::string nvrtc_path;

  // Device ordinal whose primary context is used when the calling thread has no current context.
  int device_ordinal = 0;

  // Serve specs that no faster family can take by the simple one. Off: such a spec is
  // Unimplemented.
  bool allow_fallback = true;

  // Use this kernel family ("attn_fwd_simple") for every spec, whatever the others could do: to
  // compare families, or to work around one. Empty: the first that serves the spec.
  std::string family;

  // See TunePolicy. kFrozen is also what TILEWRIGHT_FROZEN=1 asks for.
  TunePolicy tune_policy = TunePolicy::kFirstRun;

  // Longest time for which Prepare blocks to measure a spec (kFirstRun), in milliseconds, its
  // compiles included. A budget that is too short for a measurement, or that ends while another
  // process measures on the GPU, is no error: the default is returned, or a kernel that compiles
  // soon where the default does not, and what is left is made up for as by kBackground.
  int tune_budget_ms = 4000;

  // And all specs of this Runtime together: a program that comes with ever new sizes is not to wait
  // for each of them. Afterwards the nearest record serves, or the cost model.
  int tune_total_ms = 60'000;

  // Most candidates that are compiled and measured for one spec; 0: all. Best estimates first; the
  // last third only where one of these beats the default, and then plans that are like it.
  int tune_candidates = 12;

  // Bytes of device memory that one measurement may take, and never more than a quarter of what is
  // free; larger problems are measured with a smaller batch. From `device_allocate` where it is set
  // (an application's pool; called from any thread, with the device's context current; null when it
  // has none), else from the driver. All of it is given back before the measurement ends.
  int64_t tune_max_bytes = int64_t{4} << 30;
  std::function<void*(size_t bytes)> device_allocate;
  std::function<void(void*)> device_release;

  // New kernels in a minute beyond which one warning says so: a caller that makes lengths part of
  // the kernel (`exact`) compiles without end. 0: never.
  int churn_per_minute = 100;

  // Compile with source lines for profilers. Changes the key of every kernel.
  bool lineinfo = false;

  // Directory whose files replace the embedded kernel templates (for work on the templates).
  std::string template_dir;

  // Kernels that are compiled at a time; 0: one per core, at most 8.
  int compile_threads = 0;

  // Longest time that one compile may take, in milliseconds; 0: no limit. A compile that takes
  // longer is DeadlineExceeded. The largest kernels take some ten seconds on a loaded machine.
  int compile_timeout_ms = 600'000;

  // Run each compile in a process of its own, which is started by posix_spawn: a compiler that
  // crashes, hangs or leaks fails that one call and leaves nothing behind in this process, which
  // then never maps libnvrtc. Costs some 50 ms a compile.
  bool isolate_compiler = false;

  // The program for isolate_compiler: `tilewright`. Empty: searched beside the library and beside
  // the program, and in ../bin of their folders. Where it is missing a compile is Unavailable.
  std::string compiler_helper;

  // Longest wait for another process that is compiling the same kernel, in milliseconds; then
  // compile anyway.
  int lock_timeout_ms = 30000;

  LogLevel log_level = LogLevel::kWarning;
  LogSink log_sink;  // absent: stderr

  // Defaults overridden by the TILEWRIGHT_* variables of the environment. InvalidArgument names a
  // variable that does not parse.
  TILEWRIGHT_API static absl::StatusOr<RuntimeOptions> FromEnvironment();
};

}  // namespace tilewright

#endif  // TILEWRIGHT_OPTIONS_H_
