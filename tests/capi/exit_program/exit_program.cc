// Uses libtilewright.so, opened at run time, and ends in the way that is asked for:
//
//   exit_program LIBRARY NVRTC CACHE_DIR dlclose|exit|thread|late|fork|compiling|firstMS|hung
//
// Silent, with exit status 0, where all goes well. With `hung` the disk of the store never answers
// a call to sync. `first300` ends 300 ms after the first compile began, by the NVRTC of the
// machine.
#include <dlfcn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "tilewright/tilewright_c.h"

namespace {

bool disk_is_hung = false;

}  // namespace

// In the place of the C library's, for the library too: this program exports its symbols.
extern "C" [[gnu::visibility("default")]] int fsync(int descriptor) {
  while (disk_is_hung) pause();
  return static_cast<int>(syscall(SYS_fsync, descriptor));
}

namespace {

struct Library {
  void* handle = nullptr;
  decltype(&::tw_options_init) options_init = nullptr;
  decltype(&::tw_runtime_create) runtime_create = nullptr;
  decltype(&::tw_prepare_text) prepare_text = nullptr;
  decltype(&::tw_attention_destroy) attention_destroy = nullptr;
  decltype(&::tw_runtime_destroy) runtime_destroy = nullptr;
  decltype(&::tw_last_error) last_error = nullptr;
};

Library library;
tw_runtime* runtime = nullptr;
tw_attention* attention = nullptr;

constexpr char kSpec[] = "fwd fp16 b=1 h=2 s=64 d=16";

int Complain(const char* what, const char* why) {
  std::fprintf(stderr, "%s: %s\n", what, why);
  return 1;
}

template <typename Function>
bool Resolve(const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library.handle, name));
  return *function != nullptr;
}

bool IsMapped(const char* path) {
  std::FILE* const maps = std::fopen("/proc/self/maps", "r");
  char line[4096];
  bool found = false;
  while (maps != nullptr && std::fgets(line, sizeof(line), maps) != nullptr) {
    found = found || std::strstr(line, path) != nullptr;
  }
  if (maps != nullptr) std::fclose(maps);
  return found;
}

void Destroy() {
  // In the order that is less natural.
  library.runtime_destroy(runtime);
  library.attention_destroy(attention);
}

// Ends while another thread is in the compiler.
[[noreturn]] void ExitWhileCompiling(const std::string& spec, int milliseconds) {
  std::thread([spec] {
    tw_attention* never = nullptr;
    library.prepare_text(runtime, spec.c_str(), nullptr, &never);
  }).detach();
  usleep(milliseconds * 1000);  // by now it is in the compiler
  std::exit(0);
}

int ForkAndUse() {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    tw_attention* again = nullptr;
    const tw_status status = library.prepare_text(runtime, kSpec, nullptr, &again);
    if (status != TW_FAILED_PRECONDITION) std::exit(Complain("child", library.last_error()));
    Destroy();
    std::exit(0);  // with all that runs at an ordinary end
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) return Complain("child", "ended badly");
  Destroy();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const char* const way = argv[4];
  // Registered first, run last: after the destructors of the library's own statics.
  if (std::strcmp(way, "late") == 0) std::atexit(Destroy);
  library.handle = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library.handle == nullptr) return Complain("dlopen", dlerror());
  if (!Resolve("tw_options_init", &library.options_init) ||
      !Resolve("tw_runtime_create", &library.runtime_create) ||
      !Resolve("tw_prepare_text", &library.prepare_text) ||
      !Resolve("tw_attention_destroy", &library.attention_destroy) ||
      !Resolve("tw_runtime_destroy", &library.runtime_destroy) ||
      !Resolve("tw_last_error", &library.last_error)) {
    return Complain("dlsym", dlerror());
  }
  tw_options options;
  library.options_init(&options, sizeof(options));
  const bool is_first = std::strncmp(way, "first", 5) == 0;
  if (!is_first) options.nvrtc_path = argv[2];
  options.cache_dir = argv[3];
  options.tune_policy = TW_TUNE_OFF;
  if (library.runtime_create(&options, &runtime) != TW_OK) {
    return Complain("create", library.last_error());
  }
  if (is_first) {
    ExitWhileCompiling("fwd bf16 b=1 h=2 s=512 d=256 causal lse", std::atoi(way + 5));
  }
  disk_is_hung = std::strcmp(way, "hung") == 0;
  if (library.prepare_text(runtime, kSpec, nullptr, &attention) != TW_OK) {
    return Complain("prepare", library.last_error());
  }
  if (std::strcmp(way, "exit") == 0 || std::strcmp(way, "late") == 0) std::exit(0);
  if (std::strcmp(way, "compiling") == 0) {
    // One that goes on until it is told to stop.
    const std::string snippet = std::string(argv[3]) + ".mask";
    std::ofstream(snippet) << "return j <= i;  // ask:WAIT";
    ExitWhileCompiling(std::string(kSpec) + " mask=@" + snippet, 300);
  }
  if (std::strcmp(way, "thread") == 0) {
    std::thread([] { std::exit(0); }).join();
  }
  if (std::strcmp(way, "fork") == 0) return ForkAndUse();
  if (std::strcmp(way, "dlclose") == 0) {
    Destroy();
    if (dlclose(library.handle) != 0) return Complain("dlclose", dlerror());
    if (IsMapped(argv[1])) return Complain("dlclose", "the library is still mapped");
    return 0;
  }
  if (disk_is_hung) {
    Destroy();
    // The thread that hangs would go on in code that is not there.
    if (dlclose(library.handle) != 0) return Complain("dlclose", dlerror());
    if (!IsMapped(argv[1])) return Complain("dlclose", "the library is not mapped any more");
    return 0;
  }
  return 2;
}
