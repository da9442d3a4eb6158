#include "hetermoe/ops/buffer_sizes.h"

#include <algorithm>
#include <numeric>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/ops/exchange.h"
#include "hetermoe/ops/two_level.h"

namespace hetermoe {

BufferSizes::BufferSizes(const Placement& placement, const ModelConfig& model, const Cluster& cluster,
                         const RoutingLoad& routing, double margin)
    : placement_(placement),
      model_(model),
      cluster_(cluster),
      margin_(margin),
      loads_(placement, routing),
      work_(placement, model, cluster),
      group_of_(idx(placement.num_devices()), -1) {
  for (i32 g = 0; g < placement.num_groups(); ++g) {
    for (const DeviceId device : placement.plan().groups[idx(g)].devices) group_of_[idx(device)] = g;
  }
}

bool BufferSizes::in_two_levels(i32 state) {
  if (in_two_levels_.empty()) in_two_levels_.resize(placement_.states().size());
  std::optional<bool>& found = in_two_levels_[idx(state)];
  if (!found) found = pays_two_levels(cluster_, placement_.states()[idx(state)].reducers());
  return *found;
}

Bytes BufferSizes::element(PlaceId place) const {
  return bytes_of(placement_.plan().dtype[idx(placement_.first_device(place))]);
}
Bytes BufferSizes::gradient(PlaceId place) const {
  return bytes_of(grad_dtype_of(placement_.plan(), placement_.first_device(place)));
}
Bytes BufferSizes::row_bytes_of(Bytes element) const { return row_bytes(model_, element); }

double BufferSizes::tokens(i32 stage, i32 microbatch, DeviceId device) const {
  return real(placement_.ranges_with(group_of_[idx(device)], stage, microbatch, device).of(device).tokens());
}

/// A token may choose all of its experts on one device.
void BufferSizes::add_margin(Traffic& traffic, const ExchangeLoad& load) const {
  const double tokens = std::accumulate(load.tokens.begin(), load.tokens.end(), 0.0);
  const double rows = tokens * (placement_.plan().row_dedup ? 1 : real(model_.top_k));
  traffic.rows_as_owner = std::max(traffic.rows_as_owner, std::min(margin_ * traffic.rows_as_owner, rows));
  traffic.copies_as_owner = std::max(
      traffic.copies_as_owner, std::min(margin_ * traffic.copies_as_owner, tokens * real(model_.top_k)));
}

BufferSizes::Traffic BufferSizes::traffic(i32 layer, i32 microbatch, i32 chunk, DeviceId device) {
  Op dispatch = combine_of(layer, microbatch, chunk, device);
  dispatch.kind = OpKind::kDispatch;
  return traffic(dispatch, device);
}

Op BufferSizes::combine_of(i32 layer, i32 microbatch, i32 chunk, DeviceId device) const {
  const i32 group = group_of_[idx(device)];
  const bool forward = placement_.has_range(group, layer, microbatch, device);
  return {.kind = OpKind::kCombine,
          .phase = forward ? Phase::kForward : Phase::kBackward,
          .chunk = static_cast<std::int16_t>(chunk),
          .group = static_cast<std::int16_t>(group),
          .layer = layer,
          .microbatch = microbatch};
}

BufferSizes::Traffic BufferSizes::traffic(const Op& op, DeviceId device) {
  const Exchange exchange(op, placement_);
  const ExchangeLoad& load = loads_.of(op.group, op.layer, op.microbatch, op.chunk);
  const TokenRanges sources = exchange.sources();
  const std::vector<DeviceId>& owners = exchange.owners();
  Traffic traffic;
  const auto owner = std::lower_bound(owners.begin(), owners.end(), device);
  if (owner != owners.end() && *owner == device) {
    traffic.rows_as_owner = load.rows_at(static_cast<std::size_t>(owner - owners.begin()));
    traffic.copies_as_owner = load.copies_at(static_cast<std::size_t>(owner - owners.begin()));
    if (margin_ > 1) add_margin(traffic, load);
  }
  traffic.num_sources = static_cast<double>(sources.size());
  for (std::size_t s = 0; s < sources.size(); ++s) {
    if (sources.device(s) != device) continue;
    for (std::size_t o = 0; o < owners.size(); ++o) {
      traffic.rows_as_source += exchange.rows_between(load, s, o);
      if (!exchange.of_next()) traffic.copies_as_source += load.copies_between(s, o);
      if (owners[o] == device) traffic.rows_kept += exchange.rows_between(load, s, o);
    }
  }
  return traffic;
}

double BufferSizes::rows_back(const Op& op, DeviceId device) {
  if (!goes_by_node(op, placement_)) return traffic(op, device).rows_as_source;
  const Exchange exchange(op, placement_);
  if (!exchange.is_source(device)) return 0;
  const ExchangeLoad& load = loads_.of(op.group, op.layer, op.microbatch, op.chunk);
  const NodeRows nodes(placement_.plan(), op.group, exchange.owners());
  const auto source = idx(exchange.sources().index_of(device));
  double rows = 0;
  for (std::size_t n = 0; n < nodes.num_nodes(); ++n) {
    const bool sums = nodes.relay(device, n).has_value();
    if (sums) rows += load.rows_to_node(source, n);
    for (const std::size_t o : nodes.owners()[n]) rows += sums ? 0 : load.rows_between(source, o);
  }
  return rows;
}

bool BufferSizes::receives_next(i32 layer, i32 microbatch, DeviceId device) const {
  const i32 group = group_of_[idx(device)];
  return layer >= 0 && layer < placement_.num_layers() && placement_.joins_at(group, layer + 1, microbatch) &&
         placement_.has_range(group, layer + 1, microbatch, device);
}

Bytes BufferSizes::of(const BufferKey& key, PlaceId place) {
  const BufferRow& row = row_of(key.buffer());
  return row.size == nullptr ? 0 : row.size(*this, key, place);
}

Bytes BufferSizes::workspace(const Op& op, DeviceId device) {
  const OpRow& row = row_of(op.kind);
  return row.workspace == nullptr ? 0 : row.workspace(*this, op, device);
}

Bytes BufferSizes::guests(i32 layer, i32 microbatch, DeviceId device, Bytes each) {
  const i32 group = group_of_[idx(device)];
  const std::vector<DeviceId>& owners = placement_.owners(group, layer);
  Bytes bytes = 0;
  for (const Guest& guest : loads_.of(group, layer, microbatch, 0).guests)
    bytes += owners[idx(guest.to)] == device ? work_.expert_params() * each : 0;
  return bytes;
}

MemoryUse BufferSizes::state(PlaceId device) const {
  const bool is_host = device >= placement_.num_devices();
  const StateBytes each = state_bytes_of(placement_.plan(), placement_.first_device(device));
  double params = 0, trainable = 0, optimized = 0, lost = 0;  // of gathered states the own parts
  MemoryUse use;
  for (const i32 index : placement_.states().on(device)) {
    const State& state = placement_.states()[idx(index)];
    const bool visits = state.visits() && !is_host;
    // A router's bias is a buffer: it has a value only, never below fp32. It stays where weights visit.
    const bool bias = state.part == UnitPart::kAttention && model_.is_moe(state.layer) && model_.router_bias;
    const auto buffer = static_cast<double>(bias ? model_.num_experts : 0);
    use.weights += buffer * std::max(element(device), 4.0);
    if (visits && !state.adapters_stay()) continue;
    const double count = work_.state_params(index) - buffer;
    const double kept = visits ? 0 : state.gathered() ? count / real(state.devices.size()) : count;
    const bool adapted = placement_.options().lora != nullptr;  // then weights are not divided
    const double adapters = state.graded_on(device) ? work_.adapter_params(index) : 0;
    const double trained = adapted ? adapters : count;
    params += kept + adapters;
    trainable += !state.trainable ? 0 : adapted ? trained : kept;
    optimized += state.updated_on(device) ? trained / work_.optimizer_parts(index) : 0;
    lost += keeps_lost(state, placement_.plan(), device) ? trained : 0;
  }
  use.weights += params * each.weights;
  if (!placement_.options().backward) return use;
  use.gradients = (trainable + lost) * each.gradients;
  use.optimizer = optimized * (each.master + each.moments);
  if (is_host && placement_.options().staleness > 0) {  // published weights and taken gradients
    use.weights += optimized * each.weights;
    use.gradients += optimized * each.gradients;
  }
  return use;
}

}  // namespace hetermoe
