#include "hetermoe/cost/roofline.h"

#include <algorithm>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"

namespace hetermoe {
namespace {

// Kernels of one op forward, from the parts listed in op_cost.h: they only matter for tiny microbatches.
constexpr double kAttentionKernels = 24, kProjectionKernels = 8, kScoreKernels = 2, kLatentKernels = 3,
                 kExpertKernels = 7, kHeadKernels = 8;
/// Per parameter of 4 bytes or more.
constexpr double kUpdateBytes = 30;

/// Adam reads and writes master and moments, and writes the weight, which without a master it reads, too;
/// norm and update read the gradient.
Bytes update_bytes(const Plan& plan, DeviceId device) {
  const StateBytes each = state_bytes_of(plan, device);
  if (each.weights != 2) return kUpdateBytes - 2 * std::max(0.0, 8 - each.moments);
  return 2 * (each.master + each.moments) + (each.master > 0 ? 1 : 2) * each.weights + 2 * each.gradients;
}

}  // namespace

RooflineCost::RooflineCost(const ModelConfig& model, const Cluster& cluster, const Plan& plan,
                           SoftwareConstants constants)
    : model_(model),
      cluster_(cluster),
      network_(cluster, plan.nics),
      software_(constants),
      recompute_(plan),
      weight_gradients_(plan.weight_gradients),
      scales_forward_(has_scales(plan.wire_forward)),
      scales_backward_(has_scales(plan.wire_backward)) {
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
  rates.update = update_bytes(plan, device);
  return rates;
}

Seconds RooflineCost::gemm_seconds(const Rates& rates, Flops flops, double rows) const {
  if (rows <= 0) return 0;
  return flops / rates.gemm * (1 + software_.gemm_rows_half / rows);
}

/// Of a team without what its ops project and scores do.
RooflineCost::Parts RooflineCost::attention_parts(const ComputeWork& work) const {
  const Rates& r = rates(work.device);
  const i64 layer = work.op.layer;
  Flops flops = attention_part_flops(model_, layer, work.seq_len) -
                score_flops(model_, layer, work.seq_len) / real(work.seq_len);
  double traffic = attention_traffic(model_, layer), kernels = kAttentionKernels;
  if (work.of_team) {
    flops -= input_projection_flops(model_);
    traffic -= projection_traffic(model_) + score_traffic(model_);
    kernels -= kProjectionKernels + kScoreKernels;
  }
  Parts parts;
  parts.gemm = gemm_seconds(r, flops * work.tokens, work.tokens);
  // The rows are also gathered in the order of their experts.
  const double permuted = model_.is_moe(layer) ? 2 * real(model_.top_k * model_.hidden) : 0;
  parts.memory = work.tokens * (traffic * software_.attention_passes + permuted) * r.element / r.memory;
  parts.launches = kernels * software_.kernel_launch;
  if (!work.of_team) add_scores(parts, work);
  return parts;
}

void RooflineCost::add_scores(Parts& parts, const ComputeWork& work) const {
  const Rates& r = rates(work.device);
  const i64 layer = work.op.layer;
  const Flops scores =
      work.heads * (score_flops(model_, layer, work.seq_len) / real(work.seq_len)) * work.tokens;
  if (r.plain_scores) {
    // No causal skipping, and scores and probabilities are written and read.
    parts.scores = 2 * scores / r.scores;
    parts.memory +=
        4 * work.heads * score_elements(model_, work.seq_len) * work.sequences() * r.element / r.memory;
  } else {
    // A window is a mask over blocks of queries and keys, half of which it hides.
    parts.scores = (is_windowed(model_, layer, work.seq_len) ? 2 : 1) * scores / r.scores;
  }
}

/// Of a team: from the first norm to the rotary embedding.
RooflineCost::Parts RooflineCost::projection_parts(const ComputeWork& work) const {
  const Rates& r = rates(work.device);
  Parts parts;
  const Flops flops = input_projection_flops(model_) - (work.latents ? latent_product_flops(model_) : 0);
  const double traffic = projection_traffic(model_) - (work.latents ? latent_product_traffic(model_) : 0);
  parts.gemm = gemm_seconds(r, flops * work.tokens, work.tokens);
  parts.memory = work.tokens * traffic * software_.attention_passes * r.element / r.memory;
  parts.launches = (kProjectionKernels - (work.latents ? kLatentKernels : 0)) * software_.kernel_launch;
  return parts;
}

/// Of a team: the attention kernel, of the device's heads.
RooflineCost::Parts RooflineCost::score_parts(const ComputeWork& work) const {
  const Rates& r = rates(work.device);
  Parts parts;
  parts.memory =
      work.heads * work.tokens * score_traffic(model_) * software_.attention_passes * r.element / r.memory;
  parts.launches = kScoreKernels * software_.kernel_launch;
  add_scores(parts, work);
  return parts;
}

/// Of a team that sends latents: the device reads those of all tokens, and makes keys and values of its
/// heads.
RooflineCost::Parts RooflineCost::latent_product_parts(const ComputeWork& work) const {
  Parts parts;
  if (!work.latents) return parts;
  const Rates& r = rates(work.device);
  const double traffic =
      real(model_.kv_lora_rank + model_.qk_rope_dim) + work.heads * latent_product_traffic(model_);
  parts.gemm = gemm_seconds(r, work.heads * latent_product_flops(model_) * work.tokens, work.tokens);
  parts.memory = work.tokens * traffic * software_.attention_passes * r.element / r.memory;
  parts.launches = kLatentKernels * software_.kernel_launch;
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

bool RooflineCost::selects(const Op& op) const {
  return recompute_.of(op.group, op.layer) == Recompute::kSelect;
}

Seconds RooflineCost::made_again(const ComputeWork& work) const {
  constexpr double kKernels = 3;
  const bool again = row_of(work.op.kind).pricing == Pricing::kAttention && work.op.phase == Phase::kBackward;
  if (!again || work.tokens <= 0 || !selects(work.op)) return 0;
  const Rates& r = rates(work.device);
  return work.tokens * selected_traffic(model_, work.op.layer) * r.element / r.memory +
         kKernels * software_.kernel_launch;
}

/// The rows that select sends to experts again.
Seconds RooflineCost::normed_again(const ComputeWork& work) const {
  const Rates& r = rates(work.device);
  return work.tokens * 2 * real(model_.hidden) * r.element / r.memory + software_.kernel_launch;
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

/// Of a host: bytes through its main memory; AdamW takes at least its operations on all cores.
Seconds RooflineCost::host_compute(const ComputeWork& work) const {
  constexpr double kUpdateFlops = 16;  // multiplications, additions, a root and a division of one parameter
  const NodeHost& host = cluster_.host_of(work.device);
  return std::max(
      (work.params * kUpdateBytes + work.copied) / (host.memory_gb_s * 1e9 * software_.memory_efficiency),
      work.params * kUpdateFlops / (host.fp32_tflops * 1e12));
}

Seconds RooflineCost::compute(const ComputeWork& work) const {
  if (work.device >= cluster_.num_devices()) return host_compute(work);
  const Rates& r = rates(work.device);
  const Seconds merge = merge_bytes(work) * r.element / r.memory;
  switch (*row_of(work.op.kind).pricing) {
    case Pricing::kEmbedding: {
      const double passes = work.op.phase == Phase::kBackward ? 2 : 1;
      return work.tokens > 0 ? passes * (work.tokens * embedding_traffic(model_) * r.element / r.memory +
                                         software_.kernel_launch)
                             : 0;
    }
    case Pricing::kAttention:
      if (work.tokens <= 0) return 0;
      if (work.op.phase == Phase::kRecompute && selects(work.op)) return normed_again(work);
      return merge + with_phase(attention_parts(work), work) + made_again(work);
    case Pricing::kProjection: {
      if (work.tokens <= 0) return 0;
      const Parts parts = projection_parts(work);
      if (work.op.phase != Phase::kBackward) return merge + forward(parts);
      return input_gradients(parts, r) + weight_gradients(parts, work.frozen);
    }
    case Pricing::kScores: {
      if (work.tokens <= 0 || work.heads <= 0) return 0;
      const Parts parts = score_parts(work), before = latent_product_parts(work);
      if (work.op.phase != Phase::kBackward) return forward(before) + forward(parts);
      return input_gradients(parts, r) + input_gradients(before, r) + weight_gradients(before, work.frozen);
    }
    case Pricing::kExperts:
      return work.copies > 0 ? with_phase(expert_parts(work), work) : 0;
    case Pricing::kHead:
      return work.tokens > 0 ? merge + head(work) : 0;
    case Pricing::kMerge:
      return merge;
    case Pricing::kUpdate:
      return work.params * r.update / r.memory + software_.kernel_launch;
    case Pricing::kHostCopy:  // on hosts alone
      break;
  }
  HM_CHECK(false, "{} has no cost", to_string(work.op));
  return 0;
}

namespace {

/// What one of the participants of a transfer sends through a port.
struct PortUse {
  i32 port, number;
  Bytes bytes;
};

/// One for each port, ascending; sums in the order of participants.
void sum_by_port(std::vector<PortUse>& uses) {
  std::sort(uses.begin(), uses.end(), [](const PortUse& a, const PortUse& b) {
    return std::pair(a.port, a.number) < std::pair(b.port, b.number);
  });
  std::size_t last = 0;
  for (std::size_t i = 1; i < uses.size(); ++i) {
    if (uses[i].port == uses[last].port)
      uses[last].bytes += uses[i].bytes;
    else
      uses[++last] = uses[i];
  }
  uses.resize(last + 1);
}

}  // namespace

BytesPerSecond RooflineCost::port_rate(i32 number) const {
  const Port port = network_.port(number);
  double efficiency = software_.link_efficiency;
  if (port.kind == PortKind::kNode || port.kind == PortKind::kNic) efficiency = software_.network_efficiency;
  if (port.kind == PortKind::kLocal) efficiency = software_.local_efficiency;
  if (port.kind == PortKind::kHostMemory) efficiency = software_.memory_efficiency;
  return network_.bandwidth(port) * efficiency;
}

Seconds RooflineCost::latency(const TransferWork& work, std::size_t exchange) const {
  Seconds longest = 0;
  const std::span<const PortBytes> bytes = work.of_exchange(exchange);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    longest = std::max(longest, network_.latency(work.participants[i], bytes[i]));
  return longest;
}

/// Of the participant for whom its peers cost most. Of two levels one has peers on its node, the other one on
/// each other node. A copy between a device and its host is started by the device alone.
Seconds RooflineCost::peers(const TransferWork& work, std::size_t exchange) const {
  if (is_host_copy(work.op)) return 0;
  std::vector<i32> on_node(cluster_.nodes.size(), 0);
  for (const PlaceId place : work.participants) ++on_node[idx(cluster_.node_of(place))];
  const bool levels = work.num_exchanges() > 1;
  const std::span<const PortBytes> bytes = work.of_exchange(exchange);
  const bool between =
      std::any_of(bytes.begin(), bytes.end(), [](const PortBytes& b) { return b.net_out > 0; });
  const auto num_nodes = on_node.size() - idx(std::count(on_node.begin(), on_node.end(), 0));
  Seconds most = 0;
  for (std::size_t n = 0; n < on_node.size(); ++n) {
    if (on_node[n] == 0) continue;
    const Node& node = cluster_.nodes[n];
    const Seconds inside = node.local_peer * real(on_node[n] - 1);
    const double others = levels ? real(num_nodes - 1) : real(work.participants.size()) - real(on_node[n]);
    const Seconds outside = node.peer * others;
    most = std::max(most, !levels ? inside + outside : between ? outside : inside);
  }
  return most;
}

std::vector<PortLoad> RooflineCost::loads(const TransferWork& work, std::span<const PortBytes> bytes) const {
  std::vector<PortUse> uses;
  uses.reserve(4 * bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    network_.for_each_port(work.participants[i % work.participants.size()], bytes[i],
                           [&](i32 port, Bytes amount) {
                             uses.push_back({port, static_cast<i32>(uses.size()), amount});
                           });
  }
  std::vector<PortLoad> loads;
  if (uses.empty()) return loads;
  sum_by_port(uses);
  loads.reserve(uses.size());
  for (const PortUse& use : uses) loads.push_back({use.port, use.bytes / port_rate(use.port)});
  return loads;
}

Seconds RooflineCost::coding(const TransferWork& work) const {
  const bool scaled = work.op.phase == Phase::kBackward ? scales_backward_ : scales_forward_;
  if (!scaled || !needs_load(work.op.kind)) return 0;
  Seconds longest = 0;
  for (std::size_t i = 0; i < work.participants.size(); ++i) {
    const Rates& r = rates(work.participants[i]);
    const PortBytes& bytes = work.bytes[i];
    // A number is a byte. Encoding passes over it for its absolute value, the largest, the quotient in fp32
    // and the code; decoding for the number in fp32, the product and the number in the device's dtype.
    const Bytes encode = (bytes.net_out + bytes.local_out) * (4 * r.element + 9);
    const Bytes decode = (bytes.net_in + bytes.local_in) * (r.element + 17);
    longest = std::max(longest, (encode + decode) / r.memory);
  }
  return longest;
}

TransferCost RooflineCost::transfer(const TransferWork& work) const {
  TransferCost cost;
  cost.loads = loads(work, work.bytes);
  if (cost.loads.empty()) return cost;
  Seconds apart = 0;
  for (std::size_t i = 0; i < work.num_exchanges(); ++i) {
    cost.latency += latency(work, i) + peers(work, i);
    if (work.num_exchanges() > 1) apart += TransferCost{0, loads(work, work.of_exchange(i))}.seconds();
  }
  if (work.num_exchanges() > 1) cost.latency += apart - TransferCost{0, cost.loads}.seconds();
  cost.latency += coding(work);
  return cost;
}

}  // namespace hetermoe
