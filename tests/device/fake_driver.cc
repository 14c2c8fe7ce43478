#include "tests/device/fake_driver.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

namespace tilewright::device {
namespace {

std::atomic<FakeDriver*> active_driver = nullptr;

// Calls that a capture in global mode forbids to every thread ("potentially unsafe" in the driver's
// documentation of cuThreadExchangeStreamCaptureMode).
const std::set<std::string>& UnsafeInGlobalCapture() {
  static const std::set<std::string> unsafe = {"cuMemAlloc",          "cuMemFree",
                                               "cuLibraryLoadData",   "cuLibraryUnload",
                                               "cuKernelGetFunction", "cuCtxSynchronize"};
  return unsafe;
}

}  // namespace

// The functions of the table. Static members of one class, so that they may look into FakeDriver.
struct FakeFunctions {
#define FAKE_ENTER(name)                                                  \
  FakeDriver* const fake = FakeDriver::Active();                          \
  if (CUresult injected; !fake->Enter(#name, &injected)) return injected; \
  MutexLock lock(&fake->mutex_)

  static CUresult Init(unsigned) {
    FAKE_ENTER(cuInit);
    return CUDA_SUCCESS;
  }
  static CUresult DriverGetVersion(int* version) {
    FAKE_ENTER(cuDriverGetVersion);
    *version = 13000;
    return CUDA_SUCCESS;
  }
  // The texts are no part of what is recorded: errors may be asked for at any time.
  static CUresult GetErrorName(CUresult error, const char** text) {
    switch (error) {
      case CUDA_ERROR_OUT_OF_MEMORY:
        *text = "CUDA_ERROR_OUT_OF_MEMORY";
        break;
      case CUDA_ERROR_INVALID_IMAGE:
        *text = "CUDA_ERROR_INVALID_IMAGE";
        break;
      case CUDA_ERROR_NO_BINARY_FOR_GPU:
        *text = "CUDA_ERROR_NO_BINARY_FOR_GPU";
        break;
      case CUDA_ERROR_LAUNCH_FAILED:
        *text = "CUDA_ERROR_LAUNCH_FAILED";
        break;
      case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
        *text = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
        break;
      default:
        *text = "CUDA_ERROR_OF_THE_TEST";
    }
    return CUDA_SUCCESS;
  }
  static CUresult GetErrorString(CUresult, const char** text) {
    *text = "what the fake driver was told to say";
    return CUDA_SUCCESS;
  }

  static CUresult DeviceGetCount(int* count) {
    FAKE_ENTER(cuDeviceGetCount);
    *count = static_cast<int>(fake->devices_.size());
    return CUDA_SUCCESS;
  }
  static bool IsDevice(const FakeDriver* fake, int device) {
    return device >= 0 && static_cast<size_t>(device) < fake->devices_.size();
  }
  static CUresult DeviceGet(CUdevice* device, int ordinal) {
    FAKE_ENTER(cuDeviceGet);
    if (!IsDevice(fake, ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
  }
  static CUresult DeviceGetName(char* name, int bytes, CUdevice device) {
    FAKE_ENTER(cuDeviceGetName);
    if (!IsDevice(fake, device)) return CUDA_ERROR_INVALID_DEVICE;
    std::strncpy(name, fake->devices_[device].name.c_str(), static_cast<size_t>(bytes));
    return CUDA_SUCCESS;
  }
  static CUresult DeviceGetUuid(CUuuid* uuid, CUdevice device) {
    FAKE_ENTER(cuDeviceGetUuid);
    if (!IsDevice(fake, device)) return CUDA_ERROR_INVALID_DEVICE;
    std::memset(uuid->bytes, 0xa0 + device, sizeof(uuid->bytes));
    return CUDA_SUCCESS;
  }
  static CUresult DeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    FAKE_ENTER(cuDeviceGetAttribute);
    if (!IsDevice(fake, device)) return CUDA_ERROR_INVALID_DEVICE;
    const FakeDevice& given = fake->devices_[device];
    switch (attribute) {
      case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = given.compute_major;
        break;
      case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = given.compute_minor;
        break;
      case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = given.num_sms;
        break;
      case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
        *value = given.l2_bytes;
        break;
      case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
        *value = given.sm_clock_khz;
        break;
      case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
        *value = given.memory_clock_khz;
        break;
      case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
        *value = given.memory_bus_bits;
        break;
      case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = given.smem_per_block_optin;
        break;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
  }
  static CUresult DeviceTotalMem(size_t* bytes, CUdevice device) {
    FAKE_ENTER(cuDeviceTotalMem);
    if (!IsDevice(fake, device)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = fake->devices_[device].memory_bytes;
    return CUDA_SUCCESS;
  }

  static CUresult DevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    FAKE_ENTER(cuDevicePrimaryCtxRetain);
    if (!IsDevice(fake, device)) return CUDA_ERROR_INVALID_DEVICE;
    CUcontext& primary = fake->primaries_[device];
    if (primary == nullptr) {
      primary = fake->NewHandleLocked<CUcontext>();
      fake->contexts_[primary] = device;
    }
    ++fake->primary_retains_[device];
    *context = primary;
    return CUDA_SUCCESS;
  }
  static CUresult DevicePrimaryCtxRelease(CUdevice device) {
    FAKE_ENTER(cuDevicePrimaryCtxRelease);
    if (fake->primary_retains_[device] == 0) return CUDA_ERROR_INVALID_CONTEXT;
    --fake->primary_retains_[device];
    return CUDA_SUCCESS;
  }
  static CUresult CtxGetCurrent(CUcontext* context) {
    FAKE_ENTER(cuCtxGetCurrent);
    *context = fake->CurrentLocked();
    return CUDA_SUCCESS;
  }
  static CUresult CtxSetCurrent(CUcontext context) {
    FAKE_ENTER(cuCtxSetCurrent);
    std::vector<CUcontext>& stack = fake->threads_[std::this_thread::get_id()].contexts;
    if (!stack.empty()) stack.pop_back();
    if (context != nullptr) stack.push_back(context);
    return CUDA_SUCCESS;
  }
  static CUresult CtxPushCurrent(CUcontext context) {
    FAKE_ENTER(cuCtxPushCurrent);
    if (fake->contexts_.count(context) == 0) return CUDA_ERROR_INVALID_CONTEXT;
    fake->threads_[std::this_thread::get_id()].contexts.push_back(context);
    return CUDA_SUCCESS;
  }
  static CUresult CtxPopCurrent(CUcontext* context) {
    FAKE_ENTER(cuCtxPopCurrent);
    std::vector<CUcontext>& stack = fake->threads_[std::this_thread::get_id()].contexts;
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *context = stack.back();
    stack.pop_back();
    return CUDA_SUCCESS;
  }
  static CUresult CtxGetDevice(CUdevice* device) {
    FAKE_ENTER(cuCtxGetDevice);
    if (fake->CurrentLocked() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *device = fake->contexts_[fake->CurrentLocked()];
    return CUDA_SUCCESS;
  }
  static CUresult CtxGetId(CUcontext context, unsigned long long* id) {
    FAKE_ENTER(cuCtxGetId);
    if (context == nullptr) context = fake->CurrentLocked();
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *id = reinterpret_cast<uintptr_t>(context) + fake->recreated_[context];
    return CUDA_SUCCESS;
  }
  static CUresult CtxSynchronize() {
    FAKE_ENTER(cuCtxSynchronize);
    return fake->CurrentLocked() == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
  }

  static CUresult LibraryLoadData(CUlibrary* library, const void* image, CUjit_option*, void**,
                                  unsigned, CUlibraryOption*, void**, unsigned) {
    FAKE_ENTER(cuLibraryLoadData);
    if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *library = fake->NewHandleLocked<CUlibrary>();
    fake->libraries_.insert(*library);
    ++fake->loaded_libraries_;
    return CUDA_SUCCESS;
  }
  static CUresult LibraryUnload(CUlibrary library) {
    FAKE_ENTER(cuLibraryUnload);
    if (fake->libraries_.erase(library) == 0) return CUDA_ERROR_INVALID_HANDLE;
    std::erase_if(fake->kernels_, [&](const auto& k) { return k.second.library == library; });
    // No lambda: clang's analysis does not see the lock in one.
    for (auto f = fake->functions_.begin(); f != fake->functions_.end();) {
      f = fake->kernels_.contains(f->second) ? std::next(f) : fake->functions_.erase(f);
    }
    return CUDA_SUCCESS;
  }
  static CUresult LibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
    FAKE_ENTER(cuLibraryGetKernel);
    if (fake->libraries_.count(library) == 0) return CUDA_ERROR_INVALID_HANDLE;
    *kernel = fake->NewHandleLocked<CUkernel>();
    fake->kernels_[*kernel].library = library;
    fake->kernels_[*kernel].name = name;
    return CUDA_SUCCESS;
  }
  static CUresult KernelGetFunction(CUfunction* function, CUkernel kernel) {
    FAKE_ENTER(cuKernelGetFunction);
    if (fake->CurrentLocked() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (fake->kernels_.count(kernel) == 0) return CUDA_ERROR_INVALID_HANDLE;
    *function = fake->NewHandleLocked<CUfunction>();
    fake->functions_[*function] = kernel;
    return CUDA_SUCCESS;
  }
  static CUresult KernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel,
                                     CUdevice) {
    FAKE_ENTER(cuKernelGetAttribute);
    if (fake->kernels_.count(kernel) == 0) return CUDA_ERROR_INVALID_HANDLE;
    if (attribute != CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
    *value = fake->static_smem_bytes_;
    return CUDA_SUCCESS;
  }
  static CUresult KernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                     CUdevice device) {
    FAKE_ENTER(cuKernelSetAttribute);
    if (fake->kernels_.count(kernel) == 0) return CUDA_ERROR_INVALID_HANDLE;
    if (!IsDevice(fake, device)) return CUDA_ERROR_INVALID_DEVICE;
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
        value + fake->static_smem_bytes_ > fake->devices_[device].smem_per_block_optin) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    fake->kernels_[kernel].max_dynamic_smem[device] = value;
    return CUDA_SUCCESS;
  }

  static CUresult LaunchKernelEx(const CUlaunchConfig* config, CUfunction function,
                                 void** arguments, void**) {
    FakeDriver* const fake = FakeDriver::Active();
    if (CUresult injected; !fake->Enter("cuLaunchKernelEx", &injected)) return injected;
    FakeLaunch launch;
    std::function<void(const FakeLaunch&)> hook;
    {
      MutexLock lock(&fake->mutex_);
      const CUcontext context = fake->CurrentLocked();
      const auto found = fake->functions_.find(function);
      if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
      if (found == fake->functions_.end()) return CUDA_ERROR_INVALID_HANDLE;
      if (config->gridDimX == 0 || config->blockDimX == 0) return CUDA_ERROR_INVALID_VALUE;
      const FakeDriver::Kernel& kernel = fake->kernels_[found->second];
      const auto limit = kernel.max_dynamic_smem.find(fake->contexts_[context]);
      launch.grid = {config->gridDimX, config->gridDimY, config->gridDimZ};
      launch.block = {config->blockDimX, config->blockDimY, config->blockDimZ};
      launch.smem_bytes = config->sharedMemBytes;
      launch.num_attributes = config->numAttrs;
      launch.stream = config->hStream;
      launch.context = context;
      launch.kernel = kernel.name;
      launch.max_dynamic_smem = limit == kernel.max_dynamic_smem.end() ? 0 : limit->second;
      const int allowed = std::max(launch.max_dynamic_smem, 49152 - fake->static_smem_bytes_);
      if (static_cast<int>(launch.smem_bytes) > allowed) return CUDA_ERROR_INVALID_VALUE;
      launch.params.assign(static_cast<const char*>(arguments[0]), fake->params_bytes_);
      fake->launches_.push_back(launch);
      fake->now_ms_ += fake->launch_ms_ ? fake->launch_ms_(launch) : 0.01;
      if (fake->capturing_.count(config->hStream) == 0) hook = fake->on_launch_;
    }
    if (hook) hook(launch);
    return CUDA_SUCCESS;
  }

  // The first bytes of a map are the tensor's address; the rest says nothing.
  static CUresult TensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank,
                                       void* address, const cuuint64_t* extents,
                                       const cuuint64_t* strides, const cuuint32_t* box,
                                       const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                       CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    FAKE_ENTER(cuTensorMapEncodeTiled);
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
    for (cuuint32_t n = 0; n < rank; ++n) {
      if (extents[n] == 0 || box[n] == 0 || box[n] > 256) return CUDA_ERROR_INVALID_VALUE;
      if (n > 0 && strides[n - 1] % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
    }
    *map = {};
    std::memcpy(map, &address, sizeof(address));
    return CUDA_SUCCESS;
  }

  static CUresult MemAlloc(CUdeviceptr* address, size_t bytes) {
    FAKE_ENTER(cuMemAlloc);
    const CUcontext context = fake->CurrentLocked();
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    size_t live = 0;
    for (const auto& [start, size] : fake->sizes_) live += size;
    const size_t total = fake->devices_[fake->contexts_[context]].memory_bytes;
    if (bytes > total || live > total - bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    FakeDriver::Memory data(new (std::align_val_t{FakeDriver::kMemoryAlignment}) char[bytes]);
    *address = reinterpret_cast<CUdeviceptr>(data.get());
    fake->sizes_[*address] = bytes;
    fake->memory_[*address] = std::move(data);
    return CUDA_SUCCESS;
  }
  static CUresult MemFree(CUdeviceptr address) {
    FAKE_ENTER(cuMemFree);
    fake->sizes_.erase(address);
    return fake->memory_.erase(address) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  static bool InOneAllocation(const FakeDriver* fake, CUdeviceptr address,
                              size_t bytes) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    auto next = fake->sizes_.upper_bound(address);
    if (next == fake->sizes_.begin()) return false;
    const auto& [start, size] = *std::prev(next);
    return address - start <= size && bytes <= size - (address - start);
  }
  static CUresult MemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream) {
    FAKE_ENTER(cuMemcpyHtoDAsync);
    if (!InOneAllocation(fake, to, bytes)) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return CUDA_SUCCESS;
  }
  static CUresult MemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream) {
    FAKE_ENTER(cuMemcpyDtoHAsync);
    if (!InOneAllocation(fake, from, bytes)) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    return CUDA_SUCCESS;
  }
  static CUresult MemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream) {
    FAKE_ENTER(cuMemcpyDtoDAsync);
    if (!InOneAllocation(fake, to, bytes) || !InOneAllocation(fake, from, bytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    return CUDA_SUCCESS;
  }
  static CUresult MemGetInfo(size_t* free, size_t* total) {
    FAKE_ENTER(cuMemGetInfo);
    const CUcontext context = fake->CurrentLocked();
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *total = fake->devices_[static_cast<size_t>(fake->contexts_[context])].memory_bytes;
    size_t used = 0;
    for (const auto& [address, size] : fake->sizes_) used += size;
    *free = *total - std::min(*total, used);
    return CUDA_SUCCESS;
  }
  static CUresult MemsetD8Async(CUdeviceptr to, unsigned char byte, size_t bytes, CUstream) {
    FAKE_ENTER(cuMemsetD8Async);
    if (!InOneAllocation(fake, to, bytes)) return CUDA_ERROR_INVALID_VALUE;
    std::memset(reinterpret_cast<void*>(to), byte, bytes);
    return CUDA_SUCCESS;
  }

  static CUresult StreamCreate(CUstream* stream, unsigned) {
    FAKE_ENTER(cuStreamCreate);
    if (fake->CurrentLocked() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *stream = fake->NewHandleLocked<CUstream>();
    fake->streams_.insert(*stream);
    return CUDA_SUCCESS;
  }
  static CUresult StreamDestroy(CUstream stream) {
    FAKE_ENTER(cuStreamDestroy);
    return fake->streams_.erase(stream) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  }
  static CUresult StreamSynchronize(CUstream stream) {
    FAKE_ENTER(cuStreamSynchronize);
    return fake->capturing_.count(stream) == 0 ? CUDA_SUCCESS
                                               : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  static CUresult StreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    FAKE_ENTER(cuStreamIsCapturing);
    const bool capturing = fake->capturing_.count(stream) != 0;
    if (stream == nullptr) {
      if (fake->CurrentLocked() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
      if (capturing) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    *status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  }
  static CUresult ThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    FAKE_ENTER(cuThreadExchangeStreamCaptureMode);
    std::swap(fake->threads_[std::this_thread::get_id()].mode, *mode);
    return CUDA_SUCCESS;
  }

  static CUresult EventCreate(CUevent* event, unsigned) {
    FAKE_ENTER(cuEventCreate);
    if (fake->CurrentLocked() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *event = fake->NewHandleLocked<CUevent>();
    fake->events_[*event] = -1;
    return CUDA_SUCCESS;
  }
  static CUresult EventDestroy(CUevent event) {
    FAKE_ENTER(cuEventDestroy);
    return fake->events_.erase(event) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  }
  static CUresult EventRecord(CUevent event, CUstream) {
    FAKE_ENTER(cuEventRecord);
    if (fake->events_.count(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
    fake->events_[event] = fake->now_ms_;
    return CUDA_SUCCESS;
  }
  static CUresult EventSynchronize(CUevent event) {
    FAKE_ENTER(cuEventSynchronize);
    return fake->events_.count(event) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  }
  static CUresult EventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    FAKE_ENTER(cuEventElapsedTime);
    const auto from = fake->events_.find(start);
    const auto to = fake->events_.find(end);
    if (from == fake->events_.end() || to == fake->events_.end() || from->second < 0 ||
        to->second < 0) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    *milliseconds = static_cast<float>(to->second - from->second);
    return CUDA_SUCCESS;
  }
#undef FAKE_ENTER
};

FakeDriver::FakeDriver(std::vector<FakeDevice> devices) : devices_(std::move(devices)) {
  FakeDriver* none = nullptr;
  if (!active_driver.compare_exchange_strong(none, this)) std::abort();
  api_.cuInit = &FakeFunctions::Init;
  api_.cuDriverGetVersion = &FakeFunctions::DriverGetVersion;
  api_.cuGetErrorName = &FakeFunctions::GetErrorName;
  api_.cuGetErrorString = &FakeFunctions::GetErrorString;
  api_.cuDeviceGetCount = &FakeFunctions::DeviceGetCount;
  api_.cuDeviceGet = &FakeFunctions::DeviceGet;
  api_.cuDeviceGetName = &FakeFunctions::DeviceGetName;
  api_.cuDeviceGetUuid = &FakeFunctions::DeviceGetUuid;
  api_.cuDeviceGetAttribute = &FakeFunctions::DeviceGetAttribute;
  api_.cuDeviceTotalMem = &FakeFunctions::DeviceTotalMem;
  api_.cuDevicePrimaryCtxRetain = &FakeFunctions::DevicePrimaryCtxRetain;
  api_.cuDevicePrimaryCtxRelease = &FakeFunctions::DevicePrimaryCtxRelease;
  api_.cuCtxGetCurrent = &FakeFunctions::CtxGetCurrent;
  api_.cuCtxSetCurrent = &FakeFunctions::CtxSetCurrent;
  api_.cuCtxPushCurrent = &FakeFunctions::CtxPushCurrent;
  api_.cuCtxPopCurrent = &FakeFunctions::CtxPopCurrent;
  api_.cuCtxGetDevice = &FakeFunctions::CtxGetDevice;
  api_.cuCtxGetId = &FakeFunctions::CtxGetId;
  api_.cuCtxSynchronize = &FakeFunctions::CtxSynchronize;
  api_.cuLibraryLoadData = &FakeFunctions::LibraryLoadData;
  api_.cuLibraryUnload = &FakeFunctions::LibraryUnload;
  api_.cuLibraryGetKernel = &FakeFunctions::LibraryGetKernel;
  api_.cuKernelGetFunction = &FakeFunctions::KernelGetFunction;
  api_.cuKernelGetAttribute = &FakeFunctions::KernelGetAttribute;
  api_.cuKernelSetAttribute = &FakeFunctions::KernelSetAttribute;
  api_.cuTensorMapEncodeTiled = &FakeFunctions::TensorMapEncodeTiled;
  api_.cuLaunchKernelEx = &FakeFunctions::LaunchKernelEx;
  api_.cuMemAlloc = &FakeFunctions::MemAlloc;
  api_.cuMemFree = &FakeFunctions::MemFree;
  api_.cuMemcpyHtoDAsync = &FakeFunctions::MemcpyHtoDAsync;
  api_.cuMemcpyDtoHAsync = &FakeFunctions::MemcpyDtoHAsync;
  api_.cuMemcpyDtoDAsync = &FakeFunctions::MemcpyDtoDAsync;
  api_.cuMemGetInfo = &FakeFunctions::MemGetInfo;
  api_.cuMemsetD8Async = &FakeFunctions::MemsetD8Async;
  api_.cuStreamCreate = &FakeFunctions::StreamCreate;
  api_.cuStreamDestroy = &FakeFunctions::StreamDestroy;
  api_.cuStreamSynchronize = &FakeFunctions::StreamSynchronize;
  api_.cuStreamIsCapturing = &FakeFunctions::StreamIsCapturing;
  api_.cuThreadExchangeStreamCaptureMode = &FakeFunctions::ThreadExchangeStreamCaptureMode;
  api_.cuEventCreate = &FakeFunctions::EventCreate;
  api_.cuEventDestroy = &FakeFunctions::EventDestroy;
  api_.cuEventRecord = &FakeFunctions::EventRecord;
  api_.cuEventSynchronize = &FakeFunctions::EventSynchronize;
  api_.cuEventElapsedTime = &FakeFunctions::EventElapsedTime;
}

FakeDriver::~FakeDriver() { active_driver = nullptr; }

FakeDriver* FakeDriver::Active() {
  FakeDriver* const driver = active_driver;
  // Somebody kept an object of the driver beyond the test's FakeDriver.
  if (driver == nullptr) std::abort();
  return driver;
}

bool FakeDriver::Enter(const char* function, CUresult* injected) {
  MutexLock lock(&mutex_);
  ++counts_[function];
  calls_.emplace_back(function);
  if (auto it = failures_.find(function); it != failures_.end()) {
    Failure& failure = it->second;
    if (failure.skip > 0) {
      --failure.skip;
    } else if (failure.times != 0) {
      if (failure.times > 0) --failure.times;
      *injected = failure.result;
      return false;
    }
  }
  if (global_capture_ && UnsafeInGlobalCapture().count(function) != 0 &&
      threads_[std::this_thread::get_id()].mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
    capture_spoilt_ = true;
    *injected = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return false;
  }
  return true;
}

CUcontext FakeDriver::CurrentLocked() const {
  const auto thread = threads_.find(std::this_thread::get_id());
  if (thread == threads_.end() || thread->second.contexts.empty()) return nullptr;
  return thread->second.contexts.back();
}

void FakeDriver::Fail(const std::string& function, CUresult result, int times, int skip) {
  MutexLock lock(&mutex_);
  failures_[function] = {result, times, skip};
}

void FakeDriver::StopFailing(const std::string& function) {
  MutexLock lock(&mutex_);
  failures_.erase(function);
}

void FakeDriver::set_params_bytes(size_t bytes) {
  MutexLock lock(&mutex_);
  params_bytes_ = bytes;
}

void FakeDriver::set_on_launch(std::function<void(const FakeLaunch&)> hook) {
  MutexLock lock(&mutex_);
  on_launch_ = std::move(hook);
}

void FakeDriver::set_launch_ms(std::function<double(const FakeLaunch&)> cost) {
  MutexLock lock(&mutex_);
  launch_ms_ = std::move(cost);
}

void FakeDriver::set_static_smem_bytes(int bytes) {
  MutexLock lock(&mutex_);
  static_smem_bytes_ = bytes;
}

void FakeDriver::SetCapturing(CUstream stream, bool capturing) {
  MutexLock lock(&mutex_);
  if (capturing) {
    capturing_.insert(stream);
  } else {
    capturing_.erase(stream);
  }
}

void FakeDriver::SetGlobalCapture(bool active) {
  MutexLock lock(&mutex_);
  global_capture_ = active;
}

CUcontext FakeDriver::MakeContext(int ordinal) {
  MutexLock lock(&mutex_);
  const CUcontext context = NewHandleLocked<CUcontext>();
  contexts_[context] = ordinal;
  return context;
}

void FakeDriver::RecreateContext(CUcontext context) {
  MutexLock lock(&mutex_);
  ++recreated_[context];
}

void FakeDriver::ForgetCalls() {
  MutexLock lock(&mutex_);
  calls_.clear();
  launches_.clear();
}

int FakeDriver::CallCount(const std::string& function) const {
  MutexLock lock(&mutex_);
  const auto it = counts_.find(function);
  return it == counts_.end() ? 0 : it->second;
}

std::vector<std::string> FakeDriver::calls() const {
  MutexLock lock(&mutex_);
  return calls_;
}

std::vector<FakeLaunch> FakeDriver::launches() const {
  MutexLock lock(&mutex_);
  return launches_;
}

int FakeDriver::live_libraries() const {
  MutexLock lock(&mutex_);
  return static_cast<int>(libraries_.size());
}

int FakeDriver::loaded_libraries() const {
  MutexLock lock(&mutex_);
  return loaded_libraries_;
}

int FakeDriver::live_allocations() const {
  MutexLock lock(&mutex_);
  return static_cast<int>(memory_.size());
}

size_t FakeDriver::live_bytes() const {
  MutexLock lock(&mutex_);
  size_t bytes = 0;
  for (const auto& [address, size] : sizes_) bytes += size;
  return bytes;
}

int FakeDriver::live_streams() const {
  MutexLock lock(&mutex_);
  return static_cast<int>(streams_.size());
}

int FakeDriver::live_events() const {
  MutexLock lock(&mutex_);
  return static_cast<int>(events_.size());
}

int FakeDriver::retained_primaries() const {
  MutexLock lock(&mutex_);
  int retains = 0;
  for (const auto& [device, count] : primary_retains_) retains += count;
  return retains;
}

bool FakeDriver::capture_spoilt() const {
  MutexLock lock(&mutex_);
  return capture_spoilt_;
}

CUstreamCaptureMode FakeDriver::capture_mode() const {
  MutexLock lock(&mutex_);
  const auto thread = threads_.find(std::this_thread::get_id());
  return thread == threads_.end() ? CU_STREAM_CAPTURE_MODE_GLOBAL : thread->second.mode;
}

std::vector<CUcontext> FakeDriver::context_stack() const {
  MutexLock lock(&mutex_);
  const auto thread = threads_.find(std::this_thread::get_id());
  return thread == threads_.end() ? std::vector<CUcontext>() : thread->second.contexts;
}

}  // namespace tilewright::device
