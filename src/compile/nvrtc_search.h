// Where libnvrtc lies, found without mapping it.
#ifndef TILEWRIGHT_COMPILE_NVRTC_SEARCH_H_
#define TILEWRIGHT_COMPILE_NVRTC_SEARCH_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "compile/library_file.h"

namespace tilewright::compile {

// The oldest NVRTC that compiles the kernel templates, as CUDA_VERSION.
inline constexpr int kMinimumNvrtc = 12040;

// What to install, for messages about a missing or unfit NVRTC.
extern const std::string_view kInstallNvrtcHint;

// Everything that the search looks at, in its order. FromProcess fills it for this process; tests
// fill it by hand.
struct SearchPlaces {
  // A libnvrtc, or a folder that holds one. When set, nothing else is looked at.
  std::string explicit_path;
  // Folders before the loader's cache: the program's own, CUDA_HOME, CUDA_PATH, LD_LIBRARY_PATH.
  std::vector<std::string> folders;
  // Folders that the loader searches for NVRTC's own dlopen of its builtins: LD_LIBRARY_PATH.
  std::vector<std::string> loader_folders;
  std::string loader_cache;  // "/etc/ld.so.cache"
  // Folders after it.
  std::vector<std::string> system_folders;

  // Reads the environment, but none of it in a program that runs with raised privileges.
  static SearchPlaces FromProcess(std::string explicit_path);
};

struct BuiltinsFile {
  std::string name;  // "libnvrtc-builtins.so.13.0"; NVRTC 13.0 opens exactly this one
  std::string path;
  std::string fingerprint;
};

struct NvrtcFiles {
  std::string library;
  std::string library_fingerprint;
  // Those that this libnvrtc may open; several when the major version alone is known from names.
  std::vector<BuiltinsFile> builtins;

  // One line that is equal for equal files wherever they lie.
  std::string Id() const;
};

// The first place's newest libnvrtc that is sound: a whole ELF file of this machine, its builtins
// there and sound too, and not known by name to be older than kMinimumNvrtc. Unavailable lists what
// was looked at, with the reason why each was passed over, and what to install.
absl::StatusOr<NvrtcFiles> FindNvrtc(const SearchPlaces& places, FingerprintCache& fingerprints);

}  // namespace tilewright::compile

#endif  // TILEWRIGHT_COMPILE_NVRTC_SEARCH_H_
