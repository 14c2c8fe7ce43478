// The function that the README shows.
#ifndef TILEWRIGHT_TESTS_CLI_QUICK_START_H_
#define TILEWRIGHT_TESTS_CLI_QUICK_START_H_

#include "absl/status/status.h"
#include "tilewright/runtime.h"

absl::Status CausalAttention(tilewright::Runtime& runtime, const void* q, const void* k,
                             const void* v, void* o, tilewright::Stream stream);

#endif  // TILEWRIGHT_TESTS_CLI_QUICK_START_H_
