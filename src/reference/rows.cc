// Which rows a problem has, and which of them to look at when there are too many.
#include <algorithm>
#include <random>
#include <utility>

#include "reference/problem.h"
#include "reference/reference.h"

namespace tilewright::reference {
namespace {

// The query block and key block sizes of kernels are multiples or divisors of this: rows next to
// its multiples are where tiles meet.
constexpr int64_t kTileEdge = 64;

// Fewer rows than this of one (batch, head) say little about it.
constexpr int64_t kRowsPerHead = 8;

// At most `budget` (at least 1) rows of a sequence of `length` rows: both ends first, then pairs
// around tile edges for half of what is left, then any.
std::vector<int64_t> SampleOfLength(int64_t length, int64_t budget, std::mt19937_64& random) {
  std::vector<int64_t> rows = {0};
  const auto add = [&](int64_t row) {
    if (static_cast<int64_t>(rows.size()) < budget) rows.push_back(row);
  };
  add(length - 1);
  const int64_t edges = (length - 1) / kTileEdge;
  if (edges > 0) {
    for (int64_t n = 0; n < (budget - 2) / 4; ++n) {
      const int64_t edge = kTileEdge * (1 + static_cast<int64_t>(random() % edges));
      add(edge - 1);
      add(edge);
    }
  }
  while (static_cast<int64_t>(rows.size()) < budget) {
    rows.push_back(static_cast<int64_t>(random() % length));
  }
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

}  // namespace

std::vector<Row> AllRows(const AttentionSpec& spec, const AttentionArgs& args) {
  std::vector<Row> rows;
  for (int64_t b = 0; b < args.batch; ++b) {
    const int64_t length = SequenceOf(spec, args, b).seqlen_q;
    for (int64_t h = 0; h < spec.heads_q; ++h) {
      for (int64_t i = 0; i < length; ++i) rows.push_back({b, h, i});
    }
  }
  return rows;
}

std::vector<Row> SampleRows(const AttentionSpec& spec, const AttentionArgs& args, int64_t limit,
                            uint64_t seed) {
  // Sequences that have rows: (b, length).
  std::vector<std::pair<int64_t, int64_t>> sequences;
  int64_t total = 0;
  for (int64_t b = 0; b < args.batch; ++b) {
    const int64_t length = SequenceOf(spec, args, b).seqlen_q;
    if (length > 0) sequences.emplace_back(b, length);
    total += length * spec.heads_q;
  }
  if (total <= limit) return AllRows(spec, args);
  if (limit <= 0) return {};

  std::mt19937_64 random(seed);
  const int64_t pairs = static_cast<int64_t>(sequences.size()) * spec.heads_q;
  const int64_t visited = std::clamp<int64_t>(limit / kRowsPerHead, 1, pairs);
  std::vector<Row> rows;
  for (int64_t n = 0; n < visited; ++n) {
    // One (b, h) of each of `visited` equal strata, at random within it: a fixed step would meet
    // the same head of every batch when it is a multiple of the number of heads.
    const int64_t begin = pairs * n / visited;
    const int64_t end = pairs * (n + 1) / visited;
    const int64_t pair = begin + static_cast<int64_t>(random() % (end - begin));
    const auto [b, length] = sequences[pair / spec.heads_q];
    const int64_t budget = std::min(length, limit / visited);
    for (int64_t i : SampleOfLength(length, budget, random)) {
      rows.push_back({b, pair % spec.heads_q, i});
    }
  }
  return rows;
}

}  // namespace tilewright::reference
