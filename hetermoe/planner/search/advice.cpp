#include "hetermoe/planner/search/advice.h"

#include <algorithm>
#include <limits>

#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/planner/estimate/continuous_split.h"

namespace hetermoe {
namespace {

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

/// The least that a device needs in any plan: one layer of one sequence, or the head, and what that holds.
Bytes layer_need(const Rates& rates) {
  const PlanRequest& request = rates.request();
  const Bytes element = bytes_of(request.dtype);
  const double tokens = real(request.seq_len);
  const StateBytes each = rates.state_of(UnitPart::kAttention);
  Plan figures = blank_plan(request, Recompute::kResend);
  figures.dtype.resize(1);
  const double rows = request.model.is_moe(0) ? 1 : 0;  // all experts of a token on one device
  const OpMemory attention =
      attention_memory(figures, Recompute::kResend, request.model, 0, tokens, rows, element);
  const OpMemory head = head_memory(request.model, tokens, element);
  const double parameters = real(rates.counts().attention_part[0]), output = real(rates.counts().head);
  const bool at_home = request.limits.host_use == HostUse::kNone && !request.limits.gather_weights;
  const Bytes held = at_home ? each.weights_and_gradients() : 0;
  return std::max(attention.saved + attention.largest + held * parameters,
                  head.saved + head.largest + held * output);
}

}  // namespace

Shortfall shortfall(const Rates& rates) {
  Shortfall out;
  const ModelConfig& model = rates.request().model;
  const StateBytes others = rates.state_of(UnitPart::kAttention);
  out.replicated = rates.attention_parameters() * others.total(real(most_replicas(rates.request())));
  out.sequence = attention_need(rates);
  out.layer = layer_need(rates);
  out.experts = real(model.num_moe_layers() * model.num_experts * rates.counts().expert) *
                rates.state_of(UnitPart::kExperts).total();
  out.states = out.experts + rates.attention_parameters() * others.total();
  const PlanRequest& request = rates.request();
  if (request.dtype == Dtype::kBf16 && request.trained.all()) {
    const StateBytes narrow = state_bytes_per_parameter(2, {.master = false, .moment = 2});
    out.narrow = out.states / others.total() * narrow.total();
  } else {
    out.narrow = out.states;
  }
  out.pipeline = nearest_pipeline(rates);
  out.more_stages = !out.pipeline && model.num_layers > 1;
  if (out.pipeline)
    out.type = rates.request().cluster.types[idx(rates.classes()[out.pipeline->cls].type)].name;
  for (std::size_t c = 0; c < rates.num_classes(); ++c) {
    const Bytes usable = std::max(0.0, rates.usable_memory(c));
    out.largest = std::max(out.largest, usable);
    out.total += usable * real(rates.classes()[c].devices.size());
  }
  return out;
}

namespace {

/// Where layers can be on devices of their own, memory of all devices counts.
std::string advice_on_pipelines(const Shortfall& s) {
  const std::string all = fmt::format("All states take {}, and all devices have {} usable",
                                      memory_text(s.states), memory_text(s.total));
  if (s.states > s.total) {
    const std::string narrow =
        s.narrow < s.total && s.narrow < s.states
            ? fmt::format("; with --master none --moments-dtype bf16 states take {}", memory_text(s.narrow))
            : "";
    return fmt::format("{}: {} are missing, more or larger devices or a smaller model help{}", all,
                       memory_text(s.states - s.total), narrow);
  }
  const PipelineMiss& miss = *s.pipeline;
  return fmt::format(
      "{}. The nearest miss is a pipeline of {} stages in {}, whose fullest device ({}) needs {} of "
      "{} usable, {} too much: more or larger devices, or shorter sequences help",
      all, miss.stages, counted(miss.groups, "group"), s.type, memory_text(miss.need),
      memory_text(miss.usable), memory_text(miss.need - miss.usable));
}

}  // namespace

std::string advice(const Shortfall& s) {
  if (s.layer > s.largest) {
    return fmt::format(
        "One sequence takes {} on a device for a single layer or the head, and the largest device "
        "has "
        "{} usable. No team of the devices that are there has room for one either: more devices in a "
        "team, shorter sequences or larger devices help",
        memory_text(s.layer), memory_text(s.largest));
  }
  if (s.more_stages) {
    return fmt::format(
        "All states take {}, and there are {} usable: more devices, as stages of a pipeline, "
        "or "
        "larger ones help",
        memory_text(s.states), memory_text(s.total));
  }
  if (s.pipeline) return advice_on_pipelines(s);
  if (s.replicated > s.largest) {
    return fmt::format(
        "Every device with attention holds weights and gradients of embedding, attention and head, {} "
        "with its part of the optimizer's state, and the largest device has {} usable: more devices "
        "do "
        "not help, larger ones or a smaller model do",
        memory_text(s.replicated), memory_text(s.largest));
  }
  if (s.sequence > s.largest) {
    return fmt::format(
        "A device with attention needs {} for its states and one sequence, and the largest device "
        "has {} usable: more devices do not help, shorter sequences, larger devices or a smaller "
        "model do",
        memory_text(s.sequence), memory_text(s.largest));
  }
  if (s.experts + s.replicated > s.total) {
    return fmt::format(
        "The states of all experts take {} together, and beside {} for attention all devices "
        "have {} usable: more or larger devices or a smaller model help",
        memory_text(s.experts), memory_text(s.replicated), memory_text(s.total));
  }
  return fmt::format(
      "States of {} would fit on all devices together ({} usable), but not with what the "
      "microbatches need beside them: more or larger devices, or shorter sequences help",
      memory_text(s.experts + s.replicated), memory_text(s.total));
}

}  // namespace hetermoe
