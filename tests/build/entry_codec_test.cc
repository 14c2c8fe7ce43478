#include "build/entry_codec.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/labelled_hash.h"

namespace tilewright::build {
namespace {

std::string SomeCubin() {
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_ABIVERSION] = 8;
  header.e_machine = 190;
  header.e_flags = 90 << 8;
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + "code";
}

artifact::KernelSource SomeSource() {
  return {.entry_name = "attn__x",
          .unit_name = "attn__x.cu",
          .text = "extern \"C\" ...",
          .generated_headers = {{"user/score.cuh", "score * 2"}}};
}

artifact::KernelBinary SomeBinary() {
  return {.entry_name = "attn__x",
          .target = "sm_90a",
          .cubin = SomeCubin(),
          .log = "ptxas info",
          .usage = {.registers = 168,
                    .static_smem_bytes = 16,
                    .stack_bytes = 8,
                    .spill_store_bytes = 4,
                    .spill_load_bytes = 12},
          .compile_ms = 212.5,
          .compiler = "nvrtc 13.0.88"};
}

cache::Entry SomeEntry() {
  return EncodeEntry({"manifest", "variant", "fwd bf16", "plan"}, SomeSource(), SomeBinary());
}

std::string* Section(cache::Entry* entry, const std::string& name) {
  for (cache::Section& section : entry->sections) {
    if (section.name == name) return &section.bytes;
  }
  return nullptr;
}

std::string MessageOf(const cache::Entry& entry, const std::string& name = "attn__x",
                      const std::string& target = "sm_90a") {
  const auto binary = DecodeEntry(entry, name, target);
  EXPECT_EQ(binary.status().code(), absl::StatusCode::kDataLoss) << binary.status();
  return std::string(binary.status().message());
}

TEST(EntryCodecTest, ReadsBackWhatItWrote) {
  const cache::Entry entry = SomeEntry();
  EXPECT_EQ(entry.manifest, "manifest");
  EXPECT_EQ(entry.variant, "variant");
  const auto binary = DecodeEntry(entry, "attn__x", "sm_90a");
  ASSERT_TRUE(binary.ok()) << binary.status();
  const artifact::KernelBinary expected = SomeBinary();
  EXPECT_EQ(binary->entry_name, expected.entry_name);
  EXPECT_EQ(binary->target, expected.target);
  EXPECT_EQ(binary->cubin, expected.cubin);
  EXPECT_EQ(binary->log, expected.log);
  EXPECT_EQ(binary->usage.registers, 168);
  EXPECT_EQ(binary->usage.static_smem_bytes, 16);
  EXPECT_EQ(binary->usage.stack_bytes, 8);
  EXPECT_EQ(binary->usage.spill_store_bytes, 4);
  EXPECT_EQ(binary->usage.spill_load_bytes, 12);
  EXPECT_EQ(binary->compile_ms, 212.5);
  EXPECT_EQ(binary->compiler, "nvrtc 13.0.88");
}

TEST(EntryCodecTest, KeepsTheSourceForPeople) {
  const cache::Entry entry = SomeEntry();
  ASSERT_NE(entry.Find("source"), nullptr);
  EXPECT_EQ(*entry.Find("source"), SomeSource().text);
  ASSERT_NE(entry.Find("headers"), nullptr);
  const auto headers = ParseManifest(*entry.Find("headers"));
  ASSERT_TRUE(headers.ok()) << headers.status();
  const ManifestFields expected = {{"name", "user/score.cuh"}, {"text", "score * 2"}};
  EXPECT_EQ(*headers, expected);
}

TEST(EntryCodecTest, TextThatIsNotUtf8DoesNotBreakTheFacts) {
  const cache::Entry entry =
      EncodeEntry({"m", "v", "fwd bf16 score=@caf\xe9.cu", "plan"}, SomeSource(), SomeBinary());
  EXPECT_TRUE(DecodeEntry(entry, "attn__x", "sm_90a").ok());
}

TEST(EntryCodecTest, RefusesEntriesOfAnotherKernelOrTarget) {
  EXPECT_EQ(MessageOf(SomeEntry(), "attn__y"), "entry holds the kernel attn__x, expected attn__y");
  EXPECT_EQ(MessageOf(SomeEntry(), "attn__x", "sm_80"), "entry is for sm_90a, expected sm_80");
}

TEST(EntryCodecTest, RefusesFactsThatDoNotParse) {
  cache::Entry entry = SomeEntry();
  for (const char* facts : {"", "[]", "{", "{\"entry\": 1}", "{\"entry\": \"attn__x\"}"}) {
    *Section(&entry, "facts") = facts;
    EXPECT_NE(MessageOf(entry).find("facts"), std::string::npos) << facts;
  }
}

TEST(EntryCodecTest, RefusesMissingSections) {
  for (const char* name : {"facts", "cubin"}) {
    cache::Entry entry = SomeEntry();
    std::erase_if(entry.sections, [&](const cache::Section& s) { return s.name == name; });
    EXPECT_NE(MessageOf(entry).find(name), std::string::npos);
  }
}

TEST(EntryCodecTest, RefusesACubinForAnotherArchitecture) {
  cache::Entry entry = SomeEntry();
  (*Section(&entry, "cubin"))[49] = 80;  // the second byte of e_flags
  EXPECT_EQ(MessageOf(entry), "cubin is for sm_80, expected sm_90a");
}

// What a builder makes of SomeSource.
cache::Entry WholeEntry() {
  const artifact::KernelSource source = SomeSource();
  LabelledHash manifest;
  manifest.Add("entry", source.entry_name)
      .Add("target", "sm_90a")
      .Add("options", "-a\n-b")
      .Add("templates", "ab")
      .Add("unit_name", source.unit_name)
      .Add("unit_sha256", Sha256(source.text).ToHex())
      .Add("header_name", source.generated_headers[0].name)
      .Add("header_sha256", Sha256(source.generated_headers[0].text).ToHex());
  return EncodeEntry({manifest.manifest(), "variant", "fwd bf16", "plan"}, source, SomeBinary());
}

TEST(EntryCodecTest, ARequestCanBeMadeAgainFromAnEntry) {
  const auto request = DecodeRequest(WholeEntry());
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->source.entry_name, "attn__x");
  EXPECT_EQ(request->source.unit_name, "attn__x.cu");
  EXPECT_EQ(request->source.text, SomeSource().text);
  ASSERT_EQ(request->source.generated_headers.size(), 1u);
  EXPECT_EQ(request->source.generated_headers[0].name, "user/score.cuh");
  EXPECT_EQ(request->source.generated_headers[0].text, "score * 2");
  EXPECT_EQ(request->target, "sm_90a");
  EXPECT_EQ(request->options, (std::vector<std::string>{"-a", "-b"}));
  EXPECT_EQ(request->templates, "ab");
  EXPECT_TRUE(CheckEntry(WholeEntry()).ok()) << CheckEntry(WholeEntry());
}

TEST(EntryCodecTest, TextsThatTheManifestDoesNotNameAreDataLoss) {
  for (const char* section : {"source", "headers", "facts", "cubin"}) {
    cache::Entry changed = WholeEntry();
    *Section(&changed, section) += "x";
    if (std::string(section) != "cubin") {  // a cubin may go on after its tables
      EXPECT_EQ(CheckEntry(changed).code(), absl::StatusCode::kDataLoss) << section;
    }
    cache::Entry without = WholeEntry();
    std::erase_if(without.sections, [&](const cache::Section& s) { return s.name == section; });
    EXPECT_EQ(CheckEntry(without).code(), absl::StatusCode::kDataLoss) << section;
  }
  cache::Entry other = WholeEntry();
  other.manifest = LabelledHash().Add("entry", "attn__x").manifest();
  EXPECT_EQ(CheckEntry(other).code(), absl::StatusCode::kDataLoss);
  other.manifest = "no manifest";
  EXPECT_EQ(CheckEntry(other).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace tilewright::build
