#include "tests/emulated/emulator/block.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "tests/emulated/emulator/memory.h"

namespace cuda_on_host {

Indices indices;

void Join(Clock& into, const Clock& from) {
  for (size_t t = 0; t < into.size(); ++t) into[t] = std::max(into[t], from[t]);
}

Block::Block(const LaunchConfig& config, std::vector<Fault>* faults)
    : config_(config), faults_(faults), fibers_(config.threads), meetings_(config.threads / 32) {
  for (Fiber& fiber : fibers_) fiber.stack = std::make_unique<char[]>(kStackBytes);
}

void Block::Main() {
  (*block->body_)();
  block->fiber().done = true;
  block->YieldToScheduler();
}

// setjmp and longjmp between stacks that makecontext has set up: swapcontext would call the kernel
// twice for each switch.
void Block::SwitchTo(int thread) {
  Fiber& fiber = fibers_[thread];
  current_ = thread;
  threadIdx.x = static_cast<unsigned>(thread);
  if (_setjmp(scheduler_) != 0) return;
  if (fiber.started) _longjmp(fiber.resume, 1);
  fiber.started = true;
  setcontext(&fiber.start);
}

void Block::YieldToScheduler() {
  if (_setjmp(fibers_[current_].resume) == 0) _longjmp(scheduler_, 1);
}

void Block::Sleep(const char* waits_for) {
  fiber().waits_for = waits_for;
  YieldToScheduler();
}

void Block::Abort() {
  aborted_ = true;
  YieldToScheduler();
  __builtin_unreachable();
}

void Block::Report(const std::string& what, const void* code, int thread) {
  constexpr size_t kMaxFaults = 20;
  if (faults_->size() >= kMaxFaults) return;
  const auto address = reinterpret_cast<uintptr_t>(code);
  for (const Fault& known : *faults_) {
    if (code != nullptr && known.code == address) return;
  }
  std::ostringstream text;
  text << "block " << blockIdx.x << " thread " << (thread < 0 ? current_ : thread) << ": " << what;
  faults_->push_back({text.str(), address});
}

void Block::ReportDeadlock() {
  std::map<std::string, int> waiting;
  int done = 0;
  for (const Fiber& fiber : fibers_) {
    if (fiber.done) {
      ++done;
    } else {
      ++waiting[fiber.waits_for];
    }
  }
  std::ostringstream text;
  text << "threads wait for ever:";
  for (const auto& [name, threads] : waiting) text << " " << threads << " at " << name << ",";
  text << " " << done << " have ended";
  Report(text.str());
}

bool Block::Run(const std::function<void()>& body) {
  block = this;
  body_ = &body;
  for (size_t t = 0; t < fibers_.size(); ++t) {
    Fiber& fiber = fibers_[t];
    fiber.started = fiber.done = false;
    fiber.waits_for = nullptr;
    fiber.uncommitted.clear();
    fiber.groups.clear();
    fiber.clock.assign(fibers_.size(), 0);
    fiber.clock[t] = 1;
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.get();
    fiber.start.uc_stack.ss_size = kStackBytes;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, &Block::Main, 0);
  }
  for (Barrier& barrier : barriers_) barrier = {};
  for (auto& meetings : meetings_) meetings.clear();
  for (bool ran = true; ran;) {
    ran = false;
    for (int t = 0; t < threads(); ++t) {
      if (fibers_[t].done || fibers_[t].waits_for != nullptr) continue;
      ran = true;
      SwitchTo(t);
      if (aborted_) return false;
    }
  }
  if (!std::all_of(fibers_.begin(), fibers_.end(), [](const Fiber& f) { return f.done; })) {
    ReportDeadlock();
    return false;
  }
  return true;
}

void Block::Meet(Barrier& barrier, int threads, int vote, bool arrive_only, const char* name) {
  if (barrier.threads == 0) {
    barrier.threads = threads;
    barrier.clock.assign(fibers_.size(), 0);
  } else if (barrier.threads != threads) {
    Report(std::string(name) + " with " + std::to_string(threads) +
           " threads where others wait with " + std::to_string(barrier.threads));
    Abort();
  }
  Join(barrier.clock, fiber().clock);
  Step(current_);
  barrier.votes.all &= vote != 0;
  barrier.votes.any |= vote != 0;
  barrier.votes.count += vote != 0;
  if (!arrive_only) barrier.waiting.push_back(current_);
  if (++barrier.arrived < barrier.threads) {
    if (!arrive_only) Sleep(name);
    return;
  }
  const Barrier complete = std::exchange(barrier, Barrier());
  for (int thread : complete.waiting) {
    Fiber& waiter = fibers_[thread];
    Join(waiter.clock, complete.clock);
    waiter.votes = complete.votes;
    Wake(thread);
  }
}

std::vector<Fault> Launch(const LaunchConfig& config, const std::function<void()>& kernel) {
  std::vector<Fault> faults;
  SetMemory(config);
  gridDim.x = config.grid;
  blockDim.x = static_cast<unsigned>(config.threads);
  Block one(config, &faults);
  for (blockIdx.x = 0; blockIdx.x < config.grid; ++blockIdx.x) {
    ForgetSharedMemory();
    if (!one.Run(kernel)) break;
    CheckSharedMemoryAtEnd();
  }
  block = nullptr;
  return faults;
}

}  // namespace cuda_on_host
