#include "tests/emulated/emulator/cluster.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>
#include <utility>

#include "tests/emulated/emulator/barriers.h"
#include "tests/emulated/emulator/memory.h"
#include "tests/emulated/emulator/wgmma.h"

namespace cuda_on_host {

Indices indices;

void Join(Clock& into, const Clock& from) {
  for (size_t t = 0; t < into.size(); ++t) into[t] = std::max(into[t], from[t]);
}

Cluster::Cluster(const LaunchConfig& config, std::vector<Fault>* faults)
    : config_(config),
      faults_(faults),
      fibers_(threads()),
      clocks_(actors()),
      barriers_(16 * blocks()),
      meetings_(warps()),
      inactive_(blocks()) {
  for (Fiber& fiber : fibers_) fiber.stack = std::make_unique<char[]>(kStackBytes);
}

void Cluster::Main() {
  (*cluster->body_)();
  Fiber& fiber = cluster->fiber();
  if (!fiber.uncommitted_stores.empty() || !fiber.committed_stores.empty()) {
    cluster->Report("ends without waiting for its bulk stores to read shared memory");
  }
  fiber.done = true;
  cluster->YieldToScheduler();
}

// setjmp and longjmp between stacks that makecontext has set up: swapcontext would call the system
// twice for each switch.
void Cluster::SwitchTo(int thread) {
  Fiber& fiber = fibers_[thread];
  current_ = thread;
  Activate(rank());
  indices.thread.x = static_cast<unsigned>(thread % block_threads());
  indices.block.x = first_block_ + static_cast<unsigned>(rank());
  if (_setjmp(scheduler_) != 0) return;
  if (fiber.started) _longjmp(fiber.resume, 1);
  fiber.started = true;
  setcontext(&fiber.start);
}

void Cluster::YieldToScheduler() {
  if (_setjmp(fibers_[current_].resume) == 0) _longjmp(scheduler_, 1);
}

void Cluster::Activate(int rank) {
  if (rank == active_) return;
  inactive_[active_].assign(config_.shared, config_.shared + inactive_[rank].size());
  std::memcpy(config_.shared, inactive_[rank].data(), inactive_[rank].size());
  active_ = rank;
}

void Cluster::Sleep(std::string waits_for) {
  fiber().waits_for = std::move(waits_for);
  YieldToScheduler();
}

void Cluster::Abort() {
  aborted_ = true;
  YieldToScheduler();
  __builtin_unreachable();
}

int Cluster::NextCarrier() {
  next_carrier_ = (next_carrier_ + 1) % kCarriers;
  return threads() + warps() + next_carrier_;
}

std::string Cluster::NameOf(int actor) const {
  std::ostringstream text;
  if (actor < threads()) {
    if (blocks() > 1) text << "block " << actor / block_threads() << " of the cluster, ";
    text << "thread " << actor % block_threads();
  } else if (actor < threads() + warps()) {
    text << "the tensor core of warp " << actor - threads();
  } else {
    text << "a bulk copy";
  }
  return text.str();
}

void Cluster::Report(const std::string& what, const void* code, int actor) {
  constexpr size_t kMaxFaults = 20;
  if (faults_->size() >= kMaxFaults) return;
  const auto address = reinterpret_cast<uintptr_t>(code);
  for (const Fault& known : *faults_) {
    if (code != nullptr && known.code == address) return;
  }
  std::ostringstream text;
  text << "block " << first_block_ + static_cast<unsigned>(rank()) << " "
       << NameOf(actor < 0 ? current_ : actor) << ": " << what;
  faults_->push_back({text.str(), address});
}

void Cluster::ReportDeadlock() {
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

int Cluster::StartWork(std::function<void()> land) {
  pending_.push_back({++work_started_, std::move(land)});
  return work_started_;
}

void Cluster::Land(size_t index) {
  const Pending work = std::move(pending_[index]);
  pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(index));
  work.land();
}

void Cluster::FinishWork(int number) {
  for (size_t n = 0; n < pending_.size(); ++n) {
    if (pending_[n].number == number) return Land(n);
  }
}

bool Cluster::Run(unsigned first_block, const std::function<void()>& body) {
  cluster = this;
  body_ = &body;
  first_block_ = first_block;
  // All that earlier blocks did has happened before.
  for (const Clock& clock : clocks_) {
    for (const uint32_t step : clock) base_step_ = std::max(base_step_, step);
  }
  for (int actor = 0; actor < actors(); ++actor) {
    clocks_[actor].assign(actors(), base_step_);
    Step(actor);
  }
  for (Fiber& fiber : fibers_) {
    fiber.started = fiber.done = false;
    fiber.waits_for.clear();
    fiber.fenced_step = 0;
    fiber.fenced_clock.assign(actors(), 0);
    fiber.cluster_barrier_phase = 0;
    fiber.uncommitted.clear();
    fiber.groups.clear();
    fiber.uncommitted_stores.clear();
    fiber.committed_stores.clear();
    fiber.finished_stores.clear();
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.get();
    fiber.start.uc_stack.ss_size = kStackBytes;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, &Cluster::Main, 0);
  }
  for (Barrier& barrier : barriers_) barrier = {};
  cluster_barrier_ = {};
  cluster_barrier_phase_ = 0;
  cluster_clock_.assign(actors(), 0);
  for (auto& meetings : meetings_) meetings.clear();
  pending_.clear();
  active_ = 0;
  if (config_.shared != nullptr) {
    PoisonShared(config_.shared);
    for (auto& bytes : inactive_) bytes.assign(config_.shared, config_.shared + SharedArrayBytes());
  }
  const auto can_run = [](const Fiber& f) { return !f.done && f.waits_for.empty(); };
  for (;;) {
    bool ran = false;
    for (int rank = 0; rank < blocks(); ++rank) {
      for (bool ran_here = true; ran_here;) {
        ran_here = false;
        for (int t = rank * block_threads(); t < (rank + 1) * block_threads(); ++t) {
          if (!can_run(fibers_[t])) continue;
          ran = ran_here = true;
          SwitchTo(t);
          if (aborted_) return false;
          // Copies end in any order and at any time.
          constexpr unsigned kSwitchesPerLanding = 64;
          if (!pending_.empty() && random_() % kSwitchesPerLanding == 0) {
            Land(random_() % pending_.size());
            if (aborted_) return false;
          }
        }
      }
    }
    if (ran) continue;
    if (pending_.empty()) break;
    Land(random_() % pending_.size());
    if (aborted_) return false;
  }
  if (!std::all_of(fibers_.begin(), fibers_.end(), [](const Fiber& f) { return f.done; })) {
    ReportDeadlock();
    return false;
  }
  return true;
}

void Cluster::Meet(Barrier& barrier, int threads, int vote, bool arrive_only,
                   const std::string& name) {
  if (barrier.threads == 0) {
    barrier.threads = threads;
    barrier.clock.assign(actors(), 0);
  } else if (barrier.threads != threads) {
    AbortWith(name + " with " + std::to_string(threads) + " threads where others wait with " +
              std::to_string(barrier.threads));
  }
  Join(barrier.clock, clock(current_));
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
    Join(clock(thread), complete.clock);
    fibers_[thread].votes = complete.votes;
    Wake(thread);
  }
}

void Cluster::ArriveAtCluster() {
  if (fiber().cluster_barrier_phase != cluster_barrier_phase_) {
    AbortWith("arrives at the cluster's barrier twice");
  }
  ++fiber().cluster_barrier_phase;
  if (cluster_barrier_.arrived == 0) cluster_barrier_.clock.assign(actors(), 0);
  Join(cluster_barrier_.clock, clock(current_));
  Step(current_);
  if (++cluster_barrier_.arrived < threads()) return;
  ++cluster_barrier_phase_;
  const Barrier complete = std::exchange(cluster_barrier_, Barrier());
  cluster_clock_ = complete.clock;
  for (int thread : complete.waiting) {
    Join(clock(thread), cluster_clock_);
    Wake(thread);
  }
}

void Cluster::WaitForCluster() {
  if (fiber().cluster_barrier_phase == cluster_barrier_phase_) {
    Join(clock(current_), cluster_clock_);
    return;
  }
  cluster_barrier_.waiting.push_back(current_);
  Sleep("barrier.cluster.wait");
}

std::vector<Fault> Launch(const LaunchConfig& config, const std::function<void()>& kernel) {
  std::vector<Fault> faults;
  Cluster blocks(config, &faults);
  SetMemory(config, blocks);
  indices.grid.x = config.grid;
  indices.block_size.x = static_cast<unsigned>(config.threads);
  const auto step = static_cast<unsigned>(config.cluster);
  for (unsigned first = 0; first < config.grid; first += step) {
    ForgetSharedMemory();
    ForgetBarriers();
    ForgetProducts(blocks.warps());
    if (!blocks.Run(first, kernel)) break;
    CheckSharedMemoryAtEnd();
  }
  cluster = nullptr;
  return faults;
}

}  // namespace cuda_on_host
