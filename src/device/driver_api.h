// The CUDA driver as a table of functions, opened at run time. Tests fill the table with recorders.
// Only src/device includes <cuda.h>.
#ifndef TILEWRIGHT_DEVICE_DRIVER_API_H_
#define TILEWRIGHT_DEVICE_DRIVER_API_H_

#include <cuda.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tilewright::device {

// Every driver function that Tilewright calls; the names are those of the driver.
#define TILEWRIGHT_DRIVER_FUNCTIONS(F) \
  F(cuInit)                            \
  F(cuDriverGetVersion)                \
  F(cuGetErrorName)                    \
  F(cuGetErrorString)                  \
  F(cuDeviceGetCount)                  \
  F(cuDeviceGet)                       \
  F(cuDeviceGetName)                   \
  F(cuDeviceGetUuid)                   \
  F(cuDeviceGetAttribute)              \
  F(cuDeviceTotalMem)                  \
  F(cuDevicePrimaryCtxRetain)          \
  F(cuDevicePrimaryCtxRelease)         \
  F(cuCtxGetCurrent)                   \
  F(cuCtxSetCurrent)                   \
  F(cuCtxPushCurrent)                  \
  F(cuCtxPopCurrent)                   \
  F(cuCtxGetDevice)                    \
  F(cuCtxGetId)                        \
  F(cuCtxSynchronize)                  \
  F(cuLibraryLoadData)                 \
  F(cuLibraryUnload)                   \
  F(cuLibraryGetKernel)                \
  F(cuKernelGetFunction)               \
  F(cuKernelGetAttribute)              \
  F(cuKernelSetAttribute)              \
  F(cuLaunchKernelEx)                  \
  F(cuMemAlloc)                        \
  F(cuMemGetInfo)                      \
  F(cuMemFree)                         \
  F(cuMemcpyHtoDAsync)                 \
  F(cuMemcpyDtoHAsync)                 \
  F(cuMemcpyDtoDAsync)                 \
  F(cuMemsetD8Async)                   \
  F(cuStreamCreate)                    \
  F(cuStreamDestroy)                   \
  F(cuStreamSynchronize)               \
  F(cuStreamIsCapturing)               \
  F(cuThreadExchangeStreamCaptureMode) \
  F(cuEventCreate)                     \
  F(cuEventDestroy)                    \
  F(cuEventRecord)                     \
  F(cuEventSynchronize)                \
  F(cuEventElapsedTime)                \
  F(cuTensorMapEncodeTiled)

struct DriverApi {
#define TILEWRIGHT_DRIVER_MEMBER(name) decltype(&::name) name = nullptr;
  TILEWRIGHT_DRIVER_FUNCTIONS(TILEWRIGHT_DRIVER_MEMBER)
#undef TILEWRIGHT_DRIVER_MEMBER

  // The process that initialised the driver; 0 for tables that tests fill.
  int pid = 0;

  // OK, or the error with its name, its text, the call and its location: ResourceExhausted when the
  // device is out of memory, FailedPrecondition when this process was forked from the one that
  // initialised the driver (which CUDA does not survive), else Internal.
  absl::Status Check(CUresult result, std::string_view call, const char* file, int line) const;
};

// The oldest driver that serves, as CUDA_VERSION.
inline constexpr int kMinimumDriver = 12040;

// Opens `library`, resolves every function (cuGetProcAddress) and calls cuInit. Unavailable when
// there is no driver or it is older than kMinimumDriver (the message names the version found and
// the one needed) or does not start; FailedPrecondition when it finds no device.
absl::StatusOr<DriverApi> OpenDriver(const char* library);

// OpenDriver("libcuda.so.1"), once: the table lives as long as the process. A failed attempt is
// repeated by the next call. FailedPrecondition in a process that was forked after the driver had
// been initialised. Thread-safe.
absl::StatusOr<const DriverApi*> LoadDriver();

// Runs `call` on `api` and returns its status from the enclosing function if it failed.
#define TILEWRIGHT_CU_RETURN_IF_ERROR(api, function, ...)                              \
  do {                                                                                 \
    if (CUresult tw_result = (api).function(__VA_ARGS__); tw_result != CUDA_SUCCESS) { \
      return (api).Check(tw_result, #function, __FILE__, __LINE__);                    \
    }                                                                                  \
  } while (false)

}  // namespace tilewright::device

#endif  // TILEWRIGHT_DEVICE_DRIVER_API_H_
