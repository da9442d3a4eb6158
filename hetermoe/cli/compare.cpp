#include "hetermoe/train/compare.h"

#include <iostream>
#include <memory>

#include "hetermoe/cli/command.h"
#include "hetermoe/report/progress.h"

namespace hetermoe {
namespace {

struct Options {
  std::string job;
  std::vector<std::string> strategies = {"zebra", "ep", "ep-overlap", "dist-ep", "single"};
  i64 timed_steps = 3;
  bool simulate_only = false, json = false;
};

int compare(const Options& options, const Overrides& overrides) {
  const Job job = options.job.empty() ? job_from_overrides(overrides) : load_job(options.job, overrides);
  stop_on_interrupt();
  ProgressOptions style;
  if (options.json) style.style = ProgressStyle::kNone;
  const i64 steps = job.train.steps + options.timed_steps;
  Progress progress("comparing", static_cast<i64>(options.strategies.size()) * steps, style);
  i64 done = 0;
  const auto on_step = [&](const std::string& strategy, const StepRecord& record) {
    progress.update(++done, fmt::format("{} step {} loss {:.4f}", strategy, record.step, record.loss));
  };
  const std::vector<StrategyRun> runs =
      compare_job(job, {options.strategies, !options.simulate_only, options.timed_steps}, on_step);
  progress.finish();
  const std::filesystem::path report =
      write_results(job, load_model(job.model), load_cluster(job.cluster), runs);
  if (options.json) {
    Json rows = Json::array();
    for (const StrategyRun& run : runs) rows.push_back(to_json(run, job));
    print_json({{"rows", rows}});
  } else {
    std::cout << strategy_table(runs) << "report: " << report.string() << "\n";
  }
  return 0;
}

}  // namespace

std::function<int()> make_compare(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  app.add_option("job", options->job, "job file (YAML); every key of it is also a flag: --train.steps 5");
  app.add_option("--strategies,--strategy", options->strategies, "strategies, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--timed-steps", options->timed_steps, "steps under the paced clock after training")
      ->capture_default_str();
  app.add_flag("--simulate-only", options->simulate_only, "predict and do not train");
  app.add_flag("--json", options->json, "print rows as JSON");
  allow_overrides(app);
  return [options, &app] { return compare(*options, overrides_of(app)); };
}

}  // namespace hetermoe
