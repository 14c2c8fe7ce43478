// A call of Runtime::Append in host memory, filled from a seed, with what must hold afterwards.
#ifndef TILEWRIGHT_TESTS_REFERENCE_APPEND_CASE_H_
#define TILEWRIGHT_TESTS_REFERENCE_APPEND_CASE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "reference/cache_append.h"
#include "tests/reference/host_case.h"
#include "tilewright/cache_append.h"

namespace tilewright::reference {

struct AppendScenario {
  std::string name;
  CacheAppendSpec spec;
  std::vector<int32_t> before;       // tokens in the cache, of each sequence
  int64_t seqlen = 1;                // new tokens of each sequence,
  std::vector<int32_t> counts = {};  // or of each its own: packed, or with `padded` up to seqlen
  bool padded = false;
  int64_t capacity = 64;
  int32_t first_position = -1;  // >= 0: positions are given, from here on in steps of 3
  bool slots = false;           // through cache_batch_idx
  bool missing_pages = false;   // some of negative number
  bool odd_strides = false;     // that no wide copy fits
  bool in_place = false;        // Q is rotated where it lies
  bool grows_in_place = false;  // new_seqused_kv is seqused_kv
  bool writes_lengths = true;
};

// Every feature, small enough for the emulator.
std::vector<AppendScenario> AppendScenarios();

class AppendCase {
 public:
  explicit AppendCase(const AppendScenario& scenario);
  AppendCase(const AppendCase&) = delete;
  AppendCase& operator=(const AppendCase&) = delete;

  struct Buffer {
    std::string name;
    void* data;
    size_t bytes;
    bool written;
  };
  std::vector<Buffer> Buffers();

  // `args` with its pointers moved from Buffers()[n].data to bases[n].
  CacheAppendArgs ArgsAt(const std::vector<void*>& bases);

  // What the reference says of the arrays as they are now, and these.
  struct Expected {
    AppendResult result;
    std::vector<std::vector<std::byte>> before;  // Buffers()
  };
  Expected Expect();
  // Fails the test where a row, a scale or a length is not right, or anything else has changed.
  void Check(const Expected& expected);

  CacheAppendSpec spec;
  CacheAppendArgs args;

 private:
  void CheckRow(const AppendedRow& row, std::vector<std::vector<bool>>& may_change);

  AppendScenario scenario_;
  Array q_, q_out_, k_, v_, k_cache_, v_cache_, cos_, sin_;
  std::vector<float> k_scale_, v_scale_;
  std::vector<int32_t> cu_seqlens_, seqused_, positions_, table_, slots_, lengths_, new_lengths_;
  std::vector<int32_t> ticket_ = {0};
};

}  // namespace tilewright::reference

#endif  // TILEWRIGHT_TESTS_REFERENCE_APPEND_CASE_H_
