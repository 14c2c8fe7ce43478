#include "tune/choose.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace tilewright::tune {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::vector<double> Steady(double ms, int rounds) { return std::vector<double>(rounds, ms); }

TEST(ChooseTest, MediansIgnoreOutliersAndMissingSamples) {
  EXPECT_EQ(Median({3, 1, 2}), 2);
  EXPECT_EQ(Median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(Median({}), 0);
  const Estimate estimate = Summarise(std::vector<double>{1, 1, 1, kNone, 9, 1});
  EXPECT_EQ(estimate.median, 1);
  EXPECT_EQ(estimate.samples, 5);
  EXPECT_EQ(estimate.band, 0);
}

TEST(ChooseTest, TheBandShrinksWithSamples) {
  std::vector<double> few, many;
  for (int n = 0; n < 8; ++n) few.push_back(n % 2 == 0 ? 0.99 : 1.01);
  for (int n = 0; n < 128; ++n) many.push_back(n % 2 == 0 ? 0.99 : 1.01);
  EXPECT_NEAR(Summarise(few).band / Summarise(many).band, 4, 0.01);
  EXPECT_EQ(Summarise(std::vector<double>{1.0}).band, 1);
}

TEST(ChooseTest, RatiosCancelWhatAllRoundsShare) {
  std::vector<double> reference, candidate;
  for (int n = 0; n < 12; ++n) {
    reference.push_back(1 + n);  // ever slower
    candidate.push_back(0.5 * (1 + n));
  }
  const Estimate relative = RelativeTo(candidate, reference);
  EXPECT_DOUBLE_EQ(relative.median, 0.5);
  EXPECT_DOUBLE_EQ(relative.band, 0);
}

TEST(ChooseTest, TheDefaultWinsTiesOfTwoPercent) {
  const std::vector<bool> all = {true, true, true};
  EXPECT_EQ(Choose({Steady(1, 10), Steady(0.985, 10), Steady(1, 10)}, all).index, 0);
  EXPECT_EQ(Choose({Steady(1, 10), Steady(0.97, 10), Steady(1, 10)}, all).index, 1);
  // Among others the first within the band, in order.
  EXPECT_EQ(Choose({Steady(1, 10), Steady(0.81, 10), Steady(0.80, 10)}, all).index, 1);
  EXPECT_EQ(Choose({Steady(1, 10), Steady(0.90, 10), Steady(0.80, 10)}, all).index, 2);
}

TEST(ChooseTest, WhatIsNotEligibleIsNotChosen) {
  const Rounds rounds = {Steady(1, 10), Steady(0.5, 10), Steady(0.9, 10)};
  EXPECT_EQ(Choose(rounds, {true, false, true}).index, 2);
  EXPECT_EQ(Choose(rounds, {false, false, true}).index, 2);
  EXPECT_EQ(Choose(rounds, {true, false, false}).index, 0);
}

TEST(ChooseTest, StopsTheHopelessEarlyAndNeverTheDefault) {
  const std::vector<bool> all = {true, true, true, true};
  Rounds rounds = {Steady(1, 5), Steady(2.2, 5), Steady(1.5, 5), Steady(0.9, 5)};
  EXPECT_EQ(StillInTheRunning(rounds, all), (std::vector<bool>{true, false, true, true}));
  rounds = {Steady(1, 8), Steady(2.2, 8), Steady(1.5, 8), Steady(0.4, 8)};
  EXPECT_EQ(StillInTheRunning(rounds, all), (std::vector<bool>{true, false, false, true}));
  rounds = {Steady(1, 4), Steady(9, 4), Steady(9, 4), Steady(9, 4)};
  EXPECT_EQ(StillInTheRunning(rounds, all), all) << "too few samples";
  // Where the default may not win, the others need not be quicker than it.
  rounds = {Steady(1, 8), Steady(1.5, 8), Steady(1.51, 8), Steady(2, 8)};
  EXPECT_EQ(StillInTheRunning(rounds, all, /*default_may_win=*/false),
            (std::vector<bool>{true, true, true, false}));
}

TEST(ChooseTest, AQuickSampleKeepsACandidateWithOutliersIn) {
  Rounds rounds = {Steady(1, 5), {0.8, 2.4, 2.4, 2.4, 0.8}};
  EXPECT_TRUE(StillInTheRunning(rounds, {true, true})[1]);
}

TEST(ChooseTest, SeesADisturbedRound) {
  EXPECT_FALSE(IsDisturbed(std::vector<double>{1, 1}, 9)) << "nothing to judge by";
  EXPECT_FALSE(IsDisturbed(Steady(1, 3), 1.2));
  EXPECT_TRUE(IsDisturbed(Steady(1, 3), 1.3));
}

}  // namespace
}  // namespace tilewright::tune
