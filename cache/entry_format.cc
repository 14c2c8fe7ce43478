#include "cache/entry_format.h"

#include <limits>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tilewright::cache {
namespace {

// As in PNG: a byte above 127 and both kinds of line end, which transfers as text would change.
constexpr std::string_view kMagic("\x89TWK\r\n\x1a\n", 8);
constexpr uint32_t kSchema = 1;
constexpr size_t kDigestBytes = 32;
constexpr size_t kHeaderBytes = 8 + 8 + 4 + 4;  // magic, length, schema, number of sections
constexpr size_t kMinBytes = kHeaderBytes + 8 + 8 + kDigestBytes;  // empty manifest and variant
constexpr size_t kVariantHexDigits = 16;
constexpr std::string_view kSuffix = ".twk";

void AppendInteger(uint64_t value, size_t bytes, std::string* out) {
  for (size_t i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

void AppendBlob(std::string_view bytes, std::string* out) {
  AppendInteger(bytes.size(), 8, out);
  out->append(bytes);
}

// Reads little-endian integers and blobs; after the first that does not fit it yields nothing more.
class Reader {
 public:
  explicit Reader(std::string_view rest) : rest_(rest) {}

  bool ReadInteger(size_t bytes, uint64_t* value) {
    if (rest_.size() < bytes) return false;
    *value = 0;
    for (size_t i = 0; i < bytes; ++i) {
      *value |= uint64_t{static_cast<uint8_t>(rest_[i])} << (8 * i);
    }
    rest_.remove_prefix(bytes);
    return true;
  }

  bool ReadBlob(std::string* bytes) {
    uint64_t size = 0;
    if (!ReadInteger(8, &size) || size > rest_.size()) return false;
    bytes->assign(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return true;
  }

  size_t left() const { return rest_.size(); }

 private:
  std::string_view rest_;
};

absl::Status Damaged(absl::string_view what) { return absl::DataLossError(what); }

bool IsLowerHex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

absl::StatusOr<std::string> SerializeEntry(const Entry& entry) {
  if (entry.sections.size() > kMaxSections) {
    return absl::InvalidArgumentError(absl::StrCat(
        "entry has ", entry.sections.size(), " sections; at most ", kMaxSections, " are allowed"));
  }
  absl::flat_hash_set<std::string_view> names;
  size_t total = kMinBytes + entry.manifest.size() + entry.variant.size();
  for (const Section& section : entry.sections) {
    if (section.name.empty() || !names.insert(section.name).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "section name is \"", section.name, "\"; it must not be empty and must occur once"));
    }
    total += 8 + section.name.size() + 8 + section.bytes.size();
  }
  if (total > static_cast<size_t>(kMaxEntryBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("entry takes ", total, " bytes; at most ", kMaxEntryBytes, " are allowed"));
  }
  std::string file;
  file.reserve(total);
  file.append(kMagic);
  AppendInteger(total, 8, &file);
  AppendInteger(kSchema, 4, &file);
  AppendInteger(entry.sections.size(), 4, &file);
  AppendBlob(entry.manifest, &file);
  AppendBlob(entry.variant, &file);
  for (const Section& section : entry.sections) {
    AppendBlob(section.name, &file);
    AppendBlob(section.bytes, &file);
  }
  const Digest digest = Sha256(file);
  file.append(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
  return file;
}

absl::StatusOr<Entry> ParseEntry(std::string_view file) {
  if (file.size() < kMinBytes) {
    return Damaged(
        absl::StrCat("length: ", file.size(), " bytes, an entry has at least ", kMinBytes));
  }
  uint64_t total = 0;
  Reader(file.substr(kMagic.size())).ReadInteger(8, &total);
  if (total != file.size()) {
    return Damaged(absl::StrCat("length: ", file.size(), " bytes, its header says ", total));
  }
  const std::string_view hashed = file.substr(0, file.size() - kDigestBytes);
  const Digest digest = Sha256(hashed);
  if (file.substr(hashed.size()) !=
      std::string_view(reinterpret_cast<const char*>(digest.bytes.data()), kDigestBytes)) {
    return Damaged("digest: the contents do not have the SHA-256 that they end with");
  }
  if (file.substr(0, kMagic.size()) != kMagic) return Damaged("magic: not an entry of this store");
  Reader reader(hashed.substr(kMagic.size() + 8));
  uint64_t schema = 0;
  uint64_t sections = 0;
  reader.ReadInteger(4, &schema);
  reader.ReadInteger(4, &sections);
  if (schema != kSchema) {
    return Damaged(absl::StrCat("schema: ", schema, ", this version reads ", kSchema));
  }
  Entry entry;
  if (!reader.ReadBlob(&entry.manifest)) return Damaged("structure: manifest");
  if (!reader.ReadBlob(&entry.variant)) return Damaged("structure: variant");
  if (sections > kMaxSections) {
    return Damaged(absl::StrCat("structure: ", sections, " sections, at most ", kMaxSections));
  }
  for (uint64_t i = 0; i < sections; ++i) {
    Section section;
    if (!reader.ReadBlob(&section.name) || !reader.ReadBlob(&section.bytes)) {
      return Damaged(absl::StrCat("structure: section ", i));
    }
    if (section.name.empty() || entry.Find(section.name) != nullptr) {
      return Damaged(absl::StrCat("structure: name of section ", i));
    }
    entry.sections.push_back(std::move(section));
  }
  if (reader.left() != 0) {
    return Damaged(absl::StrCat("structure: ", reader.left(), " bytes after the last section"));
  }
  return entry;
}

std::string VariantHex(std::string_view variant) {
  return Sha256(variant).ToHex().substr(0, kVariantHexDigits);
}

std::string EntryFileName(const Digest& digest, std::string_view variant_hex) {
  return absl::StrCat(digest.ToHex(), ".", AbslView(variant_hex), AbslView(kSuffix));
}

std::optional<EntryName> ParseEntryFileName(std::string_view name) {
  constexpr size_t kDigestHexDigits = 64;
  if (name.size() != kDigestHexDigits + 1 + kVariantHexDigits + kSuffix.size() ||
      name[kDigestHexDigits] != '.' || name.substr(name.size() - kSuffix.size()) != kSuffix) {
    return std::nullopt;
  }
  const std::optional<Digest> digest = Digest::FromHex(name.substr(0, kDigestHexDigits));
  const std::string_view variant_hex = name.substr(kDigestHexDigits + 1, kVariantHexDigits);
  if (!digest.has_value() || !IsLowerHex(variant_hex)) return std::nullopt;
  return EntryName{*digest, std::string(variant_hex)};
}

const std::string* Entry::Find(std::string_view name) const {
  for (const Section& section : sections) {
    if (section.name == name) return &section.bytes;
  }
  return nullptr;
}

}  // namespace tilewright::cache
