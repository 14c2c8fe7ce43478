#include "tests/emulated/emulated_kernel.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <regex>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tilewright::emulated {
namespace {

// The most that a block of any architecture has, and room in which to notice a write too far.
constexpr size_t kMaxSharedBytes = 228 << 10;
constexpr size_t kSharedArrayBytes = kMaxSharedBytes + 4096;

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The namespace of a family's SharedStorage and Run.
std::string FamilyScope(const std::string& text) {
  static const std::regex kRun(R"(tilewright::(\w+)::Run<tilewright::Config>)");
  std::smatch match;
  return std::regex_search(text, match, kRun) ? std::string(match[1]) : "";
}

// An asm statement of the emitted wgmma products, at `text[begin]`, as a call that runs its text.
// The statement has the form
//   asm volatile("..." "..." : "+f"(x), ... : "r"(y), ..., "l"(z), ... : "memory");
std::string CallOfAsm(const std::string& statement) {
  static const std::regex kOperand(R"re("(\+f|r|l)"\(([^()]*)\))re");
  std::string outputs, inputs, wide;
  int counts[3] = {0, 0, 0};
  for (std::sregex_iterator it(statement.begin(), statement.end(), kOperand), end; it != end;
       ++it) {
    const std::string kind = (*it)[1], expression = (*it)[2];
    const int which = kind == "+f" ? 0 : kind == "r" ? 1 : 2;
    ++counts[which];
    absl::StrAppend(which == 0   ? &outputs
                    : which == 1 ? &inputs
                                 : &wide,
                    which == 2 ? "" : "&", expression, ", ");
  }
  // The text is what stands before the first colon outside of a string.
  bool in_string = false;
  size_t end = 0;
  for (; end < statement.size() && (in_string || statement[end] != ':'); ++end) {
    if (statement[end] == '"') in_string = !in_string;
  }
  const size_t begin = statement.find('(') + 1;
  return absl::StrCat(
      "{ float* const outputs__[] = {", outputs, "nullptr}; const unsigned* const inputs__[] = {",
      inputs, "nullptr}; const unsigned long long wide__[] = {", wide,
      "0}; cuda_on_host::RunProducts(", statement.substr(begin, end - begin), ", outputs__, ",
      counts[0], ", inputs__, ", counts[1], ", wide__, ", counts[2], "); }");
}

// `text` with calls in the place of asm statements.
std::string WithoutAsm(const std::string& text) {
  const std::string keyword = "asm volatile(";
  std::string result;
  size_t at = 0;
  for (size_t begin; (begin = text.find(keyword, at)) != std::string::npos;) {
    const size_t end = text.find(");\n", begin) + 2;
    absl::StrAppend(&result, text.substr(at, begin - at),
                    CallOfAsm(text.substr(begin, end - begin)));
    at = end;
  }
  if (at != 0) result = "#include \"ptx/wgmma.cuh\"\n" + result;
  return result + text.substr(at);
}

// What the kernel is compiled with behind it: its shared memory and a way to call it.
std::string Epilogue(const artifact::KernelSource& source) {
  return absl::StrCat(
      "\nnamespace tilewright::", FamilyScope(source.text), " {\nalignas(1024) u8 shared_bytes[",
      kSharedArrayBytes,
      "];\n}\nextern \"C\" {\nextern __attribute__((visibility(\"hidden\"))) char __ehdr_start[], "
      "_end[];\n"
      "void CallKernel(const void* params) {\n  ",
      source.entry_name,
      "(*static_cast<const tilewright::Params*>(params));\n}\n"
      "void* SharedBytes() { return tilewright::",
      FamilyScope(source.text),
      "::shared_bytes; }\n"
      "const char* ImageBegin() { return __ehdr_start; }\n"
      "const char* ImageEnd() { return _end; }\n}\n");
}

}  // namespace

Kernel::Kernel(const artifact::KernelSource& source) {
  static std::atomic<int> count = 0;
  folder_ = std::filesystem::path(testing::TempDir()) /
            absl::StrCat("tilewright_emulated_", getpid(), "_", count++);
  std::filesystem::create_directories(folder_ / "user");
  for (const artifact::SourceFile& header : source.generated_headers) {
    std::filesystem::create_directories((folder_ / header.name).parent_path());
    std::ofstream(folder_ / header.name) << WithoutAsm(header.text);
  }
  std::ofstream(folder_ / "kernel.cc") << source.text << Epilogue(source);
  if (!Compile("", "kernel")) {
    error_ = ReadFile(folder_ / "log");
    return;
  }
  library_ = dlopen((folder_ / "kernel.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) error_ = dlerror();
}

Kernel::~Kernel() {
  if (library_ != nullptr) dlclose(library_);
  std::filesystem::remove_all(folder_);
}

bool Kernel::Compile(const std::string& flags, const std::string& output) const {
  const std::string root = TILEWRIGHT_SOURCE_DIR;
  // Relative names inside the folder, so that the same kernel is the same text to ccache.
  // Calls before loads and stores, but none of the sanitizer's library: emulator/memory.cc.
  const std::string compile =
      absl::StrCat("cd ", folder_.string(), " && ", TILEWRIGHT_CXX_COMMAND, " -std=c++20 -O1 ",
                   flags, TILEWRIGHT_WATCH_FLAGS " -w -fno-strict-aliasing -fPIC -I. -I", root,
                   "/tests/emulated -I", root, "/kernel_templates -include ", root,
                   "/tests/emulated/cuda_on_host.h -c kernel.cc -o ", output, ".o 2> log");
  const std::string link = absl::StrCat("cd ", folder_.string(), " && ", TILEWRIGHT_CXX_COMPILER,
                                        " -shared ", output, ".o -o ", output, ".so 2> log");
  return std::system(compile.c_str()) == 0 && std::system(link.c_str()) == 0;
}

std::string Kernel::LineOf(uintptr_t code) const {
  const auto begin = reinterpret_cast<uintptr_t>(
      reinterpret_cast<const char* (*)()>(dlsym(library_, "ImageBegin"))());
  const std::string command =
      absl::StrCat("cd ", folder_.string(), " && addr2line -e with_lines.so 0x",
                   absl::Hex(code - begin - 1), " 2>&1");
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string line;
  if (pipe != nullptr) {
    char buffer[256];
    while (fgets(buffer, sizeof buffer, pipe.get()) != nullptr) line += buffer;
  }
  return line.substr(0, line.find('\n'));
}

std::vector<std::string> Kernel::Launch(const void* params, size_t param_bytes, unsigned grid,
                                        int threads, int cluster, size_t smem_bytes,
                                        std::vector<cuda_on_host::MemoryRange> memory) const {
  const auto call = reinterpret_cast<void (*)(const void*)>(dlsym(library_, "CallKernel"));
  const auto text = [this](const char* name) {
    return reinterpret_cast<const char* (*)()>(dlsym(library_, name))();
  };
  memory.push_back({params, param_bytes, false, "the parameters"});
  const auto image_bytes = static_cast<size_t>(text("ImageEnd") - text("ImageBegin"));
  memory.push_back({text("ImageBegin"), image_bytes, true, "the kernel's variables",
                    /*private_to_kernel=*/true});
  const cuda_on_host::LaunchConfig config = {
      .grid = grid,
      .threads = threads,
      .cluster = cluster,
      .shared =
          static_cast<std::byte*>(reinterpret_cast<void* (*)()>(dlsym(library_, "SharedBytes"))()),
      .shared_bytes = smem_bytes,
      .memory = std::move(memory),
  };
  const std::vector<cuda_on_host::Fault> faults =
      cuda_on_host::Launch(config, [&] { call(params); });
  std::vector<std::string> texts;
  // The lines are worth a second compile only now.
  const bool with_lines = !faults.empty() && Compile("-g1 ", "with_lines");
  for (const cuda_on_host::Fault& fault : faults) {
    texts.push_back(fault.what);
    if (with_lines && fault.code != 0) absl::StrAppend(&texts.back(), " at ", LineOf(fault.code));
  }
  return texts;
}

}  // namespace tilewright::emulated
