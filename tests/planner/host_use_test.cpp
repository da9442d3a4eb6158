#include "hetermoe/planner/estimate/host_use.h"

#include <gtest/gtest.h>

#include <numeric>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/cost/roofline.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/plan/recompute.h"
#include "hetermoe/planner/predict.h"
#include "hetermoe/planner/request_check.h"
#include "hetermoe/planner/search/search.h"
#include "hetermoe/schedule/builder.h"
#include "hetermoe/sim/memory.h"
#include "tests/support/strategy_plans.h"
#include "tests/support/with_hosts.h"

namespace hetermoe::testing {
namespace {

/// Two cards with room for `gib`, in one node with a host.
Cluster two_cards(double gib, double host_gib) {
  Cluster cluster = load_cluster("demo");
  cluster.devices.resize(2);
  cluster.nodes.resize(1);
  for (DeviceType& type : cluster.types) type.memory_gib = gib;
  if (host_gib > 0) cluster.nodes[0].host = NodeHost{.memory_gib = host_gib};
  return cluster;
}

ModelConfig eight_layers() {
  ModelConfig model = load_model("demo");
  model.num_layers = 8;
  model.dense_layer.assign(8, false);
  return model;
}

StrategyRequest eight_microbatches() {
  StrategyRequest request = small_step();
  request.seq_len = 256;
  request.sequences = 16;
  request.microbatches = 8;
  return request;
}

PlanRequest request_of(const Cluster& cluster) {
  PlanRequest request;
  request.model = load_model("olmoe4");
  request.cluster = cluster;
  request.seq_len = 512;
  request.sequences = 4;
  return request;
}

TEST(HostUse, MakesRoomWhereNoPlanFitsWithout) {
  const Bytes all =
      real(count_parameters(load_model("olmoe4")).total) * state_bytes_per_parameter(2).total(1);
  const auto plan_with = [&](double share, double host_gib) {
    return find_plan(request_of(two_cards(share * all / kGiB / 2 / kUsableMemory + 1, host_gib)));
  };
  PlanRequest without = request_of(two_cards(1.6 * all / kGiB / 2 / kUsableMemory + 1, 256));
  without.limits.offload = false;
  EXPECT_TRUE(find_plan(without).feasible()) << "it fits without";
  for (const double share : {0.75, 0.3}) {
    EXPECT_FALSE(plan_with(share, 0).feasible());
    const PlanResult result = plan_with(share, 256);
    ASSERT_TRUE(result.feasible()) << share << ": " << result.infeasible;
    const Plan& plan = result.best().plan;
    EXPECT_TRUE(uses_hosts(plan));
    EXPECT_NE(result.explanation[0].find("In host memory live"), std::string::npos) << result.explanation[0];
    EXPECT_TRUE(result.explanation[1].starts_with("Host memory costs") ||
                result.explanation[1].starts_with(
                    "If its devices had room for everything, the same plan would be no faster"))
        << result.explanation[1];
    const bool all_weights = home_of(plan.groups[0], UnitPart::kExperts, 3).weights == Residence::kHost;
    if (share < 0.5) {
      EXPECT_TRUE(all_weights) << "weights and gradients alone take a third";
    }
  }
}

TEST(HostUse, AHostThatIsTooSmallIsNamed) {
  const PlanResult result = find_plan(request_of(two_cards(6, 4)));
  EXPECT_FALSE(result.feasible());
  PlanRequest forbidden = request_of(two_cards(6, 256));
  EXPECT_TRUE(find_plan(forbidden).feasible());
  forbidden.limits.offload = false;
  EXPECT_FALSE(find_plan(forbidden).feasible());
}

/// Long sequences through many layers: what they save takes more than the state does.
TEST(HostUse, SavedActivationsOnHostsFitSmallerCards) {
  PlanRequest request = request_of(two_cards(8, 256));
  request.model.num_layers = 16;
  request.model.dense_layer.assign(16, false);
  request.model.max_positions = 16384;
  request.seq_len = 16384;
  request.sequences = 8;
  const auto smallest = [&](HostUse use) {
    request.limits.host_use = use;
    request.limits.shard_optimizer = false;
    i64 without = 2, with = 40;  // GiB with which no plan has room, and with which one has
    while (with - without > 1) {
      const i64 middle = (without + with) / 2;
      request.cluster = two_cards(real(middle), 256);
      const PlanResult result = search_plans(checked(request));
      (result.feasible() ? with : without) = middle;
      if (!result.feasible()) continue;
      const Plan& plan = result.best().plan;
      for (i32 l = 0; l < 16; ++l) {
        const bool may_wait = saves_on_hosts(use) && !keeps_activations(recompute_of(plan, 0, l));
        EXPECT_TRUE(may_wait || plan.groups[0].layers[idx(l)].saved == Residence::kDevice);
      }
    }
    return with;
  };
  const i64 optimizer = smallest(HostUse::kOptimizer), saved = smallest(HostUse::kOptimizerSaved),
            all = smallest(HostUse::kAll), all_saved = smallest(HostUse::kAllSaved);
  std::cout << fmt::format(
      "[          ] smallest cards: optimizer {} GiB, saved, too, {}; all {}, saved, too, {}\n", optimizer,
      saved, all, all_saved);
  EXPECT_LT(saved, optimizer);
  EXPECT_LT(all_saved, all);
}

std::vector<MemoryPeak> peaks_of(const Plan& plan, const ModelConfig& model, const Cluster& cluster,
                                 const StepOptions& options = {}) {
  const Placement placement(plan, model, options);
  const Schedule schedule = build_schedule(placement);
  const ExpectedRouting routing(model);
  const OpTimes times =
      simulate(schedule, placement, model, cluster, RooflineCost(model, cluster, plan), routing);
  return peak_memory(schedule, times, placement, model, cluster, routing);
}

/// The bound by which plans are rejected is of what the simulated step needs as it is without hosts, within
/// 12 %.
TEST(HostUse, TheBoundHoldsWithSavedActivationsOnHosts) {
  const ModelConfig model = eight_layers();
  const Cluster cluster = with_hosts(load_cluster("demo"));
  const StrategyRequest request = eight_microbatches();
  for (NamedPlan& named : strategy_plans(model, cluster, request)) {
    use_dtype(named.plan, Dtype::kBf16);
    const std::vector<Bytes> without = estimate_memory(named.plan, model);
    const std::vector<MemoryPeak> peaks_without = peaks_of(named.plan, model, cluster);
    offload(named.plan, model, cluster, {"saved"}, "test");
    const std::vector<Bytes> bound = estimate_memory(named.plan, model);
    const std::vector<MemoryPeak> peaks = peaks_of(named.plan, model, cluster);
    for (std::size_t d = 0; d < bound.size(); ++d) {
      EXPECT_LE(peaks[d].use.total(), peaks_without[d].use.total()) << named.name << " device " << d;
      if (bound[d] <= 0) continue;
      const double usual = std::max(1.0, peaks_without[d].use.total() / without[d]);
      EXPECT_LE(peaks[d].use.total() / bound[d], 1.12 * usual) << named.name << " device " << d;
      EXPECT_LE(bound[d], without[d] * 1.001) << named.name << " device " << d;
    }
    const std::vector<Bytes> hosts = estimate_host_memory(named.plan, model, cluster);
    for (std::size_t n = 0; n < hosts.size(); ++n)
      EXPECT_LE(peaks[bound.size() + n].use.total(), hosts[n] * 1.001) << named.name << " host " << n;
  }
}

/// Turns of whole layers on two and more devices, with weights at home and on visit.
TEST(HostUse, TheBoundHoldsForRoundRobinTurns) {
  for (const char* name : {"qwen3-1.7b", "olmoe-1b-7b"}) {
    const ModelConfig model = load_model(name);
    const Cluster cluster = load_cluster("rtx4090x8");
    StrategyRequest request;
    request.seq_len = std::min<i64>(2048, model.max_positions > 0 ? model.max_positions : 2048);
    request.sequences = 64;
    request.microbatches = 16;
    for (const std::vector<DeviceId>& devices :
         {std::vector<DeviceId>{0, 1}, {0, 1, 2}, {0, 1, 2, 3, 4, 5, 6, 7}}) {
      request.attention = devices;
      Plan plan = find_strategy("roundpipe").make(model, cluster, request);
      use_dtype(plan, Dtype::kBf16);
      for (const HostUse use : {HostUse::kNone, HostUse::kAll, HostUse::kAllSaved}) {
        keep_on_hosts(use, model, cluster, plan);
        const std::vector<Bytes> bound = estimate_memory(plan, model);
        const std::vector<MemoryPeak> peaks = peaks_of(plan, model, cluster);
        for (const DeviceId device : devices) {
          const Bytes peak = peaks[idx(device)].use.total();
          // Turns take longer and shorter than they are expected to, so another microbatch may be there.
          EXPECT_LE(peak, 1.05 * bound[idx(device)])
              << name << " device " << device << " of " << devices.size();
          EXPECT_GE(peak, 0.2 * bound[idx(device)])
              << name << " device " << device << " of " << devices.size();
        }
        const Bytes host = estimate_host_memory(plan, model, cluster)[0];
        if (use != HostUse::kNone) {
          EXPECT_LE(peaks[bound.size()].use.total(), 1.001 * host) << name;
        }
      }
    }
  }
}

/// Inputs wait long on the slow cards of a server, so that fast cuts have room with saved inputs on the host
/// alone.
TEST(HostUse, RoundRobinTurnsKeepMoreOnTheHostWhereThatIsMuchFaster) {
  const ModelConfig model = load_model("qwen3-1.7b");
  Cluster cluster = load_cluster("rtx4090x8");
  cluster.types.push_back(catalogue_device("RTX3090", "test"));
  for (std::size_t d = 4; d < cluster.devices.size(); ++d) cluster.devices[d].type = 1;
  StrategyRequest request;
  request.seq_len = 2048;
  request.sequences = 512;
  request.microbatches = 64;
  request.dtype = Dtype::kFp16;
  request.attention = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto plan_of = [&](const std::vector<std::string>& asked, HostUse use) {
    request.offload = asked;
    Plan plan = find_strategy("roundpipe").make(model, cluster, request);
    use_dtype(plan, Dtype::kBf16);
    keep_on_hosts(use, model, cluster, plan);
    return plan;
  };
  const auto overfilled = [&](const Plan& plan) {
    return overfilled_device(estimate_memory(plan, model), cluster);
  };
  const Plan kept = plan_of({"all"}, HostUse::kAll), faster = plan_of({}, HostUse::kAllSaved);
  EXPECT_EQ(overfilled(kept), "");
  EXPECT_EQ(overfilled(faster), "");
  EXPECT_NE(overfilled(plan_of({}, HostUse::kAll)), "");
  const auto step = [&](const Plan& plan) { return Predictor(model, cluster).predict(plan).step; };
  EXPECT_LT(step(faster), 0.95 * step(kept));
  request.attention = {0};
  request.sequences = 512;
  EXPECT_EQ(to_json(plan_of({"embed"}, HostUse::kAll)), to_json(plan_of({}, HostUse::kAll)))
      << "nothing has room so";
}

struct OnHosts {
  Cluster cluster;
  ModelConfig model;
  Plan plan;
};

/// A small model on the demo cluster with all its parameters on the hosts.
OnHosts all_on_hosts() {
  OnHosts out{with_hosts(load_cluster("demo")), load_model("tiny"), {}};
  out.plan = find_strategy("ep").make(out.model, out.cluster, small_step());
  use_dtype(out.plan, Dtype::kBf16);
  offload(out.plan, out.model, out.cluster, offload_entries(HostUse::kAll), "test");
  return out;
}

/// A copy for each node, whatever the number of its devices.
TEST(HostUse, MemoryOfHostsCountsEachStateOnce) {
  OnHosts rig = all_on_hosts();
  Cluster& cluster = rig.cluster;
  const ModelConfig& model = rig.model;
  const Plan& plan = rig.plan;
  const ParamCounts counts = count_parameters(model);
  double shared = real(counts.embedding + counts.head), experts = 0;
  for (std::size_t l = 0; l < counts.attention_part.size(); ++l) {
    shared += real(counts.attention_part[l]);
    if (model.is_moe(static_cast<i64>(l))) experts += real(counts.expert * model.num_experts);
  }
  const std::vector<Bytes> memory = estimate_host_memory(plan, model, cluster);
  EXPECT_DOUBLE_EQ(memory[0] + memory[1], (2 * shared + experts) * 18);
  EXPECT_EQ(overfilled_host(plan, model, cluster), "");
  cluster.nodes[1].host->memory_gib = 1e-6;
  EXPECT_EQ(overfilled_host(plan, model, cluster).find("host of old (0 GiB) needs"), 0U);
}

/// Of what is not trained a host keeps the weights alone, as the simulated step does.
TEST(HostUse, FrozenUnitsAreWeightsOnTheHost) {
  OnHosts rig = all_on_hosts();
  Cluster& cluster = rig.cluster;
  const ModelConfig& model = rig.model;
  const Plan& plan = rig.plan;
  const std::vector<Unit> frozen = {
      {-1, UnitPart::kEmbed, -1}, {0, UnitPart::kAttention, -1}, {1, UnitPart::kExperts, 0}};
  ASSERT_TRUE(std::is_sorted(frozen.begin(), frozen.end()));
  const auto sum = [&](const std::vector<Unit>& units) {
    const std::vector<Bytes> memory = estimate_host_memory(plan, model, cluster, {.frozen = units});
    return std::accumulate(memory.begin(), memory.end(), 0.0);
  };
  const ParamCounts counts = count_parameters(model);
  // Gradient, master and moments of both nodes' attention and embedding, and of one node's expert.
  const double saved = 16 * (2.0 * real(counts.embedding + counts.attention_part[0]) + real(counts.expert));
  EXPECT_DOUBLE_EQ(sum({}) - sum(frozen), saved);
  StepOptions options;
  options.frozen = frozen;
  const Placement placement(plan, model, options);
  const ExpectedRouting routing(model);
  const BufferSizes sizes(placement, model, cluster, routing);
  double simulated = 0;
  for (PlaceId host = cluster.num_devices(); host < placement.num_places(); ++host)
    simulated += sizes.state(host).total();
  EXPECT_NEAR(sum(frozen), simulated, 1e-6 * simulated);
}

/// Adapters of attention and experts.
Trained adapters_of(const ModelConfig& model) {
  std::vector<std::string> targets;
  for (const ParamInfo& parameter : parameters(model)) {
    if (can_have_adapter(parameter)) targets.push_back(parameter.name);
  }
  const Lora lora = make_lora(model, 16, 16, std::move(targets));
  return {units_without(model, lora), std::make_shared<const Lora>(lora)};
}

/// A host keeps two bytes of each frozen number, as the simulated step does.
TEST(HostUse, WithAdaptersHostsKeepFrozenWeightsAlone) {
  const OnHosts rig = all_on_hosts();
  const Trained trained = adapters_of(rig.model);
  const ParamCounts counts = count_parameters(rig.model);
  double shared = real(counts.embedding + counts.head), experts = 0;
  for (std::size_t l = 0; l < counts.attention_part.size(); ++l) {
    shared += real(counts.attention_part[l]);
    if (rig.model.is_moe(static_cast<i64>(l))) experts += real(counts.expert * rig.model.num_experts);
  }
  const std::vector<Bytes> memory = estimate_host_memory(rig.plan, rig.model, rig.cluster, trained);
  EXPECT_DOUBLE_EQ(memory[0] + memory[1], (2 * shared + experts) * 2);
  const Placement placement(rig.plan, rig.model, step_options(trained, rig.model, rig.model));
  const ExpectedRouting routing(rig.model);
  const BufferSizes sizes(placement, rig.model, rig.cluster, routing);
  for (NodeId node = 0; node < 2; ++node) {
    const MemoryUse use = sizes.state(rig.cluster.num_devices() + node);
    EXPECT_DOUBLE_EQ(use.weights, memory[idx(node)]);
    EXPECT_EQ(use.gradients + use.optimizer, 0);
  }
}

/// The bound by which plans are rejected is of what the simulated step needs as it is with the frozen weights
/// on the devices, within 10 %.
TEST(HostUse, TheBoundHoldsForAdaptersWithFrozenWeightsOnHosts) {
  const ModelConfig model = eight_layers();
  const Cluster cluster = with_hosts(load_cluster("demo"));
  const StrategyRequest request = eight_microbatches();
  const Trained trained = adapters_of(model);
  const TrainedShares shares(trained, model);
  const StepOptions options = step_options(trained, model, model);
  for (NamedPlan& named : strategy_plans(model, cluster, request)) {
    use_dtype(named.plan, Dtype::kBf16);
    const std::vector<Bytes> without = estimate_memory(named.plan, model, {}, shares);
    const std::vector<MemoryPeak> peaks_without = peaks_of(named.plan, model, cluster, options);
    for (const HostUse use : {HostUse::kExperts, HostUse::kAll, HostUse::kAllSaved}) {
      Plan plan = named.plan;
      keep_on_hosts(use, model, cluster, plan, /*adapts=*/true);
      const std::vector<Bytes> bound = estimate_memory(plan, model, {}, shares);
      const std::vector<MemoryPeak> peaks = peaks_of(plan, model, cluster, options);
      for (std::size_t d = 0; d < bound.size(); ++d) {
        if (bound[d] <= 0) continue;
        const double usual = std::max(1.0, peaks_without[d].use.total() / without[d]);
        EXPECT_LE(peaks[d].use.total() / bound[d], 1.1 * usual) << named.name << " device " << d;
        EXPECT_LE(bound[d], without[d] * 1.001) << named.name << " device " << d;
      }
      const std::vector<Bytes> hosts = estimate_host_memory(plan, model, cluster, trained);
      for (std::size_t n = 0; n < hosts.size(); ++n)
        EXPECT_LE(peaks[bound.size() + n].use.total(), hosts[n] * 1.001) << named.name << " host " << n;
    }
  }
}

/// Cards that hold neither the model nor, divided, its frozen weights: these live on the host.
TEST(HostUse, AdaptersFitWhereTheHostHoldsTheFrozenWeights) {
  PlanRequest request = request_of(two_cards(0, 16));
  request.trained = adapters_of(request.model);
  const auto plan_on = [&](double gib, bool offload) {
    for (DeviceType& type : request.cluster.types) type.memory_gib = gib;
    request.limits.offload = offload;
    return find_plan(request);
  };
  i64 cards = 2;
  while (!plan_on(static_cast<double>(cards), true).feasible()) ASSERT_LT(++cards, 24);
  const PlanResult with = plan_on(static_cast<double>(cards), true);
  ASSERT_FALSE(plan_on(static_cast<double>(cards), false).feasible()) << cards;
  EXPECT_NE(with.explanation[0].find("In host memory live frozen weights of "), std::string::npos)
      << with.explanation[0];
  const Plan& plan = with.best().plan;
  EXPECT_TRUE(uses_hosts(plan));
  EXPECT_EQ(overfilled_host(plan, request.model, request.cluster, request.trained), "");
  request.trained = {};
  EXPECT_FALSE(plan_on(static_cast<double>(cards), true).feasible()) << "the host holds the states, too";
}

/// Groups that are alike are weighed once, but a host keeps what all of its node need.
TEST(HostUse, GroupsOfANodeShareItsHost) {
  PlanRequest request;
  request.model = load_model("qwen3-30b-a3b");
  request.cluster = load_cluster("rtx4090x8");
  request.seq_len = 2048;
  request.sequences = 128;
  const PlanResult result = find_plan(request);
  ASSERT_TRUE(result.feasible()) << result.infeasible;
  const Plan& plan = result.best().plan;
  EXPECT_TRUE(uses_hosts(plan));
  EXPECT_EQ(overfilled_host(plan, request.model, request.cluster), "") << result.explanation[0];
}

/// Where plans fit without hosts, masters and moments there may make room for faster ones; where they do not,
/// it says so.
TEST(HostUse, WhatFitsWithoutMayBeFasterWith) {
  const auto plan_with = [](const char* model, const char* cluster, bool offload) {
    PlanRequest request;
    request.model = load_model(model);
    request.cluster = load_cluster(cluster);
    request.dtype = Dtype::kBf16;
    request.seq_len = 2048;
    request.sequences = 128;
    request.limits.offload = offload;
    return find_plan(request);
  };
  const PlanResult with = plan_with("olmoe-1b-7b", "rtx3090x4-v100x4", true),
                   without = plan_with("olmoe-1b-7b", "rtx3090x4-v100x4", false);
  EXPECT_TRUE(uses_hosts(with.best().plan));
  EXPECT_LT(with.best().prediction.step, 0.9 * without.best().prediction.step);
  EXPECT_NE(with.explanation[0].find("That frees room"), std::string::npos) << with.explanation[0];

  const PlanResult idle = plan_with("qwen3-1.7b", "rtx4090x8", true);
  EXPECT_FALSE(uses_hosts(idle.best().plan));
  EXPECT_NE(idle.explanation.back().find("Host memory does not pay"), std::string::npos)
      << idle.explanation.back();
}

/// Stages of a pipeline over nodes hold weights and gradients alone: half of what a group of all devices
/// needs.
TEST(HostUse, PipelinesKeepMastersOnHosts) {
  PlanRequest request;
  request.model = load_model("qwen3-30b-a3b");
  request.cluster = load_cluster("rtx4090x8");
  Cluster& cluster = request.cluster;
  cluster.nodes.push_back(cluster.nodes[0]);
  for (i32 d = 0; d < 8; ++d) cluster.devices.push_back({cluster.devices[0].type, 1, 1});
  request.seq_len = 2048;
  request.sequences = 64;
  request.limits.shard_optimizer = false;
  request.limits.host_use = HostUse::kOptimizer;
  const PlanResult result = search_plans(checked(request));
  ASSERT_TRUE(result.feasible()) << result.infeasible;
  const Plan& plan = result.best().plan;
  EXPECT_EQ(plan.order, OrderPolicy::kOneFOneB);
  EXPECT_EQ(overfilled_host(plan, request.model, cluster), "");
  EXPECT_EQ(overfilled_device(estimate_memory(plan, request.model), cluster), "");
  const auto other = std::find_if(result.tried.begin(), result.tried.end(), [](const Candidate& c) {
    return c.infeasible.empty() && c.plan.order != OrderPolicy::kOneFOneB;
  });
  ASSERT_NE(other, result.tried.end());
  EXPECT_LT(result.best().prediction.step, 0.8 * other->prediction.step);
}

}  // namespace
}  // namespace hetermoe::testing
