#include "hetermoe/cost/model_flops.h"

#include <algorithm>

#include "hetermoe/model/op_cost.h"
#include "hetermoe/ops/load_table.h"

namespace hetermoe {
namespace {

/// How many times as much as forward the products of an op are in its phase.
double passes_of(const ComputeWork& work, WeightGradients gradients) {
  switch (work.op.phase) {
    case Phase::kForward:
      return 1;
    case Phase::kRecompute:
      return 0;
    case Phase::kBackward:
      return gradients == WeightGradients::kAfter ? 1 : kGemmBackward - work.frozen;
    case Phase::kWeights:
      return 1 - work.frozen;
  }
  return 0;
}

/// Scores have no weights: their gradients are those of two products.
double score_passes_of(Phase phase) {
  return phase == Phase::kForward ? 1 : phase == Phase::kBackward ? kScoreBackwardPlain : 0;
}

}  // namespace

Flops model_flops(const ComputeWork& work, const ModelConfig& model, WeightGradients gradients) {
  const Pricing pricing = *row_of(work.op.kind).pricing;
  if (pricing == Pricing::kExperts) return work.copies * expert_flops(model) * passes_of(work, gradients);
  if (pricing == Pricing::kHead)
    return work.tokens * head_flops(model) * (work.trains ? 1 + kGemmBackward - work.frozen : 1);
  if (work.tokens <= 0 || work.op.layer < 0) return 0;
  const Flops scores = score_flops(model, work.op.layer, work.seq_len) / real(work.seq_len);
  const Flops first = input_projection_flops(model), moved = work.latents ? latent_product_flops(model) : 0;
  const double with_gradients = passes_of(work, WeightGradients::kWith);
  if (pricing == Pricing::kScores)
    return work.tokens * work.heads * (scores * score_passes_of(work.op.phase) + moved * with_gradients);
  if (pricing == Pricing::kProjection) return work.tokens * (first - moved) * with_gradients;
  if (pricing != Pricing::kAttention) return 0;
  const Flops products = attention_part_flops(model, work.op.layer, work.seq_len) - scores;
  if (work.of_team) return work.tokens * (products - first) * passes_of(work, gradients);
  return work.tokens * (products * passes_of(work, gradients) + scores * score_passes_of(work.op.phase));
}

std::vector<Flops> model_flops(const Schedule& schedule, const Placement& placement, const ModelConfig& model,
                               const Cluster& cluster, const RoutingLoad& routing,
                               const std::vector<DeviceId>& devices) {
  std::vector<Flops> out(idx(cluster.num_devices()), 0);
  LoadTable loads(placement, routing);
  const WorkModel work(placement, model, cluster);
  const WeightGradients gradients = placement.plan().weight_gradients;
  for (OpId id = 0; id < schedule.num_ops(); ++id) {
    const Op& op = schedule.ops[idx(id)];
    if (!is_compute(op.kind) || op.phase == Phase::kRecompute) continue;
    const DeviceId device = device_of(schedule.lanes_of(id)[0]);
    if (std::find(devices.begin(), devices.end(), device) == devices.end()) continue;
    out[idx(device)] += model_flops(work.compute_work(op, device, loads.of(op)), model, gradients);
  }
  return out;
}

}  // namespace hetermoe
