#include "base/digest.h"

#include <gtest/gtest.h>

#include <string>

namespace tilewright {
namespace {

// Examples of FIPS 180-2, appendix B.
TEST(DigestTest, MatchesPublishedExamples) {
  EXPECT_EQ(Sha256("").ToHex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256("abc").ToHex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256(std::string(1000000, 'a')).ToHex(),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(DigestTest, SeesEveryByteOfBinaryData) {
  EXPECT_NE(Sha256(std::string("a\0b", 3)), Sha256(std::string("a\0c", 3)));
  EXPECT_NE(Sha256(std::string("a", 1)), Sha256(std::string("a\0", 2)));
}

TEST(DigestTest, HexGoesBothWays) {
  const Digest digest = Sha256("x");
  ASSERT_TRUE(Digest::FromHex(digest.ToHex()).has_value());
  EXPECT_EQ(*Digest::FromHex(digest.ToHex()), digest);
}

TEST(DigestTest, RefusesWhatIsNotItsHexForm) {
  const std::string hex = Sha256("x").ToHex();
  EXPECT_FALSE(Digest::FromHex("").has_value());
  EXPECT_FALSE(Digest::FromHex(hex.substr(1)).has_value());
  EXPECT_FALSE(Digest::FromHex(hex + "0").has_value());
  std::string upper = hex;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  EXPECT_FALSE(Digest::FromHex(upper).has_value());
  std::string bad = hex;
  bad[63] = 'g';
  EXPECT_FALSE(Digest::FromHex(bad).has_value());
}

}  // namespace
}  // namespace tilewright
