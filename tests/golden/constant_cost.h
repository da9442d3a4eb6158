#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "hetermoe/cost/price.h"
#include "hetermoe/sim/simulator.h"

namespace hetermoe::test {

/// Constant times, as in worked examples: what is not named here takes no time.
struct ConstantCost : CostModel {
  Seconds attention = 0;          ///< T_A, forward
  Seconds experts = 0;            ///< T_E, all experts of a layer on an expert device
  Seconds experts_elsewhere = 0;  ///< T_X, the same experts on an attention device
  Seconds transfer_time = 0;      ///< T_C
  Seconds move_time = 0;          ///< of rows between devices with attention
  Seconds tail = 0;               ///< head, forward
  double backward = 2;            ///< backward over forward
  i64 num_experts = 1;            ///< per layer
  DeviceId first_expert_device = 1;

  Seconds compute(const ComputeWork& work) const override {
    const double factor = work.op.phase == Phase::kBackward ? backward : 1;
    switch (*row_of(work.op.kind).pricing) {
      case Pricing::kAttention:
        return factor * attention;
      case Pricing::kExperts: {
        const double part = work.experts / static_cast<double>(num_experts);
        return factor * part * (work.device >= first_expert_device ? experts : experts_elsewhere);
      }
      case Pricing::kHead:  // forward and backward in one
        return (1 + backward) * tail;
      case Pricing::kProjection:
      case Pricing::kScores:
      case Pricing::kEmbedding:
      case Pricing::kMerge:
      case Pricing::kUpdate:
      case Pricing::kHostCopy:
        break;
    }
    return 0;
  }
  TransferCost transfer(const TransferWork& work) const override {
    const bool exchange = work.op.kind == OpKind::kDispatch || work.op.kind == OpKind::kCombine;
    return {exchange ? transfer_time : work.op.kind == OpKind::kMove ? move_time : 0, {}};
  }
};

struct SimulatedPlan {
  Schedule schedule;
  OpTimes times;

  /// Latest end of the ops of this kind.
  Seconds last_end(OpKind kind) const {
    Seconds end = 0;
    for (std::size_t op = 0; op < schedule.ops.size(); ++op) {
      if (schedule.ops[op].kind == kind) end = std::max(end, times.end[op]);
    }
    return end;
  }

  /// Idle times of a compute lane between its first and last op of this kind.
  std::vector<std::pair<Seconds, Seconds>> gaps(DeviceId device, OpKind last_kind) const {
    std::vector<std::pair<Seconds, Seconds>> out, found;
    Seconds busy_until = -1;
    for (OpId op = 0; op < schedule.num_ops(); ++op) {
      const auto i = static_cast<std::size_t>(op);
      if (schedule.lanes_of(op)[0] != lane_of(device, Queue::kCompute) || times.end[i] == times.start[i])
        continue;
      if (busy_until >= 0 && times.start[i] > busy_until) found.emplace_back(busy_until, times.start[i]);
      busy_until = times.end[i];
      if (schedule.ops[i].kind == last_kind) out = found;
    }
    return out;
  }
};

inline SimulatedPlan simulate(const Plan& plan, const ModelConfig& model, const Cluster& cluster,
                              const CostModel& cost, const StepOptions& options = {}) {
  SimulatedPlan out;
  out.schedule = build_schedule(plan, model, options);
  const Placement placement(plan, model, options);
  Simulator simulator;
  out.times = simulator.run(out.schedule,
                            price(out.schedule, placement, model, cluster, cost, ExpectedRouting(model)));
  return out;
}

/// The forward pass of the paper's worked example: 6 experts per layer, T_A = 3, T_E = T_X = 4, T_C = 1.
inline SimulatedPlan simulate_worked_example(const Plan& plan, const ModelConfig& model,
                                             const Cluster& cluster) {
  ConstantCost cost;
  cost.attention = 3;
  cost.experts = cost.experts_elsewhere = 4;
  cost.transfer_time = 1;
  cost.num_experts = 6;
  StepOptions forward;
  forward.backward = false;
  return simulate(plan, model, cluster, cost, forward);
}

}  // namespace hetermoe::test
