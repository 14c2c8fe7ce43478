// Decodes one token of two sequences from a paged cache, and compares the result with sums on the
// host.
#include "paged_decoder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <vector>

namespace {

constexpr int64_t kBatch = 2, kHeads = 32, kGroup = kHeads / PagedCache::kHeadsKv;
constexpr int64_t kDim = PagedCache::kDim, kMaxPages = 7,
                  kMaxTokens = kMaxPages * PagedCache::kPage;
constexpr int32_t kLengths[kBatch] = {37, 100};
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

// Element d of the output of query head h of sequence b.
double Expected(const std::vector<uint16_t>& q, const std::vector<uint16_t>& k,
                const std::vector<uint16_t>& v, int64_t b, int64_t h, int64_t d) {
  double total = 0, sum = 0;
  for (int64_t j = 0; j < kLengths[b]; ++j) {
    const int64_t row =
        PageOf(b, j / PagedCache::kPage) * PagedCache::kPage + j % PagedCache::kPage;
    const int64_t at = (row * PagedCache::kHeadsKv + h / kGroup) * kDim;
    double score = 0;
    for (int64_t x = 0; x < kDim; ++x) {
      score += double{FromBf16(q[(b * kHeads + h) * kDim + x])} * FromBf16(k[at + x]);
    }
    const double weight = std::exp(score / std::sqrt(double{kDim}));
    total += weight;
    sum += weight * FromBf16(v[at + d]);
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
  auto decoder = Decoder::Create(**runtime, kBatch, kMaxTokens);
  if (!decoder.ok()) return std::cerr << decoder.status() << "\n", 1;

  const int64_t elements = kBatch * kMaxTokens * PagedCache::kHeadsKv * kDim;
  const auto q = Values(kBatch * kHeads * kDim, 1);
  const auto k = Values(elements, 100'000);
  const auto v = Values(elements, 900'000);
  std::vector<int32_t> table;
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t page = 0; page < kMaxPages; ++page) table.push_back(PageOf(b, page));
  }
  const std::vector<int32_t> lengths(kLengths, kLengths + kBatch);
  const PagedCache cache = {OnDevice(k), OnDevice(v), static_cast<int32_t*>(OnDevice(table)),
                            static_cast<int32_t*>(OnDevice(lengths)), kMaxPages};
  std::vector<uint16_t> o(q.size());
  void* const o_device = OnDevice(o);
  absl::Status status = decoder->Reserve(kBatch, kMaxTokens);
  if (status.ok())
    status = decoder->Attend(cache, OnDevice(q), o_device, kBatch, kMaxTokens, nullptr);
  if (!status.ok()) return std::cerr << status << "\n", 1;
  cuMemcpyDtoH(o.data(), reinterpret_cast<CUdeviceptr>(o_device), o.size() * sizeof(o[0]));
  double worst = 0;
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t d = 0; d < kDim; d += 5) {
        const double got = FromBf16(o[(b * kHeads + h) * kDim + d]);
        worst = std::max(worst, std::abs(got - Expected(q, k, v, b, h, d)));
      }
    }
  }
  std::cout << "largest difference: " << worst << "\n";
}
