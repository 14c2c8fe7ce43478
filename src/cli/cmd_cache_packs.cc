// tilewright cache export, import: kernels from one place to another, in one file.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <system_error>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "build/entry_codec.h"
#include "cache/pack.h"
#include "cache/store_directory.h"
#include "cli/cache_verbs.h"
#include "cli/spec_arguments.h"

namespace tilewright::cli {
namespace {

struct ExportArguments {
  std::string out;
  std::vector<std::string> targets;
  std::vector<std::string> keys;
  std::vector<std::string> specs;
  std::string matrix;
  std::string array_name;
};

struct ImportArguments {
  std::string pack;
  std::string sha256;
};

std::string AbsolutePath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

// Keys of the kernels of these specs for these targets, by a builder that compiles nothing.
absl::StatusOr<std::vector<Digest>> KeysOfSpecs(Toolchain& tools,
                                                const std::vector<std::string>& specs,
                                                const std::vector<std::string>& targets) {
  std::vector<Digest> keys;
  for (const std::string& text : specs) {
    TILEWRIGHT_ASSIGN_OR_RETURN(const AttentionSpec spec, ReadSpec(text));
    for (const std::string& target : targets) {
      TILEWRIGHT_ASSIGN_OR_RETURN(const plan::Decision decision, tools.Plan(spec, target));
      TILEWRIGHT_ASSIGN_OR_RETURN(const std::vector<build::KernelRequest> requests,
                                  tools.builder().MakeRequests(spec, decision.plan));
      for (const build::KernelRequest& request : requests) keys.push_back(request.key);
    }
  }
  return keys;
}

bool HasTarget(Toolchain& tools, const cache::EntryInfo& info,
               const std::vector<std::string>& targets) {
  const absl::StatusOr<cache::Entry> entry = tools.store().Read(info);
  if (!entry.ok()) return false;
  const absl::StatusOr<build::StoredRequest> request = build::DecodeRequest(*entry);
  return request.ok() &&
         std::find(targets.begin(), targets.end(), request->target) != targets.end();
}

// The entries that the arguments choose. NotFound when one that is named is not stored.
absl::StatusOr<std::vector<cache::EntryInfo>> Choose(Toolchain& tools,
                                                     const ExportArguments& arguments) {
  std::vector<std::string> specs;
  if (!arguments.specs.empty()) {
    TILEWRIGHT_ASSIGN_OR_RETURN(specs, SplitSpecs(arguments.specs));
  }
  if (!arguments.matrix.empty()) {
    TILEWRIGHT_ASSIGN_OR_RETURN(const std::vector<std::string> more,
                                ReadSpecFile(arguments.matrix));
    specs.insert(specs.end(), more.begin(), more.end());
  }
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::vector<cache::EntryInfo> all, tools.store().List());
  std::vector<cache::EntryInfo> chosen;
  if (specs.empty() && arguments.keys.empty()) {
    for (const cache::EntryInfo& info : all) {
      if (arguments.targets.empty() || HasTarget(tools, info, arguments.targets)) {
        chosen.push_back(info);
      }
    }
    return chosen;
  }
  for (const std::string& prefix : arguments.keys) {
    TILEWRIGHT_ASSIGN_OR_RETURN(const cache::EntryInfo named, FindEntry(tools.store(), prefix));
    for (const cache::EntryInfo& info : all) {
      if (info.digest == named.digest) chosen.push_back(info);
    }
  }
  const std::vector<std::string> targets =
      arguments.targets.empty() ? std::vector<std::string>{kDefaultTarget} : arguments.targets;
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::vector<Digest> keys, KeysOfSpecs(tools, specs, targets));
  for (size_t i = 0; i < keys.size(); ++i) {
    const size_t before = chosen.size();
    for (const cache::EntryInfo& info : all) {
      if (info.digest == keys[i]) chosen.push_back(info);
    }
    if (chosen.size() == before) {
      return absl::NotFoundError(absl::StrCat("the kernel of \"", specs[i / targets.size()],
                                              "\" for ", targets[i % targets.size()],
                                              " is not stored; tilewright compile makes it"));
    }
  }
  return chosen;
}

// The bytes of the file `from` as C source.
absl::Status WriteArray(const std::string& from, const std::string& name, const Digest& digest,
                        const std::string& to) {
  std::ifstream in(from, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::string text = absl::StrCat("/* A pack of Tilewright kernels, SHA-256 ", digest.ToHex(),
                                  ". For RuntimeOptions::embedded_pack. */\n",
                                  "static const unsigned char ", name, "[] = {");
  constexpr size_t kBytesInALine = 20;
  for (size_t i = 0; i < bytes.size(); ++i) {
    absl::StrAppend(&text, i % kBytesInALine == 0 ? "\n" : "", static_cast<unsigned char>(bytes[i]),
                    ",");
  }
  absl::StrAppend(&text, "\n};\n");
  std::ofstream out(to, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (in.bad() || !out) return absl::UnavailableError(absl::StrCat(to, ": cannot be written"));
  return absl::OkStatus();
}

bool IsIdentifier(const std::string& name) {
  return !name.empty() && !absl::ascii_isdigit(static_cast<unsigned char>(name[0])) &&
         std::all_of(name.begin(), name.end(), [](unsigned char letter) {
           return absl::ascii_isalnum(letter) || letter == '_';
         });
}

int Export(Toolchain& tools, const ExportArguments& arguments, const Console& console) {
  constexpr char kCommand[] = "cache export";
  const bool as_array = !arguments.array_name.empty();
  if (as_array && !IsIdentifier(arguments.array_name)) {
    return console.Fail(kCommand,
                        absl::InvalidArgumentError(absl::StrCat(
                            "--c-array is \"", arguments.array_name, "\"; it must be a C name")),
                        kExitUsage);
  }
  const absl::StatusOr<std::vector<cache::EntryInfo>> entries = Choose(tools, arguments);
  if (!entries.ok()) {
    return console.Fail(kCommand, entries.status(),
                        absl::IsInvalidArgument(entries.status()) ? kExitUsage : kExitProblem);
  }
  if (entries->empty()) {
    return console.Fail(kCommand, absl::NotFoundError(absl::StrCat(
                                      "nothing to export: ", WhereText(tools.location()),
                                      " has no entry of that kind")));
  }
  const std::string out = AbsolutePath(arguments.out);
  const std::string pack = as_array ? absl::StrCat(out, ".", getpid(), ".pack") : out;
  const absl::StatusOr<cache::PackSummary> summary =
      cache::WritePack(tools.store(), *entries, pack);
  if (!summary.ok()) return console.Fail(kCommand, summary.status());
  if (as_array) {
    const absl::Status status = WriteArray(pack, arguments.array_name, summary->digest, out);
    std::error_code ignored;
    std::filesystem::remove(pack, ignored);
    if (!status.ok()) return console.Fail(kCommand, status);
  }
  if (console.json) {
    console.Print({{"command", kCommand},
                   {"ok", true},
                   {"pack", out},
                   {"entries", summary->entries},
                   {"bytes", summary->bytes},
                   {"sha256", summary->digest.ToHex()}});
  } else {
    console.out << absl::StreamFormat("%s: %d entries, %d bytes\nsha256    %s\n", out,
                                      summary->entries, summary->bytes, summary->digest.ToHex());
  }
  return kExitFine;
}

// A pack file, or a directory with the layout of a store.
absl::StatusOr<std::unique_ptr<cache::ArtifactStore>> OpenSource(const std::string& path,
                                                                 const std::vector<Digest>& pins,
                                                                 const Logger& logger,
                                                                 std::string* sha256) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    TILEWRIGHT_ASSIGN_OR_RETURN(std::unique_ptr<cache::PackStore> pack,
                                cache::PackStore::Open(path, pins, logger));
    *sha256 = pack->digest().ToHex();
    return pack;
  }
  if (!pins.empty()) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, ": a directory has no digest that could be the pinned one"));
  }
  return cache::DiskStore::Open({.directory = cache::WithoutLinks(path), .pack = true}, logger);
}

int Import(Toolchain& tools, const ImportArguments& arguments, const Console& console) {
  constexpr char kCommand[] = "cache import";
  std::vector<Digest> pins;
  std::vector<std::string> texts = tools.options().pack_sha256;
  if (!arguments.sha256.empty()) texts = {arguments.sha256};
  for (const std::string& text : texts) {
    const std::optional<Digest> pin = Digest::FromHex(text);
    if (!pin.has_value()) {
      return console.Fail(kCommand,
                          absl::InvalidArgumentError(
                              absl::StrCat("--sha256 is \"", text, "\"; it must be 64 hex digits")),
                          kExitUsage);
    }
    pins.push_back(*pin);
  }
  const absl::StatusOr<cache::DiskStore*> store = UserStore(tools);
  if (!store.ok()) return console.Fail(kCommand, store.status());
  const std::string path = AbsolutePath(arguments.pack);
  std::string sha256;
  const absl::StatusOr<std::unique_ptr<cache::ArtifactStore>> pack =
      OpenSource(path, pins, tools.logger(), &sha256);
  if (!pack.ok()) return console.Fail(kCommand, pack.status());
  const absl::StatusOr<std::vector<cache::EntryInfo>> infos = (*pack)->List();
  if (!infos.ok()) return console.Fail(kCommand, infos.status());

  int64_t imported = 0;
  Json bad = Json::array();
  std::string lines;
  for (const cache::EntryInfo& info : *infos) {
    const absl::StatusOr<cache::Entry> entry = (*pack)->Read(info);
    absl::Status status = entry.status();
    if (status.ok()) status = build::CheckEntry(*entry);
    if (status.ok()) status = (*store)->Put(*entry);
    if (status.ok()) {
      ++imported;
      continue;
    }
    bad.push_back({{"key", info.digest.ToHex()},
                   {"variant", info.variant_hex},
                   {"reason", std::string(status.message())}});
    absl::StrAppend(&lines, "bad       ", info.digest.ToHex().substr(0, 16), "  ", status.message(),
                    "\n");
  }
  if (console.json) {
    console.Print({{"command", kCommand},
                   {"ok", bad.empty()},
                   {"pack", path},
                   {"sha256", sha256},
                   {"directory", tools.location().directory},
                   {"entries", infos->size()},
                   {"imported", imported},
                   {"bad", bad}});
  } else {
    console.out << lines
                << absl::StreamFormat("%d of %d entries of %s are in %s\n", imported, infos->size(),
                                      path, WhereText(tools.location()));
  }
  return bad.empty() ? kExitFine : kExitProblem;
}

}  // namespace

void AddCachePackVerbs(CLI::App& cache, Chosen& chosen) {
  auto to = std::make_shared<ExportArguments>();
  CLI::App* command = AddCacheVerb(
      cache, chosen, "export", "Write entries to a pack: one file, relocatable, only read",
      [to](Toolchain& tools, const Console& console) { return Export(tools, *to, console); });
  command->add_option("OUT", to->out, "The file")->required();
  command->add_option("--arch", to->targets, "Only entries for these targets, such as sm_80,sm_90a")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_option("--key", to->keys, "Only entries of these keys, or their first digits")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_option("--spec", to->specs,
                      "Only the kernels of these specs, for the targets of --arch; each must be "
                      "stored");
  command->add_option("--matrix", to->matrix, "As --spec, from a file with one spec a line");
  command->add_option("--c-array", to->array_name,
                      "Write C source that defines an array of this name, to be embedded");

  auto from = std::make_shared<ImportArguments>();
  command = AddCacheVerb(
      cache, chosen, "import", "Verify the entries of a pack and put them into the user's store",
      [from](Toolchain& tools, const Console& console) { return Import(tools, *from, console); });
  command->add_option("PACK", from->pack, "A pack file, or a directory with the layout of a store")
      ->required();
  command->add_option("--sha256", from->sha256,
                      "Refuse the pack unless this is its digest (default: "
                      "TILEWRIGHT_PACK_SHA256)");
}

}  // namespace tilewright::cli
