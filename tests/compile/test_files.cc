#include "tests/compile/test_files.h"

#include <elf.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

namespace tilewright::compile {

namespace fs = std::filesystem;

TempFolder::TempFolder() {
  std::string name = fs::temp_directory_path().string() + "/tilewright_compile_XXXXXX";
  if (mkdtemp(name.data()) == nullptr) std::abort();
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code error;
  fs::remove_all(path_, error);
}

ScopedEnv::ScopedEnv(const char* name, const char* value) : name_(name) {
  if (const char* before = std::getenv(name)) before_ = before;
  setenv(name, value, 1);
}

ScopedEnv::~ScopedEnv() {
  if (before_) {
    setenv(name_, before_->c_str(), 1);
  } else {
    unsetenv(name_);
  }
}

void WriteFile(const std::string& path, std::string_view content) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

std::string ReadFile(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

std::string SmallLibrary(std::string_view build_id, std::string_view payload) {
  std::string notes;
  const auto add_note = [&](uint32_t type, std::string_view descriptor) {
    Elf64_Nhdr header = {};
    header.n_namesz = sizeof(ELF_NOTE_GNU);
    header.n_descsz = static_cast<Elf64_Word>(descriptor.size());
    header.n_type = type;
    notes.append(reinterpret_cast<const char*>(&header), sizeof(header));
    notes.append(ELF_NOTE_GNU, sizeof(ELF_NOTE_GNU));
    notes.append(descriptor);
    notes.append((4 - descriptor.size() % 4) % 4, '\0');
  };
  add_note(NT_GNU_ABI_TAG, "another note, of odd length");
  if (!build_id.empty()) add_note(NT_GNU_BUILD_ID, build_id);

  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = ET_DYN;
#if defined(__aarch64__)
  header.e_machine = EM_AARCH64;
#else
  header.e_machine = EM_X86_64;
#endif
  header.e_version = EV_CURRENT;
  header.e_ehsize = sizeof(Elf64_Ehdr);
  header.e_phoff = sizeof(Elf64_Ehdr);
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 2;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 3;
  Elf64_Phdr load = {};
  load.p_type = PT_LOAD;
  load.p_offset = sizeof(Elf64_Ehdr) + 2 * sizeof(Elf64_Phdr);
  load.p_filesz = payload.size();
  Elf64_Phdr note = {};
  note.p_type = PT_NOTE;
  note.p_offset = load.p_offset + load.p_filesz;
  note.p_filesz = notes.size();
  note.p_align = 4;
  header.e_shoff = note.p_offset + note.p_filesz;

  std::string file;
  file.append(reinterpret_cast<const char*>(&header), sizeof(header));
  file.append(reinterpret_cast<const char*>(&load), sizeof(load));
  file.append(reinterpret_cast<const char*>(&note), sizeof(note));
  file.append(payload);
  file.append(notes);
  file.append(3 * sizeof(Elf64_Shdr), '\0');
  return file;
}

void LinkOrCopy(const std::string& from, const std::string& to) {
  fs::create_directories(fs::path(to).parent_path());
  const fs::path real = fs::canonical(from);
  std::error_code error;
  fs::create_hard_link(real, to, error);
  if (error) fs::copy_file(real, to);
}

}  // namespace tilewright::compile
