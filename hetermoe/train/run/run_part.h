#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "hetermoe/comm/processes.h"
#include "hetermoe/exec/step.h"
#include "hetermoe/train/checkpoint/checkpoint.h"
#include "hetermoe/train/run/outcome.h"
#include "hetermoe/train/run/step_report.h"

namespace hetermoe {

/// A step that has ended on all ranks, as parts complete it.
struct StepDone {
  StepRecord record;
  const StepReport& all;                 ///< what all ranks together know of it
  std::optional<Timeline> picture = {};  ///< of all devices, where rank 0 wanted it
};

/// Something that goes along with the steps of a run: a balancer, checkpoints, validation. The loop (Trainer)
/// calls each function for all parts in the order of make_parts(), on all ranks and in the thread of run().
/// So parts may make collective calls in the functions that say so. A part knows RunState and no other part.
class RunPart {
 public:
  RunPart() = default;
  virtual ~RunPart() = default;
  RunPart(const RunPart&) = delete;
  RunPart& operator=(const RunPart&) = delete;

  /// Called by Trainer::run() alone, when weights are there and the first step is about to begin. Collective.
  virtual void begin_run() {}
  /// Between two steps, before step `step` (0 = the first): here the plan may change. Collective.
  virtual void before_step(i64 /*step*/) {}
  /// Adds to the input of the step that begins. Collective.
  virtual void add_to(StepInput& /*input*/) {}
  /// The step has ended on this rank (RunState::last), others may still compute. Time spent here counts as
  /// the step's. Collective.
  virtual void step_ended(StepRecord& /*record*/) {}
  /// The step has ended on all ranks. Not called for steps that are repeated. Collective.
  virtual void after_step(StepDone& /*done*/) {}
  /// After the last step of Trainer::run(). Collective.
  virtual void end_run() {}

  /// Another plan is in force.
  virtual void plan_changed() {}
  /// Writes what it knows into a checkpoint, and reads it from one.
  virtual void save(CheckpointInfo& /*info*/) {}
  virtual void load(const CheckpointInfo& /*info*/) {}
  /// The plan by which a run goes on from a checkpoint, if this part says which comes when.
  virtual std::optional<Plan> plan_after(const CheckpointInfo& /*info*/) const { return std::nullopt; }
  /// Another process of the run is lost: whether the run goes on without it. A part that takes it knows how;
  /// all processes must answer alike. Called on a thread of its own, at any time of run().
  virtual bool take_lost(const LostProcess& /*lost*/) { return false; }
  /// The step after `step` (0 = the first) may begin only when `step` has ended.
  virtual bool ends_before_next(i64 /*step*/) const { return false; }
};

using RunParts = std::vector<std::unique_ptr<RunPart>>;

}  // namespace hetermoe
