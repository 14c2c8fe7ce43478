#include "cache/open_store.h"

#include <pwd.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "cache/layered_store.h"
#include "cache/memory_store.h"
#include "cache/pack.h"
#include "cache/store_directory.h"

namespace tilewright::cache {
namespace {

constexpr int64_t kMemoryBytesOverDisk = int64_t{64} << 20;
constexpr int64_t kMemoryBytesAlone = int64_t{512} << 20;
constexpr char kFolder[] = "tilewright";

bool IsAbsolute(const std::optional<std::string>& path) {
  return path.has_value() && !path->empty() && (*path)[0] == '/';
}

// The home directory of the password database, by number: a container's user often has no name.
std::optional<std::string> PasswdHome() {
  constexpr size_t kMaxBuffer = size_t{1} << 20;
  for (std::vector<char> buffer(4096); buffer.size() <= kMaxBuffer;
       buffer.resize(2 * buffer.size())) {
    passwd record = {};
    passwd* found = nullptr;
    const int error = getpwuid_r(geteuid(), &record, buffer.data(), buffer.size(), &found);
    if (error == ERANGE) continue;
    if (error != 0 || found == nullptr || found->pw_dir == nullptr) return std::nullopt;
    return std::string(found->pw_dir);
  }
  return std::nullopt;
}

// `path` as seen from the current directory now, so that a later chdir changes nothing.
std::string Absolute(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  std::string text = error ? path : absolute.lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

bool HasMoreRightsThanItsCaller() { return getauxval(AT_SECURE) != 0; }

constexpr char kEmbeddedPlace[] = "embedded pack";

// The layer of a pack, and in `state` its digest.
absl::StatusOr<StoreLayer> OpenPack(const std::string& path, absl::Span<const Digest> pins,
                                    const Logger& logger, PackState* state) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    if (!pins.empty()) {
      return absl::PermissionDeniedError(absl::StrCat(
          path,
          ": a directory has no digest that could be the pinned one; make a pack file of it "
          "with tilewright cache export"));
    }
    const std::string directory = WithoutLinks(path);
    auto store = DiskStore::Open({.directory = directory, .pack = true}, logger);
    if (!store.ok()) return store.status();
    return StoreLayer{directory, *std::move(store)};
  }
  auto store = PackStore::Open(path, pins, logger);
  if (!store.ok()) return store.status();
  state->sha256 = (*store)->digest().ToHex();
  return StoreLayer{path, *std::move(store)};
}

// Packs that can be used, in the order in which they are searched.
std::vector<StoreLayer> OpenPacks(const StoreOptions& options, const Logger& logger,
                                  std::vector<PackState>* states) {
  std::vector<StoreLayer> layers;
  std::vector<Digest> pins;
  for (const std::string& text : options.pack_sha256) {
    // What is no digest is none that a pack has: it must refuse rather than be passed over.
    pins.push_back(Digest::FromHex(text).value_or(Digest{}));
  }
  const auto add = [&](PackState state, absl::StatusOr<StoreLayer> layer) {
    if (layer.ok()) {
      layers.push_back(*std::move(layer));
    } else {
      state.refused = std::string(layer.status().message());
      logger.EventOnce(LogLevel::kWarning, absl::StrCat("store_pack_refused ", state.place),
                       "store_pack_refused", {{"path", state.place}, {"reason", state.refused}});
    }
    states->push_back(std::move(state));
  };
  if (!options.embedded_pack.empty()) {
    PackState state = {.place = kEmbeddedPlace};
    const std::string_view bytes(reinterpret_cast<const char*>(options.embedded_pack.data()),
                                 options.embedded_pack.size());
    auto store = PackStore::OpenBytes(bytes, kEmbeddedPlace, pins, logger);
    if (store.ok()) {
      state.sha256 = (*store)->digest().ToHex();
      add(std::move(state), StoreLayer{kEmbeddedPlace, *std::move(store)});
    } else {
      add(std::move(state), store.status());
    }
  }
  // Paths from the environment choose nothing in a program with more rights than its caller.
  if (options.in_memory || HasMoreRightsThanItsCaller()) return layers;
  for (const std::string& pack : options.packs) {
    PackState state = {.place = Absolute(pack)};
    absl::StatusOr<StoreLayer> layer = OpenPack(state.place, pins, logger, &state);
    add(std::move(state), std::move(layer));
  }
  return layers;
}

}  // namespace

StoreLocation LocateStore(const StoreOptions& options) {
  if (options.in_memory) return {"", "memory only was asked for"};
  if (HasMoreRightsThanItsCaller()) {
    return {"", "memory only: the program runs set-user-id or set-group-id"};
  }
  if (!options.directory.empty()) return {Absolute(options.directory), "TILEWRIGHT_CACHE_DIR"};
  // The base directory specification says to ignore relative ones; below the current directory a
  // store would come and go and be somebody else's.
  if (const auto xdg = GetEnv("XDG_CACHE_HOME"); IsAbsolute(xdg)) {
    return {Absolute(absl::StrCat(*xdg, "/", kFolder)), "XDG_CACHE_HOME"};
  }
  if (const auto home = GetEnv("HOME"); IsAbsolute(home)) {
    return {Absolute(absl::StrCat(*home, "/.cache/", kFolder)), "HOME"};
  }
  if (const auto home = PasswdHome(); IsAbsolute(home)) {
    return {Absolute(absl::StrCat(*home, "/.cache/", kFolder)), "passwd"};
  }
  return {"",
          "memory only: neither XDG_CACHE_HOME, HOME nor the password database names an "
          "absolute directory"};
}

OpenedStore OpenStore(const StoreOptions& options, const Logger& logger) {
  OpenedStore opened;
  opened.location = LocateStore(options);
  std::vector<StoreLayer> packs = OpenPacks(options, logger, &opened.packs);
  std::unique_ptr<DiskStore> user;
  if (!opened.location.directory.empty()) {
    auto store = DiskStore::Open({.directory = opened.location.directory,
                                  .read_only = options.read_only,
                                  .group_shared = options.group_shared,
                                  .max_bytes = options.max_bytes},
                                 logger);
    if (store.ok()) {
      user = *std::move(store);
    } else {
      opened.location = {"", absl::StrCat("memory only: ", store.status().message())};
    }
  }
  if (user == nullptr && !options.in_memory) {
    logger.EventOnce(LogLevel::kWarning, "store_memory_only", "store_memory_only",
                     {{"reason", opened.location.why}});
  }
  opened.disk = user.get();
  auto memory =
      std::make_unique<MemoryStore>(user != nullptr ? kMemoryBytesOverDisk : kMemoryBytesAlone);
  opened.store = std::make_unique<LayeredStore>(
      std::move(memory), std::move(packs), StoreLayer{opened.location.directory, std::move(user)});
  return opened;
}

}  // namespace tilewright::cache
