#include "hetermoe/train/compare.h"

#include "hetermoe/base/words.h"

#include <algorithm>
#include <filesystem>

#include "hetermoe/train/clock_choice.h"
#include "hetermoe/train/host_memory.h"
#include "hetermoe/train/job_data.h"

namespace hetermoe {
namespace {

/// The strategy that made the plan which runs: a plan of a file may be another's than that of the job's
/// strategy. Files are named so, too.
std::string name_of_run(const Job& job, const Plan& plan, std::size_t num_runs) {
  const bool of_file = !job.plan.file.empty() || !job.train.changes.empty();
  std::string name =
      of_file && num_runs == 1 && !plan.strategy.empty() ? plan.strategy : find_strategy(job.strategy).name;
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

}  // namespace

std::vector<StrategyRun> compare_job(
    const Job& job, const CompareRunOptions& options,
    const std::function<void(const std::string&, const StepRecord&)>& on_step, const Processes& processes) {
  const ModelConfig model = options.model ? *options.model : load_model(job.model);
  const Cluster cluster = load_cluster(job.cluster);
  if (options.strategies.size() > 1 && !job.train.changes.empty()) {
    fail<ConfigError>("train.changes", "got {} with {}, expected none: they are compared by their own plans",
                      counted(job.train.changes.size(), "change"),
                      counted(options.strategies.size(), "strategy"));
  }
  if (options.strategies.size() > 1 && !job.routing.record.empty()) {
    fail<ConfigError>("routing.record", "got {} with {}, expected none: all would write the same trace",
                      job.routing.record, counted(options.strategies.size(), "strategy"));
  }
  if (options.strategies.size() > 1 && job.grow.at > 0) {
    fail<ConfigError>("grow.at", "got {} with {}, expected 0: `train` alone grows", job.grow.at,
                      counted(options.strategies.size(), "strategy"));
  }
  std::vector<Job> jobs;
  std::vector<StrategyRun> runs;
  // All plans first: a strategy that cannot run is known before hours are spent on another.
  for (const std::string& strategy : options.strategies) {
    jobs.push_back(job_of_strategy(job, strategy, options.strategies, cluster));
    StrategyRun run;
    run.plan = make_job_plan(jobs.back(), model, cluster);
    run.strategy = name_of_run(jobs.back(), run.plan, options.strategies.size());
    runs.push_back(std::move(run));
  }
  if (processes.alone() && job.run.device == "cpu") check_host_memory(job, model);
  HM_CHECK(!job.train.epochs, "with_steps() was not asked");
  learning_rate_of(job.train);  // what does not fit is refused before hours are spent
  const Dataset data = options.data ? *options.data : load_job_data(job);
  check_vocabulary(data, model);
  if (options.hooks.on_note) {
    options.hooks.on_note(training_line(job, model, data));
    if (const std::string note = clock_note(job, cluster); !note.empty()) options.hooks.on_note(note);
    for (const std::string& note : conversation_notes(data)) options.hooks.on_note(note);
  }
  RunFiles files(job, model, cluster, runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (stop_requested) {
      if (options.execute) runs[i].outcome.stopped_by = stop_asked();
      continue;
    }
    Trainer trainer(jobs[i], model, cluster, runs[i].plan, data, processes, options.checkpoints);
    runs[i].predicted = trainer.predict();
    if (!options.execute) continue;
    if (options.end_after > 0) trainer.end_after(options.end_after);
    if (!options.mark.empty()) trainer.mark_first(options.mark);
    // What was executed last is drawn beside the prediction for the same plan, and has its name.
    auto keep_up = [&, in_force = to_json(runs[i].plan)]() mutable {
      if (to_json(trainer.plan()) == in_force) return;
      in_force = to_json(trainer.plan());
      runs[i].plan = trainer.plan();
      runs[i].strategy = name_of_run(jobs[i], runs[i].plan, runs.size());
      runs[i].predicted = trainer.predict();
    };
    RunHooks hooks = options.hooks;
    hooks.on_step = [&](const StepRecord& record) {
      if (processes.rank() == 0) files.add(runs[i], record);
      if (on_step) on_step(runs[i].strategy, record);
    };
    hooks.wants_picture = [&] { return files.wants_picture(); };
    hooks.on_picture = [&](const StepPicture& picture) {
      if (processes.rank() != 0) return;
      keep_up();
      files.add_picture(runs[i], picture);
    };
    runs[i].outcome = trainer.run(hooks, options.timed_steps);
    keep_up();
  }
  return runs;
}

}  // namespace hetermoe
