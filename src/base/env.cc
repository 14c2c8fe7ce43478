#include "base/env.h"

#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/text.h"
#include "tilewright/options.h"

namespace tilewright {
namespace {

constexpr std::string_view kPrefix = "TILEWRIGHT_";

// A decimal integer of [min, max]; nothing before or after it.
bool ParseInteger(std::string_view text, int64_t min, int64_t max, int64_t* value) {
  int64_t parsed = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, parsed);
  if (error != std::errc() || rest != end || parsed < min || parsed > max) return false;
  *value = parsed;
  return true;
}

bool ParseInt(std::string_view text, int min, int max, int* value) {
  int64_t wide = 0;
  if (!ParseInteger(text, min, max, &wide)) return false;
  *value = static_cast<int>(wide);
  return true;
}

bool ParseBool(std::string_view text, bool* value) {
  if (text == "1" || text == "true" || text == "on" || text == "yes") {
    *value = true;
  } else if (text == "0" || text == "false" || text == "off" || text == "no") {
    *value = false;
  } else {
    return false;
  }
  return true;
}

// A number of bytes with an optional suffix K, M, G or T (powers of 1024).
bool ParseBytes(std::string_view text, int64_t* value) {
  int shift = 0;
  if (!text.empty()) {
    switch (text.back()) {
      case 'k':
      case 'K':
        shift = 10;
        break;
      case 'm':
      case 'M':
        shift = 20;
        break;
      case 'g':
      case 'G':
        shift = 30;
        break;
      case 't':
      case 'T':
        shift = 40;
        break;
    }
  }
  if (shift != 0) text.remove_suffix(1);
  int64_t number = 0;
  if (!ParseInteger(text, 0, std::numeric_limits<int64_t>::max() >> shift, &number)) return false;
  *value = number << shift;
  return true;
}

template <typename Enum, size_t kCount>
bool ParseName(std::string_view text, const std::pair<std::string_view, Enum> (&names)[kCount],
               Enum* value) {
  for (const auto& [name, meaning] : names) {
    if (text == name) {
      *value = meaning;
      return true;
    }
  }
  return false;
}

constexpr std::pair<std::string_view, TunePolicy> kTunePolicies[] = {
    {"first_run", TunePolicy::kFirstRun},     {"background", TunePolicy::kBackground},
    {"cached_only", TunePolicy::kCachedOnly}, {"off", TunePolicy::kOff},
    {"frozen", TunePolicy::kFrozen},
};

constexpr std::pair<std::string_view, LogLevel> kLogLevels[] = {
    {"debug", LogLevel::kDebug}, {"info", LogLevel::kInfo}, {"warning", LogLevel::kWarning},
    {"error", LogLevel::kError}, {"off", LogLevel::kOff},
};

bool SetCachePacks(std::string_view text, RuntimeOptions* options) {
  options->cache_packs.clear();
  while (true) {
    const size_t colon = text.find(':');
    const std::string_view pack = text.substr(0, colon);
    // Empty elements come from "$OLD:new" with OLD unset; they name nothing.
    if (!pack.empty()) options->cache_packs.emplace_back(pack);
    if (colon == std::string_view::npos) return true;
    text.remove_prefix(colon + 1);
  }
}

bool SetPackDigests(std::string_view text, RuntimeOptions* options) {
  options->pack_sha256.clear();
  while (true) {
    const size_t colon = text.find(':');
    const std::string_view digest = text.substr(0, colon);
    if (!digest.empty()) {
      if (!Digest::FromHex(digest).has_value()) return false;
      options->pack_sha256.emplace_back(digest);
    }
    if (colon == std::string_view::npos) return true;
    text.remove_prefix(colon + 1);
  }
}

bool SetCacheMode(std::string_view text, RuntimeOptions* options) {
  if (text != "rw" && text != "ro" && text != "memory") return false;
  options->cache_read_only = text == "ro";
  options->cache_in_memory = text == "memory";
  return true;
}

struct Row {
  EnvVariable variable;
  bool (*set)(std::string_view value, RuntimeOptions* options);  // false: does not parse
};

// In the order in which they are applied: FROZEN after TUNE_POLICY, which it outranks.
constexpr Row kRows[] = {
    {{"TILEWRIGHT_CACHE_DIR", "cache_dir", "a directory",
      "where kernels are stored instead of $XDG_CACHE_HOME/tilewright or ~/.cache/tilewright"},
     [](std::string_view text, RuntimeOptions* options) {
       options->cache_dir = text;
       return true;
     }},
    {{"TILEWRIGHT_CACHE_PACKS", "cache_packs", "files and directories separated by ':'",
      "packs: read-only kernels that are searched first"},
     SetCachePacks},
    {{"TILEWRIGHT_PACK_SHA256", "pack_sha256", "digests of 64 hex digits separated by ':'",
      "packs with none of these digests are refused"},
     SetPackDigests},
    {{"TILEWRIGHT_CACHE_MODE", "cache_read_only, cache_in_memory", "rw, ro or memory",
      "ro: never write to the store; memory: no store on disk"},
     SetCacheMode},
    {{"TILEWRIGHT_CACHE_SHARED", "cache_group_shared", "off or group",
      "group: the store may belong to and be written by a group; whoever can write there can run "
      "code on your GPU"},
     [](std::string_view text, RuntimeOptions* options) {
       options->cache_group_shared = text == "group";
       return text == "group" || text == "off";
     }},
    {{"TILEWRIGHT_CACHE_MAX_BYTES", "cache_max_bytes",
      "an integer from 0 with an optional suffix K, M, G or T",
      "disk space that the store may take; 0: no limit"},
     [](std::string_view text, RuntimeOptions* options) {
       return ParseBytes(text, &options->cache_max_bytes);
     }},
    {{"TILEWRIGHT_NVRTC_PATH", "nvrtc_path", "a file", "the libnvrtc to use"},
     [](std::string_view text, RuntimeOptions* options) {
       options->nvrtc_path = text;
       return true;
     }},
    {{"TILEWRIGHT_DEVICE", "device_ordinal", "an integer from 0 to 1023",
      "the device of threads without a current context"},
     [](std::string_view text, RuntimeOptions* options) {
       return ParseInt(text, 0, 1023, &options->device_ordinal);
     }},
    {{"TILEWRIGHT_ALLOW_FALLBACK", "allow_fallback", "1 or 0 (also true, on, yes, false, off, no)",
      "whether the simple family serves what no faster one can"},
     [](std::string_view text, RuntimeOptions* options) {
       return ParseBool(text, &options->allow_fallback);
     }},
    {{"TILEWRIGHT_FAMILY", "family", "a kernel family, such as attn_fwd_simple",
      "the only family to use"},
     [](std::string_view text, RuntimeOptions* options) {
       options->family = text;
       return true;
     }},
    {{"TILEWRIGHT_TUNE_POLICY", "tune_policy", "first_run, background, cached_only, off or frozen",
      "when candidates are measured"},
     [](std::string_view text, RuntimeOptions* options) {
       return ParseName(text, kTunePolicies, &options->tune_policy);
     }},
    {{"TILEWRIGHT_FROZEN", "tune_policy", "1 or 0 (also true, on, yes, false, off, no)",
      "1: neither compile nor measure, whatever TILEWRIGHT_TUNE_POLICY says"},
     [](std::string_view text, RuntimeOptions* options) {
       bool frozen = false;
       if (!ParseBool(text, &frozen)) return false;
       if (frozen) options->tune_policy = TunePolicy::kFrozen;
       return true;
     }},
    {{"TILEWRIGHT_TUNE_BUDGET_MS", "tune_budget_ms", "an integer from 0 to 86400000",
      "longest time for which a first call measures"},
     [](std::string_view text, RuntimeOptions* options) {
       return ParseInt(text, 0, 86400000, &options->tune_budget_ms);
     }},
    {{"TILEWRIGHT_TUNE_TOTAL_MS", "tune_total_ms", "an integer from 0 to 86400000",
      "and all first calls of a process together"},
     [](std::string_view text, RuntimeOptions* options) {
       return ParseInt(text, 0, 86400000, &options->tune_total_ms);
     }},
    {{"TILEWRIGHT_TUNE_CANDIDATES", "tune_candidates", "an integer from 0 to 1000",
      "candidates that are compiled and measured; 0: all"},
     [](std::string_view text, RuntimeOptions* options) {
       return ParseInt(text, 0, 1000, &options->tune_candidates);
     }},
    {{"TILEWRIGHT_TUNE_MAX_BYTES", "tune_max_bytes", "a number of bytes, with K, M, G or T",
      "device memory that a measurement may take"},
     [](std::string_view text, RuntimeOptions* options) {
       return ParseBytes(text, &options->tune_max_bytes);
     }},
    {{"TILEWRIGHT_CHURN_PER_MINUTE", "churn_per_minute", "an integer from 0 to 1000000",
      "new kernels in a minute that bring a warning; 0: never"},
     [](std::string_view text, RuntimeOptions* options) {
       return ParseInt(text, 0, 1000000, &options->churn_per_minute);
     }},
    {{"TILEWRIGHT_LINEINFO", "lineinfo", "1 or 0 (also true, on, yes, false, off, no)",
      "compile with source lines for profilers"},
     [](std::string_view text, RuntimeOptions* options) {
       return ParseBool(text, &options->lineinfo);
     }},
    {{"TILEWRIGHT_TEMPLATE_DIR", "template_dir", "a directory",
      "kernel templates that replace the embedded ones"},
     [](std::string_view text, RuntimeOptions* options) {
       options->template_dir = text;
       return true;
     }},
    {{"TILEWRIGHT_COMPILE_THREADS", "compile_threads", "an integer from 0 to 1024",
      "threads that compile; 0: one per core, at most 8"},
     [](std::string_view text, RuntimeOptions* options) {
       return ParseInt(text, 0, 1024, &options->compile_threads);
     }},
    {{"TILEWRIGHT_COMPILE_TIMEOUT_MS", "compile_timeout_ms", "an integer from 0 to 86400000",
      "longest time that one compile may take; 0: no limit"},
     [](std::string_view text, RuntimeOptions* options) {
       return ParseInt(text, 0, 86400000, &options->compile_timeout_ms);
     }},
    {{"TILEWRIGHT_ISOLATE_COMPILER", "isolate_compiler",
      "1 or 0 (also true, on, yes, false, off, no)",
      "whether each compile runs in a process of its own"},
     [](std::string_view text, RuntimeOptions* options) {
       return ParseBool(text, &options->isolate_compiler);
     }},
    {{"TILEWRIGHT_COMPILER_HELPER", "compiler_helper", "a file",
      "the program `tilewright` that compiles in a process of its own"},
     [](std::string_view text, RuntimeOptions* options) {
       options->compiler_helper = text;
       return true;
     }},
    {{"TILEWRIGHT_LOCK_TIMEOUT_MS", "lock_timeout_ms", "an integer from 0 to 86400000",
      "longest wait for a process that compiles the same kernel"},
     [](std::string_view text, RuntimeOptions* options) {
       return ParseInt(text, 0, 86400000, &options->lock_timeout_ms);
     }},
    {{"TILEWRIGHT_LOG", "log_level", "debug, info, warning, error or off",
      "least severe event that is logged"},
     [](std::string_view text, RuntimeOptions* options) {
       return ParseName(text, kLogLevels, &options->log_level);
     }},
};

constexpr auto kVariables = [] {
  std::array<EnvVariable, std::size(kRows)> variables;
  for (size_t i = 0; i < variables.size(); ++i) variables[i] = kRows[i].variable;
  return variables;
}();

}  // namespace

absl::Span<const EnvVariable> EnvVariables() { return kVariables; }

std::optional<std::string> GetEnv(std::string_view name) {
  // The secure form answers nothing in a program with more rights than its caller: there the
  // caller's environment must choose neither a library to load nor a directory to read.
  const char* value = secure_getenv(std::string(name).c_str());
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

std::vector<std::string> UnknownEnvVariables() {
  std::vector<std::string> unknown;
  if (environ == nullptr) return unknown;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (name.substr(0, kPrefix.size()) != kPrefix) continue;
    bool known = false;
    for (const EnvVariable& variable : kVariables) known = known || variable.name == name;
    if (!known) unknown.emplace_back(name);
  }
  return unknown;
}

absl::StatusOr<RuntimeOptions> RuntimeOptions::FromEnvironment() {
  RuntimeOptions options;
  for (const Row& row : kRows) {
    const std::optional<std::string> value = GetEnv(row.variable.name);
    if (!value.has_value() || value->empty()) continue;  // VAR= is how a shell unsets for one call
    if (!row.set(*value, &options)) {
      return absl::InvalidArgumentError(absl::StrCat(AbslView(row.variable.name), " is \"", *value,
                                                     "\"; it must be ",
                                                     AbslView(row.variable.values)));
    }
  }
  return options;
}

}  // namespace tilewright
