// The instructions that cuda_on_host.h and ptx/ declare.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/convert.cuh"
#include "core/types.cuh"
#include "tests/emulated/emulator/cluster.h"
#include "tests/emulated/emulator/cut_off.h"
#include "tests/emulated/emulator/memory.h"
#include "tests/emulated/ptx/cp_async.cuh"
#include "tests/emulated/ptx/ldmatrix.cuh"
#include "tests/emulated/ptx/mma_sync.cuh"
#include "tests/emulated/ptx/stmatrix.cuh"

namespace cuda_on_host {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;

const char* NameOf(Operation operation) {
  switch (operation) {
    case Operation::kShuffle:
      return "__shfl_sync";
    case Operation::kShuffleXor:
      return "__shfl_xor_sync";
    case Operation::kShuffleUp:
      return "__shfl_up_sync";
    case Operation::kShuffleDown:
      return "__shfl_down_sync";
    case Operation::kBallot:
      return "__ballot_sync, __any_sync or __all_sync";
    case Operation::kSyncWarp:
      return "__syncwarp";
    case Operation::kLdmatrix:
      return "ldmatrix";
    case Operation::kMovmatrix:
      return "movmatrix";
    case Operation::kStmatrix:
      return "stmatrix";
    case Operation::kMma:
      return "mma.sync";
    case Operation::kWgmma:
      return "wgmma.mma_async";
    case Operation::kWgmmaFence:
      return "wgmma.fence";
    case Operation::kWgmmaCommit:
      return "wgmma.commit_group";
    case Operation::kWgmmaWait:
      return "wgmma.wait_group";
  }
  return "";
}

void CheckAligned(const void* address, size_t alignment, const char* what) {
  if (reinterpret_cast<uintptr_t>(address) % alignment == 0) return;
  cluster->AbortWith(std::string(what) + " is not a multiple of " + std::to_string(alignment));
}

// Of the block that runs.
void CheckSharedHere(size_t offset, size_t bytes, Access access, int actor, const void* code) {
  if (!InShared(offset, bytes)) {
    cluster->AbortWith(std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                           " of shared memory, which has " +
                           std::to_string(cluster->config().shared_bytes),
                       code);
  }
  CheckShared(cluster->rank(), offset, bytes, access, actor, code);
}

}  // namespace

unsigned SharedOffset(const void* pointer) {
  const LaunchConfig& config = cluster->config();
  const ptrdiff_t offset = static_cast<const std::byte*>(pointer) - config.shared;
  if (offset < 0 || offset > static_cast<ptrdiff_t>(config.shared_bytes)) {
    cluster->AbortWith("takes the shared address of what is no shared memory");
  }
  return static_cast<unsigned>(offset);
}

int Lane() { return cluster->lane(); }

void MeetInWarp(Operation operation, unsigned mask, void* arguments,
                void (*run)(void* const (&arguments)[32], unsigned mask)) {
  const unsigned self = 1u << Lane();
  if ((mask & self) == 0) {
    cluster->AbortWith(std::string(NameOf(operation)) + " with a mask that leaves the caller out");
  }
  std::vector<Cluster::Meeting>& meetings = cluster->meetings();
  size_t at = 0;
  while (at < meetings.size() && (meetings[at].mask & mask) == 0) ++at;
  if (at == meetings.size()) {
    meetings.push_back({.mask = mask, .operation = operation});
  } else if (meetings[at].mask != mask || meetings[at].operation != operation) {
    cluster->AbortWith(std::string("comes to ") + NameOf(operation) +
                       " while lanes of its warp are at " + NameOf(meetings[at].operation));
  }
  meetings[at].arrived |= self;
  meetings[at].arguments[Lane()] = arguments;
  if (meetings[at].arrived != mask) return cluster->Sleep(NameOf(operation));
  const Cluster::Meeting complete = meetings[at];
  meetings.erase(meetings.begin() + static_cast<ptrdiff_t>(at));
  run(complete.arguments, mask);
  const int first = cluster->warp() * 32;
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) != 0) cluster->Wake(first + lane);
  }
}

unsigned Shuffle(Operation operation, unsigned mask, unsigned value, int by, int width) {
  struct Arguments {
    Operation operation;
    unsigned value;
    int by, width;
    unsigned result;
  } arguments = {operation, value, by, width, 0};
  MeetInWarp(operation, mask, &arguments, [](void* const(&all)[32], unsigned lanes) {
    for (int lane = 0; lane < 32; ++lane) {
      if ((lanes >> lane & 1) == 0) continue;
      Arguments& own = *static_cast<Arguments*>(all[lane]);
      const int first = lane / own.width * own.width, within = lane % own.width;
      int from = within;
      if (own.operation == Operation::kShuffle) from = own.by & (own.width - 1);
      if (own.operation == Operation::kShuffleXor) from = within ^ own.by;
      if (own.operation == Operation::kShuffleUp) from = within - own.by;
      if (own.operation == Operation::kShuffleDown) from = within + own.by;
      if (from < 0 || from >= own.width) from = within;
      from += first;
      if ((lanes >> from & 1) == 0) {
        cluster->AbortWith("shuffles from a lane that its mask leaves out");
      }
      own.result = static_cast<Arguments*>(all[from])->value;
    }
  });
  return arguments.result;
}

unsigned Ballot(unsigned mask, bool vote) {
  struct Arguments {
    bool vote;
    unsigned result;
  } arguments = {vote, 0};
  MeetInWarp(Operation::kBallot, mask, &arguments, [](void* const(&all)[32], unsigned lanes) {
    unsigned ballot = 0;
    for (int lane = 0; lane < 32; ++lane) {
      if ((lanes >> lane & 1) != 0 && static_cast<Arguments*>(all[lane])->vote)
        ballot |= 1u << lane;
    }
    for (int lane = 0; lane < 32; ++lane) {
      if ((lanes >> lane & 1) != 0) static_cast<Arguments*>(all[lane])->result = ballot;
    }
  });
  return arguments.result;
}

int WaitForBlock(Votes votes, int vote) {
  cluster->Meet(cluster->barrier(0), cluster->block_threads(), vote, /*arrive_only=*/false,
                "__syncthreads");
  const BarrierVotes& result = cluster->fiber().votes;
  switch (votes) {
    case Votes::kNone:
      return 0;
    case Votes::kAnd:
      return result.all;
    case Votes::kOr:
      return result.any;
    case Votes::kCount:
      return result.count;
  }
  return 0;
}

// ---- cp.async

void StartCopy(unsigned destination, const void* source, int bytes, int source_bytes) {
  const void* const code = __builtin_return_address(0);
  if (destination % static_cast<unsigned>(bytes) != 0) {
    cluster->AbortWith("cp.async to a shared address that is not a multiple of " +
                       std::to_string(bytes));
  }
  if (source_bytes < 0 || source_bytes > bytes) {
    cluster->AbortWith("cp.async of " + std::to_string(source_bytes) + " of " +
                       std::to_string(bytes) + " bytes");
  }
  Copy copy = {.destination = destination, .bytes = std::vector<std::byte>(bytes)};
  if (source_bytes > 0) {
    CheckAligned(source, bytes, "the source of cp.async");
    CheckAccess(source, source_bytes, Access::kRead, code);
    std::memcpy(copy.bytes.data(), source, source_bytes);
  }
  CheckSharedHere(destination, bytes, Access::kWrite, cluster->current(), code);
  SetInFlight(cluster->rank(), destination, bytes, true);
  cluster->fiber().uncommitted.push_back(std::move(copy));
}

void CommitCopies() {
  Fiber& fiber = cluster->fiber();
  fiber.groups.push_back(std::exchange(fiber.uncommitted, {}));
}

void WaitForCopies(int pending) {
  Fiber& fiber = cluster->fiber();
  while (fiber.groups.size() > static_cast<size_t>(pending)) {
    for (const Copy& copy : fiber.groups.front()) {
      SetInFlight(cluster->rank(), copy.destination, copy.bytes.size(), false);
      CheckSharedHere(copy.destination, copy.bytes.size(), Access::kWrite, cluster->current(),
                      __builtin_return_address(0));
      std::memcpy(cluster->config().shared + copy.destination, copy.bytes.data(),
                  copy.bytes.size());
    }
    fiber.groups.pop_front();
  }
}

// ---- tensor cores

void LoadMatrices(unsigned* registers, unsigned address, int matrices, bool transposed) {
  struct Arguments {
    unsigned* registers;
    unsigned address;
    int matrices;
    bool transposed;
    const void* code;
  } arguments = {registers, address, matrices, transposed, __builtin_return_address(0)};
  MeetInWarp(Operation::kLdmatrix, kAllLanes, &arguments, [](void* const(&all)[32], unsigned) {
    const int first = cluster->warp() * 32;
    const auto of = [&all](int lane) -> Arguments& { return *static_cast<Arguments*>(all[lane]); };
    for (int matrix = 0; matrix < of(0).matrices; ++matrix) {
      tilewright::u16 elements[8][8];
      for (int row = 0; row < 8; ++row) {
        const Arguments& source = of(matrix * 8 + row);
        if (source.address % 16 != 0) {
          cluster->AbortWith("ldmatrix from an address that is not a multiple of 16", source.code);
        }
        CheckSharedHere(source.address, 16, Access::kRead, first + matrix * 8 + row, source.code);
        std::memcpy(elements[row], cluster->config().shared + source.address, 16);
      }
      for (int lane = 0; lane < 32; ++lane) {
        const int row = lane / 4, column = lane % 4 * 2;
        const bool flip = of(lane).transposed;
        const unsigned low = flip ? elements[column][row] : elements[row][column];
        const unsigned high = flip ? elements[column + 1][row] : elements[row][column + 1];
        of(lane).registers[matrix] = high << 16 | low;
      }
    }
  });
}

unsigned TransposeMatrix(unsigned pair) {
  MeetInWarp(Operation::kMovmatrix, kAllLanes, &pair, [](void* const(&all)[32], unsigned) {
    unsigned before[32];
    for (int lane = 0; lane < 32; ++lane) before[lane] = *static_cast<unsigned*>(all[lane]);
    const auto element = [&before](int row, int column) {
      return before[row * 4 + column / 2] >> (column % 2 * 16) & 0xffff;
    };
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4, column = lane % 4 * 2;
      *static_cast<unsigned*>(all[lane]) = element(column + 1, row) << 16 | element(column, row);
    }
  });
  return pair;
}

void StoreMatrices(unsigned address, const unsigned* registers, int matrices, bool transposed) {
  struct Arguments {
    const unsigned* registers;
    unsigned address;
    int matrices;
    bool transposed;
    const void* code;
  } arguments = {registers, address, matrices, transposed, __builtin_return_address(0)};
  MeetInWarp(Operation::kStmatrix, kAllLanes, &arguments, [](void* const(&all)[32], unsigned) {
    const int first = cluster->warp() * 32;
    const auto of = [&all](int lane) -> Arguments& { return *static_cast<Arguments*>(all[lane]); };
    for (int matrix = 0; matrix < of(0).matrices; ++matrix) {
      tilewright::u16 elements[8][8];
      for (int lane = 0; lane < 32; ++lane) {
        for (int n = 0; n < 2; ++n) {
          const int row = lane / 4, column = lane % 4 * 2 + n;
          const auto bits = static_cast<tilewright::u16>(of(lane).registers[matrix] >> (16 * n));
          (of(lane).transposed ? elements[column][row] : elements[row][column]) = bits;
        }
      }
      for (int row = 0; row < 8; ++row) {
        const Arguments& target = of(matrix * 8 + row);
        if (target.address % 16 != 0) {
          cluster->AbortWith("stmatrix to an address that is not a multiple of 16", target.code);
        }
        CheckSharedHere(target.address, 16, Access::kWrite, first + matrix * 8 + row, target.code);
        std::memcpy(cluster->config().shared + target.address, elements[row], 16);
      }
    }
  });
}

namespace {

// Element n of a register that holds one fp32 or two 16-bit elements.
float ElementOf(unsigned bits, int n, Operand operand) {
  const auto half = static_cast<tilewright::u16>(bits >> (16 * n));
  switch (operand) {
    case Operand::kFp16:
      return tilewright::Fp16{half};
    case Operand::kBf16:
      return tilewright::Bf16{half};
    case Operand::kTf32:
      return tilewright::FloatOfBits(bits & ~0x1fffu);  // the multiplier does not look at the rest
  }
  return 0;
}

}  // namespace

void MultiplyAdd(float (&d)[4], const unsigned* a, const unsigned* b, int depth, Operand operand) {
  struct Arguments {
    float* d;
    const unsigned* a;
    const unsigned* b;
    int depth;
    Operand operand;
  } arguments = {d, a, b, depth, operand};
  MeetInWarp(Operation::kMma, kAllLanes, &arguments, [](void* const(&all)[32], unsigned) {
    const auto of = [&all](int lane) -> Arguments& { return *static_cast<Arguments*>(all[lane]); };
    const int depth = of(0).depth;
    const Operand operand = of(0).operand;
    // A register holds `per` elements side by side in k; a quad of lanes 4 * per of them.
    const int per = operand == Operand::kTf32 ? 1 : 2;
    const int steps = depth / (4 * per);
    float left[16][16], right[8][16];
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4, quad = lane % 4;
      for (int step = 0; step < steps; ++step) {
        for (int n = 0; n < per; ++n) {
          const int k = step * 4 * per + quad * per + n;
          left[row][k] = ElementOf(of(lane).a[2 * step], n, operand);
          left[row + 8][k] = ElementOf(of(lane).a[2 * step + 1], n, operand);
          right[row][k] = ElementOf(of(lane).b[step], n, operand);
        }
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      for (int c = 0; c < 4; ++c) {
        const float* const x = left[lane / 4 + c / 2 * 8];
        const float* const y = right[lane % 4 * 2 + c % 2];
        double sum = of(lane).d[c];
        for (int k = 0; k < depth; ++k) sum += static_cast<double>(x[k]) * y[k];
        of(lane).d[c] = CutOff(sum);
      }
    }
  });
}

// ---- atomics

namespace {

template <typename T>
T Add(T* address, T value, const void* code) {
  CheckAccess(address, sizeof(T), Access::kAtomic, code);
  if constexpr (std::is_integral_v<T>) {
    Acquire(address);
    Release(address);
  }
  return std::exchange(*address, *address + value);
}

}  // namespace

float AtomicAdd(float* address, float value) {
  return Add(address, value, __builtin_return_address(0));
}
int AtomicAdd(int* address, int value) { return Add(address, value, __builtin_return_address(0)); }
unsigned AtomicAdd(unsigned* address, unsigned value) {
  return Add(address, value, __builtin_return_address(0));
}
unsigned long long AtomicAdd(unsigned long long* address, unsigned long long value) {
  return Add(address, value, __builtin_return_address(0));
}

unsigned long long AtomicCas(unsigned long long* address, unsigned long long expected,
                             unsigned long long value) {
  CheckAccess(address, sizeof value, Access::kAtomic, __builtin_return_address(0));
  Acquire(address);
  Release(address);
  const unsigned long long seen = *address;
  if (seen == expected) *address = value;
  return seen;
}
int AtomicMin(int* address, int value) {
  CheckAccess(address, sizeof value, Access::kAtomic, __builtin_return_address(0));
  return std::exchange(*address, std::min(*address, value));
}
int AtomicMax(int* address, int value) {
  CheckAccess(address, sizeof value, Access::kAtomic, __builtin_return_address(0));
  return std::exchange(*address, std::max(*address, value));
}

}  // namespace cuda_on_host

void __syncwarp(unsigned mask) {
  using cuda_on_host::cluster;
  cuda_on_host::MeetInWarp(cuda_on_host::Operation::kSyncWarp, mask, nullptr,
                           [](void* const(&)[32], unsigned lanes) {
                             const int first = cluster->warp() * 32;
                             cuda_on_host::Clock all = cluster->clock(cluster->current());
                             for (int lane = 0; lane < 32; ++lane) {
                               if ((lanes >> lane & 1) != 0)
                                 cuda_on_host::Join(all, cluster->clock(first + lane));
                             }
                             for (int lane = 0; lane < 32; ++lane) {
                               if ((lanes >> lane & 1) == 0) continue;
                               cluster->clock(first + lane) = all;
                               cluster->Step(first + lane);
                             }
                           });
}
