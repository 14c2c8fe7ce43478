#include "device/tensor_map.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "tests/device/fake_driver.h"

namespace tilewright::device {
namespace {

class TensorMapTest : public ::testing::Test {
 protected:
  // A [2, 100, 4, 64] tensor in the order batch, sequence, head, dim.
  TensorMapRequest Request() {
    return {.base = reinterpret_cast<void*>(uintptr_t{0x1000}),
            .element = TensorMapRequest::Element::kBf16,
            .extents = {64, 100, 4, 2},
            .strides = {256, 64, 25600},
            .box_rows = 128};
  }
  bool Encode(const TensorMapRequest& request) {
    return EncodeTensorMap(driver_.api(), request, &map_);
  }
  FakeDriver driver_;
  abi::TensorMap map_ = {};
};

TEST_F(TensorMapTest, DescribesADenseTensor) {
  ASSERT_TRUE(Encode(Request()));
  EXPECT_EQ(map_.words[0], 0x1000u);
}

TEST_F(TensorMapTest, RefusesWhatBulkCopiesCannotAddress) {
  TensorMapRequest base = Request();
  base.base = reinterpret_cast<void*>(uintptr_t{0x1008});
  EXPECT_FALSE(Encode(base));
  for (int n = 0; n < 3; ++n) {
    TensorMapRequest stride = Request();
    stride.strides[n] += 4;  // 8 bytes
    EXPECT_FALSE(Encode(stride)) << n;
    stride.strides[n] = int64_t{1} << 39;  // 2^40 bytes
    EXPECT_FALSE(Encode(stride)) << n;
  }
  for (int n = 0; n < 4; ++n) {
    TensorMapRequest extent = Request();
    extent.extents[n] = 0;
    EXPECT_FALSE(Encode(extent)) << n;
  }
  EXPECT_EQ(driver_.CallCount("cuTensorMapEncodeTiled"), 0);
}

TEST_F(TensorMapTest, StridesOfDimensionsOfOneDoNotMatter) {
  TensorMapRequest request = Request();
  request.extents[3] = 1;
  request.strides[2] = 7;
  EXPECT_TRUE(Encode(request));
}

TEST_F(TensorMapTest, WhatTheDriverRefusesIsNotDescribed) {
  driver_.Fail("cuTensorMapEncodeTiled", CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(Encode(Request()));
}

}  // namespace
}  // namespace tilewright::device
