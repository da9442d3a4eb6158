#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/routing/plan_figures.h"
#include "hetermoe/sim/simulated_step.h"
#include "hetermoe/timeline/timeline.h"
#include "hetermoe/train/run/layer_loads.h"

// What a run tells: of each step, of changes of plan, and at its end; and who hears of it.
namespace hetermoe {

/// Loss of the validation text, in nats per token.
struct Validation {
  struct OfSource {
    std::string name;
    double loss = 0;
  };
  i64 step = 0;
  double loss = 0;                ///< of all sources by their shares
  std::vector<OfSource> sources;  ///< where there are several
};

/// One log line.
struct StepRecord {
  i64 step = 0;  ///< 1 = the first
  double loss = 0, aux_loss = 0, grad_norm = 0, learning_rate = 0;
  double tokens_per_s = 0;                 ///< in the clock's seconds
  double expert_max_over_mean = 0;         ///< worst layer
  std::vector<LayerLoad> loads;            ///< of layers with experts
  i64 top_k = 0;                           ///< experts that a token sees, 0 = there are none
  StepRouting routing;                     ///< under the plan in force, means over layers
  u64 tokens_hash = 0;                     ///< of tokens and targets of the whole step
  std::optional<double> replayed_choices;  ///< share of the choices that came from routing.replay
  double attention_wait = 0,
         expert_wait = 0;  ///< share of the step in which a role's compute lanes do nothing
  Seconds step_s = 0;      ///< in the clock's seconds
  Seconds wall_s = 0;
  Bytes sent = 0, sent_between_nodes = 0;  ///< of tensors, between places of the plan
  Bytes peak_memory = 0;                   ///< resident so far, of the largest process
  Bytes gpu_peak = 0;                      ///< most bytes of tensors so far on the fullest GPU, 0 on CPUs
  bool overflowed = false;                 ///< skipped for fp16 gradients, and the loss scale was lowered
  bool updated = true;                     ///< false: loss or gradients were not finite, the step was skipped
  std::vector<std::string> warnings;       ///< what the run noticed of its own health in this step
  std::map<std::string, double> mfu;  ///< model FLOPs utilisation by type of device; empty = nobody knows
  /// By name of device: the most bytes of tensors of the step, on a GPU of the run so far. Only where they
  /// are counted: on GPUs, and on CPUs in `train` under the virtual clock.
  std::map<std::string, Bytes> memory;
  bool owners_held = false;              ///< what the balancer chose before this step was not taken
  std::vector<std::string> marks;        ///< what changed before this step: another plan, more experts
  std::optional<Validation> validation;  ///< after this step
};

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

/// What a step did on all devices, and what experts have computed up to it.
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

/// Who hears of a run while it goes on. Each may be empty.
struct RunHooks {
  std::function<void(const StepRecord&)> on_step{};
  /// What the user should know, at once: what of checkpoints and of a changed job before the first step.
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
