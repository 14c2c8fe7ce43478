// tilewright doctor: what was found on this machine, where, what is wrong and how to mend it.
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/env.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/doc_tables.h"
#include "cli/toolchain.h"
#include "device/device.h"

namespace tilewright::cli {
namespace {

struct DoctorOptions {
  bool env_table = false;
  bool word_table = false;
};

// One thing that a person should know. Only problems make the exit code 1.
struct Finding {
  bool problem = false;
  std::string what;
  std::string remedy;
};

struct Report {
  Json json = Json::object();
  std::vector<std::pair<std::string, std::string>> lines;
  std::vector<Finding> findings;

  void Line(std::string name, std::string text) {
    lines.emplace_back(std::move(name), std::move(text));
  }
};

std::string VersionText(int cuda_version) {
  return absl::StrCat(cuda_version / 1000, ".", cuda_version % 1000 / 10);
}

void ExamineDriver(Report& report) {
  absl::StatusOr<std::shared_ptr<device::DeviceManager>> manager = device::DeviceManager::Create();
  Json devices = Json::array();
  if (!manager.ok()) {
    const std::string message(manager.status().message());
    report.json["driver"] = {{"found", false}, {"message", message}};
    report.json["devices"] = devices;
    report.Line("driver", message);
    std::error_code error;
    const bool has_device = std::filesystem::exists("/dev/nvidiactl", error);
    report.findings.push_back(
        {has_device,
         has_device ? "this machine has a GPU that cannot be used: " + message
                    : "no GPU: run and verify compute on the host reference",
         has_device ? "install or update the NVIDIA driver (12.4 or newer; in a container, its "
                      "libraries must be passed in)"
                    : "nothing, unless this machine should have one; kernels can be compiled for "
                      "another with --arch"});
    return;
  }
  absl::Span<const device::DeviceInfo> found = (*manager)->devices();
  const int version = found.empty() ? 0 : found[0].driver_version;
  report.json["driver"] = {{"found", true}, {"version", VersionText(version)}};
  report.Line("driver", absl::StrCat("CUDA ", VersionText(version)));
  for (const device::DeviceInfo& device : found) {
    devices.push_back({{"ordinal", device.ordinal},
                       {"name", device.board.name},
                       {"compute", absl::StrCat(device.compute_major, ".", device.compute_minor)},
                       {"target", std::string(device.traits.target)},
                       {"sms", device.board.num_sms},
                       {"memory_bytes", device.board.memory_bytes},
                       {"l2_bytes", device.board.l2_bytes}});
    report.Line(absl::StrCat("gpu ", device.ordinal),
                absl::StrFormat("%s, compute %d.%d (%s), %d SMs, %.1f GiB", device.board.name,
                                device.compute_major, device.compute_minor,
                                std::string(device.traits.target), device.board.num_sms,
                                static_cast<double>(device.board.memory_bytes) / (1 << 30)));
  }
  report.json["devices"] = devices;
}

void ExamineCompiler(const Toolchain& tools, Report& report) {
  const absl::StatusOr<compile::CompilerIdentity> identity = tools.compiler().Identity();
  const auto fail = [&](const absl::Status& status) {
    const std::string message(status.message());
    report.json["nvrtc"] = {{"found", false}, {"message", message}};
    report.Line("nvrtc", message);
    report.findings.push_back({true,
                               "no usable NVRTC: kernels that are not stored cannot be compiled",
                               "install the package cuda-nvrtc-13-0 or pip install "
                               "nvidia-cuda-nvrtc, or name the library "
                               "with TILEWRIGHT_NVRTC_PATH"});
  };
  if (!identity.ok()) return fail(identity.status());
  const absl::StatusOr<std::string> version = tools.compiler().Version();
  if (!version.ok()) return fail(version.status());
  const absl::StatusOr<std::vector<int>> archs = tools.compiler().SupportedArchs();
  if (!archs.ok()) return fail(archs.status());
  report.json["nvrtc"] = {{"found", true},
                          {"path", identity->path},
                          {"version", *version},
                          {"identity", identity->id},
                          {"archs", *archs}};
  report.Line("nvrtc", absl::StrCat(*version, "  ", identity->path));
  report.Line("", absl::StrCat("targets sm_", absl::StrJoin(*archs, " sm_")));
}

// Where the user's store lies and who can write there.
void ExamineDirectory(Toolchain& tools, Json& store, Report& report) {
  const cache::StoreLocation& location = tools.location();
  const absl::StatusOr<cache::DirectoryFacts> facts =
      tools.disk() == nullptr ? absl::UnavailableError("not open") : tools.disk()->Describe();
  if (!facts.ok()) {
    store["trust"] = "refused";
    report.Line("store", absl::StrCat(location.directory, " (", location.why, ")"));
    report.findings.push_back(
        {true, absl::StrCat("the store has become unusable: ", facts.status().message()),
         "make it a directory that only you can write"});
    return;
  }
  // What can be written by others was refused when it was opened.
  const bool shared = tools.options().cache_group_shared;
  const std::string mode = absl::StrFormat("%04o", facts->mode);
  store["trust"] = shared ? "group" : "private";
  store["owner"] = facts->owner;
  store["mode"] = mode;
  store["file_system"] = facts->file_system;
  store["network"] = facts->network;
  store["free_bytes"] = facts->free_bytes;
  report.Line("store",
              absl::StrCat(location.directory, " (", location.why, "), ", facts->file_system));
  report.Line("", absl::StrCat(shared ? "shared with a group" : "only this user can write",
                               ": owner ", facts->owner, ", mode ", mode));
  if (shared) {
    report.findings.push_back(
        {false, "the store is shared: whoever can write there can run code on your GPU",
         "nothing, if you trust the group; else unset TILEWRIGHT_CACHE_SHARED"});
  }
  if (facts->network) {
    report.findings.push_back({false,
                               absl::StrCat("the store lies on ", facts->file_system,
                                            ", where locks may not reach other hosts"),
                               "nothing: a kernel may be compiled twice, never wrongly"});
  }
}

void ExaminePacks(const Toolchain& tools, Report& report) {
  Json packs = Json::array();
  for (const cache::PackState& pack : tools.packs()) {
    Json row = {{"path", pack.place}, {"sha256", pack.sha256}, {"used", pack.refused.empty()}};
    if (!pack.refused.empty()) row["refused"] = pack.refused;
    packs.push_back(row);
    report.Line("pack", absl::StrCat(pack.place, pack.refused.empty() ? "" : " (refused)",
                                     pack.sha256.empty() ? "" : ", sha256 ", pack.sha256));
    if (!pack.refused.empty()) {
      report.findings.push_back(
          {true, absl::StrCat("a pack is not used: ", pack.refused),
           "correct TILEWRIGHT_CACHE_PACKS or TILEWRIGHT_PACK_SHA256, or make "
           "the pack again with tilewright cache export"});
    }
  }
  report.json["packs"] = packs;
}

void ExamineStore(Toolchain& tools, Report& report) {
  const cache::StoreLocation& location = tools.location();
  const cache::StoreStats stats = tools.store().Stats();
  Json store = {{"directory", location.directory}, {"why", location.why}};
  if (location.directory.empty()) {
    report.Line("store", absl::StrCat("memory only: ", location.why));
    const bool asked = tools.options().cache_in_memory;
    if (!asked) {
      report.findings.push_back(
          {true, absl::StrCat("kernels are not kept: ", location.why),
           "name a directory that only you can write with TILEWRIGHT_CACHE_DIR"});
    }
  } else {
    ExamineDirectory(tools, store, report);
  }
  store["entries"] = stats.entries;
  store["bytes"] = stats.bytes;
  store["read_only"] = tools.options().cache_read_only;
  report.Line("", absl::StrCat(stats.entries, " entries, ", stats.bytes, " bytes"));
  if (stats.corrupt + stats.foreign > 0) {
    report.findings.push_back({true,
                               absl::StrCat(stats.corrupt, " corrupt and ", stats.foreign,
                                            " foreign entries in the store"),
                               "tilewright cache verify"});
  }
  report.json["store"] = store;
}

void ExamineEnvironment(Report& report) {
  Json variables = Json::array();
  for (const EnvVariable& variable : EnvVariables()) {
    const std::optional<std::string> value = GetEnv(variable.name);
    Json row = {{"name", std::string(variable.name)}, {"option", std::string(variable.option)}};
    if (value.has_value()) {
      row["value"] = *value;
      report.Line("env", absl::StrCat(AbslView(variable.name), "=", *value));
    }
    variables.push_back(row);
  }
  report.json["environment"] = variables;
  const std::vector<std::string> unknown = UnknownEnvVariables();
  report.json["unknown_variables"] = unknown;
  for (const std::string& name : unknown) {
    report.findings.push_back({true, absl::StrCat(name, " is set, but there is no such variable"),
                               "tilewright doctor --env-table lists those that there are"});
  }
}

int Doctor(const DoctorOptions& options, const Console& console) {
  if (options.env_table || options.word_table) {
    console.out << (options.env_table ? EnvironmentTable() : WordTable());
    return kExitFine;
  }
  Report report;
  ExamineDriver(report);
  absl::StatusOr<std::unique_ptr<Toolchain>> tools = Toolchain::Open();
  if (tools.ok()) {
    ExamineCompiler(**tools, report);
    ExamineStore(**tools, report);
    ExaminePacks(**tools, report);
  } else {
    report.findings.push_back(
        {true, std::string(tools.status().message()), "correct or unset the variable"});
  }
  ExamineEnvironment(report);

  Json findings = Json::array();
  bool fine = true;
  for (const Finding& finding : report.findings) {
    fine = fine && !finding.problem;
    findings.push_back(
        {{"problem", finding.problem}, {"what", finding.what}, {"remedy", finding.remedy}});
  }
  if (console.json) {
    Json object = {{"command", "doctor"}, {"ok", fine}};
    object.update(report.json);
    object["findings"] = findings;
    console.Print(object);
  } else {
    for (const auto& [name, text] : report.lines) {
      console.out << absl::StreamFormat("%-9s %s\n", name, text);
    }
    for (const Finding& finding : report.findings) {
      console.out << (finding.problem ? "PROBLEM   " : "note      ") << finding.what
                  << "\n          remedy: " << finding.remedy << "\n";
    }
    if (fine) console.out << "No problems.\n";
  }
  return fine ? kExitFine : kExitProblem;
}

}  // namespace

void AddDoctorCommand(CLI::App& app, Chosen& chosen) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command = app.add_subcommand(
      "doctor", "What was found on this machine: driver, NVRTC, GPUs, store, environment");
  command->add_flag("--env-table", options->env_table,
                    "Print the table of environment variables (Markdown)");
  command->add_flag("--word-table", options->word_table,
                    "Print the table of the words of a spec (Markdown)");
  command->callback([options, &chosen] {
    chosen = [options](const Console& console) { return Doctor(*options, console); };
  });
}

}  // namespace tilewright::cli
