#include "hetermoe/planner/strategies/baselines.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "hetermoe/balance/asym_ea.h"
#include "hetermoe/base/index.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/placement/token_ranges.h"
#include "hetermoe/planner/estimate/host_use.h"
#include "hetermoe/planner/strategies/best.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/schedule/schedule_error.h"

namespace hetermoe {
namespace {

/// Estimate over limit, of plans whose simulated peak is asked for all the same.
constexpr double kNotFar = 1.3;

void consider_degrees(Best& best, Plan plan) {
  for (const i32 degree : kPartitionDegrees) {
    plan.chunks = degree;
    best.consider(plan);
  }
}

}  // namespace

void apply(const Setting& setting, Plan& plan) {
  plan.dtype.assign(plan.dtype.size(), setting.dtype);
  plan.wire_forward = plan.wire_backward = setting.wire.value_or(wire_of(setting.dtype));
  plan.row_dedup = !setting.published;
  plan.grad_dtype = grad_dtype_of(setting), plan.wire_reduce = setting.wire_reduce;
}

std::optional<Dtype> grad_dtype_of(const Setting& setting) {
  return setting.published && bytes_of(setting.dtype) == 2 ? setting.dtype : setting.grad_dtype;
}

namespace {

/// With what must stay free; 0 where a plan has nothing.
std::vector<Bytes> with_reserve(const Setting& setting, std::vector<Bytes> memory) {
  for (Bytes& bytes : memory) bytes += bytes > 0 ? setting.memory_reserve : 0;
  return memory;
}

std::vector<Bytes> needed(Predictor& predictor, const Setting& setting, const Plan& plan) {
  return with_reserve(setting, memory_of(predictor, setting, plan));
}

std::string overfill(Predictor& predictor, const Setting& setting, const Plan& plan) {
  std::string over = overfilled_device(needed(predictor, setting, plan), predictor.cluster());
  return over.empty() ? overfilled_host(plan, predictor.model(), predictor.cluster()) : over;
}

}  // namespace

std::vector<Bytes> memory_of(Predictor& predictor, const Setting& setting, const Plan& plan) {
  const Cluster& cluster = predictor.cluster();
  if (has_teams(plan)) return predictor.judge_within(std::numeric_limits<i64>::max(), plan)->memory;
  std::vector<Bytes> estimate = estimate_memory(plan, predictor.model());
  std::vector<Bytes> scaled = with_reserve(setting, estimate);
  const bool fits = overfilled_device(scaled, cluster).empty();
  for (Bytes& bytes : scaled) bytes /= kNotFar;
  if (fits || !overfilled_device(scaled, cluster).empty()) return estimate;
  try {
    return predictor.judge_within(std::numeric_limits<i64>::max(), plan)->memory;
  } catch (const ScheduleError&) {
    return estimate;  // of an order that cannot be
  }
}

/// The optimizer is sharded where that takes, but not in published settings, which say whether they do.
std::optional<Plan> with_room(Predictor& predictor, const Setting& setting, Plan plan, std::string& over) {
  over = setting.check_memory ? overfill(predictor, setting, plan) : "";
  if (!over.empty() && !setting.published) {
    plan.shard_optimizer = true;
    over = overfill(predictor, setting, plan);
  }
  if (over.empty()) return plan;
  if (!has_hosts(predictor.cluster())) return {};
  plan.shard_optimizer = false;  // hosts update whole parts
  for (const HostUse use : kHostUses) {
    Plan on_hosts = plan;
    keep_on_hosts(use, predictor.model(), predictor.cluster(), on_hosts);
    over = overfill(predictor, setting, on_hosts);
    if (over.empty()) return on_hosts;
  }
  return {};
}

std::vector<i64> microbatch_counts(i64 sequences, i64 devices) {
  // Equal shares only: EP would otherwise give one type more than the other by accident of the order.
  std::vector<i64> counts;
  for (i64 each = 1; each <= kMostSequencesEach && each * devices <= sequences; ++each) {
    if (sequences % (devices * each) == 0) counts.push_back(sequences / (devices * each));
  }
  // Where the devices do not divide the sequences, as near to one each as possible.
  if (counts.empty()) counts.push_back(std::max<i64>(1, sequences / devices));
  return counts;
}

Tuned tune_ep(Predictor& predictor, const Setting& setting, const std::vector<DeviceId>& devices) {
  Best best(predictor, setting);
  const i64 num_devices =
      devices.empty() ? predictor.cluster().num_devices() : static_cast<i64>(devices.size());
  for (const i64 count : microbatch_counts(setting.sequences, num_devices)) {
    StrategyRequest request = request_of(setting, count);
    request.attention = devices;
    Plan plan = find_strategy("ep").make(predictor.model(), predictor.cluster(), request);
    apply(setting, plan);
    if (setting.published) plan.recompute = Recompute::kResend;
    plan.shard_optimizer = setting.published;
    consider_degrees(best, std::move(plan));
    if (setting.one_sequence) break;
  }
  return best.take();
}

Tuned tune_dist_ep(Predictor& predictor, const Setting& setting) {
  Best best(predictor, setting);
  const auto attention = static_cast<i64>(default_roles(predictor.cluster()).attention.size());
  for (const i64 count : microbatch_counts(setting.sequences, attention)) {
    Plan plan =
        find_strategy("dist-ep").make(predictor.model(), predictor.cluster(), request_of(setting, count));
    apply(setting, plan);
    consider_degrees(best, std::move(plan));
  }
  return best.take();
}

Tuned tune_microbatches(Predictor& predictor, const Setting& setting, const std::string& name) {
  const Strategy& strategy = find_strategy(name);
  const Cluster& cluster = predictor.cluster();
  Best best(predictor, setting);
  // One device after another takes a microbatch where they take turns, and all together where they are alike.
  const auto sharers = strategy.one_node ? 1 : roles_of(strategy.use, cluster, {}).attention.size();
  for (const i64 count : microbatch_counts(setting.sequences, static_cast<i64>(sharers))) {
    Plan plan = strategy.make(predictor.model(), cluster, request_of(setting, count));
    apply(setting, plan);
    best.consider(std::move(plan));
  }
  return best.take();
}

ZebraTimes zebra_times(Predictor& predictor, const Plan& zebra) {
  const std::unique_ptr<CostModel> cost = predictor.cost(zebra);
  const Group& group = zebra.groups.at(0);
  i32 layer = 0;
  while (!predictor.model().is_moe(layer)) ++layer;
  const TokenRanges ranges(share_row(group.layers[static_cast<std::size_t>(layer)].attention, 0),
                           zebra.seq_len);
  const DeviceId attention = ranges.device(0);
  const auto& experts = group.layers[static_cast<std::size_t>(layer)].experts;
  ComputeWork work;
  work.op = {.kind = OpKind::kAttention, .layer = layer, .microbatch = 0};
  work.device = attention;
  work.seq_len = zebra.seq_len;
  work.tokens = real(ranges.tokens(0));
  work.merged_rows = work.tokens * static_cast<double>(predictor.model().top_k);
  ZebraTimes times;
  times.attention = cost->compute(work);
  const DeviceId owner = experts.at(0).front().device;
  for (const auto& owners : experts) work.experts += owners[0].device == owner ? 1 : 0;
  work.op.kind = OpKind::kExperts;
  work.copies = real(microbatch_tokens(group, 0, zebra) * predictor.model().top_k) * work.experts /
                static_cast<double>(predictor.model().num_experts);
  work.rows = work.copies;
  work.device = owner;
  times.expert = cost->compute(work);
  work.device = attention;
  times.local_expert = cost->compute(work);
  return times;
}

namespace {

i64 nanoseconds(Seconds seconds) { return static_cast<i64>(std::llround(seconds * 1e9)); }

AsymEaInput asym_ea_input(Predictor& predictor, const Plan& zebra, const Roles& roles) {
  const ZebraTimes times = zebra_times(predictor, zebra);
  AsymEaInput input;
  input.num_layers = predictor.model().num_moe_layers();
  input.num_experts = predictor.model().num_experts;
  input.num_attention = static_cast<i64>(roles.attention.size());
  input.num_expert_devices = static_cast<i64>(roles.experts.size());
  input.attention_ns = nanoseconds(times.attention);
  input.local_expert_ns = nanoseconds(times.local_expert);
  input.expert_ns = nanoseconds(times.expert);
  return input;
}

/// The least number from 0 to `most` for which `holds`, which goes on holding from there; most + 1 = none.
template <class Holds>
i64 least_that(i64 most, Holds holds) {
  i64 low = 0, high = most + 1;
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if (holds(middle))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

/// Zebra's plans with so many microbatches, so many of them in flight.
class ZebraPlans {
 public:
  ZebraPlans(Predictor& predictor, const Setting& setting, i64 microbatches, i32 window)
      : predictor_(predictor),
        setting_(setting),
        microbatches_(microbatches),
        window_(window),
        roles_(default_roles(predictor.cluster())) {}

  /// chunks: [layer with experts] given up by each expert device.
  Plan make(const std::vector<i64>& moved) const {
    StrategyRequest request = request_of(setting_, microbatches_);
    request.experts_moved = by_layer(moved);
    request.window = window_;
    Plan plan = find_strategy("zebra").make(predictor_.model(), predictor_.cluster(), request);
    apply(setting_, plan);
    if (setting_.published) plan.queue_binding = QueueBinding::kName;
    return plan;
  }
  std::vector<i64> none_moved() const {
    return std::vector<i64>(idx(predictor_.model().num_moe_layers()), 0);
  }

  /// [layer] of those of the layers with experts: dense ones give nothing.
  std::vector<i64> by_layer(const std::vector<i64>& moved) const {
    std::vector<i64> all;
    for (i64 l = 0, moe = 0; l < predictor_.model().num_layers; ++l)
      all.push_back(predictor_.model().is_moe(l) ? moved[idx(moe++)] : 0);
    return all;
  }

  AsymEaInput times() const { return asym_ea_input(predictor_, make(none_moved()), roles_); }

  /// Times of a layer, and what memory allows: how many experts the devices of either role can hold.
  AsymEaInput input() const {
    AsymEaInput input = times();
    const AsymEaResult rule = gather_and_squeeze(input, 0);
    if (!setting_.check_memory || !rule.infeasible.empty() || has_hosts(predictor_.cluster())) return input;
    const i64 each = input.num_experts / input.num_expert_devices;
    const i64 most = input.num_layers * (each / rule.chunk_given);
    const auto fit = [&](i64 chunks, const std::vector<DeviceId>& devices) {
      return fits(make(gather_and_squeeze(input, chunks).moved), devices);
    };
    const i64 least = least_that(most, [&](i64 chunks) { return fit(chunks, roles_.experts); });
    const i64 too_many = least_that(most, [&](i64 chunks) { return !fit(chunks, roles_.attention); });
    input.expert_capacity = input.num_layers * each - least * rule.chunk_given;
    input.attention_capacity = std::max<i64>(0, too_many - 1) * rule.chunk_received;
    return input;
  }

  bool fits(const Plan& plan, const std::vector<DeviceId>& devices) const {
    const std::vector<Bytes> memory = needed(predictor_, setting_, plan);
    std::vector<Bytes> of_devices(memory.size(), 0);
    for (const DeviceId d : devices) of_devices[idx(d)] = memory[idx(d)];
    return overfilled_device(of_devices, predictor_.cluster()).empty();
  }
  bool fits(const Plan& plan) const {
    return overfilled_device(needed(predictor_, setting_, plan), predictor_.cluster()).empty();
  }
  /// Without experts moved, or with those that the rule moves: by times alone or, where `forced`, by memory,
  /// too.
  bool fits(bool asym_ea, bool forced) const {
    if (fits(make(none_moved()))) return true;
    if (!asym_ea) return false;
    const AsymEaResult rule = gather_and_squeeze(forced ? input() : times());
    return rule.infeasible.empty() && fits(make(rule.moved));
  }

 private:
  Predictor& predictor_;
  const Setting& setting_;
  i64 microbatches_;
  i32 window_;
  Roles roles_;
};

/// Tries what the rule says, then one chunk more or less as long as that is faster: the rule knows neither
/// head, transfers nor backward pass.
template <class Consider>
void search_chunks(const AsymEaInput& input, Consider consider) {
  const AsymEaResult rule = gather_and_squeeze(input);
  if (!rule.infeasible.empty()) return;
  const i64 by_rule = total_chunks(rule);
  const i64 most = input.num_layers * (input.num_experts / input.num_expert_devices / rule.chunk_given);
  const auto faster = [&](i64 chunks) {
    return chunks > 0 && chunks <= most && consider(gather_and_squeeze(input, chunks).moved);
  };
  consider(rule.moved);
  faster(by_rule);
  i64 fewer = by_rule - 1;
  while (faster(fewer)) --fewer;
  if (fewer < by_rule - 1) return;
  for (i64 more = by_rule + 1; faster(more);) ++more;
}

/// How many microbatches are in flight: 0 = all, then fewer, as the published system does not.
std::vector<i32> zebra_windows(const Setting& setting, i64 microbatches) {
  std::vector<i32> windows = {0};
  for (i64 window = microbatches / 2; window > 1 && !setting.published; window /= 2)
    windows.push_back(static_cast<i32>(window));
  return windows;
}

}  // namespace

bool zebra_fits(Predictor& predictor, const Setting& setting, bool asym_ea, bool forced) {
  const auto attention = static_cast<i64>(default_roles(predictor.cluster()).attention.size());
  for (const i64 count : microbatch_counts(setting.sequences, attention)) {
    for (const i32 window : zebra_windows(setting, count)) {
      if (ZebraPlans(predictor, setting, count, window).fits(asym_ea, forced)) return true;
    }
  }
  return false;
}

Tuned tune_zebra(Predictor& predictor, const Setting& setting, bool asym_ea) {
  Best best(predictor, setting);
  const auto attention = static_cast<i64>(default_roles(predictor.cluster()).attention.size());
  for (const i64 count : microbatch_counts(setting.sequences, attention)) {
    for (const i32 window : zebra_windows(setting, count)) {
      const ZebraPlans plans(predictor, setting, count, window);
      const auto consider = [&](const std::vector<i64>& moved) {
        return best.consider(plans.make(moved), plans.by_layer(moved));
      };
      consider(plans.none_moved());
      if (asym_ea) search_chunks(plans.input(), consider);
      if (plans.fits(asym_ea, false)) break;  // fewer in flight wait longer
    }
  }
  return best.take();
}

}  // namespace hetermoe
