#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace tilewright {
namespace {

using ::testing::ElementsAre;

struct Capture {
  std::vector<std::string> lines;
  LogSink Sink() {
    return [this](LogLevel, std::string_view line) { lines.emplace_back(line); };
  }
};

TEST(LogTest, WritesOneLineOfKeysAndValues) {
  Capture capture;
  const Logger logger(LogLevel::kInfo, capture.Sink());
  logger.Event(LogLevel::kInfo, "compile", {{"ms", 12.5}, {"regs", 168}, {"arch", "sm_90a"}});
  logger.Event(LogLevel::kWarning, "bare");
  EXPECT_THAT(capture.lines, ElementsAre("compile ms=12.5 regs=168 arch=sm_90a", "bare"));
}

TEST(LogTest, QuotesWhatWouldBreakTheLine) {
  Capture capture;
  const Logger logger(LogLevel::kInfo, capture.Sink());
  logger.Event(LogLevel::kInfo, "e",
               {{"a", "two words"},
                {"b", "say \"x\\y\""},
                {"c", "1\n2"},
                {"d", ""},
                {"e", "k=v"},
                {"f", std::string("\x01\x7f")},
                {"g", std::string_view("view")}});
  EXPECT_THAT(capture.lines,
              ElementsAre("e a=\"two words\" b=\"say \\\"x\\\\y\\\"\" c=\"1\\n2\" d=\"\" "
                          "e=\"k=v\" f=\"\\x01\\x7f\" g=view"));
}

TEST(LogTest, LeavesOutWhatIsBelowTheLevel) {
  Capture capture;
  const Logger logger(LogLevel::kWarning, capture.Sink());
  logger.Event(LogLevel::kInfo, "info");
  logger.Event(LogLevel::kWarning, "warning");
  logger.Event(LogLevel::kError, "error");
  EXPECT_THAT(capture.lines, ElementsAre("warning", "error"));
  EXPECT_FALSE(logger.enabled(LogLevel::kDebug));
  EXPECT_FALSE(Logger(LogLevel::kOff).enabled(LogLevel::kError));
}

TEST(LogTest, OnceMeansOncePerKeyAndCountsTheRest) {
  Capture capture;
  const Logger logger(LogLevel::kInfo, capture.Sink());
  const Logger copy = logger;
  logger.EventOnce(LogLevel::kInfo, "a", "first");
  copy.EventOnce(LogLevel::kInfo, "a", "again");
  copy.EventOnce(LogLevel::kInfo, "b", "other");
  EXPECT_THAT(capture.lines, ElementsAre("first", "other"));
  EXPECT_EQ(logger.suppressed(), 1);
}

// R64: what differs from event to event, such as the name of a file, costs neither lines nor
// memory.
TEST(LogTest, KeysWithoutEndAreBounded) {
  Capture capture;
  const Logger logger(LogLevel::kInfo, capture.Sink());
  for (int i = 0; i < 5000; ++i) {
    logger.EventOnce(LogLevel::kInfo, std::to_string(i), "event");
  }
  EXPECT_EQ(capture.lines.size(), Logger::kMaxOnceKeys);
  EXPECT_EQ(logger.suppressed(), 5000 - static_cast<int64_t>(Logger::kMaxOnceKeys));
}

TEST(LogTest, OnceHoldsAmongThreads) {
  std::atomic<int> lines = 0;
  const Logger logger(LogLevel::kInfo, [&](LogLevel, std::string_view) { ++lines; });
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 100; ++k) {
        logger.EventOnce(LogLevel::kInfo, std::to_string(k % 10), "event");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lines, 10);
  EXPECT_EQ(logger.suppressed(), 790);
}

TEST(LogTest, AMutedLoggerAndItsCopiesCallNoSink) {
  std::atomic<int> lines = 0;
  const Logger logger(LogLevel::kInfo, [&](LogLevel, std::string_view) { ++lines; });
  const Logger copy = logger;
  std::vector<std::thread> threads;
  std::atomic<bool> stop = false;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      while (!stop) copy.Event(LogLevel::kInfo, "event");
    });
  }
  while (lines < 100) std::this_thread::yield();
  logger.Mute();
  const int last = lines;
  copy.EventOnce(LogLevel::kWarning, "key", "event");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(lines, last);
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(LogTest, WritesToStderrWithoutASink) {
  ::testing::internal::CaptureStderr();
  Logger().Event(LogLevel::kError, "event", {{"key", 1}});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "tilewright error: event key=1\n");
}

}  // namespace
}  // namespace tilewright
