#include "hetermoe/balance/node_ports.h"

#include <algorithm>
#include <map>

#include "hetermoe/base/index.h"
#include "hetermoe/routing/expert_phases.h"
#include "hetermoe/routing/metrics.h"

namespace hetermoe {
namespace {

/// Share of its node's port that a device has, alone or with others: balancers know the whole port alone.
double part_of_port(const Plan& plan, const Cluster& cluster, DeviceId device) {
  if (plan.nics.empty()) return 1;
  const Network network(cluster, plan.nics);
  return network.bandwidth(network.port(network.net_port(device))) /
         cluster.nodes[idx(cluster.node_of(device))].network;
}

/// Seconds at the port of a device's node for a copy that comes from another node, all phases. Its rows are a
/// part of one: a token whose experts share a device is sent once.
Seconds copy_seconds_at_port(const CostModel& cost, const Placement& placement, const ModelConfig& model,
                             const Cluster& cluster, Op op, DeviceId device, double rows) {
  const Plan& plan = placement.plan();
  const std::vector<Phase> phases = expert_phases(plan);
  Seconds sum = 0;
  for (const OpKind kind : {OpKind::kDispatch, OpKind::kCombine}) {
    for (const Phase phase : phases) {
      op.kind = kind;
      op.phase = phase;
      const PortBytes bytes = {.net_in = wire_bytes(op, plan, model.hidden, rows, 1)};
      const TransferCost transfer = cost.transfer({op, {&device, 1}, {&bytes, 1}});
      sum += transfer.seconds() - transfer.latency;
    }
  }
  return sum * part_of_port(plan, cluster, device);
}

}  // namespace

std::vector<NodePort> node_ports(const CostModel& cost, const Placement& placement, const ModelConfig& model,
                                 const Cluster& cluster, i32 group, i32 layer, Seconds unit) {
  Op op;
  op.kind = OpKind::kDispatch;
  op.group = static_cast<std::int16_t>(group);
  op.layer = layer;
  op.microbatch = 0;
  const TokenRanges sources = placement.ranges(op);
  const ExchangeLoad even = ExpectedRouting(model).exchange(placement, group, layer, 0, 0);
  const double rows = sum_of(even.rows_per_token) / sum_of(even.copies_per_token);
  const double tokens = sum_of(even.tokens);
  std::map<NodeId, NodePort> ports;
  const auto port_of = [&](DeviceId device) -> NodePort& {
    NodePort& port = ports[cluster.devices[idx(device)].node];
    if (port.copy_s == 0) {
      port.node = cluster.devices[idx(device)].node;
      port.copy_s = copy_seconds_at_port(cost, placement, model, cluster, op, device, rows) / unit;
    }
    return port;
  };
  for (const DeviceId device : placement.owners(group, layer)) port_of(device);
  for (std::size_t s = 0; s < sources.size(); ++s)
    port_of(sources.device(s)).tokens += even.tokens[s] / std::max(tokens, 1.0);
  if (ports.size() < 2 || tokens <= 0) return {};
  std::vector<NodePort> out;
  for (const auto& [node, port] : ports) out.push_back(port);
  return out;
}

}  // namespace hetermoe
