#include "hetermoe/balance/lent.h"

#include <algorithm>
#include <map>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

/// [ops] for how long others waited for an op of guests when all else that they need was done.
std::vector<Seconds> waited_for(const Schedule& schedule, const OpTimes& times) {
  std::vector<Seconds> out(schedule.ops.size(), 0);
  std::map<LaneId, OpId> last;  // op of each lane so far
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    std::vector<OpId> before(schedule.deps.begin() + schedule.dep_begin[idx(op)],
                             schedule.deps.begin() + schedule.dep_begin[idx(op) + 1]);
    for (const LaneId lane : schedule.lanes_of(op)) {
      const auto found = last.find(lane);
      if (found != last.end()) before.push_back(found->second);
      last[lane] = op;
    }
    if (row_of(schedule.ops[idx(op)].kind).of_guests) continue;
    Seconds other = 0;
    for (const OpId b : before) {
      if (!row_of(schedule.ops[idx(b)].kind).of_guests) other = std::max(other, times.end[idx(b)]);
    }
    for (const OpId b : before) {
      if (!row_of(schedule.ops[idx(b)].kind).of_guests) continue;
      const Seconds longest = times.end[idx(b)] - times.start[idx(b)];
      out[idx(b)] = std::max(out[idx(b)], std::clamp(times.end[idx(b)] - other, 0.0, longest));
    }
  }
  return out;
}

}  // namespace

Lent lent_in(const Schedule& schedule, const OpTimes& times, const Placement& placement,
             const ModelConfig& model, const Cluster& cluster, const RoutingLoad& routing) {
  Lent out;
  const WorkModel work(placement, model, cluster);
  const std::vector<Seconds> waited = waited_for(schedule, times);
  for (OpId i = 0; i < schedule.num_ops(); ++i) {
    const Op& op = schedule.ops[idx(i)];
    if (!row_of(op.kind).of_guests) continue;
    const ExchangeLoad load = routing.exchange(placement, op.group, op.layer, op.microbatch, 0);
    if (load.guests.empty()) continue;
    for (const PortBytes& bytes : work.port_bytes(op, participants(op, placement), &load))
      (row_of(op.kind).carries_gradients ? out.gradients : out.weights) += bytes.net_out + bytes.local_out;
    const Seconds seconds = times.end[idx(i)] - times.start[idx(i)];
    out.seconds += seconds;
    out.hidden += seconds - waited[idx(i)];
  }
  return out;
}

}  // namespace hetermoe
