// Independent tasks on several threads. Results do not depend on the number of threads because no
// task reads what another one writes.
#ifndef TILEWRIGHT_REFERENCE_PARALLEL_H_
#define TILEWRIGHT_REFERENCE_PARALLEL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace tilewright::reference {

// Calls task(0) to task(count - 1), each once, and returns when all are done. threads = 0: as many
// as the machine has.
template <typename Task>
void ParallelFor(int threads, int64_t count, const Task& task) {
  int64_t workers = threads > 0 ? threads : std::max(1u, std::thread::hardware_concurrency());
  workers = std::min(workers, count);
  if (workers <= 1) {
    for (int64_t n = 0; n < count; ++n) task(n);
    return;
  }
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t n = next.fetch_add(1); n < count; n = next.fetch_add(1)) task(n);
  };
  std::vector<std::thread> helpers;
  helpers.reserve(workers - 1);
  for (int64_t n = 1; n < workers; ++n) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace tilewright::reference

#endif  // TILEWRIGHT_REFERENCE_PARALLEL_H_
