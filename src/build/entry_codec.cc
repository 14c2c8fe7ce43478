#include "build/entry_codec.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/labelled_hash.h"
#include "base/status_macros.h"
#include "build/cubin_check.h"

namespace tilewright::build {
namespace {

using Json = nlohmann::json;

std::string EncodeHeaders(const std::vector<artifact::SourceFile>& headers) {
  LabelledHash fields;
  for (const artifact::SourceFile& header : headers) {
    fields.Add("name", header.name).Add("text", header.text);
  }
  return fields.manifest();
}

// The library's typed getters throw; these look first.
absl::Status ReadInt(const Json& object, const char* name, int* value) {
  const auto it = object.find(name);
  if (it == object.end() || !it->is_number_integer()) {
    return absl::DataLossError(absl::StrCat("facts have no integer \"", name, "\""));
  }
  *value = *it->get_ptr<const Json::number_integer_t*>();
  return absl::OkStatus();
}

absl::Status ReadString(const Json& object, const char* name, std::string* value) {
  const auto it = object.find(name);
  if (it == object.end() || !it->is_string()) {
    return absl::DataLossError(absl::StrCat("facts have no string \"", name, "\""));
  }
  *value = *it->get_ptr<const std::string*>();
  return absl::OkStatus();
}

absl::Status ReadFacts(const std::string& text, artifact::KernelBinary* binary) {
  const Json facts = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!facts.is_object()) return absl::DataLossError("facts are not a JSON object");
  TILEWRIGHT_RETURN_IF_ERROR(ReadString(facts, "entry", &binary->entry_name));
  TILEWRIGHT_RETURN_IF_ERROR(ReadString(facts, "target", &binary->target));
  TILEWRIGHT_RETURN_IF_ERROR(ReadString(facts, "compiler", &binary->compiler));
  artifact::ResourceUsage& usage = binary->usage;
  TILEWRIGHT_RETURN_IF_ERROR(ReadInt(facts, "registers", &usage.registers));
  TILEWRIGHT_RETURN_IF_ERROR(ReadInt(facts, "static_smem_bytes", &usage.static_smem_bytes));
  TILEWRIGHT_RETURN_IF_ERROR(ReadInt(facts, "stack_bytes", &usage.stack_bytes));
  TILEWRIGHT_RETURN_IF_ERROR(ReadInt(facts, "spill_store_bytes", &usage.spill_store_bytes));
  TILEWRIGHT_RETURN_IF_ERROR(ReadInt(facts, "spill_load_bytes", &usage.spill_load_bytes));
  const auto ms = facts.find("compile_ms");
  if (ms == facts.end() || !ms->is_number()) {
    return absl::DataLossError("facts have no number \"compile_ms\"");
  }
  binary->compile_ms = ms->get<double>();
  return absl::OkStatus();
}

}  // namespace

cache::Entry EncodeEntry(const EntryContext& context, const artifact::KernelSource& source,
                         const artifact::KernelBinary& binary) {
  const Json facts = {
      {"entry", binary.entry_name},
      {"target", binary.target},
      {"compiler", binary.compiler},
      {"spec", context.spec_text},
      {"plan", context.plan_text},
      {"registers", binary.usage.registers},
      {"static_smem_bytes", binary.usage.static_smem_bytes},
      {"stack_bytes", binary.usage.stack_bytes},
      {"spill_store_bytes", binary.usage.spill_store_bytes},
      {"spill_load_bytes", binary.usage.spill_load_bytes},
      {"compile_ms", binary.compile_ms},
  };
  cache::Entry entry;
  entry.manifest = context.manifest;
  entry.variant = context.variant;
  // Snippet file names come from the caller and may be any bytes; JSON holds UTF-8 only.
  entry.sections.push_back(
      {"facts", facts.dump(1, ' ', false, nlohmann::json::error_handler_t::replace)});
  entry.sections.push_back({"source", source.text});
  if (!source.generated_headers.empty()) {
    entry.sections.push_back({"headers", EncodeHeaders(source.generated_headers)});
  }
  if (!binary.log.empty()) entry.sections.push_back({"log", binary.log});
  entry.sections.push_back({"cubin", binary.cubin});
  return entry;
}

absl::StatusOr<artifact::KernelBinary> DecodeEntry(const cache::Entry& entry,
                                                   const std::string& entry_name,
                                                   const std::string& target) {
  const std::string* facts = entry.Find("facts");
  const std::string* cubin = entry.Find("cubin");
  if (facts == nullptr) return absl::DataLossError("entry has no section \"facts\"");
  if (cubin == nullptr) return absl::DataLossError("entry has no section \"cubin\"");
  artifact::KernelBinary binary;
  TILEWRIGHT_RETURN_IF_ERROR(ReadFacts(*facts, &binary));
  if (binary.entry_name != entry_name) {
    return absl::DataLossError(
        absl::StrCat("entry holds the kernel ", binary.entry_name, ", expected ", entry_name));
  }
  if (binary.target != target) {
    return absl::DataLossError(absl::StrCat("entry is for ", binary.target, ", expected ", target));
  }
  TILEWRIGHT_RETURN_IF_ERROR(CheckCubin(*cubin, target));
  binary.cubin = *cubin;
  if (const std::string* log = entry.Find("log")) binary.log = *log;
  return binary;
}

absl::StatusOr<StoredRequest> DecodeRequest(const cache::Entry& entry) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const ManifestFields fields, ParseManifest(entry.manifest));
  StoredRequest request;
  std::string unit_sha256;
  std::vector<std::string> header_names;
  std::vector<std::string> header_digests;
  for (const auto& [label, bytes] : fields) {
    if (label == "entry") request.source.entry_name = bytes;
    if (label == "target") request.target = bytes;
    if (label == "options") request.options = absl::StrSplit(bytes, '\n', absl::SkipEmpty());
    if (label == "templates") request.templates = bytes;
    if (label == "unit_name") request.source.unit_name = bytes;
    if (label == "unit_sha256") unit_sha256 = bytes;
    if (label == "header_name") header_names.push_back(bytes);
    if (label == "header_sha256") header_digests.push_back(bytes);
  }
  if (request.source.entry_name.empty() || request.target.empty()) {
    return absl::DataLossError("manifest has no field \"entry\" or \"target\"");
  }
  const std::string* source = entry.Find("source");
  if (source == nullptr) return absl::DataLossError("entry has no section \"source\"");
  if (Sha256(*source).ToHex() != unit_sha256) {
    return absl::DataLossError("section \"source\" is not the text that the manifest names");
  }
  request.source.text = *source;
  if (const std::string* headers = entry.Find("headers")) {
    TILEWRIGHT_ASSIGN_OR_RETURN(const ManifestFields texts, ParseManifest(*headers));
    for (const auto& [label, bytes] : texts) {
      if (label == "name") {
        request.source.generated_headers.push_back({bytes, ""});
      } else if (!request.source.generated_headers.empty()) {
        request.source.generated_headers.back().text = bytes;
      }
    }
  }
  bool same = header_names.size() == request.source.generated_headers.size() &&
              header_digests.size() == header_names.size();
  for (size_t i = 0; same && i < header_names.size(); ++i) {
    const artifact::SourceFile& header = request.source.generated_headers[i];
    same = header.name == header_names[i] && Sha256(header.text).ToHex() == header_digests[i];
  }
  if (!same) {
    return absl::DataLossError("section \"headers\" is not the texts that the manifest names");
  }
  return request;
}

absl::Status CheckEntry(const cache::Entry& entry) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const StoredRequest request, DecodeRequest(entry));
  return DecodeEntry(entry, request.source.entry_name, request.target).status();
}

}  // namespace tilewright::build
