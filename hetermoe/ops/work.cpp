#include "hetermoe/ops/work.h"

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/placement/placement.h"

namespace hetermoe {

Wire wire_of(const Op& op, const Plan& plan) {
  const Wire wire = op.phase == Phase::kBackward ? plan.wire_backward : plan.wire_forward;
  return needs_load(op.kind) ? wire : without_scales(wire);
}

namespace {

Bytes bytes_of_copy(const Op& op) {
  if (!row_of(op.kind).carries_routing_weights) return 0;
  return op.phase != Phase::kBackward ? 12 : 4;
}

}  // namespace

Bytes wire_bytes(const Op& op, const Plan& plan, i64 hidden, double rows, double copies) {
  return rows * row_bytes(wire_of(op, plan), real(hidden)) + copies * bytes_of_copy(op);
}

Bytes message_bytes(const Op& op, const Plan& plan, i64 hidden, double rows, double copies) {
  return rows_bytes(wire_of(op, plan), rows, real(hidden)) + copies * bytes_of_copy(op);
}

Bytes received_rows_bytes(const ModelConfig& model, double rows, double copies, Bytes element) {
  constexpr Bytes kOfCopy = 2 * 8 + 4;  // its row, its place in the message; its routing weight
  return rows * row_bytes(model, element) + copies * kOfCopy;
}

Bytes choice_bytes(const ModelConfig& model, Bytes element) {
  return real(model.top_k) * (8 + std::max(4.0, element));
}

Bytes owners_bytes(const ModelConfig& model) { return real(model.top_k) * 4; }

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

double WorkModel::trained_params(i32 state) const {
  return placement_.options().lora == nullptr ? state_params(state) : adapter_params(state);
}

bool WorkModel::settles(const Op& op, const Guest& guest) const {
  return placement_.states().trains(op.layer, guest.expert);
}

double WorkModel::merged_rows_per_token(const Op& op, i32 layer) const {
  if (layer == 0 || !placement_.is_moe(layer - 1)) return 0;
  const auto k = real(model_.top_k);
  // With row_dedup at most one row per owner returns; how many exactly hardly matters for a sum of rows.
  const auto owners = real(placement_.num_owners(op.group, layer - 1));
  return placement_.plan().row_dedup ? std::min(k, owners) : k;
}

ComputeWork WorkModel::compute_work(const Op& op, DeviceId device, const ExchangeLoad* load) const {
  const OpRow& row = row_of(op.kind);
  HM_CHECK(row.work != nullptr, "{} computes nothing", to_string(op));
  ComputeWork work;
  work.op = op;
  work.device = device;
  work.seq_len = placement_.plan().seq_len;
  row.work(*this, load, work);
  return work;
}

void WorkModel::add_tokens(ComputeWork& work, std::optional<i32> merges_into) const {
  const Op& op = work.op;
  const i32 stage = stage_of(op, placement_.num_layers());
  const TokenRanges ranges = placement_.ranges(op.group, stage, op.microbatch, op.phase);
  work.tokens = real(ranges.of(work.device).tokens());
  work.trains = placement_.options().backward;
  work.merged_rows = merges_into ? work.tokens * merged_rows_per_token(op, *merges_into) : 0;
}

double WorkModel::frozen_part(DeviceId device, const UsedPart& part) const {
  if (placement_.options().frozen.empty()) return 0;
  // Of matrices with adapters there are no gradients but in experts, where they lead to those of the
  // adapters.
  const bool low_rank = placement_.options().lora != nullptr && part.part != UnitPart::kExperts;
  double all = 0, frozen = 0;
  for (const i32 state : placement_.states().on(device, part.part, part.layer)) {
    all += state_params(state);
    frozen += placement_.states().trains(state) && !low_rank ? 0 : state_params(state);
  }
  return all > 0 ? frozen / all : 0;
}

std::vector<PortBytes> WorkModel::port_bytes(const Op& op, std::span<const PlaceId> participants,
                                             const ExchangeLoad* load) const {
  const OpRow& row = row_of(op.kind);
  HM_CHECK(row.bytes != nullptr, "{} has no bytes", to_string(op));
  HM_CHECK(load != nullptr || load_chunk(op) < 0, "{} needs a routing load", to_string(op));
  return row.bytes(*this, op, participants, load);
}

double WorkModel::optimizer_parts(i32 state) const {
  const State& s = placement_.states()[idx(state)];
  return s.sharded ? real(s.devices.size()) : 1;
}

Bytes WorkModel::part_of_gradients(i32 state, Dtype dtype) const {
  return bytes_of(dtype) * trained_params(state) / real(placement_.states()[idx(state)].reducers().size());
}

Bytes WorkModel::sent_part(i32 state) const {
  const DeviceId device = placement_.states()[idx(state)].devices[0];
  return part_of_gradients(state, reduce_dtype_of(placement_.plan(), device));
}

Bytes WorkModel::gradient_part(i32 state) const {
  const DeviceId device = placement_.states()[idx(state)].devices[0];
  return part_of_gradients(state, grad_dtype_of(placement_.plan(), device));
}

Bytes WorkModel::gathered_part(i32 state) const {
  const std::vector<DeviceId>& devices = placement_.states()[idx(state)].devices;
  return bytes_of(placement_.plan().dtype[idx(devices[0])]) * trained_params(state) / real(devices.size());
}

void WorkModel::add(std::vector<PortBytes>& bytes, std::span<const DeviceId> participants, DeviceId from,
                    DeviceId to, Bytes amount) const {
  if (from == to) return;
  PortBytes& out = bytes[position(participants, from)];
  PortBytes& in = bytes[position(participants, to)];
  add_sent(out, in, amount, node_of(from) == node_of(to));
}

Bytes WorkModel::host_copy_bytes(const Op& op, const ExchangeLoad* load) const {
  const Plan& plan = placement_.plan();
  if (is_saved_copy(op)) {
    const Bytes element = bytes_of(plan.dtype[idx(op.device)]);
    if (op.chunk == 0) {
      const TokenRange made =
          placement_.ranges(op.group, op.layer, op.microbatch).of(maker_of(op, placement_));
      const bool routes = model_.is_moe(op.layer) && placement_.roams(op.group, op.layer, op.microbatch);
      return real(made.tokens()) *
             (row_bytes(model_, element) + (routes ? choice_bytes(model_, element) : 0));
    }
    HM_CHECK(load != nullptr, "{} needs a routing load", to_string(op));
    const std::size_t owner = position(placement_.owners(op.group, op.layer), op.device);
    return received_rows_bytes(model_, load->rows_at(owner), load->copies_at(owner), element);
  }
  const bool weights = !row_of(op.kind).carries_gradients;
  const Dtype dtype = weights ? plan.dtype[idx(op.device)] : grad_dtype_of(plan, op.device);
  return state_params(op.state) * bytes_of(dtype);
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

}  // namespace hetermoe
