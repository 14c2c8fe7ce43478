#include "compile/compile_log.h"

#include <gtest/gtest.h>

#include <string>

namespace tilewright::compile {
namespace {

// As NVRTC 13.0 and ptxas write it.
constexpr char kReport[] =
    "ptxas info    : 0 bytes gmem\n"
    "ptxas info    : Compiling entry function 'attn__x' for 'sm_90a'\n"
    "ptxas info    : Function properties for attn__x\n"
    "ptxas         .     96 bytes stack frame, 124 bytes spill stores, 88 bytes spill loads\n"
    "ptxas info    : Used 168 registers, used 3 barriers, 1024 bytes smem\n"
    "ptxas info    : Compile time = 3.188 ms\n";

TEST(CompileLogTest, ReadsThePtxasReport) {
  const auto usage = ParsePtxasReport(kReport, "attn__x");
  ASSERT_TRUE(usage.has_value());
  EXPECT_EQ(usage->registers, 168);
  EXPECT_EQ(usage->static_smem_bytes, 1024);
  EXPECT_EQ(usage->stack_bytes, 96);
  EXPECT_EQ(usage->spill_store_bytes, 124);
  EXPECT_EQ(usage->spill_load_bytes, 88);
}

TEST(CompileLogTest, ReadsTheReportOfNvrtc12) {
  const auto usage = ParsePtxasReport(
      "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"
      "ptxas info    : Function properties for k\n"
      "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 12 registers\n",
      "k");
  ASSERT_TRUE(usage.has_value());
  EXPECT_EQ(usage->registers, 12);
  EXPECT_EQ(usage->static_smem_bytes, 0);
  EXPECT_EQ(usage->stack_bytes, 0);
}

TEST(CompileLogTest, AddsTheSpillsOfCalledFunctions) {
  const auto usage = ParsePtxasReport(
      "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"
      "ptxas info    : Function properties for _Z6Calledi\n"
      "ptxas         .     40 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads\n"
      "ptxas info    : Function properties for k\n"
      "ptxas         .     8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n"
      "ptxas info    : Used 32 registers, used 1 barriers, 48 bytes cumulative stack size, 16 "
      "bytes smem\n",
      "k");
  ASSERT_TRUE(usage.has_value());
  EXPECT_EQ(usage->spill_store_bytes, 20);
  EXPECT_EQ(usage->spill_load_bytes, 28);
  EXPECT_EQ(usage->stack_bytes, 48);
  EXPECT_EQ(usage->static_smem_bytes, 16);
}

TEST(CompileLogTest, OtherKernelsAreNotMistakenForTheOneAskedFor) {
  EXPECT_FALSE(ParsePtxasReport(kReport, "attn__").has_value());
  EXPECT_FALSE(ParsePtxasReport(kReport, "attn__xy").has_value());
  EXPECT_FALSE(ParsePtxasReport("", "attn__x").has_value());
  const std::string two = std::string(kReport) +
                          "ptxas info    : Compiling entry function 'other' for 'sm_90a'\n"
                          "ptxas info    : Used 24 registers\n";
  EXPECT_EQ(ParsePtxasReport(two, "attn__x")->registers, 168);
  EXPECT_EQ(ParsePtxasReport(two, "other")->registers, 24);
}

TEST(CompileLogTest, FindsThePlaceOfTheFirstError) {
  const auto place = FirstErrorPlace(
      "k.cu(2): warning #940-D: missing return statement at end of non-void function \"q\"\n"
      "core/types.cuh(31): error: identifier \"x\" is undefined\n"
      "user.cu(1): error: expected a \";\"\n");
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->file, "core/types.cuh");
  EXPECT_EQ(place->line, 31);
}

TEST(CompileLogTest, FileNamesMayHoldSpacesAndBrackets) {
  const auto place = FirstErrorPlace("my mods (2)/alibi.cu(7): error #20-D: no such thing\n");
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->file, "my mods (2)/alibi.cu");
  EXPECT_EQ(place->line, 7);
}

TEST(CompileLogTest, MissingHeadersAreErrorsWithAPlace) {
  const auto place = FirstErrorPlace(
      "k.cu(1): catastrophic error: could not open source file \"nope.h\" (no directories in "
      "search list)\n");
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->file, "k.cu");
}

TEST(CompileLogTest, LogsWithoutAPlaceHaveNone) {
  EXPECT_FALSE(FirstErrorPlace("nvrtc: error: unrecognized option --bogus found\n").has_value());
  EXPECT_FALSE(FirstErrorPlace("something(x): error: that is no line number\n").has_value());
  EXPECT_FALSE(FirstErrorPlace("").has_value());
}

TEST(CompileLogTest, ExcerptStartsAtTheFirstError) {
  const std::string log = "k.cu(1): warning: a\n\nk.cu(2): error: b\n  line\n  ^\nmore\n";
  EXPECT_EQ(ErrorExcerpt(log, 3), "k.cu(2): error: b\n  line\n  ^");
  EXPECT_EQ(ErrorExcerpt("first\nsecond\nthird\n", 2), "first\nsecond");
  EXPECT_EQ(ErrorExcerpt("", 2), "");
}

TEST(CompileLogTest, TimingsAreTakenOut) {
  const std::string without = WithoutTimings(kReport);
  EXPECT_EQ(without.find("Compile time"), std::string::npos);
  EXPECT_NE(without.find("Used 168 registers"), std::string::npos);
  EXPECT_EQ(WithoutTimings(without), without);
}

}  // namespace
}  // namespace tilewright::compile
