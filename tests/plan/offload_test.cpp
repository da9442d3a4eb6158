#include "hetermoe/plan/offload.h"

#include <gtest/gtest.h>

#include "hetermoe/base/index.h"
#include "hetermoe/placement/placement.h"
#include "tests/support/error_of.h"
#include "tests/support/strategy_plans.h"

namespace hetermoe::testing {
namespace {

struct Example {
  ModelConfig model = load_model("tiny");
  Cluster cluster = load_cluster("demo");
  Plan plan = find_strategy("zebra").make(model, cluster, small_step());

  Example() {
    for (Node& node : cluster.nodes) node.host = NodeHost{.memory_gib = 64};
  }
  void offload_by(const std::vector<std::string>& entries) {
    offload(plan, model, cluster, entries, "plan.offload");
  }
  const LayerPlacement& layer(std::size_t l) const { return plan.groups[0].layers[l]; }
};

Home home(Residence weights, Residence optimizer) {
  Home out;
  out.weights = weights;
  out.optimizer = optimizer;
  return out;
}
const Home kAllOnHost = home(Residence::kHost, Residence::kHost);
const Home kOptimizerOnHost = home(Residence::kDevice, Residence::kHost);

TEST(Offload, WithoutEntriesAPlanKeepsItsText) {
  Example example;
  const std::string before = to_json(example.plan).dump();
  example.offload_by({});
  EXPECT_EQ(to_json(example.plan).dump(), before);
  EXPECT_EQ(before.find("home"), std::string::npos);
  EXPECT_EQ(before.find("hosts"), std::string::npos);
}

TEST(Offload, EntriesNamePartsLayersAndWhatOfThem) {
  Example example;
  example.offload_by({"optimizer", "layers 1:experts", "embed.weights"});
  EXPECT_EQ(example.layer(0).experts_home, kOptimizerOnHost);
  EXPECT_EQ(example.layer(1).experts_home, kAllOnHost);
  EXPECT_EQ(example.layer(1).attention_home, kOptimizerOnHost);
  EXPECT_EQ(example.plan.groups[0].embed_home, kAllOnHost);
  EXPECT_EQ(example.plan.groups[0].head_home, kOptimizerOnHost);
  EXPECT_EQ(validate(example.plan, example.model, example.cluster), std::vector<std::string>{});
}

TEST(Offload, LaterEntriesOverrule) {
  Example example;
  example.offload_by({"all", "layers 0:none"});
  EXPECT_EQ(example.layer(0).attention_home, std::nullopt);
  EXPECT_EQ(example.layer(0).experts_home, std::nullopt);
  EXPECT_EQ(example.layer(1).experts_home, kAllOnHost);
}

TEST(Offload, NothingOnHostsNeedsNone) {
  Example example;
  for (Node& node : example.cluster.nodes) node.host.reset();
  const std::string before = to_json(example.plan).dump();
  example.offload_by({"all", "none"});
  EXPECT_EQ(to_json(example.plan).dump(), before);
}

TEST(Offload, PlansRoundTripThroughJson) {
  Example example;
  example.offload_by({"all", "layers 0:none"});
  example.plan.slots.experts = 3;
  const Json json = to_json(example.plan);
  EXPECT_EQ(to_json(plan_from_json(json, "plan.json")).dump(), json.dump());
}

TEST(Offload, SavedActivationsAreOfLayers) {
  Example example;
  example.offload_by({"experts.optimizer", "saved", "layers 0:none"});
  EXPECT_EQ(example.layer(0).saved, Residence::kDevice);
  EXPECT_EQ(example.layer(1).saved, Residence::kHost);
  EXPECT_EQ(example.layer(1).experts_home, kOptimizerOnHost);
  EXPECT_EQ(example.plan.hosts.size(), example.plan.dtype.size());
  EXPECT_EQ(validate(example.plan, example.model, example.cluster), std::vector<std::string>{});
  example.plan.slots.saved = 3;
  const Json json = to_json(example.plan);
  EXPECT_EQ(json["groups"][0]["layers"][1]["saved"], "host");
  EXPECT_FALSE(json["groups"][0]["layers"][0].contains("saved"));
  EXPECT_EQ(to_json(plan_from_json(json, "plan.json")).dump(), json.dump());
}

TEST(Offload, SavedActivationsNeedHostsAndRecomputation) {
  const auto first_fault = [](const auto& change) {
    Example example;
    example.offload_by({"saved"});
    change(example);
    const std::vector<std::string> faults = validate(example.plan, example.model, example.cluster);
    return faults.empty() ? "none" : faults[0];
  };
  const std::string kept = first_fault([](Example& e) { e.plan.recompute = Recompute::kOff; });
  EXPECT_NE(kept.find("layers[0].saved] got host in a layer that keeps all its activations"),
            std::string::npos)
      << kept;
  EXPECT_NE(kept.find("expected recompute local, resend or ahead"), std::string::npos) << kept;
  const std::string none = first_fault([](Example& e) {
    for (Node& node : e.cluster.nodes) node.host.reset();
  });
  EXPECT_NE(none.find("saved] is on the host of device 0, but node"), std::string::npos) << none;
  Example hostless;
  hostless.offload_by({"all"});
  for (Node& node : hostless.cluster.nodes) node.host.reset();
  EXPECT_EQ(validate(hostless.plan, hostless.model, hostless.cluster).size(), 1) << "said once";
  const std::string empty = first_fault([](Example& e) { e.plan.hosts.clear(); });
  EXPECT_NE(empty.find("[hosts] is empty"), std::string::npos) << empty;
  const std::string sharded =
      first_fault([](Example& e) { e.plan.groups[0].layers[0].saved = Residence::kSharded; });
  EXPECT_NE(sharded.find("saved] got sharded, expected device or host"), std::string::npos) << sharded;
  EXPECT_EQ(first_fault([](Example& e) { e.plan.groups[0].layers[0].recompute = Recompute::kAhead; }),
            "none");
}

/// Of a server of eight cards two work, and not the first: single, ep and round robin.
TEST(Offload, IdleDevicesDoNotDecideTheDtypeOfTheirHost) {
  const ModelConfig model = load_model("qwen3-1.7b");
  const Cluster cluster = load_cluster("rtx4090x8");
  for (const char* strategy : {"single", "ep", "roundpipe"}) {
    StrategyRequest request;
    request.seq_len = 1024, request.sequences = 8, request.microbatches = 8;
    request.dtype = Dtype::kBf16;
    request.offload = {"all"};
    request.attention =
        strategy == std::string("single") ? std::vector<DeviceId>{3} : std::vector<DeviceId>{3, 4};
    Plan plan = find_strategy(strategy).make(model, cluster, request);
    offload(plan, model, cluster, {"all"}, "plan.offload");
    plan.dtype.assign(8, Dtype::kFp32);
    for (const DeviceId device : request.attention) plan.dtype[idx(device)] = Dtype::kBf16;
    plan.master = Master::kNone;
    EXPECT_EQ(validate(plan, model, cluster), std::vector<std::string>{}) << strategy;
    EXPECT_EQ(Placement(plan, model, {}).first_device(8), 3) << strategy;
    plan.dtype[3] = Dtype::kFp32;
    EXPECT_NE(validate(plan, model, cluster), std::vector<std::string>{}) << strategy;
  }
}

TEST(Offload, WrongEntriesAreRefused) {
  const auto error = [](const std::string& entry) {
    return error_of<ConfigError>([&] { Example().offload_by({entry}); });
  };
  for (const char* entry : {"", "everything", "experts.momentum", "layers 0", "nodes 0:all", "layers x:all",
                            "all.optimizer", "router", "attention.saved", "devices 0:saved"}) {
    EXPECT_NE(error(entry).find("expected"), std::string::npos) << entry << ": " << error(entry);
    EXPECT_NE(error(entry).find("[plan.offload]"), std::string::npos) << error(entry);
  }
  EXPECT_NE(error("layers 0-99:all").find("got 0 to 99"), std::string::npos) << error("layers 0-99:all");
  EXPECT_NE(error("devices 3-2:all").find("got 3 to 2"), std::string::npos) << error("devices 3-2:all");
}

TEST(Offload, ValidationNamesWhatIsMissing) {
  Example none;
  for (Node& node : none.cluster.nodes) node.host.reset();
  none.offload_by({"optimizer"});
  const std::vector<std::string> faults = validate(none.plan, none.model, none.cluster);
  ASSERT_FALSE(faults.empty());
  EXPECT_NE(faults[0].find("has none. Describe it in the cluster file, such as host: {memory_gib: 256}"),
            std::string::npos)
      << faults[0];

  Example part;
  part.offload_by({"devices 0:attention.optimizer"});  // of several that share it
  const std::vector<std::string> mixed = validate(part.plan, part.model, part.cluster);
  ASSERT_FALSE(mixed.empty());
  EXPECT_NE(mixed[0].find("hold the same parameters, expected all or none of them"), std::string::npos)
      << mixed[0];

  Example alone;
  alone.plan.groups[0].embed_home = Home{.weights = Residence::kHost};
  alone.plan.hosts.assign(alone.plan.dtype.size(), 0);
  bool told = false;
  for (const std::string& fault : validate(alone.plan, alone.model, alone.cluster))
    told = told ||
           fault.find("embed_home.optimizer] got device beside weights on the host") != std::string::npos ||
           fault.find("[hosts]") != std::string::npos;
  EXPECT_TRUE(told);
}

}  // namespace
}  // namespace hetermoe::testing
