#include "base/shared_mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

namespace tilewright {
namespace {

TEST(SharedMutexTest, ExcludesWritersFromReadersAndFromEachOther) {
  SharedMutex mutex;
  int first = 0, second = 0;
  std::atomic<int> torn = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 5000; ++k) {
        std::unique_lock<SharedMutex> lock(mutex);
        ++first;
        ++second;
      }
    });
    threads.emplace_back([&] {
      for (int k = 0; k < 5000; ++k) {
        std::shared_lock<SharedMutex> lock(mutex);
        if (first != second) ++torn;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(first, 10000);
}

TEST(SharedMutexTest, ReadersShare) {
  SharedMutex mutex;
  std::shared_lock<SharedMutex> here(mutex);
  std::thread([&] { std::shared_lock<SharedMutex> there(mutex); }).join();
}

// A reader holds the mutex until the writer waits; a reader that comes after the writer may not
// overtake it.
TEST(SharedMutexTest, AWaitingWriterComesBeforeLaterReaders) {
  SharedMutex mutex;
  std::atomic<bool> writer_wrote = false, reader_saw = false;
  std::shared_lock<SharedMutex> here(mutex);
  std::thread writer([&] {
    std::unique_lock<SharedMutex> lock(mutex);
    writer_wrote = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  std::thread reader([&] {
    std::shared_lock<SharedMutex> lock(mutex);
    reader_saw = writer_wrote.load();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  here.unlock();
  writer.join();
  reader.join();
  EXPECT_TRUE(reader_saw);
}

}  // namespace
}  // namespace tilewright
