#include "hetermoe/cost/measured.h"

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/base/paths.h"

namespace hetermoe {
ProfileSet load_profiles(const Cluster& cluster) {
  ProfileSet profiles;
  for (std::size_t t = 0; t < cluster.types.size(); ++t) {
    if (cluster.types[t].profile.empty()) continue;
    const std::filesystem::path path = find_config(cluster.types[t].profile, "profiles", "json");
    profiles[static_cast<i32>(t)] = {read_profile(path), path.string()};
  }
  return profiles;
}

namespace {

/// [device] parameters of the states whose squared gradients it sums.
std::vector<double> params_told_by_devices(const ModelConfig& model, const Plan& plan) {
  std::vector<double> params(plan.dtype.size(), 0);
  if (plan.groups.empty()) return params;  // a plan to be, of which the planner knows no more than the dtypes
  const Placement placement(plan, model, {});
  const ParamCounts counts = count_parameters(model);
  for (const State& state : placement.states()) {
    double& of_device = params[idx(state.devices[0])];
    switch (state.part) {
      case State::Part::kEmbed:
        of_device += real(counts.embedding + (model.tie_embeddings ? counts.head : 0));
        break;
      case State::Part::kAttention:
        of_device += real(counts.attention_part[idx(state.layer)]);
        break;
      case State::Part::kExperts:
        of_device += real(counts.expert) * real(state.experts.size());
        break;
      case State::Part::kHead:
        of_device += real(counts.head);
        break;
    }
  }
  return params;
}

std::vector<std::vector<double>> tokens_of_chunks(const Plan& plan) {
  std::vector<std::vector<double>> tokens;
  for (const Group& group : plan.groups) {
    tokens.emplace_back();
    for (std::size_t m = 0; m < group.microbatches.size(); ++m)
      tokens.back().push_back(real(microbatch_tokens(group, m, plan)) / real(plan.chunks));
  }
  return tokens;
}

Seconds mean_gap(const ProfileFile& profile) {
  Seconds sum = 0;
  i64 count = 0;
  for (const ProfileEntry& entry : profile.entries) {
    if (entry.op != ProfiledOp::kGap) continue;
    sum += entry.seconds;
    ++count;
  }
  return count > 0 ? sum / real(count) : 0;
}

}  // namespace

MeasuredCost::MeasuredCost(const ModelConfig& model, const Cluster& cluster, const Plan& plan,
                           ProfileSet profiles, SoftwareConstants constants)
    : roofline_(model, cluster, plan, constants),
      model_(model),
      cluster_(cluster),
      recompute_(plan),
      weight_gradients_(plan.weight_gradients),
      tokens_(tokens_of_chunks(plan)) {
  for (const auto& [type, named] : profiles) {
    HM_CHECK(type >= 0 && type < static_cast<i32>(cluster.types.size()), "a profile of device type {}", type);
    for (const DeviceId device : cluster.devices_of_type(type))
      check_profile(named.profile, model, plan.dtype[idx(device)], named.where);
    Tables& tables = tables_[type];
    for (const ProfileEntry& entry : named.profile.entries) {
      const ProfilePoint at = point_of(entry);
      tables[idx(entry.op)][idx(entry.phase)].add(at.family, at.size, entry.seconds);
    }
    gaps_[type] = mean_gap(named.profile);
    const bool has_norm = !tables[idx(ProfiledOp::kNorm)][idx(ProfiledPhase::kForward)].empty();
    if (has_norm && params_.empty()) params_ = params_told_by_devices(model, plan);
  }
}

const MeasuredCost::Tables* MeasuredCost::tables_of(DeviceId device) const {
  const auto found = tables_.find(cluster_.devices[idx(device)].type);
  return found == tables_.end() ? nullptr : &found->second;
}

std::optional<MeasuredCost::Answer> MeasuredCost::look_up(const Tables& tables, ProfiledOp op,
                                                          ProfiledPhase phase, ProfilePoint at) {
  const Surface& table = tables[idx(op)][idx(phase)];
  if (table.empty()) return std::nullopt;
  const CurveValue estimate = table.at(at.family, at.size);
  return Answer{estimate.seconds, estimate.extrapolated};
}

/// Backward is measured whole: the gradients of weights take the part of it that they have in the roofline.
double MeasuredCost::weights_share(const ComputeWork& work) const {
  ComputeWork inputs = work, weights = work;
  inputs.op.phase = Phase::kBackward, weights.op.phase = Phase::kWeights;
  const Seconds after = roofline_.compute(weights), all = roofline_.compute(inputs) + after;
  return all > 0 ? after / all : 0;
}

/// The entry of attention or experts that stands for the op's phase under the plan's recomputation.
std::optional<MeasuredCost::Answer> MeasuredCost::phased(const Tables& tables, ProfiledOp op,
                                                         const ComputeWork& work, ProfilePoint at) const {
  const Recompute recompute = recompute_.of(work.op.group, work.op.layer);
  if (work.op.phase == Phase::kForward) {
    const std::optional<Answer> kept =
        keeps_activations(recompute) ? look_up(tables, op, ProfiledPhase::kForwardKept, at) : std::nullopt;
    return kept ? kept : look_up(tables, op, ProfiledPhase::kForward, at);
  }
  if (work.op.phase == Phase::kRecompute && recompute == Recompute::kSelect) return std::nullopt;
  if (work.op.phase == Phase::kRecompute) return look_up(tables, op, ProfiledPhase::kRecompute, at);
  const bool recomputes = recomputes_inside(recompute, op != ProfiledOp::kDenseAttention);
  std::optional<Answer> all =
      look_up(tables, op, recomputes ? ProfiledPhase::kForwardBackward : ProfiledPhase::kBackward, at);
  if (!all || weight_gradients_ == WeightGradients::kWith) return all;
  const double share = weights_share(work);
  all->seconds *= work.op.phase == Phase::kWeights ? share : 1 - share;
  return all;
}

std::optional<MeasuredCost::Answer> MeasuredCost::main_part(const Tables& tables,
                                                            const ComputeWork& work) const {
  const bool backward = work.op.phase == Phase::kBackward;
  switch (*row_of(work.op.kind).pricing) {
    case Pricing::kEmbedding:
      if (work.tokens <= 0) return Answer{};
      return look_up(tables, ProfiledOp::kEmbed,
                     backward ? ProfiledPhase::kBackward : ProfiledPhase::kForward, {1, work.tokens});
    case Pricing::kProjection:  // profiles measure attention parts whole
    case Pricing::kScores:
      return std::nullopt;
    case Pricing::kAttention:
      if (work.of_team) return std::nullopt;
      if (work.tokens <= 0) return Answer{};
      return phased(tables,
                    model_.is_moe(work.op.layer) ? ProfiledOp::kAttention : ProfiledOp::kDenseAttention, work,
                    {real(work.seq_len), work.sequences()});
    case Pricing::kExperts:
      if (work.copies <= 0) return Answer{};
      return phased(tables, ProfiledOp::kExperts, work,
                    {std::max(1.0, work.experts), work.copies / std::max(1.0, work.experts)});
    case Pricing::kHead:
      if (work.tokens <= 0) return Answer{};
      return look_up(tables, ProfiledOp::kHead,
                     work.trains ? ProfiledPhase::kForwardBackward : ProfiledPhase::kForward,
                     {1, work.tokens});
    case Pricing::kUpdate:
      if (work.params <= 0) return Answer{};
      return look_up(tables, ProfiledOp::kUpdate, ProfiledPhase::kForward, {1, work.params});
    case Pricing::kHostCopy:  // hosts have no tables
      break;
    case Pricing::kMerge:
      return Answer{};  // all of it is merged rows
  }
  HM_CHECK(false, "{} has no cost", to_string(work.op));
  return std::nullopt;
}

/// The op itself and the merge that it starts with; without an entry for either the op is not measured.
std::optional<MeasuredCost::Answer> MeasuredCost::measured(const ComputeWork& work) const {
  const Tables* tables = tables_of(work.device);
  if (tables == nullptr) return std::nullopt;
  std::optional<Answer> main = main_part(*tables, work);
  if (!main) return std::nullopt;
  if (work.merged_rows > 0) {
    const std::optional<Answer> merge =
        look_up(*tables, ProfiledOp::kMerge, ProfiledPhase::kForward, {1, work.merged_rows});
    if (!merge) return std::nullopt;
    main->seconds += merge->seconds;
    main->extrapolated = main->extrapolated || merge->extrapolated;
  }
  main->seconds /= speed(work.device);
  main->seconds += roofline_.made_again(work);
  return main;
}

Seconds MeasuredCost::compute(const ComputeWork& work) const {
  const std::optional<Answer> answer = measured(work);
  if (!answer) return roofline_.compute(work);
  if (answer->seconds <= 0) return 0;
  return answer->seconds + gaps_.at(cluster_.devices[idx(work.device)].type) / speed(work.device);
}

MeasuredCost::Source MeasuredCost::source(const ComputeWork& work) const {
  const std::optional<Answer> answer = measured(work);
  if (!answer) return Source::kRoofline;
  return answer->extrapolated ? Source::kExtrapolated : Source::kMeasured;
}

/// Of the op's chunk of a microbatch; 0 for an op that has none.
double MeasuredCost::tokens_of(const Op& op) const {
  const bool known = op.group >= 0 && op.group < static_cast<i32>(tokens_.size()) && op.microbatch >= 0 &&
                     op.microbatch < static_cast<i32>(tokens_[idx(op.group)].size());
  return known ? tokens_[idx(op.group)][idx(op.microbatch)] : 0;
}

/// What a device does of a transfer by itself; nothing where it is not measured.
std::optional<MeasuredCost::Answer> MeasuredCost::own_part(const Tables& tables, const TransferWork& work,
                                                           DeviceId device) const {
  if (work.op.kind == OpKind::kNorm) {
    const double params = params_.empty() ? 0 : params_[idx(device)];
    return params > 0 ? look_up(tables, ProfiledOp::kNorm, ProfiledPhase::kForward, {1, params})
                      : std::nullopt;
  }
  const double tokens = tokens_of(work.op);
  if (work.participants.size() > 1 || tokens <= 0) return std::nullopt;
  const ProfiledPhase phase =
      work.op.phase == Phase::kBackward ? ProfiledPhase::kBackward : ProfiledPhase::kForward;
  if (work.op.kind == OpKind::kDispatch) return look_up(tables, ProfiledOp::kDispatch, phase, {1, tokens});
  if (work.op.kind == OpKind::kCombine) return look_up(tables, ProfiledOp::kCombine, phase, {1, tokens});
  if (work.op.kind == OpKind::kBalance)
    return look_up(tables, ProfiledOp::kBalance, ProfiledPhase::kForward, {1, tokens});
  return std::nullopt;
}

/// Of the participant that takes longest.
Seconds MeasuredCost::own_work(const TransferWork& work) const {
  Seconds longest = 0;
  for (const DeviceId device : work.participants) {
    const Tables* tables = tables_of(device);
    const std::optional<Answer> own = tables ? own_part(*tables, work, device) : std::nullopt;
    if (!own) continue;
    const Seconds gap = gaps_.at(cluster_.devices[idx(device)].type);
    longest = std::max(longest, (own->seconds + gap) / speed(device));
  }
  return longest;
}

TransferCost MeasuredCost::transfer(const TransferWork& work) const {
  TransferCost cost = between_devices(work);
  cost.latency += own_work(work);
  return cost;
}

TransferCost MeasuredCost::between_devices(const TransferWork& work) const {
  TransferCost cost = roofline_.transfer(work);
  for (std::size_t i = 0; i < work.participants.size(); ++i) {
    const Tables* tables = tables_of(work.participants[i]);
    if (tables == nullptr || (*tables)[idx(ProfiledOp::kTransfer)][0].empty()) return cost;
  }
  if (work.num_exchanges() > 1) return cost;
  for (const PortBytes& bytes : work.bytes) {
    if (bytes.net_out > 0 || bytes.net_in > 0) return cost;
  }
  if (is_host_copy(work.op)) return cost;
  const Network network(cluster_);
  for (PortLoad& load : cost.loads) {
    const Port port = network.port(load.port);  // of a device: no bytes leave the node
    const DeviceId device = port.owner;
    const PortBytes& bytes = work.bytes[position(work.participants, device)];
    const Bytes size = port.in ? bytes.local_in : bytes.local_out;
    const Tables& tables = *tables_of(device);
    load.seconds =
        look_up(tables, ProfiledOp::kTransfer, ProfiledPhase::kForward, {1, size})->seconds / speed(device);
  }
  cost.latency = roofline_.coding(work);  // the measured seconds hold the rest
  return cost;
}

std::unique_ptr<CostModel> make_cost(const ModelConfig& model, const Cluster& cluster, const Plan& plan,
                                     const ProfileSet& profiles, SoftwareConstants constants) {
  if (profiles.empty()) return std::make_unique<RooflineCost>(model, cluster, plan, constants);
  return std::make_unique<MeasuredCost>(model, cluster, plan, profiles, constants);
}

}  // namespace hetermoe
