#include "hetermoe/cost/measured.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "hetermoe/base/paths.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {

TEST(Curve, IsExactAtMeasuredSizesAndOnPowerLawsBetween) {
  Curve curve;
  for (const double x : {100.0, 10.0, 1000.0}) curve.add(x, 3e-6 * x * x);
  for (const double x : {10.0, 100.0, 1000.0}) EXPECT_EQ(curve.at(x).seconds, 3e-6 * x * x);
  EXPECT_NEAR(curve.at(50).seconds, 3e-6 * 2500, 1e-12);
  EXPECT_FALSE(curve.at(50).extrapolated);
  EXPECT_FALSE(curve.at(1000).extrapolated);
}

TEST(Curve, NeverTurnsBetweenMeasuredSizes) {
  Curve curve;
  const std::vector<std::pair<double, double>> points = {{8, 1e-3}, {16, 1.1e-3}, {64, 2e-3}, {512, 9e-3}};
  for (const auto& [x, y] : points) curve.add(x, y);
  Seconds last = 0;
  for (double x = 8; x <= 512; x *= 1.01) {
    const Seconds now = curve.at(x).seconds;
    EXPECT_GT(now, last) << x;
    EXPECT_LE(now, 9e-3 + 1e-15) << x;
    last = now;
  }
}

TEST(Curve, GoesOnInAStraightLineBeyondItsEndsAndSaysSo) {
  Curve curve;
  curve.add(100, 2);
  curve.add(200, 3);
  EXPECT_NEAR(curve.at(400).seconds, 5, 1e-12);
  EXPECT_TRUE(curve.at(400).extrapolated);
  EXPECT_NEAR(curve.at(50).seconds, 1.5, 1e-12);
  EXPECT_TRUE(curve.at(50).extrapolated);
}

TEST(Curve, StaysPositiveBelowASteepStartAndNeverFallsBeyondANoisyEnd) {
  Curve steep;
  steep.add(100, 1);
  steep.add(200, 10);
  EXPECT_NEAR(steep.at(10).seconds, 0.1, 1e-12);
  Curve noisy;
  noisy.add(100, 2);
  noisy.add(200, 1.9);
  EXPECT_EQ(noisy.at(400).seconds, 1.9);
}

TEST(Curve, OnePointMeansProportionalTime) {
  Curve curve;
  curve.add(100, 2);
  EXPECT_EQ(curve.at(300).seconds, 6);
  EXPECT_TRUE(curve.at(300).extrapolated);
  EXPECT_FALSE(curve.at(100).extrapolated);
}

TEST(Surface, IsExactOnItsGridAndFollowsPowerLawsOffIt) {
  Surface surface;
  const auto law = [](double s, double q) { return 1e-9 * s * std::sqrt(s) * q; };
  for (const double s : {512.0, 1024.0, 4096.0}) {
    for (const double q : {1.0, 4.0}) surface.add(s, q, law(s, q));
  }
  EXPECT_EQ(surface.at(1024, 4).seconds, law(1024, 4));
  EXPECT_NEAR(surface.at(2000, 3).seconds, law(2000, 3), 1e-9 * law(2000, 3));
  EXPECT_FALSE(surface.at(2000, 3).extrapolated);
  EXPECT_NEAR(surface.at(8192, 2).seconds, law(8192, 2), 1e-9 * law(8192, 2));
  EXPECT_TRUE(surface.at(8192, 2).extrapolated);
  EXPECT_TRUE(surface.at(2000, 8).extrapolated);
}

TEST(Surface, OneFamilyMeansProportionalTime) {
  Surface surface;
  surface.add(2, 64, 1.5);
  surface.add(2, 128, 2.5);
  EXPECT_EQ(surface.at(4, 64).seconds, 3);
  EXPECT_TRUE(surface.at(4, 64).extrapolated);
}

ProfileEntry entry(ProfiledOp op, ProfiledPhase phase, Seconds seconds) {
  ProfileEntry e;
  e.op = op;
  e.phase = phase;
  e.seconds = seconds;
  e.p10 = 0.9 * seconds;
  e.p90 = 1.2 * seconds;
  e.runs = 9;
  return e;
}

/// tiny on a cluster of one CPU and one A40 (device 1) in one node each.
class MeasuredCostTest : public ::testing::Test {
 protected:
  MeasuredCostTest() {
    StrategyRequest request;
    request.seq_len = 128;
    request.sequences = 4;
    plan_ = find_strategy("ep").make(model_, cluster_, request);
    plan_.dtype.assign(2, Dtype::kFp32);
    profile_.host = "h";
    profile_.model = "tiny";
    profile_.shape = shape_of(model_);
    add_attention(ProfiledPhase::kForward, 1);
    add_attention(ProfiledPhase::kBackward, 2);
    add_attention(ProfiledPhase::kForwardBackward, 3.5);
    for (const i64 experts : {1, 4}) {
      for (const i64 rows : {16, 256}) {
        ProfileEntry e = entry(ProfiledOp::kExperts, ProfiledPhase::kForward,
                               1e-6 * static_cast<double>(rows) * static_cast<double>(experts));
        e.experts = experts;
        e.rows = e.copies = rows * experts;
        profile_.entries.push_back(e);
      }
    }
  }
  void add_attention(ProfiledPhase phase, double factor) {
    for (const i64 seq_len : {64, 256}) {
      for (const i64 sequences : {1, 2}) {
        ProfileEntry e =
            entry(ProfiledOp::kAttention, phase, factor * 1e-5 * static_cast<double>(seq_len * sequences));
        e.seq_len = seq_len;
        e.sequences = sequences;
        e.tokens = seq_len * sequences;
        profile_.entries.push_back(e);
      }
    }
  }
  MeasuredCost cost() const { return MeasuredCost(model_, cluster_, plan_, {{0, {profile_, "p.json"}}}); }
  RooflineCost roofline() const { return RooflineCost(model_, cluster_, plan_); }
  ComputeWork attention(DeviceId device, Phase phase, double sequences, i64 seq_len) const {
    ComputeWork work;
    work.op = {.kind = OpKind::kAttention, .phase = phase, .layer = 0, .microbatch = 0};
    work.device = device;
    work.seq_len = seq_len;
    work.tokens = sequences * static_cast<double>(seq_len);
    return work;
  }
  ComputeWork experts(DeviceId device, Phase phase, double num_experts, double copies) const {
    ComputeWork work;
    work.op = {OpKind::kExperts, phase, 0, 0, 0, 0, -1};
    work.device = device;
    work.rows = work.copies = copies;
    work.experts = num_experts;
    return work;
  }
  std::string profile_error(const ProfileFile& profile) const {
    return error_of<ConfigError>([&] { MeasuredCost(model_, cluster_, plan_, {{0, {profile, "p.json"}}}); });
  }

  ModelConfig model_ = load_model("tiny");
  Cluster cluster_ = parse_cluster(
      parse_yaml("name: two\nnodes: [{name: a, devices: [CPU]}, {name: b, devices: [A40]}]", "test"),
      "test ");
  Plan plan_;
  ProfileFile profile_;
};

TEST_F(MeasuredCostTest, AnswersFromTheProfileWhereItHasAnEntry) {
  EXPECT_EQ(cost().compute(attention(0, Phase::kForward, 2, 256)), 1e-5 * 512);
  EXPECT_NEAR(cost().compute(attention(0, Phase::kForward, 1.5, 100)), 1e-5 * 150, 1e-9);
  EXPECT_NEAR(cost().compute(experts(0, Phase::kForward, 2, 80)), 80e-6, 1e-9);
  EXPECT_EQ(cost().source(attention(0, Phase::kForward, 1.5, 100)), MeasuredCost::Source::kMeasured);
  EXPECT_EQ(cost().source(attention(0, Phase::kForward, 1.5, 512)), MeasuredCost::Source::kExtrapolated);
}

TEST_F(MeasuredCostTest, BackwardFollowsThePlansRecomputation) {
  plan_.recompute = Recompute::kLocal;
  EXPECT_DOUBLE_EQ(cost().compute(attention(0, Phase::kBackward, 2, 256)), 3.5e-5 * 512);
  plan_.recompute = Recompute::kOff;
  EXPECT_DOUBLE_EQ(cost().compute(attention(0, Phase::kBackward, 2, 256)), 2e-5 * 512);
}

TEST_F(MeasuredCostTest, GradientsOfWeightsTakeTheirPartOfAMeasuredBackward) {
  plan_.recompute = Recompute::kOff;
  plan_.weight_gradients = WeightGradients::kAfter;
  const ComputeWork inputs = attention(0, Phase::kBackward, 2, 256),
                    weights = attention(0, Phase::kWeights, 2, 256);
  EXPECT_DOUBLE_EQ(cost().compute(inputs) + cost().compute(weights), 2e-5 * 512);
  EXPECT_NEAR(cost().compute(inputs) / cost().compute(weights),
              roofline().compute(inputs) / roofline().compute(weights), 1e-9);
}

TEST_F(MeasuredCostTest, FallsBackEntryByEntryToTheRoofline) {
  const ComputeWork backward = experts(0, Phase::kBackward, 2, 80);
  EXPECT_EQ(cost().source(backward), MeasuredCost::Source::kRoofline);
  EXPECT_EQ(cost().compute(backward), roofline().compute(backward));
  const ComputeWork recompute = attention(0, Phase::kRecompute, 2, 256);
  EXPECT_EQ(cost().compute(recompute), roofline().compute(recompute));
  const ComputeWork other_type = attention(1, Phase::kForward, 2, 256);
  EXPECT_EQ(cost().compute(other_type), roofline().compute(other_type));
  EXPECT_NE(cost().compute(attention(0, Phase::kForward, 2, 256)),
            roofline().compute(attention(0, Phase::kForward, 2, 256)));
}

TEST_F(MeasuredCostTest, AnOpThatMergesNeedsTheMergeEntryToo) {
  ComputeWork work = attention(0, Phase::kForward, 2, 256);
  work.merged_rows = 100;
  EXPECT_EQ(cost().source(work), MeasuredCost::Source::kRoofline);
  ProfileEntry merge = entry(ProfiledOp::kMerge, ProfiledPhase::kForward, 7e-4);
  merge.rows = 100;
  profile_.entries.push_back(merge);
  EXPECT_NEAR(cost().compute(work), 1e-5 * 512 + 7e-4, 1e-12);
}

TEST_F(MeasuredCostTest, ASlowCardTakesLongerByItsSpeed) {
  cluster_.devices[0].speed = 0.5;
  EXPECT_EQ(cost().compute(attention(0, Phase::kForward, 2, 256)), 2e-5 * 512);
}

TEST_F(MeasuredCostTest, NothingToComputeTakesNoTime) {
  EXPECT_EQ(cost().compute(attention(0, Phase::kForward, 0, 256)), 0);
  EXPECT_EQ(cost().compute(experts(0, Phase::kForward, 2, 0)), 0);
}

TEST_F(MeasuredCostTest, TransfersInsideANodeAreMeasuredOthersNot) {
  cluster_ = parse_cluster(parse_yaml("name: two\nnodes: [{name: a, devices: [CPU x2]}]", "test"), "test ");
  for (const double bytes : {1e4, 1e6}) {
    ProfileEntry e = entry(ProfiledOp::kTransfer, ProfiledPhase::kForward, bytes * 1e-9 + 1e-4);
    e.bytes = bytes;
    profile_.entries.push_back(e);
  }
  TransferWork work;
  work.op.kind = OpKind::kMove;
  const std::vector<DeviceId> participants = {0, 1};
  std::vector<PortBytes> bytes = {{0, 0, 1e6, 0}, {0, 0, 0, 1e6}};
  work.participants = participants;
  work.bytes = bytes;
  EXPECT_NEAR(cost().transfer(work).seconds(), 1.1e-3, 1e-12);
  EXPECT_EQ(cost().transfer(work).loads.size(), 2U);
  bytes[0] = {1e6, 0, 0, 0};
  EXPECT_EQ(cost().transfer(work).seconds(), roofline().transfer(work).seconds());
}

TEST_F(MeasuredCostTest, AForwardThatKeepsActivationsHasItsOwnEntry) {
  add_attention(ProfiledPhase::kForwardKept, 1.5);
  const ComputeWork work = attention(0, Phase::kForward, 2, 256);
  EXPECT_EQ(cost().compute(work), 1e-5 * 512);
  plan_.recompute = Recompute::kOff;
  EXPECT_EQ(cost().compute(work), 1.5 * 1e-5 * 512);
}

TEST_F(MeasuredCostTest, TheTimeBetweenOpsIsThatOfEveryMeasuredOp) {
  const Seconds before = cost().compute(attention(0, Phase::kForward, 2, 256));
  for (const i64 tokens : {64, 128}) {
    ProfileEntry gap = entry(ProfiledOp::kGap, ProfiledPhase::kForward, tokens == 64 ? 1e-5 : 3e-5);
    gap.tokens = tokens;
    profile_.entries.push_back(gap);
  }
  EXPECT_NEAR(cost().compute(attention(0, Phase::kForward, 2, 256)), before + 2e-5, 1e-15);
  EXPECT_EQ(cost().compute(attention(0, Phase::kForward, 0, 256)), 0);
  const ComputeWork other_type = attention(1, Phase::kForward, 2, 256);
  EXPECT_EQ(cost().compute(other_type), roofline().compute(other_type));
}

TEST_F(MeasuredCostTest, WhatADeviceDoesForItselfInATransferIsAdded) {
  for (const ProfiledPhase phase : {ProfiledPhase::kForward, ProfiledPhase::kBackward}) {
    ProfileEntry e = entry(ProfiledOp::kDispatch, phase, phase == ProfiledPhase::kForward ? 4e-3 : 1e-3);
    e.tokens = 256;
    profile_.entries.push_back(e);
  }
  plan_.groups[0].microbatches = {2, 2};  // of 128 tokens each
  TransferWork work;
  work.op = {.kind = OpKind::kDispatch, .layer = 0, .microbatch = 1};
  const std::vector<DeviceId> alone = {0}, both = {0, 1};
  const std::vector<PortBytes> nothing(2);
  work.participants = alone;
  work.bytes = std::span(nothing).first(1);
  EXPECT_EQ(cost().transfer(work).seconds(), 4e-3);
  work.op.phase = Phase::kBackward;
  EXPECT_EQ(cost().transfer(work).seconds(), 1e-3);
  work.participants = both;
  work.bytes = nothing;
  EXPECT_EQ(cost().transfer(work).seconds(), roofline().transfer(work).seconds());
}

TEST_F(MeasuredCostTest, TheNormTakesWhatItsLargestPartTakes) {
  ProfileEntry norm = entry(ProfiledOp::kNorm, ProfiledPhase::kForward, 1e-3);
  norm.params = 1'000'000;
  profile_.entries.push_back(norm);
  double params = 0;  // of the states whose first device is the CPU
  const Placement placement(plan_, model_, {});
  const WorkModel work_model(placement, model_, cluster_);
  for (std::size_t s = 0; s < placement.states().size(); ++s) {
    if (placement.states()[s].devices[0] == 0) params += work_model.state_params(static_cast<i32>(s));
  }
  TransferWork work;
  work.op.kind = OpKind::kNorm;
  const std::vector<DeviceId> both = {0, 1};
  const std::vector<PortBytes> nothing(2);
  work.participants = both;
  work.bytes = nothing;
  ASSERT_GT(params, 0);
  EXPECT_NEAR(cost().transfer(work).seconds(), params * 1e-9, 1e-15);
  plan_.groups.clear();  // as the planner asks before there is a plan
  EXPECT_EQ(cost().transfer(work).seconds(), roofline().transfer(work).seconds());
}

TEST(Profiles, EveryOneOfTheConfigurationsLoadsAndFitsItsModel) {
  const std::vector<std::string> names = config_names("profiles", "json");
  ASSERT_FALSE(names.empty());
  for (const std::string& name : names) {
    const ProfileFile profile = read_profile(find_config(name, "profiles", "json"));
    EXPECT_EQ(profile.shape, shape_of(load_model(profile.model))) << name;
    EXPECT_NE(name.find(profile.date.substr(0, 10)), std::string::npos) << name;
    EXPECT_FALSE(profile.torch.empty()) << name;
  }
}

TEST_F(MeasuredCostTest, RefusesAProfileOfAnotherDtypeOrShape) {
  ProfileFile other = profile_;
  other.dtype = Dtype::kBf16;
  EXPECT_EQ(profile_error(other),
            "[p.json dtype] profile of another dtype: got bf16, but times are asked for in fp32. Profile "
            "again with "
            "--dtype fp32, or use these times: plan --dtype bf16; train, simulate and verify "
            "--clock.emulated_dtype "
            "bf16");
  other = profile_;
  other.shape.expert_hidden = 96;
  other.model = "wee";
  EXPECT_EQ(
      profile_error(other),
      "[p.json shape.expert_hidden] profile of another model (wee): got 96, expected 128 as in tiny. Profile "
      "again with --model tiny");
  EXPECT_EQ(profile_error(profile_), "no error");
}

class ProfileFileTest : public MeasuredCostTest {
 protected:
  WorkFolder folder_;
  std::filesystem::path path_ = folder_ / "p.json";
  std::string parse_error(const std::string& text) const {
    return error_of<ConfigError>([&] { parse_profile(text, "p.json"); });
  }
};

TEST_F(ProfileFileTest, ComesBackAsWritten) {
  profile_.device = "a \"quoted\" name";
  profile_.entries[0].seconds = 0.1 + 0.2;
  profile_.entries[0].p10 = 0.1;
  profile_.entries[0].p90 = 1.0 / 3 + 1;
  profile_.entries[0].peak_bytes = 123456789;
  write_profile(profile_, path_);
  EXPECT_TRUE(read_profile(path_) == profile_);
}

TEST_F(ProfileFileTest, EveryTruncationIsAnErrorThatNamesTheFile) {
  write_profile(profile_, path_);
  const std::string text = read_text(path_);
  for (std::size_t length = 0; length + 2 < text.size(); length += 97) {
    EXPECT_NE(parse_error(text.substr(0, length)).find("p.json"), std::string::npos) << length;
  }
  EXPECT_NE(parse_error(text.substr(0, text.size() / 2)).find("is the file truncated?"), std::string::npos);
}

TEST_F(ProfileFileTest, WrongContentsAreErrorsThatSayWhere) {
  EXPECT_NE(parse_error("{}").find("[p.json] missing key \"format\""), std::string::npos);
  EXPECT_NE(parse_error("[1]").find("got array [1], expected a mapping"), std::string::npos)
      << parse_error("[1]");
  Json json = write_fields(profile_);
  json["entries"][1]["seconds"] = -1;
  EXPECT_NE(parse_error(json.dump()).find("[p.json entries[1].seconds] out of range: got -1"),
            std::string::npos);
  for (const char* key : {"seconds", "p10_s", "p90_s", "runs"}) {
    json = write_fields(profile_);
    json["entries"][1].erase(key);
    const std::string error = parse_error(json.dump());
    EXPECT_TRUE(error.starts_with(fmt::format("[p.json entries[1]] has no key \"{}\", expected a", key)))
        << error;
  }
  json = write_fields(profile_);
  json["entries"][1]["secs"] = 1;
  EXPECT_NE(parse_error(json.dump()).find("unknown key \"secs\""), std::string::npos);
  json = write_fields(profile_);
  json["entries"].push_back(json["entries"][0]);
  EXPECT_NE(parse_error(json.dump()).find("attention forward: the same sizes are given twice"),
            std::string::npos);
  json = write_fields(profile_);
  json["entries"][0]["seq_len"] = 0;
  EXPECT_NE(parse_error(json.dump()).find("entries[0]] no size"), std::string::npos);
  json = write_fields(profile_);
  json["entries"] = Json::array();
  EXPECT_NE(parse_error(json.dump()).find("no entries"), std::string::npos);
}

TEST_F(ProfileFileTest, DeviceTypesNameTheirProfile) {
  write_profile(profile_, path_);
  EXPECT_TRUE(load_profiles(cluster_).empty());
  cluster_.types[0].profile = path_.string();
  const ProfileSet profiles = load_profiles(cluster_);
  ASSERT_EQ(profiles.size(), 1U);
  EXPECT_TRUE(profiles.at(0).profile == profile_);
  EXPECT_EQ(MeasuredCost(model_, cluster_, plan_, profiles).compute(attention(0, Phase::kForward, 2, 256)),
            1e-5 * 512);
  cluster_.types[0].profile = "no-such-profile";
  EXPECT_THROW(load_profiles(cluster_), ConfigError);
}

}  // namespace
}  // namespace hetermoe
