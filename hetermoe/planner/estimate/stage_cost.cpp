#include "hetermoe/planner/estimate/stage_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/plan/recompute.h"

namespace hetermoe {
namespace {

constexpr double kExposed = 0.15;    ///< of the shorter of two things that hide each other
constexpr double kSharedPort = 1.5;  ///< load of the port of a node that stages share in unequal parts

i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

Seconds overlapped(Seconds a, Seconds b) { return std::max(a, b) + kExposed * std::min(a, b); }

}  // namespace

StageCosts::StageCosts(const Rates& rates, const PipelineOrder& order, std::vector<StageDevices> stages)
    : rates_(rates), order_(order), stages_(std::move(stages)) {
  const ModelConfig& model = rates.request().model;
  plan_ = blank_plan(rates.request(), Recompute::kLocal);
  plan_.dtype.resize(1);
  plan_.order = OrderPolicy::kOneFOneB;
  dense_before_.push_back(0);
  for (i64 l = 0; l < model.num_layers; ++l)
    dense_before_.push_back(dense_before_.back() + (model.is_moe(l) ? 0 : 1));
  std::vector<i64> next(rates.num_classes(), 0);
  bool before = false;
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    // Stages that are alike have one set of figures but for what is in flight.
    keeps_to_nodes_ = keeps_to_nodes(stages_[s], next[stages_[s].cls]);
    const bool again = s > 0 && stages_[s] == stages_[s - 1] && keeps_to_nodes_ == before;
    figures_.push_back(again ? figures_.back() : figures_of(stages_[s]));
    before = keeps_to_nodes_;
    all_keep_to_nodes_ = all_keep_to_nodes_ && keeps_to_nodes_;
    next[stages_[s].cls] += stages_[s].count;
    const auto windows = static_cast<i64>(stages_.size() - s);
    figures_.back().in_flight = std::min(order.microbatches, windows * order.window);
  }
  add_moves();
}

/// Of what stages of a group send to the ones after and before them.
void StageCosts::add_moves() {
  const std::vector<std::array<NodeId, 2>> nodes = nodes_of_stages();
  const auto inside = [&](std::size_t s) {  // from stage s to the next one
    return s + 1 < nodes.size() && nodes[s][1] == nodes[s + 1][0];
  };
  std::map<NodeId, Seconds> of_port;
  for (std::size_t s = 0; s + 1 < stages_.size(); ++s) {
    Seconds each = move(stages_[s], true);
    if (!inside(s)) {
      const Seconds leave = move(stages_[s], false), enter = move(stages_[s + 1], false);
      of_port[nodes[s][1]] += leave, of_port[nodes[s + 1][0]] += enter;
      // Another stage of the node sends at the same time.
      const bool before = s > 0 && inside(s - 1), after = inside(s + 1);
      each = std::max(leave * (before ? 2 : 1), enter * (after ? 2 : 1));
    }
    figures_[s].moves += each, figures_[s + 1].moves += each;
  }
  for (const auto& [node, moves] : of_port) busiest_port_ = std::max(busiest_port_, moves);
}

/// [stage] of the first group, of its first and of its last device.
std::vector<std::array<NodeId, 2>> StageCosts::nodes_of_stages() const {
  std::vector<i64> next(rates_.num_classes(), 0);
  std::vector<std::array<NodeId, 2>> nodes;
  for (const StageDevices& stage : stages_) {
    const std::vector<DeviceId>& devices = rates_.classes()[stage.cls].devices;
    const i64 first = next[stage.cls];
    next[stage.cls] += stage.count;
    const Cluster& cluster = rates_.request().cluster;
    nodes.push_back(
        {cluster.node_of(devices[idx(first)]), cluster.node_of(devices[idx(next[stage.cls] - 1)])});
  }
  return nodes;
}

/// Rows of a microbatch from one stage to the next. Of a node, the devices of one stage send to the next node
/// at once.
Seconds StageCosts::move(const StageDevices& stage, bool inside) const {
  const DeviceClass& cls = rates_.classes()[stage.cls];
  const Bytes rows = tokens(stage) * row_bytes(rates_.request().model, bytes_of(rates_.request().dtype));
  const double together = std::min(real(stage.count), cls.per_node);
  return (inside ? rows / cls.local : rows * together / cls.port) + cls.latency;
}

/// Stages of every group take whole nodes, or nodes hold whole stages. first: devices of the class in the
/// stages before.
bool StageCosts::keeps_to_nodes(const StageDevices& stage, i64 first) const {
  const DeviceClass& cls = rates_.classes()[stage.cls];
  const auto per_node = static_cast<i64>(cls.per_node);
  const i64 of_group = order_.span.empty() ? 0 : order_.span[stage.cls];
  const i64 unit = std::min(stage.count, per_node);
  return std::max(stage.count, per_node) % unit == 0 && first % unit == 0 && of_group % unit == 0;
}

double StageCosts::tokens(const StageDevices& stage) const {
  return real(ceil_div(order_.largest, stage.count) * rates_.request().seq_len);
}

double StageCosts::owned(const StageDevices& stage) const {
  return real(ceil_div(rates_.request().model.num_experts, stage.count));
}

StageCosts::Figures StageCosts::figures_of(const StageDevices& stage) const {
  const PlanRequest& request = rates_.request();
  const Bytes element = bytes_of(request.dtype);
  Figures f;
  for (const Recompute recompute : kRecomputes) {
    const auto r = static_cast<std::size_t>(recompute);
    if (request.model.num_moe_layers() > 0) f.moe[r] = layer(stage, false, recompute);
    if (request.model.num_moe_layers() < request.model.num_layers) f.dense[r] = layer(stage, true, recompute);
  }
  f.head.attention = head_memory(request.model, tokens(stage), element);
  add_states(f.embed, stage, {UnitPart::kEmbed, real(rates_.counts().embedding), 1});
  add_states(f.head, stage, {UnitPart::kHead, real(rates_.counts().head), 1});
  f.head.seconds = order_.window * rates_.head(stage.cls, real(ceil_div(order_.largest, stage.count)));
  return f;
}

/// Of a part that all devices of the stage hold. Where it is gathered so many visits are there at once: 1 is
/// that of an embedding or head.
void StageCosts::add_states(Part& part, const StageDevices& stage, const Held& held) const {
  const double holders = real(order_.groups * stage.count), parameters = held.parameters;
  const double visits = held.visits;
  const StateBytes state = rates_.state_of(held.part);
  if (rates_.visits(held.part)) {
    const Housed housed = rates_.housed(held.part);
    part.attention_visit = parameters * housed.visits.weights_and_gradients();
    part.states = parameters * housed.stays.total(order_.shard_optimizer ? holders : 1);
    // Hosts sum the gradients of what visits.
    part.reduction =
        reduction_bytes(parameters, holders, housed.stays.gradients, rates_.request().wire_reduce);
    return;
  }
  if (rates_.request().limits.host_use != HostUse::kNone && !rates_.trained().adapts()) {
    part.states = parameters * state.weights_and_gradients();
    // Where attention parts live on hosts, embedding and head do, too.
    if (!rates_.visits(UnitPart::kAttention))
      part.reduction = reduction_bytes(parameters, holders, state.gradients, rates_.request().wire_reduce);
    return;
  }
  if (rates_.request().limits.gather_weights && holders > 1) {
    part.states = parameters * state.total() / holders;
    if (visits > 1) {
      part.attention.largest += gathered_layer_bytes(parameters, holders, visits, state);
    } else {
      part.states += parameters * state.weights_and_gradients();
      part.reduction = gathered_end_messages(parameters, holders, state);
    }
    return;
  }
  part.states = parameters * state.total(order_.shard_optimizer ? holders : 1);
  part.reduction = reduction_bytes(parameters, holders, state.gradients, rates_.request().wire_reduce);
}

/// A layer of a window: what its devices compute, or what their ports carry, or the chain of one microbatch.
StageCosts::Part StageCosts::layer(const StageDevices& stage, bool dense, Recompute recompute) const {
  const ModelConfig& model = rates_.request().model;
  const Bytes element = bytes_of(rates_.request().dtype);
  const StateBytes state = rates_.state_of(UnitPart::kExperts);
  i64 number = 0;
  while (model.is_moe(number) == dense) ++number;
  const double window = real(order_.window), groups = real(order_.groups);
  const LayerCost attention =
      rates_.attention_of(stage.cls, real(ceil_div(order_.largest, stage.count)), recompute, dense);
  Part part;
  const auto parameters = real(rates_.counts().attention_part[idx(number)]);
  const double rows = dense ? 0 : real(stage.count) * rates_.hit(owned(stage));
  part.attention = attention_memory(plan_, recompute, model, number, tokens(stage),
                                    std::min(rows, real(model.top_k)), element);
  add_states(part, stage, {UnitPart::kAttention, parameters, real(VisitSlots().attention)});
  const bool waits = saves_on_hosts(rates_.request().limits.host_use) && !keeps_activations(recompute);
  if (waits) part.inputs_wait = tokens(stage) * row_bytes(model, element);
  if (dense) {
    part.seconds = window * attention.sum();
    return part;
  }
  const double mean = real(order_.largest * rates_.request().seq_len * model.top_k) / real(model.num_experts);
  const double copies = mean * owned(stage);
  const LayerCost experts = rates_.experts(stage.cls, copies, owned(stage), recompute);
  const double held = owned(stage) * real(rates_.counts().expert);
  if (rates_.visits(UnitPart::kExperts)) {
    const Housed housed = rates_.housed(UnitPart::kExperts);
    part.experts_visit = held * housed.visits.weights_and_gradients();
    part.states += held * housed.stays.total(order_.shard_optimizer ? groups : 1);
    part.reduction = std::max(
        part.reduction, reduction_bytes(held, groups, housed.stays.gradients, rates_.request().wire_reduce));
  } else {
    part.states += held * rates_.state_bytes(UnitPart::kExperts, order_.shard_optimizer ? groups : 1);
    part.reduction = std::max(part.reduction,
                              reduction_bytes(held, groups, state.gradients, rates_.request().wire_reduce));
  }
  const double all_tokens = real(order_.largest * rates_.request().seq_len);
  part.experts = experts_memory(
      plan_, recompute, model,
      expert_work(plan_, model, all_tokens, owned(stage), copies, rates_.request().routing.margin), element);
  if (rates_.trained().adapts() && state.gradients > 0) {
    const StateBytes whole = state_bytes_of(rates_.request());
    part.experts.largest += held * whole.weights_and_gradients();  // as estimate_memory() has it
  }
  if (waits) part.rows_wait = part.experts.saved;
  const Seconds trip = 2 * exchange(stage);
  const auto of_pass = [&](Seconds computes, double trips) {
    const Seconds chain = computes + trips * trip;
    return window > 1 ? std::max(window * overlapped(computes, trips * trip), chain) : chain;
  };
  part.seconds = of_pass(attention.forward + experts.forward, 1) +
                 of_pass(attention.backward + experts.backward, backward_exchanges(recompute));
  return part;
}

/// One exchange of a microbatch. All stages of a node are busy at once, so each has its part of the node's
/// port.
Seconds StageCosts::exchange(const StageDevices& stage) const {
  if (stage.count == 1) return 0;
  const DeviceClass& cls = rates_.classes()[stage.cls];
  const double count = real(stage.count), per_node = cls.per_node;
  const double here = count > per_node ? per_node : keeps_to_nodes_ ? count : std::ceil(count / 2);
  const double rows = tokens(stage) * rates_.hit(owned(stage));
  const Bytes row = row_bytes(rates_.request().model, bytes_of(rates_.request().dtype));
  const Seconds inside = rows * (here - 1) * row / cls.local;
  const Seconds outside =
      rows * (count - here) * row * per_node / cls.port * (keeps_to_nodes_ ? 1 : kSharedPort);
  return std::max(inside, outside) + cls.latency + peer_seconds(cls, count, here);
}

Seconds StageCosts::time(const LayerRun& run, const RunRecompute& how) const {
  const Figures& f = figures_[idx(run.stage)];
  Seconds sum = order_.window * f.moves;
  for_parts(run, how, [&](const Part& part, Recompute, i64 layers) { sum += real(layers) * part.seconds; });
  if (run.first + run.count == rates_.request().model.num_layers) sum += f.head.seconds;
  return sum;
}

Bytes StageCosts::memory(const LayerRun& run, const RunRecompute& how) const {
  const Figures& f = figures_[idx(run.stage)];
  Bytes states = 0, reduction = 0;
  OpMemory attention, experts;
  HostVisits attention_visits, experts_visits;
  bool resends = false;
  const auto waiting = [&](const OpMemory& op, Bytes saved) {
    return wait_on_host(op, saved, real(f.in_flight), plan_.slots.saved);
  };
  const auto add = [&](const Part& part, i64 times) {
    states += real(times) * part.states;
    reduction = std::max(reduction, part.reduction);
    attention.add_layers(waiting(part.attention, part.inputs_wait), real(times));
    experts.add_layers(waiting(part.experts, part.rows_wait), real(times));
    if (part.attention_visit > 0) attention_visits.add(part.attention_visit, times);
    if (part.experts_visit > 0) experts_visits.add(part.experts_visit, times);
  };
  for_parts(run, how, [&](const Part& part, Recompute recompute, i64 layers) {
    add(part, layers);
    resends = resends || recompute == Recompute::kResend;
  });
  if (run.first == 0) add(f.embed, 1);
  if (run.first + run.count == rates_.request().model.num_layers) add(f.head, 1);
  const double window = real(std::min<i64>(order_.window, order_.microbatches));
  OpMemory ops = both(attention, experts);
  const Bytes of_window = window * ops.saved;
  ops.saved *= real(f.in_flight);
  states += attention_visits.at_once(plan_.slots.attention) + experts_visits.at_once(plan_.slots.experts);
  return states + stage_memory(ops, of_window, reduction, window, resends);
}

RunChoice StageCosts::choice(const LayerRun& run) const {
  RunChoice best;
  best.least_memory = std::numeric_limits<Bytes>::infinity();
  for (const Recompute recompute : kRecomputes) {
    const RunRecompute next = RunRecompute::all(recompute);
    const Bytes needs = memory(run, next);
    best.least_memory = std::min(best.least_memory, needs);
    if (needs > usable(run.stage)) continue;
    const Seconds takes = time(run, next);
    if (!best.fits || takes < best.time) best.recompute = next, best.time = takes;
    best.fits = true;
  }
  if (best.fits) return best;
  best.recompute = RunRecompute::all(kRecomputes.back());
  best.time = time(run, best.recompute);
  return best;
}

RunRecompute StageCosts::mixed(const LayerRun& run) const {
  const RunChoice uniform = choice(run);
  RunRecompute best = uniform.recompute;
  if (!uniform.fits) return best;
  Seconds least = uniform.time;
  for (std::size_t fast = 0; fast < kRecomputes.size(); ++fast) {
    for (std::size_t lean = fast + 1; lean < kRecomputes.size(); ++lean) {
      RunRecompute next{kRecomputes[fast], kRecomputes[lean], 0};
      while (next.num_first + 1 < run.count && fits(run, {next.first, next.rest, next.num_first + 1}))
        ++next.num_first;
      if (next.num_first > 0 && time(run, next) < least) least = time(run, next), best = next;
    }
  }
  return best;
}

i64 StageCosts::windows() const { return ceil_div(order_.microbatches, order_.window); }

Seconds StageCosts::slowest(const std::vector<i64>& layers) const {
  Seconds slowest = 0;
  LayerRun run;
  for (std::size_t s = 0; s < layers.size(); ++s, run.first += run.count) {
    run.stage = static_cast<i64>(s), run.count = layers[s];
    slowest = std::max(slowest, choice(run).time);
  }
  return slowest;
}

/// All stages one after another for the first window, the slowest one or the port of the busiest node for
/// each of the others.
Seconds StageCosts::step(const std::vector<i64>& layers, const std::vector<RunRecompute>& how) const {
  Seconds chain = 0, slowest = order_.window * busiest_port_, end = 0;
  LayerRun run;
  for (std::size_t s = 0; s < layers.size(); ++s, run.first += run.count) {
    run.stage = static_cast<i64>(s), run.count = layers[s];
    const Seconds each = time(run, how[s]);
    chain += each, slowest = std::max(slowest, each);
    end = std::max(end, end_of_step(run));
  }
  return chain + real(windows() - 1) * slowest + end;
}

/// That has room with a single layer of either kind: no run of the stage has a faster one.
Recompute StageCosts::fastest(i64 stage) const {
  const i64 layers = rates_.request().model.num_layers;
  for (const Recompute recompute : kRecomputes) {
    const Figures& f = figures_[idx(stage)];
    const auto has_room = [&](const Part& part) {
      const Bytes saved = part.attention.saved + part.experts.saved - part.inputs_wait - part.rows_wait;
      return part.states + part.attention_visit + part.experts_visit + real(f.in_flight) * saved <=
             usable(stage);
    };
    const auto r = static_cast<std::size_t>(recompute);
    const i64 dense = num_dense(0, layers);
    if ((dense > 0 && has_room(f.dense[r])) || (dense < layers && has_room(f.moe[r]))) return recompute;
  }
  return kRecomputes.back();
}

/// Stages that take the same time, each as fast as its devices are.
Seconds StageCosts::bound() const {
  const i64 layers = rates_.request().model.num_layers;
  double rate = 0;
  Seconds least = 1e300;
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const auto stage = static_cast<i64>(s);
    const Seconds whole =
        time({stage, 0, layers}, RunRecompute::all(fastest(stage))) - order_.window * figures_[s].moves;
    rate += 1 / whole;
    least = std::min(least, whole);
  }
  return least + real(windows() - 1) * std::max(1 / rate, order_.window * busiest_port_);
}

/// Each layer where it takes least, and all devices full.
bool StageCosts::states_may_fit() const {
  constexpr auto kAny = static_cast<std::size_t>(Recompute::kAhead);  // states are the same with all
  const i64 layers = rates_.request().model.num_layers, num_dense_layers = num_dense(0, layers);
  Bytes room = 0, moe = 1e300, dense = 1e300;
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const double count = real(stages_[s].count);
    room += count * usable(static_cast<i64>(s));
    moe = std::min(moe, count * figures_[s].moe[kAny].states);
    dense = std::min(dense, count * figures_[s].dense[kAny].states);
  }
  Bytes need = real(stages_[0].count) * figures_[0].embed.states +
               real(stages_.back().count) * figures_.back().head.states;
  if (num_dense_layers > 0) need += real(num_dense_layers) * dense;
  if (layers > num_dense_layers) need += real(layers - num_dense_layers) * moe;
  return need <= room;
}

/// Gradients of what replicas hold, the update and, where it is sharded, what they tell each other of it.
Seconds StageCosts::end_of_step(const LayerRun& run) const {
  const StageDevices& stage = stages_[idx(run.stage)];
  const DeviceClass& cls = rates_.classes()[stage.cls];
  const double layers = real(run.count), groups = real(order_.groups), count = real(stage.count);
  const double attention = rates_.trained_attention() / real(rates_.request().model.num_layers) * layers;
  const double experts =
      rates_.trained_of(UnitPart::kExperts, layers * owned(stage) * real(rates_.counts().expert));
  const bool sharded = order_.shard_optimizer;
  const double updated = sharded ? attention / groups / count + experts / groups : attention + experts;
  const StateBytes each = state_bytes_of(rates_.request());
  const Bytes told = each.gradients + (sharded ? each.weights : each.gradients);
  const double stages_there = std::max(1.0, cls.per_node / count);
  const StateExchange shared =
      state_exchange(cls, told * attention, count * groups, std::min(count, cls.per_node));
  const StateExchange own = state_exchange(cls, told * experts, groups, 1);
  const Seconds exchanged =
      (stages_there * shared.port + cls.per_node * own.port) / cls.port + shared.inside + own.inside;
  if (rates_.request().limits.host_use == HostUse::kNone || rates_.trained().adapts())
    return exchanged + rates_.update(stage.cls, updated);
  const double of_node = cls.per_node * experts + stages_there * attention;
  return exchanged + rates_.host_update(stage.cls, of_node);
}

}  // namespace hetermoe
