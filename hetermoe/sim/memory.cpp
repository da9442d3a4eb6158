#include "hetermoe/sim/memory.h"

#include <algorithm>
#include <numeric>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/schedule/two_level.h"

namespace hetermoe {
namespace {

constexpr Bytes kIdBytes = 8, kWeightBytes = 4;  // of an index and of a routing weight or its gradient

/// Backward starts from it.
bool is_saved(Buffer buffer) {
  switch (buffer) {
    case Buffer::kHidden:
    case Buffer::kRouting:
    case Buffer::kRows:
    case Buffer::kSavedAttention:
    case Buffer::kLeftAttention:
    case Buffer::kSavedExperts:
    case Buffer::kLeftExperts:
    case Buffer::kHostHidden:
      return true;
    case Buffer::kResidual:
    case Buffer::kSend:
    case Buffer::kLoad:
    case Buffer::kOut:
    case Buffer::kReturned:
    case Buffer::kMoveOut:
    case Buffer::kDHidden:
    case Buffer::kDOut:
    case Buffer::kDRows:
    case Buffer::kDSend:
    case Buffer::kDMove:
    case Buffer::kCounts:
    case Buffer::kBalance:
    case Buffer::kGrad:
    case Buffer::kNorm:
    case Buffer::kFigures:
    case Buffer::kParams:
    case Buffer::kPublished:
    case Buffer::kTaken:
    case Buffer::kWeights:
    case Buffer::kSlot:
    case Buffer::kTally:
    case Buffer::kGuest:
    case Buffer::kGuestTurn:
    case Buffer::kGuestGrad:
      break;
  }
  return false;
}

/// Rows and copies between each two devices.
Bytes load_bytes(const ExchangeLoad& load) {
  return static_cast<double>(load.num_sources() * load.num_owners()) * 2 * kIdBytes;
}

}  // namespace

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

Bytes BufferSizes::element(PlaceId place) const {
  return bytes_of(placement_.plan().dtype[idx(placement_.first_device(place))]);
}
Bytes BufferSizes::gradient(PlaceId place) const {
  return bytes_of(grad_dtype_of(placement_.plan(), placement_.first_device(place)));
}
Bytes BufferSizes::row(DeviceId device) const { return row_bytes(model_, element(device)); }

double BufferSizes::tokens(i32 stage, i32 microbatch, DeviceId device) const {
  const i64 sequences =
      sequences_of(placement_.shares_with(group_of_[idx(device)], stage, microbatch, device), device);
  return static_cast<double>(sequences * placement_.plan().seq_len);
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
  const i32 group = group_of_[idx(device)];
  const ExchangeLoad& load = loads_.of(group, layer, microbatch, chunk);
  const ShareRow& sources = placement_.shares_with(group, layer, microbatch, device);
  const bool forward = placement_.is_source(group, layer, microbatch, device);
  const std::vector<DeviceId>& owners =
      placement_.owners(group, layer, microbatch, forward ? Phase::kForward : Phase::kBackward);
  Traffic traffic;
  const auto owner = std::lower_bound(owners.begin(), owners.end(), device);
  if (owner != owners.end() && *owner == device) {
    traffic.rows_as_owner = load.rows_at(static_cast<std::size_t>(owner - owners.begin()));
    traffic.copies_as_owner = load.copies_at(static_cast<std::size_t>(owner - owners.begin()));
    if (margin_ > 1) add_margin(traffic, load);
  }
  traffic.num_sources = static_cast<double>(sources.size());
  for (std::size_t s = 0; s < sources.size(); ++s) {
    if (sources[s].device != device) continue;
    for (std::size_t o = 0; o < owners.size(); ++o) {
      traffic.rows_as_source += load.rows_between(s, o);
      traffic.copies_as_source += load.copies_between(s, o);
      if (owners[o] == device) traffic.rows_kept += load.rows_between(s, o);
    }
  }
  return traffic;
}

/// Of the tables of what a source sends.
Bytes BufferSizes::send_indices(const Epoch& e) {
  Bytes indices = 0;
  for (i32 chunk = 0; placement_.is_moe(e.layer) && chunk < placement_.plan().chunks; ++chunk) {
    const Traffic t = traffic(e.layer, e.microbatch, chunk, e.device);
    indices += send_index_bytes(t.rows_as_source, t.copies_as_source);
  }
  return indices;
}

/// One for each sequence and expert.
double BufferSizes::counts_of_sequences(const Epoch& e) const {
  const Group& group = placement_.plan().groups[idx(group_of_[idx(e.device)])];
  return real(group.microbatches[idx(e.microbatch)]) * real(model_.num_experts);
}

Bytes BufferSizes::of(const Epoch& e) {
  if (e.buffer == Buffer::kHostHidden) return on_host(e);
  const auto tokens_at = [&](i32 stage) { return tokens(stage, e.microbatch, e.device); };
  const auto exchanged = [&] { return traffic(e.layer, e.microbatch, e.chunk, e.device); };
  const Bytes row = this->row(e.device);
  switch (e.buffer) {
    case Buffer::kResidual:
      return saves_residual(e.layer, e.device) ? 0 : tokens_at(e.layer) * row;
    case Buffer::kSend:
      return saves_send(e.layer, e.device) ? 0 : tokens_at(e.layer) * row;
    case Buffer::kHidden:
    case Buffer::kDHidden:
    case Buffer::kDMove:
    case Buffer::kMoveOut:
      return tokens_at(e.buffer == Buffer::kMoveOut ? e.layer - 1 : e.layer) * row;
    case Buffer::kRouting:
      return tokens_at(e.layer) * routing_bytes(model_, e.layer) + send_indices(e);
    case Buffer::kSavedAttention:
      return tokens_at(e.layer) * attention_saved(e.layer, e.device);
    case Buffer::kLeftAttention:
      return tokens_at(e.layer) * attention_left_bytes(model_, e.layer, element(e.device));
    case Buffer::kLoad:
      return load_bytes(loads_.of(group_of_[idx(e.device)], e.layer, e.microbatch, e.chunk));
    case Buffer::kRows:
      return received_rows_bytes(model_, exchanged().rows_as_owner, exchanged().copies_as_owner,
                                 element(e.device));
    case Buffer::kSavedExperts:
      return exchanged().copies_as_owner * expert_kept_bytes(model_, element(e.device));
    case Buffer::kLeftExperts:
      return exchanged().copies_as_owner * expert_left_bytes(model_, element(e.device));
    case Buffer::kOut:
    case Buffer::kDOut:
      return exchanged().rows_as_owner * row;
    case Buffer::kDRows:
      return exchanged().rows_as_owner * row + exchanged().copies_as_owner * kWeightBytes;
    case Buffer::kReturned:
      return exchanged().rows_as_source * row;
    case Buffer::kDSend:
      return exchanged().rows_as_source * row + exchanged().copies_as_source * kWeightBytes;
    case Buffer::kCounts:
    case Buffer::kBalance:
      return counts_of_sequences(e) * (e.buffer == Buffer::kCounts ? kIdBytes : kWeightBytes);
    case Buffer::kGrad:
    case Buffer::kWeights:
    case Buffer::kGuest:
    case Buffer::kGuestGrad:
      return visiting(e);
    case Buffer::kNorm:  // a few numbers, as the next
    case Buffer::kFigures:
    case Buffer::kParams:  // of the state
    case Buffer::kPublished:
    case Buffer::kTaken:
    case Buffer::kSlot:  // a right to a place
    case Buffer::kTally:
    case Buffer::kGuestTurn:
    case Buffer::kHostHidden:
      break;
  }
  return 0;
}

Bytes BufferSizes::workspace(const Op& op, DeviceId device) {
  return is_compute(op.kind) ? compute_workspace(op, device) : transfer_workspace(op, device);
}

/// Rows in expert order, outputs, and in backward the gradients of both: the gradient of the output is the
/// input of one product, that of the rows the result of the other.
Bytes BufferSizes::experts_workspace(const Op& op, DeviceId device, double copies) const {
  const bool backward = op.phase == Phase::kBackward;
  const bool kept = backward ? !recomputes_inside(placement_.recompute(op.group, op.layer), true)
                             : keeps(op.layer, device) || op.phase == Phase::kRecompute;
  const Bytes inside =
      expert_work_bytes(model_, element(device)) - (kept ? expert_kept_bytes(model_, element(device)) : 0);
  const Bytes changed = changed_by_adapters(op, device);
  if (op.phase == Phase::kWeights) return copies * 2 * row(device) + changed;
  if (op.phase == Phase::kRecompute && placement_.recompute(op.group, op.layer) == Recompute::kAhead)
    return copies * row(device) + changed;
  const Bytes left = backward && placement_.leaves_weights(op.kind, op.layer)
                         ? copies * expert_left_bytes(model_, element(device))
                         : 0;  // a buffer
  const int rows =
      backward && !(kept && left > 0) ? 3 : 2;  // of kept gate and up no input has to be gathered
  return copies * (inside + rows * row(device)) + activation_work_bytes(model_, copies, element(device)) -
         left + changed;
}

Bytes BufferSizes::compute_workspace(const Op& op, DeviceId device) {
  switch (compute_kind(op.kind)) {
    case ComputeKind::kAttention:
      return attention_workspace(op, device);
    case ComputeKind::kExperts:
      return experts_workspace(op, device);
    case ComputeKind::kHead:
      return head_work_bytes(model_, tokens(placement_.num_layers(), op.microbatch, device), element(device));
    case ComputeKind::kUpdate:
      return update_work_bytes(work_.trained_params(op.state), gradient(device),
                               optimizer_widths_of(placement_.plan()));
    case ComputeKind::kEmbed:
    case ComputeKind::kMerge:
    case ComputeKind::kPublish:
    case ComputeKind::kTake:
      break;
  }
  return 0;
}

/// Messages that are no buffers themselves. A sender gathers rows, or converts them when the wire has another
/// type; a receiver joins the messages of several sources.
Bytes BufferSizes::transfer_workspace(const Op& op, DeviceId device) {
  const Plan& plan = placement_.plan();
  const Bytes wire =
      row_bytes(model_, bytes_of(op.phase == Phase::kBackward ? plan.wire_backward : plan.wire_forward));
  const bool converts = wire != row(device);
  switch (transfer_kind(op.kind)) {
    case TransferKind::kDispatch:
    case TransferKind::kCombine: {
      const Traffic t = traffic(op.layer, op.microbatch, op.chunk, device);
      const bool to_owners = (op.kind == OpKind::kDispatch) == (op.phase != Phase::kBackward);
      const double received = t.rows_as_owner - t.rows_kept;
      if (to_owners) return (t.rows_as_source + (t.num_sources > 1 || converts ? received : 0)) * wire;
      return converts ? (t.rows_as_owner + t.rows_as_source - t.rows_kept) * wire : 0;
    }
    case TransferKind::kMove:
      // What backward starts from is sent as it is.
      if (op.phase == Phase::kRecompute) return 0;
      return real((sequences_of(placement_.move_rows(op).from, device) +
                   sequences_of(placement_.move_rows(op).to, device)) *
                  plan.seq_len) *
             wire;
    case TransferKind::kReduce:
    case TransferKind::kReduceScatter: {
      // A copy of the own gradients, where the sum is written over them, and from each peer the part that is
      // added here. In two levels what comes from the node, and the sums of it, or what goes there.
      const State& state = placement_.states()[idx(op.state)];
      if (pays_two_levels(cluster_, state.reducers()))
        return work_.trained_params(op.state) * gradient(device);
      const auto parts = static_cast<double>(state.reducers().size());
      return ((state.gathered() ? 1 : 2) - 1 / parts) * work_.trained_params(op.state) * gradient(device);
    }
    case TransferKind::kAllGather: {  // the others' parts, and a copy of the own where it is written over
      const State& state = placement_.states()[idx(op.state)];
      if (pays_two_levels(cluster_, state.devices))
        return real(state.devices.size()) * work_.gathered_part(op.state);
      return static_cast<double>(state.devices.size() - (state.gathered() ? 1 : 0)) *
             work_.gathered_part(op.state);
    }
    case TransferKind::kNorm: {
      double largest = 0;
      for (const i32 state : placement_.states_on(device))
        largest = std::max(largest, placement_.trains(state) ? work_.trained_params(state) : 0);
      return norm_work_bytes(largest, gradient(device));
    }
    case TransferKind::kLend:
    case TransferKind::kSettle:
      return guest_workspace(op, device);
    case TransferKind::kBalance:
    case TransferKind::kFetch:  // copied from where it is to where it goes
    case TransferKind::kStore:
    case TransferKind::kMigrate:
    case TransferKind::kTally:
      break;
  }
  return 0;
}

MemoryUse BufferSizes::state(PlaceId device) const {
  const bool is_host = device >= placement_.num_devices();
  const StateBytes each = state_bytes_of(placement_.plan(), placement_.first_device(device));
  double params = 0, trainable = 0, optimized = 0;  // of gathered states the own parts
  MemoryUse use;
  for (const i32 index : placement_.states_on(device)) {
    const State& state = placement_.states()[idx(index)];
    if (state.visits() && !is_host) continue;
    // A router's bias is a buffer: it has a value only, never below fp32.
    const bool bias = state.part == UnitPart::kAttention && model_.is_moe(state.layer) && model_.router_bias;
    const auto buffer = static_cast<double>(bias ? model_.num_experts : 0);
    const double count = work_.state_params(index) - buffer;
    const double kept = state.gathered() ? count / real(state.devices.size()) : count;
    const bool adapted = placement_.options().lora != nullptr;  // then weights are not divided
    const double adapters = work_.adapter_params(index), trained = adapted ? adapters : count;
    params += kept + adapters;
    trainable += !state.trainable ? 0 : adapted ? trained : kept;
    const bool optimizes = state.trainable && is_host == !state.homes.empty();
    optimized += optimizes ? trained / work_.optimizer_parts(index) : 0;
    use.weights += buffer * std::max(element(device), 4.0);
  }
  use.weights += params * each.weights;
  if (!placement_.options().backward) return use;
  use.gradients = trainable * each.gradients;
  use.optimizer = optimized * (each.master + each.moments);
  if (is_host && placement_.options().staleness > 0) {  // published weights and taken gradients
    use.weights += optimized * each.weights;
    use.gradients += optimized * each.gradients;
  }
  return use;
}

namespace {

/// A change of what a device holds.
struct Change {
  Seconds time;
  Bytes bytes;  // negative = freed
  Bytes MemoryUse::*what;
  /// Of changes at one moment, what ends is gone before what begins.
  bool operator<(const Change& other) const {
    return time != other.time ? time < other.time : (bytes < 0) > (other.bytes < 0);
  }
};

Bytes MemoryUse::*part_of(Buffer buffer) {
  if (buffer == Buffer::kWeights || buffer == Buffer::kGuest) return &MemoryUse::weights;
  if (buffer == Buffer::kGrad || buffer == Buffer::kGuestGrad) return &MemoryUse::gradients;
  return is_saved(buffer) ? &MemoryUse::saved : &MemoryUse::in_flight;
}

void add_life(std::vector<Change>& changes, Seconds start, Seconds end, Bytes bytes, Bytes MemoryUse::*what) {
  if (bytes == 0 || end <= start) return;
  changes.push_back({start, bytes, what});
  changes.push_back({end, -bytes, what});
}

MemoryPeak worst_moment(std::vector<Change>& changes, const MemoryUse& state) {
  std::sort(changes.begin(), changes.end());
  MemoryUse now = state;
  MemoryPeak peak{state, 0};
  for (const Change& change : changes) {
    now.*change.what += change.bytes;
    if (now.total() > peak.use.total()) peak = {now, change.time};
  }
  // A buffer that takes the memory of another is one buffer, not less than no workspace.
  peak.use.saved += std::min(0.0, peak.use.workspace);
  peak.use.workspace = std::max(0.0, peak.use.workspace);
  return peak;
}

}  // namespace

std::vector<MemoryPeak> peak_memory(const Schedule& schedule, const OpTimes& times, BufferSizes& sizes,
                                    const Lifetimes& lifetimes) {
  std::vector<Seconds> end(lifetimes.epochs.size(), 0);
  std::vector<std::vector<Change>> changes(idx(schedule.num_places()));
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    const std::span<const LaneId> lanes = schedule.lanes_of(op);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      for (const i32 epoch : lifetimes.uses_of(schedule, op, i))
        end[idx(epoch)] = std::max(end[idx(epoch)], times.end[idx(op)]);
      const DeviceId device = device_of(lanes[i]);
      add_life(changes[idx(device)], times.start[idx(op)], times.end[idx(op)],
               sizes.workspace(schedule.ops[idx(op)], device), &MemoryUse::workspace);
    }
  }
  for (std::size_t e = 0; e < lifetimes.epochs.size(); ++e) {
    const Epoch& epoch = lifetimes.epochs[e];
    add_life(changes[idx(epoch.device)], times.start[idx(epoch.first)], end[e], sizes.of(epoch),
             part_of(epoch.buffer));
  }
  std::vector<MemoryPeak> peaks;
  for (PlaceId place = 0; place < schedule.num_places(); ++place) {
    peaks.push_back(worst_moment(changes[idx(place)], sizes.state(place)));
  }
  return peaks;
}

std::vector<MemoryPeak> peak_memory(const Schedule& schedule, const OpTimes& times,
                                    const Placement& placement, const ModelConfig& model,
                                    const Cluster& cluster, const RoutingLoad& routing, double margin) {
  BufferSizes sizes(placement, model, cluster, routing, margin);
  return peak_memory(schedule, times, sizes, make_lifetimes(schedule, placement));
}

}  // namespace hetermoe
