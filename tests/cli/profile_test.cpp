#include <gtest/gtest.h>

#include "tests/cli/program.h"

namespace hetermoe {
namespace {

/// A cluster of one CPU whose type has this profile.
std::string cluster_with(const WorkFolder& folder, const std::string& profile) {
  const std::string path = folder / "cluster.yaml";
  write_text(path, "name: measured\ndevice_types:\n  - {name: CPU, profile: " + profile +
                       "}\nnodes:\n  - {name: local, devices: [CPU]}\n");
  return path;
}

class ProfileCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    made_ = run_hetermoe({"profile", "--model", "tiny", "--seq", "16", "--sequences", "1,4", "--rows", "4,64",
                          "--budget", "0", "-o", profile_, "--json"});
    ASSERT_EQ(made_.code, 0) << made_.err;
  }
  std::vector<std::string> plan(const std::string& dtype) const {
    return {"plan",  "--model", "tiny",        "--cluster", cluster_with(folder_, profile_),
            "--seq", "16",      "--sequences", "4",         "--dtype",
            dtype,   "--json"};
  }
  WorkFolder folder_;
  std::string profile_ = folder_ / "cpu.json";
  ProgramResult made_;
};

TEST_F(ProfileCommand, TimesOfThePlanComeFromTheProfile) {
  const ProgramResult before = run_hetermoe(plan("fp32"));
  ASSERT_EQ(before.code, 0) << before.err;
  Json slower = parse_json(made_.out, "output");
  for (Json& entry : slower["entries"]) {
    for (const char* key : {"seconds", "p10_s", "p90_s"}) entry[key] = 10 * entry[key].get<double>();
  }
  write_text(profile_, slower.dump());
  const ProgramResult after = run_hetermoe(plan("fp32"));
  ASSERT_EQ(after.code, 0) << after.err;
  const auto step = [](const ProgramResult& result) {
    return parse_json(result.out, "output")["candidates"][0]["step_s"].get<double>();
  };
  EXPECT_NEAR(step(after) / step(before), 10, 0.5);
}

TEST_F(ProfileCommand, AProfileOfAnotherDtypeIsAClearError) {
  const ProgramResult result = run_hetermoe(plan("bf16"));
  EXPECT_NE(result.code, 0);
  EXPECT_NE(result.err.find(profile_), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("fp32"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("bf16"), std::string::npos) << result.err;
}

TEST_F(ProfileCommand, ATruncatedProfileIsAClearError) {
  write_text(profile_, read_text(profile_).substr(0, 300));
  const ProgramResult result = run_hetermoe(plan("fp32"));
  EXPECT_NE(result.code, 0);
  EXPECT_NE(result.err.find(profile_), std::string::npos) << result.err;
}

TEST(ProfileCommandInput, IsChecked) {
  EXPECT_NE(run_hetermoe({"profile", "--dtype", "fp12"}).err.find("[--dtype] got \"fp12\""),
            std::string::npos);
  EXPECT_NE(run_hetermoe({"profile", "--device", "cuda"}).code, 0);
  EXPECT_NE(run_hetermoe({"profile", "--seq", "0"}).code, 0);
}

}  // namespace
}  // namespace hetermoe
