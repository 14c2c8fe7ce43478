#include "device/module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "tests/device/fake_driver.h"

namespace tilewright::device {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class LoadedKernelTest : public ::testing::Test {
 protected:
  LoadedKernelTest() : manager_(*DeviceManager::Create(&driver_.api())) {
    where_ = *manager_->CurrentOrPrimary(0);
  }
  absl::StatusOr<std::shared_ptr<const LoadedKernel>> Load(int64_t smem_bytes = 0) {
    return LoadedKernel::Load(driver_.api(), where_, "image",
                              {.entry_name = "attn__x", .dynamic_smem_bytes = smem_bytes});
  }
  void MakeCurrent() { ASSERT_EQ(driver_.api().cuCtxSetCurrent(where_.context), CUDA_SUCCESS); }

  FakeDriver driver_;
  std::shared_ptr<DeviceManager> manager_;
  DeviceManager::Current where_;
};

TEST_F(LoadedKernelTest, LaunchPassesGridBlockSmemStreamAndParams) {
  const auto kernel = Load(1024);
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  EXPECT_EQ((*kernel)->context(), where_.context);
  EXPECT_EQ((*kernel)->device_ordinal(), 0);
  MakeCurrent();
  const std::string params = "the bytes of the parameter";
  driver_.set_params_bytes(params.size());
  const auto stream = reinterpret_cast<StreamHandle>(0x40);
  ASSERT_TRUE((*kernel)
                  ->Launch({.grid = 132, .block = 384, .smem_bytes = 1024}, params.data(), stream)
                  .ok());
  ASSERT_EQ(driver_.launches().size(), 1u);
  const FakeLaunch launch = driver_.launches()[0];
  EXPECT_THAT(launch.grid, ElementsAre(132, 1, 1));
  EXPECT_THAT(launch.block, ElementsAre(384, 1, 1));
  EXPECT_EQ(launch.smem_bytes, 1024u);
  EXPECT_EQ(launch.num_attributes, 0u);
  EXPECT_EQ(launch.stream, stream);
  EXPECT_EQ(launch.context, where_.context);
  EXPECT_EQ(launch.kernel, "attn__x");
  EXPECT_EQ(launch.params, params);
}

TEST_F(LoadedKernelTest, NothingIsLeftForTheFirstLaunch) {
  const auto kernel = Load(100000);
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  MakeCurrent();
  const size_t before = driver_.calls().size();
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(
        (*kernel)->Launch({.grid = 1, .block = 32, .smem_bytes = 100000}, "", nullptr).ok());
  }
  const std::vector<std::string> calls = driver_.calls();
  EXPECT_THAT(std::vector<std::string>(calls.begin() + static_cast<long>(before), calls.end()),
              ElementsAre("cuCtxGetCurrent", "cuCtxGetId", "cuLaunchKernelEx", "cuCtxGetCurrent",
                          "cuCtxGetId", "cuLaunchKernelEx"));
}

TEST_F(LoadedKernelTest, SmemLimitIsRaisedOnlyAboveWhatEveryKernelHas) {
  driver_.set_static_smem_bytes(1000);
  ASSERT_TRUE(Load(0).ok());
  ASSERT_TRUE(Load(49152 - 1000).ok());
  EXPECT_EQ(driver_.CallCount("cuKernelSetAttribute"), 0);
  // Static and dynamic shared memory count together.
  const auto kernel = Load(49152 - 999);
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  EXPECT_EQ(driver_.CallCount("cuKernelSetAttribute"), 1);
  MakeCurrent();
  ASSERT_TRUE(
      (*kernel)->Launch({.grid = 1, .block = 1, .smem_bytes = 49152 - 999}, "", nullptr).ok());
  EXPECT_EQ(driver_.launches()[0].max_dynamic_smem, 49152 - 999);
}

TEST_F(LoadedKernelTest, MoreSmemThanTheDeviceHasIsResourceExhausted) {
  driver_.set_static_smem_bytes(448);
  EXPECT_TRUE(Load(232448 - 448).ok());
  const auto kernel = Load(232448 - 447);
  ASSERT_EQ(kernel.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(kernel.status().message()), HasSubstr("attn__x"));
  EXPECT_THAT(std::string(kernel.status().message()), HasSubstr("232001"));
  EXPECT_THAT(std::string(kernel.status().message()), HasSubstr("232448"));
}

TEST_F(LoadedKernelTest, LoadingLeavesTheThreadAsItWas) {
  ASSERT_TRUE(Load().ok());
  EXPECT_THAT(driver_.context_stack(), IsEmpty());
  const CUcontext own = driver_.MakeContext(0);
  ASSERT_EQ(driver_.api().cuCtxSetCurrent(own), CUDA_SUCCESS);
  ASSERT_TRUE(Load(100000).ok());
  driver_.Fail("cuKernelGetFunction", CUDA_ERROR_UNKNOWN);
  ASSERT_FALSE(Load().ok());
  EXPECT_THAT(driver_.context_stack(), ElementsAre(own));
  EXPECT_EQ(driver_.capture_mode(), CU_STREAM_CAPTURE_MODE_GLOBAL);
}

TEST_F(LoadedKernelTest, CaptureOfAnotherThreadSurvivesLoadAndUnload) {
  driver_.SetGlobalCapture(true);
  {
    const auto kernel = Load(100000);
    EXPECT_TRUE(kernel.ok()) << kernel.status();
  }
  EXPECT_FALSE(driver_.capture_spoilt());
  EXPECT_EQ(driver_.live_libraries(), 0);
  EXPECT_EQ(driver_.capture_mode(), CU_STREAM_CAPTURE_MODE_GLOBAL);
  // The same calls without the loader's care would have spoilt it.
  CUlibrary library = nullptr;
  EXPECT_EQ(
      driver_.api().cuLibraryLoadData(&library, "image", nullptr, nullptr, 0, nullptr, nullptr, 0),
      CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_TRUE(driver_.capture_spoilt());
}

TEST_F(LoadedKernelTest, TheCallersCaptureModeIsRestored) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  ASSERT_EQ(driver_.api().cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  { ASSERT_TRUE(Load().ok()); }
  EXPECT_EQ(driver_.capture_mode(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

TEST_F(LoadedKernelTest, RefusedImageIsMarked) {
  struct Case {
    const char* function;
    CUresult result;
    bool rejected;
  };
  const Case cases[] = {
      {"cuLibraryLoadData", CUDA_ERROR_INVALID_IMAGE, true},
      {"cuLibraryLoadData", CUDA_ERROR_NO_BINARY_FOR_GPU, true},
      {"cuLibraryLoadData", CUDA_ERROR_INVALID_PTX, true},
      {"cuLibraryLoadData", CUDA_ERROR_UNSUPPORTED_PTX_VERSION, true},
      {"cuLibraryGetKernel", CUDA_ERROR_NOT_FOUND, true},
      {"cuKernelGetFunction", CUDA_ERROR_NO_BINARY_FOR_GPU, true},
      {"cuKernelGetAttribute", CUDA_ERROR_INVALID_IMAGE, true},
      {"cuLibraryLoadData", CUDA_ERROR_OUT_OF_MEMORY, false},
      {"cuKernelGetFunction", CUDA_ERROR_OUT_OF_MEMORY, false},
      {"cuLibraryLoadData", CUDA_ERROR_UNKNOWN, false},
      {"cuKernelSetAttribute", CUDA_ERROR_INVALID_VALUE, false},
      {"cuCtxPushCurrent", CUDA_ERROR_CONTEXT_IS_DESTROYED, false},
  };
  for (const Case& c : cases) {
    driver_.Fail(c.function, c.result);
    const auto kernel = Load(100000);
    ASSERT_FALSE(kernel.ok()) << c.function;
    EXPECT_EQ(kernel.status().code(), c.result == CUDA_ERROR_OUT_OF_MEMORY
                                          ? absl::StatusCode::kResourceExhausted
                                          : absl::StatusCode::kInternal);
    EXPECT_EQ(kernel.status().GetPayload("tilewright/load_rejected").has_value(), c.rejected)
        << c.function << " " << c.result;
    EXPECT_THAT(std::string(kernel.status().message()), HasSubstr(c.function));
    EXPECT_EQ(driver_.live_libraries(), 0) << c.function;
  }
}

TEST_F(LoadedKernelTest, LaunchInAnotherContextIsRefused) {
  const auto kernel = Load();
  ASSERT_TRUE(kernel.ok());
  const absl::Status none = (*kernel)->Launch({.grid = 1, .block = 1}, "", nullptr);
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(none.message()), HasSubstr("no current context"));
  ASSERT_EQ(driver_.api().cuCtxSetCurrent(driver_.MakeContext(0)), CUDA_SUCCESS);
  const absl::Status other = (*kernel)->Launch({.grid = 1, .block = 1}, "", nullptr);
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.message()), HasSubstr("another one"));
  EXPECT_THAT(driver_.launches(), IsEmpty());
}

TEST_F(LoadedKernelTest, FailedLaunchTellsTheDriversError) {
  const auto kernel = Load();
  ASSERT_TRUE(kernel.ok());
  MakeCurrent();
  driver_.Fail("cuLaunchKernelEx", CUDA_ERROR_LAUNCH_FAILED);
  const absl::Status status = (*kernel)->Launch({.grid = 1, .block = 1}, "", nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("cuLaunchKernelEx failed: CUDA_ERROR_LAUNCH_FAILED"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("src/device/module.cc:"));
}

TEST_F(LoadedKernelTest, UnloadToleratesADriverThatIsGone) {
  for (const CUresult gone : {CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_CONTEXT_IS_DESTROYED}) {
    auto kernel = *Load();
    driver_.Fail("cuThreadExchangeStreamCaptureMode", gone, -1);
    driver_.Fail("cuLibraryUnload", gone);
    kernel.reset();
    driver_.StopFailing("cuThreadExchangeStreamCaptureMode");
  }
  EXPECT_EQ(driver_.CallCount("cuLibraryUnload"), 2);
}

TEST_F(LoadedKernelTest, ThreadsShareOneKernel) {
  const auto kernel = *Load();
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      const auto scope = ScopedContext::Push(driver_.api(), where_.context);
      ASSERT_TRUE(scope.ok());
      for (int i = 0; i < 50; ++i) {
        EXPECT_TRUE(kernel->Launch({.grid = 1, .block = 1}, "", nullptr).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(driver_.launches().size(), 400u);
}

}  // namespace
}  // namespace tilewright::device
