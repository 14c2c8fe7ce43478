#include "build/miss_explainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/labelled_hash.h"
#include "cache/memory_store.h"

namespace tilewright::build {
namespace {

using testing::HasSubstr;

struct Fields {
  std::string product = "0.1.0";
  std::string entry = "attn__x";
  std::string target = "sm_90a";
  std::string options = "-a\n-b";
  std::string templates = std::string(64, '1');
  std::string source = "one\ntwo\nthree";
};

std::string Manifest(const Fields& fields) {
  return LabelledHash()
      .Add("product", fields.product)
      .Add("entry", fields.entry)
      .Add("target", fields.target)
      .Add("options", fields.options)
      .Add("templates", fields.templates)
      .Add("unit_sha256", Sha256(fields.source).ToHex())
      .manifest();
}

cache::Entry EntryOf(const Fields& fields, const std::string& variant = "nvrtc 13.0.88") {
  return {.manifest = Manifest(fields),
          .variant = variant,
          .sections = {{"source", fields.source}, {"cubin", "x"}}};
}

KernelIdentity WantedOf(const Fields& fields, const std::string& variant = "nvrtc 13.0.88") {
  return IdentityOf(EntryOf(fields, variant));
}

std::vector<std::string> Names(const std::vector<FieldDifference>& differences) {
  std::vector<std::string> names;
  for (const FieldDifference& difference : differences) names.push_back(difference.field);
  return names;
}

TEST(MissExplainerTest, NamesEachFieldThatDiffers) {
  const Fields base;
  const auto names = [&](const Fields& other, const std::string& variant = "nvrtc 13.0.88") {
    const auto differences = Differences(WantedOf(base), WantedOf(other, variant));
    EXPECT_TRUE(differences.ok());
    return Names(*differences);
  };
  EXPECT_THAT(names(base), testing::IsEmpty());
  EXPECT_THAT(names({.product = "0.2.0"}), testing::ElementsAre("product"));
  EXPECT_THAT(names({.entry = "attn__y"}), testing::ElementsAre("entry"));
  EXPECT_THAT(names({.target = "sm_80"}), testing::ElementsAre("target"));
  EXPECT_THAT(names({.options = "-a"}), testing::ElementsAre("options"));
  EXPECT_THAT(names({.templates = std::string(64, '2')}), testing::ElementsAre("templates"));
  EXPECT_THAT(names({.source = "one"}), testing::ElementsAre("unit_sha256"));
  EXPECT_THAT(names(base, "nvrtc 12.9.86"), testing::ElementsAre("compiler"));
  EXPECT_THAT(names({.target = "sm_80", .options = "-c"}, "nvrtc 12.9.86"),
              testing::ElementsAre("target", "options", "compiler"));
}

TEST(MissExplainerTest, ShowsOfOptionsAndSourceOnlyWhatDiffers) {
  const auto options = Differences(WantedOf({.options = "-a\n-c\n-b"}), WantedOf({}));
  ASSERT_TRUE(options.ok());
  EXPECT_EQ((*options)[0].wanted, "-c");
  EXPECT_EQ((*options)[0].stored, "");
  const auto order = Differences(WantedOf({.options = "-b\n-a"}), WantedOf({}));
  EXPECT_EQ((*order)[0].wanted, "their order");
  const auto source = Differences(WantedOf({.source = "one\n2\nthree"}), WantedOf({}));
  EXPECT_EQ((*source)[0].wanted, "line 2: 2");
  EXPECT_EQ((*source)[0].stored, "line 2: two");
  const auto longer = Differences(WantedOf({.source = "one\ntwo\nthree\nfour"}), WantedOf({}));
  EXPECT_EQ((*longer)[0].wanted, "line 4: four");
  EXPECT_EQ((*longer)[0].stored, "no line 4");
  const auto comment =
      Differences(WantedOf({.source = "// x\none\n2"}), WantedOf({.source = "// y\none\n3"}));
  EXPECT_EQ((*comment)[0].wanted, "line 3: 2");
  KernelIdentity unknown = WantedOf({.source = "other"});
  unknown.source.clear();
  EXPECT_EQ((*Differences(unknown, WantedOf({})))[0].wanted, Sha256("other").ToHex());
}

TEST(MissExplainerTest, AnyCompilerServesWhereNoneIsWanted) {
  KernelIdentity wanted = WantedOf({});
  wanted.variant.reset();
  EXPECT_THAT(*Differences(wanted, WantedOf({}, "nvrtc 1")), testing::IsEmpty());
  EXPECT_FALSE(Differences({.manifest = "?"}, WantedOf({})).ok());
}

TEST(MissExplainerTest, TheNearestIsTheSameKernelBeforeAnythingElse) {
  cache::MemoryStore store(0);
  EXPECT_FALSE(FindNearest(store, WantedOf({})).has_value());
  ASSERT_TRUE(store.Put({.manifest = "not a manifest", .variant = "v", .sections = {}}).ok());
  EXPECT_FALSE(FindNearest(store, WantedOf({})).has_value());
  ASSERT_TRUE(store.Put(EntryOf({.entry = "attn__y"})).ok());
  EXPECT_THAT(Names(FindNearest(store, WantedOf({}))->differences), testing::ElementsAre("entry"));
  ASSERT_TRUE(store.Put(EntryOf({.target = "sm_80"})).ok());
  EXPECT_THAT(Names(FindNearest(store, WantedOf({}))->differences), testing::ElementsAre("target"));
  ASSERT_TRUE(store.Put(EntryOf({.product = "0", .options = "-z", .source = "z"}, "v")).ok());
  const auto nearest = FindNearest(store, WantedOf({}));
  EXPECT_THAT(Names(nearest->differences),
              testing::ElementsAre("product", "options", "unit_sha256", "compiler"));
  EXPECT_TRUE(IsSameKernel(nearest->differences));
  // What does not differ explains nothing.
  ASSERT_TRUE(store.Put(EntryOf({})).ok());
  EXPECT_EQ(FindNearest(store, WantedOf({}))->differences.size(), 4u);
}

TEST(MissExplainerTest, DescribesInOneLine) {
  const auto differences =
      Differences(WantedOf({.options = "-c", .templates = std::string(64, 'a')}), WantedOf({}));
  const std::string text = DescribeDifferences(*differences);
  EXPECT_EQ(text,
            "options (wanted -c, stored -a -b), templates (wanted aaaaaaaaaaaa, stored "
            "111111111111)");
  EXPECT_THAT(DescribeDifferences(std::vector<FieldDifference>{{"x", std::string(500, 'y'), ""}}),
              testing::AllOf(HasSubstr("yyy..."), HasSubstr("stored nothing")));
}

}  // namespace
}  // namespace tilewright::build
