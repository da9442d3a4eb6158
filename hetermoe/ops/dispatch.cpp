#include "hetermoe/ops/access_list.h"
#include "hetermoe/ops/exchange.h"

// Rows go to the owners of the experts that their tokens chose, and their gradients back.
namespace hetermoe {
namespace {

void dispatch_accesses(AccessList& list) {
  const bool backward = list.op.phase == Phase::kBackward;
  const Exchange exchange(list.op, list.p);
  const bool sends = exchange.sends(list.device), receives = exchange.receives(list.device);
  list.add(Buffer::kLoad, backward ? Mode::kRead : Mode::kWrite);
  if (backward) {
    if (sends) list.read(Buffer::kDRows);
    if (receives) list.write(Buffer::kDSend);
    return;
  }
  if (sends || list.lends()) list.read_tally();
  if (sends) {
    list.read(Buffer::kSend);
    list.read(Buffer::kRouting);
  }
  if (receives) list.write(Buffer::kRows);
}

/// Where select keeps the rest, nothing but the rows travels again.
bool dispatch_occurs_in(const Op& op, const Placement& placement) {
  if (is_in_exchange_rounds(op, placement)) return true;
  return placement.is_moe(op.layer) && op.phase == Phase::kRecompute &&
         placement.recompute(op.group, op.layer) == Recompute::kSelect;
}

}  // namespace

const OpRow op_rows::dispatch = {
    .phases = Phases::kForwardBackwardRecompute,
    .queue = {.forward = Queue::kToExpert,
              .backward = Queue::kToAttention,
              .by_name = Queue::kToExpert,
              .phase_backward = Queue::kToAttention,
              .phase_recompute = Queue::kToExpert},
    .participants = Participants::kExchange,
    .occurs = Occurs::kInMicrobatch,
    .has_layer = true,
    .has_microbatch = true,
    .has_chunk = true,
    .to_owners = true,
    .carries_routing_weights = true,
    .accesses = dispatch_accesses,
    .occurs_in = dispatch_occurs_in,
    .bytes = exchange_bytes,
    .workspace = exchange_workspace,
};

}  // namespace hetermoe
