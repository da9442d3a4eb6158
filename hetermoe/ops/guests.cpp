#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/ops/access_list.h"
#include "hetermoe/ops/buffer_sizes.h"

// Owners lend each other experts for an exchange, and take the gradients of these back.
namespace hetermoe {
namespace {

void lend_accesses(AccessList& list) {
  list.read_tally();
  list.read_params(UnitPart::kExperts, list.op.layer);
  list.write(Buffer::kGuest);
  list.add_guest_turn(Mode::kWrite);
}

void settle_accesses(AccessList& list) {
  list.read_tally();
  list.add(Buffer::kGuestGrad, Mode::kTake);
  list.add_grad(UnitPart::kExperts, list.op.layer);
}

bool lends_in(const Op& op, const Placement& placement) {
  if (!placement.lends(op.group, op.layer)) return false;
  return op.phase != Phase::kRecompute || placement.recompute(op.group, op.layer) == Recompute::kResend;
}

bool settles_in(const Op& op, const Placement& placement) {
  return placement.lends(op.group, op.layer) && op.phase == Phase::kBackward;
}

bool has_gradients(const Op& op, const Placement& placement) {
  return placement.states().trains_some(UnitPart::kExperts, op.layer);
}

/// Calls f(guest, home, host) for each expert that is lent in the op's exchange.
template <class F>
void for_guests(const Placement& placement, const Op& op, const ExchangeLoad& load, const F& f) {
  const std::vector<DeviceId>& owners = placement.owners(op.group, op.layer);
  for (const Guest& guest : load.guests) f(guest, owners[idx(guest.from)], owners[idx(guest.to)]);
}

/// Weights come in the dtype of the device to which they are lent.
std::vector<PortBytes> lend_bytes(const WorkModel& model, const Op& op, std::span<const PlaceId> participants,
                                  const ExchangeLoad* load) {
  std::vector<PortBytes> bytes(participants.size());
  const Plan& plan = model.placement().plan();
  for_guests(model.placement(), op, *load, [&](const Guest&, DeviceId home, DeviceId host) {
    model.add(bytes, participants, home, host, model.expert_params() * bytes_of(plan.dtype[idx(host)]));
  });
  return bytes;
}

/// Gradients go in the dtype in which the device sums them.
std::vector<PortBytes> settle_bytes(const WorkModel& model, const Op& op,
                                    std::span<const PlaceId> participants, const ExchangeLoad* load) {
  std::vector<PortBytes> bytes(participants.size());
  const Plan& plan = model.placement().plan();
  for_guests(model.placement(), op, *load, [&](const Guest& guest, DeviceId home, DeviceId host) {
    if (!model.settles(op, guest)) return;
    model.add(bytes, participants, host, home, model.expert_params() * bytes_of(grad_dtype_of(plan, host)));
  });
  return bytes;
}

/// Copies that are sent; those that came, where they come from several owners and are joined.
Bytes lend_workspace(BufferSizes& sizes, const Op& op, DeviceId device) {
  Bytes sent = 0, received = 0;
  std::set<i32> homes;
  for_guests(sizes.placement(), op, *sizes.loads().of(op),
             [&](const Guest& guest, DeviceId home, DeviceId host) {
               const Bytes bytes = sizes.work().expert_params() * sizes.element(host);
               if (home == device) sent += bytes;
               if (host != device) return;
               received += bytes;
               homes.insert(guest.from);
             });
  return sent + (homes.size() > 1 ? received : 0);
}

/// Gradients that came.
Bytes settle_workspace(BufferSizes& sizes, const Op& op, DeviceId device) {
  Bytes settled = 0;
  for_guests(sizes.placement(), op, *sizes.loads().of(op),
             [&](const Guest& guest, DeviceId home, DeviceId host) {
               if (home != device || !sizes.work().settles(op, guest)) return;
               settled += sizes.work().expert_params() * sizes.gradient(host);
             });
  return settled;
}

}  // namespace

const OpRow op_rows::lend = {
    .phases = Phases::kForwardBackwardRecompute,
    .queue = QueueRule::always(Queue::kGuests),
    .participants = Participants::kOwners,
    .occurs = Occurs::kInMicrobatch,
    .has_layer = true,
    .has_microbatch = true,
    .of_guests = true,
    .carries_gradients = false,
    .accesses = lend_accesses,
    .occurs_in = lends_in,
    .bytes = lend_bytes,
    .workspace = lend_workspace,
};

const OpRow op_rows::settle = {
    .phases = Phases::kForwardBackward,  // backward alone
    .queue = QueueRule::always(Queue::kGuests),
    .participants = Participants::kOwners,
    .occurs = Occurs::kInMicrobatch,
    .has_layer = true,
    .has_microbatch = true,
    .of_guests = true,
    .accesses = settle_accesses,
    .occurs_in = settles_in,
    .has_work = has_gradients,
    .bytes = settle_bytes,
    .workspace = settle_workspace,
};

}  // namespace hetermoe
