#include "allocation_counter.h"

#include <cstdlib>
#include <new>

namespace tilewright {
namespace {
thread_local int64_t allocations = 0;

void* CountedAllocate(size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size != 0 ? size : 1)) return memory;
  std::abort();
}
}  // namespace

int64_t AllocationsOfThisThread() { return allocations; }

}  // namespace tilewright

void* operator new(size_t size) { return tilewright::CountedAllocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
