#include "hetermoe/train/compare.h"

#include <algorithm>
#include <filesystem>

#include "hetermoe/train/host_memory.h"

namespace hetermoe {

std::vector<StrategyRun> compare_job(
    const Job& job, const CompareRunOptions& options,
    const std::function<void(const std::string&, const StepRecord&)>& on_step, const Processes& processes) {
  const ModelConfig model = load_model(job.model);
  const Cluster cluster = load_cluster(job.cluster);
  if (options.strategies.size() > 1 && !job.train.changes.empty()) {
    fail<ConfigError>("train.changes",
                      "got {} changes with {} strategies, expected none: they are compared by "
                      "their own plans",
                      job.train.changes.size(), options.strategies.size());
  }
  std::vector<Job> jobs;
  std::vector<StrategyRun> runs;
  // All plans first: a strategy that cannot run is known before hours are spent on another.
  for (const std::string& strategy : options.strategies) {
    jobs.push_back(job_of_strategy(job, strategy, options.strategies, cluster));
    StrategyRun run;
    run.strategy = find_strategy(strategy).name;
    std::replace(run.strategy.begin(), run.strategy.end(), '_', '-');
    run.plan = make_job_plan(jobs.back(), model, cluster);
    runs.push_back(std::move(run));
  }
  if (processes.rank() == 0) check_writable(std::filesystem::path(job.output) / "report.html");
  if (processes.alone() && job.run.device == "cpu") check_host_memory(job, model);
  const Text text = load_text(job.data, job.train.seq_len);
  check_vocabulary(text, model);
  MetricsLog metrics(job, runs.size());
  for (std::size_t i = 0; i < runs.size() && !stop_requested; ++i) {
    Trainer trainer(jobs[i], model, cluster, runs[i].plan, text, processes, options.checkpoints);
    runs[i].predicted = trainer.predict();
    if (!options.execute) continue;
    runs[i].outcome = trainer.run(
        [&](const StepRecord& record) {
          if (processes.rank() == 0) metrics.add(runs[i].strategy, record);
          if (on_step) on_step(runs[i].strategy, record);
        },
        options.timed_steps);
    if (runs[i].outcome.changes.empty()) continue;
    // What was executed last is drawn beside the prediction for the same plan.
    runs[i].plan = trainer.plan();
    runs[i].predicted = trainer.predict();
  }
  return runs;
}

}  // namespace hetermoe
