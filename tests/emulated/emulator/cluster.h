// The blocks that run together (a cluster; mostly one block): their threads as fibers, who knows of
// what, and who waits for whom.
#ifndef TILEWRIGHT_TESTS_EMULATED_CLUSTER_H_
#define TILEWRIGHT_TESTS_EMULATED_CLUSTER_H_

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulated/cuda_on_host.h"
#include "tests/emulated/emulator/launch.h"

namespace cuda_on_host {

// Up to which step of each actor everything has happened before. Actors are the threads of the
// cluster, the tensor core of each warp, and a few carriers of bulk copies for each block.
using Clock = std::vector<uint32_t>;

void Join(Clock& into, const Clock& from);

// Bytes that a cp.async will write.
struct Copy {
  size_t destination = 0;
  std::vector<std::byte> bytes;
};

// What the votes of a barrier's threads came to.
struct BarrierVotes {
  bool all = true;
  bool any = false;
  int count = 0;
};

struct Fiber {
  ucontext_t start;
  jmp_buf resume;
  std::unique_ptr<char[]> stack;
  bool started = false;
  bool done = false;
  std::string waits_for;  // empty: can run
  BarrierVotes votes;     // of the barrier that it passed last
  // fence.proxy.async: own steps that it covers, and what was known then.
  uint32_t fenced_step = 0;
  Clock fenced_clock;
  uint32_t cluster_barrier_phase = 0;
  std::vector<Copy> uncommitted;
  std::deque<std::vector<Copy>> groups;
  // Bulk stores, by the numbers of their work, and the steps at which some of them have read.
  std::vector<int> uncommitted_stores;
  std::deque<std::vector<int>> committed_stores;
  std::vector<std::pair<int, uint32_t>> finished_stores;
};

// Everyone of `threads` waits for the others.
struct Barrier {
  int threads = 0;  // 0: nobody has come yet
  int arrived = 0;
  BarrierVotes votes;
  Clock clock;
  std::vector<int> waiting;
};

// Work of the asynchronous units that is under way: `land` ends it.
struct Pending {
  int number = 0;
  std::function<void()> land;
};

class Cluster {
 public:
  static constexpr size_t kStackBytes = 128 << 10;
  static constexpr int kCarriers = 16;

  Cluster(const LaunchConfig& config, std::vector<Fault>* faults);

  // Runs `body` once on every thread of the blocks from `first_block` on; false when a fault left
  // no way to go on.
  bool Run(unsigned first_block, const std::function<void()>& body);

  // Lets others run until somebody calls Wake(current()).
  void Sleep(std::string waits_for);
  void Wake(int thread) { fibers_[thread].waits_for.clear(); }
  [[noreturn]] void Abort();

  // Reports a fault of the current thread, or of `actor`.
  void Report(const std::string& what, const void* code = nullptr, int actor = -1);
  [[noreturn]] void AbortWith(const std::string& what, const void* code = nullptr) {
    Report(what, code);
    Abort();
  }

  // ---- actors
  int threads() const { return blocks() * block_threads(); }
  int warps() const { return threads() / 32; }
  int block_threads() const { return config_.threads; }
  int blocks() const { return config_.cluster; }
  int actors() const { return threads() + warps() + kCarriers; }
  int TensorCoreOf(int warp) const { return threads() + warp; }
  int NextCarrier();
  // "thread 5", "the tensor core of warp 2", "a bulk copy"
  std::string NameOf(int actor) const;

  Clock& clock(int actor) { return clocks_[actor]; }
  uint32_t step(int actor) const { return clocks_[actor][actor]; }
  // What `actor` does from now on has not happened before what others know of it.
  void Step(int actor) { ++clocks_[actor][actor]; }
  bool HappenedBefore(int actor, uint32_t step, int observer) const {
    return clocks_[observer][actor] >= step;
  }

  // ---- the current thread
  int current() const { return current_; }
  int lane() const { return current_ % 32; }
  int warp() const { return current_ / 32; }
  int rank() const { return current_ / block_threads(); }
  Fiber& fiber() { return fibers_[current_]; }
  Fiber& fiber(int thread) { return fibers_[thread]; }
  const char* stack_begin() const { return fibers_[current_].stack.get(); }
  const LaunchConfig& config() const { return config_; }

  // ---- meetings
  // Arrives at `barrier` with `threads` in all and, unless `arrive_only`, waits for it.
  void Meet(Barrier& barrier, int threads, int vote, bool arrive_only, const std::string& name);
  Barrier& barrier(int id) { return barriers_[static_cast<size_t>(rank() * 16 + id)]; }
  void ArriveAtCluster();
  void WaitForCluster();

  struct Meeting {
    unsigned mask = 0;
    unsigned arrived = 0;
    Operation operation = Operation::kSyncWarp;
    void* arguments[32] = {};
  };
  std::vector<Meeting>& meetings() { return meetings_[warp()]; }

  // ---- asynchronous work
  // Ends some time later, at the latest when nobody can run. Returns its number.
  int StartWork(std::function<void()> land);
  // Ends it now if it has not ended.
  void FinishWork(int number);

  // Shared memory of a block.
  std::byte* shared(int rank) { return rank == active_ ? config_.shared : inactive_[rank].data(); }

 private:
  static void Main();
  void SwitchTo(int thread);
  void YieldToScheduler();
  void Activate(int rank);
  void ReportDeadlock();
  void Land(size_t index);

  const LaunchConfig& config_;
  std::vector<Fault>* faults_;
  std::vector<Fiber> fibers_;
  std::vector<Clock> clocks_;
  uint32_t base_step_ = 0;
  std::vector<Barrier> barriers_;
  Barrier cluster_barrier_;
  uint32_t cluster_barrier_phase_ = 0;
  Clock cluster_clock_;                         // of its last phase
  std::vector<std::vector<Meeting>> meetings_;  // of each warp
  std::vector<Pending> pending_;
  int work_started_ = 0;
  int next_carrier_ = 0;
  std::minstd_rand random_{1};
  unsigned first_block_ = 0;
  int active_ = 0;  // whose shared memory lies where the kernel sees it
  std::vector<std::vector<std::byte>> inactive_;
  jmp_buf scheduler_;
  int current_ = 0;
  bool aborted_ = false;
  const std::function<void()>* body_ = nullptr;
};

inline Cluster* cluster = nullptr;  // the one that runs

}  // namespace cuda_on_host

#endif  // TILEWRIGHT_TESTS_EMULATED_CLUSTER_H_
