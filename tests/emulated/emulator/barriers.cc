// mbarriers, named barriers, and the barrier of a cluster.
#include "tests/emulated/emulator/barriers.h"

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulated/emulator/cluster.h"
#include "tests/emulated/emulator/memory.h"
#include "tests/emulated/ptx/cluster.cuh"
#include "tests/emulated/ptx/cp_async.cuh"
#include "tests/emulated/ptx/mbarrier.cuh"
#include "tests/emulated/ptx/named_barrier.cuh"

namespace cuda_on_host {
namespace {

constexpr unsigned kClusterAddress = 1u << 31;
constexpr int kRankShift = 24;
constexpr size_t kBarrierBytes = 8;

struct PhaseBarrier {
  unsigned arrivals = 0;  // of a phase
  unsigned awaited = 0;   // of this phase
  int64_t bytes = 0;      // that are still to be written
  uint32_t phase = 0;
  Clock clock;  // of this phase
  Clock ended;  // of the last one that has ended
  std::vector<int> waiting;
  int initialised_by = -1;
  bool fenced = false;
};
std::map<std::pair<int, uint32_t>, PhaseBarrier> barriers;

std::string NameOf(SharedPlace at) { return "the mbarrier at " + std::to_string(at.offset); }

PhaseBarrier& Find(SharedPlace at) {
  const auto found = barriers.find({at.rank, at.offset});
  if (found == barriers.end()) cluster->AbortWith(NameOf(at) + " has not been initialised");
  return found->second;
}

void EndPhaseIfComplete(PhaseBarrier& barrier) {
  if (barrier.awaited != 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.awaited = barrier.arrivals;
  barrier.ended = std::exchange(barrier.clock, Clock(cluster->actors(), 0));
  for (int thread : std::exchange(barrier.waiting, {})) {
    Join(cluster->clock(thread), barrier.ended);
    cluster->Wake(thread);
  }
}

void Arrive(unsigned address, int64_t bytes, const void* code) {
  const SharedPlace at = Decode(address);
  PhaseBarrier& barrier = Find(at);
  CheckShared(at.rank, at.offset, kBarrierBytes, Access::kAtomic, cluster->current(), code);
  if (barrier.awaited == 0) {
    cluster->AbortWith("arrives at " + NameOf(at) + " once more than its " +
                           std::to_string(barrier.arrivals) + " times a phase",
                       code);
  }
  Join(barrier.clock, cluster->clock(cluster->current()));
  cluster->Step(cluster->current());
  barrier.bytes += bytes;
  --barrier.awaited;
  EndPhaseIfComplete(barrier);
}

}  // namespace

SharedPlace Decode(unsigned address) {
  if ((address & kClusterAddress) == 0) return {cluster->rank(), address};
  return {static_cast<int>(address >> kRankShift & 0x7f), address & ((1u << kRankShift) - 1)};
}

void ForgetBarriers() { barriers.clear(); }

void CheckBarrierForCopies(SharedPlace at) {
  if (!Find(at).fenced) {
    cluster->AbortWith("a bulk copy to " + NameOf(at) +
                       ", which was initialised without fence.mbarrier_init");
  }
}

void CompleteBytes(SharedPlace at, int64_t bytes, int carrier) {
  PhaseBarrier& barrier = barriers.at({at.rank, at.offset});
  Join(barrier.clock, cluster->clock(carrier));
  barrier.bytes -= bytes;
  EndPhaseIfComplete(barrier);
}

// ---- mbarrier

void InitBarrier(unsigned address, unsigned arrivals) {
  const void* const code = __builtin_return_address(0);
  const SharedPlace at = Decode(address);
  if (at.offset % kBarrierBytes != 0 || !InShared(at.offset, kBarrierBytes)) {
    cluster->AbortWith("mbarrier.init of address " + std::to_string(at.offset), code);
  }
  CheckShared(at.rank, at.offset, kBarrierBytes, Access::kWrite, cluster->current(), code);
  std::memset(cluster->shared(at.rank) + at.offset, 0, kBarrierBytes);
  const Clock none(cluster->actors(), 0);
  barriers[{at.rank, at.offset}] = {.arrivals = arrivals,
                                    .awaited = arrivals,
                                    .clock = none,
                                    .ended = none,
                                    .waiting = {},
                                    .initialised_by = cluster->current()};
}

void FenceBarrierInit() {
  for (auto& [place, barrier] : barriers) {
    if (barrier.initialised_by == cluster->current()) barrier.fenced = true;
  }
}

void ArriveAtBarrier(unsigned address) { Arrive(address, 0, __builtin_return_address(0)); }

void ArriveExpectingBytes(unsigned address, unsigned bytes) {
  Arrive(address, bytes, __builtin_return_address(0));
}

void ArriveBehindCopies(unsigned address) {
  CommitCopies();
  WaitForCopies(0);
  Arrive(address, 0, __builtin_return_address(0));
}

void WaitForBarrier(unsigned address, unsigned parity) {
  const SharedPlace at = Decode(address);
  PhaseBarrier& barrier = Find(at);
  CheckShared(at.rank, at.offset, kBarrierBytes, Access::kAtomic, cluster->current(),
              __builtin_return_address(0));
  if (barrier.phase % 2 != parity) {
    Join(cluster->clock(cluster->current()), barrier.ended);
    return;
  }
  barrier.waiting.push_back(cluster->current());
  cluster->Sleep(NameOf(at) + " for parity " + std::to_string(parity));
}

// ---- named barriers

namespace {

void MeetAtNamedBarrier(int barrier, int threads, bool vote, bool arrive_only) {
  if (barrier < 0 || barrier > 15 || threads <= 0 || threads % 32 != 0) {
    cluster->AbortWith("named barrier " + std::to_string(barrier) + " for " +
                       std::to_string(threads) + " threads");
  }
  cluster->Meet(cluster->barrier(barrier), threads, vote, arrive_only,
                "named barrier " + std::to_string(barrier));
}

}  // namespace

void MeetAtNamedBarrier(int barrier, int threads, bool arrive_only) {
  MeetAtNamedBarrier(barrier, threads, false, arrive_only);
}

bool VoteAtNamedBarrier(int barrier, int threads, bool vote) {
  MeetAtNamedBarrier(barrier, threads, vote, false);
  return cluster->fiber().votes.any;
}

// ---- clusters

unsigned RankInCluster() { return static_cast<unsigned>(cluster->rank()); }

unsigned AddressInCluster(unsigned address, unsigned rank) {
  if (rank >= static_cast<unsigned>(cluster->blocks())) {
    cluster->AbortWith("mapa to block " + std::to_string(rank) + " of a cluster of " +
                       std::to_string(cluster->blocks()));
  }
  return kClusterAddress | rank << kRankShift | address;
}

void ArriveAtCluster() { cluster->ArriveAtCluster(); }
void WaitForCluster() { cluster->WaitForCluster(); }

void ReduceInCluster(unsigned address, int value, bool largest) {
  const void* const code = __builtin_return_address(0);
  const SharedPlace at = Decode(address);
  if (at.offset % 4 != 0 || !InShared(at.offset, sizeof(int))) {
    cluster->AbortWith("red at address " + std::to_string(at.offset), code);
  }
  CheckShared(at.rank, at.offset, sizeof(int), Access::kAtomic, cluster->current(), code);
  int* const target = reinterpret_cast<int*>(cluster->shared(at.rank) + at.offset);
  if (largest ? *target < value : value < *target) *target = value;
}

void StoreInCluster(unsigned address, const float* values, int count) {
  const void* const code = __builtin_return_address(0);
  const SharedPlace at = Decode(address);
  const unsigned bytes = static_cast<unsigned>(count * static_cast<int>(sizeof(float)));
  if (at.offset % bytes != 0 || !InShared(at.offset, bytes)) {
    cluster->AbortWith("st at address " + std::to_string(at.offset), code);
  }
  CheckShared(at.rank, at.offset, bytes, Access::kWrite, cluster->current(), code);
  std::memcpy(cluster->shared(at.rank) + at.offset, values, bytes);
}

}  // namespace cuda_on_host
