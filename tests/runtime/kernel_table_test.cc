#include "runtime/kernel_table.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/runtime_impl.h"
#include "tests/runtime/test_runtime.h"

namespace tilewright {
namespace {

SpecKey SpecNumber(int64_t n, uint64_t context_id = 1) {
  SpecKey key = {context_id, SmallSpec()};
  key.spec.seqlen_kv = n;
  return key;
}

KernelKey KernelNumber(int n, uint64_t context_id = 1) {
  return {context_id, Sha256(std::to_string(n)), 0};
}

std::shared_ptr<const PreparedAttention::State> SomeState() {
  auto state = std::make_shared<PreparedAttention::State>();
  state->pid = getpid();
  return state;
}

std::shared_ptr<const ResidentKernel> SomeKernel() {
  return std::make_shared<const ResidentKernel>();
}

TEST(KernelTableTest, FindsWhatWasInsertedUnderItsContext) {
  KernelTable table({});
  const auto state = SomeState();
  const auto kernel = SomeKernel();
  EXPECT_EQ(table.Find(SpecNumber(1)), nullptr);
  EXPECT_EQ(table.Insert(SpecNumber(1), state, {{KernelNumber(1), kernel}}), 0);
  EXPECT_EQ(table.Find(SpecNumber(1)), state);
  EXPECT_EQ(table.FindKernel(KernelNumber(1)), kernel);
  EXPECT_EQ(table.Find(SpecNumber(2)), nullptr);
  EXPECT_EQ(table.Find(SpecNumber(1, 2)), nullptr);
  EXPECT_EQ(table.FindKernel(KernelNumber(1, 2)), nullptr);
  KernelKey more_smem = KernelNumber(1);
  more_smem.smem_bytes = 4096;
  EXPECT_EQ(table.FindKernel(more_smem), nullptr);
}

TEST(KernelTableTest, AKernelTakesItsSpecsWithIt) {
  KernelTable table({.kernels = 2, .specs = 100});
  const auto shared = SomeKernel();
  table.Insert(SpecNumber(1), SomeState(), {{KernelNumber(1), shared}});
  table.Insert(SpecNumber(2), SomeState(), {{KernelNumber(1), shared}});
  table.Insert(SpecNumber(3), SomeState(), {{KernelNumber(2), SomeKernel()}});
  EXPECT_EQ(table.Insert(SpecNumber(4), SomeState(), {{KernelNumber(3), SomeKernel()}}), 1);
  EXPECT_EQ(table.num_kernels(), 2u);
  EXPECT_EQ(table.num_specs(), 2u);
  EXPECT_EQ(table.Find(SpecNumber(1)), nullptr);
  EXPECT_EQ(table.Find(SpecNumber(2)), nullptr);
  EXPECT_EQ(shared.use_count(), 1);
}

TEST(KernelTableTest, AHitOnAnySpecKeepsTheKernel) {
  KernelTable table({.kernels = 2, .specs = 100});
  table.Insert(SpecNumber(1), SomeState(), {{KernelNumber(1), SomeKernel()}});
  table.Insert(SpecNumber(2), SomeState(), {{KernelNumber(2), SomeKernel()}});
  ASSERT_NE(table.Find(SpecNumber(1)), nullptr);
  table.Insert(SpecNumber(3), SomeState(), {{KernelNumber(3), SomeKernel()}});
  EXPECT_NE(table.Find(SpecNumber(1)), nullptr);
  EXPECT_EQ(table.Find(SpecNumber(2)), nullptr);
}

TEST(KernelTableTest, SpecsAreBoundedToo) {
  KernelTable table({.kernels = 10, .specs = 3});
  const auto kernel = SomeKernel();
  for (int n = 1; n <= 5; ++n) {
    EXPECT_EQ(table.Insert(SpecNumber(n), SomeState(), {{KernelNumber(1), kernel}}), 0);
    ASSERT_NE(table.Find(SpecNumber(1)), nullptr);  // in use all the time
  }
  EXPECT_EQ(table.num_specs(), 3u);
  EXPECT_EQ(table.num_kernels(), 1u);
  EXPECT_EQ(table.Find(SpecNumber(2)), nullptr);
  EXPECT_EQ(table.Find(SpecNumber(3)), nullptr);
  EXPECT_NE(table.Find(SpecNumber(5)), nullptr);
}

TEST(KernelTableTest, ReplacesWhatIsThere) {
  KernelTable table({});
  const auto first = SomeState();
  const auto second = SomeState();
  table.Insert(SpecNumber(1), first, {{KernelNumber(1), SomeKernel()}});
  EXPECT_EQ(table.Insert(SpecNumber(1), second, {{KernelNumber(1), SomeKernel()}}), 0);
  EXPECT_EQ(table.Find(SpecNumber(1)), second);
  EXPECT_EQ(first.use_count(), 1);
  EXPECT_EQ(table.num_kernels(), 1u);
}

TEST(KernelTableTest, SpecsWithoutAKernelAreKept) {
  KernelTable table({.kernels = 1, .specs = 2});
  for (int n = 1; n <= 3; ++n) {
    EXPECT_EQ(table.Insert(SpecNumber(n), SomeState(), {}), 0);
  }
  EXPECT_EQ(table.num_kernels(), 0u);
  EXPECT_EQ(table.num_specs(), 2u);
}

TEST(KernelTableTest, ReadersAndWritersMeet) {
  KernelTable table({.kernels = 4, .specs = 8});
  std::atomic<bool> stop = false;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] {
      for (int64_t n = 0; !stop; n = (n + 1) % 16) {
        const auto state = table.Find(SpecNumber(n));
        if (state != nullptr && state->spec.seqlen_kv != n) ++wrong;
      }
    });
  }
  for (int64_t round = 0; round < 2000; ++round) {
    const int64_t n = round % 16;
    auto state = std::make_shared<PreparedAttention::State>();
    state->pid = getpid();
    state->spec.seqlen_kv = n;
    table.Insert(SpecNumber(n), std::move(state),
                 {{KernelNumber(static_cast<int>(n % 6)), SomeKernel()}});
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(table.num_specs(), 8u);
  EXPECT_LE(table.num_kernels(), 4u);
}

}  // namespace
}  // namespace tilewright
