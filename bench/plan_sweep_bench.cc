// Times plans of forward specs beside each other on one GPU, and checks what they compute.
//
//   plan_sweep_bench CASES OUT [--check-only] [--threads N]
//
// CASES has a line for each plan: `SPEC | PLAN`, with a plan as `explain` prints it (smem= may be
// left out for attn_fwd_sm90) or the name of a family for its default. A third field names a
// directory of templates to take the place of the embedded ones. Plans of one spec on
// neighbouring lines are measured together, by the protocol of compare.py: all of them heat the
// chip for 0.6 s, then three rounds in random order, each the median of launches behind a flush of
// L2. OUT gets a line of JSON for each plan and is read first: what it names is not run again, so
// that a run that ended early (a plan that hangs or faults takes the process with it, exit code 3)
// goes on where it was.
//
// An answer is compared, element by element, with that of attn_fwd_sm80 or, where it does not
// serve, of attn_fwd_simple; `error` is || difference || / || answer ||. Plans whose kernel spills,
// is serialised (C75xx) or differs by more than 1e-2 (e4m3: 4e-2) are reported and not timed.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "bench/flops.h"
#include "bench/result_file.h"
#include "compile/nvrtc_compiler.h"
#include "device/driver_api.h"
#include "device/memory.h"
#include "device/module.h"
#include "emit/emit_kernel.h"
#include "emit/template_bundle.h"
#include "plan/family_planner.h"
#include "plan/launch_shape.h"
#include "plan/planner.h"
#include "reference/element.h"
#include "runtime/pack_args.h"
#include "runtime/pack_sm90.h"
#include "spec/canonical.h"
#include "spec/validate.h"
#include "tilewright/runtime.h"

namespace tilewright::bench {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr double kHeatSeconds = 0.6;
constexpr int kRounds = 3;
constexpr double kWarmMs = 30;
constexpr double kRoundMs = 50;
constexpr size_t kFlushBytes = size_t{256} << 20;
constexpr double kHangSeconds = 4;
constexpr double kMaxError = 1e-2;
constexpr double kMaxErrorOfE4m3 = 4e-2;  // weights have three bits
constexpr size_t kPoolElements = (size_t{1} << 22) + 72;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Variant {
  std::string plan_text;
  std::string templates;  // a directory; empty: the embedded ones
  plan::KernelPlan plan;
  artifact::KernelBinary binary;
  absl::Status status;
  std::shared_ptr<const device::LoadedKernel> kernel;
  emit::ParamLayout layout;
  plan::LaunchShape shape;
  alignas(64) std::byte params[kMaxParamBytes];
  double error = -1;
  std::vector<double> round_ms;
};

// How a line of CASES is named in OUT.
std::string Asked(const std::string& plan_text, const std::string& templates) {
  return templates.empty() ? plan_text : absl::StrCat(plan_text, " | ", templates);
}

struct Group {
  std::string spec_text;
  AttentionSpec spec;
  std::vector<std::unique_ptr<Variant>> variants;
};

class Machine {
 public:
  static absl::StatusOr<std::unique_ptr<Machine>> Open() {
    auto machine = std::make_unique<Machine>();
    TILEWRIGHT_ASSIGN_OR_RETURN(machine->devices, device::DeviceManager::Create());
    TILEWRIGHT_ASSIGN_OR_RETURN(machine->where, machine->devices->CurrentOrPrimary(0));
    TILEWRIGHT_CU_RETURN_IF_ERROR(machine->api(), cuCtxSetCurrent, machine->where.context);
    TILEWRIGHT_ASSIGN_OR_RETURN(machine->stream, device::OwnedStream::Create(machine->api()));
    TILEWRIGHT_ASSIGN_OR_RETURN(machine->begin, device::OwnedEvent::Create(machine->api()));
    TILEWRIGHT_ASSIGN_OR_RETURN(machine->end, device::OwnedEvent::Create(machine->api()));
    TILEWRIGHT_ASSIGN_OR_RETURN(machine->flush,
                                device::DeviceBuffer::Allocate(machine->api(), kFlushBytes));
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (size_t n = 0; n < kPoolElements; ++n) {
      const double value = normal(random);
      machine->fp16_pool[n] =
          static_cast<uint16_t>(reference::EncodeFloat(reference::kFp16Format, value));
      machine->bf16_pool[n] =
          static_cast<uint16_t>(reference::EncodeFloat(reference::kBf16Format, value));
      machine->e4m3_pool[n] =
          static_cast<uint8_t>(reference::EncodeFloat(reference::kE4m3Format, value));
      machine->bool_pool[n] = value < 1.5 ? 1 : 0;
    }
    return machine;
  }
  const device::DriverApi& api() const { return devices->api(); }

  // Random normal elements of 16 bits or e4m3, or bytes that keep 14 of 15 keys.
  absl::StatusOr<void*> Random(int64_t elements, ElementType type, size_t shift) {
    switch (type) {
      case ElementType::kFp16:
        return RandomFrom(fp16_pool, elements, shift);
      case ElementType::kBf16:
        return RandomFrom(bf16_pool, elements, shift);
      case ElementType::kFp8E4m3:
        return RandomFrom(e4m3_pool, elements, shift);
      case ElementType::kBool:
        return RandomFrom(bool_pool, elements, shift);
      default:
        return absl::InvalidArgumentError(
            absl::StrCat("type = ", std::string(spec::ElementTypeName(type)),
                         ": must be fp16, bf16, e4m3 or bool here"));
    }
  }

  template <class Bits>
  absl::StatusOr<void*> RandomFrom(const std::vector<Bits>& pool, int64_t elements, size_t shift) {
    constexpr int64_t kBytes = sizeof(Bits);
    std::vector<Bits> host(kPoolElements);
    std::rotate_copy(pool.begin(), pool.begin() + static_cast<int64_t>(shift % kPoolElements),
                     pool.end(), host.begin());
    TILEWRIGHT_ASSIGN_OR_RETURN(device::DeviceBuffer buffer,
                                device::DeviceBuffer::Allocate(api(), elements * kBytes));
    for (int64_t at = 0; at < elements; at += kPoolElements) {
      const size_t count = std::min<int64_t>(kPoolElements, elements - at);
      TILEWRIGHT_RETURN_IF_ERROR(
          buffer.CopyFromHost(host.data(), count * kBytes, stream.get(), at * kBytes));
    }
    TILEWRIGHT_RETURN_IF_ERROR(stream.Synchronize());
    buffers.push_back(std::move(buffer));
    return buffers.back().data();
  }

  std::shared_ptr<device::DeviceManager> devices;
  device::DeviceManager::Current where;
  device::OwnedStream stream;
  device::OwnedEvent begin, end;
  device::DeviceBuffer flush;
  std::vector<device::DeviceBuffer> buffers;
  std::vector<uint16_t> fp16_pool = std::vector<uint16_t>(kPoolElements);
  std::vector<uint16_t> bf16_pool = std::vector<uint16_t>(kPoolElements);
  std::vector<uint8_t> e4m3_pool = std::vector<uint8_t>(kPoolElements);
  std::vector<uint8_t> bool_pool = std::vector<uint8_t>(kPoolElements);
};

absl::StatusOr<plan::KernelPlan> PlanOf(const std::string& text, const AttentionSpec& spec,
                                        const device::DeviceInfo& device) {
  if (!absl::StrContains(text, ' ')) {
    TILEWRIGHT_ASSIGN_OR_RETURN(const auto family, plan::ParseFamily(text));
    TILEWRIGHT_ASSIGN_OR_RETURN(
        const auto decision,
        plan::Best(
            {.spec = spec, .traits = device.traits, .board = device.board, .family = family}));
    // Of several kernels the one that attends: alone it leaves nothing to merge.
    plan::KernelPlan plan = decision.plan;
    plan.before.clear();
    plan.after.clear();
    return plan;
  }
  if (absl::StrContains(text, "smem=")) return plan::ParsePlan(text);
  // The size follows from the rest.
  TILEWRIGHT_ASSIGN_OR_RETURN(plan::KernelPlan plan, plan::ParsePlan(text + " smem=0"));
  plan.smem_bytes =
      plan::FwdSm90SmemBytes(plan, spec.dim_qk, spec.dim_v, spec::ElementBytes(spec.type));
  return plan;
}

// Compiles each different text once: specs that differ in lengths alone share their kernels.
void CompileAll(std::vector<Group>& groups, int threads, const std::string& target) {
  struct Work {
    artifact::KernelSource source;
    const emit::TemplateBundle* bundle;
    std::vector<Variant*> variants;
  };
  std::map<std::string, absl::StatusOr<emit::TemplateBundle>> bundles;
  const auto bundle_of = [&](const std::string& templates) -> const auto& {
    const auto found = bundles.find(templates);
    if (found != bundles.end()) return found->second;
    return bundles
        .emplace(templates,
                 templates.empty() ? emit::EmbeddedTemplates() : emit::ReadTemplates(templates))
        .first->second;
  };
  std::map<std::pair<std::string, std::string>, Work> by_text;
  for (Group& group : groups) {
    for (auto& variant : group.variants) {
      if (!variant->status.ok()) continue;
      auto source = emit::EmitKernel(group.spec, variant->plan);
      variant->status = source.status();
      if (!source.ok()) continue;
      const auto& bundle = bundle_of(variant->templates);
      variant->status = bundle.status();
      if (!bundle.ok()) continue;
      Work& work = by_text[{variant->templates, source->text}];
      work.source = *std::move(source);
      work.bundle = &*bundle;
      work.variants.push_back(variant.get());
    }
  }
  std::vector<Work*> works;
  for (auto& [text, work] : by_text) works.push_back(&work);
  const compile::NvrtcCompiler compiler({});
  std::atomic<size_t> next = 0;
  const auto run = [&] {
    for (size_t n = next++; n < works.size(); n = next++) {
      const auto binary = compiler.Compile({.source = works[n]->source,
                                            .bundle = works[n]->bundle->files,
                                            .target = target,
                                            .options = compile::CompileOptions(target, false)});
      for (Variant* variant : works[n]->variants) {
        variant->status = binary.status();
        if (binary.ok()) variant->binary = *binary;
      }
    }
  };
  std::vector<std::thread> pool;
  for (int n = 0; n < threads; ++n) pool.emplace_back(run);
  for (std::thread& thread : pool) thread.join();
}

// The arguments of a dense spec, bias terms of its own type included.
absl::StatusOr<AttentionArgs> MakeArgs(Machine& machine, const AttentionSpec& spec) {
  AttentionArgs args;
  args.batch = spec.batch;
  args.seqlen_q = spec.seqlen_q;
  args.seqlen_kv = spec.seqlen_kv;
  const auto strides = spec::EffectiveStrides(spec);
  const int64_t q_rows = spec.batch * spec.seqlen_q * spec.heads_q;
  const int64_t kv_rows = spec.batch * spec.seqlen_kv * spec.heads_kv;
  args.q.strides = strides[0];
  args.k.strides = strides[1];
  args.v.strides = strides[2];
  args.o.strides = strides[3];
  TILEWRIGHT_ASSIGN_OR_RETURN(args.q.data, machine.Random(q_rows * spec.dim_qk, spec.type, 0));
  TILEWRIGHT_ASSIGN_OR_RETURN(args.k.data, machine.Random(kv_rows * spec.dim_qk, spec.type, 991));
  TILEWRIGHT_ASSIGN_OR_RETURN(args.v.data, machine.Random(kv_rows * spec.dim_v, spec.type, 77777));
  TILEWRIGHT_ASSIGN_OR_RETURN(args.o.data,
                              machine.Random(q_rows * spec.dim_v, spec::OutType(spec), 5));
  TILEWRIGHT_ASSIGN_OR_RETURN(void* lse, machine.Random(2 * q_rows, ElementType::kBf16, 5));
  args.lse = static_cast<float*>(lse);
  if (spec.alibi || spec.sinks) {
    std::vector<float> slopes(spec.heads_q);
    for (int64_t h = 0; h < spec.heads_q; ++h) {
      slopes[h] = std::exp2(-8.f * static_cast<float>(h + 1) / static_cast<float>(spec.heads_q));
    }
    TILEWRIGHT_ASSIGN_OR_RETURN(device::DeviceBuffer buffer,
                                device::DeviceBuffer::Allocate(machine.api(), slopes.size() * 4));
    TILEWRIGHT_RETURN_IF_ERROR(
        buffer.CopyFromHost(slopes.data(), slopes.size() * 4, machine.stream.get()));
    TILEWRIGHT_RETURN_IF_ERROR(machine.stream.Synchronize());
    machine.buffers.push_back(std::move(buffer));
    args.alibi_slopes = args.sinks = static_cast<const float*>(machine.buffers.back().data());
  }
  for (size_t n = 0; n < spec.bias.size(); ++n) {
    const BiasTerm& term = spec.bias[n];
    const int64_t size = term.batch * term.heads * term.seqlen_q * term.seqlen_kv;
    TILEWRIGHT_ASSIGN_OR_RETURN(args.bias[n].data, machine.Random(size, term.type, 12345));
    args.bias[n].stride_kv = 1;
    args.bias[n].stride_q = term.seqlen_kv;
    args.bias[n].stride_head = term.seqlen_q * term.seqlen_kv;
    args.bias[n].stride_batch = term.heads * term.seqlen_q * term.seqlen_kv;
  }
  return args;
}

float Widen(uint16_t bits, ElementType type) {
  return type == ElementType::kFp16 ? reference::DecodeFp16(bits) : reference::DecodeBf16(bits);
}

// || a - b || / || b ||; NaN where one of them has NaN.
double Difference(const std::vector<uint16_t>& a, const std::vector<uint16_t>& b,
                  ElementType type) {
  double difference = 0, norm = 0;
  for (size_t n = 0; n < a.size(); ++n) {
    const double x = Widen(a[n], type), y = Widen(b[n], type);
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return norm == 0 && difference == 0 ? 0 : std::sqrt(difference / norm);
}

class Sweep {
 public:
  Sweep(Machine& machine, const std::string& out_path)
      : machine_(machine), out_path_(out_path), out_(out_path, std::ios::app) {}

  absl::Status Launch(const Variant& variant) {
    return variant.kernel->Launch(
        {variant.shape.grid, variant.shape.block, variant.shape.smem_bytes}, variant.params,
        machine_.stream.get());
  }

  // Launches and waits; a kernel that does not end ends the process.
  absl::Status LaunchWatched(const Group& group, const Variant& variant) {
    TILEWRIGHT_RETURN_IF_ERROR(Launch(variant));
    std::atomic<bool> done = false;
    std::thread watch([&] {
      const auto start = Clock::now();
      while (!done) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        if (std::chrono::duration<double>(Clock::now() - start).count() > kHangSeconds) {
          Report(group, variant, "hangs");
          _exit(3);
        }
      }
    });
    const absl::Status status = machine_.stream.Synchronize();
    done = true;
    watch.join();
    return status;
  }

  void Report(const Group& group, const Variant& variant, const std::string& problem) {
    Json row = {{"spec", group.spec_text},
                {"asked", Asked(variant.plan_text, variant.templates)},
                {"plan", variant.plan.ToString()}};
    if (!problem.empty()) row["problem"] = problem;
    row["error"] = variant.error;
    row["registers"] = variant.binary.usage.registers;
    row["spills"] = variant.binary.usage.spill_store_bytes;
    row["compile_ms"] = variant.binary.compile_ms;
    if (!variant.round_ms.empty()) {
      const double ms = Median(variant.round_ms);
      row["ms"] = ms;
      row["tflops"] = TeraFlops(Flops(group.spec), ms);
      row["rounds_ms"] = variant.round_ms;
    }
    out_ << row.dump() << std::endl;
    if (!problem.empty()) {
      std::printf("  %-60s %s\n", Asked(variant.plan_text, variant.templates).c_str(),
                  problem.c_str());
    }
    std::fflush(stdout);
  }

  absl::Status Run(Group& group, bool check_only) {
    std::printf("%s\n", group.spec_text.c_str());
    machine_.buffers.clear();
    TILEWRIGHT_ASSIGN_OR_RETURN(const AttentionArgs args, MakeArgs(machine_, group.spec));
    const size_t o_elements =
        group.spec.batch * group.spec.seqlen_q * group.spec.heads_q * group.spec.dim_v;
    std::vector<uint16_t> want, got(o_elements);
    std::vector<Variant*> good;
    for (auto& owned : group.variants) {
      Variant& variant = *owned;
      const absl::Status checked = Check(group, variant, args, want, got);
      if (!checked.ok()) {
        Report(group, variant, std::string(checked.message()));
        // A fault leaves a context that nothing can use.
        if (machine_.stream.Synchronize() != absl::OkStatus()) _exit(3);
        continue;
      }
      good.push_back(&variant);
    }
    if (check_only) {
      for (const Variant* variant : good) Report(group, *variant, "");
      return absl::OkStatus();
    }
    TILEWRIGHT_RETURN_IF_ERROR(Time(good));
    std::sort(good.begin(), good.end(), [](const Variant* a, const Variant* b) {
      return Median(a->round_ms) < Median(b->round_ms);
    });
    for (const Variant* variant : good) {
      const double ms = Median(variant->round_ms);
      std::printf("  %7.1f TFLOP/s %8.4f ms  %s  err %.1e\n", TeraFlops(Flops(group.spec), ms), ms,
                  variant->plan.ToString().c_str(), variant->error);
      Report(group, *variant, "");
    }
    return absl::OkStatus();
  }

 private:
  // Loads, launches once and compares. The first variant of a group gives the answer.
  absl::Status Check(const Group& group, Variant& variant, const AttentionArgs& args,
                     std::vector<uint16_t>& want, std::vector<uint16_t>& got) {
    TILEWRIGHT_RETURN_IF_ERROR(variant.status);
    const bool reference = want.empty();
    if (absl::StrContains(variant.binary.log, "C75")) {
      return absl::InternalError("serialised: see its compile log for C75");
    }
    TILEWRIGHT_ASSIGN_OR_RETURN(
        variant.kernel,
        device::LoadedKernel::Load(machine_.api(), machine_.where, variant.binary.cubin,
                                   {.entry_name = variant.binary.entry_name,
                                    .dynamic_smem_bytes = variant.plan.smem_bytes}));
    variant.layout = emit::MakeParamLayout(group.spec, variant.plan);
    variant.shape = plan::ComputeLaunchShape(variant.plan, group.spec, args, {});
    PackArgs(group.spec, variant.layout, args, variant.params);
    TILEWRIGHT_RETURN_IF_ERROR(
        PackSm90(machine_.api(), variant.plan, group.spec, variant.layout, args, variant.params));
    const size_t bytes = got.size() * 2;
    if (CUresult cleared = machine_.api().cuMemsetD8Async(
            reinterpret_cast<CUdeviceptr>(args.o.data), 0xff, bytes, machine_.stream.get());
        cleared != CUDA_SUCCESS) {
      return absl::InternalError("clearing O failed");
    }
    TILEWRIGHT_RETURN_IF_ERROR(LaunchWatched(group, variant));
    TILEWRIGHT_CU_RETURN_IF_ERROR(machine_.api(), cuMemcpyDtoHAsync, got.data(),
                                  reinterpret_cast<CUdeviceptr>(args.o.data), bytes,
                                  machine_.stream.get());
    TILEWRIGHT_RETURN_IF_ERROR(machine_.stream.Synchronize());
    if (reference) {
      want = got;
      variant.error = 0;
      return absl::OkStatus();
    }
    variant.error = Difference(got, want, spec::OutType(group.spec));
    const bool is_e4m3 = group.spec.type == ElementType::kFp8E4m3;
    if (!(variant.error <= (is_e4m3 ? kMaxErrorOfE4m3 : kMaxError))) {
      return absl::InternalError(absl::StrCat("wrong: differs by ", variant.error));
    }
    return absl::OkStatus();
  }

  // Launches for about `ms` milliseconds; the times of the launches when `times` is not null.
  absl::Status LaunchFor(const Variant& variant, double ms, std::vector<double>* times) {
    const auto start = Clock::now();
    do {
      TILEWRIGHT_RETURN_IF_ERROR(machine_.flush.Fill(0, machine_.stream.get()));
      TILEWRIGHT_RETURN_IF_ERROR(machine_.begin.Record(machine_.stream.get()));
      TILEWRIGHT_RETURN_IF_ERROR(Launch(variant));
      TILEWRIGHT_RETURN_IF_ERROR(machine_.end.Record(machine_.stream.get()));
      TILEWRIGHT_RETURN_IF_ERROR(machine_.end.Synchronize());
      if (times != nullptr) {
        TILEWRIGHT_ASSIGN_OR_RETURN(const float took, machine_.end.ElapsedMsSince(machine_.begin));
        times->push_back(took);
      }
    } while (std::chrono::duration<double, std::milli>(Clock::now() - start).count() < ms);
    return absl::OkStatus();
  }

  absl::Status Time(const std::vector<Variant*>& variants) {
    if (variants.empty()) return absl::OkStatus();
    const double each_ms =
        std::max(10.0, kHeatSeconds * 1000 / static_cast<double>(variants.size()));
    for (Variant* variant : variants) {
      TILEWRIGHT_RETURN_IF_ERROR(LaunchFor(*variant, each_ms, nullptr));
    }
    std::vector<Variant*> order = variants;
    std::mt19937 random(7);
    for (int round = 0; round < kRounds; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      for (Variant* variant : order) {
        TILEWRIGHT_RETURN_IF_ERROR(LaunchFor(*variant, kWarmMs, nullptr));
        std::vector<double> times;
        TILEWRIGHT_RETURN_IF_ERROR(LaunchFor(*variant, kRoundMs, &times));
        variant->round_ms.push_back(Median(times));
      }
    }
    return absl::OkStatus();
  }

  Machine& machine_;
  std::string out_path_;
  std::ofstream out_;
};

// Lines of `cases` that `out` does not name yet; the reference plan stands first in each group.
std::vector<Group> ReadCases(const std::string& cases, const std::string& out,
                             const device::DeviceInfo& device) {
  std::set<std::pair<std::string, std::string>> done;
  std::ifstream before(out);
  for (std::string line; std::getline(before, line);) {
    const Json row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (row.is_object()) done.emplace(row.value("spec", ""), row.value("asked", ""));
  }
  std::vector<Group> groups;
  std::ifstream stream(cases);
  for (std::string line; std::getline(stream, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, '|');
    if (parts.size() < 2 || parts.size() > 3 || absl::StartsWith(line, "#")) continue;
    const std::string spec_text(absl::StripAsciiWhitespace(parts[0]));
    const std::string plan_text(absl::StripAsciiWhitespace(parts[1]));
    const std::string templates(parts.size() < 3 ? "" : absl::StripAsciiWhitespace(parts[2]));
    if (done.count({spec_text, Asked(plan_text, templates)}) != 0) continue;
    const auto add = [&](const std::string& text, const std::string& templates) {
      Group& group = groups.back();
      auto variant = std::make_unique<Variant>();
      variant->plan_text = text;
      variant->templates = templates;
      auto plan = PlanOf(text, group.spec, device);
      variant->status = plan.status();
      if (plan.ok()) variant->plan = *plan;
      group.variants.push_back(std::move(variant));
    };
    if (groups.empty() || groups.back().spec_text != spec_text) {
      const auto spec = ParseSpec(spec_text);
      if (!spec.ok()) {
        std::printf("%s: %s\n", spec_text.c_str(), spec.status().ToString().c_str());
        continue;
      }
      Group group;
      group.spec_text = spec_text;
      group.spec = spec::Canonicalise(*spec);
      const ElementType type = group.spec.type;
      groups.push_back(std::move(group));
      add(type == ElementType::kFp8E4m3 ? "attn_fwd_simple" : "attn_fwd_sm80", "");
    }
    add(plan_text, templates);
  }
  return groups;
}

struct Options {
  std::string cases;
  std::string out;
  bool check_only = false;
  int threads = 16;
};

absl::Status Main(const Options& options) {
  const std::string &cases = options.cases, &out = options.out;
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::unique_ptr<Machine> machine, Machine::Open());
  std::vector<Group> groups = ReadCases(cases, out, *machine->where.device);
  const auto start = Clock::now();
  CompileAll(groups, options.threads, std::string(machine->where.device->traits.target));
  std::printf("compiled in %.1f s\n", std::chrono::duration<double>(Clock::now() - start).count());
  Sweep sweep(*machine, out);
  for (Group& group : groups) {
    TILEWRIGHT_RETURN_IF_ERROR(sweep.Run(group, options.check_only));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace tilewright::bench

int main(int argc, char** argv) {
  std::vector<std::string> names;
  tilewright::bench::Options options;
  for (int n = 1; n < argc; ++n) {
    const std::string word = argv[n];
    if (word == "--check-only") {
      options.check_only = true;
    } else if (word == "--threads" && n + 1 < argc) {
      options.threads = std::max(std::atoi(argv[++n]), 1);
    } else {
      names.push_back(word);
    }
  }
  if (names.size() != 2) {
    std::fprintf(stderr, "usage: plan_sweep_bench CASES OUT [--check-only] [--threads N]\n");
    return 2;
  }
  options.cases = names[0];
  options.out = names[1];
  const absl::Status status = tilewright::bench::Main(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 3;
}
