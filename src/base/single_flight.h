// One computation per key: the first caller of a key computes, others that arrive meanwhile wait
// and share its result, failure included. Nothing is remembered afterwards.
#ifndef TILEWRIGHT_BASE_SINGLE_FLIGHT_H_
#define TILEWRIGHT_BASE_SINGLE_FLIGHT_H_

#include <functional>
#include <future>

#include "absl/container/flat_hash_map.h"
#include "base/mutex.h"

namespace tilewright {

// Thread-safe. `compute` must not throw and must not call Do with the same key.
template <typename Key, typename Result>
class SingleFlight {
 public:
  Result Do(const Key& key, const std::function<Result()>& compute) {
    std::promise<Result> promise;
    std::shared_future<Result> flight;
    {
      MutexLock lock(&mutex_);
      auto [it, inserted] = flights_.try_emplace(key);
      if (inserted) {
        it->second = promise.get_future().share();
      } else {
        flight = it->second;
      }
    }
    if (flight.valid()) return flight.get();
    Result result = compute();
    {
      // Forgotten before it is announced: a waiter that is woken with a failure and asks again
      // must not be given the same failure without a new attempt.
      MutexLock lock(&mutex_);
      flights_.erase(key);
    }
    promise.set_value(result);
    return result;
  }

 private:
  Mutex mutex_;
  absl::flat_hash_map<Key, std::shared_future<Result>> flights_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tilewright

#endif  // TILEWRIGHT_BASE_SINGLE_FLIGHT_H_
