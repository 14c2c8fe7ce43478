#include "bench/result_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace tilewright::bench {
namespace {

using Json = nlohmann::ordered_json;

TEST(ResultFileTest, BoundsSayWhetherTheyHold) {
  const Json below = AtMostRow("warm", 1.5, "ms", 3);
  EXPECT_EQ(below["holds"], true);
  EXPECT_EQ(below["ratio"], 2.0);
  EXPECT_EQ(below["peer_value"], 3.0);
  EXPECT_EQ(AtMostRow("warm", 6, "ms", 3)["holds"], false);
  EXPECT_EQ(AtMostRow("warm", 6, "ms", 3)["ratio"], 0.5);
  const Json none = AtMostRow("failed", 0, "specs", 0);
  EXPECT_EQ(none["holds"], true);
  EXPECT_FALSE(none.contains("ratio"));
  EXPECT_EQ(AtMostRow("failed", 1, "specs", 0)["holds"], false);
  EXPECT_EQ(AtLeastRow("checked", 330, "specs", 300)["holds"], true);
  EXPECT_EQ(AtLeastRow("checked", 299, "specs", 300)["holds"], false);
  EXPECT_EQ(FailedRow("x", "no device")["holds"], false);
  EXPECT_EQ(FailedRow("x", "no device")["why"], "no device");
}

TEST(ResultFileTest, WritesTheShapeOfTheDesign) {
  char directory[] = "/tmp/tilewright_results_XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  const std::string path = absl::StrCat(directory, "/device/topic.json");
  const ResultHeader header = {.topic = "pipeline",
                               .commit = "abc",
                               .device = "NVIDIA H200",
                               .driver = "580.1",
                               .nvrtc = "13.0.88",
                               .command = "run me"};
  const absl::Status written = WriteResultFile(path, header, {AtMostRow("a", 1, "ms", 2)});
  ASSERT_TRUE(written.ok()) << written;
  std::ifstream in(path);
  const Json file = Json::parse(in);
  EXPECT_EQ(file["topic"], "pipeline");
  EXPECT_EQ(file["commit"], "abc");
  EXPECT_EQ(file["device"], "NVIDIA H200");
  EXPECT_EQ(file["nvrtc"], "13.0.88");
  EXPECT_EQ(file["date"].get<std::string>().size(), 10u);
  ASSERT_EQ(file["rows"].size(), 1u);
  EXPECT_EQ(file["rows"][0]["name"], "a");
}

TEST(ResultFileTest, AnUnwritablePlaceIsNamed) {
  const absl::Status refused = WriteResultFile("/proc/no/such/file.json", {}, {});
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(refused.message().find("/proc/no"), std::string::npos) << refused;
}

}  // namespace
}  // namespace tilewright::bench
