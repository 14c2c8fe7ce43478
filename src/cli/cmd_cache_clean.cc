// tilewright cache gc, clear: makes room in the user's store.
#include <limits>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/cache_verbs.h"

namespace tilewright::cli {
namespace {

constexpr int64_t kDaySeconds = 24 * 3600;

struct GcArguments {
  bool dry_run = false;
  std::optional<uint64_t> max_bytes;
};

struct ClearArguments {
  bool yes = false;
  std::optional<double> older_than_days;
};

void PrintReport(const char* command, const cache::GcReport& report, bool dry_run,
                 const Toolchain& tools, const Console& console) {
  if (console.json) {
    console.Print({{"command", command},
                   {"ok", true},
                   {"directory", tools.location().directory},
                   {"ran", report.ran},
                   {"dry_run", dry_run},
                   {"removed", report.removed_entries},
                   {"removed_bytes", report.removed_bytes},
                   {"swept_files", report.swept_files},
                   {"entries", report.entries},
                   {"bytes", report.bytes}});
    return;
  }
  if (!report.ran) {
    console.out << "another process is collecting; nothing was done\n";
    return;
  }
  console.out << absl::StreamFormat(
      "%s %d entries (%d bytes) and %d leftovers from %s; %d entries (%d bytes) stay\n",
      dry_run ? "would remove" : "removed", report.removed_entries, report.removed_bytes,
      report.swept_files, WhereText(tools.location()), report.entries, report.bytes);
}

int Gc(Toolchain& tools, const GcArguments& arguments, const Console& console) {
  constexpr char kCommand[] = "cache gc";
  const absl::StatusOr<cache::DiskStore*> store = UserStore(tools);
  if (!store.ok()) return console.Fail(kCommand, store.status());
  cache::GcOptions options;
  options.dry_run = arguments.dry_run;
  options.max_bytes = tools.options().cache_max_bytes;
  if (arguments.max_bytes.has_value()) {
    options.max_bytes = static_cast<int64_t>(
        std::min<uint64_t>(*arguments.max_bytes, std::numeric_limits<int64_t>::max()));
  }
  const absl::StatusOr<cache::GcReport> report = (*store)->Gc(options);
  if (!report.ok()) return console.Fail(kCommand, report.status());
  PrintReport(kCommand, *report, arguments.dry_run, tools, console);
  return kExitFine;
}

int Clear(Toolchain& tools, const ClearArguments& arguments, const Console& console) {
  constexpr char kCommand[] = "cache clear";
  const absl::StatusOr<cache::DiskStore*> store = UserStore(tools);
  if (!store.ok()) return console.Fail(kCommand, store.status());
  if (!arguments.yes) {
    const std::string which =
        arguments.older_than_days.has_value()
            ? absl::StrCat("the entries unused for ", *arguments.older_than_days, " days")
            : absl::StrCat((*store)->Stats().entries, " entries");
    return console.Fail(kCommand,
                        absl::InvalidArgumentError(absl::StrCat("this removes ", which, " from ",
                                                                WhereText(tools.location()),
                                                                "; say --yes if that is meant")),
                        kExitUsage);
  }
  absl::StatusOr<cache::GcReport> report;
  if (arguments.older_than_days.has_value()) {
    report = (*store)->Gc({.max_bytes = 0,
                           .older_than_s = static_cast<int64_t>(*arguments.older_than_days *
                                                                static_cast<double>(kDaySeconds)),
                           .dry_run = false});
  } else {
    report = (*store)->Clear();
  }
  if (!report.ok()) return console.Fail(kCommand, report.status());
  if (!arguments.older_than_days.has_value() && report->entries > 0) {
    return console.Fail(kCommand, absl::UnavailableError(absl::StrCat(
                                      report->entries, " entries could not be removed from ",
                                      WhereText(tools.location()))));
  }
  PrintReport(kCommand, *report, /*dry_run=*/false, tools, console);
  return kExitFine;
}

}  // namespace

void AddCacheCleanVerbs(CLI::App& cache, Chosen& chosen) {
  auto gc_arguments = std::make_shared<GcArguments>();
  CLI::App* gc = AddCacheVerb(cache, chosen, "gc",
                              "Remove leftovers, and the entries unused for longest until the rest "
                              "fits",
                              [gc_arguments](Toolchain& tools, const Console& console) {
                                return Gc(tools, *gc_arguments, console);
                              });
  gc->add_flag("--dry-run", gc_arguments->dry_run, "Only say what would go");
  gc->add_option("--max-bytes", gc_arguments->max_bytes,
                 "What may stay, such as 512M; 0: no limit (default: TILEWRIGHT_CACHE_MAX_BYTES)")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));

  auto clear_arguments = std::make_shared<ClearArguments>();
  CLI::App* clear = AddCacheVerb(cache, chosen, "clear", "Remove every entry, or the old ones",
                                 [clear_arguments](Toolchain& tools, const Console& console) {
                                   return Clear(tools, *clear_arguments, console);
                                 });
  clear->add_flag("--yes", clear_arguments->yes, "Do it");
  clear
      ->add_option("--older-than", clear_arguments->older_than_days,
                   "Only entries that nobody used for this many days")
      ->check(CLI::Range(0.0, 1e6));
}

}  // namespace tilewright::cli
