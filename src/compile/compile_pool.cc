#include "compile/compile_pool.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "compile/compiler_helper.h"

namespace tilewright::compile {
namespace {

constexpr int kMaxThreads = 1024;

}  // namespace

int CompileThreads(int option) {
  if (option > 0) return std::min(option, kMaxThreads);
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 8);
}

CompilePool::CompilePool(NvrtcCompiler compiler, CompilePoolOptions options)
    : compiler_(std::move(compiler)),
      options_(std::move(options)),
      free_(CompileThreads(options_.threads)),
      cancelled_(std::make_shared<std::atomic<bool>>(false)) {}

absl::StatusOr<artifact::KernelBinary> CompilePool::Compile(const CompileRequest& request) {
  CompileControl control;
  Flag cancelled;
  absl::Status ended;
  {
    MutexLock lock(&mutex_);
    cancelled = cancelled_;
    control.cancelled = cancelled.get();
    while (free_ == 0 && !*cancelled) freed_.Wait(&mutex_);
    ended = CheckControl(control, request.source.entry_name);
    if (ended.ok()) {
      --free_;
    } else {
      ++counters_.cancelled;
    }
  }
  if (!ended.ok()) return ended;
  if (options_.timeout_ms > 0) {
    control.deadline =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(options_.timeout_ms);
  }
  absl::StatusOr<artifact::KernelBinary> binary = CompileNow(request, control);
  MutexLock lock(&mutex_);
  ++free_;
  freed_.SignalOne();
  if (absl::IsDeadlineExceeded(binary.status())) ++counters_.timeouts;
  if (absl::IsCancelled(binary.status())) ++counters_.cancelled;
  return binary;
}

absl::StatusOr<artifact::KernelBinary> CompilePool::CompileNow(const CompileRequest& request,
                                                               const CompileControl& control) {
  if (!options_.isolate) return compiler_.Compile(request, control);
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::string helper, FindCompilerHelper(options_.helper));
  TILEWRIGHT_ASSIGN_OR_RETURN(const CompilerIdentity identity, compiler_.Identity());
  bool crashed = false;
  absl::StatusOr<artifact::KernelBinary> binary =
      CompileInHelper(helper, identity, request, control, &crashed);
  if (crashed) {
    MutexLock lock(&mutex_);
    ++counters_.helper_crashes;
  }
  return binary;
}

void CompilePool::CancelAll() {
  {
    MutexLock lock(&mutex_);
    *cancelled_ = true;
    cancelled_ = std::make_shared<std::atomic<bool>>(false);
  }
  freed_.SignalAll();
}

CompilePool::Counters CompilePool::counters() const {
  MutexLock lock(&mutex_);
  return counters_;
}

}  // namespace tilewright::compile
