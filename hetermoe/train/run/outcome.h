#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/report/step_record.h"
#include "hetermoe/sim/simulated_step.h"
#include "hetermoe/timeline/timeline.h"

// Reports of a run: of each step, of changes of plan, and at its end; and the hooks that receive them.
namespace hetermoe {

/// How well a paced run kept the pace of the emulated cluster.
struct PaceReport {
  double scale = 0;      ///< real seconds per emulated second
  double cpu_share = 0;  ///< processor time over wall time and cores
  double lag = 0;        ///< median step over the simulation of what it routed, minus 1
  bool kept_up = true;
};

/// A plan that took over.
struct PlanTakeover {
  i64 step = 0;             ///< the first that it computed, 1 = the first of the run
  std::string plan;         ///< its name
  i64 moves = 0;            ///< units that went to another device
  Bytes bytes = 0;          ///< of them, as predicted
  Seconds simulated_s = 0;  ///< of the moves on the cluster
  Seconds executed_s = 0;   ///< of the whole change, in real time
  Timeline simulated;       ///< of the moves
};

struct TrainOutcome {
  i64 first_step = 0;              ///< steps that an earlier run had done: it went on from its checkpoint
  std::vector<std::string> notes;  ///< what on_note heard
  std::vector<StepRecord> records;
  std::vector<PlanTakeover> changes;
  /// [num_layers][experts] copies of the steps of this run; rows of dense layers are zero.
  std::vector<std::vector<double>> expert_copies;
  i64 copies_from = 1;         ///< the step that they begin with: experts may have been fewer before it
  double unigram_entropy = 0;  ///< of the validation text, nats; of several sources by their shares
  std::vector<std::string> warnings;  ///< of all steps, "step 12: ..."
  i64 skipped_steps = 0;
  i32 stopped_by = 0;                 ///< the signal that ended the run before its last step, 0 = none did
  Seconds executed_step = 0;          ///< median over the timed steps, in the clock's seconds
  Seconds replayed_step = 0;          ///< emulated clocks: median simulation of what those steps routed
  double executed_over_replayed = 0;  ///< median over the same steps
  Timeline executed;                  ///< of the last step
  std::optional<PaceReport> pace;
  std::vector<Validation> validations() const;  ///< of all records
};

/// Timeline of a step on all devices, and the copies of experts up to it.
struct StepPicture {
  i64 first_step = 0, last_step = 0;  ///< of expert_copies
  Timeline executed;                  ///< of the last step
  std::vector<std::vector<double>> expert_copies;
};

/// The prediction for a plan: even routing, contention included.
struct PredictedStep {
  Timeline timeline;
  Seconds step = 0;
  std::vector<MemoryPeak> memory;  ///< [place] in the dtypes that the run computes in
};

/// Functions that a run calls while it goes on. Each may be empty.
struct RunHooks {
  std::function<void(const StepRecord&)> on_step{};
  /// Notes for the user, at once; before the first step those on checkpoints and on a changed job.
  std::function<void(const std::string&)> on_note{};
  /// Before the first step, with the number of steps that an earlier run had done.
  std::function<void(i64)> on_begin{};
  /// Rank 0 is asked after each step whether it wants the picture of it, which takes the others' part.
  std::function<bool()> wants_picture{};
  std::function<void(const StepPicture&)> on_picture{};  ///< after on_step
};

/// Whether a run keeps and uses the checkpoints of its output folder.
enum class Checkpoints { kOff, kOn };

}  // namespace hetermoe
