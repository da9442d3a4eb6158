#include "hetermoe/base/index.h"
#include "hetermoe/ops/access_list.h"
#include "hetermoe/ops/work.h"

// Weights come from the host of a device, gradients go there; saved activations wait there for backward.
namespace hetermoe {
namespace {

/// Of activations: `mode` on the device, and the other way round on the host.
void saved_accesses(AccessList& list, Mode on_device, Mode on_host) {
  const Op& op = list.op;
  if (list.device != op.device) {
    list.add(BufferKey::of_piece(Buffer::kHostHidden, op.layer, op.microbatch, saved_piece(op, list.p)),
             on_host);
    return;
  }
  const bool rows = op.chunk > 0;
  list.add_slot(rows ? SlotPart::kRows : SlotPart::kInputs, on_device);
  if (rows)
    list.add(BufferKey::of_chunk(Buffer::kRows, op.layer, op.microbatch, op.chunk - 1), on_device);
  else
    list.add(Buffer::kHidden, on_device);
  // Elsewhere routing is already where backward needs it.
  if (!rows && list.is_moe() && list.p.roams(op.group, op.layer, op.microbatch))
    list.add(Buffer::kRouting, on_device);
}

/// A visit of a part is the fetches of all its states here: the first of them needs the slot for itself.
void fetch_accesses(AccessList& list) {
  const Op& op = list.op;
  if (op.state < 0) return saved_accesses(list, Mode::kWrite, Mode::kRead);
  const State& state = list.state();
  if (list.device != op.device) {
    list.read(list.p.states().lags(op.state) ? Buffer::kPublished : Buffer::kParams);
  } else if (state.visits()) {
    const bool first = list.p.states().on(list.device, state.part, state.layer)[0] == op.state;
    list.write(Buffer::kWeights);
    list.add_slot(slot_part(state.part), first ? Mode::kWrite : Mode::kAdd);
  } else {
    list.add(Buffer::kParams, Mode::kAdd);
  }
}

void store_accesses(AccessList& list) {
  if (list.op.state < 0) return saved_accesses(list, Mode::kRead, Mode::kWrite);
  if (list.device != list.op.device) {
    list.add(Buffer::kGrad, Mode::kAdd);
  } else {
    list.add(Buffer::kGrad, list.state().visits() ? Mode::kTake : Mode::kRead);
  }
}

std::vector<PortBytes> host_copy_bytes(const WorkModel& model, const Op& op,
                                       std::span<const PlaceId> participants, const ExchangeLoad* load) {
  std::vector<PortBytes> bytes(participants.size());
  const bool fetches = row_of(op.kind).from_host;
  for (std::size_t i = 0; i < participants.size(); ++i) {
    const bool receives = (participants[i] == op.device) == fetches;
    (receives ? bytes[i].host_in : bytes[i].host_out) = model.host_copy_bytes(op, load);
  }
  return bytes;
}

}  // namespace

const OpRow op_rows::fetch = {
    .phases = Phases::kNone,
    .queue = QueueRule::always(Queue::kToDevice),
    .participants = Participants::kWithHost,
    .occurs = Occurs::kOfResidence,
    .has_state = true,
    .carries_gradients = false,
    .from_host = true,
    .accesses = fetch_accesses,
    .bytes = host_copy_bytes,
};

const OpRow op_rows::store = {
    .phases = Phases::kNone,
    .queue = QueueRule::always(Queue::kToHost),
    .participants = Participants::kWithHost,
    .occurs = Occurs::kOfResidence,
    .has_state = true,
    .accesses = store_accesses,
    .bytes = host_copy_bytes,
};

}  // namespace hetermoe
