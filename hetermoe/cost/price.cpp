#include "hetermoe/cost/price.h"

#include <array>
#include <unordered_map>

#include "hetermoe/cost/load_table.h"

namespace hetermoe {
namespace {

/// Ops with equal keys cost the same: of what can be alike, the key names the first.
using CostKey = std::array<i32, 7>;
struct CostKeyHash {
  std::size_t operator()(const CostKey& key) const {
    u64 hash = 0;
    for (const i32 part : key)
      hash = (hash ^ static_cast<u64>(static_cast<std::uint32_t>(part))) * 0x9e3779b97f4a7c15ULL;
    return static_cast<std::size_t>(hash ^ (hash >> 32));
  }
};

class Pricer {
 public:
  Pricer(const Schedule& schedule, const Placement& placement, const ModelConfig& model,
         const Cluster& cluster, const CostModel& cost, const RoutingLoad& routing)
      : schedule_(schedule),
        placement_(placement),
        cluster_(cluster),
        cost_(cost),
        loads_(placement, routing),
        work_(placement, model, cluster) {}

  OpCosts run() {
    OpCosts out;
    out.num_ports = static_cast<i32>(2 * cluster_.nodes.size()) + 2 * schedule_.num_devices;
    out.load_begin = {0};
    for (DeviceId d = 0; d < schedule_.num_devices; ++d) out.interference.push_back(cost_.interference(d));
    for (OpId op = 0; op < schedule_.num_ops(); ++op) {
      if (is_compute(schedule_.ops[static_cast<std::size_t>(op)].kind)) {
        out.seconds.push_back(compute_seconds(op));
        out.latency.push_back(0);
      } else {
        const TransferCost& cost = transfer_cost(op);
        out.seconds.push_back(cost.seconds());
        out.latency.push_back(cost.latency);
        out.loads.insert(out.loads.end(), cost.loads.begin(), cost.loads.end());
      }
      out.load_begin.push_back(static_cast<i64>(out.loads.size()));
    }
    return out;
  }

 private:
  CostKey key_of(const Op& op, DeviceId device) const {
    const bool in_layer = op.layer >= 0 && op.layer < placement_.num_layers();
    // What a move carries, and what an attention part merges first, depends on the layer before.
    const bool looks_back = op.kind == OpKind::kMove || op.kind == OpKind::kMerge ||
                            (op.kind == OpKind::kAttention && op.phase == Phase::kForward);
    const i32 layer = in_layer ? loads_.layer_class(op.group, op.layer) : op.layer;
    const i32 before = !looks_back ? 0 : op.layer == 0 ? -1 : loads_.layer_class(op.group, op.layer - 1);
    const bool alone = op.microbatch < 0 || op.kind == OpKind::kBalance;
    const i32 microbatch = alone ? op.microbatch : loads_.microbatch_class(op.group, op.microbatch);
    const i32 kind = static_cast<i32>(op.kind) * 4 + static_cast<i32>(op.phase);
    return {kind, op.chunk, op.group, layer, before, op.state >= 0 ? op.state : microbatch, device};
  }

  Seconds compute_seconds(OpId id) {
    const Op& op = schedule_.ops[static_cast<std::size_t>(id)];
    const DeviceId device = device_of(schedule_.lanes_of(id)[0]);
    const auto [entry, fresh] = compute_.try_emplace(key_of(op, device), 0);
    if (fresh) entry->second = cost_.compute(work_.compute_work(op, device, loads_.of(op)));
    return entry->second;
  }

  const TransferCost& transfer_cost(OpId id) {
    const Op& op = schedule_.ops[static_cast<std::size_t>(id)];
    const auto [entry, fresh] = transfer_.try_emplace(key_of(op, -1));
    if (fresh) {
      std::vector<DeviceId> participants;
      for (const LaneId lane : schedule_.lanes_of(id)) participants.push_back(device_of(lane));
      const std::vector<PortBytes> bytes = work_.port_bytes(op, participants, loads_.of(op));
      entry->second = cost_.transfer({op, participants, bytes});
    }
    return entry->second;
  }

  const Schedule& schedule_;
  const Placement& placement_;
  const Cluster& cluster_;
  const CostModel& cost_;
  LoadTable loads_;
  WorkModel work_;
  std::unordered_map<CostKey, Seconds, CostKeyHash> compute_;
  std::unordered_map<CostKey, TransferCost, CostKeyHash> transfer_;
};

}  // namespace

OpCosts price(const Schedule& schedule, const Placement& placement, const ModelConfig& model,
              const Cluster& cluster, const CostModel& cost, const RoutingLoad& routing) {
  return Pricer(schedule, placement, model, cluster, cost, routing).run();
}

}  // namespace hetermoe
