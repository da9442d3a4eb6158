#include <algorithm>
#include <chrono>
#include <numeric>

#include "hetermoe/balance/sequence_order.h"
#include "hetermoe/balance/trace_balance.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/rows.h"
#include "hetermoe/cost/price_migration.h"
#include "hetermoe/routing/analysis.h"
#include "hetermoe/routing/padded_routing.h"
#include "hetermoe/schedule/builder.h"
#include "hetermoe/sim/simulator.h"

// A balancer over the steps of a trace.
namespace hetermoe {
namespace {

double moved_between(const LayerOwners& before, const LayerOwners& after) {
  double moved = 0;
  for (std::size_t e = 0; e < after.size(); ++e) {
    for (const ExpertOwner& owner : after[e]) {
      const bool had = std::any_of(before[e].begin(), before[e].end(),
                                   [&](const ExpertOwner& old) { return old.device == owner.device; });
      moved += had ? 0 : 1;
    }
  }
  return moved;
}

void add_range(FigureRange& all, const FigureRange& part) {
  if (part.count == 0) return;
  all.low = all.count == 0 ? part.low : std::min(all.low, part.low);
  all.high = all.count == 0 ? part.high : std::max(all.high, part.high);
  all.mean = (all.mean * real(all.count) + part.mean * real(part.count)) / real(all.count + part.count);
  all.count += part.count;
}

/// What a run would refuse has no figures.
void check_plan(const std::string& balancer, const Plan& plan, const ModelConfig& model,
                const Cluster& cluster) {
  const std::vector<std::string> faults = validate(plan, model, cluster);
  if (!faults.empty())
    fail<ConfigError>("balancer " + balancer, "makes a plan that cannot run: {}", faults[0]);
}

std::vector<std::vector<double>> loads_of(const TraceRouting& routing, i64 num_experts) {
  std::vector<std::vector<double>> out;
  const TraceStep& step = routing.step();
  for (std::size_t l = 0; l < step.counts.size(); ++l)
    out.push_back(copies_of(step, l, num_experts, 0, step.num_sequences()));
  return out;
}

}  // namespace

void TraceBalance::simulate_last(const TraceBalanceOptions& options, const Plan& plan,
                                 const SplitRouting& routing, TraceBalanceResult& out) const {
  const Schedule schedule = build_schedule(plan, model_, step_);
  const Placement placement(plan, model_, step_);
  const PaddedRouting padded(routing, cluster_);
  const RoutingLoad& load = options.padded ? static_cast<const RoutingLoad&>(padded) : routing;
  const OpTimes times = simulate(schedule, placement, model_, cluster_, *cost_, load);
  out.step = times.step;
  out.memory = peak_memory(schedule, times, placement, model_, cluster_, load);
  out.lent = lent_in(schedule, times, placement, model_, cluster_, routing);
  const OpCosts costs = price(schedule, placement, model_, cluster_, *cost_, load);
  for (std::size_t op = 0; op < schedule.ops.size(); ++op) {
    const OpKind kind = schedule.ops[op].kind;
    if (needs_load(kind) && !is_compute(kind)) out.exchanges += costs.seconds[op];
  }
}

void TraceBalance::add_figures(const Plan& plan, const Plan& before, const SplitRouting& routing,
                               TraceBalanceResult& out) const {
  const Placement placement(plan, model_, step_);
  PlanAnalyser analyser(*cost_, placement, model_, cluster_);
  analyser.add(routing);
  const PlanFigures figures = analyser.finish();
  FigureRange of_step;
  for (const PlanLayerFigures& layer : figures.layers) {
    add_range(of_step, layer.time_ratio);
    add_range(out.rank_ratio, layer.rank_ratio);
    add_range(out.node_ratio, layer.node_ratio);
  }
  add_range(out.time_ratio, of_step);
  out.time_ratio_of_step.push_back(of_step.mean);
  out.node_rows += figures.node_rows;
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    for (const i64 layer : layers_) {
      const LayerOwners& owners = plan.groups[g].layers[idx(layer)].experts;
      for (const ExpertOwners& of_expert : owners) out.owners += real(of_expert.size());
      out.moved += moved_between(before.groups[g].layers[idx(layer)].experts, owners);
    }
  }
}

void TraceBalance::add_move(const Plan& before, const Plan& plan, TraceBalanceResult& out) const {
  MoveOptions options;
  options.frozen = step_.frozen;
  options.lora = step_.lora;
  UnitMoves moves = moves_between(before, plan, model_, cluster_, options);
  if (moves.moves.empty()) return;
  out.moved_bytes += moves.bytes();
  const Migration migration = make_migration(std::move(moves.moves), cluster_.num_devices());
  out.move += Simulator().run(migration.schedule, price(migration, cluster_, *cost_)).step;
}

double TraceBalance::guests_per_exchange(const Plan& plan, const SplitRouting& routing) const {
  const Placement placement(plan, model_, step_);
  double guests = 0, exchanges = 0;
  for (i32 g = 0; g < placement.num_groups(); ++g) {
    for (const i64 layer : layers_) {
      for (i32 m = 0; m < placement.num_microbatches(g); ++m, ++exchanges)
        guests += real(routing.split(placement, g, static_cast<i32>(layer), m)[0].guests.size());
    }
  }
  return guests / exchanges;
}

std::vector<i64> TraceBalance::order(const TraceBalanceOptions& options, const Plan& plan,
                                     const Activations& rows) const {
  const SequenceOrder within = balancer_choice(options.balancer, options.parts).order;
  if (within == SequenceOrder::kAsTheyCome || rows.empty()) return {};
  const Placement placement(plan, model_, step_);
  std::vector<i64> from(rows.size());
  std::iota(from.begin(), from.end(), 0);
  for (i32 g = 0; g < placement.num_groups(); ++g) {
    const PlacesOfGroup places =
        places_of_group(options.groups, cluster_, placement, g, static_cast<i32>(layers_[0]));
    if (places.num_mixed() >= 2) order_places(places, within, placement, g, layers_, rows, from);
  }
  return from;
}

TraceRouting TraceBalance::ordered(const TraceBalanceOptions& options, const Plan& plan,
                                   const Activations& rows, const TraceRouting& step) const {
  const std::vector<i64> from = order(options, plan, rows);
  if (from.empty()) return step;
  return TraceRouting(step.header(), permuted(step.step(), step.header(), from), model_, "routes");
}

Seconds TraceBalance::simulated(const Plan& plan, const RoutingLoad& routing) const {
  const Placement placement(plan, model_, step_);
  return simulate(build_schedule(placement), placement, model_, cluster_, *cost_, routing).step;
}

/// By what owners are chosen for a step.
struct TraceBalance::Known {
  Loads loads;
  const TraceRouting* step = nullptr;  // the newest that is known
  DomainUse use = {};                  // by history, where the trace has several domains
  i64 num_steps = 0;                   // in `use`

  void add(const TraceRouting& newest, bool by_history) {
    step = &newest;
    if (!by_history) loads.clear();
    add_to(loads, loads_of(newest, newest.header().num_experts));
    if (by_history && newest.header().domains.size() > 1)
      move_mean(use, domain_use(newest.header(), newest.step()), 1 / real(++num_steps));
  }
};

/// By what the sequences of a step are ordered.
Activations TraceBalance::rows_of(const TraceBalanceOptions& options, const Known& known,
                                  const TraceRouting& step) {
  if (options.knows == Knows::kForesight) return chosen_rows(step);
  return expected_rows(known.use, domains_of(step.step()));
}

/// The plan of a balancer, or with a guard the plan as it is where that is as fast on the step known.
Plan TraceBalance::chosen(const TraceBalanceOptions& options, const Known& known, bool& kept) const {
  Plan plan = placed(options, known.loads, known.step, known.use);
  check_plan(options.balancer, plan, model_, cluster_);
  const BalancerChoice choice = balancer_choice(options.balancer, options.parts);
  const CopySplit split = choice.split;
  kept = false;
  if (!options.guard || split == CopySplit::kOracle || choice.as_planned()) return plan;
  Plan own = placed({.balancer = "none", .weigh = options.weigh}, known.loads);
  const TraceRouting as_ordered = ordered(options, plan, rows_of(options, known, *known.step), *known.step);
  const auto step_of = [&](const Plan& under, const SplitRouting& routing) {
    return options.padded ? simulated(under, PaddedRouting(routing, cluster_)) : simulated(under, routing);
  };
  kept = !shortens(step_of(plan, SplitRouting(as_ordered, cluster_, split)),
                   step_of(own, SplitRouting(*known.step, cluster_, CopySplit::kShares)));
  return kept ? own : plan;
}

TraceBalanceResult TraceBalance::run(const TraceBalanceOptions& options, const RecordedSteps& steps) const {
  const bool by_history = options.knows == Knows::kHistory;
  if (steps.count < (by_history ? 2U : 1U))
    fail<InputError>("routing balance",
                     "got {} whole steps, expected at least 2 where a balancer goes by the steps "
                     "before. Record more steps, or say --knows foresight",
                     steps.count);
  TraceBalanceResult out;
  Known known;
  Plan before = plan_;
  std::optional<TraceRouting> last;
  if (by_history) last = steps.read(0);
  for (std::size_t s = by_history ? 1 : 0; s < steps.count; ++s) {
    TraceRouting recorded = steps.read(s);
    known.add(by_history ? *last : recorded, by_history);
    const auto start = std::chrono::steady_clock::now();
    bool kept = false;
    Plan plan = chosen(options, known, kept);
    out.plan += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const TraceRouting step =
        kept ? recorded : ordered(options, plan, rows_of(options, known, recorded), recorded);
    const SplitRouting routing(
        step, cluster_, kept ? CopySplit::kShares : balancer_choice(options.balancer, options.parts).split);
    out.kept += kept ? 1 : 0;
    out.steps.push_back(recorded.step().step);
    add_figures(plan, before, routing, out);
    add_move(before, plan, out);
    out.guests += guests_per_exchange(plan, routing);
    if (s + 1 == steps.count) {
      simulate_last(options, plan, routing, out);
      if (options.balancer != "oracle") out.loads = loads_with_speeds(plan, step, routing);
    }
    before = std::move(plan);
    last = std::move(recorded);
  }
  const double num_steps = real(out.steps.size());
  const double num_layers = num_steps * real(layers_.size()) * real(plan_.groups.size());
  out.node_rows /= num_steps;
  out.guests /= num_steps;
  out.plan /= num_steps;
  out.moved_bytes /= num_steps;
  out.move /= num_steps;
  out.owners /= num_layers;
  out.moved /= num_layers;
  return out;
}

std::vector<DeviceLoads> TraceBalance::loads_with_speeds(const Plan& plan, const TraceRouting& step,
                                                         const SplitRouting& routing) const {
  std::vector<DeviceLoads> out = device_loads(step, routing, Placement(plan, model_, step_));
  for (DeviceLoads& loads : out) {
    const std::vector<DeviceId>& devices = devices_[idx(loads.group)];
    for (const DeviceId device : loads.devices)
      loads.speeds.push_back(speeds_[idx(loads.group)][position(devices, device)]);
  }
  return out;
}

}  // namespace hetermoe
