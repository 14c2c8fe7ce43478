// Runs a CUDA kernel of one dimension on the CPU. The threads of a block are fibers that take
// turns; each runs until it waits for others. What a kernel does with memory is watched: the kernel
// is compiled with the calls that -fsanitize=thread inserts before loads and stores, and those
// calls end here (memory.cc), as do the instructions of ptx/.
//
// Found are
//   - accesses outside of what the launch was given, and misaligned ones,
//   - reads of shared memory that nobody has written,
//   - races: two accesses of one byte of shared memory, one of them a write, that no barrier,
//     __syncwarp or wait orders (vector clocks, as in Flanagan, Freund, FastTrack, PLDI 2009); that
//     the emulator happens to run them one after the other does not matter,
//   - races in global memory: accesses by two blocks, or by two threads of one, in the same way;
//   what
//     one block releases and another acquires is ordered,
//   - use of what an asynchronous copy has not delivered: it becomes visible at the wait only,
//   - what the asynchronous units read and ordinary stores wrote without fence.proxy.async,
//   - registers of a wgmma that change before its wait,
//   - lanes of a warp that meet at different instructions, and threads that wait for ever.
//
// One launch at a time in a process.
#ifndef TILEWRIGHT_TESTS_EMULATED_LAUNCH_H_
#define TILEWRIGHT_TESTS_EMULATED_LAUNCH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cuda_on_host {

// Memory that a kernel may touch.
struct MemoryRange {
  const void* begin = nullptr;
  size_t bytes = 0;
  bool writable = false;
  std::string name;
  bool private_to_kernel = false;  // not looked at for races
};

struct LaunchConfig {
  unsigned grid = 1;
  int threads = 32;
  int cluster = 1;  // blocks that run together; the grid is a multiple of it
  // The `extern __shared__` array of the kernel, and how much of it the launch asks for.
  std::byte* shared = nullptr;
  size_t shared_bytes = 0;
  std::vector<MemoryRange> memory;
};

struct Fault {
  std::string what;
  uintptr_t code = 0;  // address of the instruction behind the access; 0: not of an access
};

// Runs `kernel` on every thread of every block, one cluster of blocks after the other. Stops at the
// first fault that leaves no way to go on; else reports each fault of one place once.
std::vector<Fault> Launch(const LaunchConfig& config, const std::function<void()>& kernel);

}  // namespace cuda_on_host

#endif  // TILEWRIGHT_TESTS_EMULATED_LAUNCH_H_
