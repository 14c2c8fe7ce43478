#include "base/mutex.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tilewright {
namespace {

struct Counter {
  Mutex mutex;
  CondVar changed;
  int value ABSL_GUARDED_BY(mutex) = 0;
};

TEST(MutexTest, ExcludesOtherThreads) {
  Counter counter;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 10000; ++k) {
        MutexLock lock(&counter.mutex);
        ++counter.value;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  MutexLock lock(&counter.mutex);
  EXPECT_EQ(counter.value, 40000);
}

bool TryFromAnotherThread(Mutex& mutex) {
  bool taken = false;
  std::thread([&] {
    if (mutex.TryLock()) {
      taken = true;
      mutex.Unlock();
    }
  }).join();
  return taken;
}

TEST(MutexTest, TryLockFailsWhileHeld) {
  Mutex mutex;
  {
    MutexLock lock(&mutex);
    EXPECT_FALSE(TryFromAnotherThread(mutex));
  }
  EXPECT_TRUE(TryFromAnotherThread(mutex));
}

TEST(MutexTest, WaitReturnsWithTheMutexAfterASignal) {
  Counter counter;
  std::thread thread([&] {
    MutexLock lock(&counter.mutex);
    counter.value = 1;
    counter.changed.SignalAll();
  });
  {
    MutexLock lock(&counter.mutex);
    while (counter.value == 0) counter.changed.Wait(&counter.mutex);
    EXPECT_EQ(counter.value, 1);
  }
  thread.join();
}

TEST(MutexTest, WaitUntilGivesUpAtTheDeadline) {
  Counter counter;
  const auto start = std::chrono::steady_clock::now();
  const auto deadline = start + std::chrono::milliseconds(20);
  MutexLock lock(&counter.mutex);
  while (counter.changed.WaitUntil(&counter.mutex, deadline)) {
  }
  EXPECT_GE(std::chrono::steady_clock::now(), deadline);
}

}  // namespace
}  // namespace tilewright
