// wgmma: runs the text of emitted asm statements. A warp computes its 16 rows of the warpgroup's 64
// by itself; operands are read and accumulators written when the group is waited for, which is the
// latest that the hardware may do it.
#include "tests/emulated/emulator/wgmma.h"

#include <cctype>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/convert.cuh"
#include "core/types.cuh"
#include "tests/emulated/emulator/cluster.h"
#include "tests/emulated/emulator/cut_off.h"
#include "tests/emulated/emulator/memory.h"
#include "tests/emulated/emulator/tensor_map.h"
#include "tests/emulated/ptx/wgmma.cuh"

namespace cuda_on_host {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kOperandBytes = 32;  // of a row of K in one instruction, whatever the type

// ---- the text

struct Instruction {
  std::string name;                // "add.s64"
  std::vector<std::string> words;  // operands; a list in braces gives one word each
  std::vector<int> lists;          // how many words each operand has
};

// Statements end at semicolons; the braces around all of them are a scope.
std::vector<Instruction> Parse(const std::string& text) {
  std::vector<Instruction> program;
  std::string statement;
  for (const char c : text + ";") {
    if (c != ';') {
      statement += c;
      continue;
    }
    std::string line = std::exchange(statement, "");
    const size_t begin = line.find_first_not_of(" \t\n{");
    if (begin == std::string::npos || line.compare(begin, 1, "}") == 0) continue;
    line = line.substr(begin);
    Instruction instruction;
    const size_t name_end = line.find_first_of(" \t");
    instruction.name = line.substr(0, name_end);
    if (instruction.name == ".reg") continue;
    bool in_list = false;
    std::string word;
    const auto end_word = [&] {
      if (word.empty()) return;
      instruction.words.push_back(std::exchange(word, ""));
      if (in_list) {
        ++instruction.lists.back();
      } else {
        instruction.lists.push_back(1);
      }
    };
    for (const char w : line.substr(std::min(name_end, line.size()))) {
      if (w == '{') {
        in_list = true;
        instruction.lists.push_back(0);
      } else if (w == ',' || w == '}') {
        end_word();
        if (w == '}') in_list = false;
      } else if (std::isspace(static_cast<unsigned char>(w)) == 0) {
        word += w;
      }
    }
    end_word();
    program.push_back(std::move(instruction));
  }
  return program;
}

// ---- products

enum class Type { kFp16, kBf16, kTf32, kE4m3, kE5m2 };
int BytesOf(Type type) {
  switch (type) {
    case Type::kTf32:
      return 4;
    case Type::kFp16:
    case Type::kBf16:
      return 2;
    case Type::kE4m3:
    case Type::kE5m2:
      return 1;
  }
  return 0;
}

float Widen(const std::byte* element, Type type) {
  tilewright::u32 word = 0;
  std::memcpy(&word, element, BytesOf(type));
  switch (type) {
    case Type::kFp16:
      return tilewright::Fp16{static_cast<tilewright::u16>(word)};
    case Type::kBf16:
      return tilewright::Bf16{static_cast<tilewright::u16>(word)};
    case Type::kTf32:
      return tilewright::FloatOfBits(word & ~0x1fffu);  // the multiplier does not look at the rest
    case Type::kE4m3:
      return tilewright::Fp8E4m3{static_cast<tilewright::u8>(word)};
    case Type::kE5m2:
      return tilewright::Fp8E5m2{static_cast<tilewright::u8>(word)};
  }
  return 0;
}

struct Product {
  Type type;
  int n;
  bool accumulates;
  bool a_in_registers;
  uint64_t a_descriptor, b_descriptor;
  bool a_transposed, b_transposed;
  float* d[32];  // n / 2 registers of each lane, side by side
  const unsigned* a[32][4];
  unsigned a_before[32][4];
  const void* code;
};

// Registers of a lane that products under way will write, with what they must still hold.
struct Accumulators {
  std::vector<float> values;
  int products = 0;
};

struct WarpProducts {
  std::vector<Product> uncommitted;
  std::deque<std::vector<Product>> groups;
  std::map<float*, Accumulators> accumulators;  // by the first of them
  bool fenced = false;
};
std::vector<WarpProducts> warps;
std::map<const char*, std::vector<Instruction>> programs;

struct Descriptor {
  uint32_t start, leading, stride;
  int swizzle;  // as in HostTensorMap
};

Descriptor Decode(uint64_t bits, const void* code) {
  static constexpr int kSwizzles[] = {0, 3, 2, 1};
  if ((bits >> 49 & 7) != 0) cluster->AbortWith("wgmma with a base offset: not emulated", code);
  return {static_cast<uint32_t>(bits & 0x3fff) << 4,
          static_cast<uint32_t>(bits >> 16 & 0x3fff) << 4,
          static_cast<uint32_t>(bits >> 32 & 0x3fff) << 4, kSwizzles[bits >> 62]};
}

// Where the 16 bytes begin that hold element (mn, byte of K) of an operand whose rows run along K.
uint32_t ChunkAlongK(const Descriptor& d, int mn, int k_byte) {
  if (d.swizzle == 0) {
    return d.start + mn / 8 * d.stride + k_byte / 16 * d.leading + mn % 8 * 16;
  }
  const uint32_t width = 16u << d.swizzle;
  return Swizzled(d.start + mn / 8 * d.stride + mn % 8 * width + k_byte / 16 * 16, d.swizzle);
}

// The same where rows run along M or N, `mn_byte` being bytes along them.
uint32_t ChunkAlongMn(const Descriptor& d, int mn_byte, int k, const void* code) {
  if (d.swizzle == 0) {
    cluster->AbortWith("wgmma along M or N without a swizzle: not emulated", code);
  }
  const int width = 16 << d.swizzle;
  return Swizzled(d.start + mn_byte / width * d.leading + k / 8 * d.stride + k % 8 * width +
                      mn_byte % width / 16 * 16,
                  d.swizzle);
}

// Rows [first, first + count) of an operand in shared memory as floats [row][k]; `use` is what else
// is done with each 16 bytes.
template <typename Use>
void ReadOperand(uint64_t bits, bool transposed, Type type, int first, int count, float* out,
                 const void* code, const Use& use) {
  const Descriptor descriptor = Decode(bits, code);
  const int bytes = BytesOf(type), depth = kOperandBytes / bytes, per_chunk = 16 / bytes;
  const std::byte* const shared = cluster->config().shared;
  const auto chunk = [&](uint32_t address) {
    if (!InShared(address, 16)) {
      cluster->AbortWith("wgmma reads at " + std::to_string(address) + " of shared memory", code);
    }
    use(address);
    return shared + address;
  };
  if (transposed) {
    if (bytes != 2) cluster->AbortWith("wgmma transposes 16-bit elements only", code);
    for (int k = 0; k < depth; ++k) {
      for (int row = 0; row < count; row += per_chunk) {
        const std::byte* at = chunk(ChunkAlongMn(descriptor, (first + row) * bytes, k, code));
        for (int n = 0; n < per_chunk; ++n)
          out[(row + n) * depth + k] = Widen(at + n * bytes, type);
      }
    }
    return;
  }
  for (int row = 0; row < count; ++row) {
    for (int k = 0; k < depth; k += per_chunk) {
      const std::byte* at = chunk(ChunkAlongK(descriptor, first + row, k * bytes));
      for (int n = 0; n < per_chunk; ++n) out[row * depth + k + n] = Widen(at + n * bytes, type);
    }
  }
}

// Both operands of this warp: its 16 rows of A, all of B.
struct Operands {
  std::vector<float> a, b;
};
template <typename Use>
Operands ReadOperands(const Product& product, int warp, const Use& use) {
  const int depth = kOperandBytes / BytesOf(product.type);
  Operands operands = {std::vector<float>(16 * depth), std::vector<float>(product.n * depth)};
  if (product.a_in_registers) {
    // Four bytes of K a register, as in mma.sync: rows r and r + 8, then the second half of K.
    const int per_word = 4 / BytesOf(product.type);
    for (int lane = 0; lane < 32; ++lane) {
      for (int word = 0; word < 4; ++word) {
        const int row = lane / 4 + word % 2 * 8;
        const int k = (lane % 4 + word / 2 * 4) * per_word;
        for (int n = 0; n < per_word; ++n) {
          const auto* bytes = reinterpret_cast<const std::byte*>(&product.a_before[lane][word]);
          operands.a[row * depth + k + n] = Widen(bytes + n * BytesOf(product.type), product.type);
        }
      }
    }
  } else {
    ReadOperand(product.a_descriptor, product.a_transposed, product.type, warp % 4 * 16, 16,
                operands.a.data(), product.code, use);
  }
  ReadOperand(product.b_descriptor, product.b_transposed, product.type, 0, product.n,
              operands.b.data(), product.code, use);
  return operands;
}

void CheckReads(const Product& product, int warp) {
  const int core = cluster->TensorCoreOf(warp);
  ReadOperands(product, warp, [&](uint32_t address) {
    CheckShared(cluster->rank(), address, 16, Access::kAsyncRead, core, product.code);
  });
}

void Land(const Product& product, int warp) {
  WarpProducts& products = warps[warp];
  const int core = cluster->TensorCoreOf(warp);
  const Operands operands = ReadOperands(product, warp, [&](uint32_t address) {
    CheckShared(cluster->rank(), address, 16, Access::kAsyncRead, core, product.code);
  });
  const int depth = kOperandBytes / BytesOf(product.type);
  for (int lane = 0; lane < 32; ++lane) {
    for (int word = 0; product.a_in_registers && word < 4; ++word) {
      if (*product.a[lane][word] != product.a_before[lane][word]) {
        cluster->AbortWith("an operand of wgmma changes in registers before the wait",
                           product.code);
      }
    }
    float* const d = product.d[lane];
    const auto found = products.accumulators.find(d);
    std::vector<float>& values = found->second.values;
    if (std::memcmp(d, values.data(), values.size() * sizeof(float)) != 0) {
      cluster->AbortWith("an accumulator of wgmma changes before the wait", product.code);
    }
    for (int at = 0; at < product.n / 2; ++at) {
      const int row = lane / 4 + at / 2 % 2 * 8, column = at / 4 * 8 + lane % 4 * 2 + at % 2;
      const float* const a = &operands.a[row * depth];
      const float* const b = &operands.b[column * depth];
      double sum = product.accumulates ? d[at] : 0;
      for (int k = 0; k < depth; ++k) sum += static_cast<double>(a[k]) * b[k];
      d[at] = CutOff(sum);
      values[at] = d[at];
    }
    if (--found->second.products == 0) products.accumulators.erase(found);
  }
}

// ---- the interpreter

struct Arguments {
  const char* text;
  float* const* outputs;
  int output_count;
  const unsigned* const* inputs;
  int input_count;
  const unsigned long long* wide;
  int wide_count;
  const void* code;
};

// The warp that executes a statement.
class Interpreter {
 public:
  explicit Interpreter(void* const (&all)[32]) : all_(all) {}

  void Run() {
    const Arguments& own = Of(0);
    auto program = programs.find(own.text);
    if (program == programs.end()) {
      program = programs.emplace(own.text, Parse(own.text)).first;
    }
    for (const Instruction& instruction : program->second) Execute(instruction);
  }

 private:
  const Arguments& Of(int lane) const { return *static_cast<const Arguments*>(all_[lane]); }

  [[noreturn]] void Refuse(const Instruction& instruction) const {
    cluster->AbortWith("not emulated: " + instruction.name, Of(0).code);
  }

  // "%12", the name of a local, or a number; the same in all lanes.
  int64_t ValueOf(const std::string& word) const {
    if (word[0] == '%') {
      const Arguments& own = Of(0);
      const int at = std::stoi(word.substr(1)) - own.output_count - own.input_count;
      return at >= 0 && at < own.wide_count ? static_cast<int64_t>(own.wide[at]) : 0;
    }
    const auto local = locals_.find(word);
    return local != locals_.end() ? local->second : std::stoll(word);
  }

  void Execute(const Instruction& instruction) {
    const std::vector<std::string>& words = instruction.words;
    if (instruction.name == "setp.ne.b32" || instruction.name == "setp.ne.b64") {
      locals_[words.at(0)] = ValueOf(words.at(1)) != ValueOf(words.at(2));
    } else if (instruction.name == "add.s64") {
      locals_[words.at(0)] = ValueOf(words.at(1)) + ValueOf(words.at(2));
    } else if (instruction.name.rfind("wgmma.mma_async.sync.aligned.m64n", 0) == 0) {
      Issue(instruction);
    } else {
      Refuse(instruction);
    }
  }

  // d, a, b, whether d is added, sign of a, sign of b[, a transposed], [b transposed]
  void Issue(const Instruction& instruction) {
    static const std::map<std::string, Type> kTypes = {{"f16", Type::kFp16},
                                                       {"bf16", Type::kBf16},
                                                       {"tf32", Type::kTf32},
                                                       {"e4m3", Type::kE4m3},
                                                       {"e5m2", Type::kE5m2}};
    std::istringstream name(instruction.name.substr(instruction.name.find("m64n") + 4));
    int n = 0, k = 0;
    char letter = 0;
    std::string types;
    name >> n >> letter >> k >> types;
    const std::string b_type = types.substr(types.rfind('.') + 1);
    const auto type = kTypes.find(b_type);
    if (type == kTypes.end() || types != ".f32." + b_type + "." + b_type ||
        k * BytesOf(type->second) != kOperandBytes || n % 8 != 0 || n > 256) {
      Refuse(instruction);
    }
    Product product = {};
    product.type = type->second;
    product.n = n;
    product.code = Of(0).code;
    const std::vector<int>& lists = instruction.lists;
    product.a_in_registers = lists.at(1) == 4;
    if (lists.at(0) != n / 2) Refuse(instruction);
    std::vector<int> registers;
    for (int d = 0; d < n / 2; ++d) {
      registers.push_back(std::stoi(instruction.words[d].substr(1)));
    }
    size_t at = static_cast<size_t>(lists[0]);
    const std::vector<std::string>& words = instruction.words;
    if (!product.a_in_registers) product.a_descriptor = ValueOf(words.at(at));
    for (int lane = 0; lane < 32; ++lane) {
      float* const* const outputs = Of(lane).outputs;
      product.d[lane] = outputs[registers[0]];
      for (int d = 1; d < n / 2; ++d) {
        if (outputs[registers[d]] != outputs[registers[0]] + d) Refuse(instruction);
      }
      for (int word = 0; product.a_in_registers && word < 4; ++word) {
        const int input = std::stoi(words[at + word].substr(1)) - Of(lane).output_count;
        product.a[lane][word] = Of(lane).inputs[input];
        product.a_before[lane][word] = *product.a[lane][word];
      }
    }
    at += static_cast<size_t>(lists[1]);
    product.b_descriptor = ValueOf(words.at(at));
    product.accumulates = ValueOf(words.at(at + 1)) != 0;
    if (words.at(at + 2) != "1" || words.at(at + 3) != "1") Refuse(instruction);
    at += 4;
    if (BytesOf(product.type) == 2) {
      if (!product.a_in_registers) product.a_transposed = ValueOf(words.at(at++)) != 0;
      product.b_transposed = ValueOf(words.at(at++)) != 0;
    }
    if (at != words.size()) Refuse(instruction);

    const int warp = cluster->warp();
    WarpProducts& products = warps[warp];
    if (!products.fenced) {
      cluster->Report("wgmma without a wgmma.fence since registers were last waited for",
                      product.code);
      products.fenced = true;
    }
    for (int lane = 0; lane < 32; ++lane) {
      Accumulators& accumulators = products.accumulators[product.d[lane]];
      if (accumulators.products++ == 0) {
        accumulators.values.assign(product.d[lane], product.d[lane] + n / 2);
      }
    }
    const int core = cluster->TensorCoreOf(warp);
    for (int lane = 0; lane < 32; ++lane) {
      Join(cluster->clock(core), cluster->clock(warp * 32 + lane));
    }
    cluster->Step(core);
    CheckReads(product, warp);
    products.uncommitted.push_back(std::move(product));
  }

  void* const (&all_)[32];
  std::map<std::string, int64_t> locals_;
};

}  // namespace

void ForgetProducts(int warp_count) {
  warps.assign(warp_count, {});
  programs.clear();
}

void RunProducts(const char* text, float* const* outputs, int output_count,
                 const unsigned* const* inputs, int input_count, const unsigned long long* wide,
                 int wide_count) {
  Arguments arguments = {text,        outputs, output_count, inputs,
                         input_count, wide,    wide_count,   __builtin_return_address(0)};
  MeetInWarp(Operation::kWgmma, kAllLanes, &arguments, [](void* const(&all)[32], unsigned) {
    Interpreter interpreter(all);
    interpreter.Run();
    // What the lanes do from here on may come before the products are made.
    for (int lane = 0; lane < 32; ++lane) cluster->Step(cluster->warp() * 32 + lane);
  });
}

void FenceProducts() {
  MeetInWarp(Operation::kWgmmaFence, kAllLanes, nullptr,
             [](void* const(&)[32], unsigned) { warps[cluster->warp()].fenced = true; });
}

void CommitProducts() {
  MeetInWarp(Operation::kWgmmaCommit, kAllLanes, nullptr, [](void* const(&)[32], unsigned) {
    WarpProducts& products = warps[cluster->warp()];
    products.groups.push_back(std::exchange(products.uncommitted, {}));
  });
}

void WaitForProducts(int pending) {
  struct WaitArguments {
    int pending;
  } arguments = {pending};
  MeetInWarp(Operation::kWgmmaWait, kAllLanes, &arguments, [](void* const(&all)[32], unsigned) {
    const int warp = cluster->warp(), core = cluster->TensorCoreOf(warp);
    WarpProducts& products = warps[warp];
    const auto left = static_cast<size_t>(static_cast<WaitArguments*>(all[0])->pending);
    while (products.groups.size() > left) {
      for (const Product& product : products.groups.front()) Land(product, warp);
      products.groups.pop_front();
      products.fenced = false;
    }
    for (int lane = 0; lane < 32; ++lane) {
      uint32_t& known = cluster->clock(warp * 32 + lane)[core];
      known = std::max(known, cluster->step(core));
    }
    cluster->Step(core);
  });
}

}  // namespace cuda_on_host
