// Runs emitted kernels without a GPU: the translation unit is compiled by the C++ compiler that
// built this test, with cuda_on_host.h in CUDA's place, and launched on the bytes that the runtime
// packs. The results are held against the fp64 reference.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "arch/arch_traits.h"
#include "arch/board_profile.h"
#include "emit/emit_kernel.h"
#include "emit/param_layout.h"
#include "plan/launch_shape.h"
#include "plan/planner.h"
#include "reference/reference.h"
#include "runtime/pack_args.h"
#include "spec/canonical.h"
#include "spec/validate.h"
#include "tests/reference/host_case.h"

namespace tilewright {
namespace {

using reference::HostCase;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Scenario {
  std::string spec;
  std::vector<int32_t> lengths_q = {};
  std::vector<int32_t> lengths_kv = {};
  std::function<void(HostCase&)> change = nullptr;  // of the random problem
  std::string score_snippet = "";
  std::string mask_snippet = "";
  reference::Callables rules = {};  // what the snippets say
};

void SetLengths(HostCase& c, std::vector<int32_t> lengths) {
  c.seqused_kv = std::move(lengths);
  c.args.seqused_kv = c.seqused_kv.data();
}

void SetBiasRow(HostCase& c, int64_t i, double value) {
  for (int64_t j = 0; j < c.spec.seqlen_kv; ++j) c.bias[0].Set(i * c.spec.seqlen_kv + j, value);
}

// Three sequences of 50, 0 and 13 keys on pages of 16 rows, one of them missing.
void MakePaged(HostCase& c) {
  SetLengths(c, {50, 0, 13});
  c.page_table = {3, 1, 5, -1, 99, 99, 99, 99, 2, 99, 99, 99};
  c.args.page_table = c.page_table.data();
  c.args.page_table_stride = 4;
  const int64_t rows = 6 * c.spec.page_size;
  std::mt19937_64 random(5);
  c.k = reference::Array(spec::KvType(c.spec), rows * c.spec.dim_qk);
  c.v = reference::Array(spec::KvType(c.spec), rows * c.spec.dim_v);
  c.k.Fill(random, 2);
  c.v.Fill(random, 2);
  const auto strides = [&](int64_t dim) {
    return Strides{.batch = c.spec.page_size * dim, .seq = dim, .head = dim};
  };
  c.args.k = {c.k.data(), strides(c.spec.dim_qk)};
  c.args.v = {c.v.data(), strides(c.spec.dim_v)};
}

// The same memory read with keys innermost.
void Transpose(HostCase& c) {
  for (Strides* strides : {&c.args.k.strides, &c.args.v.strides}) {
    strides->dim = c.spec.seqlen_kv;
    strides->seq = 1;
  }
}

// Values that must stay where they are seen: rows below the causal diagonal see key 40 and 50.
void PutSpecialValues(HostCase& c) {
  for (int64_t d = 0; d < c.spec.dim_qk; ++d) c.k.Set(c.KAt(0, 50, 0, d), kNaN);
  for (int64_t d = 0; d < c.spec.dim_v; ++d) c.v.Set(c.VAt(0, 40, 0, d), kInfinity);
  for (int64_t d = 0; d < c.spec.dim_qk; ++d) c.q.Set(c.QAt(0, 3, 0, d), kNaN);
  c.k.Set(c.KAt(0, 60, 0, 0), kInfinity);
}

// Rows without a finite score, one with a peak, one whose first tile is empty, and NaN in V.
void PutMinusInfinity(HostCase& c) {
  for (int64_t i = 0; i < 20; ++i) SetBiasRow(c, i, -kInfinity);
  SetBiasRow(c, 25, 0);
  c.bias[0].Set(25 * c.spec.seqlen_kv + 3, 200);
  for (int64_t j = 0; j < 32; ++j) c.bias[0].Set(26 * c.spec.seqlen_kv + j, -kInfinity);
  c.v.Set(c.VAt(0, 5, 0, 0), kNaN);
}

std::vector<Scenario> Scenarios() {
  std::vector<Scenario> all = {
      {"fwd fp32 b=2 h=2/1 s=37/70 d=36 causal lse"},
      {"fwd bf16 b=1 h=2 s=33/65 d=64 lse"},
      {"fwd fp16 b=2 h=4/2 s=70/37 d=72/40 causal lse"},
      {"fwd fp32 b=1 h=2/1 s=70/37 d=1 causal=top_left lse"},
      {"fwd bf16 b=1 h=1 s=9/45 d=33/261 window=7,3 lse"},
      {"fwd fp32 b=1 h=1 s=40/90 d=160/140 window=-1,5 align=top_left scale=-0.3 lse"},
      {"fwd fp32 b=4 h=2/1 s=20/50 d=32 bias=fp32:1,2,20,50 bias=bf16:2,1,20,50:mod "
       "bias=fp16:2,1,1,50:div bias=bool:4,1,1,50 alibi softcap=5 lse"},
      {"fwd fp32 b=2 h=2/1 s=20/50 d=32 bias=fp32:1,2,20,50 alibi softcap=5 softcap_before_bias "
       "lse lse_base=2 empty_lse=+inf"},
      {"fwd fp32 b=1 h=2/1 s=70/37 d=8 causal lse empty_lse=+inf sinks"},
      {"fwd fp32 b=2 h=2/1 s=20/50 d=32 dropout=0.3 lse sinks"},
      {"fwd bf16 b=2 h=4/1 s=40/50 d=32 kv=e4m3 kv_scale=token lse"},
      {"fwd fp16 b=2 h=4/2 s=40/50 d=32 kv=int8 kv_scale=head scale=0.001 lse"},
      {"fwd e4m3 b=2 h=4/2 s=40/50 d=32 out=bf16 q_scale=head kv_scale=tensor lse"},
      {"fwd bf16 b=2 h=2 s=20/30 d=8/16 strided_innermost layout=bhsd lse", {}, {}, Transpose},
      {"fwd fp32 b=2 h=2 s=70/90 d=16 block_mask=128,24 causal lse layout=sbhd"},
      {"fwd fp32 b=4 h=2/1 s=40/50 d=16 varlen layout=thd causal lse sinks",
       {40, 0, 3, 7},
       {50, 3, 0, 33}},
      {"fwd fp32 b=3 h=2/1 s=40/50 d=16 varlen lse",
       {},
       {},
       [](HostCase& c) {
         SetLengths(c, {50, 0, 13});
       }},
      {"fwd bf16 b=3 h=2/1 s=5/50 d=16/24 paged=16 varlen lse causal", {}, {}, MakePaged},
      {"fwd bf16 b=2 h=2/1 s=40/33 d=16/24 exact lse"},
      {"fwd fp32 b=1 h=1 s=40/64 d=16/24 causal lse", {}, {}, PutSpecialValues},
      {"fwd fp32 b=1 h=1 s=40/64 d=16/24 bias=fp32:1,1,40,64 lse", {}, {}, PutMinusInfinity},
      {"fwd fp32 b=1 h=1 s=40/64 d=16/24 bias=fp32:1,1,40,64 sinks lse", {}, {}, PutMinusInfinity},
      {"fwd bf16 b=1 h=1 s=8/40 d=576/512 lse"},
      {"fwd fp32 b=1 h=1 s=3/0 d=16 lse sinks"},
  };
  // Documents of 16 keys and a rule of distance, once in CUDA, once in C++.
  Scenario snippets = {"fwd fp32 b=2 h=2 s=40/48 d=16 score=@score mask=@mask lse"};
  snippets.score_snippet = "return score * (1 + h) - 0.25f * (i - j) + b;";
  snippets.mask_snippet = "i / 16 == j / 16 && j + 4 < seqlen_kv";
  snippets.rules.score = [](double score, const reference::Where& at) {
    return score * static_cast<double>(1 + at.h) - 0.25 * static_cast<double>(at.i - at.j) +
           static_cast<double>(at.b);
  };
  snippets.rules.mask = [](const reference::Where& at) {
    return at.i / 16 == at.j / 16 && at.j + 4 < at.seqlen_kv;
  };
  all.push_back(snippets);
  return all;
}

// ---- the kernel -------------------------------------------------------------------------------

using LaunchFunction = void (*)(const void* params, unsigned grid);

// Kernel source as a library of the host, below a folder of its own.
class EmulatedKernel {
 public:
  EmulatedKernel(const artifact::KernelSource& source, int threads) {
    static std::atomic<int> count = 0;
    folder_ = std::filesystem::path(testing::TempDir()) /
              absl::StrCat("tilewright_emulated_", getpid(), "_", count++);
    std::filesystem::create_directories(folder_ / "user");
    for (const artifact::SourceFile& header : source.generated_headers) {
      std::ofstream(folder_ / header.name) << header.text;
    }
    std::ofstream(folder_ / "kernel.cc")
        << source.text << "\nnamespace tilewright::fwd_simple {\nalignas(16) u8 shared_bytes["
        << (228 << 10) << "];\n}\n"
        << "extern \"C\" void Launch(const void* params, unsigned grid) {\n"
        << "  cuda_on_host::Launch(grid, " << threads << ", [params] {\n    " << source.entry_name
        << "(*static_cast<const tilewright::Params*>(params));\n  });\n}\n";
    const std::string root = TILEWRIGHT_SOURCE_DIR;
    const std::string command = absl::StrCat(
        TILEWRIGHT_CXX_COMPILER, " -std=c++20 -O1 -fno-strict-aliasing -fPIC -shared -I", root,
        "/kernel_templates -I", folder_.string(), " -include ", root,
        "/tests/emulated/cuda_on_host.h ", (folder_ / "kernel.cc").string(), " -o ",
        (folder_ / "kernel.so").string(), " 2> ", (folder_ / "log").string());
    if (std::system(command.c_str()) != 0) {
      std::ifstream log(folder_ / "log");
      error_ = std::string(std::istreambuf_iterator<char>(log), {});
      return;
    }
    library_ = dlopen((folder_ / "kernel.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) error_ = dlerror();
  }
  ~EmulatedKernel() {
    if (library_ != nullptr) dlclose(library_);
    std::filesystem::remove_all(folder_);
  }
  EmulatedKernel(const EmulatedKernel&) = delete;
  EmulatedKernel& operator=(const EmulatedKernel&) = delete;

  const std::string& error() const { return error_; }
  LaunchFunction launch() const {
    return reinterpret_cast<LaunchFunction>(dlsym(library_, "Launch"));
  }

 private:
  std::filesystem::path folder_;
  std::string error_;
  void* library_ = nullptr;
};

// ---- the comparison ---------------------------------------------------------------------------

struct Outputs {
  explicit Outputs(const HostCase& c)
      : type(spec::OutType(c.spec)),
        packed(c.args.cu_seqlens_q != nullptr),
        rows(packed ? c.args.total_q : c.args.batch * c.args.seqlen_q),
        // No kernel writes these bytes or this LSE.
        o(rows * c.spec.heads_q * c.spec.dim_v * spec::ElementBytes(type), std::byte{0x7f}),
        lse(rows * c.spec.heads_q, 12345.f) {}

  ElementType type;
  bool packed;
  int64_t rows;
  std::vector<std::byte> o;
  std::vector<float> lse;
};

// Relative error of `o` in the 2-norm, over finite elements of the reference.
struct Error {
  double squares = 0;
  double reference = 0;
  void Add(double value, double expected) {
    squares += (value - expected) * (value - expected);
    reference += expected * expected;
  }
  double relative() const { return reference == 0 ? squares : std::sqrt(squares / reference); }
};

void ExpectLse(double actual, double expected) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(actual)) << actual;
  } else if (std::isinf(expected)) {
    EXPECT_EQ(actual, expected);
  } else {
    EXPECT_NEAR(actual, expected, std::max(5e-5, 1e-6 * std::abs(expected)));
  }
}

void ExpectClose(const HostCase& c, const reference::Options& options, const Outputs& outputs) {
  const std::vector<reference::Row> rows = reference::AllRows(c.spec, c.args);
  const auto exact = reference::Forward(c.spec, c.args, rows, options);
  const auto plain = reference::StraightforwardForward(c.spec, c.args, rows, options);
  ASSERT_TRUE(exact.ok() && plain.ok()) << exact.status() << plain.status();
  const int64_t dim = c.spec.dim_v, element_bytes = spec::ElementBytes(outputs.type);
  Error error, plain_error;
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto [b, h, i] = rows[r];
    SCOPED_TRACE(testing::Message() << "b " << b << " h " << h << " i " << i);
    const int64_t row = outputs.packed ? c.args.cu_seqlens_q[b] + i : i;
    const int64_t batch = outputs.packed ? 0 : b;
    for (int64_t d = 0; d < dim; ++d) {
      const int64_t at = HostCase::Offset(c.d_o_strides, batch, row, h, d);
      const double actual = reference::ToDouble(outputs.type, &outputs.o[at * element_bytes]);
      const double expected = exact->o[r * dim + d];
      ASSERT_EQ(std::isnan(actual), std::isnan(expected)) << "column " << d;
      if (std::isfinite(expected)) {
        error.Add(actual, expected);
        plain_error.Add(plain->o[r * dim + d], expected);
      } else if (!std::isnan(expected)) {
        ASSERT_EQ(actual, expected) << "column " << d;
      }
    }
    if (c.spec.lse) {
      const int64_t length = outputs.packed ? c.args.total_q : c.spec.seqlen_q;
      ExpectLse(outputs.lse[(batch * c.spec.heads_q + h) * length + row], exact->lse[r]);
    }
  }
  const bool fp32 = c.spec.type == ElementType::kFp32 && outputs.type == ElementType::kFp32;
  EXPECT_LE(error.relative(), fp32 ? 5e-6 : 1.5 * plain_error.relative());
}

class EmulatedTest : public testing::TestWithParam<Scenario> {};

TEST_P(EmulatedTest, AgreesWithTheReference) {
  const Scenario& scenario = GetParam();
  SCOPED_TRACE(scenario.spec);
  const auto parsed = spec::ParseSpec(scenario.spec, [&](std::string_view file) {
    return file == "score" ? scenario.score_snippet : scenario.mask_snippet;
  });
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const AttentionSpec spec = spec::Canonicalise(*parsed);
  HostCase c(spec, 7, scenario.lengths_q, scenario.lengths_kv);
  if (scenario.change) scenario.change(c);

  const auto traits = arch::FindArchTraits("sm_90a");
  const auto board = arch::DefaultBoardProfile("sm_90a");
  ASSERT_TRUE(traits.ok() && board.ok());
  const auto decision = plan::Best(
      {.spec = spec, .traits = *traits, .board = *board, .family = plan::Family::kFwdSimple});
  ASSERT_TRUE(decision.ok()) << decision.status();
  const plan::KernelPlan& plan = decision->candidates.back();  // seldom the best one: run it here
  const auto source = emit::EmitKernel(spec, plan);
  ASSERT_TRUE(source.ok()) << source.status();
  const EmulatedKernel kernel(*source, plan.threads());
  ASSERT_EQ(kernel.error(), "");

  Outputs outputs(c);
  AttentionArgs args = c.args;
  args.o = {outputs.o.data(), c.d_o_strides};
  args.lse = outputs.lse.data();
  ASSERT_TRUE(spec::ValidateArgs(spec, args).ok()) << spec::ValidateArgs(spec, args);
  const emit::ParamLayout layout = emit::MakeParamLayout(spec);
  alignas(8) std::byte params[kMaxParamBytes];
  PackArgs(spec, layout, args, params);
  const plan::LaunchShape shape = plan::ComputeLaunchShape(plan, spec, args);
  // Half of the blocks: the others' tiles are reached by the stride of the grid.
  kernel.launch()(params, (shape.grid + 1) / 2);
  ExpectClose(c, {.callables = scenario.rules, .threads = 1}, outputs);
}

INSTANTIATE_TEST_SUITE_P(All, EmulatedTest, testing::ValuesIn(Scenarios()));

}  // namespace
}  // namespace tilewright
