// What the verbs of `tilewright cache` share. Each of the files cmd_cache*.cc adds some of them.
#ifndef TILEWRIGHT_CLI_CACHE_VERBS_H_
#define TILEWRIGHT_CLI_CACHE_VERBS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "cache/artifact_store.h"
#include "cache/open_store.h"
#include "cli/command.h"
#include "cli/toolchain.h"

namespace tilewright::cli {

// "/home/me/.cache/tilewright (HOME)"
std::string WhereText(const cache::StoreLocation& location);

// UTC, ISO 8601.
std::string TimeText(int64_t seconds);

// The facts that the builder keeps with a kernel; an empty object for an entry without them.
Json FactsOf(const cache::Entry& entry);
// One of them as text; "" when there is none of this name.
std::string FactText(const Json& facts, const char* name);

// The entry whose key begins with `prefix`. InvalidArgument when there are several, NotFound when
// there is none.
absl::StatusOr<cache::EntryInfo> FindEntry(cache::ArtifactStore& store, const std::string& prefix);

// The user's store on disk, or FailedPrecondition that says why there is none.
absl::StatusOr<cache::DiskStore*> UserStore(Toolchain& tools);

using CacheVerb = std::function<int(Toolchain&, const Console&)>;
CLI::App* AddCacheVerb(CLI::App& cache, Chosen& chosen, const char* name, const char* help,
                       const CacheVerb& verb);

void AddCacheLookVerbs(CLI::App& cache, Chosen& chosen);   // stats, ls, show, extract
void AddCacheCheckVerbs(CLI::App& cache, Chosen& chosen);  // explain, verify
void AddCacheCleanVerbs(CLI::App& cache, Chosen& chosen);  // gc, clear
void AddCachePackVerbs(CLI::App& cache, Chosen& chosen);   // export, import

}  // namespace tilewright::cli

#endif  // TILEWRIGHT_CLI_CACHE_VERBS_H_
