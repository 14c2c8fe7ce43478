// NVRTC as a table of functions, opened at run time. Only src/compile includes <nvrtc.h>.
#ifndef TILEWRIGHT_COMPILE_NVRTC_API_H_
#define TILEWRIGHT_COMPILE_NVRTC_API_H_

#include <nvrtc.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compile/library_file.h"
#include "compile/nvrtc_search.h"

namespace tilewright::compile {

// Every NVRTC function that Tilewright calls; all are in CUDA 11.2 and newer.
#define TILEWRIGHT_NVRTC_FUNCTIONS(F) \
  F(nvrtcVersion)                     \
  F(nvrtcGetErrorString)              \
  F(nvrtcGetNumSupportedArchs)        \
  F(nvrtcGetSupportedArchs)           \
  F(nvrtcCreateProgram)               \
  F(nvrtcDestroyProgram)              \
  F(nvrtcCompileProgram)              \
  F(nvrtcGetProgramLogSize)           \
  F(nvrtcGetProgramLog)               \
  F(nvrtcGetPTXSize)                  \
  F(nvrtcGetPTX)                      \
  F(nvrtcGetCUBINSize)                \
  F(nvrtcGetCUBIN)

struct NvrtcApi {
#define TILEWRIGHT_NVRTC_MEMBER(name) decltype(&::name) name = nullptr;
  TILEWRIGHT_NVRTC_FUNCTIONS(TILEWRIGHT_NVRTC_MEMBER)
#undef TILEWRIGHT_NVRTC_MEMBER

  // Sets what NVRTC asks now and then while it compiles a program: a callback that returns other
  // than 0 cancels, and must go on doing so. Spelled out for headers that lack it; nullptr before
  // 12.8.
  nvrtcResult (*nvrtcSetFlowCallback)(nvrtcProgram program, int (*callback)(void*, void*),
                                      void* payload) = nullptr;

  // OK, or Internal with NVRTC's text for the result and the call.
  absl::Status Check(nvrtcResult result, const char* call) const;
};

// Maps exactly files.library, and before it those builtins that it will ask for, so that what runs
// is what was fingerprinted. Nothing mapped here is ever unmapped: NVRTC leaves threads and exit
// handlers behind. Unavailable when the loader refuses, when NVRTC is older than kMinimumNvrtc, or
// when the process has already mapped other builtins under the same name.
absl::StatusOr<NvrtcApi> OpenNvrtc(const NvrtcFiles& files, FingerprintCache& fingerprints);

}  // namespace tilewright::compile

#endif  // TILEWRIGHT_COMPILE_NVRTC_API_H_
