#include <optional>

#include "hetermoe/base/index.h"
#include "hetermoe/ops/access_list.h"
#include "hetermoe/ops/buffer_sizes.h"
#include "hetermoe/ops/two_level.h"

// The devices of a state sum its gradients, and tell each other the parts of its weights.
namespace hetermoe {
namespace {

/// Of gathered weights the gradient of a visit goes, and the sum of the own part stays. A device that has
/// added nothing gives zeros. The slot is free when the gradient is gone, not before.
void sum_accesses(AccessList& list) {
  list.add(Buffer::kGrad, Mode::kAdd);
  if (!list.state().gathered()) return;
  list.add(Buffer::kGrad, Mode::kTake);
  list.add(Buffer::kTaken, Mode::kAdd);
  if (list.op.slot >= 0) list.add_slot(slot_part(list.state().part), Mode::kRead);
}

void gather_accesses(AccessList& list) {
  if (!list.state().gathered()) return list.add(Buffer::kParams, Mode::kAdd);
  list.read(Buffer::kParams);
  list.write(Buffer::kWeights);
  list.add_slot(slot_part(list.state().part), Mode::kWrite);
}

/// Of a state whose parts are so large when they are summed, and when they are told; none = they are not. All
/// at once: each of P devices sends a part to each of the others to sum, and to tell. In two levels, with D
/// parts for which a device stands: in its node it gets these from each of the others and sends all others;
/// between the nodes it sends all of them but its own. Telling is the reverse.
std::vector<PortBytes> state_bytes(const WorkModel& model, std::span<const PlaceId> participants,
                                   std::optional<Bytes> summed, std::optional<Bytes> told) {
  if (!pays_two_levels(model.cluster(), participants))
    return model.all_to_all_bytes(participants, summed.value_or(0) + told.value_or(0));
  const TwoLevel levels(model.cluster(), participants);
  const std::vector<i64> num_parts = levels.num_parts();
  const double all = real(participants.size()), others = real(levels.num_nodes()) - 1;
  std::vector<PortBytes> inside(participants.size()), between = inside, bytes;
  const auto fill = [&](Bytes part) {
    for (std::size_t i = 0; i < participants.size(); ++i) {
      const double mates = real(levels.mates(i).size()) - 1, stands_for = real(num_parts[i]);
      inside[i].local_out = mates > 0 ? (all - stands_for) * part : 0;
      inside[i].local_in = mates * stands_for * part;
      between[i].net_out = (stands_for - 1) * part;
      between[i].net_in = others * part;
    }
  };
  const auto append = [&bytes](const std::vector<PortBytes>& exchange) {
    bytes.insert(bytes.end(), exchange.begin(), exchange.end());
  };
  if (summed) fill(*summed), append(inside), append(between);
  if (told) fill(*told), append(reversed(between)), append(reversed(inside));
  return bytes;
}

std::vector<PortBytes> reduce_bytes(const WorkModel& model, const Op& op,
                                    std::span<const PlaceId> participants, const ExchangeLoad*) {
  return state_bytes(model, participants, model.sent_part(op.state), model.gradient_part(op.state));
}
std::vector<PortBytes> scatter_bytes(const WorkModel& model, const Op& op,
                                     std::span<const PlaceId> participants, const ExchangeLoad*) {
  return state_bytes(model, participants, model.sent_part(op.state), {});
}
std::vector<PortBytes> gather_bytes(const WorkModel& model, const Op& op,
                                    std::span<const PlaceId> participants, const ExchangeLoad*) {
  return state_bytes(model, participants, {}, model.gathered_part(op.state));
}

/// A copy of the own gradients, where the sum is written over them, and from each peer the part that is added
/// here. In two levels what comes from the node, and the sums of it, or what goes there. Where gradients
/// travel in half as many bytes, what a device sends and gets for the sum is as much as it gets when sums are
/// told.
Bytes sum_workspace(BufferSizes& sizes, const Op& op, DeviceId device) {
  const State& state = sizes.placement().states()[idx(op.state)];
  const double params = sizes.work().trained_params(op.state);
  if (sizes.in_two_levels(op.state)) return params * sizes.gradient(device);
  const auto parts = static_cast<double>(state.reducers().size());
  const bool narrow = sizes.placement().plan().wire_reduce == WireReduce::kBf16;
  if (narrow && !state.gathered()) return params * sizes.gradient(device);
  return ((state.gathered() ? 1 : 2) - 1 / parts) * params * sizes.gradient(device);
}

/// The others' parts, and a copy of the own where it is written over.
Bytes gather_workspace(BufferSizes& sizes, const Op& op, DeviceId) {
  const State& state = sizes.placement().states()[idx(op.state)];
  const Bytes part = sizes.work().gathered_part(op.state);
  if (sizes.in_two_levels(op.state)) return real(state.devices.size()) * part;
  return static_cast<double>(state.devices.size() - (state.gathered() ? 1 : 0)) * part;
}

}  // namespace

const OpRow op_rows::reduce = {
    .phases = Phases::kNone,
    .queue = QueueRule::always(Queue::kReduce),
    .participants = Participants::kStateDevices,
    .occurs = Occurs::kPerSharedState,
    .has_state = true,
    .accesses = sum_accesses,
    .bytes = reduce_bytes,
    .workspace = sum_workspace,
};

const OpRow op_rows::reduce_scatter = {
    .phases = Phases::kNone,
    .queue = QueueRule::always(Queue::kReduce),
    .participants = Participants::kStateDevices,
    .occurs = Occurs::kPerShardedState,
    .has_state = true,
    .accesses = sum_accesses,
    .bytes = scatter_bytes,
    .workspace = sum_workspace,
};

const OpRow op_rows::all_gather = {
    .phases = Phases::kNone,
    .queue = QueueRule::always(Queue::kReduce),
    .participants = Participants::kStateDevices,
    .occurs = Occurs::kAfterUpdate,
    .has_state = true,
    .carries_gradients = false,
    .accesses = gather_accesses,
    .bytes = gather_bytes,
    .workspace = gather_workspace,
};

}  // namespace hetermoe
