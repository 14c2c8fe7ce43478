// mbarrier objects.
#ifndef TILEWRIGHT_TESTS_EMULATED_BARRIERS_H_
#define TILEWRIGHT_TESTS_EMULATED_BARRIERS_H_

#include <cstdint>

namespace cuda_on_host {

// An address of shared memory: of this block, or (with the top bit) of any block of the cluster.
struct SharedPlace {
  int rank;
  uint32_t offset;
};
SharedPlace Decode(unsigned address);

// Before each cluster.
void ForgetBarriers();
// A fault unless bulk copies may use the barrier.
void CheckBarrierForCopies(SharedPlace barrier);
// A bulk copy has written `bytes`.
void CompleteBytes(SharedPlace barrier, int64_t bytes, int carrier);

}  // namespace cuda_on_host

#endif  // TILEWRIGHT_TESTS_EMULATED_BARRIERS_H_
