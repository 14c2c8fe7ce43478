#include "bench/result_file.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace tilewright::bench {
namespace {

using Json = nlohmann::ordered_json;

std::string Today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", &utc);
  return text;
}

std::string DriverVersionFromManagementLibrary() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "";
  const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
  const auto shutdown = reinterpret_cast<int (*)()>(dlsym(library, "nvmlShutdown"));
  const auto version =
      reinterpret_cast<int (*)(char*, unsigned)>(dlsym(library, "nvmlSystemGetDriverVersion"));
  char text[96] = "";
  if (init != nullptr && shutdown != nullptr && version != nullptr && init() == 0) {
    if (version(text, sizeof text) != 0) text[0] = '\0';
    shutdown();
  }
  dlclose(library);
  return text;
}

}  // namespace

Json AtMostRow(const std::string& name, double value, const std::string& unit, double limit) {
  Json row = {
      {"name", name}, {"value", value}, {"unit", unit}, {"peer", "limit"}, {"peer_value", limit}};
  if (value > 0) row["ratio"] = limit / value;
  row["must"] = 1.0;
  row["holds"] = value <= limit;
  return row;
}

Json AtLeastRow(const std::string& name, double value, const std::string& unit, double limit) {
  Json row = {
      {"name", name}, {"value", value}, {"unit", unit}, {"peer", "limit"}, {"peer_value", limit}};
  if (limit > 0) row["ratio"] = value / limit;
  row["must"] = 1.0;
  row["holds"] = value >= limit;
  return row;
}

Json FailedRow(const std::string& name, const std::string& why) {
  return {{"name", name}, {"holds", false}, {"why", why}};
}

absl::Status WriteResultFile(const std::string& path, const ResultHeader& header,
                             const std::vector<Json>& rows) {
  Json file = {{"topic", header.topic},    {"commit", header.commit}, {"date", Today()},
               {"device", header.device},  {"driver", header.driver}, {"nvrtc", header.nvrtc},
               {"command", header.command}};
  file["rows"] = rows;
  const std::filesystem::path target(path);
  std::error_code error;
  if (target.has_parent_path()) std::filesystem::create_directories(target.parent_path(), error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat(target.parent_path().string(), ": ", error.message()));
  }
  errno = 0;
  std::ofstream out(path, std::ios::trunc);
  out << file.dump(1) << '\n';
  out.close();
  if (!out) return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  return absl::OkStatus();
}

std::string InstalledDriverVersion() {
  std::ifstream proc("/proc/driver/nvidia/version");
  std::stringstream text;
  text << proc.rdbuf();
  std::smatch match;
  const std::string all = text.str();
  if (std::regex_search(all, match, std::regex(R"(\s(\d{3}\.\d+(\.\d+)?)\s)"))) return match[1];
  const std::string managed = DriverVersionFromManagementLibrary();
  return managed.empty() ? "unknown" : managed;
}

}  // namespace tilewright::bench
