#include <algorithm>

#include "hetermoe/exec/migration_run.h"
#include "hetermoe/train/session/changes.h"
#include "hetermoe/train/session/session.h"

// A session goes over to another plan.
namespace hetermoe {

Session::Change Session::change_plan(Plan plan, ExecutorOptions executor, const CostModel* launch_by) {
  HM_CHECK(options_.step.staleness == 0, "updates are under way between steps");
  if (const std::optional<std::string> why = hindrance(this->plan(), plan, model_, options_.step.frozen))
    fail<ConfigError>("plan", "the session cannot go over to it: {}", *why);
  Passes next = make_passes(std::move(plan));
  order_launches(*next.train, launch_by);
  order_launches(*next.forward, launch_by);
  MoveOptions options;
  options.frozen = options_.step.frozen;
  options.lora = options_.step.lora;
  UnitMoves moves = moves_between(this->plan(), next.train->plan, model_, cluster_, options);
  HM_CHECK(moves.lost.empty(), "{} has no holder", to_string(moves.lost.front()));
  options_.executor = std::move(executor);
  options_.launch_by = launch_by;
  // Their lanes hold views of storages that are about to go.
  passes_.train->executor.reset();
  passes_.forward->executor.reset();
  add_states(*next.train, Schedule());
  Change change{.migration = make_migration(std::move(moves.moves), cluster_.num_devices()), .executed = {}};
  change.executed = migrate(change.migration, *next.train);
  adopt(std::move(next));
  return change;
}

/// Steps of migrations count down from -1: no message of a step can be taken for one of theirs.
Timeline Session::migrate(const Migration& migration, const Pass& next) {
  MigrationRun run{
      .migration = migration, .before = schedule().states, .num_layers = static_cast<i32>(model_.num_layers)};
  for (const std::unique_ptr<DeviceState>& state : states_)
    run.updates = std::max(run.updates, state->store().updates());
  for (const std::unique_ptr<DeviceState>& state : states_)
    rearrange_alone(run, next.schedule.states, *state);
  const RunContext context{.model = model_,
                           .cluster = cluster_,
                           .placement = next.placement,
                           .schedule = migration.schedule,
                           .migration = &run};
  ExecutorOptions options;
  options.watchdog = options_.executor.watchdog;
  options.before_op = options_.executor.before_op;
  std::vector<DeviceState*> devices = states();  // what is on hosts stays there
  std::erase_if(devices, [&](DeviceState* state) { return state->device() >= cluster_.num_devices(); });
  Executor executor(context, devices, *transport_, std::move(options));
  StepInput input;
  input.step = -++num_changes_;
  executor.run(input);
  return executor.timeline();
}

/// The states follow the new schedule; those of places that it leaves idle go.
void Session::adopt(Passes next) {
  const std::vector<PlaceId> places = places_of(next.train->plan, next.train->schedule);
  i64 updates = 0;
  for (const std::unique_ptr<DeviceState>& state : states_) {
    state->store().bind(next.train->schedule.states);
    updates = std::max(updates, state->store().updates());
  }
  std::erase_if(states_, [&](const std::unique_ptr<DeviceState>& state) {
    return !std::binary_search(places.begin(), places.end(), state->device());
  });
  for (const std::unique_ptr<DeviceState>& state : states_) state->store().set_updates(updates);
  passes_ = std::move(next);
  keep_lost();
  start(*passes_.train);
}

}  // namespace hetermoe
