#include "hetermoe/cost/cost_model.h"

#include <algorithm>

namespace hetermoe {

Seconds TransferCost::seconds() const {
  Seconds busiest = 0;
  for (const PortLoad& load : loads) busiest = std::max(busiest, load.seconds);
  return latency + busiest;
}

Bytes wire_bytes(const Op& op, const Plan& plan, i64 hidden, double rows, double copies) {
  const bool forward = op.phase != Phase::kBackward;
  const double per_copy = op.kind != OpKind::kDispatch ? 0 : forward ? 8 : 4;
  return rows * static_cast<double>(hidden) * bytes_of(forward ? plan.wire_forward : plan.wire_backward) +
         copies * per_copy;
}

WorkModel::WorkModel(const Placement& placement, const ModelConfig& model, const Cluster& cluster)
    : placement_(placement), model_(model), cluster_(cluster) {
  const ParamCounts counts = count_parameters(model);
  for (const State& state : placement.states()) {
    double params = 0;
    switch (state.part) {
      case State::Part::kEmbed:
        params = static_cast<double>(counts.embedding + (model.tie_embeddings ? counts.head : 0));
        break;
      case State::Part::kAttention:
        params = static_cast<double>(counts.attention_part[static_cast<std::size_t>(state.layer)]);
        break;
      case State::Part::kExperts:
        params = static_cast<double>(counts.expert) * static_cast<double>(state.experts.size());
        break;
      case State::Part::kHead:
        params = static_cast<double>(counts.head);
        break;
    }
    state_params_.push_back(params);
  }
}

namespace {

std::size_t position(std::span<const DeviceId> sorted, DeviceId device) {
  return static_cast<std::size_t>(std::lower_bound(sorted.begin(), sorted.end(), device) - sorted.begin());
}

}  // namespace

double WorkModel::merged_rows_per_token(const Op& op) const {
  const bool merges = op.kind == OpKind::kMerge || op.kind == OpKind::kHead ||
                      (op.kind == OpKind::kAttention && op.phase == Phase::kForward);
  const i32 layer = op.kind == OpKind::kHead ? placement_.num_layers() : op.layer;
  if (!merges || layer == 0 || !placement_.is_moe(layer - 1)) return 0;
  if (op.kind != OpKind::kMerge && placement_.moves_into(op.group, layer, op.microbatch)) return 0;
  const auto k = static_cast<double>(model_.top_k);
  // With row_dedup at most one row per owner returns; how many exactly hardly matters for a sum of rows.
  const auto owners = static_cast<double>(placement_.owners(op.group, layer - 1).size());
  return placement_.plan().row_dedup ? std::min(k, owners) : k;
}

ComputeWork WorkModel::compute_work(const Op& op, DeviceId device, const ExchangeLoad* load) const {
  ComputeWork work;
  work.op = op;
  work.device = device;
  work.seq_len = placement_.plan().seq_len;
  if (op.kind == OpKind::kUpdate) {
    work.params = state_params(op.state);
    return work;
  }
  work.frozen = frozen_part(op, device);
  if (op.kind == OpKind::kExperts) {
    HM_CHECK(load != nullptr, "experts need a routing load");
    const std::size_t owner = position(placement_.owners(op.group, op.layer), device);
    work.rows = load->rows_at(owner);
    work.copies = load->copies_at(owner);
    const auto& experts = placement_.plan()
                              .groups[static_cast<std::size_t>(op.group)]
                              .layers[static_cast<std::size_t>(op.layer)]
                              .experts;
    for (const std::vector<ExpertOwner>& owners : experts) {
      for (const ExpertOwner& o : owners) work.experts += o.device == device ? 1 : 0;
    }
    return work;
  }
  const i32 stage = op.kind == OpKind::kEmbed   ? -1
                    : op.kind == OpKind::kHead  ? placement_.num_layers()
                    : op.kind == OpKind::kMerge ? op.layer - 1
                                                : op.layer;
  work.sequences =
      static_cast<double>(sequences_of(placement_.shares(op.group, stage, op.microbatch), device));
  work.tokens = work.sequences * static_cast<double>(work.seq_len);
  work.trains = placement_.options().backward;
  work.merged_rows = work.tokens * merged_rows_per_token(op);
  return work;
}

double WorkModel::frozen_part(const Op& op, DeviceId device) const {
  const bool of_head = op.kind == OpKind::kHead;
  const bool of_layer = op.kind == OpKind::kAttention || op.kind == OpKind::kExperts;
  if (placement_.options().frozen.empty() || (!of_head && !of_layer)) return 0;
  const UnitPart part = of_layer ? (op.kind == OpKind::kExperts ? UnitPart::kExperts : UnitPart::kAttention)
                                 : (placement_.tied() ? UnitPart::kEmbed : UnitPart::kHead);
  double all = 0, frozen = 0;
  for (const i32 state : placement_.states_on(device, part, of_layer ? op.layer : -1)) {
    all += state_params(state);
    frozen += placement_.trains(state) ? 0 : state_params(state);
  }
  return all > 0 ? frozen / all : 0;
}

void WorkModel::add(std::vector<PortBytes>& bytes, std::span<const DeviceId> participants, DeviceId from,
                    DeviceId to, Bytes amount) const {
  if (from == to) return;
  PortBytes& out = bytes[position(participants, from)];
  PortBytes& in = bytes[position(participants, to)];
  const auto node_of = [&](DeviceId d) { return cluster_.devices[static_cast<std::size_t>(d)].node; };
  const bool local = node_of(from) == node_of(to);
  (local ? out.local_out : out.net_out) += amount;
  (local ? in.local_in : in.net_in) += amount;
}

std::vector<PortBytes> WorkModel::port_bytes(const Op& op, std::span<const DeviceId> participants,
                                             const ExchangeLoad* load) const {
  switch (op.kind) {
    case OpKind::kDispatch:
    case OpKind::kCombine:
      HM_CHECK(load != nullptr, "{} needs a routing load", to_string(op));
      return exchange_bytes(op, participants, *load);
    case OpKind::kMove:
      return move_bytes(op, participants);
    case OpKind::kReduce: {
      // Reduce-scatter and all-gather: each of P devices sends and receives 2 (P-1)/P of the state, 1/P to
      // each peer, twice.
      const double parts = static_cast<double>(participants.size());
      const Bytes gradient = bytes_of(grad_dtype_of(placement_.plan(), participants[0]));
      return all_to_all_bytes(participants, 2 * gradient * state_params(op.state) / parts);
    }
    case OpKind::kBalance:
      return all_to_all_bytes(participants, 8 * static_cast<double>(model_.num_experts));
    default:
      return all_to_all_bytes(participants, 16);  // norm: two numbers to everybody
  }
}

std::vector<PortBytes> WorkModel::exchange_bytes(const Op& op, std::span<const DeviceId> participants,
                                                 const ExchangeLoad& load) const {
  std::vector<PortBytes> bytes(participants.size());
  const ShareRow& sources = placement_.shares(op.group, op.layer, op.microbatch);
  const std::vector<DeviceId>& owners = placement_.owners(op.group, op.layer);
  const Plan& plan = placement_.plan();
  // Rows go from sources to owners in dispatch.F and combine.B, back in the other two.
  const bool to_expert = (op.kind == OpKind::kDispatch) == (op.phase != Phase::kBackward);
  if (!load.is_product()) {
    for (std::size_t s = 0; s < sources.size(); ++s) {
      for (std::size_t o = 0; o < owners.size(); ++o) {
        const Bytes amount =
            wire_bytes(op, plan, model_.hidden, load.rows_between(s, o), load.copies_between(s, o));
        const DeviceId source = sources[s].device;
        if (to_expert)
          add(bytes, participants, source, owners[o], amount);
        else
          add(bytes, participants, owners[o], source, amount);
      }
    }
    return bytes;
  }
  // Product form: sums per node replace the matrix, so that a thousand devices cost a thousand steps, not a
  // million.
  const std::size_t num_nodes = cluster_.nodes.size();
  std::vector<double> node_tokens(num_nodes, 0);
  std::vector<Bytes> node_bytes(num_nodes, 0), owner_bytes(owners.size());
  double all_tokens = 0;
  Bytes all_bytes = 0;
  const auto node_of = [&](DeviceId d) {
    return static_cast<std::size_t>(cluster_.devices[static_cast<std::size_t>(d)].node);
  };
  for (std::size_t s = 0; s < sources.size(); ++s) {
    node_tokens[node_of(sources[s].device)] += load.tokens[s];
    all_tokens += load.tokens[s];
  }
  for (std::size_t o = 0; o < owners.size(); ++o) {
    owner_bytes[o] = wire_bytes(op, plan, model_.hidden, load.rows_per_token[o], load.copies_per_token[o]);
    node_bytes[node_of(owners[o])] += owner_bytes[o];
    all_bytes += owner_bytes[o];
  }
  for (std::size_t s = 0; s < sources.size(); ++s) {
    const DeviceId device = sources[s].device;
    const std::size_t at = position(owners, device);
    const Bytes own = at < owners.size() && owners[at] == device ? owner_bytes[at] : 0;
    const Bytes local = load.tokens[s] * (node_bytes[node_of(device)] - own);
    const Bytes net = load.tokens[s] * (all_bytes - node_bytes[node_of(device)]);
    PortBytes& mine = bytes[position(participants, device)];
    (to_expert ? mine.local_out : mine.local_in) += local;
    (to_expert ? mine.net_out : mine.net_in) += net;
  }
  for (std::size_t o = 0; o < owners.size(); ++o) {
    const std::size_t node = node_of(owners[o]);
    double own_tokens = 0;
    for (std::size_t s = 0;
         s < sources.size() && placement_.is_source(op.group, op.layer, op.microbatch, owners[o]); ++s) {
      if (sources[s].device == owners[o]) own_tokens = load.tokens[s];
    }
    PortBytes& mine = bytes[position(participants, owners[o])];
    const Bytes local = owner_bytes[o] * (node_tokens[node] - own_tokens);
    const Bytes net = owner_bytes[o] * (all_tokens - node_tokens[node]);
    (to_expert ? mine.local_in : mine.local_out) += local;
    (to_expert ? mine.net_in : mine.net_out) += net;
  }
  return bytes;
}

std::vector<PortBytes> WorkModel::move_bytes(const Op& op, std::span<const DeviceId> participants) const {
  std::vector<PortBytes> bytes(participants.size());
  const ShareRow& before = placement_.shares(op.group, op.layer - 1, op.microbatch);
  const ShareRow& after = placement_.shares(op.group, op.layer, op.microbatch);
  const Plan& plan = placement_.plan();
  const bool forward = op.phase == Phase::kForward;
  const double per_sequence = static_cast<double>(plan.seq_len * model_.hidden) *
                              bytes_of(forward ? plan.wire_forward : plan.wire_backward);
  i64 begin = 0;
  for (const Share& from : before) {
    i64 other = 0;
    for (const Share& to : after) {
      const i64 overlap = std::min(begin + from.sequences, other + to.sequences) - std::max(begin, other);
      other += to.sequences;
      if (overlap <= 0) continue;
      const Bytes amount = static_cast<double>(overlap) * per_sequence;
      if (forward)
        add(bytes, participants, from.device, to.device, amount);
      else
        add(bytes, participants, to.device, from.device, amount);
    }
    begin += from.sequences;
  }
  return bytes;
}

std::vector<PortBytes> WorkModel::all_to_all_bytes(std::span<const DeviceId> participants, Bytes each) const {
  std::vector<PortBytes> bytes(participants.size());
  std::vector<double> on_node(cluster_.nodes.size(), 0);
  const auto node_of = [&](DeviceId d) {
    return static_cast<std::size_t>(cluster_.devices[static_cast<std::size_t>(d)].node);
  };
  for (const DeviceId device : participants) on_node[node_of(device)] += 1;
  const double all = static_cast<double>(participants.size());
  for (std::size_t i = 0; i < participants.size(); ++i) {
    const double mates = on_node[node_of(participants[i])];
    bytes[i] = {each * (all - mates), each * (all - mates), each * (mates - 1), each * (mates - 1)};
  }
  return bytes;
}

}  // namespace hetermoe
