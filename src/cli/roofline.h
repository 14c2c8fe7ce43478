// What a spec costs at least, from counting: arithmetic, memory traffic, and the time that a board
// needs for either.
#ifndef TILEWRIGHT_CLI_ROOFLINE_H_
#define TILEWRIGHT_CLI_ROOFLINE_H_

#include <cstdint>
#include <optional>

#include "arch/arch_traits.h"
#include "arch/board_profile.h"
#include "plan/kernel_plan.h"
#include "tilewright/attention.h"

namespace tilewright::cli {

// Pairs (i, j) of one head that causal and window masks keep, at the spec's lengths. Bool terms,
// block masks and snippets are taken to keep everything.
double VisiblePairs(const AttentionSpec& spec);

// Pairs of one head that tiles of block_m x block_n compute to cover the visible ones: whole tiles
// with at least one visible pair.
double TiledPairs(const AttentionSpec& spec, const plan::KernelPlan& plan);

struct Roofline {
  double flops = 0;                 // 2 (dim_qk + dim_v) per visible pair; backward 2.5 times that
  double bytes = 0;                 // Q, K, V, O, LSE, bias terms and gradients, each once
  double padding_waste = 0;         // share of the tiles' pairs that no mask keeps
  double memory_ms = 0;             // bytes at the board's bandwidth; 0: unknown
  std::optional<double> fp32_ms;    // flops on the FP32 lanes
  std::optional<double> matrix_ms;  // flops on the 16-bit matrix units, for 16-bit types
};

Roofline EstimateRoofline(const AttentionSpec& spec, const plan::KernelPlan& plan,
                          const arch::ArchTraits& traits, const arch::BoardProfile& board);

}  // namespace tilewright::cli

#endif  // TILEWRIGHT_CLI_ROOFLINE_H_
