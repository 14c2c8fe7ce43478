// What is known of each byte of shared memory, and which global memory there is.
#ifndef TILEWRIGHT_TESTS_EMULATED_MEMORY_H_
#define TILEWRIGHT_TESTS_EMULATED_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "tests/emulated/emulator/launch.h"

namespace cuda_on_host {

enum class Access { kRead, kWrite, kAtomic };

// Before a launch and before each of its blocks.
void SetMemory(const LaunchConfig& config);
void ForgetSharedMemory();
// After a block: copies in flight and writes behind the end of shared memory.
void CheckSharedMemoryAtEnd();

// An access by `thread` of the running block. `code` stands for the place in the kernel.
void CheckShared(size_t offset, size_t bytes, Access access, int thread, const void* code);
// Of the current thread, anywhere. Does not return when there is no such memory.
void CheckAccess(const void* address, size_t bytes, Access access, const void* code);

// While set, an access of these bytes is a fault: an asynchronous copy will write them.
void SetInFlight(size_t offset, size_t bytes, bool in_flight);

}  // namespace cuda_on_host

#endif  // TILEWRIGHT_TESTS_EMULATED_MEMORY_H_
