#include "hetermoe/balance/trace_balance.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <set>

#include "hetermoe/balance/guest_cost.h"
#include "hetermoe/balance/node_ports.h"
#include "hetermoe/balance/sequence_order.h"
#include "hetermoe/base/index.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/routing/analysis.h"
#include "hetermoe/sim/simulator.h"

namespace hetermoe {

const std::vector<std::string>& EnumNames<Knows>::names() {
  static const std::vector<std::string> all = {"history", "foresight"};
  return all;
}

namespace {

/// What an expert device has in a microbatch of the plan.
double usual_copies(const Plan& plan, const ModelConfig& model, i32 group, std::size_t num_devices) {
  return real(microbatch_tokens(plan.groups[idx(group)], 0, plan) * model.top_k) / real(num_devices);
}

/// Speeds at a load that an expert device has in a microbatch of the plan.
std::vector<double> speeds_of(const std::vector<DeviceId>& devices, const CostModel& cost,
                              const Placement& placement, const ModelConfig& model, const Cluster& cluster,
                              i32 group, const std::vector<i64>& layers) {
  std::vector<double> out(devices.size(), 0);
  const double copies = usual_copies(placement.plan(), model, group, devices.size());
  for (const i64 layer : layers) {
    const auto l = static_cast<i32>(layer);
    const std::vector<DeviceId>& owners = placement.owners(group, l);
    const std::vector<double> speeds = expert_speeds(cost, placement, model, cluster, group, l, copies);
    for (std::size_t o = 0; o < owners.size(); ++o) out[position(devices, owners[o])] = speeds[o];
  }
  return out;
}

/// How many copies of experts `left` holds, spread over layers: each takes `states`, and the layer that has
/// most of them `once` for each.
i64 copies_in(Bytes left, Bytes states, Bytes once, i64 layers) {
  auto copies = static_cast<i64>(left / (states + once / real(layers)));
  const auto needs = [&](i64 count) {
    return real(count) * states + real((count + layers - 1) / layers) * once;
  };
  while (copies > 0 && needs(copies) > left) --copies;
  return copies;
}

}  // namespace

Plan with_owners(Plan plan, const Plan& from) {
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    for (std::size_t l = 0; l < plan.groups[g].layers.size(); ++l)
      plan.groups[g].layers[l].experts = from.groups[g].layers[l].experts;
  }
  return plan;
}

TraceBalance::TraceBalance(const ModelConfig& model, const Cluster& cluster, const Plan& plan,
                           const StepOptions& step, const ProfileSet& profiles)
    : model_(model),
      cluster_(cluster),
      plan_(plan),
      step_(step),
      placement_(plan_, model, step),
      cost_(make_cost(model, cluster, plan_, profiles)),
      layers_(layers_with_experts(model)) {
  for (i32 g = 0; g < placement_.num_groups(); ++g) {
    std::set<DeviceId> owners;
    for (const i64 layer : layers_) {
      const std::vector<DeviceId>& of_layer = placement_.owners(g, static_cast<i32>(layer));
      owners.insert(of_layer.begin(), of_layer.end());
    }
    devices_.emplace_back(owners.begin(), owners.end());
    speeds_.push_back(speeds_of(devices_.back(), *cost_, placement_, model, cluster, g, layers_));
  }
  find_room();
}

/// The plan with an expert more on every device that owns some, in so many of its layers.
Plan TraceBalance::with_experts_more(std::size_t num_layers) const {
  Plan more = plan_;
  for (std::size_t g = 0; g < devices_.size(); ++g) {
    for (std::size_t l = 0; l < num_layers; ++l) {
      LayerOwners& experts = more.groups[g].layers[idx(layers_[l])].experts;
      for (const DeviceId device : devices_[g]) {
        const auto is_not_its = [&](const ExpertOwners& owners) {
          return std::none_of(owners.begin(), owners.end(),
                              [&](const ExpertOwner& owner) { return owner.device == device; });
        };
        const auto other = std::find_if(experts.begin(), experts.end(), is_not_its);
        if (other != experts.end()) other->push_back({.device = device, .share = 0});
      }
    }
  }
  return more;
}

/// A copy takes its states in its layer. What the sum of gradients takes is there for one layer at a time, so
/// copies of a second layer do not add to it. Nobody knows what a device has room for while the plan itself
/// does not fit.
void TraceBalance::find_room() {
  for (const std::vector<DeviceId>& of_group : devices_) room_.emplace_back(of_group.size(), kUnlimitedRoom);
  const std::vector<Bytes> now = estimate_memory(plan_, model_);
  if (!overfilled_device(now, cluster_).empty()) return;
  const auto layers = static_cast<i64>(layers_.size());
  const std::vector<Bytes> in_one = estimate_memory(with_experts_more(1), model_);
  const std::vector<Bytes> in_two = layers > 1 ? estimate_memory(with_experts_more(2), model_) : in_one;
  for (std::size_t g = 0; g < devices_.size(); ++g) {
    std::vector<i64> owned(devices_[g].size(), 0);
    for (const i64 layer : layers_) {
      for (const ExpertOwners& owners : plan_.groups[g].layers[idx(layer)].experts) {
        for (const ExpertOwner& owner : owners) ++owned[position(devices_[g], owner.device)];
      }
    }
    for (std::size_t d = 0; d < devices_[g].size(); ++d) {
      const std::size_t device = idx(devices_[g][d]);
      const Bytes one = in_one[device] - now[device];
      const Bytes states = layers > 1 ? in_two[device] - in_one[device] : one;
      const Bytes left = usable_memory(cluster_.type_of(devices_[g][d])) - now[device];
      if (states > 0) room_[g][d] = owned[d] + copies_in(left, states, one - states, layers);
    }
  }
}

BalanceInput TraceBalance::input_of(i32 group, const Loads& loads) const {
  BalanceInput input;
  for (std::size_t d = 0; d < devices_[idx(group)].size(); ++d) {
    const DeviceId device = devices_[idx(group)][d];
    input.devices.push_back({.id = device,
                             .node = cluster_.devices[idx(device)].node,
                             .unit_s = 1 / speeds_[idx(group)][d],
                             .room = room_[idx(group)][d]});
  }
  input.load = loads;
  input.groups = std::max<i64>(1, model_.num_expert_groups);
  input.moved.assign(loads.size(), 0);
  return input;
}

/// All experts of a layer and their copies need room.
void TraceBalance::check_copies(const BalanceInput& input) const {
  if (input.replicas == 0) return;
  const auto layers = static_cast<i64>(layers_.size());
  const BalanceDevice* fullest = &input.devices[0];
  i64 slots = 0;
  for (const BalanceDevice& device : input.devices) {
    if (device.room == kUnlimitedRoom) return;
    slots += device.room / layers;
    if (device.room < fullest->room) fullest = &device;
  }
  if (slots >= model_.num_experts + input.replicas) return;
  const DeviceType& type = cluster_.type_of(fullest->id);
  fail<ConfigError>(
      "replicas",
      "got {} copies for the {} experts of a layer, for which there is no room: the devices that "
      "own hold {}; {} ({:.3g} GiB, {:.1f} usable) holds {}",
      input.replicas, model_.num_experts, slots, cluster_.device_name(fullest->id), type.memory_gib,
      usable_memory(type) / kGiB, fullest->room / layers);
}

std::vector<NodePort> TraceBalance::ports_of_group(i32 group) const {
  const auto layer = static_cast<i32>(layers_[0]);
  const DeviceId owner = placement_.owners(group, layer)[0];
  const std::size_t at = position(devices_[idx(group)], owner);
  const double copies = usual_copies(plan_, model_, group, devices_[idx(group)].size());
  const Seconds copy = copy_seconds(*cost_, placement_, model_, cluster_, group, layer, copies)[0];
  return node_ports(*cost_, placement_, model_, cluster_, group, layer, copy * speeds_[idx(group)][at]);
}

std::vector<i64> TraceBalance::split_speeds() const {
  std::vector<i64> out(idx(placement_.num_devices()), 1);
  for (std::size_t g = 0; g < devices_.size(); ++g) {
    for (std::size_t d = 0; d < devices_[g].size(); ++d)
      out[idx(devices_[g][d])] = std::llround(speeds_[g][d]);
  }
  return out;
}

std::vector<i64> TraceBalance::guest_cost(const TraceBalanceOptions& options) const {
  std::vector<i64> out(idx(placement_.num_devices()), options.guest_cost.value_or(0));
  if (options.guest_cost) return out;
  for (i32 g = 0; g < placement_.num_groups(); ++g) {
    const double copies = usual_copies(plan_, model_, g, devices_[idx(g)].size());
    for (const i64 layer : layers_) {
      const auto l = static_cast<i32>(layer);
      const std::vector<i64> costs =
          guest_costs(*cost_, placement_, model_, cluster_, g, l, copies,
                      {.slots = options.guests, .foreseen = options.knows == Knows::kForesight});
      const std::vector<DeviceId>& owners = placement_.owners(g, l);
      for (std::size_t o = 0; o < owners.size(); ++o)
        out[idx(owners[o])] = std::max(out[idx(owners[o])], costs[o]);
    }
  }
  return out;
}

std::vector<TraceBalance::Loads> TraceBalance::microbatches_of_group(i32 group,
                                                                     const TraceRouting& step) const {
  std::vector<Loads> out;
  for (const i64 layer : layers_) {
    out.emplace_back();
    for (i32 m = 0; m < placement_.num_microbatches(group); ++m) {
      out.back().emplace_back(idx(model_.num_experts), 0);
      for (i32 c = 0; c < plan_.chunks; ++c) {
        for (const std::vector<i64>& source : step.copies(placement_, group, static_cast<i32>(layer), m, c)) {
          for (std::size_t e = 0; e < source.size(); ++e) out.back().back()[e] += real(source[e]);
        }
      }
    }
  }
  return out;
}

/// What a balancer by use goes by: the domains, or else the sequences of the step.
void TraceBalance::add_usage(const TraceBalanceOptions& options, i32 group, const TraceRouting* step,
                             const DomainUse& use, BalanceInput& input) const {
  const PlacesOfGroup places =
      places_of_group(options.groups, cluster_, placement_, group, static_cast<i32>(layers_[0]));
  if (!use.empty())
    input.usage = usage_by_domains(places, layers_, model_.num_experts, use);
  else if (step != nullptr)
    input.usage = usage_by_clusters(places, step->header(), step->step());
  input.device_groups = places.groups;
  input.load_cap = options.load_cap;
}

Plan TraceBalance::placed(const TraceBalanceOptions& options, const Loads& loads, const TraceRouting* step,
                          const DomainUse& use) const {
  Plan plan = plan_;
  const BalancerChoice choice = balancer_choice(options.balancer, options.parts);
  const bool lends = choice.split == CopySplit::kGuests && options.guests > 0;
  // Where the step's choices are known nobody needs to tell counts.
  const bool by_counts = choice.split == CopySplit::kExact || choice.split == CopySplit::kGuests;
  plan.tally = by_counts && options.knows == Knows::kHistory;
  plan.foreseen = by_counts && !lends && options.knows == Knows::kForesight;
  plan.guest_slots = lends ? options.guests : 0;
  plan.guest_cost = lends ? guest_cost(options) : std::vector<i64>();
  const bool by_time = options.weigh == Weigh::kTime;
  plan.split_speeds = by_time ? split_speeds() : std::vector<i64>();
  if (choice.balancer == nullptr) return plan;
  for (i32 g = 0; g < placement_.num_groups(); ++g) {
    BalanceInput input = input_of(g, loads);
    for (BalanceDevice& device : input.devices) device.unit_s = by_time ? device.unit_s : 1;
    if (by_time) input.ports = ports_of_group(g);
    input.replicas = options.replicas;
    check_copies(input);
    input.guests = choice.split == CopySplit::kGuests ? options.guests : 0;
    input.topology = options.topology;
    if (step != nullptr) input.microbatches = microbatches_of_group(g, *step);
    if (choice.balancer->by_use) add_usage(options, g, step, use, input);
    const std::vector<LayerOwners> owners = choice.balancer->place(input);
    for (std::size_t l = 0; l < layers_.size(); ++l)
      plan.groups[idx(g)].layers[idx(layers_[l])].experts = owners[l];
  }
  return plan;
}

FigureRange TraceBalance::history_cost(const TraceStep& step) const {
  FigureRange range;
  const std::vector<std::pair<i64, i64>> microbatches = microbatches_of(step);
  const std::vector<DeviceId>& devices = devices_[0];
  const auto ratio = [&](const std::vector<double>& known, const std::vector<double>& counts) {
    const LayerOwners owners = find_balancer("lpt").place(input_of(0, {known}))[0];
    std::vector<double> loads(devices.size(), 0);
    for (std::size_t e = 0; e < counts.size(); ++e)
      loads[position(devices, owners[e][0].device)] += counts[e];
    return time_ratio(loads, speeds_[0]);
  };
  for (std::size_t l = 0; l < step.counts.size(); ++l) {
    for (std::size_t m = 1; m < microbatches.size(); ++m) {
      const auto counts = [&](std::size_t i) {
        return copies_of(step, l, model_.num_experts, microbatches[i].first, microbatches[i].second);
      };
      const std::optional<double> by_history = ratio(counts(m - 1), counts(m)),
                                  by_own = ratio(counts(m), counts(m));
      if (by_history && by_own) range.add(*by_history / *by_own);
    }
  }
  return range;
}

}  // namespace hetermoe
