#include "build/cubin_check.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace tilewright::build {
namespace {

// The header of a cubin and nothing else: 13.0 keeps the SM in the second byte of e_flags.
std::string Header(int sm) {
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_ABIVERSION] = 8;
  header.e_machine = 190;
  header.e_flags = 0x06000004 | static_cast<uint32_t>(sm) << 8;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_phentsize = sizeof(Elf64_Phdr);
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header));
}

Elf64_Ehdr* Edit(std::string* cubin) { return reinterpret_cast<Elf64_Ehdr*>(cubin->data()); }

std::string MessageOf(const std::string& cubin, const std::string& target) {
  const absl::Status status = CheckCubin(cubin, target);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  return std::string(status.message());
}

TEST(CubinCheckTest, AcceptsTheSmOfTheTargetWhateverItsSuffix) {
  EXPECT_TRUE(CheckCubin(Header(90), "sm_90").ok());
  EXPECT_TRUE(CheckCubin(Header(90), "sm_90a").ok());
  EXPECT_TRUE(CheckCubin(Header(121), "sm_121a").ok());
}

TEST(CubinCheckTest, AcceptsTheFlagsOfCompilersBefore13) {
  std::string cubin = Header(0);
  Edit(&cubin)->e_ident[EI_ABIVERSION] = 7;
  Edit(&cubin)->e_flags = 0x5a0d5a;  // as ptxas 12.9 writes it for sm_90a
  EXPECT_TRUE(CheckCubin(cubin, "sm_90a").ok());
  EXPECT_EQ(MessageOf(cubin, "sm_80"), "cubin is for sm_90, expected sm_80");
}

TEST(CubinCheckTest, RefusesAnotherArchitecture) {
  EXPECT_EQ(MessageOf(Header(80), "sm_90a"), "cubin is for sm_80, expected sm_90a");
}

TEST(CubinCheckTest, RefusesATargetThatIsNone) {
  EXPECT_EQ(MessageOf(Header(90), "compute_90"), "cubin is for sm_90, expected compute_90");
  EXPECT_EQ(MessageOf(Header(90), "sm_"), "cubin is for sm_90, expected sm_");
}

TEST(CubinCheckTest, RefusesEveryTruncationOfTheHeader) {
  const std::string cubin = Header(90);
  for (size_t size = 0; size < cubin.size(); ++size) {
    EXPECT_FALSE(CheckCubin(cubin.substr(0, size), "sm_90").ok()) << size;
  }
}

TEST(CubinCheckTest, RefusesTablesOutsideTheFile) {
  std::string sections = Header(90);
  Edit(&sections)->e_shoff = sections.size();
  Edit(&sections)->e_shnum = 1;
  EXPECT_NE(MessageOf(sections, "sm_90").find("cut short"), std::string::npos);
  sections.append(sizeof(Elf64_Shdr), '\0');
  EXPECT_TRUE(CheckCubin(sections, "sm_90").ok());

  std::string segments = Header(90);
  Edit(&segments)->e_phoff = ~uint64_t{0} - 8;  // the end of the table wraps around
  Edit(&segments)->e_phnum = 0xffff;
  EXPECT_NE(MessageOf(segments, "sm_90").find("cut short"), std::string::npos);
}

TEST(CubinCheckTest, RefusesOtherElfFiles) {
  std::string host = Header(90);
  Edit(&host)->e_machine = EM_X86_64;
  EXPECT_NE(MessageOf(host, "sm_90").find("machine 62"), std::string::npos);
  std::string narrow = Header(90);
  Edit(&narrow)->e_ident[EI_CLASS] = ELFCLASS32;
  EXPECT_NE(MessageOf(narrow, "sm_90").find("64-bit"), std::string::npos);
  EXPECT_NE(MessageOf(std::string(64, 'x'), "sm_90").find("ELF magic"), std::string::npos);
}

}  // namespace
}  // namespace tilewright::build
