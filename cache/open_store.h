// Builds the store that a set of options asks for: memory, packs, the user's directory.
#ifndef TILEWRIGHT_CACHE_OPEN_STORE_H_
#define TILEWRIGHT_CACHE_OPEN_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/log.h"
#include "cache/artifact_store.h"
#include "cache/disk_store.h"

namespace tilewright::cache {

struct StoreOptions {
  std::string directory = {};  // the user's store; empty: the default place (R21)
  // Read-only, searched first: pack files, and directories with the layout of a store.
  std::vector<std::string> packs = {};
  absl::Span<const uint8_t> embedded_pack = {};  // outlives the store; searched before the others
  // Digests in hex. Where there are any, a pack without one of them is refused.
  std::vector<std::string> pack_sha256 = {};
  bool read_only = false;
  bool in_memory = false;
  int64_t max_bytes = 0;      // of the user's store on disk; 0: no limit
  bool group_shared = false;  // RuntimeOptions::cache_group_shared
};

// Where the user's store lies and how that was decided; `directory` is empty for memory only.
struct StoreLocation {
  std::string directory;
  std::string why;  // "TILEWRIGHT_CACHE_DIR", "XDG_CACHE_HOME", "HOME", "passwd", or the reason for
                    // memory only
};

// What became of one pack.
struct PackState {
  std::string place = {};    // its path, or "embedded pack"
  std::string sha256 = {};   // of the manifest of a pack file; empty for a directory
  std::string refused = {};  // why it is not used; empty: it is
};

struct OpenedStore {
  std::unique_ptr<ArtifactStore> store;
  StoreLocation location;
  // The user's store inside `store`, for `cache gc` and `cache clear`; nullptr for memory only.
  DiskStore* disk = nullptr;
  std::vector<PackState> packs;
};

// Where the user's store would lie, by the options and the environment alone: nothing is opened.
StoreLocation LocateStore(const StoreOptions& options);

// Never fails: what cannot be used is logged once and left out; at worst the store is in memory.
OpenedStore OpenStore(const StoreOptions& options, const Logger& logger);

}  // namespace tilewright::cache

#endif  // TILEWRIGHT_CACHE_OPEN_STORE_H_
