// A compile in a process of its own: a compiler that crashes, hangs or leaks, be it memory or state
// that changes later compiles, takes nothing of the caller's process with it.
//
// One helper serves one compile. It is started by posix_spawn, never by fork, and talks over one
// socket, its standard input: the request down, the answer up, each a block of length-prefixed
// strings.
#ifndef TILEWRIGHT_COMPILE_COMPILER_HELPER_H_
#define TILEWRIGHT_COMPILE_COMPILER_HELPER_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "artifact/kernel_binary.h"
#include "compile/nvrtc_compiler.h"

namespace tilewright::compile {

// The first argument that makes the program `tilewright` serve one compile and end.
inline constexpr char kHelperVerb[] = "__compile";

// The program to start: `given` where that is not empty, else `tilewright` beside this library or
// program, or in ../bin of their folder. Unavailable names what was looked for.
absl::StatusOr<std::string> FindCompilerHelper(const std::string& given);

// Compiles in a fresh process of `helper` with the compiler of `identity`. Errors are those of
// NvrtcCompiler::Compile, and Internal when the helper ends without an answer (*crashed is set);
// its exit status or the signal that ended it is in the message. The helper is gone when this
// returns.
absl::StatusOr<artifact::KernelBinary> CompileInHelper(const std::string& helper,
                                                       const CompilerIdentity& identity,
                                                       const CompileRequest& request,
                                                       const CompileControl& control,
                                                       bool* crashed);

// The helper's side: serves one request of `socket` and returns the exit status of the process.
int ServeCompile(int socket);

// What is sent. Exposed for tests: bytes of another process are not to be trusted.
struct HelperRequest {
  std::string nvrtc_path;
  std::string compiler_id;
  std::string target;
  std::vector<std::string> options;
  artifact::KernelSource source;
  std::vector<artifact::SourceFile> bundle;
};
std::string EncodeRequest(const HelperRequest& request);
absl::StatusOr<HelperRequest> DecodeRequest(std::string_view bytes);
std::string EncodeAnswer(const absl::StatusOr<artifact::KernelBinary>& answer);
// What EncodeAnswer was given; Internal for bytes that it cannot have made.
absl::StatusOr<artifact::KernelBinary> DecodeAnswer(std::string_view bytes);

}  // namespace tilewright::compile

#endif  // TILEWRIGHT_COMPILE_COMPILER_HELPER_H_
