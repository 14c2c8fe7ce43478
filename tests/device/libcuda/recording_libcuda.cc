// The recording driver (fake_driver.h) in the place of libcuda.so.1, for programs that find their
// driver themselves. The thread that initialises it gets the primary context of device 0 as its
// current one, as if it had used the CUDA runtime before. What was launched is printed on standard
// output, one line "launch KERNEL GRID BLOCK" each. The functions that an application of its own
// calls by name are there too.
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/device/fake_driver.h"

namespace {

using tilewright::device::DriverApi;
using tilewright::device::FakeDevice;
using tilewright::device::FakeDriver;
using tilewright::device::FakeLaunch;

FakeDriver& Driver() {
  // Never destroyed: programs call their driver up to the end.
  static FakeDriver* const driver = [] {
    // Little memory, so that a program which tunes at its first call fills little of it.
    FakeDevice device;
    device.memory_bytes = size_t{256} << 20;
    auto* created = new FakeDriver(std::vector<FakeDevice>{device});
    created->set_on_launch([](const FakeLaunch& launch) {
      std::printf("launch %s %u %u\n", launch.kernel.c_str(), launch.grid[0], launch.block[0]);
    });
    return created;
  }();
  return *driver;
}

CUresult Init(unsigned flags) {
  const DriverApi& api = Driver().api();
  if (const CUresult result = api.cuInit(flags); result != CUDA_SUCCESS) return result;
  CUcontext context = nullptr;
  if (const CUresult result = api.cuDevicePrimaryCtxRetain(&context, 0); result != CUDA_SUCCESS) {
    return result;
  }
  return api.cuCtxSetCurrent(context);
}

}  // namespace

extern "C" {

CUresult cuDriverGetVersion(int* version) { return Driver().api().cuDriverGetVersion(version); }

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int, cuuint64_t,
                             CUdriverProcAddressQueryResult* found) {
  *function = nullptr;
  const DriverApi& api = Driver().api();
#define RECORDING_FUNCTION(name) \
  if (std::strcmp(symbol, #name) == 0) *function = reinterpret_cast<void*>(api.name);
  TILEWRIGHT_DRIVER_FUNCTIONS(RECORDING_FUNCTION)
#undef RECORDING_FUNCTION
  if (std::strcmp(symbol, "cuInit") == 0) *function = reinterpret_cast<void*>(&Init);
  if (found != nullptr) {
    *found =
        *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuInit(unsigned flags) { return Init(flags); }

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return Driver().api().cuDevicePrimaryCtxRetain(context, device);
}

CUresult cuCtxGetCurrent(CUcontext* context) { return Driver().api().cuCtxGetCurrent(context); }

CUresult cuStreamSynchronize(CUstream stream) { return Driver().api().cuStreamSynchronize(stream); }

CUresult cuCtxSetCurrent(CUcontext context) { return Driver().api().cuCtxSetCurrent(context); }

CUresult cuMemAlloc(CUdeviceptr* memory, size_t bytes) {
  return Driver().api().cuMemAlloc(memory, bytes);
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
  return Driver().api().cuMemcpyHtoDAsync(to, from, bytes, nullptr);
}

CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
  return Driver().api().cuMemcpyDtoHAsync(to, from, bytes, nullptr);
}

}  // extern "C"
