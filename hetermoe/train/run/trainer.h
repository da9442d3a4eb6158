#pragma once
#include <chrono>
#include <deque>
#include <optional>
#include <string>

#include "hetermoe/train/run/run_state.h"
#include "hetermoe/train/run/stop.h"

namespace hetermoe {

/// The result of Trainer::record_routes.
struct RecordedRoutes {
  i64 steps_done = 0;  ///< of the run whose weights routed, 0 = it had not begun
  i64 first_sequence = 0;
  i64 steps = 0;
  double loss = 0;  ///< cross entropy, mean over counted targets of all
};

/// Runs one job: with one plan, or with one after another as train.changes says. It is the loop over steps;
/// all that goes along with them is a part (run_part.h).
class Trainer {
 public:
  /// With several processes each runs its part of the plan's devices, and all know the results. Keeps
  /// references to job, data and processes.
  Trainer(const Job& job, ModelConfig model, Cluster cluster, Plan plan, const Dataset& data,
          const Processes& processes, Checkpoints checkpoints = Checkpoints::kOff);

  /// Prediction for the current plan.
  PredictedStep predict() const;
  /// overfilled_device() of the plan in force, in the dtypes of the emulated devices; empty = all have room.
  std::string overfilled() const;
  /// Trains job.train.steps steps, then `timed_steps` more under the paced clock when asked.
  TrainOutcome run(const RunHooks& hooks, i64 timed_steps = 0);
  TrainOutcome run(std::function<void(const StepRecord&)> on_step = {}, i64 timed_steps = 0) {
    return run(RunHooks{.on_step = std::move(on_step)}, timed_steps);
  }

  /// run() ends after this step, of a job that has more: another trainer goes on from its checkpoint.
  void end_after(i64 step) { run_.end = step; }
  /// The first step of run() gets this mark.
  void mark_first(const std::string& text) { run_.marks.push_back(text); }

  /// Trains from a checkpoint, or from the start when there is none, up to and including step `step` (1 = the
  /// first) and returns that step. Writes nothing.
  StepRecord replay_step(const std::optional<FoundCheckpoint>& checkpoint, i64 step);
  /// Writes the trace routing.record of the next `steps` batches by forward passes: with the weights of the
  /// checkpoint, or those of the start when there is none. Nothing is trained.
  RecordedRoutes record_routes(const std::optional<FoundCheckpoint>& checkpoint, i64 steps,
                               TextCondition condition = TextCondition::kText);

  Session& session() { return *run_.session; }
  const Plan& plan() const { return run_.plan(); }  ///< in force
  const Cluster& cluster() const { return run_.cluster; }

 private:
  /// A step that has not ended.
  struct BegunStep {
    i64 step = 0;
    double learning_rate = 0;
    u64 tokens_hash = 0;
    std::chrono::steady_clock::time_point at;
  };
  void begin_run();
  void tell_staleness();
  i32 train_steps(i64 end);
  void begin_step(i64 step);
  bool may_begin_next(i64 step) const;
  StepRecord end_step();
  i32 finish_step(StepRecord record);

  RunState run_;
  std::deque<BegunStep> begun_;
  std::chrono::steady_clock::time_point ended_at_;  // of the last step
};

}  // namespace hetermoe
