#include <fmt/ranges.h>

#include <algorithm>

#include "hetermoe/base/error.h"
#include "hetermoe/exec/device_runtime.h"

// What a device must receive in each transfer. A message that is cut or has wrong counts would be read beyond
// its end, so this is checked of every message, whatever the transport.
namespace hetermoe {
namespace {

std::size_t at_(i64 i) { return static_cast<std::size_t>(i); }

/// Position of `device` among the shares of a row; -1 = none.
i64 source_index(const ShareRow& sources, DeviceId device) {
  for (std::size_t s = 0; s < sources.size(); ++s) {
    if (sources[s].device == device) return static_cast<i64>(s);
  }
  return -1;
}

i64 owner_index(const std::vector<DeviceId>& owners, DeviceId device) {
  const auto found = std::lower_bound(owners.begin(), owners.end(), device);
  return found != owners.end() && *found == device ? found - owners.begin() : -1;
}

std::string text_of(at::ScalarType dtype, at::IntArrayRef sizes) {
  return fmt::format("{} [{}]", at::toString(dtype), fmt::join(sizes, ", "));
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

}  // namespace

std::string DeviceRuntime::name_of_peer(DeviceId peer) const {
  return fmt::format("message of device {} ({})", peer, context_.cluster.device_name(peer));
}

void DeviceRuntime::check(const Op& op, std::span<const DeviceId> participants,
                          const std::vector<Message>& in) {
  const auto self = std::lower_bound(participants.begin(), participants.end(), device());
  const Message& own = in[static_cast<std::size_t>(self - participants.begin())];
  for (std::size_t i = 0; i < participants.size(); ++i) {
    if (participants[i] == device()) continue;
    check_shape(name_of_peer(participants[i]), in[i], expected_from(op, participants[i], in[i], own));
    if (op.kind == OpKind::kDispatch && op.phase != Phase::kBackward)
      check_indices(op, participants[i], in[i]);
  }
}

MessageShape DeviceRuntime::expected_from(const Op& op, DeviceId peer, const Message& message,
                                          const Message& own) {
  switch (op.kind) {
    case OpKind::kDispatch:
      return op.phase == Phase::kBackward ? expected_rows_back(op, peer)
                                          : expected_dispatch(op, peer, message);
    case OpKind::kCombine:
      return expected_rows_back(op, peer);
    case OpKind::kMove:
      return expected_move(op, peer);
    case OpKind::kNorm:
      return expected_norm(peer, message);
    default: {  // balance, reduce: everybody sends the same
      MessageShape shape;
      const at::ScalarType theirs = scalar_type(grad_dtype_of(p_.plan(), peer));
      for (const at::Tensor& tensor : own.tensors) {
        shape.tensors.push_back(
            {op.kind == OpKind::kReduce ? theirs : tensor.scalar_type(), tensor.sizes().vec()});
      }
      return shape;
    }
  }
}

/// Of a source: its counts for all owners and, when this device is one, what the counts say.
MessageShape DeviceRuntime::expected_dispatch(const Op& op, DeviceId peer, const Message& message) {
  const ShareRow& sources = p_.shares(op.group, op.layer, op.microbatch);
  const std::vector<DeviceId>& owners = p_.owners(op.group, op.layer);
  const i64 source = source_index(sources, peer), me = owner_index(owners, device());
  if (source < 0) return {};
  MessageShape shape;
  shape.numbers = 1 + 2 * owners.size();
  const std::string where = name_of_peer(peer);
  check_count(where, "numbers", message.numbers.size(), shape.numbers);
  const auto [begin, end] =
      chunk_range(sources[at_(source)].sequences * p_.plan().seq_len, op.chunk, p_.plan().chunks);
  if (message.numbers[0] != end - begin)
    fail<TransportError>(where, "tokens: got {}, expected {}", message.numbers[0], end - begin);
  i64 copies = 0;
  for (std::size_t o = 0; o < owners.size(); ++o) {
    const i64 rows_to = message.numbers[1 + 2 * o], copies_to = message.numbers[2 + 2 * o];
    if (rows_to < 0 || rows_to > copies_to) {
      fail<TransportError>(where, "rows for device {}: got {}, expected 0 to {}, its copies", owners[o],
                           rows_to, copies_to);
    }
    copies += copies_to;
  }
  if (copies != (end - begin) * context_.model.top_k) {
    fail<TransportError>(where,
                         "copies for all devices: got {}, expected {} ({} tokens with {} experts each)",
                         copies, (end - begin) * context_.model.top_k, end - begin, context_.model.top_k);
  }
  if (me < 0) return shape;
  const i64 rows_here = message.numbers[1 + 2 * at_(me)], copies_here = message.numbers[2 + 2 * at_(me)];
  const at::ScalarType theirs = scalar_type(p_.plan().dtype[at_(peer)]);
  shape.tensors = {{scalar_type(p_.plan().wire_forward), {rows_here, context_.model.hidden}},
                   {accumulate_type(theirs), {copies_here}},
                   {at::kLong, {copies_here}},
                   {at::kLong, {copies_here}}};
  return shape;
}

/// combine and dispatch.B: rows by the counts that dispatch.F told. Owners answer sources; in combine.B it is
/// the reverse.
MessageShape DeviceRuntime::expected_rows_back(const Op& op, DeviceId peer) {
  const ShareRow& sources = p_.shares(op.group, op.layer, op.microbatch);
  const std::vector<DeviceId>& owners = p_.owners(op.group, op.layer);
  const bool to_owners = op.kind == OpKind::kCombine && op.phase == Phase::kBackward;
  const i64 source = source_index(sources, to_owners ? peer : device());
  const i64 owner = owner_index(owners, to_owners ? device() : peer);
  if (source < 0 || owner < 0) return {};
  const ExchangeLoad& load = slots_.chunk(op.layer, op.microbatch, op.chunk).load;
  const auto rows = static_cast<i64>(load.rows_between(at_(source), at_(owner)));
  const bool forward = op.kind == OpKind::kCombine && !to_owners;
  MessageShape shape;
  shape.tensors = {{scalar_type(forward ? p_.plan().wire_forward : p_.plan().wire_backward),
                    {rows, context_.model.hidden}}};
  if (op.kind == OpKind::kDispatch) {
    const auto copies = static_cast<i64>(load.copies_between(at_(source), at_(owner)));
    shape.tensors.push_back({accumulate_type(scalar_type(p_.plan().dtype[at_(peer)])), {copies}});
  }
  return shape;
}

/// The rows of the sequences that the peer had and this device gets.
MessageShape DeviceRuntime::expected_move(const Op& op, DeviceId peer) const {
  const bool forward = op.phase == Phase::kForward;
  const i32 mine = forward ? op.layer : op.layer - 1, theirs = forward ? op.layer - 1 : op.layer;
  const Range own = range(op.group, mine, op.microbatch);
  i64 begin = 0, shared = 0;
  for (const Share& share : p_.shares(op.group, theirs, op.microbatch)) {
    const i64 from = std::max(begin, own.begin),
              to = std::min(begin + share.sequences, own.begin + own.sequences);
    begin += share.sequences;
    if (share.device == peer) shared = std::max<i64>(0, to - from);
  }
  MessageShape shape;
  if (shared == 0) return shape;
  shape.tensors.push_back({scalar_type(forward ? p_.plan().wire_forward : p_.plan().wire_backward),
                           {shared * p_.plan().seq_len, context_.model.hidden}});
  return shape;
}

MessageShape DeviceRuntime::expected_norm(DeviceId peer, const Message& message) const {
  MessageShape shape;
  for (std::size_t s = 0; s < context_.schedule.states.size(); ++s) {
    if (!p_.trains(static_cast<i32>(s)) || context_.schedule.states[s].devices[0] != peer) continue;
    const std::size_t i = shape.numbers++;
    if (i < message.numbers.size() && message.numbers[i] != static_cast<i64>(s))
      fail<TransportError>(name_of_peer(peer), "state {}: got {}, expected {}", i, message.numbers[i], s);
  }
  shape.values = shape.numbers + 2;
  shape.tensors.push_back({at::kLong, counts_LE_.sizes().vec()});
  return shape;
}

/// Rows and experts of the copies: kernels read by them without looking.
void DeviceRuntime::check_indices(const Op& op, DeviceId peer, const Message& message) {
  if (message.tensors.empty()) return;
  const std::vector<i64>& slot_of = state_.slab(op.layer).slot_of;
  const i64 num_rows = message.tensors[0].size(0);
  const at::Tensor rows = message.tensors[2].contiguous(), experts = message.tensors[3].contiguous();
  for (i64 c = 0; c < rows.numel(); ++c) {
    const i64 row = rows.const_data_ptr<i64>()[c], expert = experts.const_data_ptr<i64>()[c];
    if (row < 0 || row >= num_rows) {
      fail<TransportError>(name_of_peer(peer), "row of copy {}: got {}, expected 0 to {}", c, row,
                           num_rows - 1);
    }
    if (expert < 0 || expert >= static_cast<i64>(slot_of.size()) || slot_of[at_(expert)] < 0)
      fail<TransportError>(name_of_peer(peer), "expert of copy {}: got {}, which is not here", c, expert);
  }
}

}  // namespace hetermoe
