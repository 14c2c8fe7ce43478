#ifndef TILEWRIGHT_BASE_KEEP_FOREVER_H_
#define TILEWRIGHT_BASE_KEEP_FOREVER_H_

#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace tilewright {

// Leaves an object to a thread that may still use it when its owner is gone. It stays reachable, so
// that leak checkers see that it is meant. Thread-safe.
template <typename T>
void KeepForever(std::unique_ptr<T> object) {
  static Mutex* const mutex = new Mutex;
  static auto* const kept = new std::vector<std::unique_ptr<T>>;
  MutexLock lock(mutex);
  kept->push_back(std::move(object));
}

}  // namespace tilewright

#endif  // TILEWRIGHT_BASE_KEEP_FOREVER_H_
