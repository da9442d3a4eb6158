#pragma once
#include <numeric>
#include <random>

#include "hetermoe/cost/price.h"
#include "tests/schedule/plans.h"

namespace hetermoe::test {

struct RandomCase {
  ModelConfig model;
  Cluster cluster;
  Plan plan;
  StepOptions options;
};

/// Plans of every kind that the structures allow, most of them ones that nobody would choose.
class RandomPlans {
 public:
  explicit RandomPlans(unsigned seed) : random_(seed) {}

  RandomCase make() {
    RandomCase c;
    make_model_and_cluster(c);
    Plan& plan = c.plan;
    plan.strategy = "random";
    plan.model = c.model.name;
    plan.seq_len = number(1, 5);
    plan.dtype.assign(static_cast<std::size_t>(c.cluster.num_devices()), Dtype::kFp32);
    plan.order = chance(0.3)   ? OrderPolicy::kOneFOneB
                 : chance(0.3) ? OrderPolicy::kTimed
                               : OrderPolicy::kLayerMajor;
    if (plan.order == OrderPolicy::kTimed && chance(0.8)) expect_times(c);
    plan.window = static_cast<i32>(number(0, 3));
    plan.chunks = static_cast<i32>(chance(0.5) ? 1 : number(2, 3));
    plan.queue_binding = static_cast<QueueBinding>(number(0, kEnumCount<QueueBinding> - 1));
    plan.recompute = static_cast<Recompute>(number(0, 2));
    plan.row_dedup = chance(0.5);
    plan.wire_backward = chance(0.5) ? Wire::kFp32 : Wire::kFp16;
    make_groups(c);
    c.options.backward = chance(0.9);
    c.options.balance = chance(0.5);
    // A load-balancing group may span microbatches only where all of them are in flight together.
    const bool together = plan.order == OrderPolicy::kLayerMajor && plan.window == 0;
    c.options.aux_group = together && chance(0.5) ? 0 : 1;
    if (chance(0.4)) differ_in_recompute(plan);
    if (chance(0.4)) plan.weight_gradients = WeightGradients::kAfter;
    return c;
  }

  i64 number(i64 low, i64 high) { return std::uniform_int_distribution<i64>(low, high)(random_); }
  bool chance(double p) { return std::bernoulli_distribution(p)(random_); }

 private:
  /// Any times, 0 among them.
  void expect_times(RandomCase& c) {
    const auto time = [&] { return 0.5 * static_cast<double>(number(0, 6)); };
    ExpectedTimes expected;
    expected.transfer = time(), expected.head = time(), expected.backward = time();
    for (std::vector<double>* of : {&expected.attention, &expected.experts}) {
      of->assign(chance(0.5) ? 1 : static_cast<std::size_t>(c.model.num_layers), 0);
      for (double& each : *of) each = time();
    }
    c.plan.expected = std::move(expected);
  }

  void differ_in_recompute(Plan& plan) {
    for (Group& group : plan.groups) {
      for (LayerPlacement& layer : group.layers) {
        if (chance(0.7)) layer.recompute = static_cast<Recompute>(number(0, kEnumCount<Recompute> - 1));
      }
    }
  }

  void make_model_and_cluster(RandomCase& c) {
    ModelShape shape;
    shape.num_layers = number(1, 4);
    shape.num_experts = number(1, 6);
    shape.top_k = number(1, std::min<i64>(shape.num_experts, 3));
    for (i64 l = 0; l < shape.num_layers; ++l) {
      if (chance(0.2)) shape.dense.push_back(l);
    }
    c.model = make_model(shape);
    c.model.tie_embeddings = chance(0.3);
    std::vector<i32> nodes;
    for (i64 left = number(1, 8); left > 0;) {
      nodes.push_back(static_cast<i32>(number(1, left)));
      left -= nodes.back();
    }
    c.cluster = make_cluster(nodes, 2);
  }

  void make_groups(RandomCase& c) {
    std::vector<DeviceId> devices(c.cluster.devices.size());
    std::iota(devices.begin(), devices.end(), 0);
    std::shuffle(devices.begin(), devices.end(), random_);
    const std::size_t num_groups = devices.size() > 1 && chance(0.3) ? 2 : 1;
    for (std::size_t g = 0; g < num_groups; ++g) {
      const std::size_t begin = devices.size() * g / num_groups, end = devices.size() * (g + 1) / num_groups;
      c.plan.groups.push_back(make_group(c, {devices.begin() + static_cast<std::ptrdiff_t>(begin),
                                             devices.begin() + static_cast<std::ptrdiff_t>(end)}));
    }
  }

  Group make_group(const RandomCase& c, std::vector<DeviceId> devices) {
    Group group;
    group.devices = std::move(devices);
    for (i64 m = number(1, 4); m > 0; --m) group.microbatches.push_back(number(m == 1 ? 1 : 0, 3));
    const i64 how =
        number(0, 3);  // 0: equal shares in all stages, 1: pipeline, 2: any row per layer, 3: per microbatch
    Shares shares = rows(group, how == 3);
    group.embed = shares;
    for (i64 l = 0; l < c.model.num_layers; ++l) {
      if ((how == 1 && chance(0.5)) || how == 2) shares = rows(group, false);
      if (how == 3 && chance(0.5)) shares = rows(group, true);
      group.layers.push_back({shares, {}});
      if (!c.model.is_moe(l)) continue;
      for (i64 e = 0; e < c.model.num_experts; ++e) group.layers.back().experts.push_back(owners(group));
    }
    if (how == 2) shares = rows(group, false);
    group.head = shares;
    return group;
  }

  std::vector<DeviceId> some_of(const std::vector<DeviceId>& devices) {
    std::vector<DeviceId> all = devices;
    std::shuffle(all.begin(), all.end(), random_);
    all.resize(static_cast<std::size_t>(number(1, static_cast<i64>(all.size()))));
    return all;
  }

  Shares rows(const Group& group, bool per_microbatch) {
    const bool one_size = std::count(group.microbatches.begin(), group.microbatches.end(),
                                     group.microbatches[0]) == static_cast<i64>(group.microbatches.size());
    const std::vector<DeviceId> devices = some_of(group.devices);
    Shares rows;
    for (const i64 sequences : group.microbatches) {
      if (one_size && !per_microbatch && !rows.empty()) break;
      ShareRow row;
      for (const DeviceId d : per_microbatch ? some_of(group.devices) : devices) row.push_back({d, 0});
      for (i64 s = 0; s < sequences; ++s) {
        ++row[static_cast<std::size_t>(number(0, static_cast<i64>(row.size()) - 1))].sequences;
      }
      rows.push_back(row);
    }
    return rows;
  }

  ExpertOwners owners(const Group& group) {
    ExpertOwners owners;
    for (const DeviceId d : some_of(group.devices)) {
      owners.push_back({d, 0.5});
      if (owners.size() == 2 || chance(0.8)) break;
    }
    if (owners.size() == 1) owners[0].share = 1;
    return owners;
  }

  std::mt19937 random_;
};

/// Times by bytes and tokens, with ports as a real cost model has them.
struct PortCost : CostModel {
  explicit PortCost(const Cluster& of) : cluster(of) {}
  const Cluster& cluster;
  double slowdown = 0;

  Seconds compute(const ComputeWork& work) const override {
    const double size = work.tokens + 2 * work.copies + 1e-3 * work.params + work.merged_rows;
    return 1e-6 * size * (work.op.phase == Phase::kBackward ? 3 : 1) / (1 + work.device % 2);
  }
  TransferCost transfer(const TransferWork& work) const override {
    TransferCost cost;
    cost.latency = 1e-6 * static_cast<double>(work.participants.size());
    const Network network(cluster);
    std::vector<Seconds> ports(idx(network.num_ports()), 0);
    for (std::size_t i = 0; i < work.participants.size(); ++i) {
      network.for_each_port(work.participants[i], work.bytes[i], [&](i32 number, Bytes bytes) {
        const Port port = network.port(number);
        ports[idx(number)] +=
            bytes / (network.bandwidth(port) *
                     (port.kind == PortKind::kNode || port.kind == PortKind::kNic ? 1e-2 : 1e-3));
      });
    }
    for (std::size_t p = 0; p < ports.size(); ++p) {
      if (ports[p] > 0) cost.loads.push_back({static_cast<i32>(p), ports[p]});
    }
    return cost;
  }
  double interference(DeviceId) const override { return slowdown; }
};

}  // namespace hetermoe::test
