#include "hetermoe/plan/plan.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/schedule/plans.h"
#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

using test::has_fault, test::has_text, test::no_faults;

class PlanTest : public ::testing::Test {
 protected:
  ModelConfig model_ = test::make_model({});
  Cluster cluster_ = test::make_cluster({2, 2});
  Plan plan_ = test::make_zebra_plan(model_, cluster_, {2, 2, 2, {0, 1}});
  Group& group_ = plan_.groups[0];

  std::vector<std::string> faults() { return validate(plan_, model_, cluster_); }
};

TEST_F(PlanTest, JsonReadsBackAsTheSamePlan) {
  plan_.predicted_step_s = 0.25;
  plan_.recompute = Recompute::kResend;
  plan_.queue_binding = QueueBinding::kName;
  plan_.wire_forward = Wire::kFp16;
  const Json json = to_json(plan_);
  const Plan read = plan_from_json(json, "plan.json");
  EXPECT_EQ(to_json(read), json);
  EXPECT_EQ(read.groups[0].layers, group_.layers);
  EXPECT_EQ(read.predicted_step_s, 0.25);
  EXPECT_TRUE(no_faults(validate(read, model_, cluster_)));
}

TEST_F(PlanTest, UnknownKeysAndValuesAreRefused) {
  Json json = to_json(plan_);
  json["windo"] = 1;
  try {
    plan_from_json(json, "plan.json");
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_TRUE(has_text(error.what(), "Did you mean \"window\"?"));
  }
  json.erase("windo");
  json["chunks"] = 0;
  EXPECT_THROW(plan_from_json(json, "plan.json"), ConfigError);
}

TEST_F(PlanTest, MissingKeysAreErrors) {
  const auto without = [](Json json, const std::string& pointer) {
    const Json::json_pointer whole(pointer);
    json.at(whole.parent_pointer()).erase(whole.back());
    return error_of<ConfigError>([&] { plan_from_json(json, "plan.json"); });
  };
  const Json json = to_json(plan_);
  EXPECT_EQ(without(json, "/groups/0/layers/0/experts/0/0/device"),
            "[plan.json groups[0].layers[0].experts[0][0]] has no key \"device\", expected an integer: "
            "device of the "
            "cluster");
  for (const char* pointer :
       {"/model", "/seq_len", "/dtype", "/groups", "/groups/0/devices", "/groups/0/microbatches",
        "/groups/0/embed", "/groups/0/head", "/groups/0/layers", "/groups/0/layers/0/attention",
        "/groups/0/layers/0/experts", "/groups/0/embed/0/0/device", "/groups/0/embed/0/0/sequences"}) {
    EXPECT_NE(without(json, pointer).find("has no key"), std::string::npos) << pointer;
  }
  for (const char* pointer : {"/order", "/chunks", "/groups/0/layers/0/experts/0/0/share"})
    EXPECT_EQ(without(json, pointer), "no error") << pointer;
}

TEST_F(PlanTest, AnOwnerThatIsEmptyIsNotDevice0) {
  Json json = to_json(plan_);
  json["groups"][0]["layers"][0]["experts"][0] = Json::array({Json::object()});
  EXPECT_NE(error_of<ConfigError>([&] { plan_from_json(json, "p"); }).find("has no key \"device\""),
            std::string::npos);
}

TEST_F(PlanTest, NumbersThatAddUpBeyondTheRangeOfIntegersAreRefused) {
  Json json = to_json(plan_);
  json["groups"][0]["microbatches"] = {1, std::numeric_limits<i64>::max()};
  try {
    plan_from_json(json, "plan.json");
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_TRUE(has_text(error.what(),
                         "[plan.json groups[0].microbatches] got 9223372036854775807, expected at most"));
  }
}

TEST_F(PlanTest, AllFaultsAreFound) {
  plan_.model = "other";
  group_.devices.push_back(9);
  group_.layers[0].attention[0][1].sequences = 7;
  group_.layers[1].experts[2] = {{0, 0.5}, {1, 0.25}};
  const std::vector<std::string> all = faults();
  EXPECT_TRUE(has_fault(all, "[plan] made for model other, not for model"));
  EXPECT_TRUE(has_fault(all, "[groups[0].devices] device 9 does not exist: cluster test has 4 devices"));
  EXPECT_TRUE(has_fault(
      all, "[groups[0].layers[0].attention] shares of microbatch 0 add up to 8 sequences, expected 2"));
  EXPECT_TRUE(
      has_fault(all, "[groups[0].layers[1].experts[2]] shares of 2 owners add up to 0.75, expected 1"));
}

TEST_F(PlanTest, DevicesBelongToOneGroup) {
  plan_.groups.push_back(group_);
  EXPECT_TRUE(has_fault(faults(), "[groups[1].devices] device 0 is in two places"));
}

TEST_F(PlanTest, OwnersAndSharesStayInTheGroup) {
  group_.devices = {0, 1, 2};
  EXPECT_TRUE(has_fault(faults(), "owner 3 is not in this group"));
  group_.devices = {1, 2, 3};
  EXPECT_TRUE(has_fault(faults(), "[groups[0].head] device 0 is not in this group"));
}

TEST_F(PlanTest, LayersMustFitTheModel) {
  group_.layers.pop_back();
  EXPECT_TRUE(has_fault(faults(), "[groups[0].layers] has 1 entries, but model model has 2 layers"));
}

TEST_F(PlanTest, RowsAreOneOrOnePerMicrobatch) {
  group_.embed.push_back(group_.embed[0]);
  EXPECT_TRUE(no_faults(faults()));
  group_.embed.push_back(group_.embed[0]);
  EXPECT_TRUE(has_fault(faults(), "[groups[0].embed] has 3 rows, expected 1 or one per microbatch (2)"));
}

TEST_F(PlanTest, AStepHoldsASequence) {
  group_.microbatches = {0, 0};
  for (Shares* shares :
       {&group_.embed, &group_.head, &group_.layers[0].attention, &group_.layers[1].attention}) {
    *shares = {{{0, 0}, {1, 0}}};
  }
  EXPECT_TRUE(has_fault(faults(), "hold no sequence"));
}

TEST_F(PlanTest, RolesFollowFromSharesAndOwners) {
  EXPECT_EQ(roles_of(plan_)[0], "both");  // layer 1 moved one expert per expert device here
  EXPECT_EQ(roles_of(plan_)[2], "expert");
  Plan zebra = test::make_zebra_plan(model_, cluster_, {2, 1, 2});
  EXPECT_EQ(roles_of(zebra)[0], "attention");
  EXPECT_EQ(roles_of(zebra)[3], "idle");
  zebra.groups[0].head = {{{3, 1}}};
  EXPECT_EQ(roles_of(zebra)[3], "attention") << "the head is work on rows";
}

}  // namespace
}  // namespace hetermoe
