// Decodes three tokens of two sequences with a paged cache, and compares the results with sums on
// the host.
#include "paged_decoder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <vector>

namespace {

constexpr int64_t kBatch = 2, kHeads = 32, kGroup = kHeads / PagedDecoder::kHeadsKv;
constexpr int64_t kDim = PagedDecoder::kDim, kMaxPages = 7,
                  kMaxTokens = kMaxPages * PagedDecoder::kPage;
constexpr int32_t kLengths[kBatch] = {37, 94};  // of which the second reaches a new page
constexpr int kSteps = 3;
// Pages lie in no order: those of the first sequence are odd, those of the second even.
constexpr int32_t PageOf(int64_t b, int64_t page) {
  return static_cast<int32_t>(2 * (kMaxPages - 1 - page) + 1 - b);
}

// Multiples of 1/8 between -1 and 1: exact in bf16.
float ValueAt(int64_t n) { return static_cast<float>((n * 2654435761u >> 7) % 17) / 8 - 1; }
uint16_t ToBf16(float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); }
float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

template <typename T>
void* OnDevice(const std::vector<T>& host) {
  CUdeviceptr memory = 0;
  cuMemAlloc(&memory, host.size() * sizeof(T));
  cuMemcpyHtoD(memory, host.data(), host.size() * sizeof(T));
  return reinterpret_cast<void*>(memory);
}

std::vector<uint16_t> Values(int64_t count, int64_t first) {
  std::vector<uint16_t> values;
  for (int64_t n = 0; n < count; ++n) values.push_back(ToBf16(ValueAt(first + n)));
  return values;
}

// Rows of one token with the rotary embedding of a position.
std::vector<float> Rotated(const std::vector<uint16_t>& row, int64_t position) {
  std::vector<float> rotated(row.size());
  for (size_t n = 0; n < row.size(); ++n) {
    const auto d = static_cast<int64_t>(n) % kDim, half = kDim / 2;
    const double angle = static_cast<double>(position) *
                         std::pow(10000.0, -static_cast<double>(d % half) / double{half});
    const double partner = FromBf16(row[d < half ? n + half : n - half]);
    rotated[n] = static_cast<float>(FromBf16(row[n]) * std::cos(angle) +
                                    (d < half ? -partner : partner) * std::sin(angle));
  }
  return rotated;
}

// A sequence as it grows.
struct Sequence {
  std::vector<std::vector<float>> k, v;  // [tokens][kHeadsKv * kDim]
};

std::vector<float> Floats(const std::vector<uint16_t>& values) {
  std::vector<float> floats;
  for (const uint16_t value : values) floats.push_back(FromBf16(value));
  return floats;
}

// Element d of the output of query head h.
double Expected(const std::vector<float>& q, const Sequence& sequence, int64_t h, int64_t d) {
  double total = 0, sum = 0;
  const int64_t first = h / kGroup * kDim;
  for (size_t j = 0; j < sequence.k.size(); ++j) {
    double score = 0;
    for (int64_t x = 0; x < kDim; ++x) {
      score += double{q[h * kDim + x]} * sequence.k[j][first + x];
    }
    const double weight = std::exp(score / std::sqrt(double{kDim}));
    total += weight;
    sum += weight * sequence.v[j][first + d];
  }
  return sum / total;
}

}  // namespace

int main() {
  CUcontext context;
  cuInit(0);
  cuDevicePrimaryCtxRetain(&context, 0);
  cuCtxSetCurrent(context);
  auto runtime = tilewright::Runtime::Create({});
  constexpr int64_t kRow = PagedDecoder::kHeadsKv * kDim, kQueryRow = kHeads * kDim;
  const auto k = Values(kBatch * kMaxTokens * kRow, 100'000);
  const auto v = Values(kBatch * kMaxTokens * kRow, 900'000);
  std::vector<int32_t> table;
  Sequence sequences[kBatch];
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t page = 0; page < kMaxPages; ++page) table.push_back(PageOf(b, page));
    for (int64_t j = 0; j < kLengths[b]; ++j) {
      const int64_t at =
          (PageOf(b, j / PagedDecoder::kPage) * PagedDecoder::kPage + j % PagedDecoder::kPage) *
          kRow;
      sequences[b].k.push_back(Floats({k.begin() + at, k.begin() + at + kRow}));
      sequences[b].v.push_back(Floats({v.begin() + at, v.begin() + at + kRow}));
    }
  }
  const std::vector<int32_t> lengths(kLengths, kLengths + kBatch), ticket = {0};
  PagedDecoder decoder = {.batch = kBatch,
                          .max_pages = kMaxPages,
                          .k = OnDevice(k),
                          .v = OnDevice(v),
                          .table = static_cast<int32_t*>(OnDevice(table)),
                          .lengths = static_cast<int32_t*>(OnDevice(lengths)),
                          .ticket = static_cast<int32_t*>(OnDevice(ticket)),
                          .runtime = runtime->get()};
  absl::Status status = decoder.Prepare();
  if (!status.ok()) return std::cerr << status << "\n", 1;
  std::vector<uint16_t> o(kBatch * kQueryRow);
  void* const o_device = OnDevice(o);
  double worst = 0;
  for (int step = 0; step < kSteps; ++step) {
    const auto q = Values(kBatch * kQueryRow, 1'000 * step);
    const auto new_k = Values(kBatch * kRow, 7'000 + 1'000 * step);
    const auto new_v = Values(kBatch * kRow, 70'000 + 1'000 * step);
    status = decoder.Step(OnDevice(q), OnDevice(new_k), OnDevice(new_v), o_device, nullptr);
    if (!status.ok()) return std::cerr << status << "\n", 1;
    cuMemcpyDtoH(o.data(), reinterpret_cast<CUdeviceptr>(o_device), o.size() * sizeof(o[0]));
    for (int64_t b = 0; b < kBatch; ++b) {
      const auto rows = [b](const std::vector<uint16_t>& values, int64_t size) {
        return std::vector<uint16_t>(values.begin() + b * size, values.begin() + (b + 1) * size);
      };
      const int64_t position = kLengths[b] + step;
      sequences[b].k.push_back(Rotated(rows(new_k, kRow), position));
      sequences[b].v.push_back(Floats(rows(new_v, kRow)));
      const std::vector<float> rotated = Rotated(rows(q, kQueryRow), position);
      for (int64_t h = 0; h < kHeads; ++h) {
        for (int64_t d = 0; d < kDim; d += 5) {
          const double got = FromBf16(o[b * kQueryRow + h * kDim + d]);
          worst = std::max(worst, std::abs(got - Expected(rotated, sequences[b], h, d)));
        }
      }
    }
  }
  std::cout << "largest difference: " << worst << "\n";
}
