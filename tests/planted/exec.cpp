#include "hetermoe/exec/ops/op_functions.h"

// How the kinds of tests/planted/ops.cpp are executed: each device sends a one to all, and adds up what came.
namespace hetermoe {
namespace {

void pack_planted(OpContext&, const Op&, Devices, std::vector<Message>& out) {
  for (Message& message : out) message.numbers = {1};
}

MessageShape expected_planted(OpContext&, const Op&, DeviceId, const Message&) {
  MessageShape shape;
  shape.numbers = 1;
  return shape;
}

void unpack_planted(OpContext& d, const Op&, Devices participants, std::vector<Message>& in) {
  i64 sum = 0;
  for (const Message& message : in) sum += message.numbers.at(0);
  check_count(d.name_of_peer(d.device()), "ones", static_cast<std::size_t>(sum), participants.size());
}

void pass_planted(OpContext&, const Op&) {}

}  // namespace

ExecOp exec_ops::planted_sum() {
  return TransferOp{.pack = pack_planted, .expected = expected_planted, .unpack = unpack_planted};
}
ExecOp exec_ops::planted_pass() { return pass_planted; }

}  // namespace hetermoe
