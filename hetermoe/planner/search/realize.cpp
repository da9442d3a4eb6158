#include <algorithm>
#include <map>
#include <numeric>

#include "hetermoe/balance/balancers.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/integer_split.h"
#include "hetermoe/planner/estimate/continuous_split.h"
#include "hetermoe/planner/search/same_group.h"

// From a sketch to a plan: whole sequences per microbatch, whole experts per layer.
namespace hetermoe {
namespace {

/// Rounds one group.
class GroupMaker {
 public:
  GroupMaker(const Rates& rates, const Sketch& sketch, const SketchGroup& group, double squeeze)
      : rates_(rates), sketch_(sketch), shape_(group), squeeze_(squeeze), model_(rates.request().model) {}

  Group make() {
    list_devices();
    Group group;
    group.devices = devices_;
    std::sort(group.devices.begin(), group.devices.end());
    group.microbatches =
        proportional_split(shape_.sequences, std::vector<double>(idx(shape_.microbatches), 1));
    const Shares shares = make_shares(group.microbatches);
    group.embed = group.head = shares;
    std::vector<LayerOwners> owners = place_experts();
    std::size_t moe = 0;
    for (i64 l = 0; l < model_.num_layers; ++l) {
      LayerPlacement layer{shares, {}};
      if (model_.is_moe(l)) layer.experts = std::move(owners[moe++]);
      group.layers.push_back(std::move(layer));
    }
    return group;
  }

 private:
  void list_devices() {
    std::optional<Shortage> shortage;
    const std::vector<double> quota = quotas(rates_, sketch_, shape_);
    for (const Part& part : split_work(rates_, sketch_, shape_, sketch_.groups.size(), shortage)) {
      for (const DeviceId device : devices_of(part)) {
        devices_.push_back(device);
        parts_.push_back(part);
        if (part.attention) {
          attention_.push_back(device);
          weights_.push_back(quota[part.cls]);
        }
      }
    }
  }

  /// The devices of a class are taken in turn over their nodes: what not all of them do is then done on all
  /// nodes, by whose ports it goes.
  std::vector<DeviceId> devices_of(const Part& part) const {
    const std::vector<DeviceId>& all = rates_.classes()[part.cls].devices;
    const i64 begin = shape_.first[part.cls];
    std::map<NodeId, i64> on_node, seen;
    for (i64 i = begin; i < begin + shape_.count[part.cls]; ++i) ++on_node[node_of(all[idx(i)])];
    std::vector<std::pair<double, DeviceId>> ranked;  // place on its node, from 0 to 1
    for (i64 i = begin; i < begin + shape_.count[part.cls]; ++i) {
      const NodeId node = node_of(all[idx(i)]);
      ranked.emplace_back((real(seen[node]++) + 0.5) / real(on_node[node]), all[idx(i)]);
    }
    std::sort(ranked.begin(), ranked.end());
    const i64 skipped = part.attention ? 0 : shape_.attention[part.cls];
    std::vector<DeviceId> devices;
    for (i64 i = skipped; i < skipped + static_cast<i64>(part.count); ++i)
      devices.push_back(ranked[idx(i)].second);
    return devices;
  }

  /// Sequences of each device over the step in whole numbers, then spread over the microbatches.
  Shares make_shares(const std::vector<i64>& microbatches) {
    const std::vector<i64> totals = proportional_split(shape_.sequences, weights_);
    Shares rows;
    for (const std::vector<i64>& parts : spread(microbatches, totals)) {
      ShareRow row;
      for (std::size_t i = 0; i < parts.size(); ++i) row.push_back({attention_[i], parts[i]});
      rows.push_back(std::move(row));
    }
    if (std::all_of(rows.begin(), rows.end(), [&](const ShareRow& row) { return row == rows[0]; }))
      rows.resize(1);
    std::size_t next = 0;
    for (Part& part : parts_) {
      if (!part.attention) continue;
      part.attention_s *= real(totals[next]) / std::max(1e-9, weights_[next]);
      ++next;
    }
    return rows;
  }

  /// [layers with experts]
  std::vector<LayerOwners> place_experts() const {
    if (model_.num_moe_layers() == 0) return {};
    BalanceInput input;
    input.load = even_load(model_.num_moe_layers(), model_.num_experts);
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      const Part& part = parts_[i];
      input.devices.push_back({.id = devices_[i],
                               .node = node_of(devices_[i]),
                               .unit_s = part.unit_s,
                               .busy = part.attention_s,
                               .room = static_cast<i64>(expert_room(rates_, part, squeeze_)),
                               .owns = part.experts});
    }
    const bool by_part = sketch_.rounding == Rounding::kByPart;
    return find_balancer(by_part ? "level_by_part" : "level_by_device").place(input);
  }

  NodeId node_of(DeviceId device) const { return rates_.request().cluster.devices[idx(device)].node; }

  const Rates& rates_;
  const Sketch& sketch_;
  const SketchGroup& shape_;
  double squeeze_;
  const ModelConfig& model_;
  std::vector<DeviceId> devices_, attention_;
  std::vector<double> weights_;  // [attention_]
  std::vector<Part> parts_;      // [devices_]
};

/// [device] of the group of `from` its counterpart in that of `to`, which is alike.
std::vector<DeviceId> counterparts(const Rates& rates, const SketchGroup& from, const SketchGroup& to) {
  std::vector<DeviceId> device(rates.request().cluster.devices.size(), -1);
  for (std::size_t c = 0; c < from.count.size(); ++c) {
    const std::vector<DeviceId>& all = rates.classes()[c].devices;
    for (i64 i = 0; i < from.count[c]; ++i) {
      device[static_cast<std::size_t>(all[idx(from.first[c] + i)])] = all[idx(to.first[c] + i)];
    }
  }
  return device;
}

Group first_layers(const Group& group, i64 layers) {
  Group out;
  out.devices = group.devices;
  out.microbatches = group.microbatches;
  out.embed = group.embed, out.head = group.head;
  out.layers.assign(group.layers.begin(), group.layers.begin() + layers);
  return out;
}

}  // namespace

std::vector<Group> realize_kinds(const Rates& rates, const Sketch& sketch, double squeeze) {
  std::vector<Group> kinds;
  for (std::size_t g = 0; g < sketch.groups.size(); ++g) {
    if (g > 0 && alike(sketch.groups[g], sketch.groups[g - 1])) continue;
    kinds.push_back(GroupMaker(rates, sketch, sketch.groups[g], squeeze).make());
  }
  return kinds;
}

std::vector<i64> groups_of_kinds(const Sketch& sketch) {
  std::vector<i64> groups;
  for (std::size_t g = 0; g < sketch.groups.size(); ++g) {
    if (g == 0 || !alike(sketch.groups[g], sketch.groups[g - 1])) groups.push_back(0);
    ++groups.back();
  }
  return groups;
}

Plan assemble(const Rates& rates, const Sketch& sketch, const std::vector<Group>& kinds, i64 layers) {
  Plan plan = blank_plan(rates.request(), sketch.recompute);
  plan.shard_optimizer = sketch.shard_optimizer;
  plan.strategy = "planned";
  plan.window = sketch.window;
  plan.chunks = sketch.chunks;
  std::size_t kind = 0;
  for (std::size_t g = 0; g < sketch.groups.size(); ++g) {
    const SketchGroup& group = sketch.groups[g];
    if (g > 0 && alike(group, sketch.groups[g - 1])) {
      plan.groups.push_back(
          with_devices(plan.groups[g - 1], counterparts(rates, sketch.groups[g - 1], group)));
      continue;
    }
    plan.groups.push_back(first_layers(kinds[kind++], layers));
  }
  settle_homes(rates.request(), plan);
  return plan;
}

Plan realize(const Rates& rates, const Sketch& sketch, double squeeze) {
  return assemble(rates, sketch, realize_kinds(rates, sketch, squeeze), rates.request().model.num_layers);
}

}  // namespace hetermoe
