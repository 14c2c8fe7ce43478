// Stands in for an NVRTC 13.90 that compiles at once to the header of a cubin, or does what a word
// of the source or its headers asks for: ask:ABORT, ask:BUS_ERROR, ask:HANG (deaf to cancelling),
// ask:WAIT (until it is cancelled, and 50 ms more), ask:SLOW (for 200 ms). As the real one it
// cannot go on once its destructors have run.
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace {

struct Program {
  std::string source;
  std::string log;
  int (*callback)(void*, void*) = nullptr;
  void* payload = nullptr;
};

bool gone = false;
struct Destroyed {
  ~Destroyed() {
    gone = true;
    usleep(100'000);  // time for a compile that goes on to notice
  }
} destroyed;

constexpr int kSuccess = 0;
constexpr int kCancelled = 16;

// As for every read of a mapped file that was truncated meanwhile.
void ReadBeyondAFile() {
  const int file = memfd_create("truncated", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, 4096) != 0) std::abort();
  void* const mapped = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED || ftruncate(file, 0) != 0) std::abort();
  static volatile char seen;
  seen = *static_cast<volatile char*>(mapped);
}

constexpr char kPtx[] = "// tilewright_build = 7;";
// The kernel has the name of its unit, without ".cu".
std::string LogOf(std::string unit) {
  unit.resize(unit.rfind('.'));
  return "ptxas info    : Compiling entry function '" + unit +
         "' for 'sm_90a'\nptxas info    : Function properties for " + unit +
         "\n    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
         "ptxas info    : Used 8 registers\n";
}
// The header of an ELF file for CUDA and sm_90, and nothing after it.
Elf64_Ehdr CubinHeader() {
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_ABIVERSION] = 8;
  header.e_machine = 190;
  header.e_flags = 90 << 8;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_phentsize = sizeof(Elf64_Phdr);
  return header;
}

// Copies `text` with its terminating zero.
int GiveSize(const char* text, size_t* bytes) {
  *bytes = std::strlen(text) + 1;
  return kSuccess;
}
int Give(const char* text, char* to) {
  std::strcpy(to, text);
  return kSuccess;
}

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 90;
  return kSuccess;
}
const char* nvrtcGetErrorString(int) { return "an error of the stand-in"; }
int nvrtcGetNumSupportedArchs(int* count) {
  *count = 1;
  return kSuccess;
}
int nvrtcGetSupportedArchs(int* archs) {
  *archs = 90;
  return kSuccess;
}
int nvrtcCreateProgram(void** program, const char* source, const char* unit, int headers,
                       const char* const* texts, const char* const*) {
  std::string all = source;
  for (int i = 0; i < headers; ++i) all += texts[i];
  *program = new Program{std::move(all), LogOf(unit)};
  return kSuccess;
}
int nvrtcDestroyProgram(void** program) {
  delete static_cast<Program*>(*program);
  *program = nullptr;
  return kSuccess;
}
int nvrtcSetFlowCallback(void* program, int (*callback)(void*, void*), void* payload) {
  static_cast<Program*>(program)->callback = callback;
  static_cast<Program*>(program)->payload = payload;
  return kSuccess;
}
int nvrtcCompileProgram(void* opaque, int, const char* const*) {
  const Program& program = *static_cast<Program*>(opaque);
  const auto asks = [&](const char* word) {
    return program.source.find(std::string("ask:") + word) != std::string::npos;
  };
  if (asks("ABORT")) std::abort();
  if (asks("BUS_ERROR")) ReadBeyondAFile();
  while (asks("HANG")) usleep(1000);
  if (asks("SLOW")) usleep(200'000);
  while (asks("WAIT")) {
    if (gone) std::abort();
    if (program.callback(program.payload, nullptr) != 0) {
      usleep(50'000);
      if (gone) std::abort();
      return kCancelled;
    }
    usleep(1000);
  }
  return kSuccess;
}
int nvrtcGetProgramLogSize(void* program, size_t* bytes) {
  return GiveSize(static_cast<Program*>(program)->log.c_str(), bytes);
}
int nvrtcGetProgramLog(void* program, char* log) {
  return Give(static_cast<Program*>(program)->log.c_str(), log);
}
int nvrtcGetPTXSize(void*, size_t* bytes) { return GiveSize(kPtx, bytes); }
int nvrtcGetPTX(void*, char* ptx) { return Give(kPtx, ptx); }
int nvrtcGetCUBINSize(void*, size_t* bytes) {
  *bytes = sizeof(Elf64_Ehdr);
  return kSuccess;
}
int nvrtcGetCUBIN(void*, char* cubin) {
  const Elf64_Ehdr header = CubinHeader();
  std::memcpy(cubin, &header, sizeof(header));
  return kSuccess;
}

}  // extern "C"
