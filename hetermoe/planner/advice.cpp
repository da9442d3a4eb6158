#include "hetermoe/planner/advice.h"

#include <algorithm>
#include <limits>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/planner/continuous_split.h"
#include "hetermoe/planner/memory_estimate.h"

namespace hetermoe {
namespace {

double gib(Bytes bytes) { return bytes / kGiB; }

/// Devices that may share the optimizer's state of a part that all of them hold.
std::size_t most_replicas(const PlanRequest& request) {
  return request.limits.shard_optimizer ? request.cluster.devices.size() : 1;
}

/// The least that a device needs to compute attention of one sequence at a time, without experts.
Bytes attention_need(const Rates& rates) {
  Bytes least = std::numeric_limits<Bytes>::infinity();
  for (const Recompute recompute : {Recompute::kLocal, Recompute::kOff}) {
    Sketch sketch;
    sketch.window = 1;
    sketch.recompute = recompute;
    SketchGroup group;
    group.first.assign(rates.num_classes(), 0);
    group.count = group.attention = group.first;
    group.count[0] = group.attention[0] = 1;
    group.mixed = true;
    group.sequences = group.microbatches = rates.request().sequences;
    std::optional<Shortage> ignored;
    sketch.shard_optimizer = true;
    const std::size_t groups = most_replicas(rates.request());
    least = std::min(least, split_work(rates, sketch, group, groups, ignored).front().fixed);
  }
  return least;
}

}  // namespace

Shortfall shortfall(const Rates& rates) {
  Shortfall out;
  const ModelConfig& model = rates.request().model;
  const StateBytes state = state_bytes_per_parameter(bytes_of(rates.request().dtype));
  out.replicated = rates.attention_parameters() * state.total(real(most_replicas(rates.request())));
  out.sequence = attention_need(rates);
  out.experts = real(model.num_moe_layers() * model.num_experts * rates.counts().expert) * state.total();
  for (std::size_t c = 0; c < rates.num_classes(); ++c) {
    const Bytes usable = std::max(0.0, rates.usable_memory(c));
    out.largest = std::max(out.largest, usable);
    out.total += usable * real(rates.classes()[c].devices.size());
  }
  return out;
}

std::string advice(const Shortfall& s) {
  if (s.replicated > s.largest) {
    return fmt::format(
        "Every device with attention holds weights and gradients of embedding, attention and head, {:.1f} "
        "GiB "
        "with its part of the optimizer's state, and the largest device has {:.1f} GiB usable: more devices "
        "do "
        "not help, larger ones or a smaller model do",
        gib(s.replicated), gib(s.largest));
  }
  if (s.sequence > s.largest) {
    return fmt::format(
        "A device with attention needs {:.1f} GiB for its states and one sequence, and the largest device "
        "has {:.1f} GiB usable: more devices do not help, shorter sequences, larger devices or a smaller "
        "model do",
        gib(s.sequence), gib(s.largest));
  }
  if (s.experts + s.replicated > s.total) {
    return fmt::format(
        "The states of all experts take {:.1f} GiB together, and beside {:.1f} GiB for attention all devices "
        "have {:.1f} GiB usable: more or larger devices or a smaller model help",
        gib(s.experts), gib(s.replicated), gib(s.total));
  }
  return fmt::format(
      "States of {:.1f} GiB would fit on all devices together ({:.1f} GiB usable), but not with what the "
      "microbatches need beside them: more or larger devices, or shorter sequences help",
      gib(s.experts + s.replicated), gib(s.total));
}

}  // namespace hetermoe
