#include "hetermoe/ops/access_list.h"
#include "hetermoe/ops/exchange.h"

// Results of experts go back to the sources of their rows, or to the devices of the next layer; in backward
// gradients of results to the owners.
namespace hetermoe {
namespace {

void combine_accesses(AccessList& list) {
  const Exchange exchange(list.op, list.p);
  const bool sends = exchange.sends(list.device), receives = exchange.receives(list.device);
  list.read(Buffer::kLoad);
  if (list.op.phase == Phase::kBackward) {
    if (sends) {
      list.read(Buffer::kDHidden);
      list.read(Buffer::kRouting);
    }
    if (receives) list.write(Buffer::kDOut);
    return;
  }
  if (sends) list.read(Buffer::kOut);
  if (receives) list.write(Buffer::kReturned);
}

}  // namespace

const OpRow op_rows::combine = {
    .phases = Phases::kForwardBackwardRecompute,
    .queue = {.forward = Queue::kToAttention,
              .backward = Queue::kToExpert,
              .by_name = Queue::kToAttention,
              .phase_backward = Queue::kToExpert,
              .phase_recompute = Queue::kToAttention},
    .participants = Participants::kExchange,
    .occurs = Occurs::kInMicrobatch,
    .has_layer = true,
    .has_microbatch = true,
    .has_chunk = true,
    .accesses = combine_accesses,
    .occurs_in = is_in_exchange_rounds,
    .bytes = exchange_bytes,
    .workspace = exchange_workspace,
};

}  // namespace hetermoe
