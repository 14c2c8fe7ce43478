#include "build/publisher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "cache/disk_store.h"
#include "tests/support/child_process.h"
#include "tests/support/temp_directory.h"

namespace tilewright::build {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Records what happens to it, in order, and can be made to wait.
class RecordingStore : public cache::ArtifactStore {
 public:
  class Held : public KeyLock {
   public:
    explicit Held(RecordingStore* store) : store_(store) {}
    ~Held() override { store_->Record("unlock"); }

   private:
    RecordingStore* store_;
  };

  absl::StatusOr<cache::EntryPtr> Get(const cache::EntryKey&, std::string_view) override {
    return absl::NotFoundError("absent");
  }
  absl::Status Put(const cache::Entry& entry) override {
    {
      MutexLock lock(&mutex_);
      while (blocked_) unblocked_.Wait(&mutex_);
    }
    Record("put " + entry.variant);
    return put_result;
  }
  absl::Status Remove(const Digest&, std::string_view variant_hex) override {
    Record("remove " + std::string(variant_hex));
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<cache::EntryInfo>> List() override {
    return std::vector<cache::EntryInfo>();
  }
  absl::StatusOr<cache::Entry> Read(const cache::EntryInfo&) override {
    return absl::NotFoundError("absent");
  }
  cache::StoreStats Stats() override { return {}; }
  void AddToTotals(const cache::Totals& more) override {
    for (const auto& [name, value] : more) Record("total " + name);
  }
  std::unique_ptr<KeyLock> Lock(const Digest&, int) override {
    return std::make_unique<Held>(this);
  }

  void Block(bool blocked) {
    MutexLock lock(&mutex_);
    blocked_ = blocked;
    unblocked_.SignalAll();
  }
  void Record(std::string event) {
    MutexLock lock(&mutex_);
    events_.push_back(std::move(event));
  }
  std::vector<std::string> events() {
    MutexLock lock(&mutex_);
    return events_;
  }

  absl::Status put_result;

 private:
  Mutex mutex_;
  CondVar unblocked_;
  bool blocked_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::string> events_ ABSL_GUARDED_BY(mutex_);
};

cache::Entry EntryNamed(std::string variant) {
  cache::Entry entry;
  entry.variant = std::move(variant);
  return entry;
}

const Logger& Quiet() {
  static const Logger* logger = new Logger(LogLevel::kOff);
  return *logger;
}

TEST(PublisherTest, ReleasesTheLockAfterTheEntryIsThere) {
  RecordingStore store;
  Publisher publisher(&store, &Quiet());
  publisher.Put(EntryNamed("a"), store.Lock({}, 0), [&] { store.Record("done"); });
  publisher.Remove({}, "ff");
  ASSERT_TRUE(publisher.Flush(10000));
  EXPECT_THAT(store.events(), ElementsAre("put a", "unlock", "done", "remove ff"));
}

TEST(PublisherTest, DoesNotHoldUpTheCaller) {
  RecordingStore store;
  Publisher publisher(&store, &Quiet());
  store.Block(true);
  publisher.Put(EntryNamed("a"), nullptr, [] {});
  EXPECT_FALSE(publisher.Flush(10));
  EXPECT_TRUE(store.events().empty());
  store.Block(false);
  EXPECT_TRUE(publisher.Flush(10000));
  EXPECT_THAT(store.events(), ElementsAre("put a"));
}

TEST(PublisherTest, DropsWhatAStoreThatHangsCannotTake) {
  RecordingStore store;
  std::atomic<int> done = 0;
  constexpr int kTooMany = static_cast<int>(Publisher::kMaxPending) + 10;
  {
    Publisher publisher(&store, &Quiet());
    store.Block(true);
    for (int i = 0; i < kTooMany; ++i) {
      publisher.Put(EntryNamed("x"), store.Lock({}, 0), [&] { ++done; });
    }
    // The thread may have taken one job off the queue already.
    EXPECT_GE(done, kTooMany - static_cast<int>(Publisher::kMaxPending) - 1);
    EXPECT_LE(done, kTooMany - static_cast<int>(Publisher::kMaxPending));
    store.Block(false);
  }
  EXPECT_EQ(done, kTooMany);
}

TEST(PublisherTest, DestructorFinishesWhatIsPending) {
  RecordingStore store;
  {
    Publisher publisher(&store, &Quiet());
    for (int i = 0; i < 5; ++i) publisher.Put(EntryNamed("x"), nullptr, [] {});
  }
  EXPECT_EQ(store.events().size(), 5u);
}

TEST(PublisherTest, TotalsAreTakenAfterTheEntriesBefore) {
  RecordingStore store;
  Publisher publisher(&store, &Quiet());
  publisher.Put(EntryNamed("a"), nullptr, [] {});
  publisher.AddToTotals([&]() -> cache::Totals {
    return {{store.events().empty() ? "too early" : "late enough", 1}};
  });
  EXPECT_TRUE(publisher.Shutdown(10000));
  EXPECT_THAT(store.events(), ElementsAre("put a", "total late enough"));
}

TEST(PublisherTest, ShutdownDropsWhatComesAfterIt) {
  RecordingStore store;
  Publisher publisher(&store, &Quiet());
  publisher.Put(EntryNamed("a"), nullptr, [] {});
  EXPECT_TRUE(publisher.Shutdown(10000));
  publisher.Put(EntryNamed("b"), store.Lock({}, 0), [&] { store.Record("done"); });
  EXPECT_TRUE(publisher.Shutdown(10000));
  EXPECT_THAT(store.events(), ElementsAre("put a", "unlock", "done"));
  EXPECT_EQ(publisher.dropped(), 1);
}

// A file longer than the process may write raises a signal that ends it, unless it is blocked.
TEST(PublisherTest, ALimitOfTheFileSizeEndsNoProgram) {
  const tilewright::testing::TempDirectory directory;
  const std::string told = tilewright::testing::RunInChild([&]() -> std::string {
    const rlimit limit = {20'000, 20'000};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return "cannot set the limit";
    auto store = cache::DiskStore::Open({.directory = directory.path()}, Quiet());
    if (!store.ok()) return store.status().ToString();
    Publisher publisher(store->get(), &Quiet());
    cache::Entry large = EntryNamed("large");
    large.sections.push_back({"cubin", std::string(100'000, 'x')});
    publisher.Put(large, nullptr, [] {});
    publisher.Put(EntryNamed("small"), nullptr, [] {});
    if (!publisher.Flush(60'000)) return "not flushed";
    const cache::StoreStats stats = (*store)->Stats();
    return std::to_string(stats.entries) + " stored, " + std::to_string(stats.publish_failures) +
           " failed";
  });
  EXPECT_EQ(told, "1 stored, 1 failed");
}

// What a thread that was left comes back to, for the rest of the process.
struct Left {
  RecordingStore store;
  std::atomic<int> lines = 0;
  const Logger logger{LogLevel::kWarning, [this](LogLevel, std::string_view) { ++lines; }};
  Publisher publisher{&store, &logger};
  std::atomic<bool> done = false;
};

TEST(PublisherTest, ShutdownLeavesAStoreThatHangs) {
  static Left* const left = new Left;
  left->store.put_result = absl::UnavailableError("gone");
  left->store.Block(true);
  left->publisher.Put(EntryNamed("hangs"), nullptr, [] { left->done = true; });
  left->publisher.Put(EntryNamed("never begins"), left->store.Lock({}, 0), [] {});
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(left->publisher.Shutdown(1500));
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(1500));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  // The lock of what was dropped is free, so that no other process waits for it.
  EXPECT_THAT(left->store.events(), ElementsAre("unlock"));
  left->store.Block(false);
  while (!left->done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_THAT(left->store.events(), ElementsAre("unlock", "put hangs"));
  EXPECT_EQ(left->lines, 0) << "the sink may be gone by now";
}

TEST(PublisherTest, WarnsOnceOfAStoreThatRefuses) {
  RecordingStore store;
  store.put_result = absl::ResourceExhaustedError("disk full");
  std::vector<std::string> lines;
  const Logger logger(LogLevel::kWarning,
                      [&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  {
    Publisher publisher(&store, &logger);
    publisher.Put(EntryNamed("a"), nullptr, [&] { store.Record("done"); });
    publisher.Put(EntryNamed("b"), nullptr, [&] { store.Record("done"); });
  }
  EXPECT_THAT(store.events(), ElementsAre("put a", "done", "put b", "done"));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr("disk full"));
}

}  // namespace
}  // namespace tilewright::build
