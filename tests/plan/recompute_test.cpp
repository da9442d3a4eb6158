#include "hetermoe/plan/recompute.h"

#include <gtest/gtest.h>

#include "tests/schedule/plans.h"
#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

class RecomputeOfLayers : public ::testing::Test {
 protected:
  ModelConfig model_ = test::make_model({.num_layers = 4});
  Plan plan_ = test::make_zebra_plan(model_, test::make_cluster({2, 2}), {.attention = 2, .experts = 2});

  std::string error(const std::string& ranges) {
    Plan plan = plan_;
    return error_of<ConfigError>([&] { set_recompute_of_layers(plan, ranges, "plan.recompute_layers"); });
  }
};

TEST_F(RecomputeOfLayers, RangesSetLayersAndTheOthersInherit) {
  set_recompute_of_layers(plan_, "0-1:off,3:resend", "key");
  std::vector<Recompute> found;
  for (i32 l = 0; l < 4; ++l) found.push_back(recompute_of(plan_, 0, l));
  EXPECT_EQ(found, (std::vector<Recompute>{Recompute::kOff, Recompute::kOff, Recompute::kLocal,
                                           Recompute::kResend}));
  EXPECT_EQ(recompute_text(plan_), "local, layers 0-1 off, layer 3 resend");
  plan_.recompute = Recompute::kOff;
  EXPECT_EQ(recompute_of(plan_, 0, 2), Recompute::kOff);
  const RecomputeTable table(plan_);
  for (i32 l = 0; l < 4; ++l) EXPECT_EQ(table.of(0, l), recompute_of(plan_, 0, l));
}

TEST_F(RecomputeOfLayers, ATextOfManyRangesCountsLayers) {
  const ModelConfig deep = test::make_model({.num_layers = 9});
  const auto text = [&](const char* ranges) {
    Plan plan = test::make_zebra_plan(deep, test::make_cluster({2, 2}), {.attention = 2, .experts = 2});
    set_recompute_of_layers(plan, ranges, "key");
    return recompute_text(plan);
  };
  EXPECT_EQ(text("0:off,2:off,4:off"), "local, layer 0 off, layer 2 off, layer 4 off");
  EXPECT_EQ(text("0:off,2:off,4:off,6-7:resend"), "local, off in 3 of 9 layers, resend in 2 of 9 layers");
}

TEST_F(RecomputeOfLayers, APlanToBeHasThatOfThePlan) {
  plan_.groups.clear();
  EXPECT_EQ(recompute_of(plan_, 0, 2), Recompute::kLocal);
  EXPECT_EQ(RecomputeTable(plan_).of(0, 2), Recompute::kLocal);
}

TEST_F(RecomputeOfLayers, NothingIsWrittenForWhatIsInherited) {
  EXPECT_EQ(to_json(plan_).dump().find("\"recompute\":null"), std::string::npos);
  EXPECT_FALSE(to_json(plan_)["groups"][0]["layers"][0].contains("recompute"));
  set_recompute_of_layers(plan_, "1:off", "key");
  const Json json = to_json(plan_);
  EXPECT_EQ(json["groups"][0]["layers"][1]["recompute"], "off");
  EXPECT_EQ(plan_from_json(json, "plan.json").groups[0].layers, plan_.groups[0].layers);
}

TEST_F(RecomputeOfLayers, ErrorsNameKeyGotAndExpected) {
  const std::string form = ", expected ranges of layers such as \"0-3:off,4-7:local\"";
  EXPECT_EQ(error("0-1"), "[plan.recompute_layers] got \"0-1\"" + form);
  EXPECT_EQ(error("a:off"), "[plan.recompute_layers] got \"a:off\"" + form);
  EXPECT_EQ(error("0-:off"), "[plan.recompute_layers] got \"0-:off\"" + form);
  EXPECT_EQ(error("-1:off"), "[plan.recompute_layers] got \"-1:off\"" + form);
  EXPECT_EQ(error("0:off,"), "[plan.recompute_layers] got \"0:off,\"" + form);
  EXPECT_EQ(error("2-4:off"),
            "[plan.recompute_layers] got \"2-4:off\", expected layers of 0 to 3 in ascending order");
  EXPECT_EQ(error("2-1:off"),
            "[plan.recompute_layers] got \"2-1:off\", expected layers of 0 to 3 in ascending order");
  EXPECT_EQ(error("0-2:off,2:local"), "[plan.recompute_layers] got layer 2 twice, expected each once");
  plan_.strategy = "roundpipe";
  plan_.groups[0].layers[1].recompute = Recompute::kOff;
  EXPECT_EQ(
      error("0:local"),
      "[plan.recompute_layers] got \"0:local\", but strategy roundpipe chooses for each layer itself: leave "
      "it out");
  plan_.groups[0].layers[1].recompute.reset();
  EXPECT_EQ(error("0:of").substr(0, 43), "[plan.recompute_layers] unknown value \"of\".");
}

TEST_F(RecomputeOfLayers, KeptOrMadeAgainApartOrInside) {
  for (int i = 0; i < kEnumCount<Recompute>; ++i) {
    const auto recompute = static_cast<Recompute>(i);
    for (const bool is_moe : {false, true}) {
      EXPECT_EQ(keeps_activations(recompute) + recomputes_apart(recompute, is_moe) +
                    recomputes_inside(recompute, is_moe),
                1)
          << name_of(recompute);
    }
  }
}

}  // namespace
}  // namespace hetermoe
