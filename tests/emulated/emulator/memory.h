// What is known of each byte of shared memory, and which global memory there is.
#ifndef TILEWRIGHT_TESTS_EMULATED_MEMORY_H_
#define TILEWRIGHT_TESTS_EMULATED_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "tests/emulated/emulator/cluster.h"
#include "tests/emulated/emulator/launch.h"

namespace cuda_on_host {

// By the asynchronous units (bulk copies, wgmma) or by ordinary instructions.
enum class Access { kRead, kWrite, kAtomic, kAsyncRead, kAsyncWrite };

// Before a launch and before each of its clusters.
void SetMemory(const LaunchConfig& config, const Cluster& blocks);
void ForgetSharedMemory();
// Bytes of the array in which a block's shared memory lies, more than it may use; all of them NaN
// in every element type.
size_t SharedArrayBytes();
void PoisonShared(std::byte* array);
// After a cluster: copies in flight.
void CheckSharedMemoryAtEnd();

// An access by `actor` of shared memory of the block `rank`. `code` stands for the place in the
// kernel. InShared first: whether there is such memory.
bool InShared(size_t offset, size_t bytes);
void CheckShared(int rank, size_t offset, size_t bytes, Access access, int actor, const void* code);
// Of the current thread, anywhere. Does not return when there is no such memory.
void CheckAccess(const void* address, size_t bytes, Access access, const void* code);

// Orders what other blocks did before they released at this address before what this block does
// next.
void Release(const void* address);
void Acquire(const void* address);

// While set, an access of these bytes is a fault: an asynchronous copy will write them.
void SetInFlight(int rank, size_t offset, size_t bytes, bool in_flight);

}  // namespace cuda_on_host

#endif  // TILEWRIGHT_TESTS_EMULATED_MEMORY_H_
