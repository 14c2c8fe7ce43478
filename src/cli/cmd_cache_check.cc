// tilewright cache explain, verify: why a kernel is found or missed, and whether what is stored can
// be trusted.
#include <algorithm>
#include <memory>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "build/entry_codec.h"
#include "build/miss_explainer.h"
#include "cli/cache_verbs.h"
#include "cli/spec_arguments.h"
#include "compile/compile_pool.h"
#include "spec/canonical.h"

namespace tilewright::cli {
namespace {

// ---- explain --------------------------------------------------------------------------------

struct ExplainArguments {
  std::vector<std::string> subject;
  std::string against;
  std::string target = kDefaultTarget;
};

// What is asked about: the kernel of a spec, or an entry.
struct Wanted {
  build::KernelIdentity identity;
  Digest key;
  std::string target;
  std::string spec;
  bool is_entry = false;
  std::string state;  // "stored", or why it would be a miss
  std::string compiler;
};

absl::StatusOr<Wanted> WantedOfSpec(Toolchain& tools, const std::string& text,
                                    const std::string& target) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const AttentionSpec spec, ReadSpec(text));
  TILEWRIGHT_ASSIGN_OR_RETURN(const plan::Decision decision, tools.Plan(spec, target));
  TILEWRIGHT_ASSIGN_OR_RETURN(const build::KernelRequest request,
                              tools.builder().MakeRequest(spec, decision.plan));
  Wanted wanted;
  wanted.identity = {request.manifest.manifest(), {}, request.source.text};
  // Without a compiler at hand any compiler's entry serves.
  const absl::StatusOr<compile::CompilerIdentity> compiler = tools.compiler().Identity();
  if (compiler.ok()) wanted.identity.variant = compiler->id;
  wanted.compiler = wanted.identity.variant.value_or("");
  wanted.key = request.key;
  wanted.target = decision.plan.target;
  wanted.spec = spec::ToText(spec);
  const absl::StatusOr<cache::EntryPtr> found =
      tools.store().Get({wanted.key, wanted.identity.variant}, wanted.identity.manifest);
  wanted.state = found.ok() ? "stored" : std::string(found.status().message());
  return wanted;
}

absl::StatusOr<Wanted> WantedOfKey(Toolchain& tools, const std::string& prefix) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const cache::EntryInfo info, FindEntry(tools.store(), prefix));
  TILEWRIGHT_ASSIGN_OR_RETURN(const cache::Entry entry, tools.store().Read(info));
  const Json facts = FactsOf(entry);
  Wanted wanted;
  wanted.identity = build::IdentityOf(entry);
  wanted.key = info.digest;
  wanted.target = FactText(facts, "target");
  wanted.spec = FactText(facts, "spec");
  wanted.compiler = entry.variant;
  wanted.is_entry = true;
  wanted.state = "stored";
  return wanted;
}

int ExplainVerb(Toolchain& tools, const ExplainArguments& arguments, const Console& console) {
  constexpr char kCommand[] = "cache explain";
  const absl::StatusOr<std::string> spec = JoinSpec(arguments.subject);
  if (!spec.ok() && arguments.subject.size() != 1) {
    return console.Fail(kCommand, spec.status(), kExitUsage);
  }
  const absl::StatusOr<Wanted> wanted = spec.ok() ? WantedOfSpec(tools, *spec, arguments.target)
                                                  : WantedOfKey(tools, arguments.subject.front());
  if (!wanted.ok()) {
    const bool usage = spec.ok() && absl::IsInvalidArgument(wanted.status());
    return console.Fail(kCommand, wanted.status(), usage ? kExitUsage : kExitProblem);
  }

  std::optional<build::NearestEntry> other;
  if (!arguments.against.empty()) {
    const absl::StatusOr<cache::EntryInfo> info = FindEntry(tools.store(), arguments.against);
    if (!info.ok()) return console.Fail(kCommand, info.status());
    absl::StatusOr<cache::Entry> entry = tools.store().Read(*info);
    if (!entry.ok()) return console.Fail(kCommand, entry.status());
    absl::StatusOr<std::vector<build::FieldDifference>> differences =
        build::Differences(wanted->identity, build::IdentityOf(*entry));
    if (!differences.ok()) return console.Fail(kCommand, differences.status());
    other = build::NearestEntry{*info, *std::move(entry), *std::move(differences)};
  } else if (wanted->is_entry || wanted->state != "stored") {
    other = build::FindNearest(tools.store(), wanted->identity);
  }

  const bool fine = wanted->state == "stored";
  if (console.json) {
    Json object = {{"command", kCommand},        {"ok", fine},
                   {"key", wanted->key.ToHex()}, {"spec", wanted->spec},
                   {"target", wanted->target},   {"compiler", wanted->compiler},
                   {"state", wanted->state}};
    if (other.has_value()) {
      const Json facts = FactsOf(other->entry);
      object["against"] = {{"key", other->info.digest.ToHex()},
                           {"variant", other->info.variant_hex},
                           {"path", other->info.path},
                           {"spec", FactText(facts, "spec")},
                           {"target", FactText(facts, "target")},
                           {"compiler", FactText(facts, "compiler")}};
    }
    Json differs = Json::array();
    if (other.has_value()) {
      for (const build::FieldDifference& difference : other->differences) {
        differs.push_back({{"field", difference.field},
                           {"wanted", difference.wanted},
                           {"stored", difference.stored}});
      }
    }
    object["differs"] = differs;
    console.Print(object);
    return fine ? kExitFine : kExitProblem;
  }
  console.out << "key       " << wanted->key.ToHex() << "\nspec      " << wanted->spec << " for "
              << wanted->target << "\nstate     " << wanted->state << "\n";
  if (!other.has_value()) {
    if (!fine) console.out << "nearest   none: the store has no other entry\n";
    return fine ? kExitFine : kExitProblem;
  }
  const Json facts = FactsOf(other->entry);
  console.out << (arguments.against.empty() ? "nearest   " : "against   ")
              << other->info.digest.ToHex() << "\n          " << FactText(facts, "spec") << " for "
              << FactText(facts, "target") << ", by " << FactText(facts, "compiler") << "\n";
  for (const build::FieldDifference& difference : other->differences) {
    console.out << absl::StreamFormat(
        "differs   %s\n            wanted: %s\n            stored: %s\n", difference.field,
        difference.wanted, difference.stored);
  }
  if (other->differences.empty()) console.out << "differs   in nothing\n";
  return fine ? kExitFine : kExitProblem;
}

// ---- verify ---------------------------------------------------------------------------------

struct VerifyArguments {
  int recompile = 0;
};

struct Verdicts {
  int64_t entries = 0;
  Json bad = Json::array();
  int64_t recompiled = 0;
  int64_t identical = 0;
  int64_t skipped = 0;
  Json differ = Json::array();
  Json failed = Json::array();
  std::string lines;

  bool fine() const { return bad.empty() && differ.empty() && failed.empty(); }
};

// Compiles an entry again in a process of its own, where no earlier compile has left any state.
void Recompile(Toolchain& tools, compile::CompilePool& pool, const cache::EntryInfo& info,
               const cache::Entry& entry, const build::StoredRequest& request, Verdicts& verdicts) {
  const absl::StatusOr<artifact::KernelBinary> binary =
      pool.Compile({request.source, tools.bundle().files, request.target, request.options});
  ++verdicts.recompiled;
  const std::string key = info.digest.ToHex();
  if (!binary.ok()) {
    verdicts.failed.push_back({{"key", key}, {"error", std::string(binary.status().message())}});
    absl::StrAppend(&verdicts.lines, "failed    ", key.substr(0, 16), "  ",
                    binary.status().message(), "\n");
    return;
  }
  const std::string& stored = *entry.Find("cubin");
  if (binary->cubin == stored) {
    ++verdicts.identical;
    return;
  }
  verdicts.differ.push_back({{"key", key},
                             {"variant", info.variant_hex},
                             {"path", info.path},
                             {"spec", FactText(FactsOf(entry), "spec")},
                             {"stored_bytes", stored.size()},
                             {"stored_sha256", Sha256(stored).ToHex()},
                             {"compiled_bytes", binary->cubin.size()},
                             {"compiled_sha256", Sha256(binary->cubin).ToHex()}});
  absl::StrAppend(&verdicts.lines, "differs   ", key.substr(0, 16),
                  "  a fresh compile gives other ", "machine code (", stored.size(),
                  " bytes stored, ", binary->cubin.size(), " compiled)\n");
}

int VerifyVerb(Toolchain& tools, const VerifyArguments& arguments, const Console& console) {
  constexpr char kCommand[] = "cache verify";
  const absl::StatusOr<std::vector<cache::EntryInfo>> infos = tools.store().List();
  if (!infos.ok()) return console.Fail(kCommand, infos.status());
  std::string compiler_id;
  std::unique_ptr<compile::CompilePool> pool;
  if (arguments.recompile > 0) {
    const absl::StatusOr<compile::CompilerIdentity> identity = tools.compiler().Identity();
    if (!identity.ok()) return console.Fail(kCommand, identity.status());
    compiler_id = identity->id;
    pool = std::make_unique<compile::CompilePool>(
        tools.compiler(),
        compile::CompilePoolOptions{.threads = 1,
                                    .timeout_ms = tools.options().compile_timeout_ms,
                                    .isolate = true,
                                    .helper = tools.options().compiler_helper});
  }
  const std::string templates = tools.bundle().digest.ToHex();

  Verdicts verdicts;
  for (const cache::EntryInfo& info : *infos) {
    const absl::StatusOr<cache::Entry> entry = tools.store().Read(info);
    absl::Status status = entry.status();
    // It was evicted meanwhile.
    if (absl::IsNotFound(status) && status.message() == "absent") continue;
    ++verdicts.entries;
    absl::StatusOr<build::StoredRequest> request;
    if (status.ok()) status = build::CheckEntry(*entry);
    if (status.ok()) {
      request = build::DecodeRequest(*entry);
      status = request.status();
    }
    if (!status.ok()) {
      verdicts.bad.push_back({{"key", info.digest.ToHex()},
                              {"variant", info.variant_hex},
                              {"path", info.path},
                              {"reason", std::string(status.message())}});
      absl::StrAppend(&verdicts.lines, "bad       ", info.digest.ToHex().substr(0, 16), "  ",
                      status.message(), "\n");
      continue;
    }
    if (verdicts.recompiled >= arguments.recompile) continue;
    // Only what this program with this compiler would make can be compared.
    if (entry->variant != compiler_id || request->templates != templates) {
      ++verdicts.skipped;
      continue;
    }
    Recompile(tools, *pool, info, *entry, *request, verdicts);
  }

  if (console.json) {
    console.Print({{"command", kCommand},
                   {"ok", verdicts.fine()},
                   {"directory", tools.location().directory},
                   {"entries", verdicts.entries},
                   {"bad", verdicts.bad},
                   {"recompiled", verdicts.recompiled},
                   {"identical", verdicts.identical},
                   {"skipped", verdicts.skipped},
                   {"differ", verdicts.differ},
                   {"failed", verdicts.failed}});
  } else {
    console.out << verdicts.lines
                << absl::StreamFormat("%d entries in %s: %d bad\n", verdicts.entries,
                                      WhereText(tools.location()), verdicts.bad.size());
    if (arguments.recompile > 0) {
      console.out << absl::StreamFormat(
          "%d compiled again, each in a process of its own: %d identical, %d differ, %d failed; %d "
          "are of another compiler or of other templates\n",
          verdicts.recompiled, verdicts.identical, verdicts.differ.size(), verdicts.failed.size(),
          verdicts.skipped);
    }
  }
  return verdicts.fine() ? kExitFine : kExitProblem;
}

}  // namespace

void AddCacheCheckVerbs(CLI::App& cache, Chosen& chosen) {
  auto explain = std::make_shared<ExplainArguments>();
  CLI::App* command = AddCacheVerb(
      cache, chosen, "explain",
      "Whether a kernel is stored, and what differs from the nearest entry; 1: it would be a miss",
      [explain](Toolchain& tools, const Console& console) {
        return ExplainVerb(tools, *explain, console);
      });
  command
      ->add_option("KEY_OR_SPEC", explain->subject, "A spec in words, or the first digits of a key")
      ->required();
  command->add_option("--against", explain->against, "Compare with this key, not with the nearest");
  command->add_option("--arch", explain->target, "Target of a spec")->capture_default_str();

  auto verify = std::make_shared<VerifyArguments>();
  command = AddCacheVerb(cache, chosen, "verify",
                         "Check every entry; bad ones of the user's store are moved aside",
                         [verify](Toolchain& tools, const Console& console) {
                           return VerifyVerb(tools, *verify, console);
                         });
  command
      ->add_option("--recompile", verify->recompile,
                   "Compile this many entries again, each in a fresh process, and compare")
      ->check(CLI::NonNegativeNumber);
}

}  // namespace tilewright::cli
