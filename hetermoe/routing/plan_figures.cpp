#include "hetermoe/routing/plan_figures.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>

#include "hetermoe/base/index.h"
#include "hetermoe/routing/expert_phases.h"

namespace hetermoe {
namespace {

/// Seconds of a device's expert work in a layer, all phases, with so many copies.
Seconds expert_seconds(const CostModel& cost, const Placement& placement, const WorkModel& work,
                       const Op& layer, DeviceId device, double copies) {
  ExchangeLoad load;
  const std::size_t num_owners = placement.owners(layer.group, layer.layer).size();
  load.tokens = {copies};
  load.rows_per_token.assign(num_owners, 1);
  load.copies_per_token.assign(num_owners, 1);
  Seconds sum = 0;
  for (const Phase phase : expert_phases(placement.plan())) {
    Op op = layer;
    op.phase = phase;
    sum += cost.compute(work.compute_work(op, device, &load));
  }
  return sum;
}

}  // namespace

std::vector<Seconds> copy_seconds(const CostModel& cost, const Placement& placement, const ModelConfig& model,
                                  const Cluster& cluster, i32 group, i32 layer, double copies) {
  if (placement.at_sources(group, layer)) {
    fail<ConfigError>(
        "plan",
        "computes the experts of layer {} where their tokens are: no owner has a load that could "
        "be uneven. Use a plan with experts_at: owners",
        layer);
  }
  const WorkModel work(placement, model, cluster);
  Op op;
  op.kind = OpKind::kExperts;
  op.group = static_cast<std::int16_t>(group);
  op.layer = layer;
  op.microbatch = 0;
  copies = std::max(copies, 1.0);
  std::vector<Seconds> per_copy;
  for (const DeviceId device : placement.owners(group, layer)) {
    const auto seconds = [&](double n) { return expert_seconds(cost, placement, work, op, device, n); };
    per_copy.push_back(std::max((seconds(2 * copies) - seconds(copies)) / copies, 1e-15));
  }
  return per_copy;
}

std::vector<double> expert_speeds(const CostModel& cost, const Placement& placement, const ModelConfig& model,
                                  const Cluster& cluster, i32 group, i32 layer, double copies) {
  std::vector<double> per_copy = copy_seconds(cost, placement, model, cluster, group, layer, copies);
  const double least = *std::min_element(per_copy.begin(), per_copy.end());
  for (double& c : per_copy) c = std::max(1.0, std::round(1e6 * least / c));
  return per_copy;
}

namespace {

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / real(values.size());
}

/// time_ratio() of the nodes that have owners, each with the copies and as fast as its owners together.
std::optional<double> ratio_of_nodes(const Cluster& cluster, const std::vector<DeviceId>& owners,
                                     const std::vector<double>& copies, const std::vector<double>& speeds) {
  std::map<NodeId, std::size_t> place;
  std::vector<double> node_copies, node_speeds;
  for (std::size_t o = 0; o < owners.size(); ++o) {
    const auto [node, fresh] = place.emplace(cluster.devices[idx(owners[o])].node, node_copies.size());
    if (fresh) {
      node_copies.push_back(0);
      node_speeds.push_back(0);
    }
    node_copies[node->second] += copies[o];
    node_speeds[node->second] += speeds[o];
  }
  return time_ratio(node_copies, node_speeds);
}

}  // namespace

std::vector<std::vector<double>> copies_of_devices(const Placement& placement, const RoutingLoad& routing,
                                                   const std::vector<DeviceId>& devices) {
  std::vector<std::vector<double>> out(idx(placement.num_devices()));
  for (const DeviceId device : devices) out[idx(device)].assign(idx(placement.num_layers()), 0);
  const auto add = [&](i32 group, i32 layer, i32 microbatch) {
    const std::vector<DeviceId>& owners = placement.owners(group, layer);
    const auto is_asked = [&](DeviceId device) { return !out[idx(device)].empty(); };
    if (std::none_of(owners.begin(), owners.end(), is_asked)) return;  // others know of this exchange
    for (i32 chunk = 0; chunk < placement.plan().chunks; ++chunk) {
      const ExchangeLoad load = routing.exchange(placement, group, layer, microbatch, chunk);
      for (std::size_t o = 0; o < owners.size(); ++o)
        if (is_asked(owners[o])) out[idx(owners[o])][idx(layer)] += load.copies_at(o);
    }
  };
  for (i32 l = 0; l < placement.num_layers(); ++l) {
    for (i32 g = 0; g < placement.num_groups(); ++g) {
      if (!placement.is_moe(l) || placement.at_sources(g, l)) continue;
      for (i32 m = 0; m < placement.num_microbatches(g); ++m) add(g, l, m);
    }
  }
  return out;
}

RoutingWatch::RoutingWatch(const CostModel& cost, const Placement& placement, const ModelConfig& model,
                           const Cluster& cluster)
    : cost_(cost),
      placement_(placement),
      model_(model),
      cluster_(cluster),
      speeds_(idx(placement.num_groups()), std::vector<std::vector<double>>(idx(placement.num_layers()))) {}

StepRouting RoutingWatch::of(const std::vector<std::vector<double>>& counts,
                             const std::vector<std::vector<double>>& computed) {
  FigureRange by_gini, by_rank, by_time;
  for (i32 l = 0; l < placement_.num_layers(); ++l) {
    if (!placement_.is_moe(l)) continue;
    by_gini.add(gini(counts[idx(l)]));
    for (i32 g = 0; g < placement_.num_groups(); ++g) {
      if (placement_.at_sources(g, l)) continue;  // experts are where their tokens are: nobody waits
      std::vector<double> copies;
      for (const DeviceId owner : placement_.owners(g, l)) copies.push_back(computed[idx(owner)][idx(l)]);
      std::vector<double>& speeds = speeds_[idx(g)][idx(l)];
      const double per_exchange = mean_of(copies) / real(placement_.num_microbatches(g));
      if (speeds.empty()) speeds = expert_speeds(cost_, placement_, model_, cluster_, g, l, per_exchange);
      by_rank.add(straggler_ratio(copies));
      by_time.add(time_ratio(copies, speeds));
    }
  }
  StepRouting out{.gini = by_gini.mean};
  if (by_rank.count > 0) out.rank_ratio = by_rank.mean;
  if (by_time.count > 0) out.time_ratio = by_time.mean;
  return out;
}

FigureRange PlanFigures::over_layers(FigureRange PlanLayerFigures::*figure) const {
  FigureRange range;
  for (const PlanLayerFigures& layer : layers) {
    if ((layer.*figure).count > 0) range.add((layer.*figure).mean);
  }
  return range;
}

PlanAnalyser::PlanAnalyser(const CostModel& cost, const Placement& placement, const ModelConfig& model,
                           const Cluster& cluster)
    : cost_(cost), placement_(placement), model_(model), cluster_(cluster) {
  for (const i64 layer : layers_with_experts(model)) {
    figures_.layers.push_back({.layer = layer, .time_ratio = {}, .rank_ratio = {}, .node_ratio = {}});
    speeds_.emplace_back(idx(placement.num_groups()));
  }
}

void PlanAnalyser::add_exchange(const RoutingLoad& routing, std::size_t layer, i32 group, i32 microbatch) {
  PlanLayerFigures& out = figures_.layers[layer];
  const auto l = static_cast<i32>(out.layer);
  const std::vector<DeviceId>& owners = placement_.owners(group, l);
  const TokenRanges sources = placement_.ranges(group, l, microbatch);
  std::optional<NodeRows> by_node;
  if (!placement_.plan().row_nodes.empty()) by_node.emplace(placement_.plan(), group, owners);
  std::vector<double> copies(owners.size(), 0);
  for (i32 chunk = 0; chunk < placement_.plan().chunks; ++chunk) {
    const ExchangeLoad load = routing.exchange(placement_, group, l, microbatch, chunk);
    for (std::size_t o = 0; o < owners.size(); ++o) {
      copies[o] += load.copies_at(o);
      for (std::size_t s = 0; s < sources.size(); ++s) {
        if (cluster_.devices[idx(sources.device(s))].node == cluster_.devices[idx(owners[o])].node) continue;
        figures_.node_copies += load.copies_between(s, o);
        if (!by_node || !by_node->relay(sources.device(s), by_node->node_of(o)))
          figures_.node_rows += load.rows_between(s, o);
      }
    }
    for (std::size_t s = 0; by_node && s < sources.size(); ++s)
      for (std::size_t n = 0; n < by_node->num_nodes(); ++n)
        figures_.node_rows += by_node->relay(sources.device(s), n) ? load.rows_to_node(s, n) : 0;
    tokens_ += std::accumulate(load.tokens.begin(), load.tokens.end(), 0.0);
  }
  std::vector<double>& speeds = speeds_[layer][idx(group)];
  if (speeds.empty()) speeds = expert_speeds(cost_, placement_, model_, cluster_, group, l, mean_of(copies));
  out.time_ratio.add(time_ratio(copies, speeds));
  out.rank_ratio.add(straggler_ratio(copies));
  out.node_ratio.add(ratio_of_nodes(cluster_, owners, copies, speeds));
}

void PlanAnalyser::add(const RoutingLoad& routing) {
  for (std::size_t l = 0; l < figures_.layers.size(); ++l) {
    for (i32 g = 0; g < placement_.num_groups(); ++g) {
      for (i32 m = 0; m < placement_.num_microbatches(g); ++m) add_exchange(routing, l, g, m);
    }
  }
}

PlanFigures PlanAnalyser::finish() const {
  PlanFigures out = figures_;
  if (tokens_ > 0) out.node_rows /= tokens_, out.node_copies /= tokens_;
  return out;
}

}  // namespace hetermoe
