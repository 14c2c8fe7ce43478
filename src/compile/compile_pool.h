// Compiles a bounded number of kernels at a time, each within a deadline, here or in a process of
// its own.
#ifndef TILEWRIGHT_COMPILE_COMPILE_POOL_H_
#define TILEWRIGHT_COMPILE_COMPILE_POOL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "artifact/kernel_binary.h"
#include "base/mutex.h"
#include "compile/nvrtc_compiler.h"

namespace tilewright::compile {

// The number of compiles at a time that an option asks for: itself, or 0 for one per core but at
// most 8.
int CompileThreads(int option);

struct CompilePoolOptions {
  int threads = 0;           // compiles at a time, see CompileThreads
  int timeout_ms = 600'000;  // of one compile, from its start; 0: none
  bool isolate = false;      // each compile in a helper process
  std::string helper = {};   // its program; empty: FindCompilerHelper
};

// Thread-safe. A compile has a thread (NvrtcCompiler's, with a deep stack) or a process of its own,
// which live as long as it does: between compiles there is nothing of the pool but this object.
class CompilePool {
 public:
  CompilePool(NvrtcCompiler compiler, CompilePoolOptions options);
  CompilePool(const CompilePool&) = delete;
  CompilePool& operator=(const CompilePool&) = delete;

  // As NvrtcCompiler::Compile. Waits for its turn; that is not counted against the deadline.
  //   DeadlineExceeded  it took longer than timeout_ms
  //   Cancelled         CancelAll() was called meanwhile
  //   Unavailable       isolation was asked for, and the helper is not there
  //   Internal          the helper crashed
  absl::StatusOr<artifact::KernelBinary> Compile(const CompileRequest& request);

  // Ends the compiles that run or wait, with Cancelled. Those that come later are not concerned.
  void CancelAll();

  struct Counters {
    int64_t timeouts = 0;
    int64_t cancelled = 0;
    int64_t helper_crashes = 0;
  };
  Counters counters() const;

 private:
  // What CancelAll sets for all compiles that began before it.
  using Flag = std::shared_ptr<std::atomic<bool>>;

  absl::StatusOr<artifact::KernelBinary> CompileNow(const CompileRequest& request,
                                                    const CompileControl& control);

  const NvrtcCompiler compiler_;
  const CompilePoolOptions options_;
  mutable Mutex mutex_;
  CondVar freed_;
  int free_ ABSL_GUARDED_BY(mutex_);
  Flag cancelled_ ABSL_GUARDED_BY(mutex_);
  Counters counters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tilewright::compile

#endif  // TILEWRIGHT_COMPILE_COMPILE_POOL_H_
