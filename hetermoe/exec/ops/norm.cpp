#include <algorithm>
#include <cmath>
#include <numeric>

#include "hetermoe/device/host_copy.h"
#include "hetermoe/exec/ops/op_functions.h"

// norm: what every device must know of the whole step before it updates.
namespace hetermoe {
namespace {

/// A part of a trained state, of which a place tells the squares.
struct ToldPart {
  i64 state = 0;
  std::size_t part = 0;  ///< of as many as the state has devices
};

/// A device tells the squares of its own part, a host those of the parts of its devices. So the norm has the
/// same bits wherever the optimizer is.
std::vector<ToldPart> parts_told_by(const OpContext& d, PlaceId place) {
  std::vector<ToldPart> told;
  for (const i32 state : d.p.states().on(place)) {
    if (!d.p.states().tells_squares(state, place)) continue;
    const std::vector<DeviceId>& holders = d.schedule.states[idx(state)].devices;
    for (std::size_t i = 0; i < holders.size(); ++i) {
      const bool is_own = place < d.p.num_devices() ? holders[i] == place : d.p.host_of(holders[i]) == place;
      if (is_own) told.push_back({state, i});
    }
  }
  return told;
}

at::Tensor squares_of(OpContext& d, const ToldPart& told) {
  const std::vector<DeviceId>& holders = d.schedule.states[idx(told.state)].devices;
  const StateTensors& state = d.state.tensors(static_cast<i32>(told.state));
  const std::vector<at::Tensor>& grads = state.summed();
  if (holders.size() == 1) return squared_norm(grads);
  std::vector<at::Tensor> parts =
      state.kept.empty() ? parts_of(grads, told.part, holders.size()) : state.own_grads();
  std::erase_if(parts, [](const at::Tensor& part) { return part.numel() == 0; });
  return parts.empty() ? at::zeros({}, grads[0].options().dtype(at::kDouble)) : squared_norm(parts);
}

void append_defined(const at::Tensor& value, std::vector<at::Tensor>& all) {
  if (value.defined()) all.push_back(value);
}

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

/// The values of each list of 0-dim tensors and, last, what this device dropped and its counts: all in one
/// copy to the host, which waits once. Counts are exact in fp64 below 2^53.
std::vector<std::vector<double>> values_of(const std::vector<std::vector<at::Tensor>>& lists,
                                           const OpContext& d) {
  std::vector<at::Tensor> all;
  for (const std::vector<at::Tensor>& list : lists) {
    for (const at::Tensor& value : list) all.push_back(value.to(at::kDouble).view({1}));
  }
  const i64 num_dropped = d.dropped_L.defined() ? d.p.num_layers() : 0;
  if (num_dropped > 0) all.push_back(d.dropped_L.to(at::kDouble));
  all.push_back(d.counts_LE.to(at::kDouble).view({-1}));
  const at::Tensor host = to_host(at::cat(all), "numbers of the step");
  const double* next = host.const_data_ptr<double>();
  std::vector<std::vector<double>> values;
  for (const std::vector<at::Tensor>& list : lists) {
    values.emplace_back(next, next + list.size());
    next += list.size();
  }
  values.emplace_back(next, next + num_dropped);
  values.emplace_back(next + num_dropped, host.const_data_ptr<double>() + host.numel());
  return values;
}

/// Zeros where nothing was counted.
at::Tensor counts_on_host(at::IntArrayRef sizes, const std::vector<double>& counts) {
  at::Tensor out = at::empty(sizes, at::kLong);
  std::fill_n(out.mutable_data_ptr<i64>(), out.numel(), 0);
  std::transform(counts.begin(), counts.end(), out.mutable_data_ptr<i64>(),
                 [](double count) { return static_cast<i64>(count); });
  return out;
}

/// norm: squared gradients of this device's parts of its trained states, losses and expert counts. With
/// these in every message each device ends with the same numbers of the whole step.
void pack_squares(OpContext& d, const Op&, Devices, std::vector<Message>& out) {
  Message mine;
  std::vector<at::Tensor> squares, losses, aux;
  for (const ToldPart& told : parts_told_by(d, d.device())) {
    mine.numbers.push_back(told.state);
    squares.push_back(squares_of(d, told));
  }
  for (const at::Tensor& loss : d.losses) append_defined(loss, losses);
  for (const auto& layer : d.aux) {
    for (const at::Tensor& value : layer) append_defined(value, aux);
  }
  const std::vector<std::vector<double>> told = values_of({squares, losses, aux}, d);
  mine.values = told[0];
  mine.values.push_back(sum_of(told[1]));
  mine.values.push_back(sum_of(told[2]) / d.input->loss_scale);  // computed from the scaled gradient
  mine.tensors.push_back(counts_on_host(d.counts_LE.sizes(), told[4]));
  mine.tensors.push_back(counts_on_host({d.p.num_layers()}, told[3]));
  for (Message& message : out) message = mine;
}

void unpack_squares(OpContext& d, const Op&, Devices, std::vector<Message>& in) {
  std::vector<double> squares(d.schedule.states.size(), 0);
  d.result.counts_LE = at::zeros(d.counts_LE.sizes(), at::kLong);
  d.result.dropped_L = at::zeros({d.p.num_layers()}, at::kLong);
  for (const Message& message : in) {
    for (std::size_t i = 0; i < message.numbers.size(); ++i)
      squares[idx(message.numbers[i])] += message.values[i];
    d.result.loss += message.values[message.numbers.size()];
    d.result.aux_loss += message.values[message.numbers.size() + 1];
    d.result.counts_LE.add_(message.tensors[0].to(at::kCPU));
    d.result.dropped_L.add_(message.tensors[1].to(at::kCPU));
  }
  double sum = 0;
  for (const double square : squares) sum += square;
  sum /= d.input->loss_scale * d.input->loss_scale;
  d.result.grad_norm = std::sqrt(sum);
  d.result.updated = std::isfinite(sum) && std::isfinite(d.result.loss) && std::isfinite(d.result.aux_loss);
  d.grad_factor = clip_factor(sum, d.input->max_grad_norm) / d.input->loss_scale;
}

MessageShape expected_squares(OpContext& d, const Op&, DeviceId peer, const Message&) {
  MessageShape shape;
  shape.numbers = parts_told_by(d, peer).size();
  shape.values = shape.numbers + 2;
  shape.tensors.push_back({at::kLong, d.counts_LE.sizes().vec()});
  shape.tensors.push_back({at::kLong, {d.p.num_layers()}});
  return shape;
}

void check_states(OpContext& d, const Op&, DeviceId peer, const Message& message) {
  const std::vector<ToldPart> told = parts_told_by(d, peer);
  for (std::size_t i = 0; i < told.size(); ++i) {
    if (message.numbers[i] == told[i].state) continue;
    fail<TransportError>(d.name_of_peer(peer), "state {}: got {}, expected {}", i, message.numbers[i],
                         told[i].state);
  }
}

}  // namespace

ExecOp exec_ops::norm() {
  return TransferOp{.pack = pack_squares,
                    .expected = expected_squares,
                    .check_content = check_states,
                    .unpack = unpack_squares,
                    .wide = true};
}

}  // namespace hetermoe
