#include "hetermoe/planner/strategies/tensor_parallel.h"

#include <limits>
#include <map>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/placement/placed_states.h"
#include "hetermoe/placement/team.h"
#include "hetermoe/planner/strategies/best.h"

namespace hetermoe {
namespace {

/// Parts of a layer that gather rows and scatter sums in the exchanges of op: a dense MLP has none of its
/// own.
double parts_of(const Op& op, const ModelConfig& model) {
  const bool of_team = op.kind == OpKind::kToHeads || op.kind == OpKind::kToTokens;
  return of_team && !model.is_moe(op.layer) ? 2 : 1;
}

bool gathers(const Op& op) {
  const bool before = op.kind == OpKind::kToHeads || op.kind == OpKind::kDispatch;
  return before == (op.phase != Phase::kBackward);
}

}  // namespace

TensorParallelCost::TensorParallelCost(std::unique_ptr<CostModel> inner, const ModelConfig& model,
                                       const Cluster& cluster, const Plan& plan, double share)
    : inner_(std::move(inner)),
      model_(model),
      cluster_(cluster),
      plan_(plan),
      size_(real(std::ssize(plan.groups.at(0).layers.at(0).attention.at(0)))),
      share_(share) {
  // 2 (P / n) (g - 1) / g in place of 2 P (n g - 1) / (n g), of P parameters in g teams of n devices.
  for (const State& state : make_states(plan, model)) {
    const double devices = real(std::ssize(state.devices));
    const bool whole = state.part == UnitPart::kExperts || devices < 2;
    summed_.push_back(whole ? 1 : (devices / size_ - 1) / (devices - 1));
  }
}

bool TensorParallelCost::is_sliced(const Op& op) const { return op.state >= 0 && summed_[idx(op.state)] < 1; }

/// With sharded masters and moments a device updates as much in both.
Seconds TensorParallelCost::compute(const ComputeWork& work) const {
  ComputeWork own = work;
  if (is_sliced(work.op) && !plan_.shard_optimizer) own.params /= size_;
  return inner_->compute(own);
}

TransferCost TensorParallelCost::transfer(const TransferWork& work) const {
  switch (work.op.kind) {
    case OpKind::kToHeads:
    case OpKind::kToTokens:
    case OpKind::kDispatch:
    case OpKind::kCombine:
      return inner_->transfer({work.op, work.participants, gathered(work)});
    default:
      break;
  }
  if (!is_sliced(work.op)) return inner_->transfer(work);
  std::vector<PortBytes> bytes(work.bytes.begin(), work.bytes.end());
  for (PortBytes& port : bytes)
    for (Bytes* each : {&port.net_out, &port.net_in, &port.local_out, &port.local_in})
      *each *= summed_[idx(work.op.state)];
  return inner_->transfer({work.op, work.participants, bytes});
}

/// Each member sends its tokens to all others or, scattering, to each of them its tokens.
std::vector<PortBytes> TensorParallelCost::gathered(const TransferWork& work) const {
  const Op& op = work.op;
  const ShareRow& row = share_row(plan_.groups[idx(op.group)].layers[idx(op.layer)].attention, op.microbatch);
  const Bytes each =
      row_bytes(wire_of(op, plan_), real(model_.hidden)) * parts_of(op, model_) * share_ / plan_.chunks;
  std::map<NodeId, i64> tokens_of_node, members_of_node;
  i64 tokens = 0;
  for (const Share& share : row) {
    const NodeId node = cluster_.devices[idx(share.device)].node;
    tokens_of_node[node] += share.tokens, ++members_of_node[node];
    tokens += share.tokens;
  }
  std::vector<PortBytes> bytes(work.participants.size());
  for (const Share& share : row) {
    const auto at = std::lower_bound(work.participants.begin(), work.participants.end(), share.device);
    if (at == work.participants.end() || *at != share.device) continue;
    const NodeId node = cluster_.devices[idx(share.device)].node;
    PortBytes& port = bytes[idx(at - work.participants.begin())];
    port.local_out = each * real(share.tokens * (members_of_node[node] - 1));
    port.net_out = each * real(share.tokens * (std::ssize(row) - members_of_node[node]));
    port.local_in = each * real(tokens_of_node[node] - share.tokens);
    port.net_in = each * real(tokens - tokens_of_node[node]);
  }
  return gathers(op) ? bytes : reversed(std::move(bytes));
}

Plan tensor_parallel_plan(const ModelConfig& model, const Cluster& cluster, const Setting& setting, i64 size,
                          i64 microbatches) {
  const i64 groups = cluster.num_devices() / size;
  if (setting.sequences < groups)
    fail<ConfigError>("sequences", "got {}, expected one for each of {} groups", setting.sequences, groups);
  const std::vector<i64> sequences =
      proportional_split(setting.sequences, std::vector<double>(idx(groups), 1));
  Plan plan;
  for (i64 g = 0; g < groups; ++g) {
    StrategyRequest request = request_of(setting, std::min(microbatches, sequences[idx(g)]));
    request.sequences = sequences[idx(g)];
    request.team = {size};
    for (i64 i = 0; i < size; ++i) request.attention.push_back(static_cast<DeviceId>(g * size + i));
    Plan made = find_strategy("sp-ep").make(model, cluster, request);
    if (g == 0)
      plan = std::move(made);
    else
      plan.groups.push_back(std::move(made.groups[0]));
  }
  apply(setting, plan);
  return plan;
}

namespace {

constexpr i64 kMostOverNodes = 8;  ///< devices of a group that is not inside a node

/// Sizes that divide devices, heads and experts. Beyond a few, groups are inside nodes.
std::vector<i64> sizes_of(const ModelConfig& model, const Cluster& cluster) {
  std::vector<i64> sizes;
  for (i64 size = 2; size <= cluster.num_devices(); ++size) {
    if (cluster.num_devices() % size != 0 || model.num_heads % size != 0) continue;
    if (model.num_moe_layers() > 0 && model.num_experts % size != 0) continue;
    bool inside = true;
    for (i64 d = 0; d < cluster.num_devices(); ++d)
      inside = inside && cluster.devices[idx(d)].node == cluster.devices[idx(d - d % size)].node;
    if (inside || size <= kMostOverNodes) sizes.push_back(size);
  }
  return sizes;
}

class TensorParallelTuner {
 public:
  TensorParallelTuner(const ModelConfig& model, const Cluster& cluster, const Setting& setting,
                      const SoftwareConstants& software)
      : model_(model), cluster_(cluster), setting_(setting), predictor_(model, cluster, software) {
    predictor_.price_by([this](std::unique_ptr<CostModel> cost, const Plan& plan) {
      return std::make_unique<TensorParallelCost>(std::move(cost), model_, cluster_, plan);
    });
  }

  Tuned tuned() {
    const std::vector<i64> sizes = sizes_of(model_, cluster_);
    if (sizes.empty())
      best_.infeasible = fmt::format("no number from 2 on divides {} devices, {} heads and {} experts",
                                     cluster_.num_devices(), model_.num_heads, model_.num_experts);
    for (const i64 size : sizes) consider(size);
    return std::move(best_);
  }

 private:
  void consider(i64 size) {
    const i64 groups = cluster_.num_devices() / size;
    if (setting_.sequences < groups) {
      if (best_.plan.groups.empty())
        best_.infeasible = fmt::format("{} sequences for {} groups", setting_.sequences, groups);
      return;
    }
    for (const i64 count : microbatch_counts(setting_.sequences, groups)) {
      Plan plan = tensor_parallel_plan(model_, cluster_, setting_, size, count);
      if (consider(plan)) continue;
      plan.shard_optimizer = true;
      consider(plan);
    }
  }

  /// Whether it has room.
  bool consider(Plan& plan) {
    Prediction prediction = *predictor_.judge_within(std::numeric_limits<i64>::max(), plan);
    take_slices(plan, prediction.memory);
    std::vector<Bytes> needed = prediction.memory;
    for (Bytes& bytes : needed) bytes += setting_.memory_reserve;
    const std::string over = setting_.check_memory ? overfilled_device(needed, cluster_) : "";
    if (!over.empty()) {
      if (best_.plan.groups.empty()) best_.infeasible = over;
      return false;
    }
    if (!best_.plan.groups.empty() && prediction.step >= best_.prediction.step) return true;
    plan.predicted_step_s = prediction.step;
    best_ = {plan, std::move(prediction), {}, ""};
    return true;
  }

  /// A device has its part of the matrices that the schedule has whole.
  void take_slices(const Plan& plan, std::vector<Bytes>& memory) const {
    const double size = real(std::ssize(plan.groups[0].devices));
    const ParamCounts counts = count_parameters(model_);
    double params = real(counts.embedding + counts.head);
    for (const i64 part : counts.attention_part) params += real(part);
    for (std::size_t d = 0; d < memory.size(); ++d) {
      const StateBytes bytes = state_bytes_of(plan, static_cast<DeviceId>(d));
      memory[d] -=
          params * (1 - 1 / size) * (plan.shard_optimizer ? bytes.weights_and_gradients() : bytes.total());
    }
  }

  const ModelConfig& model_;
  const Cluster& cluster_;
  const Setting& setting_;
  Predictor predictor_;
  Tuned best_;
};

}  // namespace

Tuned tune_tensor_parallel(const ModelConfig& model, const Cluster& cluster, const Setting& setting,
                           const SoftwareConstants& software) {
  return TensorParallelTuner(model, cluster, setting, software).tuned();
}

}  // namespace hetermoe
