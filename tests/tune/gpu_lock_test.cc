#include "tune/gpu_lock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>

namespace tilewright::tune {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

steady_clock::time_point In(int ms) { return steady_clock::now() + milliseconds(ms); }
// Of this test alone, whatever runs beside it.
std::string Gpu(const std::string& name) { return name + std::to_string(getpid()); }

TEST(GpuLockTest, OneHolderAtATime) {
  auto first = GpuLock::Acquire(Gpu("a"), In(0));
  ASSERT_TRUE(first.has_value());
  EXPECT_FALSE(GpuLock::Acquire(Gpu("a"), In(20)).has_value());
  EXPECT_TRUE(GpuLock::Acquire(Gpu("b"), In(0)).has_value()) << "another GPU";
  first.reset();
  EXPECT_TRUE(GpuLock::Acquire(Gpu("a"), In(0)).has_value());
}

TEST(GpuLockTest, TheWaitEndsWhenItIsTold) {
  const auto held = GpuLock::Acquire(Gpu("c"), In(0));
  int asked = 0;
  const auto lock = GpuLock::Acquire(Gpu("c"), In(60'000), [&] { return ++asked == 3; });
  EXPECT_FALSE(lock.has_value());
  EXPECT_EQ(asked, 3);
}

TEST(GpuLockTest, AKilledHolderLetsGo) {
  const std::string gpu = Gpu("d");
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = GpuLock::Acquire(gpu, In(0));
    const char byte = lock.has_value() ? 'y' : 'n';
    if (write(ready[1], &byte, 1) != 1) _exit(1);
    while (true) pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  ASSERT_EQ(byte, 'y');
  EXPECT_FALSE(GpuLock::Acquire(gpu, In(20)).has_value()) << "another process holds it";
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(GpuLock::Acquire(gpu, In(1000)).has_value());
}

}  // namespace
}  // namespace tilewright::tune
