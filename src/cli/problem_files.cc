#include "cli/problem_files.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "spec/canonical.h"
#include "spec/validate.h"

namespace tilewright::cli {
namespace {

absl::Status WrongShape(const Array& array, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(array.Describe(), "; expected ", expected));
}

absl::StatusOr<Array> ReadTyped(const std::string& path, ArrayType type,
                                absl::string_view expected_shape) {
  TILEWRIGHT_ASSIGN_OR_RETURN(Array array, ReadArray(path));
  if (array.type != type) {
    return WrongShape(array, absl::StrCat(AbslView(ArrayTypeName(type)), " ", expected_shape));
  }
  return array;
}

// The sizes of one of Q, K, V.
struct Sizes {
  int64_t batch = 1;
  int64_t seq = 0;
  int64_t heads = 0;
  int64_t dim = 0;
};

absl::StatusOr<Sizes> SizesOf(const Array& array, Layout layout) {
  const size_t rank = layout == Layout::kThd ? 3 : 4;
  if (array.shape.size() != rank) {
    return WrongShape(array, rank == 3 ? "3 dimensions [tokens, heads, dim], as layout=thd says"
                                       : "4 dimensions, in the order of layout=");
  }
  const std::vector<int64_t>& s = array.shape;
  switch (layout) {
    case Layout::kBshd:
      return Sizes{s[0], s[1], s[2], s[3]};
    case Layout::kBhsd:
      return Sizes{s[0], s[2], s[1], s[3]};
    case Layout::kSbhd:
      return Sizes{s[1], s[0], s[2], s[3]};
    case Layout::kThd:
      return Sizes{1, s[0], s[1], s[2]};
  }
  return WrongShape(array, "a known layout");
}

std::string PairText(int64_t a, int64_t b) { return absl::StrCat(a, "/", b); }

class Loader {
 public:
  Loader(const ProblemFiles& files, const std::string& words, const SnippetInputs& inputs)
      : files_(files), words_(words), inputs_(inputs) {}

  absl::StatusOr<HostProblem> Load() && {
    TILEWRIGHT_RETURN_IF_ERROR(ReadQkv());
    TILEWRIGHT_RETURN_IF_ERROR(ReadLengths());
    TILEWRIGHT_RETURN_IF_ERROR(ReadTerms());
    TILEWRIGHT_RETURN_IF_ERROR(ReadScales());
    TILEWRIGHT_ASSIGN_OR_RETURN(AttentionSpec spec, MakeSpec());
    HostProblem problem(std::move(spec));
    TILEWRIGHT_RETURN_IF_ERROR(Fill(problem));
    return problem;
  }

 private:
  absl::Status ReadQkv() {
    for (absl::string_view word : absl::StrSplit(words_, ' ', absl::SkipEmpty())) {
      if (word == "layout=bhsd") layout_ = Layout::kBhsd;
      if (word == "layout=sbhd") layout_ = Layout::kSbhd;
      if (word == "layout=thd") layout_ = Layout::kThd;
    }
    if (!files_.cu_seqlens_q.empty() || !files_.cu_seqlens_kv.empty()) layout_ = Layout::kThd;
    TILEWRIGHT_ASSIGN_OR_RETURN(q_, ReadArray(files_.q));
    TILEWRIGHT_ASSIGN_OR_RETURN(k_, ReadArray(files_.k));
    TILEWRIGHT_ASSIGN_OR_RETURN(v_, ReadArray(files_.v));
    TILEWRIGHT_ASSIGN_OR_RETURN(q_sizes_, SizesOf(q_, layout_));
    const bool paged = !files_.page_table.empty();
    const Layout kv_layout = paged && layout_ != Layout::kBhsd ? Layout::kBshd : layout_;
    TILEWRIGHT_ASSIGN_OR_RETURN(k_sizes_, SizesOf(k_, kv_layout));
    TILEWRIGHT_ASSIGN_OR_RETURN(v_sizes_, SizesOf(v_, kv_layout));
    if (k_.type != v_.type) {
      return absl::InvalidArgumentError(
          absl::StrCat(v_.Describe(), " differs in type from ", k_.Describe()));
    }
    if (k_sizes_.batch != v_sizes_.batch || k_sizes_.seq != v_sizes_.seq ||
        k_sizes_.heads != v_sizes_.heads) {
      return absl::InvalidArgumentError(absl::StrCat(v_.Describe(), " must have the shape of ",
                                                     k_.Describe(), " but for the last dimension"));
    }
    if (q_sizes_.dim != k_sizes_.dim) {
      return absl::InvalidArgumentError(
          absl::StrCat(k_.Describe(), " must have the last dimension of ", q_.Describe()));
    }
    if (!paged && files_.cache_batch_idx.empty() && q_sizes_.batch != k_sizes_.batch) {
      return absl::InvalidArgumentError(
          absl::StrCat(k_.Describe(), " must have the batch of ", q_.Describe()));
    }
    return absl::OkStatus();
  }

  absl::Status ReadLengths() {
    batch_ = q_sizes_.batch;
    seqlen_q_ = q_sizes_.seq;
    seqlen_kv_ = k_sizes_.seq;
    const auto read = [&](const std::string& path, absl::string_view shape,
                          std::optional<Array>& array) -> absl::Status {
      if (path.empty()) return absl::OkStatus();
      TILEWRIGHT_ASSIGN_OR_RETURN(array, ReadTyped(path, ArrayType::kInt32, shape));
      return absl::OkStatus();
    };
    TILEWRIGHT_RETURN_IF_ERROR(read(files_.cu_seqlens_q, "[batch + 1]", cu_q_));
    TILEWRIGHT_RETURN_IF_ERROR(read(files_.cu_seqlens_kv, "[batch + 1]", cu_kv_));
    TILEWRIGHT_RETURN_IF_ERROR(read(files_.seqused_q, "[batch]", used_q_));
    TILEWRIGHT_RETURN_IF_ERROR(read(files_.seqused_kv, "[batch]", used_kv_));
    TILEWRIGHT_RETURN_IF_ERROR(read(files_.left_padding, "[batch]", left_padding_));
    TILEWRIGHT_RETURN_IF_ERROR(read(files_.cache_batch_idx, "[batch]", slots_));
    TILEWRIGHT_RETURN_IF_ERROR(read(files_.page_table, "[batch, max_pages]", pages_));
    if (cu_q_.has_value()) {
      TILEWRIGHT_RETURN_IF_ERROR(LongestOf(*cu_q_, q_sizes_.seq, &seqlen_q_));
      batch_ = cu_q_->shape[0] - 1;
    } else if (layout_ == Layout::kThd) {
      return absl::InvalidArgumentError(absl::StrCat(
          q_.Describe(), " is packed: --cu-seqlens-q must say where its sequences begin"));
    }
    if (cu_kv_.has_value()) {
      TILEWRIGHT_RETURN_IF_ERROR(LongestOf(*cu_kv_, k_sizes_.seq, &seqlen_kv_));
      if (cu_kv_->shape[0] - 1 != batch_) return WrongShape(*cu_kv_, BatchText("batch + 1", 1));
    } else if (layout_ == Layout::kThd && !pages_.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          k_.Describe(), " is packed: --cu-seqlens-kv must say where its sequences begin"));
    }
    if (pages_.has_value()) {
      const bool any_rows = slots_.has_value();
      if (pages_->shape.size() != 2 || (!any_rows && pages_->shape[0] != batch_)) {
        return WrongShape(*pages_, absl::StrCat("[", batch_, ", max_pages]"));
      }
      page_size_ = k_sizes_.seq;
      seqlen_kv_ = pages_->shape[1] * page_size_;
    }
    const int64_t slots = pages_.has_value() ? pages_->shape[0] : k_sizes_.batch;
    const struct {
      const std::optional<Array>& array;
      int64_t most;
      const char* what;
    } counts[] = {{used_q_, seqlen_q_, "a length"},
                  {used_kv_, seqlen_kv_, "a length"},
                  {left_padding_, seqlen_kv_, "a number of keys"},
                  {slots_, slots - 1, "a slot"}};
    for (const auto& count : counts) {
      if (!count.array.has_value()) continue;
      if (count.array->shape != std::vector<int64_t>{batch_}) {
        return WrongShape(*count.array, BatchText("batch", 0));
      }
      TILEWRIGHT_RETURN_IF_ERROR(CheckValues(*count.array, 0, count.most, count.what));
    }
    return pages_.has_value() ? CheckPages() : absl::OkStatus();
  }

  std::string BatchText(absl::string_view what, int64_t more) const {
    return absl::StrCat("[", batch_ + more, "], that is [", what, "]");
  }

  static const int32_t* Ints(const Array& array) {
    return reinterpret_cast<const int32_t*>(array.bytes.data());
  }

  // Device-side values are trusted by kernels: those of files are checked here.
  static absl::Status CheckValues(const Array& array, int64_t least, int64_t most,
                                  absl::string_view what) {
    for (int64_t n = 0; n < array.elements(); ++n) {
      const int64_t value = Ints(array)[n];
      if (value < least || value > most) {
        return absl::InvalidArgumentError(absl::StrCat(array.Describe(), " holds ", value, " at ",
                                                       n, "; ", what, " must be between ", least,
                                                       " and ", most));
      }
    }
    return absl::OkStatus();
  }

  static absl::Status LongestOf(const Array& array, int64_t total, int64_t* longest) {
    if (array.shape.size() != 1 || array.shape[0] < 1) return WrongShape(array, "[batch + 1]");
    const int32_t* sums = Ints(array);
    const int64_t batch = array.shape[0] - 1;
    *longest = 0;
    for (int64_t b = 0; b < batch; ++b) {
      if (sums[b + 1] < sums[b]) {
        return absl::InvalidArgumentError(absl::StrCat(array.Describe(), " falls from ", sums[b],
                                                       " to ", sums[b + 1], " at ", b + 1));
      }
      *longest = std::max<int64_t>(*longest, sums[b + 1] - sums[b]);
    }
    if (sums[0] != 0 || sums[batch] != total) {
      return absl::InvalidArgumentError(absl::StrCat(array.Describe(), " goes from ", sums[0],
                                                     " to ", sums[batch], "; it must go from 0 to ",
                                                     total));
    }
    return absl::OkStatus();
  }

  absl::Status CheckPages() const {
    const int64_t max_pages = pages_->shape[1];
    for (int64_t b = 0; b < batch_; ++b) {
      const int64_t row = slots_.has_value() ? Ints(*slots_)[b] : b;
      const int64_t length = used_kv_.has_value() ? Ints(*used_kv_)[b] : seqlen_kv_;
      const int64_t used = std::min(max_pages, (length + page_size_ - 1) / page_size_);
      for (int64_t p = 0; p < used; ++p) {
        const int32_t page = Ints(*pages_)[row * max_pages + p];
        if (page >= k_sizes_.batch) {
          return absl::InvalidArgumentError(
              absl::StrCat(pages_->Describe(), " names page ", page, " at [", row, ", ", p, "]; ",
                           k_.Describe(), " has ", k_sizes_.batch, " pages"));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadTerms() {
    const auto read = [&](absl::string_view path, bool mask) -> absl::Status {
      BiasTerm term;
      if (absl::ConsumeSuffix(&path, ":div")) term.batch_map = BatchMap::kDiv;
      TILEWRIGHT_ASSIGN_OR_RETURN(Array array, ReadArray(std::string(path)));
      const std::string shape =
          absl::StrCat("[1 or a divisor of ", batch_, ", 1 or ", q_sizes_.heads, ", 1 or ",
                       seqlen_q_, ", 1 or ", seqlen_kv_, "]");
      const bool additive = array.type == ArrayType::kFp16 || array.type == ArrayType::kBf16 ||
                            array.type == ArrayType::kFp32;
      if (mask ? array.type != ArrayType::kBool : !additive) {
        return WrongShape(array, absl::StrCat(mask ? "bool " : "fp16, bf16 or fp32 ", shape));
      }
      if (array.shape.size() != 4) return WrongShape(array, shape);
      TILEWRIGHT_ASSIGN_OR_RETURN(term.type, ToElementType(array.type));
      term.batch = array.shape[0];
      term.heads = array.shape[1];
      term.seqlen_q = array.shape[2];
      term.seqlen_kv = array.shape[3];
      terms_.push_back(term);
      term_arrays_.push_back(std::move(array));
      return absl::OkStatus();
    };
    for (const std::string& path : files_.biases) TILEWRIGHT_RETURN_IF_ERROR(read(path, false));
    for (const std::string& path : files_.masks) TILEWRIGHT_RETURN_IF_ERROR(read(path, true));
    if (!files_.alibi.empty()) {
      TILEWRIGHT_ASSIGN_OR_RETURN(alibi_, ReadTyped(files_.alibi, ArrayType::kFp32, "[heads_q]"));
      const std::vector<int64_t> per_batch = {batch_, q_sizes_.heads};
      if (alibi_->shape != std::vector<int64_t>{q_sizes_.heads} && alibi_->shape != per_batch) {
        return WrongShape(*alibi_, absl::StrCat("fp32 [", q_sizes_.heads, "] or [", batch_, ", ",
                                                q_sizes_.heads, "]"));
      }
    }
    if (!files_.sinks.empty()) {
      TILEWRIGHT_ASSIGN_OR_RETURN(sinks_, ReadTyped(files_.sinks, ArrayType::kFp32, "[heads_q]"));
      if (sinks_->shape != std::vector<int64_t>{q_sizes_.heads}) {
        return WrongShape(*sinks_, absl::StrCat("fp32 [", q_sizes_.heads, "]"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadScales() {
    const auto read = [&](const std::string& path, int64_t heads,
                          std::optional<Array>& array) -> absl::Status {
      if (path.empty()) return absl::OkStatus();
      const std::string shape = absl::StrCat("[1] or [", heads, "]");
      TILEWRIGHT_ASSIGN_OR_RETURN(array, ReadTyped(path, ArrayType::kFp32, shape));
      if (array->shape != std::vector<int64_t>{1} && array->shape != std::vector<int64_t>{heads}) {
        return WrongShape(*array, shape);
      }
      return absl::OkStatus();
    };
    TILEWRIGHT_RETURN_IF_ERROR(read(files_.q_scale, q_sizes_.heads, q_scale_));
    TILEWRIGHT_RETURN_IF_ERROR(read(files_.k_scale, k_sizes_.heads, k_scale_));
    TILEWRIGHT_RETURN_IF_ERROR(read(files_.v_scale, k_sizes_.heads, v_scale_));
    if (k_scale_.has_value() != v_scale_.has_value() ||
        (k_scale_.has_value() && k_scale_->shape != v_scale_->shape)) {
      return absl::InvalidArgumentError(
          "--k-scale and --v-scale must be given together, in one shape");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<AttentionSpec> MakeSpec() const {
    TILEWRIGHT_ASSIGN_OR_RETURN(const std::string q_type, ElementWord(q_));
    TILEWRIGHT_ASSIGN_OR_RETURN(const std::string kv_type, ElementWord(k_));
    std::string text = absl::StrCat(
        "fwd ", q_type, " b=", batch_, " h=", PairText(q_sizes_.heads, k_sizes_.heads),
        " s=", PairText(seqlen_q_, seqlen_kv_), " d=", PairText(q_sizes_.dim, v_sizes_.dim));
    if (kv_type != q_type) absl::StrAppend(&text, " kv=", kv_type);
    const bool layout_said = absl::StrContains(words_, "layout=");
    if (layout_ == Layout::kThd && !layout_said) absl::StrAppend(&text, " layout=thd");
    const bool varlen = cu_q_.has_value() || cu_kv_.has_value() || used_q_.has_value() ||
                        used_kv_.has_value() || left_padding_.has_value();
    if (varlen && !absl::StrContains(words_, "varlen")) absl::StrAppend(&text, " varlen");
    if (page_size_ > 0) absl::StrAppend(&text, " paged=", page_size_);
    if (left_padding_.has_value()) absl::StrAppend(&text, " left_padding");
    if (slots_.has_value()) absl::StrAppend(&text, " cache_batch_idx");
    if (alibi_.has_value()) absl::StrAppend(&text, " alibi");
    if (sinks_.has_value()) absl::StrAppend(&text, " sinks");
    if (q_scale_.has_value()) absl::StrAppend(&text, " q_scale=", ScaleWord(*q_scale_));
    if (k_scale_.has_value()) absl::StrAppend(&text, " kv_scale=", ScaleWord(*k_scale_));
    absl::StrAppend(&text, " ", words_);
    TILEWRIGHT_ASSIGN_OR_RETURN(AttentionSpec spec, ReadSpec(text, inputs_));
    if (!spec.bias.empty()) {
      return absl::InvalidArgumentError(
          "bias= and mask= terms come from --bias and --mask where the arrays are files");
    }
    if (spec.alibi != alibi_.has_value() || spec.sinks != sinks_.has_value()) {
      return absl::InvalidArgumentError(
          "alibi and sinks come from --alibi and --sinks where the arrays are files");
    }
    if (spec.block_mask_q > 0) {
      return absl::InvalidArgumentError("block_mask= cannot be read from a file");
    }
    spec.bias = terms_;
    TILEWRIGHT_RETURN_IF_ERROR(spec::Validate(spec));
    return spec::Canonicalise(spec);
  }

  static absl::string_view ScaleWord(const Array& scale) {
    return scale.shape[0] == 1 ? "tensor" : "head";
  }

  static absl::StatusOr<std::string> ElementWord(const Array& array) {
    absl::StatusOr<ElementType> type = ToElementType(array.type);
    if (!type.ok()) return Annotate(type.status(), StdView(array.Describe()));
    return std::string(spec::ElementTypeName(*type));
  }

  template <typename T>
  static const T* Add(HostProblem& problem, std::string name, const Array& array) {
    void* data = problem.AddBuffer(std::move(name), array.bytes.size());
    if (!array.bytes.empty()) std::memcpy(data, array.bytes.data(), array.bytes.size());
    return static_cast<const T*>(data);
  }

  absl::Status Fill(HostProblem& problem) const {
    const AttentionSpec& spec = problem.spec();
    AttentionArgs& args = problem.args();
    args.batch = batch_;
    args.seqlen_q = seqlen_q_;
    args.seqlen_kv = seqlen_kv_;
    const Layout kv_layout = page_size_ > 0 && layout_ != Layout::kBhsd ? Layout::kBshd : layout_;
    const auto strides = [](Layout layout, const Sizes& sizes) {
      return DenseStrides(layout, sizes.batch, sizes.seq, sizes.heads, sizes.dim);
    };
    args.q = {Add<void>(problem, "q", q_), strides(layout_, q_sizes_)};
    args.k = {Add<void>(problem, "k", k_), strides(kv_layout, k_sizes_)};
    args.v = {Add<void>(problem, "v", v_), strides(kv_layout, v_sizes_)};
    if (cu_q_.has_value()) {
      args.cu_seqlens_q = Add<int32_t>(problem, "cu_seqlens_q", *cu_q_);
      args.total_q = q_sizes_.seq;
    }
    if (cu_kv_.has_value()) {
      args.cu_seqlens_kv = Add<int32_t>(problem, "cu_seqlens_kv", *cu_kv_);
      args.total_kv = k_sizes_.seq;
    }
    if (used_q_.has_value()) args.seqused_q = Add<int32_t>(problem, "seqused_q", *used_q_);
    if (used_kv_.has_value()) args.seqused_kv = Add<int32_t>(problem, "seqused_kv", *used_kv_);
    if (left_padding_.has_value()) {
      args.left_padding = Add<int32_t>(problem, "left_padding", *left_padding_);
    }
    if (slots_.has_value()) {
      args.cache_batch_idx = Add<int32_t>(problem, "cache_batch_idx", *slots_);
    }
    if (pages_.has_value()) {
      args.page_table = Add<int32_t>(problem, "page_table", *pages_);
      args.page_table_stride = pages_->shape[1];
    }
    if (alibi_.has_value()) {
      args.alibi_slopes = Add<float>(problem, "alibi_slopes", *alibi_);
      args.alibi_stride_batch = alibi_->shape.size() == 2 ? q_sizes_.heads : 0;
    }
    if (sinks_.has_value()) args.sinks = Add<float>(problem, "sinks", *sinks_);
    for (size_t n = 0; n < terms_.size(); ++n) {
      const BiasTerm& term = terms_[n];
      const int64_t stride_head = term.seqlen_q * term.seqlen_kv;
      args.bias[n] = {Add<void>(problem, absl::StrCat("bias", n), term_arrays_[n]),
                      term.heads * stride_head, stride_head, term.seqlen_kv, 1};
    }
    if (q_scale_.has_value()) args.q_scale = Add<float>(problem, "q_scale", *q_scale_);
    if (k_scale_.has_value()) {
      args.k_scale = Add<float>(problem, "k_scale", *k_scale_);
      args.v_scale = Add<float>(problem, "v_scale", *v_scale_);
      if (spec.kv_scale == ScaleKind::kPerHead) {
        args.k_scale_strides = {0, 1, 0};
        args.v_scale_strides = {0, 1, 0};
      }
    }
    for (size_t n = 0; n < spec.snippet_arrays.size(); ++n) {
      const auto array = inputs_.arrays.find(spec.snippet_arrays[n].name);
      if (array == inputs_.arrays.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("the snippet's array \"", spec.snippet_arrays[n].name, "\" needs --array ",
                         spec.snippet_arrays[n].name, "=FILE"));
      }
      args.snippet_arrays[n] =
          Add<void>(problem, absl::StrCat("array ", array->first), array->second);
    }
    for (size_t n = 0; n < spec.snippet_scalars.size(); ++n) {
      const SnippetScalar& scalar = spec.snippet_scalars[n];
      const auto value = inputs_.scalars.find(scalar.name);
      if (value == inputs_.scalars.end()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the snippet's scalar \"", scalar.name, "\" needs --scalar ", scalar.name, "=VALUE"));
      }
      if (scalar.type == ScalarType::kFloat) {
        args.snippet_scalars[n].f = static_cast<float>(value->second.second);
      } else {
        args.snippet_scalars[n].i = static_cast<int64_t>(value->second.second);
      }
    }
    const Sizes o_sizes = {q_sizes_.batch, q_sizes_.seq, q_sizes_.heads, v_sizes_.dim};
    problem.AddOutputs(strides(layout_, o_sizes), 0, std::byte{0xff});
    return spec::ValidateArgs(spec, args);
  }

  const ProblemFiles& files_;
  const std::string& words_;
  const SnippetInputs& inputs_;
  Layout layout_ = Layout::kBshd;
  Array q_, k_, v_;
  Sizes q_sizes_, k_sizes_, v_sizes_;
  int64_t batch_ = 0;
  int64_t seqlen_q_ = 0;
  int64_t seqlen_kv_ = 0;
  int64_t page_size_ = 0;
  std::optional<Array> cu_q_, cu_kv_, used_q_, used_kv_, left_padding_, slots_, pages_;
  std::vector<BiasTerm> terms_;
  std::vector<Array> term_arrays_;
  std::optional<Array> alibi_, sinks_, q_scale_, k_scale_, v_scale_;
};

Array FromBuffer(const HostBuffer& buffer, ArrayType type, std::vector<int64_t> shape) {
  Array array;
  array.type = type;
  array.shape = std::move(shape);
  array.bytes.assign(buffer.base() + buffer.start, buffer.base() + buffer.size);
  return array;
}

}  // namespace

absl::StatusOr<HostProblem> ProblemFromFiles(const ProblemFiles& files, const std::string& words,
                                             const SnippetInputs& inputs) {
  return Loader(files, words, inputs).Load();
}

Array OutputArray(const HostProblem& problem) {
  const AttentionSpec& spec = problem.spec();
  const AttentionArgs& args = problem.args();
  std::vector<int64_t> shape;
  if (args.cu_seqlens_q != nullptr) {
    shape = {args.total_q, spec.heads_q, spec.dim_v};
  } else if (spec.layout == Layout::kBhsd) {
    shape = {args.batch, spec.heads_q, args.seqlen_q, spec.dim_v};
  } else if (spec.layout == Layout::kSbhd) {
    shape = {args.seqlen_q, args.batch, spec.heads_q, spec.dim_v};
  } else {
    shape = {args.batch, args.seqlen_q, spec.heads_q, spec.dim_v};
  }
  return FromBuffer(*problem.FindBuffer("o"), FromElementType(spec::OutType(spec)),
                    std::move(shape));
}

Array LseArray(const HostProblem& problem) {
  const AttentionSpec& spec = problem.spec();
  const AttentionArgs& args = problem.args();
  std::vector<int64_t> shape = {args.batch, spec.heads_q, args.seqlen_q};
  if (args.cu_seqlens_q != nullptr) shape = {spec.heads_q, args.total_q};
  return FromBuffer(*problem.FindBuffer("lse"), ArrayType::kFp32, std::move(shape));
}

}  // namespace tilewright::cli
