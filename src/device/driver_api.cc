#include "device/driver_api.h"

#include <dlfcn.h>
#include <unistd.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/text.h"

namespace tilewright::device {
namespace {

using GetVersion = CUresult (*)(int*);
using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t,
                                    CUdriverProcAddressQueryResult*);

std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

absl::Status ForkedError() {
  return absl::FailedPreconditionError(
      "this process was forked after the CUDA driver had been initialised, and CUDA does not work "
      "in such a child; start workers by exec (Python: multiprocessing \"spawn\"), or fork before "
      "the first Runtime is made");
}

absl::Status Resolve(GetProcAddress get_proc_address, const char* library, const char* name,
                     void** function) {
  // The version selects the ABI of functions that changed ("_v2"), so that a newer driver gives
  // what the oldest one that serves would. A default stream means the legacy one.
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
  const CUresult result =
      get_proc_address(name, function, kMinimumDriver, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found);
  if (result == CUDA_SUCCESS && *function != nullptr) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "the CUDA driver (", library, ") has no function ", name, ": cuGetProcAddress gave error ",
      static_cast<int>(result), ", reason ", static_cast<int>(found)));
}

}  // namespace

absl::Status DriverApi::Check(CUresult result, std::string_view call, const char* file,
                              int line) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  if (result == CUDA_ERROR_NOT_INITIALIZED && pid != 0 && pid != getpid()) return ForkedError();
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown error";
  if (cuGetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) text = "no description";
  const std::string message =
      absl::StrCat(AbslView(call), " failed: ", name, " (", static_cast<int>(result), "): ", text,
                   " [", file, ":", line, "]");
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

absl::StatusOr<DriverApi> OpenDriver(const char* library) {
  // Never closed: the driver keeps threads and exit handlers of its own.
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    return absl::UnavailableError(absl::StrCat(
        "no CUDA driver: ", reason != nullptr ? reason : library, "; install the NVIDIA driver (",
        VersionText(kMinimumDriver),
        " or newer), or start the container with the GPU passed through (--gpus all)"));
  }
  const auto get_version = reinterpret_cast<GetVersion>(dlsym(handle, "cuDriverGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != CUDA_SUCCESS) {
    return absl::UnavailableError(
        absl::StrCat(library, " is not a CUDA driver: it does not tell its version"));
  }
  const auto get_proc_address =
      reinterpret_cast<GetProcAddress>(dlsym(handle, "cuGetProcAddress_v2"));
  if (version < kMinimumDriver || get_proc_address == nullptr) {
    return absl::UnavailableError(absl::StrCat("the CUDA driver is too old: it serves CUDA ",
                                               VersionText(version), ", Tilewright needs ",
                                               VersionText(kMinimumDriver), " or newer"));
  }
  DriverApi api;
  api.pid = getpid();
#define TILEWRIGHT_DRIVER_RESOLVE(name)                                           \
  {                                                                               \
    void* function = nullptr;                                                     \
    absl::Status resolved = Resolve(get_proc_address, library, #name, &function); \
    if (!resolved.ok()) return resolved;                                          \
    api.name = reinterpret_cast<decltype(api.name)>(function);                    \
  }
  TILEWRIGHT_DRIVER_FUNCTIONS(TILEWRIGHT_DRIVER_RESOLVE)
#undef TILEWRIGHT_DRIVER_RESOLVE
  const CUresult initialised = api.cuInit(0);
  if (initialised == CUDA_SUCCESS) return api;
  const absl::Status status = api.Check(initialised, "cuInit", __FILE__, __LINE__);
  if (initialised == CUDA_ERROR_NO_DEVICE) return absl::FailedPreconditionError(status.message());
  return absl::UnavailableError(absl::StrCat("the CUDA driver does not start: ", status.message()));
}

absl::StatusOr<const DriverApi*> LoadDriver() {
  // The driver is one per process by its nature; what is kept is a constant table of its addresses.
  static Mutex mutex;
  static std::optional<DriverApi> table;
  MutexLock lock(&mutex);
  if (table) {
    if (table->pid != getpid()) return ForkedError();
    return &*table;
  }
  absl::StatusOr<DriverApi> opened = OpenDriver("libcuda.so.1");
  if (!opened.ok()) return opened.status();
  table = *opened;
  return &*table;
}

}  // namespace tilewright::device
