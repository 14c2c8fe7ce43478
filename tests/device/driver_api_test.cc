#include "device/driver_api.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "tests/device/fake_driver.h"

namespace tilewright::device {
namespace {

using ::testing::HasSubstr;

TEST(DriverApiTest, MissingDriverIsUnavailableAndSaysWhatToInstall) {
  const auto api = OpenDriver("/nonexistent/libcuda.so.1");
  ASSERT_EQ(api.status().code(), absl::StatusCode::kUnavailable);
  const std::string message(api.status().message());
  EXPECT_THAT(message, HasSubstr("no CUDA driver: /nonexistent/libcuda.so.1"));
  EXPECT_THAT(message, HasSubstr("install the NVIDIA driver"));
}

TEST(DriverApiTest, MachineWithoutADriverIsUnavailableEachTime) {
  if (void* driver = dlopen("libcuda.so.1", RTLD_LAZY); driver != nullptr) {
    GTEST_SKIP() << "this machine has a driver";
  }
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto api = LoadDriver();
    EXPECT_EQ(api.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(api.status().message()), HasSubstr("libcuda.so.1"));
  }
}

TEST(DriverApiTest, TooOldDriverNamesBothVersionsAndIsNotInitialised) {
  // The library traps in cuInit.
  const auto api = OpenDriver(TILEWRIGHT_OLD_LIBCUDA);
  ASSERT_EQ(api.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(api.status().message()),
              HasSubstr("it serves CUDA 11.8, Tilewright needs 12.4"));
}

TEST(DriverApiTest, LibraryThatIsNoDriverIsUnavailable) {
  const auto api = OpenDriver("libm.so.6");
  ASSERT_EQ(api.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(api.status().message()), HasSubstr("is not a CUDA driver"));
}

TEST(DriverApiTest, TheAbortingDriverAborts) {
  // Proof that the tests which run beside this library would notice an initialisation.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(OpenDriver(TILEWRIGHT_ABORTING_LIBCUDA).status().IgnoreError(), "");
}

TEST(DriverApiTest, ErrorsCarryNameTextCallAndPlace) {
  FakeDriver driver;
  const absl::Status status =
      driver.api().Check(CUDA_ERROR_LAUNCH_FAILED, "cuStreamSynchronize", "some/file.cc", 42);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(std::string(status.message()),
            "cuStreamSynchronize failed: CUDA_ERROR_LAUNCH_FAILED (719): what the fake driver was "
            "told to say [some/file.cc:42]");
  EXPECT_TRUE(driver.api().Check(CUDA_SUCCESS, "cuInit", "some/file.cc", 1).ok());
  EXPECT_EQ(driver.api().Check(CUDA_ERROR_OUT_OF_MEMORY, "cuMemAlloc", "f", 1).code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(DriverApiTest, ErrorsWithoutANameStillTellTheNumber) {
  FakeDriver driver;
  DriverApi api = driver.api();
  api.cuGetErrorName = [](CUresult, const char**) { return CUDA_ERROR_INVALID_VALUE; };
  api.cuGetErrorString = [](CUresult, const char**) { return CUDA_ERROR_INVALID_VALUE; };
  EXPECT_EQ(std::string(api.Check(static_cast<CUresult>(12345), "cuX", "f", 1).message()),
            "cuX failed: unknown error (12345): no description [f:1]");
}

TEST(DriverApiTest, ForkedChildIsTold) {
  FakeDriver driver;
  DriverApi api = driver.api();
  api.pid = getpid();
  EXPECT_EQ(api.Check(CUDA_ERROR_NOT_INITIALIZED, "cuInit", "f", 1).code(),
            absl::StatusCode::kInternal);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const absl::Status status = api.Check(CUDA_ERROR_NOT_INITIALIZED, "cuCtxGetCurrent", "f", 1);
    const bool told = status.code() == absl::StatusCode::kFailedPrecondition &&
                      status.message().find("forked") != absl::string_view::npos;
    std::_Exit(told ? 0 : 1);
  }
  int result = 0;
  ASSERT_EQ(waitpid(child, &result, 0), child);
  EXPECT_TRUE(WIFEXITED(result) && WEXITSTATUS(result) == 0);
}

}  // namespace
}  // namespace tilewright::device
