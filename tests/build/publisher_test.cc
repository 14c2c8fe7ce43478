#include "build/publisher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"

namespace tilewright::build {
namespace {

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
  EXPECT_THAT(store.events(), testing::ElementsAre("put a", "unlock", "done", "remove ff"));
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
  EXPECT_THAT(store.events(), testing::ElementsAre("put a"));
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
  EXPECT_THAT(store.events(), testing::ElementsAre("put a", "done", "put b", "done"));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], testing::HasSubstr("disk full"));
}

}  // namespace
}  // namespace tilewright::build
