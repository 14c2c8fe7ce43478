// The test program itself, started as another program that only locates the store.
#ifndef TILEWRIGHT_TESTS_CACHE_SETUID_PROGRAM_H_
#define TILEWRIGHT_TESTS_CACHE_SETUID_PROGRAM_H_

#include <string>

namespace tilewright::cache {

// Runs `program`, a copy of this one, as `program --locate-store DIRECTORY`; returns what it says:
// "not set-user-id", or the reason that LocateStore gives.
std::string RunLocateStoreIn(const std::string& program, const std::string& directory);

}  // namespace tilewright::cache

#endif  // TILEWRIGHT_TESTS_CACHE_SETUID_PROGRAM_H_
