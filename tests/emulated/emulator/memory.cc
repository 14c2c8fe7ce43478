#include "tests/emulated/emulator/memory.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulated/emulator/cluster.h"

namespace cuda_on_host {
namespace {

// Who accessed a byte, and at which of its steps, in one word; 0 for nobody.
using Epoch = uint32_t;
constexpr int kStepBits = 21;
Epoch Now(int actor) {
  return static_cast<Epoch>(actor) << kStepBits | (cluster->step(actor) & ((1u << kStepBits) - 1));
}
int ActorOf(Epoch epoch) { return static_cast<int>(epoch >> kStepBits); }
uint32_t StepOf(Epoch epoch) { return epoch & ((1u << kStepBits) - 1); }

// A NaN of every element type.
constexpr unsigned char kPoison = 0xff;
constexpr size_t kGuardBytes = 4096;

// What is known of a byte of global memory that kernels write. The blocks of a launch run one after
// the other here and side by side on a device, where nothing but acquire and release orders them.
struct GlobalByte {
  Epoch write = 0;      // of the last block that wrote
  Epoch read = 0;       // one of its reads since
  int write_block = 0;  // number + 1; 0: nobody
  int read_block = 0;
  bool atomic = false;  // whether the last write was
};

struct Memory {
  std::byte* shared = nullptr;
  size_t shared_bytes = 0;    // of a block
  size_t readers = 0;         // kept for each byte: of each warp, of its tensor core, of copies
  std::vector<Epoch> writes;  // last write of each byte of shared memory, [block][offset]
  std::vector<Epoch> reads;   // last read since, by each kind of reader: [block][offset][reader]
  std::vector<bool> in_flight;
  std::vector<bool> atomic;    // whether the last write was
  std::vector<bool> ordinary;  // whether the last write was no asynchronous unit's
  std::vector<MemoryRange> ranges;
  size_t last_range = 0;
  std::vector<std::vector<GlobalByte>> global;    // of each range that is written; else empty
  std::set<std::pair<int, int>> acquired;         // (block, block whose release it has seen)
  std::map<const void*, std::set<int>> released;  // blocks that have released at an address
};
Memory memory;

size_t ReaderOf(int actor) {
  const int threads = cluster->threads(), warps = cluster->warps();
  if (actor < threads) return static_cast<size_t>(actor / 32);
  return static_cast<size_t>(std::min(warps + actor - threads, 2 * warps));
}

std::string Place(size_t offset, size_t bytes) {
  std::ostringstream text;
  text << bytes << " bytes at " << offset << " of shared memory";
  return text.str();
}

bool IsRead(Access access) { return access == Access::kRead || access == Access::kAsyncRead; }
bool IsAsync(Access access) {
  return access == Access::kAsyncRead || access == Access::kAsyncWrite;
}

const char* Verb(Access access) {
  return IsRead(access) ? "reads " : access == Access::kAtomic ? "updates " : "writes ";
}

bool Ordered(Epoch before, int actor) {
  return before == 0 || cluster->HappenedBefore(ActorOf(before), StepOf(before), actor);
}

// Whether a fence.proxy.async lies between an ordinary write and what `actor` does now: of the
// writer, or of a thread that the actor acts for (whose fence its clock then knows of).
bool Fenced(Epoch write, int actor) {
  const int writer = ActorOf(write);
  if (cluster->fiber(writer).fenced_step >= StepOf(write)) return true;
  for (int thread = 0; thread < cluster->threads(); ++thread) {
    const Fiber& fiber = cluster->fiber(thread);
    if (fiber.fenced_clock[writer] >= StepOf(write) &&
        cluster->HappenedBefore(thread, fiber.fenced_step, actor)) {
      return true;
    }
  }
  return false;
}

// An access of global memory by a thread of the running block.
void CheckGlobal(size_t range, size_t offset, size_t bytes, Access access, const void* code) {
  const int thread = cluster->current(), block = static_cast<int>(indices.block.x) + 1;
  const Epoch now = Now(thread);
  const auto ordered = [&](Epoch epoch, int other) {
    if (other == 0 || memory.acquired.count({block, other}) != 0) return true;
    return other == block && Ordered(epoch, thread);
  };
  const auto race = [&](int other, Epoch epoch, const char* verb) {
    std::string who =
        other == block ? cluster->NameOf(ActorOf(epoch)) : "block " + std::to_string(other - 1);
    cluster->Report(std::string(Verb(access)) + std::to_string(bytes) + " bytes at " +
                        std::to_string(offset) + " of " + memory.ranges[range].name + " that " +
                        who + " " + verb + ", with nothing to order them",
                    code);
  };
  for (size_t at = offset; at < offset + bytes; ++at) {
    GlobalByte& byte = memory.global[range][at];
    const bool both_atomic = access == Access::kAtomic && byte.atomic;
    if (!both_atomic && !ordered(byte.write, byte.write_block)) {
      return race(byte.write_block, byte.write, "writes");
    }
    if (IsRead(access)) {
      byte.read = now;
      byte.read_block = block;
      continue;
    }
    if (!ordered(byte.read, byte.read_block)) return race(byte.read_block, byte.read, "reads");
    byte = {.write = now, .write_block = block, .atomic = access == Access::kAtomic};
  }
}

bool Contains(const MemoryRange& range, const char* address, size_t bytes) {
  const char* begin = static_cast<const char*>(range.begin);
  return address >= begin && address + bytes <= begin + range.bytes;
}

}  // namespace

void SetMemory(const LaunchConfig& config, const Cluster& blocks) {
  memory.shared = config.shared;
  memory.shared_bytes = config.shared_bytes;
  memory.readers = 2 * static_cast<size_t>(blocks.warps()) + 1;
  const size_t bytes = memory.shared_bytes * static_cast<size_t>(blocks.blocks());
  memory.reads.assign(bytes * memory.readers, 0);
  memory.ranges = config.memory;
  memory.last_range = 0;
  memory.writes.assign(bytes, 0);
  memory.global.clear();
  for (const MemoryRange& range : memory.ranges) {
    memory.global.emplace_back(range.writable && !range.private_to_kernel ? range.bytes : 0);
  }
  memory.acquired.clear();
  memory.released.clear();
}

void ForgetSharedMemory() {
  // Reads are kept: they have happened before whatever comes.
  std::fill(memory.writes.begin(), memory.writes.end(), 0);
  memory.in_flight.assign(memory.writes.size(), false);
  memory.atomic.assign(memory.writes.size(), false);
  memory.ordinary.assign(memory.writes.size(), false);
}

size_t SharedArrayBytes() { return memory.shared_bytes + kGuardBytes; }
void PoisonShared(std::byte* array) { std::memset(array, kPoison, SharedArrayBytes()); }

void CheckSharedMemoryAtEnd() {
  const size_t left =
      static_cast<size_t>(std::count(memory.in_flight.begin(), memory.in_flight.end(), true));
  if (left != 0) {
    cluster->Report("ends while copies to " + std::to_string(left) +
                    " bytes of shared memory are in flight");
  }
}

bool InShared(size_t offset, size_t bytes) {
  return offset <= memory.shared_bytes && bytes <= memory.shared_bytes - offset;
}

void CheckShared(int rank, size_t offset, size_t bytes, Access access, int actor,
                 const void* code) {
  const Epoch now = Now(actor);
  const size_t reader = ReaderOf(actor);
  const auto report = [&](const std::string& what) {
    cluster->Report(std::string(Verb(access)) + Place(offset, bytes) + what, code, actor);
  };
  const auto race = [&](Epoch other, const char* verb) {
    report(" that " + cluster->NameOf(ActorOf(other)) + " " + verb +
           ", with nothing to order them");
  };
  const size_t begin = static_cast<size_t>(rank) * memory.shared_bytes + offset;
  for (size_t at = begin; at < begin + bytes; ++at) {
    if (memory.in_flight[at]) return report(" while a copy to it is in flight");
    Epoch* const reads = &memory.reads[at * memory.readers];
    const Epoch write = memory.writes[at];
    if (write == 0 && (IsRead(access) || access == Access::kAtomic)) {
      return report(" that nobody has written");
    }
    const bool both_atomic = access == Access::kAtomic && memory.atomic[at];
    if (!both_atomic && !Ordered(write, actor)) return race(write, "writes");
    if (write != 0 && IsAsync(access) && memory.ordinary[at] && !Fenced(write, actor)) {
      return report(" that " + cluster->NameOf(ActorOf(write)) +
                    " wrote without a fence.proxy.async");
    }
    if (IsRead(access)) {
      reads[reader] = now;
      continue;
    }
    for (size_t other = 0; other < memory.readers; ++other) {
      if (!Ordered(reads[other], actor)) return race(reads[other], "reads");
      reads[other] = 0;
    }
    memory.writes[at] = now;
    memory.atomic[at] = access == Access::kAtomic;
    memory.ordinary[at] = !IsAsync(access);
  }
}

void CheckAccess(const void* address, size_t bytes, Access access, const void* code) {
  const char* const at = static_cast<const char*>(address);
  if (const char* stack = cluster->stack_begin();
      at >= stack && at < stack + Cluster::kStackBytes) {
    return;
  }
  if (const auto begin = reinterpret_cast<const char*>(&indices);
      at >= begin && at < begin + sizeof indices) {
    return;
  }
  const auto shared = reinterpret_cast<const char*>(memory.shared);
  if (at >= shared && at < shared + SharedArrayBytes()) {
    const auto offset = static_cast<size_t>(at - shared);
    if (!InShared(offset, bytes)) {
      cluster->AbortWith(std::string(Verb(access)) + Place(offset, bytes) + ", which has " +
                             std::to_string(memory.shared_bytes),
                         code);
    }
    return CheckShared(cluster->rank(), offset, bytes, access, cluster->current(), code);
  }
  if (memory.last_range >= memory.ranges.size() ||
      !Contains(memory.ranges[memory.last_range], at, bytes)) {
    memory.last_range = 0;
    while (memory.last_range < memory.ranges.size() &&
           !Contains(memory.ranges[memory.last_range], at, bytes)) {
      ++memory.last_range;
    }
    if (memory.last_range == memory.ranges.size()) {
      std::ostringstream text;
      text << Verb(access) << bytes << " bytes at " << address << ", where nothing is";
      // By the range that it comes nearest to.
      const MemoryRange* nearest = nullptr;
      ptrdiff_t least = 1 << 16;
      for (const MemoryRange& range : memory.ranges) {
        const ptrdiff_t from_begin = at - static_cast<const char*>(range.begin);
        const ptrdiff_t behind = from_begin - static_cast<ptrdiff_t>(range.bytes);
        const ptrdiff_t distance = from_begin < 0 ? -from_begin : behind;
        if (distance >= least) continue;
        least = distance;
        nearest = &range;
      }
      if (nearest != nullptr) {
        text << " (at " << at - static_cast<const char*>(nearest->begin) << " of the "
             << nearest->bytes << " bytes of " << nearest->name << ")";
      }
      cluster->AbortWith(text.str(), code);
    }
  }
  const MemoryRange& range = memory.ranges[memory.last_range];
  if (!IsRead(access) && !range.writable) {
    cluster->AbortWith(std::string(Verb(access)) + range.name + ", an input", code);
  }
  if (!memory.global[memory.last_range].empty()) {
    CheckGlobal(memory.last_range, static_cast<size_t>(at - static_cast<const char*>(range.begin)),
                bytes, access, code);
  }
}

void Release(const void* address) {
  memory.released[address].insert(static_cast<int>(indices.block.x) + 1);
}

void Acquire(const void* address) {
  const int block = static_cast<int>(indices.block.x) + 1;
  for (int other : memory.released[address]) {
    memory.acquired.insert({block, other});
    // And what that block had acquired before.
    for (int before = 1; before <= static_cast<int>(indices.grid.x); ++before) {
      if (memory.acquired.count({other, before}) != 0) memory.acquired.insert({block, before});
    }
  }
}

void SetInFlight(int rank, size_t offset, size_t bytes, bool in_flight) {
  const size_t begin = static_cast<size_t>(rank) * memory.shared_bytes + offset;
  for (size_t at = begin; at < begin + bytes; ++at) memory.in_flight[at] = in_flight;
}

}  // namespace cuda_on_host

// What -fsanitize=thread calls before loads and stores, and what -fsanitize=undefined calls when
// something is wrong. A program that is itself built with UBSan has the names of the second
// already: its kernels are compiled without.
namespace {

[[noreturn]] void AbortWith(const std::string& what, const void* code) {
  cuda_on_host::cluster->AbortWith(what, code);
}

// `alignment` is a power of two that the compiler took for granted.
void CheckAligned(const void* address, size_t alignment, const void* code) {
  if (reinterpret_cast<uintptr_t>(address) % alignment == 0) return;
  std::ostringstream text;
  text << "an access at " << address << ", which is not a multiple of " << alignment;
  AbortWith(text.str(), code);
}

}  // namespace

#define TILEWRIGHT_ACCESS(name, bytes, access)                              \
  void __tsan_##name(void* address) {                                       \
    CheckAligned(address, bytes, __builtin_return_address(0));              \
    cuda_on_host::CheckAccess(address, bytes, cuda_on_host::Access::access, \
                              __builtin_return_address(0));                 \
  }
extern "C" {
TILEWRIGHT_ACCESS(read1, 1, kRead)
TILEWRIGHT_ACCESS(read2, 2, kRead)
TILEWRIGHT_ACCESS(read4, 4, kRead)
TILEWRIGHT_ACCESS(read8, 8, kRead)
TILEWRIGHT_ACCESS(read16, 16, kRead)
TILEWRIGHT_ACCESS(write1, 1, kWrite)
TILEWRIGHT_ACCESS(write2, 2, kWrite)
TILEWRIGHT_ACCESS(write4, 4, kWrite)
TILEWRIGHT_ACCESS(write8, 8, kWrite)
TILEWRIGHT_ACCESS(write16, 16, kWrite)
void __tsan_read_range(void* address, unsigned long bytes) {
  cuda_on_host::CheckAccess(address, bytes, cuda_on_host::Access::kRead,
                            __builtin_return_address(0));
}
void __tsan_write_range(void* address, unsigned long bytes) {
  cuda_on_host::CheckAccess(address, bytes, cuda_on_host::Access::kWrite,
                            __builtin_return_address(0));
}
void __tsan_init() {}

#ifdef TILEWRIGHT_WATCH_UNDEFINED_BEHAVIOR
void __ubsan_handle_type_mismatch_v1_abort(void* data, void* address) {
  const auto alignment = size_t{1} << static_cast<unsigned char*>(data)[24];
  CheckAligned(address, alignment, __builtin_return_address(0));
}
void __ubsan_handle_out_of_bounds_abort(void*, void* index) {
  AbortWith("index " + std::to_string(reinterpret_cast<intptr_t>(index)) + " is outside its array",
            __builtin_return_address(0));
}
void __ubsan_handle_shift_out_of_bounds_abort(void*, void*, void* by) {
  AbortWith("shifts by " + std::to_string(reinterpret_cast<intptr_t>(by)),
            __builtin_return_address(0));
}
void __ubsan_handle_add_overflow_abort(void*, void*, void*) {
  AbortWith("a sum overflows", __builtin_return_address(0));
}
void __ubsan_handle_sub_overflow_abort(void*, void*, void*) {
  AbortWith("a difference overflows", __builtin_return_address(0));
}
void __ubsan_handle_mul_overflow_abort(void*, void*, void*) {
  AbortWith("a product overflows", __builtin_return_address(0));
}
void __ubsan_handle_negate_overflow_abort(void*, void*) {
  AbortWith("a negation overflows", __builtin_return_address(0));
}
void __ubsan_handle_divrem_overflow_abort(void*, void*, void*) {
  AbortWith("divides by zero", __builtin_return_address(0));
}
#endif
}
#undef TILEWRIGHT_ACCESS
