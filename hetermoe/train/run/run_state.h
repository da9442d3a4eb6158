#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/comm/processes.h"
#include "hetermoe/comm/sent_bytes.h"
#include "hetermoe/cost/measured.h"
#include "hetermoe/routing/trace_routing.h"
#include "hetermoe/train/run/run_part.h"
#include "hetermoe/train/run/run_text.h"
#include "hetermoe/train/session/priced_plan.h"
#include "hetermoe/train/session/session.h"
#include "hetermoe/train/session/start.h"
#include "hetermoe/weights/hf_export.h"

namespace hetermoe {

/// [num_layers][experts]
using LayerCopies = std::vector<std::vector<double>>;
LayerCopies copies_of(const at::Tensor& counts_LE);

/// The choices of the routers in the next step.
struct ForeseenStep {
  LayerCopies copies;
  TraceRouting routing;
};

/// Data that the loop and the parts of a run share: its inputs, the session, and its progress.
struct RunState {
  /// Makes the session, whose weights come by start_weights() or from a checkpoint. Collective. Throws as
  /// make_session() does. Keeps references to job, data and processes.
  RunState(const Job& its_job, ModelConfig its_model, Cluster its_cluster, Plan plan, const Dataset& data,
           const Processes& its_processes, Checkpoints checkpoints);
  RunState(const RunState&) = delete;
  RunState& operator=(const RunState&) = delete;

  const Plan& plan() const { return priced->plan; }  ///< in force
  SessionParts parts_with(const PricedPlan& its_priced);
  /// The user should know; TrainOutcome::notes keeps it.
  void tell(const std::string& text);
  /// Input of sequences first, first + 1, ... of the sampler: as many as a step has, so that the plan's
  /// shares fit.
  StepInput input_of(const Sampler& sampler, i64 step, i64 first) const;
  /// The first sequence of the newest step that has begun.
  i64 first_sequence() const { return next_sequence - job.train.sequences; }
  /// Steps of the job that are done.
  i64 steps_done() const { return outcome.first_step + static_cast<i64>(outcome.records.size()); }

  const Job& job;
  const Processes& processes;
  const ModelConfig model;
  const Cluster cluster;
  const Checkpoints checkpoints;
  const std::vector<PlannedChange> changes;
  const RunText text;
  const ProfileSet profiles;
  const Cluster nominal_cluster;             ///< no device is slower than its type
  const std::unique_ptr<MemoryMeter> meter;  ///< null: the run does not count tensors
  SentBytes sent;
  std::unique_ptr<PricedPlan> priced;
  const Plan first_plan;
  std::unique_ptr<Session> session;
  std::optional<HfWeights> source;  ///< train.init_from

  RunHooks hooks;
  TrainOutcome outcome;   ///< of run()
  i64 end;                ///< steps of run() under the clock of the job
  i64 timed_steps = 0;    ///< and after these
  i64 next_sequence = 0;  ///< index of the first training sequence of the next step
  StepResult last;
  std::vector<std::string> marks;  ///< of the step that comes
  std::string attempt;             ///< names this start among those that write the same folder
  std::string name;                ///< of checkpoints: that of the start from which all others went on
  std::vector<i64> order;          ///< [places] sequences of the step that begins; empty = as they come
  std::function<ForeseenStep(i64 step)>
      foresight;  ///< before step `step`, collective; empty = nothing foresees
  std::vector<RouteReader*> route_readers;
  RunParts parts;
};

/// Choices of routers are collected by sequence, and a team of several processes has none whole. Throws
/// ConfigError where some plan of such a run has teams.
void check_choices_are_whole(const RunState& run);

}  // namespace hetermoe
