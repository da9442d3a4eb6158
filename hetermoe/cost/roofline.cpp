#include "hetermoe/cost/roofline.h"

#include <algorithm>
#include <map>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"

namespace hetermoe {
namespace {

// Kernels of one op forward, from the parts listed in op_cost.h: they only matter for tiny microbatches.
constexpr double kAttentionKernels = 24, kExpertKernels = 7, kHeadKernels = 8;
/// Adam in mixed precision reads and writes per parameter: master 8, two moments 16, weight 2; norm and
/// update read the gradient. Wider parameters have no master.
constexpr double kMixedUpdateBytes = 26, kUpdateBytes = 30;

}  // namespace

RooflineCost::RooflineCost(const ModelConfig& model, const Cluster& cluster, const Plan& plan,
                           SoftwareConstants constants)
    : model_(model),
      cluster_(cluster),
      software_(constants),
      recompute_(plan),
      weight_gradients_(plan.weight_gradients) {
  HM_CHECK(static_cast<i32>(plan.dtype.size()) == cluster.num_devices(), "plan and cluster differ");
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    rates_.push_back(rates_of(d, plan));
  }
}

RooflineCost::Rates RooflineCost::rates_of(DeviceId device, const Plan& plan) const {
  const Dtype dtype = plan.dtype[static_cast<std::size_t>(device)];
  const DeviceType& type = cluster_.type_of(device);
  const double speed = cluster_.devices[idx(device)].speed;
  const double gemm = type.gemm_efficiency > 0 ? type.gemm_efficiency : software_.gemm_efficiency;
  const bool flash = type.attention_kernel == AttentionKernel::kFlash;
  const double by_kernel = flash ? software_.flash_efficiency : software_.mem_efficient_efficiency;
  const double fused = type.attention_efficiency > 0 ? type.attention_efficiency : by_kernel;
  Rates rates;
  rates.plain_scores = type.attention_kernel == AttentionKernel::kPlain;
  rates.gemm = speed * type.peak(dtype) * gemm;
  rates.scores = rates.plain_scores ? rates.gemm : speed * type.peak(dtype) * fused;
  rates.memory = speed * type.memory_gb_s * 1e9 * software_.memory_efficiency;
  rates.element = bytes_of(dtype);
  rates.update =
      rates.element == 2 ? kMixedUpdateBytes + 2 * bytes_of(grad_dtype_of(plan, device)) : kUpdateBytes;
  return rates;
}

Seconds RooflineCost::gemm_seconds(const Rates& rates, Flops flops, double rows) const {
  if (rows <= 0) return 0;
  return flops / rates.gemm * (1 + software_.gemm_rows_half / rows);
}

RooflineCost::Parts RooflineCost::attention_parts(const ComputeWork& work) const {
  const Rates& r = rates(work.device);
  const i64 layer = work.op.layer;
  const Flops all = attention_part_flops(model_, layer, work.seq_len);
  const Flops scores = score_flops(model_, work.seq_len) / real(work.seq_len);
  Parts parts;
  parts.gemm = gemm_seconds(r, (all - scores) * work.tokens, work.tokens);
  // The rows are also gathered in the order of their experts.
  const double permuted = model_.is_moe(layer) ? 2 * real(model_.top_k * model_.hidden) : 0;
  const double elements = attention_traffic(model_, layer) * software_.attention_passes + permuted;
  parts.memory = work.tokens * elements * r.element / r.memory;
  if (r.plain_scores) {
    // No causal skipping, and scores and probabilities are written and read.
    parts.scores = 2 * scores * work.tokens / r.scores;
    parts.memory += 4 * score_elements(model_, work.seq_len) * work.sequences * r.element / r.memory;
  } else {
    parts.scores = scores * work.tokens / r.scores;
  }
  parts.launches = kAttentionKernels * software_.kernel_launch;
  return parts;
}

RooflineCost::Parts RooflineCost::expert_parts(const ComputeWork& work) const {
  const Rates& r = rates(work.device);
  Parts parts;
  parts.gemm = gemm_seconds(r, expert_flops(model_) * work.copies, work.copies / std::max(1.0, work.experts));
  const double weights = real(expert_weights(model_)) * work.experts;
  parts.memory =
      (work.copies * expert_traffic(model_) * software_.expert_passes + weights) * r.element / r.memory;
  parts.launches = kExpertKernels * work.experts * software_.kernel_launch;
  return parts;
}

Seconds RooflineCost::forward(const Parts& p) const { return p.gemm + p.scores + p.memory + p.launches; }

/// Once the products and passes; a fused attention kernel computes its scores again.
Seconds RooflineCost::input_gradients(const Parts& p, const Rates& r) const {
  const double scores = r.plain_scores ? kScoreBackwardPlain : kScoreBackwardFused / software_.score_backward;
  return kGemmBackward / 2 * (p.gemm + p.memory + p.launches) + scores * p.scores;
}

/// As many products and passes. Frozen weights have no gradient.
Seconds RooflineCost::weight_gradients(const Parts& p, double frozen) const {
  return (kGemmBackward / 2 - frozen) * (p.gemm + p.memory + p.launches);
}

Seconds RooflineCost::backward(const Parts& p, const ComputeWork& work) const {
  const Rates& r = rates(work.device);
  if (weight_gradients_ == WeightGradients::kAfter) return input_gradients(p, r);
  const double scores = r.plain_scores ? kScoreBackwardPlain : kScoreBackwardFused / software_.score_backward;
  return (kGemmBackward - work.frozen) * (p.gemm + p.memory + p.launches) + scores * p.scores;
}

Seconds RooflineCost::with_phase(const Parts& parts, const ComputeWork& work) const {
  if (work.op.phase == Phase::kWeights) return weight_gradients(parts, work.frozen);
  if (work.op.phase != Phase::kBackward) return forward(parts);
  const Recompute recompute = recompute_.of(work.op.group, work.op.layer);
  return (recomputes_inside(recompute, model_.is_moe(work.op.layer)) ? forward(parts) : 0) +
         backward(parts, work);
}

/// Adding the rows that the experts returned to the residual stream, which is read and written once.
Seconds RooflineCost::merge_bytes(const ComputeWork& work) const {
  return work.merged_rows > 0 ? (work.merged_rows + 2 * work.tokens) * real(model_.hidden) : 0;
}

Seconds RooflineCost::head(const ComputeWork& work) const {
  const Rates& r = rates(work.device);
  const Seconds gemm = gemm_seconds(r, head_flops(model_) * work.tokens, work.tokens);
  // The traffic forward ends with the gradient of the logits; backward, two GEMMs read it with the normed
  // rows.
  const double again = work.trains ? 2 * real(model_.hidden + model_.vocab) : 0;
  const Seconds memory = work.tokens * (head_traffic(model_) + again) * r.element / r.memory;
  const double passes = work.trains ? 1 + kGemmBackward - work.frozen : 1;
  return memory + passes * (gemm + kHeadKernels * software_.kernel_launch);
}

Seconds RooflineCost::compute(const ComputeWork& work) const {
  const Rates& r = rates(work.device);
  const Seconds merge = merge_bytes(work) * r.element / r.memory;
  switch (compute_kind(work.op.kind)) {
    case ComputeKind::kEmbed: {
      const double passes = work.op.phase == Phase::kBackward ? 2 : 1;
      return work.tokens > 0 ? passes * (work.tokens * embedding_traffic(model_) * r.element / r.memory +
                                         software_.kernel_launch)
                             : 0;
    }
    case ComputeKind::kAttention:
      return work.tokens > 0 ? merge + with_phase(attention_parts(work), work) : 0;
    case ComputeKind::kExperts:
      return work.copies > 0 ? with_phase(expert_parts(work), work) : 0;
    case ComputeKind::kHead:
      return work.tokens > 0 ? merge + head(work) : 0;
    case ComputeKind::kMerge:
      return merge;
    case ComputeKind::kUpdate:
      return work.params * r.update / r.memory + software_.kernel_launch;
  }
  HM_CHECK(false, "{} has no cost", to_string(work.op));
  return 0;
}

TransferCost RooflineCost::transfer(const TransferWork& work) const {
  TransferCost cost;
  std::map<i32, Bytes> ports;  // bytes through each port; of a local link the seconds follow per device
  const i32 local_ports = 2 * static_cast<i32>(cluster_.nodes.size());
  for (std::size_t i = 0; i < work.participants.size(); ++i) {
    const DeviceId device = work.participants[i];
    const NodeId node = cluster_.devices[idx(device)].node;
    const PortBytes& b = work.bytes[i];
    if (b.net_out > 0) ports[2 * node] += b.net_out;
    if (b.net_in > 0) ports[2 * node + 1] += b.net_in;
    if (b.local_out > 0) ports[local_ports + 2 * device] += b.local_out;
    if (b.local_in > 0) ports[local_ports + 2 * device + 1] += b.local_in;
    const Node& at = cluster_.nodes[idx(node)];
    if (b.net_out > 0 || b.net_in > 0) cost.latency = std::max(cost.latency, at.latency);
    if (b.local_out > 0 || b.local_in > 0) cost.latency = std::max(cost.latency, at.local_latency);
  }
  if (ports.empty()) return cost;
  cost.latency += software_.peer_message * real(work.participants.size() - 1);
  for (const auto& [port, bytes] : ports) {
    const bool local = port >= local_ports;
    const i32 index = (local ? port - local_ports : port) / 2;
    const NodeId node = local ? cluster_.devices[idx(index)].node : index;
    const Node& at = cluster_.nodes[idx(node)];
    const BytesPerSecond rate =
        local ? at.local * software_.local_efficiency : at.network * software_.network_efficiency;
    cost.loads.push_back({port, bytes / rate});
  }
  return cost;
}

}  // namespace hetermoe
