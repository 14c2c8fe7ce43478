#include "tests/emulated/emulator/memory.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "tests/emulated/emulator/block.h"

namespace cuda_on_host {
namespace {

// Who accessed a byte, and when: thread and step in one word, 0 for nobody.
using Epoch = uint32_t;
constexpr int kStepBits = 22;
Epoch Now(int thread) {
  return static_cast<Epoch>(thread) << kStepBits | block->fiber(thread).clock[thread];
}
int ThreadOf(Epoch epoch) { return static_cast<int>(epoch >> kStepBits); }
uint32_t StepOf(Epoch epoch) { return epoch & ((1u << kStepBits) - 1); }

// A NaN of every element type, and what the bytes behind the end must stay.
constexpr unsigned char kPoison = 0xff;
constexpr size_t kGuardBytes = 4096;

struct Memory {
  std::byte* shared = nullptr;
  size_t shared_bytes = 0;
  size_t warps = 0;
  std::vector<Epoch> writes;  // last write of each byte of shared memory
  std::vector<Epoch> reads;   // last read since, by each warp: [byte][warp]
  std::vector<bool> in_flight;
  std::vector<bool> atomic;  // whether the last write was
  std::vector<MemoryRange> ranges;
  size_t last_range = 0;
};
Memory memory;

std::string Place(size_t offset, size_t bytes) {
  std::ostringstream text;
  text << bytes << " bytes at " << offset << " of shared memory";
  return text.str();
}

const char* Verb(Access access) {
  return access == Access::kRead ? "reads " : access == Access::kWrite ? "writes " : "updates ";
}

bool Ordered(Epoch before, int thread) {
  return before == 0 || block->HappenedBefore(ThreadOf(before), StepOf(before), thread);
}

bool Contains(const MemoryRange& range, const char* address, size_t bytes) {
  const char* begin = static_cast<const char*>(range.begin);
  return address >= begin && address + bytes <= begin + range.bytes;
}

}  // namespace

void SetMemory(const LaunchConfig& config) {
  memory.shared = config.shared;
  memory.shared_bytes = config.shared_bytes;
  memory.warps = static_cast<size_t>(config.threads) / 32;
  memory.ranges = config.memory;
  memory.last_range = 0;
}

void ForgetSharedMemory() {
  if (memory.shared != nullptr) {
    std::memset(memory.shared, kPoison, memory.shared_bytes + kGuardBytes);
  }
  memory.writes.assign(memory.shared_bytes, 0);
  memory.reads.assign(memory.shared_bytes * memory.warps, 0);
  memory.in_flight.assign(memory.shared_bytes, false);
  memory.atomic.assign(memory.shared_bytes, false);
}

void CheckSharedMemoryAtEnd() {
  const size_t left =
      static_cast<size_t>(std::count(memory.in_flight.begin(), memory.in_flight.end(), true));
  if (left != 0) {
    block->Report("ends while copies to " + std::to_string(left) +
                  " bytes of shared memory are in flight");
  }
}

void CheckShared(size_t offset, size_t bytes, Access access, int thread, const void* code) {
  if (offset > memory.shared_bytes || bytes > memory.shared_bytes - offset) {
    block->Report(std::string(Verb(access)) + Place(offset, bytes) + ", which has " +
                      std::to_string(memory.shared_bytes),
                  code, thread);
    block->Abort();
  }
  const Epoch now = Now(thread);
  const auto race = [&](Epoch other, const char* other_verb) {
    block->Report(std::string(Verb(access)) + Place(offset, bytes) + " that thread " +
                      std::to_string(ThreadOf(other)) + " " + other_verb +
                      ", with nothing to order them",
                  code, thread);
  };
  for (size_t at = offset; at < offset + bytes; ++at) {
    if (memory.in_flight[at]) {
      block->Report(
          std::string(Verb(access)) + Place(offset, bytes) + " while a copy to it is in flight",
          code, thread);
      return;
    }
    Epoch* const reads = &memory.reads[at * memory.warps];
    const Epoch write = memory.writes[at];
    if (write == 0 && access != Access::kWrite) {
      block->Report(std::string(Verb(access)) + Place(offset, bytes) + " that nobody has written",
                    code, thread);
      return;
    }
    const bool both_atomic = access == Access::kAtomic && memory.atomic[at];
    if (!both_atomic && !Ordered(write, thread)) return race(write, "writes");
    if (access == Access::kRead) {
      reads[thread / 32] = now;
      continue;
    }
    for (size_t warp = 0; warp < memory.warps; ++warp) {
      if (!Ordered(reads[warp], thread)) return race(reads[warp], "reads");
      reads[warp] = 0;
    }
    memory.writes[at] = now;
    memory.atomic[at] = access == Access::kAtomic;
  }
}

void CheckAccess(const void* address, size_t bytes, Access access, const void* code) {
  const char* const at = static_cast<const char*>(address);
  if (const char* stack = block->stack_begin(); at >= stack && at < stack + Block::kStackBytes)
    return;
  if (const auto begin = reinterpret_cast<const char*>(&indices);
      at >= begin && at < begin + sizeof indices) {
    return;
  }
  const auto shared = reinterpret_cast<const char*>(memory.shared);
  if (at >= shared && at < shared + memory.shared_bytes + kGuardBytes) {
    return CheckShared(static_cast<size_t>(at - shared), bytes, access, block->current(), code);
  }
  if (!Contains(memory.ranges[memory.last_range], at, bytes)) {
    memory.last_range = 0;
    while (memory.last_range < memory.ranges.size() &&
           !Contains(memory.ranges[memory.last_range], at, bytes)) {
      ++memory.last_range;
    }
    if (memory.last_range == memory.ranges.size()) {
      std::ostringstream text;
      text << Verb(access) << bytes << " bytes at " << address << ", where nothing is";
      for (const MemoryRange& range : memory.ranges) {
        const auto begin = static_cast<const char*>(range.begin);
        const ptrdiff_t distance = at - begin;
        constexpr ptrdiff_t kNear = 1 << 16;
        if (distance > -kNear && distance < static_cast<ptrdiff_t>(range.bytes) + kNear) {
          text << " (at " << distance << " of the " << range.bytes << " bytes of " << range.name
               << ")";
        }
      }
      block->Report(text.str(), code);
      block->Abort();
    }
  }
  const MemoryRange& range = memory.ranges[memory.last_range];
  if (access != Access::kRead && !range.writable) {
    block->Report(std::string(Verb(access)) + range.name + ", an input", code);
    block->Abort();
  }
}

void SetInFlight(size_t offset, size_t bytes, bool in_flight) {
  for (size_t at = offset; at < offset + bytes; ++at) memory.in_flight[at] = in_flight;
}

}  // namespace cuda_on_host

// What -fsanitize=thread calls before loads and stores, and what -fsanitize=undefined calls when
// something is wrong. A program that is itself built with a sanitizer has these names already, for
// its own use; kernels are then compiled without.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
namespace {

[[noreturn]] void AbortWith(const std::string& what, const void* code) {
  cuda_on_host::block->Report(what, code);
  cuda_on_host::block->Abort();
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
}
#undef TILEWRIGHT_ACCESS
#endif
