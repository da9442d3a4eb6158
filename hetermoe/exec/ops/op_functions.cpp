#include "hetermoe/exec/ops/op_functions.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "hetermoe/comm/codec.h"
#include "hetermoe/device/host_copy.h"
#include "hetermoe/ops/two_level.h"
#include "hetermoe/ops/work.h"

namespace hetermoe {
namespace {

std::string text_of(at::ScalarType dtype, at::IntArrayRef sizes) {
  return fmt::format("{} [{}]", at::toString(dtype), fmt::join(sizes, ", "));
}

const ExecOp& exec_op_of(OpKind kind) {
#define HM_CALL(kind, name) exec_ops::name(),
  static const std::vector<ExecOp> all = {HM_OP_KINDS(HM_CALL)};
#undef HM_CALL
  return all[idx(kind)];
}

}  // namespace

bool is_wide(const Op& op) { return exec_op_of(op.kind).transfer.wide; }

void run_compute(OpContext& d, const Op& op) {
  HM_CHECK(is_compute(op.kind), "{} is not a compute op", to_string(op));
  exec_op_of(op.kind).compute(d, op);
}

const TransferOp& transfer_op_of(const Op& op, const Placement& placement, const Cluster& cluster) {
  HM_CHECK(!is_compute(op.kind), "{} is not a transfer", to_string(op));
  const TransferOp& of_kind = exec_op_of(op.kind).transfer;
  if (is_saved_copy(op)) return *of_kind.of_saved;
  if (of_kind.in_two_levels != nullptr &&
      pays_two_levels(cluster, placement.states()[idx(op.state)].reducers()))
    return *of_kind.in_two_levels;
  const bool tells = tells_sizes(op, placement);
  if (of_kind.to_owners_by_node == nullptr || !goes_by_node(op, placement))
    return tells ? *of_kind.sizes : of_kind;
  return tells                ? *of_kind.sizes_by_node
         : goes_to_owners(op) ? *of_kind.to_owners_by_node
                              : *of_kind.to_sources_by_node;
}

i64 num_exchanges(const Op& op, const Placement& placement, const Cluster& cluster) {
  i64 count = 0;
  for (const TransferOp* each = &transfer_op_of(op, placement, cluster); each != nullptr; each = each->next)
    ++count;
  return count;
}

std::vector<DeviceId> peers_of(const TransferOp& transfer, const Cluster& cluster, Devices participants,
                               DeviceId self) {
  if (transfer.peers != nullptr) return transfer.peers(cluster, participants, self);
  return {participants.begin(), participants.end()};
}

void check_count(const std::string& where, const char* what, std::size_t got, std::size_t expected) {
  if (got != expected) fail<TransportError>(where, "{}: got {}, expected {}", what, got, expected);
}

void check_shape(const std::string& where, const Message& message, const MessageShape& expected) {
  check_count(where, "numbers", message.numbers.size(), expected.numbers);
  check_count(where, "values", message.values.size(), expected.values);
  check_count(where, "tensors", message.tensors.size(), expected.tensors.size());
  for (std::size_t t = 0; t < expected.tensors.size(); ++t) {
    const at::Tensor& tensor = message.tensors[t];
    const MessageShape::Part& part = expected.tensors[t];
    if (tensor.scalar_type() == part.dtype && tensor.sizes() == at::IntArrayRef(part.sizes)) continue;
    fail<TransportError>(where, "tensor {}: got {}, expected {}", t,
                         text_of(tensor.scalar_type(), tensor.sizes()), text_of(part.dtype, part.sizes));
  }
}

void check_copies(OpContext& d, DeviceId source, const char* what, i64 got, i64 tokens) {
  const i64 chosen = tokens * d.model.top_k;
  const bool drops = d.expert_capacity() > 0;
  if (drops ? got <= chosen : got == chosen) return;
  fail<TransportError>(d.name_of_peer(source), "{}: got {}, expected {}{} ({} tokens with {} experts each)",
                       what, got, drops ? "at most " : "", chosen, tokens, d.model.top_k);
}

at::Tensor encoded(OpContext& d, const Op& op, const at::Tensor& x_RD) {
  const Wire wire = wire_of(op, d.p.plan());
  at::Tensor out = encode(x_RD, wire);
  // Each of these is on one lane: no other writes here at the same time.
  const bool forward = has_scales(d.p.plan().wire_forward);
  const bool measured = forward ? op.kind == OpKind::kDispatch && op.phase == Phase::kForward
                                : op.kind == OpKind::kCombine && op.phase == Phase::kBackward;
  if (measured && has_scales(wire) && x_RD.numel() > 0 && !d.wire_losses.rows.defined())
    d.wire_losses.rows = wire_loss(x_RD, decode(out, wire, x_RD.scalar_type()));
  return out;
}

at::Tensor told_to_host(const OpContext& d, std::vector<at::Tensor> told, const char* what) {
  const bool some_elsewhere = std::ranges::any_of(told, [](const at::Tensor& t) { return !t.is_cpu(); });
  for (at::Tensor& tensor : told) {
    if (some_elsewhere) tensor = to_device(tensor, d.where());
  }
  return to_host(told.size() == 1 ? told[0] : at::cat(told), what).contiguous();
}

at::Tensor decoded(const OpContext& d, const Op& op, const at::Tensor& received) {
  return decode(received, wire_of(op, d.p.plan()), d.state.dtype());
}

}  // namespace hetermoe
