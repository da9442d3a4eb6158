#include "hetermoe/routing/exchange_split.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hetermoe/base/index.h"

namespace hetermoe {

const std::vector<std::string>& EnumNames<CopySplit>::names() {
  static const std::vector<std::string> all = {"shares", "exact", "guests", "oracle"};
  return all;
}

std::vector<i64> owner_speeds(const Placement& placement, i32 group, i32 layer) {
  const std::vector<i64>& all = placement.plan().split_speeds;
  std::vector<i64> speeds;
  for (const DeviceId owner : placement.owners(group, layer))
    speeds.push_back(all.empty() ? 1 : all[idx(owner)]);
  return speeds;
}

CopySplit copy_split_of(const Plan& plan) {
  if (plan.guest_slots > 0) return CopySplit::kGuests;
  return divides_copies(plan) ? CopySplit::kExact : CopySplit::kShares;
}

void add_guests(ExchangeLoad& load, const SplitLayer& layer, const std::vector<Guest>& guests) {
  if (guests.empty()) return;
  load.guests = guests;
  load.instances.assign(layer.speeds.size(), 0);
  for (const std::vector<ExpertShare>& of_expert : layer.owners) {
    for (const ExpertShare& owner : of_expert) load.instances[idx(owner.destination)] += 1;
  }
  for (const Guest& guest : guests) load.instances[idx(guest.to)] += 1;
}

void count_guest_copies(ExchangeLoad& load, const SourceCopies& copies,
                        const std::vector<OwnerTable>& of_source) {
  if (load.guests.empty()) return;
  load.guest_copies.assign(load.instances.size(), 0);
  for (const Guest& guest : load.guests) {
    for (std::size_t s = 0; s < copies.size(); ++s) {
      for (const ExpertShare& share : of_source[s][idx(guest.expert)]) {
        if (share.destination == guest.to)
          load.guest_copies[idx(guest.to)] += std::round(share.share * real(copies[s][idx(guest.expert)]));
      }
    }
  }
}

SplitLayer split_layer(const Placement& placement, const Cluster& cluster, i32 group, i32 layer,
                       i32 microbatch, CopySplit kind) {
  SplitLayer out;
  out.kind = kind;
  out.owners = owner_table(placement, group, layer);
  out.speeds = owner_speeds(placement, group, layer);
  const std::vector<DeviceId>& owners = placement.owners(group, layer);
  const auto node_of = [&](DeviceId device) { return cluster.devices[idx(device)].node; };
  for (const DeviceId owner : owners) out.room.nodes.push_back(node_of(owner));
  if (kind == CopySplit::kGuests) {
    const Plan& plan = placement.plan();
    out.room.slots = plan.guest_slots;
    for (const DeviceId owner : owners)
      out.room.cost.push_back(plan.guest_cost.empty() ? 0 : plan.guest_cost[idx(owner)]);
  }
  for (const TokenRange source : placement.ranges(group, layer, microbatch)) {
    const std::size_t at = position(owners, source.device);
    const bool owns = at < owners.size() && owners[at] == source.device;
    out.source_owner.push_back(owns ? static_cast<i32>(at) : -1);
    out.source_node.push_back(node_of(source.device));
  }
  return out;
}

std::vector<std::vector<i64>> source_quotas(const SplitLayer& layer, std::span<const i64> copies,
                                            std::span<const i32> instances, std::span<const i64> quotas) {
  std::vector<std::vector<i64>> out(copies.size(), std::vector<i64>(instances.size(), 0));
  std::vector<i64> left(copies.begin(), copies.end()), room(quotas.begin(), quotas.end());
  const auto take_where = [&](const auto& may) {
    for (std::size_t s = 0; s < left.size(); ++s) {
      for (std::size_t i = 0; i < room.size() && left[s] > 0; ++i) {
        if (!may(s, i)) continue;
        const i64 taken = std::min(left[s], room[i]);
        out[s][i] += taken;
        left[s] -= taken;
        room[i] -= taken;
      }
    }
  };
  take_where([&](std::size_t s, std::size_t i) { return layer.source_owner[s] == instances[i]; });
  take_where([&](std::size_t s, std::size_t i) {
    return layer.source_node[s] == layer.room.nodes[idx(instances[i])];
  });
  take_where([](std::size_t, std::size_t) { return true; });
  return out;
}

namespace {

Hosts hosts_of(const OwnerTable& owners) {
  Hosts hosts;
  for (const std::vector<ExpertShare>& of_expert : owners) {
    hosts.emplace_back();
    for (const ExpertShare& owner : of_expert) hosts.back().push_back(owner.destination);
  }
  return hosts;
}

std::vector<i64> sum_over_sources(const SourceCopies& copies, std::size_t num_experts) {
  std::vector<i64> sum(num_experts, 0);
  for (const std::vector<i64>& of_source : copies) {
    for (std::size_t e = 0; e < num_experts; ++e) sum[e] += of_source[e];
  }
  return sum;
}

/// Adds expert `e` to the tables of all sources.
void divide_expert(const SplitLayer& layer, std::size_t e, const SourceCopies& copies,
                   const std::vector<i32>& hosts, const std::vector<i64>& quotas,
                   std::vector<OwnerTable>& of_source) {
  std::vector<std::size_t> order(hosts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return hosts[a] < hosts[b]; });
  std::vector<i32> instances;
  std::vector<i64> sorted, of_expert;
  for (const std::size_t i : order) {
    instances.push_back(hosts[i]);
    sorted.push_back(quotas[i]);
  }
  for (const std::vector<i64>& of_one : copies) of_expert.push_back(of_one[e]);
  const std::vector<std::vector<i64>> taken = source_quotas(layer, of_expert, instances, sorted);
  for (std::size_t s = 0; s < copies.size(); ++s) {
    std::vector<ExpertShare>& shares = of_source[s][e];
    for (std::size_t i = 0; i < instances.size(); ++i) {
      // A source's share of its own copies; where it has none any division is right.
      const double share = of_expert[s] > 0 ? real(taken[s][i]) / real(of_expert[s]) : i == 0 ? 1 : 0;
      shares.push_back({instances[i], share});
    }
  }
}

std::vector<OwnerTable> tables_of(const SplitLayer& layer, const SourceCopies& copies, const Hosts& hosts,
                                  const std::vector<std::vector<i64>>& quotas) {
  std::vector<OwnerTable> of_source(copies.size(), OwnerTable(layer.owners.size()));
  for (std::size_t e = 0; e < hosts.size(); ++e)
    divide_expert(layer, e, copies, hosts[e], quotas[e], of_source);
  return of_source;
}

}  // namespace

std::vector<ExchangeSplit> split_exchange(const SplitLayer& layer, const std::vector<SourceCopies>& chunks) {
  std::vector<ExchangeSplit> out;
  const std::size_t num_experts = layer.owners.size();
  if (layer.kind == CopySplit::kShares) {
    for (const SourceCopies& copies : chunks)
      out.push_back({std::vector<OwnerTable>(copies.size(), layer.owners), {}});
    return out;
  }
  Hosts hosts = hosts_of(layer.owners);
  std::vector<std::vector<i64>> of_chunk;
  std::vector<i64> all(num_experts, 0);
  for (const SourceCopies& copies : chunks) {
    of_chunk.push_back(sum_over_sources(copies, num_experts));
    for (std::size_t e = 0; e < num_experts; ++e) all[e] += of_chunk.back()[e];
  }
  GuestSplit guests;
  if (layer.kind == CopySplit::kGuests) {
    guests = split_with_guests(all, hosts, layer.speeds, layer.room);
    hosts = guests.hosts;
  }
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const bool known = layer.kind == CopySplit::kGuests && chunks.size() == 1;
    const WholeSplit split = known ? guests.split : whole_split(of_chunk[c], hosts, layer.speeds);
    out.push_back({tables_of(layer, chunks[c], hosts, split.copies), guests.guests});
  }
  return out;
}

}  // namespace hetermoe
