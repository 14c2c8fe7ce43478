#include "device/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "device/module.h"
#include "tests/device/fake_driver.h"

namespace tilewright::device {
namespace {

using ::testing::HasSubstr;

class MemoryTest : public ::testing::Test {
 protected:
  MemoryTest() { driver_.api().cuCtxSetCurrent(driver_.MakeContext(0)); }
  FakeDriver driver_;
};

TEST_F(MemoryTest, BytesGoThereAndBack) {
  auto buffer = DeviceBuffer::Allocate(driver_.api(), 64);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_EQ(buffer->size(), 64u);
  ASSERT_TRUE(buffer->Fill(0x5a, nullptr).ok());
  ASSERT_TRUE(buffer->CopyFromHost("abcd", 4, nullptr, 60).ok());
  char back[8] = {};
  ASSERT_TRUE(buffer->CopyToHost(back, 8, nullptr, 56).ok());
  EXPECT_EQ(std::string(back, 8), "ZZZZabcd");
  EXPECT_EQ(driver_.CallCount("cuStreamSynchronize"), 1);
}

TEST_F(MemoryTest, CopiesOutsideTheBufferAreRefused) {
  auto buffer = *DeviceBuffer::Allocate(driver_.api(), 64);
  char host[128] = {};
  for (const auto& [bytes, offset] :
       {std::pair<size_t, size_t>{65, 0}, {1, 64}, {64, 1}, {2, static_cast<size_t>(-1)}}) {
    const absl::Status to = buffer.CopyFromHost(host, bytes, nullptr, offset);
    EXPECT_EQ(to.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(to.message()), HasSubstr("of 64 bytes"));
    EXPECT_EQ(buffer.CopyToHost(host, bytes, nullptr, offset).code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(buffer.CopyFromHost(host, 0, nullptr, 64).ok());
}

TEST_F(MemoryTest, EmptyBufferIsNull) {
  auto buffer = DeviceBuffer::Allocate(driver_.api(), 0);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_EQ(buffer->data(), nullptr);
  EXPECT_TRUE(buffer->Fill(1, nullptr).ok());
  EXPECT_TRUE(buffer->CopyFromHost(nullptr, 0, nullptr).ok());
  EXPECT_TRUE(buffer->CopyToHost(nullptr, 0, nullptr).ok());
  EXPECT_EQ(driver_.CallCount("cuMemAlloc"), 0);
}

TEST_F(MemoryTest, OutOfMemoryNamesTheBytes) {
  const auto buffer = DeviceBuffer::Allocate(driver_.api(), size_t{1} << 40);
  ASSERT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(buffer.status().message()), HasSubstr("1099511627776 bytes"));
}

TEST_F(MemoryTest, EachAllocationIsFreedOnce) {
  {
    auto a = *DeviceBuffer::Allocate(driver_.api(), 64);
    auto b = *DeviceBuffer::Allocate(driver_.api(), 128);
    EXPECT_EQ(driver_.live_bytes(), 192u);
    void* const data = b.data();
    DeviceBuffer moved = std::move(b);
    EXPECT_EQ(moved.data(), data);
    a = std::move(moved);
    EXPECT_EQ(a.data(), data);
    EXPECT_EQ(a.size(), 128u);
  }
  EXPECT_EQ(driver_.live_allocations(), 0);
  EXPECT_EQ(driver_.CallCount("cuMemFree"), 2);
}

TEST_F(MemoryTest, FreeingToleratesADriverThatIsGone) {
  for (const char* function : {"cuMemFree", "cuStreamDestroy", "cuEventDestroy"}) {
    driver_.Fail(function, CUDA_ERROR_DEINITIALIZED, -1);
  }
  {
    const auto buffer = *DeviceBuffer::Allocate(driver_.api(), 64);
    const auto stream = *OwnedStream::Create(driver_.api());
    const auto event = *OwnedEvent::Create(driver_.api());
  }
  EXPECT_EQ(driver_.CallCount("cuMemFree"), 1);
  EXPECT_EQ(driver_.CallCount("cuStreamDestroy"), 1);
  EXPECT_EQ(driver_.CallCount("cuEventDestroy"), 1);
}

TEST_F(MemoryTest, StreamsAndEventsAreDestroyedOnce) {
  {
    auto stream = *OwnedStream::Create(driver_.api());
    const StreamHandle handle = stream.get();
    OwnedStream other = std::move(stream);
    EXPECT_EQ(other.get(), handle);
    EXPECT_EQ(stream.get(), nullptr);
    EXPECT_TRUE(other.Synchronize().ok());
    auto event = *OwnedEvent::Create(driver_.api());
    OwnedEvent moved;
    moved = std::move(event);
    EXPECT_TRUE(moved.Record(other.get()).ok());
    EXPECT_TRUE(moved.Synchronize().ok());
  }
  EXPECT_EQ(driver_.live_streams(), 0);
  EXPECT_EQ(driver_.live_events(), 0);
  EXPECT_EQ(driver_.CallCount("cuStreamDestroy"), 1);
  EXPECT_EQ(driver_.CallCount("cuEventDestroy"), 1);
}

TEST_F(MemoryTest, EventsMeasureWhatRanBetweenThem) {
  const auto manager = *DeviceManager::Create(&driver_.api());
  const auto kernel = *LoadedKernel::Load(driver_.api(), *manager->CurrentOrPrimary(0), "image",
                                          {.entry_name = "k", .dynamic_smem_bytes = 0});
  driver_.set_launch_ms([](const FakeLaunch& launch) { return 0.5 * launch.grid[0]; });
  const auto start = *OwnedEvent::Create(driver_.api());
  const auto end = *OwnedEvent::Create(driver_.api());
  EXPECT_FALSE(end.ElapsedMsSince(start).ok()) << "neither was recorded";
  ASSERT_TRUE(start.Record(nullptr).ok());
  ASSERT_TRUE(kernel->Launch({.grid = 3, .block = 32}, "", nullptr).ok());
  ASSERT_TRUE(end.Record(nullptr).ok());
  EXPECT_FLOAT_EQ(*end.ElapsedMsSince(start), 1.5f);
}

TEST_F(MemoryTest, ErrorsOfTheDriverComeThrough) {
  driver_.Fail("cuStreamCreate", CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(OwnedStream::Create(driver_.api()).status().code(), absl::StatusCode::kInternal);
  driver_.Fail("cuEventCreate", CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(OwnedEvent::Create(driver_.api()).status().code(), absl::StatusCode::kInternal);
  auto buffer = *DeviceBuffer::Allocate(driver_.api(), 8);
  char host[8] = {};
  for (const char* function :
       {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemsetD8Async", "cuStreamSynchronize"}) {
    driver_.Fail(function, CUDA_ERROR_UNKNOWN, -1);
  }
  for (const absl::Status& status :
       {buffer.CopyFromHost(host, 8, nullptr), buffer.CopyToHost(host, 8, nullptr),
        buffer.Fill(0, nullptr)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  }
  driver_.StopFailing("cuMemcpyDtoHAsync");
  EXPECT_THAT(std::string(buffer.CopyToHost(host, 8, nullptr).message()),
              HasSubstr("cuStreamSynchronize"));
}

}  // namespace
}  // namespace tilewright::device
