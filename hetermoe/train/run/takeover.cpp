#include <algorithm>
#include <chrono>

#include "hetermoe/base/words.h"
#include "hetermoe/cost/price_migration.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/job/router_training.h"
#include "hetermoe/train/run/trainer.h"
#include "hetermoe/train/session/batch.h"

// A run goes over from one plan to the next.
namespace hetermoe {
namespace {

/// Rank 0 says which plan comes next; collective.
Plan plan_of_rank_0(const Processes& processes, const Plan& mine) {
  if (processes.alone()) return mine;
  const std::string told = processes.rank() == 0 ? to_json(mine).dump() : "";
  return plan_from_json(Json::parse(processes.gather(told).front()), "plan of rank 0");
}

}  // namespace

SessionParts Trainer::parts_with(const PricedPlan& priced) const {
  return {.job = job_,
          .model = model_,
          .cluster = cluster_,
          .plan = priced.plan,
          .emulated = priced.placement,
          .truth = *priced.truth,
          .nominal = *priced.nominal,
          .profiles = profiles_,
          .text_checksum = text_checksum_,
          .changes = changes_,
          .meter = meter_.get(),
          .sent = sent_.get()};
}

/// The plan under which a run goes on from a checkpoint: that which was in force, if it is still one of the
/// job, else the one that the job has at this step.
Plan Trainer::plan_after(const CheckpointInfo& info) const {
  if (info.plan == to_json(first_plan_)) return first_plan_;
  if (balancer_ && !info.plan.is_null()) {
    Plan balanced = plan_from_json(info.plan, "plan of the checkpoint");
    if (balancer_->may_go_on_with(balanced)) return balanced;
  }
  const Plan* of_job = &first_plan_;
  for (const PlannedChange& change : changes_) {
    if (info.plan == to_json(change.plan)) return change.plan;
    if (change.step <= info.step) of_job = &change.plan;
  }
  return *of_job;
}

/// Collective; what the devices of the plan lack moves to them.
PlanTakeover Trainer::go_over_to(const Plan& plan) {
  if (to_json(plan) == to_json(this->plan())) return {};
  const auto begin = std::chrono::steady_clock::now();
  auto next = std::make_unique<PricedPlan>(job_, plan_of_rank_0(processes_, plan), model_, cluster_,
                                           nominal_cluster_, profiles_);
  const bool ordered = session_->launches_in_order();
  const Session::Change change = session_->change_plan(
      next->plan, executor_options(parts_with(*next), processes_), ordered ? next->nominal.get() : nullptr);
  const OpTimes times =
      Simulator().run(change.migration.schedule, price(change.migration, cluster_, *next->truth));
  routing_watch_.reset();
  priced_ = std::move(next);
  stragglers_ = StragglerWatch(kinds_of(cluster_, this->plan()), job_.train.straggler_share);
  check_same_run(processes_, {{"plan", to_json(this->plan()).dump()},
                              {"schedule", fmt::format("{:016x}", hash(session_->schedule()))}});
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  PlanTakeover out;
  out.moves = static_cast<i64>(change.migration.moves.size());
  for (const UnitMove& move : change.migration.moves) out.bytes += move.bytes;
  out.simulated_s = times.step;
  out.executed_s = wall.count();
  out.simulated = make_timeline(change.migration.schedule, times, this->plan(), cluster_, "simulated");
  return out;
}

/// Rank 0 decides: what a balancer computes need not be equal to the bit on all machines.
bool Trainer::balance_before(i64 step, TrainOutcome& out) {
  if (!balancer_) return false;
  if (route_probe_) {
    StepInput input = input_of(train_, step, next_sequence_);
    input.router = router_training(job_.train, step, next_sequence_);
    route_probe_->run(*session_, std::move(input), processes_);
    balancer_->foresee(copies_of_choices(route_probe_->choices(), model_.num_experts),
                       routing_of_choices(route_probe_->choices(), model_, "balancer.probe"));
  } else if (balancer_->foresees()) {
    const std::vector<std::vector<double>> copies =
        route_replay_->copies(next_sequence_, job_.train.sequences);
    balancer_->foresee(copies, route_replay_->routing(model_));
  } else if (balancer_->goes_by_domains()) {
    balancer_->expect(domains_from(next_sequence_));
  }
  if (!balancer_->is_due(step)) return false;
  const BalancedOwners chosen = balancer_->choose(*priced_);
  ++looks_;
  held_ += chosen.held ? 1 : 0;
  held_before_ = chosen.held;
  const Plan next = plan_of_rank_0(processes_, chosen.plan.value_or(plan()));
  if (to_json(next) == to_json(plan())) {
    if (!chosen.why_not.empty() && chosen.why_not != balancer_kept_for_) {
      tell(fmt::format("step {}: owners of experts stay: {}", step + 1, chosen.why_not), out);
      balancer_kept_for_ = chosen.why_not;
    }
    return false;
  }
  const std::string promise = chosen.before > 0
                                  ? fmt::format(", for steps of {} instead of {} (simulated)",
                                                format_seconds(chosen.after), format_seconds(chosen.before))
                                  : "";
  const std::string who =
      chosen.held ? "the guard gave up copies" : job_.balancer.name + " chose other owners";
  tell(fmt::format("step {}: {} of experts{}", step + 1, who, promise), out);
  take_over(next, step, "owners by " + job_.balancer.name, out);
  return true;
}

void Trainer::tell_guard(TrainOutcome& out) {
  if (held_ > 0)
    tell(fmt::format("the guard held {} back in {} of {}: its owners would not have shortened the simulated "
                     "step by half a percent (balancer.guard)",
                     job_.balancer.name, held_, counted(looks_, "look")),
         out);
}

/// The step with its sequences where the balancer wants them. Rank 0 decides.
StepInput Trainer::in_order(StepInput input) {
  std::vector<i64> order = balancer_ ? balancer_->order(plan()) : std::vector<i64>();
  if (!order.empty() && !processes_.alone()) {
    const std::string told = processes_.rank() == 0 ? Json(order).dump() : "";
    order = Json::parse(processes_.gather(told).front()).get<std::vector<i64>>();
  }
  if (!order.empty()) reorder(input, order);
  if (routes_) routes_->set_order(std::move(order));
  return input;
}

/// step: 0 = the first. True when another plan took over.
bool Trainer::change_plan_before(i64 step, TrainOutcome& out) {
  const auto change = std::find_if(changes_.begin(), changes_.end(),
                                   [&](const PlannedChange& c) { return c.step == step + 1; });
  if (change == changes_.end()) return balance_before(step, out);
  take_over(change->plan, step, change->name, out);
  return true;
}

void Trainer::take_over(const Plan& plan, i64 step, const std::string& name, TrainOutcome& out) {
  PlanTakeover done = go_over_to(plan);
  done.step = step + 1;
  done.plan = name;
  if (out.pace) session_->executor().set_clock(ClockKind::kPaced, out.pace->scale);
  tell(fmt::format("step {}: plan {} took over, {} moved ({}) in {}, simulated {}", done.step, done.plan,
                   counted(done.moves, "unit"), format_bytes(done.bytes), format_seconds(done.executed_s),
                   format_seconds(done.simulated_s)),
       out);
  marks_.push_back(
      fmt::format("{}, {} moved ({})", name, counted(done.moves, "unit"), format_bytes(done.bytes)));
  out.changes.push_back(std::move(done));
}

}  // namespace hetermoe
