#include "compile/nvrtc_search.h"

#include <sys/auxv.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/env.h"
#include "base/status_macros.h"
#include "compile/ld_cache.h"

namespace tilewright::compile {

namespace fs = std::filesystem;

const std::string_view kInstallNvrtcHint =
    "install NVRTC of CUDA 12.4 or newer (pip install nvidia-cuda-nvrtc, or the package "
    "cuda-nvrtc-13-0) and name its libnvrtc.so by TILEWRIGHT_NVRTC_PATH unless it lies in a place "
    "that is searched";

namespace {

constexpr std::string_view kLibraryName = "libnvrtc.so";
constexpr std::string_view kBuiltinsPrefix = "libnvrtc-builtins.so.";

using Version = std::vector<int>;

// {13, 0} of "13.0"; nullopt for anything but numbers and dots.
std::optional<Version> ParseVersion(std::string_view text) {
  Version version;
  while (true) {
    int number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || number < 0) return std::nullopt;
    version.push_back(number);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    if (text.empty()) return version;
    if (text.front() != '.') return std::nullopt;
    text.remove_prefix(1);
  }
}

// The version in a libnvrtc's file name: {} for "libnvrtc.so", nullopt for other names.
std::optional<Version> LibraryVersion(std::string_view name) {
  if (name.substr(0, kLibraryName.size()) != kLibraryName) return std::nullopt;
  name.remove_prefix(kLibraryName.size());
  if (name.empty()) return Version();
  if (name.front() != '.') return std::nullopt;
  return ParseVersion(name.substr(1));
}

// {13, 0} of "libnvrtc-builtins.so.13.0". Names with fewer or more numbers are links and link
// targets that NVRTC does not ask for.
std::optional<Version> BuiltinsVersion(std::string_view name) {
  if (name.substr(0, kBuiltinsPrefix.size()) != kBuiltinsPrefix) return std::nullopt;
  std::optional<Version> version = ParseVersion(name.substr(kBuiltinsPrefix.size()));
  if (!version || version->size() != 2) return std::nullopt;
  return version;
}

std::vector<std::string> FileNames(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  return names;
}

// Newest version first; the name without a version, of which nothing is known, last.
std::vector<std::string> LibrariesIn(const std::string& folder) {
  std::vector<std::pair<Version, std::string>> found;
  for (const std::string& name : FileNames(folder)) {
    if (std::optional<Version> version = LibraryVersion(name)) {
      found.emplace_back(std::move(*version), name);
    }
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<std::string> paths;
  for (const auto& [version, name] : found) paths.push_back(absl::StrCat(folder, "/", name));
  return paths;
}

std::string ReadWholeFile(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// What the names around a libnvrtc say about its version: {}, {major} or {major, minor, ...}.
Version VersionFromNames(const fs::path& library, const fs::path& real) {
  Version known = LibraryVersion(library.filename().string()).value_or(Version());
  Version behind_link = LibraryVersion(real.filename().string()).value_or(Version());
  return behind_link.size() > known.size() ? behind_link : known;
}

bool Matches(const Version& known, const Version& builtins) {
  const size_t numbers = std::min(known.size(), builtins.size());
  return std::equal(known.begin(), known.begin() + numbers, builtins.begin());
}

// (name, path) of the builtins that may serve, from the first place that has any.
std::vector<std::pair<std::string, std::string>> FindBuiltins(const SearchPlaces& places,
                                                              const fs::path& library,
                                                              const fs::path& real,
                                                              const Version& known) {
  std::vector<std::string> folders = {library.parent_path().string()};
  if (real.parent_path() != library.parent_path()) folders.push_back(real.parent_path().string());
  folders.insert(folders.end(), places.loader_folders.begin(), places.loader_folders.end());
  const auto serves = [&](std::string_view name) {
    const std::optional<Version> version = BuiltinsVersion(name);
    return version && Matches(known, *version);
  };
  std::vector<std::pair<std::string, std::string>> found;
  for (const std::string& folder : folders) {
    for (const std::string& name : FileNames(folder)) {
      if (serves(name)) found.emplace_back(name, absl::StrCat(folder, "/", name));
    }
    if (!found.empty()) break;
  }
  if (found.empty()) {
    for (auto& entry : LibrariesInLdCache(ReadWholeFile(places.loader_cache), kBuiltinsPrefix)) {
      if (serves(entry.first)) found.push_back(std::move(entry));
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

// `library` with its builtins, or why it cannot be used.
absl::StatusOr<NvrtcFiles> Examine(const SearchPlaces& places, const std::string& library,
                                   FingerprintCache& fingerprints) {
  NvrtcFiles files;
  files.library = library;
  TILEWRIGHT_ASSIGN_OR_RETURN(files.library_fingerprint, fingerprints.Get(library));
  std::error_code error;
  fs::path real = fs::canonical(library, error);
  if (error) real = library;
  const Version known = VersionFromNames(library, real);
  const auto builtins = FindBuiltins(places, library, real, known);
  if (builtins.empty()) {
    return absl::NotFoundError(absl::StrCat(
        library, " has no ", std::string(kBuiltinsPrefix),
        known.empty() ? "MAJOR" : absl::StrCat(known[0]), ".",
        known.size() < 2 ? "MINOR" : absl::StrCat(known[1]),
        " beside it or in the loader's path; NVRTC cannot compile without this library"));
  }
  int newest = 0;
  for (const auto& [name, path] : builtins) {
    const Version version = *BuiltinsVersion(name);
    newest = std::max(newest, version[0] * 1000 + version[1] * 10);
    TILEWRIGHT_ASSIGN_OR_RETURN(std::string fingerprint, fingerprints.Get(path));
    files.builtins.push_back({name, path, std::move(fingerprint)});
  }
  if (newest < kMinimumNvrtc) {
    return absl::FailedPreconditionError(absl::StrCat(library, " is NVRTC ", newest / 1000, ".",
                                                      newest % 1000 / 10,
                                                      ", older than the 12.4 that is needed"));
  }
  return files;
}

void AppendToolkit(std::string_view variable, std::vector<std::string>& folders) {
  const std::optional<std::string> root = GetEnv(variable);
  if (!root || root->empty()) return;
  folders.push_back(absl::StrCat(*root, "/lib64"));
  folders.push_back(absl::StrCat(*root, "/lib"));
}

// The lib64 of every /usr/local/cuda*, the newest version first.
std::vector<std::string> InstalledToolkits() {
  const std::string prefix = "cuda-";
  std::vector<std::pair<Version, std::string>> found;
  for (const std::string& name : FileNames("/usr/local")) {
    if (name.compare(0, prefix.size(), prefix) != 0) continue;
    if (std::optional<Version> version =
            ParseVersion(std::string_view(name).substr(prefix.size()))) {
      found.emplace_back(std::move(*version), name);
    }
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<std::string> folders = {"/usr/local/cuda/lib64"};
  for (const auto& [version, name] : found) {
    folders.push_back(absl::StrCat("/usr/local/", name, "/lib64"));
  }
  return folders;
}

}  // namespace

SearchPlaces SearchPlaces::FromProcess(std::string explicit_path) {
  SearchPlaces places;
  places.explicit_path = std::move(explicit_path);
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) places.folders.push_back(program.parent_path().string());
  // As the loader does: whoever starts a privileged program must not choose the code it runs.
  if (getauxval(AT_SECURE) == 0) {
    AppendToolkit("CUDA_HOME", places.folders);
    AppendToolkit("CUDA_PATH", places.folders);
    for (const absl::string_view folder : absl::StrSplit(
             GetEnv("LD_LIBRARY_PATH").value_or(""), absl::ByAnyChar(":;"), absl::SkipEmpty())) {
      places.loader_folders.emplace_back(folder);
    }
  }
  places.folders.insert(places.folders.end(), places.loader_folders.begin(),
                        places.loader_folders.end());
  places.loader_cache = "/etc/ld.so.cache";
  places.system_folders = InstalledToolkits();
#if defined(__aarch64__)
  places.system_folders.push_back("/usr/lib/aarch64-linux-gnu");
#else
  places.system_folders.push_back("/usr/lib/x86_64-linux-gnu");
#endif
  return places;
}

std::string NvrtcFiles::Id() const {
  std::string id = absl::StrCat("libnvrtc ", library_fingerprint);
  for (const BuiltinsFile& file : builtins) {
    absl::StrAppend(&id, "; ", file.name, " ", file.fingerprint);
  }
  return id;
}

absl::StatusOr<NvrtcFiles> FindNvrtc(const SearchPlaces& places, FingerprintCache& fingerprints) {
  std::error_code error;
  if (!places.explicit_path.empty() && !fs::is_directory(places.explicit_path, error)) {
    // Absolute, since the loader takes a name without a slash for one to search.
    const std::string path = fs::absolute(places.explicit_path, error).string();
    absl::StatusOr<NvrtcFiles> files = Examine(places, path, fingerprints);
    if (files.ok()) return files;
    return absl::UnavailableError(
        absl::StrCat("nvrtc_path cannot be used: ", files.status().message(), "; ",
                     std::string(kInstallNvrtcHint)));
  }
  std::vector<std::string> passed_over;
  std::set<std::string> seen;
  const auto first_sound = [&](const std::vector<std::string>& libraries) {
    std::optional<NvrtcFiles> sound;
    for (const std::string& library : libraries) {
      if (!seen.insert(library).second) continue;
      absl::StatusOr<NvrtcFiles> files = Examine(places, library, fingerprints);
      if (files.ok()) {
        sound = *std::move(files);
        break;
      }
      passed_over.emplace_back(files.status().message());
    }
    return sound;
  };
  std::vector<std::string> searched;
  const auto search_folders = [&](const std::vector<std::string>& folders) {
    std::optional<NvrtcFiles> sound;
    for (const std::string& folder : folders) {
      searched.push_back(folder);
      sound = first_sound(LibrariesIn(fs::absolute(folder, error).string()));
      if (sound) break;
    }
    return sound;
  };
  std::optional<NvrtcFiles> sound;
  if (!places.explicit_path.empty()) {
    sound = search_folders({places.explicit_path});
  } else {
    sound = search_folders(places.folders);
    if (!sound) {
      searched.push_back(places.loader_cache);
      std::vector<std::pair<Version, std::string>> cached;
      for (const auto& [name, path] :
           LibrariesInLdCache(ReadWholeFile(places.loader_cache), kLibraryName)) {
        if (std::optional<Version> version = LibraryVersion(name)) {
          cached.emplace_back(*version, path);
        }
      }
      std::sort(cached.rbegin(), cached.rend());
      std::vector<std::string> libraries;
      for (const auto& [version, path] : cached) libraries.push_back(path);
      sound = first_sound(libraries);
    }
    if (!sound) sound = search_folders(places.system_folders);
  }
  if (sound) return *std::move(sound);
  std::string message =
      absl::StrCat("no usable libnvrtc.so found; searched ", absl::StrJoin(searched, ", "));
  if (!passed_over.empty()) {
    absl::StrAppend(&message, "; passed over: ", absl::StrJoin(passed_over, "; "));
  }
  return absl::UnavailableError(absl::StrCat(message, "; ", std::string(kInstallNvrtcHint)));
}

}  // namespace tilewright::compile
