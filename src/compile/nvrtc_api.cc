#include "compile/nvrtc_api.h"

#include <dlfcn.h>
#include <link.h>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tilewright::compile {
namespace {

absl::Status LoaderError(absl::string_view what) {
  const char* reason = dlerror();
  return absl::UnavailableError(absl::StrCat("cannot load ", what, ": ",
                                             reason != nullptr ? reason : "no reason given", "; ",
                                             std::string(kInstallNvrtcHint)));
}

// NVRTC opens its builtins by bare name. A library of that name which is mapped already answers,
// whatever LD_LIBRARY_PATH says; so map the right one first, and see that it is the one that
// answers: a program may have brought an NVRTC of the same version itself.
absl::Status MapBuiltins(const BuiltinsFile& file, FingerprintCache& fingerprints) {
  void* const ours = dlopen(file.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (ours == nullptr) return LoaderError(file.path);
  void* const answering = dlopen(file.name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (answering == nullptr || answering == ours) return absl::OkStatus();
  link_map* map = nullptr;
  if (dlinfo(answering, RTLD_DI_LINKMAP, &map) != 0) return LoaderError(file.name);
  const absl::StatusOr<std::string> other = fingerprints.Get(map->l_name);
  if (other.ok() && *other == file.fingerprint) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "this process has mapped another ", file.name, " (", map->l_name, ") than the one of ",
      file.path, "; name the libnvrtc beside the former by TILEWRIGHT_NVRTC_PATH"));
}

}  // namespace

absl::Status NvrtcApi::Check(nvrtcResult result, const char* call) const {
  if (result == NVRTC_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, " failed: ", nvrtcGetErrorString(result)));
}

absl::StatusOr<NvrtcApi> OpenNvrtc(const NvrtcFiles& files, FingerprintCache& fingerprints) {
  void* const library = dlopen(files.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return LoaderError(files.library);
  NvrtcApi api;
#define TILEWRIGHT_NVRTC_RESOLVE(name)                                                        \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(library, #name));                     \
  if (api.name == nullptr) {                                                                  \
    return absl::UnavailableError(absl::StrCat(files.library, " has no function " #name "; ", \
                                               std::string(kInstallNvrtcHint)));              \
  }
  TILEWRIGHT_NVRTC_FUNCTIONS(TILEWRIGHT_NVRTC_RESOLVE)
#undef TILEWRIGHT_NVRTC_RESOLVE
  api.nvrtcSetFlowCallback =
      reinterpret_cast<decltype(api.nvrtcSetFlowCallback)>(dlsym(library, "nvrtcSetFlowCallback"));
  int major = 0;
  int minor = 0;
  TILEWRIGHT_RETURN_IF_ERROR(api.Check(api.nvrtcVersion(&major, &minor), "nvrtcVersion"));
  if (major * 1000 + minor * 10 < kMinimumNvrtc) {
    return absl::UnavailableError(absl::StrCat(files.library, " is NVRTC ", major, ".", minor,
                                               ", older than the 12.4 that is needed; ",
                                               std::string(kInstallNvrtcHint)));
  }
  const std::string wanted = absl::StrCat("libnvrtc-builtins.so.", major, ".", minor);
  for (const BuiltinsFile& file : files.builtins) {
    if (file.name != wanted) continue;
    TILEWRIGHT_RETURN_IF_ERROR(MapBuiltins(file, fingerprints));
    return api;
  }
  return absl::UnavailableError(absl::StrCat(files.library, " needs ", wanted,
                                             ", which is neither beside it nor in the loader's "
                                             "path; ",
                                             std::string(kInstallNvrtcHint)));
}

}  // namespace tilewright::compile
