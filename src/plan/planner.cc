#include "plan/planner.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "plan/family_planner.h"
#include "spec/canonical.h"

namespace tilewright::plan {
namespace {

constexpr FamilyRow kFamilies[] = {
    {Family::kDecodeSm90, /*last_resort=*/false, PlanDecodeSm90},
    {Family::kDecode, /*last_resort=*/false, PlanDecode},
    {Family::kDecodeWide, /*last_resort=*/false, PlanDecodeWide},
    {Family::kFwdSmall, /*last_resort=*/false, PlanFwdSmall},
    {Family::kFwdSm90, /*last_resort=*/false, PlanFwdSm90},
    {Family::kFwdSm80, /*last_resort=*/false, PlanFwdSm80},
    {Family::kFwdSimple, /*last_resort=*/true, PlanFwdSimple},
    {Family::kBwdSm90, /*last_resort=*/false, PlanBwdSm90, Operation::kBackward},
    {Family::kBwdSm80, /*last_resort=*/false, PlanBwdSm80, Operation::kBackward},
    {Family::kBwdSimple, /*last_resort=*/true, PlanBwdSimple, Operation::kBackward},
};

std::string Name(Family family) { return std::string(FamilyName(family)); }

}  // namespace

void Decision::TakeMeasured(KernelPlan measured, std::string by) {
  const KernelPlan& estimated = candidates.front();
  if (measured != estimated) {
    why = absl::StrCat(Name(measured.family), ": measured, as \"tuned\" says; the cost model's is ",
                       estimated.ToString());
  }
  plan = std::move(measured);
  tuned = std::move(by);
}

absl::StatusOr<Decision> BestOf(absl::Span<const FamilyRow> families, const PlanRequest& request) {
  Decision decision;
  std::string reasons;
  std::string nearest;
  bool faster_refused = false;
  const auto add_reason = [&reasons](Family family, const std::string& reason) {
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", Name(family), ": ", reason);
  };
  for (const FamilyRow& row : families) {
    if (request.family.has_value() ? row.family != *request.family
                                   : row.operation != request.spec.operation) {
      continue;
    }
    FamilyAnswer answer = row.plan(request);
    if (!answer.plans.empty() && row.last_resort && !request.allow_fallback && !request.family) {
      add_reason(row.family, "is the family of last resort and allow_fallback is off");
      if (nearest.empty()) nearest = "this one with allow_fallback";
      continue;
    }
    if (!answer.refusal.empty()) decision.refusals.push_back({row.family, answer.refusal});
    if (answer.plans.empty()) {
      add_reason(row.family, answer.refusal);
      faster_refused = faster_refused || !row.last_resort;
      // The family of last resort serves most, and so comes nearest.
      const bool better = nearest.empty() || (row.last_resort && request.allow_fallback);
      if (better && answer.nearest.has_value()) {
        const PlanRequest near = {*answer.nearest, request.traits, request.board};
        if (!row.plan(near).plans.empty()) nearest = spec::ToText(*answer.nearest);
      }
      continue;
    }
    decision.plan = answer.plans.front();
    decision.candidates = std::move(answer.plans);
    decision.fallback = row.last_resort && faster_refused;
    decision.why = absl::StrCat(Name(row.family), ": ", answer.why);
    return decision;
  }
  return absl::UnimplementedError(
      absl::StrCat("no kernel family serves ", spec::ToText(request.spec), " on ",
                   std::string(request.traits.target), " (", reasons, ")",
                   nearest.empty() ? "" : absl::StrCat("; the nearest served spec is ", nearest)));
}

absl::StatusOr<Decision> Best(const PlanRequest& request) { return BestOf(kFamilies, request); }

std::optional<KernelPlan> StarterOf(const PlanRequest& request, const Decision& decision) {
  // By NVRTC 13.0 a kernel of attn_fwd_sm90 takes 0.4 to 6 s of a core, the smallest tile of
  // attn_fwd_sm80 0.3 to 0.7 s: what counts is how much a warp's code is unrolled, then (4 %) the
  // copies ahead of time.
  if (decision.plan.family != Family::kFwdSm90 || request.family.has_value()) return std::nullopt;
  std::optional<KernelPlan> starter;
  const auto code = [](const KernelPlan& plan) {
    return std::pair(plan.rows_per_warp * plan.block_n, plan.stages);
  };
  for (KernelPlan& plan : PlanFwdSm80(request).plans) {
    if (plan.split) {
      plan.split = false;
      plan.slots = 0;
      plan.after.clear();
    }
    if (!starter.has_value() || code(plan) < code(*starter)) starter = std::move(plan);
  }
  return starter;
}

std::optional<KernelPlan> ReferenceOf(const PlanRequest& request, const Decision& decision) {
  for (const FamilyRow& row : kFamilies) {
    if (!row.last_resort || row.operation != request.spec.operation) continue;
    if (row.family == decision.plan.family) continue;
    FamilyAnswer answer = row.plan(request);
    if (!answer.plans.empty()) return std::move(answer.plans.front());
  }
  return std::nullopt;
}

std::vector<KernelPlan> Candidates(const PlanRequest& request, const Decision& decision) {
  const std::vector<KernelPlan>& own = decision.candidates;
  std::vector<KernelPlan> others;
  for (const FamilyRow& row : kFamilies) {
    if (row.operation != request.spec.operation || row.last_resort) continue;
    if (row.family == own.front().family || request.family.has_value()) continue;
    for (KernelPlan& plan : row.plan(request).plans) others.push_back(std::move(plan));
  }
  std::vector<KernelPlan> plans;
  size_t next = 0;
  for (size_t n = 0; n < own.size(); ++n) {
    plans.push_back(own[n]);
    if (n % 2 == 1 && next < others.size()) plans.push_back(std::move(others[next++]));
  }
  while (next < others.size()) plans.push_back(std::move(others[next++]));
  return plans;
}

bool CountsWith31Bits(const AttentionSpec& spec) {
  const int64_t rows = std::max(spec.seqlen_q, spec.seqlen_kv);
  int64_t tiles = CeilDiv(rows, 64);
  return rows <= kMostCountedRows && !__builtin_mul_overflow(tiles, spec.batch, &tiles) &&
         !__builtin_mul_overflow(tiles, spec.heads_q, &tiles) && tiles <= kMostCountedRows;
}

std::string RefuseBeyond31Bits(const AttentionSpec& spec, AttentionSpec& nearest) {
  const int64_t most = kMostCountedRows / std::max<int64_t>(spec.heads_q, 1);
  nearest.batch = 1;
  nearest.seqlen_q = std::min(spec.seqlen_q, most);
  nearest.seqlen_kv = std::min(spec.seqlen_kv, most);
  return absl::StrCat("batch, seqlen_q, seqlen_kv = ", spec.batch, ", ", spec.seqlen_q, ", ",
                      spec.seqlen_kv, ": rows and tiles are counted with 31 bits");
}

}  // namespace tilewright::plan
