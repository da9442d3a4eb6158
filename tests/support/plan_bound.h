#pragma once
#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "hetermoe/planner/planner.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/schedule/builder.h"
#include "hetermoe/sim/folded_step.h"

// A lower bound of the step of every plan that begins with given layers: what the branch and bound of
// plan_oracle.h cuts by.
//
// Why no plan is faster. Ops never take less than alone on their lanes (contention and interference only slow
// them), lanes keep their order, and an op starts after those that it waits for. So the longest path through
// any part of the waits is no longer than the step. The waits used here are those of the layer-major order:
//   * In a block (the microbatches of one window) a wave computes attention and sends to the experts,
//     microbatch by microbatch; experts on devices that also compute attention follow when all have been
//     sent. Every dispatch.F and combine.B is on the to-expert lane of each attention device, every combine.F
//     and dispatch.B on its to-attention lane, so that they follow each other.
//   * On its compute lane a device finishes a block before it begins the next. Of the first and last wave of
//     a block only the slowest attention device counts, so a block's path goes from that device's lane to the
//     same lane, and the paths of all blocks add up.
//   * After the last block follow the reduce of the embedding's gradient, and then all updates.
// Layers that are not placed yet lie between the forward and the backward part of those that are. They take
// at least (1) for each microbatch the shortest exchange that any counts of experts allow, attention and
// head; (2) on the lanes, all their attention and all their experts, given out one by one to whom they delay
// least: which makes the latest finish as early as possible, since an expert takes a device the same time
// however many it has.
namespace hetermoe::testing {

inline constexpr std::size_t kMostDevices = 8, kMostMicrobatches = 8;
using PerDevice = std::array<Seconds, kMostDevices>;
using PerMicrobatch = std::array<Seconds, kMostMicrobatches>;

/// Of a layer with given experts for one microbatch, every op alone on its lanes. [0] forward, [1] backward.
struct LayerSeconds {
  std::array<Seconds, 2> dispatch{}, combine{};
  std::array<PerDevice, 2> experts{};
  std::array<bool, kMostDevices> owns{};
  PerDevice attention{}, head{};  ///< forward, of a next layer or head, which merges what this one returns
  PerDevice update{};
};

/// Likewise, whoever has the experts.
struct CommonSeconds {
  std::array<PerDevice, 2> embed{}, attention{};  ///< attention forward: of the first layer
  PerDevice update{};                             ///< embedding, attention and head of all layers
  Seconds reduce = 0;                             ///< of the embedding
};

/// counts: [device] experts.
inline void set_owners(LayerPlacement& layer, const std::vector<i64>& counts) {
  layer.experts.clear();
  for (std::size_t d = 0; d < counts.size(); ++d)
    layer.experts.insert(layer.experts.end(), static_cast<std::size_t>(counts[d]),
                         {{static_cast<DeviceId>(d), 1}});
}

/// Prices the layers of plans that differ only in their experts.
class LayerPrices {
 public:
  /// plan: with the shares and one microbatch, whatever its layers.
  LayerPrices(const PlanRequest& request, const Plan& plan)
      : request_(request), model_(request.model), plan_(plan), layers_(request.model.num_layers) {
    // The second of two layers shows what merging the first one's rows costs.
    model_.num_layers = 2;
    model_.dense_layer.assign(2, false);
    for (Group& group : plan_.groups) group.layers.resize(2, group.layers[0]);
  }

  LayerSeconds price(const std::vector<i64>& counts, CommonSeconds& common) {
    LayerSeconds out;
    common = {};
    for (LayerPlacement& layer : plan_.groups[0].layers) set_owners(layer, counts);
    for (std::size_t d = 0; d < counts.size(); ++d) out.owns[d] = counts[d] > 0;
    const Placement placement(plan_, model_, {});
    const Schedule schedule = build_schedule(placement);
    const OpCosts costs = hetermoe::price(schedule, placement, model_, request_.cluster,
                                          RooflineCost(model_, request_.cluster, plan_, request_.software),
                                          ExpectedRouting(model_));
    for (OpId op = 0; op < schedule.num_ops(); ++op)
      take(schedule, op, costs.seconds[static_cast<std::size_t>(op)], out, common);
    return out;
  }

 private:
  void take(const Schedule& schedule, OpId id, Seconds seconds, LayerSeconds& out,
            CommonSeconds& common) const {
    const Op& op = schedule.ops[static_cast<std::size_t>(id)];
    const std::size_t phase = op.phase == Phase::kBackward ? 1 : 0;
    const auto d = static_cast<std::size_t>(device_of(schedule.lanes_of(id)[0]));
    if (op.kind == OpKind::kEmbed) common.embed[phase][d] = seconds;
    if (op.kind == OpKind::kHead) out.head[d] = seconds;
    if (op.kind == OpKind::kAttention && op.layer == 0) common.attention[phase][d] = seconds;
    if (op.kind == OpKind::kAttention && op.layer == 1 && phase == 0) out.attention[d] = seconds;
    if (op.kind == OpKind::kExperts && op.layer == 0) out.experts[phase][d] = seconds;
    if (op.kind == OpKind::kDispatch && op.layer == 0) out.dispatch[phase] = seconds;
    if (op.kind == OpKind::kCombine && op.layer == 0) out.combine[phase] = seconds;
    if (op.state < 0) return;
    const State& state = schedule.states[static_cast<std::size_t>(op.state)];
    const bool reduces = op.kind == OpKind::kReduce || op.kind == OpKind::kReduceScatter;
    if (reduces && state.part == State::Part::kEmbed) common.reduce = seconds;
    if (op.kind != OpKind::kUpdate || state.layer > 0) return;
    const double times = state.part == State::Part::kAttention ? static_cast<double>(layers_) : 1;
    (state.part == State::Part::kExperts ? out.update : common.update)[d] += times * seconds;
  }

  const PlanRequest& request_;
  ModelConfig model_;
  Plan plan_;
  i64 layers_;
};

/// All that bounds of one set of shares need.
struct StepSeconds {
  std::vector<i64> shares;  ///< [device] sequences of a microbatch
  i64 num_layers = 0, num_experts = 0;
  CommonSeconds common;
  std::vector<LayerSeconds> layers;  ///< by counts of experts

  // From here on: what follows from the above.
  std::size_t slowest = 0;                    ///< attention device
  Seconds least_exchange = 0;                 ///< to the experts and back, forward and backward
  Seconds least_head = 0;                     ///< of the slowest attention device
  PerDevice least_expert{};                   ///< forward and backward, of one expert
  std::array<PerDevice, 2> least_dispatch{};  ///< to and from this device

  bool is_source(std::size_t d) const { return shares[d] > 0; }
  Seconds attention(std::size_t d) const { return common.attention[0][d] + common.attention[1][d]; }

  void settle(const std::vector<std::vector<i64>>& counts) {
    for (std::size_t d = 0; d < shares.size(); ++d) {
      if (attention(d) > attention(slowest)) slowest = d;
    }
    constexpr Seconds kNever = 1e30;
    least_exchange = least_head = kNever;
    least_expert.fill(kNever), least_dispatch[0].fill(kNever), least_dispatch[1].fill(kNever);
    for (std::size_t c = 0; c < layers.size(); ++c) {
      const LayerSeconds& layer = layers[c];
      Seconds exchange = 0;
      for (const std::size_t phase : {0u, 1u}) {
        exchange += layer.dispatch[phase] + layer.combine[phase] +
                    *std::max_element(layer.experts[phase].begin(), layer.experts[phase].end());
      }
      least_exchange = std::min(least_exchange, exchange);
      least_head = std::min(least_head, layer.head[slowest]);
      for (std::size_t d = 0; d < shares.size(); ++d) {
        if (counts[c][d] == 0) continue;
        least_expert[d] = std::min(
            least_expert[d], (layer.experts[0][d] + layer.experts[1][d]) / static_cast<double>(counts[c][d]));
        for (const std::size_t phase : {0u, 1u})
          least_dispatch[phase][d] = std::min(least_dispatch[phase][d], layer.dispatch[phase]);
      }
    }
  }
};

/// Where a block stands when its first layers are placed: when their forward part can be over, and how long
/// their backward part takes until the block is over. Both only grow with further layers.
struct BlockEnds {
  PerDevice lane{}, rest_of_lane{};
  Seconds to_expert = 0, to_attention = 0, rest_of_to_expert = 0, rest_of_to_attention = 0;
  PerMicrobatch ready{}, rest{};
};

/// The path of one block of microbatches.
class BlockBound {
 public:
  BlockBound(const StepSeconds& seconds, std::size_t microbatches) : s_(seconds), count_(microbatches) {}

  /// Appends a layer; before: the one before it, null for the first.
  BlockEnds with_layer(BlockEnds ends, const LayerSeconds* before, const LayerSeconds& layer) const {
    forward(ends, before, layer);
    backward(ends, before == nullptr, layer);
    return ends;
  }

  /// All layers are placed.
  Seconds closed(const BlockEnds& ends, const LayerSeconds& last) const {
    Seconds step = 0;
    for (std::size_t d = 0; d < s_.shares.size(); ++d) {
      if (!s_.is_source(d)) {
        step = std::max(step, ends.lane[d] + ends.rest_of_lane[d]);
        continue;
      }
      for (std::size_t first = 0; first < count_; ++first)
        step = std::max(step, via_head(ends, last, d, first));
    }
    return step;
  }

  /// `left` layers, at least one, are not placed.
  Seconds open(const BlockEnds& ends, i64 left) const {
    const double layers = static_cast<double>(left);
    const Seconds between = layers * (s_.attention(s_.slowest) + s_.least_exchange) + s_.least_head;
    Seconds step = 0;
    for (std::size_t m = 0; m < count_; ++m) step = std::max(step, ends.ready[m] + between + ends.rest[m]);
    return std::max(step, fill(ends, left));
  }

 private:
  void forward(BlockEnds& e, const LayerSeconds* before, const LayerSeconds& layer) const {
    PerMicrobatch sent{}, done{};
    for (std::size_t m = 0; m < count_; ++m) {
      Seconds computed = 0;
      for (std::size_t d = 0; d < s_.shares.size(); ++d) {
        if (!s_.is_source(d) || (before == nullptr && d != s_.slowest)) continue;
        e.lane[d] =
            std::max(e.lane[d], e.ready[m]) +
            (before == nullptr ? s_.common.embed[0][d] + s_.common.attention[0][d] : before->attention[d]);
        computed = std::max(computed, e.lane[d]);
      }
      sent[m] = e.to_expert = std::max(e.to_expert, computed) + layer.dispatch[0];
      experts(layer, 0, false, sent[m], e.lane, done[m]);
    }
    for (std::size_t m = 0; m < count_; ++m) experts(layer, 0, true, sent[m], e.lane, done[m]);
    for (std::size_t m = 0; m < count_; ++m)
      e.ready[m] = e.to_attention = std::max(e.to_attention, done[m]) + layer.combine[0];
  }

  /// From the end of the block on, so everything in reverse.
  void backward(BlockEnds& e, bool first, const LayerSeconds& layer) const {
    PerMicrobatch returned{}, done{};
    for (std::size_t m = count_; m-- > 0;) {
      Seconds computed = 0;
      for (std::size_t d = 0; d < s_.shares.size(); ++d) {
        if (!s_.is_source(d) || (first && d != s_.slowest)) continue;
        e.rest_of_lane[d] = std::max(e.rest_of_lane[d], e.rest[m]) + s_.common.attention[1][d] +
                            (first ? s_.common.embed[1][d] : 0);
        computed = std::max(computed, e.rest_of_lane[d]);
      }
      returned[m] = e.rest_of_to_attention = std::max(e.rest_of_to_attention, computed) + layer.dispatch[1];
    }
    for (std::size_t m = count_; m-- > 0;) experts(layer, 1, true, returned[m], e.rest_of_lane, done[m]);
    for (std::size_t m = count_; m-- > 0;) experts(layer, 1, false, returned[m], e.rest_of_lane, done[m]);
    for (std::size_t m = count_; m-- > 0;)
      e.rest[m] = e.rest_of_to_expert = std::max(e.rest_of_to_expert, done[m]) + layer.combine[1];
  }

  /// Experts on attention devices (`computing`) or on the others.
  void experts(const LayerSeconds& layer, std::size_t phase, bool computing, Seconds from, PerDevice& lane,
               Seconds& done) const {
    for (std::size_t d = 0; d < s_.shares.size(); ++d) {
      if (!layer.owns[d] || s_.is_source(d) != computing) continue;
      lane[d] = std::max(lane[d], from) + layer.experts[phase][d];
      done = std::max(done, lane[d]);
    }
  }

  /// Through the heads of device d from microbatch `first` on, each of which may also wait for its rows and
  /// be waited for.
  Seconds via_head(const BlockEnds& e, const LayerSeconds& last, std::size_t d, std::size_t first) const {
    const Seconds start = std::max(e.lane[d] + static_cast<double>(first) * last.head[d], e.ready[first]);
    Seconds step = 0;
    for (std::size_t m = first; m < count_; ++m)
      step = std::max(step, start + static_cast<double>(m - first + 1) * last.head[d] + e.rest[m]);
    return std::max(step, start + static_cast<double>(count_ - first) * last.head[d] + e.rest_of_lane[d]);
  }

  /// Experts of the layers that are not placed, one by one to the lane that then ends first.
  Seconds fill(const BlockEnds& e, i64 left) const {
    const auto times = static_cast<double>(count_);
    const bool none = left == s_.num_layers;
    PerDevice end{};
    Seconds step = 0;
    for (std::size_t d = 0; d < s_.shares.size(); ++d) {
      if (s_.is_source(d)) {
        const auto layers = static_cast<double>(none && d != s_.slowest ? left - 1 : left);
        end[d] = std::max(e.lane[d], e.ready[0]) + times * layers * s_.attention(d) +
                 std::max(e.rest_of_lane[d], e.rest[count_ - 1]) +
                 (d == s_.slowest ? times * s_.least_head : 0);
        step = std::max(step, end[d]);
      } else {
        end[d] =
            std::max(e.lane[d], e.ready[0] + s_.common.attention[0][s_.slowest] + s_.least_dispatch[0][d]) +
            std::max(e.rest_of_lane[d],
                     e.rest[count_ - 1] + s_.common.attention[1][s_.slowest] + s_.least_dispatch[1][d]);
      }
    }
    for (i64 expert = 0; expert < left * s_.num_experts; ++expert) {
      std::size_t best = 0;
      for (std::size_t d = 1; d < s_.shares.size(); ++d) {
        if (end[d] + times * s_.least_expert[d] < end[best] + times * s_.least_expert[best]) best = d;
      }
      end[best] += times * s_.least_expert[best];
      step = std::max(step, end[best]);
    }
    return step;
  }

  const StepSeconds& s_;
  std::size_t count_;
};

/// The step of plans with one window.
class StepBound {
 public:
  /// window: 0 = all microbatches.
  StepBound(const StepSeconds& seconds, i64 microbatches, i64 window) : s_(seconds) {
    const i64 size = window > 0 ? std::min(window, microbatches) : microbatches;
    add_block(size, microbatches / size);
    if (microbatches % size > 0) add_block(microbatches % size, 1);
  }

  /// Layers placed so far, by their counts of experts.
  struct Prefix {
    std::vector<BlockEnds> blocks;
    PerDevice update{};
    i64 num_layers = 0;
    const LayerSeconds* last = nullptr;
  };
  const LayerSeconds& layer(std::size_t counts) const { return s_.layers[counts]; }
  Prefix empty() const { return {std::vector<BlockEnds>(blocks_.size()), s_.common.update, 0, nullptr}; }

  Prefix with_layer(const Prefix& prefix, const LayerSeconds& layer) const {
    Prefix out = prefix;
    for (std::size_t b = 0; b < blocks_.size(); ++b)
      out.blocks[b] = blocks_[b].bound.with_layer(prefix.blocks[b], prefix.last, layer);
    for (std::size_t d = 0; d < s_.shares.size(); ++d) out.update[d] += layer.update[d];
    ++out.num_layers;
    out.last = &layer;
    return out;
  }

  Seconds bound(const Prefix& prefix) const {
    const i64 left = s_.num_layers - prefix.num_layers;
    Seconds sum = s_.common.reduce + *std::max_element(prefix.update.begin(), prefix.update.end());
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      const BlockEnds& ends = prefix.blocks[b];
      sum += blocks_[b].times *
             (left == 0 ? blocks_[b].bound.closed(ends, *prefix.last) : blocks_[b].bound.open(ends, left));
    }
    return sum;
  }

 private:
  struct Block {
    BlockBound bound;
    double times;
  };
  void add_block(i64 size, i64 times) {
    blocks_.push_back({BlockBound(s_, static_cast<std::size_t>(size)), static_cast<double>(times)});
  }

  const StepSeconds& s_;
  std::vector<Block> blocks_;
};

}  // namespace hetermoe::testing
