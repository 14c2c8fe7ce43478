#include "device/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/device/fake_driver.h"

namespace tilewright::device {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

FakeDevice A100() {
  FakeDevice device;
  device.name = "Fake A100";
  device.compute_major = 8;
  device.compute_minor = 0;
  device.num_sms = 108;
  device.l2_bytes = 40 << 20;
  return device;
}

FakeDevice Pascal() {
  FakeDevice device;
  device.name = "Fake P100";
  device.compute_major = 6;
  return device;
}

TEST(DeviceManagerTest, DescribesEveryDevice) {
  FakeDriver driver({FakeDevice(), A100()});
  const auto manager = DeviceManager::Create(&driver.api());
  ASSERT_TRUE(manager.ok()) << manager.status();
  ASSERT_EQ((*manager)->devices().size(), 2u);
  const DeviceInfo& h200 = (*manager)->devices()[0];
  EXPECT_EQ(h200.ordinal, 0);
  EXPECT_EQ(h200.board.name, "Fake H200");
  EXPECT_EQ(h200.compute_major, 9);
  EXPECT_EQ(h200.compute_minor, 0);
  EXPECT_EQ(h200.driver_version, 13000);
  EXPECT_EQ(h200.board.num_sms, 132);
  EXPECT_EQ(h200.board.l2_bytes, 50 << 20);
  EXPECT_EQ(h200.board.memory_bytes, int64_t{8} << 30);
  EXPECT_EQ(h200.board.sm_clock_khz, 1980000);
  EXPECT_EQ(h200.board.memory_clock_khz, 3201000);
  EXPECT_EQ(h200.board.memory_bus_bits, 6144);
  EXPECT_EQ(h200.uuid, "a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0");
  EXPECT_EQ(h200.traits.sm, 90);
  const DeviceInfo& a100 = (*manager)->devices()[1];
  EXPECT_EQ(a100.ordinal, 1);
  EXPECT_EQ(a100.board.num_sms, 108);
  EXPECT_EQ(a100.traits.sm, 80);
  EXPECT_NE(a100.uuid, h200.uuid);
}

TEST(DeviceManagerTest, NoDeviceIsFailedPrecondition) {
  FakeDriver driver(std::vector<FakeDevice>{});
  const auto manager = DeviceManager::Create(&driver.api());
  EXPECT_EQ(manager.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(manager.status().message()), HasSubstr("no device"));
}

TEST(DeviceManagerTest, DriverErrorsComeThrough) {
  for (const char* function :
       {"cuDeviceGetCount", "cuDriverGetVersion", "cuDeviceGet", "cuDeviceGetAttribute",
        "cuDeviceGetName", "cuDeviceTotalMem", "cuDeviceGetUuid"}) {
    FakeDriver driver;
    driver.Fail(function, CUDA_ERROR_UNKNOWN);
    const auto manager = DeviceManager::Create(&driver.api());
    EXPECT_EQ(manager.status().code(), absl::StatusCode::kInternal) << function;
    EXPECT_THAT(std::string(manager.status().message()), HasSubstr(function));
  }
}

TEST(DeviceManagerTest, TakesTheCallersContext) {
  FakeDriver driver({FakeDevice(), A100()});
  const auto manager = *DeviceManager::Create(&driver.api());
  const CUcontext own = driver.MakeContext(1);
  ASSERT_EQ(driver.api().cuCtxSetCurrent(own), CUDA_SUCCESS);
  const auto current = manager->CurrentOrPrimary(0);
  ASSERT_TRUE(current.ok()) << current.status();
  EXPECT_EQ(current->context, own);
  EXPECT_EQ(current->device, &manager->devices()[1]);
  EXPECT_EQ(manager->CurrentContext(), own);
  EXPECT_EQ(driver.retained_primaries(), 0);
}

TEST(DeviceManagerTest, RetainsThePrimaryContextOnceAndLeavesTheThreadAsItIs) {
  FakeDriver driver({FakeDevice(), A100()});
  const auto manager = *DeviceManager::Create(&driver.api());
  EXPECT_EQ(manager->CurrentContext(), nullptr);
  const auto first = manager->CurrentOrPrimary(1);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_NE(first->context, nullptr);
  EXPECT_EQ(first->device, &manager->devices()[1]);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      const auto again = manager->CurrentOrPrimary(1);
      EXPECT_TRUE(again.ok());
      EXPECT_EQ(again->context, first->context);
      EXPECT_THAT(driver.context_stack(), IsEmpty());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(driver.CallCount("cuDevicePrimaryCtxRetain"), 1);
  EXPECT_THAT(driver.context_stack(), IsEmpty());
}

TEST(DeviceManagerTest, PrimaryContextsAreNeverReleased) {
  FakeDriver driver;
  {
    const auto manager = *DeviceManager::Create(&driver.api());
    ASSERT_TRUE(manager->CurrentOrPrimary(0).ok());
  }
  EXPECT_EQ(driver.CallCount("cuDevicePrimaryCtxRelease"), 0);
  EXPECT_EQ(driver.retained_primaries(), 1);
}

TEST(DeviceManagerTest, FailedRetainIsTriedAgain) {
  FakeDriver driver;
  const auto manager = *DeviceManager::Create(&driver.api());
  driver.Fail("cuDevicePrimaryCtxRetain", CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(manager->CurrentOrPrimary(0).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(manager->CurrentOrPrimary(0).ok());
}

TEST(DeviceManagerTest, OrdinalOutOfRangeIsInvalidArgument) {
  FakeDriver driver;
  const auto manager = *DeviceManager::Create(&driver.api());
  for (const int ordinal : {-1, 1, 1000}) {
    const auto current = manager->CurrentOrPrimary(ordinal);
    EXPECT_EQ(current.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(current.status().message()),
                HasSubstr("device_ordinal is " + std::to_string(ordinal)));
  }
}

TEST(DeviceManagerTest, UnservedDeviceDoesNotSpoilTheOthers) {
  FakeDriver driver({Pascal(), FakeDevice()});
  const auto manager = DeviceManager::Create(&driver.api());
  ASSERT_TRUE(manager.ok()) << manager.status();
  EXPECT_FALSE((*manager)->devices()[0].unserved.empty());
  const auto pascal = (*manager)->CurrentOrPrimary(0);
  EXPECT_EQ(pascal.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(pascal.status().message()), HasSubstr("Fake P100"));
  EXPECT_TRUE((*manager)->CurrentOrPrimary(1).ok());
}

TEST(DeviceManagerTest, SeesCapturesOfTheStreamAndThroughTheLegacyStream) {
  FakeDriver driver;
  const auto manager = *DeviceManager::Create(&driver.api());
  ASSERT_EQ(driver.api().cuCtxSetCurrent(driver.MakeContext(0)), CUDA_SUCCESS);
  const auto stream = reinterpret_cast<StreamHandle>(0x10);
  const auto other = reinterpret_cast<StreamHandle>(0x20);
  EXPECT_FALSE(*manager->IsCapturing(stream));
  EXPECT_FALSE(*manager->IsCapturing(nullptr));
  driver.SetCapturing(stream, true);
  EXPECT_TRUE(*manager->IsCapturing(stream));
  EXPECT_FALSE(*manager->IsCapturing(other));
  driver.SetCapturing(stream, false);
  driver.SetCapturing(nullptr, true);
  EXPECT_TRUE(*manager->IsCapturing(nullptr));
  EXPECT_TRUE(*manager->IsCapturing(other));
}

TEST(DeviceManagerTest, AThreadWithoutAContextCapturesNothing) {
  FakeDriver driver;
  const auto manager = *DeviceManager::Create(&driver.api());
  const auto capturing = manager->IsCapturing(nullptr);
  ASSERT_TRUE(capturing.ok()) << capturing.status();
  EXPECT_FALSE(*capturing);
  driver.Fail("cuStreamIsCapturing", CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(manager->IsCapturing(nullptr).status().code(), absl::StatusCode::kInternal);
}

TEST(ScopedContextTest, RestoresTheCallersContext) {
  FakeDriver driver;
  const CUcontext own = driver.MakeContext(0);
  const CUcontext pushed = driver.MakeContext(0);
  ASSERT_EQ(driver.api().cuCtxSetCurrent(own), CUDA_SUCCESS);
  {
    auto scope = ScopedContext::Push(driver.api(), pushed);
    ASSERT_TRUE(scope.ok()) << scope.status();
    EXPECT_THAT(driver.context_stack(), ElementsAre(own, pushed));
    const ScopedContext moved = *std::move(scope);
    EXPECT_THAT(driver.context_stack(), ElementsAre(own, pushed));
  }
  EXPECT_THAT(driver.context_stack(), ElementsAre(own));
}

TEST(ScopedContextTest, RefusedPushChangesNothing) {
  FakeDriver driver;
  EXPECT_FALSE(ScopedContext::Push(driver.api(), reinterpret_cast<ContextHandle>(0x5)).ok());
  EXPECT_THAT(driver.context_stack(), IsEmpty());
  EXPECT_EQ(driver.CallCount("cuCtxPopCurrent"), 0);
}

}  // namespace
}  // namespace tilewright::device
