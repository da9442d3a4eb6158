#include "hetermoe/sim/simulator.h"

#include <algorithm>
#include <functional>

#include "hetermoe/base/index.h"

namespace hetermoe {
const OpTimes& Simulator::run(const Schedule& schedule, const OpCosts& costs) {
  prepare(schedule, costs);
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    if (waiting_[idx(op)] == 0) start(op);
  }
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const Event event = heap_.back();
    heap_.pop_back();
    if (running_[idx(event.op)].version != event.version) continue;
    now_ = event.time;
    on_event(event);
  }
  HM_CHECK(ended_ == schedule.num_ops(), "the schedule stalls: {} of {} ops ended", ended_,
           schedule.num_ops());
  times_.step = now_;
  return times_;
}

void Simulator::prepare(const Schedule& schedule, const OpCosts& costs) {
  schedule_ = &schedule;
  costs_ = &costs;
  now_ = 0, ended_ = 0;
  const std::size_t num_ops = schedule.ops.size();
  times_.start.assign(num_ops, 0);
  times_.end.assign(num_ops, 0);
  running_.assign(num_ops, {});
  waiting_.assign(num_ops, 0);
  heap_.clear();
  index_lanes();
  index_dependents();
  index_ports();
  index_tiles();
  interferes_ =
      std::any_of(costs.interference.begin(), costs.interference.end(), [](double i) { return i > 0; });
  active_transfers_.assign(idx(schedule.num_places()), 0);
  compute_running_.assign(idx(schedule.num_places()), -1);
}

void Simulator::index_lanes() {
  const std::size_t num_lanes = idx(schedule_->num_places()) * kLanesOfPlace;
  lane_begin_.assign(num_lanes + 1, 0);
  for (const LaneId lane : schedule_->lanes) ++lane_begin_[idx(lane) + 1];
  for (std::size_t l = 0; l < num_lanes; ++l) lane_begin_[l + 1] += lane_begin_[l];
  lane_ops_.resize(schedule_->lanes.size());
  cursor_.assign(lane_begin_.begin(), lane_begin_.end() - 1);
  for (OpId op = 0; op < schedule_->num_ops(); ++op) {
    for (const LaneId lane : schedule_->lanes_of(op)) {
      i64& cursor = cursor_[idx(lane)];
      if (cursor > lane_begin_[idx(lane)]) ++waiting_[idx(op)];
      lane_ops_[idx(cursor++)] = op;
    }
  }
  lane_next_.assign(lane_begin_.begin(), lane_begin_.end() - 1);
}

void Simulator::index_dependents() {
  const std::size_t num_ops = schedule_->ops.size();
  dependent_begin_.assign(num_ops + 1, 0);
  for (const OpId dep : schedule_->deps) ++dependent_begin_[idx(dep) + 1];
  for (std::size_t i = 0; i < num_ops; ++i) dependent_begin_[i + 1] += dependent_begin_[i];
  dependents_.resize(schedule_->deps.size());
  cursor_.assign(dependent_begin_.begin(), dependent_begin_.end() - 1);
  for (OpId op = 0; op < schedule_->num_ops(); ++op) {
    for (const OpId dep : schedule_->deps_of(op)) dependents_[idx(cursor_[idx(dep)]++)] = op;
    waiting_[idx(op)] += static_cast<i32>(schedule_->deps_of(op).size());
  }
}

void Simulator::index_ports() {
  if (ports_.size() < idx(costs_->num_ports)) ports_.resize(idx(costs_->num_ports));
  for (Port& port : ports_) port.loads.clear();
  changed_.clear();
  demand_.resize(costs_->loads.size());
  load_op_.resize(costs_->loads.size());
  if (costs_->loads.empty()) return;
  for (OpId op = 0; op < schedule_->num_ops(); ++op) {
    const Seconds full = alone(op);
    for (i64 i = costs_->load_begin[idx(op)]; i < costs_->load_begin[idx(op) + 1]; ++i) {
      const auto load = idx(i);
      demand_[load] = full > 0 ? costs_->loads[load].seconds / full : 0;
      load_op_[load] = op;
    }
  }
}

/// What brings an op of experts its rows is the dependency that goes to owners.
void Simulator::index_tiles() {
  feeder_.clear(), is_feeder_.clear();
  if (costs_->tiles < 2) return;
  feeder_.assign(schedule_->ops.size(), -1), is_feeder_.assign(schedule_->ops.size(), false);
  for (OpId op = 0; op < schedule_->num_ops(); ++op) {
    if (row_of(schedule_->ops[idx(op)].kind).pricing != Pricing::kExperts) continue;
    for (const OpId dep : schedule_->deps_of(op)) {
      const Op& before = schedule_->ops[idx(dep)];
      if (!is_compute(before.kind) && needs_load(before.kind) && goes_to_owners(before) && uses_ports(dep))
        feeder_[idx(op)] = dep;
    }
    if (feeder_[idx(op)] >= 0) is_feeder_[idx(feeder_[idx(op)])] = true;
  }
}

bool Simulator::uses_ports(OpId op) const {
  return costs_->load_begin[idx(op) + 1] > costs_->load_begin[idx(op)];
}
/// Seconds that a transfer keeps its busiest port when it has all of them to itself.
Seconds Simulator::alone(OpId op) const { return costs_->seconds[idx(op)] - costs_->latency[idx(op)]; }

void Simulator::push(Seconds time, OpId op, i32 version) {
  heap_.push_back({time, op, version});
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

void Simulator::arrive(OpId op) {
  if (--waiting_[idx(op)] == 0) start(op);
}

void Simulator::start(OpId op) {
  times_.start[idx(op)] = now_;
  const bool compute = is_compute(schedule_->ops[idx(op)].kind);
  Running& run = running_[idx(op)];
  if (compute && interferes_) {
    const DeviceId device = device_of(schedule_->lanes_of(op)[0]);
    compute_running_[idx(device)] = op;
    run.remaining = costs_->seconds[idx(op)];
    run.since = now_;
    run.rate = -1;
    set_rate(op, active_transfers_[idx(device)] > 0 ? 1 - costs_->interference[idx(device)] : 1);
    return;
  }
  run.in_latency = !compute && uses_ports(op);
  push(now_ + (run.in_latency ? costs_->latency[idx(op)] : costs_->seconds[idx(op)]), op, 0);
}

void Simulator::on_event(const Event& event) {
  if (running_[idx(event.op)].in_latency) {
    enter_ports(event.op);
  } else if (running_[idx(event.op)].first_tile) {
    end_first_tile(event.op);
  } else if (!waits_for_rows(event.op)) {
    finish(event.op);
  }
}

/// The rest of the transfer is to come; ops that compute the first tile may start.
void Simulator::end_first_tile(OpId transfer) {
  Running& run = running_[idx(transfer)];
  run.first_tile = false;
  run.remaining = alone(transfer) * (1 - 1.0 / costs_->tiles);
  run.since = now_;
  ++run.version;
  if (run.rate > 0) push(now_ + run.remaining / run.rate, transfer, run.version);
  for (i64 i = dependent_begin_[idx(transfer)]; i < dependent_begin_[idx(transfer) + 1]; ++i)
    if (feeder_[idx(dependents_[idx(i)])] == transfer) arrive(dependents_[idx(i)]);
}

/// Whether an op that has done its own work ends later: a tile's time after its last rows.
bool Simulator::waits_for_rows(OpId op) {
  const OpId feeder = feeder_.empty() ? -1 : feeder_[idx(op)];
  if (feeder < 0) return false;
  Running& run = running_[idx(op)];
  const Seconds earliest = times_.end[idx(feeder)] + costs_->seconds[idx(op)] / costs_->tiles;
  const bool came = running_[idx(feeder)].ended;
  if (came && now_ >= earliest) return false;
  run.waits = true;
  if (came) push(earliest, op, ++run.version);
  return true;
}

void Simulator::enter_ports(OpId op) {
  Running& run = running_[idx(op)];
  run.in_latency = false;
  run.first_tile = !is_feeder_.empty() && is_feeder_[idx(op)];
  run.remaining = alone(op) / (run.first_tile ? costs_->tiles : 1);
  run.since = now_;
  run.rate = -1;
  run.changed = true;
  changed_.push_back(op);
  for (i64 i = costs_->load_begin[idx(op)]; i < costs_->load_begin[idx(op) + 1]; ++i) {
    Port& port = ports_[idx(costs_->loads[idx(i)].port)];
    port.loads.push_back(i);
    update_level(port);
  }
  update_changed();
  if (interferes_) {
    for (const LaneId lane : schedule_->lanes_of(op)) ++active_transfers_[idx(device_of(lane))];
    update_compute_of(op);
  }
}

void Simulator::leave_ports(OpId op) {
  running_[idx(op)].changed = true;  // its rate is of no more interest, though it may be on a port twice
  for (i64 i = costs_->load_begin[idx(op)]; i < costs_->load_begin[idx(op) + 1]; ++i) {
    Port& port = ports_[idx(costs_->loads[idx(i)].port)];
    port.loads.erase(std::find(port.loads.begin(), port.loads.end(), i));
    update_level(port);
  }
  update_changed();
  if (interferes_) {
    for (const LaneId lane : schedule_->lanes_of(op)) --active_transfers_[idx(device_of(lane))];
    update_compute_of(op);
  }
}

/// Finds the level that fills the port: a transfer gets what it needs, but no more than the level.
void Simulator::update_level(Port& port) {
  double total = 0, count = 0;
  for (const i64 load : port.loads) {
    const auto i = idx(load);
    total += costs_->loads[i].copies * demand_[i];
    count += costs_->loads[i].copies;
  }
  double level = 1;
  if (total > 1) {
    // Those that need less than the level leave the rest to the others; the level rises until nobody is below
    // it.
    double capacity = 1, below = -1;
    level = 1 / count;
    while (below < level) {
      below = level;
      capacity = 1;
      double above = 0;
      for (const i64 load : port.loads) {
        const auto i = idx(load);
        if (demand_[i] <= below) {
          capacity -= costs_->loads[i].copies * demand_[i];
        } else {
          above += costs_->loads[i].copies;
        }
      }
      if (above > 0) level = std::max(level, capacity / above);
    }
  }
  if (level == 1 && port.level == 1) return;
  port.level = level;
  for (const i64 load : port.loads) {
    const OpId op = load_op_[idx(load)];
    if (running_[idx(op)].changed) continue;
    running_[idx(op)].changed = true;
    changed_.push_back(op);
  }
}

void Simulator::update_changed() {
  for (const OpId op : changed_) {
    running_[idx(op)].changed = false;
    set_rate(op, port_rate(op));
  }
  changed_.clear();
}

/// Rate at which the ports let a transfer run, 1 = as if alone.
double Simulator::port_rate(OpId op) const {
  double rate = 1;
  for (i64 i = costs_->load_begin[idx(op)]; i < costs_->load_begin[idx(op) + 1]; ++i) {
    const auto load = idx(i);
    const double level = ports_[idx(costs_->loads[load].port)].level;
    if (demand_[load] > level) rate = std::min(rate, level / demand_[load]);
  }
  return rate;
}

void Simulator::set_rate(OpId op, double rate) {
  Running& run = running_[idx(op)];
  if (rate == run.rate) return;
  if (run.rate > 0) run.remaining = std::max(0.0, run.remaining - run.rate * (now_ - run.since));
  run.since = now_;
  run.rate = rate;
  ++run.version;
  // At rate 0 the op waits for its next rate, unless nothing is left to do.
  if (rate > 0 || run.remaining <= 0) push(now_ + (rate > 0 ? run.remaining / rate : 0), op, run.version);
}

void Simulator::update_compute_of(OpId transfer) {
  for (const LaneId lane : schedule_->lanes_of(transfer)) {
    const DeviceId device = device_of(lane);
    const OpId compute = compute_running_[idx(device)];
    if (compute < 0) continue;
    set_rate(compute, active_transfers_[idx(device)] > 0 ? 1 - costs_->interference[idx(device)] : 1);
  }
}

void Simulator::finish(OpId op) {
  times_.end[idx(op)] = now_;
  running_[idx(op)].ended = true;
  ++ended_;
  ++running_[idx(op)].version;
  const bool compute = is_compute(schedule_->ops[idx(op)].kind);
  if (compute) {
    compute_running_[idx(device_of(schedule_->lanes_of(op)[0]))] = -1;
  } else if (uses_ports(op)) {
    leave_ports(op);
  }
  for (i64 i = dependent_begin_[idx(op)]; i < dependent_begin_[idx(op) + 1]; ++i) {
    const OpId next = dependents_[idx(i)];
    if (feeder_.empty() || feeder_[idx(next)] != op)
      arrive(next);
    else if (running_[idx(next)].waits)
      push(now_ + costs_->seconds[idx(next)] / costs_->tiles, next, ++running_[idx(next)].version);
  }
  for (const LaneId lane : schedule_->lanes_of(op)) {
    const i64 next = ++lane_next_[idx(lane)];
    if (next < lane_begin_[idx(lane) + 1]) arrive(lane_ops_[idx(next)]);
  }
}

OpTimes simulate(const Schedule& schedule, const Placement& placement, const ModelConfig& model,
                 const Cluster& cluster, const CostModel& cost, const RoutingLoad& routing, i32 tiles) {
  const Schedule all = schedule.overlaps() ? repeat(schedule, kSteadySteps) : Schedule();
  const Schedule& run = schedule.overlaps() ? all : schedule;
  OpCosts costs = price(run, placement, model, cluster, cost, routing);
  costs.tiles = tiles;
  Simulator simulator;
  const OpTimes& times = simulator.run(run, costs);
  return schedule.overlaps() ? steady_step(schedule, times) : times;
}

OpTimes steady_step(const Schedule& schedule, const OpTimes& all) {
  const auto count = static_cast<std::ptrdiff_t>(schedule.num_ops());
  const auto part = [&](const std::vector<Seconds>& times, i32 step) {
    return std::vector<Seconds>(times.begin() + step * count, times.begin() + (step + 1) * count);
  };
  const auto end_of = [&](i32 step) {
    const std::vector<Seconds> ends = part(all.end, step);
    return ends.empty() ? 0 : *std::max_element(ends.begin(), ends.end());
  };
  constexpr i32 kHalf = kSteadySteps / 2;
  OpTimes times{part(all.start, kHalf), part(all.end, kHalf), 0};
  times.step = (end_of(kSteadySteps - 1) - end_of(kHalf - 1)) / kHalf;
  const Seconds origin = count > 0 ? *std::min_element(times.start.begin(), times.start.end()) : 0;
  for (Seconds& start : times.start) start -= origin;
  for (Seconds& end : times.end) end -= origin;
  return times;
}

OpTimes longest_path(const Schedule& schedule, const std::vector<Seconds>& seconds) {
  OpTimes times;
  times.start.resize(schedule.ops.size());
  times.end.resize(schedule.ops.size());
  std::vector<Seconds> lane_end(idx(schedule.num_places()) * kLanesOfPlace, 0);
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    Seconds ready = 0;
    for (const LaneId lane : schedule.lanes_of(op)) ready = std::max(ready, lane_end[idx(lane)]);
    for (const OpId dep : schedule.deps_of(op)) ready = std::max(ready, times.end[idx(dep)]);
    times.start[idx(op)] = ready;
    times.end[idx(op)] = ready + seconds[idx(op)];
    for (const LaneId lane : schedule.lanes_of(op)) lane_end[idx(lane)] = times.end[idx(op)];
    times.step = std::max(times.step, times.end[idx(op)]);
  }
  return times;
}

Timeline timeline_frame(const Schedule& schedule, const Plan& plan, const Cluster& cluster,
                        const std::string& source) {
  Timeline timeline;
  timeline.source = source;
  const std::vector<std::string> roles = roles_of(plan);
  for (DeviceId d = 0; d < schedule.num_devices; ++d)
    timeline.devices.push_back({cluster.device_name(d), cluster.type_of(d).name, roles[idx(d)]});
  for (PlaceId host = schedule.num_devices; host < schedule.num_places(); ++host)
    timeline.devices.push_back({cluster.device_name(host), "host", "host"});
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    const Op& o = schedule.ops[idx(op)];
    const bool has_phase = row_of(o.kind).phases != Phases::kNone;
    timeline.ops.push_back({name_of(o.kind),
                            has_phase ? name_of(o.phase) : "",
                            o.layer,
                            o.microbatch,
                            o.group,
                            lane_name(schedule.lanes_of(op).back()),
                            {schedule.deps_of(op).begin(), schedule.deps_of(op).end()}});
  }
  return timeline;
}

Timeline make_timeline(const Schedule& schedule, const OpTimes& times, const Plan& plan,
                       const Cluster& cluster, const std::string& source) {
  Timeline timeline = timeline_frame(schedule, plan, cluster, source);
  timeline.step = times.step;
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    for (const LaneId lane : schedule.lanes_of(op)) {
      timeline.spans.push_back({op, device_of(lane), times.start[idx(op)], times.end[idx(op)]});
    }
  }
  sort_spans(timeline);
  return timeline;
}

}  // namespace hetermoe
