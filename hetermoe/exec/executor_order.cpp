#include <map>
#include <numeric>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/exec/executor.h"
#include "hetermoe/exec/ops/op_functions.h"

// The order of the exchanges of a step, where a transport needs one that all devices agree on.
namespace hetermoe {
namespace {

/// [op] what it depends on, and what is just before it in one of its lanes.
std::vector<std::vector<OpId>> predecessors(const Schedule& schedule) {
  std::vector<std::vector<OpId>> all(schedule.ops.size());
  std::map<LaneId, OpId> last;
  for (OpId id = 0; id < schedule.num_ops(); ++id) {
    const std::span<const OpId> deps = schedule.deps_of(id);
    all[idx(id)].assign(deps.begin(), deps.end());
    for (const LaneId lane : schedule.lanes_of(id)) {
      const auto [place, is_first] = last.try_emplace(lane, id);
      if (!is_first) all[idx(id)].push_back(std::exchange(place->second, id));
    }
  }
  return all;
}

}  // namespace

/// All exchanges of the step in an order that all devices agree on. What an op exchanges after its first
/// messages comes as late as it may: before the first transfer that needs the op or follows it in a lane, be
/// it by way of others. Transfers between them do not wait for its peers, and none waits for one that comes
/// after it.
std::vector<OpId> Executor::order_of_exchanges() const {
  const Schedule& schedule = context_.schedule;
  std::vector<OpId> launches = options_.launch_order;
  if (launches.empty()) {
    launches.resize(schedule.ops.size());
    std::iota(launches.begin(), launches.end(), OpId{0});
  }
  const std::vector<std::vector<OpId>> before = predecessors(schedule);
  std::vector<OpId> order;
  std::vector<char> settled(schedule.ops.size(), 0);  // all its exchanges are in the order
  const auto settle = [&](OpId id) {
    if (settled[idx(id)]) return;
    settled[idx(id)] = 1;
    const Op& op = schedule.ops[idx(id)];
    if (!is_compute(op.kind) && !is_host_copy(op))
      order.insert(order.end(), idx(num_exchanges(op, context_.placement, context_.cluster) - 1), id);
  };
  const auto settle_before = [&](OpId of) {
    std::vector<OpId> open = before[idx(of)];
    while (!open.empty()) {
      const OpId id = open.back();
      open.pop_back();
      if (settled[idx(id)]) continue;
      settle(id);
      open.insert(open.end(), before[idx(id)].begin(), before[idx(id)].end());
    }
  };
  for (const OpId id : launches) {
    if (is_compute(schedule.ops[idx(id)].kind) || is_host_copy(schedule.ops[idx(id)])) continue;
    settle_before(id);
    order.push_back(id);
  }
  for (const OpId id : launches) settle(id);
  return order;
}

void Executor::give_turns() {
  std::map<std::pair<OpId, DeviceId>, LaneOp*> items;
  for (std::unique_ptr<Lane>& lane : lanes_) {
    if (queue_of(lane->id) == Queue::kCompute) continue;
    for (LaneOp& item : lane->ops) items[{item.op, device_of(lane->id)}] = &item;
  }
  std::map<DeviceId, i64> next;
  for (const OpId id : order_of_exchanges()) {
    for (const LaneId lane : context_.schedule.lanes_of(id)) {
      const auto item = items.find({id, device_of(lane)});
      if (item != items.end()) item->second->turns.push_back(next[device_of(lane)]++);
    }
  }
}

}  // namespace hetermoe
