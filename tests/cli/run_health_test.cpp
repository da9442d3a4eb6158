#include <gtest/gtest.h>

#include "tests/cli/program.h"

// Checks of a run as a user runs them.
namespace hetermoe {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(DoctorCluster, MeasuresEveryPairOfAClusterAndOfAJobThatNamesOne) {
  const WorkFolder folder;
  for (const std::string& what : {std::string("demo"), folder.file("job.yaml", "cluster: demo\n")}) {
    const ProgramResult result = run_hetermoe({"doctor", "--cluster", what, "--json"});
    EXPECT_EQ(result.code, 0) << result.err;
    const Json json = parse_json(result.out, "stdout");
    EXPECT_EQ(json.at("processes"), 1);
    ASSERT_EQ(json.at("pairs").size(), 6U);
    EXPECT_EQ(json.at("pairs")[0].at("a"), "device 0 (A40/1000#0)");
    for (const Json& pair : json.at("pairs")) EXPECT_GT(pair.at("latency_s").get<double>(), 0);
  }
  const ProgramResult text = run_hetermoe({"doctor", "--cluster", "demo"});
  EXPECT_TRUE(contains(text.out, "device 0 (A40/1000#0) - device 1 (A40/1000#1)")) << text.out;
  EXPECT_EQ(run_hetermoe({"doctor", "--cluster", "nowhere"}).code, 2);
}

}  // namespace
}  // namespace hetermoe
