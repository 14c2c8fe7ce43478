#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "reference/reference.h"

namespace tilewright::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Format {
  const char* name;
  ElementType type;
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;  // false: the largest exponent holds values, but for one NaN
};

constexpr Format kFormats[] = {{"fp16", ElementType::kFp16, 5, 10, true},
                               {"bf16", ElementType::kBf16, 8, 7, true},
                               {"e4m3", ElementType::kFp8E4m3, 4, 3, false},
                               {"e5m2", ElementType::kFp8E5m2, 5, 2, true}};

double Decode(ElementType type, uint32_t code) { return ToDouble(type, &code); }

uint32_t Encode(ElementType type, double value) {
  uint32_t code = 0;
  FromDouble(type, value, &code);
  return code;
}

// The value of a code from the definition of the formats: sign * 2^(e - bias) * (1 + m / 2^bits).
double ValueOf(const Format& format, uint32_t code) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const uint32_t mantissa = code & ((1u << format.mantissa_bits) - 1);
  const int exponent = (code >> format.mantissa_bits) & ((1 << format.exponent_bits) - 1);
  const double sign = (code >> (format.exponent_bits + format.mantissa_bits)) != 0 ? -1 : 1;
  const int last_exponent = (1 << format.exponent_bits) - 1;
  if (exponent == last_exponent && format.has_infinity) {
    return mantissa == 0 ? sign * kInfinity : kNan;
  }
  if (exponent == last_exponent && mantissa == (1u << format.mantissa_bits) - 1) return kNan;
  const double fraction = static_cast<double>(mantissa) / (1 << format.mantissa_bits);
  if (exponent == 0) return sign * std::pow(2.0, 1 - bias) * fraction;
  return sign * std::pow(2.0, exponent - bias) * (1 + fraction);
}

uint32_t SignBit(const Format& format) {
  return 1u << (format.exponent_bits + format.mantissa_bits);
}

// Codes of the finite values from 0 up.
std::vector<uint32_t> FiniteCodes(const Format& format) {
  std::vector<uint32_t> codes;
  for (uint32_t code = 0; code < SignBit(format); ++code) {
    if (std::isfinite(ValueOf(format, code))) codes.push_back(code);
  }
  return codes;
}

TEST(ElementTest, EveryCodeHasTheValueOfItsFormat) {
  for (const Format& format : kFormats) {
    SCOPED_TRACE(format.name);
    for (uint32_t code = 0; code < 2 * SignBit(format); ++code) {
      const double expected = ValueOf(format, code);
      const double value = Decode(format.type, code);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(value)) << code;
      } else {
        ASSERT_EQ(value, expected) << code;
        ASSERT_EQ(std::signbit(value), std::signbit(expected)) << code;
      }
    }
  }
}

TEST(ElementTest, EveryCodeSurvivesTheWayToDoubleAndBack) {
  for (const Format& format : kFormats) {
    SCOPED_TRACE(format.name);
    for (uint32_t code = 0; code < 2 * SignBit(format); ++code) {
      const double value = Decode(format.type, code);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(Decode(format.type, Encode(format.type, value)))) << code;
      } else {
        ASSERT_EQ(Encode(format.type, value), code);
      }
    }
  }
}

TEST(ElementTest, HalfwayBetweenNeighboursGoesToTheEvenOneAndAnythingElseToTheNearest) {
  for (const Format& format : kFormats) {
    SCOPED_TRACE(format.name);
    const std::vector<uint32_t> codes = FiniteCodes(format);
    for (size_t n = 0; n + 1 < codes.size(); ++n) {
      const double low = Decode(format.type, codes[n]);
      const double high = Decode(format.type, codes[n + 1]);
      const double middle = (low + high) / 2;
      const uint32_t even = codes[n] % 2 == 0 ? codes[n] : codes[n + 1];
      ASSERT_EQ(Encode(format.type, middle), even);
      ASSERT_EQ(Encode(format.type, -middle), even | SignBit(format));
      ASSERT_EQ(Encode(format.type, std::nextafter(middle, low)), codes[n]);
      ASSERT_EQ(Encode(format.type, std::nextafter(middle, high)), codes[n + 1]);
    }
  }
}

TEST(ElementTest, BeyondTheLargestValueLiesInfinityButForE4m3WhichSaturates) {
  for (const Format& format : kFormats) {
    SCOPED_TRACE(format.name);
    const std::vector<uint32_t> codes = FiniteCodes(format);
    const double largest = Decode(format.type, codes.back());
    const double step = largest - Decode(format.type, codes[codes.size() - 2]);
    const double beyond = format.has_infinity ? kInfinity : largest;
    const double halfway = largest + step / 2;
    EXPECT_EQ(Decode(format.type, Encode(format.type, std::nextafter(halfway, 0.0))), largest);
    for (double value : {halfway, largest * 2, largest * 1e3, 1e300, kInfinity}) {
      EXPECT_EQ(Decode(format.type, Encode(format.type, value)), beyond) << value;
      EXPECT_EQ(Decode(format.type, Encode(format.type, -value)), -beyond) << value;
    }
    EXPECT_TRUE(std::isnan(Decode(format.type, Encode(format.type, kNan))));
  }
  EXPECT_EQ(Decode(ElementType::kFp8E4m3, Encode(ElementType::kFp8E4m3, 1e9)), 448);
}

TEST(ElementTest, BelowHalfTheSmallestValueLiesZeroOfTheSameSign) {
  for (const Format& format : kFormats) {
    SCOPED_TRACE(format.name);
    const double smallest = Decode(format.type, 1);
    EXPECT_EQ(Encode(format.type, smallest / 2), 0u);
    EXPECT_EQ(Encode(format.type, -smallest / 2), SignBit(format));
    EXPECT_EQ(Encode(format.type, 1e-300), 0u);
    EXPECT_EQ(Encode(format.type, -0.0), SignBit(format));
    EXPECT_EQ(Encode(format.type, std::nextafter(smallest / 2, 1.0)), 1u);
  }
}

TEST(ElementTest, KnownValuesHaveTheirPublishedCodes) {
  EXPECT_EQ(Encode(ElementType::kFp16, 1.0), 0x3c00u);
  EXPECT_EQ(Encode(ElementType::kFp16, 65504.0), 0x7bffu);
  EXPECT_EQ(Encode(ElementType::kFp16, 0x1p-24), 0x0001u);
  EXPECT_EQ(Encode(ElementType::kBf16, 1.0), 0x3f80u);
  EXPECT_EQ(Encode(ElementType::kBf16, -2.5), 0xc020u);
  EXPECT_EQ(Encode(ElementType::kFp8E4m3, 448.0), 0x7eu);
  EXPECT_EQ(Encode(ElementType::kFp8E4m3, 0x1p-9), 0x01u);
  EXPECT_EQ(Encode(ElementType::kFp8E5m2, 57344.0), 0x7bu);
}

TEST(ElementTest, Fp32IsTheMachinesOwn) {
  for (double value : {0.0, -0.0, 1.0, 0.1, -3e38, 1e-42, kInfinity}) {
    EXPECT_EQ(Encode(ElementType::kFp32, value),
              std::bit_cast<uint32_t>(static_cast<float>(value)));
    EXPECT_EQ(Decode(ElementType::kFp32, Encode(ElementType::kFp32, value)),
              static_cast<double>(static_cast<float>(value)));
  }
}

TEST(ElementTest, IntegersRoundToEvenAndSaturate) {
  const auto int8 = [](double value) {
    return static_cast<int8_t>(Encode(ElementType::kInt8, value));
  };
  for (int value = -128; value <= 127; ++value) {
    EXPECT_EQ(int8(value), value);
    EXPECT_EQ(Decode(ElementType::kInt8, static_cast<uint8_t>(value)), value);
  }
  EXPECT_EQ(int8(2.5), 2);
  EXPECT_EQ(int8(3.5), 4);
  EXPECT_EQ(int8(-0.5), 0);
  EXPECT_EQ(int8(127.5), 127);
  EXPECT_EQ(int8(-1000), -128);
  EXPECT_EQ(int8(kInfinity), 127);
  EXPECT_EQ(int8(kNan), 0);
  const int32_t large = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(Decode(ElementType::kInt32, Encode(ElementType::kInt32, large)), large);
  EXPECT_EQ(static_cast<int32_t>(Encode(ElementType::kInt32, 1e12)), large);
}

TEST(ElementTest, BoolIsWhetherAByteIsSet) {
  EXPECT_EQ(Decode(ElementType::kBool, 0), 0);
  EXPECT_EQ(Decode(ElementType::kBool, 1), 1);
  EXPECT_EQ(Decode(ElementType::kBool, 255), 1);
  EXPECT_EQ(Encode(ElementType::kBool, -3.0), 1u);
  EXPECT_EQ(Encode(ElementType::kBool, 0.0), 0u);
}

}  // namespace
}  // namespace tilewright::reference
