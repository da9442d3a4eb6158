#include "hetermoe/planner/baselines.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hetermoe/base/index.h"
#include "hetermoe/planner/balance/asym_ea.h"
#include "hetermoe/planner/host_use.h"
#include "hetermoe/planner/memory_estimate.h"
#include "hetermoe/planner/strategies.h"

namespace hetermoe {
namespace {

/// Keeps the fastest plan that fits.
class Best {
 public:
  Best(Predictor& predictor, const Setting& setting) : predictor_(predictor), setting_(setting) {}

  /// Returns true when this plan is the best so far.
  bool consider(Plan plan, const std::vector<i64>& moved = {}) {
    std::string over;
    std::optional<Plan> fitting = with_room(predictor_, setting_, std::move(plan), over);
    if (!fitting) {
      if (best_.plan.groups.empty()) best_.infeasible = over;
      return false;
    }
    Prediction prediction = predictor_.predict(*fitting);
    if (!best_.plan.groups.empty() && prediction.step >= best_.prediction.step) return false;
    fitting->predicted_step_s = prediction.step;
    best_ = {std::move(*fitting), std::move(prediction), moved, ""};
    return true;
  }
  Tuned take() { return std::move(best_); }

 private:
  Predictor& predictor_;
  const Setting& setting_;
  Tuned best_;
};

StrategyRequest request_of(const Setting& setting, i64 microbatches) {
  StrategyRequest request;
  request.seq_len = setting.seq_len;
  request.sequences = setting.sequences;
  request.microbatches = microbatches;
  request.dtype = setting.dtype;
  return request;
}

void consider_degrees(Best& best, Plan plan) {
  for (const i32 degree : kPartitionDegrees) {
    plan.chunks = degree;
    best.consider(plan);
  }
}

}  // namespace

void apply(const Setting& setting, Plan& plan) {
  plan.dtype.assign(plan.dtype.size(), setting.dtype);
  plan.wire_forward = plan.wire_backward = setting.dtype;
  plan.row_dedup = !setting.published;
  if (setting.published && bytes_of(setting.dtype) == 2) plan.grad_dtype = setting.dtype;
}

namespace {

std::string overfill(const Predictor& predictor, const Plan& plan) {
  std::string over = overfilled_device(estimate_memory(plan, predictor.model()), predictor.cluster());
  return over.empty() ? overfilled_host(plan, predictor.model(), predictor.cluster()) : over;
}

}  // namespace

/// The optimizer is sharded where that takes, but not in published settings, which say whether they do.
std::optional<Plan> with_room(const Predictor& predictor, const Setting& setting, Plan plan,
                              std::string& over) {
  over = setting.check_memory ? overfill(predictor, plan) : "";
  if (!over.empty() && !setting.published) {
    plan.shard_optimizer = true;
    over = overfill(predictor, plan);
  }
  if (over.empty()) return plan;
  if (!has_hosts(predictor.cluster())) return {};
  plan.shard_optimizer = false;  // hosts update whole parts
  for (const HostUse use : kHostUses) {
    Plan on_hosts = plan;
    keep_on_hosts(use, predictor.model(), predictor.cluster(), on_hosts);
    over = overfill(predictor, on_hosts);
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
        find_strategy("dist_ep").make(predictor.model(), predictor.cluster(), request_of(setting, count));
    apply(setting, plan);
    consider_degrees(best, std::move(plan));
  }
  return best.take();
}

Tuned tune_roundpipe(Predictor& predictor, const Setting& setting) {
  const Strategy& strategy = find_strategy("roundpipe");
  Best best(predictor, setting);
  for (const i64 count : microbatch_counts(setting.sequences, 1)) {
    Plan plan = strategy.make(predictor.model(), predictor.cluster(), request_of(setting, count));
    apply(setting, plan);
    best.consider(std::move(plan));
  }
  return best.take();
}

LayerTimes layer_times(Predictor& predictor, const Plan& zebra) {
  const std::unique_ptr<CostModel> cost = predictor.cost(zebra);
  const Group& group = zebra.groups.at(0);
  i32 layer = 0;
  while (!predictor.model().is_moe(layer)) ++layer;
  const ShareRow& shares = share_row(group.layers[static_cast<std::size_t>(layer)].attention, 0);
  const DeviceId attention = shares.at(0).device;
  const auto& experts = group.layers[static_cast<std::size_t>(layer)].experts;
  ComputeWork work;
  work.op = {OpKind::kAttention, Phase::kForward, 0, 0, layer, 0, -1};
  work.device = attention;
  work.seq_len = zebra.seq_len;
  work.sequences = static_cast<double>(shares.at(0).sequences);
  work.tokens = work.sequences * static_cast<double>(zebra.seq_len);
  work.merged_rows = work.tokens * static_cast<double>(predictor.model().top_k);
  LayerTimes times;
  times.attention = cost->compute(work);
  const DeviceId owner = experts.at(0).front().device;
  for (const auto& owners : experts) work.experts += owners[0].device == owner ? 1 : 0;
  work.op.kind = OpKind::kExperts;
  work.copies = static_cast<double>(group.microbatches[0] * zebra.seq_len * predictor.model().top_k) *
                work.experts / static_cast<double>(predictor.model().num_experts);
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
  const LayerTimes times = layer_times(predictor, zebra);
  AsymEaInput input;
  input.num_layers = predictor.model().num_layers;
  input.num_experts = predictor.model().num_experts;
  input.num_attention = static_cast<i64>(roles.attention.size());
  input.num_expert_devices = static_cast<i64>(roles.experts.size());
  input.attention_ns = nanoseconds(times.attention);
  input.local_expert_ns = nanoseconds(times.local_expert);
  input.expert_ns = nanoseconds(times.expert);
  return input;
}

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

}  // namespace

namespace {

Plan zebra_plan(Predictor& predictor, const Setting& setting, i64 microbatches,
                const std::vector<i64>& moved) {
  StrategyRequest request = request_of(setting, microbatches);
  request.experts_moved = moved;
  Plan plan = find_strategy("zebra").make(predictor.model(), predictor.cluster(), request);
  apply(setting, plan);
  if (setting.published) plan.queue_binding = QueueBinding::kName;
  return plan;
}

std::vector<i64> none_moved(const Predictor& predictor) {
  return std::vector<i64>(idx(predictor.model().num_layers), 0);
}

}  // namespace

bool zebra_fits(Predictor& predictor, const Setting& setting, bool asym_ea) {
  const Roles roles = default_roles(predictor.cluster());
  const auto fits = [&](const Plan& plan) {
    return overfilled_device(estimate_memory(plan, predictor.model()), predictor.cluster()).empty();
  };
  for (const i64 count : microbatch_counts(setting.sequences, static_cast<i64>(roles.attention.size()))) {
    const Plan plan = zebra_plan(predictor, setting, count, none_moved(predictor));
    if (fits(plan)) return true;
    if (!asym_ea) continue;
    const AsymEaResult rule = gather_and_squeeze(asym_ea_input(predictor, plan, roles));
    if (rule.infeasible.empty() && fits(zebra_plan(predictor, setting, count, rule.moved))) return true;
  }
  return false;
}

Tuned tune_zebra(Predictor& predictor, const Setting& setting, bool asym_ea) {
  Best best(predictor, setting);
  const Roles roles = default_roles(predictor.cluster());
  for (const i64 count : microbatch_counts(setting.sequences, static_cast<i64>(roles.attention.size()))) {
    const Plan plain = zebra_plan(predictor, setting, count, none_moved(predictor));
    best.consider(plain, none_moved(predictor));
    if (!asym_ea) continue;
    search_chunks(asym_ea_input(predictor, plain, roles), [&](const std::vector<i64>& moved) {
      return best.consider(zebra_plan(predictor, setting, count, moved), moved);
    });
  }
  return best.take();
}

}  // namespace hetermoe
