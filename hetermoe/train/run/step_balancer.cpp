#include "hetermoe/train/run/step_balancer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hetermoe/balance/expected_steps.h"
#include "hetermoe/balance/locality.h"
#include "hetermoe/balance/sequence_order.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/rows.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/cost/price_migration.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/schedule/builder.h"
#include "hetermoe/sim/migration_memory.h"
#include "hetermoe/sim/simulator.h"
#include "hetermoe/train/run/health.h"
#include "hetermoe/train/session/changes.h"

namespace hetermoe {
namespace {

void check_foresight(const Job& job) {
  if (job.balancer.probe && job.balancer.knows != Knows::kForesight)
    fail<ConfigError>(
        "balancer.probe",
        "got true, expected false where owners are chosen by history. Say balancer.knows: foresight");
  if (job.balancer.probe && (!job.routing.replay.empty() || job.train.forced_balance))
    fail<ConfigError>("balancer.probe",
                      "got true, expected false where the choices are known already (routing.replay, "
                      "train.forced_balance)");
  if (job.balancer.probe || job.balancer.knows != Knows::kForesight) return;
  if (job.routing.replay.empty())
    fail<ConfigError>("balancer.knows",
                      "got foresight, expected history where no choices are replayed. Give routing.replay or "
                      "balancer.probe");
  if (job.routing.replay_gaps == ReplayGaps::kChoose)
    fail<ConfigError>("balancer.knows",
                      "got foresight, expected history where the trace may have gaps (routing.replay_gaps: "
                      "choose)");
}

/// What differs from the prediction by chance alone must not move experts.
constexpr double kNoticedSlowness = 0.05;

/// Each device's slowness over that of the fastest device of its kind; 0 for one that did nothing. Unlike
/// over the others of its kind, of which there may be one, that compares all with the same.
std::vector<double> over_fastest(const std::vector<double>& slowness, const std::vector<std::string>& kinds) {
  std::vector<double> out(slowness.size(), 0);
  for (std::size_t d = 0; d < out.size(); ++d) {
    double fastest = slowness[d];
    for (std::size_t p = 0; p < out.size(); ++p) {
      if (kinds[p] == kinds[d] && slowness[p] > 0) fastest = std::min(fastest, slowness[p]);
    }
    if (slowness[d] > 0) out[d] = slowness[d] / fastest;
  }
  return out;
}

/// What of a measured slowness the file's does not explain. A speed does not reach all of an op (launches
/// cost what they cost), so that anything between 1 and its inverse is as the file says.
double beyond(double measured, double expected) {
  if (measured > expected) return measured / expected;
  return measured < 1 ? measured : 1;
}

void check_locality(const Job& job, i64 num_domains) {
  if (job.balancer.knows == Knows::kHistory && num_domains < 2)
    fail<ConfigError>(
        "balancer.knows",
        "got history, expected foresight with locality where all text is of one domain: by history it goes "
        "by "
        "what each domain chose. Give data.paths with data.weights (and data.domains), or routing.replay or "
        "balancer.probe with balancer.knows: foresight");
  check_load_cap("balancer.load_cap", job.balancer.load_cap);
  if (job.train.router_jitter > 0)
    fail<ConfigError>(
        "train.router_jitter",
        "got {}, expected 0 with locality: the noise is drawn by places, to which sequences come in "
        "another order",
        job.train.router_jitter);
}

/// Every expert at its first owner alone.
Plan without_copies(Plan plan) {
  for (Group& group : plan.groups) {
    for (LayerPlacement& layer : group.layers) {
      for (ExpertOwners& owners : layer.experts) owners = {{.device = owners[0].device, .share = 1}};
    }
  }
  return plan;
}

BalancerChoice balancer_choice_of(const Job& job) {
  return balancer_choice(job.balancer.name, job.balancer.parts);
}

const Plan& checked(const Job& job, const Plan& plan, const ModelConfig& model, i64 num_domains) {
  const auto refuse = [&](const std::string& why) {
    fail<ConfigError>("balancer.name", "got {}, expected none: {}", job.balancer.name, why);
  };
  const BalancerChoice choice = balancer_choice_of(job);
  const CopySplit split = choice.split;
  if (choice.balancer != nullptr && choice.balancer->by_use) check_locality(job, num_domains);
  if (split == CopySplit::kOracle) refuse("the bound is for traces (hetermoe routing balance)");
  if (split == CopySplit::kExact && !plan.tally && !plan.foreseen)
    refuse("the plan has no tally, by which copies are divided");
  if (split == CopySplit::kGuests && plan.guest_slots == 0 && job.balancer.guests > 0)
    refuse("the plan has no room for guests (guest_slots)");
  check_foresight(job);
  if (!job.train.changes.empty()) refuse("train.changes says which plan comes when");
  if (plan.order == OrderPolicy::kExplicit)
    refuse("the plan has an explicit order, which fits one choice of owners");
  // Other owners would have other parts.
  if (uses_hosts(plan)) refuse("[hosts] is not empty: what is on hosts cannot move between steps yet");
  if (plan.shard_optimizer || shards_weights(plan))
    refuse("[shard_optimizer] is true: parts of an optimizer's state cannot move between steps yet");
  if (const std::optional<std::string> why = hindrance(plan, plan, model)) refuse(*why);
  return plan;
}

}  // namespace

StepBalancer::StepBalancer(const Job& job, const ModelConfig& model, const Cluster& cluster,
                           const Plan& first, const ProfileSet& profiles, i64 num_domains)
    : options_(job.balancer),
      model_(model),
      cluster_(cluster),
      first_(checked(job, first, model, num_domains)),
      step_(step_options(job, model)),
      layers_(layers_with_experts(model)),
      kinds_(kinds_of(cluster, first_)),
      choice_(balancer_choice_of(job)),
      num_domains_(idx(num_domains)),
      by_domain_(choice_.order != SequenceOrder::kAsTheyCome && !foresees() && num_domains > 1),
      orders_(choice_.order != SequenceOrder::kAsTheyCome && (foresees() || by_domain_) &&
              job.train.aux_group <= 1 && job.train.router_jitter == 0),
      profiles_(profiles),
      emulated_(emulated_plan(job, first_)) {
  if (layers_.empty())
    fail<ConfigError>("balancer.name", "model {} has no layer with experts: nothing to balance", model.name);
  check_first_look();
  if (choice_.order == SequenceOrder::kAsTheyCome) return;
  const Placement placement(first_, model, step_);  // says so at once where groups are none
  for (i32 g = 0; g < placement.num_groups(); ++g)
    places_of_group(options_.groups, cluster, placement, g, static_cast<i32>(layers_[0]));
}

/// A plan whose experts no balancer can place, and copies that cannot be made or have no room, are known
/// before hours are spent. What goes by loads says nothing yet.
void StepBalancer::check_first_look() const {
  const TraceBalance balance(model_, cluster_, emulated_, step_, profiles_);
  if (choice_.balancer == nullptr || choice_.balancer->has_parts || choice_.balancer->by_use) return;
  balance.placed(balance_options(), even_load(static_cast<i64>(layers_.size()), model_.num_experts));
}

StepBalancer::Loads StepBalancer::with_experts(const Loads& of_all_layers) const {
  Loads out;
  for (const i64 layer : layers_) out.push_back(of_all_layers[idx(layer)]);
  return out;
}

void StepBalancer::foresee(const Loads& copies, TraceRouting step) {
  foreseen_ = with_experts(copies);
  foreseen_step_ = std::make_unique<TraceRouting>(std::move(step));
}

void StepBalancer::add_use(const DomainUse& newest) {
  move_mean(history_.use, newest, 1 / real(options_.history));
}

/// Of the sequences that come.
Activations StepBalancer::rows() const {
  return by_domain_ ? expected_rows(history_.use, domains_) : chosen_rows(*foreseen_step_);
}

void StepBalancer::add_slowness(const std::vector<double>& slowness) {
  if (!options_.measure) return;
  // The cluster file's speeds are in the cost model already.
  std::vector<double> known;
  for (const Device& device : cluster_.devices) known.push_back(1 / device.speed);
  const std::vector<double> measured = over_fastest(slowness, kinds_), expected = over_fastest(known, kinds_);
  const bool first = history_.slowness.empty();
  const double weight = first ? 1 : 1 / real(options_.history);
  if (first) history_.slowness.assign(measured.size(), 1);
  for (std::size_t d = 0; d < measured.size(); ++d) {
    if (measured[d] > 0 && expected[d] > 0)
      history_.slowness[d] += weight * (beyond(measured[d], expected[d]) - history_.slowness[d]);
  }
}

/// The cluster with the speeds that devices have shown beside their peers.
Cluster StepBalancer::measured_cluster() const {
  Cluster out = cluster_;
  for (std::size_t d = 0; d < history_.slowness.size(); ++d) {
    if (std::abs(history_.slowness[d] - 1) > kNoticedSlowness) out.devices[d].speed /= history_.slowness[d];
  }
  return out;
}

void StepBalancer::add(const std::vector<std::vector<double>>& copies) {
  HM_CHECK(foreseen_.empty() || foreseen_ == with_experts(copies),
           "the routers of the step chose other experts than were foreseen");
  foreseen_.clear();
  foreseen_step_.reset();
  move_mean(history_.loads, with_experts(copies), 1 / real(options_.history));
}

TraceBalanceOptions StepBalancer::balance_options() const {
  return {.balancer = options_.name,
          .parts = options_.parts,
          .knows = options_.knows,
          .replicas = options_.replicas,
          .guests = options_.guests,
          .topology = options_.topology,
          .groups = options_.groups,
          .load_cap = options_.load_cap};
}

std::vector<i64> StepBalancer::order(const Plan& in_force) const {
  if (!orders_) return {};
  return TraceBalance(model_, cluster_, emulated_, step_, profiles_)
      .order(balance_options(), in_force, rows());
}

/// By what earlier steps chose; places have the domains that the order of the plan brings there.
Seconds StepBalancer::expected_step(const TraceBalance& balance, const Plan& emulated) const {
  const Activations known = by_domain_ ? rows() : Activations();
  if (known.empty()) return balance.simulated(emulated, LayerPopularity(model_, layers_, loads()));
  std::vector<i32> of_places = domains_;
  const std::vector<i64> order =
      orders_ ? balance.order(balance_options(), emulated, known) : std::vector<i64>();
  for (std::size_t place = 0; place < order.size(); ++place) of_places[place] = domains_[idx(order[place])];
  return balance.simulated(emulated, DomainRouting(model_, layers_, history_.use, of_places));
}

Seconds StepBalancer::simulated_step(const TraceBalance& balance, const Plan& emulated) const {
  if (foreseen_step_ == nullptr) return expected_step(balance, emulated);
  const TraceRouting& step = *foreseen_step_;
  const CopySplit split = copy_split_of(emulated);
  if (!orders_) return balance.simulated(emulated, SplitRouting(step, cluster_, split));
  const TraceRouting ordered = balance.ordered(balance_options(), emulated, rows(), step);
  return balance.simulated(emulated, SplitRouting(ordered, cluster_, split));
}

BalancedOwners StepBalancer::choose(const PricedPlan& in_force) const {
  BalancedOwners out;
  const Cluster measured = measured_cluster();
  const TraceBalance balance(model_, measured, emulated_, step_, profiles_);
  const Plan next = with_owners(
      in_force.plan, balance.placed(balance_options(), loads(), foreseen_step_.get(), history_.use));
  const bool same = to_json(next) == to_json(in_force.plan);
  // What the balancer would leave as it is may have copies that do not pay.
  const bool asks = options_.guard && foreseen_step_ != nullptr && choice_.balancer != nullptr;
  if (same && !asks) return out;
  const std::vector<std::string> faults = validate(next, model_, cluster_);
  if (!faults.empty()) {
    out.why_not = faults[0];
    return out;
  }
  const std::string over = overfilled_device(estimate_memory(next, model_), cluster_);
  if (!over.empty() && overfilled_device(estimate_memory(in_force.plan, model_), cluster_).empty()) {
    out.why_not = "with the experts it would own, " + over;
    return out;
  }
  const MoveOptions options = move_options();
  const std::string full =
      overfilled_device(migration_memory(in_force.plan, next, model_, cluster_, options), cluster_);
  const bool was_full =
      !overfilled_device(migration_memory(in_force.plan, in_force.plan, model_, cluster_, options), cluster_)
           .empty();
  if (!full.empty() && !was_full) {
    out.why_not = "while experts move, " + full;
    return out;
  }
  if (options_.guard)
    weigh(balance, in_force, next, out);
  else
    out.plan = next;
  return out;
}

Seconds StepBalancer::move_time(const PricedPlan& in_force, const Plan& next) const {
  UnitMoves moves = moves_between(in_force.plan, next, model_, cluster_, move_options());
  if (moves.moves.empty()) return 0;
  const Migration migration = make_migration(std::move(moves.moves), cluster_.num_devices());
  return Simulator().run(migration.schedule, price(migration, cluster_, *in_force.truth)).step;
}

MoveOptions StepBalancer::move_options() const {
  MoveOptions options;
  options.frozen = step_.frozen;
  options.lora = step_.lora;
  return options;
}

/// Takes the owners of `next` if they shorten the step, and what that saves pays for the move; else copies
/// that are there go where the step is shorter without them. By mean loads that is not asked: they do not
/// show what copies win where loads change from one microbatch to the next.
void StepBalancer::weigh(const TraceBalance& balance, const PricedPlan& in_force, Plan next,
                         BalancedOwners& out) const {
  const auto step_with = [&](const Plan& plan) {
    return simulated_step(balance, with_owners(in_force.emulated, plan));
  };
  const Plan alone = foreseen_step_ ? without_copies(in_force.plan) : in_force.plan;
  const auto differs = [&](const Plan& plan) { return to_json(plan) != to_json(in_force.plan); };
  if (!differs(next) && !differs(alone)) return;
  out.before = simulated_step(balance, in_force.emulated);
  out.after = differs(next) ? step_with(next) : out.before;
  const Seconds without = differs(alone) ? step_with(alone) : out.before;
  const bool shorter = shortens(out.after, std::min(without, out.before));
  out.move = shorter ? move_time(in_force, next) : 0;
  const i64 horizon = options_.horizon > 0 ? options_.horizon : options_.every;
  if (shorter && (out.before - out.after) * real(horizon) > out.move) {
    out.plan = std::move(next);
  } else if (shortens(without, out.before)) {
    out.plan = alone;
    out.after = without;
    out.move = 0;
    out.held = true;
  } else if (differs(next)) {
    out.held = !shorter;
    out.why_not = shorter ? "what it saves would not pay for the move"
                          : "others would not shorten the step by half a percent (simulated)";
  }
}

void StepBalancer::restore(BalancerHistory history) {
  const auto fits = [&](const std::vector<double>& layer) { return layer.size() == idx(model_.num_experts); };
  if (history.loads.size() == layers_.size() && std::all_of(history.loads.begin(), history.loads.end(), fits))
    history_.loads = std::move(history.loads);
  if (options_.measure && history.slowness.size() == cluster_.devices.size())
    history_.slowness = std::move(history.slowness);
  const auto is_row = [&](const std::vector<double>& row) {
    return row.size() == layers_.size() * idx(model_.num_experts);
  };
  const DomainUse& use = history.use;
  if (by_domain_ && use.copies.size() == num_domains_ && use.sequences.size() == num_domains_ &&
      std::all_of(use.copies.begin(), use.copies.end(), is_row))
    history_.use = std::move(history.use);
}

bool StepBalancer::may_go_on_with(const Plan& plan) const {
  if (plan.groups.size() != first_.groups.size()) return false;
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    if (plan.groups[g].layers.size() != first_.groups[g].layers.size()) return false;
  }
  return to_json(with_owners(first_, plan)) == to_json(plan);
}

}  // namespace hetermoe
