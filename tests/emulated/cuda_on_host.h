// Runs a CUDA kernel of one dimension on the CPU: included before the kernel's source, it gives g++
// the few CUDA names that the families use. The threads of a block are fibers that take turns;
// each runs until it waits for the others at a barrier, a shuffle or a ballot.
#ifndef TILEWRIGHT_TESTS_CUDA_ON_HOST_H_
#define TILEWRIGHT_TESTS_CUDA_ON_HOST_H_

#include <ucontext.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

namespace cuda_on_host {

struct Dim {
  unsigned x = 0;
};

// Everyone of `size` threads waits for the others.
struct Barrier {
  int size = 0;
  int arrived = 0;
  long generation = 0;
};

class Block {
 public:
  explicit Block(int threads) : fibers_(threads), warps_(threads / 32), all_{.size = threads} {
    for (Warp& warp : warps_) warp.barrier.size = 32;
  }

  // Runs `body` once on every thread.
  void Run(const std::function<void()>& body);

  void Wait(Barrier& barrier) {
    const long generation = barrier.generation;
    if (++barrier.arrived == barrier.size) {
      barrier.arrived = 0;
      ++barrier.generation;
      return;
    }
    while (barrier.generation == generation) {
      swapcontext(&fibers_[current_].context, &scheduler_);
    }
  }
  void WaitForBlock() { Wait(all_); }

  // The value that `lane` of this thread's warp passes.
  template <typename T>
  T Exchange(T value, int lane) {
    Warp& warp = warps_[current_ / 32];
    static_assert(sizeof(T) == 4);
    warp.slots[current_ % 32] = __builtin_bit_cast(unsigned, value);
    Wait(warp.barrier);
    const T result = __builtin_bit_cast(T, warp.slots[lane]);
    Wait(warp.barrier);
    return result;
  }
  unsigned Ballot(bool vote) {
    Warp& warp = warps_[current_ / 32];
    warp.slots[current_ % 32] = vote;
    Wait(warp.barrier);
    unsigned ballot = 0;
    for (int lane = 0; lane < 32; ++lane) ballot |= warp.slots[lane] << lane;
    Wait(warp.barrier);
    return ballot;
  }
  int lane() const { return current_ % 32; }

 private:
  struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    bool done = false;
  };
  struct Warp {
    Barrier barrier;
    unsigned slots[32];
  };
  static void Main();

  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  Barrier all_;
  ucontext_t scheduler_;
  int current_ = 0;
  const std::function<void()>* body_ = nullptr;
};

inline Block* block = nullptr;  // the one that runs

}  // namespace cuda_on_host

inline cuda_on_host::Dim threadIdx, blockIdx, gridDim;

namespace cuda_on_host {

inline void Block::Main() {
  (*block->body_)();
  block->fibers_[block->current_].done = true;
  swapcontext(&block->fibers_[block->current_].context, &block->scheduler_);
}

inline void Block::Run(const std::function<void()>& body) {
  constexpr size_t kStackBytes = 64 << 10;
  block = this;
  body_ = &body;
  for (Fiber& fiber : fibers_) {
    fiber.stack = std::make_unique<char[]>(kStackBytes);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &Block::Main, 0);
  }
  for (bool running = true; running;) {
    running = false;
    for (size_t t = 0; t < fibers_.size(); ++t) {
      if (fibers_[t].done) continue;
      running = true;
      current_ = static_cast<int>(t);
      threadIdx.x = static_cast<unsigned>(t);
      swapcontext(&scheduler_, &fibers_[t].context);
    }
  }
}

// Launches grid blocks of `threads` threads, one after the other.
inline void Launch(unsigned grid, int threads, const std::function<void()>& kernel) {
  gridDim.x = grid;
  for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) Block(threads).Run(kernel);
}

}  // namespace cuda_on_host

inline void __syncthreads() { cuda_on_host::block->WaitForBlock(); }
template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  return cuda_on_host::block->Exchange(value, lane);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return cuda_on_host::block->Exchange(value, cuda_on_host::block->lane() ^ mask);
}
inline unsigned __ballot_sync(unsigned, bool vote) { return cuda_on_host::block->Ballot(vote); }

#endif  // TILEWRIGHT_TESTS_CUDA_ON_HOST_H_
