// The rules of the tree that no compiler checks: who may include whom (src/LAYERS), where CUDA, asm
// and the environment may appear, and how kernel templates stay free of the host. Each rule is also
// tried on a planted violation below.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Layers = std::map<std::string, std::set<std::string>>;

// ---- reading
// --------------------------------------------------------------------------------------------------------

// name : name name ...     # comment
Layers ParseLayers(const std::string& text) {
  Layers layers;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    line = line.substr(0, line.find('#'));
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::istringstream name(line.substr(0, colon));
    std::istringstream edges(line.substr(colon + 1));
    std::string layer;
    name >> layer;
    layers[layer].insert(std::istream_iterator<std::string>(edges),
                         std::istream_iterator<std::string>());
  }
  return layers;
}

// C++ text, by line, without comments; `code` also without what stands in string literals.
struct SourceLines {
  std::vector<std::string> code;
  std::vector<std::string> with_strings;
};

SourceLines Scan(const std::string& text) {
  SourceLines lines;
  std::string code, with_strings;
  const auto end_line = [&] {
    lines.code.push_back(std::exchange(code, ""));
    lines.with_strings.push_back(std::exchange(with_strings, ""));
  };
  const auto copy = [&](size_t begin, size_t end, bool is_code) {
    for (size_t n = begin; n < end && n < text.size(); ++n) {
      if (text[n] == '\n') {
        end_line();
      } else {
        with_strings += text[n];
        if (is_code) code += text[n];
      }
    }
  };
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  for (size_t n = 0; n < text.size();) {
    const std::string_view rest = std::string_view(text).substr(n);
    if (rest.substr(0, 2) == "//") {
      n = std::min(text.find('\n', n), text.size());
    } else if (rest.substr(0, 2) == "/*") {
      const size_t end = std::min(text.find("*/", n + 2), text.size() - 2) + 2;
      for (; n < end; ++n) {
        if (text[n] == '\n') end_line();
      }
    } else if (rest.substr(0, 2) == "R\"" && (n == 0 || !is_word(text[n - 1]))) {
      const size_t open = text.find('(', n);
      const std::string close = ")" + text.substr(n + 2, open - n - 2) + "\"";
      const size_t end = std::min(text.find(close, open), text.size() - 1) + close.size();
      copy(n, end, false);
      n = end;
    } else if (text[n] == '"' || (text[n] == '\'' && (n == 0 || !is_word(text[n - 1])))) {
      size_t end = n + 1;
      while (end < text.size() && text[end] != text[n] && text[end] != '\n') {
        end += text[end] == '\\' ? 2 : 1;
      }
      copy(n, end + 1, false);
      n = end + 1;
    } else {
      copy(n, n + 1, true);
      ++n;
    }
  }
  end_line();
  return lines;
}

struct Include {
  size_t line;
  bool angle;
  std::string path;
  std::string folder() const {
    const size_t slash = path.find('/');
    return slash == std::string::npos ? "" : path.substr(0, slash);
  }
};

std::vector<Include> FindIncludes(const SourceLines& lines) {
  static const std::regex kInclude(R"re(^\s*#\s*include\s*(<([^>]*)>|"([^"]*)"))re");
  std::vector<Include> includes;
  for (size_t n = 0; n < lines.with_strings.size(); ++n) {
    std::smatch match;
    if (std::regex_search(lines.with_strings[n], match, kInclude)) {
      includes.push_back({n, match[2].matched, match[2].matched ? match[2] : match[3]});
    }
  }
  return includes;
}

// ---- rules
// ----------------------------------------------------------------------------------------------------------

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

class Checker {
 public:
  Checker(const Layers& layers, std::string path, const std::string& text)
      : layers_(layers), path_(std::move(path)), lines_(Scan(text)) {}

  // "file:line: what is wrong" for each violation.
  std::vector<std::string> Run() {
    CheckTokens();
    for (const Include& include : FindIncludes(lines_)) {
      if (StartsWith(path_, "kernel_templates/")) {
        CheckTemplateInclude(include);
      } else {
        CheckHostInclude(include);
      }
    }
    if (StartsWith(path_, "kernel_templates/family/") ||
        StartsWith(path_, "kernel_templates/policy/")) {
      CheckConditionals();
    }
    return std::move(violations_);
  }

 private:
  void Report(size_t line, const std::string& what) {
    violations_.push_back(path_ + ":" + std::to_string(line + 1) + ": " + what);
  }

  void ReportEach(const std::vector<std::string>& lines, const std::regex& pattern,
                  const std::string& what) {
    for (size_t n = 0; n < lines.size(); ++n) {
      if (std::regex_search(lines[n], pattern)) Report(n, what);
    }
  }

  void CheckTokens() {
    static const std::regex kGetenv(R"(\b(secure_)?getenv\b)");
    static const std::regex kThrow(R"(\bthrow\b)");
    static const std::regex kAsm(R"(\b(asm|__asm__|__asm)\b)");
    // In a string: text of a kernel.
    static const std::regex kAsmText(R"(\b(asm|__asm__|__asm)\b\s*(volatile|__volatile__)?\s*\()");
    static const std::regex kArch(R"(\b__CUDA_ARCH(__|_LIST__|_FEAT_\w+)?\b)");
    if (path_ != "src/base/env.cc") {
      ReportEach(lines_.code, kGetenv, "getenv belongs to src/base/env.cc");
    }
    ReportEach(lines_.code, kThrow, "throw: errors are absl::Status");
    const bool is_ptx = StartsWith(path_, "kernel_templates/ptx/");
    if (!is_ptx && path_ != "src/emit/wgmma_wrapper.cc") {
      const std::string what = "asm belongs to kernel_templates/ptx and src/emit/wgmma_wrapper.cc";
      for (size_t n = 0; n < lines_.code.size(); ++n) {
        if (std::regex_search(lines_.code[n], kAsm) ||
            std::regex_search(lines_.with_strings[n], kAsmText)) {
          Report(n, what);
        }
      }
    }
    if (!is_ptx) {
      ReportEach(lines_.with_strings, kArch, "__CUDA_ARCH__ belongs to kernel_templates/ptx");
    }
  }

  // The layer of a host file: its folder below src/, or "cache".
  std::string HostLayer() const {
    const std::string inner = StartsWith(path_, "src/") ? path_.substr(4) : path_;
    const size_t slash = inner.find('/');
    return slash == std::string::npos ? "" : inner.substr(0, slash);
  }

  void CheckHostInclude(const Include& include) {
    const std::string layer = HostLayer();
    if (!layers_.contains(layer)) {
      Report(include.line, "folder \"" + layer + "\" is not in src/LAYERS");
      return;
    }
    if (include.path == "nvrtc.h" && layer != "compile") {
      Report(include.line, "<nvrtc.h> belongs to src/compile");
    }
    if ((StartsWith(include.path, "cuda") || StartsWith(include.path, "cuda/")) &&
        layer != "device") {
      Report(include.line, "<cuda.h> and its like belong to src/device");
    }
    if (include.angle) return;
    static const std::set<std::string> kLibraries = {"absl", "nlohmann", "CLI", "cuda.h",
                                                     "nvrtc.h"};
    std::string folder = include.folder();
    if (kLibraries.contains(folder) || kLibraries.contains(include.path)) return;
    if (folder == "tilewright") folder = "include";
    if (!layers_.contains(folder)) {
      Report(include.line, "\"" + include.path + "\" names no folder of src/LAYERS");
    } else if (folder != layer && !layers_.at(layer).contains(folder)) {
      Report(include.line, layer + " must not include " + folder + " (" + include.path +
                               "); src/LAYERS has no such edge");
    }
  }

  void CheckTemplateInclude(const Include& include) {
    if (include.angle) {
      Report(include.line, "<" + include.path + ">: kernel templates include nothing from outside");
      return;
    }
    const std::string inner = path_.substr(std::string("kernel_templates/").size());
    const std::string from = inner.substr(0, inner.find('/'));
    const std::string name = inner.substr(inner.find('/') + 1);
    static const std::map<std::string, std::set<std::string>> kAllowed = {
        {"abi", {"abi"}},
        {"ptx", {}},  // core/types.cuh, below
        {"core", {"core", "ptx", "abi"}},
        {"policy", {"policy", "core", "ptx", "abi"}},
        {"mma", {"mma", "policy", "core", "ptx", "abi"}},
        {"family", {"mma", "policy", "core", "ptx", "abi"}},
    };
    const auto allowed = kAllowed.find(from);
    if (allowed == kAllowed.end()) {
      Report(include.line, "kernel_templates has no folder \"" + from + "\"");
      return;
    }
    if (from == "ptx" && include.path == "core/types.cuh") return;
    const std::string folder = include.folder();
    if (!allowed->second.contains(folder)) {
      Report(include.line, from + " must not include " + include.path);
      return;
    }
    // Masks and scores are also compiled by the host's compiler.
    static const std::set<std::string> kDeviceOnlyCore = {"core/warp_reduce.cuh"};
    if (from == "policy" && (StartsWith(name, "mask_") || StartsWith(name, "score_")) &&
        (folder == "ptx" || kDeviceOnlyCore.contains(include.path))) {
      Report(include.line,
             "mask and score policies run on the host too and must not include " + include.path);
    }
  }

  // Variants are types, not conditional text. Left are include guards and the macro that tells a
  // host compiler from CUDA's.
  void CheckConditionals() {
    static const std::regex kIf(R"(^\s*#\s*(if|ifdef|ifndef|elif)\b\s*(.*)$)");
    static const std::regex kHostDevice(R"(^!?\s*(defined)?\s*\(?\s*__CUDACC__\s*\)?\s*$)");
    static const std::regex kDefine(R"(^\s*#\s*define\s+(\w+)\s*$)");
    for (size_t n = 0; n < lines_.code.size(); ++n) {
      std::smatch condition, define;
      if (!std::regex_match(lines_.code[n], condition, kIf)) continue;
      const std::string what = condition[2];
      if (std::regex_match(what, kHostDevice)) continue;
      const bool guard = condition[1] == "ifndef" && n + 1 < lines_.code.size() &&
                         std::regex_match(lines_.code[n + 1], define, kDefine) &&
                         define[1] == what.substr(0, what.find_last_not_of(' ') + 1);
      if (!guard) Report(n, "#if: variants are policies, not conditional text");
    }
  }

  const Layers& layers_;
  std::string path_;
  SourceLines lines_;
  std::vector<std::string> violations_;
};

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

Layers TreeLayers() {
  return ParseLayers(ReadFile(fs::path(TILEWRIGHT_SOURCE_DIR) / "src/LAYERS"));
}

// ---- the tree
// -------------------------------------------------------------------------------------------------------

TEST(LayeringTest, TheTreeKeepsTheRules) {
  const Layers layers = TreeLayers();
  const fs::path root = TILEWRIGHT_SOURCE_DIR;
  int files = 0;
  for (const char* top : {"src", "cache", "kernel_templates"}) {
    std::error_code error;
    for (fs::recursive_directory_iterator it(root / top, error), end; !error && it != end;
         it.increment(error)) {
      static const std::set<std::string> kSource = {".h", ".cc", ".cuh", ".cu"};
      if (!it->is_regular_file() || !kSource.contains(it->path().extension().string())) continue;
      ++files;
      const std::string path = it->path().lexically_relative(root).generic_string();
      for (const std::string& violation : Checker(layers, path, ReadFile(it->path())).Run()) {
        ADD_FAILURE() << violation;
      }
    }
    EXPECT_FALSE(error) << top << ": " << error.message();
  }
  EXPECT_GT(files, 50);
}

TEST(LayeringTest, TheEdgesHaveNoCycle) {
  const Layers layers = TreeLayers();
  // Layers whose edges all lead to settled ones are settled; a cycle never is.
  std::set<std::string> settled;
  for (size_t round = 0; round < layers.size(); ++round) {
    for (const auto& [layer, edges] : layers) {
      if (std::includes(settled.begin(), settled.end(), edges.begin(), edges.end())) {
        settled.insert(layer);
      }
    }
  }
  for (const auto& [layer, edges] : layers) {
    EXPECT_TRUE(settled.contains(layer)) << layer << " depends on itself or on an unknown folder";
  }
}

// ---- the checker on planted violations
// ------------------------------------------------------------------------------

const Layers kSmall = {{"include", {}},       {"abi", {}},
                       {"base", {"include"}}, {"spec", {"base", "include"}},
                       {"compile", {"base"}}, {"device", {"base", "abi"}},
                       {"emit", {"base"}},    {"cache", {"base"}}};

std::vector<std::string> Check(const std::string& path, const std::string& text) {
  return Checker(kSmall, path, text).Run();
}

TEST(LayeringCheckerTest, ReadsLayers) {
  EXPECT_EQ(ParseLayers("# a : b\nbase :\n\nspec  : base include  # why\n"),
            (Layers{{"base", {}}, {"spec", {"base", "include"}}}));
}

TEST(LayeringCheckerTest, AcceptsListedEdges) {
  EXPECT_THAT(Check("src/spec/a.cc",
                    "#include \"spec/a.h\"\n#include <vector>\n#include \"absl/status/status.h\"\n"
                    "#include \"base/check.h\"\n#include \"tilewright/attention.h\"\n"),
              IsEmpty());
  EXPECT_THAT(Check("src/device/a.cc", "#include <cuda.h>\n#include \"abi/params.h\"\n"),
              IsEmpty());
  EXPECT_THAT(Check("src/compile/a.cc", "#include <nvrtc.h>\n"), IsEmpty());
  EXPECT_THAT(Check("cache/a.cc", "#include \"cache/a.h\"\n#include \"base/digest.h\"\n"),
              IsEmpty());
}

TEST(LayeringCheckerTest, RefusesEdgesThatAreNotListed) {
  EXPECT_THAT(Check("src/base/a.cc", "\n\n#include \"spec/validate.h\"\n"),
              ElementsAre("src/base/a.cc:3: base must not include spec (spec/validate.h); "
                          "src/LAYERS has no such edge"));
  EXPECT_THAT(Check("cache/a.cc", "  #  include \"device/module.h\"\n"),
              ElementsAre(HasSubstr("cache/a.cc:1: cache must not include device")));
  EXPECT_THAT(Check("src/spec/a.cc", "#include \"abi/params.h\"\n"),
              ElementsAre(HasSubstr("spec must not include abi")));
  EXPECT_THAT(Check("src/spec/a.cc", "#include \"core/types.cuh\"\n"),
              ElementsAre(HasSubstr("\"core/types.cuh\" names no folder of src/LAYERS")));
  EXPECT_THAT(Check("src/spec/a.cc", "#include \"validate.h\"\n"),
              ElementsAre(HasSubstr("names no folder")));
  EXPECT_THAT(Check("src/other/a.cc", "#include <vector>\n"),
              ElementsAre(HasSubstr("folder \"other\" is not in src/LAYERS")));
}

TEST(LayeringCheckerTest, RefusesCudaHeadersElsewhere) {
  for (const char* include : {"<cuda.h>", "\"cuda.h\"", "<cuda_runtime.h>", "<cudaTypedefs.h>"}) {
    EXPECT_THAT(Check("src/spec/a.cc", std::string("#include ") + include + "\n"),
                ElementsAre(HasSubstr("src/spec/a.cc:1: <cuda.h> and its like")))
        << include;
  }
  EXPECT_THAT(Check("src/compile/a.cc", "#include <cuda.h>\n"), ElementsAre(HasSubstr("cuda.h")));
  EXPECT_THAT(Check("src/device/a.cc", "#include <nvrtc.h>\n"),
              ElementsAre("src/device/a.cc:1: <nvrtc.h> belongs to src/compile"));
}

TEST(LayeringCheckerTest, RefusesGetenvAndThrow) {
  EXPECT_THAT(Check("src/spec/a.cc", "int a;\nauto b = std::getenv(\"X\");\n"),
              ElementsAre("src/spec/a.cc:2: getenv belongs to src/base/env.cc"));
  EXPECT_THAT(Check("src/base/env.cc", "auto b = std::getenv(\"X\");\n"), IsEmpty());
  EXPECT_THAT(Check("src/base/env.h", "auto b = secure_getenv(\"X\");\n"),
              ElementsAre(HasSubstr("getenv")));
  EXPECT_THAT(Check("src/base/a.cc", "if (a) throw b;\n"),
              ElementsAre("src/base/a.cc:1: throw: errors are absl::Status"));
}

TEST(LayeringCheckerTest, RefusesAsmAndArchElsewhere) {
  for (const char* path : {"src/spec/a.cc", "src/emit/emit_kernel.cc",
                           "kernel_templates/core/a.cuh", "kernel_templates/family/a.cuh"}) {
    EXPECT_THAT(Check(path, "\nasm volatile(\"nop;\");\n"),
                ElementsAre(HasSubstr(std::string(path) + ":2: asm belongs to")));
    EXPECT_THAT(Check(path, "auto t = \"asm volatile(\";\n"), ElementsAre(HasSubstr("asm")));
    EXPECT_THAT(Check(path, "int a = __CUDA_ARCH__;\n"),
                ElementsAre(HasSubstr(":1: __CUDA_ARCH__ belongs to kernel_templates/ptx")));
  }
  EXPECT_THAT(Check("kernel_templates/ptx/a.cuh", "#ifdef __CUDA_ARCH__\nasm(\"nop;\");\n#endif\n"),
              IsEmpty());
  EXPECT_THAT(Check("src/emit/wgmma_wrapper.cc", "auto t = \"asm volatile(\";\n"), IsEmpty());
}

TEST(LayeringCheckerTest, CommentsAndStringsAreNoCode) {
  EXPECT_THAT(Check("src/base/a.cc",
                    "// throw, getenv, asm(), __CUDA_ARCH__\n/* throw\n#include <cuda.h>\n*/\n"
                    "auto a = \"throw \\\" getenv\";  auto b = 1'000; auto c = '\\'';\n"
                    "auto d = R\"x(\nthrow \" )y\" getenv)x\"; // \"\n"
                    "auto e = \"asm\"; auto throwing = 0;\n"),
              IsEmpty());
  // The scanner finds its way back out of each of them.
  EXPECT_THAT(Check("src/base/a.cc",
                    "/* a\nb */ auto c = R\"(\n)\" + 'x' + \"//\"; throw 1'0;  // d\nthrow;\n"),
              ElementsAre(HasSubstr(":3: throw"), HasSubstr(":4: throw")));
}

TEST(LayeringCheckerTest, TemplatesIncludeNothingFromOutside) {
  EXPECT_THAT(Check("kernel_templates/core/a.cuh", "#include <cuda_fp16.h>\n"),
              ElementsAre("kernel_templates/core/a.cuh:1: <cuda_fp16.h>: kernel templates include "
                          "nothing from outside"));
  EXPECT_THAT(Check("kernel_templates/core/a.cuh", "#include \"spec/validate.h\"\n"),
              ElementsAre(HasSubstr("core must not include spec/validate.h")));
  EXPECT_THAT(Check("kernel_templates/odd/a.cuh", "#include \"core/types.cuh\"\n"),
              ElementsAre(HasSubstr("has no folder \"odd\"")));
}

TEST(LayeringCheckerTest, TemplateFoldersKeepTheirOrder) {
  const struct {
    const char* from;
    const char* to;
    bool ok;
  } edges[] = {
      {"abi/a.h", "abi/b.h", true},
      {"abi/a.h", "core/types.cuh", false},
      {"ptx/a.cuh", "core/types.cuh", true},
      {"ptx/a.cuh", "core/math.cuh", false},
      {"ptx/a.cuh", "ptx/b.cuh", false},
      {"core/a.cuh", "ptx/b.cuh", true},
      {"core/a.cuh", "abi/b.h", true},
      {"core/a.cuh", "policy/b.cuh", false},
      {"core/a.cuh", "family/b.cuh", false},
      {"policy/mask_a.cuh", "abi/b.h", true},
      {"policy/mask_a.cuh", "core/math.cuh", true},
      {"policy/mask_a.cuh", "core/warp_reduce.cuh", false},
      {"policy/mask_a.cuh", "ptx/b.cuh", false},
      {"policy/score_a.cuh", "ptx/b.cuh", false},
      {"policy/kv_a.cuh", "ptx/b.cuh", true},
      {"policy/kv_a.cuh", "family/b.cuh", false},
      {"family/a.cuh", "policy/b.cuh", true},
      {"family/a.cuh", "core/warp_reduce.cuh", true},
      {"family/a.cuh", "family/b.cuh", false},
  };
  for (const auto& edge : edges) {
    EXPECT_EQ(Check(std::string("kernel_templates/") + edge.from,
                    std::string("#include \"") + edge.to + "\"\n")
                  .empty(),
              edge.ok)
        << edge.from << " -> " << edge.to;
  }
}

TEST(LayeringCheckerTest, FamiliesAndPoliciesHaveNoConditionalText) {
  for (const char* path : {"kernel_templates/family/a.cuh", "kernel_templates/policy/a.cuh"}) {
    EXPECT_THAT(Check(path, "#ifndef A_CUH_\n#define A_CUH_\n#pragma unroll\n#endif\n"), IsEmpty());
    EXPECT_THAT(Check(path, "#ifdef __CUDACC__\n#else\n#endif\n"), IsEmpty());
    EXPECT_THAT(Check(path, "#if defined(__CUDACC__)\n#endif\n"), IsEmpty());
    for (const char* text : {"#if A\n", "#ifdef HAS_CAUSAL\n", "#ifndef A\n#define B\n",
                             "# if defined(__CUDACC__) && A\n", "#ifdef __CUDACC__\n#elif B\n"}) {
      EXPECT_THAT(Check(path, text), ElementsAre(HasSubstr("#if: variants are policies"))) << text;
    }
  }
  EXPECT_THAT(Check("kernel_templates/core/a.cuh", "#if A\n"), IsEmpty());
}

}  // namespace
