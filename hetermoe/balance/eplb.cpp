#include "hetermoe/balance/eplb.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "hetermoe/base/index.h"
#include "hetermoe/routing/exact_split.h"

namespace hetermoe {
namespace {

/// [packs] items, equally many in each: the heaviest first, to the lightest pack with room.
std::vector<std::vector<std::size_t>> pack(const std::vector<double>& weights, std::size_t num_packs) {
  std::vector<std::vector<std::size_t>> packs(num_packs);
  const std::size_t room = weights.size() / num_packs;
  if (room == 1) {
    for (std::size_t i = 0; i < num_packs; ++i) packs[i] = {i};
    return packs;
  }
  std::vector<double> load(num_packs, 0);
  for (const std::size_t item : heaviest_first(weights)) {
    std::size_t best = num_packs;
    for (std::size_t p = 0; p < num_packs; ++p) {
      if (packs[p].size() < room && (best == num_packs || load[p] < load[best])) best = p;
    }
    packs[best].push_back(item);
    load[best] += weights[item];
  }
  return packs;
}

/// Copies of items: which item each is, and how many each item has.
struct Copies {
  std::vector<std::size_t> item;
  std::vector<double> count;
};

/// The item with the most load per copy gets the next one.
Copies replicate(const std::vector<double>& weights, std::size_t num_copies) {
  Copies copies;
  copies.count.assign(weights.size(), 1);
  for (std::size_t i = 0; i < weights.size(); ++i) copies.item.push_back(i);
  while (copies.item.size() < num_copies) {
    std::size_t busiest = 0;
    for (std::size_t i = 1; i < weights.size(); ++i) {
      if (weights[i] / copies.count[i] > weights[busiest] / copies.count[busiest]) busiest = i;
    }
    copies.item.push_back(busiest);
    copies.count[busiest] += 1;
  }
  return copies;
}

std::vector<double> loads_of(const Copies& copies, const std::vector<double>& weights) {
  std::vector<double> loads;
  for (const std::size_t item : copies.item) loads.push_back(weights[item] / copies.count[item]);
  return loads;
}

/// [nodes] experts of each node: whole groups.
std::vector<std::vector<std::size_t>> experts_of_nodes(const std::vector<double>& weights,
                                                       const EplbShape& shape) {
  const std::size_t size = weights.size() / idx(shape.groups);
  std::vector<double> of_group(idx(shape.groups), 0);
  for (std::size_t e = 0; e < weights.size(); ++e) of_group[e / size] += weights[e];
  std::vector<std::vector<std::size_t>> out;
  for (const std::vector<std::size_t>& groups : pack(of_group, idx(shape.nodes))) {
    out.emplace_back();
    for (const std::size_t group : groups) {
      for (std::size_t e = 0; e < size; ++e) out.back().push_back(group * size + e);
    }
  }
  return out;
}

}  // namespace

std::vector<std::size_t> heaviest_first(const std::vector<double>& weights) {
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return weights[a] > weights[b]; });
  return order;
}

bool EplbShape::fits(i64 num_experts) const {
  return slots >= num_experts && num_experts % groups == 0 && devices % nodes == 0 && slots % devices == 0;
}

std::vector<ExpertId> eplb_slots(const std::vector<double>& weights, const EplbShape& given) {
  EplbShape shape = given;
  HM_CHECK(shape.fits(static_cast<i64>(weights.size())), "{} experts do not fit {} slots", weights.size(),
           shape.slots);
  if (shape.groups % shape.nodes != 0) shape.groups = shape.nodes = 1;
  std::vector<ExpertId> slots;
  for (const std::vector<std::size_t>& experts : experts_of_nodes(weights, shape)) {
    std::vector<double> of_node;
    for (const std::size_t expert : experts) of_node.push_back(weights[expert]);
    const Copies copies = replicate(of_node, idx(shape.slots / shape.nodes));
    for (const auto& device : pack(loads_of(copies, of_node), idx(shape.devices / shape.nodes))) {
      for (const std::size_t copy : device)
        slots.push_back(static_cast<ExpertId>(experts[copies.item[copy]]));
    }
  }
  return slots;
}

std::vector<std::vector<ExpertId>> weighted_eplb_slots(const std::vector<double>& weights,
                                                       const std::vector<EplbDevice>& devices) {
  i64 all = 0;
  for (const EplbDevice& device : devices) all += device.slots;
  HM_CHECK(all >= static_cast<i64>(weights.size()), "{} slots for {} experts", all, weights.size());
  const Copies copies = replicate(weights, idx(all));
  const std::vector<double> copy_loads = loads_of(copies, weights);
  std::vector<std::vector<ExpertId>> out(devices.size());
  std::vector<double> load(devices.size(), 0);
  for (const std::size_t copy : heaviest_first(copy_loads)) {
    std::size_t best = devices.size();
    double earliest = 0;
    for (std::size_t d = 0; d < devices.size(); ++d) {
      if (static_cast<i64>(out[d].size()) >= devices[d].slots) continue;
      const double end = (load[d] + copy_loads[copy]) / devices[d].speed;
      if (best == devices.size() || end < earliest) best = d, earliest = end;
    }
    out[best].push_back(static_cast<ExpertId>(copies.item[copy]));
    load[best] += copy_loads[copy];
  }
  return out;
}

std::vector<i64> slots_by_speed(const std::vector<double>& speeds, const std::vector<i64>& most, i64 all) {
  std::vector<i64> slots(speeds.size(), 0);
  for (i64 given = 0; given < all; ++given) {
    std::size_t best = speeds.size();  // whose next slot takes it least beyond its part
    const auto key = [&](std::size_t d) { return real(2 * slots[d] + 1) / speeds[d]; };
    for (std::size_t d = 0; d < speeds.size(); ++d) {
      if (slots[d] < most[d] && (best == speeds.size() || key(d) < key(best))) best = d;
    }
    if (best == speeds.size()) break;
    ++slots[best];
  }
  return slots;
}

LayerOwners owners_of_slots(const std::vector<std::vector<ExpertId>>& slots,
                            const std::vector<DeviceId>& devices, i64 num_experts) {
  std::vector<double> count(idx(num_experts), 0);
  for (const std::vector<ExpertId>& of_device : slots) {
    for (const ExpertId expert : of_device) count[idx(expert)] += 1;
  }
  std::vector<std::map<DeviceId, double>> shares(idx(num_experts));
  for (std::size_t d = 0; d < slots.size(); ++d) {
    for (const ExpertId expert : slots[d]) shares[idx(expert)][devices[d]] += 1 / count[idx(expert)];
  }
  LayerOwners owners(idx(num_experts));
  for (std::size_t e = 0; e < owners.size(); ++e) {
    for (const auto& [device, share] : shares[e]) owners[e].push_back({.device = device, .share = share});
  }
  return owners;
}

LayerOwners split_owners(const LayerOwners& owners, const std::vector<double>& weights,
                         const std::vector<DeviceId>& devices, const std::vector<double>& speeds,
                         IdleOwners idle) {
  constexpr double kMostCopies = 1e9, kMostSpeed = 1e6;  // whole numbers as fine as that
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double fastest = *std::max_element(speeds.begin(), speeds.end());
  std::vector<i64> copies, whole_speeds;
  for (const double weight : weights)
    copies.push_back(sum > 0 ? std::llround(kMostCopies * weight / sum) : 0);
  for (const double speed : speeds)
    whole_speeds.push_back(std::max<i64>(1, std::llround(kMostSpeed * speed / fastest)));
  std::vector<std::vector<i32>> hosts;
  for (const ExpertOwners& of_expert : owners) {
    hosts.emplace_back();
    for (const ExpertOwner& owner : of_expert) {
      const auto at = std::find(devices.begin(), devices.end(), owner.device) - devices.begin();
      hosts.back().push_back(static_cast<i32>(at));
    }
  }
  const ExactSplit split = exact_split(copies, hosts, whole_speeds);
  LayerOwners out(owners.size());
  for (std::size_t e = 0; e < owners.size(); ++e) {
    const double all = real(copies[e]) * real(split.den);
    for (std::size_t h = 0; h < owners[e].size(); ++h) {
      const double share = all > 0 ? real(split.copies[e][h]) / all : owners[e][h].share;
      if (share > 0 || idle == IdleOwners::kKeep)
        out[e].push_back({.device = owners[e][h].device, .share = share});
    }
  }
  return out;
}

i64 wasted_slots(const std::vector<std::vector<ExpertId>>& slots) {
  i64 wasted = 0;
  for (std::vector<ExpertId> of_device : slots) {
    std::sort(of_device.begin(), of_device.end());
    wasted += of_device.end() - std::unique(of_device.begin(), of_device.end());
  }
  return wasted;
}

namespace {

/// The devices that own, as one layer of the input sees them.
struct Owners {
  std::vector<DeviceId> devices;
  std::vector<double> speeds;
  std::vector<EplbDevice> of_layer;
  EplbShape shape;
  bool equal = false;  ///< EPLB's own rules serve
};

bool in_equal_nodes(const std::vector<BalanceDevice>& devices, i64& num_nodes) {
  std::vector<i64> sizes;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (i == 0 || devices[i].node != devices[i - 1].node) sizes.push_back(0);
    ++sizes.back();
  }
  num_nodes = static_cast<i64>(sizes.size());
  return std::all_of(sizes.begin(), sizes.end(), [&](i64 size) { return size == sizes[0]; });
}

Owners owners_of_layer(const BalanceInput& input, i64 num_experts) {
  const std::vector<BalanceDevice> owning = owning_devices(input);
  Owners out;
  std::vector<double>& speeds = out.speeds;
  std::vector<i64> most;
  for (const BalanceDevice& device : owning) {
    out.devices.push_back(device.id);
    speeds.push_back(device.speed());
    most.push_back(device.room == kUnlimitedRoom ? kUnlimitedRoom
                                                 : device.room / static_cast<i64>(input.load.size()));
  }
  std::vector<i64> slots = slots_by_speed(speeds, most, num_experts + input.replicas);
  i64 all = std::accumulate(slots.begin(), slots.end(), i64{0});
  for (std::size_t d = 0; all < num_experts; d = (d + 1) % slots.size(), ++all)
    ++slots[d];  // too little room
  for (std::size_t d = 0; d < slots.size(); ++d) out.of_layer.push_back({speeds[d], slots[d]});
  out.shape = {.slots = all,
               .groups = std::max<i64>(1, input.groups),
               .nodes = 1,
               .devices = static_cast<i64>(slots.size())};
  const auto same = [&](const EplbDevice& device) {
    return device.speed == out.of_layer[0].speed && device.slots == out.of_layer[0].slots;
  };
  out.equal = in_equal_nodes(owning, out.shape.nodes) &&
              std::all_of(out.of_layer.begin(), out.of_layer.end(), same) && out.shape.fits(num_experts);
  return out;
}

}  // namespace

std::vector<LayerOwners> place_eplb(const BalanceInput& input) {
  std::vector<LayerOwners> out;
  for (const std::vector<double>& load : input.load) {
    const auto num_experts = static_cast<i64>(load.size());
    const Owners owners = owners_of_layer(input, num_experts);
    std::vector<std::vector<ExpertId>> slots;
    if (owners.equal) {
      const std::vector<ExpertId> all = eplb_slots(load, owners.shape);
      const std::size_t each = all.size() / owners.devices.size();
      for (std::size_t d = 0; d < owners.devices.size(); ++d)
        slots.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(d * each),
                           all.begin() + static_cast<std::ptrdiff_t>((d + 1) * each));
    } else {
      slots = weighted_eplb_slots(load, owners.of_layer);
    }
    LayerOwners placed = owners_of_slots(slots, owners.devices, num_experts);
    // Even shares, which EPLB gives, are wrong for an expert that is on a fast and on a slow device.
    if (!owners.equal) placed = split_owners(placed, load, owners.devices, owners.speeds);
    out.push_back(std::move(placed));
  }
  return out;
}

}  // namespace hetermoe
