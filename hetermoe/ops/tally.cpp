#include "hetermoe/base/index.h"
#include "hetermoe/ops/access_list.h"
#include "hetermoe/ops/work.h"

// Sources tell each other, and owners that lend experts, how many copies of each expert they have.
namespace hetermoe {
namespace {

void tally_accesses(AccessList& list) {
  if (list.p.is_source(list.op, list.device)) list.read(Buffer::kRouting);
  if (list.p.is_source(list.op, list.device) || list.lends()) list.write(Buffer::kTally);
}

bool tally_occurs_in(const Op& op, const Placement& placement) {
  return placement.tallies(op.group, op.layer);
}

/// Four bytes for each expert and chunk, from each source to all others.
std::vector<PortBytes> tally_bytes(const WorkModel& model, const Op& op,
                                   std::span<const PlaceId> participants, const ExchangeLoad*) {
  std::vector<PortBytes> bytes(participants.size());
  const Bytes each = 4 * real(model.model().num_experts * model.placement().plan().chunks);
  for (const TokenRange source : model.placement().ranges(op)) {
    for (const DeviceId to : participants) model.add(bytes, participants, source.device, to, each);
  }
  return bytes;
}

}  // namespace

const OpRow op_rows::tally = {
    .phases = Phases::kForward,
    .queue = QueueRule::always(Queue::kToExpert),
    .participants = Participants::kExchange,
    .occurs = Occurs::kInMicrobatch,
    .has_layer = true,
    .has_microbatch = true,
    .accesses = tally_accesses,
    .occurs_in = tally_occurs_in,
    .bytes = tally_bytes,
};

}  // namespace hetermoe
