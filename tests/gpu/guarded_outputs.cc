#include "tests/gpu/guarded_outputs.h"

#include <algorithm>
#include <cstdint>
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

// `owned` marks the bytes of the elements.
std::string CheckBuffer(const cli::HostBuffer& buffer, const std::vector<bool>& owned,
                        size_t element_bytes) {
  const std::byte* bytes = buffer.base();
  for (size_t n = 0; n < buffer.size;) {
    if (!owned[n]) {
      if (bytes[n] != kPoison) {
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

}  // namespace

void GuardOutputs(cli::HostProblem& problem) {
  AttentionArgs& args = problem.args();
  Guard(problem, args.o.data);
  if (problem.spec().lse) Guard(problem, args.lse);
}

std::string CheckWrites(const cli::HostProblem& problem) {
  const AttentionSpec& spec = problem.spec();
  const AttentionArgs& args = problem.args();
  const std::vector<reference::Row> rows = reference::AllRows(spec, args);

  const cli::HostBuffer* o = BufferOf(problem, args.o.data);
  if (o == nullptr) return "o lies in no output array";
  const size_t bytes = spec::ElementBytes(spec::OutType(spec));
  std::vector<bool> owned(o->size, false);
  const Strides& s = args.o.strides;
  for (const reference::Row& row : rows) {
    const int64_t first = RowOffset(problem, row, s.batch, s.seq, s.head);
    for (int64_t d = 0; d < spec.dim_v; ++d) {
      const size_t at = o->start + (first + d * s.dim) * bytes;
      std::fill_n(owned.begin() + at, bytes, true);
    }
  }
  std::string wrong = CheckBuffer(*o, owned, bytes);
  if (!wrong.empty() || !spec.lse) return wrong;

  const cli::HostBuffer* lse = BufferOf(problem, args.lse);
  if (lse == nullptr) return "lse lies in no output array";
  owned.assign(lse->size, false);
  for (const reference::Row& row : rows) {
    const int64_t at = RowOffset(problem, row, args.lse_stride_batch, 1, args.lse_stride_head);
    std::fill_n(owned.begin() + lse->start + at * sizeof(float), sizeof(float), true);
  }
  return CheckBuffer(*lse, owned, sizeof(float));
}

}  // namespace tilewright::gpu_tests
