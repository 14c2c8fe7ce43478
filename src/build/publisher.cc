#include "build/publisher.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tilewright::build {
namespace {

constexpr int kDrainMs = 1000;

// Keeps this code mapped, for a thread that will go on in it when a hung call returns: the library
// may be closed meanwhile.
void KeepMapped() {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&KeepMapped), &info) != 0 && info.dli_fname != nullptr) {
    (void)dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  }
}

}  // namespace

Publisher::~Publisher() { (void)Shutdown(std::numeric_limits<int>::max()); }

bool Publisher::Shutdown(int timeout_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  Flush(std::min(timeout_ms, kDrainMs));
  std::deque<Job> dropped;
  std::thread thread;
  bool ended = true;
  {
    MutexLock lock(&mutex_);
    dropped.swap(jobs_);
    stop_ = true;
    while (busy_ && idle_.WaitUntil(&mutex_, deadline)) {
    }
    ended = !busy_;
    thread = std::move(thread_);
  }
  wake_.SignalAll();
  if (!thread.joinable()) return ended;
  if (ended) {
    thread.join();
  } else {
    logger_.Mute();
    KeepMapped();
    thread.detach();
  }
  return ended;
}

void Publisher::Put(cache::Entry entry, std::unique_ptr<cache::ArtifactStore::KeyLock> lock,
                    const std::function<void()>& done) {
  // std::function wants copies: what moves into the job is shared instead.
  auto shared_entry = std::make_shared<cache::Entry>(std::move(entry));
  auto shared_lock = std::make_shared<std::unique_ptr<cache::ArtifactStore::KeyLock>>();
  *shared_lock = std::move(lock);
  Enqueue(
      [this, shared_entry, shared_lock, done] {
        const absl::Status status = store_->Put(*shared_entry);
        shared_lock->reset();
        if (!status.ok()) {
          // By kind: the text may name a file, which differs from entry to entry.
          logger_.EventOnce(
              LogLevel::kWarning,
              absl::StrCat("publish_failed ", absl::StatusCodeToString(status.code())),
              "publish_failed", {{"error", status.ToString()}});
        }
        done();
      },
      [shared_lock, done] {
        shared_lock->reset();
        done();
      });
}

void Publisher::Remove(const Digest& digest, std::string variant_hex) {
  Enqueue(
      [this, digest, variant_hex = std::move(variant_hex)] {
        // Gone already is as good as removed, and a store that cannot remove says so itself.
        store_->Remove(digest, variant_hex).IgnoreError();
      },
      [] {});
}

void Publisher::AddToTotals(std::function<cache::Totals()> totals) {
  Enqueue([this, totals = std::move(totals)] { store_->AddToTotals(totals()); }, [] {});
}

bool Publisher::HaveThread() {
  if (thread_.joinable()) return true;
  try {
    thread_ = std::thread(&Publisher::Work, this);
  } catch (const std::system_error&) {
    return false;  // the process may have no more threads
  }
  return true;
}

void Publisher::Enqueue(Job job, const std::function<void()>& dropped) {
  bool full = false;
  bool ending = false;
  {
    MutexLock lock(&mutex_);
    ending = stop_;
    full = stop_ || jobs_.size() >= kMaxPending;
    if (full) ++dropped_;
    if (!full && HaveThread()) {
      jobs_.push_back(std::move(job));
      wake_.SignalOne();
      return;
    }
  }
  if (!full) return job();
  if (ending) {
    // A tuning in the background was under way: nothing that its owner should do something about.
    logger_.EventOnce(LogLevel::kInfo, "publish_dropped", "publish_dropped",
                      {{"reason", "the runtime ends"}});
  } else {
    logger_.EventOnce(LogLevel::kWarning, "publish_dropped", "publish_dropped",
                      {{"pending", kMaxPending}});
  }
  dropped();
}

int64_t Publisher::dropped() const {
  MutexLock lock(&mutex_);
  return dropped_;
}

bool Publisher::Flush(int timeout_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  MutexLock lock(&mutex_);
  while (busy_ || !jobs_.empty()) {
    if (!idle_.WaitUntil(&mutex_, deadline)) return !busy_ && jobs_.empty();
  }
  return true;
}

void Publisher::Work() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  while (true) {
    Job job;
    {
      MutexLock lock(&mutex_);
      busy_ = false;
      if (jobs_.empty()) idle_.SignalAll();
      while (jobs_.empty() && !stop_) wake_.Wait(&mutex_);
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      busy_ = true;
    }
    job();
  }
}

}  // namespace tilewright::build
