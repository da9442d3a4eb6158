#include "hetermoe/planner/strategies/depth_groups.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/measured.h"
#include "hetermoe/sim/folded_step.h"

namespace hetermoe {
namespace {

const char* const kWhere = "plan.depth_groups";

/// A role's devices, cut into groups.
struct RoleGroups {
  std::vector<std::vector<DeviceId>> devices;
  std::vector<std::vector<double>> weights;  ///< none where nobody gave any
};

/// Lists, as positions, of so many devices each.
std::vector<std::vector<std::size_t>> cut_by_counts(const std::string& role, const std::vector<i64>& counts,
                                                    i64 groups, std::size_t devices) {
  const i64 sum = std::accumulate(counts.begin(), counts.end(), i64{0});
  if (static_cast<i64>(counts.size()) != groups || sum != static_cast<i64>(devices))
    fail<ConfigError>("plan.stage_" + role, "got {} numbers that add up to {}, expected {} for {} devices",
                      counts.size(), sum, groups, devices);
  std::vector<std::vector<std::size_t>> parts;
  std::size_t next = 0;
  for (const i64 count : counts) {
    parts.emplace_back(idx(count));
    std::iota(parts.back().begin(), parts.back().end(), next);
    next += idx(count);
  }
  return parts;
}

RoleGroups cut_role(const std::string& role, const std::vector<DeviceId>& devices,
                    const std::vector<double>& weights, const std::vector<i64>& counts, i64 groups) {
  if (groups > static_cast<i64>(devices.size()))
    fail<ConfigError>(kWhere, "got {} groups of devices with {}, expected at most as many as devices ({})",
                      groups, role, devices.size());
  const auto parts =
      counts.empty()
          ? deal_devices(weights.empty() ? std::vector<double>(devices.size(), 1) : weights, groups)
          : cut_by_counts(role, counts, groups, devices.size());
  RoleGroups out;
  for (const std::vector<std::size_t>& part : parts) {
    out.devices.emplace_back();
    out.weights.emplace_back();
    for (const std::size_t i : part) {
      out.devices.back().push_back(devices[i]);
      if (!weights.empty()) out.weights.back().push_back(weights[i]);
    }
  }
  return out;
}

/// As asked, or as many as a list has, or 2 where that is possible.
std::pair<i64, i64> asked_groups(const ModelConfig& model, const StrategyRequest& request,
                                 const Roles& roles) {
  const std::vector<i64>& asked = request.depth_groups;
  if (asked.size() > 2) fail<ConfigError>(kWhere, "got {} numbers, expected one or two", asked.size());
  std::pair<i64, i64> groups;
  if (!asked.empty()) {
    groups = {asked.front(), asked.back()};
  } else {
    const auto count = [&](const std::vector<i64>& list, const std::vector<DeviceId>& devices) {
      if (!list.empty()) return static_cast<i64>(list.size());
      return std::min({i64{2}, static_cast<i64>(devices.size()), model.num_layers});
    };
    groups = {count(request.stage_attention, roles.attention), count(request.stage_experts, roles.experts)};
  }
  const i64 most = std::max(groups.first, groups.second);
  if (most > model.num_layers)
    fail<ConfigError>(kWhere, "got {} groups, expected at most as many as layers of {} ({})", most,
                      model.name, model.num_layers);
  return groups;
}

/// The plans of pairs of stations, each for all layers.
class Parts {
 public:
  Parts(const StrategyRequest& request, const RoleGroups& attention, const RoleGroups& experts,
        const std::function<Plan(const StrategyRequest&)>& make)
      : request_(request), attention_(attention), experts_(experts), make_(make) {
    static_cast<CutOptions&>(request_) = {};
  }

  const Plan& of_layer(i64 layer) {
    const std::size_t a = idx(layer) % attention_.devices.size(), e = idx(layer) % experts_.devices.size();
    const auto [at, is_new] = parts_.try_emplace({a, e});
    if (is_new) {
      request_.attention = attention_.devices[a], request_.attention_weights = attention_.weights[a];
      request_.experts = experts_.devices[e], request_.expert_weights = experts_.weights[e];
      at->second = make_(request_);
    }
    return at->second;
  }

 private:
  StrategyRequest request_;
  const RoleGroups &attention_, &experts_;
  const std::function<Plan(const StrategyRequest&)>& make_;
  std::map<std::pair<std::size_t, std::size_t>, Plan> parts_;
};

/// One microbatch of the first group, alone.
Plan one_microbatch(const Plan& plan) {
  Plan one = plan;
  one.groups.resize(1);
  one.window = 1;
  one.expected.reset();
  Group& group = one.groups[0];
  group.microbatches.resize(1);
  const auto keep_one = [](Shares& shares) {
    if (!shares.empty()) shares.resize(1);
  };
  keep_one(group.embed), keep_one(group.head);
  for (LayerPlacement& layer : group.layers) keep_one(layer.attention), keep_one(layer.attention_backward);
  return one;
}

/// When a part of a microbatch begins and ends.
struct Span {
  Seconds begin = std::numeric_limits<Seconds>::infinity(), end = 0;
  Seconds length() const { return std::max(0.0, end - begin); }
};

/// Parts of a microbatch in a simulated step, in the order of its way.
class PartTimes {
 public:
  PartTimes(const FoldedStep& step, const OpTimes& times, const ModelConfig& model) : model_(model) {
    for (OpId op = 0; op < step.schedule.num_ops(); ++op) {
      const Op& at = step.schedule.ops[idx(op)];
      const bool part =
          at.kind == OpKind::kAttention || at.kind == OpKind::kExperts || at.kind == OpKind::kHead;
      if (!part || at.microbatch < 0) continue;
      // What a backward pass makes again it does first.
      const Phase phase = at.phase == Phase::kRecompute ? Phase::kBackward : at.phase;
      Span& span = spans_[{at.kind, phase, at.layer}];
      span.begin = std::min(span.begin, times.start[idx(op)]);
      span.end = std::max(span.end, times.end[idx(op)]);
    }
  }

  Seconds of(OpKind kind, Phase phase, i32 layer) const {
    const auto at = spans_.find({kind, phase, layer});
    return at == spans_.end() ? 0 : at->second.length();
  }
  Seconds backward(i32 layer) const {
    return of(OpKind::kAttention, Phase::kBackward, layer) + of(OpKind::kExperts, Phase::kBackward, layer);
  }
  /// The mean time from the end of a part to the beginning of the next one.
  Seconds transfer() const {
    Seconds sum = 0;
    i64 count = 0;
    const Span* before = nullptr;
    for (i32 l = 0; l < static_cast<i32>(model_.num_layers); ++l) {
      for (const OpKind kind : {OpKind::kAttention, OpKind::kExperts}) {
        const auto at = spans_.find({kind, Phase::kForward, l});
        if (at == spans_.end()) continue;
        if (before != nullptr) sum += std::max(0.0, at->second.begin - before->end), ++count;
        before = &at->second;
      }
    }
    return count == 0 ? 0 : sum / real(count);
  }

 private:
  const ModelConfig& model_;
  std::map<std::tuple<OpKind, Phase, i32>, Span> spans_;
};

/// To three digits: differences below are nothing that an order should follow.
double rounded(double value) {
  if (value <= 0) return 0;
  const double unit = std::pow(10, std::floor(std::log10(value)) - 2);
  return std::round(value / unit) * unit;
}

std::vector<double> collapsed(std::vector<double> times) {
  if (std::all_of(times.begin(), times.end(), [&](double t) { return t == times[0]; })) times.resize(1);
  return times;
}

std::set<DeviceId> owners_of(const LayerPlacement& layer) {
  std::set<DeviceId> devices;
  for (const ExpertOwners& owners : layer.experts)
    for (const ExpertOwner& owner : owners) devices.insert(owner.device);
  return devices;
}

}  // namespace

std::vector<std::vector<std::size_t>> deal_devices(const std::vector<double>& speeds, i64 groups) {
  std::map<double, std::vector<std::size_t>, std::greater<>> by_speed;
  for (std::size_t i = 0; i < speeds.size(); ++i) by_speed[speeds[i]].push_back(i);
  std::vector<double> sum(idx(groups), 0);
  std::vector<std::vector<std::size_t>> dealt(idx(groups));
  for (const auto& [speed, devices] : by_speed) {
    std::vector<std::size_t> count(idx(groups), 0);
    for (std::size_t i = 0; i < devices.size(); ++i) {
      const auto least = static_cast<std::size_t>(std::min_element(sum.begin(), sum.end()) - sum.begin());
      sum[least] += speed;
      ++count[least];
    }
    std::size_t next = 0;
    for (std::size_t g = 0; g < dealt.size(); ++g)
      for (const std::size_t end = next + count[g]; next < end; ++next) dealt[g].push_back(devices[next]);
  }
  for (std::vector<std::size_t>& group : dealt) std::sort(group.begin(), group.end());
  return dealt;
}

Plan make_depth_groups(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request,
                       const Roles& roles, const std::function<Plan(const StrategyRequest&)>& make_part) {
  const auto [num_attention, num_experts] = asked_groups(model, request, roles);
  const RoleGroups attention = cut_role("attention", roles.attention, request.attention_weights,
                                        request.stage_attention, num_attention),
                   experts = cut_role("experts", roles.experts, request.expert_weights, request.stage_experts,
                                      num_experts);
  Parts parts(request, attention, experts, make_part);
  Plan plan = parts.of_layer(0);
  Group& group = plan.groups[0];
  for (i64 l = 0; l < model.num_layers; ++l)
    group.layers[idx(l)] = parts.of_layer(l).groups[0].layers[idx(l)];
  group.head = parts.of_layer(model.num_layers % num_attention).groups[0].layers[0].attention;
  if (request.head_on == HeadOn::kExperts) {
    const std::size_t last = idx((model.num_layers - 1) % num_experts);
    group.head = make_share_rows(experts.devices[last], group.microbatches, experts.weights[last]);
  }
  group.devices.clear();
  for (const RoleGroups* role : {&attention, &experts})
    for (const std::vector<DeviceId>& devices : role->devices)
      group.devices.insert(group.devices.end(), devices.begin(), devices.end());
  std::sort(group.devices.begin(), group.devices.end());
  plan.order = OrderPolicy::kTimed;
  plan.combine_to = request.combine_to, plan.nics = request.nics;
  // Two microbatches for each station, and as many again.
  plan.window =
      request.window >= 0 ? request.window : static_cast<i32>(4 * std::max(num_attention, num_experts));
  if (!request.expects_times) return plan;
  Plan asked = plan;  // whose times are asked for
  asked.dtype.assign(plan.dtype.size(), request.dtype);
  asked.wire_forward = asked.wire_backward = wire_of(request.dtype);
  plan.expected =
      expected_times(asked, model, cluster, *make_cost(model, cluster, asked, load_profiles(cluster)));
  return plan;
}

ExpectedTimes expected_times(const Plan& plan, const ModelConfig& model, const Cluster& cluster,
                             const CostModel& cost) {
  const Plan one = one_microbatch(plan);
  const FoldedStep step = make_folded_step(one, model, cluster, cost, ExpectedRouting(model));
  const OpTimes times = Simulator().run(step.schedule, step.costs);
  const PartTimes parts(step, times, model);
  ExpectedTimes out;
  out.attention.clear(), out.experts.clear();
  Seconds forward = 0, backward = 0;
  for (i32 l = 0; l < static_cast<i32>(model.num_layers); ++l) {
    out.attention.push_back(parts.of(OpKind::kAttention, Phase::kForward, l));
    out.experts.push_back(parts.of(OpKind::kExperts, Phase::kForward, l));
    forward += out.attention.back() + out.experts.back();
    backward += parts.backward(l);
  }
  const Seconds unit = *std::max_element(out.attention.begin(), out.attention.end());
  if (unit <= 0 || forward <= 0) return {};
  for (std::vector<double>* of : {&out.attention, &out.experts}) {
    for (double& time : *of) time = rounded(time / unit);
    *of = collapsed(std::move(*of));
  }
  out.transfer = rounded(parts.transfer() / unit);
  out.head = rounded(parts.of(OpKind::kHead, Phase::kForward, -1) / unit);
  out.backward = rounded(backward / forward);
  return out;
}

DepthGroups depth_groups_of(const Group& group) {
  std::set<std::set<DeviceId>> attention, experts;
  for (const LayerPlacement& layer : group.layers) {
    std::set<DeviceId> sources;
    add_devices(layer.attention, sources);
    attention.insert(std::move(sources));
    if (!layer.experts.empty()) experts.insert(owners_of(layer));
  }
  return {static_cast<i64>(attention.size()), static_cast<i64>(experts.size())};
}

}  // namespace hetermoe
