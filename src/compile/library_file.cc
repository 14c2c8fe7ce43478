#include "compile/library_file.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status_macros.h"

namespace tilewright::compile {
namespace {

#if defined(__aarch64__)
constexpr Elf64_Half kMachine = EM_AARCH64;
#else
constexpr Elf64_Half kMachine = EM_X86_64;
#endif

// Notes of a shared library are a few hundred bytes; more is damage.
constexpr uint64_t kMaxNoteBytes = 1 << 16;
constexpr size_t kDigestPiece = 1 << 20;

class File {
 public:
  static absl::StatusOr<File> Open(const std::string& path) {
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
      return absl::ErrnoToStatus(errno, path);
    }
    File file(path, descriptor);
    struct stat info;
    if (fstat(descriptor, &info) != 0) {
      return absl::ErrnoToStatus(errno, path);
    }
    if (!S_ISREG(info.st_mode)) {
      return absl::DataLossError(absl::StrCat(path, " is not a regular file"));
    }
    file.size_ = static_cast<uint64_t>(info.st_size);
    return file;
  }
  File(File&& other) noexcept
      : path_(std::move(other.path_)), descriptor_(other.descriptor_), size_(other.size_) {
    other.descriptor_ = -1;
  }
  File& operator=(File&&) = delete;
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }

  uint64_t size() const { return size_; }

  absl::Status Read(uint64_t offset, void* data, size_t bytes) const {
    char* out = static_cast<char*>(data);
    while (bytes > 0) {
      const ssize_t got = pread(descriptor_, out, bytes, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return absl::ErrnoToStatus(errno, path_);
      if (got == 0) return absl::DataLossError(absl::StrCat(path_, " ends early"));
      out += got;
      offset += static_cast<uint64_t>(got);
      bytes -= static_cast<size_t>(got);
    }
    return absl::OkStatus();
  }

  absl::Status Truncated(uint64_t needed) const {
    return absl::DataLossError(absl::StrCat(path_, " is truncated: its headers describe ", needed,
                                            " bytes, the file has ", size_));
  }

 private:
  File(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string path_;
  int descriptor_;
  uint64_t size_ = 0;
};

bool Fits(uint64_t offset, uint64_t bytes, uint64_t size) {
  return offset <= size && bytes <= size - offset;
}

std::optional<std::string> FindBuildId(const std::string& notes, uint64_t alignment) {
  const auto padded = [&](uint64_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
  };
  uint64_t at = 0;
  while (Fits(at, sizeof(Elf64_Nhdr), notes.size())) {
    Elf64_Nhdr header;
    std::memcpy(&header, notes.data() + at, sizeof(header));
    const uint64_t name = at + sizeof(header);
    const uint64_t descriptor = name + padded(header.n_namesz);
    if (!Fits(descriptor, header.n_descsz, notes.size())) return std::nullopt;
    if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == sizeof(ELF_NOTE_GNU) &&
        std::memcmp(notes.data() + name, ELF_NOTE_GNU, sizeof(ELF_NOTE_GNU)) == 0 &&
        header.n_descsz > 0) {
      return absl::BytesToHexString(notes.substr(descriptor, header.n_descsz));
    }
    at = descriptor + padded(header.n_descsz);
  }
  return std::nullopt;
}

absl::StatusOr<std::string> DigestInPieces(const File& file) {
  std::string digests;
  std::string piece(kDigestPiece, '\0');
  for (uint64_t at = 0; at < file.size(); at += kDigestPiece) {
    const size_t bytes = static_cast<size_t>(std::min<uint64_t>(kDigestPiece, file.size() - at));
    TILEWRIGHT_RETURN_IF_ERROR(file.Read(at, piece.data(), bytes));
    const Digest digest = Sha256(std::string_view(piece.data(), bytes));
    digests.append(digest.bytes.begin(), digest.bytes.end());
  }
  return Sha256(digests).ToHex();
}

}  // namespace

absl::StatusOr<std::string> FingerprintLibrary(const std::string& path) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const File file, File::Open(path));
  Elf64_Ehdr header;
  if (file.size() < sizeof(header)) return file.Truncated(sizeof(header));
  TILEWRIGHT_RETURN_IF_ERROR(file.Read(0, &header, sizeof(header)));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_type != ET_DYN || header.e_machine != kMachine ||
      header.e_phentsize != sizeof(Elf64_Phdr)) {
    return absl::DataLossError(absl::StrCat(path, " is not a shared library for this machine"));
  }
  // The section headers are the last thing in the file, so that they tell a truncated one.
  const uint64_t sections = uint64_t{header.e_shnum} * header.e_shentsize;
  if (!Fits(header.e_shoff, sections, file.size())) {
    return file.Truncated(header.e_shoff + sections);
  }
  const uint64_t segments_bytes = uint64_t{header.e_phnum} * sizeof(Elf64_Phdr);
  if (!Fits(header.e_phoff, segments_bytes, file.size())) {
    return file.Truncated(header.e_phoff + segments_bytes);
  }
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  TILEWRIGHT_RETURN_IF_ERROR(file.Read(header.e_phoff, segments.data(), segments_bytes));
  std::optional<std::string> build_id;
  for (const Elf64_Phdr& segment : segments) {
    if (!Fits(segment.p_offset, segment.p_filesz, file.size())) {
      return file.Truncated(segment.p_offset + segment.p_filesz);
    }
    if (segment.p_type != PT_NOTE || build_id || segment.p_filesz > kMaxNoteBytes) continue;
    std::string notes(segment.p_filesz, '\0');
    TILEWRIGHT_RETURN_IF_ERROR(file.Read(segment.p_offset, notes.data(), notes.size()));
    build_id = FindBuildId(notes, segment.p_align == 8 ? 8 : 4);
  }
  if (build_id) return absl::StrCat("build-id:", *build_id, " size:", file.size());
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::string digest, DigestInPieces(file));
  return absl::StrCat("sha256:", digest, " size:", file.size());
}

absl::StatusOr<std::string> FingerprintCache::Get(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  const std::string stamp =
      absl::StrCat(info.st_dev, ":", info.st_ino, ":", info.st_size, ":", info.st_mtim.tv_sec, ".",
                   info.st_mtim.tv_nsec, ":", info.st_ctim.tv_sec, ".", info.st_ctim.tv_nsec);
  {
    MutexLock lock(&mutex_);
    if (auto it = seen_.find(path); it != seen_.end() && it->second.stamp == stamp) {
      return it->second.fingerprint;
    }
  }
  TILEWRIGHT_ASSIGN_OR_RETURN(std::string fingerprint, FingerprintLibrary(path));
  MutexLock lock(&mutex_);
  seen_[path] = {stamp, fingerprint};
  return fingerprint;
}

}  // namespace tilewright::compile
