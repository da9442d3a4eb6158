#include "hetermoe/train/run/takeover.h"

#include <chrono>

#include "hetermoe/base/words.h"
#include "hetermoe/cost/price_migration.h"
#include "hetermoe/report/table.h"
#include "hetermoe/sim/simulator.h"

namespace hetermoe {

Plan plan_of_rank_0(const Processes& processes, const Plan& mine) {
  if (processes.alone()) return mine;
  const std::string told = processes.rank() == 0 ? to_json(mine).dump() : "";
  return plan_from_json(Json::parse(processes.gather(told).front()), "plan of rank 0");
}

PlanTakeover go_over_to(RunState& run, const Plan& plan) {
  if (to_json(plan) == to_json(run.plan())) return {};
  const auto begin = std::chrono::steady_clock::now();
  auto next = std::make_unique<PricedPlan>(run.job, plan_of_rank_0(run.processes, plan), run.model,
                                           run.cluster, run.nominal_cluster, run.profiles);
  const bool ordered = run.session->launches_in_order();
  const Session::Change change =
      run.session->change_plan(next->plan, executor_options(run.parts_with(*next), run.processes),
                               ordered ? next->nominal.get() : nullptr);
  const OpTimes times =
      Simulator().run(change.migration.schedule, price(change.migration, run.cluster, *next->truth));
  run.priced = std::move(next);
  for (const auto& part : run.parts) part->plan_changed();
  check_same_run(run.processes, {{"plan", to_json(run.plan()).dump()},
                                 {"schedule", fmt::format("{:016x}", hash(run.session->schedule()))}});
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  PlanTakeover out;
  out.moves = static_cast<i64>(change.migration.moves.size());
  for (const UnitMove& move : change.migration.moves) out.bytes += move.bytes;
  out.simulated_s = times.step;
  out.executed_s = wall.count();
  out.simulated = make_timeline(change.migration.schedule, times, run.plan(), run.cluster, "simulated");
  return out;
}

void take_over(RunState& run, const Plan& plan, i64 step, const std::string& name) {
  PlanTakeover done = go_over_to(run, plan);
  done.step = step + 1;
  done.plan = name;
  run.tell(fmt::format("step {}: plan {} took over, {} moved ({}) in {}, simulated {}", done.step, done.plan,
                       counted(done.moves, "unit"), format_bytes(done.bytes), format_seconds(done.executed_s),
                       format_seconds(done.simulated_s)));
  run.marks.push_back(
      fmt::format("{}, {} moved ({})", name, counted(done.moves, "unit"), format_bytes(done.bytes)));
  run.outcome.changes.push_back(std::move(done));
}

Plan plan_after(const RunState& run, const CheckpointInfo& info) {
  if (info.plan == to_json(run.first_plan)) return run.first_plan;
  for (const auto& part : run.parts) {
    if (std::optional<Plan> plan = part->plan_after(info)) return *std::move(plan);
  }
  return run.first_plan;
}

}  // namespace hetermoe
