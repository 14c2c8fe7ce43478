// The block that runs: its fibers, their clocks, and who waits for what.
#ifndef TILEWRIGHT_TESTS_EMULATED_BLOCK_H_
#define TILEWRIGHT_TESTS_EMULATED_BLOCK_H_

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/emulated/cuda_on_host.h"
#include "tests/emulated/emulator/launch.h"

namespace cuda_on_host {

// clock[t]: up to which step of thread t everything has happened before.
using Clock = std::vector<uint32_t>;

void Join(Clock& into, const Clock& from);

// A copy in flight: what was read, and where it will be written.
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
  const char* waits_for = nullptr;  // null: can run
  BarrierVotes votes;               // of the barrier that it passed last
  Clock clock;
  std::vector<Copy> uncommitted;
  std::deque<std::vector<Copy>> groups;
};

// Everyone of `threads` waits for the others.
struct Barrier {
  int threads = 0;  // 0: nobody has come yet
  int arrived = 0;
  BarrierVotes votes;
  Clock clock;
  std::vector<int> waiting;
};

class Block {
 public:
  static constexpr size_t kStackBytes = 128 << 10;

  Block(const LaunchConfig& config, std::vector<Fault>* faults);

  // Runs `body` once on every thread; false when a fault left no way to go on.
  bool Run(const std::function<void()>& body);

  // Lets others run until somebody calls Wake(current()).
  void Sleep(const char* waits_for);
  void Wake(int thread) { fibers_[thread].waits_for = nullptr; }
  [[noreturn]] void Abort();

  // Reports a fault of the current thread, or of `thread`.
  void Report(const std::string& what, const void* code = nullptr, int thread = -1);

  // What `thread` does from now on has not happened before what others know of it.
  void Step(int thread) { ++fibers_[thread].clock[thread]; }
  bool HappenedBefore(int thread, uint32_t step, int observer) const {
    return fibers_[observer].clock[thread] >= step;
  }

  // Arrives at `barrier` with `threads` in all and, unless `arrive_only`, waits for it.
  void Meet(Barrier& barrier, int threads, int vote, bool arrive_only, const char* name);

  int current() const { return current_; }
  Fiber& fiber() { return fibers_[current_]; }
  Fiber& fiber(int thread) { return fibers_[thread]; }
  int threads() const { return static_cast<int>(fibers_.size()); }
  const LaunchConfig& config() const { return config_; }
  const char* stack_begin() const { return fibers_[current_].stack.get(); }

  Barrier& barrier(int id) { return barriers_[id]; }

  struct Meeting {
    unsigned mask = 0;
    unsigned arrived = 0;
    Operation operation = Operation::kSyncWarp;
    void* arguments[32] = {};
  };
  std::vector<Meeting>& meetings() { return meetings_[current_ / 32]; }

 private:
  static void Main();
  void SwitchTo(int thread);
  void YieldToScheduler();
  void ReportDeadlock();

  const LaunchConfig& config_;
  std::vector<Fault>* faults_;
  std::vector<Fiber> fibers_;
  std::vector<Barrier> barriers_ = std::vector<Barrier>(16);
  std::vector<std::vector<Meeting>> meetings_;  // of each warp
  jmp_buf scheduler_;
  ucontext_t scheduler_context_;
  int current_ = 0;
  bool aborted_ = false;
  const std::function<void()>* body_ = nullptr;
};

inline Block* block = nullptr;  // the one that runs

}  // namespace cuda_on_host

#endif  // TILEWRIGHT_TESTS_EMULATED_BLOCK_H_
