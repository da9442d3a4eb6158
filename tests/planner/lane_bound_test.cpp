#include "hetermoe/planner/estimate/lane_bound.h"

#include <gtest/gtest.h>

#include "hetermoe/planner/strategies/strategies.h"

namespace hetermoe {
namespace {

class LaneBound : public ::testing::Test {
 protected:
  LaneBound() {
    request_.model = load_model("d1");
    request_.cluster = load_cluster("o1");
    // Nothing but the compute lanes takes time.
    for (Node& node : request_.cluster.nodes) node.network = node.local = 1e15;
    request_.seq_len = 1024;
    request_.sequences = 24;
  }

  Plan zebra() const {
    StrategyRequest ask;
    ask.seq_len = request_.seq_len;
    ask.sequences = request_.sequences;
    ask.microbatches = 4;
    Plan plan = find_strategy("zebra").make(request_.model, request_.cluster, ask);
    plan.dtype.assign(plan.dtype.size(), request_.dtype);
    plan.wire_forward = plan.wire_backward = wire_of(request_.dtype);
    return plan;
  }

  /// Every expert of the plan on all of its expert devices, the first of which computes `share` of it.
  Plan replicated(double share) const {
    Plan plan = zebra();
    const std::vector<DeviceId> devices = default_roles(request_.cluster).experts;
    ExpertOwners owners;
    const double other = (1 - share) / static_cast<double>(devices.size() - 1);
    for (const DeviceId device : devices) owners.push_back({device, owners.empty() ? share : other});
    for (LayerPlacement& layer : plan.groups[0].layers) {
      for (ExpertOwners& of_expert : layer.experts) of_expert = owners;
    }
    return plan;
  }

  double over_step(const Plan& plan) const {
    return lane_bound(Rates(request_), plan) / Predictor(request_.model, request_.cluster).predict(plan).step;
  }

  PlanRequest request_;
};

TEST_F(LaneBound, IsBelowTheStepAndNotFarBelow) {
  EXPECT_LE(over_step(zebra()), 1);
  EXPECT_GT(over_step(zebra()), 0.5);
}

TEST_F(LaneBound, ChargesReplicasByTheirShares) {
  EXPECT_LE(over_step(replicated(1.0 / 6)), 1);
  EXPECT_LE(over_step(replicated(0.05)), 1);
  // A device that computes nearly all of the experts bounds the step.
  EXPECT_GT(lane_bound(Rates(request_), replicated(0.95)),
            2 * lane_bound(Rates(request_), replicated(1.0 / 6)));
}

}  // namespace
}  // namespace hetermoe
