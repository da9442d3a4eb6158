#include <algorithm>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/sim/memory.h"

// What is on a place for a while: weights of visits and of guests with their gradients, activations on hosts.
namespace hetermoe {

/// What the device that it came from sent.
Bytes BufferSizes::on_host(const Epoch& e) {
  const auto [device, chunk] = placement_.of_saved_piece(e.device, e.chunk);
  const Op copy{.kind = OpKind::kStore,
                .chunk = static_cast<std::int16_t>(chunk),
                .group = static_cast<std::int16_t>(group_of_[idx(device)]),
                .layer = e.layer,
                .microbatch = e.microbatch,
                .device = device};
  return work_.host_copy_bytes(copy, loads_.of(copy));
}

/// Weights that visit a device, are gathered there or are lent to it, and the gradient that they leave.
Bytes BufferSizes::visiting(const Epoch& e) {
  if (e.buffer == Buffer::kGuest || e.buffer == Buffer::kGuestGrad) return guests(e);
  const bool visits = placement_.states()[idx(e.layer)].transient() && e.device < placement_.num_devices();
  if (!visits) return 0;
  return work_.state_params(e.layer) * (e.buffer == Buffer::kGrad ? gradient(e.device) : element(e.device));
}

/// Guests run after the own experts: their result is there beside that of these, and their gradients are not
/// there before.
Bytes BufferSizes::experts_workspace(const Op& op, DeviceId device) {
  const Traffic t = traffic(op.layer, op.microbatch, op.chunk, device);
  const ExchangeLoad& load = *loads_.of(op);
  if (load.guest_copies.empty()) return experts_workspace(op, device, t.copies_as_owner);
  const double copies = load.guest_copies[position(placement_.owners(op), device)];
  const Bytes result = op.phase == Phase::kWeights ? 0 : t.rows_as_owner * row(device);
  const bool makes_gradients = op.phase == Phase::kWeights || (op.phase == Phase::kBackward &&
                                                               !placement_.leaves_weights(op.kind, op.layer));
  const Bytes later = makes_gradients && op.chunk == 0 ? guests({.buffer = Buffer::kGuestGrad,
                                                                 .device = device,
                                                                 .layer = op.layer,
                                                                 .microbatch = op.microbatch,
                                                                 .chunk = 0,
                                                                 .first = 0,
                                                                 .num_ops = 0})
                                                       : 0;
  return std::max(experts_workspace(op, device, t.copies_as_owner - copies) - later,
                  experts_workspace(op, device, copies) + (copies > 0 ? result : 0));
}

/// Of experts that are lent to the device.
Bytes BufferSizes::guests(const Epoch& e) {
  const i32 group = group_of_[idx(e.device)];
  const std::vector<DeviceId>& owners = placement_.owners(group, e.layer);
  const Bytes each = e.buffer == Buffer::kGuest ? element(e.device) : gradient(e.device);
  Bytes bytes = 0;
  for (const Guest& guest : loads_.of(group, e.layer, e.microbatch, 0).guests)
    bytes += owners[idx(guest.to)] == e.device ? work_.expert_params() * each : 0;
  return bytes;
}

/// lend: copies that are sent; those that came, where they come from several owners and are joined. settle:
/// gradients that came.
Bytes BufferSizes::guest_workspace(const Op& op, DeviceId device) {
  const std::vector<DeviceId>& owners = placement_.owners(op.group, op.layer);
  Bytes sent = 0, received = 0, settled = 0;
  std::set<i32> homes;
  for (const Guest& guest : loads_.of(op)->guests) {
    const DeviceId home = owners[idx(guest.from)], host = owners[idx(guest.to)];
    if (home == device) {
      sent += work_.expert_params() * element(host);
      settled += work_.settles(op, guest) ? work_.expert_params() * gradient(host) : 0;
    }
    if (host != device) continue;
    received += work_.expert_params() * element(host);
    homes.insert(guest.from);
  }
  if (op.kind == OpKind::kSettle) return settled;
  return sent + (homes.size() > 1 ? received : 0);
}

}  // namespace hetermoe
