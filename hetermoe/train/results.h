#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "hetermoe/report/html.h"
#include "hetermoe/train/trainer.h"

// What a run leaves behind: resolved configuration, plan, schedule, metrics, timelines, loss curve, report.
namespace hetermoe {

/// One strategy's training and prediction, as `train` shows one of and `compare` several.
struct StrategyRun {
  std::string strategy;  ///< printed form: dist-ep
  Plan plan;
  PredictedStep predicted;
  TrainOutcome outcome;
};

/// One line of text for a step: step, loss, auxiliary loss, gradient norm, learning rate, tokens/s, expert
/// max/mean, waiting share per role.
std::string log_line(const StepRecord& record, i64 total_steps);
/// One JSON line of metrics.
Json metrics_json(const StepRecord& record);

/// Columns: strategy, predicted, replayed and executed step, busy share per role, final losses.
std::string strategy_table(const std::vector<StrategyRun>& runs);
Json to_json(const StrategyRun& run, const Job& job);

/// Writes everything into job.output: job.json (resolved), metrics.jsonl (one per strategy when there are
/// several), plan, schedule, timelines, trace, loss.svg, report.html, summary.json. Returns the path of the
/// report.
std::filesystem::path write_results(const Job& job, const ModelConfig& model, const Cluster& cluster,
                                    const std::vector<StrategyRun>& runs);

}  // namespace hetermoe
