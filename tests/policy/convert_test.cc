// core/convert.cuh against the reference's own arithmetic: all stored values, and floats at and
// around every rounding boundary.
#include "core/convert.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "reference/reference.h"

namespace tilewright {
namespace {

template <class Element>
struct Traits;
template <>
struct Traits<Fp16> {
  static constexpr ElementType kType = ElementType::kFp16;
};
template <>
struct Traits<Bf16> {
  static constexpr ElementType kType = ElementType::kBf16;
};
template <>
struct Traits<Fp8E4m3> {
  static constexpr ElementType kType = ElementType::kFp8E4m3;
};
template <>
struct Traits<Fp8E5m2> {
  static constexpr ElementType kType = ElementType::kFp8E5m2;
};

template <class Element>
class ConvertTest : public testing::Test {
 protected:
  static constexpr int kValues = 1 << (8 * sizeof(Element));

  static Element OfBits(int bits) { return {static_cast<decltype(Element::bits)>(bits)}; }
  static double Exact(Element element) {
    return reference::ToDouble(Traits<Element>::kType, &element);
  }
  // The largest finite value; fp8 conversions stop there.
  static double Largest() {
    double largest = 0;
    for (int bits = 0; bits < kValues; ++bits) {
      const double value = Exact(OfBits(bits));
      if (std::isfinite(value)) largest = std::max(largest, value);
    }
    return largest;
  }
  static void ExpectNarrows(float value) {
    Element actual, expected;
    FromFloat(value, &actual);
    reference::FromDouble(Traits<Element>::kType, value, &expected);
    if (sizeof(Element) == 1 && std::fabs(value) > Largest()) {
      reference::FromDouble(Traits<Element>::kType, std::copysign(Largest(), value), &expected);
    }
    EXPECT_EQ(actual.bits, expected.bits) << "of " << value;
  }
};
using Types = testing::Types<Fp16, Bf16, Fp8E4m3, Fp8E5m2>;
TYPED_TEST_SUITE(ConvertTest, Types);

TYPED_TEST(ConvertTest, WidensEveryValueExactly) {
  for (int bits = 0; bits < this->kValues; ++bits) {
    const TypeParam element = this->OfBits(bits);
    const double exact = this->Exact(element);
    const float value = element;
    if (std::isnan(exact)) {
      EXPECT_TRUE(std::isnan(value)) << "bits " << bits;
    } else {
      EXPECT_EQ(value, exact) << "bits " << bits;
      EXPECT_EQ(std::signbit(value), std::signbit(exact)) << "bits " << bits;
    }
  }
}

TYPED_TEST(ConvertTest, NarrowsToTheNearestEvenAtEveryBoundary) {
  for (int bits = 0; bits + 1 < this->kValues; ++bits) {
    const double low = this->Exact(this->OfBits(bits));
    const double high = this->Exact(this->OfBits(bits + 1));
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const float middle = static_cast<float>((low + high) / 2);
    this->ExpectNarrows(static_cast<float>(low));
    this->ExpectNarrows(middle);
    this->ExpectNarrows(std::nextafter(middle, -INFINITY));
    this->ExpectNarrows(std::nextafter(middle, INFINITY));
  }
}

TYPED_TEST(ConvertTest, NarrowsRandomFloats) {
  std::mt19937 random(1);
  for (int n = 0; n < 200000; ++n) {
    const float value = FloatOfBits(random());
    if (std::isfinite(value)) this->ExpectNarrows(value);
  }
}

TYPED_TEST(ConvertTest, KeepsNaN) {
  for (float nan : {std::nanf(""), FloatOfBits(0x7f800001u), FloatOfBits(0xffffffffu)}) {
    TypeParam element;
    FromFloat(nan, &element);
    EXPECT_TRUE(std::isnan(static_cast<float>(element)));
  }
}

TYPED_TEST(ConvertTest, InfinityStaysOrSaturates) {
  for (float infinity : {INFINITY, -INFINITY}) {
    TypeParam element;
    FromFloat(infinity, &element);
    const float expected = static_cast<float>(
        sizeof(TypeParam) == 1 ? std::copysign(this->Largest(), infinity) : infinity);
    EXPECT_EQ(static_cast<float>(element), expected);
  }
}

TEST(ConvertInt8Test, RoundsToTheNearestEvenAndSaturates) {
  const auto narrow = [](float value) {
    Int8 element;
    FromFloat(value, &element);
    return static_cast<float>(element);
  };
  for (int value = -128; value <= 127; ++value) EXPECT_EQ(narrow(static_cast<float>(value)), value);
  EXPECT_EQ(narrow(0.5f), 0);
  EXPECT_EQ(narrow(1.5f), 2);
  EXPECT_EQ(narrow(-2.5f), -2);
  EXPECT_EQ(narrow(126.6f), 127);
  EXPECT_EQ(narrow(1e9f), 127);
  EXPECT_EQ(narrow(-1e9f), -128);
  EXPECT_EQ(narrow(std::nanf("")), 0);
}

TEST(ConvertBool8Test, AnyNonzeroByteIsTrue) {
  EXPECT_FALSE(Bool8{0});
  EXPECT_TRUE(Bool8{1});
  EXPECT_TRUE(Bool8{0x80});
}

}  // namespace
}  // namespace tilewright
