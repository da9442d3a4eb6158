#include "hetermoe/planner/estimate.h"

#include <algorithm>
#include <cmath>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"

// The step of a sketch in closed form: per layer the busiest lane or, with too few microbatches in flight,
// the chain attention - dispatch - experts - combine. It ranks sketches; only the simulator judges.
namespace hetermoe {
namespace {

/// One direction of a layer for one microbatch.
struct LayerTime {
  Seconds attention = 0, experts = 0;  ///< of the slowest device
  Seconds lane = 0;                    ///< of the busiest compute lane
  Seconds port = 0;                    ///< of the busiest port
  Seconds transfer = 0;                ///< one exchange, alone
};

class GroupEstimate {
 public:
  GroupEstimate(const Rates& rates, const Sketch& sketch, const SketchGroup& group,
                const std::vector<Part>& parts)
      : rates_(rates), sketch_(sketch), group_(group), parts_(parts), model_(rates.request().model) {
    microbatch_ = real(group.sequences) / real(group.microbatches);
  }

  Seconds step() {
    LayerTime forward, backward;
    transfers(forward);
    backward = forward;
    Seconds head = 0;
    for (const Part& part : parts_) {
      add(part, forward, backward);
      if (part.attention) head = std::max(head, rates_.head(part.cls, part.most));
    }
    const double in_window =
        real(sketch_.window > 0 ? std::min<i64>(sketch_.window, group_.microbatches) : group_.microbatches);
    const double windows = real(group_.microbatches) / in_window;
    const double layers = real(model_.num_layers);
    Seconds sum = windows * layers * (layer(forward, in_window) + layer(backward, in_window));
    if (in_window > 1) sum += windows * (chain(forward) - forward.lane + chain(backward) - backward.lane);
    return sum + real(group_.microbatches) * head;
  }

 private:
  void add(const Part& part, LayerTime& forward, LayerTime& backward) const {
    LayerCost attention, experts, fullest;
    if (part.attention) {
      const double in_one = std::max(1.0, part.sequences), share = part.sequences / in_one;
      attention = rates_.attention(part.cls, in_one, sketch_.recompute);
      attention = {attention.forward * share, attention.backward * share};
      fullest = rates_.attention(part.cls, std::max(1.0, part.most), sketch_.recompute);
    }
    if (part.owned > 0) {
      const double copies =
          microbatch_ * real(rates_.request().seq_len * model_.top_k) * part.owned / real(model_.num_experts);
      experts = rates_.experts(part.cls, copies, std::max(1.0, part.owned), sketch_.recompute);
    }
    forward.attention = std::max(forward.attention, fullest.forward);
    backward.attention = std::max(backward.attention, fullest.backward);
    forward.experts = std::max(forward.experts, experts.forward);
    backward.experts = std::max(backward.experts, experts.backward);
    forward.lane = std::max(forward.lane, attention.forward + experts.forward);
    backward.lane = std::max(backward.lane, attention.backward + experts.backward);
  }

  /// Probability that a token has an expert on a device with `owned` of them.
  double hit(double owned) const {
    double miss = 1;
    for (i64 k = 0; k < model_.top_k; ++k) {
      const double left = real(model_.num_experts - k);
      miss *= std::max(0.0, left - owned) / left;
    }
    return 1 - miss;
  }

  void transfers(LayerTime& out) const {
    double rows = 0, devices = 0;  // rows per token, all owners
    for (const Part& part : parts_) {
      rows += part.count * hit(part.owned);
      devices += part.count;
    }
    if (devices <= 1) return;
    const Bytes row = real(model_.hidden) * bytes_of(rates_.request().dtype);
    const double tokens = microbatch_ * real(rates_.request().seq_len);
    Seconds busiest = 0, latency = 0, exchange = 0;
    for (const Part& part : parts_) {
      const DeviceClass& cls = rates_.classes()[part.cls];
      const double share = std::min(cls.per_node, part.count);
      const double mine = hit(part.owned), sent_tokens = part.sequences * real(rates_.request().seq_len);
      const double same_node = rates_.one_node() ? mine : std::min(rows, share * mine);
      const Bytes sent = sent_tokens * (rows - same_node) * row * (rates_.one_node() ? 1 : share);
      const Bytes received = (tokens - sent_tokens) * mine * row * (rates_.one_node() ? 1 : share);
      const BytesPerSecond rate = rates_.one_node() ? cls.local : cls.port;
      if (sent + received <= 0) continue;
      exchange = std::max(exchange, std::max(sent, received) / rate);
      busiest = std::max(busiest, (sent + received) / rate);
      latency = std::max(latency, cls.latency);
    }
    out.transfer = exchange + latency + rates_.request().software.peer_message * (devices - 1);
    out.port = busiest + latency + rates_.request().software.peer_message * (devices - 1);
  }

  Seconds chain(const LayerTime& t) const {
    const double parts = sketch_.chunks;
    const Seconds trip = 2 * t.transfer + t.experts;
    return t.attention + trip / parts + (parts - 1) / parts * std::max(t.transfer, t.experts);
  }
  Seconds layer(const LayerTime& t, double in_window) const {
    return std::max(in_window * std::max(t.lane, t.port), chain(t));
  }

  const Rates& rates_;
  const Sketch& sketch_;
  const SketchGroup& group_;
  const std::vector<Part>& parts_;
  const ModelConfig& model_;
  double microbatch_ = 0;
};

/// Reduction of replicated state, of which backward hides most, and the optimizer.
Seconds end_of_step(const Rates& rates, const Sketch& sketch, const std::vector<std::vector<Part>>& groups,
                    Seconds backward) {
  double replicas = 0;
  for (const std::vector<Part>& parts : groups) {
    for (const Part& part : parts) replicas += part.attention ? part.count : 0;
  }
  const double copies = real(static_cast<i64>(sketch.groups.size()));
  Seconds reduce = 0, update = 0;
  for (const std::vector<Part>& parts : groups) {
    for (const Part& part : parts) {
      const DeviceClass& cls = rates.classes()[part.cls];
      const double experts =
          part.owned * real(rates.request().model.num_moe_layers() * rates.counts().expert);
      const double attention = part.attention ? rates.attention_parameters() : 0;
      const Bytes sent =
          8 * (attention * (replicas - 1) / std::max(1.0, replicas) + experts * (copies - 1) / copies);
      const double share = rates.one_node() ? 1 : std::min(cls.per_node, part.count);
      reduce = std::max(reduce, sent * share / (rates.one_node() ? cls.local : cls.port));
      update = std::max(update, rates.update(part.cls, attention + experts));
    }
  }
  return std::max(0.0, reduce - backward) + reduce / real(rates.request().model.num_layers) + update;
}

}  // namespace

Estimate estimate(const Rates& rates, const Sketch& sketch) {
  Estimate out;
  std::vector<std::vector<Part>> all;
  for (std::size_t g = 0; g < sketch.groups.size(); ++g) {
    const SketchGroup& group = sketch.groups[g];
    if (g > 0 && alike(group, sketch.groups[g - 1])) {
      all.push_back(all.back());
      continue;
    }
    all.push_back(split_work(rates, sketch, group, out.shortage));
    if (!out.feasible()) return out;
    out.step = std::max(out.step, GroupEstimate(rates, sketch, group, all.back()).step());
  }
  out.step += end_of_step(rates, sketch, all, 0.5 * out.step);
  return out;
}

}  // namespace hetermoe
