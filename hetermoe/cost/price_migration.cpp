#include "hetermoe/cost/price_migration.h"

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

std::vector<DeviceId> devices_of(std::span<const LaneId> lanes) {
  std::vector<DeviceId> devices;
  for (const LaneId lane : lanes) devices.push_back(device_of(lane));
  return devices;
}

TransferCost cost_of(const Migration& migration, const Op& op, std::span<const DeviceId> participants,
                     const Cluster& cluster, const CostModel& cost) {
  std::vector<PortBytes> bytes(participants.size());
  for (const UnitMove& move : migration.moves_of(op)) {
    add_sent(bytes[position(participants, move.from)], bytes[position(participants, move.to)], move.bytes,
             cluster.node_of(move.from) == cluster.node_of(move.to));
  }
  return cost.transfer({op, participants, bytes});
}

}  // namespace

OpCosts price(const Migration& migration, const Cluster& cluster, const CostModel& cost) {
  OpCosts out;
  out.load_begin = {0};
  out.num_ports = Network(cluster).num_ports();
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) out.interference.push_back(cost.interference(d));
  for (OpId op = 0; op < migration.schedule.num_ops(); ++op) {
    const std::vector<DeviceId> participants = devices_of(migration.schedule.lanes_of(op));
    const TransferCost transfer =
        cost_of(migration, migration.schedule.ops[idx(op)], participants, cluster, cost);
    out.seconds.push_back(transfer.seconds());
    out.latency.push_back(transfer.latency);
    out.loads.insert(out.loads.end(), transfer.loads.begin(), transfer.loads.end());
    out.load_begin.push_back(static_cast<i64>(out.loads.size()));
  }
  return out;
}

}  // namespace hetermoe
