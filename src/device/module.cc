#include "device/module.h"

#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "device/driver_api.h"

namespace tilewright::device {
namespace {

constexpr absl::string_view kRejectedPayload = "tilewright/load_rejected";

// Shared memory that every kernel may have without asking (CUDA C++ Programming Guide,
// "Shared Memory" of each compute capability).
constexpr int64_t kUnaskedSmemBytes = 48 * 1024;

// Whether the driver says that the bytes are not an image for this device, as against any other
// reason for failing.
bool IsImageRejection(CUresult result) {
  switch (result) {
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_INVALID_SOURCE:
    case CUDA_ERROR_NOT_FOUND:  // an image without the kernel
    case CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND:
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
      return true;
    default:
      return false;
  }
}

absl::Status LoadError(const DriverApi& api, CUresult result, const char* call, int line,
                       const LoadOptions& options) {
  absl::Status status = Annotate(api.Check(result, call, __FILE__, line),
                                 absl::StrCat("loading ", options.entry_name));
  if (IsImageRejection(result)) status.SetPayload(kRejectedPayload, absl::Cord(call));
  return status;
}

// Lets the kernel have its shared memory where that is more than every kernel may have.
absl::Status AllowSmem(const DriverApi& api, CUkernel kernel, CUdevice device,
                       const LoadOptions& options) {
  int static_bytes = 0;
  int optin_bytes = 0;
  if (const CUresult result = api.cuKernelGetAttribute(
          &static_bytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel, device);
      result != CUDA_SUCCESS) {
    return LoadError(api, result, "cuKernelGetAttribute", __LINE__, options);
  }
  const int64_t needed_bytes = static_bytes + options.dynamic_smem_bytes;
  if (options.dynamic_smem_bytes == 0 || needed_bytes <= kUnaskedSmemBytes) {
    return absl::OkStatus();
  }
  TILEWRIGHT_CU_RETURN_IF_ERROR(api, cuDeviceGetAttribute, &optin_bytes,
                                CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device);
  if (needed_bytes > optin_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options.entry_name, " needs ", static_bytes, " bytes of static and ",
                     options.dynamic_smem_bytes,
                     " of dynamic shared memory, the device gives a block ", optin_bytes));
  }
  TILEWRIGHT_CU_RETURN_IF_ERROR(api, cuKernelSetAttribute,
                                CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                static_cast<int>(options.dynamic_smem_bytes), kernel, device);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const LoadedKernel>> LoadedKernel::Load(
    const DriverApi& api, const DeviceManager::Current& where, absl::string_view cubin,
    const LoadOptions& options) {
  const RelaxedCaptureMode relaxed(api);
  TILEWRIGHT_ASSIGN_OR_RETURN(const ScopedContext scope, ScopedContext::Push(api, where.context));
  std::shared_ptr<LoadedKernel> loaded(new LoadedKernel());
  loaded->api_ = &api;
  loaded->context_ = where.context;
  loaded->context_id_ = where.context_id;
  loaded->device_ordinal_ = where.device->ordinal;
  loaded->can_overlap_ = where.device->compute_major >= 9;
  if (const CUresult result = api.cuLibraryLoadData(&loaded->library_, cubin.data(), nullptr,
                                                    nullptr, 0, nullptr, nullptr, 0);
      result != CUDA_SUCCESS) {
    return LoadError(api, result, "cuLibraryLoadData", __LINE__, options);
  }
  if (const CUresult result =
          api.cuLibraryGetKernel(&loaded->kernel_, loaded->library_, options.entry_name.c_str());
      result != CUDA_SUCCESS) {
    return LoadError(api, result, "cuLibraryGetKernel", __LINE__, options);
  }
  CUdevice device = 0;
  TILEWRIGHT_CU_RETURN_IF_ERROR(api, cuDeviceGet, &device, where.device->ordinal);
  TILEWRIGHT_RETURN_IF_ERROR(AllowSmem(api, loaded->kernel_, device, options));
  // With lazy loading (the default) the image reaches the context only here, and an image for
  // another architecture may be refused no earlier.
  if (const CUresult result = api.cuKernelGetFunction(&loaded->function_, loaded->kernel_);
      result != CUDA_SUCCESS) {
    return LoadError(api, result, "cuKernelGetFunction", __LINE__, options);
  }
  return loaded;
}

LoadedKernel::~LoadedKernel() {
  // The result is not looked at: at process exit the driver or the context may be gone, which is
  // also when there is nothing left to free.
  if (library_ == nullptr || captured_.load(std::memory_order_relaxed)) return;
  const RelaxedCaptureMode relaxed(*api_);
  api_->cuLibraryUnload(library_);
}

absl::Status LoadedKernel::Launch(const LaunchConfig& config, const void* params,
                                  StreamHandle stream) const {
  ContextHandle current = nullptr;
  TILEWRIGHT_CU_RETURN_IF_ERROR(*api_, cuCtxGetCurrent, &current);
  if (current != context_) {
    return absl::FailedPreconditionError(
        absl::StrCat("the kernel was loaded for a context of device ", device_ordinal_,
                     current == nullptr ? ", and this thread has no current context"
                                        : ", and this thread's current context is another one"));
  }
  unsigned long long current_id = 0;
  TILEWRIGHT_CU_RETURN_IF_ERROR(*api_, cuCtxGetId, current, &current_id);
  if (current_id != context_id_) {
    return absl::FailedPreconditionError(
        absl::StrCat("the context of device ", device_ordinal_,
                     " that the kernel was loaded for is gone, and this thread's current context "
                     "is a later one at its address: Prepare the spec again"));
  }
  // The legacy stream (null) cannot be captured. Asking leaves a capture as it is.
  if (stream != nullptr && !captured_.load(std::memory_order_relaxed)) {
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    if (api_->cuStreamIsCapturing(stream, &capture) == CUDA_SUCCESS &&
        capture != CU_STREAM_CAPTURE_STATUS_NONE) {
      captured_.store(true, std::memory_order_relaxed);
    }
  }
  CUlaunchConfig launch = {};
  launch.gridDimX = config.grid;
  launch.gridDimY = 1;
  launch.gridDimZ = 1;
  launch.blockDimX = config.block;
  launch.blockDimY = 1;
  launch.blockDimZ = 1;
  launch.sharedMemBytes = config.smem_bytes;
  launch.hStream = stream;
  CUlaunchAttribute overlap = {};
  if (config.overlaps && can_overlap_) {
    overlap.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    overlap.value.programmaticStreamSerializationAllowed = 1;
    launch.attrs = &overlap;
    launch.numAttrs = 1;
  }
  void* arguments[] = {const_cast<void*>(params)};
  TILEWRIGHT_CU_RETURN_IF_ERROR(*api_, cuLaunchKernelEx, &launch, function_, arguments, nullptr);
  return absl::OkStatus();
}

}  // namespace tilewright::device
