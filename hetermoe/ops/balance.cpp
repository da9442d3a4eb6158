#include "hetermoe/base/index.h"
#include "hetermoe/ops/access_list.h"
#include "hetermoe/ops/work.h"

// Devices tell each other how many tokens chose each expert, for the load-balancing loss.
namespace hetermoe {
namespace {

void balance_accesses(AccessList& list) {
  const Placement& p = list.p;
  for (const MicrobatchRef& member : p.balance_sets().with(list.op.group, list.op.microbatch)) {
    if (p.routes(member, list.device, Phase::kForward))
      list.add(BufferKey::of_microbatch(Buffer::kCounts, member.microbatch), Mode::kRead);
    if (p.routes(member, list.device, Phase::kBackward))
      list.add(BufferKey::of_microbatch(Buffer::kBalance, member.microbatch), Mode::kWrite);
  }
}

std::vector<PortBytes> balance_bytes(const WorkModel& model, const Op&, std::span<const PlaceId> participants,
                                     const ExchangeLoad*) {
  const i64 counts = model.placement().balance_parts() * model.model().num_experts;
  return model.all_to_all_bytes(participants, 8 * real(counts));
}

}  // namespace

const OpRow op_rows::balance = {
    .phases = Phases::kNone,
    .queue = QueueRule::always(Queue::kReduce),
    .participants = Participants::kBalanceSet,
    .occurs = Occurs::kPerBalanceSet,
    .has_microbatch = true,
    .accesses = balance_accesses,
    .bytes = balance_bytes,
};

}  // namespace hetermoe
