#include "base/single_flight.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"

namespace tilewright {
namespace {

using Flight = SingleFlight<std::string, absl::StatusOr<int>>;

TEST(SingleFlightTest, ManyThreadsComputeOnce) {
  Flight flight;
  std::atomic<int> computed = 0;
  std::atomic<int> arrived = 0;
  std::vector<std::thread> threads;
  constexpr int kThreads = 64;
  std::atomic<int> right = 0;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      ++arrived;
      const auto result = flight.Do("key", [&]() -> absl::StatusOr<int> {
        // All others have arrived, and get time to enter Do.
        while (arrived < kThreads) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        return ++computed;
      });
      if (result.ok() && *result == 1) ++right;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(computed, 1);
  EXPECT_EQ(right, kThreads);
}

TEST(SingleFlightTest, FailureIsSharedAndThenForgotten) {
  Flight flight;
  std::atomic<int> computed = 0;
  std::atomic<bool> inside = false;
  std::atomic<int> failures = 0;
  std::thread first([&] {
    const auto result = flight.Do("key", [&]() -> absl::StatusOr<int> {
      inside = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      ++computed;
      return absl::InternalError("no");
    });
    if (!result.ok()) ++failures;
  });
  while (!inside) std::this_thread::yield();
  std::thread second([&] {
    const auto result = flight.Do("key", [&]() -> absl::StatusOr<int> {
      ++computed;
      return 2;
    });
    if (!result.ok()) ++failures;
  });
  first.join();
  second.join();
  EXPECT_EQ(computed, 1);
  EXPECT_EQ(failures, 2);
  const auto later = flight.Do("key", []() -> absl::StatusOr<int> { return 3; });
  ASSERT_TRUE(later.ok());
  EXPECT_EQ(*later, 3);
}

// A waiter that is woken with a failure and asks again at once gets a computation of its own.
TEST(SingleFlightTest, AskingAgainAfterAFailureComputesAnew) {
  for (int round = 0; round < 200; ++round) {
    Flight flight;
    std::atomic<bool> inside = false;
    std::thread first([&] {
      (void)flight.Do("key", [&]() -> absl::StatusOr<int> {
        inside = true;
        std::this_thread::yield();
        return absl::InternalError("no");
      });
    });
    while (!inside) std::this_thread::yield();
    auto result = flight.Do("key", []() -> absl::StatusOr<int> { return 1; });
    if (!result.ok()) result = flight.Do("key", []() -> absl::StatusOr<int> { return 2; });
    first.join();
    ASSERT_TRUE(result.ok()) << round;
  }
}

TEST(SingleFlightTest, KeysDoNotWaitForOneAnother) {
  Flight flight;
  std::atomic<int> inside = 0;
  const auto meet = [&]() -> absl::StatusOr<int> {
    ++inside;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (inside < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    return inside.load();
  };
  absl::StatusOr<int> other = 0;
  std::thread thread([&] { other = flight.Do("a", meet); });
  const auto mine = flight.Do("b", meet);
  thread.join();
  EXPECT_EQ(*mine, 2);
  EXPECT_EQ(*other, 2);
}

}  // namespace
}  // namespace tilewright
