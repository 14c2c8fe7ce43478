// tilewright cache: windows into the store for people and for cuobjdump and ncu.
#include <algorithm>
#include <ctime>
#include <fstream>
#include <memory>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/labelled_hash.h"
#include "base/status_macros.h"
#include "cli/cache_verbs.h"
#include "cli/command.h"
#include "cli/toolchain.h"

namespace tilewright::cli {

std::string WhereText(const cache::StoreLocation& location) {
  if (location.directory.empty()) return absl::StrCat("memory (", location.why, ")");
  return absl::StrCat(location.directory, " (", location.why, ")");
}

std::string TimeText(int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm utc{};
  gmtime_r(&time, &utc);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

// The facts that the builder keeps with a kernel; an empty object for an entry without them.
Json FactsOf(const cache::Entry& entry) {
  const std::string* text = entry.Find("facts");
  if (text == nullptr) return Json::object();
  Json facts = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  return facts.is_object() ? facts : Json::object();
}

std::string FactText(const Json& facts, const char* name) {
  const auto fact = facts.find(name);
  if (fact == facts.end()) return "";
  return fact->is_string() ? fact->get<std::string>() : fact->dump();
}

// The entry whose key begins with `prefix`. InvalidArgument when there are several.
absl::StatusOr<cache::EntryInfo> FindEntry(cache::ArtifactStore& store, const std::string& prefix) {
  const std::string wanted = absl::AsciiStrToLower(prefix);
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::vector<cache::EntryInfo> entries, store.List());
  std::vector<cache::EntryInfo> found;
  for (const cache::EntryInfo& info : entries) {
    if (absl::StartsWith(info.digest.ToHex(), wanted)) found.push_back(info);
  }
  if (found.empty()) {
    return absl::NotFoundError(absl::StrCat("no entry has a key that begins with \"", prefix,
                                            "\"; tilewright cache ls lists them"));
  }
  const bool one_key = std::all_of(found.begin(), found.end(), [&](const cache::EntryInfo& info) {
    return info.digest == found[0].digest;
  });
  if (!one_key) {
    return absl::InvalidArgumentError(absl::StrCat(found.size(),
                                                   " entries have keys that begin with \"", prefix,
                                                   "\"; give more of its digits"));
  }
  return found.front();
}

absl::StatusOr<cache::DiskStore*> UserStore(Toolchain& tools) {
  if (tools.disk() != nullptr) return tools.disk();
  return absl::FailedPreconditionError(
      absl::StrCat("there is no store on disk (", tools.location().why, ")"));
}

CLI::App* AddCacheVerb(CLI::App& cache, Chosen& chosen, const char* name, const char* help,
                       const CacheVerb& verb) {
  CLI::App* command = cache.add_subcommand(name, help);
  command->callback([=, &chosen] {
    chosen = [=](const Console& console) {
      absl::StatusOr<std::unique_ptr<Toolchain>> tools = Toolchain::Open();
      if (!tools.ok()) return console.Fail(absl::StrCat("cache ", name), tools.status());
      return verb(**tools, console);
    };
  });
  return command;
}

namespace {

struct LookOptions {
  std::string key;
  std::string out;
  std::string section = "cubin";
};

int Stats(Toolchain& tools, const LookOptions&, const Console& console) {
  const cache::StoreStats stats = tools.store().Stats();
  const cache::Totals totals = tools.store().ReadTotals();
  const cache::StoreLocation& location = tools.location();
  if (console.json) {
    console.Print({{"command", "cache stats"},
                   {"ok", true},
                   {"directory", location.directory},
                   {"why", location.why},
                   {"entries", stats.entries},
                   {"bytes", stats.bytes},
                   {"max_bytes", tools.options().cache_max_bytes},
                   {"corrupt", stats.corrupt},
                   {"foreign", stats.foreign},
                   {"totals", totals}});
  } else {
    console.out << "store     " << WhereText(location) << "\n"
                << absl::StreamFormat("entries   %d\nbytes     %d of %d\n", stats.entries,
                                      stats.bytes, tools.options().cache_max_bytes);
    if (!totals.empty()) console.out << "of all programs that used it so far:\n";
    for (const auto& [name, value] : totals) {
      console.out << absl::StreamFormat("  %-20s%.0f\n", name, value);
    }
  }
  return kExitFine;
}

int Ls(Toolchain& tools, const LookOptions&, const Console& console) {
  const absl::StatusOr<std::vector<cache::EntryInfo>> entries = tools.store().List();
  if (!entries.ok()) return console.Fail("cache ls", entries.status());
  Json list = Json::array();
  int unreadable = 0;
  for (const cache::EntryInfo& info : *entries) {
    const absl::StatusOr<cache::Entry> entry = tools.store().Read(info);
    Json item = {{"key", info.digest.ToHex()},
                 {"variant", info.variant_hex},
                 {"bytes", info.bytes},
                 {"time", TimeText(info.mtime_s)}};
    std::string what;
    if (entry.ok()) {
      const Json facts = FactsOf(*entry);
      item["target"] = FactText(facts, "target");
      item["spec"] = FactText(facts, "spec");
      item["plan"] = FactText(facts, "plan");
      item["entry"] = FactText(facts, "entry");
      what = absl::StrCat(FactText(facts, "target"), "  ", FactText(facts, "spec"));
    } else {
      ++unreadable;
      item["error"] = std::string(entry.status().message());
      what = absl::StrCat("unreadable: ", entry.status().message());
    }
    if (!console.json) {
      console.out << absl::StreamFormat("%.16s  %8d  %s  %s\n", info.digest.ToHex(), info.bytes,
                                        TimeText(info.mtime_s), what);
    }
    list.push_back(std::move(item));
  }
  if (console.json) {
    console.Print({{"command", "cache ls"},
                   {"ok", unreadable == 0},
                   {"directory", tools.location().directory},
                   {"entries", list}});
  } else {
    console.out << entries->size() << " entries in " << WhereText(tools.location()) << "\n";
  }
  return unreadable == 0 ? kExitFine : kExitProblem;
}

int Show(Toolchain& tools, const LookOptions& options, const Console& console) {
  constexpr char kCommand[] = "cache show";
  const absl::StatusOr<cache::EntryInfo> info = FindEntry(tools.store(), options.key);
  if (!info.ok()) return console.Fail(kCommand, info.status());
  const absl::StatusOr<cache::Entry> entry = tools.store().Read(*info);
  if (!entry.ok()) return console.Fail(kCommand, entry.status());
  const absl::StatusOr<ManifestFields> fields = ParseManifest(entry->manifest);
  if (!fields.ok()) return console.Fail(kCommand, fields.status());

  Json sections = Json::object();
  for (const cache::Section& section : entry->sections) {
    sections[section.name] = section.bytes.size();
  }
  // Whole texts are for `extract`; here a field shows that it is there.
  constexpr size_t kShown = 200;
  Json manifest = Json::array();
  for (const auto& [label, bytes] : *fields) {
    const bool shown = bytes.size() <= kShown && bytes.find('\n') == std::string::npos;
    manifest.push_back({{"label", label},
                        {"bytes", bytes.size()},
                        {"value", shown ? bytes : absl::StrCat("sha256 ", Sha256(bytes).ToHex())}});
  }
  const Json facts = FactsOf(*entry);
  if (console.json) {
    console.Print({{"command", kCommand},
                   {"ok", true},
                   {"key", info->digest.ToHex()},
                   {"variant", info->variant_hex},
                   {"bytes", info->bytes},
                   {"time", TimeText(info->mtime_s)},
                   {"path", info->path},
                   {"facts", facts},
                   {"manifest", manifest},
                   {"sections", sections}});
    return kExitFine;
  }
  console.out << "key       " << info->digest.ToHex() << "\npath      " << info->path << "\n";
  for (const auto& [name, value] : facts.items()) {
    console.out << absl::StreamFormat("%-9s %s\n", name, FactText(facts, name.c_str()));
  }
  for (const Json& field : manifest) {
    console.out << absl::StreamFormat(
        "manifest  %s: %s (%d bytes)\n", field["label"].get<std::string>(),
        field["value"].get<std::string>(), field["bytes"].get<int64_t>());
  }
  for (const auto& [name, bytes] : sections.items()) {
    console.out << absl::StreamFormat("section   %s: %d bytes\n", name, bytes.get<int64_t>());
  }
  return kExitFine;
}

int Extract(Toolchain& tools, const LookOptions& options, const Console& console) {
  constexpr char kCommand[] = "cache extract";
  const absl::StatusOr<cache::EntryInfo> info = FindEntry(tools.store(), options.key);
  if (!info.ok()) return console.Fail(kCommand, info.status());
  const absl::StatusOr<cache::Entry> entry = tools.store().Read(*info);
  if (!entry.ok()) return console.Fail(kCommand, entry.status());
  const std::string* bytes = entry->Find(options.section);
  if (bytes == nullptr) {
    return console.Fail(
        kCommand, absl::NotFoundError(absl::StrCat("the entry has no section \"", options.section,
                                                   "\"; tilewright cache show lists them")));
  }
  std::string out = options.out;
  if (out.empty()) {
    out = absl::StrCat(info->digest.ToHex().substr(0, 16),
                       options.section == "cubin"    ? ".cubin"
                       : options.section == "source" ? ".cu"
                                                     : absl::StrCat(".", options.section));
  }
  std::ofstream file(out, std::ios::binary);
  file << *bytes;
  if (!file.flush()) {
    return console.Fail(kCommand, absl::InvalidArgumentError(absl::StrCat(out, ": cannot write")));
  }
  if (console.json) {
    console.Print({{"command", kCommand},
                   {"ok", true},
                   {"key", info->digest.ToHex()},
                   {"section", options.section},
                   {"file", out},
                   {"bytes", bytes->size()}});
  } else {
    console.out << out << ": " << bytes->size() << " bytes\n";
  }
  return kExitFine;
}

}  // namespace

void AddCacheLookVerbs(CLI::App& cache, Chosen& chosen) {
  auto options = std::make_shared<LookOptions>();
  const auto add = [&](const char* name, const char* help,
                       int (*verb)(Toolchain&, const LookOptions&, const Console&)) {
    return AddCacheVerb(cache, chosen, name, help,
                        [options, verb](Toolchain& tools, const Console& console) {
                          return verb(tools, *options, console);
                        });
  };
  add("stats", "Where the store is and how much it holds", Stats);
  add("ls", "One line for each entry", Ls);
  CLI::App* show = add("show", "What one entry is and what its key is made of", Show);
  show->add_option("KEY", options->key, "The key, or its first digits")->required();
  CLI::App* extract = add("extract", "Write a part of one entry to a file", Extract);
  extract->add_option("KEY", options->key, "The key, or its first digits")->required();
  extract->add_option("--section", options->section, "cubin, source, headers, log or facts")
      ->capture_default_str();
  extract->add_option("--out", options->out, "The file (default: the key's first digits)");
}

void AddCacheCommand(CLI::App& app, Chosen& chosen) {
  CLI::App* cache = app.add_subcommand("cache", "The store of compiled kernels");
  cache->require_subcommand(1);
  AddCacheLookVerbs(*cache, chosen);
  AddCacheCheckVerbs(*cache, chosen);
  AddCacheCleanVerbs(*cache, chosen);
  AddCachePackVerbs(*cache, chosen);
}

}  // namespace tilewright::cli
