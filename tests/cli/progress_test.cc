#include "cli/progress.h"

#include <chrono>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tilewright::cli {
namespace {

using std::chrono::seconds;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

const Progress::Clock::time_point kStart{};

TEST(ProgressTest, ABarGrowsAndGoes) {
  std::ostringstream stream;
  {
    Progress progress(stream, Progress::Mode::kBar, "compiled", 4, kStart);
    progress.Advance("fwd bf16 d=64", kStart);
    EXPECT_EQ(stream.str(), "\r\x1b[K[######                  ] compiled 1 of 4  fwd bf16 d=64");
    for (int i = 0; i < 3; ++i) progress.Advance(std::string(200, 'x'), kStart);
    EXPECT_THAT(stream.str(), HasSubstr("[########################] compiled 4 of 4  xxx"));
    EXPECT_THAT(stream.str(), Not(HasSubstr(std::string(60, 'x'))));
  }
  EXPECT_THAT(stream.str(), EndsWith("\r\x1b[K"));
}

TEST(ProgressTest, ALineCanBePrintedInBetween) {
  std::ostringstream stream;
  Progress progress(stream, Progress::Mode::kBar, "verified", 2, kStart);
  progress.Clear();
  EXPECT_EQ(stream.str(), "");
  progress.Advance("a", kStart);
  progress.Clear();
  EXPECT_THAT(stream.str(), EndsWith("\r\x1b[K"));
}

TEST(ProgressTest, ElsewhereLinesComeWhenItTakesLong) {
  std::ostringstream stream;
  {
    Progress progress(stream, Progress::Mode::kLines, "compiled", 40, kStart);
    progress.Advance("a", kStart + seconds(1));
    EXPECT_EQ(stream.str(), "");
    progress.Advance("b", kStart + seconds(6));
    progress.Advance("c", kStart + seconds(7));
    progress.Advance("d", kStart + seconds(12));
  }
  EXPECT_EQ(stream.str(), "compiled 2 of 40\ncompiled 4 of 40\n");
}

TEST(ProgressTest, NothingIsSaidWhereNothingShould) {
  std::ostringstream stream;
  {
    Progress progress(stream, Progress::Mode::kNone, "compiled", 2, kStart);
    progress.Advance("a", kStart + seconds(60));
  }
  EXPECT_EQ(stream.str(), "");
  EXPECT_EQ(Progress::ModeFor(stream), Progress::Mode::kLines);
}

TEST(ProgressTest, ThreadsCountTogether) {
  std::ostringstream stream;
  Progress progress(stream, Progress::Mode::kBar, "compiled", 400, kStart);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&progress] {
      for (int step = 0; step < 100; ++step) progress.Advance("a", kStart);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(stream.str(), EndsWith("compiled 400 of 400  a"));
}

}  // namespace
}  // namespace tilewright::cli
