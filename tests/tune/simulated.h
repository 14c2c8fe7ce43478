// A workshop and a bench without compiler and device: kernels take the time that a test says, with
// the noise, drift and throttling that it says.
#ifndef TILEWRIGHT_TESTS_TUNE_SIMULATED_H_
#define TILEWRIGHT_TESTS_TUNE_SIMULATED_H_

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "arch/arch_traits.h"
#include "base/mutex.h"
#include "spec/canonical.h"
#include "tune/tuner.h"

namespace tilewright::tune {

// A plan that is told from others by block_n.
inline plan::KernelPlan NumberedPlan(int number) {
  plan::KernelPlan plan;
  plan.family = plan::Family::kFwdSm80;
  plan.target = "sm_90a";
  plan.block_m = 64;
  plan.block_n = 16 * (number + 1);
  plan.warps = 4;
  plan.rows_per_warp = 16;
  plan.stages = 2;
  plan.smem_bytes = 1024 * (number + 1);
  return plan;
}

inline std::vector<plan::KernelPlan> NumberedPlans(int count) {
  std::vector<plan::KernelPlan> plans;
  for (int n = 0; n < count; ++n) plans.push_back(NumberedPlan(n));
  return plans;
}

// Time that tests move.
struct SimulatedClock {
  std::atomic<int64_t> us = 0;
  TimePoint Now() const { return TimePoint(std::chrono::microseconds(us.load())); }
  void Advance(double ms) { us += static_cast<int64_t>(ms * 1000); }
};

class SimulatedTrial : public Trial {
 public:
  explicit SimulatedTrial(std::string plan) : plan_(std::move(plan)) {}
  absl::StatusOr<size_t> WorkspaceBytes(const AttentionArgs&) const override { return 0; }
  absl::Status Launch(const AttentionArgs&, device::StreamHandle) const override {
    return absl::OkStatus();
  }
  const std::string& plan() const { return plan_; }

 private:
  std::string plan_;
};

class SimulatedWorkshop : public Workshop {
 public:
  absl::StatusOr<KernelFacts> Compile(const plan::KernelPlan& plan) override {
    ++compiles;
    {
      MutexLock lock(&mutex_);
      compiled_.push_back(plan.ToString());
    }
    if (on_compile) on_compile(plan);
    if (const auto found = facts.find(plan.ToString()); found != facts.end()) {
      return found->second;
    }
    return KernelFacts{.registers = 128, .spill_bytes = 0, .compile_ms = 1, .log = ""};
  }
  absl::StatusOr<std::shared_ptr<const Trial>> Load(const plan::KernelPlan& plan) override {
    return std::make_shared<SimulatedTrial>(plan.ToString());
  }
  std::vector<std::string> compiled() {
    MutexLock lock(&mutex_);
    return compiled_;
  }

  std::map<std::string, absl::StatusOr<KernelFacts>> facts;  // by plan text; absent: good ones
  std::function<void(const plan::KernelPlan&)> on_compile;
  std::atomic<int> compiles = 0;

 private:
  Mutex mutex_;
  std::vector<std::string> compiled_ ABSL_GUARDED_BY(mutex_);
};

// How a simulated device behaves.
struct Weather {
  double noise = 0.01;     // relative deviation of each sample
  double drift = 0;        // share by which everything slows from round to round
  double outliers = 0;     // probability that a sample takes three times as long
  int throttle_from = -1;  // rounds from .. to run at `throttle` times the time
  int throttle_to = -1;
  double throttle = 2;
};

class SimulatedBench : public TestBench {
 public:
  SimulatedBench(std::map<std::string, double> ms, Weather weather, uint64_t seed,
                 SimulatedClock* clock = nullptr)
      : ms_(std::move(ms)), weather_(weather), random_(seed), clock_(clock) {}

  absl::Status Check(const Trial& trial) override {
    const std::string& plan = static_cast<const SimulatedTrial&>(trial).plan();
    if (on_check) on_check(plan);
    if (faulting.count(plan) > 0) dead = true;
    if (dead) return absl::InternalError("CUDA_ERROR_ILLEGAL_ADDRESS");
    if (wrong.count(plan) > 0) return absl::FailedPreconditionError("o[0] is 1, should be 2");
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<double>> Round(absl::Span<const Trial* const> trials) override {
    std::vector<double> times;
    double weight = 1 + weather_.drift * rounds;
    if (rounds >= weather_.throttle_from && rounds < weather_.throttle_to) {
      weight *= weather_.throttle;
    }
    ++rounds;
    for (const Trial* trial : trials) {
      const std::string& plan = static_cast<const SimulatedTrial*>(trial)->plan();
      double ms = ms_.at(plan) * weight * std::exp(weather_.noise * normal_(random_));
      if (uniform_(random_) < weather_.outliers) ms *= 3;
      times.push_back(ms);
      if (clock_ != nullptr) clock_->Advance(ms);
    }
    return times;
  }
  Conditions Observe() override {
    Conditions conditions;
    conditions.known = true;
    conditions.sm_clock_mhz = 1980 - 10 * rounds;
    if (rounds > heat_from && rounds <= heat_to) {
      conditions.throttled = true;
      conditions.limits = "sw_thermal";
    }
    return conditions;
  }
  void Pause() override { ++pauses; }
  std::string reference() const override { return "simulated"; }
  std::string timed_spec() const override { return ""; }

  std::set<std::string> wrong;     // plans whose result differs
  std::set<std::string> faulting;  // plans after which nothing runs any more
  std::function<void(const std::string& plan)> on_check;
  bool dead = false;
  int heat_from = 0;  // rounds from .. to in which the device says that it throttles
  int heat_to = 0;
  int rounds = 0;
  int pauses = 0;

 private:
  const std::map<std::string, double> ms_;
  const Weather weather_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
  SimulatedClock* const clock_;
};

inline TuneRequest RequestOf(std::vector<plan::KernelPlan> candidates) {
  TuneRequest request;
  request.spec = spec::Canonicalise(AttentionSpec());
  request.traits = *arch::FindArchTraits("sm_90a");
  request.environment = {.gpu = "NVIDIA H200",
                         .target = "sm_90a",
                         .num_sms = 132,
                         .memory_clock_khz = 3201000,
                         .memory_bus_bits = 6144,
                         .l2_bytes = int64_t{60} << 20,
                         .product = "0.1.0",
                         .driver_version = 13000};
  request.candidates = std::move(candidates);
  request.code = "0123456789abcdef";
  return request;
}

}  // namespace tilewright::tune

#endif  // TILEWRIGHT_TESTS_TUNE_SIMULATED_H_
