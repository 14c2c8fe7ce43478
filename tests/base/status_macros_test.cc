#include "base/status_macros.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace tilewright {
namespace {

absl::StatusOr<std::unique_ptr<int>> Make(int value) {
  if (value < 0) return absl::OutOfRangeError("negative");
  return std::make_unique<int>(value);
}

absl::StatusOr<int> Sum(int a, int b) {
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::unique_ptr<int> left, Make(a));
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::unique_ptr<int> right, Make(b));
  return *left + *right;
}

absl::Status Check(int value) {
  TILEWRIGHT_RETURN_IF_ERROR(Make(value).status());
  return absl::OkStatus();
}

TEST(StatusMacrosTest, AssignsOrReturns) {
  EXPECT_EQ(*Sum(1, 2), 3);
  EXPECT_EQ(Sum(1, -2).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(Check(1).ok());
  EXPECT_EQ(Check(-1).message(), "negative");
}

TEST(StatusMacrosTest, AnnotateKeepsCodeAndPayloads) {
  absl::Status status = absl::InternalError("inner");
  status.SetPayload("tilewright/log", absl::Cord("text"));
  const absl::Status annotated = Annotate(status, "while testing");
  EXPECT_EQ(annotated.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(annotated.message(), "while testing: inner");
  EXPECT_EQ(std::string(*annotated.GetPayload("tilewright/log")), "text");
  EXPECT_TRUE(Annotate(absl::OkStatus(), "x").ok());
}

}  // namespace
}  // namespace tilewright
