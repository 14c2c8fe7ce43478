#include "tests/gpu/guarded_outputs.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reference/reference.h"
#include "spec/validate.h"

namespace tilewright::gpu_tests {
namespace {

// Element (row, 0) of o, or the lse of a row, counted in elements from the array's first.
int64_t RowOffset(const cli::HostProblem& problem, const reference::Row& row, int64_t stride_batch,
                  int64_t stride_seq, int64_t stride_head) {
  const AttentionArgs& args = problem.args();
  const bool packed = problem.spec().varlen && args.cu_seqlens_q != nullptr;
  const int64_t before = packed ? args.cu_seqlens_q[row.b] * stride_seq : row.b * stride_batch;
  return before + row.i * stride_seq + row.h * stride_head;
}

// Moves the output that `pointer` leads to into a guarded array.
template <typename T>
void Guard(cli::HostProblem& problem, T*& pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  for (const cli::HostBuffer& buffer : problem.buffers()) {
    const auto base = reinterpret_cast<uintptr_t>(buffer.base());
    if (!buffer.output || address < base || address > base + buffer.size) continue;
    const size_t size = buffer.size - buffer.start;
    const size_t start = kGuardBytes + buffer.start;
    const std::string name = absl::StrCat("guarded ", buffer.name);
    pointer = static_cast<T*>(
        problem.AddBuffer(name, size + kGuardBytes, start, /*output=*/true, kPoison));
    return;
  }
}

const cli::HostBuffer* BufferOf(const cli::HostProblem& problem, const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const cli::HostBuffer* found = nullptr;
  for (const cli::HostBuffer& buffer : problem.buffers()) {
    const auto base = reinterpret_cast<uintptr_t>(buffer.base());
    if (buffer.output && address >= base && address < base + buffer.size) found = &buffer;
  }
  return found;
}

// What may have been done to a byte of an output.
enum class Rule : uint8_t { kUntouched, kWritten, kEither };

std::string CheckBuffer(const cli::HostBuffer& buffer, const std::vector<Rule>& rules,
                        size_t element_bytes) {
  const std::byte* bytes = buffer.base();
  for (size_t n = 0; n < buffer.size;) {
    if (rules[n] != Rule::kWritten) {
      if (rules[n] == Rule::kUntouched && bytes[n] != kPoison) {
        return absl::StrCat("byte ", static_cast<int64_t>(n) - static_cast<int64_t>(buffer.start),
                            " from the first element of \"", buffer.name,
                            "\" was written; it belongs to no element");
      }
      ++n;
      continue;
    }
    if (std::all_of(bytes + n, bytes + n + element_bytes,
                    [](std::byte byte) { return byte == kPoison; })) {
      return absl::StrCat("the element ", (n - buffer.start) / element_bytes, " places into \"",
                          buffer.name, "\" was not written");
    }
    n += element_bytes;
  }
  return "";
}

// An output with an element for every row and column, or one for every row.
std::string CheckRows(const cli::HostProblem& problem, std::string_view name, const void* data,
                      const Strides& strides, int64_t dim, size_t element_bytes) {
  const cli::HostBuffer* buffer = BufferOf(problem, data);
  if (buffer == nullptr) return absl::StrCat(std::string(name), " lies in no output array");
  std::vector<Rule> rules(buffer->size, Rule::kUntouched);
  for (const reference::Row& row : reference::AllRows(problem.spec(), problem.args())) {
    const int64_t first = RowOffset(problem, row, strides.batch, strides.seq, strides.head);
    for (int64_t d = 0; d < dim; ++d) {
      const size_t at = buffer->start + (first + d * strides.dim) * element_bytes;
      std::fill_n(rules.begin() + at, element_bytes, Rule::kWritten);
    }
  }
  return CheckBuffer(*buffer, rules, element_bytes);
}

// A gradient of K or V. Keys beyond the length of their sequence may be written or not.
std::string CheckKeys(const cli::HostProblem& problem, const MutableTensor& gradient, int64_t dim) {
  const AttentionSpec& spec = problem.spec();
  const AttentionArgs& args = problem.args();
  const cli::HostBuffer* buffer = BufferOf(problem, gradient.data);
  if (buffer == nullptr) return "a gradient of keys lies in no output array";
  const size_t bytes = spec::ElementBytes(spec.type);
  const Strides& strides = gradient.strides;
  const bool packed = spec.varlen && args.cu_seqlens_kv != nullptr;
  std::vector<Rule> rules(buffer->size, Rule::kUntouched);
  for (int64_t b = 0; b < args.batch; ++b) {
    const int64_t base = packed ? args.cu_seqlens_kv[b] * strides.seq : b * strides.batch;
    const int64_t rows =
        packed ? args.cu_seqlens_kv[b + 1] - args.cu_seqlens_kv[b] : args.seqlen_kv;
    for (int64_t j = 0; j < rows; ++j) {
      const Rule rule = j < problem.LengthKv(b) ? Rule::kWritten : Rule::kEither;
      for (int64_t h = 0; h < spec.heads_kv; ++h) {
        for (int64_t d = 0; d < dim; ++d) {
          const int64_t at = base + j * strides.seq + h * strides.head + d * strides.dim;
          std::fill_n(rules.begin() + buffer->start + at * bytes, bytes, rule);
        }
      }
    }
  }
  return CheckBuffer(*buffer, rules, bytes);
}

}  // namespace

void GuardOutputs(cli::HostProblem& problem) {
  AttentionArgs& args = problem.args();
  const bool backward = problem.spec().operation == Operation::kBackward;
  Guard(problem, args.o.data);
  if (problem.spec().lse || backward) Guard(problem, args.lse);
  if (!backward) return;
  for (MutableTensor* gradient : {&args.d_q, &args.d_k, &args.d_v}) Guard(problem, gradient->data);
}

std::string CheckWrites(const cli::HostProblem& problem) {
  const AttentionSpec& spec = problem.spec();
  const AttentionArgs& args = problem.args();
  const bool backward = spec.operation == Operation::kBackward;
  std::string wrong = CheckRows(problem, "o", args.o.data, args.o.strides, spec.dim_v,
                                spec::ElementBytes(spec::OutType(spec)));
  if (wrong.empty() && (spec.lse || backward)) {
    const Strides strides = {
        .batch = args.lse_stride_batch, .seq = 1, .head = args.lse_stride_head};
    wrong = CheckRows(problem, "lse", args.lse, strides, 1, sizeof(float));
  }
  if (!wrong.empty() || !backward) return wrong;
  wrong = CheckRows(problem, "d_q", args.d_q.data, args.d_q.strides, spec.dim_qk,
                    spec::ElementBytes(spec.type));
  if (wrong.empty()) wrong = CheckKeys(problem, args.d_k, spec.dim_qk);
  if (wrong.empty()) wrong = CheckKeys(problem, args.d_v, spec.dim_v);
  return wrong;
}

}  // namespace tilewright::gpu_tests
