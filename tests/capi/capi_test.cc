// The C interface in this process, without a device: conversions, sizes, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tilewright/tilewright_c.h"

namespace {

using testing::AllOf;
using testing::HasSubstr;

tw_options QuietOptions() {
  tw_options options;
  EXPECT_EQ(tw_options_init(&options, sizeof options), TW_OK);
  options.cache_in_memory = 1;
  options.log_level = TW_LOG_OFF;
  options.tune_policy = TW_TUNE_OFF;
  return options;
}

class CapiTest : public testing::Test {
 protected:
  CapiTest() {
    const tw_options options = QuietOptions();
    EXPECT_EQ(tw_runtime_create(&options, &runtime_), TW_OK) << tw_last_error();
    EXPECT_EQ(tw_spec_init(&spec_, sizeof spec_), TW_OK);
  }
  ~CapiTest() override { tw_runtime_destroy(runtime_); }

  // Prepares spec_, which must be refused.
  std::string Refused(tw_status expected = TW_INVALID_ARGUMENT) {
    tw_attention* attention = nullptr;
    EXPECT_EQ(tw_prepare(runtime_, &spec_, nullptr, &attention), expected) << tw_last_error();
    EXPECT_EQ(attention, nullptr);
    return tw_last_error();
  }

  tw_runtime* runtime_ = nullptr;
  tw_spec spec_;
};

TEST_F(CapiTest, DefaultsAreThoseOfTheCppInterface) {
  EXPECT_EQ(spec_.size, sizeof spec_);
  EXPECT_EQ(spec_.type, TW_BF16);
  EXPECT_EQ(spec_.kv_type, TW_SAME_TYPE);
  EXPECT_EQ(spec_.window_left, -1);
  EXPECT_EQ(spec_.dim_qk, 64);
  tw_options options;
  ASSERT_EQ(tw_options_init(&options, sizeof options), TW_OK);
  EXPECT_EQ(options.cache_max_bytes, int64_t{2} << 30);
  EXPECT_EQ(options.allow_fallback, 1);
  EXPECT_EQ(options.lock_timeout_ms, 30000);
  EXPECT_EQ(options.compile_timeout_ms, 600000);
  EXPECT_EQ(options.isolate_compiler, 0);
  EXPECT_EQ(options.compiler_helper, nullptr);
  EXPECT_EQ(options.log_level, TW_LOG_WARNING);
  tw_args args;
  ASSERT_EQ(tw_args_init(&args, sizeof args), TW_OK);
  EXPECT_EQ(args.q.strides.dim, 1);
  EXPECT_EQ(args.o.strides.dim, 1);
  tw_bias_term term;
  ASSERT_EQ(tw_bias_term_init(&term, sizeof term), TW_OK);
  EXPECT_EQ(term.batch, 1);
  EXPECT_EQ(term.type, TW_FP32);
}

TEST_F(CapiTest, NullPointersAreErrors) {
  tw_attention* attention = nullptr;
  size_t bytes = 0;
  tw_args args;
  tw_args_init(&args, sizeof args);
  EXPECT_EQ(tw_runtime_create(nullptr, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_STREQ(tw_last_error(), "runtime = null: must point to something");
  EXPECT_EQ(tw_prepare(nullptr, &spec_, nullptr, &attention), TW_INVALID_ARGUMENT);
  EXPECT_EQ(tw_prepare(runtime_, nullptr, nullptr, &attention), TW_INVALID_ARGUMENT);
  EXPECT_STREQ(tw_last_error(), "tw_spec = null: must point to something");
  EXPECT_EQ(tw_prepare(runtime_, &spec_, nullptr, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_EQ(tw_prepare_text(runtime_, nullptr, nullptr, &attention), TW_INVALID_ARGUMENT);
  EXPECT_EQ(tw_run(runtime_, nullptr, &args, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_EQ(tw_run(nullptr, nullptr, nullptr, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_EQ(tw_attention_once(runtime_, &spec_, nullptr, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_EQ(tw_workspace_bytes(nullptr, &args, &bytes), TW_INVALID_ARGUMENT);
  EXPECT_EQ(tw_warmup(runtime_, nullptr, 1), TW_INVALID_ARGUMENT);
  EXPECT_EQ(tw_runtime_counters(runtime_, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_EQ(tw_flush(nullptr), TW_INVALID_ARGUMENT);
  EXPECT_EQ(tw_options_init(nullptr, sizeof(tw_options)), TW_INVALID_ARGUMENT);
  EXPECT_EQ(tw_dense_strides(TW_BSHD, 1, 1, 1, 1, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_STREQ(tw_spec_text(nullptr), "");
  EXPECT_STREQ(tw_explain(nullptr), "");
  tw_attention_destroy(nullptr);
  tw_runtime_destroy(nullptr);
}

TEST_F(CapiTest, IllFormedSpecsNameFieldValueAndRule) {
  spec_.heads_q = 5;
  spec_.heads_kv = 2;
  EXPECT_EQ(Refused(), "heads_q = 5: must be a multiple of heads_kv = 2");
  tw_spec_init(&spec_, sizeof spec_);
  spec_.seqlen_q = -3;
  EXPECT_EQ(Refused(), "seqlen_q = -3: must be >= 0");
  tw_spec_init(&spec_, sizeof spec_);
  spec_.type = 77;
  EXPECT_EQ(Refused(), "type = 77: must be in [0, 7]");
  tw_spec_init(&spec_, sizeof spec_);
  spec_.layout = 77;
  EXPECT_THAT(Refused(), HasSubstr("layout = 77"));
  tw_spec_init(&spec_, sizeof spec_);
  spec_.lse_base = -4;
  EXPECT_THAT(Refused(), HasSubstr("lse_base = -4"));
  tw_spec_init(&spec_, sizeof spec_);
  spec_.num_bias = 1;
  EXPECT_EQ(Refused(), "bias = null: must point to something");
  spec_.num_bias = static_cast<size_t>(-1);
  EXPECT_THAT(Refused(), HasSubstr("num_bias = 18446744073709551615: must be at most"));
}

TEST_F(CapiTest, ArraysOfTheSpecAreRead) {
  tw_bias_term terms[2];
  for (tw_bias_term& term : terms) tw_bias_term_init(&term, sizeof term);
  spec_.heads_q = spec_.heads_kv = 4;
  spec_.bias = terms;
  spec_.num_bias = 2;
  terms[1].heads = 3;
  EXPECT_EQ(Refused(), "bias[1].heads = 3: must be 1 or heads_q = 4");
  terms[1].heads = 4;
  terms[1].type = -1;
  EXPECT_THAT(Refused(), HasSubstr("bias[1].type = -1"));

  terms[1].type = TW_BOOL;
  tw_snippet_array array = {sizeof(tw_snippet_array), "for", TW_FP32, 0};
  tw_snippet_scalar scalar = {sizeof(tw_snippet_scalar), "gain", TW_SCALAR_FLOAT, 0};
  spec_.score_snippet = "score * gain";
  spec_.snippet_arrays = &array;
  spec_.num_snippet_arrays = 1;
  spec_.snippet_scalars = &scalar;
  spec_.num_snippet_scalars = 1;
  EXPECT_THAT(Refused(), HasSubstr("snippet_arrays[0].name"));
  array.name = "table";
  scalar.name = "table";
  EXPECT_THAT(Refused(), HasSubstr("snippet_scalars[0].name"));
  const tw_strides strides[4] = {{0, 0, 0, 1}, {0, 0, 0, 1}, {0, 0, -5, 1}, {0, 0, 0, 1}};
  spec_.strides = strides;
  EXPECT_THAT(Refused(), HasSubstr("strides.v.head = -5"));
}

TEST_F(CapiTest, CallersOfAnOlderHeaderGetDefaultsForTheRest) {
  // As if `heads_q` had been the last field once: what follows is not the caller's.
  struct {
    tw_spec spec;
    char after[64];
  } memory;
  std::memset(&memory, 0xff, sizeof memory);
  const size_t old_size = offsetof(tw_spec, heads_q);
  ASSERT_EQ(tw_spec_init(&memory.spec, old_size), TW_OK);
  EXPECT_EQ(memory.spec.heads_q, -1);  // untouched
  memory.spec.batch = -9;
  tw_attention* attention = nullptr;
  EXPECT_EQ(tw_prepare(runtime_, &memory.spec, nullptr, &attention), TW_INVALID_ARGUMENT);
  EXPECT_STREQ(tw_last_error(), "batch = -9: must be >= 0");
}

TEST_F(CapiTest, CallersOfANewerHeaderAreServedUnlessTheyUseIt) {
  struct {
    tw_spec spec;
    int64_t newer_field;
  } memory;
  ASSERT_EQ(tw_spec_init(&memory.spec, sizeof memory), TW_OK);
  EXPECT_EQ(memory.newer_field, 0);
  EXPECT_EQ(memory.spec.size, sizeof memory);
  memory.spec.heads_q = 5;
  memory.spec.heads_kv = 2;
  tw_attention* attention = nullptr;
  EXPECT_EQ(tw_prepare(runtime_, &memory.spec, nullptr, &attention), TW_INVALID_ARGUMENT);
  EXPECT_THAT(tw_last_error(), HasSubstr("heads_q = 5"));
  memory.newer_field = 1;
  EXPECT_EQ(tw_prepare(runtime_, &memory.spec, nullptr, &attention), TW_INVALID_ARGUMENT);
  EXPECT_THAT(tw_last_error(), HasSubstr("a field beyond them is set"));
}

TEST_F(CapiTest, StructsThatWereNotInitialisedAreRefused) {
  std::memset(&spec_, 0, sizeof spec_);
  EXPECT_THAT(Refused(), AllOf(HasSubstr("tw_spec.size = 0"), HasSubstr("sizeof(tw_spec)")));
  std::memset(&spec_, 0xee, sizeof spec_);
  EXPECT_THAT(Refused(), HasSubstr("tw_spec.size = "));
  tw_counters counters;
  counters.size = 0;
  EXPECT_EQ(tw_runtime_counters(runtime_, &counters), TW_INVALID_ARGUMENT);
}

TEST_F(CapiTest, CountersGrow) {
  tw_counters counters;
  counters.size = sizeof counters;
  ASSERT_EQ(tw_runtime_counters(runtime_, &counters), TW_OK);
  EXPECT_EQ(counters.prepares, 0);
  EXPECT_EQ(counters.size, sizeof counters);
  spec_.dim_v = 0;
  Refused();
  ASSERT_EQ(tw_runtime_counters(runtime_, &counters), TW_OK);
  EXPECT_EQ(counters.prepares, 1);
}

TEST_F(CapiTest, ErrorsBelongToTheirThread) {
  spec_.dim_v = 0;
  Refused();
  std::thread([] { EXPECT_STREQ(tw_last_error(), ""); }).join();
  EXPECT_STREQ(tw_last_error(), "dim_v = 0: must be >= 1");
  EXPECT_STREQ(tw_last_error_log(), "");
}

TEST_F(CapiTest, TextSpecsNameTheWordThatDoesNotFit) {
  tw_attention* attention = nullptr;
  EXPECT_EQ(tw_prepare_text(runtime_, "fwd bf16 b=1 h=1 s=16 d=16 causl", nullptr, &attention),
            TW_INVALID_ARGUMENT);
  EXPECT_THAT(tw_last_error(), HasSubstr("causl"));
  EXPECT_EQ(tw_prepare_text(runtime_, "fwd bf16 b=1 h=1 s=16 d=16 score=@/nonexistent/x.cu",
                            nullptr, &attention),
            TW_NOT_FOUND);
  EXPECT_EQ(attention, nullptr);
}

TEST_F(CapiTest, WarmupReportsTheFirstSpecThatIsWrong) {
  tw_spec wrong = spec_;
  wrong.dim_qk = -1;
  const tw_spec* specs[] = {&wrong};
  const tw_status status = tw_warmup(runtime_, specs, 1);
  // Without a driver the warm-up ends before it looks at the specs.
  EXPECT_THAT(status, testing::AnyOf(TW_INVALID_ARGUMENT, TW_UNAVAILABLE, TW_FAILED_PRECONDITION));
  EXPECT_EQ(tw_warmup(runtime_, nullptr, 0), TW_OK);
}

TEST(CapiOptionsTest, WrongOptionsNameTheirField) {
  tw_runtime* runtime = nullptr;
  tw_options options = QuietOptions();
  options.tune_policy = 9;
  EXPECT_EQ(tw_runtime_create(&options, &runtime), TW_INVALID_ARGUMENT);
  EXPECT_STREQ(tw_last_error(), "tune_policy = 9: must be in [0, 4]");
  options = QuietOptions();
  options.device_ordinal = -1;
  EXPECT_EQ(tw_runtime_create(&options, &runtime), TW_INVALID_ARGUMENT);
  EXPECT_THAT(tw_last_error(), HasSubstr("device_ordinal = -1"));
  options = QuietOptions();
  options.num_cache_packs = 2;
  EXPECT_EQ(tw_runtime_create(&options, &runtime), TW_INVALID_ARGUMENT);
  EXPECT_THAT(tw_last_error(), HasSubstr("cache_packs = null"));
  EXPECT_EQ(runtime, nullptr);
}

TEST(CapiOptionsTest, TheEnvironmentIsReadOnRequest) {
  ASSERT_EQ(setenv("TILEWRIGHT_CACHE_PACKS", "/packs/a:/packs/b", 1), 0);
  ASSERT_EQ(setenv("TILEWRIGHT_TUNE_POLICY", "off", 1), 0);
  tw_options options;
  EXPECT_EQ(tw_options_from_environment(&options, sizeof options), TW_OK) << tw_last_error();
  ASSERT_EQ(options.num_cache_packs, 2u);
  EXPECT_STREQ(options.cache_packs[1], "/packs/b");
  EXPECT_EQ(options.tune_policy, TW_TUNE_OFF);
  ASSERT_EQ(setenv("TILEWRIGHT_TUNE_POLICY", "sometimes", 1), 0);
  EXPECT_EQ(tw_options_from_environment(&options, sizeof options), TW_INVALID_ARGUMENT);
  EXPECT_THAT(tw_last_error(), HasSubstr("TILEWRIGHT_TUNE_POLICY"));
  tw_runtime* runtime = nullptr;
  EXPECT_EQ(tw_runtime_create(nullptr, &runtime), TW_INVALID_ARGUMENT);
  unsetenv("TILEWRIGHT_CACHE_PACKS");
  unsetenv("TILEWRIGHT_TUNE_POLICY");
}

TEST(CapiOptionsTest, EventsReachTheSink) {
  std::vector<std::string> lines;
  tw_options options;
  ASSERT_EQ(tw_options_init(&options, sizeof options), TW_OK);
  options.cache_dir = "/proc/tilewright";
  options.log_sink = [](void* user, int32_t level, const char* line, size_t length) {
    EXPECT_EQ(level, TW_LOG_WARNING);
    static_cast<std::vector<std::string>*>(user)->emplace_back(line, length);
  };
  options.log_user = &lines;
  tw_runtime* runtime = nullptr;
  ASSERT_EQ(tw_runtime_create(&options, &runtime), TW_OK) << tw_last_error();
  tw_runtime_destroy(runtime);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr("store_memory_only"));
}

TEST(CapiStridesTest, DenseStridesOfEachLayout) {
  tw_strides strides;
  ASSERT_EQ(tw_dense_strides(TW_BHSD, 2, 10, 3, 8, &strides), TW_OK);
  EXPECT_EQ(strides.batch, 240);
  EXPECT_EQ(strides.head, 80);
  EXPECT_EQ(strides.seq, 8);
  EXPECT_EQ(strides.dim, 1);
  EXPECT_EQ(tw_dense_strides(4, 2, 10, 3, 8, &strides), TW_INVALID_ARGUMENT);
  EXPECT_THAT(tw_last_error(), HasSubstr("layout = 4"));
}

TEST(CapiNamesTest, StatusNamesAndVersion) {
  EXPECT_STREQ(tw_status_name(TW_OK), "TW_OK");
  EXPECT_STREQ(tw_status_name(TW_UNAVAILABLE), "TW_UNAVAILABLE");
  EXPECT_STREQ(tw_status_name(TW_CANCELLED), "TW_CANCELLED");
  EXPECT_STREQ(tw_status_name(TW_DEADLINE_EXCEEDED), "TW_DEADLINE_EXCEEDED");
  EXPECT_STREQ(tw_status_name(2), "TW_UNKNOWN");
  EXPECT_THAT(tw_version(), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

}  // namespace
