#include "hetermoe/exec/ops/exchange_rows.h"

// combine: weighted rows back to the sources, or on to the devices of the next layer; backward, gradients of
// the layer's output from there to the owners.
namespace hetermoe {
namespace {

void pack_sums(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  op.phase == Phase::kBackward ? pack_to_owners(d, op, participants, out)
                               : pack_to_sources(d, op, participants, out);
}

void unpack_sums(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  op.phase == Phase::kBackward ? unpack_at_owner(d, op, participants, in)
                               : unpack_at_source(d, op, participants, in);
}

MessageShape expected_row_sums(OpContext& d, const Op& op, DeviceId peer, const Message& own) {
  return op.phase == Phase::kBackward ? expected_at_owner(d, op, peer, own)
                                      : expected_at_source(d, op, peer, own);
}

}  // namespace

ExecOp exec_ops::combine() {
  return TransferOp{.pack = pack_sums,
                    .expected = expected_row_sums,
                    .unpack = unpack_sums,
                    .to_owners_by_node = &to_owners_by_node(),
                    .to_sources_by_node = &to_sources_by_node()};
}

}  // namespace hetermoe
