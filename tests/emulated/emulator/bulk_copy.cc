// TMA: bulk copies of boxes of a tensor, and the fence between ordinary and asynchronous accesses.
#include "tests/emulated/emulator/bulk_copy.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulated/emulator/barriers.h"
#include "tests/emulated/emulator/cluster.h"
#include "tests/emulated/emulator/memory.h"
#include "tests/emulated/emulator/tensor_map.h"

namespace cuda_on_host {
namespace {

// One row of a box: its place in shared memory (as if there were no swizzle, from the box's start)
// and in global memory, and which of its bytes lie inside the tensor.
struct BoxRow {
  uint32_t offset;
  std::byte* global;  // of the row's first byte, inside or not
  uint32_t begin, end;
};

struct Box {
  HostTensorMap map;
  uint32_t bytes = 0;
  uint32_t row_bytes = 0;
  uint32_t pitch = 0;  // of rows in shared memory: under a swizzle its whole width
  std::vector<BoxRow> rows;
};

// Calls visit(offset, bytes) for the ranges of shared memory that a box at `shared` covers.
template <typename Visit>
void ForEachRange(const Box& box, uint32_t shared, const Visit& visit) {
  constexpr uint32_t kChunk = 16;
  if (box.pitch == box.row_bytes) {
    visit(shared, box.bytes);
    return;
  }
  for (const BoxRow& row : box.rows) {
    for (uint32_t at = 0; at < box.row_bytes; at += kChunk) {
      visit(Swizzled(shared + row.offset + at, box.map.swizzle),
            std::min(kChunk, box.row_bytes - at));
    }
  }
}

Box FindBox(const void* map_address, uint32_t shared, const int* coordinates, int dimensions,
            Access access, const void* code) {
  CheckAccess(map_address, sizeof(HostTensorMap), Access::kRead, code);
  Box box;
  std::memcpy(&box.map, map_address, sizeof(HostTensorMap));
  const HostTensorMap& map = box.map;
  if (map.mark != kTensorMapMark || map.dimensions != dimensions) {
    cluster->AbortWith("a bulk copy by what is no tensor map of its dimensions", code);
  }
  constexpr uint32_t kAlignment = 128;
  if (shared % kAlignment != 0) {
    cluster->AbortWith(
        "a bulk copy at shared address " + std::to_string(shared) + ", not a multiple of 128",
        code);
  }
  // Seen on an H200, which calls it an illegal instruction.
  if (int64_t{coordinates[0]} * map.element_bytes % 16 != 0) {
    cluster->AbortWith("a bulk copy from column " + std::to_string(coordinates[0]) +
                           ", not on a multiple of 16 bytes",
                       code);
  }
  box.row_bytes = map.box[0] * map.element_bytes;
  int64_t rows = 1;
  for (int d = 1; d < dimensions; ++d) rows *= map.box[d];
  box.bytes = box.row_bytes * static_cast<uint32_t>(rows);
  box.pitch = map.swizzle == 0 ? box.row_bytes : 16u << map.swizzle;
  const uint32_t span = static_cast<uint32_t>(rows - 1) * box.pitch + box.row_bytes;
  if (!InShared(shared, span)) {
    cluster->AbortWith("a bulk copy of " + std::to_string(span) + " bytes at " +
                           std::to_string(shared) + " of shared memory",
                       code);
  }
  for (int64_t row = 0; row < rows; ++row) {
    int64_t rest = row, offset = int64_t{coordinates[0]} * map.element_bytes;
    bool inside = true;
    for (int d = 1; d < dimensions; ++d) {
      const int64_t at = coordinates[d] + rest % map.box[d];
      rest /= map.box[d];
      inside = inside && at >= 0 && at < static_cast<int64_t>(map.extents[d]);
      offset += at * static_cast<int64_t>(map.strides[d - 1]);
    }
    const auto clamp = [&](int64_t column) {
      column = std::max<int64_t>(0, std::min<int64_t>(column, map.box[0]));
      return static_cast<uint32_t>(column) * map.element_bytes;
    };
    BoxRow found = {static_cast<uint32_t>(row) * box.pitch,
                    reinterpret_cast<std::byte*>(map.base + static_cast<uint64_t>(offset)),
                    clamp(-int64_t{coordinates[0]}),
                    clamp(static_cast<int64_t>(map.extents[0]) - coordinates[0])};
    if (!inside || found.begin > found.end) found.begin = found.end = 0;
    if (found.begin < found.end) {
      CheckAccess(found.global + found.begin, found.end - found.begin, access, code);
    }
    box.rows.push_back(found);
  }
  return box;
}

// Calls copy(byte of shared memory, byte of global memory or null outside the tensor).
template <typename Copy>
void ForEachByte(const Box& box, uint32_t shared, std::byte* memory, const Copy& copy) {
  for (const BoxRow& row : box.rows) {
    for (uint32_t n = 0; n < box.row_bytes; ++n) {
      std::byte* const here = memory + Swizzled(shared + row.offset + n, box.map.swizzle);
      copy(here, n >= row.begin && n < row.end ? row.global + n : nullptr);
    }
  }
}

// A store looks at what lies inside the tensor only.
void CheckStore(const Box& box, uint32_t source, int rank, int actor, const void* code) {
  constexpr uint32_t kChunk = 16;
  for (const BoxRow& row : box.rows) {
    for (uint32_t at = row.begin; at < row.end;) {
      const uint32_t end = std::min(row.end, (at / kChunk + 1) * kChunk);
      CheckShared(rank, Swizzled(source + row.offset + at, box.map.swizzle), end - at,
                  Access::kAsyncRead, actor, code);
      at = end;
    }
  }
}

// A carrier that knows what the current thread knows, as of now.
struct Carrier {
  int actor;
  Clock clock;

  Carrier() : actor(cluster->NextCarrier()), clock(cluster->clock(cluster->current())) {
    Begin();
    cluster->Step(cluster->current());
  }
  // Before each of its accesses.
  void Begin() {
    clock[actor] = cluster->step(actor) + 1;
    cluster->clock(actor) = clock;
  }
};

}  // namespace

unsigned OwnBlock() { return 1u << cluster->rank(); }

void PrefetchMap(const void* map) {
  CheckAccess(map, sizeof(HostTensorMap), Access::kRead, __builtin_return_address(0));
}

void StartBulkLoad(unsigned destination, const void* map, unsigned barrier_address,
                   const int* coordinates, int dimensions, unsigned blocks) {
  const void* const code = __builtin_return_address(0);
  const SharedPlace at = Decode(destination), barrier = Decode(barrier_address);
  const Box box = FindBox(map, at.offset, coordinates, dimensions, Access::kRead, code);
  std::vector<int> ranks;
  for (int rank = 0; rank < cluster->blocks(); ++rank) {
    if ((blocks >> rank & 1) != 0) ranks.push_back(rank);
  }
  Carrier carrier;
  for (int rank : ranks) {
    CheckBarrierForCopies({rank, barrier.offset});
    ForEachRange(box, at.offset, [&](uint32_t offset, uint32_t bytes) {
      CheckShared(rank, offset, bytes, Access::kAsyncWrite, carrier.actor, code);
      SetInFlight(rank, offset, bytes, true);
    });
  }
  cluster->StartWork([=]() mutable {
    carrier.Begin();
    for (int rank : ranks) {
      ForEachRange(box, at.offset, [&](uint32_t offset, uint32_t bytes) {
        SetInFlight(rank, offset, bytes, false);
        CheckShared(rank, offset, bytes, Access::kAsyncWrite, carrier.actor, code);
      });
      ForEachByte(box, at.offset, cluster->shared(rank),
                  [](std::byte* shared, const std::byte* global) {
                    *shared = global == nullptr ? std::byte{0} : *global;
                  });
      CompleteBytes({rank, barrier.offset}, box.bytes, carrier.actor);
    }
  });
}

void StartClusterCopy(unsigned cluster_destination, unsigned source, unsigned bytes,
                      unsigned cluster_barrier) {
  const void* const code = __builtin_return_address(0);
  constexpr uint32_t kChunk = 16;
  const SharedPlace to = Decode(cluster_destination), barrier = Decode(cluster_barrier);
  if (to.offset % kChunk != 0 || source % kChunk != 0 || bytes % kChunk != 0 ||
      !InShared(source, bytes) || !InShared(to.offset, bytes) || to.rank != barrier.rank) {
    cluster->AbortWith("a bulk copy of " + std::to_string(bytes) + " bytes at " +
                           std::to_string(source) + " to " + std::to_string(to.offset) +
                           " of a block of the cluster, not a multiple of 16",
                       code);
  }
  CheckBarrierForCopies(barrier);
  Carrier carrier;
  const int rank = cluster->rank();
  CheckShared(rank, source, bytes, Access::kAsyncRead, carrier.actor, code);
  CheckShared(to.rank, to.offset, bytes, Access::kAsyncWrite, carrier.actor, code);
  SetInFlight(to.rank, to.offset, bytes, true);
  cluster->StartWork([=]() mutable {
    carrier.Begin();
    CheckShared(rank, source, bytes, Access::kAsyncRead, carrier.actor, code);
    SetInFlight(to.rank, to.offset, bytes, false);
    CheckShared(to.rank, to.offset, bytes, Access::kAsyncWrite, carrier.actor, code);
    std::memcpy(cluster->shared(to.rank) + to.offset, cluster->shared(rank) + source, bytes);
    CompleteBytes(barrier, bytes, carrier.actor);
  });
}

void StartBulkStore(const void* map, unsigned source, const int* coordinates, int dimensions) {
  const void* const code = __builtin_return_address(0);
  const Box box = FindBox(map, source, coordinates, dimensions, Access::kWrite, code);
  Carrier carrier;
  const int rank = cluster->rank(), thread = cluster->current();
  CheckStore(box, source, rank, carrier.actor, code);
  const int number = cluster->StartWork([=]() mutable {
    // As of the start: what was written since may be what is read.
    cluster->clock(carrier.actor) = carrier.clock;
    CheckStore(box, source, rank, carrier.actor, code);
    ForEachByte(box, source, cluster->shared(rank), [](std::byte* shared, std::byte* global) {
      if (global != nullptr) *global = *shared;
    });
    cluster->fiber(thread).finished_stores.emplace_back(carrier.actor,
                                                        carrier.clock[carrier.actor]);
  });
  cluster->fiber().uncommitted_stores.push_back(number);
}

void StartBulkAdd(float* at, unsigned source, unsigned bytes) {
  const void* const code = __builtin_return_address(0);
  constexpr uint32_t kChunk = 16;
  if (reinterpret_cast<uintptr_t>(at) % kChunk != 0 || source % kChunk != 0 ||
      bytes % kChunk != 0 || !InShared(source, bytes)) {
    cluster->AbortWith("a bulk addition of " + std::to_string(bytes) + " bytes at " +
                           std::to_string(source) + " of shared memory, not a multiple of 16",
                       code);
  }
  const uint32_t count = bytes / sizeof(float);
  for (uint32_t n = 0; n < count; ++n) CheckAccess(at + n, sizeof *at, Access::kAtomic, code);
  Carrier carrier;
  const int rank = cluster->rank(), thread = cluster->current();
  const auto check = [=, actor = carrier.actor] {
    for (uint32_t n = 0; n < bytes; n += kChunk) {
      CheckShared(rank, source + n, kChunk, Access::kAsyncRead, actor, code);
    }
  };
  check();
  const int number = cluster->StartWork([=]() mutable {
    // As of the start: what was written since may be what is read.
    cluster->clock(carrier.actor) = carrier.clock;
    check();
    for (uint32_t n = 0; n < count; ++n) {
      float value;
      std::memcpy(&value, cluster->shared(rank) + source + n * sizeof value, sizeof value);
      at[n] += value;
    }
    cluster->fiber(thread).finished_stores.emplace_back(carrier.actor,
                                                        carrier.clock[carrier.actor]);
  });
  cluster->fiber().uncommitted_stores.push_back(number);
}

void CommitBulkStores() {
  Fiber& fiber = cluster->fiber();
  fiber.committed_stores.push_back(std::exchange(fiber.uncommitted_stores, {}));
}

void WaitForBulkStores(int pending) {
  Fiber& fiber = cluster->fiber();
  while (fiber.committed_stores.size() > static_cast<size_t>(pending)) {
    for (int number : fiber.committed_stores.front()) cluster->FinishWork(number);
    fiber.committed_stores.pop_front();
  }
  Clock& clock = cluster->clock(cluster->current());
  for (const auto& [actor, step] : std::exchange(fiber.finished_stores, {})) {
    clock[actor] = std::max(clock[actor], step);
  }
}

void FenceProxyAsync() {
  Fiber& fiber = cluster->fiber();
  const int thread = cluster->current();
  fiber.fenced_step = cluster->step(thread);
  fiber.fenced_clock = cluster->clock(thread);
  cluster->Step(thread);
}

}  // namespace cuda_on_host
