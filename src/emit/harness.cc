#include "emit/harness.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "emit/device_types.h"
#include "emit/param_layout.h"
#include "plan/launch_shape.h"
#include "spec/validate.h"

namespace tilewright::emit {
namespace {

absl::string_view Piece(std::string_view text) { return {text.data(), text.size()}; }

// The names that a file includes by quotes. The files are ours: a directive is a whole line.
std::vector<std::string> QuotedIncludes(std::string_view text) {
  constexpr std::string_view kDirective = "\n#include \"";
  const std::string lines = absl::StrCat("\n", Piece(text));
  std::vector<std::string> names;
  for (size_t at = lines.find(kDirective); at != std::string::npos;
       at = lines.find(kDirective, at + 1)) {
    const size_t begin = at + kDirective.size();
    names.push_back(lines.substr(begin, lines.find('"', begin) - begin));
  }
  return names;
}

// Host code that precedes the launch: buffers that live as long as the program.
constexpr char kHelpers[] = R"(
#define CHECK(call)                                                                   \
  do {                                                                                \
    const cudaError_t status = (call);                                                \
    if (status != cudaSuccess) {                                                      \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status));            \
      std::exit(1);                                                                   \
    }                                                                                 \
  } while (false)

namespace tilewright {

// Uniform in [-1, 1), the same in every run.
template <class Element>
__global__ void FillRandom(Element* out, i64 count, u32 seed) {
  for (i64 n = blockIdx.x * i64{blockDim.x} + threadIdx.x; n < count;
       n += i64{gridDim.x} * blockDim.x) {
    const u32 word = Philox4x32({{static_cast<u32>(n), static_cast<u32>(n >> 32), seed, 0}}, 0, 0)
                         .word[0];
    FromFloat(static_cast<float>(static_cast<int>(word)) * 0x1p-31f, &out[n]);
  }
}

inline void* Allocate(i64 bytes) {
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, bytes > 0 ? bytes : 1));
  CHECK(cudaMemset(memory, 0, bytes));
  return memory;
}

template <class Element>
Element* Random(i64 count) {
  static u32 seed = 0;
  auto* memory = static_cast<Element*>(Allocate(count * static_cast<i64>(sizeof(Element))));
  FillRandom<<<256, 256>>>(memory, count, ++seed);
  CHECK(cudaGetLastError());
  return memory;
}

// `first`, first + step, ...
template <class Element>
Element* Counted(i64 count, Element first, Element step) {
  std::vector<Element> host(count);
  for (i64 n = 0; n < count; ++n) host[n] = static_cast<Element>(first + step * n);
  auto* memory = static_cast<Element*>(Allocate(count * static_cast<i64>(sizeof(Element))));
  CHECK(cudaMemcpy(memory, host.data(), count * sizeof(Element), cudaMemcpyHostToDevice));
  return memory;
}

}  // namespace tilewright
)";

constexpr char kLaunch[] = R"(
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmemBytes));
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  constexpr int kLaunches = 5;
  for (int n = 0; n < kLaunches; ++n) {
    CHECK(cudaEventRecord(begin));
    kernel<<<kGrid, kThreads, kSmemBytes>>>(params);
    CHECK(cudaGetLastError());
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    std::printf("launch %d: %.4f ms\n", n, ms);
  }
  std::vector<unsigned char> o(kOutBytes);
  CHECK(cudaMemcpy(o.data(), params.core.o, kOutBytes, cudaMemcpyDeviceToHost));
  unsigned long long checksum = 14695981039346656037ull;
  for (unsigned char byte : o) checksum = (checksum ^ byte) * 1099511628211ull;
  std::printf("FNV-1a of O: %016llx\n", checksum);
  return 0;
}
)";

std::string StridesText(const Strides& s) {
  return absl::StrCat("{", s.batch, ", ", s.seq, ", ", s.head, ", ", s.dim, "}");
}

std::string FloatText(float value) {
  // Hexadecimal is exact.
  char text[40];
  std::snprintf(text, sizeof(text), "%af", static_cast<double>(value));
  return text;
}

// Sizes of the buffers, in elements: dense tensors, K and V in pages where they are paged.
struct Sizes {
  explicit Sizes(const AttentionSpec& spec)
      : pages_per_sequence(
            spec.page_size == 0 ? 0 : (spec.seqlen_kv + spec.page_size - 1) / spec.page_size),
        kv_blocks(spec.page_size == 0 ? spec.batch : spec.batch * pages_per_sequence),
        kv_rows(spec.page_size == 0 ? spec.seqlen_kv : spec.page_size) {}
  int64_t pages_per_sequence;
  int64_t kv_blocks;
  int64_t kv_rows;
};

std::string TensorText(std::string_view name, ElementType type, Layout layout, int64_t blocks,
                       int64_t rows, int64_t heads, int64_t dim) {
  const std::string field = absl::StrCat("  params.core.", Piece(name));
  return absl::StrCat(
      field, " = Random<", Piece(DeviceTypeName(type)), ">(", blocks * rows * heads * dim, ");\n",
      field, "_strides = ", StridesText(DenseStrides(layout, blocks, rows, heads, dim)), ";\n");
}

std::string CoreText(const AttentionSpec& spec, const Sizes& sizes) {
  // The harness passes no cu_seqlens: nothing is packed.
  const Layout layout = spec.layout == Layout::kThd ? Layout::kBshd : spec.layout;
  std::string text = absl::StrCat(
      TensorText("q", spec.type, layout, spec.batch, spec.seqlen_q, spec.heads_q, spec.dim_qk),
      TensorText("k", spec::KvType(spec), layout, sizes.kv_blocks, sizes.kv_rows, spec.heads_kv,
                 spec.dim_qk),
      TensorText("v", spec::KvType(spec), layout, sizes.kv_blocks, sizes.kv_rows, spec.heads_kv,
                 spec.dim_v),
      TensorText("o", spec::OutType(spec), layout, spec.batch, spec.seqlen_q, spec.heads_q,
                 spec.dim_v));
  if (spec.lse || spec.operation == Operation::kBackward) {
    absl::StrAppend(&text, "  params.core.lse = Random<float>(",
                    spec.batch * spec.heads_q * spec.seqlen_q, ");\n",
                    "  params.core.lse_stride_batch = ", spec.heads_q * spec.seqlen_q, ";\n",
                    "  params.core.lse_stride_head = ", spec.seqlen_q, ";\n");
  }
  const std::pair<std::string_view, int64_t> sizes_of_call[] = {{"batch", spec.batch},
                                                                {"heads_q", spec.heads_q},
                                                                {"heads_kv", spec.heads_kv},
                                                                {"seqlen_q", spec.seqlen_q},
                                                                {"seqlen_kv", spec.seqlen_kv}};
  for (const auto& [name, value] : sizes_of_call) {
    absl::StrAppend(&text, "  params.core.", Piece(name), " = ", value, ";\n");
  }
  absl::StrAppend(&text, "  params.core.scale = ", FloatText(spec::EffectiveScale(spec)), ";\n");
  return text;
}

std::string BiasText(const AttentionSpec& spec, int index) {
  const BiasTerm& term = spec.bias[index];
  const int64_t head = term.seqlen_q * term.seqlen_kv;
  const int64_t count = term.batch * term.heads * head;
  const auto stride = [](int64_t extent, int64_t step) { return extent == 1 ? 0 : step; };
  const int64_t division =
      term.batch_map == BatchMap::kDiv ? std::max<int64_t>(spec.batch / term.batch, 1) : 1;
  const std::string data =
      term.type == ElementType::kBool
          ? absl::StrCat("Counted<u8>(", count, ", 1, 0)")
          : absl::StrCat("Random<", Piece(DeviceTypeName(term.type)), ">(", count, ")");
  return absl::StrCat("  params.bias[", index, "] = {", data, ", ",
                      stride(term.batch, term.heads * head), ", ", stride(term.heads, head), ", ",
                      stride(term.seqlen_q, term.seqlen_kv), ", ", stride(term.seqlen_kv, 1), ", ",
                      division, ", ", term.batch, "};\n");
}

std::string BlockMaskText(const AttentionSpec& spec) {
  const int64_t rows = (spec.seqlen_q + spec.block_mask_q - 1) / spec.block_mask_q;
  const int64_t columns = (spec.seqlen_kv + spec.block_mask_kv - 1) / spec.block_mask_kv;
  return absl::StrCat("  params.block_mask = {Counted<u8>(", rows * columns, ", 1, 0), 0, 0, ",
                      columns, "};\n");
}

// One scale serves all: every stride is 0.
std::string ScaleText(std::string_view name) {
  return absl::StrCat("  params.", Piece(name), " = {Counted<float>(1, 1, 0), 0, 0, 0};\n");
}

// Scratch memory is zero, and so are O and the LSE: what the gradients are is not looked at.
std::string GradientsText(const AttentionSpec& spec, const plan::KernelPlan& plan) {
  const Layout layout = spec.layout == Layout::kThd ? Layout::kBshd : spec.layout;
  const auto tensor = [&](std::string_view name, int64_t rows, int64_t heads, int64_t dim,
                          bool is_input) {
    const std::string field = absl::StrCat("  params.gradients.", Piece(name));
    const int64_t count = spec.batch * rows * heads * dim;
    return absl::StrCat(
        field, " = ",
        is_input
            ? absl::StrCat("Random<", Piece(DeviceTypeName(spec::OutType(spec))), ">(", count, ")")
            : absl::StrCat("Allocate(", count * spec::ElementBytes(spec.type), ")"),
        ";\n", field,
        "_strides = ", StridesText(DenseStrides(layout, spec.batch, rows, heads, dim)), ";\n");
  };
  AttentionArgs args;
  args.batch = spec.batch;
  args.seqlen_q = spec.seqlen_q;
  const int64_t rows = spec.batch * spec.heads_q * spec.seqlen_q;
  const int block_m = plan.family == plan::Family::kBwdSm80 ? plan.block_m : 1;
  const int64_t tiles_of_head = plan::DqTilesOfHead(block_m, spec, args);
  const int64_t tiles = spec.batch * spec.heads_q * tiles_of_head;
  return absl::StrCat(tensor("d_o", spec.seqlen_q, spec.heads_q, spec.dim_v, true),
                      tensor("d_q", spec.seqlen_q, spec.heads_q, spec.dim_qk, false),
                      tensor("d_k", spec.seqlen_kv, spec.heads_kv, spec.dim_qk, false),
                      tensor("d_v", spec.seqlen_kv, spec.heads_kv, spec.dim_v, false),
                      "  params.gradients.row_stats = static_cast<abi::RowStats*>(Allocate(",
                      rows * 8, "));\n", "  params.gradients.stats_rows = ", spec.seqlen_q, ";\n",
                      "  params.gradients.dq_sums = static_cast<float*>(Allocate(",
                      tiles * plan::DqSumsOfTile(block_m, spec.dim_qk) * 4, "));\n",
                      "  params.gradients.dq_turns = static_cast<i32*>(Allocate(", (tiles + 1) * 4,
                      "));\n", "  params.gradients.tiles_of_head = ", tiles_of_head, ";\n",
                      "  params.gradients.sums_batches = ", spec.batch, ";\n");
}

// Of a term, or of slopes (one for each head).
std::string BiasGradientText(const AttentionSpec& spec, const std::string& field,
                             const BiasTerm& term) {
  const int64_t head = term.seqlen_q * term.seqlen_kv;
  const auto stride = [](int64_t extent, int64_t step) { return extent == 1 ? 0 : step; };
  const int64_t division =
      term.batch_map == BatchMap::kDiv ? std::max<int64_t>(spec.batch / term.batch, 1) : 1;
  return absl::StrCat("  params.", field, " = {static_cast<float*>(Allocate(",
                      term.batch * term.heads * head * 4, ")), ",
                      stride(term.batch, term.heads * head), ", ", stride(term.heads, head), ", ",
                      stride(term.seqlen_q, term.seqlen_kv), ", ", stride(term.seqlen_kv, 1), ", ",
                      term.batch, ", ", term.heads, ", ", term.seqlen_q, ", ", term.seqlen_kv, ", ",
                      division, ", ", term.batch, "};\n");
}

std::string SlotText(const AttentionSpec& spec, const Sizes& sizes, const plan::KernelPlan& plan,
                     const ParamSlot& slot) {
  switch (slot.kind) {
    case ParamSlotKind::kGradients:
      return GradientsText(spec, plan);
    case ParamSlotKind::kBiasGradient: {
      int place = 0;
      for (int n = 0; n < slot.index; ++n) place += spec.bias[n].gradient ? 1 : 0;
      return BiasGradientText(spec, absl::StrCat("bias_gradients[", place, "]"),
                              spec.bias[slot.index]);
    }
    case ParamSlotKind::kAlibiGradient:
      return BiasGradientText(spec, "alibi_gradient", {.heads = spec.heads_q});
    case ParamSlotKind::kSinksGradient:
      return absl::StrCat("  params.sinks_gradient = {static_cast<float*>(Allocate(",
                          spec.heads_q * 4, "))};\n");
    case ParamSlotKind::kUserArrayGradient:
      return absl::StrCat("  params.d_user_", spec.snippet_arrays[slot.index].name,
                          " = static_cast<float*>(Allocate(1 << 20));\n");
    case ParamSlotKind::kCore:
      return CoreText(spec, sizes);
    case ParamSlotKind::kWindow:
      return absl::StrCat("  params.window = {", spec.window_left, ", ",
                          spec::EffectiveWindowRight(spec), "};\n");
    case ParamSlotKind::kVarlen:
      return "  params.varlen = {nullptr, nullptr, nullptr, nullptr};\n";
    case ParamSlotKind::kPageTable:
      return absl::StrCat("  params.page_table = {Counted<i32>(",
                          spec.batch * sizes.pages_per_sequence, ", 0, 1), ",
                          sizes.pages_per_sequence, "};\n");
    case ParamSlotKind::kLeftPadding:
      return absl::StrCat("  params.left_padding = {Counted<i32>(", spec.batch, ", 0, 0)};\n");
    case ParamSlotKind::kCacheSlots:
      return absl::StrCat("  params.cache_slots = {Counted<i32>(", spec.batch, ", 0, 1)};\n");
    case ParamSlotKind::kAlibi:
      return absl::StrCat("  params.alibi = {Random<float>(", spec.heads_q, "), 0};\n");
    case ParamSlotKind::kBias:
      return BiasText(spec, slot.index);
    case ParamSlotKind::kSoftcap:
      return absl::StrCat("  params.softcap = {", FloatText(spec.softcap), ", ",
                          FloatText(1 / spec.softcap), "};\n");
    case ParamSlotKind::kSinks:
      return absl::StrCat("  params.sinks = {Random<float>(", spec.heads_q, ")};\n");
    case ParamSlotKind::kBlockMask:
      return BlockMaskText(spec);
    case ParamSlotKind::kQScale:
      return ScaleText("q_scale");
    case ParamSlotKind::kKScale:
      return ScaleText("k_scale");
    case ParamSlotKind::kVScale:
      return ScaleText("v_scale");
    case ParamSlotKind::kDropout:
      return absl::StrCat("  params.dropout = {1, 2, nullptr, nullptr, ",
                          static_cast<uint32_t>(static_cast<double>(spec.dropout) * 0x1p32), "u, ",
                          FloatText(1 / (1 - spec.dropout)), "};\n");
    case ParamSlotKind::kBiasMap:
    case ParamSlotKind::kFwdSm90:
    case ParamSlotKind::kBwdSm90:
    case ParamSlotKind::kDecodeSm90:
      return "";
    case ParamSlotKind::kUserArray: {
      const SnippetArray& array = spec.snippet_arrays[slot.index];
      return absl::StrCat("  params.user_", array.name, " = static_cast<const ",
                          Piece(SnippetTypeName(array.type)), "*>(Allocate(1 << 20));\n");
    }
    case ParamSlotKind::kUserScalar:
      return absl::StrCat("  params.user_", spec.snippet_scalars[slot.index].name, " = 1;\n");
    case ParamSlotKind::kParts:
      return "  params.parts.parts = 1;\n";
  }
  return "";
}

}  // namespace

std::vector<artifact::SourceFile> StandaloneFiles(const artifact::KernelSource& source,
                                                  const TemplateBundle& bundle) {
  std::vector<artifact::SourceFile> files = source.generated_headers;
  files.push_back({.name = source.unit_name, .text = source.text});
  std::map<std::string, const artifact::SourceFile*> missing;
  for (const artifact::SourceFile& file : bundle.files) missing[file.name] = &file;
  for (size_t n = 0; n < files.size(); ++n) {
    for (const std::string& name : QuotedIncludes(files[n].text)) {
      const auto found = missing.find(name);
      if (found == missing.end()) continue;  // there already, or generated
      files.push_back(*found->second);
      missing.erase(found);
    }
  }
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return files;
}

artifact::SourceFile HarnessProgram(const AttentionSpec& spec, const plan::KernelPlan& plan,
                                    const artifact::KernelSource& source) {
  const Sizes sizes(spec);
  std::string arguments;
  for (const ParamSlot& slot : MakeParamLayout(spec, plan).slots) {
    absl::StrAppend(&arguments, SlotText(spec, sizes, plan, slot));
  }
  const int64_t clusters = std::max(plan.cluster, 1);
  const int64_t tile_rows = plan.block_m * clusters;
  const int64_t row_tiles = (spec.seqlen_q + tile_rows - 1) / tile_rows;
  const int64_t tiles = spec.batch * spec.heads_q * row_tiles;
  if (plan.family == plan::Family::kFwdSm90) {
    absl::StrAppend(&arguments, "  // Without tensor maps, which only the driver makes.\n",
                    "  params.sm90.by_threads = abi::kQByThreads | abi::kKvByThreads | "
                    "abi::kOByThreads | abi::kBiasByThreads;\n  params.sm90.row_tiles = ",
                    row_tiles, ";\n  params.sm90.tiles = ", tiles,
                    ";\n  params.sm90.heads = ", spec.batch * spec.heads_q,
                    ";\n  params.sm90.section_heads = 1;\n");
  }
  if (plan.family == plan::Family::kDecodeSm90) {
    absl::StrAppend(&arguments, "  // Without tensor maps, which only the driver makes.\n",
                    "  params.decode_sm90.by_threads = abi::kKvByThreads;\n");
  }
  if (plan.family == plan::Family::kBwdSm90) {
    const int64_t tile_keys = plan.block_n * clusters;
    const int64_t key_tiles = (spec.seqlen_kv + tile_keys - 1) / tile_keys;
    const int64_t heads = spec.batch * spec.heads_kv;
    absl::StrAppend(&arguments, "  // Without tensor maps, which only the driver makes.\n",
                    "  params.sm90.by_threads = abi::kQByThreads | abi::kKvByThreads | "
                    "abi::kGradientsByThreads;\n  params.sm90.key_tiles = ",
                    key_tiles, ";\n  params.sm90.tiles = ", key_tiles * heads,
                    ";\n  params.sm90.heads = ", heads,
                    ";\n  params.sm90.section_heads = 1;\n  params.sm90.end_key = ",
                    spec.seqlen_kv, ";\n");
  }
  AttentionArgs args;
  args.batch = spec.batch;
  args.seqlen_q = spec.seqlen_q;
  args.seqlen_kv = spec.seqlen_kv;
  // Companions and backward families count other things than tiles of rows.
  const int64_t grid = spec.operation == Operation::kForward
                           ? std::clamp<int64_t>(tiles, 1, 0x7fffffff / clusters) * clusters
                           : int64_t{plan::ComputeLaunchShape(plan, spec, args).grid};
  const int64_t out_bytes = spec.batch * spec.seqlen_q * spec.heads_q * spec.dim_v *
                            spec::ElementBytes(spec::OutType(spec));
  return {.name = "main.cu",
          .text = absl::StrCat(
              "// Runs one kernel alone:\n//   nvcc -std=c++20 -arch=", plan.target,
              " -I. -o harness main.cu && ./harness\n#include <cstdio>\n#include <cstdlib>\n"
              "#include <vector>\n\n#include \"",
              source.unit_name, "\"\n#include \"core/convert.cuh\"\n#include \"core/philox.cuh\"\n",
              kHelpers, "\nint main() {\n  using namespace tilewright;\n  const auto kernel = &",
              source.entry_name, ";\n  constexpr int kSmemBytes = ", plan.smem_bytes,
              ";\n  constexpr int kThreads = ", plan.threads(), ";\n  constexpr unsigned kGrid = ",
              std::max<int64_t>(grid, 1), ";\n  constexpr long long kOutBytes = ", out_bytes,
              ";\n  Params params = {};\n", arguments, kLaunch)};
}

}  // namespace tilewright::emit
