#include "hetermoe/plan/backward_shares.h"

#include <gtest/gtest.h>

#include "hetermoe/planner/strategies/strategies.h"
#include "tests/schedule/plans.h"
#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

/// Forward on device 0, backward of layer 0 on device 1.
struct Scene {
  ModelConfig model = test::make_model({.num_layers = 2});
  Cluster cluster = test::make_cluster({3});
  Plan plan;

  Scene() {
    StrategyRequest request;
    request.seq_len = 8;
    request.sequences = request.microbatches = 2;
    plan = find_strategy("ep").make(model, cluster, request);
    plan.recompute = Recompute::kResend;
    plan.groups[0].layers[0].attention = {{{0, 1}}};
    plan.groups[0].layers[0].attention_backward = {{{1, 1}}};
  }
  LayerPlacement& layer() { return plan.groups[0].layers[0]; }
  std::string fault() const {
    const std::vector<std::string> faults = validate(plan, model, cluster);
    return faults.empty() ? "" : faults[0];
  }
};

TEST(BackwardShares, OnOtherDevicesAreSound) {
  Scene scene;
  EXPECT_EQ(scene.fault(), "");
  EXPECT_EQ(&backward_embed_shares(scene.plan.groups[0]), &scene.layer().attention_backward);
  EXPECT_EQ(&backward_shares(scene.plan.groups[0].layers[1]), &scene.plan.groups[0].layers[1].attention);
}

TEST(BackwardShares, HaveToBeRecomputed) {
  Scene scene;
  scene.layer().recompute = Recompute::kLocal;
  EXPECT_EQ(
      scene.fault(),
      "[groups[0].layers[0].recompute] got local, but backward is on other devices than forward, which have "
      "to make all anew: expected resend");
}

TEST(BackwardShares, DivideAMicrobatchAsForwardDoes) {
  Scene scene;
  scene.layer().attention_backward = {{{1, 1}, {2, 0}}};
  EXPECT_EQ(
      scene.fault(),
      "[groups[0].layers[0].attention_backward] microbatch 0 is divided otherwise than in forward, expected "
      "the same numbers of sequences on other devices");
}

TEST(BackwardShares, AreTheSameOrElsewhere) {
  Scene scene;
  scene.layer().attention = {{{0, 1}, {1, 0}}};
  scene.layer().attention_backward = {{{1, 1}, {2, 0}}};
  EXPECT_EQ(scene.fault(),
            "[groups[0].layers[0].attention_backward] device 1 has another share of microbatch 0 in forward, "
            "expected the same share or none");
}

TEST(ExpertsAtSources, NeedOneDeviceThatOwnsAll) {
  Scene scene;
  scene.layer().experts_at = ExpertsAt::kSources;
  EXPECT_EQ(
      scene.fault(),
      "[groups[0].layers[0].experts_at] got sources, but device 0, which computes microbatch 0, does not own "
      "expert 2");
  scene.plan.groups[0].layers[1].experts_at = ExpertsAt::kSources;
  for (ExpertOwners& owners : scene.layer().experts) owners = {{0, 0.5}, {1, 0.5}};
  EXPECT_EQ(
      scene.fault(),
      "[groups[0].layers[1].experts_at] got sources, but microbatch 0 is shared by 3 devices, expected one");
}

TEST(BackwardShares, SaveOnTheHostOfBothDevices) {
  Scene scene;
  scene.cluster = test::make_cluster({1, 2});
  for (Node& node : scene.cluster.nodes) node.host = NodeHost{.memory_gib = 64};
  scene.layer().saved = Residence::kHost;
  scene.plan.hosts = {0, 1, 1};
  EXPECT_EQ(
      scene.fault(),
      "[groups[0].layers[0].saved] got host, but devices 0 and 1, which compute microbatch 0 forward and "
      "backward, have different hosts: expected device");
  scene.layer().attention_backward.clear();
  EXPECT_EQ(scene.fault(), "");
}

TEST(BackwardShares, AreWrittenWhereThereAreAny) {
  Scene scene;
  Json json = to_json(scene.plan);
  EXPECT_TRUE(json["groups"][0]["layers"][0].contains("attention_backward"));
  EXPECT_FALSE(json["groups"][0]["layers"][1].contains("attention_backward"));
  EXPECT_FALSE(json["groups"][0]["layers"][0].contains("experts_at"));
  EXPECT_EQ(plan_from_json(json, "test").groups[0].layers[0], scene.layer());
}

}  // namespace
}  // namespace hetermoe
