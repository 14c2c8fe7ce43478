#include "base/env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <set>
#include <string>

#include "tilewright/options.h"

namespace tilewright {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Takes all TILEWRIGHT_ variables out of the environment for the life of a test.
class EnvTest : public ::testing::Test {
 protected:
  void SetUp() override { Clear(); }
  void TearDown() override { Clear(); }

  static void Clear() {
    for (const EnvVariable& variable : EnvVariables()) unsetenv(std::string(variable.name).c_str());
    for (const std::string& name : UnknownEnvVariables()) unsetenv(name.c_str());
  }
  static RuntimeOptions With(const char* name, const char* value) {
    setenv(name, value, 1);
    const auto options = RuntimeOptions::FromEnvironment();
    unsetenv(name);
    EXPECT_TRUE(options.ok()) << options.status();
    return options.ok() ? *options : RuntimeOptions();
  }
};

TEST_F(EnvTest, EmptyEnvironmentGivesTheDefaults) {
  const auto options = RuntimeOptions::FromEnvironment();
  ASSERT_TRUE(options.ok());
  const RuntimeOptions defaults;
  EXPECT_EQ(options->cache_dir, defaults.cache_dir);
  EXPECT_EQ(options->cache_max_bytes, int64_t{2} << 30);
  EXPECT_EQ(options->tune_policy, TunePolicy::kFirstRun);
  EXPECT_EQ(options->log_level, LogLevel::kWarning);
  EXPECT_TRUE(options->allow_fallback);
}

TEST_F(EnvTest, EachVariableSetsItsField) {
  EXPECT_EQ(With("TILEWRIGHT_CACHE_DIR", "/some where").cache_dir, "/some where");
  EXPECT_THAT(With("TILEWRIGHT_CACHE_PACKS", "/a:/b c").cache_packs, ElementsAre("/a", "/b c"));
  EXPECT_THAT(With("TILEWRIGHT_CACHE_PACKS", ":/a::").cache_packs, ElementsAre("/a"));
  EXPECT_TRUE(With("TILEWRIGHT_CACHE_MODE", "ro").cache_read_only);
  EXPECT_TRUE(With("TILEWRIGHT_CACHE_MODE", "memory").cache_in_memory);
  EXPECT_FALSE(With("TILEWRIGHT_CACHE_MODE", "rw").cache_read_only);
  EXPECT_TRUE(With("TILEWRIGHT_CACHE_SHARED", "group").cache_group_shared);
  EXPECT_FALSE(With("TILEWRIGHT_CACHE_SHARED", "off").cache_group_shared);
  EXPECT_EQ(With("TILEWRIGHT_NVRTC_PATH", "/n").nvrtc_path, "/n");
  EXPECT_EQ(With("TILEWRIGHT_DEVICE", "3").device_ordinal, 3);
  EXPECT_FALSE(With("TILEWRIGHT_ALLOW_FALLBACK", "0").allow_fallback);
  EXPECT_EQ(With("TILEWRIGHT_TUNE_POLICY", "first_run").tune_policy, TunePolicy::kFirstRun);
  EXPECT_EQ(With("TILEWRIGHT_TUNE_POLICY", "background").tune_policy, TunePolicy::kBackground);
  EXPECT_EQ(With("TILEWRIGHT_TUNE_POLICY", "cached_only").tune_policy, TunePolicy::kCachedOnly);
  EXPECT_EQ(With("TILEWRIGHT_TUNE_POLICY", "off").tune_policy, TunePolicy::kOff);
  EXPECT_EQ(With("TILEWRIGHT_TUNE_POLICY", "frozen").tune_policy, TunePolicy::kFrozen);
  EXPECT_TRUE(With("TILEWRIGHT_LINEINFO", "yes").lineinfo);
  EXPECT_EQ(With("TILEWRIGHT_TEMPLATE_DIR", "/t").template_dir, "/t");
  EXPECT_EQ(With("TILEWRIGHT_COMPILE_THREADS", "5").compile_threads, 5);
  EXPECT_EQ(With("TILEWRIGHT_COMPILE_TIMEOUT_MS", "250").compile_timeout_ms, 250);
  EXPECT_TRUE(With("TILEWRIGHT_ISOLATE_COMPILER", "1").isolate_compiler);
  EXPECT_EQ(With("TILEWRIGHT_COMPILER_HELPER", "/h").compiler_helper, "/h");
  EXPECT_EQ(With("TILEWRIGHT_LOCK_TIMEOUT_MS", "0").lock_timeout_ms, 0);
  EXPECT_EQ(With("TILEWRIGHT_LOG", "debug").log_level, LogLevel::kDebug);
  EXPECT_EQ(With("TILEWRIGHT_LOG", "off").log_level, LogLevel::kOff);
}

TEST_F(EnvTest, BytesTakeASuffix) {
  EXPECT_EQ(With("TILEWRIGHT_CACHE_MAX_BYTES", "0").cache_max_bytes, 0);
  EXPECT_EQ(With("TILEWRIGHT_CACHE_MAX_BYTES", "4096").cache_max_bytes, 4096);
  EXPECT_EQ(With("TILEWRIGHT_CACHE_MAX_BYTES", "3K").cache_max_bytes, 3 << 10);
  EXPECT_EQ(With("TILEWRIGHT_CACHE_MAX_BYTES", "7m").cache_max_bytes, 7 << 20);
  EXPECT_EQ(With("TILEWRIGHT_CACHE_MAX_BYTES", "2G").cache_max_bytes, int64_t{2} << 30);
  EXPECT_EQ(With("TILEWRIGHT_CACHE_MAX_BYTES", "1t").cache_max_bytes, int64_t{1} << 40);
}

TEST_F(EnvTest, FrozenOutranksTheTunePolicy) {
  setenv("TILEWRIGHT_TUNE_POLICY", "background", 1);
  EXPECT_EQ(With("TILEWRIGHT_FROZEN", "1").tune_policy, TunePolicy::kFrozen);
  EXPECT_EQ(With("TILEWRIGHT_FROZEN", "0").tune_policy, TunePolicy::kBackground);
}

TEST_F(EnvTest, AnEmptyValueCountsAsUnset) {
  EXPECT_EQ(With("TILEWRIGHT_DEVICE", "").device_ordinal, 0);
  EXPECT_EQ(With("TILEWRIGHT_TUNE_POLICY", "").tune_policy, TunePolicy::kFirstRun);
}

TEST_F(EnvTest, WhatDoesNotParseNamesVariableValueAndRule) {
  const struct {
    const char* name;
    const char* value;
    const char* rule;
  } kCases[] = {
      {"TILEWRIGHT_CACHE_MODE", "readonly", "rw, ro or memory"},
      {"TILEWRIGHT_CACHE_SHARED", "1", "off or group"},
      {"TILEWRIGHT_CACHE_MAX_BYTES", "2 G", "suffix K, M, G or T"},
      {"TILEWRIGHT_CACHE_MAX_BYTES", "-1", "suffix K, M, G or T"},
      {"TILEWRIGHT_CACHE_MAX_BYTES", "K", "suffix K, M, G or T"},
      {"TILEWRIGHT_CACHE_MAX_BYTES", "1.5G", "suffix K, M, G or T"},
      {"TILEWRIGHT_CACHE_MAX_BYTES", "9223372036854775807K", "suffix K, M, G or T"},
      {"TILEWRIGHT_DEVICE", "one", "an integer from 0 to 1023"},
      {"TILEWRIGHT_DEVICE", "-1", "an integer from 0 to 1023"},
      {"TILEWRIGHT_DEVICE", "1 ", "an integer from 0 to 1023"},
      {"TILEWRIGHT_DEVICE", "4294967296", "an integer from 0 to 1023"},
      {"TILEWRIGHT_ALLOW_FALLBACK", "2", "1 or 0"},
      {"TILEWRIGHT_TUNE_POLICY", "always", "first_run, background"},
      {"TILEWRIGHT_FROZEN", "maybe", "1 or 0"},
      {"TILEWRIGHT_LINEINFO", "x", "1 or 0"},
      {"TILEWRIGHT_COMPILE_THREADS", "0x4", "an integer from 0 to 1024"},
      {"TILEWRIGHT_LOCK_TIMEOUT_MS", "30s", "an integer from 0 to 86400000"},
      {"TILEWRIGHT_LOG", "loud", "debug, info, warning, error or off"},
  };
  for (const auto& test : kCases) {
    setenv(test.name, test.value, 1);
    const auto options = RuntimeOptions::FromEnvironment();
    unsetenv(test.name);
    EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument) << test.name;
    const std::string message(options.status().message());
    EXPECT_THAT(message, HasSubstr(test.name));
    EXPECT_THAT(message, HasSubstr(std::string("\"") + test.value + "\""));
    EXPECT_THAT(message, HasSubstr(test.rule));
  }
}

TEST_F(EnvTest, TheTableIsComplete) {
  std::set<std::string_view> names;
  for (const EnvVariable& variable : EnvVariables()) {
    EXPECT_TRUE(variable.name.starts_with("TILEWRIGHT_")) << variable.name;
    EXPECT_TRUE(names.insert(variable.name).second) << variable.name;
    EXPECT_FALSE(variable.option.empty()) << variable.name;
    EXPECT_FALSE(variable.values.empty()) << variable.name;
    EXPECT_FALSE(variable.doc.empty()) << variable.name;
  }
  EXPECT_EQ(names.size(), 25u);
}

TEST_F(EnvTest, ListsNamesThatTheTableDoesNotKnow) {
  EXPECT_THAT(UnknownEnvVariables(), IsEmpty());
  setenv("TILEWRIGHT_CACHE_DIRR", "x", 1);
  setenv("TILEWRIGHT_LOG", "info", 1);
  setenv("MY_TILEWRIGHT_LOG", "info", 1);
  EXPECT_THAT(UnknownEnvVariables(), ElementsAre("TILEWRIGHT_CACHE_DIRR"));
  unsetenv("MY_TILEWRIGHT_LOG");
}

TEST_F(EnvTest, GetEnvTellsUnsetFromEmpty) {
  EXPECT_EQ(GetEnv("TILEWRIGHT_LOG"), std::nullopt);
  setenv("TILEWRIGHT_LOG", "", 1);
  EXPECT_EQ(GetEnv("TILEWRIGHT_LOG"), "");
}

}  // namespace
}  // namespace tilewright
