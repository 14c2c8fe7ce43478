// Compiles kernel source with NVRTC. libnvrtc is opened by the first Compile, never before: a
// program whose kernels are all in the store does not map it.
#ifndef TILEWRIGHT_COMPILE_NVRTC_COMPILER_H_
#define TILEWRIGHT_COMPILE_NVRTC_COMPILER_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "artifact/kernel_binary.h"
#include "artifact/kernel_source.h"

namespace tilewright::compile {

// The compiler as far as it can be known without mapping it.
struct CompilerIdentity {
  std::string path;  // resolved libnvrtc; not part of `id`
  std::string id;    // build ids and sizes of libnvrtc and its builtins (equal files have equal ids
                     // wherever they lie), and variables of the environment that change the output
  // False once NVRTC was given, in this process and by this library or through its environment, an
  // option that changes later compiles (LeaksState): what it makes from then on must not be kept.
  bool reproducible = true;
};

struct CompileRequest {
  const artifact::KernelSource& source;
  absl::Span<const artifact::SourceFile> bundle;  // the templates
  std::string target;                             // "sm_90a"
  std::vector<std::string> options;               // from CompileOptions()
};

// The options, in order, that a kernel for `target` is compiled with. Part of the key, and asked
// for without NVRTC: so the list is that of the newest version, and Compile leaves out what the
// loaded one does not know (--no-cache and --frandom-seed are of 12.9). Which version that was, the
// key tells by the compiler's identity.
std::vector<std::string> CompileOptions(std::string_view target, bool lineinfo);

// Whether NVRTC is known to carry the effect of this option into later compiles of the process
// (13.0: --Ofast-compile=mid changes the cubin of every default compile after it). CompileOptions
// has none, and nothing that users set adds any.
bool LeaksState(std::string_view option);

// When a compile ends before it is done.
struct CompileControl {
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  const std::atomic<bool>* cancelled = nullptr;  // becomes true; looked at until Compile returns
};

// How often a waiting thread looks at CompileControl::cancelled.
inline constexpr std::chrono::milliseconds kCancelPoll{20};

// DeadlineExceeded or Cancelled where `control` says so, else OK. `what` is what did not finish.
absl::Status CheckControl(const CompileControl& control, std::string_view what);

// Thread-safe; compiles run in parallel. Copies are handles of one compiler.
class NvrtcCompiler {
 public:
  struct Options {
    std::string nvrtc_path;  // empty: search
  };
  explicit NvrtcCompiler(Options options);

  // Where libnvrtc would be loaded from, and which build it is; reads the files' ELF notes but maps
  // nothing. Once it is loaded: what is mapped, whatever became of the files. Unavailable lists
  // every place that was searched and what to install.
  absl::StatusOr<CompilerIdentity> Identity() const;

  // Whether this process has opened libnvrtc through this object.
  bool loaded() const;

  // "13.0.88"; opens libnvrtc.
  absl::StatusOr<std::string> Version() const;
  // The SMs that this NVRTC compiles for; opens libnvrtc.
  absl::StatusOr<std::vector<int>> SupportedArchs() const;

  //   Unavailable      no NVRTC, its builtins are missing, or it does not know the target
  //   InvalidArgument  an error in a user's snippet (the log's first error lies in a user/ file)
  //   Internal         any other compile error
  //   DeadlineExceeded, Cancelled  as `control` says; where NVRTC cannot be cancelled (before 12.8)
  //                    or does not heed it, the compile goes on by itself and its result is dropped
  // The binary's log is NVRTC's without its timings. Compile errors carry the whole log as payload
  // "tilewright/compile_log" and its first lines in the message.
  absl::StatusOr<artifact::KernelBinary> Compile(const CompileRequest& request,
                                                 const CompileControl& control = {}) const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace tilewright::compile

#endif  // TILEWRIGHT_COMPILE_NVRTC_COMPILER_H_
