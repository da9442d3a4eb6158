#pragma once
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/model/model_config.h"
#include "hetermoe/report/event_file.h"
#include "hetermoe/train/job/job.h"
#include "hetermoe/train/run/outcome.h"

// Output files of a run: resolved configuration, plan, schedule, metrics, timelines, loss curve, report.
namespace hetermoe {

/// One strategy's training and prediction, as `train` shows one of and `compare` several.
struct StrategyRun {
  std::string strategy;  ///< printed form: dist-ep
  Plan plan;
  PredictedStep predicted;
  TrainOutcome outcome;
};

/// One line of text for a step: step, loss, auxiliary loss, gradient norm, learning rate, tokens/s, expert
/// max/mean, waiting share per role. emulated: times are those of an emulated clock, and labelled so.
std::string log_line(const StepRecord& record, i64 total_steps, bool emulated);
/// The meaning of the words of the record's log_line(), in one line.
std::string log_line_key(const StepRecord& record, bool emulated);

/// Files that runs write to a job's output folder while they go on. With its first step a run writes
/// job.json, model.json, cluster.json, summary.json, plan.json and predicted.json; with each step
/// metrics.jsonl and its numbers for TensorBoard below tensorboard/; now and then timeline.json and
/// experts.json of the step that ended last. With several strategies each has files of its own:
/// metrics-STRATEGY.jsonl, tensorboard/STRATEGY/.
class RunFiles {
 public:
  /// Keeps references to all. runs: those that there will be, with what is known of them so far.
  RunFiles(const Job& job, const ModelConfig& model, const Cluster& cluster,
           const std::vector<StrategyRun>& runs)
      : job_(job), model_(model), cluster_(cluster), runs_(runs) {}
  /// A run's first record empties its file, but for the steps that an earlier run had done before it.
  void add(const StrategyRun& run, const StepRecord& record);
  /// So much time has passed that another picture costs little.
  bool wants_picture() const;
  void add_picture(const StrategyRun& run, const StepPicture& picture);

 private:
  struct Files {
    std::ofstream lines;
    std::optional<EventFile> events;
  };
  Files open(const StrategyRun& run, i64 first_step) const;
  const Job& job_;
  const ModelConfig& model_;
  const Cluster& cluster_;
  const std::vector<StrategyRun>& runs_;
  std::map<const StrategyRun*, Files> files_;
  std::chrono::steady_clock::time_point next_picture_{};
};

/// The file in the output folder with the experts before growth.
std::filesystem::path growth_file(const Job& job);
/// Removes that file of another run of the output folder.
void forget_growth(const Job& job);

/// Columns: strategy, predicted, replayed and executed step, busy share per role, final losses.
std::string strategy_table(const std::vector<StrategyRun>& runs);
Json to_json(const StrategyRun& run, const Job& job);

/// Writes into job.output: job.json (resolved), plan, timelines and trace per strategy, summary.json, and
/// what these and the metrics make: loss.svg, report.html. Returns the path of the report.
std::filesystem::path write_results(const Job& job, const ModelConfig& model, const Cluster& cluster,
                                    const std::vector<StrategyRun>& runs);

}  // namespace hetermoe
