#include "hetermoe/exec/ops/op_functions.h"

// How the kinds of tests/planted/ops.cpp are executed: each device sends a one to all, and keeps the
// sum of what came in a buffer.
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
  d.slots.step().planted = at::full({1}, sum, at::kLong);
}

void pass_planted(OpContext& d, const Op&) { HM_CHECK(d.slots.step().planted.item<i64>() > 0, "no ones"); }

}  // namespace

ExecOp exec_ops::planted_sum() {
  return TransferOp{.pack = pack_planted, .expected = expected_planted, .unpack = unpack_planted};
}
ExecOp exec_ops::planted_pass() { return pass_planted; }

}  // namespace hetermoe
