#include "tests/emulated/emulated_case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <map>
#include <utility>

#include "base/status_macros.h"
#include "spec/canonical.h"
#include "spec/validate.h"
#include "tests/emulated/emulated_call.h"

namespace tilewright::emulated {
namespace {

using reference::HostCase;

// ---- the comparison

struct Outputs {
  explicit Outputs(const HostCase& c)
      : type(spec::OutType(c.spec)),
        packed(c.args.cu_seqlens_q != nullptr),
        rows(packed ? c.args.total_q : c.args.batch * c.args.seqlen_q),
        // No kernel writes these bytes or this LSE.
        o(SizeOfO(c) * spec::ElementBytes(type), std::byte{0x7f}),
        lse(rows * c.spec.heads_q, 12345.f) {}

  // Elements up to the last one, whatever the strides.
  static int64_t SizeOfO(const HostCase& c) {
    if (c.args.cu_seqlens_q == nullptr && c.spec.batch * c.spec.seqlen_q == 0) return 0;
    if (c.args.cu_seqlens_q != nullptr && c.args.total_q == 0) return 0;
    const bool packed = c.args.cu_seqlens_q != nullptr;
    return HostCase::Offset(c.d_o_strides, packed ? 0 : c.spec.batch - 1,
                            (packed ? c.args.total_q : c.spec.seqlen_q) - 1, c.spec.heads_q - 1,
                            c.spec.dim_v - 1) +
           1;
  }

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
  std::vector<bool> is_output(outputs.o.size() / element_bytes, false);
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto [b, h, i] = rows[r];
    SCOPED_TRACE(testing::Message() << "b " << b << " h " << h << " i " << i);
    const int64_t row = outputs.packed ? c.args.cu_seqlens_q[b] + i : i;
    const int64_t batch = outputs.packed ? 0 : b;
    for (int64_t d = 0; d < dim; ++d) {
      const int64_t at = HostCase::Offset(c.d_o_strides, batch, row, h, d);
      is_output[at] = true;
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
  for (size_t at = 0; at < is_output.size(); ++at) {
    for (int64_t byte = 0; byte < element_bytes && !is_output[at]; ++byte) {
      ASSERT_EQ(outputs.o[at * element_bytes + byte], std::byte{0x7f})
          << "written between the rows of O, at element " << at;
    }
  }
  const bool fp32 = c.spec.type == ElementType::kFp32 && outputs.type == ElementType::kFp32;
  EXPECT_LE(error.relative(), fp32 ? 5e-6 : 1.5 * plain_error.relative());
}

// Memory that a kernel of this problem may touch.
std::vector<cuda_on_host::MemoryRange> MemoryOf(const HostCase& c, Outputs& outputs) {
  std::vector<cuda_on_host::MemoryRange> memory;
  const auto input = [&memory](std::string name, const void* data, size_t bytes) {
    if (bytes != 0) memory.push_back({data, bytes, false, std::move(name)});
  };
  const auto array = [&](std::string name, const reference::Array& values) {
    input(std::move(name), values.data(), static_cast<size_t>(values.bytes()));
  };
  const auto numbers = [&](std::string name, const auto& values) {
    input(std::move(name), values.data(), values.size() * sizeof(values[0]));
  };
  array("q", c.q);
  array("k", c.k);
  array("v", c.v);
  for (const reference::Array& term : c.bias) array("a bias term", term);
  numbers("sinks", c.sinks);
  numbers("alibi_slopes", c.slopes);
  numbers("q_scale", c.q_scale);
  numbers("k_scale", c.k_scale);
  numbers("v_scale", c.v_scale);
  numbers("block_mask", c.block_mask);
  numbers("cu_seqlens_q", c.cu_seqlens_q);
  numbers("cu_seqlens_kv", c.cu_seqlens_kv);
  numbers("seqused_q", c.seqused_q);
  numbers("seqused_kv", c.seqused_kv);
  numbers("left_padding", c.left_padding);
  numbers("cache_batch_idx", c.cache_batch_idx);
  numbers("page_table", c.page_table);
  memory.push_back({outputs.o.data(), outputs.o.size(), true, "o"});
  if (c.spec.lse) {
    memory.push_back({outputs.lse.data(), outputs.lse.size() * sizeof(float), true, "lse"});
  }
  return memory;
}

// ---- kernels

absl::StatusOr<CallSource> Prepare(const Emulation& emulation) {
  const Scenario& scenario = emulation.scenario;
  TILEWRIGHT_ASSIGN_OR_RETURN(
      const AttentionSpec parsed, spec::ParseSpec(scenario.spec, [&](std::string_view file) {
        if (file == "mask_tile") return scenario.mask_tile_snippet;
        return file == "score" ? scenario.score_snippet : scenario.mask_snippet;
      }));
  const AttentionSpec spec = spec::Canonicalise(parsed);
  if (!emulation.plan.empty()) {
    TILEWRIGHT_ASSIGN_OR_RETURN(const plan::KernelPlan plan, plan::ParsePlan(emulation.plan));
    return EmitCall(spec, plan);
  }
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::vector<plan::KernelPlan> plans,
                              PlansOf(spec, emulation.family));
  // Others than the best one run here, and so that all kinds of them do.
  return EmitCall(spec, plans[std::hash<std::string>{}(scenario.spec) % plans.size()]);
}

// The kernels of emulation `index`; starts the compiles of those behind it.
Call CallOf(const std::vector<Emulation>& all, size_t index, const CallSource& source) {
  constexpr size_t kAhead = 2;
  static auto* const started = new std::map<const Emulation*, std::future<Call>>;
  const testing::TestSuite& suite = *testing::UnitTest::GetInstance()->current_test_suite();
  const bool runs_all = suite.test_to_run_count() > static_cast<int>(all.size()) / 2;
  for (size_t next = index + 1; runs_all && next <= index + kAhead && next < all.size(); ++next) {
    std::future<Call>& future = (*started)[&all[next]];
    if (future.valid()) continue;
    auto ahead = Prepare(all[next]);
    if (!ahead.ok()) continue;
    future = std::async(std::launch::async,
                        [source = *std::move(ahead)]() mutable { return Call(std::move(source)); });
  }
  const auto found = started->find(&all[index]);
  if (found == started->end() || !found->second.valid()) return Call(source);
  Call call = found->second.get();
  started->erase(found);
  return call;
}

}  // namespace

void PrintTo(const Emulation& emulation, std::ostream* out) {
  *out << plan::FamilyName(emulation.family) << " " << emulation.scenario.spec;
}

std::vector<Emulation> Served(const std::vector<Scenario>& scenarios,
                              const std::vector<plan::Family>& families) {
  std::vector<Emulation> all;
  for (const Scenario& scenario : scenarios) {
    for (const plan::Family family : families) {
      const Emulation emulation = {scenario, family};
      const auto prepared = Prepare(emulation);
      if (prepared.ok() || !absl::IsUnimplemented(prepared.status())) all.push_back(emulation);
    }
  }
  return all;
}

void CheckEmulation(const std::vector<Emulation>& all, size_t index) {
  const Scenario& scenario = all[index].scenario;
  SCOPED_TRACE(scenario.spec);
  const auto prepared = Prepare(all[index]);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  SCOPED_TRACE(prepared->plan.ToString());
  const AttentionSpec& spec = prepared->spec;
  HostCase c(spec, 7, scenario.lengths_q, scenario.lengths_kv);
  if (scenario.change) scenario.change(c);
  Outputs outputs(c);
  AttentionArgs args = c.args;
  args.o = {outputs.o.data(), c.d_o_strides};
  args.lse = outputs.lse.data();
  std::vector<cuda_on_host::MemoryRange> memory = MemoryOf(c, outputs);
  memory.insert(memory.end(), scenario.memory.begin(), scenario.memory.end());
  EXPECT_THAT(CallOf(all, index, *prepared).Run(args, memory), testing::IsEmpty());
  ExpectClose(c, {.callables = scenario.rules, .threads = 1}, outputs);
}

}  // namespace tilewright::emulated
