#include "hetermoe/schedule/schedule.h"

#include <set>

#include "hetermoe/base/hash.h"
#include "hetermoe/schedule/order_policy.h"

namespace hetermoe {
namespace {

std::string name_of_part(const State& state) {
  switch (state.part) {
    case UnitPart::kEmbed:
      return "the embedding";
    case UnitPart::kHead:
      return "the head";
    case UnitPart::kAttention:
      return fmt::format("the attention part of layer {}", state.layer);
    case UnitPart::kExperts:
      break;
  }
  return fmt::format("{} experts of layer {}", state.experts.size(), state.layer);
}

/// Weights that stay on devices are not in the access table as two copies: the next step would find them half
/// updated.
void check_staleness(const Placement& placement) {
  for (std::size_t s = 0; s < placement.states().size(); ++s) {
    const State& state = placement.states()[s];
    if (!placement.states().lags(static_cast<i32>(s)) || state.summed_on_hosts()) continue;
    if (placement.options().lora != nullptr)
      fail<ConfigError>(
          "train.staleness",
          "got {}, expected 0 with train.lora: adapters are updated on the devices, and no update "
          "of theirs can wait for the next step",
          placement.options().staleness);
    fail<ConfigError>(
        "train.staleness",
        "{} on device {}: got weights that stay there, expected all trained parameters on hosts. "
        "plan.offload: [all] keeps them there; or set train.staleness: 0",
        name_of_part(state), state.devices[0]);
  }
}

}  // namespace

Schedule build_schedule(const Plan& plan, const ModelConfig& model, const StepOptions& options) {
  if (options.balance && options.aux_group > 0 && total_sequences(plan) % options.aux_group != 0) {
    fail<ConfigError>("aux_group", "got {}, expected a divisor of the step's {} sequences", options.aux_group,
                      total_sequences(plan));
  }
  return build_schedule(Placement(plan, model, options));
}

Schedule build_schedule(const Placement& placement, const std::vector<bool>& listed) {
  check_staleness(placement);
  ScheduleBuilder builder(placement, listed);
  const OrderPolicyTraits& traits = traits_of(placement.plan().order);
  traits.append(builder);
  Schedule schedule = traits.appends_end_of_step ? builder.take() : builder.finish();
  if (placement.options().staleness > 0 && placement.options().backward) add_carry(schedule, placement);
  return schedule;
}

Schedule repeat(const Schedule& schedule, i32 steps) {
  Schedule all;
  all.num_devices = schedule.num_devices;
  all.num_hosts = schedule.num_hosts;
  all.states = schedule.states;
  for (i32 step = 0; step < steps; ++step) {
    const OpId first = step * schedule.num_ops(), before = first - schedule.num_ops();
    all.ops.insert(all.ops.end(), schedule.ops.begin(), schedule.ops.end());
    all.lanes.insert(all.lanes.end(), schedule.lanes.begin(), schedule.lanes.end());
    for (OpId op = 0; op < schedule.num_ops(); ++op) {
      const std::span<const OpId> carried = step > 0 ? schedule.carry_of(op) : std::span<const OpId>();
      for (const OpId dep : carried) all.deps.push_back(before + dep);
      for (const OpId dep : schedule.deps_of(op)) all.deps.push_back(first + dep);
      all.dep_begin.push_back(static_cast<i64>(all.deps.size()));
      all.lane_begin.push_back(all.lane_begin.back() + static_cast<i64>(schedule.lanes_of(op).size()));
    }
  }
  return all;
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

namespace {

i32 num_links(const Schedule& schedule, PlaceId place, Queue queue) {
  return place >= schedule.num_devices && static_cast<i32>(queue) >= kFirstLinkQueue ? kHostLinks : 1;
}

}  // namespace

std::string to_text(const Schedule& schedule) {
  std::vector<std::string> lines(idx(schedule.num_places()) * kLanesOfPlace);
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
      for (i32 link = 0; link < num_links(schedule, place, queue); ++link) {
        const LaneId lane = lane_of(place, queue, link);
        const std::string& line = lines[idx(lane)];
        if (!line.empty()) text += fmt::format("{} {}: {}\n", name, lane_name(lane), line);
      }
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
    // Schedules without hosts or teams keep their hashes.
    if (op.team >= 0) fnv.add("team").add(i32{op.team});
    if (op.device >= 0) fnv.add("device").add(op.device);
    if (op.slot >= 0) fnv.add("slot").add(i32{op.slot});
    if (op.saved >= 0) fnv.add("saved").add(i32{op.saved});
  }
  for (const LaneId lane : schedule.lanes) fnv.add(device_of(lane)).add(name_hash(queue_of(lane)));
  for (const i64 begin : schedule.lane_begin) fnv.add(begin);
  for (const OpId dep : schedule.deps) fnv.add(dep);
  for (const i64 begin : schedule.dep_begin) fnv.add(begin);
  for (const OpId dep : schedule.carry) fnv.add(dep);
  for (const i64 begin : schedule.carry_begin) fnv.add(begin);
  return fnv.value();
}

}  // namespace hetermoe
