#pragma once
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/report/event_file.h"
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

/// What a token of the job's data is: byte or token.
const char* token_word(const Job& job);

/// One line of text for a step: step, loss, auxiliary loss, gradient norm, learning rate, tokens/s, expert
/// max/mean, waiting share per role.
std::string log_line(const StepRecord& record, i64 total_steps);
/// One JSON line of metrics.
Json metrics_json(const StepRecord& record);

/// With the first step job.json, and metrics.jsonl of a job's output folder (metrics-STRATEGY.jsonl when
/// there are several), written step by step, and its numbers for TensorBoard below tensorboard/
/// (tensorboard/STRATEGY/).
class MetricsLog {
 public:
  MetricsLog(const Job& job, std::size_t num_strategies);
  /// A strategy's first record empties its file, but for the steps that an earlier run had done before it.
  void add(const std::string& strategy, const StepRecord& record);

 private:
  Job job_;
  std::filesystem::path folder_;
  bool several_;
  struct Files {
    std::ofstream lines;
    std::optional<EventFile> events;
  };
  Files open(const std::string& strategy, i64 first_step) const;
  std::map<std::string, Files> files_;
};

/// Columns: strategy, predicted, replayed and executed step, busy share per role, final losses.
std::string strategy_table(const std::vector<StrategyRun>& runs);
Json to_json(const StrategyRun& run, const Job& job);

/// Writes into job.output: job.json (resolved), plan, timelines and trace per strategy, loss.svg,
/// report.html, summary.json. Returns the path of the report.
std::filesystem::path write_results(const Job& job, const ModelConfig& model, const Cluster& cluster,
                                    const std::vector<StrategyRun>& runs);

}  // namespace hetermoe
