#include "tests/examples/snippet_functions.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "emit/device_types.h"
#include "emit/user_policy.h"

namespace tilewright::examples {
namespace {

// `where` is a reference::Where.
constexpr char kFunctions[] = R"(
Problem ProblemOf(const long long* where) {
  Problem problem = {};
  problem.b = where[0];
  problem.h = where[1];
  problem.seqlen_q = where[4];
  problem.seqlen_kv = where[5];
  return problem;
}
)";
constexpr char kScoreFunction[] = R"(
extern "C" void ScoreOf(double score, const long long* where, const void* const* arrays,
                        const void* scalars, float* as_float, double* as_double, float* dual) {
  const Params params(arrays, static_cast<const char*>(scalars));
  const Problem problem = ProblemOf(where);
  *as_float = ScoreUser::Apply<float>(static_cast<float>(score), problem, where[2], where[3], params);
  *as_double = ScoreUser::Apply<double>(score, problem, where[2], where[3], params);
  const Dual result = ScoreUser::Apply<Dual>(Dual(static_cast<float>(score), 1), problem, where[2],
                                             where[3], params);
  dual[0] = result.value;
  dual[1] = result.derivative;
}
)";
constexpr char kMaskFunction[] = R"(
extern "C" bool Keeps(const long long* where, const void* const* arrays, const void* scalars) {
  const Params params(arrays, static_cast<const char*>(scalars));
  return MaskUser::Keep(ProblemOf(where), where[2], where[3], params);
}
)";

std::string ParamsText(const AttentionSpec& spec) {
  std::string members, reads;
  for (size_t n = 0; n < spec.snippet_arrays.size(); ++n) {
    const SnippetArray& array = spec.snippet_arrays[n];
    const std::string type = absl::StrCat("const ", emit::SnippetTypeName(array.type).data(), "*");
    absl::StrAppend(&members, "  ", type, " user_", array.name, ";\n");
    absl::StrAppend(&reads, "    user_", array.name, " = static_cast<", type, ">(arrays[", n,
                    "]);\n");
  }
  for (size_t n = 0; n < spec.snippet_scalars.size(); ++n) {
    const SnippetScalar& scalar = spec.snippet_scalars[n];
    const std::string type = emit::SnippetTypeName(scalar.type).data();
    absl::StrAppend(&members, "  ", type, " user_", scalar.name, ";\n");
    absl::StrAppend(&reads, "    user_", scalar.name, " = *reinterpret_cast<const ", type,
                    "*>(scalars + ", 8 * n, ");\n");
  }
  return absl::StrCat("struct Params {\n", members,
                      "  Params(const void* const* arrays, const char* scalars) {\n", reads,
                      "  }\n};\n");
}

}  // namespace

SnippetFunctions::SnippetFunctions(const Example& example, const AttentionSpec& spec) {
  folder_ = std::filesystem::path(testing::TempDir()) /
            absl::StrCat("tilewright_snippet_", getpid(), "_", reinterpret_cast<uintptr_t>(this));
  std::filesystem::create_directories(folder_ / "user");
  std::string text = "#include \"core/convert.cuh\"\n#include \"core/dual.cuh\"\n";
  std::string functions = kFunctions;
  const auto add = [&](const artifact::SourceFile& header, const char* function) {
    std::ofstream(folder_ / header.name) << header.text;
    absl::StrAppend(&text, "#include \"", header.name, "\"\n");
    functions += function;
  };
  if (!spec.score_snippet.empty()) add(emit::UserScorePolicy(spec), kScoreFunction);
  if (!spec.mask_snippet.empty()) add(emit::UserMaskPolicy(spec), kMaskFunction);
  std::ofstream(folder_ / "functions.cc") << text << "namespace tilewright {\n"
                                          << ParamsText(spec) << functions << "}\n";
  const std::string command = absl::StrCat(
      TILEWRIGHT_CXX_COMPILER, " -std=c++20 -O1 -Wall -Werror -fPIC -shared -I", folder_.string(),
      " -I", TILEWRIGHT_SOURCE_DIR, "/kernel_templates ", (folder_ / "functions.cc").string(),
      " -o ", (folder_ / "functions.so").string(), " 2> ", (folder_ / "log").string());
  if (std::system(command.c_str()) != 0) {
    std::ifstream log(folder_ / "log");
    error_ = std::string(std::istreambuf_iterator<char>(log), {});
    return;
  }
  library_ = dlopen((folder_ / "functions.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) error_ = dlerror();
  for (const ExampleArray& array : example.arrays) arrays_.push_back(array.bytes.data());
  for (const ExampleScalar& scalar : example.scalars) {
    SnippetValue value = {};
    if (scalar.declaration.type == ScalarType::kFloat) {
      value.f = static_cast<float>(scalar.value);
    } else {
      value.i = static_cast<int64_t>(scalar.value);
    }
    scalars_.push_back(value);
  }
}

SnippetFunctions::~SnippetFunctions() {
  if (library_ != nullptr) dlclose(library_);
  std::filesystem::remove_all(folder_);
}

ScoreResults SnippetFunctions::Score(double score, const reference::Where& at) const {
  using Function = void (*)(double, const reference::Where*, const void* const*, const void*,
                            float*, double*, float*);
  ScoreResults results;
  float dual[2];
  reinterpret_cast<Function>(dlsym(library_, "ScoreOf"))(
      score, &at, arrays_.data(), scalars_.data(), &results.as_float, &results.as_double, dual);
  results.dual_value = dual[0];
  results.dual_derivative = dual[1];
  return results;
}

bool SnippetFunctions::Keeps(const reference::Where& at) const {
  using Function = bool (*)(const reference::Where*, const void* const*, const void*);
  return reinterpret_cast<Function>(dlsym(library_, "Keeps"))(&at, arrays_.data(), scalars_.data());
}

}  // namespace tilewright::examples
