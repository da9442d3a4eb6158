#include "hetermoe/cost/cost_model.h"

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/schedule/two_level.h"

namespace hetermoe {

i32 num_ports(const Cluster& cluster) {
  return 5 * static_cast<i32>(cluster.nodes.size()) + 4 * cluster.num_devices();
}

Seconds TransferCost::seconds() const {
  Seconds busiest = 0;
  for (const PortLoad& load : loads) busiest = std::max(busiest, load.seconds);
  return latency + busiest;
}

Bytes wire_bytes(const Op& op, const Plan& plan, i64 hidden, double rows, double copies) {
  const bool forward = op.phase != Phase::kBackward;
  const double per_copy = op.kind != OpKind::kDispatch ? 0 : forward ? 12 : 4;
  return rows * real(hidden) * bytes_of(forward ? plan.wire_forward : plan.wire_backward) + copies * per_copy;
}

Bytes received_rows_bytes(const ModelConfig& model, double rows, double copies, Bytes element) {
  constexpr Bytes kOfCopy = 2 * 8 + 4;  // its row, its place in the message; its routing weight
  return rows * row_bytes(model, element) + copies * kOfCopy;
}

WorkModel::WorkModel(const Placement& placement, const ModelConfig& model, const Cluster& cluster)
    : placement_(placement), model_(model), cluster_(cluster) {
  const ParamCounts counts = count_parameters(model);
  expert_params_ = real(counts.expert);
  for (const State& state : placement.states()) {
    double params = 0;
    switch (state.part) {
      case State::Part::kEmbed:
        params = real(counts.embedding + (model.tie_embeddings ? counts.head : 0));
        break;
      case State::Part::kAttention:
        params = real(counts.attention_part[idx(state.layer)]);
        break;
      case State::Part::kExperts:
        params = real(counts.expert) * real(state.experts.size());
        break;
      case State::Part::kHead:
        params = real(counts.head);
        break;
    }
    state_params_.push_back(params);
  }
}

double WorkModel::adapter_params(i32 state) const {
  const State& s = placement_.states()[idx(state)];
  const Lora* lora = placement_.options().lora.get();
  if (lora == nullptr || s.part == UnitPart::kEmbed || s.part == UnitPart::kHead) return 0;
  Unit unit{.layer = s.layer, .part = s.part};
  if (s.experts.empty()) return real(lora->numbers_of(unit));
  unit.expert = s.experts[0];  // those of a layer have alike
  return real(lora->numbers_of(unit)) * real(s.experts.size());
}

double WorkModel::merged_rows_per_token(const Op& op) const {
  const bool merges = op.kind == OpKind::kMerge || op.kind == OpKind::kHead ||
                      (op.kind == OpKind::kAttention && op.phase == Phase::kForward);
  const i32 layer = op.kind == OpKind::kHead ? placement_.num_layers() : op.layer;
  if (!merges || layer == 0 || !placement_.is_moe(layer - 1)) return 0;
  if (op.kind != OpKind::kMerge && placement_.moves_into(op.group, layer, op.microbatch)) return 0;
  const auto k = real(model_.top_k);
  // With row_dedup at most one row per owner returns; how many exactly hardly matters for a sum of rows.
  const auto owners = real(placement_.num_owners(op.group, layer - 1));
  return placement_.plan().row_dedup ? std::min(k, owners) : k;
}

ComputeWork WorkModel::compute_work(const Op& op, DeviceId device, const ExchangeLoad* load) const {
  ComputeWork work;
  work.op = op;
  work.device = device;
  work.seq_len = placement_.plan().seq_len;
  if (op.kind == OpKind::kUpdate) {
    work.params = trained_params(op.state) / optimizer_parts(op.state);
    return work;
  }
  if (op.kind == OpKind::kPublish || op.kind == OpKind::kTake) {
    work.copied = copied_bytes(op, device);
    return work;
  }
  work.frozen = frozen_part(op, device);
  if (op.kind == OpKind::kExperts) {
    HM_CHECK(load != nullptr, "experts need a routing load");
    const std::size_t owner = position(placement_.owners(op), device);
    work.rows = load->rows_at(owner);
    work.copies = load->copies_at(owner);
    if (!load->instances.empty()) {
      work.experts = load->instances[owner];
      return work;
    }
    for (const i32 state : placement_.states_on(device, UnitPart::kExperts, op.layer))
      work.experts += real(placement_.states()[idx(state)].experts.size());
    return work;
  }
  const i32 stage = stage_of(op, placement_.num_layers());
  work.sequences = real(sequences_of(placement_.shares(op.group, stage, op.microbatch, op.phase), device));
  work.tokens = work.sequences * real(work.seq_len);
  work.trains = placement_.options().backward;
  work.merged_rows = work.tokens * merged_rows_per_token(op);
  return work;
}

double WorkModel::optimizer_parts(i32 state) const {
  const State& s = placement_.states()[idx(state)];
  return s.sharded ? real(s.devices.size()) : 1;
}

Bytes WorkModel::gradient_part(i32 state) const {
  const std::vector<DeviceId>& devices = placement_.states()[idx(state)].devices;
  return bytes_of(grad_dtype_of(placement_.plan(), devices[0])) * trained_params(state) /
         real(placement_.states()[idx(state)].reducers().size());
}

Bytes WorkModel::gathered_part(i32 state) const {
  const std::vector<DeviceId>& devices = placement_.states()[idx(state)].devices;
  return bytes_of(placement_.plan().dtype[idx(devices[0])]) * trained_params(state) / real(devices.size());
}

double WorkModel::frozen_part(const Op& op, DeviceId device) const {
  const bool of_head = op.kind == OpKind::kHead;
  const bool of_layer = op.kind == OpKind::kAttention || op.kind == OpKind::kExperts;
  if (placement_.options().frozen.empty() || (!of_head && !of_layer)) return 0;
  const UnitPart part = of_layer ? (op.kind == OpKind::kExperts ? UnitPart::kExperts : UnitPart::kAttention)
                                 : (placement_.tied() ? UnitPart::kEmbed : UnitPart::kHead);
  // Of matrices with adapters there are no gradients but in experts, where they lead to those of the
  // adapters.
  const bool low_rank = placement_.options().lora != nullptr && part != UnitPart::kExperts;
  double all = 0, frozen = 0;
  for (const i32 state : placement_.states_on(device, part, of_layer ? op.layer : -1)) {
    all += state_params(state);
    frozen += placement_.trains(state) && !low_rank ? 0 : state_params(state);
  }
  return all > 0 ? frozen / all : 0;
}

void WorkModel::add(std::vector<PortBytes>& bytes, std::span<const DeviceId> participants, DeviceId from,
                    DeviceId to, Bytes amount) const {
  if (from == to) return;
  PortBytes& out = bytes[position(participants, from)];
  PortBytes& in = bytes[position(participants, to)];
  const bool local = node_of(from) == node_of(to);
  (local ? out.local_out : out.net_out) += amount;
  (local ? in.local_in : in.net_in) += amount;
}

std::vector<PortBytes> WorkModel::port_bytes(const Op& op, std::span<const DeviceId> participants,
                                             const ExchangeLoad* load) const {
  switch (transfer_kind(op.kind)) {
    case TransferKind::kDispatch:
    case TransferKind::kCombine:
      HM_CHECK(load != nullptr, "{} needs a routing load", to_string(op));
      return exchange_bytes(op, participants, *load);
    case TransferKind::kMove:
      return move_bytes(op, participants);
    case TransferKind::kReduce:
      return state_bytes(participants, gradient_part(op.state), true, true);
    case TransferKind::kReduceScatter:
      return state_bytes(participants, gradient_part(op.state), true, false);
    case TransferKind::kAllGather:
      return state_bytes(participants, gathered_part(op.state), false, true);
    case TransferKind::kBalance:
      return all_to_all_bytes(participants, 8 * real(model_.num_experts));
    case TransferKind::kNorm:
      return all_to_all_bytes(participants, 16);  // two numbers to everybody
    case TransferKind::kFetch:
    case TransferKind::kStore:
      return host_bytes(op, participants, load);
    case TransferKind::kTally:
      return tally_bytes(op, participants);
    case TransferKind::kLend:
    case TransferKind::kSettle:
      HM_CHECK(load != nullptr, "{} needs a routing load", to_string(op));
      return guest_bytes(op, participants, *load);
    case TransferKind::kMigrate:
      break;  // priced by its moves
  }
  HM_CHECK(false, "{} has no bytes", to_string(op));
  return {};
}

namespace {

/// The same exchange from those who receive to those who send.
std::vector<PortBytes> reversed(std::vector<PortBytes> bytes) {
  for (PortBytes& b : bytes) {
    std::swap(b.net_out, b.net_in);
    std::swap(b.local_out, b.local_in);
  }
  return bytes;
}

/// A token's chosen experts with their weights, for a device that computes in so many bytes.
Bytes choice_bytes(const ModelConfig& model, Bytes element) {
  return real(model.top_k) * (8 + std::max(4.0, element));
}

}  // namespace

Bytes WorkModel::host_copy_bytes(const Op& op, const ExchangeLoad* load) const {
  const Plan& plan = placement_.plan();
  if (is_saved_copy(op)) {
    const Bytes element = bytes_of(plan.dtype[idx(op.device)]);
    if (op.chunk == 0) {
      const i64 sequences =
          sequences_of(placement_.shares(op.group, op.layer, op.microbatch), placement_.maker_of(op));
      const bool routes = model_.is_moe(op.layer) && placement_.roams(op.group, op.layer, op.microbatch);
      return real(sequences * plan.seq_len) *
             (row_bytes(model_, element) + (routes ? choice_bytes(model_, element) : 0));
    }
    HM_CHECK(load != nullptr, "{} needs a routing load", to_string(op));
    const std::size_t owner = position(placement_.owners(op.group, op.layer), op.device);
    return received_rows_bytes(model_, load->rows_at(owner), load->copies_at(owner), element);
  }
  const Dtype dtype = op.kind == OpKind::kFetch ? plan.dtype[idx(op.device)] : grad_dtype_of(plan, op.device);
  return state_params(op.state) * bytes_of(dtype);
}

/// Weights are read and written; gradients too, and those that were copied are cleared.
Bytes WorkModel::copied_bytes(const Op& op, PlaceId host) const {
  const DeviceId device = placement_.first_device(host);
  const Plan& plan = placement_.plan();
  const double each = op.kind == OpKind::kPublish ? 2.0 * bytes_of(plan.dtype[idx(device)])
                                                  : 3.0 * bytes_of(grad_dtype_of(plan, device));
  return state_params(op.state) * each;
}

std::vector<PortBytes> WorkModel::host_bytes(const Op& op, std::span<const PlaceId> participants,
                                             const ExchangeLoad* load) const {
  std::vector<PortBytes> bytes(participants.size());
  const bool fetches = op.kind == OpKind::kFetch;
  for (std::size_t i = 0; i < participants.size(); ++i) {
    const bool receives = (participants[i] == op.device) == fetches;
    (receives ? bytes[i].host_in : bytes[i].host_out) = host_copy_bytes(op, load);
  }
  return bytes;
}

std::size_t WorkModel::node_of(PlaceId place) const { return idx(cluster_.node_of(place)); }

/// Rows go from sources to owners in dispatch.F and combine.B, back in the other two.
std::vector<PortBytes> WorkModel::exchange_bytes(const Op& op, std::span<const DeviceId> participants,
                                                 const ExchangeLoad& load) const {
  const bool to_owners = (op.kind == OpKind::kDispatch) == (op.phase != Phase::kBackward);
  if (!load.is_product()) return pairwise_bytes(op, participants, load, to_owners);
  std::vector<PortBytes> bytes = product_bytes(op, participants, load);
  return to_owners ? bytes : reversed(std::move(bytes));
}

std::vector<PortBytes> WorkModel::pairwise_bytes(const Op& op, std::span<const DeviceId> participants,
                                                 const ExchangeLoad& load, bool to_owners) const {
  std::vector<PortBytes> bytes(participants.size());
  const ShareRow& sources = placement_.shares(op);
  const std::vector<DeviceId>& owners = placement_.owners(op);
  for (std::size_t s = 0; s < sources.size(); ++s) {
    for (std::size_t o = 0; o < owners.size(); ++o) {
      const Bytes amount = wire_bytes(op, placement_.plan(), model_.hidden, load.rows_between(s, o),
                                      load.copies_between(s, o));
      const DeviceId source = sources[s].device;
      if (to_owners)
        add(bytes, participants, source, owners[o], amount);
      else
        add(bytes, participants, owners[o], source, amount);
    }
  }
  return bytes;
}

/// From sources to owners. Sums per node replace the matrix, so that a thousand devices cost a thousand
/// steps, not a million.
std::vector<PortBytes> WorkModel::product_bytes(const Op& op, std::span<const DeviceId> participants,
                                                const ExchangeLoad& load) const {
  std::vector<PortBytes> bytes(participants.size());
  const ShareRow& sources = placement_.shares(op);
  const std::vector<DeviceId>& owners = placement_.owners(op);
  std::vector<double> node_tokens(cluster_.nodes.size(), 0);
  std::vector<Bytes> node_bytes(cluster_.nodes.size(), 0), owner_bytes(owners.size());
  std::vector<double> own_tokens(owners.size(), 0);  // of an owner that is a source, too
  double all_tokens = 0;
  Bytes all_bytes = 0;
  for (std::size_t o = 0; o < owners.size(); ++o) {
    owner_bytes[o] =
        wire_bytes(op, placement_.plan(), model_.hidden, load.rows_per_token[o], load.copies_per_token[o]);
    node_bytes[node_of(owners[o])] += owner_bytes[o];
    all_bytes += owner_bytes[o];
  }
  for (std::size_t s = 0; s < sources.size(); ++s) {
    const std::size_t node = node_of(sources[s].device);
    node_tokens[node] += load.tokens[s];
    all_tokens += load.tokens[s];
  }
  for (std::size_t s = 0; s < sources.size(); ++s) {
    const DeviceId device = sources[s].device;
    const std::size_t at = position(owners, device), node = node_of(device);
    const bool owns = at < owners.size() && owners[at] == device;
    if (owns) own_tokens[at] = load.tokens[s];
    PortBytes& mine = bytes[position(participants, device)];
    mine.local_out += load.tokens[s] * (node_bytes[node] - (owns ? owner_bytes[at] : 0));
    mine.net_out += load.tokens[s] * (all_bytes - node_bytes[node]);
  }
  for (std::size_t o = 0; o < owners.size(); ++o) {
    const std::size_t node = node_of(owners[o]);
    PortBytes& mine = bytes[position(participants, owners[o])];
    mine.local_in += owner_bytes[o] * (node_tokens[node] - own_tokens[o]);
    mine.net_in += owner_bytes[o] * (all_tokens - node_tokens[node]);
  }
  return bytes;
}

/// Bytes of a token. What backward starts from travels as the devices have it: the row, expert ids (8 bytes
/// each) and routing weights (in fp32 or wider).
Bytes WorkModel::moved_token(const Op& op) const {
  const Plan& plan = placement_.plan();
  const auto hidden = real(model_.hidden);
  if (op.phase == Phase::kForward) return hidden * bytes_of(plan.wire_forward);
  if (op.phase == Phase::kBackward) return hidden * bytes_of(plan.wire_backward);
  const double element = bytes_of(plan.dtype[idx(placement_.move_rows(op).from[0].device)]);
  return hidden * element + (placement_.is_moe(op.layer) ? choice_bytes(model_, element) : 0);
}

std::vector<PortBytes> WorkModel::move_bytes(const Op& op, std::span<const DeviceId> participants) const {
  std::vector<PortBytes> bytes(participants.size());
  const Plan& plan = placement_.plan();
  const auto [senders, receivers] = placement_.move_rows(op);
  const Bytes per_sequence = real(plan.seq_len) * moved_token(op);
  i64 begin = 0;
  for (const Share& from : senders) {
    i64 other = 0;
    for (const Share& to : receivers) {
      const i64 overlap = std::min(begin + from.sequences, other + to.sequences) - std::max(begin, other);
      other += to.sequences;
      if (overlap > 0) add(bytes, participants, from.device, to.device, real(overlap) * per_sequence);
    }
    begin += from.sequences;
  }
  return bytes;
}

/// Four bytes for each expert and chunk, from each source to all others.
std::vector<PortBytes> WorkModel::tally_bytes(const Op& op, std::span<const DeviceId> participants) const {
  std::vector<PortBytes> bytes(participants.size());
  const Bytes each = 4 * real(model_.num_experts * placement_.plan().chunks);
  for (const Share& source : placement_.shares(op)) {
    for (const DeviceId to : participants) add(bytes, participants, source.device, to, each);
  }
  return bytes;
}

/// Weights come in the dtype of the device to which they are lent, gradients go in that in which it sums
/// them.
std::vector<PortBytes> WorkModel::guest_bytes(const Op& op, std::span<const DeviceId> participants,
                                              const ExchangeLoad& load) const {
  std::vector<PortBytes> bytes(participants.size());
  const std::vector<DeviceId>& owners = placement_.owners(op.group, op.layer);
  for (const Guest& guest : load.guests) {
    const DeviceId home = owners[idx(guest.from)], host = owners[idx(guest.to)];
    if (op.kind == OpKind::kLend)
      add(bytes, participants, home, host, expert_params_ * bytes_of(placement_.plan().dtype[idx(host)]));
    else if (settles(op, guest))
      add(bytes, participants, host, home, expert_params_ * bytes_of(grad_dtype_of(placement_.plan(), host)));
  }
  return bytes;
}

std::vector<PortBytes> WorkModel::all_to_all_bytes(std::span<const DeviceId> participants, Bytes each) const {
  std::vector<PortBytes> bytes(participants.size());
  std::vector<double> on_node(cluster_.nodes.size(), 0);
  for (const DeviceId device : participants) on_node[node_of(device)] += 1;
  const double all = real(participants.size());
  for (std::size_t i = 0; i < participants.size(); ++i) {
    const double mates = on_node[node_of(participants[i])];
    bytes[i] = {each * (all - mates), each * (all - mates), each * (mates - 1), each * (mates - 1)};
  }
  return bytes;
}

/// Of a state whose parts are so large. All at once: each of P devices sends a part to each of the others to
/// sum, and to tell. In two levels, with D parts for which a device stands: in its node it gets these from
/// each of the others and sends all others; between the nodes it sends all of them but its own. Telling is
/// the reverse.
std::vector<PortBytes> WorkModel::state_bytes(std::span<const PlaceId> participants, Bytes part, bool sums,
                                              bool tells) const {
  if (!pays_two_levels(cluster_, participants))
    return all_to_all_bytes(participants, (sums && tells ? 2 : 1) * part);
  const TwoLevel levels(cluster_, participants);
  const std::vector<i64> num_parts = levels.num_parts();
  const double all = real(participants.size()), others = real(levels.num_nodes()) - 1;
  std::vector<PortBytes> inside(participants.size()), between = inside;
  for (std::size_t i = 0; i < participants.size(); ++i) {
    const double mates = real(levels.mates(i).size()) - 1, stands_for = real(num_parts[i]);
    inside[i].local_out = mates > 0 ? (all - stands_for) * part : 0;
    inside[i].local_in = mates * stands_for * part;
    between[i].net_out = (stands_for - 1) * part;
    between[i].net_in = others * part;
  }
  std::vector<PortBytes> bytes;
  const auto append = [&bytes](const std::vector<PortBytes>& exchange) {
    bytes.insert(bytes.end(), exchange.begin(), exchange.end());
  };
  if (sums) append(inside), append(between);
  if (tells) append(reversed(between)), append(reversed(inside));
  return bytes;
}

}  // namespace hetermoe
