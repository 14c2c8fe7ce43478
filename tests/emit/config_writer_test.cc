#include "emit/config_writer.h"

#include <gtest/gtest.h>

namespace tilewright::emit {
namespace {

TEST(ConfigWriterTest, WritesMembersInTheOrderOfTheCalls) {
  ConfigWriter config;
  config.Section("sizes").Int("kB", 2).Int64("kA", -3).Bool("kC", true).Using("T", "float");
  config.Chain("Mask", "MaskChain", {"A<1, 2>", "B"}).Chain("Score", "ScoreChain", {});
  EXPECT_EQ(config.Finish("Config"),
            "struct Config {\n"
            "  // sizes\n"
            "  static constexpr int kB = 2;\n"
            "  static constexpr i64 kA = -3;\n"
            "  static constexpr bool kC = true;\n"
            "  using T = float;\n"
            "  using Mask = MaskChain<A<1, 2>, B>;\n"
            "  using Score = ScoreChain<>;\n"
            "};\n");
}

}  // namespace
}  // namespace tilewright::emit
