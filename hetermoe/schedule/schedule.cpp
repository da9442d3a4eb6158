#include "hetermoe/schedule/schedule.h"

#include <set>

#include "hetermoe/base/hash.h"
#include "hetermoe/schedule/order_policy.h"

namespace hetermoe {

Schedule build_schedule(const Plan& plan, const ModelConfig& model, const StepOptions& options) {
  if (options.balance && options.aux_group > 0 && total_sequences(plan) % options.aux_group != 0) {
    fail<ConfigError>("aux_group", "got {}, expected a divisor of the step's {} sequences", options.aux_group,
                      total_sequences(plan));
  }
  return build_schedule(Placement(plan, model, options));
}

Schedule build_schedule(const Placement& placement, const std::vector<bool>& listed) {
  ScheduleBuilder builder(placement, listed);
  const OrderPolicyTraits& traits = traits_of(placement.plan().order);
  traits.append(builder);
  return traits.appends_end_of_step ? builder.take() : builder.finish();
}

std::vector<i32> transfer_queues(const Schedule& schedule) {
  std::set<i32> queues;
  for (const LaneId lane : schedule.lanes) {
    if (queue_of(lane) != Queue::kCompute) queues.insert(static_cast<i32>(queue_of(lane)));
  }
  return {queues.begin(), queues.end()};
}

std::vector<PlaceId> hosts_of(const Schedule& schedule) {
  std::set<PlaceId> hosts;
  for (const State& state : schedule.states) hosts.insert(state.homes.begin(), state.homes.end());
  for (const LaneId lane : schedule.lanes) {
    if (device_of(lane) >= schedule.num_devices) hosts.insert(device_of(lane));
  }
  return {hosts.begin(), hosts.end()};
}

std::string to_text(const Schedule& schedule) {
  std::vector<std::string> lines(idx(schedule.num_places()) * kNumQueues);
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    for (const LaneId lane : schedule.lanes_of(op)) {
      std::string& line = lines[idx(lane)];
      line += fmt::format("{}{} {}", line.empty() ? "" : " | ", op, to_string(schedule.ops[idx(op)]));
    }
  }
  std::string text;
  for (PlaceId place = 0; place < schedule.num_places(); ++place) {
    const bool is_host = place >= schedule.num_devices;
    const std::string name =
        is_host ? fmt::format("host {}", place - schedule.num_devices) : fmt::format("device {}", place);
    for (const Queue queue : kQueueOrder) {
      const std::string& line = lines[idx(lane_of(place, queue))];
      if (!line.empty()) text += fmt::format("{} {}: {}\n", name, name_of(queue), line);
    }
  }
  return text;
}

namespace {

/// What stands for each value of an enum in a hash: its name, whatever its number.
template <class E>
std::vector<u64> name_hashes() {
  std::vector<u64> hashes;
  for (const std::string& name : EnumNames<E>::names()) hashes.push_back(Fnv().add(name).value());
  return hashes;
}

template <class E>
u64 name_hash(E value) {
  static const std::vector<u64> hashes = name_hashes<E>();
  return hashes[idx(value)];
}

}  // namespace

u64 hash(const Schedule& schedule) {
  Fnv fnv;
  fnv.add(schedule.num_devices);
  for (const Op& op : schedule.ops) {
    fnv.add(name_hash(op.kind)).add(name_hash(op.phase));
    for (const i32 part : {i32{op.chunk}, i32{op.group}, op.layer, op.microbatch, op.state}) fnv.add(part);
    // Schedules without hosts keep their hashes.
    if (op.device >= 0) fnv.add("device").add(op.device);
    if (op.slot >= 0) fnv.add("slot").add(i32{op.slot});
    if (op.saved >= 0) fnv.add("saved").add(i32{op.saved});
  }
  for (const LaneId lane : schedule.lanes) fnv.add(device_of(lane)).add(name_hash(queue_of(lane)));
  for (const i64 begin : schedule.lane_begin) fnv.add(begin);
  for (const OpId dep : schedule.deps) fnv.add(dep);
  for (const i64 begin : schedule.dep_begin) fnv.add(begin);
  return fnv.value();
}

}  // namespace hetermoe
