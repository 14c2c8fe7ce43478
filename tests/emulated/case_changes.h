// Changes of random problems that several tests of this folder make.
#ifndef TILEWRIGHT_TESTS_EMULATED_CASE_CHANGES_H_
#define TILEWRIGHT_TESTS_EMULATED_CASE_CHANGES_H_

#include <cstdint>
#include <vector>

#include "tests/reference/host_case.h"

namespace tilewright::emulated {

void SetLengths(reference::HostCase& c, std::vector<int32_t> lengths);

// Every tensor in rows `pad` elements longer than they are, from an address `pad` elements behind
// what malloc gives: no row starts on a multiple of 16 bytes.
void Misalign(reference::HostCase& c, int64_t pad);

// V is the first columns of K, in the same memory.
void ShareKeys(reference::HostCase& c);

// NaN in keys from `first` on, or before `end`, which no row may see: what comes of them shows that
// a tile was not computed again, or not from its first block of keys.
void PoisonKeysFrom(reference::HostCase& c, int64_t first);
void PoisonKeysBefore(reference::HostCase& c, int64_t end);

// Three sequences of 900, 0 and 130 keys, on pages in no order, one of them missing.
void MakeLongPaged(reference::HostCase& c);

}  // namespace tilewright::emulated

#endif  // TILEWRIGHT_TESTS_EMULATED_CASE_CHANGES_H_
