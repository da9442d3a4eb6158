#include "hetermoe/schedule/schedule.h"

#include <set>

#include "hetermoe/schedule/builder.h"

namespace hetermoe {

const std::vector<std::string>& EnumNames<OpKind>::names() {
  static const std::vector<std::string> all = {"embed",   "attention", "dispatch", "experts",
                                               "combine", "merge",     "move",     "head",
                                               "balance", "reduce",    "norm",     "update"};
  return all;
}
const std::vector<std::string>& EnumNames<Phase>::names() {
  static const std::vector<std::string> all = {"F", "B", "R"};
  return all;
}
const std::vector<std::string>& EnumNames<Queue>::names() {
  static const std::vector<std::string> all = {"compute", "to_expert", "to_attention", "move", "reduce"};
  return all;
}

std::string to_string(const Op& op) {
  std::string text = name_of(op.kind);
  const bool has_phase = op.kind != OpKind::kReduce && op.kind != OpKind::kNorm &&
                         op.kind != OpKind::kUpdate && op.kind != OpKind::kBalance;
  if (has_phase) text += "." + name_of(op.phase);
  if (op.layer >= 0) text += fmt::format(" l{}", op.layer);
  if (op.microbatch >= 0) text += fmt::format(" m{}", op.microbatch);
  if (op.chunk > 0) text += fmt::format(" c{}", op.chunk);
  if (op.group > 0) text += fmt::format(" g{}", op.group);
  if (op.state >= 0) text += fmt::format(" s{}", op.state);
  return text;
}

Schedule build_schedule(const Plan& plan, const ModelConfig& model, const StepOptions& options) {
  if (options.balance && options.aux_group > 0 && total_sequences(plan) % options.aux_group != 0) {
    fail<ConfigError>("aux_group", "got {}, expected a divisor of the step's {} sequences", options.aux_group,
                      total_sequences(plan));
  }
  return build_schedule(Placement(plan, model, options));
}

Schedule build_schedule(const Placement& placement, const std::vector<bool>& listed) {
  ScheduleBuilder builder(placement, listed);
  switch (placement.plan().order) {
    case OrderPolicy::kLayerMajor:
      order_layer_major(builder);
      break;
    case OrderPolicy::kOneFOneB:
      order_one_f_one_b(builder);
      break;
    case OrderPolicy::kExplicit:
      order_explicit(builder);
      return builder.take();
  }
  return builder.finish();
}

std::vector<i32> transfer_queues(const Schedule& schedule) {
  std::set<i32> queues;
  for (const LaneId lane : schedule.lanes) {
    if (queue_of(lane) != Queue::kCompute) queues.insert(static_cast<i32>(queue_of(lane)));
  }
  return {queues.begin(), queues.end()};
}

std::string to_text(const Schedule& schedule) {
  std::vector<std::string> lines(static_cast<std::size_t>(schedule.num_devices) * kNumQueues);
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    for (const LaneId lane : schedule.lanes_of(op)) {
      std::string& line = lines[static_cast<std::size_t>(lane)];
      line += fmt::format("{}{} {}", line.empty() ? "" : " | ", op,
                          to_string(schedule.ops[static_cast<std::size_t>(op)]));
    }
  }
  std::string text;
  for (std::size_t lane = 0; lane < lines.size(); ++lane) {
    if (lines[lane].empty()) continue;
    text += fmt::format("device {} {}: {}\n", device_of(static_cast<LaneId>(lane)),
                        name_of(queue_of(static_cast<LaneId>(lane))), lines[lane]);
  }
  return text;
}

namespace {

class Fnv {
 public:
  template <class T>
  void add(T value) {
    const auto bits = static_cast<u64>(static_cast<i64>(value));
    for (int shift = 0; shift < 64; shift += 8) {
      state_ = (state_ ^ ((bits >> shift) & 0xff)) * 0x100000001b3ULL;
    }
  }
  u64 value() const { return state_; }

 private:
  u64 state_ = 0xcbf29ce484222325ULL;
};

}  // namespace

u64 hash(const Schedule& schedule) {
  Fnv fnv;
  fnv.add(schedule.num_devices);
  for (const Op& op : schedule.ops) {
    for (const i32 part : {static_cast<i32>(op.kind), static_cast<i32>(op.phase), static_cast<i32>(op.chunk),
                           static_cast<i32>(op.group), op.layer, op.microbatch, op.state}) {
      fnv.add(part);
    }
  }
  for (const LaneId lane : schedule.lanes) fnv.add(lane);
  for (const i64 begin : schedule.lane_begin) fnv.add(begin);
  for (const OpId dep : schedule.deps) fnv.add(dep);
  for (const i64 begin : schedule.dep_begin) fnv.add(begin);
  return fnv.value();
}

}  // namespace hetermoe
