// Counts what this program allocates with operator new.
#ifndef TILEWRIGHT_TESTS_SPEC_ALLOCATION_COUNTER_H_
#define TILEWRIGHT_TESTS_SPEC_ALLOCATION_COUNTER_H_

#include <cstdint>

namespace tilewright {

// Calls of operator new by the calling thread so far.
int64_t AllocationsOfThisThread();

}  // namespace tilewright

#endif  // TILEWRIGHT_TESTS_SPEC_ALLOCATION_COUNTER_H_
